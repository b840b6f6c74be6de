// Launches, kernels, copies, waits and ranges of the preloaded library in the program's own torch.profiler
// trace: a child of Kineto, which torch.profiler records by.
//
// Built by hooks.py against the program's torch when the program first prepares a profiler.  While one
// records, each record that is published is copied: on the vendor's callback, so without locks or
// allocations, into memory that lies ready.  Activities are made of them when the profiler stops.
// Nothing here throws into Kineto.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cxxabi.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include "pasta_framework.h"

namespace {

using libkineto::ActivityType;
using Activity = libkineto::GenericTraceActivity;

const pasta_framework *pasta;
uint32_t generation;

// The child of a fork has another ring, whose string ids these are not.
bool is_mine() { return pasta->generation() == generation; }

// ---- operators that are open, by the numbers that Kineto knows them by ----

struct Operators {
    static constexpr uint32_t DEEPEST = 256;
    uint32_t session = 0; // what is left of an earlier one is not open any more
    uint32_t depth = 0;
    uint64_t ids[DEEPEST];

    uint64_t innermost() const { return depth ? ids[std::min(depth, DEEPEST) - 1] : 0; }
};

std::atomic<uint32_t> session_number;

#ifdef PASTA_DYNAMIC_TLS
#define PASTA_TLS_MODEL
#else
#define PASTA_TLS_MODEL __attribute__((tls_model("initial-exec")))
#endif
__thread Operators *current PASTA_TLS_MODEL; // a pointer alone: a late library has little room in a thread

struct Owner {
    Operators *owned = nullptr;
    ~Owner() {
        current = nullptr;
        delete owned;
    }
};
thread_local Owner owner;

void push(uint64_t id) {
    try {
        if (!current) current = owner.owned = new Operators;
        Operators &mine = *current;
        uint32_t now = session_number.load(std::memory_order_relaxed);
        if (mine.session != now) mine.depth = 0;
        mine.session = now;
        if (mine.depth < Operators::DEEPEST) mine.ids[mine.depth] = id;
        mine.depth++;
    } catch (...) { // no memory: what follows belongs to no operator
    }
}

void pop() {
    if (current && current->depth && current->session == session_number.load(std::memory_order_relaxed)) current->depth--;
}

uint64_t open_operator() {
    return current && current->session == session_number.load(std::memory_order_relaxed) ? current->innermost() : 0;
}

// ---- records, as the tap copies them ----

constexpr size_t RECORD_BYTES = 2 * PASTA_SLOT; // of the longest of these kinds
constexpr uint64_t bit(pasta_event_kind kind) { return UINT64_C(1) << kind; }
constexpr uint64_t KINDS = bit(PASTA_EVENT_kernel_launch) | bit(PASTA_EVENT_kernel_launch_end) |
                           bit(PASTA_EVENT_kernel_complete) | bit(PASTA_EVENT_graph_launch) |
                           bit(PASTA_EVENT_graph_launch_end) | bit(PASTA_EVENT_memory_copy) | bit(PASTA_EVENT_memory_set) |
                           bit(PASTA_EVENT_sync) | bit(PASTA_EVENT_range_push) | bit(PASTA_EVENT_range_pop);
static_assert(sizeof(pasta_header) + sizeof(pasta_kernel_launch) <= RECORD_BYTES &&
              sizeof(pasta_header) + sizeof(pasta_memory_copy) <= RECORD_BYTES &&
              sizeof(pasta_header) + sizeof(pasta_memory_set) <= RECORD_BYTES);

struct Seen {
    std::atomic<uint32_t> complete;
    uint64_t op; // Kineto's number of the thread's innermost operator; 0: none
    alignas(8) unsigned char bytes[RECORD_BYTES];

    const pasta_header &header() const { return *reinterpret_cast<const pasta_header *>(bytes); }
    template <typename Payload> const Payload &as() const {
        return *reinterpret_cast<const Payload *>(bytes + sizeof(pasta_header));
    }
};

// Address space, which becomes memory where it is written.
struct {
    std::atomic<Seen *> seen;
    uint64_t room;
    std::atomic<uint64_t> used;
    std::atomic<int32_t> writers;
    std::atomic<bool> open;
} records;

void tap(const pasta_header *record) {
    if (record->kind >= 64 || !(KINDS >> record->kind & 1)) return;
    records.writers.fetch_add(1);
    if (records.open.load()) {
        uint64_t place = records.used.fetch_add(1, std::memory_order_relaxed);
        if (place < records.room) {
            Seen &mine = records.seen.load(std::memory_order_relaxed)[place];
            mine.op = open_operator();
            std::memcpy(mine.bytes, record, std::min<size_t>(record->slots * size_t(PASTA_SLOT), RECORD_BYTES));
            mine.complete.store(1, std::memory_order_release);
        }
    }
    records.writers.fetch_sub(1);
}

// Less where the program limits its address space.
bool make_room() {
    if (records.seen) return true;
    for (size_t bytes = size_t(1) << 30; bytes >= size_t(1) << 22; bytes /= 4) {
        void *found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) continue;
        madvise(found, bytes, MADV_DONTDUMP);
        records.room = bytes / sizeof(Seen);
        records.seen = static_cast<Seen *>(found);
        return true;
    }
    return false;
}

