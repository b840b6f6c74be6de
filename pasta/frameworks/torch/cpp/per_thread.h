// One object for each thread, read through a pointer without a call or a lock.
#pragma once

#include <memory>

// Only the pointer is in thread-local storage: a library that is opened late has little room there for variables of
// the fast model. Where even that room is used up, build.py compiles with PASTA_DYNAMIC_TLS.
#ifdef PASTA_DYNAMIC_TLS
#define PASTA_TLS_MODEL
#else
#define PASTA_TLS_MODEL __attribute__((tls_model("initial-exec")))
#endif

namespace pasta {

template <typename T> class PerThread {
  public:
    // nullptr before `renew`, and while the thread ends: destructors of its other variables may still run operators.
    static T *get() { return current_; }

    // Replaces the thread's object by a new one. Throws std::bad_alloc.
    static T &renew() {
        owner_.object = std::make_unique<T>();
        current_ = owner_.object.get();
        return *current_;
    }

  private:
    struct Owner {
        std::unique_ptr<T> object;
        ~Owner() { current_ = nullptr; }
    };

    static inline __thread T *current_ PASTA_TLS_MODEL = nullptr;
    static inline thread_local Owner owner_;
};

} // namespace pasta
