/* One static binary for everything that the guest image adds to its packages; the name of the call selects the tool. */
#include "tools.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} tools[] = {
    {"init", init_main}, {"region", region_main}, {"marker", marker_main}, {"compute", compute_main}, {"spawn", spawn_main},
};

void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("tollgate: ", stdout);
    vprintf(format, list);
    putchar('\n');
    fflush(stdout);
    va_end(list);
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (!strcmp(name, tools[i].name))
            return tools[i].run(argc, argv);
    fprintf(stderr, "%s: no such tool\n", name);
    return 127;
}
