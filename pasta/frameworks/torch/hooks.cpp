// Operators, tensors and Python stacks of PyTorch, into the preloaded library's ring.
//
// A RecordFunction callback for all threads, built by hooks.py against the program's torch at first use.
// The path of each operator takes no lock and allocates nothing; a Python stack that is new needs the
// interpreter's lock.
// Nothing here throws into the program.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "pasta_framework.h"

namespace {

const pasta_framework *pasta;

// What somebody asked for: the launcher, or a block of the program (pasta.profile).
struct Wanted {
    bool operators, tensors;
    uint32_t frames;               // 0: no stacks, and no modules
    PyObject *module_call, *namer; // code of nn.Module.__call__; None: no modules
};

struct {
    Wanted launch, block; // both go on at once
    bool tensors;         // what follows from them
    uint32_t frames;
    PyObject *module_call, *namer;
    std::mutex switching; // of the callback
    at::CallbackHandle handle;
    bool added, enabled, takes_tensors, finds_frames;
    uint32_t generation;
    bool switched, followed_before; // whether a block switched the preloaded library's allocators on; were they?
    std::atomic<uint32_t> epoch; // counts up when everything is to be told again
} options;

template <typename Payload>
Payload *begin(uint32_t thread, pasta_event_kind kind, int16_t device = PASTA_ABSENT_DEVICE) {
    constexpr size_t slots = (sizeof(pasta_header) + sizeof(Payload)) / PASTA_SLOT;
    return static_cast<Payload *>(pasta->begin_on(thread, kind, slots, device, PASTA_ABSENT_U16, PASTA_ABSENT_U64));
}

uint32_t thread_id() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

// The child of a fork is another process, with a ring and string ids of its own, if any: hooks.py
// decides whether it is followed.
bool is_mine() { return pasta->generation() == options.generation; }

uint32_t intern(const char *text) { return pasta->intern(text, std::strlen(text)); }

uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

// ---- Python stacks ----

// An interned stack is a hash of code objects and instructions; what is in the table has told its frames.
// Code objects in it are kept, or another might come to lie at the same address.
constexpr size_t STACKS = 1 << 16, DEEPEST = 128;
struct Stack {
    std::atomic<uint64_t> hash;
    std::atomic<uint32_t> id;
};
Stack stacks[STACKS];
std::atomic<uint32_t> last_stack;
std::vector<PyCodeObject *> codes; // that the table keeps

uint32_t interned(PyObject *text) {
    const char *utf8 = text ? PyUnicode_AsUTF8(text) : nullptr;
    if (utf8) return intern(utf8);
    PyErr_Clear();
    return 0;
}

void tell_frame(uint32_t stack, uint32_t depth, PyCodeObject *code, int line) {
    pasta_python_frame *e = begin<pasta_python_frame>(thread_id(), PASTA_EVENT_python_frame);
    if (!e) return;
    e->stack = stack;
    e->depth = depth;
    e->file = interned(code->co_filename);
    e->function = interned(code->co_name);
    e->line = static_cast<uint32_t>(line);
    e->first_line = static_cast<uint32_t>(code->co_firstlineno);
    pasta_framework_publish(e);
}

void keep(PyCodeObject *code) {
    Py_INCREF(code);
    try {
        codes.push_back(code);
    } catch (const std::bad_alloc &) { // then for ever
    }
}

Stack *find_stack(uint64_t hash) {
    for (size_t probe = 0; probe < 64; probe++) {
        Stack &entry = stacks[(hash + probe) % STACKS];
        uint64_t known = entry.hash.load(std::memory_order_acquire);
        if (known == hash || !known) return &entry;
    }
    return nullptr; // the table is full
}

// ---- frames ----

// A frame as the interpreter lays it out, in versions that do not change any more: the frames of this thread
// can then be followed without the lock and without objects for them, and their first variable be read.
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000 && !defined(Py_GIL_DISABLED)
#define PASTA_FRAMES 1
struct Frame {
#if PY_VERSION_HEX < 0x030c0000
    void *function, *globals, *builtins, *locals;
    PyObject *executable;
    void *object;
    Frame *previous;
    const char *instruction;
    int top;
    bool is_entry;
#else
    PyObject *executable;
    Frame *previous;
    void *function, *globals, *builtins, *locals, *object;
    const char *instruction;
    int top;
    uint16_t return_offset;
#endif
    char owner;
    PyObject *variables[1];
};
enum { OF_GENERATOR = 1, OF_C = 3 };

const Frame *innermost_frame(PyThreadState *state) {
#if PY_VERSION_HEX < 0x030d0000
    return reinterpret_cast<const Frame *>(state->cframe->current_frame);
#else
    return reinterpret_cast<const Frame *>(state->current_frame);
#endif
}

// This frame or the nearest one around it that runs code of the program.
const Frame *complete(const Frame *frame) {
    for (; frame; frame = frame->previous) {
        if (frame->owner == OF_C || !PyCode_Check(frame->executable)) continue;
        auto *code = reinterpret_cast<PyCodeObject *>(frame->executable);
        if (frame->owner == OF_GENERATOR || frame->instruction >= code->co_code_adaptive + 2 * code->_co_firsttraceable)
            break;
    }
    return frame;
}
#endif

struct Walk {
    uint64_t hash = 1; // of what is told of the stack
    uint32_t count = 0;
    PyObject *innermost = nullptr, *outermost = nullptr; // modules; borrowed from the frames
};

void passes_module(Walk &walk, PyObject *self) {
    if (!self) return;
    if (!walk.innermost) walk.innermost = self;
    walk.outermost = self;
}

// From a frame on, with the interpreter's lock, in any version; where `stack` is one, tells it.
Walk walk_objects(PyFrameObject *frame, uint32_t stack = 0) {
    Walk walk;
    Py_XINCREF(frame);
    while (frame && walk.count < DEEPEST) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        bool told = walk.count++ < options.frames;
#if PY_VERSION_HEX >= 0x030b0000
        int instruction = PyFrame_GetLasti(frame);
#else
        int instruction = frame->f_lasti;
#endif
        if (told) walk.hash = mix(mix(walk.hash, reinterpret_cast<uint64_t>(code)), static_cast<uint64_t>(instruction));
        if (told && stack) {
            keep(code);
            tell_frame(stack, walk.count - 1, code, PyFrame_GetLineNumber(frame));
        }
        if (reinterpret_cast<PyObject *>(code) == options.module_call) {
#if PY_VERSION_HEX >= 0x030c0000
            PyObject *self = PyFrame_GetVarString(frame, "self");
            if (!self) PyErr_Clear();
            passes_module(walk, self);
            Py_XDECREF(self); // the frame has it
#elif PY_VERSION_HEX >= 0x030b0000
            passes_module(walk, nullptr); // there is no call for it
#else
            passes_module(walk, frame->f_localsplus[0]);
#endif
        }
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return walk;
}

#ifdef PASTA_FRAMES
// The same of this thread, without the lock.
Walk walk_frames(PyThreadState *state) {
    Walk walk;
    for (const Frame *frame = complete(innermost_frame(state)); frame && walk.count < DEEPEST; frame = complete(frame->previous)) {
        if (walk.count++ < options.frames) walk.hash = mix(walk.hash, reinterpret_cast<uint64_t>(frame->instruction));
        if (frame->executable == options.module_call) passes_module(walk, frame->variables[0]);
    }
    return walk;
}

// Whether frames lie as this thinks: asked once, with the lock.
bool finds_frames() {
    const Frame *frame = complete(innermost_frame(PyThreadState_Get()));
    PyFrameObject *object = PyEval_GetFrame();
    bool same = true;
    Py_XINCREF(object);
    while (object && same) {
        PyCodeObject *code = PyFrame_GetCode(object);
        same = frame && frame->executable == reinterpret_cast<PyObject *>(code) &&
               PyFrame_GetLasti(object) == static_cast<int>(frame->instruction - code->co_code_adaptive);
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(object);
        Py_DECREF(object);
        object = back;
        if (same) frame = complete(frame->previous);
    }
    Py_XDECREF(object);
    return same && !frame;
}

// Of a function whose code this is; None: of none.
bool has_plain_arguments(PyObject *code) {
    return !code || !PyCode_Check(code) || reinterpret_cast<PyCodeObject *>(code)->co_ncellvars == 0;
}
#else
Walk walk_frames(PyThreadState *) { return {}; }
bool finds_frames() { return false; }
bool has_plain_arguments(PyObject *) { return false; }
#endif

// ---- modules ----

// The module that runs is `self` of the innermost frame of nn.Module.__call__: nothing is hooked, so that
// calls, tracebacks and torch.compile are as without us.  Paths are made in Python, once for each module.
struct ModuleName {
    std::atomic<PyObject *> module; // while it lives
    std::atomic<uint32_t> id;
    std::atomic<uint64_t> told; // seconds when its parameters were told, where it is the outermost
    std::atomic<bool> used;     // ever: who looks for a module goes on
    PyObject *reference;        // weak; with the interpreter's lock
};
constexpr size_t MODULES = 1 << 14;
ModuleName modules[MODULES]; // by address: looked up without the lock, for modules that run and so live

// The entry of a module, or nullptr.
ModuleName *find_module(PyObject *module) {
    uint64_t hash = mix(1, reinterpret_cast<uint64_t>(module));
    for (size_t probe = 0; probe < 64; probe++) {
        ModuleName &entry = modules[(hash + probe) % MODULES];
        if (entry.module.load(std::memory_order_acquire) == module) return &entry;
        if (!entry.used.load(std::memory_order_relaxed)) break;
    }
    return nullptr;
}

// A module dies: another object may come to lie at its address.
PyObject *module_dies(PyObject *place, PyObject *reference) {
    ModuleName &entry = modules[PyLong_AsSize_t(place)];
    if (entry.reference == reference) {
        entry.module.store(nullptr, std::memory_order_relaxed);
        Py_CLEAR(entry.reference);
    }
    Py_RETURN_NONE;
}
PyMethodDef module_dies_method = {"module_dies", module_dies, METH_O, nullptr};

// Called by Python, for all modules of a tree at once.
void name_module(PyObject *module, uint32_t id) {
    if (find_module(module)) return;
    uint64_t hash = mix(1, reinterpret_cast<uint64_t>(module));
    size_t probe = 0, place;
    do {
        if (probe == 64) return; // the table is full
        place = (hash + probe++) % MODULES;
    } while (modules[place].reference);
    PyObject *number = PyLong_FromSize_t(place);
    PyObject *dies = number ? PyCFunction_New(&module_dies_method, number) : nullptr;
    PyObject *reference = dies ? PyWeakref_NewRef(module, dies) : nullptr;
    Py_XDECREF(dies);
    Py_XDECREF(number);
    if (!reference) {
        PyErr_Clear();
        return;
    }
    ModuleName &entry = modules[place];
    entry.reference = reference;
    entry.id.store(id, std::memory_order_relaxed);
    entry.told.store(0, std::memory_order_relaxed);
    entry.used.store(true, std::memory_order_relaxed);
    entry.module.store(module, std::memory_order_release);
}

void forget_open_operators();

// With the interpreter lock: stacks, modules and tensors are told again.
void forget_all() {
    options.epoch++;
    forget_open_operators();
    for (Stack &each : stacks) each.hash.store(0, std::memory_order_relaxed);
    std::vector<PyCodeObject *> kept;
    kept.swap(codes);
    for (PyCodeObject *each : kept) Py_DECREF(each);
    for (ModuleName &each : modules) {
        each.module.store(nullptr, std::memory_order_relaxed);
        Py_CLEAR(each.reference);
    }
}

uint64_t seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return static_cast<uint64_t>(now.tv_sec) + 1;
}

