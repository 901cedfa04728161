//! Tests of the network device, connected to a network of its own, with split and packed rings.

use super::*;
use crate::devices::Clock;
use crate::state::Saved;
use network::options::{Net as NetOption, Nic};
use network::time::SECOND;
use network::{Frame, Network, Plug, Port};

const PACKED: u64 = 1 << 34;
const CSUM: u64 = 1 << 0;
pub(super) const GUEST_CSUM: u64 = 1 << 1;
pub(super) const GUEST_OFFLOADS: u64 = 1 << 2;
const GUEST_HDRLEN: u64 = 1 << 59;
const HOST_TSO4: u64 = 1 << 11;
const HOST_USO: u64 = 1 << 56;
const GUEST_USO4: u64 = 1 << 54;
pub(super) const MERGE: u64 = 1 << 15;
pub(super) const CTRL_VQ: u64 = 1 << 17;
pub(super) const CTRL_RX: u64 = 1 << 18;
pub(super) const CTRL_VLAN: u64 = 1 << 19;
pub(super) const MQ: u64 = 1 << 22;
pub(super) const CTRL_MAC: u64 = 1 << 23;
pub(super) const VQ_COAL: u64 = 1 << 52;
pub(super) const COAL: u64 = 1 << 53;
pub(super) const HASH: u64 = 1 << 57;
pub(super) const RSS: u64 = 1 << 60;

pub(super) const RX: u16 = 0;
pub(super) const TX: u16 = 1;
/// Clock with one tick per picosecond.
const CLOCK: Clock = Clock::new(1_000_000_000);
pub(super) const MAC: [u8; 6] = [2, 0x74, 0x67, 0, 0, 1];

pub(super) struct Bench {
    pub(super) driver: Driver,
    pub(super) network: Arc<Mutex<Network>>,
    /// Positions of the driver in packed rings, by queue: the next available descriptor, the next used one, and the
    /// wrap counters.
    packed: Vec<((u16, bool), (u16, bool))>,
}

fn nics(options: &[&str]) -> Vec<Nic> {
    let nic = |text: &&str| match text.parse().unwrap() {
        NetOption::Nic(nic) => nic,
        other => panic!("{other:?}"),
    };
    options.iter().map(nic).collect()
}

pub(super) fn device(options: &[&str]) -> (Net, Arc<Mutex<Network>>) {
    let nics = nics(options);
    let network = Network::new(nics.iter().enumerate().map(|(number, nic)| (nic, nic.address(0, number))));
    let network = Arc::new(Mutex::new(network));
    (Net::new(&nics[0], nics[0].address(0, 0), Box::new(Plug::new(&network, 0)), CLOCK), network)
}

impl Bench {
    /// Creates a device on the first port of a network.
    pub(super) fn new(options: &[&str], features: u64) -> Self {
        let (net, network) = device(options);
        let mut driver = Driver::with(net);
        driver.start(features | VERSION_1);
        driver.enable_msix();
        Self { driver, network, packed: vec![((0, true), (0, true)); 8] }
    }

    pub(super) fn now(&self) -> u64 {
        self.driver.bus.now
    }

    /// Advances time, event by event.
    pub(super) fn run_until(&mut self, end: u64) {
        while let Some(event) = crate::device::Device::next_event(&self.driver.bus.bus).filter(|event| *event <= end) {
            assert!(event > self.now(), "time passes");
            self.driver.bus.advance(event);
        }
        self.driver.bus.advance(end);
    }

    /// Adds receive buffers of one descriptor each, from descriptor 0 on.
    pub(super) fn give_buffers(&mut self, count: u16, len: u32) {
        for number in 0..count {
            self.driver.offer(RX, number, &[(BUFFERS + 0x1000 * u64::from(number), len, WRITE)]);
        }
        self.driver.notify(RX);
    }

