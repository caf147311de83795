#include "godmw/isa.hpp"

#include <atomic>
#include <cstring>

namespace godmw {

namespace {

struct Choice {
    const char* isa;
    const Loops* loops;  // nullptr where this processor does not have it
};

// Best first.
const Choice* choices() {
#if defined(GODMW_X86)
    static const Choice table[] = {
        {"avx512", __builtin_cpu_supports("avx512f") ? &loops_avx512 : nullptr},
        {"avx2", __builtin_cpu_supports("avx2") ? &loops_avx2 : nullptr},
        {"portable", &loops_portable},
        {nullptr, nullptr},
    };
#else
    static const Choice table[] = {
        {"avx512", nullptr}, {"avx2", nullptr}, {"portable", &loops_portable}, {nullptr, nullptr}};
#endif
    return table;
}

const Loops* best(const Choice* from) {
    while (from->loops == nullptr) ++from;
    return from->loops;
}

std::atomic<const Loops*>& chosen() {
    static std::atomic<const Loops*> loops{best(choices())};
    return loops;
}

}  // namespace

const Loops& loops() { return *chosen().load(std::memory_order_relaxed); }

bool limit_isa(const char* limit) {
    for (const Choice* choice = choices(); choice->isa != nullptr; ++choice) {
        if (std::strcmp(choice->isa, limit) == 0) {
            chosen().store(best(choice), std::memory_order_relaxed);
            return true;
        }
    }
    return false;
}

}  // namespace godmw
