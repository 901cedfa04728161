/* Tracing: a traced task stops at each signal until its tracer, to which wait reports the stop, lets it continue. */
#include "kernel.h"

/* Stops the running task. */
void trace_stop(int signal) {
    current->single_step = 0;
    current->stop_signal = signal;
    current->state = TRACED;
    notify_parent(current);
    schedule();
}

static void attach(struct task *task) {
    task->traced = 1;
    if (task->parent != current) {
        list_remove(&task->sibling);
        task->parent = current;
        list_append(&current->children, &task->sibling);
    }
    signal_send(task, SIGSTOP);
}

static void detach(struct task *task) {
    task->traced = 0;
    if (task->parent != task->real_parent) {
        list_remove(&task->sibling);
        task->parent = task->real_parent;
        list_append(&task->parent->children, &task->sibling);
    }
}

/* Sets the trap flag in a stopped task's user-mode flags, which are the last word on its stack but one or two. */
static void set_trap_flag(struct task *task, int on) {
    struct registers *registers = (struct registers *)task->stack_top - 1;
    task->single_step = on;
    if (on)
        registers->flags |= FLAG_TF;
    else
        registers->flags &= ~(unsigned long)FLAG_TF;
}

long trace_request(long request, long pid) {
    struct task *task = process_find((int)pid);
    if (!task || task == current)
        return -ESRCH;
    if (request == TRACE_ATTACH) {
        if (task->traced || task->state == ZOMBIE)
            return -EPERM;
        attach(task);
        return 0;
    }
    if (!task->traced || task->parent != current || task->state != TRACED)
        return -ESRCH;
    switch (request) {
    case TRACE_STEP:
        set_trap_flag(task, 1);
        break;
    case TRACE_CONTINUE:
        set_trap_flag(task, 0);
        break;
    case TRACE_DETACH:
        set_trap_flag(task, 0);
        detach(task);
        break;
    default:
        return -EINVAL;
    }
    wake_up_task(task, 0);
    return 0;
}

/* Ends the tasks that a tracer traces when the tracer ends. */
void trace_exit(struct task *tracer) {
    for (struct list *at = tracer->children.next, *next; at != &tracer->children; at = next) {
        struct task *task = CONTAINER(at, struct task, sibling);
        next = at->next;
        if (!task->traced)
            continue;
        detach(task);
        signal_send(task, SIGKILL);
    }
}
