// Names as Kineto shows them.
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <string>
#include <unordered_map>

#include "../library.h"

namespace pasta {

// Kineto writes names and quoted values into JSON as they are: replaces what would break that.
inline std::string json_safe(const std::string &text) {
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

// Demangled names by string id.
class Names {
  public:
    const std::string &operator[](uint32_t id) {
        auto [at, is_new] = names_.try_emplace(id);
        if (is_new) at->second = json_safe(demangled(id));
        return at->second;
    }

  private:
    static std::string demangled(uint32_t id) {
        size_t length = 0;
        const char *found = library->interned(id, &length);
        std::string name = found ? std::string(found, length) : "kernel";
        int status;
        char *text = name.rfind("_Z", 0) ? nullptr : abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
        if (text) name = text;
        std::free(text);
        return name;
    }

    std::unordered_map<uint32_t, std::string> names_;
};

inline std::string triple(const uint32_t *sizes) {
    return '[' + std::to_string(sizes[0]) + ", " + std::to_string(sizes[1]) + ", " + std::to_string(sizes[2]) + ']';
}

inline const char *copy_name(uint32_t direction) {
    switch (direction) {
    case PASTA_COPY_host_to_host: return "Memcpy HtoH";
    case PASTA_COPY_host_to_device: return "Memcpy HtoD";
    case PASTA_COPY_device_to_host: return "Memcpy DtoH";
    case PASTA_COPY_device_to_device: return "Memcpy DtoD";
    case PASTA_COPY_peer_to_peer: return "Memcpy PtoP";
    default: return "Memcpy";
    }
}

inline const char *sync_name(uint32_t object) {
    switch (object) {
    case PASTA_SYNC_stream: return "cudaStreamSynchronize";
    case PASTA_SYNC_context: return "cuCtxSynchronize";
    case PASTA_SYNC_event: return "cudaEventSynchronize";
    default: return "cudaDeviceSynchronize";
    }
}

} // namespace pasta
