/* Undefined opcodes: a loop of UD2 whose handler steps over it; with `how=unhandled` the first one ends the run. */
#include "runtime.h"

const char program_name[] = "undefined";

static uint64_t caught;

static void skip(struct frame *frame) {
    caught++;
    frame->rip += 2;
}

void program(void) {
    uint64_t iterations = argument("iterations", 50000);
    if (!argument_is("how", "unhandled"))
        on_exception(6, skip);
    uint64_t begun = measure_begin(program_name);
    for (uint64_t i = 0; i < iterations; i++)
        __asm__ volatile("ud2");
    measure_end(program_name, begun, iterations);
    if (caught != iterations) {
        print("%s: caught %lu of %lu\n", program_name, caught, iterations);
        leave(EXIT_FAIL);
    }
}
