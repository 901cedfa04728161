//! ACPI fixed hardware: the PM1a event and control blocks, the power-management timer, general-purpose events, and the
//! port with which software enables ACPI mode.
//!
//! The registers are in one block of [`SIZE`] ports, so that the FADT only needs the block's base. Sleep types are
//! those of common virtual machines: 0 is soft off (S5), 1 is suspend to RAM (S3). [`Pm::wake`] wakes a suspended
//! machine.

use crate::device::{At, Claim, Device, DeviceContext, Ending, Pin, Request};
use crate::state::{Plain, StateError, require, same};
use ledger::Ticks;
use serde::{Deserialize, Serialize};

use super::{Clock, Line};

/// First port of the block.
pub const BASE: u16 = 0x600;
/// Ports in the block.
pub const SIZE: u16 = 0x20;
/// PM1a event block: status, then enable, two bytes each.
pub const PM1_EVENT: u16 = 0x00;
/// PM1a control block: two bytes.
pub const PM1_CONTROL: u16 = 0x04;
/// Power-management timer: four bytes.
pub const TIMER: u16 = 0x08;
/// General-purpose event block 0: status, then enable, two bytes each.
pub const GPE0: u16 = 0x10;
/// Bytes of the general-purpose event block.
pub const GPE0_SIZE: u16 = 4;
/// Port to which [`ACPI_ENABLE`] or [`ACPI_DISABLE`] is written.
pub const SMI_COMMAND: u16 = 0xb2;
/// Enables ACPI mode.
pub const ACPI_ENABLE: u8 = 0xf1;
/// Disables ACPI mode.
pub const ACPI_DISABLE: u8 = 0xf0;
/// Interrupt line of the SCI, level-triggered.
pub const SCI_IRQ: u8 = 9;
/// Frequency of the timer.
pub const TIMER_HZ: u64 = 3_579_545;

/// PM1 status and enable bits.
pub mod event {
    /// The timer's highest bit has changed.
    pub const TIMER: u16 = 1 << 0;
    /// Firmware has released the global lock.
    pub const GLOBAL: u16 = 1 << 5;
    /// Power button.
    pub const POWER_BUTTON: u16 = 1 << 8;
    /// Sleep button.
    pub const SLEEP_BUTTON: u16 = 1 << 9;
    /// Real-time clock alarm.
    pub const RTC: u16 = 1 << 10;
    /// The machine woke up (status only).
    pub const WAKE: u16 = 1 << 15;
    /// Bits that raise the SCI when enabled.
    pub const ALL: u16 = TIMER | GLOBAL | POWER_BUTTON | SLEEP_BUTTON | RTC;
}

const SCI_EN: u16 = 1 << 0;
const SLP_EN: u16 = 1 << 13;
/// Control bits that keep their written value: bus master reload, and the sleep type.
const CONTROL_WRITABLE: u16 = 1 << 1 | 7 << 10;

/// A sleep state that the guest requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sleep {
    /// S3: suspend to RAM.
    Suspend,
    /// S5: soft off.
    SoftOff,
}

/// ACPI fixed hardware.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pm {
    clock: Clock,
    /// Width of the timer in bits: 24 or 32.
    width: u32,
    status: u16,
    enable: u16,
    control: u16,
    gpe_status: u16,
    gpe_enable: u16,
    /// Number of changes of the timer's highest bit up to the last update.
    toggles: u64,
    sleep: Option<Sleep>,
    smi_data: u8,
    /// The SCI.
    pub irq: Line,
}

impl Pm {
    /// Creates the device in its reset state, already in ACPI mode. The timer has 32 bits if `wide` (FADT flag
    /// `TMR_VAL_EXT`), else 24.
    pub fn new(clock: Clock, wide: bool) -> Self {
        Self {
            clock,
            width: if wide { 32 } else { 24 },
            status: 0,
            enable: 0,
            control: SCI_EN,
            gpe_status: 0,
            gpe_enable: 0,
            toggles: 0,
            sleep: None,
            smi_data: 0,
            irq: Line::default(),
        }
    }

    fn count(&self, now: Ticks) -> u64 {
        self.clock.count(now, TIMER_HZ)
    }

    fn update(&mut self) {
        let fixed = self.status & self.enable & event::ALL != 0;
        let general = self.gpe_status & self.gpe_enable != 0;
        self.irq.set(self.control & SCI_EN != 0 && (fixed || general));
    }

    /// Returns the time at which the timer raises the SCI next.
    pub fn next_event(&self) -> Option<Ticks> {
        let waits = self.enable & event::TIMER != 0 && self.status & event::TIMER == 0;
        waits.then(|| self.clock.ticks((self.toggles + 1) << (self.width - 1), TIMER_HZ))
    }

    /// Advances the timer to `now`.
    pub fn advance(&mut self, now: Ticks) {
        let toggles = self.count(now) >> (self.width - 1);
        if toggles != self.toggles {
            self.toggles = toggles;
            self.status |= event::TIMER;
        }
        self.update();
    }

