// The reference accelerator as PyTorch's PrivateUse1 device: declarations that its files share.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <initializer_list>

#include "kernels.h"
#include "refacc.h"

namespace refacc {

constexpr c10::DeviceType TYPE = c10::DeviceType::PrivateUse1;
constexpr int MAX_DEVICES = 16;

// Throws c10::Error if a function of refacc fails: RA(ra_alloc, &address, bytes).
void check(int error, const char *function);
#define RA(function, ...) ::refacc::check(function(__VA_ARGS__), #function)

// ---- devices: the current one is the thread's ----

int device_count() noexcept;
int current_device() noexcept;
int exchange_device(int device); // returns the previous one; -1 changes nothing
int device_of(c10::Device device); // its index; the current device if it has none
bool was_forked() noexcept; // after the first use: this process cannot use the device

// Makes the device's context the one that this thread's calls of refacc use.
void use(int device);
// Waits for the work submitted to the device or the stream.
void synchronize(int device);
void synchronize(c10::Stream stream);

// ---- streams: 0 is the default one; others come from a pool and are reused in turn ----

c10::Stream stream_of(int device, c10::StreamId id);
c10::Stream current_stream(int device) noexcept;
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream pool_stream(int device, bool high_priority);
// Makes the stream's device current and returns the handle; NULL: the default stream.
ra_stream handle(c10::Stream stream);

// ---- events ----

ra_event record_event(c10::Stream stream, ra_event event = nullptr); // creates the event if it is null
void destroy_event(ra_event event) noexcept;

// ---- memory ----

struct Usage {
    int64_t allocated, reserved, peak_allocated, peak_reserved; // bytes
    int64_t allocations, segments, retries, failures;           // counts, since the start
};

c10::Allocator *device_allocator();
c10::Allocator *pinned_allocator();
bool is_pinned(const void *address);
void record_stream(const c10::DataPtr &memory, c10::Stream stream);
void empty_cache();
Usage usage(int device);
void reset_peak(int device);

// ---- launches ----

// Parameters of a launch, as words; see kernels.h.
class Words {
  public:
    Words &address(const void *value) { return word(reinterpret_cast<uintptr_t>(value)); }
    Words &word(uint64_t value) {
        words_[count_++] = value;
        return *this;
    }
    Words &pair(int64_t low, int64_t high = 0) {
        return word(static_cast<uint32_t>(low) | static_cast<uint64_t>(high) << 32);
    }
    Words &floats(float low, float high = 0) {
        uint32_t bits[2];
        std::memcpy(bits, &low, sizeof low);
        std::memcpy(bits + 1, &high, sizeof high);
        return pair(bits[0], bits[1]);
    }

    uint32_t count() const { return count_; }
    const uint64_t *data() const { return words_; }

  private:
    uint64_t words_[RA_MAX_PARAMETERS] = {};
    uint32_t count_ = 0;
};

struct Grid {
    uint32_t x, y = 1, z = 1;
};

inline uint32_t blocks(int64_t count, int64_t each) { return static_cast<uint32_t>((count + each - 1) / each); }

// Launches into the current stream of the device.
void launch(int device, Kernel kernel, Grid grid, Grid block, const Words &words);

} // namespace refacc
