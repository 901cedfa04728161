/* System calls: one table. */
#include "kernel.h"

uint64_t region_begun;
static unsigned long region_switches, region_toggles, region_ticks;
static char region_name[32];

/* Copies a short text of the program's; returns false if it is invalid. */
static int copy_text(char *to, size_t size, unsigned long from) {
    for (size_t i = 0; i < size; i++) {
        if (!user_range(from + i, 1, 0))
            return 0;
        to[i] = *(const char *)(from + i);
        if (!to[i])
            return 1;
    }
    return 0;
}

static long call_exit(struct registers *r) { process_exit((int)(ARGUMENT_0(r) & 0xff) << 8); }
static long call_fork(struct registers *r) { return process_fork(r); }
static long call_read(struct registers *r) { return file_read((int)ARGUMENT_0(r), ARGUMENT_1(r), ARGUMENT_2(r)); }
static long call_write(struct registers *r) { return file_write((int)ARGUMENT_0(r), ARGUMENT_1(r), ARGUMENT_2(r)); }
static long call_close(struct registers *r) { return file_close((int)ARGUMENT_0(r)); }
static long call_pipe(struct registers *r) { return pipe_create(ARGUMENT_0(r)); }
static long call_socketpair(struct registers *r) { return socket_pair_create(ARGUMENT_0(r)); }
static long call_poll(struct registers *r) { return file_poll((int)ARGUMENT_0(r)); }
static long call_wait(struct registers *r) { return process_wait((long)ARGUMENT_0(r), ARGUMENT_1(r)); }
static long call_getpid(struct registers *r) {
    (void)r;
    return current->pid;
}
static long call_yield(struct registers *r) {
    (void)r;
    current->need_resched = 1;
    work_pending = 1;
    return 0;
}
static long call_kill(struct registers *r) {
    struct task *task = process_find((int)ARGUMENT_0(r));
    if (!task)
        return -ESRCH;
    if (ARGUMENT_1(r) >= SIGNALS)
        return -EINVAL;
    if (ARGUMENT_1(r))
        signal_send(task, (int)ARGUMENT_1(r));
    return 0;
}
static long call_signal(struct registers *r) {
    unsigned long signal = ARGUMENT_0(r);
    if (signal >= SIGNALS || signal == SIGKILL || signal == SIGSTOP)
        return -EINVAL;
    current->handlers[signal] = ARGUMENT_1(r);
    return 0;
}
static long call_sigreturn(struct registers *r) {
    signal_return(r);
    return (long)r->ax;
}
static long call_ptrace(struct registers *r) { return trace_request((long)ARGUMENT_0(r), (long)ARGUMENT_1(r)); }
static long call_sleep(struct registers *r) {
    timer_sleep(ARGUMENT_0(r));
    return 0;
}
static long call_argument(struct registers *r) {
    char name[32];
    if (!copy_text(name, sizeof name, ARGUMENT_0(r)))
        return -EFAULT;
    return (long)argument(name, ARGUMENT_1(r));
}
static long call_argument_is(struct registers *r) {
    char name[32], text[32];
    if (!copy_text(name, sizeof name, ARGUMENT_0(r)) || !copy_text(text, sizeof text, ARGUMENT_1(r)))
        return -EFAULT;
    return argument_is(name, text);
}

/* Begins or ends the region. Its contents are useful to readers of its time. */
static long call_region(struct registers *r) {
    if (ARGUMENT_0(r)) {
        if (!copy_text(region_name, sizeof region_name, ARGUMENT_1(r)))
            return -EFAULT;
        region_switches = switches;
        region_toggles = toggles;
        region_ticks = ticks;
        marker_begin(region_name);
        region_begun = rdtsc();
    } else {
        uint64_t cycles = rdtsc() - region_begun;
        marker_end();
        print("count %s cycles %llu\ncount %s switches %lu\ncount %s toggles %lu\ncount %s ticks %lu\n", region_name,
              (unsigned long long)cycles, region_name, switches - region_switches, region_name, toggles - region_toggles,
              region_name, ticks - region_ticks);
    }
    return 0;
}

static long call_result(struct registers *r) {
    char name[32];
    if (!copy_text(name, sizeof name, ARGUMENT_0(r)) || !user_range(ARGUMENT_1(r), sizeof(uint64_t), 0))
        return -EFAULT;
    uint64_t cycles;
    memcpy(&cycles, (const void *)ARGUMENT_1(r), sizeof cycles);
    uint32_t count = ARGUMENT_2(r) ? (uint32_t)ARGUMENT_2(r) : 1;
    /* The unit is nanoseconds per event in microseconds, or microseconds in seconds. */
    int seconds = ARGUMENT_3(r) == 's';
    uint64_t value = seconds ? scale(microseconds(cycles), 1, count) : scale(scale(cycles, 1000000, tsc_khz), 1, count);
    uint32_t unit = seconds ? 1000000 : 1000;
    uint64_t whole = scale(value, 1, unit);
    unsigned part = (unsigned)(value - whole * unit);
    if (seconds)
        print("result %s %llu.%06u s\n", name, (unsigned long long)whole, part);
    else
        print("result %s %llu.%03u us\n", name, (unsigned long long)whole, part);
    return 0;
}

static long call_message(struct registers *r) {
    char text[64];
    if (!copy_text(text, sizeof text, ARGUMENT_0(r)))
        return -EFAULT;
    print("%d: %s %ld\n", current->pid, text, (long)ARGUMENT_1(r));
    return 0;
}

static long call_io(struct registers *r) {
    timer_device_accesses(ARGUMENT_0(r), (int)ARGUMENT_1(r));
    return 0;
}

/* Ends the run. All processes must have ended, and their resources must be freed. */
static long call_end(struct registers *r) {
    if (current->pid != 1)
        return -EPERM;
    if (task_count() != 1)
        panic("%u processes are left", task_count() - 1);
    print("kernel: %s, %u pages free\n", ARGUMENT_0(r) ? "pass" : "FAIL", pages_free_count());
    leave(ARGUMENT_0(r) ? EXIT_PASS : EXIT_FAIL);
}

static long (*const calls[SYS_CALLS])(struct registers *) = {
    [SYS_EXIT] = call_exit,         [SYS_FORK] = call_fork,           [SYS_READ] = call_read,       [SYS_WRITE] = call_write,
    [SYS_CLOSE] = call_close,       [SYS_PIPE] = call_pipe,           [SYS_SOCKETPAIR] = call_socketpair, [SYS_POLL] = call_poll,       [SYS_WAIT] = call_wait,
    [SYS_GETPID] = call_getpid,     [SYS_YIELD] = call_yield,         [SYS_KILL] = call_kill,       [SYS_SIGNAL] = call_signal,
    [SYS_SIGRETURN] = call_sigreturn, [SYS_PTRACE] = call_ptrace,     [SYS_SLEEP] = call_sleep,     [SYS_ARGUMENT] = call_argument,
    [SYS_ARGUMENT_IS] = call_argument_is, [SYS_REGION] = call_region,     [SYS_RESULT] = call_result,       [SYS_MESSAGE] = call_message,
    [SYS_END] = call_end,           [SYS_IO] = call_io,
};

void system_call(struct registers *registers);
void system_call(struct registers *registers) {
    unsigned long number = registers->ax;
    registers->ax = (unsigned long)(number < SYS_CALLS ? calls[number](registers) : -ENOSYS);
}