    pub(super) fn buffer(&self, number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.driver.ram.read(BUFFERS + 0x1000 * number, &mut bytes));
        bytes
    }

    /// Sends a header and a frame from a transmit queue.
    pub(super) fn transmit(&mut self, queue: u16, head: u16, header: &[u8], frame: &[u8]) {
        let at = BUFFERS + 0x8_0000 + 0x4000 * u64::from(head);
        assert!(self.driver.ram.write(at, header) && self.driver.ram.write(at + 0x100, frame));
        self.driver.offer(queue, head, &[(at, header.len() as u32, 0), (at + 0x100, frame.len() as u32, 0)]);
        self.driver.notify(queue);
    }

    /// Executes a command on the control queue. Returns its status and the data before the status.
    pub(super) fn command(&mut self, queue: u16, command: &[u8], room: u32) -> (u8, Vec<u8>) {
        let at = BUFFERS + 0x7_0000;
        assert!(self.driver.ram.write(at, command));
        let parts = [(at, command.len() as u32, 0), (at + 0x1000, room, WRITE), (at + 0x2000, 1, WRITE)];
        let parts = if room == 0 { vec![parts[0], parts[2]] } else { parts.to_vec() };
        self.driver.offer(queue, 0, &parts);
        self.driver.notify(queue);
        let mut answer = vec![0; room as usize];
        assert!(self.driver.ram.read(at + 0x1000, &mut answer));
        (self.driver.bytes::<1>(at + 0x2000)[0], answer)
    }

    pub(super) fn host_sends(&mut self, bytes: Vec<u8>) {
        let now = self.now();
        self.network.lock().unwrap().host_frame(0, now, bytes);
    }

    pub(super) fn to_host(&self) -> Vec<Vec<u8>> {
        self.network.lock().unwrap().take_outgoing().into_iter().map(|(_, bytes)| bytes).collect()
    }

    pub(super) fn lost(&self) -> u64 {
        self.network.lock().unwrap().report().next().unwrap().counts.lost
    }
}

