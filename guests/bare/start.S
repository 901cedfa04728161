/* Goes from the loader's 32-bit protected mode to 64-bit C, and holds the exception stubs. */

#define CR0_PE_MP_NE_WP 0x10023
#define CR0_PG 0x80000000
#define CR4_PAE 0x20
#define MSR_EFER 0xc0000080
#define EFER_SCE_LME 0x101
#define LARGE_PAGE_PRESENT_WRITE 0x83
#define PRESENT_WRITE_USER 7

#ifdef PVH
/* ELF note XEN_ELFNOTE_PHYS32_ENTRY: a PVH loader enters here, with EBX at the start info. */
    .section .note.pvh, "a", @note
    .align 4
    .long 4, 4, 18
    .asciz "Xen"
    .long start
#else
#define MULTIBOOT_MAGIC 0x1badb002
#define MULTIBOOT_FLAGS 0
    .section .multiboot, "a"
    .align 4
    .long MULTIBOOT_MAGIC, MULTIBOOT_FLAGS, -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)
#endif

    .text
    .code32
    .globl start
start:
    cli
    cld
    movl $boot_stack_top, %esp
    movl %eax, %esi                 /* the boot magic and the information block are kept for C */
    movl %ebx, %ebp

    /* These map the first 4 GiB to themselves with 2 MiB pages, for ring 0 only; upper levels leave the choice to
       the leaves. */
    movl $boot_pdpt + PRESENT_WRITE_USER, boot_pml4
    movl $boot_pd + PRESENT_WRITE_USER, %eax
    movl $boot_pdpt, %edi
    movl $4, %ecx
1:  movl %eax, (%edi)
    addl $4096, %eax
    addl $8, %edi
    loop 1b
    movl $LARGE_PAGE_PRESENT_WRITE, %eax
    movl $boot_pd, %edi
    movl $2048, %ecx
2:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 2b

    movl $CR4_PAE, %eax
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $MSR_EFER, %ecx
    movl $EFER_SCE_LME, %eax
    xorl %edx, %edx
    wrmsr
    movl $CR0_PG + CR0_PE_MP_NE_WP, %eax
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmp $KERNEL_CODE, $start64

    .code64
start64:
    movl $KERNEL_DATA, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movl $boot_stack_top, %esp
    movl %esi, %edi
    movl %ebp, %esi
    xorl %ebp, %ebp
    call runtime_start
    ud2

/* There is one stub per exception vector, 16 bytes apart, so that C can compute their addresses. Vectors without an
   error code push a zero in its place. */
    .align 16
    .globl exception_stubs
exception_stubs:
    .set vector, 0
    .rept 32
    .align 16
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    pushq $0
    .endif
    pushq $vector
    jmp exception_common
    .set vector, vector + 1
    .endr

exception_common:
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
    movq %rsp, %rdi
    call exception_entry
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
    addq $16, %rsp
    iretq

    .data
    .align 16
    .globl gdt
/* SYSCALL takes CS and SS from STAR[47:32] (0x08, 0x10); SYSRET from STAR[63:48] = 0x10: SS 0x18, CS 0x20, both ring
   3. */
    .set KERNEL_CODE, 0x08
    .set KERNEL_DATA, 0x10
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        /* 0x08 code, ring 0 */
    .quad 0x00cf93000000ffff        /* 0x10 data, ring 0 */
    .quad 0x00cff3000000ffff        /* 0x18 data, ring 3 */
    .quad 0x00affb000000ffff        /* 0x20 code, ring 3 */
    .quad 0, 0                      /* 0x28 task state segment, filled in by C */
gdt_pointer:
    .word . - gdt - 1
    .long gdt

    .bss
    .align 4096
    .globl boot_pml4
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4 * 4096
boot_stack: .skip 16384
boot_stack_top:
    .section .note.GNU-stack, "", @progbits