    /// Reads a byte of the block.
    fn byte(&self, offset: u16, now: Ticks) -> u8 {
        let word = |base: u16, value: u16| (value >> (8 * (offset - base))) as u8;
        match offset {
            0x00..0x02 => word(0x00, self.status),
            0x02..0x04 => word(0x02, self.enable),
            0x04..0x06 => word(0x04, self.control),
            0x08..0x0c => {
                let value = self.count(now) & ((1 << self.width) - 1);
                (value >> (8 * (offset - TIMER))) as u8
            }
            0x10..0x12 => word(0x10, self.gpe_status),
            0x12..0x14 => word(0x12, self.gpe_enable),
            _ => 0,
        }
    }

    /// Reads `size` bytes at `offset` of the block.
    pub fn read(&mut self, offset: u16, size: u8, now: Ticks) -> u32 {
        self.advance(now);
        super::read_bytes(offset, size, |at| self.byte(at, now))
    }

    /// Writes `size` bytes at `offset` of the block.
    pub fn write(&mut self, offset: u16, size: u8, value: u32, now: Ticks) {
        self.advance(now);
        let before = self.control;
        super::write_bytes(offset, size, value, |at, byte| self.write_byte(at, byte));
        // A sleep type and its trigger may be written in one access or byte by byte.
        if self.control & SLP_EN != 0 {
            self.control &= !SLP_EN;
            self.sleep = match self.control >> 10 & 7 {
                0 => Some(Sleep::SoftOff),
                1 => Some(Sleep::Suspend),
                _ => None,
            };
        }
        self.control = self.control & !SCI_EN | before & SCI_EN;
        self.update();
    }

    fn write_byte(&mut self, offset: u16, byte: u8) {
        let shift = 8 * (offset & 1);
        let bits = u16::from(byte) << shift;
        let lane = 0xff << shift;
        let replace = |old: u16, writable: u16| old & !(lane & writable) | bits & writable;
        match offset {
            0x00..0x02 => self.status &= !bits,
            0x02..0x04 => self.enable = replace(self.enable, event::ALL),
            0x04..0x06 => self.control = replace(self.control, CONTROL_WRITABLE | SLP_EN),
            0x10..0x12 => self.gpe_status &= !bits,
            0x12..0x14 => self.gpe_enable = replace(self.gpe_enable, u16::MAX),
            _ => {}
        }
    }

    /// Reads [`SMI_COMMAND`] (`offset` 0) or its data port.
    pub fn read_smi(&self, offset: u16) -> u8 {
        if offset == 0 { 0 } else { self.smi_data }
    }

    /// Writes [`SMI_COMMAND`] (`offset` 0) or its data port.
    pub fn write_smi(&mut self, offset: u16, value: u8) {
        match (offset, value) {
            (0, ACPI_ENABLE) => self.control |= SCI_EN,
            (0, ACPI_DISABLE) => self.control &= !SCI_EN,
            (0, _) => {}
            _ => self.smi_data = value,
        }
        self.update();
    }

    /// Sets PM1 status bits, for example for a pressed button or the alarm of the real-time clock.
    pub fn signal(&mut self, bits: u16) {
        self.status |= bits & event::ALL;
        self.update();
    }

    /// Sets the status bit of a general-purpose event.
    pub fn signal_gpe(&mut self, number: u8) {
        if number < 16 {
            self.gpe_status |= 1 << number;
        }
        self.update();
    }

    /// Takes the sleep state that the guest requested.
    pub fn take_sleep(&mut self) -> Option<Sleep> {
        self.sleep.take()
    }

    /// Returns true if an event that wakes a suspended machine has occurred.
    pub fn wakes(&self) -> bool {
        let buttons = self.status & (event::POWER_BUTTON | event::SLEEP_BUTTON);
        buttons | self.status & self.enable & event::RTC | self.gpe_status & self.gpe_enable != 0
    }

    /// Records that the machine has woken up.
    pub fn wake(&mut self) {
        self.status |= event::WAKE;
    }
}

const CLAIMS: &[Claim] = &[Claim::ports("ACPI PM", BASE, SIZE), Claim::bytes("SMI command", SMI_COMMAND, 2)];

impl Pm {
    /// Reports changes to the board: the interrupt line, and the requested sleep state.
    pub fn tell(&mut self, ctx: &mut DeviceContext) {
        ctx.drive(Pin::Isa(SCI_IRQ), &mut self.irq);
        match self.take_sleep() {
            Some(Sleep::SoftOff) => ctx.request(Request::End(Ending::PowerOff)),
            Some(Sleep::Suspend) => ctx.request(Request::Suspend),
            None => {}
        }
    }
}

impl Device for Pm {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        let offset = at.offset as u16;
        let value = match at.claim {
            0 => Pm::read(self, offset, at.size, ctx.now),
            _ => self.read_smi(offset).into(),
        };
        self.tell(ctx);
        value.into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        let offset = at.offset as u16;
        match at.claim {
            0 => Pm::write(self, offset, at.size, value as u32, ctx.now),
            _ => self.write_smi(offset, value as u8),
        }
        self.tell(ctx);
    }

    /// The device keeps its state, because it wakes the machine.
    fn reset(&mut self, ctx: &mut DeviceContext) {
        self.wake();
        self.irq.forgotten();
        self.tell(ctx);
    }

    fn next_event(&self) -> Option<Ticks> {
        Pm::next_event(self)
    }

    fn advance(&mut self, ctx: &mut DeviceContext) {
        Pm::advance(self, ctx.now);
        self.tell(ctx);
    }
}

