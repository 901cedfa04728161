/* The paravirtual interface of the hypervisor, if it exists and is requested (paravirt=1). */
#include "kernel.h"

enum { LEAF_SIGNATURE = 0x40000000, LEAF_FEATURES = 0x40000001, API_VERSION = 1 };
enum { SIGNATURE_B = 0x6c6c6f54, SIGNATURE_C = 0x65746167, SIGNATURE_D = 0x5650 };
enum { FEATURE_HYPERCALL = 1, FEATURE_STATE = 2, FEATURE_CR3_CACHE = 4 };
enum { MSR_HYPERCALL_PAGE = 0x54474c00, MSR_STATE_PAGE = 0x54474c01, ENABLE = 1 };
enum { CALL_FREE_TABLE = 1 };
enum { CPUID_HYPERVISOR = 1u << 31, CACHE_ENTRIES = 4 };

struct state_page {
    uint32_t guest_version, host_version, size, reserved;
    struct {
        uint64_t guest_cr3, host_cr3;
    } entry[CACHE_ENTRIES];
    uint32_t max_index, reserved2;
};

unsigned paravirt;
static int hypercalls, cr3_cache;
static volatile struct state_page state_page ALIGNED(PAGE_SIZE);
static char hypercall_page[PAGE_SIZE] ALIGNED(PAGE_SIZE);

void paravirt_start(void) {
    uint32_t words[4];
    if (!argument("paravirt", 0))
        return;
    cpuid(1, words);
    if (!(words[2] & CPUID_HYPERVISOR))
        return;
    cpuid(LEAF_SIGNATURE, words);
    if (words[0] < LEAF_FEATURES || words[1] != SIGNATURE_B || words[2] != SIGNATURE_C || words[3] != SIGNATURE_D)
        return;
    cpuid(LEAF_FEATURES, words);
    paravirt = words[0];
    if (paravirt & FEATURE_HYPERCALL) {
        wrmsr(MSR_HYPERCALL_PAGE, to_physical(hypercall_page) | ENABLE);
        hypercalls = 1;
    }
    if (paravirt & FEATURE_STATE) {
        state_page.guest_version = API_VERSION;
        state_page.size = sizeof state_page;
        wrmsr(MSR_STATE_PAGE, to_physical((const void *)&state_page) | ENABLE);
        if (rdmsr(MSR_STATE_PAGE) & ENABLE)
            cr3_cache = (paravirt & FEATURE_CR3_CACHE) != 0;
        else
            print("kernel: the hypervisor refuses the state page (its version: %u)\n", state_page.host_version);
    }
}

/* Loads CR3, with the value that the hypervisor uses for this table if it has reported one; that load causes no
   exit. */
void paravirt_write_cr3(unsigned long value) {
    unsigned long flags = interrupts_off();
    unsigned long load = value;
    for (uint32_t i = 0; cr3_cache && i < state_page.max_index && i < CACHE_ENTRIES; i++)
        if (state_page.entry[i].guest_cr3 == value && state_page.entry[i].host_cr3) {
            load = (unsigned long)state_page.entry[i].host_cr3;
            break;
        }
    write_cr3(load);
    interrupts_restore(flags);
}

/* Reports that a top-level table will be reused, if the cache may still have it. */
void paravirt_table_freed(phys_t top) {
    unsigned long result;
    if (!hypercalls || !cr3_cache)
        return;
    __asm__ volatile("call *%1" : "=a"(result) : "r"(hypercall_page), "a"((unsigned long)CALL_FREE_TABLE), "b"(top) : "memory", "cc");
    if (result)
        panic("the hypervisor answers %ld to a freed table", (long)result);
}