// String id of a module's path, where all is known. The parameters of the outermost may have moved: once a second
// it is not.
bool knows_module(const Walk &walk, uint32_t *id) {
    *id = 0;
    if (!walk.innermost) return true;
    const ModuleName *entry = find_module(walk.innermost), *root = find_module(walk.outermost);
    if (!entry || !root || root->told.load(std::memory_order_relaxed) != seconds()) return false;
    *id = entry->id.load(std::memory_order_relaxed);
    return true;
}

// With the interpreter's lock: Python names modules, and looks at parameters.
uint32_t ask_module(const Walk &walk) {
    if (!walk.innermost) return 0;
    uint64_t now = seconds();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = PyObject_CallFunctionObjArgs(options.namer, walk.innermost, walk.outermost, nullptr);
    if (!done) {
        bool interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
        PyErr_Clear();
        if (interrupted) PyErr_SetInterrupt(); // it was the program's
    }
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
    const ModuleName *entry = find_module(walk.innermost);
    if (ModuleName *root = find_module(walk.outermost)) root->told.store(now, std::memory_order_relaxed);
    return entry ? entry->id.load(std::memory_order_relaxed) : 0;
}

// ---- what runs ----

struct Running {
    uint32_t stack = 0, module = 0;
};

// A thread that asks for the lock of an interpreter that is ending is ended there.
bool is_ending() {
#if PY_VERSION_HEX >= 0x030d0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

// Tells the stack of a frame where it is new; with the interpreter's lock.
uint32_t tell_stack(PyFrameObject *frame, uint64_t hash) {
    Stack *place = find_stack(hash);
    if (!place) return 0;
    if (place->hash.load(std::memory_order_relaxed)) return place->id.load(std::memory_order_relaxed);
    uint32_t id = ++last_stack;
    walk_objects(frame, id);
    place->id.store(id, std::memory_order_relaxed);
    place->hash.store(hash, std::memory_order_release);
    return id;
}

// The frames of this thread, and the module that they are in; nothing where it runs no Python.
Running gather() {
    Running running;
    PyThreadState *thread = PyGILState_GetThisThreadState();
    if (!thread || is_ending()) return running;
    Walk walk;
    if (options.finds_frames) {
        walk = walk_frames(thread);
        if (!walk.count) return running;
        const Stack *known = find_stack(walk.hash);
        bool all = knows_module(walk, &running.module);
        if (!known || known->hash.load(std::memory_order_relaxed)) {
            running.stack = known ? known->id.load(std::memory_order_relaxed) : 0;
            if (all) return running;
        }
    }
    PyGILState_STATE state = PyGILState_Ensure();
    if (!options.finds_frames) walk = walk_objects(PyEval_GetFrame());
    if (walk.count) {
        if (!knows_module(walk, &running.module)) running.module = ask_module(walk);
        running.stack = tell_stack(PyEval_GetFrame(), walk.hash);
    }
    PyGILState_Release(state);
    return running;
}

// ---- between operators ----

// Samples the Python stack of the thread that ran the last operator while none runs: operators tell their own
// stacks, and nothing else tells what a program does between two of them.
constexpr auto SAMPLE_EVERY = std::chrono::milliseconds(5);
constexpr unsigned DENSE_SAMPLES = 20; // of a gap; of the rest each tenth
constexpr uint64_t ONE_BEGAN = (UINT64_C(1) << 32) + 1, ONE_ENDED = 1, OPEN = UINT32_MAX;
struct Sampler {
    std::atomic<uint64_t> state; // outermost operators that began << 32, that are open
    std::atomic<uint64_t> unseen; // the state when operators began to be followed: no gap of ours
    std::atomic<bool> active;     // operators are followed
    std::atomic<unsigned long> python_thread;
    std::mutex mutex;
    std::condition_variable stopping;
    bool stopped = false, started = false;
    uint32_t generation; // of the process that started it: children of forks have no such thread
    pthread_t thread;
};
Sampler &sampler = *new Sampler; // its thread may outlive what is destroyed at the exit

void forget_open_operators() { sampler.state.store(0, std::memory_order_relaxed); }

#if PY_VERSION_HEX >= 0x03090000 && !defined(Py_GIL_DISABLED)
// The frame that a thread runs, or nullptr; a new reference. With the interpreter's lock.
PyFrameObject *frame_of(unsigned long python_thread) {
    PyThreadState *each = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (each && each->thread_id != python_thread) each = PyThreadState_Next(each);
    return each ? PyThreadState_GetFrame(each) : nullptr;
}

void take_sample(uint64_t state) {
    if (is_ending()) return;
    PyGILState_STATE lock = PyGILState_Ensure();
#if PY_VERSION_HEX >= 0x030a0000
    int collects = PyGC_Disable(); // nothing of the program's is to run on this thread
#endif
    if (sampler.state.load(std::memory_order_relaxed) == state) {
        if (PyFrameObject *frame = frame_of(sampler.python_thread.load(std::memory_order_relaxed))) {
            uint32_t stack = tell_stack(frame, walk_objects(frame).hash);
            if (auto *e = begin<pasta_python_sample>(thread_id(), PASTA_EVENT_python_sample)) {
                e->stack = stack;
                pasta_framework_publish(e);
            }
            Py_DECREF(frame);
        }
    }
#if PY_VERSION_HEX >= 0x030a0000
    if (collects) PyGC_Enable();
#endif
    PyGILState_Release(lock);
}

void *sample_gaps(void *) {
    uint64_t before = 0;
    unsigned same = 0; // how often in a row no operator ran
    std::unique_lock<std::mutex> lock(sampler.mutex);
    while (!sampler.stopping.wait_for(lock, SAMPLE_EVERY, [] { return sampler.stopped; })) {
        uint64_t state = sampler.state.load(std::memory_order_relaxed);
        same = state == before && state && !(state & OPEN) ? same + 1 : 0;
        before = state;
        if (!same || (same > DENSE_SAMPLES && same % 10)) continue;
        if (!sampler.active.load(std::memory_order_relaxed) || state == sampler.unseen.load(std::memory_order_relaxed)) continue;
        if (!pasta->is_on() || !is_mine()) continue;
        lock.unlock(); // who stops this may have the interpreter's
        take_sample(state);
        lock.lock();
    }
    return nullptr;
}

void start_sampler() {
    if (sampler.started || !options.frames) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // the program's signals are for its own threads
    sampler.generation = pasta->generation();
    sampler.started = !pthread_create(&sampler.thread, nullptr, sample_gaps, nullptr);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Without the interpreter's lock, which the thread may wait for.
void stop_sampler() {
    if (!sampler.started || sampler.generation != pasta->generation()) return;
    {
        std::lock_guard<std::mutex> lock(sampler.mutex);
        sampler.stopped = true;
    }
    sampler.stopping.notify_all();
    pthread_join(sampler.thread, nullptr);
    sampler.started = false;
}
#else
void start_sampler() {}
void stop_sampler() {}
#endif

// ---- threads ----

constexpr uint32_t TENSORS = 1 << 13, NAMES = 1 << 9, SHAPES = 1 << 9;
struct Name {
    uint32_t id;
    char text[60]; // ends with NUL
};
struct Shape {
    uint64_t hash;
    uint32_t id;
};
struct Caches {
    uint64_t tensors[TENSORS]; // hashes of those that this thread told; the place is the id
    Name names[NAMES];         // by where the text was: that may be another one's now
    Shape shapes[SHAPES];
    uint32_t types[static_cast<size_t>(c10::ScalarType::NumOptions)];
};

struct Thread {
    uint32_t id, epoch; // of the operating system; when it was made
    uint32_t framework_thread;
    uint32_t depth = 0;
    uint32_t module = 0;       // of the outermost operator
    unsigned long python_thread = static_cast<unsigned long>(pthread_self());
    uint32_t *stack = nullptr; // of the outermost operator, where allocations find it
    Caches caches = {};
};

// A pointer is all that lies in the thread, so that it is found without a call also in a library that is
// opened late; for that there is little room, so hooks.py can do without.
#ifdef PASTA_DYNAMIC_TLS
#define PASTA_TLS_MODEL
#else
#define PASTA_TLS_MODEL __attribute__((tls_model("initial-exec")))
#endif
__thread Thread *current PASTA_TLS_MODEL;

// Ends with the thread; other variables of it, which end later, may run an operator yet.
struct Owner {
    Thread *owned = nullptr;
    ~Owner() {
        current = nullptr;
        delete owned;
    }
};
thread_local Owner owner;

// Begins anew in each block, and in the child of a fork: the parent's ids mean nothing in the child's ring.
Thread *made() {
    delete owner.owned;
    owner.owned = current = new Thread;
    current->id = thread_id();
    current->epoch = options.epoch;
    current->framework_thread = static_cast<uint32_t>(at::RecordFunction::currentThreadId());
    current->stack = pasta->stack();
    *current->stack = 0;
    return current;
}

uint32_t name_id(Thread &mine, const char *text) {
    uint64_t at = reinterpret_cast<uint64_t>(text);
    Name &known = mine.caches.names[(at >> 4 ^ at >> 13) % NAMES];
    size_t length = std::strlen(text);
    if (length < sizeof known.text && known.id && !std::memcmp(known.text, text, length + 1)) return known.id;
    uint32_t id = pasta->intern(text, length);
    if (length < sizeof known.text) {
        known.id = id;
        std::memcpy(known.text, text, length + 1);
    }
    return id;
}

// ---- tensors ----

// Factors of what a tensor is, as a hash: they are independent, so that no product waits for another.
struct Factors {
    uint64_t of[32];
    constexpr Factors() : of() {
        uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
        for (uint64_t &each : of) {
            state = (state ^ state >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
            each = state | 1;
        }
    }
};
constexpr Factors factors;

uint64_t hash_of(c10::IntArrayRef values, size_t first) {
    uint64_t sum = values.size();
    for (size_t i = 0; i < values.size(); i++) {
        if (first + 2 * i >= 32) sum = mix(sum, i);
        sum += static_cast<uint64_t>(values[i]) * factors.of[(first + 2 * i) % 32];
    }
    return sum;
}

// String id of numbers with commas between.
uint32_t numbers(Thread &mine, c10::IntArrayRef values) {
    uint64_t hash = mix(1, hash_of(values, 0));
    Shape &known = mine.caches.shapes[hash % SHAPES];
    if (known.hash == hash) return known.id;
    char text[512], *at = text, *end = text + sizeof text - 1;
    for (int64_t value : values) {
        if (at != text) *at++ = ',';
        auto [after, error] = std::to_chars(at, end, value);
        if (error != std::errc()) break;
        at = after;
    }
    known = {hash, pasta->intern(text, static_cast<size_t>(at - text))};
    return known.id;
}

uint32_t type_id(Thread &mine, c10::ScalarType type) {
    size_t number = static_cast<size_t>(type);
    if (number >= std::size(mine.caches.types)) return intern(c10::toString(type));
    uint32_t &known = mine.caches.types[number];
    if (!known) known = intern(c10::toString(type));
    return known;
}

// Of the tensors that stand for memory: not fake, meta, sparse, nested or subclasses that answer in Python.
const c10::TensorImpl *plain(const at::Tensor &tensor) {
    const c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (!tensor.defined() || impl->is_python_dispatch() || impl->has_symbolic_sizes_strides() || !impl->has_storage() ||
        impl->layout() != c10::kStrided || impl->device_type() == c10::DeviceType::Meta)
        return nullptr;
    return impl;
}

uint32_t tensor_id(Thread &mine, const at::Tensor &tensor) {
    const c10::TensorImpl *impl = plain(tensor);
    if (!impl) return 0;
    c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl();
    uint64_t address = reinterpret_cast<uint64_t>(storage->_mutable_data_ptr_no_checks().get());
    if (!address) return 0;
    c10::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
    c10::ScalarType type = c10::typeMetaToScalarType(impl->dtype());
    // sizes and strides take turns at the factors
    uint64_t hash = mix(1, hash_of(sizes, 0) + hash_of(strides, 1) + address * factors.of[28] +
                               static_cast<uint64_t>(impl->storage_offset()) * factors.of[29] +
                               static_cast<uint64_t>(type) * factors.of[30]);
    uint32_t place = static_cast<uint32_t>(hash % TENSORS), id = mine.framework_thread * TENSORS + place + 1;
    uint64_t &known = mine.caches.tensors[place];
    if (known == hash) return id;
    bool cpu = impl->device_type() == c10::DeviceType::CPU;
    pasta_tensor *e = begin<pasta_tensor>(mine.id, PASTA_EVENT_tensor_create, cpu ? PASTA_ABSENT_DEVICE : impl->device().index());
    if (!e) return 0;
    e->storage = address;
    e->bytes = storage->nbytes();
    e->offset = static_cast<uint64_t>(impl->storage_offset()) * impl->itemsize();
    e->tensor = id;
    e->role = 0;
    e->shape = numbers(mine, sizes);
    e->strides = numbers(mine, strides);
    e->dtype = type_id(mine, type);
    e->name = 0;
    pasta_framework_publish(e);
    known = hash;
    return id;
}

// Ids of the tensors that an operator takes or gives: as many as fit where they are put, others in
// records of their own.
class Tensors {
  public:
    Tensors(Thread &mine, uint16_t role, uint32_t *room, uint16_t size) : mine_(mine), room_(room), size_(size), role_(role) {}
    ~Tensors() { flush(); }

    uint16_t count() const { return count_; }

    void add(const c10::IValue &value, int depth = 0) {
        if (value.isTensor()) {
            add(value.toTensor());
        } else if (value.isTensorList()) {
            for (const at::Tensor &each : value.toTensorList()) add(each);
        } else if (depth < 3 && value.isList()) {
            for (const c10::IValue &each : value.toListRef()) {
                if (!each.isTensor() && !each.isList()) break; // numbers
                add(each, depth + 1);
            }
        } else if (depth < 3 && value.isTuple()) {
            for (const c10::IValue &each : value.toTupleRef().elements()) add(each, depth + 1);
        }
    }

  private:
    void add(const at::Tensor &tensor) {
        uint32_t id = tensor_id(mine_, tensor);
        if (!id) return;
        if (count_ < size_) {
            room_[count_++] = id;
            return;
        }
        more_[more_count_++] = id;
        if (more_count_ == 4) flush();
    }

    void flush() {
        if (!more_count_) return;
        if (auto *e = begin<pasta_operator_tensors>(mine_.id, PASTA_EVENT_operator_tensors)) {
            e->count = more_count_;
            e->role = role_;
            std::copy(more_, more_ + more_count_, e->tensor);
            pasta_framework_publish(e);
        }
        more_count_ = 0;
    }

    Thread &mine_;
    uint32_t *room_, more_[4];
    uint16_t size_, count_ = 0, role_, more_count_ = 0;
};

// ---- operators ----

void open_range(const Thread &mine, const char *name) {
    uint32_t id = intern(name);
    pasta->range_begins(id);
    auto *e = begin<pasta_range>(mine.id, PASTA_EVENT_range_push);
    if (!e) return;
    e->name = id;
    e->domain = intern("torch");
    e->origin = PASTA_ORIGIN_framework;
    pasta_framework_publish(e);
}

void close_range(const Thread &mine) {
    pasta->range_ends();
    auto *e = begin<pasta_range>(mine.id, PASTA_EVENT_range_pop);
    if (!e) return;
    e->name = 0;
    e->domain = intern("torch");
    e->origin = PASTA_ORIGIN_framework;
    pasta_framework_publish(e);
}

// What was captured since the last look is of the operator that is open.
void look_at_graphs() {
    if (__builtin_expect(__atomic_load_n(pasta->capturing, __ATOMIC_RELAXED) != 0, 0)) pasta->captured();
}

void start(Thread &mine, const at::RecordFunction &fn) {
    look_at_graphs();
    if (mine.depth++ == 0) {
        Running running = options.frames ? gather() : Running();
        *mine.stack = running.stack;
        mine.module = running.module;
        if (running.stack) sampler.python_thread.store(mine.python_thread, std::memory_order_relaxed);
        sampler.state.fetch_add(ONE_BEGAN, std::memory_order_relaxed);
    }
    uint32_t ids[16];
    uint16_t count = 0;
    if (options.tensors) {
        Tensors inputs(mine, PASTA_ROLE_input, ids, 16);
        for (const c10::IValue &each : fn.inputs()) inputs.add(each);
        count = inputs.count();
    }
    auto *e = begin<pasta_operator_begin>(mine.id, PASTA_EVENT_operator_begin);
    if (!e) return;
    e->name = name_id(mine, fn.name());
    e->stack = mine.depth == 1 ? *mine.stack : 0;
    e->module = mine.module;
    e->sequence = static_cast<uint32_t>(fn.seqNr());
    e->forward_thread = fn.forwardThreadId() ? static_cast<uint16_t>(fn.forwardThreadId()) : UINT16_MAX;
    e->framework_thread = static_cast<uint16_t>(mine.framework_thread);
    e->depth = static_cast<uint16_t>(mine.depth);
    e->scope = static_cast<uint8_t>(fn.scope());
    e->inputs = static_cast<uint8_t>(count);
    std::copy(ids, ids + count, e->tensor);
    pasta_framework_publish(e);
}

void finish(Thread &mine, const at::RecordFunction &fn) {
    if (!mine.depth) return;
    look_at_graphs();
    uint32_t ids[4];
    uint16_t count = 0;
    if (options.tensors) {
        Tensors outputs(mine, PASTA_ROLE_output, ids, 4);
        for (const c10::IValue &each : fn.outputs()) outputs.add(each);
        count = outputs.count();
    }
    if (auto *e = begin<pasta_operator_end>(mine.id, PASTA_EVENT_operator_end)) {
        e->depth = static_cast<uint16_t>(mine.depth);
        e->outputs = count;
        std::copy(ids, ids + count, e->tensor);
        pasta_framework_publish(e);
    }
    if (--mine.depth == 0) {
        *mine.stack = 0;
        sampler.state.fetch_sub(ONE_ENDED, std::memory_order_relaxed);
    }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &fn) {
    if (!is_mine()) return nullptr;
    try {
        Thread *known = current;
        Thread &mine = known && known->epoch == options.epoch ? *known : *made();
        if (fn.scope() == at::RecordScope::USER_SCOPE)
            open_range(mine, fn.name());
        else
            start(mine, fn);
    } catch (...) {
    }
    return nullptr;
}

void on_end(const at::RecordFunction &fn, at::ObserverContext *) {
    // an end on another thread than its begin is of an asynchronous call: it was never open there
    Thread *known = current;
    if (!known || !is_mine() || known->epoch != options.epoch || fn.isAsync()) return;
    Thread &mine = *known;
    try {
        if (fn.scope() == at::RecordScope::USER_SCOPE)
            close_range(mine);
        else
            finish(mine, fn);
    } catch (...) {
    }
}

void switch_locked(bool on) {
    if (on && options.added && !sampler.active) sampler.unseen = sampler.state.load();
    sampler.active = on && options.added;
    if (!options.added || options.enabled == on) return;
    options.enabled = on;
    if (on)
        at::reenableCallback(options.handle);
    else
        at::disableCallback(options.handle);
}

void switch_to(bool on) {
    std::lock_guard<std::mutex> lock(options.switching);
    switch_locked(on);
}

// The callback that launcher and block need together, if any. With the interpreter lock.
void apply() {
    const Wanted &launch = options.launch, &block = options.block;
    options.tensors = launch.tensors || block.tensors;
    options.frames = std::max(launch.frames, block.frames);
    const Wanted &names = block.namer ? block : launch;
    options.module_call = names.module_call;
    options.namer = names.namer;
    options.finds_frames = finds_frames() && has_plain_arguments(options.module_call);
    bool wanted = launch.operators || block.operators;
    std::lock_guard<std::mutex> lock(options.switching);
    if (options.added && (!wanted || options.takes_tensors != options.tensors)) {
        at::removeCallback(options.handle);
        options.added = options.enabled = false;
    }
    if (wanted && !options.added) {
        options.handle = at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                                                   .needsInputs(options.tensors)
                                                   .needsOutputs(options.tensors)
                                                   .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                                                            at::RecordScope::TORCHSCRIPT_FUNCTION,
                                                            at::RecordScope::USER_SCOPE}));
        options.added = options.enabled = true;
        options.takes_tensors = options.tensors;
    }
    switch_locked(pasta->is_on());
    pasta->on_profiling(switch_to);
    if (wanted) start_sampler();
}

