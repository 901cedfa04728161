/* xfrmhelper: IPsec's messages of 32-bit programs for a 64-bit kernel without CONFIG_XFRM_USER_COMPAT. Such a program connects to a socket in place of NETLINK_XFRM; what
   it sends goes to the kernel in the structures of 64 bits, and what the kernel answers comes back in those of 32. */
#define _GNU_SOURCE
#include "tools.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/xfrm.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { LONGEST = 1 << 16 };

/* All fields are at the same place in both; a structure with 64-bit fields has 4 bytes of padding more at its end for 64 bits, and whatever contains
   it or follows it comes later. */
enum { SA = 220, POLICY = 164, PADDING = 4 };
_Static_assert(sizeof(struct xfrm_usersa_info) == SA + PADDING, "the padding of a state is elsewhere");
_Static_assert(sizeof(struct xfrm_userpolicy_info) == POLICY + PADDING, "the padding of a policy is elsewhere");

/* By type of message: how long its structure is for 32 bits, and where the padding belongs in it (0: it has none). Those that are not here are refused. */
static const struct form {
    unsigned short length, padding;
} forms[XFRM_MSG_MAX + 1] = {
    [XFRM_MSG_NEWSA] = {SA, SA},
    [XFRM_MSG_UPDSA] = {SA, SA},
    [XFRM_MSG_ALLOCSPI] = {SA + 8, SA},
    [XFRM_MSG_DELSA] = {sizeof(struct xfrm_usersa_id), 0},
    [XFRM_MSG_GETSA] = {sizeof(struct xfrm_usersa_id), 0},
    [XFRM_MSG_FLUSHSA] = {sizeof(struct xfrm_usersa_flush), 0},
    [XFRM_MSG_NEWPOLICY] = {POLICY, POLICY},
    [XFRM_MSG_UPDPOLICY] = {POLICY, POLICY},
    [XFRM_MSG_DELPOLICY] = {sizeof(struct xfrm_userpolicy_id), 0},
    [XFRM_MSG_GETPOLICY] = {sizeof(struct xfrm_userpolicy_id), 0},
    [XFRM_MSG_FLUSHPOLICY] = {0, 0},
};

static const struct form *form_of(const struct nlmsghdr *message) {
    if (message->nlmsg_type < XFRM_MSG_BASE || message->nlmsg_type > XFRM_MSG_MAX)
        return NULL;
    const struct form *form = &forms[message->nlmsg_type];
    return form->length || message->nlmsg_type == XFRM_MSG_FLUSHPOLICY ? form : NULL;
}

/* Copies a message with the padding added (more = PADDING) or left out (-PADDING); its new length, or 0 if it is too short for what it says to be. */
static unsigned translate(unsigned char *to, const struct nlmsghdr *from, const struct form *form, int more) {
    unsigned at = NLMSG_HDRLEN + form->padding, skipped = more < 0 ? PADDING : 0;
    if (!form->padding)
        more = 0, skipped = 0, at = from->nlmsg_len;
    else if (from->nlmsg_len < NLMSG_HDRLEN + form->length + skipped)
        return 0;
    memcpy(to, from, at);
    if (more > 0)
        memset(to + at, 0, PADDING);
    memcpy(to + at + (more > 0 ? PADDING : 0), (const unsigned char *)from + at + skipped, from->nlmsg_len - at - skipped);
    unsigned length = from->nlmsg_len + (unsigned)more;
    ((struct nlmsghdr *)to)->nlmsg_len = length;
    return length;
}

static unsigned char in[LONGEST] __attribute__((aligned(8))), out[2 * LONGEST] __attribute__((aligned(8)));

static void refuse(int client, const struct nlmsghdr *message, int error) {
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
    } answer = {{.nlmsg_len = sizeof answer, .nlmsg_type = NLMSG_ERROR, .nlmsg_seq = message->nlmsg_seq}, {-error, *message}};
    if (send(client, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
        return; /* the client has gone, which the next poll says */
}

/* One request of the client. */
static void to_kernel(int client, int kernel, size_t length) {
    const struct nlmsghdr *message = (const struct nlmsghdr *)in;
    if (!NLMSG_OK(message, length))
        return;
    const struct form *form = form_of(message);
    unsigned made = form ? translate(out, message, form, PADDING) : 0;
    if (!made)
        refuse(client, message, form ? EINVAL : EOPNOTSUPP);
    else if (send(kernel, out, made, 0) < 0)
        refuse(client, message, errno);
}

/* Answers of the kernel, several in one datagram. */
static void to_client(int client, size_t length) {
    unsigned used = 0;
    for (const struct nlmsghdr *message = (const struct nlmsghdr *)in; NLMSG_OK(message, length); message = NLMSG_NEXT(message, length)) {
        static const struct form plain;
        const struct form *form = form_of(message);
        used += NLMSG_ALIGN(translate(out + used, message, form ? form : &plain, -PADDING));
    }
    if (send(client, out, used, MSG_NOSIGNAL) < 0)
        return; /* as above */
}

static void serve(int client) {
    int kernel = socket(AF_NETLINK, SOCK_RAW, NETLINK_XFRM);
    if (kernel < 0)
        fail("NETLINK_XFRM");
    struct pollfd ends[] = {{client, POLLIN, 0}, {kernel, POLLIN, 0}};
    for (;;) {
        if (poll(ends, 2, -1) < 0)
            fail("poll");
        if (ends[0].revents) {
            ssize_t length = recv(client, in, sizeof in, 0);
            if (length <= 0)
                break;
            to_kernel(client, kernel, (size_t)length);
        }
        if (ends[1].revents) {
            ssize_t length = recv(kernel, in, sizeof in, 0);
            if (length <= 0)
                break;
            to_client(client, (size_t)length);
        }
    }
    close(kernel);
}

int xfrmhelper_main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path) {
        fputs("usage: xfrmhelper SOCKET\n", stderr);
        return 2;
    }
    strcpy(address.sun_path, argv[1]);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8))
        fail(argv[1]);
    if (daemon(0, 0))
        fail("daemon");
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            fail("accept");
        serve(client);
        close(client);
    }
}
