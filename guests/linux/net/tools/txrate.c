/* txrate: prints the packets a second that a device sends while other programs use it. */
#define _GNU_SOURCE
#include "tools.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "usage: txrate [OPTIONS] DEVICE PACKETS\n"
                            "  -d DEVICE   asks the generator there to begin\n"
                            "  -w PACKETS  are sent before those that are counted\n"
                            "  -t SECONDS  ends it if nothing is sent for so long (0.1)\n"
                            "  -a CPU      runs there\n";

/* Sleep between two readings. */
enum { MICROSECONDS = 100 };

static unsigned long packets(int file) {
    char text[32] = "";
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    if (length <= 0)
        fail("tx_packets");
    return strtoul(text, NULL, 10);
}

int txrate_main(int argc, char **argv) {
    unsigned long warm = 0;
    double patience = 0.1;
    const char *generator = NULL;
    for (int option; (option = getopt(argc, argv, "d:w:t:a:")) != -1;) {
        switch (option) {
        case 'd': generator = optarg; break;
        case 'w': warm = strtoul(optarg, NULL, 0); break;
        case 't': patience = atof(optarg); break;
        case 'a': run_on(atoi(optarg)); break;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (argc - optind != 2) {
        fputs(usage, stderr);
        return 2;
    }
    unsigned long wanted = strtoul(argv[optind + 1], NULL, 0);
    char path[128];
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/tx_packets", argv[optind]);
    int file = open(path, O_RDONLY);
    if (file < 0)
        fail(path);
    unsigned long start = packets(file), sent = start, first = 0;
    double begun = 0, last = now();
    if (generator)
        ask_generator(generator);
    for (;;) {
        usleep(MICROSECONDS);
        unsigned long count = packets(file);
        double time = now();
        if (count != sent)
            sent = count, last = time;
        else if (time - last > patience)
            break;
        if (begun == 0) {
            if (sent - start > warm)
                begun = time, first = sent;
        } else if (sent - first >= wanted) {
            break;
        }
    }
    double seconds = last - begun;
    if (begun == 0 || seconds <= 0) {
        printf("txrate: %lu packets, too few\n", sent - start);
        return 1;
    }
    double rate = (double)(sent - first) / seconds;
    printf("txrate: %lu packets in %.6f s, %.0f a second\n", sent - first, seconds, rate);
    printf("result txrate %.1f kpps\n", rate / 1000);
    return 0;
}