void open_records() {
    if (!is_mine() || !make_room()) return;
    records.used = 0;
    records.open = true;
    pasta->tap(tap);
}

void close_records() {
    records.open = false;
    if (!is_mine()) return;
    pasta->tap(nullptr);
    for (int waits = 0; records.writers > 0 && waits < 1000; waits++) {
        timespec pause = {0, 100000};
        nanosleep(&pause, nullptr);
    }
}

// For the next session.  A thread that was taken out of a callback for ever may yet write: it keeps the memory.
void clear_records() {
    Seen *seen = records.seen;
    if (!seen) return;
    if (records.writers <= 0)
        madvise(seen, std::min(records.used.load(), records.room) * sizeof(Seen), MADV_DONTNEED);
    else {
        records.seen = nullptr;
        records.writers = 0;
    }
    records.used = 0;
}

// ---- times: records have the monotonic clock, Kineto that of the calendar ----

struct Instant {
    int64_t monotonic, real;

    static int64_t of(clockid_t clock) {
        timespec now;
        clock_gettime(clock, &now);
        return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }

    // The one of some readings that was interrupted least.
    static Instant now() {
        Instant best = {};
        int64_t shortest = INT64_MAX;
        for (int i = 0; i < 9; i++) {
            int64_t before = of(CLOCK_MONOTONIC), real = of(CLOCK_REALTIME), after = of(CLOCK_MONOTONIC);
            if (after - before >= shortest) continue;
            shortest = after - before;
            best = {before + shortest / 2, real};
        }
        return best;
    }
};

// ---- text ----

// Kineto writes names and quoted values as they are.
std::string safe(const std::string &text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        unsigned char c = static_cast<unsigned char>(text[i]);
        size_t length = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
        bool valid = length && i + length <= text.size();
        for (size_t k = 1; valid && k < length; k++) valid = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
        if (!valid || c < 0x20 || c == 0x7f)
            out += '?';
        else if (c == '"')
            out += '\'';
        else if (c == '\\')
            out += '/';
        else
            out.append(text, i, length);
        i += valid ? length : 1;
    }
    return out;
}

class Names {
  public:
    const std::string &operator[](uint32_t id) {
        auto [at, made] = names_.try_emplace(id);
        if (made) at->second = safe(text(id));
        return at->second;
    }

  private:
    static std::string text(uint32_t id) {
        size_t length = 0;
        const char *found = pasta->interned(id, &length);
        std::string name = found ? std::string(found, length) : "kernel";
        int status;
        char *demangled = name.rfind("_Z", 0) ? nullptr : abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
        if (demangled) name = demangled;
        std::free(demangled);
        return name;
    }

    std::unordered_map<uint32_t, std::string> names_;
};

std::string three(const uint32_t *sizes) {
    return '[' + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + ']';
}

const char *name_of_copy(uint32_t direction) {
    switch (direction) {
    case PASTA_COPY_host_to_host: return "Memcpy HtoH";
    case PASTA_COPY_host_to_device: return "Memcpy HtoD";
    case PASTA_COPY_device_to_host: return "Memcpy DtoH";
    case PASTA_COPY_device_to_device: return "Memcpy DtoD";
    case PASTA_COPY_peer_to_peer: return "Memcpy PtoP";
    default: return "Memcpy";
    }
}

const char *name_of_wait(uint32_t what) {
    switch (what) {
    case PASTA_SYNC_stream: return "cudaStreamSynchronize";
    case PASTA_SYNC_context: return "cuCtxSynchronize";
    case PASTA_SYNC_event: return "cudaEventSynchronize";
    default: return "cudaDeviceSynchronize";
    }
}

// ---- activities ----

// Operators have low numbers: an activity that belongs to none would be taken for one of those.
constexpr int32_t FIRST_CORRELATION = 1 << 30;
// Where devices come in the order of processes: below those of the host.
constexpr int64_t DEVICES_FROM = 5000000;
// Not USER_ANNOTATION: torch warns of those that it has not made itself.
constexpr ActivityType RANGE = ActivityType::EXTERNAL_CORRELATION;

