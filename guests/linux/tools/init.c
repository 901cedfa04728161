/* Process 1 of the guest image. As /init of an initramfs it may load modules and move to a root disk
   (root=/dev/vda); as /sbin/init, or without root=, it runs the workload that the kernel command line names
   (tollgate.run=, or tollgate.run-base64= for values of any bytes; with `-` the machine names it), tells the machine its exit status, and powers the machine off. */
#define _GNU_SOURCE
#include "tools.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { DISK_WAIT_MS = 10000, CONSOLE_WAIT_MS = 1000, POLL_MS = 5 };
/* The status port of docs/marker-port.md, and init's exit status if it cannot run the workload. */
enum { STATUS_PORT = 0x1f0d, STATUS_PRESENT = 0x53, NO_WORKLOAD = 127 };

/* The workload port of the same document. */
enum { WORKLOAD_PORT = 0x1f0b, WORKLOAD_WAIT = 'W', WORKLOAD_READY = 'R', WORKLOAD_POLL_MS = 1 };

/* Tells the machine the exit status of the run, if it has a status port. */
static void report(int status) {
    if (ioperm(STATUS_PORT, 1, 1))
        return;
    if (inb(STATUS_PORT) == STATUS_PRESENT)
        outb((unsigned char)status, STATUS_PORT);
    ioperm(STATUS_PORT, 1, 0);
}

_Noreturn static void power_off(int status) {
    report(status);
    tcdrain(1); /* otherwise the last lines are lost on machines that model the line's speed */
    sync();
    mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

_Noreturn static void give_up(const char *what) {
    say("%s: %s", what, strerror(errno));
    power_off(NO_WORKLOAD);
}

static void mount_kernel_file_systems(void) {
    static const struct {
        const char *type, *at;
    } systems[] = {{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/tmp"}};
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++) {
        mkdir(systems[i].at, 0755);
        /* EBUSY means that the kernel, or the stage before this one, has already mounted it. */
        if (mount(systems[i].type, systems[i].at, systems[i].type, 0, NULL) && errno != EBUSY)
            say("mount %s: %s", systems[i].at, strerror(errno));
    }
}

static int have_console(void) {
    return fcntl(0, F_GETFD) >= 0;
}

/* Opens the console. The kernel opens /dev/console for init if it finds one; an image without that file gets it from
   devtmpfs. A console whose driver is a module of this image appears late; `patience` is the time to wait for it in
   milliseconds. */
static void open_console(const char *device, int patience) {
    if (have_console())
        return;
    int console;
    while ((console = open(device, O_RDWR)) < 0 && patience > 0) {
        usleep(POLL_MS * 1000);
        patience -= POLL_MS;
    }
    if (console < 0)
        return;
    for (int fd = 0; fd < 3; fd++)
        dup2(console, fd);
    if (console > 2)
        close(console);
}

static const char serial_port[] = "/dev/ttyS0";

/* Opens the serial port in place of a console that the kernel command line names and that has no driver, which never
   appears. Without any console the workload would read nothing, print nothing and seem to succeed. */
static int open_serial_port(void) {
    if (have_console())
        return 0;
    open_console(serial_port, 0);
    if (!have_console())
        power_off(NO_WORKLOAD);
    struct termios line;
    if (!tcgetattr(0, &line) && !cfsetspeed(&line, B115200))
        tcsetattr(0, TCSANOW, &line);
    say("/dev/console cannot be opened: the kernel has no driver for the console that console= names; using %s", serial_port);
    return 1;
}

/* Opens the serial port again: the end of a session, such as a shell's, hangs its terminal up for all processes that
   have it open; only /dev/console is spared. */
static void open_serial_port_again(void) {
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    open_console(serial_port, 0);
}

/* Returns the value of the last such word of the kernel command line; quotes around the value keep its spaces. The
   next call overwrites the result. */
static const char *kernel_argument(const char *key) {
    static char line[4096];
    int file = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, line, sizeof line - 1);
    if (file >= 0)
        close(file);
    if (length < 0)
        length = 0;
    line[length] = 0;
    size_t key_length = strlen(key);
    const char *found = NULL;
    for (char *word = line; *word;) {
        char *end = word;
        for (int quoted = 0; *end && *end != '\n' && (quoted || *end != ' '); end++)
            if (*end == '"')
                quoted = !quoted;
        char *next = *end ? end + 1 : end;
        *end = 0;
        /* Loaders and shells quote either the value or the whole word. */
        if (*word == '"')
            word++;
        if (!strncmp(word, key, key_length) && word[key_length] == '=') {
            char *value = word + key_length + 1;
            if (*value == '"')
                value++;
            size_t left = strlen(value);
            if (left && value[left - 1] == '"')
                value[left - 1] = 0;
            found = value;
        }
        word = next;
    }
    return found;
}

/* Returns what `text` encodes in base64; NULL if it is not base64, or there is no memory. */
static char *decoded(const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = strcspn(text, "="), padding = strlen(text + length);
    if (strspn(text, digits) != length || strspn(text + length, "=") != padding || (length + padding) % 4 || padding > 2)
        return NULL;
    char *bytes = malloc(length / 4 * 3 + 3), *end = bytes;
    if (!bytes)
        return NULL;
    unsigned value = 0;
    for (size_t i = 0; i < length; i++) {
        value = value << 6 | (unsigned)(strchr(digits, text[i]) - digits);
        if (i % 4)
            *end++ = (char)(value >> (6 - i % 4 * 2));
    }
    *end = 0;
    return bytes;
}

/* Prints how a workload ended, in one line whatever its text is. */
static void say_end(const char *workload, int status) {
    int shown = (int)strcspn(workload, "\n\r");
    say("workload %.*s%s: status %d, up %.6f s", shown, workload, workload[shown] ? "..." : "", status, now());
}

/* Loads the modules in the order of the image: each after its dependencies. */
static void load_modules(void) {
    FILE *order = fopen("/modules/order", "r");
    if (!order)
        return;
    char path[256] = "/modules/";
    size_t base = strlen(path);
    while (fgets(path + base, (int)(sizeof path - base), order)) {
        path[strcspn(path, "\n")] = 0;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0 || (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST && errno != ENODEV))
            say("module %s: %s", path + base, strerror(errno));
        if (file >= 0)
            close(file);
    }
    fclose(order);
}

