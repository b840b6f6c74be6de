/* memory [--leak]: every kind of allocation, copy and set.
 * 6 allocations (3 device, 1 managed, 1 pinned, 1 stream-ordered), 6 frees, 5 sets, 9 copies,
 * 1 stream, no launch.  --leak: one device allocation of 12345 bytes more, never freed. */
#include "demo.h"

enum { N = 1 << 16, PITCH = 512, WIDTH = 300, HEIGHT = 100, LEAK = 12345 };

static unsigned char source[N], target[N];

static void copies(unsigned char *device, unsigned char *other, unsigned char *managed, unsigned char *pinned) {
    for (int i = 0; i < N; i++) source[i] = (unsigned char)(i * 31 + i / 256);
    RA(ra_memcpy(device, source, N));  /* host to device */
    RA(ra_memcpy(other, device, N));   /* device to device */
    RA(ra_memcpy(pinned, other, N));   /* device to pinned */
    RA(ra_memcpy(managed, pinned, N)); /* pinned to managed */
    RA(ra_memcpy(target, managed, N)); /* managed to host */
    CHECK(!memcmp(target, source, N));
    RA(ra_memset(device, 0, 1, N));
    RA(ra_memcpy_2d(device, PITCH, source, WIDTH, WIDTH, HEIGHT));
    RA(ra_memcpy_2d(target, WIDTH, device, PITCH, WIDTH, HEIGHT));
    CHECK(!memcmp(target, source, WIDTH * HEIGHT));
    for (int row = 0; row < HEIGHT; row++) CHECK(device[row * PITCH + WIDTH] == 0);
    RA(ra_memcpy(target, source, N)); /* host to host */
}

static void sets(unsigned char *device, unsigned char *managed, ra_stream stream) {
    RA(ra_memset(device, 0xab, 1, N));
    RA(ra_memset(device, 0x1234, 2, 100));
    RA(ra_memset_async(managed, 0x01020304, 4, N / 4, stream));
    RA(ra_memset_2d_async(managed, PITCH, 7, 1, WIDTH, HEIGHT, stream));
    RA(ra_stream_synchronize(stream));
    CHECK(device[0] == 0x34 && device[1] == 0x12 && device[199] == 0x12 && device[200] == 0xab);
    CHECK(managed[WIDTH - 1] == 7 && managed[WIDTH] == 4 && managed[PITCH] == 7);
}

int main(int argc, char **argv) {
    bool leak = demo_flag(argc, argv, "--leak");
    demo_expect(argc, argv,
                (struct demo_counts){.copies = 9,
                                     .sets = 5,
                                     .allocations = 6 + leak,
                                     .frees = 6,
                                     .streams = 1,
                                     .leaked_bytes = leak ? LEAK : 0});
    ra_stream stream;
    void *device = demo_alloc(N), *other = demo_alloc(N), *unused = demo_alloc(1), *managed, *pinned, *pool;
    RA(ra_stream_create(&stream, 0));
    RA(ra_alloc_managed(&managed, N));
    RA(ra_alloc_pinned(&pinned, N));
    RA(ra_alloc_async(&pool, N, stream));
    RA(ra_advise(managed, N, RA_ADVICE_READ_MOSTLY, 0));
    RA(ra_prefetch(managed, N, 0, stream));
    RA(ra_stream_attach(stream, managed, N, 1));
    copies(device, other, managed, pinned);
    sets(device, managed, stream);
    RA(ra_memcpy_async(pool, device, N, stream));
    RA(ra_free_async(pool, stream));
    RA(ra_stream_synchronize(stream));
    if (leak) demo_alloc(LEAK);
    RA(ra_free(unused));
    RA(ra_free(pinned));
    RA(ra_free(managed));
    RA(ra_free(other));
    RA(ra_free(device));
    RA(ra_stream_destroy(stream));
    printf("memory: correct%s\n", leak ? ", one allocation leaked" : "");
    return 0;
}
