/* The paravirtual interface of the hypervisor, if it exists and is requested (paravirt=1). Each part of it can be left out (pv-cr3=0, pv-delay=0, pv-pic=0, pv-flush=0), and the hypercall code can
   come from the ROM of a PCI function (hypercall=rom), as for a kernel that looks for it before it writes MSRs. */
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

/* The PCI function with the ROM, and what its ROM says of itself. */
enum { PCI_ADDRESS = 0xcf8, PCI_DATA = 0xcfc, PCI_ENABLE = 1u << 31, PCI_SLOTS = 32, PCI_COMMAND = 4, PCI_ROM = 0x30, PCI_MEMORY = 2, ROM_ENABLE = 1, ROM_ALIGNMENT = 2048 };
enum { ROM_FUNCTION = 0x54471234, ROM_SIGNATURE = 0x56504754, ROM_HEADER = 0x40, ROM_OFFSET = 0x48, ROM_CODE_LENGTH = 0x4c, LONGEST_CODE = 64 };

unsigned paravirt;
static int hypercalls, cr3_cache;
static volatile struct state_page state_page ALIGNED(PAGE_SIZE);
static char hypercall_page[PAGE_SIZE] ALIGNED(PAGE_SIZE);

static uint32_t pci_read(unsigned slot, unsigned place) {
    outl(PCI_ADDRESS, PCI_ENABLE | slot << 11 | place);
    return inl(PCI_DATA);
}
static void pci_write(unsigned slot, unsigned place, uint32_t value) {
    outl(PCI_ADDRESS, PCI_ENABLE | slot << 11 | place);
    outl(PCI_DATA, value);
}

/* Copies the hypercall code from the ROM to the kernel's own page: code is not fetched from a device. */
static void code_from_rom(void) {
    unsigned slot = 0;
    while (slot < PCI_SLOTS && pci_read(slot, 0) != ROM_FUNCTION)
        slot++;
    if (slot == PCI_SLOTS)
        panic("no PCI function has the hypercall code");
    uint32_t base = pci_read(slot, PCI_ROM) & ~(ROM_ALIGNMENT - 1u);
    if (!base)
        panic("the ROM of PCI function %u has no address", slot);
    pci_write(slot, PCI_ROM, base | ROM_ENABLE);
    pci_write(slot, PCI_COMMAND, pci_read(slot, PCI_COMMAND) | PCI_MEMORY);
    const volatile uint32_t *rom = paging_window(base);
    uint32_t offset = rom[ROM_OFFSET / 4], length = rom[ROM_CODE_LENGTH / 4];
    if (rom[ROM_HEADER / 4] != ROM_SIGNATURE || offset % 4 || length > LONGEST_CODE)
        panic("the ROM has no hypercall code: %x", rom[ROM_HEADER / 4]);
    for (uint32_t at = 0; at < length; at += 4)
        ((uint32_t *)hypercall_page)[at / 4] = rom[(offset + at) / 4];
    print("kernel: the hypercall code is from the ROM of PCI function %u: %x\n", slot, ((uint32_t *)hypercall_page)[0]);
}

/* Asked for after the kernel's own tables are there. */
void paravirt_rom(void) {
    if (hypercalls && argument_is("hypercall", "rom"))
        code_from_rom();
}

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
    if (!argument("pv-delay", 1))
        paravirt &= ~(unsigned)PARAVIRT_IO_DELAY;
    if (!argument("pv-pic", 1))
        paravirt &= ~(unsigned)PARAVIRT_PIC_SHORT;
    if (!argument("pv-flush", 1))
        paravirt &= ~(unsigned)PARAVIRT_FLUSH;
    if (!argument("pv-cr3", 1))
        paravirt &= ~(unsigned)FEATURE_CR3_CACHE;
    if (paravirt & FEATURE_HYPERCALL) {
        if (!argument_is("hypercall", "rom"))
            wrmsr(MSR_HYPERCALL_PAGE, to_physical(hypercall_page) | ENABLE);
        hypercalls = 1;
    }
    /* The state page has nothing but the cache. */
    if (paravirt & FEATURE_STATE && paravirt & FEATURE_CR3_CACHE) {
        state_page.guest_version = API_VERSION;
        state_page.size = sizeof state_page;
        wrmsr(MSR_STATE_PAGE, to_physical((const void *)&state_page) | ENABLE);
        if (rdmsr(MSR_STATE_PAGE) & ENABLE)
            cr3_cache = 1;
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
