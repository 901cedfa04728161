/* The first process: runs the workload of the command line in children and says how it went. */
#include "user.h"

/* Waits for that many children; whether all ended with status 0. */
int ended_well(int children) {
    int good = 1, status;
    for (; children; children--)
        if (wait_again(-1, &status) < 0 || status)
            good = 0;
    return good;
}

static int run(void) {
    if (argument_is("workload", "hackbench"))
        return hackbench();
    if (argument_is("workload", "ssdd"))
        return ssdd();
    if (argument_is("workload", "idle"))
        return idle();
    return pingpong();
}

/* Sleeps most of the time: what is left are the timer's interrupts. */
int idle(void) {
    long ticks = argument("iterations", 25);
    sleep_ticks(1);
    region_begin("idle");
    uint64_t begun = cycles();
    sleep_ticks(ticks);
    uint64_t taken = cycles() - begun;
    region_end();
    result("idle", taken, ticks, 'u');
    return 1;
}

void user_main(void);
void user_main(void) {
    int good = run(), status;
    while (wait_again(-1, &status) != -ECHILD)
        ;
    system_call_4(SYS_END, good, 0, 0, 0);
}
