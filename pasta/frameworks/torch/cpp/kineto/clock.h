// Converts times of records (monotonic clock) to times of Kineto (system clock).
#pragma once

#include <time.h>

#include <cstdint>

namespace pasta {

// One instant on both clocks, in nanoseconds.
struct Instant {
    int64_t monotonic, real;

    // The least interrupted of some readings.
    static Instant now() {
        Instant best = {};
        int64_t shortest = INT64_MAX;
        for (int i = 0; i < 9; i++) {
            int64_t before = read(CLOCK_MONOTONIC), real = read(CLOCK_REALTIME), after = read(CLOCK_MONOTONIC);
            if (after - before >= shortest) continue;
            shortest = after - before;
            best = {before + shortest / 2, real};
        }
        return best;
    }

  private:
    static int64_t read(clockid_t clock) {
        timespec now;
        clock_gettime(clock, &now);
        return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    }
};

// The time between two instants; the system clock's drift against the monotonic one is spread over it evenly.
struct Period {
    Instant begin, end;

    int64_t real(uint64_t monotonic) const {
        int64_t since = static_cast<int64_t>(monotonic) - begin.monotonic;
        int64_t length = end.monotonic - begin.monotonic, drift = (end.real - begin.real) - length;
        double share = length > 0 ? static_cast<double>(since) / static_cast<double>(length) : 0;
        return begin.real + since + static_cast<int64_t>(static_cast<double>(drift) * share);
    }
};

} // namespace pasta
