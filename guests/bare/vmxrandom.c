/* A hypervisor whose VMCSs, instructions and guests are pseudo-random, chosen by `seed=`. It prints a line for each of
   `rounds=` guests, with a hash of all that the hypervisor sees. The lines must be the same on any processor, and under
   any hypervisor, that offers the same VMX.

     seed=N, rounds=N   the seed, and the number of guests (100)
     ept=0              use no EPT
     first=N            the first of the rounds (0)
     verbose=1          print a line for each exit as well; 2: all hashed values */
#include "vmx.h"

const char program_name[] = "vmxrandom";

/* Controls that must keep their values for the program to continue, and controls whose effects depend on time or
   that not all processors offer: the preemption timer, posted interrupts, TSC scaling, PAUSE-loop exiting, #VE, VM
   functions, mode-based execution, logs, shadow VMCSs. */
/* Without exits for HLT the guest might wait for ever. */
#define PRIMARY_REQUIRED (1u << 31 | 1 << 7)
enum { EVENT_VALID = 1u << 31, EVENT_HAS_ERROR = 1 << 11 };
enum { PIN_LEFT_OUT = 1 << 6 | 1 << 7, PRIMARY_LEFT_OUT = 1 << 3 | 1 << 17, SECONDARY_CHOICE = 1 << 2 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 3 };
enum { ENTRY_LEFT_OUT = 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20 | 1 << 22 };
enum { EXIT_LEFT_OUT = 1 << 9 | 1 << 12 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25 | 1 << 28 | 1 << 29 };

/* The guest's own 2 MiB: code in slots, exception stubs, tables, stack. It can write to no other memory. */
enum { SLOT = 32, SLOTS = 24, LARGE = 1 << 21 };
static struct {
    uint8_t code[PAGE_SIZE], stubs[PAGE_SIZE];
    uint64_t pml4[512], pdpt[512], directory[4][512];
    uint64_t idt[512], gdt[512];
    uint8_t task[PAGE_SIZE], stack[2 * PAGE_SIZE], data[PAGE_SIZE];
    uint8_t rest[LARGE - 17 * PAGE_SIZE];
} own __attribute__((aligned(LARGE)));

static uint64_t state;
static uint64_t number(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d;
}
static uint64_t below(uint64_t end) { return (number() >> 11) % end; }

static uint64_t seen;
static int verbose;
static void note(uint64_t value) {
    seen = (seen ^ value) * 0x9e3779b97f4a7c15 + (seen >> 29);
    if (verbose > 1)
        print(" %lx", value);
}

/* The result of a VMX instruction: CF and ZF; or, if it raised an exception, the vector and 0x100. */
static volatile uint64_t met;
static void step_over(struct frame *frame) {
    met = frame->vector | 0x100;
    frame->rip = frame->rbx;
}
#define TRY(text, ...)                                                                                                                          \
    ({                                                                                                                                          \
        uint8_t carry, zero;                                                                                                                    \
        met = 0;                                                                                                                                \
        __asm__ volatile("lea 1f(%%rip), %%rbx; cmp %%rsp, %%rbx; " text "; 1: setc %0; setz %1" : "=&q"(carry), "=&q"(zero) : __VA_ARGS__ : "rbx", "cc", "memory"); \
        met ? met : (uint64_t)(carry | zero << 1);                                                                                              \
    })
static uint64_t vmwrite_ends(uint64_t field, uint64_t value) { return TRY("vmwrite %3, %2", "r"(field), "r"(value)); }
struct descriptor {
    uint64_t first, second;
};

