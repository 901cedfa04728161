/* Regions of interest: markers to the machine and lines on the console. */
#include "tools.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/wait.h>
#include <unistd.h>

/* The marker ports of docs/marker-port.md. */
enum { MARKER_NAME = 0x1f0e, MARKER_CONTROL = 0x1f0f, MARKER_PRESENT = 0x4d };

void mark(enum mark what, const char *name) {
    if (ioperm(MARKER_NAME, 2, 1)) {
        if (what != MARK_END && errno == ENOSYS)
            fprintf(stderr, "region %s: this kernel lets no program use I/O ports (CONFIG_X86_IOPL_IOPERM)\n", name);
        return;
    }
    if (inb(MARKER_CONTROL) == MARKER_PRESENT) {
        do
            outb((unsigned char)*name, MARKER_NAME);
        while (*name++);
        outb((unsigned char)what, MARKER_CONTROL);
    }
    /* The ports are given back, so that this task has no I/O bitmap to be switched during the region. */
    ioperm(MARKER_NAME, 2, 0);
}

int marker_main(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[1], "begin") && strcmp(argv[1], "end"))) {
        fputs("usage: marker begin|end NAME\n", stderr);
        return 2;
    }
    /* The region covers the work of other processes after this one has ended. */
    mark(strcmp(argv[1], "begin") ? MARK_END : MARK_BEGIN_ALL, argv[2]);
    return 0;
}

int region_main(int argc, char **argv) {
    enum mark begin = MARK_BEGIN;
    if (argc > 1 && !strcmp(argv[1], "-a")) {
        begin = MARK_BEGIN_ALL;
        argv++, argc--;
    }
    if (argc < 3) {
        fputs("usage: region [-a] NAME COMMAND...\n"
              "  -a  all that the machine does meanwhile, not the command and its descendants alone\n",
              stderr);
        return 2;
    }
    const char *name = argv[1];
    say("begin %s", name);
    mark(begin, name);
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
    mark(MARK_END, name);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    say("end %s %.6f s, status %d", name, seconds, code);
    return code;
}
