//! Address and VLAN filters, which decide which frames the host receives (82599 datasheet, 7.1.1).

use super::file::File;
use super::packet::Packet;
use super::reg::{self, bit};
use network::headers::{Mac, is_group, macs};

/// Reason for which a frame passes the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The destination address is a receive address.
    Exact,
    /// The hash of the address matches, or the filter is promiscuous.
    Inexact,
}

/// Returns true if a bit in a table of 4096 bits is set.
fn table(file: &File, first: u32, index: u16) -> bool {
    let index = u32::from(index) & 0xfff;
    file.has(first + index / 32 * 4, 1 << (index % 32))
}

/// Returns the 12 bits of an address that index a hash table; the driver selects which 12.
fn hash(file: &File, address: Mac) -> u16 {
    let end = u16::from_le_bytes([address[4], address[5]]);
    end >> (4 - file.get(reg::MCSTCTRL) % 4)
}

fn is_received(file: &File, address: Mac) -> bool {
    let low = u32::from_le_bytes([address[0], address[1], address[2], address[3]]);
    let high = bit::RAH_VALID | u32::from(u16::from_le_bytes([address[4], address[5]]));
    (0..128).map(|index| reg::RAL + 8 * index).any(|at| (file.get(at), file.get(at + 4)) == (low, high))
}

/// Returns the reason for which a frame passes, or `None` if it is filtered out.
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
