//! Tests of packed rings: what the device reads from and writes to each structure, and their limits.

use super::net::{Bench, RX, TX, device, udp};
use super::*;
use network::time::SECOND;

const PACKED: u64 = 1 << 34;
const MERGE: u64 = 1 << 15;
/// Address of a packet with its header of 12 bytes.
const PACKET: u64 = BUFFERS + 0x1_0000;
const TABLE: u64 = BUFFERS + 0x2_0000;

fn bench(features: u64) -> Bench {
    let bench = Bench::new(&["user,packed=on"], PACKED | MERGE | features);
    assert!(bench.driver.ram.write(PACKET, &[0; 12]) && bench.driver.ram.write(PACKET + 12, &udp(1, 20)));
    bench
}

/// Descriptors of a packet in so many parts, the last of which has the rest.
fn parts(count: u64) -> Vec<(u64, u32, u16)> {
    let len = |part: u64| if part + 1 < count { 1 } else { 12 + 62 - part as u32 };
    (0..count).map(|part| (PACKET + part, len(part), 0)).collect()
}

/// Writes an indirect table of a packet in so many parts.
fn table(bench: &Bench, count: u64) {
    for (index, part) in parts(count).into_iter().enumerate() {
        bench.driver.descriptor(TABLE, index as u16, part, 0);
    }
}

#[test]
fn a_request_may_be_as_long_as_the_ring_and_no_longer() {
    // Parts in the ring, or in a table with a length in bytes.
    for (parts_of_ring, parts_of_table, len, broken) in [
        (8, 0, 0, false),
        (0, 8, 8 * 16, false),
        (0, 1, 16, false),
        (0, 9, 9 * 16, true),
        (0, 2, 2 * 16 - 1, true),
        (0, 2, 2 * 16 + 1, true),
    ] {
        let mut bench = bench(0);
        let what = format!("{parts_of_ring} {parts_of_table} {len}");
        if parts_of_table > 0 {
            table(&bench, parts_of_table);
            bench.offer_packed(TX, 5, &[(TABLE, len, INDIRECT)]);
        } else {
            bench.offer_packed(TX, 5, &parts(parts_of_ring));
        }
        bench.driver.notify(TX);
        assert_eq!(bench.driver.status() & 0x40 != 0, broken, "{what}");
        let expected = if broken { vec![] } else { vec![udp(1, 20)] };
        assert_eq!(bench.to_host(), expected, "{what}");
        let used = bench.used_packed(TX, parts_of_ring.max(1) as u16);
        assert_eq!(used, (!broken).then_some((5, 0)), "{what}");
    }
}

#[test]
fn used_descriptors_say_if_something_was_written() {
    let mut bench = bench(0);
    bench.offer_packed(TX, 1, &parts(1));
    bench.offer_packed(RX, 2, &[(BUFFERS, 2048, WRITE)]);
    bench.driver.notify(TX);
    bench.driver.notify(RX);
    bench.host_sends(udp(1, 20));
    bench.run_until(SECOND);
    let flags = |queue: u16| u16::from_le_bytes(bench.driver.bytes(rings(queue).0 + 14));
    assert_eq!((flags(TX), flags(RX)), (0x8080, 0x8082));
}

#[test]
fn the_device_says_of_which_request_it_wants_to_know() {
    // Without event indices it wants to know of all.
    for (features, expected) in [(0, [[0x0909, 0], [0x0909, 0]]), (EVENT_IDX, [[0x8007, 2], [0x0000, 2]])] {
        let mut bench = bench(features);
        assert!(bench.driver.ram.write(rings(TX).2, &[9; 4]));
        let asked = |bench: &Bench| {
            let bytes: [u8; 4] = bench.driver.bytes(rings(TX).2);
            [u16::from_le_bytes([bytes[0], bytes[1]]), u16::from_le_bytes([bytes[2], bytes[3]])]
        };
        let mut got = Vec::new();
        for count in [7, 1] {
            bench.offer_packed(TX, 0, &parts(count));
            bench.driver.notify(TX);
            got.push(asked(&bench));
        }
        assert_eq!(got, expected, "{features:#x}");
    }
}

#[test]
fn interrupts_depend_on_the_flags_and_on_the_place() {
    // Place and flags of the driver, and the interrupts for ten single requests on a ring of eight.
    let all = [1; 10];
    let at = |number: usize| std::array::from_fn(|request| usize::from(request == number));
    for (features, place, flags, expected) in [
        (EVENT_IDX, 0, 0, all),
        (EVENT_IDX, 0, 1, [0; 10]),
        (EVENT_IDX, 0, 4, all),
        (EVENT_IDX, 0, 5, [0; 10]),
        (EVENT_IDX, 0x8000, 2, at(0)),
        (EVENT_IDX, 0x8007, 2, at(7)),
        (EVENT_IDX, 0x0000, 2, at(8)),
        (EVENT_IDX, 0x0001, 2, at(9)),
        (0, 0x8003, 2, all),
    ] {
        let mut bench = bench(features);
        bench.driver.messages();
        bench.events(TX, place, flags);
        let interrupts: [usize; 10] = std::array::from_fn(|_| {
            bench.offer_packed(TX, 0, &parts(1));
            bench.driver.notify(TX);
            assert_eq!(bench.used_packed(TX, 1), Some((0, 0)));
            bench.driver.messages().len()
        });
        assert_eq!(interrupts, expected, "{features:#x} {place:#x} {flags}");
    }
}

#[test]
fn each_structure_of_a_ring_is_in_memory() {
    let (net, _network) = device(&["user,packed=on"]);
    let mut driver = Driver::with(net);
    let end = driver.ram.size();
    let ring = 16 * u64::from(QUEUE_SIZE);
    let (descriptors, available, used) = rings(0);
    for (places, good) in [
        ([descriptors, available, used], true),
        ([end - ring, available, used], true),
        ([end - ring + 16, available, used], false),
        ([descriptors, end - 4, used], true),
        ([descriptors, end, used], false),
        ([descriptors, available, end - 4], true),
        ([descriptors, available, end], false),
    ] {
        driver.write(0x14, 1, 0);
        driver.write(0x14, 1, 3);
        driver.write(0x08, 4, 1);
        driver.write(0x0c, 4, (PACKED | VERSION_1) >> 32);
        driver.write(0x14, 1, 0xb);
        driver.write(0x16, 2, 0);
        driver.write(0x18, 2, QUEUE_SIZE.into());
        for (at, place) in [0x20, 0x28, 0x30].into_iter().zip(places) {
            driver.write(at, 8, place);
        }
        driver.write(0x1c, 2, 1);
        assert_eq!((driver.read(0x1c, 2) == 1, driver.status() & 0x40 == 0), (good, good), "{places:x?}");
    }
}

#[test]
fn buffers_that_do_not_suffice_stay_available() {
    let mut bench = bench(0);
    bench.offer_packed(RX, 1, &[(BUFFERS, 50, WRITE)]);
    bench.driver.notify(RX);
    bench.host_sends(udp(1, 20));
    bench.run_until(SECOND);
    assert_eq!(bench.used_packed(RX, 1), None);
    bench.offer_packed(RX, 2, &[(BUFFERS + 0x1000, 50, WRITE)]);
    bench.driver.notify(RX);
    assert_eq!([bench.used_packed(RX, 1), bench.used_packed(RX, 1)], [Some((1, 50)), Some((2, 24))]);
    assert_eq!([&bench.buffer(0, 50)[12..], &bench.buffer(1, 24)].concat(), udp(1, 20));
}