/* The guest's registers except RSP. */
uint64_t registers[15];
/* Enters the guest; returns 0 after an exit, else the flags of the failure. */
int enter(int resume);
__asm__("enter:\n"
        "    push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "    mov $0x6c14, %eax\n" /* HOST_RSP */
        "    vmwrite %rsp, %rax\n"
        "    test %edi, %edi\n"
        "    mov registers, %rax; mov registers + 8, %rcx; mov registers + 16, %rdx; mov registers + 24, %rbx; mov registers + 32, %rbp\n"
        "    mov registers + 40, %rsi; mov registers + 48, %rdi; mov registers + 56, %r8; mov registers + 64, %r9; mov registers + 72, %r10\n"
        "    mov registers + 80, %r11; mov registers + 88, %r12; mov registers + 96, %r13; mov registers + 104, %r14; mov registers + 112, %r15\n"
        "    jnz 1f\n"
        "    vmlaunch\n"
        "    jmp 2f\n"
        "1:  vmresume\n"
        "2:  setc %al; setz %cl; movzbl %al, %eax; movzbl %cl, %ecx; lea 4(%rax, %rcx, 2), %eax\n"
        "    jmp 3f\n"
        "    .globl exited\n"
        "exited:\n"
        "    mov %rax, registers; mov %rcx, registers + 8; mov %rdx, registers + 16; mov %rbx, registers + 24; mov %rbp, registers + 32\n"
        "    mov %rsi, registers + 40; mov %rdi, registers + 48; mov %r8, registers + 56; mov %r9, registers + 64; mov %r10, registers + 72\n"
        "    mov %r11, registers + 80; mov %r12, registers + 88; mov %r13, registers + 96; mov %r14, registers + 104; mov %r15, registers + 112\n"
        "    xor %eax, %eax\n"
        "3:  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "    cld; ret\n");
extern const char exited[];

/* Possible contents of a slot of the guest's code, which ends at the next slot. */
#define SNIPPET(text) { (const uint8_t *)(text), sizeof(text) - 1 }
static const struct {
    const uint8_t *bytes;
    unsigned length;
} snippets[] = {
    SNIPPET("\x0f\xa2"),                                     /* cpuid */
    SNIPPET("\xb9\x80\x00\x00\xc0\x0f\x32"),                 /* rdmsr of EFER */
    SNIPPET("\xb9\x82\x00\x00\xc0\x0f\x32"),                 /* LSTAR */
    SNIPPET("\xb9\x74\x01\x00\x00\x0f\x30"),                 /* wrmsr of SYSENTER_CS */
    SNIPPET("\xb9\x00\x01\x00\xc0\x0f\x30"),                 /* FS base */
    SNIPPET("\xb9\x77\x02\x00\x00\x0f\x32"),                 /* PAT */
    SNIPPET("\xb9\x78\x56\x34\x12\x0f\x32"),                 /* no MSR */
    SNIPPET("\xb9\x80\x00\x00\xc0\x31\xc0\x31\xd2\x0f\x30"), /* EFER: 0 */
    SNIPPET("\xe6\x80"),                                     /* out 0x80 */
    SNIPPET("\x66\xba\xff\x03\xec"),                         /* in of the scratch register of COM1 */
    SNIPPET("\x66\xba\xff\x02\xef"),                         /* out of 32 bits */
    SNIPPET("\xb9\x05\x00\x00\x00\x66\xba\x80\x00\x48\x8d\x35\x00\x10\x00\x00\xf3\x6e"), /* rep outsb of what is in the next page */
    SNIPPET("\x0f\x20\xc0\x48\x83\xf0\x08\x0f\x22\xc0"),     /* CR0.TS */
    SNIPPET("\x0f\x06"),                                     /* clts */
    SNIPPET("\x0f\x01\xe0"),                                 /* smsw */
    SNIPPET("\x66\xb8\x0b\x00\x0f\x01\xf0"),                 /* lmsw */
    SNIPPET("\x0f\x20\xc0\x48\x0f\xba\xf0\x1f\x0f\x22\xc0"), /* CR0.PG: 0 */
    SNIPPET("\x0f\x20\xe0\x48\x83\xf0\x04\x0f\x22\xe0"),     /* CR4.TSD */
    SNIPPET("\x0f\x20\xe0\x48\x0f\xba\xf8\x0d\x0f\x22\xe0"), /* CR4.VMXE */
    SNIPPET("\x48\x83\xc8\xff\x0f\x22\xe0"),                 /* CR4: all bits */
    SNIPPET("\x0f\x20\xd8\x0f\x22\xd8"),                     /* CR3 */
    SNIPPET("\x44\x0f\x20\xc0\x44\x0f\x22\xc0"),             /* CR8 */
    SNIPPET("\x0f\x21\xf8\x0f\x23\xc0"),                     /* DR7, DR0 */
    SNIPPET("\x48\x83\xc8\xff\x0f\x23\xf8"),                 /* DR7: all bits */
    SNIPPET("\x48\x31\xc0\x0f\x01\x38"),                     /* invlpg */
    SNIPPET("\xf4"),                                         /* hlt */
    SNIPPET("\xfb\xf4"),                                     /* sti; hlt */
    SNIPPET("\x0f\x0b"),                                     /* ud2 */
    SNIPPET("\x31\xc9\xf7\xf1"),                             /* division by 0 */
    SNIPPET("\xcc"),                                         /* int3 */
    SNIPPET("\xf1"),                                         /* int1 */
    SNIPPET("\xcd\x0d"),                                     /* int 13 */
    SNIPPET("\xcd\x80"),                                     /* int 128: beyond the table */
    SNIPPET("\x9c\x81\x0c\x24\x00\x01\x00\x00\x9d\x90"),     /* single step */
    SNIPPET("\x9c\x81\x0c\x24\x00\x01\x00\x00\x9d\x0f\xa2"), /* single step of cpuid */
    SNIPPET("\x9c\x81\x0c\x24\x00\x01\x00\x00\x9d\x0f\x09"), /* of wbinvd */
    SNIPPET("\x9c\x81\x0c\x24\x00\x00\x01\x00\x9d"),         /* RF: popf clears it */
    SNIPPET("\x8c\xd0\x8e\xd0\x0f\xa2"),                     /* mov ss; cpuid */
    SNIPPET("\xfb\x0f\xa2"),                                 /* sti; cpuid */
    SNIPPET("\x48\xb8\x00\x00\x00\x00\x01\x00\x00\x00\x48\x8b\x00"), /* page fault */
    SNIPPET("\x48\xb8\x00\x00\x00\x00\x00\x00\x00\x80\x48\x8b\x00"), /* not canonical */
    SNIPPET("\x31\xe4\x48\x89\xe4\x50"),                     /* push at 0: a write that is not allowed, twice */
    SNIPPET("\x0f\x09"),                                     /* wbinvd */
    SNIPPET("\x31\xc9\x0f\x01\xd0"),                         /* xgetbv */
    SNIPPET("\x31\xc9\x31\xd2\x31\xc0\x0f\x01\xd1"),         /* xsetbv of 0 */
    SNIPPET("\x48\x83\xec\x10\x0f\x01\x04\x24"),             /* sgdt */
    SNIPPET("\x48\x83\xec\x10\x0f\x01\x14\x24"),             /* lgdt */
    SNIPPET("\x0f\x00\xc8"),                                 /* str */
    SNIPPET("\x31\xc0\x0f\x00\xd0"),                         /* lldt */
    SNIPPET("\x0f\x78\xc0"),                                 /* vmread */
    SNIPPET("\x0f\x01\xc4"),                                 /* vmxoff */
    SNIPPET("\x0f\x01\xd4"),                                 /* vmfunc */
    SNIPPET("\x66\x0f\x38\x80\x04\x24"),                     /* invept */
    SNIPPET("\x31\xc0\x66\x0f\x38\x82\x04\x24"),             /* invpcid */
    SNIPPET("\xf3\x90"),                                     /* pause */
    SNIPPET("\x31\xc0\x31\xc9\x31\xd2\x0f\x01\xc8"),         /* monitor */
    SNIPPET("\x31\xc9\x0f\x33"),                             /* rdpmc */
    SNIPPET("\x48\xcf"),                                     /* iretq of what the stack holds */
    SNIPPET("\x48\x8d\x24\x25\x00\x00\x00\x00\x0f\x0b"),     /* ud2 with a stack that is not there */
    SNIPPET("\x0f\xae\xe8\xf3\x0f\xb8\xc3\xf0\x48\x0f\xb1\x1c\x24"), /* lfence, popcnt, lock cmpxchg */
};
enum { SNIPPETS = sizeof snippets / sizeof *snippets };

static uint32_t allowed(uint32_t msr, uint32_t wanted, uint32_t fixed) {
    uint64_t can = rdmsr(msr);
    return (wanted | fixed | (uint32_t)can) & (uint32_t)(can >> 32);
}

static uint64_t interesting(void) {
    switch (below(8)) {
    case 0: return 0;
    case 1: return ~0ull;
    case 2: return 1ull << below(64);
    case 3: return number();
    case 4: return (uint64_t)own.data;
    case 5: return number() & 0xffff;
    case 6: return 0xfffffffffffff000 & number() >> below(40);
    default: return (uint64_t)own.code + below(PAGE_SIZE);
    }
}

static uint64_t *ept_top;
static void make_ept(void) {
    uint64_t *middle = page_alloc();
    ept_top = page_alloc();
    ept_top[0] = (uint64_t)middle | 7;
    for (uint64_t gigabyte = 0; gigabyte < 4; gigabyte++) {
        uint64_t *directory = page_alloc();
        middle[gigabyte] = (uint64_t)directory | 7;
        for (uint64_t i = 0; i < 512; i++) {
            uint64_t page = gigabyte << 30 | i << 21;
            directory[i] = page | 6 << 3 | 0x80 | (page == (uint64_t)&own ? 7 : 5);
        }
    }
}

static void make_guest(void) {
    uint8_t *bytes = (uint8_t *)&own;
    for (size_t i = 0; i < sizeof own - sizeof own.rest; i++)
        bytes[i] = 0;
    for (unsigned i = 0; i < PAGE_SIZE; i++)
        own.code[i] = 0x90;
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        unsigned which = (unsigned)below(SNIPPETS);
        for (unsigned i = 0; i < snippets[which].length; i++)
            own.code[SLOT * slot + i] = snippets[which].bytes[i];
    }
    /* A vmcall follows the last slot and ends each stub. */
    for (unsigned i = SLOT * SLOTS; i + 3 <= PAGE_SIZE; i += 3)
        own.code[i] = 0x0f, own.code[i + 1] = 0x01, own.code[i + 2] = 0xc1;
    for (unsigned vector = 0; vector < 32; vector++) {
        uint8_t *stub = own.stubs + 16 * vector;
        stub[0] = 0x0f, stub[1] = 0x01, stub[2] = 0xc1;
        uint64_t at = (uint64_t)stub;
        own.idt[2 * vector] = (at & 0xffff) | (uint64_t)KERNEL_CODE << 16 | 0x8e00ull << 32 | (at >> 16 & 0xffff) << 48;
        own.idt[2 * vector + 1] = at >> 32;
    }
    own.pml4[0] = (uint64_t)own.pdpt | 7;
    for (uint64_t gigabyte = 0; gigabyte < 4; gigabyte++) {
        own.pdpt[gigabyte] = (uint64_t)own.directory[gigabyte] | 7;
        for (uint64_t i = 0; i < 512; i++) {
            uint64_t page = gigabyte << 30 | i << 21;
            own.directory[gigabyte][i] = page | 0x80 | (page == (uint64_t)&own ? 3 : 1);
        }
    }
    own.gdt[1] = 0x00af9b000000ffff;
    own.gdt[2] = 0x00cf93000000ffff;
    uint64_t task = (uint64_t)own.task;
    own.gdt[5] = 0x67 | (task & 0xffffff) << 16 | 0x8bull << 40 | (task >> 24 & 0xff) << 56;
    *(uint64_t *)(own.task + 4) = (uint64_t)own.stack + sizeof own.stack;
    for (unsigned i = 0; i < 15; i++)
        registers[i] = number();
}

