//! Receive filters (virtio 1.2, 5.1.6.5.1 to 5.1.6.5.3).

use crate::state::{StateError, require};
use network::headers::{Mac, is_group, macs, vlan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum number of addresses of each kind; beyond that, all addresses of that kind are received.
const MOST: usize = 64;

/// Number of receive modes, which are indexed by command.
pub const MODES: usize = 6;
const PROMISCUOUS: usize = 0;
const ALL_MULTICAST: usize = 1;
const ALL_UNICAST: usize = 2;
const NO_MULTICAST: usize = 3;
const NO_UNICAST: usize = 4;
const NO_BROADCAST: usize = 5;

/// Receive filters of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    /// The device's own address.
    pub mac: Mac,
    modes: [bool; MODES],
    /// Additional unicast and multicast addresses; `None` if there are too many to be kept.
    others: [Option<BTreeSet<Mac>>; 2],
    /// Accepted VLANs, if VLANs are filtered.
    vlans: Option<BTreeSet<u16>>,
}

impl Filter {
    /// Creates a filter that accepts all frames, as a device does until the driver sets a mode.
    pub fn new(mac: Mac) -> Self {
        let mut modes = [false; MODES];
        modes[PROMISCUOUS] = true;
        Self { mac, modes, others: [Some(BTreeSet::new()), Some(BTreeSet::new())], vlans: None }
    }

    /// Enables the VLAN filter, which accepts only VLANs that the driver adds.
    pub fn filter_vlans(&mut self) {
        self.vlans = Some(BTreeSet::new());
    }

    /// Sets a mode. Returns false if there is no mode with that number.
    pub fn set_mode(&mut self, mode: u8, on: bool) -> bool {
        self.modes.get_mut(usize::from(mode)).map(|flag| *flag = on).is_some()
    }

    /// Sets the additional unicast and multicast addresses.
    pub fn set_others(&mut self, stations: &[Mac], groups: &[Mac]) {
        let kept = |all: &[Mac]| (all.len() <= MOST).then(|| all.iter().copied().collect());
        self.others = [kept(stations), kept(groups)];
    }

    /// Adds or removes a VLAN.
    pub fn set_vlan(&mut self, id: u16, on: bool) -> bool {
        let Some(vlans) = self.vlans.as_mut().filter(|_| id < 4096) else { return false };
        if on {
            vlans.insert(id)
        } else {
            vlans.remove(&id)
        };
        true
    }

    /// Returns true if a frame passes the filters.
    pub fn takes(&self, frame: &[u8]) -> bool {
        let Some((to, _)) = macs(frame) else { return false };
        if let (Some(vlans), Some(id)) = (&self.vlans, vlan(frame))
            && !vlans.contains(&id)
        {
            return false;
        }
        let known = |kind: usize| self.others[kind].as_ref().is_none_or(|all| all.contains(&to));
        match () {
            () if self.modes[PROMISCUOUS] => true,
            () if to == [0xff; 6] => !self.modes[NO_BROADCAST],
            () if is_group(to) => !self.modes[NO_MULTICAST] && (self.modes[ALL_MULTICAST] || known(1)),
            () => !self.modes[NO_UNICAST] && (self.modes[ALL_UNICAST] || to == self.mac || known(0)),
        }
    }

    /// Checks that the state is possible.
    pub fn check(&self) -> Result<(), StateError> {
        let sizes = self.others.iter().flatten().all(|all| all.len() <= MOST);
        let vlans = self.vlans.iter().flatten().all(|id| *id < 4096);
        require(sizes && vlans, "the filter of a network device")
    }
}
