// Devices, streams, events and launches of refacc, and how PyTorch finds them.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

namespace refacc {
namespace {

constexpr int POOL = 8; // streams for each device and priority; each stream has a host thread

struct Device {
    std::once_flag once;
    std::atomic<ra_context> context{nullptr};
    std::array<ra_function, static_cast<size_t>(Kernel::COUNT)> functions{};
    std::mutex mutex; // of the pool
    ra_stream pool[2][POOL] = {};
    uint32_t next[2] = {};
};

Device &state(int device) {
    static auto &devices = *new std::array<Device, MAX_DEVICES>; // threads may outlive main
    return devices.at(static_cast<size_t>(device));
}

std::atomic<bool> used, forked;
thread_local int current;
thread_local c10::StreamId current_streams[MAX_DEVICES];

void after_fork() { forked = used.load(); }

std::string module_image() {
    std::string image = "refacc-module 1\n";
    for (int i = 0; i < static_cast<int>(Kernel::COUNT); i++) image.append(kernels()[i].symbol).push_back('\n');
    return image;
}

void load(int device, Device &state) {
    static std::once_flag once;
    std::call_once(once, [] {
        RA(ra_kernel_register, kernels(), static_cast<size_t>(Kernel::COUNT));
        pthread_atfork(nullptr, nullptr, after_fork);
        used = true;
    });
    ra_context context;
    RA(ra_device_set, device);
    RA(ra_context_get_current, &context);
    std::string image = module_image();
    ra_module module;
    RA(ra_module_load, &module, image.data(), image.size());
    for (size_t i = 0; i < state.functions.size(); i++) RA(ra_module_function, &state.functions[i], module, kernels()[i].symbol);
    state.context = context;
}

void check_index(int device) {
    if (!device_count()) RA(ra_init); // reports the reason
    TORCH_CHECK(device >= 0 && device < device_count(), "there is no device refacc:", device, " (REFACC_DEVICES gives ",
                device_count(), ")");
}

} // namespace

void check(int error, const char *function) {
    TORCH_CHECK(error == RA_OK, "refacc: ", function, ": ", ra_error_string(error));
}

// ---- devices ----

int device_count() noexcept {
    static const int count = [] {
        int found = 0;
        return ra_device_count(&found) == RA_OK ? std::min(found, MAX_DEVICES) : 0;
    }();
    return count;
}

int current_device() noexcept { return current; }

int exchange_device(int device) {
    int before = current;
    if (device >= 0 && device != before) {
        check_index(device);
        current = device;
    }
    return before;
}

int device_of(c10::Device device) { return device.has_index() ? device.index() : current; }

bool was_forked() noexcept { return forked; }

void use(int device) {
    TORCH_CHECK(!forked, "refacc was used before this process was forked and cannot be used in it: start processes "
                         "with the method 'spawn'");
    check_index(device);
    Device &mine = state(device);
    std::call_once(mine.once, load, device, std::ref(mine));
    RA(ra_context_set_current, mine.context);
}

void synchronize(int device) {
    use(device);
    RA(ra_device_synchronize);
}

// ---- streams ----

c10::Stream stream_of(int device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(TYPE, static_cast<c10::DeviceIndex>(device)), id);
}

c10::Stream current_stream(int device) noexcept { return stream_of(device, current_streams[device]); }

c10::Stream exchange_stream(c10::Stream stream) {
    int device = device_of(stream.device());
    check_index(device);
    c10::Stream before = current_stream(device);
    current_streams[device] = stream.id();
    return before;
}

c10::Stream pool_stream(int device, bool high_priority) {
    use(device);
    Device &mine = state(device);
    std::lock_guard<std::mutex> lock(mine.mutex);
    uint32_t place = mine.next[high_priority]++ % POOL;
    ra_stream &stream = mine.pool[high_priority][place];
    if (!stream) RA(ra_stream_create, &stream, high_priority ? -1 : 0);
    return stream_of(device, 1 + high_priority * POOL + place);
}

ra_stream handle(c10::Stream stream) {
    use(stream.device_index());
    if (!stream.id()) return nullptr;
    TORCH_CHECK(stream.id() > 0 && stream.id() <= 2 * POOL, "refacc has no stream ", stream.id());
    Device &mine = state(stream.device_index());
    std::lock_guard<std::mutex> lock(mine.mutex);
    return mine.pool[(stream.id() - 1) / POOL][(stream.id() - 1) % POOL];
}

void synchronize(c10::Stream stream) {
    ra_stream native = handle(stream);
    RA(ra_stream_synchronize, native);
}

// ---- events ----

ra_event record_event(c10::Stream stream, ra_event event) {
    ra_stream native = handle(stream);
    bool made = !event;
    if (made) RA(ra_event_create, &event);
    int error = ra_event_record(event, native);
    if (error && made) ra_event_destroy(event);
    check(error, "ra_event_record");
    return event;
}

void destroy_event(ra_event event) noexcept {
    if (event && !forked) ra_event_destroy(event); // fails after refacc has ended, which destroyed the event
}

// ---- launches ----

