/* Pairs of a tracer and a tracee: the tracee only loops, and the tracer lets it execute single instructions, and
   after each checks that wait reports a stop by SIGTRAP and that SIGCHLD has arrived. */
#include "user.h"

static volatile int child_signals;

static void on_child(int signal) {
    if (signal == SIGCHLD)
        child_signals = 1;
}

static void check_stop(long child, int signal, long step) {
    int status = 0;
    long pid = wait_again(-1, &status);
    if (pid != child)
        fail("a stop of another process, at step", step);
    if ((status & 0xff) != WAIT_STOPPED || status >> 8 != signal)
        fail("the stop is of another kind, at step", step);
    for (int i = 0; i < 10 && !child_signals; i++)
        sleep_ticks(1);
    if (!child_signals)
        fail("no SIGCHLD, at step", step);
    child_signals = 0;
}

static void tracer(long steps) {
    long child = fork();
    if (child < 0)
        fail("no process", child);
    if (child == 0)
        for (;;)
            __asm__ volatile("");
    if (set_handler(SIGCHLD, on_child))
        fail("no handler", 0);
    if (ptrace(TRACE_ATTACH, child))
        fail("cannot attach to", child);
    check_stop(child, SIGSTOP, -1);
    for (long i = 0; i < steps; i++) {
        if (ptrace(TRACE_STEP, child))
            fail("cannot step", i);
        check_stop(child, SIGTRAP, i);
    }
    exit(0); /* the tracee ends with it */
}

int ssdd(void) {
    long forks = argument("groups", 10), steps = argument("iterations", 500);
    region_begin("ssdd");
    uint64_t begun = cycles();
    for (long i = 0; i < forks; i++) {
        long child = fork();
        if (child < 0)
            fail("no process", child);
        if (child == 0)
            tracer(steps);
    }
    int good = ended_well((int)forks); /* the tracees go to the first process when their tracers end */
    uint64_t taken = cycles() - begun;
    region_end();
    finish("ssdd", taken, 1, 's');
    result("ssdd-step", taken, forks * steps, 'u');
    return good;
}
