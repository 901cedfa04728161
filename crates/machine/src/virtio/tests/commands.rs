//! Tests of the network device's commands: which there are, what they need, and what they change.

use super::net::{
    Bench, COAL, CTRL_MAC, CTRL_RX, CTRL_VLAN, CTRL_VQ, GUEST_CSUM, GUEST_OFFLOADS, HASH, MAC, MERGE, MQ, RSS, VQ_COAL,
    device, udp,
};
use super::*;
use crate::state::{Saved, StateError};
use network::time::SECOND;

const CTRL_RX_EXTRA: u64 = 1 << 20;
const ALL: u64 = GUEST_CSUM
    | GUEST_OFFLOADS
    | MERGE
    | CTRL_VQ
    | CTRL_RX
    | CTRL_VLAN
    | CTRL_RX_EXTRA
    | MQ
    | CTRL_MAC
    | VQ_COAL
    | COAL
    | HASH
    | RSS;

/// Returns the settings of receive-side scaling: hash types, table, queue of unhashed frames, senders, length of the key.
fn scaling(types: u32, table: &[u16], unclassified: u16, senders: u16, key: u8) -> Vec<u8> {
    let mut bytes = [&[4, 1][..], &types.to_le_bytes()].concat();
    for half in [table.len() as u16 - 1, unclassified].iter().chain(table).chain(&[senders]) {
        bytes.extend(half.to_le_bytes());
    }
    bytes.push(key);
    bytes.extend(vec![7; key.into()]);
    bytes
}

fn hashing(types: u32, key: u8) -> Vec<u8> {
    [&[4, 2][..], &types.to_le_bytes(), &[0; 8], &[key], &vec![7; key.into()]].concat()
}

/// Returns a command of coalescing: maximum frames and microseconds, for a queue if there is one.
fn coalescing(command: u8, queue: Option<u16>, packets: u32, usecs: u32) -> Vec<u8> {
    let queue = queue.map_or(vec![], |queue| [queue.to_le_bytes(), [0; 2]].concat());
    [&[6, command][..], &queue, &packets.to_le_bytes(), &usecs.to_le_bytes()].concat()
}

/// Returns the coalescing of a queue, if the device answers.
fn coalescing_of(bench: &mut Bench, control: u16, queue: u16) -> Option<(u32, u32)> {
    let number = queue.to_le_bytes();
    let (status, answer) = bench.command(control, &[6, 3, number[0], number[1], 0, 0], 12);
    let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
    (status == 0).then(|| {
        assert_eq!(word(0), u32::from(queue));
        (word(4), word(8))
    })
}

#[test]
fn a_command_needs_its_feature_and_all_of_its_data() {
    for (needed, command) in [
        (CTRL_RX, vec![0, 0, 1]),
        (CTRL_RX, vec![0, 1, 1]),
        (CTRL_RX_EXTRA, vec![0, 2, 1]),
        (CTRL_RX_EXTRA, vec![0, 5, 0]),
        (CTRL_RX, [&[1, 0][..], &[0; 8]].concat()),
        (CTRL_RX, [&[1, 0, 1, 0, 0, 0][..], &MAC, &[1, 0, 0, 0], &MAC].concat()),
        (CTRL_MAC, [&[1, 1][..], &MAC].concat()),
        (CTRL_VLAN, vec![2, 0, 0xff, 0x0f]),
        (CTRL_VLAN, vec![2, 1, 5, 0]),
        (MQ, vec![4, 0, 2, 0]),
        (RSS, scaling(0x3f, &[0, 1], 1, 2, 40)),
        (HASH, hashing(0x3f, 40)),
        (GUEST_OFFLOADS, [&[5, 0][..], &2u64.to_le_bytes()].concat()),
        (COAL, coalescing(0, None, 3, 10)),
        (COAL, coalescing(1, None, 3, 10)),
        (VQ_COAL, coalescing(2, Some(1), 3, 10)),
        (VQ_COAL, vec![6, 3, 1, 0, 0, 0]),
    ] {
        let mut bench = Bench::new(&["user,queues=2"], ALL);
        let room = if command[..2] == [6, 3] { 12 } else { 0 };
        let mut status = |command: &[u8]| bench.command(4, command, room).0;
        assert_eq!(status(&command), 0, "{command:?}");
        assert_eq!(status(&command[..command.len() - 1]), 1, "{command:?} cut");
        assert_eq!(Bench::new(&["user,queues=2"], ALL & !needed).command(4, &command, room).0, 1, "{command:?}");
    }
}

