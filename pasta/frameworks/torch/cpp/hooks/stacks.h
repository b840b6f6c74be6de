// Python stacks, each recorded once.
#pragma once

#include <atomic>
#include <vector>

#include "../library.h"
#include "frames.h"

namespace pasta {

// A recorded stack, identified by the hash of its code objects or instructions. The table holds references to
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
    uint32_t record(PyFrameObject *frame, uint64_t hash) {
        Stack *entry = find(hash);
        if (!entry) return 0;
        if (entry->hash.load(std::memory_order_relaxed)) return entry->id.load(std::memory_order_relaxed);
        uint32_t id = ++last_;
        walk_objects(frame, [&](PyFrameObject *each, PyCodeObject *code, uint32_t depth) {
            hold(code);
            record_frame(id, depth, code, PyFrame_GetLineNumber(each));
        });
        entry->id.store(id, std::memory_order_relaxed);
        entry->hash.store(hash, std::memory_order_release);
        return id;
    }

    // Stacks are recorded again from now on. With the interpreter's lock.
    void forget() {
        for (Stack &each : entries_) each.hash.store(0, std::memory_order_relaxed);
        std::vector<PyCodeObject *> held;
        held.swap(codes_);
        for (PyCodeObject *each : held) Py_DECREF(each);
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

    void hold(PyCodeObject *code) {
        Py_INCREF(code);
        try {
            codes_.push_back(code);
        } catch (const std::bad_alloc &) { // then it is never released
        }
    }

    Stack entries_[SIZE];
    std::atomic<uint32_t> last_{};
    static inline std::vector<PyCodeObject *> codes_; // not in the object, which needs no initialization this way
};
inline Stacks stacks;

} // namespace pasta
