/* Process 1 of a guest that runs one command of the host (`tollgate exec`). The initial RAM disk holds only it and
   modules of the kernel. It prepares the machine and reports that to the machine (which may then be saved, and
   restored for other commands), reads its orders from the channel `control`, runs the command with its standard
   streams connected to channels, reports the command's end, and powers the machine off. Other commands may join the
   guest meanwhile: their orders and their streams are records on the channel `control`. docs/guides/exec.md
   describes the command's environment; the records on the channel are those of
   crates/tollgate/src/exec_cmd/control.rs. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* The file with the name of the kernel's clock source. */
#define CLOCK_SOURCE "/sys/devices/system/clocksource/clocksource0/current_clocksource"

/* The ports of docs/marker-port.md. */
enum { WORKLOAD_PORT = 0x1f0b, WORKLOAD_WAIT = 'W', MARKER_NAME = 0x1f0e, MARKER_COMMAND = 0x1f0f, MARKER_PRESENT = 'M' };
enum { MARK_BEGIN = 1, MARK_END, MARK_BEGIN_ALL };
enum { POLL_US = 1000, PORT_WAIT_US = 5000000, NETWORK_WAIT_US = 5000000, SETTLE_WAIT_MS = 3600000,
       TIMERS_WAIT_US = 2000000, TWO_TICKS_US = 20000 };
enum { PIECE = 64 << 10, MOST_WORDS = 1 << 16, LARGEST_RECORD = 16 << 20 };
/* The exit statuses of shells. */
enum { NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
/* Bits of the record `t`: the streams that are the terminal. */
enum { STREAMS = 3 };
/* Commands that join: how many at a time, and the bytes that either side sends before the other one has taken some of
   them. A record has at most JOIN_PIECE of these. */
enum { MOST_JOINS = 8, WINDOW = PIECE, JOIN_PIECE = 32 << 10 };

static const char *const channel_names[] = {"control", "stdin", "stdout", "stderr"};
enum { CONTROL, INPUT, OUTPUT, ERRORS, CHANNELS };
static int channels[CHANNELS];

/* What the host orders: the command and its surroundings, and how the guest is made ready for it. */
struct order {
    char **arguments, **environment;
    size_t argument_count, environment_count;
    const char *directory, *network;
    uid_t user;
    gid_t groups[64];
    size_t group_count;
    unsigned terminal;
    struct winsize size;
    int packed_in_archive, settles, describes;
    char *binds[32];
    size_t bind_count;
};

/* The order of the command that the guest was started for. */
static struct order order;

static void write_all(int file, const void *data, size_t length) {
    for (const char *at = data; length;) {
        ssize_t written = write(file, at, length);
        if (written < 0 && errno != EINTR && errno != EAGAIN)
            return;
        if (written > 0) {
            at += written;
            length -= (size_t)written;
        }
    }
}

/* Sends a record: a letter, the length, the text. */
static void tell(char kind, const void *data, uint32_t length) {
    unsigned char head[5] = {(unsigned char)kind};
    memcpy(head + 1, &length, sizeof length);
    write_all(channels[CONTROL], head, sizeof head);
    write_all(channels[CONTROL], data, length);
}

_Noreturn static void power_off(void) {
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

/* Ends the run with a reason that the host shows. */
_Noreturn static void give_up(const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (length < 0)
        length = 0;
    if ((size_t)length >= sizeof text)
        length = sizeof text - 1;
    if (channels[CONTROL] > 0)
        tell('f', text, (uint32_t)length);
    else
        fprintf(stderr, "tollgate: exec: %s\n", text);
    power_off();
}

static void mount_at(const char *type, const char *at, const char *options) {
    mkdir(at, 0755);
    if (mount(type, at, type, 0, options) && errno != EBUSY)
        give_up("%s can't be mounted at %s: %s", type, at, strerror(errno));
}

/* Loads the modules in their given order. */
static void load_modules(void) {
    FILE *names = fopen("/modules/order", "r");
    if (!names)
        return;
    char path[256] = "/modules/";
    size_t base = strlen(path);
    while (fgets(path + base, (int)(sizeof path - base), names)) {
        path[strcspn(path, "\n")] = 0;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0 || (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST && errno != ENODEV))
            fprintf(stderr, "tollgate: exec: module %s: %s\n", path + base, strerror(errno));
        if (file >= 0)
            close(file);
        unlink(path);
    }
    fclose(names);
}

/* Returns the number of the channel that a virtio port is, by its name; -1 if it is none. */
static int channel_of(const char *port) {
    char path[300], name[64] = "";
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", port);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, name, sizeof name - 1);
    close(file);
    name[length > 0 ? length : 0] = 0;
    name[strcspn(name, "\n")] = 0;
    for (int channel = 0; channel < CHANNELS; channel++)
        if (!strcmp(name, channel_names[channel]))
            return channel;
    return -1;
}

static int open_channels(void) {
    int found = 0;
    DIR *ports = opendir("/sys/class/virtio-ports");
    if (!ports)
        return 0;
    for (struct dirent *entry; (entry = readdir(ports));) {
        int channel = channel_of(entry->d_name);
        if (channel < 0)
            continue;
        char path[300];
        snprintf(path, sizeof path, "/dev/%s", entry->d_name);
        if (channels[channel] <= 0)
            channels[channel] = open(path, O_RDWR | O_CLOEXEC);
        found += channels[channel] > 0;
    }
    closedir(ports);
    return found == CHANNELS;
}

/* Waits for the orders. The machine may be saved here; the orders are known only afterwards. */
static void wait_for_order(void) {
    if (ioperm(WORKLOAD_PORT, 1, 1))
        return;
    while (inb(WORKLOAD_PORT) == WORKLOAD_WAIT)
        usleep(POLL_US);
    ioperm(WORKLOAD_PORT, 1, 0);
}

static void read_all(void *to, size_t length) {
    for (char *at = to; length;) {
        ssize_t got = read(channels[CONTROL], at, length);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
            give_up("the host sent no command");
        if (got > 0) {
            at += got;
            length -= (size_t)got;
        }
    }
}

/* Reads the next record; a zero that is not part of the text ends it. */
static char next_record(char **text, uint32_t *length) {
    unsigned char head[5];
    read_all(head, sizeof head);
    memcpy(length, head + 1, sizeof *length);
    if (*length > LARGEST_RECORD || !(*text = malloc(*length + 1)))
        give_up("a record of %u bytes", *length);
    read_all(*text, *length);
    (*text)[*length] = 0;
    return (char)head[0];
}

/* Adds a word to a list; returns false if the list is full. */
static int add_word(char ***words, size_t *count, char *word) {
    if (*count >= MOST_WORDS)
        return 0;
    if (*count % 64 == 0) {
        char **more = realloc(*words, (*count + 65) * sizeof **words);
        if (!more)
            return 0;
        *words = more;
    }
    (*words)[(*count)++] = word;
    (*words)[*count] = NULL;
    return 1;
}

static void set_size(struct winsize *size, const char *text) {
    unsigned rows = 24, columns = 80;
    sscanf(text, "%u %u", &rows, &columns);
    size->ws_row = (unsigned short)rows;
    size->ws_col = (unsigned short)columns;
}

/* Takes a part of an order that every command has; returns false if the record is another one or has no room. */
static int take_order(struct order *to, char kind, char *text) {
    switch (kind) {
    case 'a': return add_word(&to->arguments, &to->argument_count, text);
    case 'e': return add_word(&to->environment, &to->environment_count, text);
    case 'c': to->directory = text; return 1;
    case 't': to->terminal = (unsigned)atoi(text); return 1;
    case 'w': set_size(&to->size, text); return 1;
    case 'u': {
        char *rest = text;
        to->user = (uid_t)strtoul(rest, &rest, 10);
        while (*rest && to->group_count < sizeof to->groups / sizeof *to->groups)
            to->groups[to->group_count++] = (gid_t)strtoul(rest, &rest, 10);
        return 1;
    }
    default: return 0;
    }
}

static void read_order(void) {
    for (;;) {
        char *text;
        uint32_t length;
        char kind = next_record(&text, &length);
        switch (kind) {
        case 'n': order.network = text; break;
        case 'i': order.packed_in_archive = 1; break;
        case 's': order.settles = 1; break;
        case 'f': order.describes = 1; break;
        case 'b':
            if (order.bind_count < sizeof order.binds / sizeof *order.binds)
                order.binds[order.bind_count++] = text;
            break;
        case 'd': {
            struct timespec time = {.tv_sec = atoll(text)};
            clock_settime(CLOCK_REALTIME, &time);
            break;
        }
        case 'g':
            if (!order.argument_count)
                give_up("no command");
            return;
        default:
            if (!take_order(&order, kind, text))
                give_up("the host sent a record of unknown type, or too many words");
        }
    }
}

static void make_path(const char *path) {
    char copy[PATH_MAX + 64];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *at = copy + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            mkdir(copy, 0755);
            *at = '/';
        }
    mkdir(copy, 0755);
}

