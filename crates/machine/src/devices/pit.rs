//! The 8254 interval timer and port 0x61, which controls the gate of channel 2 and reads its output.
//!
//! A channel is a function of time: it stores the time at which it was loaded and the count, and computes count and
//! output on demand. Only channel 0 has an interrupt line (IRQ 0), so only its rising edges are events.

use crate::device::{At, Claim, Device, DeviceContext, Pin};
use crate::state::{Plain, StateError, require, same};
use ledger::Ticks;
use serde::{Deserialize, Serialize};

use super::{Clock, Line};

/// Input clock of the three channels.
pub const PIT_HZ: u64 = 1_193_182;

/// The channels, the control word and the system control port.
pub const PORTS: [u16; 5] = [0x40, 0x41, 0x42, 0x43, 0x61];

/// ISA line of the timer.
const TIMER_IRQ: u8 = 0;

/// Period of memory refresh requests, which toggle bit 4 of port 0x61: 18 input clocks (15 µs) on a PC.
const REFRESH_CLOCKS: u64 = 18;

/// Bytes of a count that are transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum ReadWrite {
    Low,
    High,
    #[default]
    Both,
}

impl ReadWrite {
    fn bits(self) -> u8 {
        match self {
            ReadWrite::Low => 1,
            ReadWrite::High => 2,
            ReadWrite::Both => 3,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Channel {
    mode: u8,
    bcd: bool,
    access: ReadWrite,
    /// Initial count; 0 stands for the maximum.
    reload: u16,
    /// Last count written, which the next trigger loads.
    written: u16,
    /// Input clock at which counting (re)started; `None` until a count has been written.
    start: Option<u64>,
    /// True in modes 1 and 5 if a count has been written, and no trigger has come since the mode was set.
    untriggered: bool,
    /// Number of clocks counted before the gate closed (modes 0 and 4).
    held: u64,
    gate: bool,
    /// First byte of a two-byte count.
    pending_low: Option<u8>,
    read_high: bool,
    latched: Option<u16>,
    latched_status: Option<u8>,
    /// True after a control word until a count is written.
    null_count: bool,
}

impl Channel {
    fn new(gate: bool) -> Self {
        Self {
            mode: 0,
            bcd: false,
            access: ReadWrite::Both,
            reload: 0,
            written: 0,
            start: None,
            untriggered: false,
            held: 0,
            gate,
            pending_low: None,
            read_high: false,
            latched: None,
            latched_status: None,
            null_count: true,
        }
    }

    /// Returns the number of clocks from the initial count to zero.
    fn period(&self) -> u64 {
        let modulus = self.modulus();
        let count = if self.bcd { from_bcd(self.reload) } else { u64::from(self.reload) };
        match count % modulus {
            0 => modulus,
            count => count,
        }
    }

    fn modulus(&self) -> u64 {
        if self.bcd { 10_000 } else { 0x1_0000 }
    }

    fn stops_without_gate(&self) -> bool {
        matches!(self.mode, 0 | 2 | 3 | 4)
    }

    /// Returns the number of clocks counted at input clock `clock`, or `None` if the channel is stopped.
    fn elapsed(&self, clock: u64) -> Option<u64> {
        let start = self.start?;
        if self.untriggered {
            return None;
        }
        if self.stops_without_gate() && !self.gate {
            return Some(self.held);
        }
        Some(clock.saturating_sub(start).saturating_add(self.held))
    }

    fn count(&self, clock: u64) -> u16 {
        let Some(elapsed) = self.elapsed(clock) else { return self.reload };
        let period = self.period();
        let modulus = self.modulus();
        let value = match self.mode {
            2 => period - elapsed % period,
            3 => {
                // The counter counts down by two, twice per period; an odd period spends its additional clock in the
                // high half.
                let phase = elapsed % period;
                let half = period.div_ceil(2);
                let within = if phase < half { phase } else { phase - half };
                (period & !1).saturating_sub(2 * within)
            }
            _ => (period % modulus + modulus - elapsed % modulus) % modulus,
        };
        let value = value % modulus;
        if self.bcd { to_bcd(value) } else { value as u16 }
    }

    fn output(&self, clock: u64) -> bool {
        let Some(elapsed) = self.elapsed(clock) else { return self.mode != 0 };
        let period = self.period();
        match self.mode {
            0 | 1 => elapsed >= period,
            2 => !self.gate || elapsed % period != period - 1 || period == 1,
            3 => !self.gate || elapsed % period < period.div_ceil(2),
            _ => elapsed != period,
        }
    }

    /// Returns the number of rising edges of the output since the channel started.
    fn rises(&self, clock: u64) -> u64 {
        let Some(elapsed) = self.elapsed(clock) else { return 0 };
        match self.mode {
            0 | 1 => u64::from(elapsed >= self.period()),
            2 | 3 => elapsed / self.period(),
            _ => u64::from(elapsed > self.period()),
        }
    }

    /// Returns the input clock of the rising edge that follows the first `passed` ones.
    fn next_rise(&self, passed: u64) -> Option<u64> {
        let start = self.start?;
        if self.untriggered || self.stops_without_gate() && !self.gate {
            return None;
        }
        let elapsed = match self.mode {
            2 | 3 => passed.saturating_add(1).saturating_mul(self.period()),
            _ if passed > 0 => return None,
            0 | 1 => self.period(),
            _ => self.period() + 1,
        };
        Some(start.saturating_add(elapsed.saturating_sub(self.held)))
    }

    /// Starts counting at the next input clock.
    fn restart(&mut self, clock: u64) {
        self.start = Some(clock.saturating_add(1));
        self.held = 0;
        self.null_count = false;
    }

    fn control(&mut self, value: u8) {
        self.access = match value >> 4 & 3 {
            1 => ReadWrite::Low,
            2 => ReadWrite::High,
            _ => ReadWrite::Both,
        };
        // Modes 6 and 7 are aliases of 2 and 3.
        self.mode = match value >> 1 & 7 {
            mode @ 6.. => mode - 4,
            mode => mode,
        };
        self.bcd = value & 1 != 0;
        self.start = None;
        self.untriggered = false;
        self.held = 0;
        self.pending_low = None;
        self.read_high = false;
        self.latched = None;
        self.null_count = true;
    }

    fn write(&mut self, value: u8, clock: u64) {
        let count = match (self.access, self.pending_low) {
            (ReadWrite::Low, _) => u16::from(value),
            (ReadWrite::High, _) => u16::from(value) << 8,
            (ReadWrite::Both, None) => {
                self.pending_low = Some(value);
                // In mode 0 the first byte stops the counter.
                if self.mode == 0 && self.start.is_some() {
                    self.start = None;
                }
                return;
            }
            (ReadWrite::Both, Some(low)) => u16::from_le_bytes([low, value]),
        };
        self.pending_low = None;
        self.load(count, clock);
    }

    /// Loads a complete count. Modes 2 and 3 start over at once; the real chip finishes the period first.
    fn load(&mut self, count: u16, clock: u64) {
        self.written = count;
        match self.mode {
            // In these modes the gate starts counting; a new count waits for the next trigger.
            1 | 5 => {
                if self.start.is_none() {
                    self.untriggered = true;
                    self.start = Some(clock);
                }
            }
            _ => {
                self.reload = count;
                self.restart(clock);
            }
        }
    }

    fn set_gate(&mut self, gate: bool, clock: u64) {
        if gate == self.gate {
            return;
        }
        if gate {
            self.gate = true;
            match (self.mode, self.start) {
                (_, None) => {}
                (0 | 4, Some(_)) => self.start = Some(clock),
                _ => {
                    self.untriggered = false;
                    self.reload = self.written;
                    self.restart(clock);
                }
            }
        } else {
            if self.stops_without_gate() {
                self.held = self.elapsed(clock).unwrap_or(0);
            }
            self.gate = false;
        }
    }

    fn latch(&mut self, clock: u64) {
        if self.latched.is_none() {
            self.latched = Some(self.count(clock));
            self.read_high = false;
        }
    }

    fn latch_status(&mut self, clock: u64) {
        let status = u8::from(self.output(clock)) << 7
            | u8::from(self.null_count) << 6
            | self.access.bits() << 4
            | self.mode << 1
            | u8::from(self.bcd);
        self.latched_status.get_or_insert(status);
    }

    fn read(&mut self, clock: u64) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        let [low, high] = self.latched.unwrap_or_else(|| self.count(clock)).to_le_bytes();
        let (value, last) = match (self.access, self.read_high) {
            (ReadWrite::Low, _) => (low, true),
            (ReadWrite::High, _) => (high, true),
            (ReadWrite::Both, false) => (low, false),
            (ReadWrite::Both, true) => (high, true),
        };
        self.read_high = !last;
        if last {
            self.latched = None;
        }
        value
    }
}

/// Decodes decimal digits; digits above 9 have their binary value, as in the chip's counter.
fn from_bcd(value: u16) -> u64 {
    (0..4).rev().fold(0, |sum, digit| sum * 10 + u64::from(value >> (4 * digit) & 0xf))
}

fn to_bcd(value: u64) -> u16 {
    (0..4).fold(0, |bcd, digit| bcd | ((value / 10u64.pow(digit) % 10) as u16) << (4 * digit))
}

/// The timer with its three channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pit {
    clock: Clock,
    channels: [Channel; 3],
    speaker: bool,
    /// Number of rising edges of channel 0 that have been reported.
    rises: u64,
    /// Time of the next rising edge.
    next: Option<Ticks>,
    /// IRQ 0.
    pub irq: Line,
}

impl Pit {
    /// Creates a timer in its power-on state: channel 2 gated off, all channels stopped.
    pub fn new(clock: Clock) -> Self {
        let channels = [Channel::new(true), Channel::new(true), Channel::new(false)];
        Self { clock, channels, speaker: false, rises: 0, next: None, irq: Line::default() }
    }

