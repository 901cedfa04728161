/* udpsend: sends datagrams as fast as possible, and prints the rate. */
#define _GNU_SOURCE
#include "tools.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

static const char usage[] = "usage: udpsend [OPTIONS] ADDRESS PORT DATAGRAMS\n"
                            "  -s BYTES    payload of a datagram (18)\n"
                            "  -b N        sends N datagrams at once, by sendmmsg\n"
                            "  -g N        sends N datagrams as one, by UDP_SEGMENT\n"
                            "  -c          is connected to the address\n"
                            "  -n          numbers the datagrams, so that a sink knows their order and their loss\n"
                            "  -m N        runs on the next processor after every N datagrams\n"
                            "  -a CPU      runs there\n";

enum { MOST_AT_ONCE = 64, LONGEST = 65000 };

/* The stamp that a sink of the network looks for: a mark, a stream, the number, and a time that is not known here. */
enum { STAMP = 18, STREAM = 1 };

static void number(unsigned char *payload, unsigned long n) {
    payload[0] = 't', payload[1] = 'g', payload[3] = STREAM;
    for (int i = 9; i >= 4; i--, n >>= 8)
        payload[i] = (unsigned char)n;
}

int udpsend_main(int argc, char **argv) {
    unsigned long size = 18, batch = 1, segments = 1, stay = 0;
    int connected = 0, numbered = 0, processor = 0;
    for (int option; (option = getopt(argc, argv, "s:b:g:cnm:a:")) != -1;) {
        switch (option) {
        case 's': size = strtoul(optarg, NULL, 0); break;
        case 'b': batch = strtoul(optarg, NULL, 0); break;
        case 'g': segments = strtoul(optarg, NULL, 0); break;
        case 'c': connected = 1; break;
        case 'n': numbered = 1; break;
        case 'm': stay = strtoul(optarg, NULL, 0); break;
        case 'a': run_on(atoi(optarg)); break;
        default: fputs(usage, stderr); return 2;
        }
    }
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (argc - optind != 3 || !batch || batch > MOST_AT_ONCE || !size || !segments || size * segments > LONGEST ||
        (numbered && (size < STAMP || batch * segments > 1)) || !inet_aton(argv[optind], &to.sin_addr)) {
        fputs(usage, stderr);
        return 2;
    }
    to.sin_port = htons((unsigned short)atoi(argv[optind + 1]));
    unsigned long wanted = strtoul(argv[optind + 2], NULL, 0), sent = 0;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), gso = (int)size;
    if (fd < 0 || (connected && connect(fd, (struct sockaddr *)&to, sizeof to)))
        fail("socket");
    if (segments > 1 && setsockopt(fd, SOL_UDP, UDP_SEGMENT, &gso, sizeof gso))
        fail("UDP_SEGMENT");
    static unsigned char payload[LONGEST];
    struct iovec piece = {payload, size * segments};
    struct mmsghdr messages[MOST_AT_ONCE];
    for (unsigned i = 0; i < batch; i++) {
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
        if (!connected)
            messages[i].msg_hdr.msg_name = &to, messages[i].msg_hdr.msg_namelen = sizeof to;
    }
    unsigned long refused = 0;
    const int processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    double begun = now();
    while (sent < wanted) {
        int count = 1;
        if (stay && sent % stay == 0)
            run_on(processor++ % processors);
        if (numbered)
            number(payload, sent);
        if (batch > 1)
            count = sendmmsg(fd, messages, (unsigned)batch, 0);
        else if (sendmsg(fd, &messages[0].msg_hdr, 0) < 0)
            count = -1;
        if (count < 0 && errno != EINTR && errno != ENOBUFS)
            fail("send");
        if (count > 0)
            sent += (unsigned long)count * segments;
        else
            refused++;
    }
    double seconds = now() - begun;
    printf("udpsend: %lu datagrams in %.6f s, %lu refused\n", sent, seconds, refused);
    printf("result udpsend %.1f kpps\n", (double)sent / seconds / 1000);
    return 0;
}
