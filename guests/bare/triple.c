/* Ends in a triple fault: an exception with an empty IDT. */
#include "runtime.h"

const char program_name[] = "triple";

void program(void) {
    print("%s: about to triple fault\n", program_name);
    struct __attribute__((packed)) {
        uint16_t limit;
        uint64_t base;
    } none = {0, 0};
    __asm__ volatile("lidt %0; ud2" : : "m"(none));
}
