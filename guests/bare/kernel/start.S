/* Goes from the loader's 32-bit protected mode without paging to C at PAGE_OFFSET, with all of memory mapped twice
   in large pages: at its own address and at PAGE_OFFSET. C makes the final tables. */
#include "arch.h"

#define LARGE_PRESENT_WRITE 0x83
#define PRESENT_WRITE 3

#ifdef __x86_64__
/* ELF note XEN_ELFNOTE_PHYS32_ENTRY: a PVH loader enters here, with EBX at the start info. */
    .section .note.pvh, "a", @note
    .align 4
    .long 4, 4, 18
    .asciz "Xen"
    .long start
#else
#define MULTIBOOT_MAGIC 0x1badb002
#define MULTIBOOT_FLAGS 2               /* requests memory sizes */
    .section .multiboot, "a"
    .align 4
    .long MULTIBOOT_MAGIC, MULTIBOOT_FLAGS, -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)
#endif

    .section .boot, "awx"
    .code32
    .globl start
FUNCTION(start)
    cli
    cld
    movl $boot_stack_top, %esp
    movl %eax, %esi                     /* the boot magic and the information block are kept for C */
    movl %ebx, %ebp

#ifdef __x86_64__
    movl $boot_pdpt + PRESENT_WRITE, boot_top
    movl $boot_pdpt + PRESENT_WRITE, boot_top + 511 * 8
    movl $boot_pd + PRESENT_WRITE, boot_pdpt
    movl $boot_pd + PRESENT_WRITE, boot_pdpt + 510 * 8
#elif defined(PAE)
    movl $boot_pd + 1, boot_top
    movl $boot_pd + 1, boot_top + 3 * 8
#endif
#if defined(__x86_64__) || defined(PAE)
    movl $LARGE_PRESENT_WRITE, %eax
    movl $boot_pd, %edi
    movl $512, %ecx
1:  movl %eax, (%edi)
    addl $0x200000, %eax
    addl $8, %edi
    loop 1b
    movl $CR4_PAE, %eax
#else
    movl $LARGE_PRESENT_WRITE, %eax
    movl $boot_top, %edi
    movl $256, %ecx
1:  movl %eax, (%edi)
    movl %eax, 768 * 4(%edi)
    addl $0x400000, %eax
    addl $4, %edi
    loop 1b
    movl $CR4_PSE, %eax
#endif
    movl %eax, %cr4
    movl $boot_top, %eax
    movl %eax, %cr3
#ifdef __x86_64__
    movl $MSR_EFER, %ecx
    movl $EFER_SCE + EFER_LME, %eax
    xorl %edx, %edx
    wrmsr
#endif
    movl $CR0_PG + CR0_PE + CR0_MP + CR0_NE + CR0_WP, %eax
    movl %eax, %cr0
    lgdt boot_gdt_pointer
    ljmp $KERNEL_CODE, $1f

#ifdef __x86_64__
    .code64
#endif
1:  movl $KERNEL_DATA, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
#ifdef __x86_64__
    movl %esi, %edi
    movl %ebp, %esi
    movq $init_stack_top, %rsp
    xorl %ebp, %ebp
    movq $kernel_start, %rax
    call *%rax
#else
    movl $init_stack_top, %esp
    pushl %ebp
    pushl %esi
    xorl %ebp, %ebp
    movl $kernel_start, %eax
    call *%eax
#endif
    ud2
END(start)

#ifndef __x86_64__
/* Clears and sets CR0.WP EAX times with paging off. The boot tables must be loaded: they map this code to its own
   address. */
    .globl toggle_unpaged
FUNCTION(toggle_unpaged)
    movl %eax, %ecx
    movl %cr0, %eax
    andl $~CR0_PG, %eax
    movl %eax, %cr0
2:  xorl $CR0_WP, %eax
    movl %eax, %cr0
    xorl $CR0_WP, %eax
    movl %eax, %cr0
    loop 2b
    orl $CR0_PG, %eax
    movl %eax, %cr0
    ret
END(toggle_unpaged)
#endif

    .align 8
boot_gdt:
    .quad 0
#ifdef __x86_64__
    .quad 0x00af9b000000ffff
#else
    .quad 0x00cf9b000000ffff
#endif
    .quad 0x00cf93000000ffff
boot_gdt_pointer:
    .word . - boot_gdt - 1
    .long boot_gdt

    .align 4096
    .globl boot_top
boot_top:  .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4096
boot_stack_top:

    .bss
    .align THREAD_SIZE
    .globl init_stack
init_stack: .skip THREAD_SIZE
init_stack_top:
    .section .note.GNU-stack, "", @progbits