static uint8_t *bitmaps[4];
static uint64_t region, revision;

static void write_controls(int ept) {
    uint32_t pin = allowed(VMX_PIN_TRUE, (uint32_t)(number() & number()) & ~PIN_LEFT_OUT, 0);
    uint32_t primary = allowed(VMX_PRIMARY_TRUE, (uint32_t)(number() & number()) & ~PRIMARY_LEFT_OUT, PRIMARY_REQUIRED);
    if (below(8)) {
        /* Some controls depend on each other. */
        if (!(pin & 1 << 3))
            pin &= ~(1u << 5);
        if (!(pin & 1 << 5))
            primary &= ~(1u << 22);
    }
    /* Windows wait for events that never come here; the virtual-APIC page always exists. */
    uint32_t choice = (uint32_t)(number() & number()) & SECONDARY_CHOICE;
    uint32_t secondary = allowed(VMX_SECONDARY, choice | (ept ? 2 : 0) | (ept && below(2) ? 1 << 7 : 0), 0);
    if (!ept)
        secondary &= ~(1u << 7);
    vmwrite(PIN, pin);
    vmwrite(PRIMARY, primary);
    vmwrite(SECONDARY, secondary);
    vmwrite(EXIT_CONTROLS, allowed(VMX_EXIT_TRUE, (uint32_t)(number() & number()) & ~EXIT_LEFT_OUT, 1 << 9));
    vmwrite(ENTRY_CONTROLS, allowed(VMX_ENTRY_TRUE, (uint32_t)(number() & number()) & ~ENTRY_LEFT_OUT, 1 << 9));
    vmwrite(EXCEPTIONS, number() & number() & 0xffffffff);
    for (unsigned page = 0; page < 3; page++)
        for (unsigned i = 0; i < PAGE_SIZE / 8; i++)
            ((uint64_t *)bitmaps[page])[i] = number() & number();
    vmwrite(IO_BITMAP_A, (uint64_t)bitmaps[0]);
    vmwrite(IO_BITMAP_B, (uint64_t)bitmaps[1]);
    vmwrite(MSR_BITMAP, (uint64_t)bitmaps[2]);
    if (primary & 1 << 21) {
        for (unsigned i = 0; i < PAGE_SIZE; i++)
            bitmaps[3][i] = 0;
        vmwrite(VIRTUAL_APIC, (uint64_t)bitmaps[3]);
    }
    if (ept)
        vmwrite(EPT_POINTER, (uint64_t)ept_top | 3 << 3 | 6 | (below(2) && rdmsr(VMX_EPT_VPID) >> 21 & 1 ? 1 << 6 : 0));
    if (secondary & 1 << 5)
        vmwrite(0, 1 + below(3));
    vmwrite(CR0_MASK, number() & number() & 0xe005003f);
    vmwrite(CR4_MASK, number() & number() & 0x3027ff);
    vmwrite(CR0_SHADOW, number() & 0xe005003f);
    vmwrite(CR4_SHADOW, number() & 0x3027ff);
}

