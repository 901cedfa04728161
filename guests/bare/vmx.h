/* VMX for the programs that are hypervisors: names, instructions, and the state that does not differ between them. */
#ifndef VMX_H
#define VMX_H

#include "runtime.h"

/* MSRs, and bits of them, of CPUID and of CR4. */
enum { FEATURE_CONTROL = 0x3a, VMX_BASIC = 0x480, VMX_SECONDARY = 0x48b, VMX_EPT_VPID = 0x48c };
enum { VMX_PIN_TRUE = 0x48d, VMX_PRIMARY_TRUE = 0x48e, VMX_EXIT_TRUE = 0x48f, VMX_ENTRY_TRUE = 0x490 };
enum { LOCKED = 1, VMX_ENABLED = 4, CPUID_1_VMX = 1 << 5 };
#define TRUE_CONTROLS (1ull << 55)
#define CR4_VMXE (1ull << 13)

/* Fields of a VMCS (SDM vol. 3, appendix B). */
enum {
    GUEST_ES = 0x800, HOST_ES = 0xc00, HOST_CS = 0xc02,
    HOST_GS = 0xc0a, HOST_TR = 0xc0c, IO_BITMAP_A = 0x2000, IO_BITMAP_B = 0x2002, MSR_BITMAP = 0x2004, VIRTUAL_APIC = 0x2012,
    EPT_POINTER = 0x201a, PHYSICAL = 0x2400, LINK_POINTER = 0x2800, GUEST_PAT = 0x2804,
    GUEST_EFER = 0x2806, HOST_PAT = 0x2c00, HOST_EFER = 0x2c02, PIN = 0x4000, PRIMARY = 0x4002, EXCEPTIONS = 0x4004, EXIT_CONTROLS = 0x400c,
    ENTRY_CONTROLS = 0x4012, INJECTED = 0x4016, INJECTED_ERROR = 0x4018, INJECTED_LENGTH = 0x401a, SECONDARY = 0x401e, INSTRUCTION_ERROR = 0x4400,
    EXIT_REASON = 0x4402, EXIT_EVENT = 0x4404, EXIT_ERROR = 0x4406, VECTORING = 0x4408, VECTORING_ERROR = 0x440a, EXIT_LENGTH = 0x440c,
    GUEST_LIMITS = 0x4800, GUEST_GDT_LIMIT = 0x4810, GUEST_IDT_LIMIT = 0x4812, GUEST_RIGHTS = 0x4814,
    GUEST_INTERRUPTIBILITY = 0x4824, GUEST_ACTIVITY = 0x4826, CR0_MASK = 0x6000, CR4_MASK = 0x6002, CR0_SHADOW = 0x6004, CR4_SHADOW = 0x6006,
    EXIT_QUALIFICATION = 0x6400, LINEAR = 0x640a, GUEST_CR0 = 0x6800, GUEST_CR3 = 0x6802, GUEST_CR4 = 0x6804, GUEST_TR_BASE = 0x6814,
    GUEST_GDT = 0x6816, GUEST_IDT = 0x6818, GUEST_DR7 = 0x681a, GUEST_RSP = 0x681c, GUEST_RIP = 0x681e, GUEST_RFLAGS = 0x6820,
    PENDING_DEBUG = 0x6822, HOST_CR0 = 0x6c00, HOST_CR3 = 0x6c02, HOST_CR4 = 0x6c04, HOST_TR_BASE = 0x6c0a, HOST_GDT = 0x6c0c, HOST_IDT = 0x6c0e,
    HOST_RSP = 0x6c14, HOST_RIP = 0x6c16,
};

/* Exit reasons, and access rights of segments. */
enum { REASON_VMCALL = 18, REASON_EPT_VIOLATION = 48, REASON_EPT_MISCONFIGURATION = 49, REASON_FAILED = 1u << 31 };
enum { CODE_64 = 0xa09b, DATA_32 = 0xc093, TASK_BUSY = 0x8b, UNUSABLE = 0x10000 };
enum { TASK_SELECTOR = 0x28 };

