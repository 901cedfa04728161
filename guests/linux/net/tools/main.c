/* The common parts of the programs, and the choice among them. */
#define _GNU_SOURCE
#include "tools.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char *self = "nettools";

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

noreturn void fail(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", self, what, strerror(errno));
    exit(1);
}

void run_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity");
}

void ask_generator(const char *device) {
    struct sockaddr_in all = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_BROADCAST)};
    /* A packet socket would do too, but its close waits for an RCU grace period: tens of milliseconds during a flood. */
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on) ||
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device)) ||
        sendto(fd, "go", 2, 0, (struct sockaddr *)&all, sizeof all) < 0)
        fail(device);
    close(fd);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(int, char **);
    } programs[] = {{"udpsink", udpsink_main},
                    {"udpsend", udpsend_main},
                    {"txrate", txrate_main},
                    {"bpfload", bpfload_main},
                    {"xdpsink", xdpsink_main},
                    {"xfrmhelper", xfrmhelper_main}};
    const char *name = strrchr(argv[0], '/');
    name = name ? name + 1 : argv[0];
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++) {
        if (!strcmp(name, programs[i].name)) {
            self = programs[i].name;
            return programs[i].run(argc, argv);
        }
    }
    fprintf(stderr, "nettools: %s is none of its programs\n", name);
    return 2;
}
