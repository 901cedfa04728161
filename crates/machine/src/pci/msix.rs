//! MSI-X: the vector table, masks and pending bits (PCI 3.0, 6.8.2).

use super::config::ConfigSpace;
use crate::device::Msi;
use crate::state::{StateError, require, same};
use serde::{Deserialize, Serialize};

const CAPABILITY: u8 = 0x11;
const CONTROL: usize = 2;
const ENABLE: u16 = 1 << 15;
const FUNCTION_MASK: u16 = 1 << 14;
const ENTRY_LEN: usize = 16;
const ENTRY_MASKED: u32 = 1;

/// The MSI-X capability of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MsiX {
    capability: usize,
    /// Address low, address high, data, and control of each vector.
    entries: Vec<[u32; 4]>,
    pending: Vec<bool>,
    enabled: bool,
    masked: bool,
}

impl MsiX {
    /// Adds the capability to a configuration space. The table is at offset `table` of base address register `bar`, the
    /// pending bits at `pending`.
    pub fn new(config: &mut ConfigSpace, vectors: u16, bar: u8, table: u32, pending: u32) -> Self {
        let mut body = (vectors - 1).to_le_bytes().to_vec();
        body.extend((table | u32::from(bar)).to_le_bytes());
        body.extend((pending | u32::from(bar)).to_le_bytes());
        let capability = config.add_capability(CAPABILITY, &body, &(ENABLE | FUNCTION_MASK).to_le_bytes());
        let count = usize::from(vectors);
        Self {
            capability,
            entries: vec![[0, 0, 0, ENTRY_MASKED]; count],
            pending: vec![false; count],
            enabled: false,
            masked: false,
        }
    }

    /// Returns the number of vectors.
    pub fn vectors(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Returns true if MSI-X is enabled.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Reads the control register again after a write to configuration space.
    pub fn refresh(&mut self, config: &ConfigSpace, out: &mut Vec<Msi>) {
        let control = config.read(self.capability + CONTROL, 2) as u16;
        self.enabled = control & ENABLE != 0;
        self.masked = control & FUNCTION_MASK != 0;
        (0..self.entries.len()).for_each(|vector| self.deliver(vector, out));
    }

    /// Raises a vector: sends a message, or sets a pending bit if the vector is masked.
    pub fn raise(&mut self, vector: u16, out: &mut Vec<Msi>) {
        let vector = usize::from(vector);
        if self.enabled && vector < self.entries.len() {
            self.pending[vector] = true;
            self.deliver(vector, out);
        }
    }

    fn deliver(&mut self, vector: usize, out: &mut Vec<Msi>) {
        let [low, high, data, control] = self.entries[vector];
        if self.pending[vector] && self.enabled && !self.masked && control & ENTRY_MASKED == 0 {
            self.pending[vector] = false;
            out.push(Msi { address: u64::from(low & !3) | u64::from(high) << 32, data });
        }
    }

    /// Reads 4 or 8 bytes of the table; other sizes are undefined and return zero.
    pub fn read_table(&self, offset: u64, size: u8) -> u64 {
        let word = |at: u64| {
            let at = at as usize;
            self.entries.get(at / ENTRY_LEN).map_or(0, |entry| u64::from(entry[at % ENTRY_LEN / 4]))
        };
        match size {
            4 if offset.is_multiple_of(4) => word(offset),
            8 if offset.is_multiple_of(8) => word(offset) | word(offset + 4) << 32,
            _ => 0,
        }
    }

    /// Writes 4 or 8 bytes of the table; other sizes are undefined and have no effect.
    pub fn write_table(&mut self, offset: u64, size: u8, value: u64, out: &mut Vec<Msi>) {
        match size {
            4 if offset.is_multiple_of(4) => self.write_word(offset as usize, value as u32, out),
            8 if offset.is_multiple_of(8) => {
                self.write_word(offset as usize, value as u32, out);
                self.write_word(offset as usize + 4, (value >> 32) as u32, out);
            }
            _ => {}
        }
    }

    fn write_word(&mut self, at: usize, value: u32, out: &mut Vec<Msi>) {
        let vector = at / ENTRY_LEN;
        if let Some(entry) = self.entries.get_mut(vector) {
            entry[at % ENTRY_LEN / 4] = value;
            self.deliver(vector, out);
        }
    }

    /// Reads the pending bits.
    pub fn read_pending(&self, offset: u64, size: u8) -> u64 {
        let first = (offset as usize).saturating_mul(8);
        let bit = |i: usize| u64::from(self.pending.get(first.saturating_add(i)).copied().unwrap_or(false)) << i;
        (0..8 * usize::from(size.min(8))).map(bit).sum()
    }
}

impl MsiX {
    /// Checks that this can be the state of `current` with this configuration space.
    pub fn check(&self, current: &Self, config: &ConfigSpace) -> Result<(), StateError> {
        let shape = |msix: &Self| (msix.capability, msix.entries.len(), msix.pending.len());
        same(&shape(self), &shape(current), "MSI-X capability")?;
        let control = config.read(self.capability + CONTROL, 2) as u16;
        let agrees = (self.enabled, self.masked) == (control & ENABLE != 0, control & FUNCTION_MASK != 0);
        require(agrees, "MSI-X that is not what its control register says")
    }
}
