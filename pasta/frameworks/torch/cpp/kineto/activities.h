// Kineto's activities, made of records when the profiler has stopped.
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <libkineto.h>
#include <output_base.h>

#include "clock.h"
#include "records.h"
#include "text.h"

namespace pasta {

using libkineto::ActivityType;
using Activity = libkineto::GenericTraceActivity;

// Above Kineto's ids of operators: torch takes an activity that belongs to none for the operator of its id.
constexpr int32_t FIRST_CORRELATION = 1 << 30;
// Sorts devices below the processes of the host.
constexpr int64_t FIRST_DEVICE_ORDER = 5000000;
// Not USER_ANNOTATION: torch warns of those that it has not made itself.
constexpr ActivityType RANGE = ActivityType::EXTERNAL_CORRELATION;

class Activities {
  public:
    // `with_kernels`: also copies and sets, with their device times; else calls only.
    Activities(Period period, libkineto::getLinkedActivityCallback linked, bool with_kernels)
        : period_(period), linked_(std::move(linked)), with_kernels_(with_kernels),
          buffer_(new libkineto::CpuTraceBuffer) {
        buffer_->span = libkineto::TraceSpan(0, 0, "PASTA", "");
        buffer_->span.startTime = period.begin.real;
        buffer_->span.endTime = period.end.real;
        buffer_->gpuOpCount = 0;
    }

    void add(const Record &record) {
        switch (record.header().kind) {
        case PASTA_EVENT_kernel_launch: return launch(record);
        case PASTA_EVENT_kernel_launch_end: return launch_end(record);
        case PASTA_EVENT_kernel_complete: return with_kernels_ ? complete(record) : void();
        case PASTA_EVENT_graph_launch: return graph_launch(record);
        case PASTA_EVENT_graph_launch_end: return graph_launch_end(record);
        case PASTA_EVENT_memory_copy: return copy(record);
        case PASTA_EVENT_memory_set: return set(record);
        case PASTA_EVENT_copy_complete: return with_kernels_ ? copy_complete(record) : void();
        case PASTA_EVENT_sync: return sync(record);
        case PASTA_EVENT_range_push: return range_push(record);
        case PASTA_EVENT_range_pop: return range_pop(record);
        }
    }

    // Ranges that were open when the profiler stopped end there; a call that did not return has no duration. Returns
    // nullptr if there are no activities: the trace is as without the hooks then.
    std::unique_ptr<libkineto::CpuTraceBuffer> finish(libkineto::ActivityLogger &logger) {
        for (auto &activity : buffer_->activities) {
            if (!activity->endTime)
                activity->endTime = activity->activityType == RANGE ? period_.end.real : activity->startTime;
            logger.handleGenericActivity(*activity);
        }
        buffer_->span.opCount = static_cast<int>(buffer_->activities.size());
        if (buffer_->activities.empty()) buffer_.reset();
        return std::move(buffer_);
    }

    const std::set<int16_t> &devices() const { return devices_; }
    const std::map<std::pair<int16_t, uint64_t>, int32_t> &streams() const { return streams_; }

  private:
    struct Launch {
        const Record *record;
        Activity *call; // nullptr: by a graph
    };
    struct Submitted {
        const Record *record;
        Activity *call;
        bool completed; // a part of it
    };
    using RangeStack = std::pair<uint32_t, uint64_t>; // thread, and origin and domain of its ranges

    Activity &make(const Record &record, ActivityType type, const std::string &name) {
        buffer_->emplace_activity(buffer_->span, type, name);
        Activity &made = *buffer_->activities.back();
        if (record.operator_id) made.linked = linked_(static_cast<int32_t>(record.operator_id));
        made.threadId = static_cast<int32_t>(record.header().thread);
        return made;
    }

    // A call of the host that began with the record.
    Activity &call(const Record &record, ActivityType type, const std::string &name) {
        Activity &made = make(record, type, name);
        made.device = getpid();
        made.resource = made.threadId;
        made.startTime = period_.real(record.header().time);
        made.id = ++correlation_;
        if (type == ActivityType::CUDA_RUNTIME) made.addMetadata("correlation", made.id);
        return made;
    }

