/* User mode's way into the kernel, and where a signal handler returns to. */
#include "../arch.h"
#include "../syscalls.h"

    .text
    .globl system_call_4, user_signal_return
#ifdef __x86_64__
FUNCTION(system_call_4)
    movl %edi, %eax
    movq %rsi, %rdi
    movq %rdx, %rsi
    movq %rcx, %rdx
    movq %r8, %r10
    syscall
    ret
END(system_call_4)
FUNCTION(user_signal_return)
    movl $SYS_SIGRETURN, %eax
    syscall
    ud2
END(user_signal_return)
#else
/* The kernel leaves at sysenter_return, with what it finds on the stack to be taken back. */
FUNCTION(system_call_4)
    pushl %ebx
    pushl %esi
    movl 12(%esp), %eax
    movl 16(%esp), %ebx
    movl 20(%esp), %ecx
    movl 24(%esp), %edx
    movl 28(%esp), %esi
    call enter
    popl %esi
    popl %ebx
    ret
END(system_call_4)
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
