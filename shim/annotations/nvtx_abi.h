/* The binary interface between NVTX version 3 and the tool it loads, under names of our own.
 * Facts from nvToolsExt.h and nvtxDetail/nvtxTypes.h of NVTX 3.1 to 3.3 (CUDA 12 and 13), and of payloads from
 * nvToolsExtPayload.h and nvtxDetail/nvtxExtTypes.h of NVTX 3.2 (CUDA 13.0);
 * tests/programs/nvtx_abi_check.c compares every one of them with the real headers. */
#ifndef PASTA_NVTX_ABI_H
#define PASTA_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

/* Tables that NVTX hands out. */
enum { PASTA_NVTX_TABLE_CALLBACKS = 1, PASTA_NVTX_TABLE_VERSION = 3 };
/* Groups of callbacks. */
enum { PASTA_NVTX_CORE = 1, PASTA_NVTX_CORE2 = 5 };

enum {
    PASTA_NVTX_MARK_EX = 1,
    PASTA_NVTX_MARK_A = 2,
    PASTA_NVTX_MARK_W = 3,
    PASTA_NVTX_RANGE_START_EX = 4,
    PASTA_NVTX_RANGE_START_A = 5,
    PASTA_NVTX_RANGE_START_W = 6,
    PASTA_NVTX_RANGE_END = 7,
    PASTA_NVTX_RANGE_PUSH_EX = 8,
    PASTA_NVTX_RANGE_PUSH_A = 9,
    PASTA_NVTX_RANGE_PUSH_W = 10,
    PASTA_NVTX_RANGE_POP = 11,
};

enum {
    PASTA_NVTX_DOMAIN_MARK_EX = 1,
    PASTA_NVTX_DOMAIN_RANGE_START_EX = 2,
    PASTA_NVTX_DOMAIN_RANGE_END = 3,
    PASTA_NVTX_DOMAIN_RANGE_PUSH_EX = 4,
    PASTA_NVTX_DOMAIN_RANGE_POP = 5,
    PASTA_NVTX_DOMAIN_REGISTER_STRING_A = 10,
    PASTA_NVTX_DOMAIN_REGISTER_STRING_W = 11,
    PASTA_NVTX_DOMAIN_CREATE_A = 12,
    PASTA_NVTX_DOMAIN_CREATE_W = 13,
};

enum {
    PASTA_NVTX_MESSAGE_ASCII = 1,
    PASTA_NVTX_MESSAGE_UNICODE = 2, /* wchar_t */
    PASTA_NVTX_MESSAGE_REGISTERED = 3,
};

enum { PASTA_NVTX_COLOR_ARGB = 1 };

/* What a push or pop returns where nesting is not followed. */
enum { PASTA_NVTX_NOT_TRACKED = -2 };

typedef struct pasta_nvtx_attributes {
    uint16_t version;
    uint16_t size; /* of the caller's structure */
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered;
    } message;
} pasta_nvtx_attributes;

typedef void (*pasta_nvtx_function)(void);

typedef struct pasta_nvtx_callbacks {
    size_t bytes;
    /* Sets `table` to an array of `size` addresses of function pointers; 0 on failure. */
    int (*module_table)(int module, pasta_nvtx_function ***table, unsigned *size);
} pasta_nvtx_callbacks;

typedef struct pasta_nvtx_version {
    size_t bytes;
    uint32_t version;
    uint32_t reserved;
    void (*set_injection_version)(uint32_t version);
} pasta_nvtx_version;

typedef const void *(*pasta_nvtx_tables)(uint32_t table);

/* ---- payloads: an extension, which asks for its functions separately ---- */

enum { PASTA_NVTX_EXTENSION_PAYLOAD = 2 };      /* of the extensions */
enum { PASTA_NVTX_PAYLOAD_SCHEMA_REGISTER = 0 }; /* of its functions */
enum { PASTA_NVTX_PAYLOAD_EXTENDED = (int32_t)0xdfbd0009 }; /* type of an attribute's payload: `pasta_nvtx_payload`s */
enum { PASTA_NVTX_ENTRY_REGISTERED = 80 }; /* an entry is a registered string */
enum { PASTA_NVTX_SCHEMA_HAS_ENTRIES = 1 << 4, PASTA_NVTX_SCHEMA_HAS_COUNT = 1 << 5, PASTA_NVTX_SCHEMA_HAS_ID = 1 << 8 };
#define PASTA_NVTX_SCHEMA_DYNAMIC (UINT64_C(1) << 32) /* first id that a tool may assign */

typedef struct pasta_nvtx_segment {
    size_t number, count;
    pasta_nvtx_function *functions;
} pasta_nvtx_segment;

typedef struct pasta_nvtx_extension {
    uint16_t version, size, id, compatibility;
    size_t segment_count;
    pasta_nvtx_segment *segments;
    void (*export_function)(void);
    const void *info;
} pasta_nvtx_extension;

typedef struct pasta_nvtx_entry {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t length, offset;
    const void *semantics, *reserved;
} pasta_nvtx_entry;

typedef struct pasta_nvtx_schema {
    uint64_t fields; /* which of the members are valid */
    const char *name;
    uint64_t type, flags;
    const pasta_nvtx_entry *entries;
    size_t count, size, alignment;
    uint64_t id;
    void *extension;
} pasta_nvtx_schema;

typedef struct pasta_nvtx_payload {
    uint64_t schema;
    size_t size;
    const void *data;
} pasta_nvtx_payload;

#endif
