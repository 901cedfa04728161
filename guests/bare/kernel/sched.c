/* The scheduler: two arrays of queues by priority, time slices, and priorities that favour sleeping tasks, in the
   manner of the O(1) scheduler of 2.6 kernels. There is one processor and no preemption in the kernel. */
#include "kernel.h"

enum { PRIORITIES = 140, NORMAL_PRIORITY = 120, MAX_BONUS = 10, INTERACTIVE_BONUS = 2, SLICE_MS = 100, TURN_MS = 10, RUNQUEUE_PERCENT = 30, CHILD_PERCENT = 95 };
enum { SLEEP_MAX = 1000000, BONUS_STEP = SLEEP_MAX / MAX_BONUS }; /* microseconds */

struct queue {
    unsigned count;
    unsigned long bitmap[(PRIORITIES + 8 * sizeof(long) - 1) / (8 * sizeof(long))];
    struct list lists[PRIORITIES];
};

static struct queue queues[2], *active = &queues[0], *expired = &queues[1];
static unsigned long expired_since;
static struct task idle;
struct task *current = &idle;
static int tell_tasks; /* the machine is told of each switch (tell-tasks=1) */
unsigned long switches;
int work_pending;
static int child_first, fsgsbase;
static uint32_t clock_factor;

enum { CLOCK_SHIFT = 20 };

/* Returns the time in microseconds, by a factor instead of a division. */
static uint64_t clock(void) { return (rdtsc() * clock_factor) >> CLOCK_SHIFT; }

static void enqueue(struct task *task, struct queue *queue) {
    list_append(&queue->lists[task->priority], &task->run);
    queue->bitmap[(unsigned)task->priority / (8 * sizeof(long))] |= 1ul << ((unsigned)task->priority % (8 * sizeof(long)));
    queue->count++;
    task->queue = queue;
}

static void dequeue(struct task *task) {
    struct queue *queue = task->queue;
    list_remove(&task->run);
    if (list_empty(&queue->lists[task->priority]))
        queue->bitmap[(unsigned)task->priority / (8 * sizeof(long))] &= ~(1ul << ((unsigned)task->priority % (8 * sizeof(long))));
    queue->count--;
    task->queue = NULL;
}

static struct task *first_of(const struct queue *queue) {
    for (unsigned word = 0; word < ARRAY_SIZE(queue->bitmap); word++)
        if (queue->bitmap[word]) {
            unsigned priority = word * 8 * sizeof(long) + (unsigned)__builtin_ctzl(queue->bitmap[word]);
            return CONTAINER(queue->lists[priority].next, struct task, run);
        }
    return &idle;
}

static int bonus(const struct task *task) { return (int)(task->sleep_average / BONUS_STEP); }
static int effective_priority(const struct task *task) { return task->static_priority - (bonus(task) - MAX_BONUS / 2); }
static int interactive(const struct task *task) { return task->priority <= task->static_priority - INTERACTIVE_BONUS; }
static int full_slice(void) { return (int)(SLICE_MS * tick_hz / 1000) > 0 ? (int)(SLICE_MS * tick_hz / 1000) : 1; }

/* Returns the credit to which one long sleep raises a task: a tick short of the bonus after the first interactive
   one. */
static uint32_t sleep_limit(void) {
    return BONUS_STEP * (MAX_BONUS / 2 + INTERACTIVE_BONUS + 1) - 1000000 / tick_hz;
}

static void set_work(void) {
    work_pending = current->need_resched || current->pending || current->single_step;
}

static void reschedule_soon(void) {
    current->need_resched = 1;
    set_work();
}

/* Credits a task for the time from its timestamp to `now`, in which it did not run, and returns its new priority. No
   single long sleep makes a task one of the best: it ends just below the limit. Sleeps that are no sign of a user do
   not either, in any number. */
static int credit_sleep(struct task *task, uint64_t now) {
    uint64_t slept = now - task->timestamp;
    uint32_t limit = sleep_limit();
    if (slept > limit && task->sleep_average < limit) {
        task->sleep_average = limit;
        task->sleep_kind = SLEEP_NONINTERACTIVE;
    } else {
        if (slept > SLEEP_MAX)
            slept = SLEEP_MAX;
        uint32_t most = SLEEP_MAX;
        if (task->sleep_kind == SLEEP_NONINTERACTIVE)
            most = task->sleep_average > limit ? task->sleep_average : limit;
        task->sleep_average = task->sleep_average + slept > most ? most : task->sleep_average + (uint32_t)slept;
    }
    return effective_priority(task);
}

