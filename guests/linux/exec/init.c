/* Process 1 of a guest that runs one command of the host (`tollgate exec`). The initial RAM disk holds only it and
   modules of the kernel. It prepares the machine and reports that to the machine (which may then be saved, and
   restored for other commands), reads its orders from the channel `control`, runs the command with its standard
   streams connected to channels, reports the command's end, and powers the machine off. docs/guides/exec.md
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

/* The ports of docs/marker-port.md. */
enum { WORKLOAD_PORT = 0x1f0b, WORKLOAD_WAIT = 'W', MARKER_NAME = 0x1f0e, MARKER_COMMAND = 0x1f0f, MARKER_PRESENT = 'M' };
enum { MARK_BEGIN = 1, MARK_END, MARK_BEGIN_ALL };
enum { POLL_US = 1000, PORT_WAIT_US = 5000000, NETWORK_WAIT_US = 5000000, SETTLE_WAIT_MS = 3600000 };
enum { PIECE = 64 << 10, MOST_WORDS = 1 << 16, LARGEST_RECORD = 16 << 20 };
/* The exit statuses of shells. */
enum { NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
/* Bits of the record `t`: the streams that are the terminal. */
enum { STREAMS = 3 };

static const char *const channel_names[] = {"control", "stdin", "stdout", "stderr"};
enum { CONTROL, INPUT, OUTPUT, ERRORS, CHANNELS };
static int channels[CHANNELS];

/* The orders. */
static struct {
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
} order;

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
            give_up("the host does not say what to do");
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

static void add_word(char ***words, size_t *count, char *word) {
    if (*count >= MOST_WORDS)
        give_up("too many words");
    if (*count % 64 == 0) {
        *words = realloc(*words, (*count + 65) * sizeof **words);
        if (!*words)
            give_up("no memory");
    }
    (*words)[(*count)++] = word;
    (*words)[*count] = NULL;
}

static void set_size(const char *text) {
    unsigned rows = 24, columns = 80;
    sscanf(text, "%u %u", &rows, &columns);
    order.size.ws_row = (unsigned short)rows;
    order.size.ws_col = (unsigned short)columns;
}

static void read_order(void) {
    for (;;) {
        char *text;
        uint32_t length;
        switch (next_record(&text, &length)) {
        case 'a': add_word(&order.arguments, &order.argument_count, text); break;
        case 'e': add_word(&order.environment, &order.environment_count, text); break;
        case 'c': order.directory = text; break;
        case 'n': order.network = text; break;
        case 't': order.terminal = (unsigned)atoi(text); break;
        case 'w': set_size(text); break;
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
        case 'u': {
            char *rest = text;
            order.user = (uid_t)strtoul(rest, &rest, 10);
            while (*rest && order.group_count < sizeof order.groups / sizeof *order.groups)
                order.groups[order.group_count++] = (gid_t)strtoul(rest, &rest, 10);
            break;
        }
        case 'g':
            if (!order.argument_count)
                give_up("no command");
            return;
        default: give_up("a record that is not known");
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
        case 'w': set_size(text); break;
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

/* This side's ends of the command's streams. */
static int terminal = -1, ends[STREAMS] = {-1, -1, -1};

_Noreturn static void run_command(const int streams[STREAMS], int slave) {
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
    tell('b', "", 0);
    mark(MARK_BEGIN, "exec");
    if (order.group_count && (setgroups(order.group_count - 1, order.groups + 1) || setgid(order.groups[0])))
        failed = "group";
    else if (setuid(order.user))
        failed = "user";
    else if (order.directory && chdir(order.directory))
        failed = order.directory;
    if (!failed) {
        environ = order.environment;
        execvp(order.arguments[0], order.arguments);
        failed = order.arguments[0];
    }
    int reason = errno;
    dprintf(errors, "tollgate: exec: %s: %s\n", failed, strerror(reason));
    _exit(reason == ENOENT ? NOT_FOUND : NOT_EXECUTABLE);
}

static pid_t start(void) {
    int streams[STREAMS], slave = -1;
    if (order.terminal) {
        terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
            give_up("there is no terminal: %s", strerror(errno));
        slave = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (slave < 0)
            give_up("the terminal can't be opened: %s", strerror(errno));
        ioctl(terminal, TIOCSWINSZ, &order.size);
        fchown(slave, order.user, 5);
        fcntl(terminal, F_SETFL, O_NONBLOCK);
    }
    for (int i = 0; i < STREAMS; i++) {
        if (order.terminal & 1u << i) {
            streams[i] = slave;
            continue;
        }
        int pair[2];
        if (pipe2(pair, O_CLOEXEC))
            give_up("there is no pipe: %s", strerror(errno));
        streams[i] = pair[i != 0];
        ends[i] = pair[i == 0];
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
        /* The user owns them, for programs that open /dev/stdout. */
        fchown(ends[i], order.user, order.group_count ? order.groups[0] : 0);
    }
    pid_t child = fork();
    if (child < 0)
        give_up("there is no process: %s", strerror(errno));
    if (!child)
        run_command(streams, slave);
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] != slave)
            close(streams[i]);
    if (slave >= 0)
        close(slave);
    return child;
}

static void shut(int *file) {
    if (*file >= 0)
        close(*file);
    *file = -1;
}

static char buffer[PIECE];

/* Sends the command's output to a channel; returns true if there was any. */
static int drain(int *from, int channel) {
    ssize_t length = *from < 0 ? -1 : read(*from, buffer, sizeof buffer);
    if (length > 0)
        write_all(channels[channel], buffer, (size_t)length);
    else if (*from >= 0 && (length == 0 || (errno != EAGAIN && errno != EINTR)))
        shut(from);
    return length > 0;
}

/* Handles the host's messages: another size of the terminal, or a stream that has no reader any more. */
static void hear(void) {
    char *text;
    uint32_t length;
    switch (next_record(&text, &length)) {
    case 'w':
        set_size(text);
        if (terminal >= 0)
            ioctl(terminal, TIOCSWINSZ, &order.size);
        break;
    case 'x': {
        int stream = atoi(text);
        if (stream > 0 && stream < STREAMS)
            shut(&ends[stream]);
        break;
    }
    default: break;
    }
    free(text);
}

/* Input for the command. */
static struct {
    char bytes[PIECE];
    size_t length, done;
    int ended;
} input;

static void pass_input(void) {
    int *to = order.terminal & 1 ? &terminal : &ends[0];
    while (input.done < input.length && *to >= 0) {
        ssize_t written = write(*to, input.bytes + input.done, input.length - input.done);
        if (written < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return;
            shut(&ends[0]);
            break;
        }
        input.done += (size_t)written;
    }
    if (*to < 0)
        input.done = input.length;
    if (input.ended && input.done == input.length && !(order.terminal & 1))
        shut(&ends[0]);
}

static void take_input(void) {
    ssize_t length = read(channels[INPUT], input.bytes, sizeof input.bytes);
    if (length == 0)
        input.ended = 1;
    input.length = length > 0 ? (size_t)length : 0;
    input.done = 0;
    pass_input();
}

/* Takes in processes that have ended; returns true if the command is one of them. */
static int reap(pid_t command, int *status) {
    int one, ended = 0;
    for (pid_t gone; (gone = waitpid(-1, &one, WNOHANG)) > 0;)
        if (gone == command) {
            *status = one;
            ended = 1;
        }
    return ended;
}

/* Connects the command with the host until it ends. */
static int attend(pid_t command) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    int signals = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), status = 0;
    for (;;) {
        int waits = input.done < input.length;
        struct pollfd files[] = {
            {signals, POLLIN, 0},
            {channels[CONTROL], POLLIN, 0},
            {input.ended || waits || (ends[0] < 0 && !(order.terminal & 1)) ? -1 : channels[INPUT], POLLIN, 0},
            {waits ? (order.terminal & 1 ? terminal : ends[0]) : -1, POLLOUT, 0},
            {ends[1], POLLIN, 0},
            {ends[2], POLLIN, 0},
            {terminal, POLLIN, 0},
        };
        if (poll(files, sizeof files / sizeof *files, -1) < 0)
            continue;
        if (files[1].revents & POLLIN)
            hear();
        if (files[2].revents & (POLLIN | POLLHUP))
            take_input();
        if (files[3].revents)
            pass_input();
        if (files[4].revents)
            drain(&ends[1], OUTPUT);
        if (files[5].revents)
            drain(&ends[2], ERRORS);
        if (files[6].revents & POLLIN)
            drain(&terminal, OUTPUT);
        else if (files[6].revents)
            usleep(POLL_US); /* the terminal is not open; it may be opened again */
        if (files[0].revents) {
            struct signalfd_siginfo information;
            if (read(signals, &information, sizeof information) > 0 && reap(command, &status))
                break;
        }
    }
    while (drain(&ends[1], OUTPUT) || drain(&ends[2], ERRORS) || drain(&terminal, OUTPUT))
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
    tell_file("clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource");
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
    pid_t command = start();
    int status = attend(command);
    mark(MARK_END, "exec");
    mark(MARK_END, "others");
    if (order.describes)
        describe();
    char text[128];
    int length = snprintf(text, sizeof text, "%d %llu %llu", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                          number_of("/proc/sys/kernel/tainted", ""), number_of("/proc/vmstat", "oom_kill "));
    tell('z', text, (uint32_t)length);
    power_off();
}