#define NEW "/new"

/* Handles a record `SOURCE\nTARGET\nro` or `...\nrw`. */
static void bind_share(char *text) {
    char *target = strchr(text, '\n'), *mode = target ? strchr(target + 1, '\n') : NULL;
    if (!mode)
        give_up("a share without a place");
    *target++ = 0;
    *mode++ = 0;
    if (strlen(target) >= PATH_MAX || strlen(text) >= PATH_MAX)
        give_up("a path that is too long");
    char from[PATH_MAX + 16], to[PATH_MAX + 16];
    snprintf(from, sizeof from, "/host/%.*s", PATH_MAX, text);
    snprintf(to, sizeof to, NEW "%.*s", PATH_MAX, target);
    make_path(to);
    if (mount(from, to, NULL, MS_BIND, NULL))
        give_up("the share at %s can't be mounted: %s", target, strerror(errno));
    if (!strcmp(mode, "ro") && mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL))
        give_up("the share at %s can't be made read-only: %s", target, strerror(errno));
}

static void move(const char *from) {
    char to[64];
    snprintf(to, sizeof to, NEW "%s", from);
    mkdir(to, 0755);
    if (mount(from, to, NULL, MS_MOVE, NULL))
        give_up("%s can't be moved: %s", from, strerror(errno));
}