// ---- allocations of a program that was not started under pasta-preload ----

// What the preloaded library would see: CPU memory where torch asks for it, by an allocator of our own
// before the program's; memory of devices where their allocators report it to torch's profiler.

std::atomic<bool> follows_memory; // in a block

bool is_followed() { return follows_memory.load(std::memory_order_relaxed) && is_mine() && pasta->is_on(); }

uint32_t my_thread() {
    const Thread *known = current;
    return known && known->epoch == options.epoch ? known->id : thread_id();
}

void tell_memory(pasta_event_kind kind, void *address, uint64_t bytes, int16_t device) {
    auto *e = begin<pasta_tensor_memory>(my_thread(), kind, device);
    if (!e) return;
    e->address = reinterpret_cast<uint64_t>(address);
    e->bytes = bytes;
    e->stack = *pasta->stack();
    e->memory = device == PASTA_ABSENT_DEVICE ? PASTA_MEMORY_host : PASTA_MEMORY_device;
    pasta_framework_publish(e);
}

void tell_allocator(uint64_t allocated, uint64_t reserved, int16_t device) {
    auto *e = begin<pasta_allocator_state>(my_thread(), PASTA_EVENT_allocator_state, device);
    if (!e) return;
    e->allocated = allocated;
    e->reserved = reserved;
    pasta_framework_publish(e);
}

