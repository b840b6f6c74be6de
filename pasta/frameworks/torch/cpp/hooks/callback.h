// The RecordFunction callback of all threads. It takes no lock and allocates nothing per operator, except the
// interpreter's lock for a new Python stack or module, and it never throws into the program.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "operators.h"

namespace pasta {

using Record = void(Thread &, const at::RecordFunction &);

template <Record record> std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction &function) {
    if (!owns_ring()) return nullptr;
    try {
        record(Thread::ensure(), function);
    } catch (...) {
    }
    return nullptr;
}

template <Record record> void on_end(const at::RecordFunction &function, at::ObserverContext *) {
    Thread *thread = Thread::current();
    // an asynchronous call may end on another thread than it began on, where it was never open
    if (!thread || !owns_ring() || function.isAsync()) return;
    try {
        record(*thread, function);
    } catch (...) {
    }
}

// One callback that PyTorch calls, or not, in some of its scopes.
template <Record begin, Record end> class Registered {
  public:
    explicit Registered(std::initializer_list<at::RecordScope> scopes) : scopes_(scopes) {}

    void set(bool needed, bool tensors) {
        if (added_ && (!needed || tensors_ != tensors)) {
            at::removeCallback(handle_);
            added_ = false;
        }
        if (!needed || added_) return;
        at::RecordFunctionCallback made(on_begin<begin>, on_end<end>);
        made.needsInputs(tensors).needsOutputs(tensors).scopes(scopes_);
        handle_ = at::addGlobalCallback(made);
        added_ = enabled_ = true;
        tensors_ = tensors;
    }

    void enable(bool on) {
        if (!added_ || enabled_ == on) return;
        enabled_ = on;
        if (on)
            at::reenableCallback(handle_);
        else
            at::disableCallback(handle_);
    }

  private:
    std::unordered_set<at::RecordScope, std::hash<at::RecordScope>> scopes_;
    at::CallbackHandle handle_;
    bool added_ = false, enabled_ = false, tensors_ = false;
};

class Callback {
  public:
    // Adds, changes or removes the callbacks by what launcher and block request together. With the interpreter's lock;
    // may throw.
    void apply_requests() {
        const Request &launch = options.launch, &block = options.block;
        options.tensors = launch.tensors || block.tensors;
        options.frames = std::max(launch.frames, block.frames);
        const Request &modules = block.namer ? block : launch;
        options.module_call = modules.module_call;
        options.namer = modules.namer;
        options.reads_frames = frame_layout_matches() && first_argument_is_plain(options.module_call);
        std::lock_guard<std::mutex> lock(mutex_);
        needed_ = launch.operators || block.operators;
        paused_ = paused_ && !block.operators;
        operators_.set(needed_, options.tensors);
        ranges_.set(needed_, false);
        enable_locked(library->is_on());
        library->on_profiling(enable);
        library->on_pause(pause);
        if (needed_) sampler.start();
    }

  private:
    static void enable(bool on);
    static bool pause(bool on);

    void enable_locked(bool on) {
        on_ = on;
        operators_.enable(on && !paused_);
        ranges_.enable(on || library->steps_are_ranges());
        sampler.activate(on && needed_ && !paused_);
    }

    std::mutex mutex_;
    Registered<begin_operator, end_operator> operators_{
        at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::TORCHSCRIPT_FUNCTION};
    Registered<begin_range, end_range> ranges_{at::RecordScope::USER_SCOPE};
    bool needed_ = false, on_ = false, paused_ = false;
};
inline Callback callback;

// Called when profiling starts or stops.
inline void Callback::enable(bool on) {
    std::lock_guard<std::mutex> lock(callback.mutex_);
    callback.enable_locked(on);
}

// Called when launches need no operators, or need them again, with any lock held.
inline bool Callback::pause(bool on) {
    std::unique_lock<std::mutex> lock(callback.mutex_, std::try_to_lock);
    if (!lock || !owns_ring() || options.block.operators) return false;
    bool before = std::exchange(callback.paused_, on);
    try {
        callback.enable_locked(callback.on_);
        return true;
    } catch (...) { // no memory
        callback.paused_ = before;
        return false;
    }
}

} // namespace pasta
