/* The runtime of the bare-metal guests; runtime.h describes its parts. */
#include "runtime.h"

#include <stdarg.h>

enum { COM1 = 0x3f8, DEBUG_EXIT = 0xf4 };
/* The marker ports of docs/marker-port.md; on a machine without them the writes have no effect. */
enum { MARKER_NAME = 0x1f0e, MARKER_CONTROL = 0x1f0f, MARKER_BEGIN = 1, MARKER_END = 2 };
enum { MULTIBOOT_BOOT_MAGIC = 0x2badb002, MULTIBOOT_CMDLINE_FLAG = 4, PVH_MAGIC = 0x336ec578 };

static const char *command_line = "";

static void put(char c) {
    if (c == '\n')
        put('\r');
    while (!(inb(COM1 + 5) & 0x20))
        ;
    outb(COM1, c);
}

static void put_number(uint64_t value, unsigned base, int width, char pad) {
    char digits[24];
    int count = 0;
    do {
        digits[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    for (int i = count; i < width; i++)
        put(pad);
    while (count)
        put(digits[--count]);
}

void print(const char *format, ...) {
    va_list list;
    va_start(list, format);
    for (; *format; format++) {
        if (*format != '%') {
            put(*format);
            continue;
        }
        format++;
        char pad = *format == '0' ? '0' : ' ';
        int width = 0, is_long = 0;
        for (; *format >= '0' && *format <= '9'; format++)
            width = width * 10 + *format - '0';
        for (; *format == 'l'; format++)
            is_long = 1;
        if (*format == 's') {
            for (const char *text = va_arg(list, const char *); *text; text++)
                put(*text);
        } else if (*format == 'c') {
            put((char)va_arg(list, int));
        } else if (*format == 'd') {
            int64_t value = is_long ? va_arg(list, long) : va_arg(list, int);
            if (value < 0)
                put('-');
            put_number(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10, width, pad);
        } else {
            uint64_t value = is_long ? va_arg(list, unsigned long) : va_arg(list, unsigned);
            put_number(value, *format == 'x' ? 16 : 10, width, pad);
        }
    }
    va_end(list);
}

/* Returns the text after `key=` at the beginning of a word of the command line. */
static const char *find_argument(const char *key) {
    for (const char *word = command_line; *word;) {
        const char *k = key, *w = word;
        while (*k && *k == *w)
            k++, w++;
        if (!*k && *w == '=')
            return w + 1;
        while (*word && *word != ' ')
            word++;
        while (*word == ' ')
            word++;
    }
    return NULL;
}

uint64_t argument(const char *key, uint64_t otherwise) {
    const char *text = find_argument(key);
    if (!text)
        return otherwise;
    unsigned base = 10;
    if (text[0] == '0' && text[1] == 'x')
        base = 16, text += 2;
    uint64_t value = 0;
    for (;; text++) {
        unsigned digit = 16;
        if (*text >= '0' && *text <= '9')
            digit = (unsigned)(*text - '0');
        else if (*text >= 'a' && *text <= 'f')
            digit = (unsigned)(*text - 'a' + 10);
        if (digit >= base)
            return value;
        value = value * base + digit;
    }
}

int argument_is(const char *key, const char *text) {
    const char *found = find_argument(key);
    if (!found)
        return 0;
    while (*text && *text == *found)
        text++, found++;
    return !*text && (!*found || *found == ' ');
}

_Noreturn void leave(uint8_t value) {
    if (argument_is("exit", "acpi"))
        acpi_power_off();
    outb(DEBUG_EXIT, value);
    for (;;)
        __asm__ volatile("cli; hlt");
}

uint64_t measure_begin(const char *name) {
    do
        outb(MARKER_NAME, *name);
    while (*name++);
    outb(MARKER_CONTROL, MARKER_BEGIN);
    return rdtsc();
}

void measure_end(const char *name, uint64_t begun, uint64_t iterations) {
    uint64_t cycles = rdtsc() - begun;
    outb(MARKER_CONTROL, MARKER_END); /* ends the name that measure_begin sent */
    if (!iterations)
        iterations = 1;
    uint64_t tenths = cycles * 10 / iterations;
    print("%s: %lu iterations, %lu.%lu cycles/iteration\n", name, iterations, tenths / 10, tenths % 10);
}

/* Exceptions. */

struct gate {
    uint16_t offset_low, selector;
    uint8_t stack_table, type;
    uint16_t offset_middle;
    uint32_t offset_high, reserved;
};
struct __attribute__((packed)) table_pointer {
    uint16_t limit;
    uint64_t base;
};

extern const char exception_stubs[];
extern uint64_t gdt[];
static struct gate idt[32];
static exception_handler *handlers[32];
static struct __attribute__((packed)) {
    uint32_t reserved0;
    uint64_t rsp[3], reserved1, ist[7], reserved2;
    uint16_t reserved3, io_map_base;
} task_state;

void on_exception(unsigned vector, exception_handler *handler) { handlers[vector] = handler; }

void set_kernel_stack(void *top) { task_state.rsp[0] = (uint64_t)top; }

void exception_entry(struct frame *frame) {
    if (handlers[frame->vector]) {
        handlers[frame->vector](frame);
        return;
    }
    uint64_t cr2;
    __asm__ volatile("mov %%cr2, %0" : "=r"(cr2));
    print("%s: unhandled exception %lu, error %lx, at rip %lx (cs %lx, rsp %lx, cr2 %lx)\n", program_name, frame->vector,
          frame->error, frame->rip, frame->cs, frame->rsp, cr2);
    leave(EXIT_EXCEPTION);
}

static void load_tables(void) {
    for (unsigned vector = 0; vector < 32; vector++) {
        uint64_t stub = (uint64_t)exception_stubs + 16 * vector;
        idt[vector] = (struct gate){.offset_low = (uint16_t)stub, .selector = KERNEL_CODE, .type = 0x8e,
                                    .offset_middle = (uint16_t)(stub >> 16), .offset_high = (uint32_t)(stub >> 32)};
    }
    struct table_pointer pointer = {sizeof idt - 1, (uint64_t)idt};
    __asm__ volatile("lidt %0" : : "m"(pointer));

    uint64_t base = (uint64_t)&task_state;
    task_state.io_map_base = sizeof task_state;
    gdt[5] = (sizeof task_state - 1) | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
    gdt[6] = base >> 32;
    struct table_pointer gdt_pointer = {7 * 8 - 1, (uint64_t)gdt};
    __asm__ volatile("lgdt %0; ltr %w1" : : "m"(gdt_pointer), "r"(0x28));
}

/* Memory. */

static uint8_t page_pool[128][PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));
static unsigned pages_used;

void *page_alloc(void) {
    if (pages_used == sizeof page_pool / PAGE_SIZE) {
        print("%s: out of pages\n", program_name);
        leave(EXIT_FAIL);
    }
    return page_pool[pages_used++];
}

uint64_t *page_map(uint64_t *top, uint64_t virtual_address, uint64_t physical_address, uint64_t flags) {
    uint64_t *table = top;
    for (int shift = 39; shift > 12; shift -= 9) {
        uint64_t *entry = &table[virtual_address >> shift & 511];
        if (!*entry)
            *entry = (uint64_t)page_alloc() | PAGE_PRESENT | PAGE_WRITE | PAGE_USER;
        table = (uint64_t *)(*entry & ~0xfffull);
    }
    uint64_t *leaf = &table[virtual_address >> 12 & 511];
    *leaf = physical_address | flags;
    return leaf;
}

uint64_t *address_space(void) {
    uint64_t *top = page_alloc();
    for (unsigned i = 0; i < 512; i++)
        top[i] = boot_pml4[i];
    return top;
}

/* Start. */

static const char *boot_command_line(uint32_t magic, uint32_t information) {
    const uint32_t *words = (const uint32_t *)(uint64_t)information;
    if (magic == MULTIBOOT_BOOT_MAGIC)
        return words[0] & MULTIBOOT_CMDLINE_FLAG ? (const char *)(uint64_t)words[4] : "";
    if (words[0] == PVH_MAGIC && words[6])
        return (const char *)*(const uint64_t *)&words[6];
    return "";
}

void runtime_start(uint32_t magic, uint32_t information) {
    command_line = boot_command_line(magic, information);
    load_tables();
    program();
    leave(EXIT_PASS);
}

/* The compiler may call these for its own copies. */
void *memcpy(void *to, const void *from, size_t count) {
    void *result = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
    return result;
}
void *memset(void *to, int value, size_t count) {
    void *result = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(value) : "memory");
    return result;
}
