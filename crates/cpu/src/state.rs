//! A processor: its parts, and operations that concern several of them.

use crate::arch::{AMD_RESET, Arch, Msrs, Segment, TableRegister, Tiles, VectorState, attention};
use crate::bus::{Ident, SharedBus};
use crate::capability::Capabilities;
use crate::charged::{Charged, Nesting};
use crate::engine::Engine;
use crate::features::Features;
use crate::flags::Int;
use crate::micro::{LATEST, Micro};
use crate::mode;
use crate::model::Model;
use crate::pmu::layout::Layout as Counters;
use crate::pmu::registers::Pmu;
use crate::ram::Ram;
use crate::tally::Tally;
use crate::wiring::Wiring;
use crate::xstate::Layout;
use ledger::{Geometry, Origin, Recorder, Ticks};
use std::sync::Arc;
use x86::control::*;
use x86::debug::{DR6_FIXED, DR7_FIXED};
use x86::msr::{FEATURE_CONTROL_LOCKED, FEATURE_CONTROL_VMX};
use x86::{flags, reg, rights, seg};

/// A virtual processor.
#[repr(C)]
pub struct Cpu {
    /// State visible to software: registers and pending events.
    pub arch: Arch,
    /// Other state of the model: time, translations, predictions.
    pub micro: Micro,
    /// Caches that speed up execution; a restored processor begins with empty ones.
    pub engine: Engine,
    /// Memory, bus, recorder and model.
    pub wiring: Wiring<Cpu>,
}

impl Cpu {
    /// Creates a processor in its RESET state (SDM vol. 3, table 9-1), with this index and APIC ID.
    pub fn new(index: usize, model: Arc<Model>, ram: Ram, bus: SharedBus, mut recorder: Recorder) -> Self {
        let origin = recorder.origin(Origin::default());
        let geometry = model.geometry;
        let leaf7 = model.static_cpuid(7, 0).ebx;
        let features = Features::of(&model.cpuid);
        let mut cpu = Self {
            arch: Arch::new(),
            micro: Micro::new(index, &geometry),
            engine: Engine::new(origin, lines(&geometry), model.recorded),
            wiring: Wiring {
                ram,
                features,
                capabilities: Capabilities::of(&model),
                xstate: Layout::of(&model),
                pmu: Counters::of(&model),
                model,
                bus,
                recorder,
                observer: None,
                sample_every: 0,
                index,
                apic_id: index as u32,
                processors: 1,
                fdp_on_exception: leaf7 & 1 << 6 != 0,
                fcs_deprecated: leaf7 & 1 << 13 != 0,
            },
        };
        cpu.reset(false);
        cpu
    }

    /// Resets the processor: RESET, or INIT, which preserves the x87, vector and most model-specific state (SDM vol. 3,
    /// 9.1).
    pub fn reset(&mut self, init: bool) {
        self.begin_run();
        self.abandon_guest();
        self.micro.charged.nesting = Nesting::default();
        self.end_current_stays();
        self.arch.gpr = [0; 32];
        self.arch.gpr[reg::RDX as usize] = 0x600;
        self.arch.rip = 0xfff0;
        self.arch.flags = 2;
        self.arch.lazy.load(0);
        self.arch.cr0 = if init { (self.arch.cr0 & (CR0_CD | CR0_NW)) | CR0_ET } else { CR0_CD | CR0_NW | CR0_ET };
        self.arch.cr2 = 0;
        self.arch.cr3 = 0;
        self.arch.cr4 = 0;
        self.arch.dr = [0, 0, 0, 0, 0, 0, DR6_FIXED, DR7_FIXED];
        self.arch.seg = [Segment::real(0, false); 8];
        self.arch.seg[seg::CS as usize] = Segment { base: 0xffff_0000, ..Segment::real(0xf000, true) };
        self.arch.seg[crate::arch::SEG_FLAT as usize] =
            Segment { base: 0, limit: u32::MAX, rights: rights::RW | rights::S | rights::P, selector: 0 };
        self.arch.gdtr = TableRegister { base: 0, limit: 0xffff };
        self.arch.idtr = TableRegister { base: 0, limit: 0xffff };
        self.arch.ldtr = Segment { base: 0, limit: 0xffff, rights: 0x82, selector: 0 };
        self.arch.tr = Segment { base: 0, limit: 0xffff, rights: 0x8b, selector: 0 };
        self.arch.msr.efer = 0;
        self.arch.nmi_blocked = false;
        self.wiring.ram.disarm_monitor(self.wiring.index);
        self.arch.attention = 0;
        self.arch.cpl = 0;
        if !init {
            let offset = self.arch.msr.tsc_offset;
            // The setting of firmware: VMX is enabled if the processor has it.
            let vmx = if self.wiring.model.vmx.is_some() { FEATURE_CONTROL_VMX } else { 0 };
            let feature_control = FEATURE_CONTROL_LOCKED | vmx;
            self.arch.msr = Msrs {
                pat: 0x0007_0406_0007_0406,
                feature_control,
                tsc_offset: offset,
                misc_enable: 1 | 1 << 18,
                amd: AMD_RESET,
                ..Msrs::default()
            };
            self.arch.pmu = Pmu::reset(self.wiring.pmu.as_ref());
            self.micro.tally = Tally::default();
            self.arch.vector = VectorState::RESET;
            self.arch.x87.control = 0x40;
            self.arch.x87.status = 0;
            self.arch.x87.tags = 0xff;
            self.arch.tiles = Tiles::default();
            self.arch.ssp = 0;
            self.arch.xcr0 = 1;
            self.arch.pkru = 0;
        }
        self.micro.tlb.flush_everything();
        self.mode_changed();
    }

