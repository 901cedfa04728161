/* A small multitasking kernel: its parts and their interfaces. docs/guides/multitasking-guest.md describes its
   purpose. */
#ifndef KERNEL_H
#define KERNEL_H

#include "arch.h"

#define ALIGNED(n) __attribute__((aligned(n)))
#define ARRAY_SIZE(array) (sizeof(array) / sizeof *(array))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* Data that W^X mode maps read-only; it is written only between open_kernel() and close_kernel(). */
#define PROTECTED __attribute__((section(".protected")))

enum { PAGE_SHIFT = 12, PAGE_SIZE = 1 << PAGE_SHIFT };
#define PAGE_MASK (~(unsigned long)(PAGE_SIZE - 1))

/* Lists. */
struct list {
    struct list *next, *previous;
};
#define CONTAINER(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
static inline void list_init(struct list *list) { list->next = list->previous = list; }
static inline int list_empty(const struct list *list) { return list->next == list; }
static inline void list_append(struct list *list, struct list *item) {
    item->previous = list->previous;
    item->next = list;
    list->previous->next = item;
    list->previous = item;
}
static inline void list_remove(struct list *item) {
    item->previous->next = item->next;
    item->next->previous = item->previous;
    item->next = item->previous = item;
}

/* console.c */
enum { EXIT_PASS = 0, EXIT_FAIL = 1, EXIT_EXCEPTION = 63 };
void console_start(const char *arguments);
void console_write(const char *text, size_t length);
/* Supports %s, %c, %d, %u, %x, with l for long and ll for 64 bits; a width and zero padding. */
void print(const char *format, ...) __attribute__((format(printf, 1, 2)));
unsigned long argument(const char *key, unsigned long otherwise);
int argument_is(const char *key, const char *text);
_Noreturn void leave(uint8_t status);
_Noreturn void panic(const char *format, ...) __attribute__((format(printf, 1, 2)));
void marker_begin(const char *name);
void marker_end(void);
/* Tells the machine that this processor runs a process from now on, and that process's parent. */
void marker_task(unsigned pid, unsigned parent);
void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);

/* memory.c: pages of physical memory, all mapped at PAGE_OFFSET, and objects of up to a page. */
typedef unsigned long phys_t;
static inline void *to_virtual(phys_t physical) { return (void *)(physical + PAGE_OFFSET); }
static inline phys_t to_physical(const void *address) { return (phys_t)address - PAGE_OFFSET; }
void memory_start(phys_t end);
phys_t memory_end(void);
/* Pages have one reference at first; running out of pages ends the run. */
phys_t page_alloc(void);
phys_t page_alloc_zeroed(void);
phys_t pages_alloc_pair(void);
void pages_free_pair(phys_t page);
void page_get(phys_t page);
void page_put(phys_t page);
unsigned page_references(phys_t page);
unsigned pages_free_count(void);
extern phys_t zero_page;
struct cache {
    size_t size;
    struct free_object *free;
    unsigned used;
};
void *cache_alloc(struct cache *cache);
void cache_free(struct cache *cache, void *object);

/* paging.c: address spaces. */
#if defined(__x86_64__) || defined(PAE)
typedef uint64_t entry_t;
#else
typedef uint32_t entry_t;
#endif
#define PAGE_PRESENT 0x1
#define PAGE_WRITE 0x2
#define PAGE_USER 0x4
#define PAGE_ACCESSED 0x20
#define PAGE_DIRTY 0x40
#define PAGE_LARGE 0x80
#define PAGE_GLOBAL 0x100
enum { AREA_WRITE = 1, AREA_IMAGE = 2, AREAS = 4 };
struct area {
    unsigned long start, end;
    unsigned flags;
    phys_t image; /* of AREA_IMAGE: the pages' initial contents */
};
struct mm {
    entry_t *top;
    unsigned users;      /* tasks */
    unsigned references; /* all users together count as one; a processor in lazy mode counts as one more */
    unsigned area_count;
    struct area areas[AREAS];
};
struct registers;
void paging_start(void);
const volatile uint32_t *paging_window(phys_t device);
struct mm *mm_create(void);
struct mm *mm_copy(struct mm *from);
void mm_put(struct mm *mm);  /* removes a user; the last one's removal frees the pages */
void mm_drop(struct mm *mm); /* removes a reference; the last one's removal frees the top-level table */
void mm_switch(const struct mm *previous, struct mm *next);
int page_fault(struct mm *mm, unsigned long address, unsigned long error);
/* Returns true if the whole range lies in one area, which must be writable if `write` is set. */
int user_range(unsigned long address, unsigned long length, int write);
void flush_tlb(void);
/* Returns the page with the bytes of an image segment loaded for user mode. */
phys_t text_page_of(unsigned long address);

entry_t *paging_test_top(unsigned long address, phys_t *middle);
void paging_test_map(entry_t *top, unsigned long address, entry_t entry);

/* stress.c */
extern int stress_active;
void stress_exception(struct registers *registers);
_Noreturn void stress(void);

/* protect.c: W^X mode. */
extern int kernexec;
extern unsigned long toggles;
void protect_start(void);
void protect_wp_set(int on);
static inline void open_kernel(void) {
    if (unlikely(kernexec))
        protect_wp_set(0);
}
static inline void close_kernel(void) {
    if (unlikely(kernexec))
        protect_wp_set(1);
}

