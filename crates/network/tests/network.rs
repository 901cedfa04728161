//! Tests of networks as seen by NICs: through their ports.

use network::fabric::SavedNetwork;
use network::frame::{Kind, Segments};
use network::options::{Net, Nic};
use network::rfc2544::Trial;
use network::time::SECOND;
use network::{Frame, Network, Offloads, Plug, Port, Time};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

fn nics(options: &[&str]) -> Vec<Nic> {
    let nic = |text: &&str| match text.parse().unwrap() {
        Net::Nic(nic) => nic,
        other => panic!("{other:?}"),
    };
    options.iter().map(nic).collect()
}

fn network(options: &[&str]) -> (Arc<Mutex<Network>>, Vec<Plug>) {
    let nics = nics(options);
    let network = Network::new(nics.iter().enumerate().map(|(number, nic)| (nic, nic.address(0, number))));
    let network = Arc::new(Mutex::new(network));
    let plugs = (0..options.len()).map(|port| Plug::new(&network, port)).collect();
    (network, plugs)
}

fn frame(to: u8, from: u8, len: usize) -> Frame {
    let mut bytes = vec![0; len];
    (bytes[5], bytes[11]) = (to, from);
    (bytes[0], bytes[6]) = (2, 2);
    Frame::new(bytes).unwrap()
}

fn udp(payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ipv4(
        [10, 0, 0, 1],
        [10, 0, 0, 2],
        64,
    );
    builder.udp(1, 2).write(&mut bytes, &vec![7; payload]).unwrap();
    bytes
}

/// Returns all frames that arrive until a time, with their times.
fn drain(plug: &mut Plug, until: Time) -> Vec<(Time, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some(at) = plug.next_arrival().filter(|at| *at <= until) {
        while let Some(frame) = plug.receive(at) {
            out.push((at, frame.bytes));
        }
    }
    out
}

const LATENCY: Time = 1_000_000;
const SHORT: Time = 67_200;

#[test]
fn frames_cross_a_bridge_in_time() {
    let (_, mut plugs) = network(&["bridge", "bridge", "bridge", "bridge:other"]);
    plugs.iter_mut().for_each(|plug| plug.listen(0, true, Offloads::default()));
    plugs[0].send(0, frame(2, 1, 60));
    // Two links, each with its latency, and a store-and-forward bridge.
    let expected = 2 * (LATENCY + SHORT);
    assert_eq!(drain(&mut plugs[1], SECOND).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [expected]);
    assert_eq!(drain(&mut plugs[2], SECOND).len(), 1);
    assert!(drain(&mut plugs[3], SECOND).is_empty());
    assert!(drain(&mut plugs[0], SECOND).is_empty());
    plugs[1].send(SECOND, frame(1, 2, 60));
    assert_eq!(drain(&mut plugs[0], 2 * SECOND).len(), 1);
    assert!(drain(&mut plugs[2], 2 * SECOND).is_empty());
}

#[test]
fn frames_of_two_senders_share_the_link_in_the_order_of_their_arrival() {
    let (_, mut plugs) = network(&["bridge,link=1G", "bridge", "bridge"]);
    plugs.iter_mut().for_each(|plug| plug.listen(0, true, Offloads::default()));
    plugs[0].send(0, frame(3, 1, 1000));
    plugs[1].send(0, frame(3, 2, 60));
    let got: Vec<_> = drain(&mut plugs[2], SECOND).iter().map(|(_, bytes)| bytes[11]).collect();
    assert_eq!(got, [2, 1]);
}

#[test]
fn a_large_packet_is_cut_only_for_who_does_not_take_it() {
    for takes in [false, true] {
        let (network, mut plugs) = network(&["bridge", "bridge"]);
        let offloads = Offloads { checksum: takes, udp4: takes, ..Offloads::default() };
        plugs.iter_mut().for_each(|plug| plug.listen(0, true, offloads));
        let segments = Some(Segments { kind: Kind::Udp, size: 1000, ecn: false });
        plugs[0].send(0, Frame { segments, ..Frame::new(udp(5000)).unwrap() });
        let got = drain(&mut plugs[1], SECOND);
        assert_eq!(got.len(), if takes { 1 } else { 5 });
        // The link is occupied for the time of the segments in either case.
        let one = (1000 + 42 + 24) * 8 * 100;
        let first = if takes { 2 * (5 * one + LATENCY) } else { 5 * one + LATENCY + one + LATENCY };
        assert_eq!(got[0].0, first);
        let network = network.lock().unwrap();
        let counts: Vec<_> = network.report().map(|port| (port.counts.sent, port.counts.received)).collect();
        assert_eq!(counts, [(5, 0), (0, 5)]);
    }
}

