// Records of operators and of torch's ranges.
#pragma once

#include "location.h"
#include "sampler.h"
#include "tensors.h"

namespace pasta {

inline void record_range(const Thread &thread, pasta_event_kind kind, uint32_t name) {
    auto *e = begin<pasta_range>(thread.id, kind);
    if (!e) return;
    e->name = name;
    e->domain = intern("torch");
    e->origin = PASTA_ORIGIN_framework;
    pasta_framework_publish(e);
}

inline void begin_range(const Thread &thread, const char *name) {
    uint32_t id = intern(name);
    library->range_begins(id);
    record_range(thread, PASTA_EVENT_range_push, id);
}

inline void end_range(const Thread &thread) {
    library->range_ends();
    record_range(thread, PASTA_EVENT_range_pop, 0);
}

// Attributes nodes captured into a CUDA graph since the last call to the open operator.
inline void attribute_captured_nodes() {
    if (__builtin_expect(__atomic_load_n(library->capturing, __ATOMIC_RELAXED) != 0, 0)) library->captured();
}

inline void begin_operator(Thread &thread, const at::RecordFunction &function) {
    attribute_captured_nodes();
    if (thread.depth++ == 0) {
        Location location = options.frames ? locate() : Location();
        *thread.stack = location.stack;
        thread.module = location.module;
        sampler.operator_began(location.stack ? thread.python_thread : 0);
    }
    uint32_t ids[16];
    uint16_t count = 0;
    if (options.tensors) {
        TensorIds inputs(thread, PASTA_ROLE_input, ids, std::size(ids));
        for (const c10::IValue &each : function.inputs()) inputs.add(each);
        count = inputs.count();
    }
    auto *e = begin<pasta_operator_begin>(thread.id, PASTA_EVENT_operator_begin);
    bool followed = __atomic_load_n(library->follows_operators, __ATOMIC_RELAXED) != 0;
    pasta_operator_begin dropped;
    if (!e && !followed) return;
    bool recorded = e != nullptr;
    if (!recorded) e = &dropped;
    e->name = intern_name(thread, function.name());
    e->stack = thread.depth == 1 ? *thread.stack : 0;
    e->module = thread.module;
    e->sequence = static_cast<uint32_t>(function.seqNr());
    e->forward_thread = function.forwardThreadId() ? static_cast<uint16_t>(function.forwardThreadId()) : UINT16_MAX;
    e->framework_thread = static_cast<uint16_t>(thread.framework_thread);
    e->depth = static_cast<uint16_t>(thread.depth);
    e->scope = static_cast<uint8_t>(function.scope());
    e->inputs = static_cast<uint8_t>(count);
    std::copy(ids, ids + count, e->tensor);
    if (__builtin_expect(followed, 0)) library->operator_begins(e);
    if (recorded) pasta_framework_publish(e);
}

inline void end_operator(Thread &thread, const at::RecordFunction &function) {
    if (!thread.depth) return;
    attribute_captured_nodes();
    if (__builtin_expect(__atomic_load_n(library->follows_operators, __ATOMIC_RELAXED) != 0, 0)) library->operator_ends();
    uint32_t ids[4];
    uint16_t count = 0;
    if (options.tensors) {
        TensorIds outputs(thread, PASTA_ROLE_output, ids, std::size(ids));
        for (const c10::IValue &each : function.outputs()) outputs.add(each);
        count = outputs.count();
    }
    if (auto *e = begin<pasta_operator_end>(thread.id, PASTA_EVENT_operator_end)) {
        e->depth = static_cast<uint16_t>(thread.depth);
        e->outputs = count;
        std::copy(ids, ids + count, e->tensor);
        pasta_framework_publish(e);
    }
    if (--thread.depth == 0) {
        *thread.stack = 0;
        sampler.operator_ended();
    }
}

} // namespace pasta
