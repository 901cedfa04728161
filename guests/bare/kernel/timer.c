/* The interval timer and the interrupt controller: driven as in i386 kernels of 2.6.20, or with the paravirtual
   patch's shorter sequences. The TSC tells the time. */
#include "kernel.h"

enum { PIC_MASTER = 0x20, PIC_MASTER_MASK = 0x21, PIC_SLAVE = 0xa0, PIC_SLAVE_MASK = 0xa1, SPECIFIC_EOI = 0x60 };
enum { PIT_CHANNEL_0 = 0x40, PIT_CHANNEL_2 = 0x42, PIT_MODE = 0x43, PORT_B = 0x61, PIT_HZ = 1193182 };
/* Writes to the second port delay as well; a hypervisor makes no exception for it. */
enum { DELAY_PORT = 0x80, OTHER_DELAY_PORT = 0xed };
/* The status register of the first disk controller. Reading it tells nothing where no disk is, and is harmless. */
enum { DISK_STATUS = 0x1f7 };
enum { CALIBRATION_MS = 10 };

unsigned long ticks;
int in_interrupt;
uint32_t tsc_khz;
unsigned tick_hz;
static uint16_t interrupt_mask = 0xffff;
static int pit_clock;
static struct wait_queue sleepers;

/* Pauses as old buses require after a port access. */
static void io_delay(void) {
    if (!(paravirt & PARAVIRT_IO_DELAY))
        outb(paravirt ? OTHER_DELAY_PORT : DELAY_PORT, 0);
}
static void outb_delayed(uint16_t port, uint8_t value) {
    outb(port, value);
    io_delay();
}
static uint8_t inb_delayed(uint16_t port) {
    uint8_t value = inb(port);
    io_delay();
    return value;
}

static void pic_start(void) {
    outb(PIC_MASTER_MASK, 0xff);
    outb(PIC_SLAVE_MASK, 0xff);
    outb_delayed(PIC_MASTER, 0x11);
    outb_delayed(PIC_MASTER_MASK, IRQ_VECTOR);
    outb_delayed(PIC_MASTER_MASK, 1 << 2);
    outb_delayed(PIC_MASTER_MASK, 1);
    outb_delayed(PIC_SLAVE, 0x11);
    outb_delayed(PIC_SLAVE_MASK, IRQ_VECTOR + 8);
    outb_delayed(PIC_SLAVE_MASK, 2);
    outb_delayed(PIC_SLAVE_MASK, 1);
    outb(PIC_MASTER_MASK, (uint8_t)interrupt_mask);
    outb(PIC_SLAVE_MASK, (uint8_t)(interrupt_mask >> 8));
}

/* Accesses to a device, as a driver makes them for a request: to the disk controller, or to the interrupt controller (its mask, which stays as it is), which a hypervisor may
   have in its kernel. */
void timer_device_accesses(unsigned long count, int in_kernel) {
    for (unsigned long i = 0; i < count; i++)
        if (in_kernel)
            outb(PIC_MASTER_MASK, (uint8_t)interrupt_mask);
        else
            inb(DISK_STATUS);
}

static void pic_write_mask(unsigned irq) {
    if (irq >= 8)
        outb(PIC_SLAVE_MASK, (uint8_t)(interrupt_mask >> 8));
    else
        outb(PIC_MASTER_MASK, (uint8_t)interrupt_mask);
}

static void mask_and_acknowledge(unsigned irq) {
    interrupt_mask |= (uint16_t)(1 << irq);
    if (!(paravirt & PARAVIRT_PIC_SHORT))
        inb(irq >= 8 ? PIC_SLAVE_MASK : PIC_MASTER_MASK); /* the original reads too, and doubts that it must */
    pic_write_mask(irq);
    if (irq >= 8) {
        outb(PIC_SLAVE, (uint8_t)(SPECIFIC_EOI + (irq & 7)));
        outb(PIC_MASTER, SPECIFIC_EOI + 2);
    } else {
        outb(PIC_MASTER, (uint8_t)(SPECIFIC_EOI + irq));
    }
}

static void unmask(unsigned irq) {
    interrupt_mask &= (uint16_t)~(1 << irq);
    pic_write_mask(irq);
}

static void timer_interrupt(void) {
    ticks++;
    if (pit_clock) {
        outb_delayed(PIT_MODE, 0);
        inb_delayed(PIT_CHANNEL_0);
        inb(PIT_CHANNEL_0);
    }
    if (!list_empty(&sleepers.waiters))
        wake_up(&sleepers, 0);
    sched_tick();
}

void interrupt(struct registers *registers);
void interrupt(struct registers *registers) {
    unsigned irq = (unsigned)registers->vector - IRQ_VECTOR;
    in_interrupt = 1;
    mask_and_acknowledge(irq);
    if (irq == 0)
        timer_interrupt();
    unmask(irq);
    in_interrupt = 0;
}

static uint32_t calibrate(void) {
    uint16_t count = PIT_HZ * CALIBRATION_MS / 1000;
    outb(PORT_B, (uint8_t)((inb(PORT_B) & ~2) | 1));
    outb(PIT_MODE, 0xb0);
    outb(PIT_CHANNEL_2, (uint8_t)count);
    outb(PIT_CHANNEL_2, (uint8_t)(count >> 8));
    uint64_t begun = rdtsc();
    while (!(inb(PORT_B) & 0x20))
        ;
    return (uint32_t)scale(rdtsc() - begun, 1, CALIBRATION_MS);
}

static uint32_t frequency(void) {
    uint32_t words[4];
    unsigned long given = argument("tsc-khz", 0);
    if (given)
        return (uint32_t)given;
    cpuid(0, words);
    uint32_t last = words[0];
    if (last >= 0x15) {
        cpuid(0x15, words);
        if (words[0] && words[1] && words[2])
            return (uint32_t)scale((uint64_t)words[2] * words[1], 1, words[0] * 1000);
    }
    if (last >= 0x16) {
        cpuid(0x16, words);
        if (words[0] & 0xffff)
            return (words[0] & 0xffff) * 1000;
    }
    return calibrate();
}

void timer_start(void) {
    list_init(&sleepers.waiters);
    pic_start();
    tsc_khz = frequency();
    tick_hz = (unsigned)argument("hz", 250);
    pit_clock = argument_is("clocksource", "pit");
    if (tick_hz < 19)
        tick_hz = 19;
    unsigned latch = PIT_HZ / tick_hz;
    outb_delayed(PIT_MODE, 0x34);
    outb_delayed(PIT_CHANNEL_0, (uint8_t)latch);
    outb(PIT_CHANNEL_0, (uint8_t)(latch >> 8));
    unmask(0);
}

uint64_t microseconds(uint64_t cycles) { return scale(cycles, 1000, tsc_khz); }

void timer_sleep(unsigned long count) {
    unsigned long until = ticks + count;
    struct waiter waiter = {.task = current};
    list_init(&waiter.link);
    for (;;) {
        wait_prepare(&sleepers, &waiter, SLEEPING);
        if ((long)(ticks - until) >= 0)
            break;
        schedule();
    }
    wait_finish(&waiter);
}
