/* Descriptor tables, exceptions, interrupts, and the entries of system calls. */
#include "kernel.h"

struct __attribute__((packed)) table_pointer {
    uint16_t limit;
    unsigned long base;
};

#ifdef __x86_64__
struct gate {
    uint16_t offset_low, selector;
    uint8_t stack_table, type;
    uint16_t offset_middle;
    uint32_t offset_high, reserved;
};
struct __attribute__((packed)) task_segment {
    uint32_t reserved0;
    uint64_t sp0, sp[2], reserved1, ist[7], reserved2;
    uint16_t reserved3, io_map_base;
};
#else
struct gate {
    uint16_t offset_low, selector;
    uint8_t reserved, type;
    uint16_t offset_high;
};
struct task_segment {
    uint32_t link, sp0, ss0, sp1, ss1, sp2, ss2, cr3, ip, flags, ax, cx, dx, bx, sp, bp, si, di, es, cs, ss, ds, fs, gs, ldt;
    uint16_t trap, io_map_base;
};
#endif

/* The processor reads these, and nothing changes them after setup, so they are protected. So is the GDT, whose TLS
   entries each switch writes. The task state segment is writable, as under KERNEXEC. */
PROTECTED uint64_t gdt[GDT_ENTRIES] ALIGNED(16);
PROTECTED static struct gate idt[48];
static struct task_segment task_state;

#ifdef __x86_64__
extern unsigned long kernel_stack_top;
#else
/* SYSENTER_ESP points to the last word; the words below take the frame of a debug exception at the entry's first
   instruction. */
static unsigned long sysenter_stack[64];
#endif

void trap_set_stack(unsigned long top) {
    task_state.sp0 = top;
#ifdef __x86_64__
    kernel_stack_top = top;
#else
    sysenter_stack[ARRAY_SIZE(sysenter_stack) - 1] = top;
#endif
}

static void set_gate(unsigned vector, const char *stub) {
    unsigned long offset = (unsigned long)stub;
    idt[vector] = (struct gate){.offset_low = (uint16_t)offset, .selector = KERNEL_CODE, .type = 0x8e,
#ifdef __x86_64__
                                .offset_middle = (uint16_t)(offset >> 16), .offset_high = (uint32_t)(offset >> 32)};
#else
                                .offset_high = (uint16_t)(offset >> 16)};
#endif
}

static void set_tables(void) {
    for (unsigned vector = 0; vector < 32; vector++)
        set_gate(vector, exception_stubs + 16 * vector);
    for (unsigned vector = 0; vector < 16; vector++)
        set_gate(IRQ_VECTOR + vector, interrupt_stubs + 16 * vector);

    uint64_t code = 0x00009b000000ffff, data = 0x00cf93000000ffff, ring3 = 3ull << 45;
#ifdef __x86_64__
    code |= 0x00a0ull << 48 | 0x000f000000000000;
    gdt[1] = code;
    gdt[2] = data;
    gdt[4] = data | ring3;
    gdt[5] = code | ring3;
#else
    code |= 0x00cfull << 48;
    gdt[1] = code;
    gdt[2] = data;
    gdt[3] = code | ring3;
    gdt[4] = data | ring3;
    gdt[KERNEL_PER_CPU / 8] = data;
#endif
    uint64_t base = (unsigned long)&task_state;
    task_state.io_map_base = sizeof task_state;
#ifndef __x86_64__
    task_state.ss0 = KERNEL_DATA;
#endif
    gdt[GDT_TSS] = (sizeof task_state - 1) | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
#ifdef __x86_64__
    gdt[GDT_TSS + 1] = base >> 32;
#endif
}

void trap_start(void) {
    set_tables();
    struct table_pointer idt_pointer = {sizeof idt - 1, (unsigned long)idt};
    struct table_pointer gdt_pointer = {sizeof gdt - 1, (unsigned long)gdt};
    __asm__ volatile("lidt %0; lgdt %1; ltr %w2" : : "m"(idt_pointer), "m"(gdt_pointer), "r"(GDT_TSS * 8));
#ifdef __x86_64__
    wrmsr(MSR_STAR, (uint64_t)SYSRET_BASE << 48 | (uint64_t)KERNEL_CODE << 32);
    wrmsr(MSR_LSTAR, (uint64_t)system_call_entry);
    wrmsr(MSR_FMASK, FLAG_TF | FLAG_IF | FLAG_DF);
#else
    __asm__ volatile("mov %0, %%ds; mov %0, %%es" : : "r"(USER_DATA));
    wrmsr(MSR_SYSENTER_CS, KERNEL_CODE);
    wrmsr(MSR_SYSENTER_ESP, (unsigned long)&sysenter_stack[ARRAY_SIZE(sysenter_stack) - 1]);
    wrmsr(MSR_SYSENTER_EIP, (unsigned long)system_call_entry);
#endif
}

enum { VECTOR_DEBUG = 1, VECTOR_PAGE_FAULT = 14 };

static _Noreturn void unexpected(const struct registers *registers) {
    print("kernel: exception %lu, error %lx, at ip %lx (cs %lx, flags %lx), cr2 %lx, task %d\n", (unsigned long)registers->vector,
          (unsigned long)registers->error, (unsigned long)registers->ip, (unsigned long)registers->cs,
          (unsigned long)registers->flags, read_cr2(), current->pid);
    leave(EXIT_EXCEPTION);
}

static void debug_exception(struct registers *registers) {
    unsigned long status;
    __asm__ volatile("mov %%dr6, %0" : "=r"(status));
#ifdef __x86_64__
    __asm__ volatile("mov %0, %%dr6" : : "r"(0xffff0ff0ul)); /* as kernels of the 2020s clear it */
#else
    __asm__ volatile("mov %0, %%dr6; mov %0, %%dr7" : : "r"(0ul)); /* breakpoints off, as 2.6 kernels do */
#endif
    if (!(status & 1 << 14))
        unexpected(registers);
    if (!(registers->cs & 3)) {
        /* The trap flag came in by a system call: the kernel continues without it, and user mode gets it back. */
        registers->flags &= ~(unsigned long)FLAG_TF;
        return;
    }
    signal_send(current, SIGTRAP);
}

void exception(struct registers *registers);
void exception(struct registers *registers) {
    if (unlikely(stress_active)) {
        stress_exception(registers);
        return;
    }
    if (registers->vector == VECTOR_PAGE_FAULT) {
        unsigned long address = read_cr2();
        if (registers->flags & FLAG_IF)
            __asm__ volatile("sti");
        if (!current->mm || !page_fault(current->mm, address, registers->error))
            unexpected(registers);
    } else if (registers->vector == VECTOR_DEBUG) {
        debug_exception(registers);
    } else {
        unexpected(registers);
    }
}