#[test]
fn a_generator_waits_for_its_nic_and_counts_what_is_lost() {
    let (network, mut plugs) = network(&["generator:duration=1ms"]);
    let plug = &mut plugs[0];
    assert_eq!(plug.next_arrival(), None);
    plug.listen(SECOND, true, Offloads::default());
    assert_eq!(plug.next_arrival(), Some(SECOND + SHORT + LATENCY));
    // A driver that is not ready for half of the time.
    assert_eq!(drain(plug, SECOND + LATENCY + 100 * SHORT).len(), 100);
    plug.listen(SECOND + LATENCY + 100 * SHORT, false, Offloads::default());
    assert_eq!((plug.next_arrival(), plug.receive(SECOND + LATENCY + 200 * SHORT)), (None, None));
    plug.listen(SECOND + LATENCY + 200 * SHORT, true, Offloads::default());
    assert_eq!(plug.discard(SECOND + LATENCY + 300 * SHORT), 100);
    let rest = drain(plug, 2 * SECOND);
    assert_eq!(rest[0].0, SECOND + LATENCY + 301 * SHORT);
    let network = network.lock().unwrap();
    let report = network.report().next().unwrap();
    assert_eq!((report.counts.lost, report.tester.unwrap().generator().unwrap().sent()), (200, 14_881));
}

#[test]
fn a_tester_answers_arp_and_begins_on_request() {
    let (_, mut plugs) = network(&["generator:start=request,count=3"]);
    let plug = &mut plugs[0];
    plug.listen(0, true, Offloads::default());
    assert_eq!(plug.next_arrival(), None);
    let mut request = vec![0xff; 6];
    request.extend([
        2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 198, 18, 0, 2, 0, 0, 0, 0, 0, 0, 198, 18, 0,
        1,
    ]);
    plug.send(0, Frame::new(request).unwrap());
    let reply = &drain(plug, SECOND)[0].1;
    assert_eq!(
        (&reply[..6], &reply[20..22], &reply[28..32]),
        (&[2, 0, 0, 0, 0, 9][..], &[0, 2][..], &[198, 18, 0, 1][..])
    );
    let mut discard = udp(10);
    discard[36..38].copy_from_slice(&9u16.to_be_bytes());
    plug.send(SECOND, Frame::new(discard).unwrap());
    assert_eq!(drain(plug, 2 * SECOND).len(), 3);
}

/// Returns the result of a search through a forwarder that takes a time per frame and has room for some, with its trials.
fn searched(generator: &str, each: Time, room: usize) -> (u64, Vec<Trial>) {
    let (network, mut plugs) = network(&[generator, "sink"]);
    plugs.iter_mut().for_each(|plug| plug.listen(0, true, Offloads::default()));
    let (mut free, mut held): (Time, Vec<(Time, Frame)>) = (0, Vec::new());
    loop {
        let arrival = plugs[0].next_arrival();
        let done = held.first().map(|(done, _)| *done);
        match (arrival, done) {
            (at, Some(done)) if at.is_none_or(|at| done <= at) => plugs[1].send(done, held.remove(0).1),
            (Some(at), _) => {
                if let Some(frame) = plugs[0].receive(at).filter(|_| held.len() < room) {
                    free = free.max(at) + each;
                    held.push((free, frame));
                }
            }
            (None, _) => break,
        }
    }
    let network = network.lock().unwrap();
    let search = network.report().next().unwrap().tester.unwrap().search().unwrap().clone();
    (search.throughput().unwrap(), search.trials().to_vec())
}

#[test]
fn the_throughput_of_a_forwarder_is_found_in_one_run() {
    let (found, trials) = searched("generator:search=1ms,settle=100us", 200_000, 16);
    // The room permits 16 more frames in a trial of 5000.
    assert!((4_900_000..5_100_000).contains(&found), "{found} {trials:?}");
}

#[test]
fn a_slow_forwarder_behind_a_fast_link_has_its_throughput() {
    // 29,700 frames a second, and room for 2 more in a trial of 594.
    let (found, trials) = searched("generator:search=20ms", SECOND / 29_700, 2);
    assert!((29_400..=30_100).contains(&found), "{found} {trials:?}");
}

