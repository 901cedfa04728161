/* Regions of interest: markers to the machine and lines on the console. */
#include "tools.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The machine's marker port: the bytes of the name, then what to do with it. */
enum { MARKER_NAME = 0x1e0, MARKER_CONTROL = 0x1e1, MARKER_END = 0, MARKER_BEGIN = 1 };

void mark(int begin, const char *name) {
    /* /dev/port leaves this task without an I/O bitmap of its own, which would cost at each of its context switches. */
    int port = open("/dev/port", O_WRONLY | O_CLOEXEC);
    if (port < 0)
        return;
    for (const char *at = name; *at; at++)
        if (pwrite(port, at, 1, MARKER_NAME) != 1)
            break;
    char control = begin ? MARKER_BEGIN : MARKER_END;
    if (pwrite(port, &control, 1, MARKER_CONTROL) != 1)
        say("the marker port refused %s", name);
    close(port);
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
