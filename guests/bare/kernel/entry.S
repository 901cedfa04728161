/* The entries into the kernel and the exits from it: exceptions, interrupts, system calls; and the switch between
   stacks. */
#include "arch.h"

#ifdef __x86_64__
#define WORD .quad
.macro save_registers
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
.endm
.macro restore_registers
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    popq %rax
.endm
#define FRAME_AX 112
#define FRAME_IP 136
#define FRAME_CS 144
#define FRAME_FLAGS 152
#define FRAME_SP 160
#else
.macro save_registers
    cld
    pushl %gs
    pushl %es
    pushl %ds
    pushl %eax
    pushl %ebp
    pushl %edi
    pushl %esi
    pushl %edx
    pushl %ecx
    pushl %ebx
    movl $USER_DATA, %edx
    movl %edx, %ds
    movl %edx, %es
    movl $KERNEL_PER_CPU, %edx
    movl %edx, %gs
.endm
.macro restore_registers
    popl %ebx
    popl %ecx
    popl %edx
    popl %esi
    popl %edi
    popl %ebp
    popl %eax
    popl %ds
    popl %es
    popl %gs
.endm
#define FRAME_AX 24
#define FRAME_GS 36
#define FRAME_IP 48
#define FRAME_CS 52
#define FRAME_FLAGS 56
#define FRAME_SP 60
#endif

    .text
/* The stubs are 16 bytes apart, so that C can compute their addresses. Vectors without an error code push a zero in
   its place. */
    .align 16
    .globl exception_stubs
FUNCTION(exception_stubs)
    .set vector, 0
    .rept 32
    .align 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    push $0
    .endif
    push $vector
    jmp exception_common
    .set vector, vector + 1
    .endr
END(exception_stubs)

    .globl interrupt_stubs
FUNCTION(interrupt_stubs)
    .set vector, IRQ_VECTOR
    .rept 16
    .align 16
    push $0
    push $vector
    jmp interrupt_common
    .set vector, vector + 1
    .endr
END(interrupt_stubs)

FUNCTION(exception_common)
    save_registers
#ifdef __x86_64__
    movq %rsp, %rdi
    call exception
    jmp return_from_interrupt
#else
    pushl %esp
    call exception
    addl $4, %esp
    jmp return_from_interrupt
#endif
END(exception_common)

FUNCTION(interrupt_common)
    save_registers
#ifdef __x86_64__
    movq %rsp, %rdi
    call interrupt
#else
    pushl %esp
    call interrupt
    addl $4, %esp
#endif
END(interrupt_common)

/* Returns to user mode through work_pending if there is work, and to the kernel at once. */
FUNCTION(return_from_interrupt)
    cli
#ifdef __x86_64__
    testb $3, FRAME_CS(%rsp)
    jz restore_all
    call user_work
#else
    testb $3, FRAME_CS(%esp)
    jz restore_all
    call user_work
#endif
END(return_from_interrupt)

FUNCTION(restore_all)
    restore_registers
#ifdef __x86_64__
    addq $16, %rsp
    iretq
#else
    addl $8, %esp
    iretl
#endif
END(restore_all)

/* Interrupts are off. The frame begins above the return address. C is called only if there is work. */
FUNCTION(user_work)
#ifdef __x86_64__
    cmpl $0, work_pending
    jne 1f
    ret
1:  leaq 8(%rsp), %rdi
    subq $8, %rsp
    call return_to_user
    addq $8, %rsp
    ret
#else
    cmpl $0, work_pending
    jne 1f
    ret
1:  leal 4(%esp), %eax
    pushl %eax
    call return_to_user
    addl $4, %esp
    ret
#endif
END(user_work)

/* A new task starts here, on a stack with its parent's frame. */
    .globl return_from_fork
FUNCTION(return_from_fork)
#ifdef __x86_64__
    movq %rax, %rdi
    call sched_finish
#else
    pushl %eax
    call sched_finish
    addl $4, %esp
#endif
    jmp return_from_interrupt
END(return_from_fork)

#ifdef __x86_64__
/* Entry of SYSCALL: RIP is in RCX, RFLAGS in R11, and FMASK disables interrupts and TF. With one processor, the
   user's stack pointer is kept in memory. */
    .globl system_call_entry
FUNCTION(system_call_entry)
    movq %rsp, user_stack_pointer
    movq kernel_stack_top, %rsp
    pushq $USER_DATA
    pushq user_stack_pointer
    pushq %r11
    pushq $USER_CODE
    pushq %rcx
    pushq $0
    pushq $-1
    save_registers
    sti
    movq %rsp, %rdi
    call system_call
    cli
    cmpl $0, work_pending
    jne 1f
    testq $FLAG_TF, FRAME_FLAGS(%rsp)
    jnz 1f
    restore_registers
    movq 16(%rsp), %rcx
    movq 32(%rsp), %r11
    movq 40(%rsp), %rsp
    sysretq
1:  call user_work
    jmp restore_all                     /* signals may have changed any register */
END(system_call_entry)

    .bss
    .globl kernel_stack_top
user_stack_pointer: .skip 8
kernel_stack_top:   .skip 8
    .text
#else
/* Entry of SYSENTER: ESP points to the word with the kernel's stack pointer. The caller's stack pointer is in EBP,
   with the program's EBP, EDX and ECX on it, and the program continues at sysenter_return. */
    .globl system_call_entry
FUNCTION(system_call_entry)
    movl (%esp), %esp
    sti
    pushl $USER_DATA
    pushl %ebp
    pushfl
    orl $FLAG_IF, (%esp)
    pushl $USER_CODE
    pushl $sysenter_return
    pushl $0
    pushl $-1
    movl (%ebp), %ebp                   /* the program's; a bad pointer faults here and ends the run */
    save_registers
    pushl %esp
    call system_call
    addl $4, %esp
    cli
    cmpl $0, work_pending
    jne 1f
    testl $FLAG_TF, FRAME_FLAGS(%esp)
    jnz 1f
    movl FRAME_IP(%esp), %edx
    movl FRAME_SP(%esp), %ecx
    movl FRAME_AX(%esp), %eax
    movl (%esp), %ebx
    movl 12(%esp), %esi
    movl 16(%esp), %edi
    movl 20(%esp), %ebp
    movw FRAME_GS(%esp), %gs
    sti
    sysexit
1:  call user_work
    jmp restore_all
END(system_call_entry)
#endif

/* struct task *switch_to(from, to): saves the registers that C expects to be preserved, continues on the other
   stack, and returns `from` there. */
    .globl switch_to
FUNCTION(switch_to)
#ifdef __x86_64__
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    movq %rdi, %rbx
    call switch_state
    movq %rbx, %rax
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret
#else
    movl 4(%esp), %ecx
    movl 8(%esp), %edx
    pushl %ebx
    pushl %ebp
    pushl %esi
    pushl %edi
    movl %esp, (%ecx)
    movl (%edx), %esp
    movl %ecx, %ebx
    pushl %edx
    pushl %ecx
    call switch_state
    addl $8, %esp
    movl %ebx, %eax
    popl %edi
    popl %esi
    popl %ebp
    popl %ebx
    ret
#endif
END(switch_to)
    .section .note.GNU-stack, "", @progbits
