/* workload=stress: random changes of page tables and random accesses, by the kernel and by user mode. A walk in
   software computes the result of each access beforehand: its value, or the fault with its error code, and the flags
   that it leaves in the entries. The test avoids cases that the architecture leaves open: every change that removes
   a right or an entry is followed by the flush it needs. Its own page tables hold an arena besides the kernel's
   part. */
#include "kernel.h"

#ifdef __x86_64__
enum { LEVELS = 4, INDEX_BITS = 9 };
#elif defined(PAE)
enum { LEVELS = 3, INDEX_BITS = 9 };
#else
enum { LEVELS = 2, INDEX_BITS = 10 };
#endif
#if defined(__x86_64__) || defined(PAE)
#define NO_EXECUTE (1ull << 63)
#define LARGE_RESERVED (1ull << 13)
#else
#define NO_EXECUTE 0
#define LARGE_RESERVED (1u << 21)
#endif
enum { SPACES = 3, TABLES = 4, TABLE_PAGES = 16, FRAMES = 8, OPERATIONS = 100 };
#define ARENA 0x40000000ul
#define LARGE_SIZE (1ul << (PAGE_SHIFT + INDEX_BITS))
#define STUB 0x20000000ul /* user code of the test, in every space */
#define CR4_PCIDE 0x20000
#define CR4_SMEP 0x100000
#define CR4_SMAP 0x200000
#define EFER_NXE 0x800
#define ADDRESS(entry) ((phys_t)((entry) & 0xfffff000))

enum access { READ, WRITE, FETCH };
enum { ERROR_PRESENT = 1, ERROR_WRITE = 2, ERROR_USER = 4, ERROR_RESERVED = 8, ERROR_FETCH = 16 };
enum { RETURN_OFFSET = 0x800, UNDEFINED_OFFSET = 0x810 };

struct expectation {
    int fault;
    unsigned error;
    phys_t physical;
    entry_t *path[LEVELS];
    int depth;
};

static entry_t *tops[SPACES];
static phys_t middles[SPACES]; /* the table whose entries point to leaf tables or large pages */
static phys_t tables[TABLES], frames[FRAMES], large;
static unsigned current_space;
static int write_protect = 1, no_execute, smep, smap, can_smep, can_smap, reserved;
static uint64_t random_state;
static uint32_t digest;

int stress_active;
unsigned long stress_resume, stress_error, stress_address, stress_vector, stress_stack;
static char exception_stack[PAGE_SIZE] ALIGNED(16);

static uint32_t random(uint32_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    uint32_t value = (uint32_t)(random_state >> 32);
    return (uint32_t)((uint64_t)value * below >> 32);
}

/* long stress_kernel(access, address, value), long stress_user(access, address, value): return -1 if the access
   faulted. */
long stress_kernel(long access, unsigned long address, long value);
long stress_user(long access, unsigned long address, long value);
extern char stress_resumed[], stress_left_user[], stress_stub[], stress_stub_end[];
#ifdef __x86_64__
__asm__(".text\n"
        ".type stress_kernel, @function\n"
        "stress_kernel:\n"
        "    mov %rsp, stress_stack\n"
        "    cmp $1, %edi\n"
        "    je 1f\n"
        "    ja 2f\n"
        "    mov (%rsi), %eax\n"
        "    ret\n"
        "1:  mov %edx, (%rsi)\n"
        "    xor %eax, %eax\n"
        "    ret\n"
        "2:  call *%rsi\n"
        "    xor %eax, %eax\n"
        "    ret\n"
        "stress_resumed:\n"
        "    mov stress_stack, %rsp\n"
        "    mov $-1, %rax\n"
        "    ret\n"
        ".type stress_user, @function\n"
        "stress_user:\n"
        "    push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "    mov %rsp, stress_stack\n"
        "    push $0x23\n"
        "    push $0\n"
        "    push $2\n"
        "    push $0x2b\n"
        "    push $0x20000000\n"
        "    iretq\n"
        "stress_left_user:\n"
        "    mov stress_stack, %rsp\n"
        "    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "    ret\n"
        "stress_stub:\n"
        "    cmp $1, %edi\n"
        "    je 1f\n"
        "    ja 2f\n"
        "    mov (%rsi), %eax\n"
        "    ud2\n"
        "1:  mov %edx, (%rsi)\n"
        "    ud2\n"
        "2:  jmp *%rsi\n"
        "stress_stub_end:\n");