static void write_state(void) {
    write_host_state(exited);
    vmwrite(HOST_EFER, rdmsr(0xc0000080));
    vmwrite(HOST_PAT, rdmsr(0x277));
    write_guest_segments((uint64_t)own.task);
    vmwrite(GUEST_GDT, (uint64_t)own.gdt);
    vmwrite(GUEST_GDT_LIMIT, 7 * 8 - 1);
    vmwrite(GUEST_IDT, (uint64_t)own.idt);
    vmwrite(GUEST_IDT_LIMIT, 32 * 16 - 1);
    vmwrite(LINK_POINTER, ~0ull);
    vmwrite(GUEST_EFER, rdmsr(0xc0000080));
    vmwrite(GUEST_PAT, rdmsr(0x277));
    vmwrite(GUEST_CR0, READ_CR(0));
    vmwrite(GUEST_CR3, (uint64_t)own.pml4);
    vmwrite(GUEST_CR4, READ_CR(4));
    vmwrite(GUEST_DR7, 0x400);
    vmwrite(GUEST_RFLAGS, 2);
    vmwrite(GUEST_RSP, (uint64_t)own.stack + sizeof own.stack);
    vmwrite(GUEST_RIP, (uint64_t)own.code);
}

/* Fields of the guest-state area and of the event controls that a round changes at random. */
static const uint16_t changed[] = {
    0x800, 0x802, 0x804, 0x806, 0x808, 0x80a, 0x80c, 0x80e, 0x2800, 0x2802, 0x2804, 0x2806, 0x4004, 0x4006, 0x4008, 0x400a, 0x4016, 0x4018, 0x401a,
    0x401c, 0x4800, 0x4802, 0x4804, 0x4806, 0x4808, 0x480a, 0x480c, 0x480e, 0x4810, 0x4812, 0x4814, 0x4816, 0x4818, 0x481a, 0x481c, 0x481e, 0x4820,
    0x4822, 0x4824, 0x482a, 0x6000, 0x6002, 0x6004, 0x6006, 0x6008, 0x600a, 0x6800, 0x6802, 0x6804, 0x6806, 0x6808, 0x680a, 0x680c, 0x680e,
    0x6810, 0x6812, 0x6814, 0x6816, 0x6818, 0x681a, 0x681c, 0x681e, 0x6820, 0x6822, 0x6824, 0x6826, 0xc00, 0xc06, 0xc08, 0xc0a, 0x6c06, 0x6c08, 0x6c10, 0x6c12,
};

