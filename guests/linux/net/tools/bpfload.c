/* bpfload: loads one of the few BPF programs that the workloads need. The guest has no compiler, so their
   instructions are listed here. */
#define _GNU_SOURCE
#include "tools.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int bpf(int command, union bpf_attr *attr) { return (int)syscall(SYS_bpf, command, attr, sizeof *attr); }

int load_program(unsigned type, const struct bpf_insn *code, unsigned length, unsigned attach) {
    static char log[4096];
    union bpf_attr attr = {.prog_type = type, .expected_attach_type = attach};
    attr.insns = (__u64)(unsigned long)code, attr.insn_cnt = length;
    attr.license = (__u64)(unsigned long)"GPL";
    attr.log_buf = (__u64)(unsigned long)log, attr.log_size = sizeof log, attr.log_level = 1;
    int fd = bpf(BPF_PROG_LOAD, &attr);
    if (fd < 0)
        fputs(log, stderr);
    return fd;
}

int make_map(unsigned type, unsigned key, unsigned value, unsigned entries) {
    union bpf_attr attr = {.map_type = type, .key_size = key, .value_size = value, .max_entries = entries};
    return bpf(BPF_MAP_CREATE, &attr);
}

int map_set(int map, unsigned key, unsigned value) {
    union bpf_attr attr = {.map_fd = (__u32)map};
    attr.key = (__u64)(unsigned long)&key, attr.value = (__u64)(unsigned long)&value;
    return bpf(BPF_MAP_UPDATE_ELEM, &attr);
}

int attach_xdp(int program, unsigned device) {
    union bpf_attr attr = {0};
    attr.link_create.prog_fd = (__u32)program, attr.link_create.target_ifindex = device;
    attr.link_create.attach_type = BPF_XDP, attr.link_create.flags = XDP_FLAGS_DRV_MODE;
    return bpf(BPF_LINK_CREATE, &attr);
}

static void pin(int fd, const char *path) {
    union bpf_attr attr = {.bpf_fd = (__u32)fd};
    attr.pathname = (__u64)(unsigned long)path;
    if (bpf(BPF_OBJ_PIN, &attr))
        fail(path);
}

static unsigned device(const char *name) {
    unsigned index = if_nametoindex(name);
    if (!index)
        fail(name);
    return index;
}

#define INSN(c, d, s, o, i) ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)})
#define MOVE(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define MAP(d, fd) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_MAP_FD, 0, fd), INSN(0, 0, 0, 0, 0)
#define CALL(f) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, f)
#define EXIT INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

int bpfload_main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "xdp-redirect")) {
        /* FROM TO PIN: all frames that FROM receives leave at TO, which needs a program of its own for that. */
        int map = make_map(BPF_MAP_TYPE_DEVMAP, 4, 4, 1);
        if (map < 0 || map_set(map, 0, device(argv[3])))
            fail("devmap");
        struct bpf_insn redirect[] = {MAP(1, map), MOVE(2, 0), MOVE(3, 0), CALL(BPF_FUNC_redirect_map), EXIT};
        struct bpf_insn pass[] = {MOVE(0, XDP_PASS), EXIT};
        int there = load_program(BPF_PROG_TYPE_XDP, pass, sizeof pass / sizeof *pass, 0);
        int here = load_program(BPF_PROG_TYPE_XDP, redirect, sizeof redirect / sizeof *redirect, 0);
        if (here < 0 || there < 0)
            fail("XDP program");
        char path[256];
        int links[] = {attach_xdp(there, device(argv[3])), attach_xdp(here, device(argv[2]))};
        for (int i = 0; i < 2; i++) {
            if (links[i] < 0)
                fail("XDP link");
            snprintf(path, sizeof path, "%s-%d", argv[4], i);
            pin(links[i], path);
        }
        return 0;
    }
    if (argc == 4 && !strcmp(argv[1], "xdp-tx")) {
        /* DEVICE PIN: all that it receives goes out again there, as it is. */
        struct bpf_insn code[] = {MOVE(0, XDP_TX), EXIT};
        int program = load_program(BPF_PROG_TYPE_XDP, code, sizeof code / sizeof *code, 0);
        int link = program < 0 ? -1 : attach_xdp(program, device(argv[2]));
        if (link < 0)
            fail("XDP program");
        pin(link, argv[3]);
        return 0;
    }
    if (argc == 4 && !strcmp(argv[1], "tc-redirect")) {
        /* TO PIN: a classifier that sends everything out at TO. */
        struct bpf_insn code[] = {MOVE(1, (int)device(argv[2])), MOVE(2, 0), CALL(BPF_FUNC_redirect), EXIT};
        int program = load_program(BPF_PROG_TYPE_SCHED_CLS, code, sizeof code / sizeof *code, 0);
        if (program < 0)
            fail("classifier");
        pin(program, argv[3]);
        return 0;
    }
    fputs("usage: bpfload xdp-redirect FROM TO PIN\n"
          "       bpfload xdp-tx DEVICE PIN\n"
          "       bpfload tc-redirect TO PIN\n",
          stderr);
    return 2;
}
