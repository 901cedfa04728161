/* Calls through a table of function pointers: by an indirect call, through retpolines, and as a compare and a direct
   call for each function (Linux's INDIRECT_CALL_n). `targets=` (1 to 4) is the number of functions that alternate at
   the one call site. */
#include "runtime.h"

const char program_name[] = "indirect";

static __attribute__((noinline)) uint64_t add(uint64_t x) { return x + 1; }
static __attribute__((noinline)) uint64_t rotate(uint64_t x) { return x << 1 | x >> 63; }
static __attribute__((noinline)) uint64_t flip(uint64_t x) { return ~x; }
static __attribute__((noinline)) uint64_t multiply(uint64_t x) { return x * 3; }

typedef uint64_t step(uint64_t);
static step *volatile table[4] = {add, rotate, flip, multiply};

/* Replaces a call through a pointer by comparisons if its targets are known. */
static inline __attribute__((always_inline)) uint64_t compared(step *function, uint64_t x) {
    if (function == add)
        return add(x);
    if (function == rotate)
        return rotate(x);
    if (function == flip)
        return flip(x);
    return multiply(x);
}
static inline __attribute__((always_inline)) uint64_t through(step *function, uint64_t x) { return function(x); }

#define LOOP(call)                                                                                                     \
    uint64_t x = 1;                                                                                                    \
    for (uint64_t i = 0, at = 0; i < iterations; i++) {                                                                \
        x = call(table[at], x);                                                                                        \
        at = at + 1 == targets ? 0 : at + 1;                                                                           \
    }                                                                                                                  \
    return x;

static __attribute__((noinline, indirect_branch("keep"))) uint64_t plain(uint64_t iterations, uint64_t targets) {
    LOOP(through)
}
static __attribute__((noinline, indirect_branch("thunk"))) uint64_t retpoline(uint64_t iterations, uint64_t targets) {
    LOOP(through)
}
static __attribute__((noinline, indirect_branch("keep"))) uint64_t direct(uint64_t iterations, uint64_t targets) { LOOP(compared) }

void program(void) {
    uint64_t iterations = argument("iterations", 500000), targets = argument("targets", 1);
    if (targets < 1 || targets > 4) {
        print("%s: targets must be 1 to 4\n", program_name);
        leave(EXIT_FAIL);
    }
    uint64_t begun = measure_begin("indirect-plain");
    uint64_t first = plain(iterations, targets);
    measure_end("indirect-plain", begun, iterations);
    begun = measure_begin("indirect-retpoline");
    uint64_t second = retpoline(iterations, targets);
    measure_end("indirect-retpoline", begun, iterations);
    begun = measure_begin("indirect-direct");
    uint64_t third = direct(iterations, targets);
    measure_end("indirect-direct", begun, iterations);
    if (first != second || first != third) {
        print("%s: results differ: %lx, %lx and %lx\n", program_name, first, second, third);
        leave(EXIT_FAIL);
    }
}
