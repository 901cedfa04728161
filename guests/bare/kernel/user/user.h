/* The interface of the programs in user mode. They reach the kernel through its system calls only. */
#ifndef USER_H
#define USER_H

#include <stddef.h>
#include <stdint.h>

#include "../syscalls.h"

#define USER_FUNCTION static inline __attribute__((unused))

long system_call_4(long number, long first, long second, long third, long fourth);

USER_FUNCTION long fork(void) { return system_call_4(SYS_FORK, 0, 0, 0, 0); }
USER_FUNCTION long read(int file, void *buffer, size_t count) {
    return system_call_4(SYS_READ, file, (long)buffer, (long)count, 0);
}
USER_FUNCTION long write(int file, const void *buffer, size_t count) {
    return system_call_4(SYS_WRITE, file, (long)buffer, (long)count, 0);
}
USER_FUNCTION long close(int file) { return system_call_4(SYS_CLOSE, file, 0, 0, 0); }
USER_FUNCTION long pipe(int ends[2]) { return system_call_4(SYS_PIPE, (long)ends, 0, 0, 0); }
USER_FUNCTION long socketpair(int ends[2]) { return system_call_4(SYS_SOCKETPAIR, (long)ends, 0, 0, 0); }
USER_FUNCTION long poll(int file) { return system_call_4(SYS_POLL, file, 0, 0, 0); }
USER_FUNCTION long wait(long pid, int *status) { return system_call_4(SYS_WAIT, pid, (long)status, 0, 0); }
USER_FUNCTION long getpid(void) { return system_call_4(SYS_GETPID, 0, 0, 0, 0); }
USER_FUNCTION long kill(long pid, long signal) { return system_call_4(SYS_KILL, pid, signal, 0, 0); }
USER_FUNCTION long set_handler(long signal, void (*handler)(int)) {
    return system_call_4(SYS_SIGNAL, signal, (long)handler, 0, 0);
}
USER_FUNCTION long ptrace(long request, long pid) { return system_call_4(SYS_PTRACE, request, pid, 0, 0); }
USER_FUNCTION long device_accesses(long count, long in_kernel) { return system_call_4(SYS_IO, count, in_kernel, 0, 0); }
USER_FUNCTION long sleep_ticks(long ticks) { return system_call_4(SYS_SLEEP, ticks, 0, 0, 0); }
USER_FUNCTION long argument(const char *name, long otherwise) {
    return system_call_4(SYS_ARGUMENT, (long)name, otherwise, 0, 0);
}
USER_FUNCTION int argument_is(const char *name, const char *text) {
    return system_call_4(SYS_ARGUMENT_IS, (long)name, (long)text, 0, 0) == 1;
}
USER_FUNCTION void region_begin(const char *name) { system_call_4(SYS_REGION, 1, (long)name, 0, 0); }
USER_FUNCTION void region_end(void) { system_call_4(SYS_REGION, 0, 0, 0, 0); }
/* The unit is microseconds each ('u') or seconds ('s'). */
USER_FUNCTION void result(const char *name, uint64_t cycles, long count, char unit) {
    system_call_4(SYS_RESULT, (long)name, (long)&cycles, count, unit);
}
USER_FUNCTION void message(const char *text, long number) { system_call_4(SYS_MESSAGE, (long)text, number, 0, 0); }
__attribute__((noreturn)) USER_FUNCTION void exit(long status) {
    for (;;)
        system_call_4(SYS_EXIT, status, 0, 0, 0);
}
__attribute__((noreturn)) USER_FUNCTION void fail(const char *text, long number) {
    message(text, number);
    exit(1);
}
USER_FUNCTION uint64_t cycles(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

enum { SIGKILL = 9, SIGTRAP = 5, SIGCHLD = 17, SIGSTOP = 19 };
enum { TRACE_CONTINUE = 7, TRACE_STEP = 9, TRACE_ATTACH = 16 };
enum { EINTR = 4, ECHILD = 10 };

/* Waits, again if a signal interrupted it. */
USER_FUNCTION long wait_again(long pid, int *status) {
    long result;
    do
        result = wait(pid, status);
    while (result == -EINTR);
    return result;
}

/* The workloads: nonzero if their results were right. */
int pingpong(void);
int hackbench(void);
int ssdd(void);
int idle(void);
int ended_well(int children);
void finish(const char *name, uint64_t cycles, long count, char unit);

#endif
