//! Transmitted frames: checksums, segments, tags, and invalid descriptors.

use super::*;
use crate::ixgbe::packet::{TCP, UDP};
use network::headers::Headers;
use network::segment;

/// Commands and options of data descriptors, and types of contexts.
const VLAN: u32 = 1 << 30;
const SEGMENT: u32 = 1 << 31;
const IP_CHECKSUM: u32 = 1 << 8;
const L4_CHECKSUM: u32 = 1 << 9;
const IPV4: u32 = 1 << 10;
const L4_TCP: u32 = 1 << 11;
const L4_SCTP: u32 = 2 << 11;

/// Leaves the checksums of an IPv4 packet to the device, as a driver does.
fn unfinished(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = Headers::of(&frame).unwrap();
    let transport = headers.transport.unwrap();
    frame[24..26].fill(0);
    let (protocol, at) = if frame[23] == TCP { (TCP, transport.at + 16) } else { (UDP, transport.at + 6) };
    let pseudo = sums::fold(sums::pseudo(&frame[26..34], protocol, headers.end - transport.at));
    frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    frame
}

#[test]
fn a_frame_is_sent() {
    let mut bench = Bench::started("user");
    let frame = tcp(100);
    bench.send(&frame, 0, 0);
    assert_eq!(bench.to_host(), std::slice::from_ref(&frame));
    assert_eq!(bench.words(TX_RING)[3] & 1, 1, "done");
    assert_eq!((bench.read(file::tx(0, reg::TDH)), bench.interrupts()), (1, vec![0x40]));
    // A short frame occupies the link as if it were padded, but is not padded.
    bench.send(&frame[..40], 0, 0);
    assert_eq!(bench.to_host()[0].len(), 40);
    // A packet in several descriptors, of which the last one comes later.
    assert!(bench.rig.ram.write(SENT, &frame));
    let data = 3 << 20 | 1 << 29;
    bench.describe([SENT as u32, 0, data | 54, 0]);
    bench.write(file::tx(0, reg::TDT), 3);
    assert_eq!(bench.to_host(), Vec::<Vec<u8>>::new());
    bench.describe([SENT as u32 + 54, 0, data | 1 << 24 | 100, 0]);
    bench.write(file::tx(0, reg::TDT), 4);
    assert_eq!(bench.to_host(), std::slice::from_ref(&frame));
    assert_eq!(bench.words(TX_RING + 48)[3] & 1, 0, "it was not asked for");
    for (at, expected) in
        [(reg::GPTC, 3), (reg::GOTCL, 158 * 2 + 64), (reg::PTC64, 1), (reg::PTC64 + 8, 2), (reg::QPTC, 3)]
    {
        assert_eq!(bench.read(at), expected, "{at:#x}");
    }
    // The device writes the head to the address that the driver sets.
    bench.write(file::tx(0, reg::TDWBAL), HEADERS as u32 | 1);
    bench.send(&frame, 0, 0);
    assert_eq!((bench.words(HEADERS)[0], bench.words(TX_RING + 64)[3] & 1), (5, 0));
    // Legacy descriptors contain the offset of the checksum.
    let open = unfinished(frame.clone());
    assert!(bench.rig.ram.write(SENT, &open));
    bench.describe([SENT as u32, 0, 154 | 50 << 16 | 1 << 24 | 1 << 26, 34 << 8]);
    bench.write(file::tx(0, reg::TDT), 6);
    let sent = bench.to_host();
    assert_eq!(sent.last().unwrap()[50..52], frame[50..52]);
}

#[test]
fn checksums_and_tags_are_put_in() {
    let mut bench = Bench::started("user");
    for frame in [tcp(100), udp(OTHER, 5, 33)] {
        let kind = if frame[23] == TCP { L4_TCP } else { 0 };
        bench.context(14, 20, 20, IPV4 | kind, 0, 0x6005);
        bench.send(&unfinished(frame.clone()), 0, IP_CHECKSUM | L4_CHECKSUM);
        bench.send(&unfinished(frame.clone()), VLAN, IP_CHECKSUM | L4_CHECKSUM);
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0x60, 5]);
        assert_eq!(bench.to_host(), [frame, tagged]);
    }
    // SCTP: a header and a chunk.
    let mut frame = tcp(12);
    frame[23] = 132;
    frame.truncate(54);
    frame[16..18].copy_from_slice(&40u16.to_be_bytes());
    bench.context(14, 20, 0, IPV4 | L4_SCTP, 0, 0);
    bench.send(&frame, 0, IP_CHECKSUM | L4_CHECKSUM);
    let sent = bench.to_host().remove(0);
    assert_eq!(sent[42..46], crc::sctp(&frame[34..54]).unwrap());
    assert!(sums::ip_header_is_right(&sent[14..34]));
}

