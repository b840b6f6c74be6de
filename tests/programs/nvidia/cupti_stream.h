/* A file of what CUPTI delivered: callbacks in order with what their pointers point to, and buffers of records.
 * Written by cupti_recorder.c on a machine with a GPU, played by cupti_replay.h.
 *
 * The file is a sequence of entries: their head, then `bytes` of content.
 *   CALL      stream_call, the arguments, the symbol, and blobs
 *   RESOURCE  stream_resource, and for a module its image
 *   NUMBER    stream_number: the number that CUPTI gives for a handle
 *   BUFFER    valid bytes of a buffer; names of kernels and devices follow it as blobs
 *
 * A blob is a stream_blob and its bytes: memory that a pointer at `offset` of a parent points to.  Parent 0 is what
 * precedes the blobs, n is the n-th blob.
 */
#ifndef PASTA_TEST_CUPTI_STREAM_H
#define PASTA_TEST_CUPTI_STREAM_H

#include <stdint.h>

enum { STREAM_CALL = 1, STREAM_RESOURCE = 2, STREAM_NUMBER = 3, STREAM_BUFFER = 4, STREAM_ARGUMENTS = 64, STREAM_VERSION = 5 };
enum { NUMBER_OF_DEVICE = 1, NUMBER_OF_CONTEXT = 2, NUMBER_OF_STREAM = 3, NUMBER_OF_NODE = 4 };

typedef struct stream_entry {
    uint32_t type, bytes, thread, unused; /* thread: in order of appearance, from 0 */
} stream_entry;

typedef struct stream_call {
    int32_t domain;
    uint32_t id;
    int32_t site, result;
    uint32_t correlation, context_id, symbol_bytes, unused; /* symbol_bytes: 0 for none */
    uint64_t context;
    uint8_t arguments[STREAM_ARGUMENTS];
} stream_call;

typedef struct stream_resource {
    uint32_t id, module, image_bytes, unused;
    uint64_t context, stream, node, original_node;
} stream_resource;

typedef struct stream_number {
    uint64_t kind, handle, number;
} stream_number;

typedef struct stream_blob {
    uint32_t parent, offset, bytes, unused;
} stream_blob;

#endif
