/* The profiling interface of a made-up accelerator: it calls the functions of the registered table. */
typedef struct made_up_callbacks {
    void (*launch)(const char *kernel, unsigned blocks);
    void (*copy)(unsigned long bytes);
} made_up_callbacks;

extern const made_up_callbacks *made_up_subscriber;
