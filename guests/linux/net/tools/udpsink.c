/* udpsink: receives datagrams, and prints their number and rate. It ends after a given number, or after a while
   without any. */
#define _GNU_SOURCE
#include "tools.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { MOST_AT_ONCE = 64, LONGEST = 65536, MOST_SOCKETS = 16 };

static const char usage[] = "usage: udpsink [OPTIONS] PORT FRAMES\n"
                            "  -d DEVICE   asks the generator there to begin\n"
                            "  -w FRAMES   are taken before those that are counted\n"
                            "  -t SECONDS  ends it if nothing comes for so long (0.1)\n"
                            "  -b N        takes up to N datagrams at once, by recvmmsg\n"
                            "  -g          takes several of a flow as one, by UDP_GRO\n"
                            "  -p MICROS   polls the device for so long when nothing is there\n"
                            "  -c ADDRESS:PORT  is connected to the sender\n"
                            "  -r N        N sockets in as many programs share the port, each for the datagrams of one processor;\n"
                            "              the programs run on the processors from -a on\n"
                            "  -a CPU      runs there\n";

struct options {
    unsigned long wanted, warm;
    double patience;
    unsigned batch, busy, sockets;
    int gro, processor;
    const char *device, *peer;
    unsigned short port;
};

/* Counts of a sink, shared by the programs of several sockets. */
struct count {
    unsigned long got, dropped;
    double first, last;
    int ready;
};

static int open_socket(const struct options *o) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(o->port)};
    if (fd < 0 || (o->sockets > 1 && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on)))
        fail("socket");
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        fail("bind");
    struct timeval timeout = {.tv_sec = (time_t)o->patience,
                              .tv_usec = (suseconds_t)((o->patience - (double)(time_t)o->patience) * 1e6)};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout))
        fail("SO_RCVTIMEO");
    if (o->gro && setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on))
        fail("UDP_GRO");
    if (o->busy && setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &o->busy, sizeof o->busy))
        fail("SO_BUSY_POLL");
    if (o->peer) {
        unsigned a, b, c, d, port;
        if (sscanf(o->peer, "%u.%u.%u.%u:%u", &a, &b, &c, &d, &port) != 5)
            fail(o->peer);
        struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
        peer.sin_addr.s_addr = htonl(a << 24 | b << 16 | c << 8 | d);
        if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
            fail("connect");
    }
    return fd;
}

/* Returns the number of datagrams in one message: with UDP_GRO this is the number of its segments. */
static unsigned long datagrams(struct msghdr *message, size_t length) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(c), sizeof size);
            return size > 0 ? (length + (size_t)size - 1) / (size_t)size : 1;
        }
    }
    return 1;
}

/* Receives the next datagrams; returns 0 if none has come for too long. */
static unsigned long take(int fd, const struct options *o) {
    static char buffers[MOST_AT_ONCE][LONGEST];
    static char control[MOST_AT_ONCE][64];
    struct mmsghdr messages[MOST_AT_ONCE];
    struct iovec pieces[MOST_AT_ONCE];
    if (o->batch == 1 && !o->gro)
        return recv(fd, buffers[0], LONGEST, 0) >= 0;
    for (unsigned i = 0; i < o->batch; i++) {
        pieces[i] = (struct iovec){buffers[i], LONGEST};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
        if (o->gro)
            messages[i].msg_hdr.msg_control = control[i], messages[i].msg_hdr.msg_controllen = sizeof control[i];
    }
    if (o->batch == 1) {
        ssize_t length = recvmsg(fd, &messages[0].msg_hdr, 0);
        return length < 0 ? 0 : datagrams(&messages[0].msg_hdr, (size_t)length);
    }
    int count = recvmmsg(fd, messages, o->batch, MSG_WAITFORONE, NULL);
    unsigned long all = 0;
    for (int i = 0; i < count; i++)
        all += datagrams(&messages[i].msg_hdr, messages[i].msg_len);
    return all;
}

/* Returns the number of datagrams that the socket has had no room for. */
static unsigned long dropped(int fd) {
    unsigned counts[SK_MEMINFO_VARS];
    socklen_t length = sizeof counts;
    return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, counts, &length) ? 0 : counts[SK_MEMINFO_DROPS];
}