/* Makes the command's files: the packed or shared ones, under a layer in memory that takes writes. */
static void make_root(void) {
    mkdir(NEW, 0755);
    mkdir("/host", 0755);
    int shared = !order.packed_in_archive || order.bind_count;
    if (shared && mount("tollgate", "/host", "virtiofs", 0, NULL))
        give_up("the files can't be mounted (virtiofs): %s", strerror(errno));
    if (order.packed_in_archive) {
        if (mount("/payload", NEW, NULL, MS_BIND, NULL))
            give_up("the files can't be mounted: %s", strerror(errno));
    } else {
        mount_at("tmpfs", "/layer", "mode=0755");
        mkdir("/layer/upper", 0755);
        mkdir("/layer/work", 0755);
        if (mount("overlay", NEW, "overlay", 0, "lowerdir=/host/root,upperdir=/layer/upper,workdir=/layer/work"))
            give_up("the layer for what is written can't be mounted (overlay): %s", strerror(errno));
    }
    for (size_t i = 0; i < order.bind_count; i++)
        bind_share(order.binds[i]);
    move("/dev");
    move("/proc");
    move("/sys");
    if (chdir(NEW) || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        give_up("the new root can't be entered: %s", strerror(errno));
    mount_at("devpts", "/dev/pts", "ptmxmode=0666,mode=0620,gid=5");
    mount_at("tmpfs", "/dev/shm", "mode=1777");
    if (mkdir("/tmp", 01777) == 0)
        chmod("/tmp", 01777);
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
}

static void set_up(int socket, const char *interface) {
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    if (ioctl(socket, SIOCGIFFLAGS, &request) == 0) {
        request.ifr_flags |= IFF_UP;
        ioctl(socket, SIOCSIFFLAGS, &request);
    }
}

static void set_address(int socket, const char *interface, unsigned long what, const char *address) {
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    in->sin_family = AF_INET;
    if (inet_pton(AF_INET, address, &in->sin_addr) != 1 || ioctl(socket, what, &request))
        give_up("the network can't be set up (%s): %s", address, strerror(errno));
}

/* Handles `ADDRESS MASK ROUTER NAMES` for the first interface; NAMES is the name server. */
static void set_network(void) {
    int socket_file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_file < 0)
        return;
    set_up(socket_file, "lo");
    char address[64], mask[64], router[64], names[64];
    if (order.network && sscanf(order.network, "%63s %63s %63s %63s", address, mask, router, names) == 4) {
        for (int waited = 0; access("/sys/class/net/eth0", F_OK) && waited < NETWORK_WAIT_US; waited += POLL_US)
            usleep(POLL_US);
        set_address(socket_file, "eth0", SIOCSIFADDR, address);
        set_address(socket_file, "eth0", SIOCSIFNETMASK, mask);
        set_up(socket_file, "eth0");
        struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};
        ((struct sockaddr_in *)&route.rt_dst)->sin_family = AF_INET;
        ((struct sockaddr_in *)&route.rt_genmask)->sin_family = AF_INET;
        struct sockaddr_in *gateway = (struct sockaddr_in *)&route.rt_gateway;
        gateway->sin_family = AF_INET;
        inet_pton(AF_INET, router, &gateway->sin_addr);
        if (ioctl(socket_file, SIOCADDRT, &route))
            give_up("there is no way to %s: %s", router, strerror(errno));
        /* In a host's tree it may be a link to a file that a service writes. */
        unlink("/etc/resolv.conf");
        FILE *file = fopen("/etc/resolv.conf", "we");
        if (file) {
            fprintf(file, "nameserver %s\n", names);
            fchmod(fileno(file), 0644);
            fclose(file);
        }
    }
    close(socket_file);
}

/* Begins or ends a region of interest: that of this process and its descendants, or that of everything. */
static void mark(unsigned char command, const char *name) {
    if (ioperm(MARKER_NAME, 2, 1))
        return;
    if (inb(MARKER_COMMAND) == MARKER_PRESENT) {
        do
            outb((unsigned char)*name, MARKER_NAME);
        while (*name++);
        outb(command, MARKER_COMMAND);
    }
    ioperm(MARKER_NAME, 2, 0);
}

/* Returns the resolution of timers, in nanoseconds: 1, or a tick; 0 if it is not known. */
static long long timer_resolution(void) {
    struct timespec resolution;
    return clock_getres(CLOCK_MONOTONIC, &resolution) ? 0 : resolution.tv_sec * 1000000000LL + resolution.tv_nsec;
}

/* Returns true if the kernel uses the TSC only until it has measured its frequency again. */
static int has_early_clock(void) {
    char name[16] = "";
    int file = open(CLOCK_SOURCE, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, name, sizeof name - 1);
    close(file);
    return got > 0 && !strncmp(name, "tsc-early\n", sizeof name);
}

/* Waits until timers have their full resolution, and until the kernel has its final clock source. A kernel that first watches its clock source (a TSC without TSC_ADJUST) has it some half a second after
   boot only, and until then each sleep ends at a tick: the command would find another kernel than on a machine that has been up for longer. With highres=off
   it never has it. A kernel to which CPUID does not tell the TSC's frequency changes from tsc-early to tsc more than a second after boot: the change would
   fall within the command's run, and the two have different frequencies. */
