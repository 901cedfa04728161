/* The common parts of the programs, and the choice among them. */
#define _GNU_SOURCE
#include "tools.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
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
    /* The frame is broadcast Ethernet, IPv4 with its checksum, and UDP without one to port 9. */
    unsigned char frame[60] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0,
                               0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 254, 198, 18, 0, 1,
                               0, 9, 0, 9, 0, 10, 0, 0, 'g', 'o'};
    unsigned sum = 0;
    for (int i = 14; i < 34; i += 2)
        sum += (unsigned)frame[i] << 8 | frame[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~((sum & 0xffff) + (sum >> 16));
    frame[24] = (unsigned char)(sum >> 8), frame[25] = (unsigned char)sum;
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(device), .sll_halen = 6};
    if (fd < 0 || !to.sll_ifindex || sendto(fd, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to) < 0)
        fail(device);
    /* The socket stays open: closing it waits for an RCU grace period, which takes milliseconds on a busy machine, while the frames already come. */
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
