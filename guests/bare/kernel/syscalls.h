/* The numbers of the system calls, for kernel and user mode. */
#ifndef SYSCALLS_H
#define SYSCALLS_H

#ifndef __ASSEMBLER__
enum {
    SYS_EXIT,
    SYS_FORK,
    SYS_READ,
    SYS_WRITE,
    SYS_CLOSE,
    SYS_PIPE,
    SYS_SOCKETPAIR,
    SYS_POLL,      /* waits until a descriptor can be read */
    SYS_WAIT,
    SYS_GETPID,
    SYS_YIELD,
    SYS_KILL,
    SYS_SIGNAL,    /* sets a handler */
    SYS_SIGRETURN,
    SYS_PTRACE,
    SYS_SLEEP,     /* ticks */
    SYS_ARGUMENT,  /* a number from the command line: name, default */
    SYS_ARGUMENT_IS, /* true if the command line has a name with a text */
    SYS_REGION,    /* the measured region: 1 with a name begins it, 0 ends it */
    SYS_RESULT,    /* prints a result: name, cycles in a 64-bit variable, count, unit */
    SYS_MESSAGE,   /* prints a text and a number */
    SYS_END,       /* ends the run: true if all was well */
    SYS_IO,        /* accesses to a device: their number, and true if the device is one of the kernel's own */
    SYS_CALLS,
};
#else
#define SYS_SIGRETURN 13
#endif

#define WAIT_STOPPED 0x7f /* low byte of a wait status; the signal is in the next one */

#endif