#[test]
fn commands_that_do_not_exist_or_mean_nothing_are_refused() {
    let mut bench = Bench::new(&["user,queues=2"], ALL);
    for command in [
        vec![],
        vec![0],
        vec![0, 6, 1],
        [&[1, 2][..], &MAC].concat(),
        [&[1, 3][..], &[0; 8]].concat(),
        vec![2, 2, 5, 0],
        vec![2, 0, 0, 0x10],
        vec![3, 0, 0],
        vec![4, 0, 0, 0],
        vec![4, 0, 3, 0],
        vec![4, 3, 1, 0],
        [&[5, 1][..], &2u64.to_le_bytes()].concat(),
        // TSO was not negotiated.
        [&[5, 0][..], &(2u64 | 1 << 7).to_le_bytes()].concat(),
        scaling(0x40, &[0, 1], 1, 2, 40),
        scaling(0x3f, &[0, 2], 1, 2, 40),
        scaling(0x3f, &[0, 1, 0], 1, 2, 40),
        scaling(0x3f, &[0, 1], 2, 2, 40),
        scaling(0x3f, &[0, 1], 1, 0, 40),
        scaling(0x3f, &[0, 1], 1, 3, 40),
        scaling(0x3f, &[0, 1], 1, 2, 41),
        hashing(0x40, 40),
        hashing(0x3f, 41),
        coalescing(2, Some(4), 3, 10),
        coalescing(4, Some(1), 3, 10),
        vec![7, 0, 0, 0],
    ] {
        assert_eq!(bench.command(4, &command, 0).0, 1, "{command:?}");
    }
    // Nothing was changed by them.
    assert_eq!([0, 1, 2, 3].map(|queue| coalescing_of(&mut bench, 4, queue)), [Some((0, 0)); 4]);
    assert_eq!(config(&mut bench.driver)[..6], MAC);
    assert_eq!(coalescing_of(&mut bench, 4, 4), None, "the control queue has no coalescing");
}

#[test]
fn coalescing_is_of_one_direction_or_of_one_queue() {
    let mut bench = Bench::new(&["user,queues=2"], ALL);
    let mut after = |command: &[u8]| {
        assert_eq!(bench.command(4, command, 0).0, 0);
        [0, 1, 2, 3].map(|queue| coalescing_of(&mut bench, 4, queue).unwrap())
    };
    let none = (0, 0);
    assert_eq!(after(&coalescing(0, None, 1, 2)), [none, (1, 2), none, (1, 2)]);
    assert_eq!(after(&coalescing(1, None, 3, 4)), [(3, 4), (1, 2), (3, 4), (1, 2)]);
    assert_eq!(after(&coalescing(2, Some(2), 70_000, 1 << 24)), [(3, 4), (1, 2), (70_000, 1 << 24), (1, 2)]);
}

#[test]
fn the_control_queue_follows_the_queues_that_the_driver_knows() {
    for (features, queues, control) in [
        (CTRL_VQ | COAL, 2, 2),
        (CTRL_VQ | COAL | MQ, 2, 4),
        (CTRL_VQ | COAL | RSS, 2, 4),
        (CTRL_VQ | COAL | MQ | RSS, 3, 6),
    ] {
        let mut bench = Bench::new(&[&format!("user,queues={queues}")], features);
        assert_eq!(bench.command(control, &coalescing(0, None, 1, 2), 0).0, 0, "{features:#x}");
        // A command on another queue is none.
        let other = if control == 2 { 4 } else { 2 };
        bench.driver.offer(other, 0, &[(BUFFERS, 2, 0), (BUFFERS, 1, WRITE)]);
        let before = bench.driver.used(other).0;
        bench.driver.notify(other);
        assert_eq!(bench.driver.used(other).0, before, "{features:#x}");
    }
}

#[test]
fn an_answer_needs_room_and_a_command_may_be_long() {
    let mut bench = Bench::new(&["user"], ALL & !(MQ | RSS));
    // Without a buffer for the status the command is carried out, and returned.
    assert!(bench.driver.ram.write(BUFFERS, &coalescing(0, None, 5, 6)));
    bench.driver.offer(2, 0, &[(BUFFERS, 10, 0)]);
    bench.driver.notify(2);
    assert_eq!((bench.driver.used(2), coalescing_of(&mut bench, 2, 1)), ((1, 0, 0), Some((5, 6))));
    // What the driver requests is cut to its buffer; the status is the last byte.
    assert_eq!(bench.command(2, &[6, 3, 1, 0, 0, 0], 6), (0, vec![1, 0, 0, 0, 5, 0]));
    assert_eq!(bench.driver.used(2).2, 7);
    // A table of 2,700 addresses fits into 16 KiB, and one of 2,800 is cut.
    for (count, status) in [(2_700u32, 0), (2_800, 1)] {
        let table = [&[1, 0][..], &count.to_le_bytes(), &vec![2; 6 * count as usize], &[0; 4]].concat();
        let at = BUFFERS + 0x2_0000;
        assert!(bench.driver.ram.write(at, &table));
        bench.driver.offer(2, 0, &[(at, table.len() as u32, 0), (BUFFERS, 1, WRITE)]);
        bench.driver.notify(2);
        assert_eq!(bench.driver.bytes(BUFFERS), [status], "{count}");
    }
}

