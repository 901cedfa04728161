/* Executes pseudo-random bytes, chosen by `seed=`, as code. The bytes determine the result; the machine must survive
   it and report where it ended. */
#include "runtime.h"

const char program_name[] = "garbage";

void program(void) {
    uint64_t state = argument("seed", 1) * 0x9e3779b97f4a7c15 + 1;
    uint64_t *page = page_alloc();
    for (unsigned i = 0; i < PAGE_SIZE / 8; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        page[i] = state;
    }
    print("%s: about to execute garbage at %lx\n", program_name, (uint64_t)page);
    ((void (*)(void))page)();
}
