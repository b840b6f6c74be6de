// ProfilerStubs of torch's profiler: device time of operators and ranges for
// torch.autograd.profiler.profile(use_device="refacc"), from events of the current stream.
#include "device.h"

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "pasta.h"

namespace refacc {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct Stubs final : torch::profiler::impl::ProfilerStubs {
    void record(c10::DeviceIndex *device, ProfilerVoidEventStub *event, int64_t *nanoseconds) const override {
        int current = current_device();
        if (device) *device = static_cast<c10::DeviceIndex>(current);
        ra_event recorded = record_event(current_stream(current));
        *event = {recorded, [](void *handle) { destroy_event(static_cast<ra_event>(handle)); }};
        if (nanoseconds) *nanoseconds = c10::getTime();
    }

    float elapsed(const ProfilerVoidEventStub *from, const ProfilerVoidEventStub *to) const override { // µs
        auto start = static_cast<ra_event>(from->get()), end = static_cast<ra_event>(to->get());
        uint64_t nanoseconds;
        RA(ra_event_synchronize, start);
        RA(ra_event_synchronize, end);
        RA(ra_event_elapsed, &nanoseconds, start, end);
        return static_cast<float>(static_cast<double>(static_cast<int64_t>(nanoseconds)) / 1e3);
    }

    // Annotations of PASTA; without effect unless the program runs under pasta-preload.
    void mark(const char *name) const override { pasta_mark(name); }
    void rangePush(const char *name) const override { pasta_range_push(name); }
    void rangePop() const override { pasta_range_pop(); }

    bool enabled() const override { return device_count() > 0 && !was_forked(); }

    void onEachDevice(std::function<void(int)> act) const override {
        int before = current_device();
        for (int device = 0; device < device_count(); device++) {
            exchange_device(device);
            act(device);
        }
        exchange_device(before);
    }

    void synchronize() const override { refacc::synchronize(current_device()); }
};

[[maybe_unused]] const bool profiler_registered = [] {
    torch::profiler::impl::registerPrivateUse1Methods(new Stubs);
    return true;
}();

} // namespace
} // namespace refacc
