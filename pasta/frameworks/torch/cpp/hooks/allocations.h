// Allocations of a program that was not started under pasta-preload: CPU memory through an allocator placed before
// the program's, memory of devices as their allocators report it to torch's profiler.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <atomic>
#include <cstdio>
#include <memory>

#include "thread.h"

namespace pasta {

inline std::atomic<bool> records_memory; // in a block

inline bool is_recording_memory() {
    return records_memory.load(std::memory_order_relaxed) && owns_ring() && library->is_on();
}

inline void record_memory(pasta_event_kind kind, void *address, uint64_t bytes, int16_t device) {
    auto *e = begin<pasta_tensor_memory>(thread_id(), kind, device);
    if (!e) return;
    e->address = reinterpret_cast<uint64_t>(address);
    e->bytes = bytes;
    e->stack = *library->stack();
    e->memory = device == PASTA_ABSENT_DEVICE ? PASTA_MEMORY_host : PASTA_MEMORY_device;
    pasta_framework_publish(e);
}

inline void record_allocator_state(uint64_t allocated, uint64_t reserved, int16_t device) {
    auto *e = begin<pasta_allocator_state>(thread_id(), PASTA_EVENT_allocator_state, device);
    if (!e) return;
    e->allocated = allocated;
    e->reserved = reserved;
    pasta_framework_publish(e);
}

class CpuAllocator final : public c10::Allocator {
  public:
    // Puts itself before torch's allocator. False if the program has replaced that one.
    bool enter() {
        c10::Allocator *before = c10::GetAllocator(c10::DeviceType::CPU);
        if (before == this) return true;
        c10::DeleterFnPtr deleter = before->raw_deleter();
        // memory from before an allocator was replaced must go back to the one it came from
        if (!deleter || (free_ && free_ != deleter)) return false;
        free_ = deleter;
        next_ = before;
        set(this);
        return c10::GetAllocator(c10::DeviceType::CPU) == this;
    }
    void leave() {
        if (c10::GetAllocator(c10::DeviceType::CPU) == this) set(next_);
    }

    c10::DataPtr allocate(size_t bytes) override {
        c10::DataPtr memory = next_->allocate(bytes);
        if (memory.compare_exchange_deleter(free_, release) && memory.get() && is_recording_memory())
            record_memory(PASTA_EVENT_tensor_alloc, memory.get(), bytes, PASTA_ABSENT_DEVICE);
        return memory;
    }
    c10::DeleterFnPtr raw_deleter() const override { return release; }
    bool is_simple_data_ptr(const c10::DataPtr &pointer) const override { return next_->is_simple_data_ptr(pointer); }
    void copy_data(void *to, const void *from, std::size_t bytes) const override { next_->copy_data(to, from, bytes); }

  private:
    static void release(void *address) {
        if (address && is_recording_memory()) // before the free: another thread may get the memory at once
            record_memory(PASTA_EVENT_tensor_free, address, PASTA_ABSENT_U64, PASTA_ABSENT_DEVICE);
        free_(address);
    }

    // With the lowest priority that replaces the present one.
    static void set(c10::Allocator *allocator) {
        for (unsigned priority = 0; priority < 256 && c10::GetAllocator(c10::DeviceType::CPU) != allocator; priority++)
            c10::SetAllocator(c10::DeviceType::CPU, allocator, static_cast<uint8_t>(priority));
    }

    c10::Allocator *next_ = nullptr;
    static inline c10::DeleterFnPtr free_ = nullptr;
};
inline CpuAllocator &cpu_allocator = *new CpuAllocator; // tensors outlive static objects

// A disabled profiler of torch's that receives only what allocators report. It takes the place of torch's own, so that
// the two exclude each other: on this thread, and on that of the backward pass.
class DeviceReports final : public torch::profiler::impl::ProfilerStateBase {
  public:
    DeviceReports()
        : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}
    torch::profiler::impl::ActiveProfilerType profilerType() override {
        return torch::profiler::impl::ActiveProfilerType::NONE;
    }

    void reportMemoryUsage(void *address, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
        if (device.type() == c10::DeviceType::CPU || !bytes || !is_recording_memory()) return;
        bool is_allocation = bytes > 0;
        record_allocator_state(allocated, reserved, device.index());
        record_memory(is_allocation ? PASTA_EVENT_tensor_alloc : PASTA_EVENT_tensor_free, address,
                      static_cast<uint64_t>(is_allocation ? bytes : -bytes), device.index());
    }
    void reportOutOfMemory(int64_t bytes, size_t, size_t, c10::Device device) override {
        if (!is_recording_memory()) return;
        int16_t index = device.type() == c10::DeviceType::CPU ? PASTA_ABSENT_DEVICE : device.index();
        auto *e = begin<pasta_range>(system_thread_id(), PASTA_EVENT_mark, index);
        if (!e) return;
        char text[64];
        snprintf(text, sizeof text, "out of memory: %lld bytes", static_cast<long long>(bytes));
        e->name = intern(text);
        e->domain = intern("torch");
        e->origin = PASTA_ORIGIN_framework;
        pasta_framework_publish(e);
    }

    // False if torch's own profiler is active.
    static bool enter() {
        if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)) return false;
        active_ = std::make_shared<DeviceReports>();
        c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, active_);
        return true;
    }
    static void leave() {
        if (!active_) return;
        try {
            if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == active_.get())
                c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
        } catch (const std::exception &) { // the program left other state on top
        }
        active_ = nullptr;
    }

  private:
    static inline std::shared_ptr<DeviceReports> active_;
};

// How a block records allocations.
class BlockAllocations {
  public:
    // Returns a description of unrecorded memory, "" if none. `preloaded`: libpasta follows the allocators itself.
    const char *begin(bool preloaded, bool devices) {
        if (preloaded) {
            was_followed_ = library->follow_allocators(true);
            followed_ = true;
            return "";
        }
        records_memory = true;
        const char *missed = "";
        if (!cpu_allocator.enter()) missed = "CPU memory: the program has an allocator of its own";
        if (devices && !DeviceReports::enter()) missed = "memory of devices: torch's profiler is active";
        return missed;
    }

    void end(bool preloaded) {
        if (followed_) library->follow_allocators(was_followed_);
        followed_ = false;
        if (!preloaded) {
            DeviceReports::leave();
            cpu_allocator.leave();
        }
        records_memory = false;
    }

  private:
    bool followed_ = false, was_followed_ = false; // by libpasta, in this block and before it
};
inline BlockAllocations block_allocations;

} // namespace pasta
