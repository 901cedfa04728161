//! Bridges that several networks share, one network for each machine.
//!
//! Every network has a time of its own, and they advance in turn. A frame needs at least [`Exchange::window`] from a
//! NIC to a bridge, so frames that are sent within a window reach their bridge after that window. When all networks
//! have reached its end, the frames of the next window and their order are known.

use crate::bridge::{Bridge, Way};
use crate::fabric::Network;
use crate::frame::Frame;
use crate::time::{NANOSECOND, Time};
use std::collections::BTreeMap;

/// Minimum window: machines should advance by more than a few cycles at a time.
const SHORTEST_WINDOW: Time = 10 * NANOSECOND;
/// Window of networks without any bridge, which need not wait for each other.
const LONGEST_WINDOW: Time = 1_000_000 * NANOSECOND;

/// A port of a network that is connected to a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    network: usize,
    port: usize,
    bridge: usize,
}

/// Bridges, and the ports of several networks that are connected to them.
#[derive(Debug)]
pub struct Exchange {
    members: Vec<Member>,
    bridges: Vec<(String, Bridge)>,
    window: Time,
    /// Frames on their way to a bridge, in order of arrival: time, network, a unique number; member and frame.
    crossing: BTreeMap<(Time, usize, u64), (usize, Frame)>,
    sequence: u64,
}