    /// Creates a timer in the state in which a PC BIOS leaves it: channel 0 in mode 2 with the longest period (18.2
    /// Hz), channel 1 refreshing memory.
    pub fn as_firmware_leaves(clock: Clock, now: Ticks) -> Self {
        let mut pit = Self::new(clock);
        for (port, value) in [(0x43, 0x34), (0x40, 0), (0x40, 0), (0x43, 0x54), (0x41, REFRESH_CLOCKS as u8)] {
            pit.write(port, value, now);
        }
        // The output has been high for a long time: that edge causes no interrupt.
        pit.irq.drain(|_| ());
        pit
    }

    fn input_clock(&self, now: Ticks) -> u64 {
        self.clock.count(now, PIT_HZ)
    }

    /// Returns the time at which channel 0 raises IRQ 0 next.
    pub fn next_event(&self) -> Option<Ticks> {
        self.next
    }

    /// Returns the time of the first rising edge of channel 0 that has not been reported.
    fn upcoming(&self) -> Option<Ticks> {
        self.channels[0].next_rise(self.rises).map(|clock| self.clock.ticks(clock, PIT_HZ))
    }

    fn schedule(&mut self, rises: u64) {
        self.rises = rises;
        self.next = self.upcoming();
    }

    /// Advances the timer to `now`.
    pub fn advance(&mut self, now: Ticks) {
        let clock = self.input_clock(now);
        let rises = self.channels[0].rises(clock);
        if rises > self.rises {
            self.irq.strobe();
            self.schedule(rises);
        }
        self.irq.set(self.channels[0].output(clock));
    }