#else
__asm__(".text\n"
        ".type stress_kernel, @function\n"
        "stress_kernel:\n"
        "    mov %esp, stress_stack\n"
        "    mov 4(%esp), %eax\n"
        "    mov 8(%esp), %ecx\n"
        "    mov 12(%esp), %edx\n"
        "    cmp $1, %eax\n"
        "    je 1f\n"
        "    ja 2f\n"
        "    mov (%ecx), %eax\n"
        "    ret\n"
        "1:  mov %edx, (%ecx)\n"
        "    xor %eax, %eax\n"
        "    ret\n"
        "2:  call *%ecx\n"
        "    xor %eax, %eax\n"
        "    ret\n"
        "stress_resumed:\n"
        "    mov stress_stack, %esp\n"
        "    mov $-1, %eax\n"
        "    ret\n"
        ".type stress_user, @function\n"
        "stress_user:\n"
        "    mov 4(%esp), %eax\n"
        "    mov 8(%esp), %ecx\n"
        "    mov 12(%esp), %edx\n"
        "    push %ebx; push %ebp; push %esi; push %edi\n"
        "    mov %esp, stress_stack\n"
        "    push $0x23\n"
        "    push $0\n"
        "    push $2\n"
        "    push $0x1b\n"
        "    push $0x20000000\n"
        "    iret\n"
        "stress_left_user:\n"
        "    mov stress_stack, %esp\n"
        "    pop %edi; pop %esi; pop %ebp; pop %ebx\n"
        "    ret\n"
        "stress_stub:\n"
        "    cmp $1, %eax\n"
        "    je 1f\n"
        "    ja 2f\n"
        "    mov (%ecx), %eax\n"
        "    ud2\n"
        "1:  mov %edx, (%ecx)\n"
        "    ud2\n"
        "2:  jmp *%ecx\n"
        "stress_stub_end:\n");
#endif

static unsigned long user_result;

/* Handles every exception while the test runs. From user mode it can only return to the call of stress_user. */
void stress_exception(struct registers *registers) {
    stress_vector = registers->vector;
    stress_error = registers->error;
    stress_address = registers->vector == 14 ? read_cr2() : registers->ip;
    if (registers->cs & 3) {
        user_result = registers->ax;
        registers->cs = KERNEL_CODE;
        registers->ip = (unsigned long)stress_left_user;
    } else {
        registers->ip = (unsigned long)stress_resumed;
    }
#ifdef __x86_64__
    registers->ss = KERNEL_DATA;
    registers->sp = (unsigned long)exception_stack + sizeof exception_stack - 64;
#endif
    registers->ax = ~0ul;
    registers->flags = FLAG_FIXED;
}

/* Returns the entry of the lowest-level table of the arena's TABLE_PAGES pages, or of a large page. */
static entry_t *middle_entry(unsigned space, unsigned long address) {
    entry_t *middle = to_virtual(middles[space]);
    return &middle[address >> (PAGE_SHIFT + INDEX_BITS) & ((1 << INDEX_BITS) - 1)];
}

