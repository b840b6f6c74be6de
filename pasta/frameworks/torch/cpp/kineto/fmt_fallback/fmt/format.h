// The part of fmt that the headers of Kineto use, for versions of torch that come without the headers of fmt (before
// about 2.13).
#pragma once

#include <sstream>
#include <string>

namespace fmt {

inline void put(std::ostringstream &out, const char *pattern) { out << pattern; }

template <typename First, typename... Rest>
void put(std::ostringstream &out, const char *pattern, const First &first, const Rest &...rest) {
    while (*pattern && !(pattern[0] == '{' && pattern[1] == '}')) out << *pattern++;
    if (!*pattern) return;
    out << first;
    put(out, pattern + 2, rest...);
}

template <typename... Values> std::string format(const char *pattern, const Values &...values) {
    std::ostringstream out;
    put(out, pattern, values...);
    return out.str();
}

} // namespace fmt
