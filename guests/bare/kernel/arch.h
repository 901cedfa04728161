/* The differences between the three targets (x86_64, i386 with PAE, i386 with two levels), and the processor's
   instructions. */
#ifndef ARCH_H
#define ARCH_H

#ifdef __x86_64__
#define PAGE_OFFSET 0xffffffff80000000
#define USER_BASE 0x400000
#define USER_TOP 0x3fffffff000 /* 42 bits, to which PaX limits user mode where each processor has a top-level table */
#else
#define PAGE_OFFSET 0xc0000000
#define USER_BASE 0x8048000
#define USER_TOP 0xbffff000
#endif
#define LOAD_ADDRESS 0x100000

/* Selectors. SYSENTER takes CS and SS from one base (0x08, 0x10), and SYSEXIT adds 16 and 24 to it; SYSRET to 64-bit
   code uses 0x18 + 8 for SS and 0x18 + 16 for CS. These orders satisfy both. */
#define KERNEL_CODE 0x08
#define KERNEL_DATA 0x10
#ifdef __x86_64__
#define USER_DATA 0x23
#define USER_CODE 0x2b
#define SYSRET_BASE 0x1b
#else
#define USER_CODE 0x1b
#define USER_DATA 0x23
#define KERNEL_PER_CPU 0x28 /* what GS holds in the kernel */
#endif
#define GDT_TSS 6
#define GDT_TLS 8
#define GDT_ENTRIES 16
#define TLS_SELECTOR (GDT_TLS * 8 + 3)

#define CR0_PE 0x1
#define CR0_MP 0x2
#define CR0_NE 0x20
#define CR0_WP 0x10000
#define CR0_PG 0x80000000
#define CR4_PSE 0x10
#define CR4_PAE 0x20
#define CR4_PGE 0x80
#define CR4_FSGSBASE 0x10000

#define MSR_SYSENTER_CS 0x174
#define MSR_SYSENTER_ESP 0x175
#define MSR_SYSENTER_EIP 0x176
#define MSR_EFER 0xc0000080
#define MSR_STAR 0xc0000081
#define MSR_LSTAR 0xc0000082
#define MSR_FMASK 0xc0000084
#define MSR_FS_BASE 0xc0000100
#define EFER_SCE 0x1
#define EFER_LME 0x100

#define FLAG_FIXED 0x2
#define FLAG_TF 0x100
#define FLAG_IF 0x200
#define FLAG_DF 0x400

#define THREAD_SIZE 8192
#define IRQ_VECTOR 0x20

#ifdef __ASSEMBLER__
/* Begins a function of assembly code, up to its END; reports find it by its symbol's type and size. */
#define FUNCTION(name) .type name, @function; name:
#define END(name) .size name, . - name
#else
#include <stddef.h>
#include <stdint.h>

/* The saved registers, lowest address first; entry.S pushes them. */
#ifdef __x86_64__
struct registers {
    uint64_t r15, r14, r13, r12, r11, r10, r9, r8, di, si, bp, bx, dx, cx, ax;
    uint64_t vector, error, ip, cs, flags, sp, ss;
};
#define ARGUMENT_0(r) ((r)->di)
#define ARGUMENT_1(r) ((r)->si)
#define ARGUMENT_2(r) ((r)->dx)
#define ARGUMENT_3(r) ((r)->r10)
#else
struct registers {
    uint32_t bx, cx, dx, si, di, bp, ax, ds, es, gs;
    uint32_t vector, error, ip, cs, flags, sp, ss;
};
#define ARGUMENT_0(r) ((r)->bx)
#define ARGUMENT_1(r) ((r)->cx)
#define ARGUMENT_2(r) ((r)->dx)
#define ARGUMENT_3(r) ((r)->si)
#endif

static inline void outb(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static inline uint8_t inb(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline void outl(uint16_t port, uint32_t value) { __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port)); }
static inline uint32_t inl(uint16_t port) {
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline uint64_t rdtsc(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}
static inline void wrmsr(uint32_t msr, uint64_t value) {
    __asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)) : "memory");
}
static inline uint64_t rdmsr(uint32_t msr) {
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}
static inline void cpuid(uint32_t leaf, uint32_t words[4]) {
    __asm__ volatile("cpuid" : "=a"(words[0]), "=b"(words[1]), "=c"(words[2]), "=d"(words[3]) : "a"(leaf), "c"(0));
}
#define CONTROL_REGISTER(n)                                                                                             \
    static inline unsigned long read_cr##n(void) {                                                                      \
        unsigned long value;                                                                                            \
        __asm__ volatile("mov %%cr" #n ", %0" : "=r"(value) : : "memory");                                              \
        return value;                                                                                                   \
    }                                                                                                                   \
    static inline void write_cr##n(unsigned long value) { __asm__ volatile("mov %0, %%cr" #n : : "r"(value) : "memory"); }
CONTROL_REGISTER(0)
CONTROL_REGISTER(2)
CONTROL_REGISTER(3)
CONTROL_REGISTER(4)
static inline void invlpg(unsigned long address) { __asm__ volatile("invlpg (%0)" : : "r"(address) : "memory"); }

/* Disables interrupts until interrupts_restore; on one processor this is a spin lock. */
static inline unsigned long interrupts_off(void) {
    unsigned long flags;
    __asm__ volatile("pushf; pop %0; cli" : "=r"(flags) : : "memory");
    return flags;
}
static inline void interrupts_restore(unsigned long flags) {
    __asm__ volatile("push %0; popf" : : "r"(flags) : "memory", "cc");
}

/* Returns value * multiplier / divisor without a 128-bit type or library; the result must fit 64 bits. */
#ifdef __x86_64__
static inline uint64_t scale(uint64_t value, uint32_t multiplier, uint32_t divisor) {
    uint64_t result, rest;
    __asm__("mulq %3; divq %4" : "=a"(result), "=&d"(rest) : "0"(value), "r"((uint64_t)multiplier), "r"((uint64_t)divisor) : "cc");
    return result;
}
#else
static inline uint64_t scale(uint64_t value, uint32_t multiplier, uint32_t divisor) {
    uint64_t low = (uint64_t)(uint32_t)value * multiplier;
    uint64_t high = (value >> 32) * multiplier + (low >> 32);
    uint32_t rest = 0, digits[3] = {(uint32_t)(high >> 32), (uint32_t)high, (uint32_t)low};
    for (int i = 0; i < 3; i++)
        __asm__("divl %2" : "+a"(digits[i]), "+d"(rest) : "r"(divisor) : "cc");
    return (uint64_t)digits[1] << 32 | digits[2];
}
#endif
#endif
#endif
