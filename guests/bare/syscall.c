/* A ring 3 loop of SYSCALL; the ring 0 entry counts, adds to the argument and returns by SYSRET. */
#include "runtime.h"

const char program_name[] = "syscall";

enum { MSR_STAR = 0xc0000081, MSR_LSTAR, MSR_CSTAR, MSR_FMASK, RFLAGS_IF_DF_TF = 0x700 };

extern char user_begin[], user_end[], user_loop[];
void syscall_entry(void);
uint64_t enter_user(uint64_t entry, uint64_t stack, uint64_t iterations);

/* The user half lives in its own pages and names no address, so it can run at any address. Call 0 returns the
   argument plus one; call 1 leaves. */
__asm__(".section .user, \"ax\"\n"
        ".globl user_loop\n"
        "user_loop:\n"
        "    mov %rdi, %rbx\n"
        "    xor %edi, %edi\n"
        "1:  xor %eax, %eax\n"
        "    syscall\n"
        "    mov %rax, %rdi\n"
        "    dec %rbx\n"
        "    jnz 1b\n"
        "    mov $1, %eax\n"
        "    syscall\n"
        ".text\n");

/* enter_user keeps the kernel's stack pointer for call 1, which returns the user's argument from it. */
__asm__(".globl syscall_entry\n"
        "syscall_entry:\n"
        "    mov %rsp, user_stack\n"
        "    mov kernel_stack, %rsp\n"
        "    incq syscalls\n"
        "    test %eax, %eax\n"
        "    jnz 1f\n"
        "    lea 1(%rdi), %rax\n"
        "    mov user_stack, %rsp\n"
        "    sysretq\n"
        "1:  mov %rdi, %rax\n"
        "    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "    ret\n"
        ".globl enter_user\n"
        "enter_user:\n"
        "    push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "    mov %rsp, kernel_stack\n"
        "    mov %rdi, %rcx\n"
        "    mov %rsi, %rsp\n"
        "    mov %rdx, %rdi\n"
        "    mov $2, %r11d\n"
        "    sysretq\n");

uint64_t user_stack, kernel_stack, syscalls;

void program(void) {
    uint64_t iterations = argument("iterations", 200000);
    if (!iterations)
        iterations = 1;
    uint64_t code = PRIVATE_BASE, stack = PRIVATE_BASE + (1 << 20);
    for (char *page = user_begin; page < user_end; page += PAGE_SIZE)
        page_map(boot_pml4, code + (uint64_t)(page - user_begin), (uint64_t)page, PAGE_PRESENT | PAGE_USER);
    page_map(boot_pml4, stack, (uint64_t)page_alloc(), PAGE_PRESENT | PAGE_WRITE | PAGE_USER);

    wrmsr(MSR_STAR, (uint64_t)(KERNEL_DATA | 3) << 48 | (uint64_t)KERNEL_CODE << 32);
    wrmsr(MSR_LSTAR, (uint64_t)syscall_entry);
    wrmsr(MSR_FMASK, RFLAGS_IF_DF_TF);
    set_kernel_stack((char *)page_alloc() + PAGE_SIZE);

    uint64_t begun = measure_begin(program_name);
    uint64_t result = enter_user(code + (uint64_t)(user_loop - user_begin), stack + PAGE_SIZE, iterations);
    measure_end(program_name, begun, iterations);
    if (result != iterations || syscalls != iterations + 1) {
        print("%s: returned %lu after %lu calls\n", program_name, result, syscalls);
        leave(EXIT_FAIL);
    }
}
