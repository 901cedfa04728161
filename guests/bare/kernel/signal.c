/* Signals: a bit each, handlers in user mode, and the two signals that cannot be handled. */
#include "kernel.h"

/* The stack contents at a handler's return. */
struct signal_frame {
    unsigned long return_address;
#ifndef __x86_64__
    unsigned long signal;
#endif
    struct registers registers;
};

extern char user_signal_return[];

void signal_send(struct task *task, int signal) {
    unsigned long flags = interrupts_off();
    int ignored = signal == SIGCHLD && !task->handlers[signal] && !task->traced;
    if (task->mm && task->state != ZOMBIE && !ignored) {
        task->pending |= 1u << signal;
        if (task == current)
            work_pending = 1;
        else if (task->state == SLEEPING || (task->state == TRACED && signal == SIGKILL))
            wake_up_task(task, 0);
    }
    interrupts_restore(flags);
}

static void call_handler(struct registers *registers, int signal) {
    unsigned long stack = registers->sp;
#ifdef __x86_64__
    stack -= 128; /* a leaf function may use this much below its stack pointer */
#endif
    stack = ((stack - sizeof(struct signal_frame)) & ~15ul) - sizeof(long);
    if (!user_range(stack, sizeof(struct signal_frame), 1))
        process_exit(SIGKILL);
    struct signal_frame *frame = (struct signal_frame *)stack;
    frame->return_address = (unsigned long)user_signal_return;
    frame->registers = *registers;
#ifdef __x86_64__
    registers->di = (unsigned long)signal;
#else
    frame->signal = (unsigned long)signal;
#endif
    registers->sp = stack;
    registers->ip = current->handlers[signal];
    registers->flags &= ~(unsigned long)FLAG_TF;
}

/* Restores the registers after a handler's return: its stack pointer is just above the frame's return address,
   minus, on i386, the words that the system call's entry has pushed there since. */
void signal_return(struct registers *registers) {
#ifdef __x86_64__
    unsigned long stack = registers->sp - sizeof(long);
#else
    unsigned long stack = registers->sp + 3 * sizeof(long);
#endif
    if (!user_range(stack, sizeof(struct signal_frame), 0))
        process_exit(SIGKILL);
    const struct signal_frame *frame = (const struct signal_frame *)stack;
    struct registers own = *registers;
    *registers = frame->registers;
    registers->cs = own.cs;
    registers->ss = own.ss;
#ifndef __x86_64__
    registers->ds = own.ds;
    registers->es = own.es;
    registers->gs = own.gs;
#endif
    /* The program may set the arithmetic flags only. */
    registers->flags = (own.flags & ~(unsigned long)0x8d5) | (frame->registers.flags & 0x8d5);
    work_pending = 1; /* all registers are new, which needs the long exit */
}

void signal_deliver(struct registers *registers) {
    while (current->pending) {
        int signal = __builtin_ctz(current->pending);
        if (current->pending & 1u << SIGKILL)
            signal = SIGKILL;
        current->pending &= ~(1u << signal);
        if (signal == SIGKILL)
            process_exit(SIGKILL);
        if (current->traced)
            trace_stop(signal);
        else if (current->handlers[signal])
            call_handler(registers, signal);
        else if (signal != SIGCHLD && signal != SIGSTOP)
            process_exit(signal);
    }
}