static struct expectation walk(unsigned space, unsigned long address, enum access access, int user) {
    struct expectation result = {.error = (access == WRITE ? ERROR_WRITE : 0) | (user ? ERROR_USER : 0)};
    if (access == FETCH && (no_execute || smep))
        result.error |= ERROR_FETCH;
    entry_t *table = tops[space];
    int writable = 1, accessible = 1, executable = 1, top_of_pae = LEVELS == 3;
    for (int level = LEVELS;; level--) {
        entry_t *entry = &table[address >> (PAGE_SHIFT + INDEX_BITS * (level - 1)) & ((1 << INDEX_BITS) - 1)];
        entry_t value = *entry;
        if (!(value & PAGE_PRESENT)) {
            result.fault = 1;
            return result;
        }
        int is_large = level == 2 && value & PAGE_LARGE;
        if ((is_large && value & LARGE_RESERVED) || (NO_EXECUTE && value & NO_EXECUTE && !no_execute)) {
            result.fault = 1;
            result.error |= ERROR_PRESENT | ERROR_RESERVED;
            return result;
        }
        if (!(top_of_pae && level == 3)) {
            writable &= (value & PAGE_WRITE) != 0;
            accessible &= (value & PAGE_USER) != 0;
            executable &= !(value & NO_EXECUTE);
            result.path[result.depth++] = entry;
        }
        if (level == 1 || is_large) {
            unsigned long mask = is_large ? LARGE_SIZE - 1 : PAGE_SIZE - 1;
            result.physical = (ADDRESS(value) & ~mask) | (address & mask);
            break;
        }
        table = to_virtual(ADDRESS(value));
    }
    int denied = user ? !accessible : accessible && (access == FETCH ? smep : smap);
    if (access == WRITE)
        denied |= !writable && (user || write_protect);
    if (access == FETCH)
        denied |= !executable;
    if (denied) {
        result.fault = 1;
        result.error |= ERROR_PRESENT;
    }
    return result;
}

/* With PCIDs each space has its own, and entries that were changed since its last flush may be cached for it. */
static int pcids, invalidates_pcids;
static uint8_t stale[SPACES];
enum { INVALIDATE_CONTEXT = 1, INVALIDATE_ALL_BUT_GLOBAL = 3 };

static unsigned long space_cr3(void) {
    return to_physical(tops[current_space]) | (pcids ? current_space + 1 : 0);
}

/* Flushes, also by a switch to another space. With the paravirtual interface the switch uses the CR3 cache, which
   must flush equally well. */
static void flush(void) {
    stale[current_space] = 0;
#ifdef __x86_64__
    if (invalidates_pcids && random(3) == 0) {
        uint64_t descriptor[2] = {current_space + 1, 0};
        uint64_t kind = random(2) ? INVALIDATE_CONTEXT : INVALIDATE_ALL_BUT_GLOBAL;
        __asm__ volatile("invpcid %0, %1" : : "m"(descriptor), "r"(kind) : "memory");
        if (kind == INVALIDATE_ALL_BUT_GLOBAL)
            memset(stale, 0, sizeof stale);
        return;
    }
#endif
    if (paravirt)
        paravirt_write_cr3(space_cr3());
    else
        write_cr3(space_cr3());
}

static void switch_space(void) {
    current_space = random(SPACES);
#ifdef __x86_64__
    if (pcids) {
        int keep = !stale[current_space] && random(2);
        stale[current_space] = 0;
        write_cr3(space_cr3() | (keep ? 1ul << 63 : 0));
        return;
    }
#endif
    flush();
}

/* Notes that tables have changed: the other spaces' cached translations may be old. */
static void changed(void) { memset(stale, 1, sizeof stale); }

static _Noreturn void mismatch(uint32_t step, const char *what, unsigned long address, unsigned long got, unsigned long wanted) {
    print("stress: step %u, space %u, address %lx: %s is %lx, not %lx\n", step, current_space, address, what, got, wanted);
    for (int level = LEVELS, shown = 0; shown < 1; shown++) {
        entry_t *table = tops[current_space];
        for (; level; level--) {
            entry_t entry = table[address >> (PAGE_SHIFT + INDEX_BITS * (level - 1)) & ((1 << INDEX_BITS) - 1)];
            print("stress: level %d: %llx\n", level, (unsigned long long)entry);
            if (!(entry & PAGE_PRESENT) || entry & PAGE_LARGE)
                break;
            table = to_virtual(ADDRESS(entry));
        }
    }
    print("stress: WP %d, NX %d, SMEP %d, SMAP %d\n", write_protect, no_execute, smep, smap);
    leave(EXIT_FAIL);
}

static void note(uint32_t value) { digest = (digest ^ value) * 0x01000193; }

