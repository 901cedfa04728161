/* Two processes pass a token to and fro through two pipes. One process measures the cost of the pipes alone; the
   rest is the time of a switch, as lat_ctx reports it for two processes without data. With io=N each process makes N accesses to a device before it passes the token, as a request to a
   disk or a network would. */
#include "user.h"

static int there[2], back[2];

static long io, io_in_kernel;

static void send(int file, int token) {
    if (io)
        device_accesses(io, io_in_kernel);
    if (write(file, &token, sizeof token) != sizeof token)
        fail("cannot send", token);
}
static int receive(int file) {
    int token = 0;
    long got = read(file, &token, sizeof token);
    if (got != sizeof token)
        exit(got ? 1 : 0); /* the other end is closed: all is done */
    return token;
}

static void partner(void) {
    close(there[1]);
    close(back[0]);
    for (;;)
        send(back[1], receive(there[0]) + 1);
}

int pingpong(void) {
    long iterations = argument("iterations", 1000), warm = iterations / 10 + 10;
    io = argument("io", 0);
    io_in_kernel = argument_is("io-at", "kernel");
    if (pipe(there) || pipe(back))
        fail("no pipes", 0);

    /* The pipes are measured alone: as many passes, each a write and a read, without a switch. */
    for (long i = 0; i < warm; i++)
        send(there[1], 0), receive(there[0]);
    uint64_t begun = cycles();
    for (long i = 0; i < iterations; i++) {
        send(there[1], (int)i);
        if (receive(there[0]) != (int)i)
            fail("a token is wrong", i);
        send(back[1], (int)i);
        if (receive(back[0]) != (int)i)
            fail("a token is wrong", i);
    }
    uint64_t pipes = cycles() - begun;

    long child = fork();
    if (child < 0)
        fail("no process", child);
    if (child == 0)
        partner();
    close(there[0]);
    close(back[1]);
    int token = 0;
    for (long i = 0; i < warm; i++) {
        send(there[1], token);
        token = receive(back[0]);
    }
    region_begin("pingpong");
    begun = cycles();
    for (long i = 0; i < iterations; i++) {
        send(there[1], token);
        token = receive(back[0]);
    }
    uint64_t taken = cycles() - begun;
    region_end();
    if (token != (int)(iterations + warm))
        fail("tokens were lost", token);
    close(there[1]);
    finish("pingpong", taken > pipes ? taken - pipes : 0, 2 * iterations, 'u');
    result("pingpong-with-pipes", taken, 2 * iterations, 'u');
    return ended_well(1);
}
