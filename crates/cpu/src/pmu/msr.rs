//! Accesses to the counters: RDPMC, RDMSR, WRMSR.

use super::layout::Layout;
use crate::state::Cpu;
use x86::msr::*;

/// A register of performance monitoring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Register {
    Counter {
        number: usize,
        fixed: bool,
        full: bool,
    },
    Selector(usize),
    FixedControl,
    GlobalControl,
    GlobalStatus,
    ClearOverflows,
    Capabilities,
    /// A record of the last branches, of which none is ever made.
    LastBranch,
}

/// In the operand of RDPMC on Intel processors: a fixed counter.
const RDPMC_FIXED: u32 = 1 << 30;
/// Registers of last branches, which software finds by the processor's family alone: those of Core 2, and those from Nehalem on
/// with the later ones' additions.
const LAST_BRANCHES: [std::ops::RangeInclusive<u32>; 6] =
    [0x40..=0x43, 0x60..=0x63, LBR_SELECT..=LASTBRANCH_TOS, 0x680..=0x69f, 0x6c0..=0x6df, 0xdc0..=0xddf];
/// AMD's four legacy counters: the selectors come first.
const AMD_LEGACY: u32 = 4;

impl Layout {
    /// Returns the register with an index, if the processor has it.
    fn register(&self, index: u32) -> Option<Register> {
        if self.amd { self.amd_register(index) } else { self.intel_register(index) }
    }

    fn intel_register(&self, index: u32) -> Option<Register> {
        let at = |first: u32, count: u8| index.checked_sub(first).filter(|at| *at < count.into()).map(|at| at as usize);
        let counter = |full| move |number| Register::Counter { number, fixed: false, full };
        let fixed = |number| Register::Counter { number, fixed: true, full: true };
        match index {
            PERF_CAPABILITIES => Some(Register::Capabilities),
            FIXED_CTR_CTRL => Some(Register::FixedControl),
            PERF_GLOBAL_CTRL => Some(Register::GlobalControl),
            PERF_GLOBAL_STATUS => Some(Register::GlobalStatus),
            PERF_GLOBAL_OVF_CTRL => Some(Register::ClearOverflows),
            PMC0..=PMC7 => at(PMC0, self.general).map(counter(false)),
            PERFEVTSEL0..=PERFEVTSEL7 => at(PERFEVTSEL0, self.general).map(Register::Selector),
            A_PMC0..=A_PMC7 if self.full_width => at(A_PMC0, self.general).map(counter(true)),
            FIXED_CTR0..=FIXED_CTR2 => at(FIXED_CTR0, self.fixed).map(fixed),
            _ => LAST_BRANCHES.iter().any(|range| range.contains(&index)).then_some(Register::LastBranch),
        }
    }

    fn amd_register(&self, index: u32) -> Option<Register> {
        let counter = |number| Register::Counter { number, fixed: false, full: true };
        match index {
            PERF_EVT_SEL0..=PERF_CTR3 => {
                let at = index - PERF_EVT_SEL0;
                let number = (at % AMD_LEGACY) as usize;
                Some(if at < AMD_LEGACY { Register::Selector(number) } else { counter(number) })
            }
            PERF_CTL0..=EXT_PERF_CTR5 => {
                let at = index - PERF_CTL0;
                let number = (at / 2) as usize;
                Some(if at.is_multiple_of(2) { Register::Selector(number) } else { counter(number) })
            }
            _ => None,
        }
    }
}

impl Cpu {
    /// Returns true if a register belongs to the counters.
    pub(crate) fn is_counter_msr(&self, index: u32) -> bool {
        self.wiring.pmu.is_some_and(|layout| layout.register(index).is_some())
    }

    /// Reads a register of the counters, which are up to date. Returns `None` if the processor lacks it.
    pub(crate) fn read_counter_msr(&self, index: u32) -> Option<u64> {
        let layout = self.wiring.pmu?;
        let pmu = &self.arch.pmu;
        Some(match layout.register(index)? {
            Register::Counter { number, fixed, .. } => pmu.counter(number, fixed),
            Register::Selector(number) => pmu.selector(number),
            Register::FixedControl => pmu.fixed_control(),
            Register::GlobalControl => pmu.global_control(),
            Register::GlobalStatus => pmu.global_status(),
            Register::ClearOverflows | Register::LastBranch => 0,
            Register::Capabilities if layout.full_width => PERF_CAPABILITIES_FULL_WIDTH,
            Register::Capabilities => 0,
        })
    }

    /// Writes a register of the counters, which are up to date. Returns false for #GP, and `None` if the processor lacks it.
    pub(crate) fn write_counter_msr(&mut self, index: u32, value: u64) -> Option<bool> {
        let layout = self.wiring.pmu?;
        let register = layout.register(index)?;
        let pmu = &mut self.arch.pmu;
        let good = match register {
            Register::Counter { number, fixed, full } => {
                // Without full width, the upper half is the sign of the lower one.
                let value = if full { value } else { value as u32 as i32 as u64 };
                let good = !full || layout.amd || value & !layout.mask() == 0;
                if good {
                    pmu.set_counter(number, fixed, value & layout.mask());
                }
                good
            }
            Register::Selector(number) => pmu.set_selector(&layout, number, value),
            Register::FixedControl => pmu.set_fixed_control(&layout, value),
            Register::GlobalControl => pmu.set_global_control(&layout, value),
            Register::ClearOverflows => pmu.clear_overflows(&layout, value),
            Register::LastBranch => return Some(true),
            Register::GlobalStatus | Register::Capabilities => false,
        };
        if good {
            self.counters_changed();
        }
        Some(good)
    }

    /// Returns the counter that an operand of RDPMC names, if there is one.
    pub(crate) fn counter_of(&self, operand: u32) -> Option<(usize, bool)> {
        let layout = self.wiring.pmu?;
        let fixed = !layout.amd && operand & RDPMC_FIXED != 0;
        let number = if fixed { operand & !RDPMC_FIXED } else { operand };
        (number < u32::from(if fixed { layout.fixed } else { layout.general })).then_some((number as usize, fixed))
    }

    /// Returns the bits of IA32_DEBUGCTL that the processor has.
    pub(crate) fn debugctl_bits(&self) -> u64 {
        let freezes = self.wiring.pmu.is_some_and(|layout| !layout.amd);
        DEBUGCTL_BITS | if freezes { DEBUGCTL_FREEZE_LBRS_ON_PMI | DEBUGCTL_FREEZE_PERFMON_ON_PMI } else { 0 }
    }
}
