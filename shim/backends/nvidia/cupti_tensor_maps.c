/* Tensor maps among the arguments of a launch: where a kernel's tensor loads and stores access memory.
 *
 * Maps are recognized by their contents, because libraries such as cuBLAS encode them without calling the driver.  NVIDIA
 * does not document the 64 bytes that the hardware reads.  On sm_90 with driver 580.159 these are, as 64-bit words:
 *
 *   0        address
 *   1        bit 0: im2col; bits 4 to 6: rank - 1; 7 to 10: type; up to 18: modes; 32 to 63: first stride / 16
 *   2, 3     strides 2 to 4, by 16, 32 bits each; bits 32 to 47 of word 3: 4 bits more for each stride
 *   4, 5, 6  sizes - 1, 32 bits each
 *   6        bits 32 to 46: steps of elements - 1, 3 bits for each dimension
 *   6, 7     bits 56 to 63, and word 7: sizes of the box - 1, a byte each
 *            im2col: channels - 1, corners of the box, and in bits 32 to 63 of word 7 pixels - 1
 *
 * tests/data/nvidia/tensor_maps.txt has what the driver encodes for 60 sets of parameters.
 */
#include <string.h>

#include "cupti_source.h"

enum { WORDS = 8, BYTES = 8 * WORDS, DIMENSIONS = 5, ALIGNMENT = 16, MAX_BOX = 256 << 10, MAX_PIXELS = 1024 };
static const uint64_t MAX_SPAN = 1ull << 57; /* of addresses */

/* Bytes of an element by type: u8, u16, u32, i32, u64, i64, f16, f32, f32 flushed, f64, bf16. */
static const uint8_t element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2};

static uint64_t bits(uint64_t word, unsigned first, unsigned count) { return word >> first & ((1ull << count) - 1); }

/* False: these words are not a map. */
static bool decode(const uint64_t *w, pasta_tensor_map *map) {
    uint64_t rank = bits(w[1], 4, 3) + 1, type = bits(w[1], 7, 4), span = 0;
    bool columns = bits(w[1], 0, 1);
    if (!w[0] || w[0] % ALIGNMENT || w[0] >= MAX_SPAN || bits(w[1], 2, 2) || bits(w[1], 19, 13)) return false;
    if (rank > DIMENSIONS || type >= sizeof element_bytes || w[3] >> 48 || bits(w[6], 47, 9)) return false;
    uint64_t strides[] = {0, w[1] >> 32, bits(w[2], 0, 32), w[2] >> 32, bits(w[3], 0, 32)};
    uint64_t sizes[] = {bits(w[4], 0, 32), w[4] >> 32, bits(w[5], 0, 32), w[5] >> 32, bits(w[6], 0, 32)};
    uint64_t box = element_bytes[type] * ((w[6] >> 56) + 1);
    if (box % ALIGNMENT) return false;
    for (unsigned i = 1; i < DIMENSIONS; i++) {
        uint64_t size = bits(w[7], 8 * (i - 1), 8), step = bits(w[6], 32 + 3 * i, 3);
        if (i >= rank && (sizes[i] || (!columns && size))) return false;
        uint64_t stride = (strides[i] | bits(w[3], 32 + 4 * (i - 1), 4) << 32) * ALIGNMENT;
        if (sizes[i] && stride > MAX_SPAN / sizes[i]) return false;
        span += sizes[i] * stride;
        if (!columns) box *= size / (step + 1) + 1;
    }
    if (columns && w[7] >> 32 >= MAX_PIXELS) return false;
    if (columns) box *= (w[7] >> 32) + 1;
    if (box > MAX_BOX || span > MAX_SPAN) return false;
    map->address = w[0];
    map->bytes = span + (sizes[0] + 1) * element_bytes[type];
    map->box = (uint32_t)box;
    return true;
}

static void scan(const void *memory, uint64_t bytes, uint64_t offset, pasta_nv_place place, uint64_t ordinal) {
    for (uint64_t at = 0; at + BYTES <= bytes; at += sizeof(uint64_t)) {
        uint64_t words[WORDS];
        pasta_tensor_map map = {.ordinal = ordinal, .offset = (uint32_t)(offset + at)};
        memcpy(words, (const uint8_t *)memory + at, sizeof words);
        if (!decode(words, &map)) continue;
        at += BYTES - sizeof *words;
        pasta_tensor_map *e = pasta_begin_result(pasta_thread(), PASTA_EVENT_tensor_map, PASTA_SLOTS(pasta_tensor_map),
                                                 place.device, place.context, PASTA_NO_STREAM);
        if (!e) return;
        *e = map;
        pasta_publish(e);
    }
}

static void scan_buffer(void *const *extra, pasta_nv_place place, uint64_t ordinal) {
    const void *buffer = NULL;
    uint64_t bytes = 0;
    for (; *extra; extra += 2) {
        uintptr_t key = (uintptr_t)extra[0];
        if (key == PASTA_CUPTI_EXTRA_BUFFER) buffer = extra[1];
        else if (key == PASTA_CUPTI_EXTRA_BYTES) memcpy(&bytes, extra[1], sizeof bytes);
        else return;
    }
    if (buffer) scan(buffer, bytes, 0, place, ordinal);
}

void pasta_cupti_publish_tensor_maps(pasta_nv_place place, const pasta_cupti_counted_launch *launch) {
    const pasta_cupti_arguments *a = &launch->arguments;
    uint64_t function = a->function, offset, bytes;
    if (a->extra) scan_buffer(a->extra, place, launch->ordinal);
    if (!a->parameters || !pasta_cuda.parameter) return;
    if (pasta_cuda.parameter(function, 0, &offset, &bytes) != 0 && /* a kernel of a library, or without parameters */
        (!pasta_cuda.kernel_function || pasta_cuda.kernel_function(&function, a->function) != 0))
        return;
    for (uint64_t i = 0; pasta_cuda.parameter(function, i, &offset, &bytes) == 0; i++)
        scan(a->parameters[i], bytes, offset, place, launch->ordinal);
}