void launch(int device, Kernel kernel, Grid grid, Grid block, const Words &words) {
    auto number = static_cast<size_t>(kernel);
    TORCH_INTERNAL_ASSERT(words.count() == kernels()[number].parameters);
    ra_stream stream = handle(current_stream(device));
    void *parameters[RA_MAX_PARAMETERS];
    for (uint32_t i = 0; i < words.count(); i++) parameters[i] = const_cast<uint64_t *>(words.data() + i);
    const uint32_t grids[3] = {grid.x, grid.y, grid.z}, threads[3] = {block.x, block.y, block.z};
    RA(ra_launch, state(device).functions[number], grids, threads, 0, stream, parameters);
}

// ---- PyTorch's view ----

namespace {

// Functions without `override` came after PyTorch 2.4.
struct Guard final : c10::impl::DeviceGuardImplInterface {
    static c10::Device at(int device) { return c10::Device(TYPE, static_cast<c10::DeviceIndex>(device)); }
    static ra_event event_of(void *event) { return static_cast<ra_event>(event); }

    c10::DeviceType type() const override { return TYPE; }
    c10::Device exchangeDevice(c10::Device device) const override { return at(exchange_device(device.index())); }
    c10::Device getDevice() const override { return at(current); }
    void setDevice(c10::Device device) const override { exchange_device(device.index()); }
    void uncheckedSetDevice(c10::Device device) const noexcept override {
        if (device.index() >= 0 && device.index() < device_count()) current = device.index();
    }
    c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }
    void synchronizeDevice(const c10::DeviceIndex device) const { synchronize(static_cast<int>(device)); }

    c10::Stream getStream(c10::Device device) const noexcept override { return current_stream(device_of(device)); }
    c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device_of(device), 0); }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
        return pool_stream(device_of(device), high);
    }
    c10::Stream getNewStream(c10::Device device, int priority) const override {
        return pool_stream(device_of(device), priority < 0);
    }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return exchange_stream(stream); }
    bool queryStream(const c10::Stream &stream) const override {
        int error = ra_stream_query(handle(stream));
        if (error != RA_NOT_READY) check(error, "ra_stream_query");
        return error == RA_OK;
    }
    void synchronizeStream(const c10::Stream &stream) const override { synchronize(stream); }
    void *getStreamNativeHandle(const c10::Stream stream) const { return handle(stream); }

    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex, const c10::EventFlag) const override {
        *event = record_event(stream, event_of(*event));
    }
    void block(void *event, const c10::Stream &stream) const override {
        ra_stream native = handle(stream);
        if (event) RA(ra_stream_wait_event, native, event_of(event));
    }
    bool queryEvent(void *event) const override {
        int error = event ? ra_event_query(event_of(event)) : RA_OK;
        if (error != RA_NOT_READY) check(error, "ra_event_query");
        return error == RA_OK;
    }
    void synchronizeEvent(void *event) const {
        if (event) RA(ra_event_synchronize, event_of(event));
    }
    double elapsedTime(void *from, void *to, const c10::DeviceIndex) const {
        uint64_t nanoseconds;
        RA(ra_event_elapsed, &nanoseconds, event_of(from), event_of(to));
        return static_cast<double>(static_cast<int64_t>(nanoseconds)) / 1e6;
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override { destroy_event(event_of(event)); }
    void recordDataPtrOnStream(const c10::DataPtr &memory, const c10::Stream &stream) const override {
        record_stream(memory, stream);
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Random numbers come from the CPU's generators: operators that draw them run there.
struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const { return true; }
    bool isAvailable() const { return device_count() > 0; }
    bool hasPrimaryContext(c10::DeviceIndex device) const override { return state(device).context != nullptr; }
    void init() const {}
    c10::DeviceIndex deviceCount() const { return static_cast<c10::DeviceIndex>(device_count()); }
    void setCurrentDevice(c10::DeviceIndex device) const { exchange_device(device); }
    c10::DeviceIndex getCurrentDevice() const { return static_cast<c10::DeviceIndex>(current); }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const {
        return static_cast<c10::DeviceIndex>(exchange_device(device));
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const { return exchangeDevice(device); }
    const at::Generator &getDefaultGenerator(c10::DeviceIndex) const { return at::detail::getDefaultCPUGenerator(); }
    at::Generator getNewGenerator(c10::DeviceIndex) const { return at::detail::createCPUGenerator(); }
    at::Device getDeviceFromPtr(void *address) const {
        ra_pointer found;
        RA(ra_pointer_query, &found, address);
        return Guard::at(found.device);
    }
    bool isPinnedPtr(const void *address) const { return is_pinned(address); }
    c10::Allocator *getPinnedMemoryAllocator() const { return pinned_allocator(); }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const {
        c10::DataPtr grown = device_allocator()->allocate(bytes);
        size_t kept = std::min(bytes, storage.nbytes());
        if (kept) {
            ra_stream stream = handle(current_stream(device_of(storage.device())));
            RA(ra_memcpy_async, grown.get(), storage.data(), kept, stream);
        }
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(grown));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
    }
};

[[maybe_unused]] const bool device_registered = [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
}();

} // namespace
} // namespace refacc