    /// Applies `change` to a channel and updates the interrupt line.
    fn change(&mut self, index: usize, now: Ticks, change: impl FnOnce(&mut Channel, u64)) {
        let clock = self.input_clock(now);
        change(&mut self.channels[index], clock);
        if index == 0 {
            self.schedule(self.channels[0].rises(clock));
            self.irq.set(self.channels[0].output(clock));
        }
    }

    /// Reads one of [`PORTS`].
    pub fn read(&mut self, port: u16, now: Ticks) -> u8 {
        self.advance(now);
        let clock = self.input_clock(now);
        match port {
            0x40..=0x42 => self.channels[usize::from(port - 0x40)].read(clock),
            0x61 => {
                let channel = &self.channels[2];
                u8::from(channel.gate)
                    | u8::from(self.speaker) << 1
                    | u8::from((clock / REFRESH_CLOCKS) & 1 != 0) << 4
                    | u8::from(channel.output(clock)) << 5
            }
            _ => 0xff,
        }
    }

    /// Writes one of [`PORTS`].
    pub fn write(&mut self, port: u16, value: u8, now: Ticks) {
        self.advance(now);
        match port {
            0x40..=0x42 => self.change(usize::from(port - 0x40), now, |channel, clock| channel.write(value, clock)),
            0x43 => self.control(value, now),
            0x61 => {
                self.speaker = value & 2 != 0;
                self.change(2, now, |channel, clock| channel.set_gate(value & 1 != 0, clock));
            }
            _ => {}
        }
    }