/// Returns a UDP datagram for the device.
pub(super) fn udp(source_port: u16, payload: usize) -> Vec<u8> {
    let ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let mut bytes = [&MAC[..], &[2; 6], &[8, 0], &ip].concat();
    bytes[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    bytes.extend(source_port.to_be_bytes());
    bytes.extend([0, 7]);
    bytes.extend((8 + payload as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend((0..payload).map(|at| at as u8));
    bytes
}

#[test]
fn frames_arrive_in_time_with_a_header() {
    let mut bench = Bench::new(&["generator:count=3"], MERGE);
    bench.give_buffers(2, 2048);
    let first = 1_000_000 + 67_200;
    bench.run_until(first - 1);
    assert_eq!(bench.driver.used(RX).0, 0);
    bench.run_until(first);
    // Header of 12 bytes, and 60 of the frame.
    assert_eq!((bench.driver.used(RX), bench.driver.messages()), ((1, 0, 72), vec![0x41]));
    let bytes = bench.buffer(0, 72);
    assert_eq!((&bytes[..12], &bytes[12..18]), (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &MAC[..]));
    bench.run_until(SECOND);
    assert_eq!(bench.driver.used(RX).0, 2);
    // The third waits for a buffer.
    bench.give_buffers(1, 2048);
    assert_eq!((bench.driver.used(RX).0, bench.lost()), (3, 0));
}

#[test]
fn nothing_is_done_for_a_driver_without_buffers() {
    let mut bench = Bench::new(&["generator"], MERGE);
    bench.driver.notify(RX);
    // The first frame finds no buffer; then the device sleeps although a frame arrives every 67 ns.
    let mut events = 0;
    while let Some(event) = crate::device::Device::next_event(&bench.driver.bus.bus) {
        bench.driver.bus.advance(event);
        events += 1;
    }
    assert_eq!(events, 1);
    bench.driver.bus.advance(SECOND / 100);
    bench.give_buffers(1, 2048);
    // Frames beyond the backlog are lost as if the device had polled in time.
    let passed = (SECOND / 100 - 1_000_000) / 67_200;
    assert_eq!((bench.driver.used(RX).0, bench.lost()), (1, passed - 512));
}

#[test]
fn a_frame_is_spread_over_buffers_only_if_that_was_negotiated() {
    for (features, lengths) in [(MERGE, vec![100, 100, 100, 12]), (0, vec![])] {
        let mut bench = Bench::new(&["user"], features);
        bench.give_buffers(3, 100);
        bench.host_sends(udp(1, 300 - 42));
        bench.run_until(SECOND / 2);
        // Three buffers are not enough for 312 bytes: none is used.
        let before = bench.driver.used(RX).0;
        bench.driver.offer(RX, 3, &[(BUFFERS + 0x3000, 100, WRITE)]);
        bench.driver.notify(RX);
        if features == 0 {
            assert_eq!((before, bench.driver.used(RX), bench.lost()), (1, (1, 0, 0), 1));
            continue;
        }
        assert_eq!((before, bench.driver.used(RX).0, bench.lost()), (0, 4, 0));
        let mut bytes = Vec::new();
        for (number, len) in lengths.into_iter().enumerate() {
            bytes.extend(bench.buffer(number as u64, len));
        }
        assert_eq!((bytes[10], &bytes[12..]), (4, &udp(1, 300 - 42)[..]));
    }
}

#[test]
fn offloads_are_done_for_the_host() {
    let mut bench = Bench::new(&["user"], CSUM | HOST_TSO4 | HOST_USO);
    // A large datagram: checksum from 34 on, at 6; 500 bytes each.
    let mut header = [1, 5, 42, 0, 0xf4, 1, 34, 0, 6, 0, 0, 0];
    bench.transmit(TX, 0, &header, &udp(9, 1200));
    let sent = bench.to_host();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [542, 542, 242]);
    assert!(sent.iter().all(|bytes| network::segment::is_right(bytes)));
    assert_eq!(bench.driver.used(TX).0, 1);
    // An offload that was not negotiated is not performed.
    header[1] = 4;
    bench.transmit(TX, 2, &header, &udp(9, 1200));
    assert_eq!((bench.to_host().len(), bench.driver.used(TX).0), (0, 2));
}

#[test]
fn transmit_queues_wait_for_the_link() {
    let mut bench = Bench::new(&["user,rate=1G"], 0);
    let header = [0; 12];
    // The device buffers 16 KiB; a frame of 9000 bytes takes 72 us.
    for head in [0, 2, 4, 6] {
        bench.transmit(TX, head, &header, &udp(9, 9000 - 42));
    }
    let taken = bench.driver.used(TX).0;
    assert_eq!(taken, 2);
    bench.run_until(SECOND);
    assert_eq!((bench.driver.used(TX).0, bench.to_host().len()), (4, 4));
}

#[test]
fn large_frames_come_as_the_driver_takes_them() {
    let (features, size) = (CSUM | GUEST_CSUM | GUEST_USO4 | MERGE | CTRL_VQ | GUEST_OFFLOADS, 1000u16);
    let mut bench = Bench::new(&["bridge", "bridge"], features);
    bench.give_buffers(4, 2048);
    let mut other = Plug::new(&bench.network, 1);
    let segments = network::Segments { kind: network::frame::Kind::Udp, size, ecn: false };
    let large = Frame { segments: Some(segments), ..Frame::new(udp(5, 3000)).unwrap() };
    other.send(0, large.clone());
    bench.run_until(SECOND);
    let bytes = bench.buffer(0, 12);
    assert_eq!((bench.driver.used(RX).0, bytes[1], u16::from_le_bytes([bytes[4], bytes[5]])), (2, 5, size));
    // With the offloads disabled, frames are segmented.
    assert_eq!(bench.command(2, &[&[5, 0][..], &2u64.to_le_bytes()].concat(), 0).0, 0);
    bench.give_buffers(4, 2048);
    other.send(SECOND, large.clone());
    bench.run_until(2 * SECOND);
    assert_eq!(bench.driver.used(RX).0, 5);
    let bytes = bench.buffer(0, 12);
    assert_eq!((bytes[0], bytes[1]), (2, 0), "the checksum is known to be right");
    // They can be enabled again. Buffer 1 is the next one.
    let wanted = (GUEST_CSUM | GUEST_USO4).to_le_bytes();
    assert_eq!(bench.command(2, &[&[5, 0][..], &wanted].concat(), 0).0, 0);
    bench.give_buffers(4, 2048);
    other.send(2 * SECOND, large);
    bench.run_until(3 * SECOND);
    assert_eq!((bench.driver.used(RX).0, bench.buffer(1, 2)[1]), (7, 5));
    // An offload that was not negotiated can't be enabled.
    assert_eq!(bench.command(2, &[&[5, 0][..], &(1u64 << 7).to_le_bytes()].concat(), 0).0, 1);
}

#[test]
fn a_driver_may_count_the_length_of_headers_among_the_offloads() {
    // Linux 6.12 does when it switches offloads.
    let features = CSUM | GUEST_CSUM | MERGE | CTRL_VQ | GUEST_OFFLOADS;
    let wanted = [&[5, 0][..], &(GUEST_CSUM | GUEST_HDRLEN).to_le_bytes()].concat();
    for (negotiated, status) in [(features | GUEST_HDRLEN, 0), (features, 1)] {
        assert_eq!(Bench::new(&["bridge", "bridge"], negotiated).command(2, &wanted, 0).0, status);
    }
}

/// Returns true if a frame for an address is received, with a VLAN tag or without.
pub(super) fn is_received(bench: &mut Bench, to: [u8; 6], vlan: Option<u16>) -> bool {
    let before = bench.driver.used(RX).0;
    bench.give_buffers(1, 2048);
    let mut bytes = udp(1, 20);
    bytes[..6].copy_from_slice(&to);
    if let Some(id) = vlan {
        bytes.splice(12..12, [0x81, 0, (id >> 8) as u8, id as u8]);
    }
    bench.host_sends(bytes);
    let then = bench.now() + SECOND / 1000;
    bench.run_until(then);
    bench.driver.used(RX).0 != before
}

#[test]
fn commands_filter_frames() {
    let mut bench = Bench::new(&["user"], MERGE | CTRL_VQ | CTRL_RX | CTRL_VLAN | CTRL_MAC);
    let stranger = [2, 9, 9, 9, 9, 9];
    let group = [0x33, 0x33, 0, 0, 0, 1];
    assert!(is_received(&mut bench, stranger, None), "everything is received at first");
    assert_eq!(bench.command(2, &[0, 0, 0], 0).0, 0);
    let seen = |bench: &mut Bench| [MAC, stranger, [0xff; 6], group].map(|to| is_received(bench, to, None));
    assert_eq!(seen(&mut bench), [true, false, true, false]);
    assert_eq!(bench.command(2, &[0, 1, 1], 0).0, 0);
    assert_eq!(seen(&mut bench), [true, false, true, true]);
    // Tables of one unicast and no multicast address, with all multicast frames off again.
    assert_eq!(bench.command(2, &[0, 1, 0], 0).0, 0);
    let table = [&[1, 0, 1, 0, 0, 0][..], &stranger, &[0; 4]].concat();
    assert_eq!(bench.command(2, &table, 0).0, 0);
    assert_eq!(seen(&mut bench), [true, true, true, false]);
    assert_eq!(bench.command(2, &[&[1, 1][..], &[2, 1, 1, 1, 1, 1]].concat(), 0).0, 0);
    assert_eq!(seen(&mut bench), [false, true, true, false]);
    assert!(!is_received(&mut bench, stranger, Some(5)));
    assert_eq!(bench.command(2, &[2, 0, 5, 0], 0).0, 0);
    assert!(is_received(&mut bench, stranger, Some(5)));
    // Unknown commands, and commands that are too short.
    for bad in [&[9, 9][..], &[0, 6, 1], &[0], &[1, 0, 255, 255, 255, 255], &[2, 0, 5], &[2, 0, 0, 16], &[4, 0, 1, 0]] {
        assert_eq!(bench.command(2, bad, 0).0, 1, "{bad:?}");
    }
}

#[test]
fn receive_side_scaling_spreads_flows_and_reports_hashes() {
    let mut bench = Bench::new(&["user,queues=2"], MERGE | CTRL_VQ | MQ | RSS | HASH);
    // Receive queue 0 is virtqueue 0, 1 is 2; control is 4.
    let key: Vec<u8> = (0..40).collect();
    let table: Vec<u8> = (0..128u16).flat_map(|entry| (entry % 2).to_le_bytes()).collect();
    let config = [&[4, 1, 0x3f, 0, 0, 0, 127, 0, 0, 0][..], &table, &[2, 0, 40], &key].concat();
    assert_eq!(bench.command(4, &config, 0).0, 0);
    for number in 0..8u16 {
        let at = BUFFERS + 0x1000 * u64::from(number);
        bench.driver.offer(if number < 4 { 0 } else { 2 }, number % 4, &[(at, 2048, WRITE)]);
    }
    bench.driver.notify(0);
    bench.driver.notify(2);
    let mut expected = [0, 0];
    for port in 0..4 {
        let frame = udp(port, 20);
        let (hash, _) = network::rss::hash(&frame, &key, |_| true).unwrap();
        expected[hash as usize % 2] += 1;
        bench.host_sends(frame);
    }
    bench.run_until(SECOND);
    assert_eq!([bench.driver.used(0).0, bench.driver.used(2).0], expected);
    let first = if expected[0] > 0 { 0 } else { 4 };
    let bytes = bench.buffer(first, 20);
    let hash = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
    assert_eq!((bytes[16], u64::from(hash % 2)), (3, first / 4), "of UDP over IPv4");
    // A table with a queue that does not exist.
    let bad = [&[4, 1, 0x3f, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 0, 0][..]].concat();
    assert_eq!(bench.command(4, &bad, 0).0, 1);
}

#[test]
fn flows_come_back_to_the_queue_that_they_are_sent_from() {
    let mut bench = Bench::new(&["user,queues=2"], MERGE | CTRL_VQ | MQ);
    assert_eq!(bench.command(4, &[4, 0, 2, 0], 0).0, 0);
    for queue in [3, 1] {
        let mut sent = udp(77, 20);
        // The opposite direction of the flow below.
        sent[26..34].rotate_left(4);
        sent[34..38].rotate_left(2);
        bench.transmit(queue, 0, &[0; 12], &sent);
        let before = bench.driver.used(queue - 1).0;
        bench.driver.offer(queue - 1, 0, &[(BUFFERS, 2048, WRITE)]);
        bench.driver.notify(queue - 1);
        bench.host_sends(udp(77, 20));
        let then = bench.now() + SECOND;
        bench.run_until(then);
        assert_eq!(bench.driver.used(queue - 1).0, before + 1, "{queue}");
    }
}

#[test]
fn coalescing_makes_interrupts_fewer() {
    let features = MERGE | CTRL_VQ | COAL | VQ_COAL;
    let mut bench = Bench::new(&["generator:rate=1M,count=7"], features);
    // Three frames, or 10 microseconds.
    assert_eq!(bench.command(2, &[6, 1, 3, 0, 0, 0, 10, 0, 0, 0], 0).0, 0);
    assert_eq!(bench.command(2, &[6, 3, 0, 0, 0, 0], 12), (0, vec![0, 0, 0, 0, 3, 0, 0, 0, 10, 0, 0, 0]));
    bench.driver.messages();
    bench.give_buffers(8, 2048);
    let mut interrupts = Vec::new();
    for frame in 0..30 {
        bench.run_until(1_100_000 + frame * 1_000_000);
        interrupts.push((bench.driver.used(RX).0, bench.driver.messages().len()));
    }
    // Frames arrive every microsecond; the seventh waits for the deadline.
    let at: Vec<_> =
        interrupts.iter().enumerate().filter(|(_, (_, count))| *count > 0).map(|(at, (used, _))| (at, *used)).collect();
    assert_eq!(at, [(2, 3), (5, 6), (16, 7)]);
}

#[test]
fn event_indices_suppress_interrupts() {
    let mut bench = Bench::new(&["generator:count=4"], MERGE | EVENT_IDX);
    // used_event follows the available ring: an interrupt when index 3 is passed.
    assert!(bench.driver.ram.write(rings(RX).1 + 4 + 2 * u64::from(QUEUE_SIZE), &2u16.to_le_bytes()));
    bench.give_buffers(4, 2048);
    bench.run_until(SECOND);
    assert_eq!((bench.driver.used(RX).0, bench.driver.messages()), (4, vec![0x41]));
}

impl Bench {
    /// Makes a chain available in a packed ring.
    pub(super) fn offer_packed(&mut self, queue: u16, id: u16, buffers: &[(u64, u32, u16)]) {
        let ring = rings(queue).0;
        let (mut at, mut wrap) = self.packed[usize::from(queue)].0;
        let mut first = None;
        for (number, (address, len, flags)) in buffers.iter().enumerate() {
            let more = if number + 1 < buffers.len() { NEXT } else { 0 };
            let owner = if wrap { 0x80 } else { 0x8000 };
            let place = ring + 16 * u64::from(at);
            let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &id.to_le_bytes()].concat();
            assert!(self.driver.ram.write(place, &bytes));
            let flags = (flags | more | owner).to_le_bytes();
            match first {
                None => first = Some((place + 14, flags)),
                Some(_) => assert!(self.driver.ram.write(place + 14, &flags)),
            }
            at += 1;
            if at == QUEUE_SIZE {
                (at, wrap) = (0, !wrap);
            }
        }
        let (place, flags) = first.unwrap();
        assert!(self.driver.ram.write(place, &flags));
        self.packed[usize::from(queue)].0 = (at, wrap);
    }

    /// Takes the next used request, which had `count` descriptors. Returns its ID and length.
    pub(super) fn used_packed(&mut self, queue: u16, count: u16) -> Option<(u16, u32)> {
        let (at, wrap) = self.packed[usize::from(queue)].1;
        let place = rings(queue).0 + 16 * u64::from(at);
        let flags = u16::from_le_bytes(self.driver.bytes(place + 14));
        if (flags & 0x80 != 0, flags & 0x8000 != 0) != (wrap, wrap) {
            return None;
        }
        let next = at + count;
        self.packed[usize::from(queue)].1 = if next >= QUEUE_SIZE { (next - QUEUE_SIZE, !wrap) } else { (next, wrap) };
        Some((u16::from_le_bytes(self.driver.bytes(place + 12)), u32::from_le_bytes(self.driver.bytes(place + 8))))
    }

    /// Writes the driver's event suppression structure of a queue.
    pub(super) fn events(&mut self, queue: u16, at: u16, flags: u16) {
        assert!(self.driver.ram.write(rings(queue).1, &[at.to_le_bytes(), flags.to_le_bytes()].concat()));
    }
}

#[test]
fn packed_rings_go_round_and_round() {
    let mut bench = Bench::new(&["user,packed=on"], PACKED | MERGE | EVENT_IDX);
    for round in 0..20u16 {
        // Two of eight descriptors, and in every third round an indirect table of two.
        let at = BUFFERS + 0x1000;
        assert!(bench.driver.ram.write(at, &[0; 12]) && bench.driver.ram.write(at + 0x100, &udp(round, 30)));
        let count = if round % 3 == 2 {
            let table = BUFFERS + 0x5000;
            bench.driver.descriptor(table, 0, (at, 12, 0), 0);
            bench.driver.descriptor(table, 1, (at + 0x100, 72, 0), 0);
            bench.offer_packed(TX, round, &[(table, 32, INDIRECT)]);
            1
        } else {
            bench.offer_packed(TX, round, &[(at, 12, 0), (at + 0x100, 72, 0)]);
            2
        };
        bench.driver.notify(TX);
        assert_eq!(bench.used_packed(TX, count), Some((round, 0)), "{round}");
        assert_eq!(bench.to_host(), [udp(round, 30)]);
        bench.offer_packed(RX, 100 + round, &[(BUFFERS, 2048, WRITE)]);
        bench.driver.notify(RX);
        bench.host_sends(udp(round, 50));
        let then = bench.now() + SECOND / 1000;
        bench.run_until(then);
        assert_eq!(bench.used_packed(RX, 1), Some((100 + round, 104)), "{round}");
        assert_eq!(bench.buffer(0, 104)[12..], udp(round, 50));
    }
}

#[test]
fn packed_rings_interrupt_as_the_driver_wants() {
    // (at, flags), and the frames (of three) after which there is an interrupt
    for (at, flags, expected) in [
        (0, 0, [1, 1, 1]),
        (0, 1, [0, 0, 0]),
        (1 | 0x8000, 2, [0, 1, 0]),
        (0x8000, 2, [1, 0, 0]),
        (2 | 0x8000, 2, [0, 0, 1]),
    ] {
        let mut bench = Bench::new(&["user,packed=on"], PACKED | MERGE | EVENT_IDX);
        bench.events(RX, at, flags);
        for id in 0..3 {
            bench.offer_packed(RX, id, &[(BUFFERS, 2048, WRITE)]);
        }
        bench.driver.notify(RX);
        let interrupts = [0; 3].map(|_: u8| {
            bench.host_sends(udp(1, 20));
            let then = bench.now() + SECOND / 1000;
            bench.run_until(then);
            bench.driver.messages().len()
        });
        assert_eq!(interrupts, expected, "{at:#x} {flags}");
    }
}

#[test]
fn packed_rings_that_make_no_sense_break_the_device() {
    for break_it in [0, 1, 2] {
        let mut bench = Bench::new(&["user,packed=on"], PACKED);
        match break_it {
            // A chain that does not end.
            0 => bench.offer_packed(TX, 0, &[(BUFFERS, 12, NEXT); 8]),
            // A table longer than the ring, and one outside of memory.
            1 => bench.offer_packed(TX, 0, &[(BUFFERS, 16 * 9, INDIRECT)]),
            _ => bench.offer_packed(TX, 0, &[(u64::MAX - 8, 32, INDIRECT)]),
        }
        bench.driver.notify(TX);
        assert_eq!(bench.driver.status() & 0x40, 0x40, "{break_it}");
    }
    // A ring outside of memory is refused when it is enabled.
    let (net, _network) = device(&["user,packed=on"]);
    let mut driver = Driver::with(net);
    driver.start(VERSION_1 | PACKED);
    driver.write(0x14, 1, 0);
    for (at, size, value) in
        [(0x14, 1, 3), (0x08, 4, 1), (0x0c, 4, 5), (0x14, 1, 0xb), (0x16, 2, 0), (0x20, 8, 1 << 40), (0x1c, 2, 1)]
    {
        driver.write(at, size, value);
    }
    assert_eq!(driver.status() & 0x40, 0x40);
}

#[test]
fn a_device_that_is_saved_goes_on_where_it_was() {
    for (options, features) in
        [("generator:rate=2M,size=imix", MERGE | EVENT_IDX), ("generator:rate=2M", MERGE | EVENT_IDX | CTRL_VQ | COAL)]
    {
        let mut original = Bench::new(&[options], features);
        if features & COAL != 0 {
            assert_eq!(original.command(2, &[6, 1, 9, 0, 0, 0, 10, 0, 0, 0], 0).0, 0);
        }
        original.give_buffers(3, 2048);
        original.run_until(2_700_000);
        let (net, network) = device(&[options]);
        let mut driver = Driver::with(net);
        let mut memory = vec![0; original.driver.ram.size() as usize];
        assert!(original.driver.ram.read(0, &mut memory) && driver.ram.write(0, &memory));
        let saved = original.network.lock().unwrap().save();
        assert!(network.lock().unwrap().accepts(&saved));
        network.lock().unwrap().restore(saved);
        let function = |driver: &mut Driver| driver.bus.bus.function(1).map(|f| f.save()).unwrap().unwrap();
        let state = function(&mut original.driver);
        driver.bus.bus.function(1).unwrap().restore(&state).unwrap();
        driver.available = original.driver.available;
        driver.bus.take_on(&original.driver.bus);
        let mut copy = Bench { driver, network, packed: original.packed.clone() };
        original.driver.messages();
        for bench in [&mut original, &mut copy] {
            bench.give_buffers(3, 2048);
            bench.run_until(40_000_000);
        }
        assert_eq!(original.driver.messages(), copy.driver.messages());
        assert_eq!(function(&mut original.driver), function(&mut copy.driver));
        let mut other = memory.clone();
        assert!(original.driver.ram.read(0, &mut memory) && copy.driver.ram.read(0, &mut other));
        assert!(memory == other);
    }
}

proptest! {
    #[test]
    fn no_saved_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..400), flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4)) {
        let (mut net, _network) = device(&["generator,queues=2"]);
        let _ = net.restore(&bytes);
        let mut state = net.save().unwrap();
        for flip in flips {
            let at = flip.index(state.len());
            state[at] ^= 1;
        }
        if net.restore(&state).is_ok() {
            let mut driver = Driver::with(net);
            driver.start(VERSION_1 | MERGE | CTRL_VQ | MQ);
            driver.offer(RX, 0, &[(BUFFERS, 2048, WRITE)]);
            driver.notify(RX);
            driver.bus.advance(SECOND / 1000);
        }
    }
}
