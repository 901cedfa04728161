//! Names of classes, families and kinds: identifiers for profiles, and prose for reports.

use crate::event::{Class, Family, Kind};
use crate::operation::Operation;
use strum::EnumMessage;
use x86::vmx::reason;
use x86::{msr, vector};

impl Class {
    /// The identifier used in profiles and in machine-readable output.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The class with that number.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The class with that identifier.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

impl Family {
    /// The identifier used in profiles and in machine-readable output.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The name of the whole family in a report.
    pub fn title(self) -> &'static str {
        self.get_message().unwrap_or_default()
    }

    /// Returns true if events of the family cross a boundary, as opposed to stalls inside the processor and ordinary instructions.
    pub const fn is_crossing(self) -> bool {
        !matches!(self, Family::Instruction | Family::Halt)
            && !self.is_tlb_miss()
            && !self.is_cache_miss()
            && !self.is_mispredict()
            && !matches!(self, Family::Split)
    }

    /// Returns true if events of the family transfer control. Code can loop over them without any other instruction that costs
    /// something, so they must have a price, or time would not pass.
    pub const fn transfers_control(self) -> bool {
        use Family::*;
        matches!(self, Syscall | Sysret | Exception | Interrupt | Nmi | SoftwareInterrupt | Iret | VmExit | VmEntry)
    }

    /// Returns true if events of the family are work of a hypervisor, or of the processor for one.
    pub const fn is_hypervisor(self) -> bool {
        matches!(self, Family::VmExit | Family::VmEntry | Family::Operation | Family::VmxInstruction | Family::MsrList)
    }

    /// Returns true if events of the family are misses in some level of the TLB.
    pub const fn is_tlb_miss(self) -> bool {
        matches!(self, Family::StlbHitData | Family::StlbHitCode | Family::TlbMissData | Family::TlbMissCode)
    }

    /// Returns true if events of the family are misses in the first-level caches.
    pub const fn is_cache_miss(self) -> bool {
        matches!(self, Family::CacheMissData | Family::CacheMissCode)
    }

    /// Returns true if events of the family are branch mispredictions, or branches that the front end did not know.
    pub const fn is_mispredict(self) -> bool {
        matches!(self, Family::IndirectMiss | Family::ReturnMiss | Family::BranchMiss | Family::UnknownBranch)
    }

    /// Returns true if the front end begins anew after an event of the family: what it has asked for ahead was in vain.
    pub const fn redirects(self) -> bool {
        self.is_mispredict() || self.transfers_control() || matches!(self, Family::FarTransfer | Family::TaskSwitch)
    }

    /// Returns true if events of the family are accesses to devices.
    pub const fn is_device(self) -> bool {
        matches!(self, Family::PortIn | Family::PortOut | Family::MmioRead | Family::MmioWrite)
    }

    /// The family with that number.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }

    /// The family with that identifier.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

impl Kind {
    /// Returns true if a kernel executes the instruction against attacks by speculation: writes of IA32_SPEC_CTRL,
    /// IA32_PRED_CMD and IA32_FLUSH_CMD, and VERW where it clears buffers.
    pub fn is_mitigation(self) -> bool {
        match self.family {
            Family::Wrmsr => matches!(self.param, msr::SPEC_CTRL | msr::PRED_CMD | msr::FLUSH_CMD),
            Family::DescriptorTable => self.param == 2,
            _ => false,
        }
    }