static void wait_for_timers(void) {
    for (int waited = 0; (timer_resolution() > 1 || has_early_clock()) && waited < TIMERS_WAIT_US; waited += TWO_TICKS_US)
        /* The first processor has it now; the others have it at their next tick. */
        usleep(TWO_TICKS_US);
}

/* Everything is ready, and the host says when the command begins: it waits until the kernel has nothing left to do. The command begins some nanoseconds
   after that, so that it does not always begin at the same distance from a timer tick. */
static void settle(void) {
    tell('p', "", 0);
    for (;;) {
        char *text;
        uint32_t length;
        /* A timer that is far away: without any the machine could not be told from one that waits for ever. */
        struct pollfd file = {channels[CONTROL], POLLIN, 0};
        if (poll(&file, 1, SETTLE_WAIT_MS) <= 0)
            continue;
        switch (next_record(&text, &length)) {
        case 'w': set_size(&order.size, text); break;
        case 'o': {
            long long delay = atoll(text);
            struct timespec time = {.tv_sec = delay / 1000000000, .tv_nsec = delay % 1000000000};
            if (delay > 0) {
                unsigned long slack = (unsigned long)prctl(PR_GET_TIMERSLACK);
                prctl(PR_SET_TIMERSLACK, 1);
                clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
                prctl(PR_SET_TIMERSLACK, slack);
            }
            free(text);
            return;
        }
        default: break;
        }
        free(text);
    }
}

/* A command that runs, and this side's ends of its streams. */
struct command {
    pid_t pid;
    /* Bits: the streams that are the terminal. */
    unsigned terminals;
    int terminal, ends[STREAMS];
    struct {
        char bytes[WINDOW];
        size_t length, done;
        int ended;
    } input;
};

/* The command that the guest was started for: the guest ends with it. */
static struct command first;

/* A command that has joined the guest, or is about to. */
struct join {
    unsigned char number;
    struct order order;
    struct command command;
    int started, over, status;
    /* Bytes of output that the host takes now. */
    size_t credit;
    /* The records in which the words of the order are. */
    char **records;
    size_t record_count;
};

static struct join *joins[MOST_JOINS];

/* The joined commands that run, also those whose user has gone away, and the regions that they and earlier ones have
   begun. An end names no task: the regions end together, when no joined command runs. */
static pid_t *running;
static size_t running_count, running_room, begun_regions;

/* Makes room for one more joined command; returns false if there is no memory for it. */
static int make_room(void) {
    if (running_count < running_room)
        return 1;
    pid_t *more = realloc(running, (running_room + MOST_JOINS) * sizeof *more);
    if (!more)
        return 0;
    running = more;
    running_room += MOST_JOINS;
    return 1;
}