    /// Returns a general register, or zero for numbers from 16.
    #[inline(always)]
    pub fn reg(&self, number: u8) -> u64 {
        self.arch.gpr[usize::from(number & 31)]
    }

    /// Reads a register with the operand size.
    #[inline(always)]
    pub fn get<T: Int>(&self, number: u8) -> T {
        T::from_u64(self.arch.gpr[usize::from(number & 15)])
    }

    /// Writes a register with the operand size: 32-bit writes clear the upper half, smaller ones preserve the rest.
    #[inline(always)]
    pub fn set<T: Int>(&mut self, number: u8, value: T) {
        let slot = &mut self.arch.gpr[usize::from(number & 15)];
        *slot = if T::SIZE >= 4 { value.to_u64() } else { (*slot & !T::MASK) | value.to_u64() };
    }

    /// Writes a register with an operand size known at run time (1 means the low byte).
    pub(crate) fn set_sized(&mut self, number: u8, size: u8, value: u64) {
        match size {
            1 => self.set::<u8>(number, value as u8),
            2 => self.set::<u16>(number, value as u16),
            4 => self.set::<u32>(number, value as u32),
            _ => self.set::<u64>(number, value),
        }
    }

    /// Returns RFLAGS.
    pub fn rflags(&self) -> u64 {
        self.arch.flags | self.arch.lazy.image()
    }

    /// Sets all of RFLAGS; reserved bits have their architectural values. Callers determine the bits that may change.
    pub fn set_rflags(&mut self, value: u64) {
        self.arch.lazy.load(value);
        let changed = self.arch.flags ^ value;
        self.arch.flags = (value & flags::ALL & !flags::ARITH) | 2;
        if changed & flags::AC != 0 {
            self.access_changed();
        }
        if self.arch.flags & (flags::TF | flags::RF) != 0 {
            self.attend(attention::STEP);
        }
        if changed & flags::IF != 0 && self.arch.flags & flags::IF != 0 {
            self.engine.stop_at = 0;
        }
    }

    /// Requests the slow path before the next block.
    #[inline]
    pub fn attend(&mut self, what: u32) {
        self.arch.attention |= what;
        self.engine.stop_at = 0;
    }

    /// Returns true if long mode is active (64-bit or compatibility mode).
    pub fn long_mode(&self) -> bool {
        self.arch.msr.efer & EFER_LMA != 0
    }

    /// Returns true in protected mode (CR0.PE), including virtual-8086 mode.
    pub fn protected(&self) -> bool {
        self.arch.cr0 & CR0_PE != 0
    }

    /// Returns true in virtual-8086 mode.
    pub fn v8086(&self) -> bool {
        self.arch.flags & flags::VM != 0
    }

    /// Returns the current I/O privilege level.
    pub(crate) fn iopl(&self) -> u8 {
        (self.arch.flags >> 12) as u8 & 3
    }

