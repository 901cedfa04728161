//! The interface between the protocol's library and a machine.

use super::registers::{self, DESCRIPTION, REGISTERS, What};
use super::session::{Resume, Session};
use super::{memory, monitor};
use crate::vcpus::Activity;
use cpu::stops::{Watch, Watched};
use gdbstub::arch::{Arch, RegId, Registers};
use gdbstub::common::{Signal, Tid};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::*;
use gdbstub::target::ext::base::reverse_exec::{ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::breakpoints::*;
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use std::convert::Infallible;
use std::num::NonZeroUsize;

/// x86-64 with the registers of [`REGISTERS`].
pub enum X86 {}

/// Number of a register.
#[derive(Debug)]
pub struct Number(usize);

impl RegId for Number {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        REGISTERS.get(id).map(|register| (Number(id), NonZeroUsize::new(register.len)))
    }
}

/// Values of all registers, in the format of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(Vec<u8>);

impl Registers for Values {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        let before: usize = REGISTERS.iter().take_while(|register| register.what != What::Rip).map(|r| r.len).sum();
        self.0.get(before..before + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        self.0.iter().for_each(|byte| write_byte(Some(*byte)));
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

impl Arch for X86 {
    type Usize = u64;
    type Registers = Values;
    type BreakpointKind = usize;
    type RegId = Number;

    fn target_description_xml() -> Option<&'static str> {
        Some(&DESCRIPTION)
    }
}

/// Returns the thread ID of a processor.
pub fn thread(processor: usize) -> Tid {
    NonZeroUsize::MIN.saturating_add(processor)
}

impl Session<'_> {
    /// Returns the processor of a thread ID.
    fn processor(&self, thread: Tid) -> Option<usize> {
        Some(thread.get() - 1).filter(|index| *index < self.machine.vcpus.all.len())
    }
}

fn value_of(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

impl Target for Session<'_> {
    type Arch = X86;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, X86, Infallible> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    // Software breakpoints are not written to memory, so both kinds are available.
    fn guard_rail_implicit_sw_breakpoints(&self) -> bool {
        true
    }
}

