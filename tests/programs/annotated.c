/* A program annotated with pasta.h, as C and as C++. */
#include "pasta.h"

int main(void) {
    pasta_range_push("outer");
    pasta_range_push("inn\xc3\xa9");
    pasta_range_pop();
    pasta_range_pop();
    pasta_range_pop(); /* none is open: no record */
    uint64_t id = pasta_range_start("process");
    pasta_stop();
    pasta_mark("while stopped");
    pasta_start();
    pasta_mark("mark");
    pasta_step();
    pasta_range_end(id);
    return 0;
}
