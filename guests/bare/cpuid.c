/* Executes a loop of CPUID with the leaf `leaf=` and the subleaf `subleaf=` (0xd is the leaf that hypervisors found
   expensive). */
#include "runtime.h"

const char program_name[] = "cpuid";

void program(void) {
    uint64_t iterations = argument("iterations", 10000);
    uint32_t leaf = (uint32_t)argument("leaf", 0xd), subleaf = (uint32_t)argument("subleaf", 0);
    uint32_t a = 0, b = 0, c = 0, d = 0;
    uint64_t begun = measure_begin(program_name);
    for (uint64_t i = 0; i < iterations; i++) {
        a = leaf, c = subleaf;
        __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    }
    measure_end(program_name, begun, iterations);
    print("%s: leaf %x.%x = %08x %08x %08x %08x\n", program_name, leaf, subleaf, a, b, c, d);
}
