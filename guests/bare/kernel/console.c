/* The serial console, the command line, the exit, the marker ports, and copies of memory. */
#include "kernel.h"

#include <stdarg.h>

enum { COM1 = 0x3f8, DEBUG_EXIT = 0xf4 };
/* The marker ports of docs/marker-port.md; on a machine without them the writes have no effect. */
enum { MARKER_NAME = 0x1f0e, MARKER_CONTROL = 0x1f0f, MARKER_BEGIN = 1, MARKER_END = 2, MARKER_TASK = 4 };

static char command_line[512];

static void put(char c) {
    if (c == '\n')
        put('\r');
    while (!(inb(COM1 + 5) & 0x20))
        ;
    outb(COM1, (uint8_t)c);
}

static void put_number(uint64_t value, unsigned base, int width, char pad) {
    char digits[24];
    int count = 0;
    do {
        uint64_t quotient = base == 16 ? value >> 4 : scale(value, 1, base);
        digits[count++] = "0123456789abcdef"[(unsigned)(value - quotient * base)];
        value = quotient;
    } while (value);
    for (int i = count; i < width; i++)
        put(pad);
    while (count)
        put(digits[--count]);
}

void console_write(const char *text, size_t length) {
    while (length--)
        put(*text++);
}

static void print_list(const char *format, va_list list) {
    for (; *format; format++) {
        if (*format != '%') {
            put(*format);
            continue;
        }
        format++;
        char pad = *format == '0' ? '0' : ' ';
        int width = 0, longs = 0;
        for (; *format >= '0' && *format <= '9'; format++)
            width = width * 10 + *format - '0';
        for (; *format == 'l'; format++)
            longs++;
        if (*format == 's') {
            for (const char *text = va_arg(list, const char *); *text; text++)
                put(*text);
        } else if (*format == 'c') {
            put((char)va_arg(list, int));
        } else if (*format == 'd') {
            int64_t value = longs == 2 ? va_arg(list, long long) : longs ? va_arg(list, long) : va_arg(list, int);
            if (value < 0)
                put('-');
            put_number(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10, width, pad);
        } else {
            uint64_t value = longs == 2 ? va_arg(list, unsigned long long)
                             : longs    ? va_arg(list, unsigned long)
                                        : va_arg(list, unsigned);
            put_number(value, *format == 'x' ? 16 : 10, width, pad);
        }
    }
}

void print(const char *format, ...) {
    va_list list;
    va_start(list, format);
    print_list(format, list);
    va_end(list);
}

void console_start(const char *arguments) {
    size_t length = 0;
    for (; arguments[length] && length < sizeof command_line - 1; length++)
        command_line[length] = arguments[length];
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

unsigned long argument(const char *key, unsigned long otherwise) {
    const char *text = find_argument(key);
    if (!text)
        return otherwise;
    unsigned long value = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (unsigned long)(*text - '0');
    return value;
}

int argument_is(const char *key, const char *text) {
    const char *found = find_argument(key);
    if (!found)
        return 0;
    while (*text && *text == *found)
        text++, found++;
    return !*text && (!*found || *found == ' ');
}

_Noreturn void leave(uint8_t status) {
    outb(DEBUG_EXIT, status);
    for (;;)
        __asm__ volatile("cli; hlt");
}

_Noreturn void panic(const char *format, ...) {
    va_list list;
    va_start(list, format);
    print("kernel: ");
    print_list(format, list);
    print("\n");
    va_end(list);
    leave(EXIT_FAIL);
}

static void marker_name(const char *name) {
    do
        outb(MARKER_NAME, (uint8_t)*name);
    while (*name++);
}

void marker_begin(const char *name) {
    marker_name(name);
    outb(MARKER_CONTROL, MARKER_BEGIN);
}

static void marker_number(unsigned number) {
    if (number > 9)
        marker_number(number / 10);
    outb(MARKER_NAME, (uint8_t)('0' + number % 10));
}

void marker_task(unsigned pid, unsigned parent) {
    marker_number(pid);
    outb(MARKER_NAME, ' ');
    marker_number(parent);
    marker_name(pid ? " process" : " idle");
    outb(MARKER_CONTROL, MARKER_TASK);
}

void marker_end(void) { outb(MARKER_CONTROL, MARKER_END); }

/* Copies words first, as kernels of either time do; the compiler calls these for its own copies too. */
void *memcpy(void *to, const void *from, size_t count) {
    void *result = to;
    size_t words = count / sizeof(long), rest = count % sizeof(long);
    __asm__ volatile("rep movs" 
#ifdef __x86_64__
                     "q"
#else
                     "l"
#endif
                     : "+D"(to), "+S"(from), "+c"(words) : : "memory");
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(rest) : : "memory");
    return result;
}

void *memset(void *to, int value, size_t count) {
    void *result = to;
    unsigned long pattern = (uint8_t)value * (~0ul / 255);
    size_t words = count / sizeof(long), rest = count % sizeof(long);
    __asm__ volatile("rep stos"
#ifdef __x86_64__
                     "q"
#else
                     "l"
#endif
                     : "+D"(to), "+c"(words) : "a"(pattern) : "memory");
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(rest) : "a"(pattern) : "memory");
    return result;
}
