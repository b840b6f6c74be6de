// The child profiler that Kineto drives.
#pragma once

#include <cstdio>

#include <torch/csrc/profiler/orchestration/observer.h>

#include "activities.h"

namespace pasta {

// Whether torch measures device time of operators by itself (ProfilerStubs): with kernels it would count twice.
inline bool torch_measures_device_time() {
    try {
        namespace impl = torch::profiler::impl;
        return impl::getProfilerConfig().state == impl::ProfilerState::KINETO_PRIVATEUSE1_FALLBACK;
    } catch (const std::exception &) { // this thread has no profiler
        return false;
    }
}

class Session : public libkineto::IActivityProfilerSession {
  public:
    ~Session() override { // an abandoned session is still open
        stop();
        clear();
    }

    void start() override {
        OpenOperators::begin_session();
        period_.begin = Instant::now();
        recording_ = holds_records_ = true;
        with_kernels_ = !torch_measures_device_time();
        records.open();
        status_ = libkineto::TraceStatus::RECORDING;
    }

    void stop() override {
        if (!recording_) return;
        recording_ = false;
        records.close();
        period_.end = Instant::now();
        status_ = libkineto::TraceStatus::PROCESSING;
    }

    std::vector<std::string> errors() override { return {}; }

    void processTrace(libkineto::ActivityLogger &logger) override {
        processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
    }

    void processTrace(libkineto::ActivityLogger &logger, libkineto::getLinkedActivityCallback linked, int64_t,
                      int64_t) override {
        try {
            if (owns_ring()) convert(logger, std::move(linked));
        } catch (const std::exception &error) {
            library->say("torch.profiler's trace lacks kernels: %s", error.what());
        } catch (...) {
        }
        clear();
        status_ = libkineto::TraceStatus::READY;
    }

    std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; } // there may be several
    std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
    std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(trace_); }

    void pushCorrelationId(uint64_t id) override { OpenOperators::push(id); }
    void popCorrelationId() override { OpenOperators::pop(); }
    void pushUserCorrelationId(uint64_t id) override { OpenOperators::push(id); }
    void popUserCorrelationId() override { OpenOperators::pop(); }

  private:
    void convert(libkineto::ActivityLogger &logger, libkineto::getLinkedActivityCallback linked) {
        Activities activities(period_, std::move(linked), with_kernels_);
        records.for_each([&](const Record &record) { activities.add(record); });
        trace_ = activities.finish(logger);
        name_devices(logger, activities);
        if (records.dropped())
            library->say("torch.profiler's trace lacks %llu records of accelerators: it has no room for more than %llu",
                         static_cast<unsigned long long>(records.dropped()),
                         static_cast<unsigned long long>(records.kept()));
    }

    void name_devices(libkineto::ActivityLogger &logger, const Activities &activities) const {
        int64_t begin = period_.begin.real;
        for (int16_t device : activities.devices()) {
            std::string number = std::to_string(device);
            logger.handleDeviceInfo(device_info<>(device, "device " + number, "GPU " + number, 0), begin);
        }
        for (const auto &[stream, number] : activities.streams()) {
            char name[32] = "default stream";
            if (stream.second) snprintf(name, sizeof name, "stream %#llx", static_cast<unsigned long long>(stream.second));
            logger.handleResourceInfo(resource_info<>(stream.first, number, name), begin);
        }
    }

    void clear() {
        if (holds_records_) records.clear();
        holds_records_ = false;
    }

    Period period_;
    bool recording_ = false, holds_records_ = false, with_kernels_ = true;
    std::unique_ptr<libkineto::CpuTraceBuffer> trace_;
};

class Profiler : public libkineto::IActivityProfiler {
  public:
    const std::string &name() const override {
        static const std::string name = "PASTA";
        return name;
    }

    const std::set<ActivityType> &availableActivities() const override {
        static const std::set<ActivityType> types = {ActivityType::CONCURRENT_KERNEL, ActivityType::CUDA_RUNTIME,
                                                     ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                                                     ActivityType::USER_ANNOTATION};
        return types;
    }

    std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType> &,
                                                                   const libkineto::Config &) override {
        return std::make_unique<Session>();
    }

    std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType> &,
                                                                   const libkineto::Config &) override {
        return std::make_unique<Session>();
    }
};

} // namespace pasta
