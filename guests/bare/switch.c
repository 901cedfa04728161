/* Two tasks in address spaces of their own pass the processor back and forth: stack switch and CR3 write, as in a
   kernel's context switch. Each counts in a private page at the same virtual address, which proves that the spaces
   differ. */
#include "runtime.h"

const char program_name[] = "switch";

struct task {
    uint64_t stack_pointer;
    uint64_t top;
};

/* Saves the callee-saved registers on the old stack, loads the new address space and stack, and returns into the new
   task. */
void switch_task(struct task *from, const struct task *to);
__asm__(".globl switch_task\n"
        "switch_task:\n"
        "    push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov 8(%rsi), %rax\n"
        "    mov %rax, %cr3\n"
        "    mov (%rsi), %rsp\n"
        "    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "    ret\n");

static struct task first, second;
static volatile uint64_t *const counter = (volatile uint64_t *)PRIVATE_BASE;

static void second_task(void) {
    for (;;) {
        *counter += 3;
        switch_task(&second, &first);
    }
}

void program(void) {
    uint64_t iterations = argument("iterations", 100000);
    uint64_t *tops[2];
    for (int i = 0; i < 2; i++) {
        tops[i] = address_space();
        page_map(tops[i], PRIVATE_BASE, (uint64_t)page_alloc(), PAGE_PRESENT | PAGE_WRITE);
    }
    first.top = (uint64_t)tops[0];
    second.top = (uint64_t)tops[1];
    uint64_t *stack = (uint64_t *)((char *)page_alloc() + PAGE_SIZE);
    stack[-2] = (uint64_t)second_task;
    second.stack_pointer = (uint64_t)(stack - 8);
    write_cr3(tops[0]);

    uint64_t begun = measure_begin(program_name);
    for (uint64_t i = 0; i < iterations; i++) {
        *counter += 1;
        switch_task(&first, &second);
    }
    measure_end(program_name, begun, iterations * 2);

    uint64_t mine = *counter;
    write_cr3(tops[1]);
    uint64_t other = *counter;
    if (mine != iterations || other != 3 * iterations) {
        print("%s: counted %lu and %lu, not %lu and %lu\n", program_name, mine, other, iterations, 3 * iterations);
        leave(EXIT_FAIL);
    }
}
