//! State of the processors for a user whose guest has died or was stopped.

use crate::machine::Machine;
use crate::vcpus::Activity;
use cpu::Cpu;
use ledger::AddressSpace;
use ledger::symbols::Symbols;
use std::fmt;
use x86::reg;

/// State of one processor.
#[derive(Clone, Debug)]
pub struct ProcessorState {
    /// Index of the processor.
    pub cpu: usize,
    /// Activity state.
    pub activity: Activity,
    /// Instruction pointer.
    pub rip: u64,
    /// Function and offset, if known.
    pub symbol: Option<String>,
    /// Bytes at the instruction pointer, as far as they are mapped.
    pub code: Vec<u8>,
    /// Privilege level.
    pub cpl: u8,
    /// Code width in bits.
    pub bits: u8,
    /// RAX to R15.
    pub registers: [u64; 16],
    /// RFLAGS.
    pub rflags: u64,
    /// CR0, CR2, CR3, CR4.
    pub control: [u64; 4],
}

impl fmt::Display for ProcessorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match self.activity {
            Activity::Running => "running",
            Activity::Halted => "halted",
            Activity::Mwait { .. } => "in MWAIT",
            Activity::WaitingForStartup => "waiting for start-up",
        };
        write!(f, "cpu {} {doing} at rip {:#x}", self.cpu, self.rip)?;
        if let Some(symbol) = &self.symbol {
            write!(f, " ({symbol})")?;
        }
        write!(f, ", ring {}, {}-bit code, bytes", self.cpl, self.bits)?;
        if self.code.is_empty() {
            write!(f, " not mapped")?;
        }
        for byte in &self.code {
            write!(f, " {byte:02x}")?;
        }
        for (i, (name, value)) in reg::NAMES.iter().zip(self.registers).enumerate() {
            write!(f, "{}{name:>4}={value:016x}", if i % 4 == 0 { "\n " } else { "" })?;
        }
        let [cr0, cr2, cr3, cr4] = self.control;
        write!(f, "\n  rflags={:x} cr0={cr0:x} cr2={cr2:x} cr3={cr3:x} cr4={cr4:x}", self.rflags)
    }
}

impl Machine {
    /// Returns the state of each processor.
    pub fn places(&self, symbols: &Symbols) -> Vec<ProcessorState> {
        let place = |(number, vcpu): (usize, &crate::vcpus::Vcpu)| {
            let cpu = &vcpu.cpu;
            let guest = cpu.guest_of_software().unwrap_or_default();
            let symbol = symbols.find(AddressSpace { guest, root: cpu.arch.cr3 & !0xfff }, cpu.arch.rip);
            ProcessorState {
                cpu: number,
                activity: vcpu.activity,
                rip: cpu.arch.rip,
                symbol: symbol.map(|s| format!("{}+{:#x}", s.name, cpu.arch.rip - s.start)),
                code: code(cpu),
                cpl: cpu.arch.cpl,
                bits: match cpu.engine.mode & 3 {
                    0 => 16,
                    1 => 32,
                    _ => 64,
                },
                registers: std::array::from_fn(|i| cpu.arch.gpr[i]),
                rflags: cpu.rflags(),
                control: [cpu.arch.cr0, cpu.arch.cr2, cpu.arch.cr3, cpu.arch.cr4],
            }
        };
        self.vcpus.all.iter().enumerate().map(place).collect()
    }
}

/// Reads the bytes at a processor's instruction pointer.
fn code(cpu: &Cpu) -> Vec<u8> {
    let start = cpu.code_linear();
    let byte = |i: u64| {
        let address = cpu.look_up(start.wrapping_add(i))?;
        cpu.wiring.ram.read::<u8>(address)
    };
    (0..15).map_while(byte).collect()
}
