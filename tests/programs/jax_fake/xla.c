/* Names work as XLA does in NVTX's domain "TSL", for a Python program that is the rest of XLA. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#ifdef REAL_NVTX
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>
#ifndef NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE /* before NVTX 3.2 */
#define NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE NVTX_PAYLOAD_SCHEMA_ATTR_TYPE
#define NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES NVTX_PAYLOAD_SCHEMA_ATTR_ENTRIES
#define NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES NVTX_PAYLOAD_SCHEMA_ATTR_NUM_ENTRIES
#define NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE NVTX_PAYLOAD_SCHEMA_ATTR_STATIC_SIZE
#endif
#else
#include "../nvtx_fake.h"
#endif

typedef struct {
    nvtxStringHandle_t hlo, places;
} payload;

typedef struct {
    nvtxStringHandle_t title;
    payload data;
    int is_module;
} annotation;

static nvtxDomainHandle_t domain;

/* The schema of a module, or of an instruction. */
static uint64_t schema_of(int is_module) {
    static uint64_t ids[2];
    if (ids[is_module]) return ids[is_module];
    nvtxPayloadSchemaEntry_t entries[2];
    nvtxPayloadSchemaAttr_t schema;
    memset(entries, 0, sizeof entries);
    memset(&schema, 0, sizeof schema);
    entries[0].type = entries[1].type = NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE;
    entries[0].name = is_module ? "Name" : "HLO";
    entries[0].offset = offsetof(payload, hlo);
    entries[1].name = is_module ? "Common source locations" : "Source locations";
    entries[1].offset = offsetof(payload, places);
    schema.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                       NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
    schema.type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC;
    schema.entries = entries;
    schema.numEntries = 2;
    schema.payloadStaticSize = sizeof(payload);
    return ids[is_module] = nvtxPayloadSchemaRegister(domain, &schema);
}

static nvtxStringHandle_t registered(const char *text) { return text ? nvtxDomainRegisterStringA(domain, text) : NULL; }

annotation *xla_annotation(const char *title, const char *places, const char *hlo) {
    if (!domain) domain = nvtxDomainCreateA("TSL");
    annotation *a = calloc(1, sizeof *a);
    if (!a) abort();
    *a = (annotation){registered(title), {registered(hlo), registered(places)}, !strncmp(title, "XlaModule:", 10)};
    return a;
}

int xla_push(const annotation *a) {
    nvtxPayloadData_t data = {schema_of(a->is_module), sizeof(payload), &a->data};
    nvtxEventAttributes_t attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.version = NVTX_VERSION;
    attributes.size = sizeof attributes;
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = a->title;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_EXT;
    attributes.reserved0 = 1;
    memcpy(&attributes.payload, &(uint64_t){(uintptr_t)&data}, sizeof(uint64_t));
    return nvtxDomainRangePushEx(domain, &attributes);
}

int xla_push_text(const char *text) { /* as during compilation */
    nvtxEventAttributes_t attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.version = NVTX_VERSION;
    attributes.size = sizeof attributes;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = text;
    return nvtxDomainRangePushEx(domain, &attributes);
}

int xla_pop(void) { return nvtxDomainRangePop(domain); }
