//! Names of entries.

use super::{Entry, Gate};
use crate::{Family, Kind};

/// Vectors of interrupts that Linux gives a fixed meaning (`arch/x86/include/asm/irq_vectors.h`).
const LINUX_VECTORS: [(u32, &str); 9] = [
    (0xec, "local timer"),
    (0xf2, "posted interrupt"),
    (0xf3, "hypervisor callback"),
    (0xf6, "IRQ work"),
    (0xfb, "function call, single"),
    (0xfc, "function call"),
    (0xfd, "reschedule"),
    (0xfe, "APIC error"),
    (0xff, "spurious"),
];

impl Gate {
    /// Returns the identifier used in machine-readable output.
    pub const fn name(self) -> &'static str {
        match self {
            Gate::Call => "system-call",
            Gate::Call32 => "system-call-32",
            Gate::Exception => "exception",
            Gate::Software => "software-interrupt",
            Gate::Interrupt => "interrupt",
            Gate::Nmi => "nmi",
            Gate::SoftInterrupts => "soft-interrupts",
            Gate::VmExit => "vm-exit",
            Gate::NestedExit => "nested-vm-exit",
        }
    }
}

impl Entry {
    /// Returns the kind of event that the entry is, as far as the ledger's table of names knows it.
    pub(crate) const fn kind(self) -> Option<Kind> {
        match self.gate {
            Gate::Exception => Some(Kind::new(Family::Exception, self.number)),
            Gate::Software => Some(Kind::new(Family::SoftwareInterrupt, self.number)),
            Gate::Interrupt => Some(Kind::new(Family::Interrupt, self.number)),
            Gate::Nmi => Some(Kind::new(Family::Nmi, 0)),
            Gate::VmExit | Gate::NestedExit => Some(Kind::new(Family::VmExit, self.number)),
            Gate::Call | Gate::Call32 | Gate::SoftInterrupts => None,
        }
    }

    /// Returns the name of an entry in a report. `linux` is true if system calls have Linux' numbers; `name` is the name of its kind in the
    /// ledger's table of names.
    pub fn describe(self, linux: bool, name: Option<&str>) -> String {
        let number = self.number;
        let call = |known: Option<&str>, of: &str| match known.filter(|_| linux) {
            Some(name) => format!("{name}{of}"),
            None if number == Self::FURTHER => format!("system calls from {} on{of}", Self::MOST_CALLS),
            None => format!("system call {number}{of}"),
        };
        match self.gate {
            Gate::Call => call(syscalls::x86_64::Sysno::new(number as usize).map(|call| call.name()), ""),
            Gate::Call32 => call(syscalls::x86::Sysno::new(number as usize).map(|call| call.name()), " (32-bit)"),
            Gate::SoftInterrupts => "soft interrupts".to_owned(),
            Gate::Interrupt if linux && name.is_none() => {
                match LINUX_VECTORS.iter().find(|(vector, _)| *vector == number) {
                    Some((_, name)) => format!("interrupt {number:#x} {name}"),
                    None => format!("interrupt {number:#x}"),
                }
            }
            _ => self.kind().map(|kind| kind.describe(name)).unwrap_or_default(),
        }
    }

    /// Returns the entry in a sentence that counts it: "15,840 more page faults".
    pub fn plural(self, linux: bool, name: Option<&str>) -> String {
        match (self.gate, self.number) {
            (Gate::Exception, 14) => "page faults".to_owned(),
            (Gate::Call | Gate::Call32, _) => format!("calls of {}", self.describe(linux, name)),
            (Gate::SoftInterrupts, _) => "rounds of soft interrupts".to_owned(),
            (Gate::Interrupt, _) => self.describe(linux, name).replacen("interrupt ", "interrupts ", 1),
            (Gate::Exception, _) => self.describe(linux, name).replacen("exception ", "exceptions ", 1),
            _ => self.describe(linux, name),
        }
    }
}
