/* kvmsmoke [COUNT [LEAF[,LEAF]]]: the smallest user of /dev/kvm. It makes one machine with one processor for each of
   two modes: real mode, and long mode with paging. Its program executes COUNT CPUIDs (exits that KVM answers in the
   kernel), then one OUT (an exit that reaches this program) with the last byte of a sum, then HLT. It prints the
   time-stamp cycles per CPUID exit, and fails if any result is wrong. The CPUIDs are of leaf 0, or, in long mode alone,
   of a leaf without sub-leaves, or of two in turn. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <x86intrin.h>

enum { MEMORY = 0x100000, CODE = 0x8000, TABLES = 0x10000, PORT = 0x77, MAX_CPUID = 256 };

/* The same bytes are the program in both modes: registers have 16 bits in real mode and 32 in long mode, and the
   result does not depend on that. */
static const uint8_t program[] = {
    0x31, 0xf6,       /* xor si, si: the sum */
    0x31, 0xc0,       /* again: xor ax, ax: leaf 0 */
    0x0f, 0xa2,       /* cpuid */
    0xff, 0xc6,       /* inc si */
    0xff, 0xcd,       /* dec bp: COUNT is there */
    0x75, 0xf6,       /* jnz again */
    0x89, 0xf0,       /* mov ax, si */
    0xe6, PORT,       /* out PORT, al */
    0xf4,             /* hlt */
};
/* The same with given leaves, in long mode. */
static const uint8_t program_of_leaves[] = {
    0x31, 0xf6, /* xor esi, esi */
    0x89, 0xf8, /* again: mov eax, edi: the leaf */
    0x0f, 0xa2, /* cpuid */
    0x87, 0xe7, /* xchg edi, esp: the next leaf; there is no stack */
    0xff, 0xc6, /* inc esi */
    0xff, 0xcd, /* dec ebp */
    0x75, 0xf4, /* jnz again */
    0x89, 0xf0, /* mov eax, esi */
    0xe6, PORT, /* out PORT, al */
    0xf4,       /* hlt */
};

/* Leaves of CPUID, in turn. */
struct leaves {
    uint32_t first, second;
};

_Noreturn static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("tollgate: kvmsmoke: ", stdout);
    vprintf(format, list);
    putchar('\n');
    exit(1);
}

static int call(int file, unsigned long request, const char *name, void *argument) {
    int result = ioctl(file, request, argument);
    if (result < 0)
        fail("%s: %s", name, strerror(errno));
    return result;
}
#define CALL(file, request, argument) call(file, request, #request, (void *)(uintptr_t)(argument))