    fn control(&mut self, value: u8, now: Ticks) {
        if value >> 6 < 3 {
            let index = usize::from(value >> 6);
            if value & 0x30 == 0 {
                self.change(index, now, |channel, clock| channel.latch(clock));
            } else {
                self.change(index, now, |channel, _| channel.control(value));
            }
            return;
        }
        for index in (0..3).filter(|index| value & 2 << index != 0) {
            self.change(index, now, |channel, clock| {
                if value & 0x20 == 0 {
                    channel.latch(clock);
                }
                if value & 0x10 == 0 {
                    channel.latch_status(clock);
                }
            });
        }
    }
}

const CLAIMS: &[Claim] = &[Claim::bytes("PIT", 0x40, 4), Claim::bytes("PIT", 0x61, 1)];

impl Device for Pit {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        let value = Pit::read(self, at.port(CLAIMS), ctx.now);
        ctx.drive(Pin::Isa(TIMER_IRQ), &mut self.irq);
        value.into()
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        Pit::write(self, at.port(CLAIMS), value as u8, ctx.now);
        ctx.drive(Pin::Isa(TIMER_IRQ), &mut self.irq);
    }

    fn reset(&mut self, ctx: &mut DeviceContext) {
        *self = Self::as_firmware_leaves(self.clock, ctx.now);
    }

    fn next_event(&self) -> Option<Ticks> {
        self.next
    }

    fn advance(&mut self, ctx: &mut DeviceContext) {
        Pit::advance(self, ctx.now);
        ctx.drive(Pin::Isa(TIMER_IRQ), &mut self.irq);
    }
}

/// A count of input clocks that no machine reaches.
const NEVER: u64 = 1 << 62;

