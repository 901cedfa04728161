//! Received frames: buffers, descriptors, filters, queues.

use super::*;
use crate::ixgbe::packet::status;

const DONE: u32 = status::DONE | status::END;

fn one(bench: &mut Bench, frame: &[u8]) {
    bench.host_sends(frame);
    bench.run(SECOND / 1000);
}

#[test]
fn a_frame_is_described() {
    let mut bench = Bench::started("user");
    let frame = udp(MAC, 1, 100);
    one(&mut bench, &frame);
    let [info, hash, state, length] = bench.received(0, 0);
    assert_eq!((info, hash, length), (0x21 << 4, 0, frame.len() as u32), "UDP over IPv4");
    assert_eq!(state, DONE | status::IP_CHECKED | status::L4_CHECKED | status::UDP_CHECKSUM);
    assert_eq!(bench.buffer(0, 0, frame.len()), frame);
    assert_eq!(bench.interrupts(), [0x40]);
    // A wrong checksum, and a short frame, which is padded.
    let mut wrong = frame.clone();
    wrong[60] ^= 1;
    one(&mut bench, &wrong);
    assert_eq!(bench.received(0, 1)[2] & (status::L4_WRONG | status::IP_WRONG), status::L4_WRONG);
    wrong[26] ^= 1;
    one(&mut bench, &wrong);
    assert_eq!(bench.received(0, 2)[2] & status::IP_WRONG, status::IP_WRONG);
    one(&mut bench, &frame[..42]);
    assert_eq!(bench.received(0, 3)[3], 60);
    for (at, expected) in
        [(reg::GPRC, 4), (reg::GPRC, 0), (reg::PRC64, 1), (reg::PRC64 + 8, 3), (reg::QPRC, 4), (reg::TPR, 4)]
    {
        assert_eq!(bench.read(at), expected, "{at:#x}");
    }
    assert_eq!(bench.read(reg::GORCL), 3 * 146 + 64);
}

#[test]
fn long_frames_take_several_buffers() {
    let mut bench = Bench::started("user");
    let frame = udp(MAC, 1, 5000);
    one(&mut bench, &frame);
    assert_eq!(bench.read(reg::ROC), 1, "too long so far");
    bench.write(reg::HLREG0, bit::HLREG0_JUMBO | bit::HLREG0_STRIP_CRC);
    bench.write(reg::MHADD, 9018 << 16);
    one(&mut bench, &frame);
    let lengths: Vec<u32> = (0..3).map(|number| bench.received(0, number)[3]).collect();
    assert_eq!(lengths, [2048, 2048, frame.len() as u32 - 4096]);
    assert_eq!(bench.received(0, 1)[2] & DONE, status::DONE);
    assert_eq!(bench.received(0, 2)[2] & DONE, DONE);
    assert_eq!(bench.buffer(0, 1, 2048), frame[2048..4096]);
    // The check sequence is kept.
    bench.write(reg::HLREG0, bit::HLREG0_JUMBO);
    let frame = udp(MAC, 1, 20);
    one(&mut bench, &frame);
    let mut expected = frame.clone();
    expected.resize(62, 0);
    assert_eq!(bench.received(0, 3)[3], 66);
    assert_eq!(bench.buffer(0, 3, 66), [&expected[..], &crc::ethernet(&expected)].concat());
}

#[test]
fn headers_are_split_off() {
    let mut bench = Bench::started("user");
    bench.write(file::rx(0, reg::SRRCTL), 2 << 25 | 2 << 8 | 2);
    bench.write(reg::PSRTYPE, 1 << 5);
    let frame = udp(MAC, 1, 100);
    one(&mut bench, &frame);
    let [info, _, _, length] = bench.received(0, 0);
    assert_eq!((info >> 21, length), (1 << 10 | 42, 100));
    assert_eq!(bench.bytes(HEADERS, 42), frame[..42]);
    assert_eq!(bench.buffer(0, 0, 100), frame[42..]);
    // Legacy descriptors have no room for the packet type.
    bench.write(file::rx(0, reg::SRRCTL), 2);
    one(&mut bench, &frame);
    let [_, _, length, state] = bench.received(0, 1);
    assert_eq!((length, state), (142, 0x73));
}

#[test]
fn tags_are_taken_off() {
    let mut bench = Bench::started("user");
    let plain = udp(MAC, 1, 100);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0x60, 5]);
    one(&mut bench, &tagged);
    assert_eq!((bench.received(0, 0)[2] & status::VLAN, bench.received(0, 0)[3]), (0, 146));
    let control = file::rx(0, reg::RXDCTL);
    bench.write(control, bit::QUEUE_ENABLE | bit::RXDCTL_STRIP_VLAN);
    one(&mut bench, &tagged);
    let [_, _, state, length] = bench.received(0, 1);
    assert_eq!((state & status::VLAN, length), (status::VLAN, 0x6005_0000 | 142));
    assert_eq!(bench.buffer(0, 1, 142), plain);
    // Only VLANs in the table pass.
    bench.write(reg::VLNCTRL, bit::VLNCTRL_FILTER | 0x8100);
    one(&mut bench, &tagged);
    bench.write(reg::VFTA, 1 << 5);
    one(&mut bench, &tagged);
    assert_eq!(bench.read(reg::GPRC), 3);
}

