// Python stacks, each recorded once.
#pragma once

#include <atomic>
#include <vector>

#include "../library.h"
#include "frames.h"

namespace pasta {

// A recorded stack, identified by a hash of walk_objects or walk_frames, and found by both. The table holds references to
// the code objects, so that their addresses are not reused.
struct Stack {
    std::atomic<uint64_t> hash{};
    std::atomic<uint32_t> id{};
};

class Stacks {
  public:
    // The entry of a hash, or the free one where it belongs (its hash is 0); nullptr if the table is full.
    // Without the lock.
    Stack *find(uint64_t hash) {
        for (size_t probe = 0; probe < MAX_PROBES; probe++) {
            Stack &entry = entries_[(hash + probe) % SIZE];
            uint64_t known = entry.hash.load(std::memory_order_acquire);
            if (known == hash || !known) return &entry;
        }
        return nullptr;
    }

    // Id of the stack of `frame`, which is recorded if it is new; 0 if the table is full. With the interpreter's lock.
    uint32_t record(PyFrameObject *frame) {
        Walk walk = walk_objects(frame);
        const Stack *entry = walk.count ? find(walk.hash) : nullptr;
        if (!entry) return 0;
        if (entry->hash.load(std::memory_order_relaxed)) return entry->id.load(std::memory_order_relaxed);
        uint32_t id = ++last_;
        walk_objects(frame, [&](PyFrameObject *each, PyCodeObject *code, uint32_t depth) {
            hold(reinterpret_cast<PyObject *>(code));
            record_frame(id, depth, code, PyFrame_GetLineNumber(each));
        });
        add(walk.hash, id);
        return id;
    }

    // The same for the frames of this thread, whose stack is found by the hash of walk_frames from now on.
    uint32_t record(const PyThreadState *thread, uint64_t hash) {
        uint32_t id = record(PyEval_GetFrame());
        if (is_free(find(hash))) {
            walk_frames(thread, [this](PyObject *code) { hold(code); });
            add(hash, id);
        }
        return id;
    }

    // Stacks are recorded again from now on. With the interpreter's lock.
    void forget() {
        for (Stack &each : entries_) each.hash.store(0, std::memory_order_relaxed);
        std::vector<PyObject *> held;
        held.swap(codes_);
        for (PyObject *each : held) Py_DECREF(each);
    }

  private:
    static constexpr size_t SIZE = 1 << 16, MAX_PROBES = 64;

    static uint32_t intern_object(PyObject *text) {
        const char *utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
        if (utf8) return intern(utf8);
        PyErr_Clear();
        return 0;
    }

    static void record_frame(uint32_t stack, uint32_t depth, PyCodeObject *code, int line) {
        auto *e = begin<pasta_python_frame>(system_thread_id(), PASTA_EVENT_python_frame);
        if (!e) return;
        e->stack = stack;
        e->depth = depth;
        e->file = intern_object(code->co_filename);
        e->function = intern_object(code->co_name);
        e->line = static_cast<uint32_t>(line);
        e->first_line = static_cast<uint32_t>(code->co_firstlineno);
        pasta_framework_publish(e);
    }

    static bool is_free(const Stack *entry) { return entry && !entry->hash.load(std::memory_order_relaxed); }

    // Unless the lock was released since the entry was looked for, and it is taken.
    void add(uint64_t hash, uint32_t id) {
        Stack *entry = find(hash);
        if (!is_free(entry)) return;
        entry->id.store(id, std::memory_order_relaxed);
        entry->hash.store(hash, std::memory_order_release);
    }

    void hold(PyObject *code) {
        Py_INCREF(code);
        try {
            codes_.push_back(code);
        } catch (const std::bad_alloc &) { // then it is never released
        }
    }

    Stack entries_[SIZE];
    std::atomic<uint32_t> last_{};
    static inline std::vector<PyObject *> codes_; // not in the object, which needs no initialization this way
};
inline Stacks stacks;

} // namespace pasta
