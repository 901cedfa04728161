/* xdpsink: receives the frames of one queue of a device by AF_XDP, past the network stack, and prints their rate. */
#define _GNU_SOURCE
#include "tools.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FRAMES = 2048, FRAME = 2048 };

static const char usage[] = "usage: xdpsink [OPTIONS] DEVICE FRAMES\n"
                            "  -g          asks the generator at the device to begin\n"
                            "  -w FRAMES   are taken before those that are counted\n"
                            "  -q QUEUE    of the device (0)\n"
                            "  -z          without copies, if the driver can\n"
                            "  -a CPU      runs there\n";

struct ring {
    unsigned *producer, *consumer;
    void *entries;
};

static struct ring map_ring(int fd, const struct xdp_ring_offset *at, size_t entry, off_t which) {
    char *base = mmap(NULL, at->desc + FRAMES * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, which);
    if (base == MAP_FAILED)
        fail("ring");
    return (struct ring){(unsigned *)(base + at->producer), (unsigned *)(base + at->consumer), base + at->desc};
}

int xdpsink_main(int argc, char **argv) {
    unsigned long warm = 0, queue = 0, got = 0;
    int generator = 0, flags = XDP_COPY;
    for (int option; (option = getopt(argc, argv, "gw:q:za:")) != -1;) {
        switch (option) {
        case 'g': generator = 1; break;
        case 'w': warm = strtoul(optarg, NULL, 0); break;
        case 'q': queue = strtoul(optarg, NULL, 0); break;
        case 'z': flags = XDP_ZEROCOPY; break;
        case 'a': run_on(atoi(optarg)); break;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (argc - optind != 2) {
        fputs(usage, stderr);
        return 2;
    }
    unsigned device = if_nametoindex(argv[optind]);
    unsigned long wanted = strtoul(argv[optind + 1], NULL, 0);
    int fd = socket(AF_XDP, SOCK_RAW, 0), size = FRAMES;
    char *memory = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct xdp_umem_reg umem = {.addr = (__u64)(unsigned long)memory, .len = FRAMES * FRAME, .chunk_size = FRAME};
    struct xdp_mmap_offsets at;
    socklen_t length = sizeof at;
    if (!device || fd < 0 || memory == MAP_FAILED || setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem) ||
        setsockopt(fd, SOL_XDP, XDP_UMEM_FILL_RING, &size, sizeof size) ||
        setsockopt(fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &size, sizeof size) ||
        setsockopt(fd, SOL_XDP, XDP_RX_RING, &size, sizeof size) ||
        getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &length))
        fail("AF_XDP");
    struct ring fill = map_ring(fd, &at.fr, sizeof(__u64), XDP_UMEM_PGOFF_FILL_RING);
    struct ring rx = map_ring(fd, &at.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
    for (unsigned i = 0; i < FRAMES; i++)
        ((__u64 *)fill.entries)[i] = (__u64)i * FRAME;
    __atomic_store_n(fill.producer, FRAMES, __ATOMIC_RELEASE);
    struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP, .sxdp_ifindex = device, .sxdp_queue_id = (__u32)queue, .sxdp_flags = (__u16)flags};
    if (bind(fd, (struct sockaddr *)&address, sizeof address))
        fail("bind");
    int map = make_map(BPF_MAP_TYPE_XSKMAP, 4, 4, 64);
    if (map < 0 || map_set(map, (unsigned)queue, (unsigned)fd))
        fail("xskmap");
    /* r2 = ctx->rx_queue_index; a queue without a socket passes its frames to the stack. */
    struct bpf_insn code[] = {
        {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16},
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map},
        {0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
        {.code = BPF_JMP | BPF_EXIT},
    };
    int program = load_program(BPF_PROG_TYPE_XDP, code, sizeof code / sizeof *code, 0);
    if (program < 0 || attach_xdp(program, device) < 0)
        fail("XDP program");
    if (generator)
        ask_generator(argv[optind]);
    double first = 0, last = 0;
    unsigned long seen = 0;
    unsigned next = 0, filled = FRAMES;
    while (got < wanted) {
        unsigned there = __atomic_load_n(rx.producer, __ATOMIC_ACQUIRE) - next;
        if (!there) {
            struct pollfd wait = {fd, POLLIN, 0};
            if (poll(&wait, 1, 100) <= 0)
                break;
            continue;
        }
        for (unsigned i = 0; i < there; i++) {
            const struct xdp_desc *frame = &((struct xdp_desc *)rx.entries)[(next + i) % FRAMES];
            ((__u64 *)fill.entries)[(filled + i) % FRAMES] = frame->addr & ~(__u64)(FRAME - 1);
        }
        next += there, filled += there, seen += there;
        __atomic_store_n(rx.consumer, next, __ATOMIC_RELEASE);
        __atomic_store_n(fill.producer, filled, __ATOMIC_RELEASE);
        last = now();
        /* The frames that bring the number up to WARM begin the time. */
        if (seen - there < warm || first == 0)
            first = last;
        else
            got += there;
    }
    double rate = last > first ? (double)got / (last - first) : 0.0;
    printf("xdpsink: %lu frames in %.6f s, %.0f a second\n", got, last - first, rate);
    printf("result xdpsink %.1f kpps\n", rate / 1000);
    return got ? 0 : 1;
}