    /// Returns the mode in which code is decoded.
    #[inline]
    pub fn decode_mode(&self) -> u8 {
        let vendor = if self.wiring.capabilities.amd { mode::AMD } else { 0 };
        let added = vendor | if self.arch.cr4 & CR4_CET != 0 { self.cet_mode() } else { 0 };
        if self.engine.long64 {
            return mode::BITS64 | mode::PROTECTED | added;
        }
        let protected = if self.protected() && !self.v8086() { mode::PROTECTED } else { 0 };
        let width = if self.arch.seg[seg::CS as usize].rights & rights::DB != 0 { mode::BITS32 } else { mode::BITS16 };
        width | protected | added
    }

    /// Handles a change of CPL, CS, CR0, CR4 or EFER: updates derived state, access rights on the fast path, and the
    /// charged origin.
    pub fn mode_changed(&mut self) {
        self.engine.fetch.leave();
        self.engine.long64 = self.long_mode() && self.arch.seg[seg::CS as usize].rights & rights::L != 0;
        self.engine.mode = self.decode_mode();
        if self.arch.cr4 & CR4_CET != 0 || self.engine.tracked != [false; 2] {
            self.follow_enforcement();
        }
        self.access_changed();
        self.origin_changed();
        self.engine.stop_at = 0;
    }

    /// Returns the processor's identity for the board.
    pub fn ident(&self) -> Ident {
        Ident { cpu: self.wiring.index, now: self.micro.clock }
    }

    /// Returns the time-stamp counter as read by RDTSC.
    pub fn tsc(&self) -> u64 {
        self.arch.vmx.guest_tsc(self.machine_tsc())
    }

    /// Returns the time-stamp counter as it is outside of non-root mode.
    pub(crate) fn machine_tsc(&self) -> u64 {
        self.tsc_of(self.micro.clock)
    }

    /// Returns the time-stamp counter at another time, in root mode.
    pub(crate) fn tsc_of(&self, at: Ticks) -> u64 {
        (at / ledger::TICKS_PER_CYCLE).wrapping_add(self.arch.msr.tsc_offset)
    }
}

/// Error: the saved state is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no processor of this model can be in this state: {0}")]
pub struct ImpossibleState(pub(crate) &'static str);

/// Returns the number of lines of the modelled first-level data cache.
fn lines(geometry: &Geometry) -> Option<usize> {
    geometry.caches.map(|caches| caches.l1d.lines as usize)
}

impl Cpu {
    /// Restores the state of a processor of the same model, which may come from a file; the engine is reset.
    pub fn restore(&mut self, arch: Arch, micro: Micro) -> Result<(), ImpossibleState> {
        let require = |holds: bool, otherwise| if holds { Ok(()) } else { Err(ImpossibleState(otherwise)) };
        require(arch.cpl <= 3, "its privilege level")?;
        require(arch.gpr[16..].iter().all(|register| *register == 0), "a register that does not exist")?;
        require(arch.tiles.fit(), "its tiles")?;
        require(arch.vmx.controls.fits(), "its VMX controls")?;
        require(!arch.vmx.active || arch.vmx.controls.link_fits(), "its shadow VMCS")?;
        require(arch.vmx.operation.is_whole(), "its VMCS")?;
        require(arch.pmu.fits(self.wiring.pmu.as_ref()), "its performance counters")?;
        require(
            micro.tally.is_on() == self.wiring.pmu.is_some_and(|l| arch.pmu.counts(&l)),
            "its performance counters",
        )?;
        require(micro.clock < LATEST, "its time")?;
        let processors = self.wiring.processors as usize;
        require(micro.fits(&self.wiring.model.geometry, self.wiring.index, processors), "its TLBs or predictors")?;
        let Charged { task, region, inside, .. } = micro.charged;
        let knows = |task| self.wiring.recorder.knows(task, region);
        require(knows(task) && knows(inside.task), "its task")?;
        self.arch = arch;
        self.micro = micro;
        self.engine = Engine::new(self.engine.origin, lines(&self.wiring.model.geometry), self.wiring.model.recorded);
        self.skip_samples();
        self.mode_changed();
        self.mapping_changed();
        Ok(())
    }
}

// A processor with its memory, board and recorder can be handed to another thread.
const _: () = {
    const fn of_no_thread<T: Send>() {}
    of_no_thread::<Cpu>();
};