_Noreturn static void run_command(const struct order *what, const int streams[STREAMS], int slave) {
    int joins_first = what != &order;
    setsid();
    if (slave >= 0)
        ioctl(slave, TIOCSCTTY, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    int moved[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        moved[i] = fcntl(streams[i], F_DUPFD_CLOEXEC, STREAMS);
    int errors = fcntl(moved[2], F_DUPFD_CLOEXEC, STREAMS);
    for (int i = 0; i < STREAMS; i++)
        dup2(moved[i], i);
    const char *failed = NULL;
    if (!joins_first)
        tell('b', "", 0);
    mark(MARK_BEGIN, joins_first ? "joined" : "exec");
    if (what->group_count && (setgroups(what->group_count - 1, what->groups + 1) || setgid(what->groups[0])))
        failed = "group";
    else if (setuid(what->user))
        failed = "user";
    /* The name of another directory may begin at that of the first command. */
    else if ((joins_first && order.directory && chdir(order.directory)) || (what->directory && chdir(what->directory)))
        failed = what->directory;
    if (!failed) {
        environ = what->environment;
        execvp(what->arguments[0], what->arguments);
        failed = what->arguments[0];
    }
    int reason = errno;
    const char *hint = joins_first && reason == ENOENT ? " in the guest (its files are those of the first command)" : "";
    dprintf(errors, "tollgate: exec: %s: %s%s\n", failed, strerror(reason), hint);
    _exit(reason == ENOENT ? NOT_FOUND : NOT_EXECUTABLE);
}

static void shut(int *file) {
    if (*file >= 0)
        close(*file);
    *file = -1;
}

static void shut_all(struct command *command) {
    shut(&command->terminal);
    for (int i = 0; i < STREAMS; i++)
        shut(&command->ends[i]);
}

/* Starts a command; returns what was not possible, with the reason in errno, or NULL. */
static const char *start(const struct order *what, struct command *command) {
    int streams[STREAMS] = {-1, -1, -1}, slave = -1;
    const char *failed = NULL;
    command->terminals = what->terminal;
    command->terminal = -1;
    for (int i = 0; i < STREAMS; i++)
        command->ends[i] = -1;
    if (what->terminal) {
        command->terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (command->terminal < 0 || grantpt(command->terminal) || unlockpt(command->terminal))
            return "there is no terminal";
        slave = open(ptsname(command->terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (slave < 0)
            return "the terminal can't be opened";
        ioctl(command->terminal, TIOCSWINSZ, &what->size);
        fchown(slave, what->user, 5);
        fcntl(command->terminal, F_SETFL, O_NONBLOCK);
    }
    for (int i = 0; i < STREAMS && !failed; i++) {
        if (what->terminal & 1u << i) {
            streams[i] = slave;
            continue;
        }
        int pair[2];
        if (pipe2(pair, O_CLOEXEC)) {
            failed = "there is no pipe";
            break;
        }
        streams[i] = pair[i != 0];
        command->ends[i] = pair[i == 0];
        fcntl(command->ends[i], F_SETFL, O_NONBLOCK);
        /* The user owns them, for programs that open /dev/stdout. */
        fchown(command->ends[i], what->user, what->group_count ? what->groups[0] : 0);
    }
    if (!failed) {
        command->pid = fork();
        if (!command->pid)
            run_command(what, streams, slave);
        if (command->pid < 0)
            failed = "there is no process";
    }
    int reason = errno;
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] != slave)
            shut(&streams[i]);
    shut(&slave);
    errno = reason;
    return failed;
}

static void start_first(void) {
    const char *failed = start(&order, &first);
    if (failed)
        give_up("%s: %s", failed, strerror(errno));
}

static char buffer[PIECE];

/* Sends the first command's output to a channel; returns true if there was any. */
static int drain(int *from, int channel) {
    ssize_t length = *from < 0 ? -1 : read(*from, buffer, sizeof buffer);
    if (length > 0)
        write_all(channels[channel], buffer, (size_t)length);
    else if (*from >= 0 && (length == 0 || (errno != EAGAIN && errno != EINTR)))
        shut(from);
    return length > 0;
}

/* Gives a command its input; returns the number of bytes that need no room any more. */
static size_t pass_input(struct command *command) {
    int *to = command->terminals & 1 ? &command->terminal : &command->ends[0];
    size_t before = command->input.done;
    while (command->input.done < command->input.length && *to >= 0) {
        char *from = command->input.bytes + command->input.done;
        ssize_t written = write(*to, from, command->input.length - command->input.done);
        if (written < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return command->input.done - before;
            shut(&command->ends[0]);
            break;
        }
        command->input.done += (size_t)written;
    }
    if (*to < 0)
        command->input.done = command->input.length;
    if (command->input.ended && command->input.done == command->input.length && !(command->terminals & 1))
        shut(&command->ends[0]);
    return command->input.done - before;
}

static void take_input(void) {
    ssize_t length = read(channels[INPUT], first.input.bytes, sizeof first.input.bytes);
    if (length == 0)
        first.input.ended = 1;
    first.input.length = length > 0 ? (size_t)length : 0;
    first.input.done = 0;
    pass_input(&first);
}

/* A record about a command that has joined: its number, the record's kind, and the text. */
static struct {
    unsigned char head[7];
    char text[JOIN_PIECE];
} joined;

/* Sends such a record, whose text is in its place. */
static void tell_joined(unsigned char number, char kind, size_t length) {
    uint32_t all = (uint32_t)length + 2;
    joined.head[0] = 'j';
    memcpy(joined.head + 1, &all, sizeof all);
    joined.head[5] = number;
    joined.head[6] = (unsigned char)kind;
    write_all(channels[CONTROL], &joined, sizeof joined.head + length);
}

static void tell_join(const struct join *join, char kind, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int length = vsnprintf(joined.text, 512, format, list);
    va_end(list);
    tell_joined(join->number, kind, length < 0 ? 0 : length > 511 ? 511 : (size_t)length);
}

/* Returns the place of a command that has joined, by its number; that of number -1 is free. */
static struct join **join_of(int number) {
    for (int i = 0; i < MOST_JOINS; i++)
        if (number < 0 ? !joins[i] : joins[i] && joins[i]->number == number)
            return &joins[i];
    return NULL;
}

static void forget(struct join **place) {
    struct join *join = *place;
    if (join->started)
        shut_all(&join->command);
    for (size_t i = 0; i < join->record_count; i++)
        free(join->records[i]);
    free(join->records);
    free(join->order.arguments);
    free(join->order.environment);
    free(join);
    *place = NULL;
}

/* Sends a signal to a joined command and all that it has started in its session's first group. */
static void signal_join(const struct join *join, int number) {
    if (join->started && !join->over && kill(-join->command.pid, number) && errno == ESRCH)
        kill(join->command.pid, number);
}

static int same_name(const char *a, const char *b) {
    size_t length = strcspn(a, "=");
    return length == strcspn(b, "=") && !strncmp(a, b, length);
}

/* Completes the order of a command that joins: it has the surroundings of the first command, as far as its own order names no others. */
static int complete(struct order *own) {
    if (!own->group_count) {
        own->user = order.user;
        memcpy(own->groups, order.groups, sizeof own->groups);
        own->group_count = order.group_count;
    }
    if (!own->directory)
        own->directory = order.directory;
    size_t set = own->environment_count;
    for (size_t i = 0; i < order.environment_count; i++) {
        int is_set = 0;
        for (size_t j = 0; j < set && !is_set; j++)
            is_set = same_name(own->environment[j], order.environment[i]);
        if (!is_set && !add_word(&own->environment, &own->environment_count, order.environment[i]))
            return 0;
    }
    static char *none[] = {NULL};
    if (!own->environment)
        return own->argument_count && (own->environment = calloc(1, sizeof none)) != NULL;
    return own->argument_count > 0;
}

static void start_join(struct join **place) {
    struct join *join = *place;
    const char *failed = !complete(&join->order) ? "the order is not complete"
                         : !make_room()          ? "there is no memory"
                                                 : start(&join->order, &join->command);
    if (!failed) {
        join->started = 1;
        running[running_count++] = join->command.pid;
        begun_regions++;
        tell_join(join, 'b', "");
        return;
    }
    tell_join(join, 'f', "%s: %s", failed, strerror(errno));
    shut_all(&join->command);
    forget(place);
}

/* Adds to the input of a joined command. The host sends no more than there is room for. */
static void add_input(struct join *join, const char *text, size_t length) {
    struct command *command = &join->command;
    size_t left = command->input.length - command->input.done;
    memmove(command->input.bytes, command->input.bytes + command->input.done, left);
    command->input.done = 0;
    command->input.length = left;
    if (length > sizeof command->input.bytes - left)
        length = sizeof command->input.bytes - left;
    memcpy(command->input.bytes + left, text, length);
    command->input.length += length;
}

static void pass_joined_input(struct join *join) {
    size_t done = pass_input(&join->command);
    if (done)
        tell_join(join, 'k', "%zu", done);
}

/* Handles a record of the host about a joined command; returns true if its text is kept. */
static int hear_join(char *record, uint32_t length) {
    if (length < 2)
        return 0;
    char kind = record[1], *text = record + 2;
    struct join **place = join_of((unsigned char)record[0]), *join = place ? *place : NULL;
    if (!join) {
        /* The first part of an order begins a join. */
        place = kind == 'a' ? join_of(-1) : NULL;
        if (!place || !(join = calloc(1, sizeof *join)))
            return 0;
        *place = join;
        join->number = (unsigned char)record[0];
        join->credit = WINDOW;
        join->command.terminal = join->command.ends[0] = join->command.ends[1] = join->command.ends[2] = -1;
    }
    if (kind == 'h') {
        signal_join(join, SIGHUP);
        forget(place);
        return 0;
    }
    if (!join->started) {
        if (kind == 'g')
            start_join(place);
        else
            return take_order(&join->order, kind, text) && add_word(&join->records, &join->record_count, record);
        return 0;
    }
    switch (kind) {
    case 'i':
        add_input(join, text, length - 2);
        pass_joined_input(join);
        break;
    case 'q':
        join->command.input.ended = 1;
        pass_joined_input(join);
        break;
    case 'k': {
        size_t more = strtoul(text, NULL, 10);
        join->credit = more > WINDOW - join->credit ? WINDOW : join->credit + more;
        break;
    }
    case 's': signal_join(join, atoi(text)); break;
    case 'w':
        set_size(&join->order.size, text);
        if (join->command.terminal >= 0)
            ioctl(join->command.terminal, TIOCSWINSZ, &join->order.size);
        break;
    case 'x': {
        int stream = atoi(text);
        if (stream > 0 && stream < STREAMS)
            shut(&join->command.ends[stream]);
        break;
    }
    default: break;
    }
    return 0;
}

/* Sends output of a joined command, as much as the host takes; returns true if there was any. */
static int drain_join(struct join *join, int *from, char kind) {
    size_t most = join->credit < sizeof joined.text ? join->credit : sizeof joined.text;
    if (*from < 0 || !most)
        return 0;
    ssize_t length = read(*from, joined.text, most);
    if (length > 0) {
        join->credit -= (size_t)length;
        tell_joined(join->number, kind, (size_t)length);
    } else if (length == 0 || (errno != EAGAIN && errno != EINTR)) {
        shut(from);
    }
    return length > 0;
}

static int status_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Sends what a joined command that has ended has left in its pipes, and then its status. */
static void finish_join(struct join **place) {
    struct join *join = *place;
    struct command *command = &join->command;
    while (drain_join(join, &command->ends[1], 'o') || drain_join(join, &command->ends[2], 'e') ||
           drain_join(join, &command->terminal, 'o'))
        ;
    if (!join->credit)
        return;
    tell_join(join, 'z', "%d", status_of(join->status));
    forget(place);
}

/* Handles the host's messages: another size of the terminal, a stream that has no reader any more, or a command that joins. */
static void hear(void) {
    char *text;
    uint32_t length;
    switch (next_record(&text, &length)) {
    case 'w':
        set_size(&order.size, text);
        if (first.terminal >= 0)
            ioctl(first.terminal, TIOCSWINSZ, &order.size);
        break;
    case 'x': {
        int stream = atoi(text);
        if (stream > 0 && stream < STREAMS)
            shut(&first.ends[stream]);
        break;
    }
    case 'j':
        if (hear_join(text, length))
            return;
        break;
    default: break;
    }
    free(text);
}

/* Takes in processes that have ended; returns true if the first command is one of them. */
static int reap(int *status) {
    int one, ended = 0;
    for (pid_t gone; (gone = waitpid(-1, &one, WNOHANG)) > 0;) {
        if (gone == first.pid) {
            *status = one;
            ended = 1;
        }
        for (int i = 0; i < MOST_JOINS; i++)
            if (joins[i] && joins[i]->started && joins[i]->command.pid == gone) {
                joins[i]->over = 1;
                joins[i]->status = one;
            }
        for (size_t i = 0; i < running_count; i++)
            if (running[i] == gone) {
                running[i] = running[--running_count];
                break;
            }
    }
    for (; begun_regions && !running_count; begun_regions--)
        mark(MARK_END, "joined");
    return ended;
}

/* The files of a command that has joined, among those that are waited for. */
enum { JOIN_TO, JOIN_OUTPUT, JOIN_ERRORS, JOIN_TERMINAL, JOIN_FILES };

static void list_files(const struct join *join, struct pollfd *files) {
    const struct command *command = &join->command;
    int runs = join->started && !join->over, waits = command->input.done < command->input.length;
    int to = command->terminals & 1 ? command->terminal : command->ends[0];
    int takes = join->started && join->credit;
    files[JOIN_TO] = (struct pollfd){runs && waits ? to : -1, POLLOUT, 0};
    files[JOIN_OUTPUT] = (struct pollfd){takes ? command->ends[1] : -1, POLLIN, 0};
    files[JOIN_ERRORS] = (struct pollfd){takes ? command->ends[2] : -1, POLLIN, 0};
    files[JOIN_TERMINAL] = (struct pollfd){takes ? command->terminal : -1, POLLIN, 0};
}

static void attend_join(struct join *join, const struct pollfd *files) {
    struct command *command = &join->command;
    if (files[JOIN_TO].revents)
        pass_joined_input(join);
    if (files[JOIN_OUTPUT].revents)
        drain_join(join, &command->ends[1], 'o');
    if (files[JOIN_ERRORS].revents)
        drain_join(join, &command->ends[2], 'e');
    if (files[JOIN_TERMINAL].revents & POLLIN)
        drain_join(join, &command->terminal, 'o');
    else if (files[JOIN_TERMINAL].revents)
        usleep(POLL_US); /* the terminal is not open; it may be opened again */
}

/* Connects the commands with the host until the first one ends. */
static int attend(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), status = 0;
    enum { OWN_FILES = 7 };
    for (;;) {
        int waits = first.input.done < first.input.length, has_terminal = first.terminals & 1;
        struct pollfd files[OWN_FILES + MOST_JOINS * JOIN_FILES] = {
            {signals, POLLIN, 0},
            {channels[CONTROL], POLLIN, 0},
            {first.input.ended || waits || (first.ends[0] < 0 && !has_terminal) ? -1 : channels[INPUT], POLLIN, 0},
            {waits ? (has_terminal ? first.terminal : first.ends[0]) : -1, POLLOUT, 0},
            {first.ends[1], POLLIN, 0},
            {first.ends[2], POLLIN, 0},
            {first.terminal, POLLIN, 0},
        };
        struct join *listed[MOST_JOINS];
        nfds_t count = OWN_FILES, others = 0;
        for (int i = 0; i < MOST_JOINS; i++) {
            if (!joins[i])
                continue;
            list_files(joins[i], files + count);
            count += JOIN_FILES;
            listed[others++] = joins[i];
        }
        if (poll(files, count, -1) < 0)
            continue;
        for (nfds_t i = 0; i < others; i++)
            attend_join(listed[i], files + OWN_FILES + i * JOIN_FILES);
        if (files[1].revents & POLLIN)
            hear();
        if (files[2].revents & (POLLIN | POLLHUP))
            take_input();
        if (files[3].revents)
            pass_input(&first);
        if (files[4].revents)
            drain(&first.ends[1], OUTPUT);
        if (files[5].revents)
            drain(&first.ends[2], ERRORS);
        if (files[6].revents & POLLIN)
            drain(&first.terminal, OUTPUT);
        else if (files[6].revents)
            usleep(POLL_US); /* the terminal is not open; it may be opened again */
        if (files[0].revents) {
            struct signalfd_siginfo information;
            if (read(signals, &information, sizeof information) > 0 && reap(&status))
                break;
        }
        for (int i = 0; i < MOST_JOINS; i++)
            if (joins[i] && joins[i]->over)
                finish_join(&joins[i]);
    }
    while (drain(&first.ends[1], OUTPUT) || drain(&first.ends[2], ERRORS) || drain(&first.terminal, OUTPUT))
        ;
    return status;
}

/* Returns the number behind a word at the beginning of a line of a file, or the first number of a file without
   words. */
static unsigned long long number_of(const char *path, const char *word) {
    unsigned long long number = 0;
    char line[256];
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, word, strlen(word))) {
            number = strtoull(line + strlen(word), NULL, 10);
            break;
        }
    fclose(file);
    return number;
}