/* Executes VMX instructions with operands that may be wrong. */
static void try_instruction(void) {
    static const uint64_t encodings[] = {0, 0x4402, 0x6400, 0x681e, 0x2800, 0x2801, 0x2010, 0x4000, 0x440e, 0x1234, 0x6c16, 0x8000, 0x2400, 0x600};
    uint64_t value = interesting(), field = encodings[below(sizeof encodings / sizeof *encodings)];
    if (field == PHYSICAL && !argument("ept", 1))
        field = LINEAR;
    struct descriptor descriptor = {below(2) ? interesting() : below(4), below(2) ? interesting() : 0};
    uint64_t ends, pointer;
    switch (below(9)) {
    case 0:
        if (field != 0x6c16 && field != 0x4000)
            note(vmwrite_ends(field, value));
        break;
    case 1: {
        uint64_t read = 0x5555;
        ends = TRY("vmread %2, %3", "r"(field), "m"(read));
        note(ends);
        /* The length and information of an instruction are valid only after some exits. */
        note(field == 0x440e ? 0 : read);
        break;
    }
    case 2:
        pointer = below(2) ? value : region;
        if (pointer >= 1 << 20 && pointer < 1ull << 32)
            break;
        note(TRY("vmptrld %2", "m"(pointer)));
        break;
    case 3:
        pointer = value < 1ull << 40 ? value | 1 : value;
        note(TRY("vmclear %2", "m"(pointer)));
        break;
    case 4:
        pointer = 0;
        note(TRY("vmptrst %2", "m"(pointer)));
        note(pointer);
        break;
    case 5: note(TRY("invvpid %2, %3", "m"(descriptor), "r"(below(2) ? below(6) : value))); break;
    case 6: note(argument("ept", 1) ? TRY("invept %2, %3", "m"(descriptor), "r"(below(2) ? below(4) : value)) : (met = 0)); break;
    case 7:
        pointer = value < 1ull << 40 ? value | 1 : value;
        note(TRY("vmxon %2", "m"(pointer)));
        break;
    default: note(TRY("vmfunc", "a"(below(3)), "c"(below(512)))); break;
    }
    if (met || below(2))
        note(vmread(INSTRUCTION_ERROR));
}