/* Counts the datagrams of `fd` until all sinks together have the wanted number. */
static void take_all(int fd, const struct options *o, struct count *mine, const struct count *all) {
    unsigned long skipped = 0;
    for (;;) {
        unsigned long more = take(fd, o);
        if (!more) {
            if (errno == EINTR)
                continue;
            return;
        }
        mine->last = now();
        if (skipped < o->warm) {
            skipped += more;
            mine->first = mine->last;
            continue;
        }
        if (!mine->first)
            mine->first = mine->last;
        mine->got += more;
        unsigned long sum = 0;
        for (unsigned i = 0; i < o->sockets; i++)
            sum += *(volatile const unsigned long *)&all[i].got;
        if (sum >= o->wanted)
            return;
    }
}

/* Sends each datagram to the socket with the number of the processor that received it, or to its receiver's. */
static void spread(int fd, unsigned sockets) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(SKF_AD_OFF + SKF_AD_CPU)),
        BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, sockets),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program))
        fail("SO_ATTACH_REUSEPORT_CBPF");
}

int udpsink_main(int argc, char **argv) {
    struct options o = {.batch = 1, .sockets = 1, .patience = 0.1, .processor = -1};
    for (int option; (option = getopt(argc, argv, "d:w:t:b:gp:c:r:a:")) != -1;) {
        switch (option) {
        case 'd': o.device = optarg; break;
        case 'w': o.warm = strtoul(optarg, NULL, 0); break;
        case 't': o.patience = atof(optarg); break;
        case 'b': o.batch = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'g': o.gro = 1; break;
        case 'p': o.busy = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'c': o.peer = optarg; break;
        case 'r': o.sockets = (unsigned)strtoul(optarg, NULL, 0); break;
        case 'a': o.processor = atoi(optarg); break;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (argc - optind != 2 || !o.batch || o.batch > MOST_AT_ONCE || !o.sockets || o.sockets > MOST_SOCKETS) {
        fputs(usage, stderr);
        return 2;
    }
    o.port = (unsigned short)atoi(argv[optind]);
    o.wanted = strtoul(argv[optind + 1], NULL, 0);
    struct count *all = mmap(NULL, sizeof *all * MOST_SOCKETS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        fail("mmap");
    int sockets[MOST_SOCKETS];
    for (unsigned i = 0; i < o.sockets; i++)
        sockets[i] = open_socket(&o);
    if (o.sockets > 1)
        spread(sockets[0], o.sockets);
    for (unsigned i = 1; i < o.sockets; i++) {
        if (!fork()) {
            if (o.processor >= 0)
                run_on(o.processor + (int)i);
            *(volatile int *)&all[i].ready = 1;
            take_all(sockets[i], &o, &all[i], all);
            all[i].dropped = dropped(sockets[i]);
            _exit(0);
        }
    }
    if (o.processor >= 0)
        run_on(o.processor);
    /* A program that is still on the processor of a flood's interrupts gets to its own only after milliseconds. */
    for (unsigned i = 1; i < o.sockets; i++) {
        while (!*(volatile int *)&all[i].ready)
            usleep(100);
    }
    if (o.device)
        ask_generator(o.device);
    take_all(sockets[0], &o, &all[0], all);
    all[0].dropped = dropped(sockets[0]);
    while (wait(NULL) > 0)
        ;
    struct count sum = all[0];
    for (unsigned i = 1; i < o.sockets; i++) {
        sum.got += all[i].got, sum.dropped += all[i].dropped;
        if (all[i].got && all[i].first < sum.first)
            sum.first = all[i].first;
        if (all[i].last > sum.last)
            sum.last = all[i].last;
    }
    /* If none came before them, the first counted one only begins the time. */
    double rate = sum.last > sum.first ? (double)(sum.got - !o.warm) / (sum.last - sum.first) : 0.0;
    printf("udpsink: %lu datagrams in %.6f s, %.0f a second, %lu dropped for want of room\n", sum.got, sum.last - sum.first, rate,
           sum.dropped);
    printf("result udpsink %.1f kpps\n", rate / 1000);
    return sum.got ? 0 : 1;
}