class CpuAllocator final : public c10::Allocator {
  public:
    // Whether it is now what torch asks for memory.
    bool enter() {
        c10::Allocator *before = c10::GetAllocator(c10::DeviceType::CPU);
        if (before == this) return true;
        c10::DeleterFnPtr deleter = before->raw_deleter();
        // memory from before an allocator was replaced goes back to where it came from
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
        c10::DataPtr made = next_->allocate(bytes);
        if (made.compare_exchange_deleter(free_, released) && made.get() && is_followed())
            tell_memory(PASTA_EVENT_tensor_alloc, made.get(), bytes, PASTA_ABSENT_DEVICE);
        return made;
    }
    c10::DeleterFnPtr raw_deleter() const override { return released; }
    bool is_simple_data_ptr(const c10::DataPtr &pointer) const override { return next_->is_simple_data_ptr(pointer); }
    void copy_data(void *to, const void *from, std::size_t bytes) const override { next_->copy_data(to, from, bytes); }

  private:
    static void released(void *address) {
        if (address && is_followed()) // before: another thread may be given the memory at once
            tell_memory(PASTA_EVENT_tensor_free, address, PASTA_ABSENT_U64, PASTA_ABSENT_DEVICE);
        free_(address);
    }

    // With the lowest priority that replaces what there is.
    static void set(c10::Allocator *allocator) {
        for (unsigned priority = 0; priority < 256 && c10::GetAllocator(c10::DeviceType::CPU) != allocator; priority++)
            c10::SetAllocator(c10::DeviceType::CPU, allocator, static_cast<uint8_t>(priority));
    }

