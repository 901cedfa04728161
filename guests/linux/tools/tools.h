/* The tools of the guest image; main.c dispatches to them by name. */
#ifndef TOOLS_H
#define TOOLS_H

/* Runs as process 1: mounts, loads modules, changes to the root disk if told to, runs the workload, powers off. */
int init_main(int argc, char **argv);
/* region [-a] NAME COMMAND...: runs the command between markers and prints how long it took in guest time. */
int region_main(int argc, char **argv);
/* marker begin|end NAME: marks a region from a script. */
int marker_main(int argc, char **argv);
/* A processor-bound program: sieve, hash, sort, floating-point sum. */
int compute_main(int argc, char **argv);
/* spawn COUNT COMMAND...: fork, exec and wait, COUNT times. */
int spawn_main(int argc, char **argv);

/* Prints one line on the console, with the prefix by which host tools find it. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Returns guest time in seconds. */
double now(void);
/* Commands of the marker port: begin a region of this task and its descendants, end a region, begin a region of all
   that the machine does. */
enum mark { MARK_BEGIN = 1, MARK_END = 2, MARK_BEGIN_ALL = 3 };
/* Tells the machine that a region begins or ends, if it has a marker port; otherwise this has no effect. */
void mark(enum mark what, const char *name);

#endif