impl MultiThreadBase for Session<'_> {
    fn read_registers(&mut self, values: &mut Values, thread: Tid) -> TargetResult<(), Self> {
        let processor = self.processor(thread).ok_or(TargetError::NonFatal)?;
        for register in REGISTERS.iter() {
            let value = registers::read(self.machine, processor, register.what);
            values.0.extend_from_slice(&value.to_le_bytes()[..register.len]);
        }
        Ok(())
    }

    fn write_registers(&mut self, values: &Values, thread: Tid) -> TargetResult<(), Self> {
        let processor = self.processor(thread).ok_or(TargetError::NonFatal)?;
        let mut rest = &values.0[..];
        for register in REGISTERS.iter() {
            // A shorter packet contains the first registers.
            let Some((bytes, after)) = rest.split_at_checked(register.len) else { break };
            rest = after;
            self.write_value(processor, register.what, value_of(bytes))?;
        }
        Ok(())
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], thread: Tid) -> TargetResult<usize, Self> {
        let processor = self.processor(thread).ok_or(TargetError::NonFatal)?;
        match memory::read(self.machine, processor, start, self.physical, data) {
            0 if !data.is_empty() => Err(TargetError::Errno(EFAULT)),
            read => Ok(read),
        }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], thread: Tid) -> TargetResult<(), Self> {
        let processor = self.processor(thread).ok_or(TargetError::NonFatal)?;
        self.changed();
        match memory::write(self.machine, processor, start, self.physical, data) {
            true => Ok(()),
            false => Err(TargetError::Errno(EFAULT)),
        }
    }

    fn list_active_threads(&mut self, active: &mut dyn FnMut(Tid)) -> Result<(), Infallible> {
        (0..self.machine.vcpus.all.len()).for_each(|index| active(thread(index)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

const EFAULT: u8 = 14;

impl Session<'_> {
    fn write_value(&mut self, processor: usize, what: What, value: u128) -> TargetResult<(), Self> {
        if registers::read(self.machine, processor, what) == value {
            return Ok(());
        }
        match registers::write(self.machine, processor, what, value) {
            true => {
                self.changed();
                Ok(())
            }
            false => Err(TargetError::NonFatal),
        }
    }
}

impl SingleRegisterAccess<Tid> for Session<'_> {
    fn read_register(&mut self, thread: Tid, number: Number, buf: &mut [u8]) -> TargetResult<usize, Self> {
        let processor = self.processor(thread).ok_or(TargetError::NonFatal)?;
        let register = REGISTERS.get(number.0).ok_or(TargetError::NonFatal)?;
        let value = registers::read(self.machine, processor, register.what).to_le_bytes();
        let len = register.len.min(buf.len());
        buf[..len].copy_from_slice(&value[..len]);
        Ok(len)
    }

    fn write_register(&mut self, thread: Tid, number: Number, bytes: &[u8]) -> TargetResult<(), Self> {
        let processor = self.processor(thread).ok_or(TargetError::NonFatal)?;
        let register = REGISTERS.get(number.0).filter(|r| r.len == bytes.len()).ok_or(TargetError::NonFatal)?;
        self.write_value(processor, register.what, value_of(bytes))
    }
}

impl MultiThreadResume for Session<'_> {
    fn resume(&mut self) -> Result<(), Infallible> {
        self.going_on();
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Infallible> {
        self.resume = Resume::Continue;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, Tid, Self>> {
        if self.goes_back() { Some(self) } else { None }
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, Tid, Self>> {
        if self.goes_back() { Some(self) } else { None }
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSchedulerLocking for Session<'_> {
    // The order of processors is part of the run: holding one back would make it a different run.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl MultiThreadSingleStep for Session<'_> {
    fn set_resume_action_step(&mut self, thread: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        if let Some(processor) = self.processor(thread) {
            self.resume = Resume::Step { processor, within: 0..0 };
        }
        Ok(())
    }
}

impl MultiThreadRangeStepping for Session<'_> {
    fn set_resume_action_range_step(&mut self, thread: Tid, start: u64, end: u64) -> Result<(), Infallible> {
        if let Some(processor) = self.processor(thread) {
            self.resume = Resume::Step { processor, within: start..end };
        }
        Ok(())
    }
}

impl ReverseStep<Tid> for Session<'_> {
    fn reverse_step(&mut self, thread: Tid) -> Result<(), Infallible> {
        self.resume = Resume::StepBack { processor: self.processor(thread).unwrap_or(0) };
        Ok(())
    }
}

impl ReverseCont<Tid> for Session<'_> {
    fn reverse_cont(&mut self) -> Result<(), Infallible> {
        self.resume = Resume::ContinueBack;
        Ok(())
    }
}

impl ThreadExtraInfo for Session<'_> {
    fn thread_extra_info(&self, thread: Tid, buf: &mut [u8]) -> Result<usize, Infallible> {
        let Some(index) = self.processor(thread) else { return Ok(0) };
        let doing = match self.machine.vcpus.all[index].activity {
            Activity::Running => "running",
            Activity::Halted => "halted",
            Activity::Mwait { .. } => "in MWAIT",
            Activity::WaitingForStartup => "waiting for start-up",
        };
        let text = format!("CPU#{index} [{doing}]");
        let len = text.len().min(buf.len());
        buf[..len].copy_from_slice(&text.as_bytes()[..len]);
        Ok(len)
    }
}

impl Breakpoints for Session<'_> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Session<'_> {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.add_breakpoint(address, false))
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.remove_breakpoint(address, false))
    }
}

impl HwBreakpoint for Session<'_> {
    fn add_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.add_breakpoint(address, true))
    }

    fn remove_hw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.remove_breakpoint(address, true))
    }
}

fn watch(start: u64, len: u64, kind: WatchKind) -> Watch {
    let kind = match kind {
        WatchKind::Write => Watched::Write,
        WatchKind::Read => Watched::Read,
        WatchKind::ReadWrite => Watched::Both,
    };
    Watch { start, len, kind }
}

impl HwWatchpoint for Session<'_> {
    fn add_hw_watchpoint(&mut self, address: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        Ok(self.add_watch(watch(address, len, kind)))
    }

    fn remove_hw_watchpoint(&mut self, address: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        Ok(self.remove_watch(watch(address, len, kind)))
    }
}

impl MonitorCmd for Session<'_> {
    fn handle_monitor_cmd(&mut self, command: &[u8], mut out: ConsoleOutput<'_>) -> Result<(), Infallible> {
        let text = monitor::answer(self, &String::from_utf8_lossy(command));
        out.write_raw(text.as_bytes());
        Ok(())
    }
}
