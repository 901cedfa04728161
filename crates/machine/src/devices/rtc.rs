//! The MC146818 real-time clock with its CMOS memory (ports 0x70 and 0x71, IRQ 8).
//!
//! The date is a function of virtual time and of the start date of the machine, so that runs repeat exactly. A divider
//! chain of 32 768 Hz drives everything: seconds, the update-in-progress bit (set for the last 244 µs of a second, as
//! if the update took no time) and the periodic interrupt. Flags in register C whose interrupt is disabled are brought
//! up to date when they are read.

use crate::device::{At, Claim, Device, DeviceContext, Pin, Request};
use crate::state::{Plain, StateError, require, same};
use ledger::Ticks;
use serde::{Deserialize, Serialize};

use super::{Clock, Line};

/// Index and data port.
pub const PORTS: [u16; 2] = [0x70, 0x71];
/// Interrupt line.
pub const RTC_IRQ: u8 = 8;
/// 2025-01-01T00:00:00Z, the default start date.
pub const DEFAULT_START: u64 = 1_735_689_600;

/// Frequency of the divider chain.
const CHAIN_HZ: u64 = 32_768;
/// Number of chain clocks before the end of a second at which UIP is set.
const UPDATE_CLOCKS: u64 = 8;
const DAY: i64 = 86_400;

/// Indices of registers and memory bytes.
pub mod index {
    /// Seconds.
    pub const SECONDS: u8 = 0x00;
    /// Alarm: seconds.
    pub const SECONDS_ALARM: u8 = 0x01;
    /// Minutes.
    pub const MINUTES: u8 = 0x02;
    /// Alarm: minutes.
    pub const MINUTES_ALARM: u8 = 0x03;
    /// Hours.
    pub const HOURS: u8 = 0x04;
    /// Alarm: hours.
    pub const HOURS_ALARM: u8 = 0x05;
    /// Day of the week, Sunday being 1.
    pub const WEEKDAY: u8 = 0x06;
    /// Day of the month.
    pub const DAY: u8 = 0x07;
    /// Month.
    pub const MONTH: u8 = 0x08;
    /// Year of the century.
    pub const YEAR: u8 = 0x09;
    /// Register A: divider chain, rate, update in progress.
    pub const A: u8 = 0x0a;
    /// Register B: format and interrupt enables.
    pub const B: u8 = 0x0b;
    /// Register C: interrupt flags.
    pub const C: u8 = 0x0c;
    /// Register D: battery.
    pub const D: u8 = 0x0d;
    /// Century, at the offset given in the FADT.
    pub const CENTURY: u8 = 0x32;
}

const A_UIP: u8 = 1 << 7;
const B_SET: u8 = 1 << 7;
const B_UIE: u8 = 1 << 4;
const B_BINARY: u8 = 1 << 2;
const B_24H: u8 = 1 << 1;
const C_IRQF: u8 = 1 << 7;
const C_PERIODIC: u8 = 1 << 6;
const C_ALARM: u8 = 1 << 5;
const C_UPDATE: u8 = 1 << 4;
const C_FLAGS: u8 = C_PERIODIC | C_ALARM | C_UPDATE;
/// First alarm value that matches any value.
const ALARM_ANY: u8 = 0xc0;
const VALID_RAM: u8 = 1 << 7;

/// A date in the units of the registers, in binary and 24-hour format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Date {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Date {
    /// Converts from seconds since 1970, in the proleptic Gregorian calendar. Years are counted from March, in cycles
    /// of 400.
    fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(DAY) + 719_468;
        let time = seconds.rem_euclid(DAY);
        let cycle = days.div_euclid(146_097);
        let of_cycle = days.rem_euclid(146_097);
        let year_of_cycle = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
        let of_year = of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: year_of_cycle + cycle * 400 + i64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            hour: time / 3600,
            minute: time / 60 % 60,
            second: time % 60,
        }
    }

    /// Converts to seconds since 1970. Values out of range carry over.
    fn to_unix(self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let cycle = year.div_euclid(400);
        let year_of_cycle = year.rem_euclid(400);
        let from_march = (self.month + 9).rem_euclid(12);
        let of_year = (153 * from_march + 2) / 5 + self.day - 1;
        let of_cycle = year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + of_year;
        let days = cycle * 146_097 + of_cycle - 719_468;
        days * DAY + self.hour * 3600 + self.minute * 60 + self.second
    }
}

