// The RecordFunction callback of all threads. It takes no lock and allocates nothing per operator, except the
// interpreter's lock for a new Python stack or module, and it never throws into the program.
#pragma once

#include <memory>
#include <mutex>

#include "operators.h"

namespace pasta {

inline std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &function) {
    if (!owns_ring()) return nullptr;
    try {
        Thread &thread = Thread::ensure();
        if (function.scope() == at::RecordScope::USER_SCOPE)
            begin_range(thread, function.name());
        else
            begin_operator(thread, function);
    } catch (...) {
    }
    return nullptr;
}

inline void on_end(const at::RecordFunction &function, at::ObserverContext *) {
    Thread *thread = Thread::current();
    // an asynchronous call may end on another thread than it began on, where it was never open
    if (!thread || !owns_ring() || function.isAsync()) return;
    try {
        if (function.scope() == at::RecordScope::USER_SCOPE)
            end_range(*thread);
        else
            end_operator(*thread, function);
    } catch (...) {
    }
}

class Callback {
  public:
    // Adds, changes or removes the callback by what launcher and block request together. With the interpreter's lock;
    // may throw.
    void apply_requests() {
        const Request &launch = options.launch, &block = options.block;
        options.tensors = launch.tensors || block.tensors;
        options.frames = std::max(launch.frames, block.frames);
        const Request &modules = block.namer ? block : launch;
        options.module_call = modules.module_call;
        options.namer = modules.namer;
        options.reads_frames = frame_layout_matches() && first_argument_is_plain(options.module_call);
        bool needed = launch.operators || block.operators;
        std::lock_guard<std::mutex> lock(mutex_);
        if (added_ && (!needed || takes_tensors_ != options.tensors)) {
            at::removeCallback(handle_);
            added_ = enabled_ = false;
        }
        if (needed && !added_) {
            using at::RecordScope;
            handle_ = at::addGlobalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                                .needsInputs(options.tensors)
                                                .needsOutputs(options.tensors)
                                                .scopes({RecordScope::FUNCTION, RecordScope::BACKWARD_FUNCTION,
                                                         RecordScope::TORCHSCRIPT_FUNCTION, RecordScope::USER_SCOPE}));
            added_ = enabled_ = true;
            takes_tensors_ = options.tensors;
        }
        enable_locked(library->is_on());
        library->on_profiling(enable);
        if (needed) sampler.start();
    }

  private:
    static void enable(bool on);

    void enable_locked(bool on) {
        sampler.activate(on && added_);
        if (!added_ || enabled_ == on) return;
        enabled_ = on;
        if (on)
            at::reenableCallback(handle_);
        else
            at::disableCallback(handle_);
    }

    std::mutex mutex_;
    at::CallbackHandle handle_;
    bool added_ = false, enabled_ = false, takes_tensors_ = false;
};
inline Callback callback;

// Called when profiling starts or stops.
inline void Callback::enable(bool on) {
    std::lock_guard<std::mutex> lock(callback.mutex_);
    callback.enable_locked(on);
}

} // namespace pasta