static void access(uint32_t step) {
    enum access kind = (enum access)random(3);
    int user = (int)random(2);
    unsigned long region = random(3), address = ARENA + region * LARGE_SIZE + random(TABLE_PAGES) * PAGE_SIZE;
    if (kind == FETCH)
        address += user ? UNDEFINED_OFFSET : RETURN_OFFSET;
    else
        address += 4 * random(RETURN_OFFSET / 4);
    struct expectation expected = walk(current_space, address, kind, user);
    uint32_t before = expected.fault ? 0 : *(uint32_t *)to_virtual(expected.physical), value = random(~0u);
    stress_vector = ~0ul;
    unsigned long got = (unsigned long)(user ? stress_user : stress_kernel)(kind, address, (long)value);
    if (user)
        got = user_result;

    unsigned long vector = expected.fault ? 14 : user ? 6 : ~0ul;
    if (stress_vector != vector)
        mismatch(step, "the vector", address, stress_vector, vector);
    if (expected.fault) {
        if (stress_error != expected.error)
            mismatch(step, "the error code", address, stress_error, expected.error);
        if (stress_address != address)
            mismatch(step, "CR2", address, stress_address, address);
        note(expected.error);
        return;
    }
    uint32_t after = *(uint32_t *)to_virtual(expected.physical);
    if (kind == READ && (uint32_t)got != before)
        mismatch(step, "the value read", address, (uint32_t)got, before);
    if (kind == WRITE && after != value)
        mismatch(step, "the value written", address, after, value);
    for (int i = 0; i < expected.depth; i++)
        if (!(*expected.path[i] & PAGE_ACCESSED))
            mismatch(step, "an entry without the accessed flag", address, (unsigned long)*expected.path[i], PAGE_ACCESSED);
    entry_t leaf = *expected.path[expected.depth - 1];
    if (kind == WRITE && !(leaf & PAGE_DIRTY))
        mismatch(step, "the leaf without the dirty flag", address, (unsigned long)leaf, PAGE_DIRTY);
    note((uint32_t)leaf & (PAGE_SIZE - 1));
    note(after);
}

static entry_t random_flags(void) {
    entry_t flags = random(8) ? PAGE_PRESENT : 0;
    if (random(4))
        flags |= PAGE_WRITE;
    if (random(4))
        flags |= PAGE_USER;
    if (random(2))
        flags |= PAGE_ACCESSED;
    if (random(2))
        flags |= PAGE_DIRTY;
    if (no_execute && !random(4))
        flags |= NO_EXECUTE;
    return flags;
}

static void write_entry(entry_t *entry, entry_t value) {
#ifdef PAE
    volatile uint32_t *half = (volatile uint32_t *)entry;
    half[0] = 0;
    half[1] = (uint32_t)(value >> 32);
    half[0] = (uint32_t)value;
#else
    *(volatile entry_t *)entry = value;
#endif
}

/* Changes a leaf of a table; the addresses that it maps are flushed, unless the entry was absent and cannot be
   cached. */
static void change_leaf(void) {
    unsigned table = random(TABLES), index = random(TABLE_PAGES);
    entry_t *entry = (entry_t *)to_virtual(tables[table]) + index;
    int was_present = *entry & PAGE_PRESENT;
    write_entry(entry, frames[random(FRAMES)] | random_flags());
    if (!was_present)
        return;
    changed();
    if (random(2)) {
        flush();
        return;
    }
    stale[current_space] = 0;
    for (unsigned long region = 0; region < 3; region++)
        invlpg(ARENA + region * LARGE_SIZE + index * PAGE_SIZE);
}

/* Changes many leaves with one flush, as an unmap does. */
static void change_table(void) {
    entry_t *entries = to_virtual(tables[random(TABLES)]);
    for (unsigned i = 0; i < TABLE_PAGES; i++)
        if (random(2))
            write_entry(&entries[i], frames[random(FRAMES)] | random_flags());
    changed();
    flush();
}

static void change_middle(void) {
    unsigned space = random(SPACES);
    entry_t *entry = middle_entry(space, ARENA + random(3) * LARGE_SIZE), value = random_flags();
    if (random(3)) {
        value = (value & ~(entry_t)PAGE_DIRTY) | tables[random(TABLES)];
    } else {
        value |= large | PAGE_LARGE;
        if (!random(6) && reserved)
            value |= LARGE_RESERVED;
    }
    write_entry(entry, value);
    changed();
    flush();
}

