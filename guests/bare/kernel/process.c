/* Processes: creation by copying, termination, and waiting. */
#include "kernel.h"

extern char user_start[];

static struct cache task_cache = {.size = sizeof(struct task)};
static struct list all_tasks = {&all_tasks, &all_tasks};
static int last_pid;
static unsigned count;
static struct task *init;

unsigned task_count(void) { return count; }

struct task *process_find(int pid) {
    for (struct list *at = all_tasks.next; at != &all_tasks; at = at->next) {
        struct task *task = CONTAINER(at, struct task, all);
        if (task->pid == pid)
            return task;
    }
    return NULL;
}

/* Sets the thread-local storage segment that every C library sets up: a flat one at an address of the program's. */
static void set_tls(struct task *task, unsigned long base) {
    uint64_t address = base & 0xffffffff;
    task->tls_base = base;
    task->tls[0] = 0x00cff3000000ffff | (address & 0xffffff) << 16 | (address >> 24) << 56;
}

static struct task *new_task(void) {
    struct task *task = cache_alloc(&task_cache);
    memset(task, 0, sizeof *task);
    task->pid = ++last_pid;
    task->stack_top = (unsigned long)to_virtual(pages_alloc_pair()) + THREAD_SIZE;
    list_init(&task->run);
    list_init(&task->children);
    list_init(&task->wait_child.waiters);
    list_append(&all_tasks, &task->all);
    count++;
    return task;
}

static void adopt(struct task *parent, struct task *child) {
    child->parent = parent;
    list_append(&parent->children, &child->sibling);
}

/* Prepares the stack on which switch_to finds a task that has not run: its registers, the return to user mode, and
   nothing to restore. */
static struct registers *prepare_stack(struct task *task) {
    struct registers *registers = (struct registers *)task->stack_top - 1;
    unsigned long *words = (unsigned long *)registers;
    *--words = (unsigned long)return_from_fork;
#ifdef __x86_64__
    words -= 6;
#else
    words -= 4;
#endif
    memset(words, 0, (size_t)((char *)registers - (char *)words) - sizeof *words);
    task->stack_pointer = (unsigned long)words;
    return registers;
}

void process_start(void) {
    struct task *task = new_task();
    init = task;
    task->mm = task->active_mm = mm_create();
    set_tls(task, USER_TOP - PAGE_SIZE);
    task->parent = task->real_parent = current;
    list_init(&task->sibling);
    struct registers *registers = prepare_stack(task);
    memset(registers, 0, sizeof *registers);
    registers->ip = (unsigned long)user_start;
    registers->cs = USER_CODE;
    registers->flags = FLAG_IF | FLAG_FIXED;
    registers->sp = USER_TOP - PAGE_SIZE - 16;
    registers->ss = USER_DATA;
#ifndef __x86_64__
    registers->ds = registers->es = USER_DATA;
    registers->gs = TLS_SELECTOR;
#endif
    sched_first(task);
}

long process_fork(const struct registers *registers) {
    struct task *child = new_task();
    child->mm = child->active_mm = mm_copy(current->mm);
    files_copy(child, current);
    memcpy(child->handlers, current->handlers, sizeof child->handlers);
    memcpy(child->tls, current->tls, sizeof child->tls);
    child->tls_base = current->tls_base;
    struct registers *copy = prepare_stack(child);
    memcpy(copy, registers, sizeof *copy);
    copy->ax = 0;
    copy->flags &= ~(unsigned long)FLAG_TF;
    child->real_parent = current;
    adopt(current, child);
    wake_up_new_task(child);
    return child->pid;
}

/* Sends SIGCHLD, and wakes a wait that may now be satisfied. */
void notify_parent(struct task *task) {
    signal_send(task->parent, SIGCHLD);
    wake_up(&task->parent->wait_child, 0);
}

_Noreturn void process_exit(int code) {
    struct task *task = current;
    if (task == init)
        panic("the first process ended");
    trace_exit(task);
    files_close(task);
    struct mm *mm = task->mm;
    mm->references++; /* the tables stay loaded until the switch */
    task->mm = NULL;
    mm_put(mm);
    while (!list_empty(&task->children)) {
        struct task *child = CONTAINER(task->children.next, struct task, sibling);
        list_remove(&child->sibling);
        child->real_parent = init;
        adopt(init, child);
        if (child->state == ZOMBIE)
            notify_parent(child);
    }
    task->exit_code = code;
    task->state = ZOMBIE;
    sched_exit(task);
    notify_parent(task);
    schedule();
    panic("a dead task ran");
}

static void release(struct task *task) {
    list_remove(&task->sibling);
    list_remove(&task->all);
    pages_free_pair(to_physical((void *)(task->stack_top - THREAD_SIZE)));
    cache_free(&task_cache, task);
    count--;
}

/* Returns a child's report: its end, or a stop; 0 if there is none. */
static long collect(struct task *child, unsigned long status) {
    int word;
    long pid = child->pid;
    if (child->state == ZOMBIE) {
        word = child->exit_code;
    } else if (child->state == TRACED && child->stop_signal) {
        word = child->stop_signal << 8 | WAIT_STOPPED;
        child->stop_signal = 0;
    } else {
        return 0;
    }
    if (status)
        *(int *)status = word;
    if (child->state == ZOMBIE)
        release(child);
    return pid;
}

/* Waits for one child (pid > 0) or any. */
long process_wait(long pid, unsigned long status) {
    if (status && !user_range(status, sizeof(int), 1))
        return -EFAULT;
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    long result;
    for (;;) {
        wait_prepare(&current->wait_child, &waiter, SLEEPING);
        result = -ECHILD;
        for (struct list *at = current->children.next; at != &current->children; at = at->next) {
            struct task *child = CONTAINER(at, struct task, sibling);
            if (pid > 0 && child->pid != pid)
                continue;
            result = collect(child, status);
            if (result)
                break;
        }
        if (result)
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
