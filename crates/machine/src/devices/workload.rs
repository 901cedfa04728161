//! The workload port, with which a guest asks for its task after it has booted. Guests with different workloads
//! therefore boot alike, and a guest that was saved when it asked can be given another workload. `docs/marker-port.md`
//! describes the guest's view.
//!
//! The answer comes some slices later, so that a machine that is saved when the guest asks has not received any of it.

use crate::device::{At, Claim, Device, DeviceContext, SLICE_CYCLES};
use crate::state::{Saved, StateError, decode, encode, require};
use ledger::{TICKS_PER_CYCLE, Ticks};
use serde::{Deserialize, Serialize};

/// Port for the question and the status of the answer; the next port reads the answer.
pub const WORKLOAD: u16 = 0x1f0b;
/// Value that [`WORKLOAD`] reads as before the answer is available.
pub const WAIT: u8 = b'W';
/// Value that [`WORKLOAD`] reads as when the answer can be read.
pub const READY: u8 = b'R';

/// Time from the question to the answer.
const DELAY: Ticks = 2 * SLICE_CYCLES * TICKS_PER_CYCLE;
/// Maximum length of a workload, in bytes.
pub const LONGEST: usize = 4096;

const CLAIMS: &[Claim] = &[Claim::bytes("workload", WORKLOAD, 2)];

/// The workload port.
#[derive(Clone, Debug)]
pub struct Workload {
    text: Vec<u8>,
    /// Time at which the guest asked.
    asked: Option<Ticks>,
    /// Number of bytes that the guest has read.
    read: usize,
}

impl Workload {
    /// Creates a port with this answer; an empty text means that there is none.
    pub fn new(text: &str) -> Self {
        Self { text: text.as_bytes().iter().copied().take(LONGEST).collect(), asked: None, read: 0 }
    }

    /// Returns true if the guest has asked.
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

    /// A write restarts the answer.
    fn write(&mut self, _at: At, _value: u64, ctx: &mut DeviceContext) {
        if self.ready(ctx.now) {
            self.read = 0;
        }
    }
}

/// Saved state of the port.
#[derive(Serialize, Deserialize)]
struct SavedWorkload {
    asked: Option<Ticks>,
    read: u32,
    /// The answer, if the guest may have read some of it.
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
