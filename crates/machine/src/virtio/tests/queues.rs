//! Tests of the network device's queues: buffers, backlogs, turns, and what is lost.

use super::net::{Bench, COAL, CTRL_VQ, MAC, MERGE, MQ, RSS, RX, TX, is_received, udp};
use super::*;
use network::frame::Kind;
use network::time::SECOND;
use network::{Frame, Plug, Port, Segments};

/// Lets a short time pass, in which frames of the host arrive.
fn pass(bench: &mut Bench) {
    let then = bench.now() + SECOND / 1000;
    bench.run_until(then);
}

#[test]
fn a_frame_fills_its_buffers_exactly() {
    // A frame of 62 bytes has a header of 12. Lengths of the buffers, with merging or not; the lengths that are used.
    for (features, buffers, expected, lost) in [
        (0, &[74][..], &[74][..], 0),
        (0, &[75], &[74], 0),
        (0, &[73], &[0], 1),
        (0, &[73, 100], &[0], 1),
        (MERGE, &[74, 100], &[74], 0),
        (MERGE, &[73, 100], &[73, 1], 0),
        (MERGE, &[12, 62], &[12, 62], 0),
        (MERGE, &[12, 61], &[], 0),
        (MERGE, &[11, 100], &[0, 0], 1),
        (MERGE, &[13, 1, 100], &[13, 1, 60], 0),
    ] {
        let mut bench = Bench::new(&["user"], features);
        for (number, len) in buffers.iter().enumerate() {
            bench.driver.offer(RX, number as u16, &[(BUFFERS + 0x1000 * number as u64, *len, WRITE)]);
        }
        bench.driver.notify(RX);
        bench.host_sends(udp(1, 20));
        pass(&mut bench);
        let used: Vec<u32> = (0..bench.driver.used(RX).0)
            .map(|number| u32::from_le_bytes(bench.driver.bytes(rings(RX).2 + 8 + 8 * u64::from(number))))
            .collect();
        assert_eq!((&used[..], bench.lost()), (expected, lost), "{features:#x} {buffers:?}");
        let bytes: Vec<u8> =
            used.iter().zip(0..).flat_map(|(len, number)| bench.buffer(number, *len as usize)).collect();
        if used.iter().sum::<u32>() > 0 {
            assert_eq!((usize::from(bytes[10]), &bytes[12..]), (used.len(), &udp(1, 20)[..]), "{buffers:?}");
        }
    }
}

#[test]
fn a_request_without_a_frame_is_returned() {
    let mut bench = Bench::new(&["user"], 0);
    for (number, len) in [(1, 0), (2, 11), (3, 12), (4, 25)] {
        assert!(bench.driver.ram.write(BUFFERS, &[0; 32]));
        bench.driver.offer(TX, 0, &[(BUFFERS, len, 0)]);
        bench.driver.notify(TX);
        assert_eq!((bench.driver.used(TX), bench.to_host().len()), ((number, 0, 0), 0), "{len} bytes");
    }
    bench.driver.offer(TX, 0, &[(BUFFERS, 26, 0)]);
    bench.driver.notify(TX);
    assert_eq!(bench.to_host(), [[0u8; 14]], "the shortest frame");
}

#[test]
fn transmit_queues_take_turns() {
    let mut bench = Bench::new(&["user,queues=2,rate=1G"], CTRL_VQ | MQ);
    assert_eq!(bench.command(4, &[4, 0, 2, 0], 0).0, 0);
    // A frame of 9,000 bytes takes 72 µs; two of them fill the buffer before the link.
    for (queue, heads) in [(TX, [0, 2, 4, 6].as_slice()), (3, &[0, 2])] {
        for head in heads {
            bench.transmit(queue, *head, &[0; 12], &udp(queue, 9000 - 42));
        }
    }
    assert_eq!((bench.driver.used(TX).0, bench.driver.used(3).0), (2, 0));
    bench.driver.notify(3);
    assert_eq!((bench.driver.used(TX).0, bench.driver.used(3).0), (2, 0), "it is not their turn");
    bench.run_until(SECOND);
    let order: Vec<u8> = bench.to_host().iter().map(|bytes| bytes[35]).collect();
    assert_eq!(order, [1, 1, 1, 3, 1, 3]);
    assert_eq!((bench.driver.used(TX).0, bench.driver.used(3).0), (4, 2));
}

