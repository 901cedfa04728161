/* Pairs of stream sockets: each write makes a packet of its own, with a head and data from different caches, charged
   to the sender until it is read; a sender sleeps at the limit and is woken when three quarters are gone. UNIX
   sockets work the same way; hackbench sends over them by default. */
#include "kernel.h"

/* Sizes as on i386 in 2.6.20: the default limit, the head's part of the charge, and the part behind the data. */
enum { SEND_LIMIT = 110592, HEAD_CHARGE = 176, SHARED_INFO = 128, LINE = 128 };
enum { SMALL_DATA = 256, DATA_MAX = PAGE_SIZE - SHARED_INFO };

struct packet {
    struct list link;
    struct socket *sender;
    char *data;
    unsigned offset, length, charge;
    int small;
    int sender_pid; /* credentials travel with each packet */
};
struct socket {
    struct list packets;
    struct socket *peer;
    int open;
    unsigned charged;
    struct wait_queue wait;
};
struct socket_pair {
    struct socket ends[2];
};

static struct cache pair_cache = {.size = sizeof(struct socket_pair)};
static struct cache packet_cache = {.size = sizeof(struct packet)};
static struct cache data_cache = {.size = SMALL_DATA};

static struct packet *packet_create(struct socket *sender, size_t length) {
    struct packet *packet = cache_alloc(&packet_cache);
    memset(packet, 0, sizeof *packet);
    packet->small = length + SHARED_INFO <= SMALL_DATA;
    packet->data = packet->small ? cache_alloc(&data_cache) : to_virtual(page_alloc());
    packet->length = (unsigned)length;
    packet->charge = (unsigned)((length + LINE - 1) & ~(size_t)(LINE - 1)) + HEAD_CHARGE;
    packet->sender = sender;
    packet->sender_pid = current->pid;
    list_init(&packet->link);
    sender->charged += packet->charge;
    return packet;
}

static void packet_free(struct packet *packet) {
    struct socket *sender = packet->sender;
    sender->charged -= packet->charge;
    if (sender->charged << 2 <= SEND_LIMIT && !list_empty(&sender->wait.waiters))
        wake_up(&sender->wait, 0);
    if (packet->small)
        cache_free(&data_cache, packet->data);
    else
        page_put(to_physical(packet->data));
    cache_free(&packet_cache, packet);
}

static struct packet *first_packet(struct socket *socket) {
    unsigned long flags = interrupts_off();
    struct packet *packet = list_empty(&socket->packets) ? NULL : CONTAINER(socket->packets.next, struct packet, link);
    interrupts_restore(flags);
    return packet;
}

/* Sleeps until there is data to read, or until there is no writer left. */
static long wait_for_data(struct socket *socket) {
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    long result = 0;
    for (;;) {
        wait_prepare(&socket->wait, &waiter, SLEEPING);
        if (first_packet(socket) || !socket->peer->open)
            break;
        if (current->pending) {
            result = -EINTR;
            break;
        }
        schedule();
    }
    wait_finish(&waiter);
    return result;
}

static long wait_for_room(struct socket *socket) {
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    long result = 0;
    for (;;) {
        wait_prepare(&socket->wait, &waiter, SLEEPING);
        if (socket->charged < SEND_LIMIT || !socket->peer->open)
            break;
        if (current->pending) {
            result = -EINTR;
            break;
        }
        schedule();
    }
    wait_finish(&waiter);
    return result;
}

static long socket_read(struct file *file, char *buffer, size_t count) {
    struct socket *socket = file->private;
    long done = 0;
    while (count) {
        struct packet *packet = first_packet(socket);
        if (!packet) {
            if (done)
                break;
            done = wait_for_data(socket);
            if (done < 0 || !first_packet(socket))
                break;
            continue;
        }
        size_t part = packet->length < count ? packet->length : count;
        memcpy(buffer, packet->data + packet->offset, part);
        buffer += part;
        count -= part;
        done += (long)part;
        packet->offset += (unsigned)part;
        packet->length -= (unsigned)part;
        if (!packet->length) {
            unsigned long flags = interrupts_off();
            list_remove(&packet->link);
            interrupts_restore(flags);
            packet_free(packet);
        }
    }
    return done;
}

static long socket_write(struct file *file, const char *buffer, size_t count) {
    struct socket *socket = file->private, *peer = socket->peer;
    long done = 0;
    while (count) {
        if (socket->charged >= SEND_LIMIT) {
            long result = wait_for_room(socket);
            if (result < 0)
                return done ? done : result;
        }
        if (!peer->open)
            return done ? done : -EPIPE;
        size_t part = count < DATA_MAX ? count : DATA_MAX;
        struct packet *packet = packet_create(socket, part);
        memcpy(packet->data, buffer, part);
        unsigned long flags = interrupts_off();
        list_append(&peer->packets, &packet->link);
        interrupts_restore(flags);
        if (!list_empty(&peer->wait.waiters))
            wake_up(&peer->wait, 0);
        buffer += part;
        count -= part;
        done += (long)part;
    }
    return done;
}

static long socket_poll(struct file *file) {
    long result = wait_for_data(file->private);
    return result < 0 ? result : 1;
}

/* Drops the unread data; the pair is freed with its second end. */
static void socket_release(struct file *file) {
    struct socket *socket = file->private, *peer = socket->peer;
    socket->open = 0;
    for (struct packet *packet; (packet = first_packet(socket));) {
        list_remove(&packet->link);
        packet_free(packet);
    }
    if (peer->open)
        wake_up(&peer->wait, 0);
    else
        cache_free(&pair_cache, socket < peer ? socket : peer);
}

static const struct file_operations operations = {
    .read = socket_read, .write = socket_write, .poll = socket_poll, .release = socket_release};

long socket_pair_create(unsigned long ends) {
    if (!user_range(ends, 2 * sizeof(int), 1))
        return -EFAULT;
    struct socket_pair *pair = cache_alloc(&pair_cache);
    memset(pair, 0, sizeof *pair);
    for (int i = 0; i < 2; i++) {
        list_init(&pair->ends[i].packets);
        list_init(&pair->ends[i].wait.waiters);
        pair->ends[i].peer = &pair->ends[!i];
        pair->ends[i].open = 1;
    }
    return file_install_pair(file_create(&operations, &pair->ends[0]), file_create(&operations, &pair->ends[1]), (int *)ends);
}
