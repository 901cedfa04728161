/* The first process: runs the workload of the command line in a child, as a shell would, once or `rounds` times, and
   reports the result. */
#include "user.h"

struct outcome {
    char name[16], unit;
    uint64_t cycles;
    long count;
};

static long rounds;
static int outcomes[2];

/* Waits for that many children; returns true if all ended with status 0. */
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

/* Sleeps most of the time, so that only the timer's interrupts remain. */
int idle(void) {
    long ticks = argument("iterations", 25);
    sleep_ticks(1);
    region_begin("idle");
    uint64_t begun = cycles();
    sleep_ticks(ticks);
    uint64_t taken = cycles() - begun;
    region_end();
    finish("idle", taken, ticks, 'u');
    return 1;
}

/* Prints a workload's main result, at once or with those of the other rounds. */
void finish(const char *name, uint64_t cycles, long count, char unit) {
    struct outcome outcome = {.unit = unit, .cycles = cycles, .count = count};
    for (unsigned i = 0; name[i] && i < sizeof outcome.name - 1; i++)
        outcome.name[i] = name[i];
    if (rounds == 1)
        result(name, cycles, count, unit);
    else if (write(outcomes[1], &outcome, sizeof outcome) != sizeof outcome)
        fail("a result is lost", 0);
}

void user_main(void);
void user_main(void) {
    int good = 1, status;
    struct outcome outcome = {.count = 0};
    uint64_t sum = 0;
    rounds = argument("rounds", 1);
    if (rounds < 1)
        rounds = 1;
    if (pipe(outcomes))
        fail("no pipe", 0);
    for (long round = 0; round < rounds; round++) {
        long child = fork();
        if (child < 0)
            fail("no process", child);
        if (child == 0)
            exit(!run());
        good &= wait_again(child, &status) == child && !status;
        if (good && rounds > 1) {
            if (read(outcomes[0], &outcome, sizeof outcome) != sizeof outcome)
                good = 0;
            sum += outcome.cycles;
        }
    }
    while (wait_again(-1, &status) != -ECHILD)
        ;
    if (good && rounds > 1)
        result(outcome.name, sum, rounds * outcome.count, outcome.unit);
    system_call_4(SYS_END, good, 0, 0, 0);
}