/* Mounts the root as mount(8) does: a device that cannot be written is mounted for reading. A journal that is not
   empty cannot be replayed there; without it the file system is in the state that an interrupted run left. */
static void mount_root(const char *device) {
    int refused = mount(device, "/disk", "ext4", 0, NULL);
    if (refused && (errno == EACCES || errno == EROFS)) {
        refused = mount(device, "/disk", "ext4", MS_RDONLY, NULL);
        if (refused && errno == EROFS) {
            say("%s: read-only, its journal is not replayed", device);
            refused = mount(device, "/disk", "ext4", MS_RDONLY, "noload");
        }
    }
    if (refused)
        give_up(device);
}

_Noreturn static void enter_disk(const char *device) {
    for (int waited = 0; access(device, F_OK); waited += POLL_MS) {
        if (waited >= DISK_WAIT_MS)
            give_up(device);
        usleep(POLL_MS * 1000);
    }
    mkdir("/disk", 0755);
    mount_root(device);
    if (mount("/dev", "/disk/dev", NULL, MS_MOVE, NULL) || chdir("/disk") || mount(".", "/", NULL, MS_MOVE, NULL) ||
        chroot(".") || chdir("/"))
        give_up("changing to the root disk");
    execl("/sbin/init", "/sbin/init", (char *)NULL);
    give_up("/sbin/init");
}

/* Returns the machine's answer at the port of docs/marker-port.md; NULL if there is no port or no answer. The answer
   may be delayed: a machine that is saved meanwhile can be given another one. */
static const char *workload_of_machine(void) {
    static char text[4097];
    size_t length = 0;
    if (ioperm(WORKLOAD_PORT, 2, 1))
        return NULL;
    unsigned char state;
    while ((state = inb(WORKLOAD_PORT)) == WORKLOAD_WAIT)
        usleep(WORKLOAD_POLL_MS * 1000);
    while (state == WORKLOAD_READY && length < sizeof text - 1 && (text[length] = (char)inb(WORKLOAD_PORT + 1)))
        length++;
    ioperm(WORKLOAD_PORT, 2, 0);
    return length ? text : NULL;
}

static int run_workload(const char *workload) {
    char path[300];
    snprintf(path, sizeof path, "/workloads/%s", workload);
    int named = !strchr(workload, '/') && !access(path, R_OK);
    pid_t child = fork();
    if (!child) {
        if (named)
            execl("/bin/sh", "sh", path, (char *)NULL);
        else
            execl("/bin/sh", "sh", "-c", workload, (char *)NULL);
        say("/bin/sh: %s", strerror(errno));
        _exit(NO_WORKLOAD);
    }
    int status = NO_WORKLOAD << 8;
    for (;;) {
        int reaped_status;
        pid_t reaped = wait(&reaped_status);
        if (reaped == child)
            status = reaped_status;
        if (reaped == child || (reaped < 0 && errno == ECHILD))
            break;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int init_main(int argc, char **argv) {
    (void)argc;
    if (getpid() != 1) {
        fputs("init: only as process 1\n", stderr);
        return 2;
    }
    mount_kernel_file_systems();
    open_console("/dev/console", 0);
    setenv("PATH", "/bin:/sbin:/usr/bin:/usr/sbin", 1);
    setenv("HOME", "/", 1);
    int from_initramfs = !strcmp(argv[0], "/init");
    if (from_initramfs) {
        load_modules();
        open_console("/dev/console", CONSOLE_WAIT_MS);
    }
    int on_serial_port = open_serial_port();
    const char *root = from_initramfs ? kernel_argument("root") : NULL;
    if (root)
        enter_disk(root);

    struct utsname kernel;
    uname(&kernel);
    say("Linux %s, processors: %ld, up %.6f s", kernel.release, sysconf(_SC_NPROCESSORS_ONLN), now());
    const char *argument = kernel_argument("tollgate.run");
    int asks = argument && !strcmp(argument, "-");
    if (asks)
        argument = workload_of_machine();
    if (asks && !argument) {
        say("no workload: tollgate.run=- takes what is given with --workload");
        power_off(NO_WORKLOAD);
    }
    char *workload = strdup(argument ? argument : "demo");
    /* A quotation mark within a value lets the next space end it. */
    size_t marks = 0;
    for (const char *at = argument && !asks ? strchr(argument, '"') : NULL; at; at = strchr(at + 1, '"'))
        marks++;
    if (marks % 2) {
        say("tollgate.run= is cut at a space between quotation marks within it: give it as tollgate.run-base64=, encoded by: base64 -w 0");
        power_off(NO_WORKLOAD);
    }
    const char *encoded = argument ? NULL : kernel_argument("tollgate.run-base64");
    if (encoded) {
        free(workload);
        workload = decoded(encoded);
        if (!workload) {
            say("tollgate.run-base64= is not base64");
            power_off(NO_WORKLOAD);
        }
    }
    int status = workload ? run_workload(workload) : NO_WORKLOAD;
    if (on_serial_port)
        open_serial_port_again();
    say_end(workload ? workload : "", status);
    power_off(status);
}