/* trap.c: descriptor tables, exceptions, system call entries. */
extern uint64_t gdt[GDT_ENTRIES];
void trap_start(void);
void trap_set_stack(unsigned long top);

/* timer.c */
extern int in_interrupt;
extern unsigned long ticks;
extern uint32_t tsc_khz;
extern unsigned tick_hz;
void timer_start(void);
void timer_sleep(unsigned long count);
void timer_device_accesses(unsigned long count, int in_kernel);
uint64_t microseconds(uint64_t cycles);

/* paravirt.c */
/* The offered features of the hypervisor that the command line enables; 0 without them. */
enum { PARAVIRT_IO_DELAY = 8, PARAVIRT_PIC_SHORT = 16, PARAVIRT_FLUSH = 32 };
extern unsigned paravirt;
void paravirt_start(void);
void paravirt_rom(void);
void paravirt_write_cr3(unsigned long value);
void paravirt_table_freed(phys_t top);

/* Wait queues and tasks. */
struct wait_queue {
    struct list waiters;
};
struct waiter {
    struct list link;
    struct task *task;
};
enum { FILES = 128 };
struct file;
/* The meaning of a sleep, or of the time after it, for a task: none yet; its credit is limited; or the time that it
   then waits to run counts too, in full if an interrupt woke it. */
enum sleep_kind { SLEEP_NORMAL, SLEEP_NONINTERACTIVE, SLEEP_INTERACTIVE, SLEEP_INTERRUPTED };
enum task_state { RUNNING, SLEEPING, UNINTERRUPTIBLE, TRACED, ZOMBIE };
enum { SIGKILL = 9, SIGTRAP = 5, SIGCHLD = 17, SIGSTOP = 19, SIGNALS = 32 };
struct task {
    unsigned long stack_pointer; /* while it is not running; entry.S relies on its being first */
    unsigned long stack_top;
    enum task_state state;
    int need_resched;
    struct mm *mm, *active_mm;
    uint64_t tls[3];
    unsigned long tls_base;

    struct list run; /* on a queue while runnable */
    struct queue *queue;
    int priority, static_priority;
    int slice;
    uint64_t timestamp;
    uint32_t sleep_average; /* microseconds */
    enum sleep_kind sleep_kind;

    int pid;
    struct task *parent, *real_parent;
    struct list sibling, children;
    struct wait_queue wait_child;
    int exit_code;
    struct file *files[FILES];

    uint32_t pending;
    unsigned long handlers[SIGNALS];
    int traced;
    int stop_signal; /* of a stop that no wait has reported yet */
    int single_step;
    struct list all;
};
extern struct task *current;

/* sched.c */
void sched_start(void);
void sched_tick(void);
void sched_first(struct task *task);
void schedule(void);
void wake_up_task(struct task *task, int sync);
void wake_up_new_task(struct task *task);
void sched_exit(struct task *task);
void wait_prepare(struct wait_queue *queue, struct waiter *waiter, enum task_state state);
void wait_finish(struct waiter *waiter);
void wake_up(struct wait_queue *queue, int sync);
extern unsigned long switches;
extern int work_pending; /* true if `current` has work to do before user mode */

/* process.c, signal.c, ptrace.c: system calls return a value or a negative error. */
enum { EPERM = 1, ESRCH = 3, EINTR = 4, EBADF = 9, ECHILD = 10, EAGAIN = 11, EFAULT = 14, EINVAL = 22, EMFILE = 24, EPIPE = 32, ENOSYS = 38 };
void process_start(void);
long process_fork(const struct registers *registers);
_Noreturn void process_exit(int code);
long process_wait(long pid, unsigned long status);
struct task *process_find(int pid);
void notify_parent(struct task *task);
unsigned task_count(void);
void signal_send(struct task *task, int signal);
/* Handles signals, stops, and the trap flag of a task being stepped, before the return to user mode. */
void signal_deliver(struct registers *registers);
void signal_return(struct registers *registers);
long trace_request(long request, long pid);
enum { TRACE_ATTACH = 16, TRACE_STEP = 9, TRACE_CONTINUE = 7, TRACE_DETACH = 17 };
void trace_stop(int signal);
void trace_exit(struct task *tracer);

/* files.c */
struct file_operations {
    long (*read)(struct file *file, char *buffer, size_t count);
    long (*write)(struct file *file, const char *buffer, size_t count);
    long (*poll)(struct file *file); /* waits until it can be read */
    void (*release)(struct file *file);
};
struct file {
    const struct file_operations *operations;
    unsigned references;
    void *private;
};
struct file *file_create(const struct file_operations *operations, void *private);
long file_install_pair(struct file *one, struct file *other, int descriptors[2]);
long file_read(int descriptor, unsigned long buffer, unsigned long count);
long file_write(int descriptor, unsigned long buffer, unsigned long count);
long file_poll(int descriptor);
long file_close(int descriptor);
void files_copy(struct task *to, const struct task *from);
void files_close(struct task *task);

/* pipe.c, socket.c: both ends' descriptors are written to an array of the program's. */
long pipe_create(unsigned long ends);
long socket_pair_create(unsigned long ends);

/* syscall.c */
#include "syscalls.h"
extern uint64_t region_begun;

/* entry.S */
extern char exception_stubs[], interrupt_stubs[], system_call_entry[], return_from_fork[];
struct task *switch_to(struct task *from, struct task *to);

#endif