static void change_modes(void) {
    switch (random(3)) {
    case 0:
        write_protect = !write_protect;
        write_cr0(read_cr0() ^ CR0_WP);
        break;
    case 1:
        smep = can_smep && random(2);
        smap = can_smap && random(2);
        write_cr4((read_cr4() & ~(unsigned long)(CR4_SMEP | CR4_SMAP)) | (smep ? CR4_SMEP : 0) | (smap ? CR4_SMAP : 0));
        break;
    default:
        write_cr4(read_cr4() ^ CR4_PGE);
        write_cr4(read_cr4() ^ CR4_PGE);
    }
}

static void prepare(void) {
    uint32_t words[4];
    cpuid(0, words);
    if (words[0] >= 7) {
        cpuid(7, words);
        can_smep = words[1] >> 7 & 1;
        can_smap = words[1] >> 20 & 1;
        invalidates_pcids = words[1] >> 10 & 1;
    }
    cpuid(1, words);
    pcids = LEVELS == 4 && !paravirt && words[2] >> 17 & 1 && argument("pcid", 1);
    invalidates_pcids &= pcids;
    if (pcids)
        write_cr4(read_cr4() | CR4_PCIDE);
    reserved = (int)argument("reserved", 1); /* 0 for emulators that give such faults the wrong code */
    cpuid(0x80000001, words);
    if (NO_EXECUTE && words[3] & 1 << 20 && argument("nx", 1)) {
        wrmsr(MSR_EFER, rdmsr(MSR_EFER) | EFER_NXE);
        no_execute = 1;
    }
    large = (memory_end() - 2 * LARGE_SIZE) & ~(LARGE_SIZE - 1);
    for (unsigned i = 0; i < FRAMES; i++)
        frames[i] = page_alloc();
    for (unsigned i = 0; i < FRAMES + TABLE_PAGES; i++) {
        uint8_t *bytes = to_virtual(i < FRAMES ? frames[i] : large + (i - FRAMES) * PAGE_SIZE);
        for (unsigned word = 0; word < PAGE_SIZE / 4; word++)
            ((uint32_t *)bytes)[word] = i << 16 | word;
        bytes[RETURN_OFFSET] = 0xc3;
        bytes[UNDEFINED_OFFSET] = 0x0f;
        bytes[UNDEFINED_OFFSET + 1] = 0x0b;
    }
    for (unsigned i = 0; i < TABLES; i++)
        tables[i] = page_alloc_zeroed();
    phys_t stub = page_alloc_zeroed();
    memcpy(to_virtual(stub), stress_stub, (size_t)(stress_stub_end - stress_stub));
    for (unsigned space = 0; space < SPACES; space++) {
        tops[space] = paging_test_top(ARENA, &middles[space]);
        paging_test_map(tops[space], STUB, stub | PAGE_PRESENT | PAGE_USER);
        for (unsigned long region = 0; region < 3; region++)
            *middle_entry(space, ARENA + region * LARGE_SIZE) = tables[random(TABLES)] | PAGE_PRESENT | PAGE_WRITE | PAGE_USER;
    }
}

_Noreturn void stress(void) {
    uint32_t steps = (uint32_t)argument("iterations", 2000);
    random_state = argument("seed", 1) * 0x9e3779b97f4a7c15 + 1;
    prepare();
    trap_set_stack((unsigned long)exception_stack + sizeof exception_stack);
    stress_active = 1;
    write_cr3(space_cr3());
    marker_begin("stress");
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t choice = random(OPERATIONS);
        if (choice < 60) {
            access(step);
        } else if (choice < 75) {
            change_leaf();
        } else if (choice < 80) {
            change_table();
        } else if (choice < 87) {
            change_middle();
        } else if (choice < 96) {
            switch_space();
        } else {
            change_modes();
        }
    }
    marker_end();
    print("result stress %x digest\nkernel: pass\n", digest);
    leave(EXIT_PASS);
}