/* Names the words of the kernel's command line that the kernel does not know: it passes them to process 1, those with a value in the environment. */
static void tell_unknown(char **arguments, char **environment) {
    char text[4096];
    size_t length = 0;
    char **lists[] = {arguments + 1, environment};
    for (int list = 0; list < 2; list++)
        for (char **word = lists[list]; *word; word++) {
            size_t size = strlen(*word);
            int own = list && (!strncmp(*word, "HOME=", 5) || !strncmp(*word, "TERM=", 5));
            if (own || length + size + 1 > sizeof text)
                continue;
            memcpy(text + length, *word, size);
            length += size;
            text[length++] = '\n';
        }
    if (length)
        tell('u', text, (uint32_t)length - 1);
}

/* A fact about the kernel: its name, a line break, its value. */
static char fact[32 << 10];

static void tell_fact(size_t length) {
    while (length && (fact[length - 1] == '\n' || fact[length - 1] == ' '))
        length--;
    tell('k', fact, (uint32_t)length);
}

/* Tells the contents of a small file. */
static void tell_file(const char *name, const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    size_t length = (size_t)snprintf(fact, sizeof fact, "%s\n", name);
    ssize_t got = length < sizeof fact ? read(file, fact + length, sizeof fact - length) : -1;
    close(file);
    if (got > 0)
        tell_fact(length + (size_t)got);
}

