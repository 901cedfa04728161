//! The reason for a reset of a machine: a request in the guest to its kernel, a kernel panic, or an unknown one.
//!
//! The board sees only a write to a port or a triple fault. The kernel's stack tells more: `panic` and `kernel_restart`
//! do not return, so their frames stay on the stack of the processor that executes them until the end, and are never on
//! another stack. The check needs nothing but the names of functions, which are the same in every version of Linux.

use crate::machine::{Machine, Outcome};
use cpu::Cpu;
use ledger::AddressSpace;
use ledger::symbols::Symbols;
use x86::reg;

/// Functions that are on the stack of a panicking Linux kernel.
const PANIC: [&str; 3] = ["panic", "vpanic", "nmi_panic"];
/// Functions that are on the stack of a Linux kernel that was asked to restart, power off or halt: by reboot(2),
/// Ctrl-Alt-Del, or the magic SysRq key.
const ASKED: [&str; 9] = [
    "deferred_cad",
    "kernel_restart",
    "kernel_power_off",
    "kernel_halt",
    "__do_sys_reboot",
    "__se_sys_reboot",
    "__x64_sys_reboot",
    "__ia32_sys_reboot",
    "__handle_sysrq",
];
/// Upper bound of a kernel's stack size, including the overhead of sanitizers.
const LARGEST_STACK: u64 = 64 << 10;

/// Event that led a guest to its final state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A request in the guest to restart or to stop.
    Asked,
    /// The kernel panicked.
    Panic,
    /// Neither can be found.
    Unknown,
}

impl Machine {
    /// Returns the outcome as seen from inside the guest: a reset, triple fault or halt that follows a panic is a
    /// panic; a triple fault by which a kernel carries out a reset is a reset.
    pub fn verdict(&self, outcome: Outcome, symbols: &Symbols) -> (Outcome, Cause) {
        let cause = match outcome {
            Outcome::Reset | Outcome::TripleFault(_) | Outcome::Stuck | Outcome::Stopped => self.cause(symbols),
            _ => Cause::Unknown,
        };
        match (outcome, cause) {
            (Outcome::Reset | Outcome::TripleFault(_) | Outcome::Stuck, Cause::Panic) => (Outcome::Panic, cause),
            (Outcome::TripleFault(_), Cause::Asked) => (Outcome::Reset, cause),
            _ => (outcome, cause),
        }
    }

    /// Finds the cause on the guest's stacks, or on its console if the kernel's functions are unknown.
    fn cause(&self, symbols: &Symbols) -> Cause {
        if PANIC.iter().all(|name| symbols.address_of(name).is_none()) {
            return if self.watch.panicked { Cause::Panic } else { Cause::Unknown };
        }
        self.cause_by(|address| symbols.find(AddressSpace::default(), address).map(|symbol| symbol.name))
    }

    /// Returns true if a kernel with known symbols is panicking now.
    pub(crate) fn panics(&self) -> bool {
        let Ok(kernel) = self.kernel() else { return false };
        let mut symbols = Symbols::default();
        symbols.add_kernel(0, &kernel);
        self.cause(&symbols) == Cause::Panic
    }

    fn cause_by(&self, name: impl Fn(u64) -> Option<String>) -> Cause {
        let kernels = || self.vcpus.all.iter().map(|vcpu| &vcpu.cpu).filter(|cpu| cpu.arch.cpl == 0);
        // Compilers put rarely executed code into a part of its own: `panic.cold`.
        let on_a_stack = |wanted: &[&str]| {
            // A call may be the last instruction of a function: its return address then belongs to the next function.
            let is_wanted = |return_address: u64| {
                name(return_address.wrapping_sub(1))
                    .is_some_and(|name| wanted.contains(&name.split('.').next().unwrap_or_default()))
            };
            kernels().any(|cpu| stack(cpu).any(is_wanted))
        };
        if on_a_stack(&PANIC) {
            Cause::Panic
        } else if on_a_stack(&ASKED) {
            Cause::Asked
        } else {
            Cause::Unknown
        }
    }
}

