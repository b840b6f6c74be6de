/* Uses a made-up accelerator: one copy, and three launches of two kernels. */
#include <stddef.h>

#include "vendor.h"

__attribute__((visibility("default"))) const made_up_callbacks *made_up_subscriber;

int main(void) {
    if (!made_up_subscriber) return 3;
    made_up_subscriber->copy(4096);
    made_up_subscriber->launch("scale", 4);
    made_up_subscriber->launch("scale", 4);
    made_up_subscriber->launch("sum", 1);
    return 7;
}