class Activities {
  public:
    // `kernels`: with their device times, or launch calls only.
    Activities(Instant begin, Instant end, libkineto::getLinkedActivityCallback linked, bool kernels)
        : begin_(begin), end_(end), linked_(std::move(linked)), kernels_(kernels), buffer_(new libkineto::CpuTraceBuffer) {
        buffer_->span = libkineto::TraceSpan(0, 0, "PASTA", "");
        buffer_->span.startTime = begin.real;
        buffer_->span.endTime = end.real;
        buffer_->gpuOpCount = 0;
    }

    void add(const Seen &seen) {
        switch (seen.header().kind) {
        case PASTA_EVENT_kernel_launch: return launch(seen);
        case PASTA_EVENT_kernel_launch_end: return launch_end(seen);
        case PASTA_EVENT_kernel_complete: return kernels_ ? complete(seen) : void();
        case PASTA_EVENT_graph_launch: return graph_launch(seen);
        case PASTA_EVENT_graph_launch_end: return graph_launch_end(seen);
        case PASTA_EVENT_memory_copy: return copy(seen);
        case PASTA_EVENT_memory_set: return set(seen);
        case PASTA_EVENT_sync: return sync(seen);
        case PASTA_EVENT_range_push: return range_push(seen);
        case PASTA_EVENT_range_pop: return range_pop(seen);
        }
    }

    // Ranges that were open when the profiler stopped end there; a call that did not return has no duration.
    std::unique_ptr<libkineto::CpuTraceBuffer> finish(libkineto::ActivityLogger &logger) {
        for (auto &activity : buffer_->activities) {
            if (!activity->endTime) activity->endTime = activity->activityType == RANGE ? end_.real : activity->startTime;
            logger.handleGenericActivity(*activity);
        }
        buffer_->span.opCount = static_cast<int>(buffer_->activities.size());
        if (buffer_->activities.empty()) buffer_.reset(); // the trace is as without us
        return std::move(buffer_);
    }

    const std::set<int16_t> &devices() const { return devices_; }
    const std::map<std::pair<int16_t, uint64_t>, int32_t> &streams() const { return streams_; }

  private:
    struct Launch {
        const Seen *seen;
        Activity *call; // nullptr: of a graph
    };
    using Place = std::pair<uint32_t, uint64_t>; // thread, and domain and origin of ranges

    int64_t real(uint64_t time) const {
        int64_t since = static_cast<int64_t>(time) - begin_.monotonic;
        int64_t length = end_.monotonic - begin_.monotonic, drift = (end_.real - begin_.real) - length;
        double share = length > 0 ? static_cast<double>(since) / static_cast<double>(length) : 0;
        return begin_.real + since + static_cast<int64_t>(static_cast<double>(drift) * share);
    }

    Activity &make(const Seen &seen, ActivityType type, const std::string &name) {
        buffer_->emplace_activity(buffer_->span, type, name);
        Activity &made = *buffer_->activities.back();
        if (seen.op) made.linked = linked_(static_cast<int32_t>(seen.op));
        made.threadId = static_cast<int32_t>(seen.header().thread);
        return made;
    }

    // A call of the host, that began with the record.
    Activity &call(const Seen &seen, ActivityType type, const std::string &name) {
        Activity &made = make(seen, type, name);
        made.device = getpid();
        made.resource = made.threadId;
        made.startTime = real(seen.header().time);
        made.id = ++correlation_;
        if (type == ActivityType::CUDA_RUNTIME) made.addMetadata("correlation", made.id);
        return made;
    }

    int32_t stream(const pasta_header &header) {
        devices_.insert(header.device);
        auto [at, made] = streams_.try_emplace({header.device, header.stream}, 0);
        if (made && header.stream) at->second = ++stream_counts_[header.device];
        return at->second;
    }

    void launch(const Seen &seen) {
        const auto &launch = seen.as<pasta_kernel_launch>();
        Launch &mine = launches_[launch.ordinal] = {&seen, nullptr};
        if (seen.header().flags & PASTA_FLAG_GRAPH) return;
        mine.call = &call(seen, ActivityType::CUDA_RUNTIME, "cudaLaunchKernel");
        mine.call->addMetadataQuoted("kernel", names_[launch.name]);
    }

    void launch_end(const Seen &seen) {
        auto at = launches_.find(seen.as<pasta_launch_end>().ordinal);
        if (at != launches_.end() && at->second.call) at->second.call->endTime = real(seen.header().time);
    }

