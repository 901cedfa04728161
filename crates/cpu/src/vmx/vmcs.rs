//! A VMCS: the current one in the processor, and the format in memory.
//!
//! The processor holds the fields of the current VMCS. They are written to the VMCS region when another VMCS becomes
//! current, and by VMCLEAR and VMXOFF. The region (SDM vol. 3, 24.2) has the following layout:
//!
//! | offset | bytes | contents |
//! |---|---|---|
//! | 0 | 4 | revision identifier; bit 31: shadow VMCS |
//! | 4 | 4 | VMX-abort indicator |
//! | 8 | 8 | launch state: 0 clear, 1 launched |
//!
//! 16 | 8 | handlers active in the guest ([`Nesting`](crate::charged::Nesting)), which software does not see |
//! | 64 | 8 each | the fields, in the order of their encodings ([`x86::vmx::vmcs::NAMES`]) |

use super::fields::{COUNT, mask, place};
use crate::ram::Ram;
use serde::{Deserialize, Serialize};
use x86::vmx::vmcs::{HIGH, NAMES};

/// Offset of the launch state in a region.
const LAUNCH_STATE: u64 = 8;
/// Offset of the guest's nesting of handlers in a region.
const NESTING: u64 = 16;
/// Offset of the fields in a region.
const FIELDS: u64 = 64;

const _: () = assert!(FIELDS as usize + 8 * COUNT <= x86::vmx::region::SIZE as usize);

/// Returns the address of a field in the region at `region`.
pub(super) fn field_address(region: u64, place: usize) -> u64 {
    region + FIELDS + 8 * place as u64
}

/// Sets the launch state in a region.
pub(super) fn store_launch_state(ram: &Ram, region: u64, launched: bool) {
    ram.write(region + LAUNCH_STATE, u64::from(launched));
    if !launched {
        ram.write(region + NESTING, 0u64);
    }
}

/// The fields of a VMCS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vmcs {
    /// True if VMLAUNCH has been executed since the VMCS was cleared.
    pub launched: bool,
    /// Nesting of handlers in the guest, from [`Nesting::bits`](crate::charged::Nesting::bits).
    pub(super) nesting: u64,
    values: Vec<u64>,
}

impl Default for Vmcs {
    fn default() -> Self {
        Self { launched: false, nesting: 0, values: vec![0; COUNT] }
    }
}

impl Vmcs {
    /// Reads a field. Unknown fields are 0.
    #[inline]
    pub fn get(&self, encoding: u32) -> u64 {
        place(encoding).map_or(0, |place| self.values[place])
    }

    /// Reads a field of at most 32 bits.
    #[inline]
    pub fn get32(&self, encoding: u32) -> u32 {
        self.get(encoding) as u32
    }

    /// Writes a field; undefined bits are dropped.
    #[inline]
    pub fn set(&mut self, encoding: u32, value: u64) {
        if let Some(place) = place(encoding) {
            self.values[place] = value & mask(encoding);
        }
    }

    /// Reads a field by its index in the table.
    #[inline]
    pub(super) fn value(&self, place: usize) -> u64 {
        self.values[place]
    }

    /// Returns true if a saved state is consistent: the number of fields is right.
    pub(crate) fn is_whole(&self) -> bool {
        self.values.len() == COUNT
    }

    /// Reads a region. Addresses outside of memory read as all ones.
    pub(super) fn load(ram: &Ram, region: Option<u64>) -> Self {
        let word = |offset| region.and_then(|region| ram.read::<u64>(region + offset)).unwrap_or(u64::MAX);
        let value = |(place, (encoding, _)): (usize, &(u32, &str))| word(field_address(0, place)) & mask(*encoding);
        let values = NAMES.iter().enumerate().map(value).collect();
        Self { launched: word(LAUNCH_STATE) == 1, nesting: word(NESTING), values }
    }

    /// Writes a region, except its first eight bytes.
    pub(super) fn store(&self, ram: &Ram, region: u64) {
        store_launch_state(ram, region, self.launched);
        ram.write(region + NESTING, self.nesting);
        for (place, value) in self.values.iter().enumerate() {
            ram.write(field_address(region, place), *value);
        }
    }
}

/// A set of fields, by bit.
type Fields = [u64; COUNT.div_ceil(u64::BITS as usize)];

/// A shadow VMCS that a hypervisor keeps outside of the machine's memory, and the fields that the guest accesses
/// without an exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowVmcs {
    /// The fields.
    pub vmcs: Vmcs,
    /// Fields that VMREAD accesses, and those that VMWRITE does.
    open: [Fields; 2],
}

impl ShadowVmcs {
    /// Creates an empty one, in which the guest may read all these fields, and write the second ones.
    pub fn new(read_only: &[u32], read_write: &[u32]) -> Self {
        let mut open = [Fields::default(); 2];
        for (which, fields) in [(0, read_only), (0, read_write), (1, read_write)] {
            for place in fields.iter().filter_map(|field| place(*field)) {
                open[which][place / 64] |= 1 << (place % 64);
            }
        }
        Self { vmcs: Vmcs::default(), open }
    }

    /// Returns true if VMREAD (0) or VMWRITE (1) of a field accesses it.
    pub(super) fn has(&self, encoding: u64, which: usize) -> bool {
        let place = u32::try_from(encoding).ok().filter(|encoding| encoding & HIGH == 0).and_then(place);
        place.is_some_and(|place| self.open[which][place / 64] >> (place % 64) & 1 != 0)
    }
}
