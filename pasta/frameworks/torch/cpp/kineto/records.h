// Records of accelerators and annotations that are published while a profiler is active, copied in order.
#pragma once

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "../library.h"
#include "../per_thread.h"

namespace pasta {

// The operators that are open on a thread, by Kineto's correlation ids.
class OpenOperators {
  public:
    static void push(uint64_t id) {
        try {
            OpenOperators *known = PerThread<OpenOperators>::get();
            OpenOperators &mine = known ? *known : PerThread<OpenOperators>::renew();
            uint32_t session = current_session_.load(std::memory_order_relaxed);
            if (mine.session_ != session) mine.depth_ = 0;
            mine.session_ = session;
            if (mine.depth_ < MAX_DEPTH) mine.ids_[mine.depth_] = id;
            mine.depth_++;
        } catch (const std::bad_alloc &) { // later records of this thread have no operator
        }
    }
    static void pop() {
        if (OpenOperators *mine = current()) mine->depth_--;
    }

    // Id of the thread's innermost operator; 0: none.
    static uint64_t innermost() {
        const OpenOperators *mine = current();
        return mine ? mine->ids_[std::min(mine->depth_, MAX_DEPTH) - 1] : 0;
    }

    // What earlier sessions left open does not count any more.
    static void begin_session() { current_session_++; }

  private:
    static OpenOperators *current() {
        OpenOperators *mine = PerThread<OpenOperators>::get();
        return mine && mine->depth_ && mine->session_ == current_session_.load(std::memory_order_relaxed) ? mine : nullptr;
    }

    static constexpr uint32_t MAX_DEPTH = 256;
    static inline std::atomic<uint32_t> current_session_{};
    uint32_t session_ = 0, depth_ = 0;
    uint64_t ids_[MAX_DEPTH];
};

constexpr uint64_t kind_bit(pasta_event_kind kind) { return UINT64_C(1) << kind; }
constexpr uint64_t COPIED_KINDS =
    kind_bit(PASTA_EVENT_kernel_launch) | kind_bit(PASTA_EVENT_kernel_launch_end) |
    kind_bit(PASTA_EVENT_kernel_complete) | kind_bit(PASTA_EVENT_graph_launch) | kind_bit(PASTA_EVENT_graph_launch_end) |
    kind_bit(PASTA_EVENT_memory_copy) | kind_bit(PASTA_EVENT_memory_set) | kind_bit(PASTA_EVENT_copy_complete) |
    kind_bit(PASTA_EVENT_sync) | kind_bit(PASTA_EVENT_range_push) | kind_bit(PASTA_EVENT_range_pop);

// A copied record.
struct Record {
    static constexpr size_t BYTES = 2 * PASTA_SLOT; // of the longest of these kinds

    std::atomic<uint32_t> complete;
    uint64_t operator_id; // Kineto's, of the thread's innermost operator; 0: none
    alignas(8) unsigned char bytes[BYTES];

    const pasta_header &header() const { return *reinterpret_cast<const pasta_header *>(bytes); }
    template <typename Payload> const Payload &as() const {
        static_assert(sizeof(pasta_header) + sizeof(Payload) <= BYTES);
        return *reinterpret_cast<const Payload *>(bytes + sizeof(pasta_header));
    }
};

// All records of a session, in address space that becomes memory as it is written to. The tap runs in callbacks of
// vendors: it takes no lock and allocates nothing.
class Records {
  public:
    void open() {
        if (!owns_ring() || !reserve()) return;
        used_ = 0;
        open_ = true;
        library->tap(tap);
    }

    // Waits, for a limited time, until no thread is in the tap.
    void close() {
        open_ = false;
        if (!owns_ring()) return;
        library->tap(nullptr);
        for (int waits = 0; writers_ > 0 && waits < MAX_WAITS; waits++) {
            timespec pause = {0, 100000};
            nanosleep(&pause, nullptr);
        }
    }

    // Makes the memory free for the next session. A thread that never returned from the tap may still write to it:
    // then it stays reserved.
    void clear() {
        Record *records = records_;
        if (!records) return;
        if (writers_ <= 0)
            madvise(records, kept() * sizeof(Record), MADV_DONTNEED);
        else {
            records_ = nullptr;
            writers_ = 0;
        }
        used_ = 0;
    }

    uint64_t kept() const { return std::min(used_.load(), capacity_); }
    uint64_t dropped() const { return used_ - kept(); }

    template <typename Visit> void for_each(Visit visit) const {
        const Record *records = records_;
        for (uint64_t at = 0, end = kept(); at < end; at++)
            if (records[at].complete.load(std::memory_order_acquire)) visit(records[at]);
    }

  private:
    static constexpr int MAX_WAITS = 1000;
    static constexpr size_t MAX_BYTES = size_t(1) << 30, MIN_BYTES = size_t(1) << 22;

    static void tap(const pasta_header *record);

    void add(const pasta_header *record) {
        if (record->kind >= 64 || !(COPIED_KINDS >> record->kind & 1)) return;
        writers_.fetch_add(1);
        if (open_.load()) {
            uint64_t place = used_.fetch_add(1, std::memory_order_relaxed);
            if (place < capacity_) {
                Record &copy = records_.load(std::memory_order_relaxed)[place];
                copy.operator_id = OpenOperators::innermost();
                std::memcpy(copy.bytes, record, std::min<size_t>(record->slots * size_t(PASTA_SLOT), Record::BYTES));
                copy.complete.store(1, std::memory_order_release);
            }
        }
        writers_.fetch_sub(1);
    }

    // Reserves less if the program limits its address space.
    bool reserve() {
        if (records_) return true;
        for (size_t bytes = MAX_BYTES; bytes >= MIN_BYTES; bytes /= 4) {
            void *found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (found == MAP_FAILED) continue;
            madvise(found, bytes, MADV_DONTDUMP);
            capacity_ = bytes / sizeof(Record);
            records_ = static_cast<Record *>(found);
            return true;
        }
        return false;
    }

    std::atomic<Record *> records_{};
    uint64_t capacity_ = 0;
    std::atomic<uint64_t> used_{};
    std::atomic<int32_t> writers_{};
    std::atomic<bool> open_{};
};
inline Records records;

inline void Records::tap(const pasta_header *record) { records.add(record); }

} // namespace pasta
