/* Functions of other libraries that are interposed here: the original of each. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "internal.h"

void *pasta_next_symbol(const char *name, void *caller) {
    Dl_info info, found_in, self;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, name) : NULL;
    if (library) dlclose(library);
    bool own = found && dladdr(found, &found_in) && dladdr((void *)pasta_next_symbol, &self) && found_in.dli_fbase == self.dli_fbase;
    return found && !own ? found : dlsym(RTLD_NEXT, name); /* the caller is the program itself */
}
