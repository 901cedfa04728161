//! The workload port: a guest asks what it is to do when it has booted. So guests that do different things boot alike, and one that was
//! saved when it asked can be given another workload. `docs/marker-port.md` is the guest's view.
//!
//! The answer comes some slices later, so that a machine which is saved when the guest asks has been told nothing yet.

use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Saved, StateError, decode, encode, require};
use crate::vcpus::SLICE_CYCLES;
use ledger::{TICKS_PER_CYCLE, Ticks};
use serde::{Deserialize, Serialize};

/// Asks, and says whether there is an answer; behind it is the port at which the answer is read.
pub const WORKLOAD: u16 = 0x1f0b;
/// What [`WORKLOAD`] reads as before there is an answer.
pub const WAIT: u8 = b'W';
/// … and when it can be read.
pub const READY: u8 = b'R';

/// From the question to the answer.
const DELAY: Ticks = 2 * SLICE_CYCLES * TICKS_PER_CYCLE;
/// The longest workload, in bytes.
pub const LONGEST: usize = 4096;

const CLAIMS: &[Claim] = &[Claim::bytes("workload", WORKLOAD, 2)];

/// The port.
#[derive(Clone, Debug)]
pub struct Workload {
    text: Vec<u8>,
    /// When the guest asked.
    asked: Option<Ticks>,
    /// How many bytes it has read.
    read: usize,
}

impl Workload {
    /// With the answer; empty: there is none.
    pub fn new(text: &str) -> Self {
        Self { text: text.as_bytes().iter().copied().take(LONGEST).collect(), asked: None, read: 0 }
    }

    /// Whether the guest has asked.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    fn ready(&self, now: Ticks) -> bool {
        self.asked.is_some_and(|asked| now >= asked.saturating_add(DELAY))
    }
}

impl Device for Workload {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        if at.offset == 0 {
            self.asked.get_or_insert(ctx.now);
            return match self.ready(ctx.now) {
                true => READY.into(),
                false => WAIT.into(),
            };
        }
        if !self.ready(ctx.now) {
            return 0;
        }
        let byte = self.text.get(self.read).copied().unwrap_or(0);
        self.read = (self.read + 1).min(self.text.len());
        byte.into()
    }

    /// The answer begins anew.
    fn write(&mut self, _at: At, _value: u64, ctx: &mut DeviceContext) {
        if self.ready(ctx.now) {
            self.read = 0;
        }
    }
}

/// The port as it is saved.
#[derive(Serialize, Deserialize)]
struct SavedWorkload {
    asked: Option<Ticks>,
    read: u32,
    /// The answer, if the guest may know some of it.
    told: Option<String>,
}

impl Saved for Workload {
    fn save(&self) -> Result<Vec<u8>, StateError> {
        let told = (self.read != 0).then(|| String::from_utf8_lossy(&self.text).into_owned());
        encode(&SavedWorkload { asked: self.asked, read: self.read as u32, told })
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let saved: SavedWorkload = decode(bytes)?;
        let read = saved.read as usize;
        require(
            read == 0 || saved.asked.is_some() && saved.told.is_some(),
            "a workload that was read before it was asked for",
        )?;
        if saved.told.is_some_and(|told| told != String::from_utf8_lossy(&self.text)) {
            return Err(StateError::Other("workload, which the guest has read"));
        }
        require(read <= self.text.len(), "a workload that was read beyond its end")?;
        (self.asked, self.read) = (saved.asked, read);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Outputs;
    use crate::memory::GuestRam;

    fn read(port: &mut Workload, offset: u64, now: Ticks) -> u8 {
        let (ram, mut out) = (GuestRam::new(1 << 20).unwrap(), Outputs::default());
        let mut ctx = DeviceContext { now, cpu: 0, ram: &ram, out: &mut out };
        port.read(At { claim: 0, offset, size: 1 }, &mut ctx) as u8
    }

    #[test]
    fn the_answer_comes_after_the_question() {
        let mut port = Workload::new("ab");
        assert!(!port.is_asked());
        assert_eq!([0, 1].map(|offset| read(&mut port, offset, 5)), [WAIT, 0]);
        assert!(port.is_asked());
        assert_eq!([0, 1].map(|offset| read(&mut port, offset, 5 + DELAY - 1)), [WAIT, 0]);
        assert_eq!([0, 1, 1, 1, 1].map(|offset| read(&mut port, offset, 5 + DELAY)), [READY, b'a', b'b', 0, 0]);
    }

    #[test]
    fn a_port_that_has_told_nothing_takes_another_workload() {
        let mut port = Workload::new("ab");
        read(&mut port, 0, 5);
        let mut other = Workload::new("other");
        other.restore(&port.save().unwrap()).unwrap();
        assert_eq!(read(&mut other, 1, 5 + DELAY), b'o');
        read(&mut port, 1, 5 + DELAY);
        let told = port.save().unwrap();
        assert_eq!(Workload::new("abc").restore(&told), Err(StateError::Other("workload, which the guest has read")));
        let mut same = Workload::new("ab");
        same.restore(&told).unwrap();
        assert_eq!(read(&mut same, 1, 5 + DELAY), b'b');
        for (asked, read, told) in [(None, 1, Some("ab")), (Some(0), 1, None), (Some(0), 3, Some("ab"))] {
            let bytes = encode(&SavedWorkload { asked, read, told: told.map(str::to_owned) }).unwrap();
            assert!(Workload::new("ab").restore(&bytes).is_err());
        }
    }
}
