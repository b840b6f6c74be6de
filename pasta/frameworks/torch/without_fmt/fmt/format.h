// For Kineto's headers where torch comes without those of fmt, which they include (before 2.13 or so): all
// that they use.
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