void wake_up_task(struct task *task, int sync) {
    unsigned long flags = interrupts_off();
    if (task->state == SLEEPING || task->state == UNINTERRUPTIBLE || task->state == TRACED) {
        task->state = RUNNING;
        if (!task->queue && task != current) {
            uint64_t now = clock();
            task->priority = credit_sleep(task, now);
            if (task->sleep_kind == SLEEP_NORMAL)
                task->sleep_kind = in_interrupt ? SLEEP_INTERRUPTED : SLEEP_INTERACTIVE;
            task->timestamp = now;
            enqueue(task, active);
            if (!sync && (current == &idle || task->priority < current->priority))
                reschedule_soon();
        }
    }
    interrupts_restore(flags);
}

/* Starts a new task; parent and child share the rest of the parent's slice. */
void wake_up_new_task(struct task *task) {
    unsigned long flags = interrupts_off();
    task->state = RUNNING;
    task->slice = (current->slice + 1) / 2;
    current->slice /= 2;
    if (!current->slice) {
        current->slice = 1;
        reschedule_soon();
    }
    task->sleep_average = (uint32_t)(bonus(current) * CHILD_PERCENT / 100) * BONUS_STEP;
    current->sleep_average = (uint32_t)bonus(current) * BONUS_STEP;
    task->static_priority = current->static_priority;
    task->priority = effective_priority(task);
    task->timestamp = clock();
    enqueue(task, active);
    if (child_first && current->queue) {
        /* The parent goes behind its child on the child's queue. */
        dequeue(current);
        current->priority = task->priority;
        enqueue(current, active);
        reschedule_soon();
    }
    interrupts_restore(flags);
}

/* Starts the first process, with the greatest credit, like a shell at which a user types. */
void sched_first(struct task *task) {
    task->state = RUNNING;
    task->slice = full_slice();
    task->sleep_average = SLEEP_MAX;
    task->static_priority = NORMAL_PRIORITY;
    task->priority = effective_priority(task);
    task->timestamp = clock();
    enqueue(task, active);
    reschedule_soon();
}

/* Returns a child's unused slice to its parent, and part of the child's reputation. */
void sched_exit(struct task *task) {
    if (task->sleep_average < task->parent->sleep_average)
        task->parent->sleep_average = task->parent->sleep_average / 4 * 3 + task->sleep_average / 4;
    task->parent->slice += task->slice;
    if (task->parent->slice > full_slice())
        task->parent->slice = full_slice();
}

void sched_tick(void) {
    struct task *task = current;
    if (task == &idle) {
        if (active->count + expired->count)
            reschedule_soon();
        return;
    }
    if (!task->queue)
        return;
    if (--task->slice > 0) {
        /* Interactive tasks of one priority alternate in less than a slice; a higher bonus makes it shorter. */
        int missing = MAX_BONUS - bonus(task) ? MAX_BONUS - bonus(task) : 1;
        int turn = ((int)(TURN_MS * tick_hz / 1000) ? (int)(TURN_MS * tick_hz / 1000) : 1) << (missing - 1);
        if (interactive(task) && (full_slice() - task->slice) % turn == 0 && task->slice >= turn && task->queue == active) {
            dequeue(task);
            enqueue(task, active);
            reschedule_soon();
        }
        return;
    }
    dequeue(task);
    task->priority = effective_priority(task);
    task->slice = full_slice();
    if (!expired->count)
        expired_since = ticks;
    int starving = expired->count && ticks - expired_since > tick_hz * (active->count + 1);
    enqueue(task, interactive(task) && !starving ? active : expired);
    reschedule_soon();
}

/* Switches a task's part of the processor's own state, on the new stack: thread-local storage segments, stack for
   entries. */
void switch_state(struct task *from, struct task *to);
void switch_state(struct task *from, struct task *to) {
    trap_set_stack(to->stack_top);
    open_kernel();
    for (unsigned i = 0; i < ARRAY_SIZE(to->tls); i++)
        gdt[GDT_TLS + i] = to->tls[i];
    close_kernel();
#ifdef __x86_64__
    if (from->tls_base != to->tls_base) {
        if (fsgsbase)
            __asm__ volatile("wrfsbase %0" : : "r"(to->tls_base));
        else
            wrmsr(MSR_FS_BASE, to->tls_base);
    }
#else
    (void)from; /* the return to user mode loads GS with the other registers, from the entries just written */
#endif
    current = to;
    if (tell_tasks)
        marker_task((unsigned)to->pid, to->real_parent ? (unsigned)to->real_parent->pid : 0);
}

/* Completes a switch on the new stack; `previous` is the task that ran before. */
void sched_finish(struct task *previous);
void sched_finish(struct task *previous) {
    struct mm *dropped = NULL;
    if (!previous->mm) {
        dropped = previous->active_mm;
        previous->active_mm = NULL;
    }
    set_work();
    __asm__ volatile("sti");
    if (dropped)
        mm_drop(dropped);
}