/* Reports a failure and a value, and ends the run. */
_Noreturn static inline void fail(const char *message, uint64_t value) {
    print("%s: %s (%lx)\n", program_name, message, value);
    leave(EXIT_FAIL);
}

static inline uint64_t rdmsr(uint32_t msr) {
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
    return (uint64_t)high << 32 | low;
}
#define READ_CR(n) ({ uint64_t value; __asm__ volatile("mov %%cr" #n ", %0" : "=r"(value)); value; })
static inline void write_cr4(uint64_t value) { __asm__ volatile("mov %0, %%cr4" : : "r"(value) : "memory"); }

static inline void vmwrite(uint64_t field, uint64_t value) {
    uint8_t failed;
    __asm__ volatile("vmwrite %2, %1; setna %0" : "=q"(failed) : "r"(field), "r"(value) : "cc");
    if (failed)
        fail("VMWRITE failed", field);
}
/* Returns 0 if VMREAD fails. */
static inline uint64_t vmread(uint64_t field) {
    uint64_t value = 0;
    __asm__ volatile("vmread %1, %0" : "+r"(value) : "r"(field) : "cc");
    return value;
}

/* Permits VMXON: IA32_FEATURE_CONTROL and CR4. */
static inline void permit_vmx(void) {
    uint64_t control = rdmsr(FEATURE_CONTROL);
    if (!(control & LOCKED))
        wrmsr(FEATURE_CONTROL, control | LOCKED | VMX_ENABLED);
    else if (!(control & VMX_ENABLED))
        fail("VMX is disabled", control);
    write_cr4(READ_CR(4) | CR4_VMXE);
}

/* Writes the host state from the processor's registers, with the address at which the host continues after an exit. RSP,
   EFER and PAT are not written. Returns the base address of the task state segment. */
static inline uint64_t write_host_state(const void *exited) {
    struct __attribute__((packed)) {
        uint16_t limit;
        uint64_t base;
    } gdt_register, idt_register;
    __asm__ volatile("sgdt %0; sidt %1" : "=m"(gdt_register), "=m"(idt_register));
    const uint64_t *task = (const uint64_t *)(gdt_register.base + TASK_SELECTOR);
    uint64_t task_base = (task[0] >> 16 & 0xffffff) | (task[0] >> 32 & 0xff000000) | task[1] << 32;
    for (unsigned field = HOST_ES; field <= HOST_GS; field += 2)
        vmwrite(field, field == HOST_CS ? KERNEL_CODE : KERNEL_DATA);
    vmwrite(HOST_TR, TASK_SELECTOR);
    vmwrite(HOST_GDT, gdt_register.base);
    vmwrite(HOST_IDT, idt_register.base);
    vmwrite(HOST_TR_BASE, task_base);
    vmwrite(HOST_CR0, READ_CR(0));
    vmwrite(HOST_CR3, READ_CR(3));
    vmwrite(HOST_CR4, READ_CR(4));
    vmwrite(HOST_RIP, (uint64_t)exited);
    return task_base;
}

/* Writes the guest's segments: flat ones as the programs use themselves, FS, GS and LDTR unusable. */
static inline void write_guest_segments(uint64_t task_base) {
    for (unsigned i = 0; i < 8; i++) {
        /* The order is ES, CS, SS, DS, FS, GS, LDTR, TR. */
        uint64_t rights = i == 1 ? CODE_64 : i < 4 ? DATA_32 : i == 7 ? TASK_BUSY : UNUSABLE;
        vmwrite(GUEST_ES + 2 * i, i == 1 ? KERNEL_CODE : i < 4 ? KERNEL_DATA : i == 7 ? TASK_SELECTOR : 0);
        vmwrite(GUEST_LIMITS + 2 * i, i < 4 ? 0xffffffff : i == 7 ? 0x67 : 0);
        vmwrite(GUEST_RIGHTS + 2 * i, rights);
    }
    vmwrite(GUEST_TR_BASE, task_base);
}

#endif
