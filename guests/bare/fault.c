/* Accesses a page that is not present; the handler makes it present, and the loop removes it again: one #PF and one
   INVLPG per iteration. */
#include "runtime.h"

const char program_name[] = "fault";

static uint64_t *entry;
static uint64_t present_entry, faults, bad_faults;

static void page_fault(struct frame *frame) {
    uint64_t address;
    __asm__ volatile("mov %%cr2, %0" : "=r"(address));
    if (address != PRIVATE_BASE || frame->error != 2)
        bad_faults++;
    faults++;
    *entry = present_entry;
}

void program(void) {
    uint64_t iterations = argument("iterations", 100000);
    entry = page_map(boot_pml4, PRIVATE_BASE, (uint64_t)page_alloc(), PAGE_PRESENT | PAGE_WRITE);
    present_entry = *entry;
    on_exception(14, page_fault);

    volatile uint64_t *page = (volatile uint64_t *)PRIVATE_BASE;
    uint64_t begun = measure_begin(program_name);
    for (uint64_t i = 0; i < iterations; i++) {
        *entry = 0;
        invlpg(PRIVATE_BASE);
        *page = i;
    }
    measure_end(program_name, begun, iterations);
    if (faults != iterations || bad_faults) {
        print("%s: %lu faults, of which %lu with a wrong address or error code\n", program_name, faults, bad_faults);
        leave(EXIT_FAIL);
    }
}
