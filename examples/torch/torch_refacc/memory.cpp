// A caching allocator for the device's memory, and pinned memory of the host.
//
// refacc allocates segments, which are split into blocks for tensors. A free block is reused at once by the
// stream it was allocated for, because the earlier work on it comes first in that stream; a block that other
// streams used waits for them.
#include "device.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#if PASTA_TORCH >= 209
#include <c10/core/CachingDeviceAllocator.h>
#endif

#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace refacc {
namespace {

constexpr size_t ROUND = 512, SMALL = 1 << 20, SMALL_SEGMENT = 2 << 20, LARGE_SEGMENT = 20 << 20, LARGE_ROUND = 2 << 20;

struct Block {
    char *address;
    size_t bytes, asked;
    c10::StreamId stream;
    bool small;
    bool taken = false;
    Block *before = nullptr, *after = nullptr; // in the segment
    std::set<c10::StreamId> users{};           // other streams, while taken
    std::vector<ra_event> awaited{};           // of these streams, once freed
};

struct BySize {
    using Key = std::tuple<c10::StreamId, bool, size_t, char *>;
    static Key key(const Block *block) { return {block->stream, block->small, block->bytes, block->address}; }
    bool operator()(const Block *a, const Block *b) const { return key(a) < key(b); }
};

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

std::string readable(double bytes) {
    const char *units[] = {"bytes", "KiB", "MiB", "GiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 3; unit++) bytes /= 1024;
    char text[64];
    snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

class Cache {
  public:
    void *allocate(int device, size_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        use(device);
        take_back(false);
        c10::StreamId stream = current_stream(device).id();
        size_t size = rounded(bytes, ROUND);
        Block *block = find(stream, size);
        if (!block) block = grow(device, stream, size);
        if (!block) fail(device, bytes);
        free_.erase(block);
        split(block, size);
        block->taken = true;
        block->asked = bytes;
        taken_[block->address] = block;
        usage_.allocations++;
        count(usage_.allocated, usage_.peak_allocated, static_cast<int64_t>(block->bytes));
        report(device, block, static_cast<int64_t>(block->bytes));
        return block->address;
    }

    // Never throws: tensors are freed in destructors.
    void release(int device, void *address) noexcept {
        if (was_forked()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = taken_.find(address);
        if (found == taken_.end()) return;
        Block *block = found->second;
        taken_.erase(found);
        usage_.allocated -= static_cast<int64_t>(block->bytes);
        report(device, block, -static_cast<int64_t>(block->bytes));
        try {
            for (c10::StreamId user : block->users) block->awaited.push_back(record_event(stream_of(device, user)));
        } catch (const c10::Error &) { // the process is exiting, or a kernel failed: no work follows
        }
        block->users.clear();
        if (block->awaited.empty())
            give_back(block);
        else
            awaiting_.push_back(block);
    }

    void record(void *address, c10::StreamId stream) {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = taken_.find(address);
        if (found != taken_.end() && found->second->stream != stream) found->second->users.insert(stream);
    }

    void empty(int device) {
        std::lock_guard<std::mutex> lock(mutex_);
        use(device);
        take_back(true);
        free_segments();
    }

    Usage usage() {
        std::lock_guard<std::mutex> lock(mutex_);
        return usage_;
    }

    void reset_peak() {
        std::lock_guard<std::mutex> lock(mutex_);
        usage_.peak_allocated = usage_.allocated;
        usage_.peak_reserved = usage_.reserved;
    }

  private:
    static void count(int64_t &now, int64_t &most, int64_t more) {
        now += more;
        most = std::max(most, now);
    }

    void report(int device, const Block *block, int64_t bytes) {
        c10::reportMemoryUsageToProfiler(block->address, bytes, static_cast<size_t>(usage_.allocated),
                                         static_cast<size_t>(usage_.reserved),
                                         c10::Device(TYPE, static_cast<c10::DeviceIndex>(device)));
    }

    Block *find(c10::StreamId stream, size_t size) const {
        Block wanted{nullptr, size, 0, stream, size <= SMALL};
        auto found = free_.lower_bound(&wanted);
        bool fits = found != free_.end() && (*found)->stream == stream && (*found)->small == wanted.small;
        return fits ? *found : nullptr;
    }

    Block *grow(int device, c10::StreamId stream, size_t size) {
        size_t wanted = size <= SMALL ? SMALL_SEGMENT : size < LARGE_SEGMENT / 2 ? LARGE_SEGMENT : rounded(size, LARGE_ROUND);
        void *address = nullptr;
        int error = ra_alloc(&address, wanted);
        if (error == RA_OUT_OF_MEMORY) {
            usage_.retries++;
            take_back(true);
            if (Block *block = find(stream, size)) return block;
            free_segments();
            error = ra_alloc(&address, wanted);
        }
        if (error == RA_OUT_OF_MEMORY) error = ra_alloc(&address, wanted = size);
        if (error == RA_OUT_OF_MEMORY) return nullptr;
        check(error, "ra_alloc");
        usage_.segments++;
        count(usage_.reserved, usage_.peak_reserved, static_cast<int64_t>(wanted));
        auto *block = new Block{static_cast<char *>(address), wanted, 0, stream, size <= SMALL};
        free_.insert(block);
        return block;
    }

    [[noreturn]] void fail(int device, size_t bytes) {
        usage_.failures++;
        ra_properties properties;
        RA(ra_device_properties, device, &properties);
        auto allocated = static_cast<size_t>(usage_.allocated), reserved = static_cast<size_t>(usage_.reserved);
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved,
                                         c10::Device(TYPE, static_cast<c10::DeviceIndex>(device)));
        TORCH_CHECK_WITH(OutOfMemoryError, false, "refacc:", device, " is out of memory: ", readable(double(bytes)),
                         " were asked for, tensors have ", readable(double(allocated)), " of ",
                         readable(double(properties.memory)), " (REFACC_MEMORY sets it)");
    }

    void split(Block *block, size_t size) {
        size_t rest = block->bytes - size;
        if (rest < (block->small ? ROUND : SMALL + 1)) return;
        auto *second = new Block{block->address + size, rest, 0, block->stream, block->small};
        second->before = block;
        second->after = block->after;
        if (second->after) second->after->before = second;
        block->after = second;
        block->bytes = size;
        free_.insert(second);
    }

    void absorb_next(Block *block) {
        Block *next = block->after;
        free_.erase(next);
        block->bytes += next->bytes;
        block->after = next->after;
        if (block->after) block->after->before = block;
        delete next;
    }

    static bool is_free(const Block *block) { return block && !block->taken; }

    void give_back(Block *block) {
        block->taken = false;
        if (is_free(block->after)) absorb_next(block);
        if (is_free(block->before)) {
            block = block->before;
            free_.erase(block); // the set is ordered by size
            absorb_next(block);
        }
        free_.insert(block);
    }

    // Frees blocks that other streams no longer use; with `wait`, all of them.
    void take_back(bool wait) {
        std::vector<Block *> left;
        for (Block *block : awaiting_) {
            while (!block->awaited.empty()) {
                ra_event event = block->awaited.back();
                if (wait) ra_event_synchronize(event); // the context keeps an error: the next call reports it
                if (!wait && ra_event_query(event) == RA_NOT_READY) break;
                destroy_event(event);
                block->awaited.pop_back();
            }
            if (block->awaited.empty())
                give_back(block);
            else
                left.push_back(block);
        }
        awaiting_ = std::move(left);
    }

    void free_segments() {
        for (auto place = free_.begin(); place != free_.end();) {
            Block *block = *place;
            if (block->before || block->after) {
                ++place;
                continue;
            }
            place = free_.erase(place);
            usage_.reserved -= static_cast<int64_t>(block->bytes);
            ra_free(block->address);
            delete block;
        }
    }

    std::mutex mutex_;
    std::set<Block *, BySize> free_;
    std::unordered_map<void *, Block *> taken_;
    std::vector<Block *> awaiting_;
    Usage usage_ = {};
};

Cache &cache(int device) {
    static auto &caches = *new std::array<Cache, MAX_DEVICES>;
    return caches.at(static_cast<size_t>(device));
}

template <int device> void release_on(void *address) { cache(device).release(device, address); }

template <size_t... device> c10::DeleterFnPtr deleter_of(int wanted, std::index_sequence<device...>) {
    static constexpr c10::DeleterFnPtr deleters[] = {release_on<device>...};
    return deleters[wanted];
}

#if PASTA_TORCH >= 209
using Base = c10::DeviceAllocator; // torch.accelerator queries it
#else
using Base = c10::Allocator;
#endif

struct DeviceMemory final : Base {
    c10::DataPtr allocate(size_t bytes) override {
        int device = current_device();
        c10::DeleterFnPtr deleter = deleter_of(device, std::make_index_sequence<MAX_DEVICES>());
        void *address = bytes ? cache(device).allocate(device, bytes) : nullptr;
        return {address, address, deleter, c10::Device(TYPE, static_cast<c10::DeviceIndex>(device))};
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return deleter_of(current_device(), std::make_index_sequence<MAX_DEVICES>());
    }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        ra_stream stream = handle(current_stream(current_device()));
        RA(ra_memcpy_async, to, from, bytes, stream);
    }

#if PASTA_TORCH >= 209
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override { empty_cache(); }
    void recordStream(const c10::DataPtr &memory, c10::Stream stream) override { record_stream(memory, stream); }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        Usage now = usage(device);
        c10::CachingDeviceAllocator::DeviceStats stats;
        auto set = [](auto &stat, int64_t current, int64_t peak) {
            stat[0].current = current;
            stat[0].peak = peak;
        };
        set(stats.allocated_bytes, now.allocated, now.peak_allocated);
        set(stats.active_bytes, now.allocated, now.peak_allocated);
        set(stats.reserved_bytes, now.reserved, now.peak_reserved);
        stats.num_alloc_retries = now.retries;
        stats.num_ooms = now.failures;
        stats.num_device_alloc = now.segments;
        return stats;
    }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
        ra_properties properties;
        RA(ra_device_properties, device, &properties);
        return {properties.memory - static_cast<size_t>(usage(device).reserved), properties.memory};
    }
#endif
};