/// Three pairs on a link of 1 Gb/s, each of whose transmit queues has two frames of 9,000 bytes. The first queue has sent two more, which fill the
/// buffer before the link.
fn crowded() -> Bench {
    let mut bench = Bench::new(&["user,queues=3,rate=1G"], CTRL_VQ | MQ | COAL);
    assert_eq!(bench.command(6, &[4, 0, 3, 0], 0).0, 0);
    let requests = [(TX, 0), (TX, 2), (TX, 4), (TX, 6), (3, 0), (3, 2), (5, 0), (5, 2)];
    for ((queue, head), number) in requests.into_iter().zip(0..) {
        let (at, bytes) = (BUFFERS + 0x8_0000 + 0x4000 * number, [&[0; 12][..], &udp(queue, 9000 - 42)].concat());
        assert!(bench.driver.ram.write(at, &bytes));
        bench.driver.offer(queue, head, &[(at, bytes.len() as u32, 0)]);
        bench.driver.notify(queue);
    }
    bench
}

/// The queues from which the host got frames, in order.
fn senders(bench: &Bench) -> Vec<u8> {
    bench.to_host().iter().map(|bytes| bytes[35]).collect()
}

#[test]
fn a_transmit_queue_that_is_notified_again_keeps_its_turn() {
    let mut bench = crowded();
    bench.driver.notify(TX);
    bench.run_until(SECOND);
    assert_eq!(senders(&bench), [1, 1, 1, 3, 5, 1, 3, 5]);
}

#[test]
fn a_transmit_queue_of_a_pair_that_is_not_used_holds_up_no_other() {
    let mut bench = crowded();
    for (wanted, expected) in [(1, [1, 1, 1, 1].as_slice()), (2, &[3, 3]), (3, &[5, 5])] {
        assert_eq!(bench.command(6, &[4, 0, wanted, 0], 0).0, 0);
        let then = bench.now() + SECOND;
        bench.run_until(then);
        assert_eq!(senders(&bench), expected, "{wanted} pairs are used");
    }
}

#[test]
fn a_transmit_queue_that_waits_is_announced_in_time() {
    let mut bench = crowded();
    // From now on 100 frames, or 10 microseconds.
    assert_eq!(bench.command(6, &[6, 0, 100, 0, 0, 0, 10, 0, 0, 0], 0).0, 0);
    let microseconds = |bench: &mut Bench, count: u64| {
        let then = bench.now() + count * (SECOND / 1_000_000);
        bench.run_until(then);
    };
    while bench.driver.used(TX).0 == 2 {
        microseconds(&mut bench, 1);
    }
    bench.driver.messages();
    // Two other queues, each with a frame of 72 microseconds, come before its next turn.
    microseconds(&mut bench, 11);
    assert_eq!((bench.driver.used(TX).0, bench.driver.messages()), (3, vec![0x42]));
}

#[test]
fn a_backlog_is_limited_by_queue() {
    let mut bench = Bench::new(&["user,queues=2"], MERGE | CTRL_VQ | MQ | RSS);
    // All frames go to the second pair, whose driver has no buffers.
    let table = [&[4, 1, 0x3f, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 40][..], &[7; 40]].concat();
    assert_eq!(bench.command(4, &table, 0).0, 0);
    bench.driver.notify(2);
    bench.give_buffers(1, 2048);
    for number in 0..520 {
        bench.host_sends(udp(number, 20));
        pass(&mut bench);
    }
    assert_eq!((bench.lost(), bench.driver.used(RX).0), (520 - 512, 0));
    for number in 0..8 {
        bench.driver.offer(2, number, &[(BUFFERS + 0x1000 * u64::from(number), 2048, WRITE)]);
    }
    bench.driver.notify(2);
    let ports: Vec<u8> = (0..8).map(|number| bench.buffer(number, 48)[12 + 35]).collect();
    assert_eq!(ports, [0, 1, 2, 3, 4, 5, 6, 7], "the oldest come first");
}

#[test]
fn a_broken_device_loses_what_arrives() {
    let mut bench = Bench::new(&["user"], MERGE);
    bench.host_sends(udp(1, 20));
    pass(&mut bench);
    assert_eq!(bench.lost(), 0);
    assert!(bench.driver.ram.write(rings(TX).1 + 2, &100u16.to_le_bytes()));
    bench.driver.notify(TX);
    assert_eq!(bench.driver.status() & 0x40, 0x40);
    bench.host_sends(udp(1, 20));
    pass(&mut bench);
    assert_eq!(bench.lost(), 1);
    // After a reset there are buffers again, and nothing of before.
    bench.driver.start(VERSION_1 | MERGE);
    bench.give_buffers(2, 2048);
    bench.host_sends(udp(2, 20));
    pass(&mut bench);
    assert_eq!((bench.driver.used(RX).0, bench.buffer(0, 48)[12 + 35], bench.lost()), (1, 2, 1));
}