void schedule(void) {
    struct task *previous = current;
    __asm__ volatile("cli" : : : "memory");
    uint64_t now = clock(), ran = now - previous->timestamp;
    previous->need_resched = 0;
    if (previous != &idle) {
        /* Time used reduces the credit, more slowly for a task that has much. */
        if (ran > SLEEP_MAX)
            ran = SLEEP_MAX;
        uint32_t used = (uint32_t)ran / (unsigned)(bonus(previous) ? bonus(previous) : 1);
        previous->sleep_average -= used < previous->sleep_average ? used : previous->sleep_average;
        if (previous->state == SLEEPING && previous->pending)
            previous->state = RUNNING;
        if (previous->state != RUNNING && previous->queue)
            dequeue(previous);
        else if (previous->state == RUNNING && !previous->queue)
            enqueue(previous, active);
    }
    if (!active->count && expired->count) {
        struct queue *empty = active;
        active = expired;
        expired = empty;
    }
    struct task *next = first_of(active);
    if (next->sleep_kind == SLEEP_INTERACTIVE || next->sleep_kind == SLEEP_INTERRUPTED) {
        uint64_t waited = now - next->timestamp;
        if (next->sleep_kind == SLEEP_INTERACTIVE)
            waited = waited * (RUNQUEUE_PERCENT * 128 / 100) / 128;
        int priority = credit_sleep(next, next->timestamp + waited);
        if (priority != next->priority) {
            dequeue(next);
            next->priority = priority;
            enqueue(next, active);
        }
    }
    next->sleep_kind = SLEEP_NORMAL;
    previous->timestamp = now;
    if (next == previous) {
        set_work();
        __asm__ volatile("sti" : : : "memory");
        return;
    }
    next->timestamp = now;
    switches++;
    if (!next->mm) {
        next->active_mm = previous->active_mm;
        if (next->active_mm)
            next->active_mm->references++;
    } else {
        mm_switch(previous->active_mm, next->mm);
    }
    sched_finish(switch_to(previous, next));
}

void wait_prepare(struct wait_queue *queue, struct waiter *waiter, enum task_state state) {
    unsigned long flags = interrupts_off();
    if (list_empty(&waiter->link))
        list_append(queue->waiters.next, &waiter->link); /* in front: the last waiter is woken first, as in Linux */
    current->state = state;
    interrupts_restore(flags);
}

void wait_finish(struct waiter *waiter) {
    unsigned long flags = interrupts_off();
    current->state = RUNNING;
    if (!list_empty(&waiter->link))
        list_remove(&waiter->link);
    interrupts_restore(flags);
}

/* Wakes all waiters. Without `sync` a better one preempts. */
void wake_up(struct wait_queue *queue, int sync) {
    unsigned long flags = interrupts_off();
    for (struct list *at = queue->waiters.next, *next; at != &queue->waiters; at = next) {
        next = at->next;
        wake_up_task(CONTAINER(at, struct waiter, link)->task, sync);
        list_remove(at);
    }
    interrupts_restore(flags);
}

/* Is called before the return to user mode, with interrupts off, while there is work to do. */
void return_to_user(struct registers *registers);
void return_to_user(struct registers *registers) {
    for (;;) {
        if (current->need_resched) {
            schedule();
        } else if (current->pending) {
            __asm__ volatile("sti");
            signal_deliver(registers);
        } else {
            break;
        }
        __asm__ volatile("cli");
    }
    if (current->single_step)
        registers->flags |= FLAG_TF;
    set_work();
}

void sched_start(void) {
    uint32_t words[4];
    cpuid(0, words);
    if (words[0] >= 7) {
        cpuid(7, words);
        fsgsbase = words[1] & 1;
    }
#ifdef __x86_64__
    if (fsgsbase)
        write_cr4(read_cr4() | CR4_FSGSBASE);
#endif
    for (unsigned i = 0; i < ARRAY_SIZE(queues); i++)
        for (unsigned j = 0; j < PRIORITIES; j++)
            list_init(&queues[i].lists[j]);
    clock_factor = (uint32_t)scale(1000ull << CLOCK_SHIFT, 1, tsc_khz);
#ifdef __x86_64__
    child_first = argument("child-first", 0) != 0;
#else
    child_first = argument("child-first", 1) != 0;
#endif
    tell_tasks = argument("tell-tasks", 0) != 0;
    extern char init_stack[];
    idle.stack_top = (unsigned long)init_stack + THREAD_SIZE;
    idle.state = RUNNING;
    idle.static_priority = idle.priority = PRIORITIES;
    list_init(&idle.run);
    list_init(&idle.children);
    list_init(&idle.wait_child.waiters);
}
