/* Tiles under Linux: permission, IA32_XFD, context switches, signals. */
#include "xstate.h"

#include <errno.h>
#include <immintrin.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARCH_GET_XCOMP_SUPP 0x1021
#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XTILEDATA 18
#define AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))

struct config {
    unsigned char palette, start_row, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
};

static volatile int handled;
static unsigned char memory[4][1024] __attribute__((aligned(64)));
static sigjmp_buf escape;

static AMX void configure(void) {
    struct config config = {.palette = 1};
    for (int n = 0; n < 8; n++) {
        config.bytes[n] = 64;
        config.rows[n] = 16;
    }
    /* The compiler assumes that eight bytes are read. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

static void leave(int signal) {
    handled = signal;
    siglongjmp(escape, 1);
}

/* Returns true if executing `what` raises a signal. */
static int raises(int signal_wanted, void (*what)(void)) {
    handled = 0;
    signal(signal_wanted, leave);
    if (!sigsetjmp(escape, 1)) what();
    signal(signal_wanted, SIG_DFL);
    return handled == signal_wanted;
}

static AMX void use_tiles(void) {
    configure();
    _tile_loadd(0, memory[0], 64);
    _tile_release();
}

static void fill(unsigned seed) {
    for (int n = 0; n < 1024; n++) memory[0][n] = (seed = seed * 1103515245u + 12345) >> 16;
    memcpy(memory[1], memory[0], 1024);
}

/* Runs two processes that alternate, with different data in the same tiles. */
static AMX int turns(unsigned seed) {
    fill(seed);
    configure();
    _tile_loadd(3, memory[0], 64);
    for (int n = 0; n < 200; n++) {
        if (n % 3)
            sched_yield();
        else
            usleep(1);
        _tile_stored(3, memory[2], 64);
        if (memcmp(memory[2], memory[1], 1024)) return 1;
    }
    _tile_release();
    return 0;
}

static AMX void overwrite(int signal) {
    handled = signal;
    /* A handler begins with tiles in their initial state. */
    struct config config;
    _tile_storeconfig(&config);
    __asm__ volatile("" : : "r"(&config) : "memory");
    if (config.palette) handled = -1;
    configure();
    _tile_zero(3);
    _tile_loadd(0, memory[3], 64);
}

static AMX int across_signals(void) {
    fill(7);
    configure();
    _tile_loadd(3, memory[0], 64);
    _tile_loadd(0, memory[0], 64);
    signal(SIGUSR1, overwrite);
    for (int n = 0; n < 20; n++) {
        handled = 0;
        kill(getpid(), SIGUSR1);
        if (handled != SIGUSR1) return 1;
        _tile_stored(3, memory[2], 64);
        if (memcmp(memory[2], memory[1], 1024)) return 2;
        _tile_stored(0, memory[2], 64);
        if (memcmp(memory[2], memory[1], 1024)) return 3;
    }
    _tile_release();
    return 0;
}

static AMX int products(void) {
    int sums[16][16], expected;
    fill(99);
    configure();
    _tile_zero(0);
    _tile_loadd(1, memory[0], 64);
    _tile_loadd(2, memory[1], 64);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, 64);
    __asm__ volatile("" : : "r"(sums) : "memory");
    _tile_release();
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            expected = 0;
            for (int k = 0; k < 16; k++)
                for (int b = 0; b < 4; b++)
                    expected += (signed char)memory[0][64 * m + 4 * k + b] * (signed char)memory[1][64 * k + 4 * n + b];
            if (sums[m][n] != expected) return 1;
        }
    return 0;
}

static int child(int (*what)(void)) {
    int status;
    pid_t pid = fork();
    if (!pid) _exit(what());
    waitpid(pid, &status, 0);
    return status;
}

static int first_turn(void) { return turns(1); }

void amx(void) {
    unsigned long mask = 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &mask) || !(mask >> XTILEDATA & 1)) {
        skip("tiles", "the kernel offers none");
        return;
    }
    unsigned long small = getauxval(AT_MINSIGSTKSZ);
    check("tiles without permission are SIGILL", raises(SIGILL, use_tiles));
    check("permission is granted", !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA));
    check("... and shown", !syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &mask) && mask >> XTILEDATA & 1);
    check("a signal frame has room for tiles", small > 8192);
    check("tiles with permission are not", !raises(SIGILL, use_tiles));
    check("products", products() == 0);
    pid_t other = fork();
    if (!other) _exit(turns(2));
    check("tiles across context switches", turns(3) == 0);
    int status = 1;
    waitpid(other, &status, 0);
    check("... of a child that inherits the permission", status == 0);
    check("a child's tiles of its own", child(first_turn) == 0);
    check("tiles across signals", across_signals() == 0);
}