#[test]
fn addresses_are_filtered() {
    let mut bench = Bench::started("user");
    let mut passes = |to: [u8; 6], registers: &[(u32, u32)]| {
        registers.iter().for_each(|(at, value)| bench.write(*at, *value));
        one(&mut bench, &udp(to, 1, 20));
        let head = bench.read(file::rx(0, reg::RDH));
        let state = if head == 0 { 0 } else { bench.received(0, u64::from(head) - 1)[2] };
        (bench.read(reg::GPRC) == 1, state & status::INEXACT != 0)
    };
    let group = [1, 0, 0x5e, 0, 0x12, 0x34];
    assert_eq!(passes(MAC, &[]), (true, false));
    assert!(!passes(OTHER, &[]).0);
    assert_eq!(passes([0xff; 6], &[]), (true, true));
    assert!(!passes([0xff; 6], &[(reg::FCTRL, 0)]).0);
    assert_eq!(passes(OTHER, &[(reg::FCTRL, bit::FCTRL_UNICAST)]), (true, true));
    assert!(!passes(group, &[]).0);
    assert_eq!(passes(group, &[(reg::FCTRL, bit::FCTRL_MULTICAST)]), (true, true));
    // Bits 36 to 47 of the address are 0x341.
    assert!(!passes(group, &[(reg::FCTRL, 0), (reg::MTA + 0x1a * 4, 2)]).0);
    assert!(passes(group, &[(reg::MCSTCTRL, bit::MCSTCTRL_ENABLE)]).0);
    assert!(!passes(group, &[(reg::MCSTCTRL, bit::MCSTCTRL_ENABLE | 1)]).0);
    assert_eq!(passes(OTHER, &[(reg::RAL + 64, 0x0067_7402), (reg::RAL + 68, 0x8000_0200)]), (true, false));
}

#[test]
fn flows_are_spread_by_their_hash() {
    let mut bench = Bench::started("user");
    bench.queue(1, 10);
    // Microsoft's key and vector, "Verifying the RSS hash calculation".
    let key = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa_u8,
    ];
    for (word, part) in key.chunks_exact(4).enumerate() {
        bench.write(reg::RSSRK + 4 * word as u32, u32::from_le_bytes(part.try_into().unwrap()));
    }
    bench.write(reg::MRQC, 1 | 1 << 16 | 1 << 17);
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2(OTHER, MAC)
        .ipv4([66, 9, 149, 187], [161, 142, 100, 80], 64)
        .tcp(2794, 1766, 0, 0)
        .write(&mut frame, &[])
        .unwrap();
    // The hash is 0x51ccc178, so entry 0x78 of the table applies.
    bench.write(reg::RETA + 0x78, 1);
    one(&mut bench, &frame);
    let [info, hash, ..] = bench.received(1, 0);
    assert_eq!((info & 0xf, info >> 4, hash), (1, 0x11, 0x51cc_c178));
    // By default the hash covers addresses, and no UDP ports.
    one(&mut bench, &udp(MAC, 1, 20));
    assert_eq!(bench.received(0, 0)[0] & 0xf, 2);
}