    c10::Allocator *next_ = nullptr;
    static c10::DeleterFnPtr free_;
};
c10::DeleterFnPtr CpuAllocator::free_;
CpuAllocator &cpu_allocator = *new CpuAllocator; // tensors live longer than what is destroyed at the exit

// A profiler of torch's that is disabled, but for the reports of allocators that come to it. It goes where
// torch's own would be, so that both exclude each other: on this thread, and the backward pass's.
class DeviceReports final : public torch::profiler::impl::ProfilerStateBase {
  public:
    DeviceReports() : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}
    torch::profiler::impl::ActiveProfilerType profilerType() override { return torch::profiler::impl::ActiveProfilerType::NONE; }

    void reportMemoryUsage(void *address, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
        if (device.type() == c10::DeviceType::CPU || !bytes || !is_followed()) return;
        bool made = bytes > 0;
        tell_allocator(allocated, reserved, device.index());
        tell_memory(made ? PASTA_EVENT_tensor_alloc : PASTA_EVENT_tensor_free, address,
                    static_cast<uint64_t>(made ? bytes : -bytes), device.index());
    }
    void reportOutOfMemory(int64_t bytes, size_t, size_t, c10::Device device) override {
        if (!is_followed()) return;
        auto *e = begin<pasta_range>(thread_id(), PASTA_EVENT_mark, device.type() == c10::DeviceType::CPU ? PASTA_ABSENT_DEVICE : device.index());
        if (!e) return;
        char text[64];
        snprintf(text, sizeof text, "out of memory: %lld bytes", static_cast<long long>(bytes));
        e->name = intern(text);
        e->domain = intern("torch");
        e->origin = PASTA_ORIGIN_framework;
        pasta_framework_publish(e);
    }

    static bool enter() {
        if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)) return false; // torch's own is there
        mine_ = std::make_shared<DeviceReports>();
        c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, mine_);
        return true;
    }
    static void leave() {
        if (!mine_) return;
        try {
            if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == mine_.get())
                c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
        } catch (const std::exception &) { // the program left something behind there
        }
        mine_ = nullptr;
    }

  private:
    static std::shared_ptr<DeviceReports> mine_;
};
std::shared_ptr<DeviceReports> DeviceReports::mine_;

