/* A program with many launches: many LAUNCHES, of vadd over three of OBJECTS buffers.  In between, buffers are freed and
 * allocated anew, copied, and waited for. */
#include "demos/demo.h"

enum { OBJECTS = 512, FLOATS = 64, BYTES = FLOATS * 4, BETWEEN_FREES = 16, BETWEEN_COPIES = 32, BETWEEN_WAITS = 64 };

int main(int argc, char **argv) {
    long launches = demo_number(argc, argv, 0, 10000, 1L << 30);
    int n = FLOATS;
    float host[FLOATS] = {0};
    void *objects[OBJECTS];
    ra_function add = demo_function("_Z4vaddPKfS0_Pfi");
    for (int i = 0; i < OBJECTS; i++) objects[i] = demo_alloc(BYTES);
    for (long i = 0; i < launches; i++) {
        void *a = objects[i % OBJECTS], *b = objects[i * 7 % OBJECTS], *c = objects[i * 13 % OBJECTS];
        demo_launch(add, n, NULL, (void *[]){&a, &b, &c, &n});
        if (i % BETWEEN_COPIES == 0) RA(ra_memcpy(a, host, BYTES));
        if (i % BETWEEN_WAITS == 0) RA(ra_context_synchronize());
        if (i % BETWEEN_FREES == 0) {
            RA(ra_free(c));
            for (int j = 0; j < OBJECTS; j++)
                if (objects[j] == c) objects[j] = demo_alloc(BYTES);
        }
    }
    RA(ra_context_synchronize());
    printf("%ld launches\n", launches);
    return 0;
}