#[test]
fn the_flow_director_leads_flows() {
    let mut bench = Bench::started("user");
    (1..3).for_each(|queue| bench.queue(queue, 10));
    let segment = |vlan: Option<u8>| {
        let mut frame = Vec::new();
        let builder = etherparse::PacketBuilder::ethernet2(OTHER, MAC).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64);
        builder.tcp(1000, 2000, 0, 0).write(&mut frame, &[]).unwrap();
        vlan.into_iter().for_each(|id| drop(frame.splice(12..12, [0x81, 0, 0, id])));
        frame
    };
    // Signature filters; the hash is what the Linux driver computes for this flow.
    bench.write(reg::FDIRCTRL, 0x4a06_0001);
    assert!(bench.read(reg::FDIRCTRL) & bit::FDIRCTRL_DONE != 0);
    bench.rig.mmio_write(BASE + u64::from(reg::FDIRHASH), 8, 0x0002_8849_38fe_2c19);
    assert_eq!(bench.read(reg::FDIRCMD) & 3, 0);
    one(&mut bench, &segment(None));
    assert_eq!(bench.received(2, 0)[2] & status::DIRECTED, status::DIRECTED);
    one(&mut bench, &segment(Some(5)));
    assert_eq!((bench.read(reg::FDIRMATCH), bench.read(reg::FDIRMISS)), (1, 1));
    assert_eq!((bench.read(reg::FDIRUSTAT), bench.read(reg::FDIRFREE)), (1, 8189));
    // Perfect filters for a destination port with everything else masked; the bucket is the one that the driver
    // computes.
    bench.write(reg::FDIRCTRL, 0x4a06_7f11);
    for (at, value) in [
        (reg::FDIRM, 0x37),
        (reg::FDIRUDPM, 0x0000_ffff),
        (reg::FDIRTCPM, 0x0000_ffff),
        (reg::FDIRSIP4M, !0),
        (reg::FDIRDIP4M, !0),
        (reg::FDIRPORT, 5555 << 16),
        (reg::FDIRHASH, 7 << 16 | 0x1225),
        (reg::FDIRCMD, 0x0001_8821 | 8),
        (reg::FDIRPORT, 6666 << 16),
        (reg::FDIRHASH, 8 << 16 | 0x143a),
        (reg::FDIRCMD, 0x007f_8a21 | 8),
    ] {
        bench.write(at, value);
    }
    let datagram = |port: u16| {
        let mut frame = Vec::new();
        let builder = etherparse::PacketBuilder::ethernet2(OTHER, MAC).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64);
        builder.udp(99, port).write(&mut frame, &[1; 30]).unwrap();
        frame
    };
    [5555, 6666, 5556].into_iter().for_each(|port| one(&mut bench, &datagram(port)));
    let heads = [0, 1, 2].map(|queue| bench.read(file::rx(queue, reg::RDH)));
    assert_eq!(heads, [2, 1, 1], "one each, beside that of the other VLAN and of the signature");
    // The filter exists until it is removed.
    for (command, valid) in [(3, 4), (2, 0), (3, 0)] {
        bench.write(reg::FDIRHASH, 7 << 16 | 0x1225);
        bench.write(reg::FDIRCMD, command);
        assert_eq!(bench.read(reg::FDIRCMD), valid);
    }
    // Low free space is an interrupt cause.
    bench.write(reg::EIMS, bit::EICR_FLOW_DIRECTOR);
    for number in 0..2000 {
        bench.write(reg::FDIRHASH, number << 16);
        bench.write(reg::FDIRCMD, 0x0001_8821);
    }
    assert_eq!(bench.read(reg::EICS) & bit::EICR_FLOW_DIRECTOR, bit::EICR_FLOW_DIRECTOR);
}

#[test]
fn a_queue_without_descriptors_holds_up_others_or_drops() {
    for drop in [false, true] {
        let mut bench = Bench::started("user");
        bench.queue(1, 0);
        bench.queue(0, 5);
        bench.write(file::rx(1, reg::SRRCTL), 1 << 25 | 2 | if drop { bit::SRRCTL_DROP } else { 0 });
        bench.write(reg::ETQF, bit::ETQF_ENABLE | 0x88f7);
        bench.write(reg::ETQS, bit::ETQS_QUEUE | 1 << 16);
        let mut stamp = udp(MAC, 1, 20);
        stamp[12..14].copy_from_slice(&[0x88, 0xf7]);
        one(&mut bench, &stamp);
        one(&mut bench, &udp(MAC, 1, 20));
        assert_eq!(bench.read(file::rx(0, reg::RDH)), u32::from(drop));
        assert_eq!(bench.read(reg::QPRDC), u32::from(drop));
        bench.write(file::rx(1, reg::RDT), 3);
        assert_eq!(bench.read(file::rx(0, reg::RDH)), 1);
        assert_eq!(bench.read(file::rx(1, reg::RDH)), u32::from(!drop));
        if !drop {
            assert_eq!(bench.received(1, 0)[0], 1 << 15, "the type is that of a filter");
        }
    }
}

#[test]
fn nonsense_ends_nothing_but_the_traffic() {
    let mut bench = Bench::started("user");
    for (register, value) in
        [(reg::RDBAH, 0x100), (reg::RDLEN, 0), (reg::RDH, 0xffff), (reg::RDT, 0xffff), (reg::SRRCTL, 0)]
    {
        bench.write(file::rx(0, register), value);
        one(&mut bench, &udp(MAC, 1, 20));
        bench.queue(0, ENTRIES - 1);
    }
    // Waiting frames are lost.
    bench.write(reg::RXCTRL, 0);
    bench.write(reg::RXCTRL, bit::RXCTRL_ENABLE);
    // Frames for buffers outside of memory are lost; a ring outside of memory is not used until its tail moves.
    let head = bench.read(file::rx(0, reg::RDH)) % ENTRIES;
    bench.write(file::rx(0, reg::RDH), head);
    bench.write(file::rx(0, reg::RDT), (head + ENTRIES - 1) % ENTRIES);
    assert!(bench.rig.ram.write(RX_RING + 16 * u64::from(head), &u64::MAX.to_le_bytes()));
    one(&mut bench, &udp(MAC, 1, 20));
    bench.write(file::rx(0, reg::RDBAH), 0xffff_ffff);
    one(&mut bench, &udp(MAC, 1, 20));
    bench.write(file::rx(0, reg::RDBAH), 0);
    let before = bench.read(file::rx(0, reg::RDH));
    bench.write(file::rx(0, reg::RDT), (before + 5) % ENTRIES);
    one(&mut bench, &udp(MAC, 1, 20));
    assert_eq!(bench.read(file::rx(0, reg::RDH)), (before + 1) % ENTRIES);
}