impl Plain for Pm {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.clock, &current.clock, "TSC frequency")?;
        same(&self.width, &current.width, "power-management timer")?;
        require(self.toggles < 1 << 38, "the power-management timer")?;
        let control = self.control & !(CONTROL_WRITABLE | SCI_EN) == 0;
        let status = self.status & !(event::ALL | event::WAKE) == 0;
        require(control && status && self.enable & !event::ALL == 0, "registers of power management")?;
        require(self.sleep.is_none(), "a sleep state that is asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCK: Clock = Clock::new(2_000_000_000);

    fn pm() -> Pm {
        Pm::new(CLOCK, false)
    }

    #[test]
    fn timer_counts_and_wraps() {
        for (wide, count, expected) in [
            (false, 0, 0),
            (false, 0x12_3456, 0x12_3456),
            (false, 0x100_0001, 1),
            (true, 0x100_0001, 0x100_0001),
            (true, 0x1_0000_0002, 2),
        ] {
            let mut pm = Pm::new(CLOCK, wide);
            let now = CLOCK.ticks(count, TIMER_HZ);
            assert_eq!(pm.read(TIMER, 4, now), expected, "{wide} {count:#x}");
            assert_eq!(pm.read(TIMER + 1, 1, now), expected >> 8 & 0xff);
        }
    }

    #[test]
    fn timer_overflow_raises_the_sci() {
        let mut pm = pm();
        pm.write(2, 2, u32::from(event::TIMER), 0);
        let due = pm.next_event().expect("enabled");
        assert_eq!(CLOCK.count(due, TIMER_HZ), 0x80_0000);
        pm.advance(due);
        assert!(pm.irq.level());
        assert_eq!((pm.next_event(), pm.read(0, 2, due)), (None, 1));
        pm.write(0, 2, 1, due);
        assert!(!pm.irq.level());
        assert_eq!(CLOCK.count(pm.next_event().expect("enabled"), TIMER_HZ), 0x100_0000);
    }

    #[test]
    fn sleep_requests() {
        for (value, expected) in
            [(0x2000, Some(Sleep::SoftOff)), (0x2400, Some(Sleep::Suspend)), (0x3400, None), (0x0400, None)]
        {
            let mut pm = pm();
            pm.write(PM1_CONTROL, 2, value, 0);
            assert_eq!(pm.take_sleep(), expected, "{value:#x}");
            assert_eq!(pm.take_sleep(), None);
            assert_eq!(pm.read(PM1_CONTROL, 2, 0), value & 0x1c00 | 1, "SLP_EN reads as zero, SCI_EN stays");
        }
    }

    #[test]
    fn acpi_mode_gates_the_sci() {
        let mut pm = pm();
        pm.write_smi(0, ACPI_DISABLE);
        pm.write(2, 2, 0xffff, 0);
        pm.signal(event::POWER_BUTTON);
        assert!(!pm.irq.level());
        pm.write_smi(0, ACPI_ENABLE);
        assert!(pm.irq.level());
        assert_eq!(pm.read(PM1_CONTROL, 2, 0) & 1, 1);
    }

    #[test]
    fn general_purpose_events() {
        let mut pm = pm();
        pm.signal_gpe(3);
        pm.signal_gpe(200);
        assert!(!pm.irq.level());
        pm.write(GPE0 + 2, 1, 1 << 3, 0);
        assert!(pm.irq.level() && pm.wakes());
        pm.write(GPE0, 1, 1 << 3, 0);
        assert!(!pm.irq.level() && !pm.wakes());
    }

    #[test]
    fn rtc_alarm_wakes_when_enabled() {
        let mut pm = pm();
        pm.signal(event::RTC);
        assert!(!pm.wakes());
        pm.write(2, 2, u32::from(event::RTC), 0);
        assert!(pm.wakes());
        pm.wake();
        assert_eq!(pm.read(0, 2, 0), u32::from(event::RTC | event::WAKE));
        pm.write(0, 2, 0xffff, 0);
        assert_eq!(pm.read(0, 2, 0), 0);
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(
            ops in prop::collection::vec((any::<bool>(), any::<u16>(), 0..8u8, any::<u32>(), 0u64..1 << 50), 0..200),
        ) {
            let mut pm = pm();
            let mut now = 0;
            for (write, offset, size, value, step) in ops {
                now += step;
                let offset = if value & 1 == 0 { offset % SIZE } else { offset };
                if write { pm.write(offset, size, value, now) } else { pm.read(offset, size, now); }
                pm.advance(now);
                if let Some(event) = pm.next_event() {
                    prop_assert!(event > now);
                }
            }
        }
    }
}
