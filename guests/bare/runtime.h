/* The runtime of a bare-metal guest program: a console, arguments, page tables, exceptions, an exit, and a measured
   region. A program defines `program_name` and `program()`; returning from `program()` ends the run successfully. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <stddef.h>
#include <stdint.h>

extern const char program_name[];
void program(void);

/* Exit statuses as the debug-exit port presents them: (value << 1) | 1. */
enum { EXIT_PASS = 0, EXIT_FAIL = 1, EXIT_EXCEPTION = 63 };
_Noreturn void leave(uint8_t value);

/* Formats %s, %c, %u, %d, %x with an optional l; widths and zero padding. */
void print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the value of `key=` on the command line (decimal or 0x…), or the given default. */
uint64_t argument(const char *key, uint64_t otherwise);
/* Returns true if the command line has `key=text`. */
int argument_is(const char *key, const char *text);

/* Begins and ends a region of interest, which the marker port names to the machine and the guest itself times;
   `measure_end` prints `name: iterations, cycles/iteration`. */
uint64_t measure_begin(const char *name);
void measure_end(const char *name, uint64_t begun, uint64_t iterations);

/* Registers that the exception stubs save, lowest address first. */
struct frame {
    uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax;
    uint64_t vector, error, rip, cs, rflags, rsp, ss;
};
typedef void exception_handler(struct frame *frame);
/* Sends a vector to `handler`; an exception without one is reported and ends the run. */
void on_exception(unsigned vector, exception_handler *handler);

enum { PAGE_PRESENT = 1, PAGE_WRITE = 2, PAGE_USER = 4, PAGE_SIZE = 4096 };
/* Returns a zeroed page of physical memory (mapped at its own address). */
void *page_alloc(void);
/* Maps one 4 KiB page in the given top-level table and returns its entry. The address must be 512 GiB or above: the
   identity map lies below. */
uint64_t *page_map(uint64_t *top, uint64_t virtual_address, uint64_t physical_address, uint64_t flags);
/* Returns a new top-level table that shares everything mapped so far. */
uint64_t *address_space(void);
extern uint64_t boot_pml4[];
#define PRIVATE_BASE (1ull << 39)

/* Sets the stack for entries to ring 0 from ring 3 (the task state segment's RSP0). */
void set_kernel_stack(void *top);

/* Tries to power off through ACPI; returns if the tables do not describe it. */
void acpi_power_off(void);

#define KERNEL_CODE 0x08
#define KERNEL_DATA 0x10
#define USER_DATA 0x1b
#define USER_CODE 0x23

static inline void outb(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static inline void outw(uint16_t port, uint16_t value) { __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port)); }
static inline uint8_t inb(uint16_t port) {
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static inline uint64_t rdtsc(void) {
    uint32_t low, high;
    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}
static inline void wrmsr(uint32_t msr, uint64_t value) {
    __asm__ volatile("wrmsr" : : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)) : "memory");
}
static inline void write_cr3(const void *top) { __asm__ volatile("mov %0, %%cr3" : : "r"(top) : "memory"); }
static inline void invlpg(uint64_t address) { __asm__ volatile("invlpg (%0)" : : "r"(address) : "memory"); }

#endif