/// The clock and its CMOS memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rtc {
    clock: Clock,
    index: u8,
    #[serde(with = "serde_bytes")]
    memory: [u8; 128],
    /// Date at the chain clock `origin`, in seconds since 1970.
    base: i64,
    origin: u64,
    /// The date registers as software reads and writes them while updates are inhibited.
    frozen: Option<Date>,
    /// Offset of the day of the week from the true one; the chip does not derive that register from the date.
    weekday_shift: u8,
    flags: u8,
    /// Chain clock up to which `flags` are current.
    checked: u64,
    alarm: Option<i64>,
    next: Option<Ticks>,
    /// True if the alarm has been reported to the board.
    alarm_told: bool,
    /// IRQ 8.
    pub irq: Line,
}

impl Rtc {
    /// Creates a clock that shows `start` (seconds since 1970) at time 0.
    pub fn new(clock: Clock, start: u64) -> Self {
        let mut memory = [0; 128];
        memory[usize::from(index::A)] = 0x26;
        memory[usize::from(index::B)] = B_24H;
        Self {
            clock,
            index: 0,
            memory,
            // Far beyond any date of four digits, yet small enough for calculations.
            base: start.min(1 << 48) as i64,
            origin: 0,
            frozen: None,
            weekday_shift: 0,
            flags: 0,
            checked: 0,
            alarm: None,
            next: None,
            alarm_told: false,
            irq: Line::default(),
        }
    }

