/* udpsink PORT FRAMES SECONDS [TESTER [WARM]]: asks a traffic generator to begin, takes datagrams one by one, and says how many came and how
 * fast. It ends after so many, or when none has come for so long. The first WARM of them are not counted. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "udpsink: %s: %s\n", what, strerror(errno));
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: udpsink PORT FRAMES SECONDS [TESTER [WARM]]\n");
        return 2;
    }
    unsigned long wanted = strtoul(argv[2], NULL, 0), warm = argc > 5 ? strtoul(argv[5], NULL, 0) : 0, got = 0;
    double patience = atof(argv[3]), first = 0, last = 0;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address))
        fail("bind");
    struct timeval timeout = {.tv_sec = (time_t)patience, .tv_usec = (suseconds_t)((patience - (double)(time_t)patience) * 1e6)};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout))
        fail("SO_RCVTIMEO");
    if (argc > 4) {
        /* The discard port is what a generator with start=request waits for. */
        struct sockaddr_in tester = {.sin_family = AF_INET, .sin_port = htons(9)};
        if (!inet_aton(argv[4], &tester.sin_addr))
            fail("address");
        if (sendto(fd, "go", 2, 0, (struct sockaddr *)&tester, sizeof tester) < 0)
            fail("sendto");
    }
    char buffer[65536];
    while (got < wanted + warm) {
        if (recv(fd, buffer, sizeof buffer, 0) < 0) {
            if (errno == EINTR)
                continue;
            break;
        }
        last = now();
        if (got++ == warm)
            first = last;
    }
    got -= got < warm ? got : warm;
    double rate = got > 1 ? (double)(got - 1) / (last - first) : 0.0;
    printf("udpsink: %lu datagrams in %.6f s, %.0f a second\n", got, last - first, rate);
    printf("result udpsink %.1f kpps\n", rate / 1000);
    return got ? 0 : 1;
}
