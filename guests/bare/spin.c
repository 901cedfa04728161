/* Never ends: `how=halt` sleeps with interrupts off, otherwise a two-byte loop. */
#include "runtime.h"

const char program_name[] = "spin";

void program(void) {
    print("%s: about to spin\n", program_name);
    if (argument_is("how", "halt"))
        __asm__ volatile("cli; 1: hlt; jmp 1b");
    __asm__ volatile("1: jmp 1b");
}