impl Exchange {
    /// Creates the bridges of these networks, each of which [`Network::member`] has created.
    pub fn new<'a>(networks: impl Iterator<Item = &'a Network>) -> Self {
        let mut exchange = Self {
            members: Vec::new(),
            bridges: Vec::new(),
            window: LONGEST_WINDOW,
            crossing: BTreeMap::new(),
            sequence: 0,
        };
        for (number, network) in networks.enumerate() {
            for (port, name) in network.trunks() {
                let bridge = exchange.bridge(name);
                exchange.members.push(Member { network: number, port, bridge });
                exchange.window = exchange.window.min(network.shortest(port)).max(SHORTEST_WINDOW);
            }
        }
        exchange
    }

    /// Returns the bridge with a name.
    fn bridge(&mut self, name: &str) -> usize {
        self.bridges.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.bridges.push((name.to_owned(), Bridge::default()));
            self.bridges.len() - 1
        })
    }

    /// Returns the time by which the networks may advance independently: a frame sent within it reaches no other
    /// network.
    pub fn window(&self) -> Time {
        self.window
    }

    /// Takes the frames that a network has sent in the previous window.
    pub fn collect(&mut self, number: usize, network: &mut Network) {
        for leaving in network.take_leaving() {
            let found = self.members.iter().position(|member| (member.network, member.port) == (number, leaving.port));
            let Some(member) = found else { continue };
            self.sequence += 1;
            self.crossing.insert((leaving.at, number, self.sequence), (member, leaving.frame));
        }
    }

    /// Returns the time at which the next frame reaches a bridge.
    pub fn next(&self) -> Option<Time> {
        self.crossing.first_key_value().map(|((at, ..), _)| *at)
    }

    /// Forwards the frames that reach bridges before `until`, the end of the window that begins: calls `enter` with a
    /// network, its port, a time and a frame.
    pub fn forward(&mut self, until: Time, mut enter: impl FnMut(usize, usize, Time, Frame)) {
        while let Some(entry) = self.crossing.first_entry().filter(|entry| entry.key().0 < until) {
            let (at, ..) = *entry.key();
            let (from, frame) = entry.remove();
            let number = self.members[from].bridge;
            let way = self.bridges[number].1.forward(at, from, &frame.bytes);
            for (index, member) in self.members.iter().enumerate() {
                let wanted = match way {
                    Way::Port(to) => to == index,
                    Way::Everywhere => true,
                    Way::Nowhere => false,
                };
                if wanted && index != from && member.bridge == number {
                    enter(member.network, member.port, at, frame.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Offloads;
    use crate::headers::Mac;
    use crate::options::{Net, Nic};
    use crate::time::SECOND;

    const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    fn nic(text: &str) -> Nic {
        match text.parse() {
            Ok(Net::Nic(nic)) => nic,
            other => panic!("{other:?}"),
        }
    }

    fn frame(to: Mac, from: Mac) -> Frame {
        let mut bytes = vec![0; 60];
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        Frame::new(bytes).unwrap()
    }

    fn pair(texts: [&str; 2]) -> (Exchange, [Network; 2]) {
        let mut networks = [0, 1].map(|number| {
            let nic = nic(texts[number]);
            Network::member(number as u16, [(&nic, MACS[number])].into_iter())
        });
        networks.iter_mut().for_each(|network| network.listen(0, 0, true, Offloads::default()));
        (Exchange::new(networks.iter()), networks)
    }

    #[test]
    fn a_frame_takes_as_long_as_on_a_bridge_within_one_network() {
        let nics = [nic("bridge"), nic("bridge")];
        let mut alone = Network::new(nics.iter().zip(MACS));
        (0..2).for_each(|port| alone.listen(port, 0, true, Offloads::default()));
        alone.send(0, 5, frame(MACS[1], MACS[0]));
        let at = alone.next_arrival(1).unwrap();
        assert_eq!(alone.receive(1, at), None, "it is only at the bridge");
        let at = alone.next_arrival(1).unwrap();

        let (mut exchange, mut networks) = pair(["bridge", "bridge"]);
        assert_eq!(exchange.window(), 67_200 + 1_000_000);
        networks[0].send(0, 5, frame(MACS[1], MACS[0]));
        exchange.collect(0, &mut networks[0]);
        let bridge = exchange.next().unwrap();
        assert!(bridge >= 5 + exchange.window());
        exchange.forward(bridge, |_, _, _, _| panic!("it is not there yet"));
        exchange.forward(bridge + 1, |network, port, at, frame| networks[network].enter(port, at, frame));
        assert_eq!(networks[1].next_arrival(0), Some(bridge));
        assert_eq!(networks[1].receive(0, bridge), None);
        assert_eq!(networks[1].next_arrival(0), Some(at));
        assert_eq!(networks[1].receive(0, at), Some(frame(MACS[1], MACS[0])));
    }

    #[test]
    fn bridges_of_other_names_are_apart() {
        let (mut exchange, mut networks) = pair(["bridge:a", "bridge:b"]);
        networks[0].send(0, 0, frame([0xff; 6], MACS[0]));
        exchange.collect(0, &mut networks[0]);
        exchange.forward(Time::MAX, |_, _, _, _| panic!("nobody is there"));
        assert_eq!(exchange.next(), None);
    }

    #[test]
    fn a_frame_for_a_known_station_goes_to_its_port_alone() {
        let nics = [nic("bridge"), nic("bridge")];
        let mut networks = [0u16, 1].map(|number| Network::member(number, nics.iter().zip(MACS)));
        let mut exchange = Exchange::new(networks.iter());
        let mut sent = |network: usize, port: usize, now: Time, frame: Frame| {
            networks[network].send(port, now, frame);
            exchange.collect(network, &mut networks[network]);
            let mut reached = Vec::new();
            exchange.forward(Time::MAX, |network, port, _, _| reached.push((network, port)));
            reached
        };
        let everyone = [0xff; 6];
        assert_eq!(sent(1, 0, 0, frame(everyone, MACS[0])), [(0, 0), (0, 1), (1, 1)]);
        assert_eq!(sent(0, 1, SECOND, frame(MACS[0], MACS[1])), [(1, 0)]);
        // Nothing is returned to the port from which it came.
        assert_eq!(sent(1, 0, 2 * SECOND, frame(MACS[0], [2; 6])), []);
    }

    #[test]
    fn frames_of_one_time_are_all_forwarded() {
        let nics = [nic("bridge"), nic("bridge"), nic("bridge")];
        let mut network = Network::member(0, nics.iter().zip([MACS[0], MACS[1], [2; 6]]));
        let mut exchange = Exchange::new([&network].into_iter());
        (0..2).for_each(|port| network.send(port, 0, frame([0xff; 6], MACS[port])));
        exchange.collect(0, &mut network);
        let mut reached = Vec::new();
        exchange.forward(Time::MAX, |_, port, at, frame| reached.push((at, port, frame.bytes[11])));
        let at = 1_067_200;
        assert_eq!(reached, [(at, 1, 1), (at, 2, 1), (at, 0, 2), (at, 2, 2)]);
    }

    #[test]
    fn the_slowest_way_does_not_widen_the_window() {
        let (exchange, _) = pair(["bridge:a,latency=5us", "bridge:a,rate=100G,latency=2us"]);
        assert_eq!(exchange.window(), 2_006_720);
        let (exchange, _) = pair(["bridge,latency=0ns,rate=1000G", "bridge"]);
        assert_eq!(exchange.window(), SHORTEST_WINDOW);
    }

    #[test]
    fn frames_go_in_the_order_in_which_they_arrive() {
        let (mut exchange, mut networks) = pair(["bridge", "bridge"]);
        networks[0].send(0, 300, frame([0xff; 6], MACS[0]));
        networks[1].send(0, 200, frame([0xff; 6], MACS[1]));
        // The result does not depend on the order.
        for number in [0, 1] {
            exchange.collect(number, &mut networks[number]);
        }
        let mut order = Vec::new();
        exchange.forward(Time::MAX, |network, _, at, _| order.push((network, at)));
        assert_eq!(order, [(0, 200 + 1_067_200), (1, 300 + 1_067_200)]);
    }
}