static const uint32_t noted[] = {EXIT_EVENT, VECTORING, GUEST_RIP, GUEST_RSP, GUEST_RFLAGS, GUEST_CR0, GUEST_CR3, GUEST_CR4, GUEST_INTERRUPTIBILITY, GUEST_ACTIVITY,
                                 PENDING_DEBUG, 0x802, 0x804, 0x4816, 0x4818, 0x4810, GUEST_EFER, GUEST_DR7, ENTRY_CONTROLS, INJECTED};

/* Returns true if the guest continues, at its next slot. */
static int after_exit(uint32_t reason) {
    uint64_t rip = vmread(GUEST_RIP), code = (uint64_t)own.code, stubs = (uint64_t)own.stubs, rsp = vmread(GUEST_RSP);
    uint64_t qualification = vmread(EXIT_QUALIFICATION);
    note(reason);
    /* Not all processors offer the further information of EPT violations about the page. */
    note(reason == REASON_EPT_VIOLATION ? qualification & 0x1ff : qualification);
    for (unsigned i = 0; i < sizeof noted / sizeof *noted; i++)
        note(vmread(noted[i]));
    if (vmread(EXIT_EVENT) & EVENT_HAS_ERROR)
        note(vmread(EXIT_ERROR));
    if (vmread(VECTORING) & EVENT_HAS_ERROR)
        note(vmread(VECTORING_ERROR));
    if (reason == REASON_EPT_VIOLATION || reason == REASON_EPT_MISCONFIGURATION)
        note(vmread(PHYSICAL));
    if (reason == REASON_EPT_VIOLATION && qualification & 0x80)
        note(vmread(LINEAR));
    for (unsigned i = 0; i < 15; i++)
        note(registers[i]);
    if (verbose)
        print("  exit %x, qualification %lx, event %lx, vectoring %lx, rip %lx, flags %lx, pending %lx, blocking %lx: %lx\n", reason, qualification,
              vmread(EXIT_EVENT), vmread(VECTORING), rip, vmread(GUEST_RFLAGS), vmread(PENDING_DEBUG), vmread(GUEST_INTERRUPTIBILITY), seen);
    if (reason & REASON_FAILED)
        return 0;
    if (reason == REASON_VMCALL && rip >= stubs && rip < stubs + PAGE_SIZE) {
        /* In an exception handler, the pushed words are noted, and the guest continues from there. */
        uint64_t *frame = (uint64_t *)rsp;
        if (rsp < (uint64_t)own.stack || rsp + 48 > (uint64_t)own.stack + sizeof own.stack)
            return 0;
        for (unsigned i = 0; i < 6; i++)
            note(frame[i]);
        unsigned vector = (unsigned)((rip - stubs) / 16);
        int coded = vector == 8 || (vector >= 10 && vector <= 14) || vector == 17;
        if (verbose)
            print("  exception %u, flags pushed %lx\n", vector, frame[2 + coded]);
        rip = frame[coded];
    } else if (reason == REASON_VMCALL) {
        return 0;
    }
    if (rip < code || rip >= code + SLOT * SLOTS)
        return 0;
    vmwrite(GUEST_RIP, ((rip - code) / SLOT + 1) * SLOT + code);
    vmwrite(GUEST_RSP, (uint64_t)own.stack + sizeof own.stack);
    vmwrite(GUEST_RFLAGS, 2 | (below(8) ? 0 : 0x10000) | (below(8) ? 0 : 0x100));
    vmwrite(GUEST_INTERRUPTIBILITY, 0);
    vmwrite(GUEST_ACTIVITY, 0);
    vmwrite(PENDING_DEBUG, 0);
    if (!below(4)) {
        /* The event is mostly a possible exception, else anything. */
        uint64_t vector = below(20), coded = vector == 8 || (vector >= 10 && vector <= 14) || vector == 17;
        uint64_t event = below(4) ? EVENT_VALID | 3 << 8 | vector | (coded ? EVENT_HAS_ERROR : 0) : EVENT_VALID | (number() & 0xfff);
        vmwrite(INJECTED, event);
        vmwrite(INJECTED_ERROR, below(2) ? 0 : number() & 0xffff);
        vmwrite(INJECTED_LENGTH, below(3));
    }
    return 1;
}