/* Tells the state of each mitigation. */
static void tell_mitigations(void) {
    DIR *all = opendir("/sys/devices/system/cpu/vulnerabilities");
    if (!all)
        return;
    for (struct dirent *entry; (entry = readdir(all));) {
        char name[300], path[400];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "mitigation of %s", entry->d_name);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/vulnerabilities/%s", entry->d_name);
        tell_file(name, path);
    }
    closedir(all);
}

/* Tells the first line of a file that begins with a word: what is behind its colon. */
static void tell_line(const char *name, const char *path, const char *word) {
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    static char line[16 << 10];
    while (fgets(line, sizeof line, file)) {
        char *value = strncmp(line, word, strlen(word)) ? NULL : strchr(line, ':');
        if (!value)
            continue;
        value += 1 + strspn(value + 1, " ");
        int length = snprintf(fact, sizeof fact, "%s\n%s", name, value);
        tell_fact((size_t)length < sizeof fact ? (size_t)length : sizeof fact - 1);
        break;
    }
    fclose(file);
}

/* Tells the names of the loaded modules. */
static void tell_modules(void) {
    FILE *file = fopen("/proc/modules", "re");
    if (!file)
        return;
    char line[512];
    size_t length = (size_t)snprintf(fact, sizeof fact, "modules\n");
    while (fgets(line, sizeof line, file)) {
        size_t size = strcspn(line, " ");
        if (length + size + 1 > sizeof fact)
            break;
        memcpy(fact + length, line, size);
        length += size;
        fact[length++] = ' ';
    }
    fclose(file);
    tell_fact(length);
}

