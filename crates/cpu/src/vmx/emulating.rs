//! The state of an emulation in progress, and what it reports: see [`super::emulate`].

use super::controls::Controls;
use super::flush::{Flush, Invalidation};
use super::offer::Offer;
use crate::access::{Access, Privilege};
use crate::tlb::Entry;
use ledger::Ticks;
use std::fmt::Debug;
use std::sync::Arc;
use x86::page::PAGE;

/// Map of a guest's memory.
pub trait GuestPhysical: Debug + Send + Sync {
    /// Returns the host-physical address of a guest-physical one, or `None` if it is not in the guest's RAM.
    fn host(&self, guest_physical: u64) -> Option<u64>;
}

/// A range of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First byte.
    pub address: u64,
    /// Length in bytes; the range does not cross a page.
    pub len: u64,
}

/// A device access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAccess {
    /// An access to a port.
    Port {
        /// Port number.
        port: u16,
        /// Size in bytes.
        size: u8,
        /// True for OUT.
        write: bool,
    },
    /// An access to a guest-physical address.
    Memory {
        /// Address.
        address: u64,
        /// Size in bytes.
        size: u8,
        /// True for a write.
        write: bool,
    },
    /// An access to a model-specific register that the board holds.
    Msr {
        /// Index.
        index: u32,
        /// True for WRMSR.
        write: bool,
    },
    /// An access to CR8.
    TaskPriority {
        /// True for a write.
        write: bool,
    },
}

/// Accesses of an emulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Number of walks of the guest's page tables: one for each page and kind of access.
    pub walks: u32,
    /// Number of entries of the guest's page tables that the walks read.
    pub references: u32,
    /// Guest RAM that was read as data.
    pub reads: Vec<Stretch>,
    /// Guest RAM that was written, or would have been written before a failure.
    pub writes: Vec<Stretch>,
    /// Page-table entries whose accessed or dirty flags were set.
    pub marked_entries: Vec<u64>,
    /// Devices, in order.
    pub devices: Vec<DeviceAccess>,
    /// Invalidations in the TLB as seen by the guest. The processor's TLB has not changed.
    pub flushes: Vec<Flush>,
    /// Invalidations by INVEPT and INVVPID.
    pub invalidations: Vec<Invalidation>,
}

/// A translation that this emulation has made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) linear: u64,
    pub(super) access: Access,
    pub(super) privilege: Privilege,
    pub(super) physical: u64,
    pub(super) entry: Entry,
}

/// State of an emulation in progress.
#[derive(Debug, Default)]
pub struct Emulating {
    pub(super) memory: Option<Arc<dyn GuestPhysical>>,
    pub(super) accesses: Accesses,
    pub(super) found: Vec<Found>,
    /// True after a change that affects the fast paths of memory.
    pub(super) mapping_changed: bool,
    /// Features that are offered to a guest hypervisor.
    pub(super) offer: Option<Offer>,
    /// Controls of the emulating hypervisor, while those of a guest hypervisor replace them.
    pub(super) outer: Option<Controls>,
    /// True if a guest hypervisor has entered its guest.
    pub(super) entered: bool,
    /// Time at which the processor left the nested guest.
    pub(super) left_at: Option<Ticks>,
}

/// Adds a range, or extends the last one.
fn note(list: &mut Vec<Stretch>, address: u64, len: u64) {
    if list.iter().any(|s| address.wrapping_sub(s.address) < s.len && address - s.address + len <= s.len) {
        return;
    }
    match list.last_mut() {
        Some(last) if last.address + last.len == address && address & (PAGE - 1) != 0 => last.len += len,
        _ => list.push(Stretch { address, len }),
    }
}

impl Emulating {
    pub(crate) fn note_flush(&mut self, flush: Flush) {
        self.accesses.flushes.push(flush);
    }

    pub(super) fn note_invalidation(&mut self, what: Invalidation) {
        self.accesses.invalidations.push(what);
    }

    pub(super) fn offer(&self) -> Option<&Offer> {
        self.offer.as_ref()
    }

    pub(crate) fn note_mapping(&mut self) {
        self.found.clear();
        self.mapping_changed = true;
    }

    pub(crate) fn note_entry(&mut self, address: u64) {
        self.accesses.marked_entries.push(address);
    }

    pub(crate) fn note_data(&mut self, address: u64, len: u64, write: bool) {
        note(if write { &mut self.accesses.writes } else { &mut self.accesses.reads }, address, len);
    }
}