    int32_t stream(const pasta_header &header) {
        devices_.insert(header.device);
        auto [at, is_new] = streams_.try_emplace({header.device, header.stream}, 0);
        if (is_new && header.stream) at->second = ++stream_counts_[header.device];
        return at->second;
    }

    void launch(const Record &record) {
        const auto &launch = record.as<pasta_kernel_launch>();
        Launch &added = launches_[launch.ordinal] = {&record, nullptr};
        if (record.header().flags & PASTA_FLAG_GRAPH) return;
        added.call = &call(record, ActivityType::CUDA_RUNTIME, "cudaLaunchKernel");
        added.call->addMetadataQuoted("kernel", names_[launch.name]);
    }

    void launch_end(const Record &record) {
        auto at = launches_.find(record.as<pasta_launch_end>().ordinal);
        if (at != launches_.end() && at->second.call) at->second.call->endTime = period_.real(record.header().time);
    }

    // A kernel with its device times. It has no row if it did not complete, or if the source has no device times.
    void complete(const Record &record) {
        const auto &times = record.as<pasta_kernel_complete>();
        auto at = launches_.find(times.ordinal);
        if (at == launches_.end() || times.end == UINT64_MAX || times.end < times.start) return;
        const Record &launched = *at->second.record;
        const auto &launch = launched.as<pasta_kernel_launch>();
        Activity &made = make(launched, ActivityType::CONCURRENT_KERNEL, names_[launch.name]);
        Activity *call = at->second.call;
        place(made, launched.header(), times.start, times.end, call);
        made.addMetadata("grid", triple(launch.grid));
        made.addMetadata("block", triple(launch.block));
        if (launch.registers != UINT16_MAX) made.addMetadata("registers per thread", launch.registers);
        if (launch.shared_static != UINT32_MAX && launch.shared_dynamic != UINT32_MAX)
            made.addMetadata("shared memory", uint64_t(launch.shared_static) + launch.shared_dynamic);
        if (call) link(*call, made);
        buffer_->gpuOpCount++;
    }

    // On the row of a stream, with device times.
    void place(Activity &made, const pasta_header &header, uint64_t start, uint64_t end, const Activity *call) {
        made.device = header.device;
        made.resource = stream(header);
        made.startTime = period_.real(start);
        made.endTime = period_.real(end);
        made.id = call ? call->id : ++correlation_;
        made.addMetadata("device", made.device);
        made.addMetadata("stream", made.resource);
        made.addMetadata("correlation", made.id);
    }

    static void link(Activity &call, Activity &kernel) {
        for (Activity *each : {&call, &kernel}) {
            each->flow.id = static_cast<uint32_t>(call.id);
            each->flow.type = libkineto::kLinkAsyncCpuGpu;
            each->flow.start = each == &call;
        }
    }

    void graph_launch(const Record &record) {
        const char *name = record.as<pasta_graph_launch>().upload == 1 ? "cudaGraphUpload" : "cudaGraphLaunch";
        graphs_[record.header().correlation] = &call(record, ActivityType::CUDA_RUNTIME, name);
    }

    void graph_launch_end(const Record &record) {
        auto at = graphs_.find(record.header().correlation);
        if (at == graphs_.end()) return;
        at->second->endTime = period_.real(record.header().time);
        graphs_.erase(at);
    }

    // The call of a copy or set; without device times it stands for the copy or set.
    void submitted(const Record &record, const char *name, uint64_t bytes) {
        Activity &made = call(record, ActivityType::CUDA_RUNTIME, name);
        made.endTime = made.startTime;
        made.addMetadata("bytes", bytes);
        made.addMetadata("device", record.header().device);
        if (uint64_t correlation = record.header().correlation) submitted_[correlation] = {&record, &made, false};
    }

