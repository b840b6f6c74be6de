// Samples of the Python stack between operators.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "location.h"

namespace pasta {

// While no operator runs, a thread samples the stack of the thread that ran the last one: operators record their own
// stacks, but only samples show what a program does between two of them.
class Sampler {
  public:
    // An outermost operator began on a thread of Python (0: its stack is unknown), or ended.
    void operator_began(unsigned long python_thread) {
        if (python_thread) python_thread_.store(python_thread, std::memory_order_relaxed);
        state_.fetch_add(ONE_BEGAN, std::memory_order_relaxed);
    }
    void operator_ended() { state_.fetch_sub(ONE_ENDED, std::memory_order_relaxed); }

    // Operators are recorded from now on, or no longer: the gap that this falls into is not sampled.
    void activate(bool on) {
        if (on && !active_) ignored_ = state_.load();
        active_ = on;
    }

    // Operators that are open now will not be seen to end.
    void forget() { state_.store(0, std::memory_order_relaxed); }

#if PY_VERSION_HEX >= 0x03090000 && !defined(Py_GIL_DISABLED)
    void start() {
        if (started_ || !options.frames) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); // signals go to the program's own threads
        generation_ = present_generation();
        started_ = !pthread_create(&thread_, nullptr, run, this);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // Waits for the thread to end; the caller must not hold the interpreter's lock, which the thread may wait for.
    void stop() {
        if (!started_ || generation_ != present_generation()) return;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopped_ = true;
        }
        stopping_.notify_all();
        pthread_join(thread_, nullptr);
        started_ = false;
    }

  private:
    static void *run(void *sampler) {
        static_cast<Sampler *>(sampler)->sample_gaps();
        return nullptr;
    }

    void sample_gaps() {
        uint64_t before = 0;
        unsigned idle = 0; // periods in a row without an operator
        std::unique_lock<std::mutex> lock(mutex_);
        while (!stopping_.wait_for(lock, PERIOD, [this] { return stopped_; })) {
            uint64_t state = state_.load(std::memory_order_relaxed);
            idle = state == before && state && !(state & OPEN) ? idle + 1 : 0;
            before = state;
            if (!idle || (idle > DENSE_SAMPLES && idle % SPARSE_EVERY)) continue;
            if (!active_.load(std::memory_order_relaxed) || state == ignored_.load(std::memory_order_relaxed)) continue;
            if (!library->is_on() || !owns_ring()) continue;
            lock.unlock(); // who calls stop() may hold the interpreter's lock
            take_sample(state);
            lock.lock();
        }
    }

    void take_sample(uint64_t state) {
        if (is_finalizing()) return;
        PyGILState_STATE lock = PyGILState_Ensure();
#if PY_VERSION_HEX >= 0x030a0000
        int collects = PyGC_Disable(); // no code of the program must run on this thread
#endif
        if (state_.load(std::memory_order_relaxed) == state) {
            if (PyFrameObject *frame = current_frame(python_thread_.load(std::memory_order_relaxed))) {
                uint32_t stack = stacks.record(frame);
                if (auto *e = begin<pasta_python_sample>(system_thread_id(), PASTA_EVENT_python_sample)) {
                    e->stack = stack;
                    pasta_framework_publish(e);
                }
                Py_DECREF(frame);
            }
        }
#if PY_VERSION_HEX >= 0x030a0000
        if (collects) PyGC_Enable();
#endif
        PyGILState_Release(lock);
    }

    // The frame that a thread runs, as a new reference, or nullptr; with the interpreter's lock.
    static PyFrameObject *current_frame(unsigned long python_thread) {
        PyThreadState *each = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
        while (each && each->thread_id != python_thread) each = PyThreadState_Next(each);
        return each ? PyThreadState_GetFrame(each) : nullptr;
    }
#else
    void start() {}
    void stop() {}

  private:
#endif
    static constexpr auto PERIOD = std::chrono::milliseconds(5);
    static constexpr unsigned DENSE_SAMPLES = 20, SPARSE_EVERY = 10; // of a gap: each of the first, then one in ten
    static constexpr uint64_t ONE_BEGAN = (UINT64_C(1) << 32) + 1, ONE_ENDED = 1, OPEN = UINT32_MAX;

    std::atomic<uint64_t> state_{};   // outermost operators that began << 32 | that are open
    std::atomic<uint64_t> ignored_{}; // the state when operators began to be recorded
    std::atomic<bool> active_{};
    std::atomic<unsigned long> python_thread_{};
    std::mutex mutex_;
    std::condition_variable stopping_;
    bool stopped_ = false, started_ = false;
    uint32_t generation_ = 0; // of the process that has the thread: children of forks have none
    pthread_t thread_{};
};
inline Sampler &sampler = *new Sampler; // its thread may outlive static objects

} // namespace pasta