/* Tells the words of the command line that are parameters of modules which are not there: NAME.PARAMETER, without /sys/module/NAME. */
static void tell_unloaded(void) {
    static char line[8 << 10];
    int file = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, line, sizeof line - 1);
    if (file >= 0)
        close(file);
    if (got <= 0 || access("/sys/module", F_OK))
        return;
    line[got] = 0;
    size_t length = (size_t)snprintf(fact, sizeof fact, "unloaded\n"), empty = length;
    for (char *rest = line, *word; (word = strsep(&rest, " \n"));) {
        char path[300] = "/sys/module/";
        size_t name = strcspn(word, ".="), base = strlen(path);
        if (word[name] != '.' || !name || base + name + 1 > sizeof path || length + strlen(word) + 2 > sizeof fact)
            continue;
        for (size_t at = 0; at < name; at++)
            path[base + at] = word[at] == '-' ? '_' : word[at];
        path[base + name] = 0;
        if (access(path, F_OK))
            length += (size_t)snprintf(fact + length, sizeof fact - length, "%s ", word);
    }
    if (length > empty)
        tell_fact(length);
}

/* Describes the kernel, after the command has ended: nothing of this is part of what is measured. */
static void describe(void) {
    tell_file("release", "/proc/sys/kernel/osrelease");
    tell_mitigations();
    tell_line("features", "/proc/cpuinfo", "flags");
    tell_line("bugs", "/proc/cpuinfo", "bugs");
    tell_modules();
    tell_unloaded();
    tell_file("clock source", CLOCK_SOURCE);
    tell_fact((size_t)snprintf(fact, sizeof fact, "timer resolution\n%lld ns", timer_resolution()));
    tell_file("transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled");
}

int main(int count, char **arguments, char **environment) {
    (void)count;
    if (getpid() != 1) {
        fputs("init: only as process 1\n", stderr);
        return 2;
    }
    mount_at("devtmpfs", "/dev", NULL);
    mount_at("proc", "/proc", NULL);
    mount_at("sysfs", "/sys", NULL);
    load_modules();
    for (int waited = 0; !open_channels(); waited += POLL_US) {
        if (waited >= PORT_WAIT_US)
            give_up("the kernel has no driver for a virtio console on PCI (virtio_console, virtio_pci)");
        usleep(POLL_US);
    }
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    signal(SIGPIPE, SIG_IGN);
    sethostname("tollgate", 8);
    wait_for_timers();
    wait_for_order();
    tell('r', "", 0);
    read_order();
    tell_unknown(arguments, environment);
    umask(0);
    make_root();
    set_network();
    umask(022);
    if (order.settles)
        settle();
    mark(MARK_BEGIN_ALL, "others");
    start_first();
    int status = attend();
    mark(MARK_END, "exec");
    mark(MARK_END, "others");
    if (order.describes)
        describe();
    char text[128];
    int length = snprintf(text, sizeof text, "%d %llu %llu", status_of(status),
                          number_of("/proc/sys/kernel/tainted", ""), number_of("/proc/vmstat", "oom_kill "));
    tell('z', text, (uint32_t)length);
    power_off();
}
