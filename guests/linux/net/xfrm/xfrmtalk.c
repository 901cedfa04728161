/* xfrmtalk: asks the kernel for changes of its IPsec policies, one message after another. It is built for 32 bits and for 64 from the same lines, and without a C
   library, since few systems have one for 32 bits. The structures of <linux/xfrm.h> are the ABI's: that of a policy ends 4 bytes earlier for a
   32-bit program. */
#include <linux/netlink.h>
#include <linux/un.h>
#include <linux/xfrm.h>

enum { AF_UNIX = 1, AF_INET = 2, AF_NETLINK = 16, SOCK_RAW = 3, SOCK_SEQPACKET = 5, STANDARD_ERROR = 2 };
enum { LONGEST = 1 << 16, INTERRUPTED = -4 };

#ifdef __x86_64__
enum { SYS_WRITE = 1, SYS_SOCKET = 41, SYS_CONNECT = 42, SYS_SEND = 44, SYS_RECEIVE = 45, SYS_EXIT = 60 };

static long system_call(long number, long a, long b, long c) {
    long result;
    register long d __asm__("r10") = 0, e __asm__("r8") = 0, f __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e), "r"(f)
                     : "rcx", "r11", "memory");
    return result;
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call run\n hlt\n");
#else
enum { SYS_EXIT = 1, SYS_WRITE = 4, SYS_SOCKET = 359, SYS_CONNECT = 362, SYS_SEND = 369, SYS_RECEIVE = 371 };

static long system_call(long number, long a, long b, long c) {
    long result;
    /* The fourth to sixth arguments, flags and an address, are 0. */
    __asm__ volatile("push %%ebp\n xor %%ebp, %%ebp\n int $0x80\n pop %%ebp"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c), "S"(0), "D"(0)
                     : "memory");
    return result;
}

__asm__(".globl _start\n_start: mov %esp, %eax\n and $-16, %esp\n sub $12, %esp\n push %eax\n call run\n hlt\n");
#endif

static void say(const char *text) {
    unsigned long length = 0;
    while (text[length])
        length++;
    system_call(SYS_WRITE, STANDARD_ERROR, (long)text, (long)length);
}

static _Noreturn void end(int status) {
    for (;;)
        system_call(SYS_EXIT, status, 0, 0);
}

static _Noreturn void fail(const char *what, long error) {
    char digits[12], *at = digits + sizeof digits - 1;
    unsigned number = (unsigned)-error;
    *at = 0;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    say("xfrmtalk: "), say(what), say(": error "), say(at), say("\n");
    end(1);
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* The kernel's socket for these messages, or that of a helper which has it. */
static long talk_to(const char *helper) {
    long fd = helper ? system_call(SYS_SOCKET, AF_UNIX, SOCK_SEQPACKET, 0) : system_call(SYS_SOCKET, AF_NETLINK, SOCK_RAW, NETLINK_XFRM);
    long result = fd;
    if (helper && fd >= 0) {
        static struct sockaddr_un address = {.sun_family = AF_UNIX};
        for (unsigned i = 0; helper[i] && i < sizeof address.sun_path - 1; i++)
            address.sun_path[i] = helper[i];
        result = system_call(SYS_CONNECT, fd, (long)&address, sizeof address);
    }
    if (result < 0)
        fail("socket", result);
    return fd;
}

static struct {
    struct nlmsghdr header;
    union {
        struct xfrm_userpolicy_info policy;
        struct xfrm_userpolicy_id id;
    };
} request;

static unsigned char answer[LONGEST] __attribute__((aligned(8)));

/* Which addresses a policy is for. */
static void select_number(struct xfrm_selector *selector, unsigned number) {
    selector->family = AF_INET;
    selector->prefixlen_d = selector->prefixlen_s = 32;
    selector->daddr.a4 = __builtin_bswap32(0x0a000000 | number);
    selector->saddr.a4 = __builtin_bswap32(0x0b000000);
}

/* Takes what the request of that number is answered with; the number of policies in it. */
static unsigned take(long fd, unsigned number) {
    unsigned policies = 0;
    for (;;) {
        long length = system_call(SYS_RECEIVE, fd, (long)answer, LONGEST);
        if (length == INTERRUPTED)
            continue;
        if (length <= 0)
            fail("answer", length);
        struct nlmsghdr *message = (struct nlmsghdr *)answer;
        for (unsigned left = (unsigned)length; NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
            if (message->nlmsg_seq != number)
                continue;
            if (message->nlmsg_type == NLMSG_ERROR) {
                int error = *(int *)NLMSG_DATA(message);
                if (error)
                    fail("the kernel", error);
                return policies;
            }
            if (message->nlmsg_type == NLMSG_DONE)
                return policies;
            const struct xfrm_userpolicy_info *policy = NLMSG_DATA(message);
            if (message->nlmsg_type != XFRM_MSG_NEWPOLICY || message->nlmsg_len < NLMSG_LENGTH(sizeof *policy) ||
                policy->lft.hard_packet_limit != XFRM_INF || policy->dir != XFRM_POLICY_OUT || policy->action != XFRM_POLICY_ALLOW)
                fail("not a policy that was set", 0);
            policies++;
        }
    }
}

/* The arguments as the kernel has put them on the stack. */
__attribute__((used)) static _Noreturn void run(unsigned long *stack) {
    char **argv = (char **)(stack + 1);
    unsigned count = 0, policies = 0;
    if (stack[0] < 3 || stack[0] > 4) {
        say("usage: xfrmtalk add|delete|list COUNT [HELPER'S SOCKET]\n");
        end(2);
    }
    const int list = same(argv[1], "list"), add = same(argv[1], "add");
    if (!list && !add && !same(argv[1], "delete"))
        fail(argv[1], 0);
    for (const char *digit = argv[2]; *digit; digit++)
        count = count * 10 + (unsigned)(*digit - '0');
    long fd = talk_to(stack[0] == 4 ? argv[3] : 0);
    for (unsigned number = 1; number <= count; number++) {
        request.header = (struct nlmsghdr){.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK, .nlmsg_seq = number};
        if (add) {
            request.header.nlmsg_type = XFRM_MSG_NEWPOLICY;
            request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.policy);
            request.policy = (struct xfrm_userpolicy_info){.dir = XFRM_POLICY_OUT, .action = XFRM_POLICY_ALLOW, .priority = 1};
            request.policy.lft = (struct xfrm_lifetime_cfg){XFRM_INF, XFRM_INF, XFRM_INF, XFRM_INF, 0, 0, 0, 0};
            select_number(&request.policy.sel, number);
        } else {
            request.header.nlmsg_type = list ? XFRM_MSG_GETPOLICY : XFRM_MSG_DELPOLICY;
            request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.id);
            request.id = (struct xfrm_userpolicy_id){.dir = XFRM_POLICY_OUT};
            if (list)
                request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
            else
                select_number(&request.id.sel, number);
        }
        long sent = system_call(SYS_SEND, fd, (long)&request, request.header.nlmsg_len);
        if (sent < 0)
            fail("request", sent);
        policies = take(fd, number);
    }
    if (list && !policies)
        fail("there are no policies", 0);
    end(0);
}

/* Compilers call these for structures. */
void *memset(void *to, int byte, unsigned long length) {
    for (unsigned char *at = to; length--; at++)
        *(volatile unsigned char *)at = (unsigned char)byte;
    return to;
}

void *memcpy(void *to, const void *from, unsigned long length) {
    for (unsigned long i = 0; i < length; i++)
        ((volatile unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    return to;
}
