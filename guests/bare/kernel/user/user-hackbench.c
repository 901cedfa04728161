/* Groups of senders and receivers: every sender of a group sends to every receiver of it, over one pair of sockets
   (or, with transport=pipe, one pipe) per receiver. The measured time is from the moment when all are ready until
   the last has ended, as in hackbench. */
#include "user.h"

enum { TASKS_MAX = 40, SIZE = 100 };

static int ready[2], wake[2], outputs[TASKS_MAX];
static char data[SIZE];

static void report_ready(void) {
    char byte = 1;
    if (write(ready[1], &byte, 1) != 1 || poll(wake[0]) != 1)
        fail("no start", 0);
}

static void sender(long receivers, long loops) {
    report_ready();
    for (long i = 0; i < loops; i++)
        for (long j = 0; j < receivers; j++) {
            data[0] = (char)i;
            long done = 0;
            while (done < SIZE) {
                long part = write(outputs[j], data + done, (size_t)(SIZE - done));
                if (part <= 0)
                    fail("cannot send", part);
                done += part;
            }
        }
    exit(0);
}

/* Counts messages, and adds up the loop numbers that they carry. */
static void receiver(int input, long senders, long loops) {
    long sum = 0, wanted = 0;
    report_ready();
    for (long i = 0; i < senders * loops; i++) {
        long done = 0;
        while (done < SIZE) {
            long part = read(input, data + done, (size_t)(SIZE - done));
            if (part <= 0)
                fail("cannot receive", part);
            done += part;
        }
        sum += (unsigned char)data[0];
    }
    for (long i = 0; i < loops; i++)
        wanted += senders * (long)(unsigned char)i;
    exit(sum != wanted);
}

static long group(long tasks, long loops, int pipes) {
    for (long i = 0; i < tasks; i++) {
        int ends[2];
        if (pipes ? pipe(ends) : socketpair(ends))
            fail("no pipe", i);
        long child = fork();
        if (child < 0)
            fail("no process", child);
        if (child == 0) {
            close(ends[1]);
            receiver(ends[0], tasks, loops);
        }
        outputs[i] = ends[1];
        close(ends[0]);
    }
    for (long i = 0; i < tasks; i++) {
        long child = fork();
        if (child < 0)
            fail("no process", child);
        if (child == 0)
            sender(tasks, loops);
    }
    for (long i = 0; i < tasks; i++)
        close(outputs[i]);
    return 2 * tasks;
}

int hackbench(void) {
    long groups = argument("groups", 1), loops = argument("loops", 100), tasks = argument("tasks", 20);
    long total = 0;
    int pipes = argument_is("transport", "pipe");
    char byte = 1;
    if (tasks < 1 || tasks > TASKS_MAX)
        fail("tasks must be 1 to", TASKS_MAX);
    if (pipe(ready) || pipe(wake))
        fail("no pipes", 0);
    for (long i = 0; i < groups; i++)
        total += group(tasks, loops, pipes);
    for (long i = 0; i < total; i++)
        if (read(ready[0], &byte, 1) != 1)
            fail("a task did not start", i);
    region_begin("hackbench");
    uint64_t begun = cycles();
    if (write(wake[1], &byte, 1) != 1)
        fail("cannot start", 0);
    int good = ended_well((int)total);
    uint64_t taken = cycles() - begun;
    region_end();
    finish("hackbench", taken, 1, 's');
    return good;
}
