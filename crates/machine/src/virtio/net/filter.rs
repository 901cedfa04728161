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

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];
    const LISTED: Mac = [2, 0, 0, 0, 0, 2];
    const STRANGER: Mac = [2, 0, 0, 0, 0, 3];
    const LISTED_GROUP: Mac = [3, 0, 0, 0, 0, 2];
    const GROUP: Mac = [3, 0, 0, 0, 0, 3];

    fn frame(to: Mac, tag: Option<u16>) -> Vec<u8> {
        let tag = tag.map_or(vec![], |id| [[0x81, 0], id.to_be_bytes()].concat());
        [&to[..], &OWN, &tag, &[8, 0], &[0; 46]].concat()
    }

    #[test]
    fn each_mode_is_for_its_kind_of_address() {
        let taken = |modes: &[u8]| {
            let mut filter = Filter::new(OWN);
            filter.set_others(&[LISTED], &[LISTED_GROUP]);
            assert!(filter.set_mode(0, false));
            assert!(modes.iter().all(|mode| filter.set_mode(*mode, true)));
            let all = [OWN, LISTED, STRANGER, LISTED_GROUP, GROUP, [0xff; 6]];
            all.map(|to| u8::from(filter.takes(&frame(to, None))))
        };
        for (modes, expected) in [
            (&[][..], [1, 1, 0, 1, 0, 1]),
            (&[0], [1, 1, 1, 1, 1, 1]),
            (&[1], [1, 1, 0, 1, 1, 1]),
            (&[2], [1, 1, 1, 1, 0, 1]),
            (&[3], [1, 1, 0, 0, 0, 1]),
            (&[1, 3], [1, 1, 0, 0, 0, 1]),
            (&[4], [0, 0, 0, 1, 0, 1]),
            (&[2, 4], [0, 0, 0, 1, 0, 1]),
            (&[5], [1, 1, 0, 1, 0, 0]),
            (&[0, 3, 4, 5], [1, 1, 1, 1, 1, 1]),
        ] {
            assert_eq!(taken(modes), expected, "{modes:?}");
        }
        assert!(!Filter::new(OWN).set_mode(6, true));
        assert!(!Filter::new(OWN).takes(&frame(OWN, None)[..11]));
    }

    #[test]
    fn too_many_addresses_are_all_addresses() {
        for (count, taken) in [(MOST, false), (MOST + 1, true)] {
            let mut filter = Filter::new(OWN);
            filter.set_mode(0, false);
            filter.set_others(&vec![LISTED; count], &vec![LISTED_GROUP; count]);
            let takes = [STRANGER, GROUP].map(|to| filter.takes(&frame(to, None)));
            assert_eq!(takes, [taken; 2], "{count}");
        }
    }

    #[test]
    fn vlans_are_filtered_when_that_is_enabled() {
        let mut filter = Filter::new(OWN);
        assert!(filter.takes(&frame(OWN, Some(7))));
        assert!(!filter.set_vlan(7, true), "there is no table");
        filter.filter_vlans();
        assert_eq!([0, 7, 4095, 4096].map(|id| filter.set_vlan(id, true)), [true, true, true, false]);
        assert!(filter.set_vlan(0, false));
        let takes = [None, Some(0), Some(6), Some(7), Some(4095)].map(|tag| filter.takes(&frame(OWN, tag)));
        assert_eq!(takes, [true, false, false, true, true]);
    }

    #[test]
    fn forged_filters_are_refused() {
        let filter = Filter::new(OWN);
        let macs = |count: u8| Some((0..count).map(|last| [2, 0, 0, 0, 0, last]).collect::<BTreeSet<Mac>>());
        let vlan = |id: u16| Some(BTreeSet::from([id]));
        for (forged, accepted) in [
            (Filter { others: [macs(64), None], vlans: vlan(4095), ..filter.clone() }, true),
            (Filter { others: [macs(65), None], ..filter.clone() }, false),
            (Filter { others: [None, macs(65)], ..filter.clone() }, false),
            (Filter { vlans: vlan(4096), ..filter.clone() }, false),
        ] {
            assert_eq!(forged.check().is_ok(), accepted, "{forged:?}");
        }
    }
}
