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

inline void begin_range(Thread &thread, const at::RecordFunction &function) {
    uint32_t id = intern(function.name());
    library->range_begins(id);
    record_range(thread, PASTA_EVENT_range_push, id);
}

inline void end_range(Thread &thread, const at::RecordFunction &) {
    library->range_ends();
    record_range(thread, PASTA_EVENT_range_pop, 0);
}

// Attributes nodes captured into a CUDA graph since the last call to the open operator.
inline void attribute_captured_nodes() {
    if (__builtin_expect(__atomic_load_n(library->capturing, __ATOMIC_RELAXED) != 0, 0)) library->captured();
}

// Whether libpasta decides by open operators which launches are probed.
inline bool follows_operators() {
    return __builtin_expect(__atomic_load_n(library->follows_operators, __ATOMIC_RELAXED) != 0, 0);
}

inline void begin_operator(Thread &thread, const at::RecordFunction &function) {
    attribute_captured_nodes();
    uint32_t name = intern_name(thread, function.name());
    SeenTensors<std::size(pasta_operator_begin().tensor)> inputs(thread, PASTA_ROLE_input);
    if (options.tensors) inputs.add_all(function.inputs());
    if (thread.depth++ == 0) {
        Location location = options.frames ? locate() : Location();
        *thread.stack = location.stack;
        thread.module = location.module;
        sampler.operator_began(location.stack ? thread.python_thread : 0);
    }
    decltype(pasta_operator_begin::tensor) ids;
    uint16_t count = inputs.write(ids);
    auto *e = reserve<pasta_operator_begin>(thread.id, PASTA_EVENT_operator_begin);
    bool recorded = e != nullptr, followed = follows_operators();
    if (!recorded && !followed) return;
    pasta_operator_begin dropped;
    if (!recorded) e = &dropped;
    e->name = name;
    e->stack = thread.depth == 1 ? *thread.stack : 0;
    e->module = thread.module;
    e->sequence = static_cast<uint32_t>(function.seqNr());
    e->forward_thread = function.forwardThreadId() ? static_cast<uint16_t>(function.forwardThreadId()) : UINT16_MAX;
    e->framework_thread = static_cast<uint16_t>(thread.framework_thread);
    e->depth = static_cast<uint16_t>(thread.depth);
    e->scope = static_cast<uint8_t>(function.scope());
    e->inputs = static_cast<uint8_t>(count);
    std::memcpy(e->tensor, ids, sizeof ids);
    if (followed) library->operator_begins(e);
    if (recorded) pasta_framework_publish(e);
}

inline void end_operator(Thread &thread, const at::RecordFunction &function) {
    if (!thread.depth) return;
    attribute_captured_nodes();
    if (follows_operators()) library->operator_ends();
    SeenTensors<std::size(pasta_operator_end().tensor)> outputs(thread, PASTA_ROLE_output);
    if (options.tensors) outputs.add_all(function.outputs());
    decltype(pasta_operator_end::tensor) ids;
    uint16_t count = outputs.write(ids);
    if (auto *e = reserve<pasta_operator_end>(thread.id, PASTA_EVENT_operator_end)) {
        e->depth = static_cast<uint16_t>(thread.depth);
        e->outputs = count;
        std::memcpy(e->tensor, ids, sizeof ids);
        e->unused = UINT32_MAX;
        pasta_framework_publish(e);
    }
    if (--thread.depth == 0) {
        *thread.stack = 0;
        sampler.operator_ended();
    }
}

} // namespace pasta