#[test]
fn what_was_not_negotiated_is_not_done() {
    // VLANs are not filtered,
    assert!(is_received(&mut Bench::new(&["user"], MERGE | CTRL_VQ), MAC, Some(5)));
    // and large packets are segmented, with checksums of which nothing is said.
    let mut bench = Bench::new(&["bridge", "bridge"], MERGE);
    bench.give_buffers(4, 2048);
    let segments = Some(Segments { kind: Kind::Udp, size: 1000, ecn: false });
    Plug::new(&bench.network, 1).send(0, Frame { segments, ..Frame::new(udp(5, 3000)).unwrap() });
    bench.run_until(SECOND);
    assert_eq!((bench.driver.used(RX).0, bench.buffer(0, 10)), (3, vec![0; 10]));
}

#[test]
fn each_pair_in_use_sends() {
    let mut bench = Bench::new(&["user,queues=3"], CTRL_VQ | MQ);
    assert_eq!(bench.command(6, &[4, 0, 3, 0], 0).0, 0);
    for queue in [1, 3, 5] {
        bench.transmit(queue, 0, &[0; 12], &udp(queue, 20));
        assert_eq!(bench.to_host(), [udp(queue, 20)]);
    }
}

#[test]
fn sent_frames_are_announced_together_if_the_driver_wants() {
    let mut bench = Bench::new(&["user"], CTRL_VQ | COAL);
    // Two frames, or 10 microseconds.
    assert_eq!(bench.command(2, &[6, 0, 2, 0, 0, 0, 10, 0, 0, 0], 0).0, 0);
    bench.driver.messages();
    let sent = |bench: &mut Bench| {
        bench.transmit(TX, 0, &[0; 12], &udp(1, 20));
        bench.driver.messages().len()
    };
    assert_eq!([sent(&mut bench), sent(&mut bench), sent(&mut bench)], [0, 1, 0]);
    bench.run_until(9_999_999);
    assert!(bench.driver.messages().is_empty());
    bench.run_until(10_000_000);
    assert_eq!(bench.driver.messages(), [0x42]);
}

#[test]
fn a_queue_waits_for_its_notification() {
    let mut bench = Bench::new(&["user"], MERGE);
    assert!(
        bench.driver.ram.write(BUFFERS + 0x1_0000, &[0; 12]) && bench.driver.ram.write(BUFFERS + 0x1_000c, &udp(1, 20))
    );
    bench.driver.offer(TX, 0, &[(BUFFERS + 0x1_0000, 74, 0)]);
    bench.give_buffers(1, 2048);
    bench.host_sends(udp(2, 20));
    pass(&mut bench);
    assert_eq!((bench.driver.used(RX).0, bench.driver.used(TX).0), (1, 0));
    // The second frame finds no buffer. One that is added is used when that is said.
    bench.host_sends(udp(3, 20));
    pass(&mut bench);
    bench.driver.offer(RX, 1, &[(BUFFERS, 2048, WRITE)]);
    pass(&mut bench);
    assert_eq!((bench.driver.used(RX).0, bench.driver.used(TX).0), (1, 0));
    bench.driver.notify(RX);
    bench.driver.notify(TX);
    assert_eq!((bench.driver.used(RX).0, bench.driver.used(TX).0), (2, 1));
}

#[test]
fn no_time_is_spent_on_a_device_that_may_not_use_memory() {
    let mut bench = Bench::new(&["user,rate=1G"], 0);
    for head in [0, 2, 4] {
        bench.transmit(TX, head, &[0; 12], &udp(9, 9000 - 42));
    }
    assert_eq!(bench.driver.used(TX).0, 2);
    // The third frame is due while the device is no bus master: the device waits for that.
    bench.driver.bus.config_write(1, 4, 2, 2);
    bench.run_until(SECOND);
    assert_eq!(bench.driver.used(TX).0, 2);
    bench.driver.bus.config_write(1, 4, 2, 6);
    assert_eq!((bench.driver.used(TX).0, bench.to_host().len()), (3, 3));
}
