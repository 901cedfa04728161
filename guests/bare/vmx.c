/* A minimal hypervisor whose guest executes a loop of CPUID. Assembly answers CPUID right after the exit, from values
   that the hypervisor has read before: the fast path. The guest measures a round trip by RDTSC.

     count=N        CPUIDs (3000)
     depth=1        run the loop here, without a guest; 2 (default): in the guest
     ept=0          use no EPT even if the processor has it
     xcr0=MASK      states to enable in XCR0 (all that CPUID offers)
     toggle=1       clear and set CR0.WP in turns in place of CPUID. The hypervisor here does not intercept that; one below it may
     activity=1     begin the guest in HLT with interrupts off, so that it waits for ever
     osxsave=1      set CR4.OSXSAVE in the guest as well (default: clear, as in kvm-unit-tests) */
#include "vmx.h"

const char program_name[] = "vmx";

enum { PLAIN_TO_TRUE = 12, CPUID_1_XSAVE = 1 << 26 };
enum { PRIMARY_SECONDARY = 1u << 31, SECONDARY_EPT = 1 << 1, EXIT_HOST_64 = 1 << 9, ENTRY_GUEST_64 = 1 << 9 };
#define CR4_OSXSAVE (1ull << 18)

/* CPUID's answer to the guest, read once. */
uint32_t answer[4];
uint64_t cycles_in_guest;
static uint8_t guest_stack[PAGE_SIZE] __attribute__((aligned(16)));

/* Executes the loop, from RDTSC to RDTSC. */
void loop(uint64_t count);
__asm__("loop:\n"
        "    push %rbx\n"
        "    mov %rdi, %r8\n"
        "    lfence; rdtsc\n"
        "    mov %eax, %r9d; shl $32, %rdx; or %rdx, %r9\n"
        "1:  xor %eax, %eax\n"
        "    cpuid\n"
        "    dec %r8\n"
        "    jnz 1b\n"
        "    lfence; rdtsc\n"
        "    shl $32, %rdx; mov %eax, %eax; or %rdx, %rax\n"
        "    sub %r9, %rax\n"
        "    mov %rax, cycles_in_guest\n"
        "    pop %rbx\n"
        "    ret\n");

/* The same with changes of CR0.WP. */
void toggle_loop(uint64_t count);
__asm__("toggle_loop:\n"
        "    mov %rdi, %r8\n"
        "    mov %cr0, %rsi\n"
        "    lfence; rdtsc\n"
        "    mov %eax, %r9d; shl $32, %rdx; or %rdx, %r9\n"
        "1:  xor $0x10000, %rsi\n"
        "    mov %rsi, %cr0\n"
        "    dec %r8\n"
        "    jnz 1b\n"
        "    lfence; rdtsc\n"
        "    shl $32, %rdx; mov %eax, %eax; or %rdx, %rax\n"
        "    sub %r9, %rax\n"
        "    mov %rax, cycles_in_guest\n"
        "    ret\n");

/* Addresses of the guest's beginnings, with the count in RDI. */
void guest_begin(void);
void guest_begin_toggle(void);
__asm__("guest_begin:\n"
        "    call loop\n"
        "    vmcall\n"
        "guest_begin_toggle:\n"
        "    call toggle_loop\n"
        "    vmcall\n");

/* Launches the guest; returns when it exits for any reason but CPUID. Callee-saved registers are kept on the stack,
   which exits restore. The guest's registers live in the processor: CPUID's four are written, the others are the
   guest's. Returns 0 after an exit, 1 if the launch failed. */
int launch(uint64_t count);
__asm__("launch:\n"
        "    push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "    mov $0x6c14, %eax\n" /* HOST_RSP */
        "    vmwrite %rsp, %rax\n"
        "    vmlaunch\n"
        "    mov $1, %eax\n"
        "    jmp 2f\n"
        "    .globl exited\n"
        "exited:\n"
        "    mov $0x4402, %eax\n" /* EXIT_REASON */
        "    vmread %rax, %rbx\n"
        "    cmp $10, %ebx\n"
        "    jne 1f\n"
        "    mov $0x440c, %eax\n" /* EXIT_LENGTH */
        "    vmread %rax, %rbx\n"
        "    mov $0x681e, %eax\n" /* GUEST_RIP */
        "    vmread %rax, %rcx\n"
        "    add %rcx, %rbx\n"
        "    vmwrite %rbx, %rax\n"
        "    mov answer, %eax\n"
        "    mov answer + 4, %ebx\n"
        "    mov answer + 8, %ecx\n"
        "    mov answer + 12, %edx\n"
        "    vmresume\n"
        "1:  xor %eax, %eax\n"
        "2:  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "    ret\n");
extern const char exited[];

/* Returns a control's wanted bits as far as the processor permits them, with the bits that it requires. */
static uint32_t adjust(uint32_t msr, uint32_t wanted) {
    uint64_t allowed = rdmsr(msr);
    return (wanted | (uint32_t)allowed) & (uint32_t)(allowed >> 32);
}

/* Builds an EPT of 4 GiB that maps each address to itself, write-back, in pages of 2 MiB. */
static uint64_t identity_ept(void) {
    enum { ALL = 7, LARGE = 0x80, WRITE_BACK = 6 };
    uint64_t *top = page_alloc(), *middle = page_alloc();
    top[0] = (uint64_t)middle | ALL;
    for (uint64_t gigabyte = 0; gigabyte < 4; gigabyte++) {
        uint64_t *directory = page_alloc();
        middle[gigabyte] = (uint64_t)directory | ALL;
        for (uint64_t i = 0; i < 512; i++)
            directory[i] = gigabyte << 30 | i << 21 | WRITE_BACK << 3 | LARGE | ALL;
    }
    return (uint64_t)top | 3 << 3 | WRITE_BACK;
}

static uint64_t enable_states(void) {
    uint32_t a, b, c, d;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    if (!(c & CPUID_1_XSAVE))
        return 0;
    write_cr4(READ_CR(4) | CR4_OSXSAVE);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(0xd), "c"(0));
    uint64_t states = argument("xcr0", (uint64_t)d << 32 | a);
    __asm__ volatile("xsetbv" : : "c"(0), "a"((uint32_t)states), "d"((uint32_t)(states >> 32)));
    return states;
}

