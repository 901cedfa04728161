/* fork, exec and wait, many times, as in a shell script or a build. */
#include "tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int spawn_main(int argc, char **argv) {
    char *end = "";
    long count = argc > 2 ? strtol(argv[1], &end, 10) : 0;
    if (count < 1 || *end) {
        fputs("usage: spawn COUNT COMMAND...\n", stderr);
        return 2;
    }
    for (long i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) {
            fprintf(stderr, "spawn: fork: %s\n", strerror(errno));
            return 1;
        }
        if (!child) {
            execv(argv[2], argv + 2);
            fprintf(stderr, "spawn: %s: %s\n", argv[2], strerror(errno));
            _exit(127);
        }
        int status;
        if (waitpid(child, &status, 0) < 0 || status) {
            fprintf(stderr, "spawn: %s ended with status %x\n", argv[2], status);
            return 1;
        }
    }
    return 0;
}