    void copy(const Record &record) {
        const auto &copy = record.as<pasta_memory_copy>();
        submitted(record, copy_name(copy.direction), copy.bytes);
    }

    void set(const Record &record) { submitted(record, "Memset", record.as<pasta_memory_set>().bytes); }

    // A copy or set with its device times, or a part of it.
    void copy_complete(const Record &record) {
        const auto &times = record.as<pasta_copy_complete>();
        auto at = submitted_.find(record.header().correlation);
        if (at == submitted_.end() || times.end == UINT64_MAX || times.end < times.start) return;
        const Record &begun = *at->second.record;
        Activity &call = *at->second.call;
        bool is_set = begun.header().kind == PASTA_EVENT_memory_set, is_async = begun.header().flags & PASTA_FLAG_ASYNC;
        const char *name = is_set ? "Memset" : copy_name(begun.as<pasta_memory_copy>().direction);
        Activity &made = make(begun, is_set ? ActivityType::GPU_MEMSET : ActivityType::GPU_MEMCPY, name);
        place(made, begun.header(), times.start, times.end, &call);
        if (times.bytes != UINT64_MAX) made.addMetadata("bytes", times.bytes);
        call.activityName = std::string(is_set ? "cudaMemset" : "cudaMemcpy") + (is_async ? "Async" : "");
        if (!at->second.completed) link(call, made);
        at->second.completed = true;
        buffer_->gpuOpCount++;
    }

    void sync(const Record &record) {
        const auto &sync = record.as<pasta_sync>();
        Activity &made = call(record, ActivityType::CUDA_RUNTIME, sync_name(sync.what));
        made.endTime = made.startTime;
        if (sync.duration != UINT64_MAX) made.startTime = std::max(made.endTime - int64_t(sync.duration), period_.begin.real);
    }

    static RangeStack stack_of(const Record &record) {
        const auto &range = record.as<pasta_range>();
        return {record.header().thread, uint64_t(range.origin) << 32 | range.domain};
    }

    void range_push(const Record &record) {
        const auto &range = record.as<pasta_range>();
        ranges_[stack_of(record)].push_back(&call(record, RANGE, names_[range.name]));
    }

    void range_pop(const Record &record) {
        auto &open = ranges_[stack_of(record)];
        if (open.empty()) return; // it began before the profiler started
        open.back()->endTime = period_.real(record.header().time);
        open.pop_back();
    }

    Period period_;
    libkineto::getLinkedActivityCallback linked_;
    bool with_kernels_;
    std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
    int32_t correlation_ = FIRST_CORRELATION;
    Names names_;
    std::unordered_map<uint64_t, Launch> launches_;
    std::unordered_map<uint64_t, Submitted> submitted_; // copies and sets
    std::unordered_map<uint64_t, Activity *> graphs_;
    std::map<RangeStack, std::vector<Activity *>> ranges_;
    std::set<int16_t> devices_;
    std::map<std::pair<int16_t, uint64_t>, int32_t> streams_;
    std::map<int16_t, int32_t> stream_counts_;
};

// Newer versions of Kineto have a number by which devices are sorted.
template <typename Info = libkineto::DeviceInfo>
auto device_info(int64_t id, const std::string &name, const std::string &label, int)
    -> decltype(Info{id, FIRST_DEVICE_ORDER + id, name, label}) {
    return Info{id, FIRST_DEVICE_ORDER + id, name, label};
}
template <typename Info = libkineto::DeviceInfo>
auto device_info(int64_t id, const std::string &name, const std::string &label, long)
    -> decltype(Info{id, name, label}) {
    return Info{id, name, label};
}

// Newer versions are aggregates; older ones have a constructor, which takes the same in another order.
template <typename Info = libkineto::ResourceInfo> Info resource_info(int64_t device, int64_t id, const std::string &name) {
    if constexpr (std::is_aggregate_v<Info>)
        return Info{id, id, device, name};
    else
        return Info(device, id, id, name);
}

} // namespace pasta
