/* The image: boot code at its physical address, the kernel at PAGE_OFFSET, user mode's program at its own address.
   In memory they follow each other from LOAD_ADDRESS. This file is preprocessed per target. The code of each source
   file, of user mode too, begins on a page of its own: in a full kernel, and in a program with a C library, the code
   of a system call is spread over many pages. A hypervisor that maps page by page pays for each. */
#include "arch.h"
#define CODE(file) *file.o(.text .text.*) . = ALIGN(4096);
ENTRY(start)

PHDRS
{
    boot PT_LOAD FLAGS(7);
    text PT_LOAD FLAGS(5);
    data PT_LOAD FLAGS(6);
    user PT_LOAD FLAGS(7);
    note PT_NOTE FLAGS(4);
}

SECTIONS
{
    . = LOAD_ADDRESS;
    .boot : { KEEP(*(.multiboot)) *(.boot) . = ALIGN(4096); } :boot
    .note : { KEEP(*(.note.pvh)) . = ALIGN(4096); } :boot :note
    physical_end = .;

    . = PAGE_OFFSET + physical_end;
    .text : AT(ADDR(.text) - PAGE_OFFSET) {
        text_begin = .;
        CODE(/start) CODE(/entry) CODE(/main) CODE(/console) CODE(/memory) CODE(/paging) CODE(/protect) CODE(/trap) CODE(/timer)
        CODE(/sched) CODE(/process) CODE(/signal) CODE(/ptrace) CODE(/files) CODE(/pipe) CODE(/socket) CODE(/syscall)
        CODE(/paravirt) CODE(/stress)
    } :text
    .rodata : AT(ADDR(.rodata) - PAGE_OFFSET) { EXCLUDE_FILE(*user-*.o) *(.rodata .rodata.*) . = ALIGN(4096); text_end = .; } :text
    .protected : AT(ADDR(.protected) - PAGE_OFFSET) { protected_begin = .; *(.protected) . = ALIGN(4096); protected_end = .; } :data
    .data : AT(ADDR(.data) - PAGE_OFFSET) { EXCLUDE_FILE(*user-*.o) *(.data .data.*) . = ALIGN(4096); } :data
    .bss : AT(ADDR(.bss) - PAGE_OFFSET) { EXCLUDE_FILE(*user-*.o) *(.bss .bss.* COMMON) . = ALIGN(4096); } :data
    user_load = . - PAGE_OFFSET;

    . = USER_BASE;
    user_text_begin = .;
    .user.text : AT(user_load) {
        CODE(user-start) *user-start.o(.vsyscall) . = ALIGN(4096);
        CODE(user-main) CODE(user-pingpong) CODE(user-hackbench) CODE(user-ssdd)
        *user-*.o(.rodata .rodata.*) . = ALIGN(4096);
    } :user
    user_text_end = .;
    .user.data : AT(user_load + user_text_end - user_text_begin) { *user-*.o(.data .data.*) . = ALIGN(4096); } :user
    user_data_end = .;
    .user.bss (NOLOAD) : { *user-*.o(.bss .bss.* COMMON) . = ALIGN(4096); } :NONE
    user_bss_end = .;
    image_end = user_load + user_data_end - user_text_begin;
    /DISCARD/ : { *(.comment) *(.eh_frame) *(.note.gnu.*) *(.note.GNU-stack) }
}
