// SPDX-License-Identifier: GPL-2.0
/*
 * Toggles CR0.WP as a kernel with grsecurity's KERNEXEC does, in a kernel without it: data that the kernel protects from
 * itself is written in a window in which write protection is off, with nothing else running on this processor.
 *
 * Under KERNEXEC, a context switch writes to such data (descriptors in the GDT, the processor's own copy of the page
 * directory), and so do paths around ptrace. This module opens such a window at each switch of tasks and each ptrace
 * request, as many times as the parameters say, and increments a counter in read-only memory in it; without the window
 * that write would fault. The counter is in /sys/module/kernexec/parameters/toggles, and is printed at unload.
 */
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/tracepoint.h>
#include <asm/processor-flags.h>
#include <asm/special_insns.h>

static unsigned int switches = 2;
module_param_named(switch_toggles, switches, uint, 0444);
MODULE_PARM_DESC(switch_toggles, "windows for each context switch");

static unsigned int requests = 1;
module_param_named(ptrace_toggles, requests, uint, 0444);
MODULE_PARM_DESC(ptrace_toggles, "windows for each ptrace request");

/* Windows by processor; read-only after the module is loaded. */
static unsigned long windows[NR_CPUS] __ro_after_init;

static struct tracepoint *sched_switch;

/* Sets CR0. The kernel's own write_cr0() keeps WP set. */
static __always_inline void set_cr0(unsigned long value)
{
	asm volatile("mov %0, %%cr0" : : "r"(value) : "memory");
}

static void toggle(unsigned int times)
{
	unsigned long flags, cr0;

	while (times--) {
		local_irq_save(flags);
		cr0 = native_read_cr0();
		set_cr0(cr0 & ~X86_CR0_WP);
		WRITE_ONCE(windows[smp_processor_id()], windows[smp_processor_id()] + 1);
		set_cr0(native_read_cr0() | X86_CR0_WP);
		local_irq_restore(flags);
	}
}
NOKPROBE_SYMBOL(toggle);

static void on_switch(void *data, bool preempt, struct task_struct *prev, struct task_struct *next,
		      unsigned int prev_state)
{
	toggle(switches);
}

static int on_ptrace(struct kprobe *probe, struct pt_regs *regs)
{
	toggle(requests);
	return 0;
}
NOKPROBE_SYMBOL(on_ptrace);

static struct kprobe ptrace_probe = {
	.symbol_name = "ptrace_request",
	.pre_handler = on_ptrace,
};

static unsigned long toggles(void)
{
	unsigned long sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(windows[cpu]);
	return sum;
}

static int show_toggles(char *buffer, const struct kernel_param *parameter)
{
	return sysfs_emit(buffer, "%lu\n", toggles());
}

static const struct kernel_param_ops toggles_ops = { .get = show_toggles };
module_param_cb(toggles, &toggles_ops, NULL, 0444);
MODULE_PARM_DESC(toggles, "windows until now");

static void match(struct tracepoint *tracepoint, void *found)
{
	if (!strcmp(tracepoint->name, "sched_switch"))
		*(struct tracepoint **)found = tracepoint;
}

static int __init kernexec_init(void)
{
	int error;

	for_each_kernel_tracepoint(match, &sched_switch);
	if (!sched_switch)
		return -ENOENT;
	error = register_kprobe(&ptrace_probe);
	if (error)
		return error;
	error = tracepoint_probe_register(sched_switch, on_switch, NULL);
	if (error)
		unregister_kprobe(&ptrace_probe);
	return error;
}

static void __exit kernexec_exit(void)
{
	tracepoint_probe_unregister(sched_switch, on_switch, NULL);
	unregister_kprobe(&ptrace_probe);
	tracepoint_synchronize_unregister();
	pr_info("kernexec: %lu toggles\n", toggles());
}

module_init(kernexec_init);
module_exit(kernexec_exit);
MODULE_DESCRIPTION("CR0.WP toggles around context switches and ptrace requests");
MODULE_LICENSE("GPL");