static void round_of(uint64_t which, int ept) {
    seen = which;
    make_guest();
    /* An earlier guest's leftovers may or may not be used. */
    struct descriptor none = {0, 0};
    TRY("invvpid %2, %3", "m"(none), "r"(2ul));
    if (ept_top)
        TRY("invept %2, %3", "m"(none), "r"(2ul));
    uint64_t vmcs = region;
    *(uint32_t *)vmcs = (uint32_t)revision;
    if (TRY("vmclear %2", "m"(vmcs)) || TRY("vmptrld %2", "m"(vmcs)))
        fail("VMCLEAR or VMPTRLD failed", vmcs);
    /* Fields that an earlier round has written remain; all relevant ones are written. */
    for (unsigned i = 0; i < sizeof changed / sizeof *changed; i++)
        vmwrite_ends(changed[i], 0);
    write_controls(ept);
    write_state();
    for (uint64_t i = below(3); i; i--)
        try_instruction();
    if (below(2))
        for (uint64_t i = 1 + below(3); i; i--)
            note(vmwrite_ends(changed[below(sizeof changed / sizeof *changed)], interesting()));
    unsigned exits = 0;
    uint32_t last = 0;
    for (int resume = 0; exits < SLOTS; resume = 1, exits++) {
        int failed = enter(resume);
        if (failed) {
            note((uint64_t)failed);
            note(vmread(INSTRUCTION_ERROR));
            last = (uint32_t)(failed << 8 | vmread(INSTRUCTION_ERROR)) | 1 << 30;
            break;
        }
        last = (uint32_t)vmread(EXIT_REASON);
        if (!after_exit(last))
            break;
        if (!below(6))
            try_instruction();
    }
    for (size_t i = 0; i < sizeof own.data / 8; i++)
        note(((uint64_t *)own.data)[i]);
    print("round %lu: %u exits, last %x: %016lx\n", which, exits, last, seen);
}