    /// Describes the machine in the memory bytes that PC firmware uses: RAM below and above 4 GiB (in bytes, the first
    /// including the first MiB), and the number of processors.
    pub fn describe_machine(&mut self, below_4g: u64, above_4g: u64, cpus: usize) {
        let kib = |bytes: u64| u16::try_from(bytes >> 10).unwrap_or(u16::MAX).to_le_bytes();
        let blocks = |bytes: u64| u16::try_from(bytes >> 16).unwrap_or(u16::MAX).to_le_bytes();
        let extended = kib(below_4g.saturating_sub(1 << 20));
        let above_16m = blocks(below_4g.saturating_sub(16 << 20));
        let high = (above_4g >> 16).min(0xff_ffff).to_le_bytes();
        let [cpus, ..] = cpus.saturating_sub(1).min(255).to_le_bytes();
        let base = kib(640 << 10);
        for (at, bytes) in [
            (0x14, &[0x02][..]),
            (0x15, &base),
            (0x17, &extended),
            (0x30, &extended),
            (0x34, &above_16m),
            (0x5b, &high[..3]),
            (0x5f, &[cpus]),
        ] {
            self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let sum: u16 = self.memory[0x10..0x2e].iter().map(|&byte| u16::from(byte)).sum();
        self.memory[0x2e..0x30].copy_from_slice(&sum.to_be_bytes());
    }

    fn a(&self) -> u8 {
        self.memory[usize::from(index::A)]
    }

    fn b(&self) -> u8 {
        self.memory[usize::from(index::B)]
    }

    fn chain(&self, now: Ticks) -> u64 {
        self.clock.count(now, CHAIN_HZ)
    }

    /// Returns the number of chain clocks since `origin`.
    fn elapsed(&self, chain: u64) -> u64 {
        chain.saturating_sub(self.origin)
    }

    fn unix(&self, chain: u64) -> i64 {
        self.base.saturating_add((self.elapsed(chain) / CHAIN_HZ) as i64)
    }

    fn date(&self, chain: u64) -> Date {
        self.frozen.unwrap_or_else(|| Date::from_unix(self.unix(chain)))
    }

    /// Returns the number of chain clocks between periodic interrupts, or `None` if they are off.
    fn period(&self) -> Option<u64> {
        match self.a() & 0xf {
            0 => None,
            rate @ 1..=2 => Some(1 << (rate + 6)),
            rate => Some(1 << (rate - 1)),
        }
    }

    /// Returns true if bits 6:4 of register A hold the divider chain in reset.
    fn chain_held(a: u8) -> bool {
        a & 0x60 == 0x60
    }

    fn encode(&self, value: i64) -> u8 {
        let value = value.rem_euclid(100) as u8;
        if self.b() & B_BINARY != 0 { value } else { value / 10 * 16 + value % 10 }
    }

    fn decode(&self, value: u8) -> i64 {
        i64::from(if self.b() & B_BINARY != 0 { value } else { (value >> 4) * 10 + (value & 0xf) })
    }

    fn encode_hour(&self, hour: i64) -> u8 {
        if self.b() & B_24H != 0 {
            return self.encode(hour);
        }
        let afternoon = if hour.rem_euclid(24) >= 12 { 0x80 } else { 0 };
        self.encode((hour + 11).rem_euclid(12) + 1) | afternoon
    }

    fn decode_hour(&self, value: u8) -> i64 {
        if self.b() & B_24H != 0 {
            return self.decode(value);
        }
        self.decode(value & 0x7f) % 12 + if value & 0x80 != 0 { 12 } else { 0 }
    }

    fn alarm_matches(&self, unix: i64) -> bool {
        let time = unix.rem_euclid(DAY);
        let matches = |at: u8, value: u8| {
            let alarm = self.memory[usize::from(at)];
            alarm >= ALARM_ANY || alarm == value
        };
        matches(index::SECONDS_ALARM, self.encode(time % 60))
            && matches(index::MINUTES_ALARM, self.encode(time / 60 % 60))
            && matches(index::HOURS_ALARM, self.encode_hour(time / 3600))
    }

    /// Returns the first second after `unix` at which the alarm matches, if there is one within a day.
    fn find_alarm(&self, unix: i64) -> Option<i64> {
        (1..=DAY).map(|step| unix.saturating_add(step)).find(|&at| self.alarm_matches(at))
    }

    /// Sets the flags of events up to `chain`.
    fn catch_up(&mut self, chain: u64) {
        let before = self.elapsed(self.checked);
        let after = self.elapsed(chain);
        if self.period().is_some_and(|period| after / period > before / period) {
            self.flags |= C_PERIODIC;
        }
        if self.frozen.is_none() && after / CHAIN_HZ > before / CHAIN_HZ {
            self.flags |= C_UPDATE;
            let unix = self.unix(chain);
            if self.alarm.is_some_and(|at| at <= unix) {
                self.flags |= C_ALARM;
                self.alarm = self.find_alarm(unix);
            }
        }
        self.checked = chain.max(self.checked);
    }

    /// Updates the interrupt line and the next event.
    fn update(&mut self) {
        self.irq.set(self.b() & C_FLAGS & self.flags != 0);
        self.next = self.upcoming();
    }

    /// Computes the time of the next enabled interrupt that is not already pending.
    fn upcoming(&self) -> Option<Ticks> {
        let waiting = self.b() & C_FLAGS & !self.flags;
        let elapsed = self.elapsed(self.checked);
        let running = self.frozen.is_none();
        let periodic =
            self.period().filter(|_| waiting & C_PERIODIC != 0).map(|period| (elapsed / period + 1) * period);
        let update = (running && waiting & C_UPDATE != 0).then(|| (elapsed / CHAIN_HZ + 1) * CHAIN_HZ);
        let alarm = self.alarm.filter(|_| running && waiting & C_ALARM != 0);
        let alarm = alarm.map(|at| (at.saturating_sub(self.base).max(0) as u64).saturating_mul(CHAIN_HZ));
        let first = [periodic, update, alarm].into_iter().flatten().min();
        first.map(|at| self.clock.ticks(self.origin.saturating_add(at), CHAIN_HZ))
    }

    /// Returns the time of the next enabled interrupt.
    pub fn next_event(&self) -> Option<Ticks> {
        self.next
    }

    /// Advances the clock to `now`.
    pub fn advance(&mut self, now: Ticks) {
        self.catch_up(self.chain(now));
        self.update();
    }

    /// Returns true if the alarm has expired and was not acknowledged, which wakes a sleeping machine.
    pub fn alarm_asserted(&self) -> bool {
        self.flags & self.b() & C_ALARM != 0
    }

    /// Reads one of [`PORTS`].
    pub fn read(&mut self, port: u16, now: Ticks) -> u8 {
        if port != PORTS[1] {
            return 0xff;
        }
        let chain = self.chain(now);
        let date = self.date(chain);
        match self.index {
            index::SECONDS => self.encode(date.second),
            index::MINUTES => self.encode(date.minute),
            index::HOURS => self.encode_hour(date.hour),
            index::WEEKDAY => self.encode((weekday(date) + i64::from(self.weekday_shift)) % 7 + 1),
            index::DAY => self.encode(date.day),
            index::MONTH => self.encode(date.month),
            index::YEAR => self.encode(date.year),
            index::CENTURY => self.encode(date.year / 100),
            index::A => {
                let updating = self.frozen.is_none() && self.elapsed(chain) % CHAIN_HZ >= CHAIN_HZ - UPDATE_CLOCKS;
                self.a() | if updating { A_UIP } else { 0 }
            }
            index::C => {
                self.catch_up(chain);
                let flags = std::mem::take(&mut self.flags);
                self.update();
                flags | if flags & self.b() & C_FLAGS != 0 { C_IRQF } else { 0 }
            }
            index::D => VALID_RAM,
            other => self.memory[usize::from(other & 0x7f)],
        }
    }

    /// Writes one of [`PORTS`]. Bit 7 of the index, which masks NMIs on a PC, has no effect.
    pub fn write(&mut self, port: u16, value: u8, now: Ticks) {
        match port {
            0x70 => self.index = value & 0x7f,
            0x71 => {
                let chain = self.chain(now);
                self.catch_up(chain);
                self.write_register(value, chain);
                self.update();
            }
            _ => {}
        }
    }

    fn write_register(&mut self, value: u8, chain: u64) {
        let mut date = self.date(chain);
        match self.index {
            index::SECONDS => date.second = self.decode(value),
            index::MINUTES => date.minute = self.decode(value),
            index::HOURS => date.hour = self.decode_hour(value),
            index::DAY => date.day = self.decode(value),
            index::MONTH => date.month = self.decode(value),
            index::YEAR => date.year = date.year / 100 * 100 + self.decode(value) % 100,
            index::CENTURY => date.year = self.decode(value) * 100 + date.year % 100,
            index::WEEKDAY => {
                self.weekday_shift = (self.decode(value) - 1 - weekday(date)).rem_euclid(7) as u8;
                return;
            }
            index::A => return self.set_a(value, chain),
            index::B => return self.set_b(value, chain),
            index::C | index::D => return,
            other => {
                self.memory[usize::from(other & 0x7f)] = value;
                if matches!(other, index::SECONDS_ALARM | index::MINUTES_ALARM | index::HOURS_ALARM) {
                    self.alarm = self.find_alarm(self.unix(chain));
                }
                return;
            }
        }
        self.set_date(date, chain);
    }

    /// Sets the date; the fraction of the current second is kept.
    fn set_date(&mut self, date: Date, chain: u64) {
        if self.frozen.is_some() {
            self.frozen = Some(date);
            return;
        }
        let passed = (self.elapsed(chain) / CHAIN_HZ) as i64;
        self.base = date.to_unix().saturating_sub(passed);
        self.alarm = self.find_alarm(self.unix(chain));
    }

    fn freeze(&mut self, freeze: bool, chain: u64) {
        match (freeze, self.frozen) {
            (true, None) => self.frozen = Some(self.date(chain)),
            (false, Some(date)) => {
                self.frozen = None;
                self.set_date(date, chain);
            }
            _ => {}
        }
    }

    fn set_a(&mut self, value: u8, chain: u64) {
        let held = Self::chain_held(self.a());
        self.memory[usize::from(index::A)] = value & !A_UIP;
        if held && !Self::chain_held(value) {
            // The first update follows half a second after the chain is released.
            let unix = self.unix(chain);
            self.origin = chain.saturating_sub(CHAIN_HZ / 2);
            self.base = unix;
            self.checked = chain;
        }
        self.freeze(self.b() & B_SET != 0 || Self::chain_held(value), chain);
    }

    fn set_b(&mut self, value: u8, chain: u64) {
        // Inhibiting updates disables the update interrupt.
        let value = if value & B_SET != 0 { value & !B_UIE } else { value };
        self.memory[usize::from(index::B)] = value;
        self.freeze(value & B_SET != 0 || Self::chain_held(self.a()), chain);
        self.alarm = self.find_alarm(self.unix(chain));
    }
}

/// Returns the day of the week of a date, with Sunday as 0.
fn weekday(date: Date) -> i64 {
    (date.to_unix().div_euclid(DAY) + 4).rem_euclid(7)
}

const CLAIMS: &[Claim] = &[Claim::bytes("RTC", PORTS[0], 2)];

impl Rtc {
    fn tell(&mut self, ctx: &mut DeviceContext) {
        ctx.drive(Pin::Isa(RTC_IRQ), &mut self.irq);
        let alarm = self.alarm_asserted();
        if alarm && !self.alarm_told {
            ctx.request(Request::Alarm);
        }
        self.alarm_told = alarm;
    }
}

impl Device for Rtc {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        let value = Rtc::read(self, at.port(CLAIMS), ctx.now);
        self.tell(ctx);
        value.into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        Rtc::write(self, at.port(CLAIMS), value as u8, ctx.now);
        self.tell(ctx);
    }

