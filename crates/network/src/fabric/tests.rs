use super::*;
use crate::capture;
use crate::frame::{Kind, Segments};
use crate::options::Net;
use crate::port::{Plug, Port};
use etherparse::{PacketBuilder, PacketBuilderStep, UdpHeader};
use std::io::Write;
use std::sync::{Arc, Mutex};

const MACS: [Mac; 4] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4]];
const EVERYONE: Mac = [0xff; 6];
/// Times of the shortest frame on a link of 10 Gb/s, and of its way to the other end.
const WIRE: Time = 67_200;
const WAY: Time = WIRE + 1_000_000;
const LATE: Time = 1_000_000_000_000;

fn nic(text: &str) -> Nic {
    match text.parse() {
        Ok(Net::Nic(nic)) => nic,
        other => panic!("{other:?}"),
    }
}

/// Returns a network of NICs whose drivers are ready, and accept no offloads.
fn network(texts: &[&str]) -> Network {
    let nics: Vec<Nic> = texts.iter().map(|text| nic(text)).collect();
    let mut network = Network::new(nics.iter().zip(MACS));
    (0..texts.len()).for_each(|port| network.listen(port, 0, true, Offloads::default()));
    network
}

fn frame(to: Mac, from: Mac) -> Frame {
    let mut bytes = vec![0; 60];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    Frame::new(bytes).unwrap()
}