/* Enters long mode at once: KVM accepts all system registers together. One 2 MB page maps the memory. */
static void enter_long_mode(struct kvm_sregs *sregs, uint8_t *memory) {
    uint64_t *pml4 = (uint64_t *)(memory + TABLES), *pdpt = pml4 + 512, *directory = pml4 + 1024;
    pml4[0] = (TABLES + 0x1000) | 3;
    pdpt[0] = (TABLES + 0x2000) | 3;
    directory[0] = 0x83;
    sregs->cr3 = TABLES;
    sregs->cr4 = 0x20;
    sregs->cr0 = 0x80000011;
    sregs->efer = 0x500;
    struct kvm_segment code = {.limit = 0xffffffff, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = {.limit = 0xffffffff, .selector = 16, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1};
    sregs->cs = code;
    sregs->ds = sregs->es = sregs->fs = sregs->gs = sregs->ss = data;
}

static void run(int kvm, int long_mode, unsigned count, const struct leaves *leaves) {
    const char *mode = long_mode ? "long mode" : "real mode";
    int vm = CALL(kvm, KVM_CREATE_VM, 0);
    uint8_t *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("memory: %s", strerror(errno));
    const uint8_t *code = leaves ? program_of_leaves : program;
    size_t length = leaves ? sizeof program_of_leaves : sizeof program;
    memcpy(memory + CODE, code, length);
    struct kvm_userspace_memory_region region = {.memory_size = MEMORY, .userspace_addr = (uintptr_t)memory};
    /* Without unrestricted guests KVM keeps three pages of its own there, outside of the machine's memory. */
    CALL(vm, KVM_SET_TSS_ADDR, 0xfffbd000);
    CALL(vm, KVM_SET_USER_MEMORY_REGION, &region);
    int vcpu = CALL(vm, KVM_CREATE_VCPU, 0);

    static struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entries[MAX_CPUID];
    } cpuid;
    cpuid.head.nent = MAX_CPUID;
    CALL(kvm, KVM_GET_SUPPORTED_CPUID, &cpuid);
    CALL(vcpu, KVM_SET_CPUID2, &cpuid);

    struct kvm_sregs sregs;
    CALL(vcpu, KVM_GET_SREGS, &sregs);
    sregs.cs.base = sregs.cs.selector = 0;
    if (long_mode)
        enter_long_mode(&sregs, memory);
    CALL(vcpu, KVM_SET_SREGS, &sregs);
    struct kvm_regs regs = {.rip = CODE, .rsp = CODE, .rbp = count, .rflags = 2};
    if (leaves) {
        regs.rdi = leaves->first;
        regs.rsp = leaves->second;
    }
    CALL(vcpu, KVM_SET_REGS, &regs);
    int size = CALL(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    struct kvm_run *state = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    if (state == MAP_FAILED)
        fail("the processor's shared page: %s", strerror(errno));

    uint64_t start = __rdtsc();
    CALL(vcpu, KVM_RUN, 0);
    uint64_t cycles = __rdtsc() - start;
    if (state->exit_reason != KVM_EXIT_IO || state->io.direction != KVM_EXIT_IO_OUT || state->io.port != PORT)
        fail("%s: exit reason %u in place of OUT (hardware reason %#llx)", mode, state->exit_reason,
             state->exit_reason == KVM_EXIT_FAIL_ENTRY ? (unsigned long long)state->fail_entry.hardware_entry_failure_reason : 0ull);
    uint8_t sum = *((uint8_t *)state + state->io.data_offset);
    if (sum != (count & 0xff))
        fail("%s: the program counted to %u modulo 256, not to %u", mode, sum, count & 0xff);
    CALL(vcpu, KVM_RUN, 0);
    if (state->exit_reason != KVM_EXIT_HLT)
        fail("%s: exit reason %u in place of HLT", mode, state->exit_reason);
    CALL(vcpu, KVM_GET_REGS, &regs);
    if (regs.rip != CODE + length)
        fail("%s: RIP is %#llx after HLT, not %#zx", mode, (unsigned long long)regs.rip, CODE + length);
    printf("tollgate: kvmsmoke: %s: %u CPUID exits, %llu cycles each\n", mode, count, (unsigned long long)(cycles / count));
    printf("result cpuid-%s %llu cycles\n", long_mode ? "long" : "real", (unsigned long long)(cycles / count));
}

int main(int argc, char **argv) {
    unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 0) : 1000;
    if (count < 1 || count > 65535)
        fail("the count of CPUIDs must be 1 to 65535");
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        fail("/dev/kvm: %s", strerror(errno));
    int version = CALL(kvm, KVM_GET_API_VERSION, 0);
    if (version != KVM_API_VERSION)
        fail("KVM's interface has version %d, not %d", version, KVM_API_VERSION);
    struct leaves leaves;
    if (argc > 2) {
        char *end;
        leaves.first = leaves.second = (uint32_t)strtoul(argv[2], &end, 0);
        if (*end == ',')
            leaves.second = (uint32_t)strtoul(end + 1, &end, 0);
        if (*end)
            fail("'%s' is no leaf, and no two leaves with a comma between them", argv[2]);
    } else {
        run(kvm, 0, (unsigned)count, NULL);
    }
    run(kvm, 1, (unsigned)count, argc > 2 ? &leaves : NULL);
    return 0;
}