static void enter_vmx_operation(uint32_t revision) {
    permit_vmx();
    uint64_t region = (uint64_t)page_alloc();
    *(uint32_t *)region = revision;
    uint8_t failed;
    __asm__ volatile("vmxon %1; setna %0" : "=q"(failed) : "m"(region) : "cc", "memory");
    if (failed)
        fail("VMXON failed", region);
    uint64_t vmcs = (uint64_t)page_alloc();
    *(uint32_t *)vmcs = revision;
    __asm__ volatile("vmclear %1; setna %0" : "=q"(failed) : "m"(vmcs) : "cc", "memory");
    if (!failed)
        __asm__ volatile("vmptrld %1; setna %0" : "=q"(failed) : "m"(vmcs) : "cc", "memory");
    if (failed)
        fail("VMCLEAR or VMPTRLD failed", vmcs);
}

static int write_controls(uint64_t basic) {
    uint32_t plain = basic & TRUE_CONTROLS ? 0 : PLAIN_TO_TRUE;
    vmwrite(PIN, adjust(VMX_PIN_TRUE - plain, 0));
    vmwrite(EXIT_CONTROLS, adjust(VMX_EXIT_TRUE - plain, EXIT_HOST_64));
    vmwrite(ENTRY_CONTROLS, adjust(VMX_ENTRY_TRUE - plain, ENTRY_GUEST_64));
    uint32_t primary = adjust(VMX_PRIMARY_TRUE - plain, PRIMARY_SECONDARY);
    uint32_t secondary = primary & PRIMARY_SECONDARY && argument("ept", 1) ? adjust(VMX_SECONDARY, SECONDARY_EPT) : 0;
    vmwrite(PRIMARY, primary);
    if (primary & PRIMARY_SECONDARY)
        vmwrite(SECONDARY, secondary);
    if (secondary & SECONDARY_EPT)
        vmwrite(EPT_POINTER, identity_ept());
    return (secondary & SECONDARY_EPT) != 0;
}

static void write_guest_state(uint64_t task_base) {
    write_guest_segments(task_base);
    vmwrite(LINK_POINTER, ~0ull);
    vmwrite(GUEST_CR0, READ_CR(0));
    vmwrite(GUEST_CR3, READ_CR(3));
    vmwrite(GUEST_CR4, argument("osxsave", 0) ? READ_CR(4) : READ_CR(4) & ~CR4_OSXSAVE);
    vmwrite(GUEST_ACTIVITY, argument("activity", 0));
    vmwrite(GUEST_DR7, 0x400);
    vmwrite(GUEST_RFLAGS, 2);
    vmwrite(GUEST_RSP, (uint64_t)(guest_stack + sizeof guest_stack));
    vmwrite(GUEST_RIP, (uint64_t)(argument("toggle", 0) ? guest_begin_toggle : guest_begin));
}

static void run_guest(uint64_t count) {
    uint64_t basic = rdmsr(VMX_BASIC);
    enter_vmx_operation((uint32_t)basic & 0x7fffffff);
    int ept = write_controls(basic);
    write_guest_state(write_host_state(exited));
    print("%s: a guest %s EPT\n", program_name, ept ? "with" : "without");
    uint64_t begun = measure_begin(program_name);
    if (launch(count))
        fail("VMLAUNCH failed", vmread(INSTRUCTION_ERROR));
    measure_end(program_name, begun, count);
    if (vmread(EXIT_REASON) != REASON_VMCALL) {
        print("%s: qualification %lx, guest at %lx\n", program_name, vmread(EXIT_QUALIFICATION), vmread(GUEST_RIP));
        fail("the guest exits for another reason than VMCALL", vmread(EXIT_REASON));
    }
}

void program(void) {
    uint64_t count = argument("count", 3000);
    uint32_t a, b, c, d;
    if (!count)
        fail("count= must not be 0", count);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    int vmx = (c & CPUID_1_VMX) != 0;
    __asm__ volatile("cpuid" : "=a"(answer[0]), "=b"(answer[1]), "=c"(answer[2]), "=d"(answer[3]) : "a"(0), "c"(0));
    uint64_t states = enable_states();
    print("%s: XCR0 %lx\n", program_name, states);
    if (argument("depth", 2) == 1) {
        uint64_t begun = measure_begin(program_name);
        if (argument("toggle", 0))
            toggle_loop(count);
        else
            loop(count);
        measure_end(program_name, begun, count);
    } else if (!vmx) {
        fail("this processor has no VMX", c);
    } else {
        run_guest(count);
    }
    print("result %s %lu cycles\n", argument("toggle", 0) ? "toggle" : "cpuid", cycles_in_guest / count);
}