void program(void) {
    uint32_t a, b, c, d;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    if (!(c & CPUID_1_VMX))
        fail("this processor has no VMX", c);
    /* Interrupts are disabled, since their time would differ between machines. */
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
    on_exception(6, step_over);
    on_exception(13, step_over);
    on_exception(14, step_over);
    revision = rdmsr(VMX_BASIC) & 0x7fffffff;
    if (!(rdmsr(VMX_BASIC) & TRUE_CONTROLS))
        fail("this processor has no VMX with TRUE controls", rdmsr(VMX_BASIC));
    permit_vmx();
    uint64_t on = (uint64_t)page_alloc();
    *(uint32_t *)on = (uint32_t)revision;
    if (TRY("vmxon %2", "m"(on)))
        fail("VMXON failed", on);
    region = (uint64_t)page_alloc();
    for (unsigned i = 0; i < 4; i++)
        bitmaps[i] = page_alloc();
    int ept = argument("ept", 1) && (rdmsr(VMX_PRIMARY_TRUE) >> 63 & 1) && (rdmsr(VMX_SECONDARY) >> 33 & 1);
    if (ept)
        make_ept();
    uint64_t seed = argument("seed", 1), rounds = argument("rounds", 100), first = argument("first", 0);
    verbose = (int)argument("verbose", 0);
    for (uint64_t i = first; i < first + rounds; i++) {
        state = (seed * 1000003 + i + 1) * 0x9e3779b97f4a7c15 | 1;
        number();
        round_of(i, ept && below(4));
    }
    print("%s: %lu rounds\n", program_name, rounds);
}