impl Plain for Pit {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.clock, &current.clock, "TSC frequency")?;
        for channel in &self.channels {
            let times = channel.start.is_none_or(|start| start < NEVER) && channel.held < NEVER;
            require(channel.mode < 6 && times, "a channel of the PIT")?;
        }
        require(self.rises < NEVER && self.next == self.upcoming(), "the next interrupt of the PIT")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLOCK: Clock = Clock::new(2_100_000_000);

    fn at(clock: u64) -> Ticks {
        CLOCK.ticks(clock, PIT_HZ)
    }

    /// Loads a channel at time 0, so that it counts from input clock 1.
    fn loaded(channel: u16, mode: u8, count: u16) -> Pit {
        let mut pit = Pit::new(CLOCK);
        pit.write(0x61, 1, 0);
        pit.write(0x43, (channel as u8) << 6 | 0x30 | mode << 1, 0);
        let [low, high] = count.to_le_bytes();
        pit.write(0x40 + channel, low, 0);
        pit.write(0x40 + channel, high, 0);
        pit
    }

    /// Returns the times, in input clocks, at which IRQ 0 rises.
    fn edges(pit: &mut Pit, limit: usize) -> Vec<u64> {
        let mut out = Vec::new();
        for _ in 0..limit {
            let Some(now) = pit.next_event() else { break };
            pit.advance(now);
            pit.irq.drain(|level| {
                if level {
                    out.push(CLOCK.count(now, PIT_HZ));
                }
            });
        }
        out
    }

    #[test]
    fn states_that_cannot_be_are_refused() {
        let current = loaded(0, 2, 0x1234);
        let refused = |change: &dyn Fn(&mut Pit)| {
            let mut state = current.clone();
            change(&mut state);
            state.check(&Pit::new(CLOCK)).is_err()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|state| state.next = None), "an interrupt that never comes");
        assert!(refused(&|state| state.next = Some(0)), "one that has passed");
        assert!(refused(&|state| state.rises += 1));
        assert!(refused(&|state| state.channels[1].mode = 6));
        assert!(refused(&|state| state.channels[2].held = u64::MAX));
        assert!(refused(&|state| state.clock = Clock::new(1)));
    }

    #[test]
    fn channel_0_rises_as_its_mode_says() {
        let table: [(u8, &[u64]); 4] =
            [(0, &[101]), (2, &[101, 201, 301, 401]), (3, &[101, 201, 301, 401]), (4, &[102])];
        for (mode, expected) in table {
            let mut pit = loaded(0, mode, 100);
            pit.irq.drain(|_| ());
            assert_eq!(edges(&mut pit, 4), expected, "mode {mode}");
        }
    }

    #[test]
    fn thousand_hertz_does_not_drift() {
        let mut pit = loaded(0, 2, 1193);
        pit.irq.drain(|_| ());
        let edges = edges(&mut pit, 5000);
        assert_eq!(edges.len(), 5000);
        assert_eq!(edges.last(), Some(&(1 + 1193 * 5000)));
    }

    #[test]
    fn firmware_leaves_the_long_period_and_no_pending_edge() {
        let mut pit = Pit::as_firmware_leaves(CLOCK, 0);
        pit.irq.drain(|level| panic!("{level}"));
        assert_eq!(edges(&mut pit, 2), [65_537, 131_073]);
    }

    #[test]
    fn late_advance_gives_one_edge() {
        let mut pit = loaded(0, 2, 100);
        pit.irq.drain(|_| ());
        pit.advance(at(1011));
        let mut levels = Vec::new();
        pit.irq.drain(|level| levels.push(level));
        assert_eq!(levels, [false, true]);
        assert_eq!(pit.next_event(), Some(at(1101)));
    }

    #[test]
    fn latched_count_stays_until_read() {
        let mut pit = loaded(2, 0, 1000);
        pit.write(0x43, 0x80, at(101));
        pit.write(0x43, 0x80, at(301));
        let value = u16::from_le_bytes([pit.read(0x42, at(400)), pit.read(0x42, at(500))]);
        assert_eq!(value, 900);
        let value = u16::from_le_bytes([pit.read(0x42, at(601)), pit.read(0x42, at(601))]);
        assert_eq!(value, 400);
    }

    #[test]
    fn channel_2_output_shows_in_port_0x61() {
        // Mode 0, as Linux uses it to calibrate the TSC.
        let mut pit = Pit::new(CLOCK);
        pit.write(0x61, 1, 0);
        for (port, value) in [(0x43, 0xb0), (0x42, 0x9b), (0x42, 0x2e)] {
            pit.write(port, value, 0);
        }
        assert_eq!(pit.read(0x61, at(1 + 0x2e9a)) & 0x20, 0);
        assert_eq!(pit.read(0x61, at(1 + 0x2e9b)) & 0x20, 0x20);
    }

    #[test]
    fn closed_gate_holds_mode_0() {
        let mut pit = loaded(2, 0, 1000);
        pit.write(0x61, 0, at(101));
        assert_eq!(pit.read(0x42, at(5000)), 900u16.to_le_bytes()[0]);
        pit.read(0x42, at(5000));
        pit.write(0x61, 1, at(6000));
        assert_eq!(pit.read(0x61, at(6899)) & 0x20, 0);
        assert_eq!(pit.read(0x61, at(6900)) & 0x20, 0x20);
    }

    #[test]
    fn gate_triggers_modes_1_and_5() {
        for (mode, before, during, at_end) in [(1, 0x20, 0, 0x20), (5, 0x20, 0x20, 0)] {
            let mut pit = Pit::new(CLOCK);
            for (port, value) in [(0x43, 0xb0 | mode << 1), (0x42, 100), (0x42, 0)] {
                pit.write(port, value, 0);
            }
            assert_eq!(pit.read(0x61, at(500)) & 0x20, before, "mode {mode} waits");
            pit.write(0x61, 1, at(1000));
            assert_eq!(pit.read(0x61, at(1050)) & 0x20, during, "mode {mode} counts");
            assert_eq!(pit.read(0x61, at(1101)) & 0x20, at_end, "mode {mode} ends");
        }
    }

    #[test]
    fn one_shot_takes_a_new_count_at_the_next_trigger() {
        let mut pit = Pit::new(CLOCK);
        for (port, value, clock) in
            [(0x43, 0xb2, 0), (0x42, 100, 0), (0x42, 0, 0), (0x61, 1, 10), (0x42, 50, 20), (0x42, 0, 20)]
        {
            pit.write(port, value, at(clock));
        }
        assert_eq!([pit.read(0x61, at(110)) & 0x20, pit.read(0x61, at(111)) & 0x20], [0, 0x20]);
        pit.write(0x61, 0, at(200));
        pit.write(0x61, 1, at(200));
        assert_eq!([pit.read(0x61, at(250)) & 0x20, pit.read(0x61, at(251)) & 0x20], [0, 0x20]);
    }

    #[test]
    fn square_wave_counts_by_two() {
        let mut pit = loaded(2, 3, 100);
        for (clock, count, output) in [(1, 100, 0x20), (26, 50, 0x20), (51, 100, 0), (76, 50, 0), (101, 100, 0x20)] {
            pit.write(0x43, 0x80, at(clock));
            let value = u16::from_le_bytes([pit.read(0x42, at(clock)), pit.read(0x42, at(clock))]);
            assert_eq!((value, pit.read(0x61, at(clock)) & 0x20), (count, output), "clock {clock}");
        }
    }

    #[test]
    fn bcd_counts_in_decimal() {
        let mut pit = Pit::new(CLOCK);
        for (port, value) in [(0x61, 1), (0x43, 0xb1), (0x42, 0x00), (0x42, 0x10)] {
            pit.write(port, value, 0);
        }
        pit.write(0x43, 0x80, at(2));
        assert_eq!([pit.read(0x42, at(2)), pit.read(0x42, at(2))], [0x99, 0x09]);
    }

    #[test]
    fn read_back_latches_status_before_count() {
        let mut pit = loaded(0, 2, 0x1234);
        pit.write(0x43, 0xc2, at(1));
        assert_eq!(pit.read(0x40, at(1)), 0xb4);
        assert_eq!([pit.read(0x40, at(1)), pit.read(0x40, at(1))], [0x34, 0x12]);
        pit.write(0x43, 0x34, at(2));
        pit.write(0x43, 0xe2, at(2));
        assert_eq!(pit.read(0x40, at(2)) & 0x40, 0x40, "null count until a count is written");
    }

    #[test]
    fn refresh_bit_toggles() {
        let mut pit = Pit::new(CLOCK);
        assert_ne!(pit.read(0x61, at(0)) & 0x10, pit.read(0x61, at(18)) & 0x10);
    }

    proptest! {
        #[test]
        fn random_accesses_do_not_panic(
            ops in prop::collection::vec((0..5usize, any::<bool>(), any::<u8>(), 0u64..1 << 40), 0..200),
            start in prop::sample::select(vec![0, u64::MAX - (1 << 41)]),
        ) {
            let mut now: Ticks = start;
            let mut pit = Pit::new(CLOCK);
            for (port, write, value, step) in ops {
                now = now.saturating_add(step);
                if write { pit.write(PORTS[port], value, now) } else { pit.read(PORTS[port], now); }
                if let Some(event) = pit.next_event() {
                    prop_assert!(event > now || event == u64::MAX, "{event} {now}");
                    if value & 1 == 0 {
                        now = event;
                        pit.advance(now);
                    }
                }
            }
        }
    }
}