/// Returns the configuration of the device.
fn config(driver: &mut Driver) -> Vec<u8> {
    (0..32).map(|at| driver.bus.mmio_read(DEVICE + at, 1).unwrap() as u8).collect()
}

#[test]
fn the_configuration_is_laid_out_as_the_standard_says() {
    for (option, queues, mtu, megabits) in
        [("user", 1u16, 0u16, 10_000u32), ("user,queues=3,mtu=9000,rate=2.5G", 3, 9000, 2_500)]
    {
        let mut driver = Driver::with(device(&[option]).0);
        assert_eq!(driver.bus.config_read(1, 8, 4), 0x02_0000 << 8 | 1);
        let sizes: Vec<u64> = (0..=2 * u64::from(queues))
            .map(|queue| {
                driver.write(0x16, 2, queue);
                driver.read(0x18, 2)
            })
            .collect();
        assert_eq!(
            (driver.read(0x12, 2), sizes.iter().sum::<u64>()),
            (2 * u64::from(queues) + 1, 512 * u64::from(queues) + 64)
        );
        // Address, link status, pairs, MTU, speed, full duplex, key length, table entries, hash types.
        let expected = [
            &MAC[..],
            &[1, 0],
            &queues.to_le_bytes(),
            &mtu.to_le_bytes(),
            &megabits.to_le_bytes(),
            &[1, 40, 128, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(config(&mut driver), expected.concat());
    }
}

#[test]
fn an_address_of_the_driver_lasts_until_the_reset_and_is_saved() {
    let mut bench = Bench::new(&["user"], CTRL_VQ | CTRL_MAC);
    let other = [2, 1, 1, 1, 1, 1];
    assert_eq!(bench.command(2, &[&[1, 1][..], &other].concat(), 0).0, 0);
    assert_eq!(config(&mut bench.driver)[..6], other);
    let state = bench.driver.bus.bus.function(1).unwrap().save().unwrap();
    let mut copy = Driver::with(device(&["user"]).0);
    copy.bus.bus.function(1).unwrap().restore(&state).unwrap();
    assert_eq!(config(&mut copy)[..6], other);
    copy.write(0x14, 1, 0);
    assert_eq!(config(&mut copy)[..6], MAC);
}

#[test]
fn pairs_that_are_not_used_neither_send_nor_receive() {
    let mut bench = Bench::new(&["user,queues=2"], ALL);
    let sent = |bench: &mut Bench| {
        bench.transmit(3, 0, &[0; 20], &udp(1, 20));
        bench.to_host().len()
    };
    assert_eq!(sent(&mut bench), 0, "one pair is used at first");
    assert_eq!(bench.command(4, &[4, 0, 2, 0], 0).0, 0);
    assert_eq!(sent(&mut bench), 2);
    // All frames go to the second pair; once it is not used they are lost.
    assert_eq!(bench.command(4, &scaling(0x3f, &[1], 1, 2, 40), 0).0, 0);
    for (wanted, lost) in [(2, 0), (1, 1)] {
        assert_eq!(bench.command(4, &[4, 0, wanted, 0], 0).0, 0);
        bench.driver.offer(2, 0, &[(BUFFERS, 2048, WRITE)]);
        bench.driver.notify(2);
        bench.host_sends(udp(1, 20));
        let then = bench.now() + SECOND;
        bench.run_until(then);
        assert_eq!((bench.driver.used(2).0, bench.driver.used(0).0, bench.lost()), (1, 0, lost));
    }
}

#[test]
fn a_state_of_another_device_is_refused() {
    let (net, _network) = device(&["user,queues=2"]);
    let state = net.save().unwrap();
    for (option, expected) in [
        ("user,queues=2", Ok(())),
        ("user", Err(StateError::Impossible("the queues of a network device"))),
        ("user,queues=3", Err(StateError::Impossible("the queues of a network device"))),
    ] {
        assert_eq!(device(&[option]).0.restore(&state), expected, "{option}");
    }
}
