/* Programs of a guest with network devices: one file each, all of them in one executable, which selects one by its
   own name. */
#ifndef NET_TOOLS_H
#define NET_TOOLS_H

#include <stdnoreturn.h>

/* Returns the seconds of the monotonic clock. */
double now(void);
/* Prints the failure and its reason, and ends the program. */
noreturn void fail(const char *what);
/* Sends a datagram from a device, independently of its addresses, to the discard port of all; it starts a generator
   with start=request. */
void ask_generator(const char *device);
/* Moves the program to a processor. */
void run_on(int processor);
/* Returns the result of a bpf(2) command; -1 and errno if it fails. */
struct bpf_insn;
int load_program(unsigned type, const struct bpf_insn *code, unsigned length, unsigned attach);
int make_map(unsigned type, unsigned key, unsigned value, unsigned entries);
int map_set(int map, unsigned key, unsigned value);
/* Attaches an XDP program to a device while the returned link is open or pinned. */
int attach_xdp(int program, unsigned device);

int udpsink_main(int argc, char **argv);
int udpsend_main(int argc, char **argv);
int txrate_main(int argc, char **argv);
int bpfload_main(int argc, char **argv);
int xdpsink_main(int argc, char **argv);
int xfrmhelper_main(int argc, char **argv);

#endif