// ---- what Python calls ----

Wanted wanted(int operators, int tensors, int frames, PyObject *module_call, PyObject *namer) {
    Py_INCREF(module_call);
    Py_INCREF(namer);
    return {operators != 0, tensors != 0, std::min<uint32_t>(std::max(frames, 0), DEEPEST), module_call, namer};
}

// The library's table, by its function at an address; 0: it was preloaded. False: this process is not profiled.
bool find_library(unsigned long long address, const char *version) {
    void *found = address ? reinterpret_cast<void *>(address) : dlsym(RTLD_DEFAULT, PASTA_FRAMEWORK_SYMBOL);
    pasta_framework_function *find;
    *reinterpret_cast<void **>(&find) = found;
    pasta = find ? find(PASTA_FRAMEWORK_VERSION) : nullptr;
    return pasta && pasta->use("torch", version);
}

PyObject *applied() {
    options.generation = pasta->generation();
    try {
        apply();
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    Py_RETURN_TRUE;
}

PyObject *py_start(PyObject *, PyObject *arguments) {
    const char *version;
    int operators, tensors, frames;
    PyObject *module_call, *namer;
    if (!PyArg_ParseTuple(arguments, "sppiOO", &version, &operators, &tensors, &frames, &module_call, &namer)) return nullptr;
    if (options.launch.operators) Py_RETURN_TRUE;
    if (!find_library(0, version)) Py_RETURN_FALSE;
    options.launch = wanted(operators, tensors, frames, module_call, namer);
    return applied();
}

// Follows a block of the program, which has begun in the ring. What it returns says what is not followed.
PyObject *py_begin_block(PyObject *, PyObject *arguments) {
    unsigned long long library;
    const char *version;
    int operators, tensors, allocations, frames, devices;
    PyObject *module_call, *namer;
    if (!PyArg_ParseTuple(arguments, "KspppipOO", &library, &version, &operators, &tensors, &allocations, &frames, &devices, &module_call, &namer))
        return nullptr;
    if (!find_library(library, version)) Py_RETURN_NONE;
    forget_all();
    options.block = wanted(operators, tensors, frames, module_call, namer);
    PyObject *done = applied();
    if (!done) return nullptr;
    Py_DECREF(done);
    const char *missed = "";
    if (allocations && !library) {
        options.followed_before = pasta->follow_allocators(true);
        options.switched = true;
    } else if (allocations) {
        follows_memory = true;
        if (!cpu_allocator.enter()) missed = "CPU memory: the program has an allocator of its own";
        if (devices && !DeviceReports::enter()) missed = "memory of devices: torch's profiler is active";
    }
    return PyUnicode_FromString(missed);
}

PyObject *py_end_block(PyObject *, PyObject *arguments) {
    int preloaded;
    if (!PyArg_ParseTuple(arguments, "p", &preloaded)) return nullptr;
    if (!pasta) Py_RETURN_NONE;
    if (options.switched) pasta->follow_allocators(options.followed_before);
    options.switched = false;
    if (!preloaded) {
        DeviceReports::leave();
        cpu_allocator.leave();
    }
    follows_memory = false;
    Py_CLEAR(options.block.module_call);
    PyObject *namer = options.block.namer;
    options.block = {};
    PyObject *done = applied();
    Py_XDECREF(namer);
    return done;
}

PyObject *py_stop_sampler(PyObject *, PyObject *) {
    Py_BEGIN_ALLOW_THREADS
    stop_sampler();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *py_name_module(PyObject *, PyObject *arguments) {
    PyObject *module;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "Os", &module, &name)) return nullptr;
    if (is_mine()) name_module(module, intern(name));
    Py_RETURN_NONE;
}

PyObject *py_role(PyObject *, PyObject *arguments) {
    unsigned long long address, bytes;
    unsigned int role;
    int device;
    const char *name;
    if (!PyArg_ParseTuple(arguments, "KKiIz", &address, &bytes, &device, &role, &name)) return nullptr;
    if (address && is_mine())
        if (auto *e = begin<pasta_tensor>(thread_id(), PASTA_EVENT_tensor_create, static_cast<int16_t>(device))) {
            e->storage = address;
            e->bytes = bytes;
            e->role = role;
            e->shape = e->strides = e->dtype = 0;
            e->name = name ? intern(name) : 0;
            pasta_framework_publish(e);
        }
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"start", py_start, METH_VARARGS, nullptr},
    {"begin_block", py_begin_block, METH_VARARGS, nullptr},
    {"end_block", py_end_block, METH_VARARGS, nullptr},
    {"name_module", py_name_module, METH_VARARGS, nullptr},
    {"role", py_role, METH_VARARGS, nullptr},
    {"stop_sampler", py_stop_sampler, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_pasta_torch_hooks", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__pasta_torch_hooks() { return PyModule_Create(&definition); }