#[test]
fn frames_of_a_trial_do_not_reach_into_the_next() {
    // The queue takes 0.3 s to drain: a trial that began with a full queue would lose frames at each rate near the throughput.
    let (found, trials) = searched("generator:link=10M,search=1s", SECOND / 10_000, 3000);
    assert!((12_800..=13_100).contains(&found), "{found} {trials:?}");
}

#[test]
fn the_host_gets_whole_frames() {
    let (network, mut plugs) = network(&["user", "tap:tap0"]);
    plugs[0].listen(0, true, Offloads::default());
    let segments = Some(Segments { kind: Kind::Udp, size: 500, ecn: false });
    plugs[0].send(0, Frame { segments, ..Frame::new(udp(1000)).unwrap() });
    {
        let mut network = network.lock().unwrap();
        let out = network.take_outgoing();
        assert_eq!(out.iter().map(|(port, bytes)| (*port, bytes.len())).collect::<Vec<_>>(), [(0, 542), (0, 542)]);
        network.host_frame(0, 0, udp(100));
        network.host_frame(0, 0, vec![1; 5]);
        network.host_frame(9, 0, udp(100));
        assert!(network.has_room(0) && !network.has_room(9) && network.reaches_host());
    }
    assert_eq!(drain(&mut plugs[0], SECOND).len(), 1);
    let network = network.lock().unwrap();
    assert_eq!(network.report().next().unwrap().counts.dropped, 1);
}

/// An event of the test.
#[derive(Clone, Debug)]
enum Step {
    Send(usize, u8, u16),
    Receive(usize),
    Discard(usize),
    Listen(usize, bool),
    Host(u16),
}

fn step() -> impl Strategy<Value = (Time, Step)> {
    let port = || 0usize..4;
    let step = prop_oneof![
        (port(), 0u8..4, 14u16..2000).prop_map(|(port, to, len)| Step::Send(port, to, len)),
        port().prop_map(Step::Receive),
        port().prop_map(Step::Discard),
        (port(), any::<bool>()).prop_map(|(port, on)| Step::Listen(port, on)),
        (0u16..2000).prop_map(Step::Host),
    ];
    (0u64..2_000_000, step)
}

fn act(network: &Arc<Mutex<Network>>, plugs: &mut [Plug], now: Time, step: &Step) -> Vec<String> {
    match step {
        Step::Send(port, to, len) => plugs[*port].send(now, frame(*to, *port as u8, (*len).into())),
        Step::Receive(port) => return vec![format!("{:?}", plugs[*port].receive(now))],
        Step::Discard(port) => return vec![plugs[*port].discard(now).to_string()],
        Step::Listen(port, on) => plugs[*port].listen(now, *on, Offloads::default()),
        Step::Host(len) => network.lock().unwrap().host_frame(3, now, vec![1; (*len).into()]),
    }
    plugs.iter().map(|plug| format!("{:?} {}", plug.next_arrival(), plug.busy())).collect()
}

proptest! {
    #[test]
    fn a_network_that_is_restored_goes_on_as_the_other(steps in prop::collection::vec(step(), 1..60), cut in 0usize..60) {
        let options = ["bridge", "bridge", "generator:rate=1M,size=imix", "user"];
        let (one, mut plugs) = network(&options);
        plugs.iter_mut().for_each(|plug| plug.listen(0, true, Offloads::default()));
        let mut now = 0;
        let cut = cut.min(steps.len());
        for (wait, step) in &steps[..cut] {
            now += wait;
            act(&one, &mut plugs, now, step);
        }
        let saved = postcard::to_allocvec(&one.lock().unwrap().save()).unwrap();
        let (other, mut others) = network(&options);
        {
            let mut other = other.lock().unwrap();
            let saved: SavedNetwork = postcard::from_bytes(&saved).unwrap();
            prop_assert!(other.accepts(&saved));
            other.restore(saved);
            prop_assert_eq!(&postcard::to_allocvec(&other.save()).unwrap(), &saved_bytes(&one));
        }
        for (wait, step) in &steps[cut..] {
            now += wait;
            prop_assert_eq!(act(&one, &mut plugs, now, step), act(&other, &mut others, now, step));
        }
        prop_assert_eq!(saved_bytes(&one), saved_bytes(&other));
    }
}

fn saved_bytes(network: &Arc<Mutex<Network>>) -> Vec<u8> {
    postcard::to_allocvec(&network.lock().unwrap().save()).unwrap()
}
