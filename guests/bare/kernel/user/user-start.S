/* The parts of a C library: the first instructions, system calls, the return address of signal handlers, and
   thread-local storage, which system calls read: on x86-64 to check for other threads, on i386 for the entry into
   the kernel, which has a page of its own. */
#include "../arch.h"
#include "../syscalls.h"

#define TLS_ENTER 0x10      /* offset at which the i386 C library keeps the address of the entry into the kernel */
#define TLS_THREADS 0x18    /* nonzero with more than one thread */

    .text
    .globl user_start, system_call_4, user_signal_return
#ifdef __x86_64__
FUNCTION(user_start)
    call user_main
    ud2
END(user_start)
FUNCTION(system_call_4)
    cmpl $0, %fs:TLS_THREADS
    jne 1f
    movl %edi, %eax
    movq %rsi, %rdi
    movq %rdx, %rsi
    movq %rcx, %rdx
    movq %r8, %r10
    syscall
    ret
1:  ud2
END(system_call_4)
FUNCTION(user_signal_return)
    movl $SYS_SIGRETURN, %eax
    syscall
    ud2
END(user_signal_return)
#else
FUNCTION(user_start)
    movl $enter, %gs:TLS_ENTER
    call user_main
    ud2
END(user_start)
FUNCTION(system_call_4)
    pushl %ebx
    pushl %esi
    movl 12(%esp), %eax
    movl 16(%esp), %ebx
    movl 20(%esp), %ecx
    movl 24(%esp), %edx
    movl 28(%esp), %esi
    call *%gs:TLS_ENTER
    popl %esi
    popl %ebx
    ret
END(system_call_4)

    .section .vsyscall, "ax"
/* The kernel returns to sysenter_return, which takes the registers back from the stack. */
FUNCTION(enter)
    pushl %ecx
    pushl %edx
    pushl %ebp
    movl %esp, %ebp
    sysenter
END(enter)
    .globl sysenter_return
FUNCTION(sysenter_return)
    popl %ebp
    popl %edx
    popl %ecx
    ret
END(sysenter_return)
FUNCTION(user_signal_return)
    movl $SYS_SIGRETURN, %eax
    call enter
    ud2
END(user_signal_return)
#endif
    .section .note.GNU-stack, "", @progbits