    // The device's times, or nothing: kernels that did not complete, or of which no source tells, have no row.
    void complete(const Seen &seen) {
        const auto &times = seen.as<pasta_kernel_complete>();
        auto at = launches_.find(times.ordinal);
        if (at == launches_.end() || times.end == UINT64_MAX || times.end < times.start) return;
        const Seen &of = *at->second.seen;
        const auto &launch = of.as<pasta_kernel_launch>();
        Activity &made = make(of, ActivityType::CONCURRENT_KERNEL, names_[launch.name]);
        Activity *call = at->second.call;
        made.device = of.header().device;
        made.resource = stream(of.header());
        made.startTime = real(times.start);
        made.endTime = real(times.end);
        made.id = call ? call->id : ++correlation_;
        made.addMetadata("device", made.device);
        made.addMetadata("stream", made.resource);
        made.addMetadata("correlation", made.id);
        made.addMetadata("grid", three(launch.grid));
        made.addMetadata("block", three(launch.block));
        if (launch.registers != UINT16_MAX) made.addMetadata("registers per thread", launch.registers);
        if (launch.shared_static != UINT32_MAX && launch.shared_dynamic != UINT32_MAX)
            made.addMetadata("shared memory", uint64_t(launch.shared_static) + launch.shared_dynamic);
        if (call) link(*call, made);
        buffer_->gpuOpCount++;
    }

    static void link(Activity &call, Activity &kernel) {
        for (Activity *each : {&call, &kernel}) {
            each->flow.id = static_cast<uint32_t>(call.id);
            each->flow.type = libkineto::kLinkAsyncCpuGpu;
            each->flow.start = each == &call;
        }
    }

    void graph_launch(const Seen &seen) {
        const char *name = seen.as<pasta_graph_launch>().upload == 1 ? "cudaGraphUpload" : "cudaGraphLaunch";
        graphs_[seen.header().correlation] = &call(seen, ActivityType::CUDA_RUNTIME, name);
    }

    void graph_launch_end(const Seen &seen) {
        auto at = graphs_.find(seen.header().correlation);
        if (at == graphs_.end()) return;
        at->second->endTime = real(seen.header().time);
        graphs_.erase(at);
    }

    // A copy or set is told when it is submitted; how long it took is not known.
    Activity &submitted(const Seen &seen, const char *name, uint64_t bytes) {
        Activity &made = call(seen, ActivityType::CUDA_RUNTIME, name);
        made.endTime = made.startTime;
        made.addMetadata("bytes", bytes);
        made.addMetadata("device", seen.header().device);
        return made;
    }

    void copy(const Seen &seen) {
        const auto &copy = seen.as<pasta_memory_copy>();
        submitted(seen, name_of_copy(copy.direction), copy.bytes);
    }

    void set(const Seen &seen) { submitted(seen, "Memset", seen.as<pasta_memory_set>().bytes); }

    void sync(const Seen &seen) {
        const auto &sync = seen.as<pasta_sync>();
        Activity &made = call(seen, ActivityType::CUDA_RUNTIME, name_of_wait(sync.what));
        made.endTime = made.startTime;
        if (sync.duration != UINT64_MAX) made.startTime = std::max(made.endTime - int64_t(sync.duration), begin_.real);
    }

    Place place(const Seen &seen) const {
        const auto &range = seen.as<pasta_range>();
        return {seen.header().thread, uint64_t(range.origin) << 32 | range.domain};
    }

    void range_push(const Seen &seen) {
        const auto &range = seen.as<pasta_range>();
        ranges_[place(seen)].push_back(&call(seen, RANGE, names_[range.name]));
    }

    void range_pop(const Seen &seen) {
        auto &open = ranges_[place(seen)];
        if (open.empty()) return; // it was pushed before the profiler started
        open.back()->endTime = real(seen.header().time);
        open.pop_back();
    }

    Instant begin_, end_;
    libkineto::getLinkedActivityCallback linked_;
    bool kernels_;
    std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
    int32_t correlation_ = FIRST_CORRELATION;
    Names names_;
    std::unordered_map<uint64_t, Launch> launches_;
    std::unordered_map<uint64_t, Activity *> graphs_;
    std::map<Place, std::vector<Activity *>> ranges_;
    std::set<int16_t> devices_;
    std::map<std::pair<int16_t, uint64_t>, int32_t> streams_;
    std::map<int16_t, int32_t> stream_counts_;
};