void release_pinned(void *address) {
    if (!was_forked()) ra_free(address); // waits for the work under way
}

struct PinnedMemory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *address = nullptr;
        use(current_device());
        if (bytes) {
            int error = ra_alloc_pinned(&address, bytes);
            TORCH_CHECK_WITH(OutOfMemoryError, error != RA_OUT_OF_MEMORY, "refacc is out of pinned memory: ",
                             readable(double(bytes)), " were asked for (REFACC_MEMORY sets it)");
            check(error, "ra_alloc_pinned");
        }
        return {address, address, release_pinned, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return release_pinned; }
    void copy_data(void *to, const void *from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

} // namespace

c10::Allocator *device_allocator() {
    static auto *allocator = new DeviceMemory;
    return allocator;
}

c10::Allocator *pinned_allocator() {
    static auto *allocator = new PinnedMemory;
    return allocator;
}

bool is_pinned(const void *address) {
    ra_pointer found;
    return address && !was_forked() && ra_pointer_query(&found, address) == RA_OK && found.kind == RA_MEMORY_PINNED;
}

void record_stream(const c10::DataPtr &memory, c10::Stream stream) {
    if (memory.get() && memory.device().type() == TYPE) cache(device_of(memory.device())).record(memory.get_context(), stream.id());
}

void empty_cache() {
    for (int device = 0; device < device_count(); device++)
        if (usage(device).reserved) cache(device).empty(device);
}

Usage usage(int device) { return cache(device).usage(); }
void reset_peak(int device) { cache(device).reset_peak(); }

namespace {
[[maybe_unused]] const bool memory_registered = [] {
    c10::SetAllocator(TYPE, device_allocator());
    return true;
}();
} // namespace

} // namespace refacc