/// Returns a packet of three segments.
fn large(to: Mac, from: Mac) -> Frame {
    let step: PacketBuilderStep<UdpHeader> =
        PacketBuilder::ethernet2(from, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(1000, 2000);
    let mut bytes = Vec::new();
    step.write(&mut bytes, &[7; 3000]).unwrap();
    Frame { segments: Some(Segments { kind: Kind::Udp, size: 1400, ecn: false }), ..Frame::new(bytes).unwrap() }
}

/// Returns an ARP request for the address `target` from a station with address 9.
fn arp(target: u8) -> Frame {
    let mut bytes = [EVERYONE, MACS[0]].concat();
    bytes.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    bytes.extend(MACS[0]);
    bytes.extend([198, 18, 0, 9, 0, 0, 0, 0, 0, 0, 198, 18, 0, target]);
    Frame::new(bytes).unwrap()
}

/// Returns the counters of a port: sent, received, lost, dropped.
fn counts(network: &Network, port: usize) -> [u64; 4] {
    let counts = network.report().nth(port).unwrap().counts;
    [counts.sent, counts.received, counts.lost, counts.dropped]
}

/// Receives everything that has arrived at a port.
fn drain(network: &mut Network, port: usize, now: Time) -> Vec<Frame> {
    std::iter::from_fn(|| network.receive(port, now)).collect()
}

#[test]
fn ports_have_names_rates_and_testers() {
    let network = network(&["generator:count=1", "bridge:a,rate=1G", "sink", "user"]);
    let rate = 10_000_000_000;
    let names = ["net0", "net1", "net2", "net3"].map(str::to_owned);
    let expected: Vec<_> = names.into_iter().zip([rate, 1_000_000_000, rate, rate]).collect();
    assert_eq!(network.interfaces(), expected);
    let testers: Vec<_> = network.report().map(|port| (port.name, port.tester.is_some())).collect();
    assert_eq!(testers, [("net0", true), ("net1", false), ("net2", true), ("net3", false)]);
    assert_eq!(network.report().next().unwrap().tester.unwrap().generator().unwrap().config().count, Some(1));
}

#[test]
fn a_bridge_connects_its_own_ports_alone() {
    let mut network = network(&["bridge:a", "bridge:a", "bridge:b", "bridge:a"]);
    let reached =
        |network: &mut Network, now| -> Vec<usize> { (0..4).map(|port| drain(network, port, now).len()).collect() };
    network.send(0, 0, frame(EVERYONE, MACS[0]));
    assert_eq!(reached(&mut network, LATE), [0, 1, 0, 1]);
    // Each station has been heard at its port, except the one on the other bridge.
    network.send(1, LATE, frame(MACS[0], MACS[1]));
    assert_eq!(reached(&mut network, 2 * LATE), [1, 0, 0, 0]);
    network.send(3, 2 * LATE, frame(MACS[2], MACS[3]));
    assert_eq!(reached(&mut network, 3 * LATE), [1, 1, 0, 0]);
    network.send(0, 3 * LATE, frame(MACS[0], MACS[0]));
    assert_eq!(reached(&mut network, 4 * LATE), [0; 4]);
    assert_eq!(counts(&network, 0), [2, 2, 0, 0]);
}

#[test]
fn frames_sent_at_one_time_are_all_transported() {
    // The crossing frames of one arrival time differ by their sequence numbers.
    let mut bridged = network(&["bridge", "bridge", "bridge"]);
    bridged.send(0, 0, frame(EVERYONE, MACS[0]));
    bridged.send(1, 0, frame(EVERYONE, MACS[1]));
    assert_eq!(drain(&mut bridged, 2, LATE).len(), 2);

    let nics = [nic("bridge")];
    let mut member = Network::member(0, nics.iter().zip(MACS));
    member.listen(0, 0, true, Offloads::default());
    member.enter(0, 5, frame(EVERYONE, MACS[1]));
    member.enter(0, 5, frame(EVERYONE, MACS[2]));
    member.send(0, 0, large(EVERYONE, MACS[0]));
    assert_eq!((drain(&mut member, 0, LATE).len(), counts(&member, 0)), (2, [3, 2, 0, 0]));
    // A port of another kind has no outside bridge.
    let mut host = network(&["user"]);
    host.enter(0, 5, frame(EVERYONE, MACS[1]));
    assert_eq!(drain(&mut host, 0, LATE), []);
}

#[test]
fn every_segment_counts() {
    let mut network = network(&["bridge", "bridge", "user", "sink"]);
    let whole = large(EVERYONE, MACS[0]).finish();
    for round in 1..3 {
        for port in [0, 2, 3] {
            network.send(port, round * LATE, large(EVERYONE, MACS[0]));
            assert_eq!(counts(&network, port), [3 * round, 0, 0, 0], "port {port}");
        }
        let got: Vec<_> = drain(&mut network, 1, (round + 1) * LATE).into_iter().map(|frame| frame.bytes).collect();
        assert_eq!(got, whole.iter().map(|frame| frame.bytes.clone()).collect::<Vec<_>>());
        assert_eq!(counts(&network, 1), [0, 3 * round, 0, 0]);
    }
    assert_eq!(network.report().nth(3).unwrap().tester.unwrap().sink().others, 6);
    // The driver had no room for two of them.
    network.lost(1, 2);
    network.lost(1, 2);
    assert_eq!(counts(&network, 1), [0, 2, 4, 0]);
}

#[test]
fn frames_for_a_port_that_is_not_ready_are_lost() {
    let mut network = network(&["bridge", "bridge"]);
    network.listen(1, 0, false, Offloads::default());
    for round in 1..3 {
        network.send(0, round * LATE, large(EVERYONE, MACS[0]));
        assert_eq!((network.next_arrival(1), network.receive(1, (round + 1) * LATE)), (None, None));
        assert_eq!(counts(&network, 1), [0, 0, 3 * round, 0]);
    }
    // A frame whose segments are not what they say gives none.
    network.listen(1, 4 * LATE, true, Offloads::default());
    let wrong = Frame { segments: large(EVERYONE, MACS[0]).segments, ..frame(EVERYONE, MACS[0]) };
    for round in 1..3 {
        network.send(0, (4 + round) * LATE, wrong.clone());
        assert_eq!(network.receive(1, (5 + round) * LATE), None);
        assert_eq!(counts(&network, 1), [0, 0, 6, round]);
    }
}

#[test]
fn a_port_drops_what_it_has_no_room_for() {
    // So many frames may wait at a port,
    let mut network = network(&["bridge", "bridge", "user"]);
    for number in 0..MOST_WAITING as Time + 6 {
        network.send(0, number * WIRE, frame(EVERYONE, MACS[0]));
    }
    assert_eq!(drain(&mut network, 1, LATE).len(), MOST_WAITING);
    assert_eq!(counts(&network, 1), [0, MOST_WAITING as u64, 0, 6]);
    // and so many bytes for its link.
    for _ in 0..200 {
        network.host_frame(2, LATE, vec![0; 60_000]);
    }
    let took = 2 * (1 << 20) / 60_024 + 1;
    assert_eq!(counts(&network, 2), [0, 0, 0, 200 - took]);
    assert_eq!((network.has_room(2), network.has_room(1), network.has_room(3)), (false, true, false));
    assert_eq!(drain(&mut network, 2, 2 * LATE).len() as u64, took);
    assert!(network.has_room(2));
    // The host leaves room for half of the frames that may wait.
    for number in 0..=MOST_WAITING / 2 {
        assert_eq!(network.has_room(2), number < MOST_WAITING / 2, "{number}");
        network.host_frame(2, 2 * LATE, vec![0; 60]);
    }
    assert!(!network.has_room(2));
}

#[test]
fn the_host_takes_and_gives_frames() {
    assert!(!network(&["bridge", "sink"]).reaches_host());
    let mut network = network(&["bridge", "tap:tap0"]);
    assert!(network.reaches_host());
    network.send(1, 0, large(MACS[0], MACS[1]));
    let expected: Vec<_> = large(MACS[0], MACS[1]).finish().into_iter().map(|frame| (1, frame.bytes)).collect();
    assert_eq!((network.take_outgoing(), network.take_outgoing()), (expected, vec![]));
    // Frames of the host come by the link, and one with a wrong checksum is not said to be checked.
    let good = large(MACS[1], MACS[0]).finish().swap_remove(0).bytes;
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    network.host_frame(0, LATE, good.clone());
    assert_eq!(network.next_arrival(0), None, "port 0 is not the host's");
    for (bytes, checked) in [(good, true), (bad, false)] {
        network.host_frame(1, LATE, bytes.clone());
        let at = network.next_arrival(1).unwrap();
        assert_eq!(network.receive(1, at - 1), None);
        let got = network.receive(1, at).unwrap();
        assert_eq!((got.bytes, got.checked), (bytes, checked));
    }
    for dropped in 1..3 {
        network.host_frame(1, LATE, vec![0; 13]);
        assert_eq!(counts(&network, 1), [3, 2, 0, dropped]);
    }
}

#[test]
fn only_what_has_arrived_is_discarded() {
    let mut network = network(&["user"]);
    network.listen(0, 0, true, Offloads { udp4: true, checksum: true, ..Offloads::default() });
    network.host_frame(0, 0, vec![1; 60]);
    network.host_frame(0, 0, vec![2; 60]);
    network.host_frame(0, 0, vec![3; 60]);
    assert_eq!(network.discard(0, WAY - 1), 0);
    assert_eq!(network.discard(0, WAY + WIRE), 2);
    assert_eq!(counts(&network, 0), [0, 0, 2, 0]);
    assert_eq!(network.receive(0, WAY + 2 * WIRE).map(|frame| frame.bytes[0]), Some(3));
    assert_eq!((network.discard(0, LATE), counts(&network, 0)), (0, [0, 1, 2, 0]));
    // A large packet is as many frames as on a wire.
    deliver(&mut network.ports[0].state, LATE, large(MACS[0], MACS[1]));
    network.host_frame(0, LATE, vec![4; 60]);
    assert_eq!((network.discard(0, 2 * LATE), counts(&network, 0)), (4, [0, 1, 6, 0]));
}

#[test]
fn generated_frames_and_answers_arrive_in_the_order_of_the_link() {
    // An answer to an ARP request goes before a generated frame that is due later.
    let answered = || {
        let mut network = network(&["generator:rate=100K"]);
        assert_eq!(network.next_arrival(0), Some(WAY));
        network.send(0, 0, arp(3));
        // The request arrives when the first frame has left, and the answer takes the link before the second.
        let answer = 2 * WAY;
        assert_eq!(network.next_arrival(0), Some(answer));
        (network, answer)
    };
    let (mut taken, answer) = answered();
    // The first generated frame is late: it waits for the answer.
    assert_eq!(taken.receive(0, answer - 1), None);
    let got = drain(&mut taken, 0, LATE / 50_000 + WAY);
    let kinds: Vec<bool> = got.iter().map(|frame| frame.bytes[12..14] == [0x08, 0x06]).collect();
    assert_eq!(kinds, [true, false, false, false]);
    // What is discarded is the same.
    let (mut discarded, answer) = answered();
    assert_eq!(discarded.discard(0, answer - 1), 0);
    assert_eq!(discarded.discard(0, answer), 1);
    assert_eq!(discarded.discard(0, answer + WIRE - 1), 0);
    assert_eq!(discarded.discard(0, answer + WIRE), 1);
    assert_eq!(discarded.discard(0, LATE / 50_000 + WAY), 2);
    assert_eq!((counts(&discarded, 0), counts(&taken, 0)), ([1, 0, 4, 0], [1, 4, 0, 0]));
    assert_eq!(discarded.ports[0].state.down, taken.ports[0].state.down);
}

/// Runs a search on port 0 whose frames a device forwards to `port`, unless there are more than `most` in a trial.
/// Returns the throughput.
fn search(network: &mut Network, port: usize, most: u64) -> u64 {
    let tester = |network: &Network| network.report().next().unwrap().tester.unwrap().clone();
    while let Some(at) = network.next_arrival(0) {
        let got = network.receive(0, at);
        if let Some(frame) = got.filter(|_| tester(network).generator().unwrap().sent_in_trial() <= most) {
            network.send(port, at, frame);
        }
    }
    let tester = tester(network);
    assert_eq!(tester.decision(), None);
    tester.search().unwrap().throughput().unwrap()
}

#[test]
fn a_search_counts_the_frames_that_come_back_at_any_port() {
    let texts = ["generator:search=10us,settle=5us", "sink"];
    let fastest = 14_880_952;
    for port in [0, 1] {
        assert_eq!(search(&mut network(&texts), port, u64::MAX), fastest);
        // In 10 µs of line rate there are 149 frames.
        let found = search(&mut network(&texts), port, 100);
        assert!((9_900_000..=10_000_000).contains(&found), "{found}");
        assert_eq!(search(&mut network(&texts), port, 0), 0);
    }
}

/// A file in memory, which can be full.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>, usize);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut file = self.0.lock().unwrap();
        if self.1 != 0 && file.len() + bytes.len() > self.1 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        file.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn both_directions_are_captured_as_on_the_wire() {
    let file = File::default();
    let mut network = network(&["bridge", "bridge"]);
    let capture = Capture::new(Box::new(file.clone()), &network.interfaces()).unwrap();
    network.capture(capture);
    network.send(0, 10, large(EVERYONE, MACS[0]));
    let got = drain(&mut network, 1, LATE);
    assert_eq!(network.end_capture(), Ok(()));
    // After its end nothing is captured.
    network.send(0, LATE, frame(EVERYONE, MACS[0]));
    assert_eq!(network.end_capture(), Ok(()));
    let pieces = large(EVERYONE, MACS[0]).finish();
    assert_eq!(pieces, got);
    let times = [0, 0, 0, LATE - 10, LATE - 10, LATE - 10];
    let expected: Vec<_> = times.into_iter().zip(pieces.iter().chain(&got).map(|frame| frame.bytes.clone())).collect();
    assert_eq!(capture::read(&file.0.lock().unwrap(), true).unwrap().frames, expected);

    let full = File(Arc::default(), 300);
    network.capture(Capture::new(Box::new(full), &[("net0".to_owned(), 1)]).unwrap());
    (0..9).for_each(|_| network.send(0, LATE, frame(EVERYONE, MACS[0])));
    assert!(network.end_capture().is_err());
}

#[test]
fn a_plug_is_one_port_of_its_network() {
    let shared = Arc::new(Mutex::new(network(&["bridge", "bridge,rate=1G"])));
    let mut plugs = [Plug::new(&shared, 0), Plug::new(&shared, 1)];
    assert_eq!(plugs.each_ref().map(|plug| plug.rate().bits()), [10_000_000_000, 1_000_000_000]);
    plugs[1].send(0, frame(EVERYONE, MACS[1]));
    assert_eq!(plugs.each_ref().map(Plug::busy), [0, 10 * WIRE]);
    let at = 10 * WIRE + 1_000_000;
    assert_eq!(plugs[0].next_arrival(), Some(at));
    assert_eq!(plugs[0].receive(at), None);
    assert_eq!(plugs[0].next_arrival(), Some(at + WAY));
    assert_eq!(plugs[0].receive(at + WAY), Some(frame(EVERYONE, MACS[1])));
    plugs[0].lost(1);
    (0..2).for_each(|_| plugs[1].send(at + WAY, frame(EVERYONE, MACS[1])));
    assert_eq!(plugs[0].discard(LATE), 2);
    plugs[1].send(LATE, frame(EVERYONE, MACS[1]));
    assert_eq!(plugs[0].next_arrival(), Some(LATE + at));
    plugs[0].listen(LATE, false, Offloads::default());
    assert_eq!(plugs[0].next_arrival(), None);
    assert_eq!(counts(&shared.lock().unwrap(), 0), [0, 0, 3, 0]);
}

/// The connections of the networks whose states are saved.
const SAVED: [&str; 4] = ["generator:rate=1M,count=9", "bridge:a", "bridge:a", "user"];

/// Returns a network in which frames are everywhere.
fn busy() -> Network {
    let mut network = network(&SAVED);
    assert!(network.receive(0, LATE).is_some());
    network.send(0, LATE, arp(3));
    network.send(1, LATE, frame(EVERYONE, MACS[1]));
    assert!(network.receive(2, 2 * LATE).is_some());
    network.send(2, 2 * LATE, frame(MACS[1], MACS[2]));
    network.send(2, 2 * LATE, large(EVERYONE, MACS[2]));
    network.send(3, 2 * LATE, frame(EVERYONE, MACS[3]));
    network.host_frame(3, 2 * LATE, vec![5; 60]);
    network.host_frame(3, 2 * LATE, vec![6; 60]);
    network
}

#[test]
fn a_restored_network_goes_on_as_the_saved_one() {
    let mut network = busy();
    let saved = network.save();
    let mut restored = self::network(&SAVED);
    assert!(restored.accepts(&saved));
    restored.restore(saved.clone());
    assert_eq!(restored.save(), saved);
    for network in [&mut network, &mut restored] {
        // The address of port 2 was learned before.
        network.send(1, 3 * LATE, frame(MACS[2], MACS[1]));
    }
    for port in 0..SAVED.len() {
        assert_eq!(network.next_arrival(port), restored.next_arrival(port), "{port}");
        assert_eq!(drain(&mut network, port, 4 * LATE), drain(&mut restored, port, 4 * LATE), "{port}");
    }
    assert_eq!(network.take_outgoing(), restored.take_outgoing());
    assert_eq!(network.save(), restored.save());
    assert_ne!(network.save(), saved);
}

#[test]
fn forged_states_are_refused() {
    let network = busy();
    let saved = network.save();
    let [learned, future] = [(SAVED.len(), 0), (0, LATE * 9)].map(|(port, at)| {
        let mut bridge = Bridge::default();
        bridge.forward(at, port, &frame(EVERYONE, MACS[0]).bytes);
        bridge
    });
    let short = || Frame { bytes: vec![0; 13], ..frame(EVERYONE, MACS[0]) };
    let slow = Rate::new(1_000_000).unwrap();
    type Forgery<'a> = (&'a str, &'a dyn Fn(&mut SavedNetwork));
    let forgeries: [Forgery; 21] = [
        ("a port is missing", &|saved| drop(saved.ports.pop())),
        ("a tester's place is missing", &|saved| drop(saved.testers.pop())),
        ("there is another bridge", &|saved| saved.bridges.push(Bridge::default())),
        ("a tester is missing", &|saved| saved.testers[0] = None),
        ("a bridge has a tester", &|saved| saved.testers[1] = saved.testers[0].clone()),
        ("a tester has no generator", &|saved| saved.testers[0] = Some(Tester::new(None, 0, MACS[0]).save())),
        ("frames arrive out of order", &|saved| saved.ports[3].arrivals[1].at = 0),
        ("a waiting frame is too short", &|saved| saved.ports[3].arrivals[0].frame = short()),
        ("so many frames were not sent", &|saved| saved.ports[1].counts.sent = 1 << 62),
        ("so many frames were not received", &|saved| saved.ports[1].counts.received = 1 << 62),
        ("so many frames were not lost", &|saved| saved.ports[1].counts.lost = 1 << 62),
        ("so many frames were not dropped", &|saved| saved.ports[1].counts.dropped = 1 << 62),
        ("a link has another rate", &|saved| saved.ports[1].up = Lane::new(slow, 1_000_000)),
        ("a link has another latency", &|saved| saved.ports[1].down = Lane::new(Rate::TEN_GIGABITS, 1)),
        ("an address is at no port", &|saved| saved.bridges[0] = learned.clone()),
        ("an address will be learned", &|saved| saved.bridges[0] = future.clone()),
        ("a frame crosses from no port", &|saved| saved.crossing[0].1.0 = SAVED.len()),
        ("a frame has a later number", &|saved| saved.crossing[0].0.1 = saved.sequence + 1),
        ("a crossing frame is too short", &|saved| saved.crossing[0].1.1 = short()),
        ("the next number is too large", &|saved| saved.sequence = 1 << 62),
        ("a frame leaves from no port", &|saved| saved.outgoing[0].0 = SAVED.len()),
    ];
    for (what, forge) in forgeries {
        let mut forged = saved.clone();
        forge(&mut forged);
        assert!(!network.accepts(&forged), "{what}");
    }
    // The largest numbers that are possible.
    let mut most = saved;
    most.sequence = (1 << 62) - 1;
    most.ports[1].counts.sent = (1 << 62) - 1;
    (most.outgoing[0].0, most.crossing[0].1.0, most.crossing[0].0.1) =
        (SAVED.len() - 1, SAVED.len() - 1, most.sequence);
    assert!(network.accepts(&most));
}
