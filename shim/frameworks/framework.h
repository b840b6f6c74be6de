/* Between the files of frameworks. */
#ifndef PASTA_FRAMEWORKS_H
#define PASTA_FRAMEWORKS_H

#include "../core/internal.h"

/* True where the launcher configured the hooks of this framework; once pasta_frameworks is loaded. */
bool pasta_framework_is_watched(const char *name);
/* Adds a framework's function to the table of hooks; see the member of this name. */
void pasta_framework_provide(bool (*follow_allocators)(bool follow));
uint32_t pasta_framework_stack(void); /* id of the Python stack of this thread's operator; 0: none */

#endif