/// Returns the words on a processor's stack, from its top to the end of the mapped memory.
fn stack(cpu: &Cpu) -> impl Iterator<Item = u64> + '_ {
    let size = if cpu.engine.long64 { 8 } else { 4 };
    let top = cpu.arch.gpr[usize::from(reg::RSP)] & !(size - 1);
    (0..LARGEST_STACK / size).map_while(move |word| {
        let linear = top.checked_add(word * size)?;
        let mut bytes = [0; 8];
        let word = bytes.get_mut(..size as usize)?;
        let physical = cpu.look_up(linear)?;
        cpu.wiring.ram.read_bytes(physical, word).then(|| u64::from_le_bytes(bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Platform;
    use crate::board::Parts;
    use crate::host::{Host, Poll};
    use crate::machine::{ClockSource, Config};
    use cpu::Tier;
    use ledger::Profile;
    use ledger::symbols::Symbol;

    const ENTRY: u32 = 0x10_0030;
    /// Addresses of the functions in a call chain: each but the last is 16 bytes long.
    const OUTER: u64 = ENTRY as u64;
    const INNER: u64 = OUTER + 16;

    struct Nobody;

    impl Host for Nobody {
        fn output(&mut self, _: &[u8]) {}
        fn poll(&mut self, _: ledger::Ticks, _: bool) -> Poll {
            Poll::default()
        }
        fn idle(&mut self, _: std::time::Duration) {}
    }

    /// Runs a guest whose first function calls, as its last instruction, a second one that executes `end`.
    fn ended(end: &[u8]) -> (Machine, Outcome) {
        let mut code = vec![0xbc, 0x00, 0x00, 0x20, 0x00]; // mov esp, 0x200000
        code.extend([0x90; 6]);
        code.extend([0xe8, 0, 0, 0, 0]); // call the next one
        code.extend(end);
        let (flags, last) = (1u32 << 16, ENTRY + code.len() as u32);
        let checksum = 0u32.wrapping_sub(0x1bad_b002 + flags);
        let head = [0x1bad_b002, flags, checksum, 0x10_0000, 0x10_0000, last, last, ENTRY, 0, 0, 0, 0];
        let config = Config {
            memory: 4 << 20,
            cpus: 1,
            profile: Profile::named("skx").unwrap(),
            kernel: head.iter().flat_map(|word| word.to_le_bytes()).chain(code).collect(),
            kernel_name: "ends".into(),
            modules: Vec::new(),
            cmdline: String::new(),
            parts: Parts::default(),
            clock: ClockSource::Virtual,
            branches: false,
            stacks: ledger::stack::Keeps::default(),
            platform: Platform::Bare,
            tier: Tier::Auto,
        };
        let mut machine = Machine::new(config).unwrap();
        let outcome = machine.run(&mut Nobody);
        (machine, outcome)
    }

    #[test]
    fn the_stack_tells_why() {
        let reset = &[0xb0, 0xfe, 0xe6, 0x64, 0xeb, 0xfe][..]; // mov al, 0xfe; out 0x64, al; jmp $
        let triple = &[0x0f, 0x0b][..]; // ud2
        let halt = &[0xfa, 0xf4][..]; // cli; hlt
        for (end, outer, expected) in [
            (reset, "panic", (Outcome::Panic, Cause::Panic)),
            (reset, "vpanic", (Outcome::Panic, Cause::Panic)),
            (reset, "panic.cold", (Outcome::Panic, Cause::Panic)),
            (reset, "kernel_restart", (Outcome::Reset, Cause::Asked)),
            (reset, "__do_sys_reboot", (Outcome::Reset, Cause::Asked)),
            (reset, "do_panic_later", (Outcome::Reset, Cause::Unknown)),
            (triple, "panic", (Outcome::Panic, Cause::Panic)),
            (triple, "kernel_restart", (Outcome::Reset, Cause::Asked)),
            (triple, "start", (Outcome::TripleFault(0), Cause::Unknown)),
            (halt, "panic", (Outcome::Panic, Cause::Panic)),
            (halt, "kernel_halt", (Outcome::Stuck, Cause::Asked)),
        ] {
            let (machine, outcome) = ended(end);
            let mut symbols = Symbols::default();
            let names = [(OUTER, outer), (INNER, "machine_restart"), (INNER + 0x1000, "panic")];
            symbols.add("", AddressSpace::default(), names.map(|(start, name)| Symbol::new(start, 16, name)).to_vec());
            assert_eq!(machine.verdict(outcome, &symbols), expected, "{outcome:?} {outer}");
        }
    }

    #[test]
    fn a_power_off_needs_no_reason() {
        // mov edx, 0x604; mov ax, 0x2000; out dx, ax
        let (machine, outcome) = ended(b"\xba\x04\x06\0\0\x66\xb8\0\x20\x66\xef\xeb\xfe");
        assert_eq!(machine.verdict(outcome, &Symbols::default()), (Outcome::PowerOff, Cause::Unknown));
    }
}
