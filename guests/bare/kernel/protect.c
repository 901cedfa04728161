/* W^X mode (kernexec=1): protected data is mapped read-only, and CR0.WP is cleared before a write to it and set
   afterwards, as in PaX's KERNEXEC: read CR0, flip, check, write. Interrupts are unchanged, since there is no
   preemption in the kernel. */
#include "kernel.h"

PROTECTED int kernexec;
unsigned long toggles;

void protect_start(void) {
    kernexec = argument("kernexec", 0) != 0;
}

void protect_wp_set(int on) {
    unsigned long value = read_cr0() ^ CR0_WP;
    if (unlikely(!(value & CR0_WP) != !on))
        panic("CR0.WP was changed by another");
    write_cr0(value);
    toggles++;
}
