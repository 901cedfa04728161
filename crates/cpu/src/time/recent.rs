//! A ring of the addresses at which the last runs began.
//!
//! A misprediction is found when the condition of the branch is known, and the condition may wait for instructions of several earlier runs.
//! The ring has the guest-physical address of the first instruction of each of the last runs. An event and a misprediction cut the ring,
//! because all instructions in front of them are complete. The code at these addresses is decoded at a misprediction only, see [`super::late`].

use serde::{Deserialize, Serialize};
use std::mem::offset_of;

/// The most runs that are looked at: the run of a mispredicted branch, and six in front of it.
pub(crate) const MOST: usize = 7;

/// Bytes of the ring, so that a byte that counts addresses wraps with it.
const BYTES: usize = 1 << 8;

/// Marks a cut: the runs behind it wait for none in front of it. A run at the address 0 counts as one.
pub(crate) const CUT: u64 = 0;

/// The addresses, oldest first, of which there are at most [`MOST`].
pub(crate) type Begins = [u64; MOST];

/// A ring of addresses: translated code writes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[repr(C)]
#[serde(into = "Vec<u64>", try_from = "Vec<u64>")]
pub struct Recent {
    begins: [u64; BYTES / size_of::<u64>()],
    /// Distance of the next address from the first one.
    next: u8,
}

impl Default for Recent {
    fn default() -> Self {
        Self { begins: [CUT; BYTES / size_of::<u64>()], next: 0 }
    }
}

impl Recent {
    /// Distance of [`Recent::next`] from the begin.
    pub(crate) const NEXT: usize = offset_of!(Self, next);
    /// Distance of the addresses from the begin.
    pub(crate) const BEGINS: usize = offset_of!(Self, begins);
    /// Distance of an address from the one before it.
    pub(crate) const STRIDE: u8 = size_of::<u64>() as u8;

    /// A run begins at an address.
    #[inline(always)]
    pub(crate) fn begin(&mut self, physical: u64) {
        self.begins[usize::from(self.next / Self::STRIDE)] = physical;
        self.next = self.next.wrapping_add(Self::STRIDE);
    }

    /// The last run has not begun.
    pub(crate) fn undo(&mut self) {
        self.next = self.next.wrapping_sub(Self::STRIDE);
    }

    /// The next runs wait for none of those in the ring.
    #[inline]
    pub(crate) fn cut(&mut self) {
        self.begin(CUT);
    }

    /// Returns where the last runs began, in their order, behind as many times [`CUT`] as there are fewer than [`MOST`].
    pub(crate) fn last(&self) -> Begins {
        let mut last = [CUT; MOST];
        let mut next = self.next;
        for begin in last.iter_mut().rev() {
            next = next.wrapping_sub(Self::STRIDE);
            match self.begins[usize::from(next / Self::STRIDE)] {
                CUT => break,
                physical => *begin = physical,
            }
        }
        last
    }
}

impl PartialEq for Recent {
    fn eq(&self, other: &Self) -> bool {
        self.last() == other.last()
    }
}

impl From<Recent> for Vec<u64> {
    fn from(recent: Recent) -> Self {
        recent.last().into_iter().filter(|begin| *begin != CUT).collect()
    }
}

impl TryFrom<Vec<u64>> for Recent {
    type Error = &'static str;

    fn try_from(saved: Vec<u64>) -> Result<Self, Self::Error> {
        if saved.len() > MOST || saved.contains(&CUT) {
            return Err("more of the last runs than are followed");
        }
        let mut recent = Self::default();
        saved.into_iter().for_each(|physical| recent.begin(physical));
        Ok(recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_runs_since_a_cut() {
        let mut recent = Recent::default();
        assert_eq!(recent.last(), [CUT; MOST]);
        (1..=100).for_each(|n| recent.begin(n));
        assert_eq!(recent.last(), [94, 95, 96, 97, 98, 99, 100]);
        recent.undo();
        assert_eq!(recent.last(), [93, 94, 95, 96, 97, 98, 99]);
        recent.cut();
        recent.begin(5);
        assert_eq!(recent.last(), [0, 0, 0, 0, 0, 0, 5]);
        let saved: Vec<u64> = recent.clone().into();
        assert_eq!((saved.as_slice(), Recent::try_from(saved.clone())), (&[5][..], Ok(recent)));
        assert!(Recent::try_from(vec![1; MOST + 1]).is_err() && Recent::try_from(vec![1, CUT]).is_err());
    }
}