    /// The clock keeps its state, because it has a battery.
    fn reset(&mut self, ctx: &mut DeviceContext) {
        self.irq.forgotten();
        self.tell(ctx);
    }

    fn next_event(&self) -> Option<Ticks> {
        self.next
    }

    fn advance(&mut self, ctx: &mut DeviceContext) {
        Rtc::advance(self, ctx.now);
        self.tell(ctx);
    }
}

impl Date {
    /// Returns true if all fields are small enough for calculations.
    fn is_moderate(&self) -> bool {
        let rest = [self.month, self.day, self.hour, self.minute, self.second];
        self.year.unsigned_abs() < 1 << 24 && rest.iter().all(|field| field.unsigned_abs() < 1 << 16)
    }
}

impl Plain for Rtc {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.clock, &current.clock, "TSC frequency")?;
        require(self.index < 0x80 && self.weekday_shift < 7 && self.flags & !C_FLAGS == 0, "registers of the RTC")?;
        require(self.base.unsigned_abs() < 1 << 50 && self.frozen.is_none_or(|date| date.is_moderate()), "a date")?;
        require(self.origin < 1 << 62 && self.checked < 1 << 62, "a time of the RTC")?;
        let stopped = self.b() & B_SET != 0 || Self::chain_held(self.a());
        require(self.frozen.is_some() == stopped, "an RTC that is set and runs")?;
        let running = self.frozen.is_none();
        let alarm = |at: i64| at.unsigned_abs() < 1 << 51 && (!running || at > self.unix(self.checked));
        require(self.alarm.is_none_or(alarm), "an alarm of the RTC")?;
        require(self.next == self.upcoming(), "the next interrupt of the RTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCK: Clock = Clock::new(2_500_000_000);

    fn seconds(count: u64) -> Ticks {
        CLOCK.ticks(count, 1)
    }

    fn get(rtc: &mut Rtc, index: u8, now: Ticks) -> u8 {
        rtc.write(0x70, index | 0x80, now);
        rtc.read(0x71, now)
    }

    fn set(rtc: &mut Rtc, index: u8, value: u8, now: Ticks) {
        rtc.write(0x70, index, now);
        rtc.write(0x71, value, now);
    }

    fn shown(rtc: &mut Rtc, now: Ticks) -> [u8; 8] {
        [0x32, 9, 8, 7, 6, 4, 2, 0].map(|index| get(rtc, index, now))
    }

    #[test]
    fn states_that_cannot_be_are_refused() {
        let mut current = Rtc::new(Clock::new(2_000_000_000), DEFAULT_START);
        for (register, value) in [(index::SECONDS_ALARM, 0xc0), (index::B, B_24H | C_ALARM)] {
            Rtc::write(&mut current, PORTS[0], register, 0);
            Rtc::write(&mut current, PORTS[1], value, 0);
        }
        let refused = |change: &dyn Fn(&mut Rtc)| {
            let mut state = current.clone();
            change(&mut state);
            state.check(&current).is_err()
        };
        assert!(!refused(&|_| ()) && current.next.is_some());
        assert!(refused(&|state| state.next = None), "an interrupt that never comes");
        assert!(
            refused(&|state| {
                state.alarm = Some(state.base);
                state.next = state.upcoming();
            }),
            "an alarm that has passed"
        );
        assert!(refused(&|state| state.base = i64::MAX));
        assert!(refused(&|state| state.checked = u64::MAX));
        assert!(refused(&|state| state.frozen = Some(Date::from_unix(0))), "a date that is set while the clock runs");
        assert!(refused(&|state| state.index = 0x80));
    }

    #[test]
    fn dates_convert_both_ways() {
        for (unix, expected) in [
            (0, (1970, 1, 1, 0, 0, 0)),
            (951_782_399, (2000, 2, 28, 23, 59, 59)),
            (951_782_400, (2000, 2, 29, 0, 0, 0)),
            (4_107_542_400, (2100, 3, 1, 0, 0, 0)),
            (1_735_689_600, (2025, 1, 1, 0, 0, 0)),
            (-1, (1969, 12, 31, 23, 59, 59)),
        ] {
            let date = Date::from_unix(unix);
            assert_eq!((date.year, date.month, date.day, date.hour, date.minute, date.second), expected);
            assert_eq!(date.to_unix(), unix);
        }
    }

    #[test]
    fn shows_the_start_date_in_bcd() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        // A Wednesday is day 4.
        assert_eq!(shown(&mut rtc, 0), [0x20, 0x25, 0x01, 0x01, 0x04, 0, 0, 0]);
        assert_eq!(shown(&mut rtc, seconds(86_400 + 3661)), [0x20, 0x25, 0x01, 0x02, 0x05, 0x01, 0x01, 0x01]);
    }

    #[test]
    fn formats() {
        // (register B, hour, shown)
        for (b, hour, expected) in [
            (0x02, 13, 0x13),
            (0x06, 13, 13),
            (0x00, 13, 0x81),
            (0x00, 0, 0x12),
            (0x00, 12, 0x92),
            (0x04, 23, 0x80 | 11),
            (0x00, 11, 0x11),
        ] {
            let mut rtc = Rtc::new(CLOCK, DEFAULT_START + hour * 3600);
            set(&mut rtc, 0x0b, b, 0);
            assert_eq!(get(&mut rtc, 4, 0), expected, "{b:#x} {hour}");
            set(&mut rtc, 4, expected, 0);
            assert_eq!(get(&mut rtc, 4, 0), expected, "written back");
            assert_eq!(Date::from_unix(rtc.unix(0)).hour, hour as i64);
        }
    }

    #[test]
    fn setting_the_clock_stops_it() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        set(&mut rtc, 0x0b, 0x82, 0);
        for (index, value) in [(0x32, 0x19), (9, 0x99), (8, 0x12), (7, 0x31), (4, 0x23), (2, 0x59), (0, 0x58)] {
            set(&mut rtc, index, value, seconds(5));
        }
        assert_eq!(get(&mut rtc, 0, seconds(9)), 0x58);
        set(&mut rtc, 0x0b, 0x02, seconds(10));
        assert_eq!(shown(&mut rtc, seconds(12)), [0x20, 0x00, 0x01, 0x01, 0x07, 0, 0, 0]);
    }

    #[test]
    fn update_in_progress_before_each_second() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        let tick = |clock| CLOCK.ticks(clock, CHAIN_HZ);
        for (clock, uip) in [(0, 0), (32_759, 0), (32_760, 0x80), (32_767, 0x80), (32_768, 0)] {
            assert_eq!(get(&mut rtc, 0x0a, tick(clock)) & 0x80, uip, "{clock}");
        }
    }

    #[test]
    fn periodic_interrupts_at_their_rate() {
        for (rate, clocks) in [(0x26, 32), (0x23, 4), (0x2f, 16_384), (0x21, 128), (0x22, 256)] {
            let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
            set(&mut rtc, 0x0a, rate, 0);
            set(&mut rtc, 0x0b, 0x42, 0);
            for count in 1..4 {
                let event = rtc.next_event().expect("enabled");
                assert_eq!(CLOCK.count(event, CHAIN_HZ), clocks * count, "{rate:#x}");
                rtc.advance(event);
                assert!(rtc.irq.level());
                assert_eq!(rtc.next_event(), None, "until register C is read");
                assert_eq!(get(&mut rtc, 0x0c, event) & 0xc0, 0xc0);
                assert!(!rtc.irq.level());
            }
        }
    }

    #[test]
    fn alarm_matches_with_wildcards() {
        // (hours, minutes, seconds, seconds until the alarm expires)
        for (alarm, after) in [
            ([0xc0, 0xff, 0xc0], 1),
            ([0xc0, 0xc0, 0x30], 30),
            ([0xc0, 0x02, 0x00], 120),
            ([0x01, 0x00, 0x00], 3600),
            ([0x00, 0x00, 0x00], 86_400),
        ] {
            let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
            for (index, value) in [5, 3, 1].into_iter().zip(alarm) {
                set(&mut rtc, index, value, 0);
            }
            set(&mut rtc, 0x0b, 0x22, 0);
            let event = rtc.next_event().expect("enabled");
            assert_eq!(event, seconds(after), "{alarm:x?}");
            rtc.advance(event);
            assert!(rtc.irq.level() && rtc.alarm_asserted());
            assert_eq!(get(&mut rtc, 0x0c, event) & 0xa0, 0xa0);
        }
    }

    #[test]
    fn impossible_alarm_never_comes() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        set(&mut rtc, 1, 0x99, 0);
        set(&mut rtc, 0x0b, 0x22, 0);
        assert_eq!(rtc.next_event(), None);
    }

    #[test]
    fn update_flag_appears_without_interrupt() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        assert_eq!(get(&mut rtc, 0x0c, seconds(1) - 1) & 0x90, 0);
        assert_eq!(get(&mut rtc, 0x0c, seconds(1)) & 0x90, 0x10);
        set(&mut rtc, 0x0b, 0x12, seconds(1));
        assert_eq!(rtc.next_event(), Some(seconds(2)));
        set(&mut rtc, 0x0b, 0x92, seconds(1));
        assert_eq!((rtc.next_event(), get(&mut rtc, 0x0b, seconds(1))), (None, 0x82));
    }

    #[test]
    fn released_chain_updates_after_half_a_second() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        set(&mut rtc, 0x0a, 0x76, 0);
        set(&mut rtc, 0x0a, 0x26, seconds(10));
        assert_eq!(get(&mut rtc, 0, seconds(10) + seconds(1) / 2 - 1), 0);
        assert_eq!(get(&mut rtc, 0, CLOCK.ticks(10 * CHAIN_HZ + CHAIN_HZ / 2, CHAIN_HZ)), 1);
    }

    #[test]
    fn machine_description() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        rtc.describe_machine(3 << 30, 1 << 30, 4);
        for (index, expected) in [
            (0x15, 0x80),
            (0x16, 0x02),
            (0x17, 0xff),
            (0x18, 0xff),
            (0x34, 0x00),
            (0x35, 0xbf),
            (0x5b, 0x00),
            (0x5c, 0x40),
            (0x5d, 0x00),
            (0x5f, 3),
        ] {
            assert_eq!(get(&mut rtc, index, 0), expected, "{index:#x}");
        }
    }

    #[test]
    fn other_bytes_are_memory() {
        let mut rtc = Rtc::new(CLOCK, DEFAULT_START);
        set(&mut rtc, 0x7f, 0xab, 0);
        set(&mut rtc, 0x0d, 0x00, 0);
        assert_eq!((get(&mut rtc, 0x7f, 0), get(&mut rtc, 0x0d, 0), rtc.read(0x70, 0)), (0xab, 0x80, 0xff));
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(
            ops in prop::collection::vec((any::<bool>(), 0..64u8, any::<u8>(), 0u64..1 << 44), 0..60),
            start in any::<u64>(),
        ) {
            let mut rtc = Rtc::new(CLOCK, start);
            let mut now = 0;
            for (write, index, value, step) in ops {
                now += step;
                let index = if index < 48 { index % 14 } else { index };
                if write { set(&mut rtc, index, value, now) } else { get(&mut rtc, index, now); }
                rtc.advance(now);
                if let Some(event) = rtc.next_event() {
                    prop_assert!(event > now, "{event} {now}");
                }
            }
        }
    }
}