// Later versions have devices ordered by a number of their own.
template <typename Info = libkineto::DeviceInfo>
auto device_info(int64_t id, const std::string &name, const std::string &label, int)
    -> decltype(Info{id, DEVICES_FROM + id, name, label}) {
    return Info{id, DEVICES_FROM + id, name, label};
}
template <typename Info = libkineto::DeviceInfo>
auto device_info(int64_t id, const std::string &name, const std::string &label, long)
    -> decltype(Info{id, name, label}) {
    return Info{id, name, label};
}

// Later versions have the members in order, not a constructor with another one.
template <typename Info = libkineto::ResourceInfo> Info resource_info(int64_t device, int64_t id, const std::string &name) {
    if constexpr (std::is_aggregate_v<Info>)
        return Info{id, id, device, name};
    else
        return Info(device, id, id, name);
}

// Whether torch measures the time of operators on the device by itself (ProfilerStubs): kernels would come
// on top of that.
bool torch_measures() {
    try {
        namespace impl = torch::profiler::impl;
        return impl::getProfilerConfig().state == impl::ProfilerState::KINETO_PRIVATEUSE1_FALLBACK;
    } catch (const std::exception &) { // no profiler of this thread
        return false;
    }
}

// ---- what Kineto calls ----

class Session : public libkineto::IActivityProfilerSession {
  public:
    ~Session() override { // of one that was given up, too
        stop();
        clear();
    }

    void start() override {
        session_number++;
        begin_ = Instant::now();
        recording_ = holds_ = true;
        kernels_ = !torch_measures();
        open_records();
        status_ = libkineto::TraceStatus::RECORDING;
    }

    void stop() override {
        if (!recording_) return;
        recording_ = false;
        close_records();
        end_ = Instant::now();
        status_ = libkineto::TraceStatus::PROCESSING;
    }

    std::vector<std::string> errors() override { return {}; }

    void processTrace(libkineto::ActivityLogger &logger) override {
        processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
    }

    void processTrace(libkineto::ActivityLogger &logger, libkineto::getLinkedActivityCallback linked, int64_t,
                      int64_t) override {
        if (is_mine()) try {
                uint64_t used = records.used, kept = std::min(used, records.room);
                const Seen *seen = records.seen;
                Activities activities(begin_, end_, std::move(linked), kernels_);
                for (uint64_t at = 0; at < kept; at++)
                    if (seen[at].complete.load(std::memory_order_acquire)) activities.add(seen[at]);
                trace_ = activities.finish(logger);
                tell_places(logger, activities);
                if (used > kept)
                    pasta->say("torch.profiler's trace lacks %llu records of accelerators: it has no room for more than %llu",
                               static_cast<unsigned long long>(used - kept), static_cast<unsigned long long>(kept));
            } catch (const std::exception &error) {
                pasta->say("torch.profiler's trace lacks kernels: %s", error.what());
            } catch (...) {
            }
        clear();
        status_ = libkineto::TraceStatus::READY;
    }

    std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; } // there may be several
    std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
    std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(trace_); }

    void pushCorrelationId(uint64_t id) override { push(id); }
    void popCorrelationId() override { pop(); }
    void pushUserCorrelationId(uint64_t id) override { push(id); }
    void popUserCorrelationId() override { pop(); }

  private:
    void tell_places(libkineto::ActivityLogger &logger, const Activities &activities) const {
        for (int16_t device : activities.devices()) {
            std::string number = std::to_string(device);
            logger.handleDeviceInfo(device_info<>(device, "device " + number, "GPU " + number, 0), begin_.real);
        }
        for (const auto &[place, number] : activities.streams()) {
            char name[32] = "default stream";
            if (place.second) snprintf(name, sizeof name, "stream %#llx", static_cast<unsigned long long>(place.second));
            logger.handleResourceInfo(resource_info<>(place.first, number, name), begin_.real);
        }
    }

    void clear() {
        if (holds_) clear_records();
        holds_ = false;
    }

    Instant begin_, end_;
    bool recording_ = false, holds_ = false; // records
    bool kernels_ = true;                    // are shown
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

// ---- what Python calls ----

PyObject *py_start(PyObject *, PyObject *) {
    if (pasta) Py_RETURN_TRUE;
    pasta_framework_function *find;
    *reinterpret_cast<void **>(&find) = dlsym(RTLD_DEFAULT, PASTA_FRAMEWORK_SYMBOL);
    pasta = find ? find(PASTA_FRAMEWORK_VERSION) : nullptr;
    if (!pasta) Py_RETURN_FALSE;
    generation = pasta->generation();
    try {
        libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_TRUE;
}

PyMethodDef methods[] = {
    {"start", py_start, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pasta_torch_kineto", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__pasta_torch_kineto() { return PyModule_Create(&definition); }
