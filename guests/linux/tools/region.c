/* Regions of interest: markers to the machine and lines on the console. */
#include "tools.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/wait.h>
#include <unistd.h>

/* The marker ports of docs/marker-port.md. */
enum { MARKER_NAME = 0x1f0e, MARKER_CONTROL = 0x1f0f, MARKER_BEGIN = 1, MARKER_END = 2, MARKER_PRESENT = 0x4d };

void mark(int begin, const char *name) {
    if (ioperm(MARKER_NAME, 2, 1))
        return;
    if (inb(MARKER_CONTROL) == MARKER_PRESENT) {
        do
            outb((unsigned char)*name, MARKER_NAME);
        while (*name++);
        outb(begin ? MARKER_BEGIN : MARKER_END, MARKER_CONTROL);
    }
    /* Given back, so that this task has no I/O bitmap to be switched during the region. */
    ioperm(MARKER_NAME, 2, 0);
}

int marker_main(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[1], "begin") && strcmp(argv[1], "end"))) {
        fputs("usage: marker begin|end NAME\n", stderr);
        return 2;
    }
    mark(!strcmp(argv[1], "begin"), argv[2]);
    return 0;
}

int region_main(int argc, char **argv) {
    if (argc < 3) {
        fputs("usage: region NAME COMMAND...\n", stderr);
        return 2;
    }
    const char *name = argv[1];
    say("begin %s", name);
    mark(1, name);
    double begun = now();
    pid_t child = fork();
    if (!child) {
        execvp(argv[2], argv + 2);
        fprintf(stderr, "region: %s: %s\n", argv[2], strerror(errno));
        _exit(127);
    }
    int status = 127 << 8;
    if (child > 0)
        waitpid(child, &status, 0);
    double seconds = now() - begun;
    mark(0, name);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    say("end %s %.6f s, status %d", name, seconds, code);
    return code;
}