    /// The name of the kind in a report. `name` is the entry of the ledger's table of names (a device, an opcode).
    pub fn describe(self, name: Option<&str>) -> String {
        let p = self.param;
        let named = |prefix: &str| match name {
            Some(name) => format!("{prefix} {name}"),
            None => format!("{prefix} {p:#x}"),
        };
        if self.is_without_number() {
            return format!("{} (further)", self.family.name());
        }
        match self.family {
            Family::Instruction => match Class::from_index(p as usize) {
                Some(class) => format!("instructions: {}", class.name()),
                None => format!("instructions: class {p}"),
            },
            Family::Syscall => if p == 0 { "SYSCALL" } else { "SYSENTER" }.to_owned(),
            Family::Sysret => if p == 0 { "SYSRET" } else { "SYSEXIT" }.to_owned(),
            Family::Exception => match u8::try_from(p).ok().and_then(vector::name) {
                Some(mnemonic) => format!("exception {mnemonic}"),
                None => format!("exception {p}"),
            },
            Family::Interrupt => named("interrupt"),
            Family::Nmi => "NMI".to_owned(),
            Family::SoftwareInterrupt => format!("INT {p:#x}"),
            Family::ControlRegister => match p {
                0x13 => "MOV CR3 (no flush)".to_owned(),
                _ => format!("MOV CR{p}"),
            },
            Family::DebugRegister => format!("MOV DR{p}"),
            Family::TlbFlush => match p {
                0 => "TLB flush, non-global".to_owned(),
                1 => "TLB flush, all".to_owned(),
                2 => "TLB flush, one PCID".to_owned(),
                _ => format!("TLB flush {p}"),
            },
            Family::StlbHitData => "second-level TLB hit, data".to_owned(),
            Family::StlbHitCode => "second-level TLB hit, code".to_owned(),
            Family::TlbMissData => format!("TLB miss, data, {p} references"),
            Family::TlbMissCode => format!("TLB miss, code, {p} references"),
            Family::Invpcid => format!("INVPCID type {p}"),
            Family::Cpuid => match (p & 0xff, p >> 8) {
                (0xd, subleaf) if subleaf < Kind::CPUID_SUBLEAVES => format!("CPUID 0xd.{subleaf}"),
                _ => format!("CPUID {p:#x}"),
            },
            Family::Rdmsr | Family::Wrmsr => {
                let op = if self.family == Family::Rdmsr { "RDMSR" } else { "WRMSR" };
                match name.or_else(|| msr::name(p)) {
                    Some(name) => format!("{op} {name}"),
                    None => format!("{op} {p:#x}"),
                }
            }
            Family::PortIn => port("IN", p, name),
            Family::PortOut => port("OUT", p, name),
            Family::MmioRead => named(if name.is_some() { "read of" } else { "read of device" }),
            Family::MmioWrite => named(if name.is_some() { "write to" } else { "write to device" }),
            Family::DescriptorTable => match p {
                0 => "SGDT, SIDT, SLDT, STR",
                1 => "LGDT, LIDT, LLDT, LTR",
                _ => "VERW (clears buffers)",
            }
            .to_owned(),
            Family::Undefined => named("undefined opcode"),
            Family::VmExit => format!("VM exit {}", self.within_family(name)),
            Family::VmEntry => "VM entry".to_owned(),
            Family::Operation => format!("hypervisor: {}", self.within_family(name)),
            Family::VmxInstruction => vmx_instruction(p),
            Family::MsrList => format!("listed {}", msr::name(p).map_or_else(|| format!("MSR {p:#x}"), str::to_owned)),
            Family::CacheMissData | Family::CacheMissCode => {
                let what = if self.family == Family::CacheMissData { "data" } else { "code" };
                let level = match p & !Kind::PREFETCHED {
                    Kind::MEMORY => "memory".to_owned(),
                    Kind::PROCESSOR => "another processor".to_owned(),
                    level => format!("L{level}"),
                };
                let prefetched = if p & Kind::PREFETCHED != 0 { ", prefetched" } else { "" };
                format!("{what} from {level}{prefetched}")
            }
            Family::Split if p == 0 => "access across lines".to_owned(),
            Family::Split => "access across pages".to_owned(),
            family => family.title().to_owned(),
        }
    }
}

impl Kind {
    /// The name of the kind in a list of exits, or of a hypervisor's operations: [`Kind::describe`] without the common beginning.
    pub fn within_family(self, name: Option<&str>) -> String {
        match self.family {
            Family::VmExit => reason::name(self.param).map_or_else(|| self.param.to_string(), str::to_owned),
            Family::Operation => match Operation::from_index(self.param as usize) {
                Some(operation) => operation.title().to_owned(),
                None => format!("operation {}", self.param),
            },
            _ => self.describe(name),
        }
    }
}

/// An instruction of VMX, by the exit reason that it has in non-root mode. KVM calls the reasons of two of them otherwise.
fn vmx_instruction(reason: u32) -> String {
    match reason {
        reason::VMXOFF => "VMXOFF".to_owned(),
        reason::VMXON => "VMXON".to_owned(),
        other => reason::name(other).map_or_else(|| format!("VMX instruction {other}"), str::to_owned),
    }
}

fn port(op: &str, port: u32, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{op} {port:#x} {name}"),
        None => format!("{op} {port:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enumerations_list_every_variant_in_order() {
        assert!(Class::ALL.iter().enumerate().all(|(i, class)| *class as usize == i));
        assert!(Family::ALL.iter().enumerate().all(|(i, family)| *family as usize == i));
    }

    #[test]
    fn identifiers_are_unique_and_found_again() {
        assert!(Class::ALL.into_iter().all(|class| Class::from_name(class.name()) == Some(class)));
        assert!(Family::ALL.into_iter().all(|family| Family::from_name(family.name()) == Some(family)));
    }

    #[test]
    fn what_happens_within_the_processor_is_no_crossing() {
        use Family::*;
        let inside = [Instruction, Halt, TlbMissData, StlbHitCode, CacheMissCode, BranchMiss, UnknownBranch, Split];
        assert!(inside.iter().all(|family| !family.is_crossing()));
        assert!([Syscall, Exception, ControlRegister, VmExit, Operation].iter().all(|family| family.is_crossing()));
    }

    #[test]
    fn kinds_are_described() {
        for (kind, text) in [
            (Kind::new(Family::Exception, 14), "exception #PF"),
            (Kind::new(Family::ControlRegister, 0x13), "MOV CR3 (no flush)"),
            (Kind::cpuid(0xd, 2), "CPUID 0xd.2"),
            (Kind::cpuid(0xd, 1000), "CPUID 0xd.63"),
            (Kind::cpuid(0x8000_0008, 5), "CPUID 0x80000008"),
            (Kind::new(Family::Wrmsr, 0x6e0), "WRMSR IA32_TSC_DEADLINE"),
            (Kind::new(Family::PortOut, 0x80), "OUT 0x80"),
            (Kind::new(Family::DescriptorTable, 1), "LGDT, LIDT, LLDT, LTR"),
            (Kind::new(Family::DescriptorTable, 2), "VERW (clears buffers)"),
            (Kind::new(Family::Iret, 0), "IRET"),
            (Kind::new(Family::VmExit, 28), "VM exit CR_ACCESS"),
            (Kind::new(Family::VmExit, 35), "VM exit 35"),
            (Kind::new(Family::VmEntry, 0), "VM entry"),
            (Kind::operation(Operation::RunLoop), "hypervisor: run loop"),
            (Kind::new(Family::Operation, 1000), "hypervisor: operation 1000"),
        ] {
            assert_eq!(kind.describe(None), text);
        }
        assert_eq!(Kind::new(Family::PortOut, 0x80).describe(Some("POST")), "OUT 0x80 POST");
    }
}