#[test]
fn large_packets_are_cut() {
    let mut bench = Bench::started("user");
    let whole = tcp(10_000);
    let mut large = unfinished(whole.clone());
    large[16..18].fill(0);
    bench.context(14, 20, 20, IPV4 | L4_TCP, 1448, 0x0005);
    for command in [SEGMENT, SEGMENT | VLAN] {
        bench.send(&large, command, IP_CHECKSUM | L4_CHECKSUM);
        bench.run(SECOND / 1000);
        let sent = bench.to_host();
        let tag = if command & VLAN != 0 { 4 } else { 0 };
        assert_eq!(sent.len(), 7);
        let payload: Vec<u8> = sent.iter().flat_map(|frame| frame[54 + tag..].to_vec()).collect();
        assert_eq!(payload, whole[54..]);
        assert!(
            sent.iter().all(|frame| segment::is_right(frame) && sums::ip_header_is_right(&frame[14 + tag..34 + tag]))
        );
        let sequence = |frame: &[u8]| u32::from_be_bytes(frame[38 + tag..42 + tag].try_into().unwrap());
        assert_eq!(sequence(&sent[6]), 77 + 6 * 1448);
    }
    assert_eq!(bench.read(reg::GPTC), 14);
    assert_eq!(bench.read(reg::GOTCL) as usize, 2 * (10_000 + 7 * 58) + 7 * 4);
    assert_eq!((bench.read(reg::PTC64 + 20), bench.read(reg::PTC64 + 16)), (14, 0));
    // UDP datagrams with a segment size.
    let whole = udp(OTHER, 5, 3000);
    bench.context(14, 20, 8, IPV4, 1400, 0);
    bench.send(&unfinished(whole), SEGMENT, IP_CHECKSUM | L4_CHECKSUM);
    let lengths: Vec<usize> = bench.to_host().iter().map(Vec::len).collect();
    assert_eq!(lengths, [1442, 1442, 242]);
}

#[test]
fn packets_of_tunnels_are_cut_by_their_inner_headers() {
    let mut bench = Bench::started("user");
    let inner = tcp(3000);
    // An outer IPv4 header with UDP, as in VXLAN: 50 bytes before the inner packet's IP header. The length fields are
    // those of a segment.
    let mut outer = Vec::new();
    etherparse::PacketBuilder::ethernet2(MAC, OTHER)
        .ipv4([192, 168, 0, 1], [192, 168, 0, 2], 64)
        .udp(4789, 4789)
        .write(&mut outer, &[&[0; 8][..], &inner[..54], &[0; 1400]].concat())
        .unwrap();
    outer.truncate(42 + 8 + 54);
    outer[40..42].fill(0);
    let mut large = outer.clone();
    large.extend(&inner[54..]);
    bench.context(64, 20, 20, IPV4 | L4_TCP, 1400, 0);
    bench.send(&large, SEGMENT, IP_CHECKSUM | L4_CHECKSUM);
    let sent = bench.to_host();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1504, 1504, 304]);
    for frame in &sent {
        // The inner packet alone, in an Ethernet frame.
        assert!(segment::is_right(&frame[50..]) && sums::ip_header_is_right(&frame[64..84]));
        assert_eq!(frame[..16], outer[..16]);
    }
    let payload: Vec<u8> = sent.iter().flat_map(|frame| frame[104..].to_vec()).collect();
    assert_eq!(payload, inner[54..]);
}

#[test]
fn frames_wait_for_the_link() {
    let mut bench = Bench::started("user");
    bench.write(file::tx(0, reg::TDLEN), 16 * ENTRIES);
    // 62 frames of 9 KB are more than the packet buffer holds.
    let frame = tcp(9000);
    assert!(bench.rig.ram.write(SENT, &frame));
    for _ in 0..62 {
        bench.describe([SENT as u32, 0, 9054 | 3 << 20 | 11 << 24 | 1 << 29, 0]);
    }
    bench.write(file::tx(0, reg::TDT), 62);
    let head = bench.read(file::tx(0, reg::TDH));
    assert_eq!(head, 19, "160 KiB");
    bench.run(SECOND / 1000);
    assert_eq!((bench.read(file::tx(0, reg::TDH)), bench.to_host().len()), (62, 62));
}

#[test]
fn a_queue_whose_descriptors_make_no_sense_stops() {
    let good = tcp(100);
    let data = 3 << 20 | 11 << 24 | 1 << 29;
    for words in [
        // An unknown descriptor type, data outside of memory, and more data than a frame can hold.
        [0, 0, 0x2050_0000, 0],
        [0, 0xffff, data | 100, 0],
        [SENT as u32, 0, (3 << 20 | 1 << 29) | 0xffff, 0],
        // Empty segments, and checksums of data that is not there.
        [SENT as u32, 0, data | SEGMENT | 154, L4_CHECKSUM],
        [SENT as u32, 0, data | 20, IP_CHECKSUM],
    ] {
        let mut bench = Bench::started("user");
        assert!(bench.rig.ram.write(SENT, &good));
        bench.context(14, 20, 20, IPV4 | L4_TCP, 0, 0);
        bench.describe(words);
        bench.describe(words);
        bench.write(file::tx(0, reg::TDT), 3);
        bench.send(&good, 0, 0);
        assert_eq!(bench.to_host(), Vec::<Vec<u8>>::new(), "{words:x?}");
        // The queue continues after it is enabled again.
        for (register, value) in [(reg::TXDCTL, 0), (reg::TDT, 0), (reg::TDH, 0), (reg::TXDCTL, bit::QUEUE_ENABLE)] {
            bench.write(file::tx(0, register), value);
        }
        bench.tail = 0;
        bench.send(&good, 0, 0);
        assert_eq!(bench.to_host(), std::slice::from_ref(&good));
    }
    // Impossible heads, tails and rings.
    for (register, value) in [(reg::TDBAH, !0), (reg::TDLEN, 0), (reg::TDH, 0xffff), (reg::TDT, 0xffff)] {
        let mut bench = Bench::started("user");
        bench.write(file::tx(0, register), value);
        bench.write(file::tx(0, reg::TDT), if register == reg::TDT { value } else { 5 });
        assert_eq!(bench.to_host(), Vec::<Vec<u8>>::new());
    }
    // A packet that is too short is dropped, and the next one is sent.
    let mut bench = Bench::started("user");
    bench.send(&good[..10], 0, 0);
    bench.send(&good, 0, 0);
    assert_eq!(bench.to_host(), [good]);
}
