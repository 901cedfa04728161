/* The start: reads the loader's information, initializes the parts in order, starts the first process, and enters
   the idle loop. */
#include "kernel.h"

enum { MULTIBOOT_BOOT_MAGIC = 0x2badb002, MULTIBOOT_MEMORY = 1, MULTIBOOT_CMDLINE = 4, PVH_MAGIC = 0x336ec578 };
enum { RAM = 1, MEMORY_MAX = 512 << 20 };

struct boot {
    const char *arguments;
    phys_t memory_end;
};

static void boot_multiboot(const uint32_t *words, struct boot *boot) {
    if (words[0] & MULTIBOOT_CMDLINE)
        boot->arguments = to_virtual(words[4]);
    if (words[0] & MULTIBOOT_MEMORY)
        boot->memory_end = LOAD_ADDRESS + ((phys_t)words[2] << 10);
}

struct pvh_memory {
    uint64_t address, size;
    uint32_t type, reserved;
};

static void boot_pvh(const uint32_t *words, struct boot *boot) {
    if (words[6])
        boot->arguments = to_virtual(words[6]);
    if (words[1] < 1)
        return;
    const struct pvh_memory *map = to_virtual(words[10]);
    for (uint32_t i = 0; i < words[12]; i++)
        if (map[i].type == RAM && map[i].address <= LOAD_ADDRESS && map[i].address + map[i].size > LOAD_ADDRESS)
            boot->memory_end = (phys_t)(map[i].address + map[i].size);
}

static _Noreturn void report_toggles(uint64_t cycles, unsigned long count) {
    marker_end();
    print("count toggle toggles %lu\nresult toggle %lu cycles\n", 2 * count, (unsigned long)scale(cycles, 1, (uint32_t)(2 * count)));
    leave(EXIT_PASS);
}

/* Clears and sets CR0.WP as fast as possible, with paging or without. */
static _Noreturn void toggle(int paging) {
    unsigned long count = argument("iterations", 1000);
    if (!count)
        count = 1;
#ifdef __x86_64__
    if (!paging)
        panic("paging=off is for the 32-bit kernels");
#else
    extern void toggle_unpaged(unsigned long count) __attribute__((regparm(1)));
    extern char boot_top[];
    if (!paging) {
        write_cr3((unsigned long)boot_top); /* the boot tables also map all of memory at its own address */
        marker_begin("toggle");
        uint64_t begun = rdtsc();
        toggle_unpaged(count);
        report_toggles(rdtsc() - begun, count);
    }
#endif
    marker_begin("toggle");
    uint64_t begun = rdtsc();
    for (unsigned long i = 0; i < count; i++) {
        protect_wp_set(0);
        protect_wp_set(1);
    }
    report_toggles(rdtsc() - begun, count);
}

/* Runs workloads that need no processes. */
static void run_alone(void) {
    if (argument_is("paging", "off"))
        toggle(0);
    if (argument_is("workload", "toggle"))
        toggle(1);
    if (argument_is("workload", "stress"))
        stress();
    if (argument_is("workload", "violate")) {
        /* This writes protected data outside of open_kernel: W^X mode must not survive it. */
        *(volatile int *)&kernexec = kernexec;
        print("kernel: the write went through\n");
        leave(kernexec ? EXIT_FAIL : EXIT_PASS);
    }
}

_Noreturn void kernel_start(uint32_t magic, uint32_t information);
_Noreturn void kernel_start(uint32_t magic, uint32_t information) {
    struct boot boot = {"", 64 << 20};
    const uint32_t *words = to_virtual(information);
    if (magic == MULTIBOOT_BOOT_MAGIC)
        boot_multiboot(words, &boot);
    else if (words[0] == PVH_MAGIC)
        boot_pvh(words, &boot);
    console_start(boot.arguments);
    protect_start();
    memory_start(boot.memory_end < MEMORY_MAX ? boot.memory_end : MEMORY_MAX);
    trap_start();
    paravirt_start();
    paging_start();
    paravirt_rom();
    timer_start();
    sched_start();
    print("kernel: "
#ifdef __x86_64__
          "x86_64"
#elif defined(PAE)
          "i386 PAE"
#else
          "i386"
#endif
          ", %s, %lu MiB, TSC %u kHz, %u Hz%s\n",
          paravirt ? "paravirtual" : "plain", memory_end() >> 20, tsc_khz, tick_hz, kernexec ? ", W^X" : "");
    run_alone();
    process_start();
    __asm__ volatile("sti");
    for (;;) {
        __asm__ volatile("cli");
        if (current->need_resched) {
            schedule();
            continue;
        }
        __asm__ volatile("sti; hlt");
    }
}
