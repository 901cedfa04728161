/* Tests of extended state, as the first process of a machine: AMX's tiles and shadow stacks as Linux gives them to programs. */
#include "xstate.h"

#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <unistd.h>

static int passed, failed, skipped;

void check(const char *name, int good) {
    printf("%s  %s\n", good ? "pass" : "FAIL", name);
    *(good ? &passed : &failed) += 1;
}

void skip(const char *name, const char *why) {
    printf("skip  %s: %s\n", name, why);
    skipped += 1;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    amx();
    shadow_stacks();
    printf("xstate: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    fflush(stdout);
    sync();
    if (getpid() == 1) reboot(RB_POWER_OFF);
    return failed != 0;
}
