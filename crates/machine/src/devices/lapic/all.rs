//! The local APICs of all processors, as a device of the board.

use super::{DEFAULT_BASE, Lapic, SIZE};
use crate::device::{At, Claim, Device, DeviceContext};
use crate::state::{Plain, StateError, same};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};

const CLAIMS: &[Claim] = &[Claim::memory("local APIC", DEFAULT_BASE..DEFAULT_BASE + SIZE, 1)];

/// The local APICs, by processor. Each responds to its own processor only, at the address to which the processor has
/// mapped it: the board calls [`Lapics::decodes`] before it looks at claims. APIC timers follow the processors' clocks,
/// not the board's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lapics(pub Vec<Lapic>);

impl Lapics {
    /// Returns true if an address is in the local APIC of a processor.
    #[inline]
    pub fn decodes(&self, cpu: usize, address: u64) -> bool {
        self.0[cpu].mmio_base() == Some(address & !(SIZE - 1))
    }

    /// Applies the settings of firmware: interrupts of the 8259As go to the first processor.
    pub fn as_firmware_leaves(&mut self) {
        if let Some(first) = self.0.first_mut() {
            first.set_virtual_wire();
        }
    }
}

impl Deref for Lapics {
    type Target = [Lapic];

    fn deref(&self) -> &[Lapic] {
        &self.0
    }
}

impl DerefMut for Lapics {
    fn deref_mut(&mut self) -> &mut [Lapic] {
        &mut self.0
    }
}

impl Device for Lapics {
    fn claims(&self) -> &'static [Claim] {
        CLAIMS
    }

    fn read(&mut self, at: At, ctx: &mut DeviceContext) -> u64 {
        self.0[ctx.cpu].mmio_read(at.offset, at.size, ctx.now)
    }

    fn write(&mut self, at: At, value: u64, ctx: &mut DeviceContext) {
        self.0[ctx.cpu].mmio_write(at.offset, at.size, value, ctx.now);
    }

    fn reset(&mut self, _ctx: &mut DeviceContext) {
        self.0.iter_mut().for_each(Lapic::reset);
        self.as_firmware_leaves();
    }
}

impl Plain for Lapics {
    fn check(&self, current: &Self) -> Result<(), StateError> {
        same(&self.0.len(), &current.0.len(), "number of processors")?;
        self.0.iter().zip(&current.0).try_for_each(|(lapic, current)| lapic.check(current))
    }
}
