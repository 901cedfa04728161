//! Which frames the host gets, by address and VLAN (82599 datasheet, 7.1.1).

use super::file::File;
use super::packet::Packet;
use super::reg::{self, bit};
use network::headers::{Mac, is_group, macs};

/// Why a frame passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Its address is one of those that are received.
    Exact,
    /// A hash of it is, or the filter is open.
    Inexact,
}

/// Whether a bit of a table of 4096 is set.
fn table(file: &File, first: u32, index: u16) -> bool {
    let index = u32::from(index) & 0xfff;
    file.has(first + index / 32 * 4, 1 << (index % 32))
}

/// The 12 bits of an address that a hash table is indexed by: which ones, the driver chooses.
fn hash(file: &File, address: Mac) -> u16 {
    let end = u16::from_le_bytes([address[4], address[5]]);
    end >> (4 - file.get(reg::MCSTCTRL) % 4)
}

fn is_received(file: &File, address: Mac) -> bool {
    let low = u32::from_le_bytes([address[0], address[1], address[2], address[3]]);
    let high = bit::RAH_VALID | u32::from(u16::from_le_bytes([address[4], address[5]]));
    (0..128).map(|index| reg::RAL + 8 * index).any(|at| (file.get(at), file.get(at + 4)) == (low, high))
}

/// Whether a frame passes. `None`: it does not.
pub fn pass(file: &File, frame: &[u8], packet: &Packet) -> Option<Pass> {
    let (to, _) = macs(frame)?;
    if let Some(tag) = packet.vlan
        && file.has(reg::VLNCTRL, bit::VLNCTRL_FILTER)
        && !table(file, reg::VFTA, tag & 0xfff)
    {
        return None;
    }
    let open = |bits: u32| file.has(reg::FCTRL, bits);
    let hashed =
        |first: u32| file.has(reg::MCSTCTRL, bit::MCSTCTRL_ENABLE) && table(file, first, hash(file, to) & 0xfff);
    let inexact = match () {
        () if to == [0xff; 6] => open(bit::FCTRL_BROADCAST),
        () if is_group(to) => open(bit::FCTRL_MULTICAST) || hashed(reg::MTA),
        () => open(bit::FCTRL_UNICAST) || hashed(reg::UTA),
    };
    match is_received(file, to) {
        true => Some(Pass::Exact),
        false => inexact.then_some(Pass::Inexact),
    }
}
