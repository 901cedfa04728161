/* Shadow stacks under Linux: this program enables them itself, as the C library would do. */
#include "xstate.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARCH_SHSTK_ENABLE 0x5001
#define ARCH_SHSTK_DISABLE 0x5002
#define ARCH_SHSTK_STATUS 0x5005
#define SHSTK 1
#define WRSS 2
#define SEGV_CPERR 10
#define SYS_MAP_SHADOW_STACK 453
#define SHADOW_STACK_SET_TOKEN 1

/* Makes a system call inline, since enabling shadow stacks begins with an empty one, from which no function can
   return. */
#define ARCH_PRCTL(result, code, argument)                                                                            \
    __asm__ volatile("syscall" : "=a"(result) : "0"(SYS_arch_prctl), "D"(code), "S"(argument) : "rcx", "r11", "memory")

static volatile int signals;

static inline unsigned long shadow_pointer(void) {
    unsigned long ssp = 0;
    __asm__ volatile("rdsspq %0" : "+r"(ssp));
    return ssp;
}

static __attribute__((noinline)) int depth(int n) {
    int below = n ? depth(n - 1) + 1 : 0;
    /* This keeps the compiler from making a loop of it. */
    __asm__ volatile("" : "+r"(below));
    return below;
}

static void count(int signal) {
    (void)signal;
    signals += depth(10) == 10;
}

static void violated(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    _exit(info->si_code == SEGV_CPERR ? 42 : 43);
}

/* Returns to another address than the call's. */
static __attribute__((noinline, naked)) void astray(void) {
    __asm__ volatile("leaq 1f(%rip), %rax\n\tmovq %rax, (%rsp)\n\tret\n1:\tmovl $44, %edi\n\tmovl $60, %eax\n\tsyscall");
}

/* Ends a child that has shadow stacks on, with its result. */
static void __attribute__((noreturn)) end(int status) {
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

static void __attribute__((noreturn)) in_child(int what) {
    long result;
    ARCH_PRCTL(result, ARCH_SHSTK_ENABLE, SHSTK);
    if (result) end(100);
    unsigned long before = shadow_pointer();
    if (!before) end(101);
    if (what == 0) {
        if (depth(50) != 50 || shadow_pointer() != before) end(1);
        signal(SIGUSR1, count);
        for (int n = 0; n < 20; n++) kill(getpid(), SIGUSR1);
        if (signals != 20 || shadow_pointer() != before) end(2);
        pid_t pid = fork();
        if (!pid) end(depth(20) == 20 ? 0 : 3);
        int status = 1;
        waitpid(pid, &status, 0);
        if (status) end(4);
        for (int n = 0; n < 50; n++) usleep(1);
        end(shadow_pointer() == before ? 0 : 5);
    }
    if (what == 1) {
        struct sigaction action = {.sa_sigaction = violated, .sa_flags = SA_SIGINFO};
        sigaction(SIGSEGV, &action, NULL);
        astray();
        end(6);
    }
    if (what == 2) {
        /* Ordinary writes do not reach a shadow stack. */
        signal(SIGSEGV, _exit);
        *(volatile unsigned long *)before = 1;
        end(7);
    }
    if (what == 3) {
        ARCH_PRCTL(result, ARCH_SHSTK_ENABLE, WRSS);
        if (result) end(8);
        unsigned long value = 0x1234, found;
        __asm__ volatile("wrssq %1, (%0)" : : "r"(before - 64), "r"(value) : "memory");
        found = *(volatile unsigned long *)(before - 64);
        end(found == value ? 0 : 9);
    }
    if (what == 4) {
        /* This switches to another shadow stack and back. */
        unsigned long size = 4096, there = syscall(SYS_MAP_SHADOW_STACK, 0, size, SHADOW_STACK_SET_TOKEN);
        if ((long)there < 0) end(10);
        __asm__ volatile("rstorssp (%0)\n\tsaveprevssp" : : "r"(there + size - 8) : "memory", "cc");
        if (shadow_pointer() != there + size || depth(30) != 30) end(11);
        __asm__ volatile("rstorssp (%0)\n\tsaveprevssp" : : "r"(before - 8) : "memory", "cc");
        end(shadow_pointer() == before ? 0 : 12);
    }
    end(13);
}

static int run(int what) {
    int status = -1;
    pid_t pid = fork();
    if (!pid) in_child(what);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

void shadow_stacks(void) {
    unsigned long features = 0;
    if (syscall(SYS_arch_prctl, ARCH_SHSTK_STATUS, &features)) {
        skip("shadow stacks", "the kernel offers none");
        return;
    }
    int status = run(0);
    if (status == 100) {
        skip("shadow stacks", "the processor has none");
        return;
    }
    check("calls, signals, fork and context switches with a shadow stack", status == 0);
    check("a return elsewhere is SIGSEGV with SEGV_CPERR", run(1) == 42);
    check("ordinary writes to a shadow stack are SIGSEGV", run(2) == SIGSEGV);
    check("WRSS writes to it where it is allowed", run(3) == 0);
    check("RSTORSSP and SAVEPREVSSP switch stacks", run(4) == 0);
}
