//! Tests of the transport's registers, bit by bit: their values, and the effects of writes.

use super::*;

const INDIRECT_DESC: u64 = 1 << 28;
const TRANSPORT: u64 = VERSION_1 | EVENT_IDX | INDIRECT_DESC;

impl Driver {
    fn features(&mut self) -> u64 {
        let half = |driver: &mut Self, select| {
            driver.write(0, 4, select);
            assert_eq!(driver.read(0, 4), select);
            driver.read(4, 4)
        };
        half(self, 0) | half(self, 1) << 32
    }

    fn accepted(&mut self) -> u64 {
        let half = |driver: &mut Self, select| {
            driver.write(8, 4, select);
            assert_eq!(driver.read(8, 4), select);
            driver.read(0xc, 4)
        };
        half(self, 0) | half(self, 1) << 32
    }

    /// Returns length, type, register, offset and length of each of the transport's capabilities, in order of their
    /// types.
    fn structures(&mut self) -> Vec<[u32; 5]> {
        let mut found = Vec::new();
        let mut at = self.bus.config_read(1, 0x34, 1) as usize;
        while at != 0 {
            let mut field = |offset, size| self.bus.config_read(1, at + offset, size);
            if field(0, 1) == 9 {
                found.push([field(2, 1), field(3, 1), field(4, 1), field(8, 4), field(12, 4)]);
            }
            at = self.bus.config_read(1, at + 1, 1) as usize;
        }
        found.sort_by_key(|structure| structure[1]);
        found
    }

    fn queue_sizes(&mut self) -> Vec<u64> {
        let count = self.read(0x12, 2);
        let size = |driver: &mut Self, queue| {
            driver.write(0x16, 2, queue);
            assert_eq!((driver.read(0x16, 2), driver.read(0x1e, 2)), (queue, queue));
            driver.read(0x18, 2)
        };
        (0..count).map(|queue| size(self, queue)).collect()
    }
}

#[test]
fn devices_are_what_the_standard_says() {
    let mut read_only = disk();
    read_only.read_only = true;
    let disk = |backing: &Memory| Driver::with(Block::new(Box::new(backing.clone()), ""));
    let block = 1 << 2 | 1 << 6 | 1 << 9;
    let network = || Driver::with(super::net::device(&["user,offloads=off,ring=128"]).0);
    let net = [2, 5, 15, 16, 17, 18, 19, 20, 23, 52, 53, 57, 63].iter().fold(0, |all, bit| all | 1u64 << bit);
    let channels = || Driver::with(Ports::channels(vec!["one".into(), "two".into()]));
    let files = || Driver::with(Files::new(guestfs::Server::new()));
    // Name in a saved state, device type, class, features of its own, sizes of the queues, length of the configuration.
    for (mut driver, name, kind, class, features, queues, config) in [
        (Driver::with(Ports::console()), "console", 3, 0x07_8000, 1 << 1, vec![64; 4], 12),
        (Driver::with(Entropy::new(1)), "entropy", 4, 0x00_ff00, 0, vec![64], 0),
        (disk(&super::disk()), "block", 2, 0x01_8000, block, vec![256], 60),
        (disk(&read_only), "block", 2, 0x01_8000, block | 1 << 5, vec![256], 60),
        (network(), "network", 1, 0x02_0000, net, vec![128, 128, 64], 24),
        (channels(), "channels", 3, 0x07_8000, 1 << 1, vec![64; 6], 12),
        (files(), "file system", 26, 0x01_8000, 0, vec![128; 2], 40),
    ] {
        assert_eq!(driver.bus.bus.function(1).unwrap().name(), format!("virtio {name}"));
        assert_eq!(driver.bus.config_read(1, 0, 4), (0x1040 + kind) << 16 | 0x1af4);
        assert_eq!(driver.bus.config_read(1, 0x2c, 4), (0x1040 + kind) << 16 | 0x1af4);
        assert_eq!(driver.bus.config_read(1, 8, 4), class << 8 | 1);
        assert_eq!(driver.features(), features | TRANSPORT);
        assert_eq!(driver.queue_sizes(), queues);
        let notifications = 4 * queues.len() as u32;
        let mut structures = vec![
            [16, 1, 0, 0x0000, 0x38],
            [20, 2, 0, 0x3000, notifications],
            [16, 3, 0, 0x1000, 1],
            [16, 4, 0, 0x2000, config],
            [20, 5, 0, 0, 0],
        ];
        structures.retain(|structure| structure[1] != 4 || config != 0);
        assert_eq!(driver.structures(), structures);
        let notify = driver.capability(9, |bus, at| bus.config_read(1, at + 3, 1) == 2);
        assert_eq!(driver.bus.config_read(1, notify + 16, 4), 4);
        let msix = driver.capability(0x11, |_, _| true);
        assert_eq!(driver.bus.config_read(1, msix + 2, 2), queues.len() as u32);
        assert_eq!((driver.bus.config_read(1, msix + 4, 4), driver.bus.config_read(1, msix + 8, 4)), (0x4000, 0x5000));
    }
}

#[test]
fn the_configuration_of_a_disk_is_laid_out_as_the_standard_says() {
    let mut driver = Driver::with(Block::new(Box::new(disk()), ""));
    let mut bytes: Vec<u8> = Vec::new();
    for at in 0..64 {
        bytes.push(driver.bus.mmio_read(DEVICE + at, 1).unwrap() as u8);
    }
    let mut expected = vec![0; 64];
    expected[0] = 64;
    expected[12..16].copy_from_slice(&254u32.to_le_bytes());
    expected[20..24].copy_from_slice(&512u32.to_le_bytes());
    assert_eq!(bytes, expected);
    // The configuration ignores writes, and wide reads consist of the same bytes.
    assert!(driver.bus.mmio_write(DEVICE, 4, 7));
    assert_eq!((driver.bus.mmio_read(DEVICE, 4), driver.bus.mmio_read(DEVICE + 12, 8)), (Some(64), Some(254)));
    assert_eq!(driver.bus.mmio_read(DEVICE + 21, 2), Some(2));
}

#[test]
fn features_are_written_in_halves_until_they_are_accepted() {
    let mut driver = Driver::with(Entropy::new(1));
    for (select, value) in [(0, 0x1234_5678), (1, 0x9abc_def0), (0, 0x0f0f_0f0f), (2, 7)] {
        driver.write(8, 4, select);
        driver.write(0xc, 4, value);
    }
    assert_eq!(driver.accepted(), 0x9abc_def0_0f0f_0f0f);
    driver.write(8, 4, 1);
    driver.write(0xc, 4, 1);
    assert_eq!(driver.accepted(), 0x1_0f0f_0f0f, "what was written before is gone");
    driver.write(0, 4, 2);
    driver.write(8, 4, 2);
    assert_eq!((driver.read(4, 4), driver.read(0xc, 4)), (0, 0));
    driver.start(TRANSPORT);
    driver.write(8, 4, 0);
    driver.write(0xc, 4, 0);
    assert_eq!(driver.accepted(), TRANSPORT);
    // Registers have one access width.
    driver.write(0x14, 1, 0);
    for size in [1, 2, 8] {
        driver.write(0xc, size, 0xff);
    }
    driver.write(0x14, 2, 3);
    assert_eq!((driver.accepted(), driver.status()), (0, 0));
}

#[test]
fn status_bits_are_set_one_by_one_and_cleared_together() {
    let mut driver = Driver::with(Entropy::new(1));
    let mut put = |value, expected: u64| {
        driver.write(0x14, 1, value);
        assert_eq!(driver.status(), expected, "{value:#x}");
    };
    put(1, 1);
    put(2, 3);
    put(4, 3);
    put(8, 3);
    put(0x70, 3);
    put(0x80, 0x83);
    put(0, 0);
    driver.write(8, 4, 1);
    driver.write(0xc, 4, 1);
    let mut put = |value, expected: u64| {
        driver.write(0x14, 1, value);
        assert_eq!(driver.status(), expected, "{value:#x}");
    };
    put(8, 8);
    put(4, 0xc);
    put(3, 0xf);
    put(0x40, 0xf);
    put(0, 0);
    // Both halves at once, as written by a driver that knows the features.
    driver.write(8, 4, 1);
    driver.write(0xc, 4, 1);
    driver.write(0x14, 1, 0xf);
    assert_eq!(driver.status(), 0xf);
    // If one feature was not offered, neither is accepted.
    driver.write(0x14, 1, 0);
    driver.write(8, 4, 1);
    driver.write(0xc, 4, 3);
    driver.write(0x14, 1, 0xf);
    assert_eq!(driver.status(), 3);
}

#[test]
fn vectors_that_there_are_not_become_none() {
    let mut driver = Driver::with(Ports::console());
    assert_eq!((driver.read(0x10, 2), driver.read(0x1a, 2)), (0xffff, 0xffff));
    for (vector, expected) in [(0, 0), (2, 2), (4, 4), (5, 0xffff), (1, 1), (0x1000, 0xffff)] {
        driver.write(0x10, 2, vector);
        assert_eq!(driver.read(0x10, 2), expected);
        driver.write(0x16, 2, 1);
        driver.write(0x1a, 2, vector);
        assert_eq!(driver.read(0x1a, 2), expected);
        driver.write(0x16, 2, 0);
        assert_eq!(driver.read(0x1a, 2), 0xffff, "the other queue's");
    }
}

#[test]
fn queues_are_as_written_until_they_are_enabled() {
    let mut driver = Driver::with(Ports::console());
    let addresses = [0x20, 0x28, 0x30];
    driver.write(0x16, 2, 1);
    driver.write(0x18, 2, 8);
    for at in addresses {
        driver.write(at, 8, 0x1122_3344_5566_7780 + at);
        assert_eq!(driver.read(at, 8), 0x1122_3344_5566_7780 + at);
        assert_eq!((driver.read(at, 4), driver.read(at + 4, 4)), (0x5566_7780 + at, 0x1122_3344));
        driver.write(at, 4, 0x1_0000 + 0x1000 * at);
        assert_eq!(driver.read(at, 8), 0x1122_3344_0001_0000 + 0x1000 * at);
        driver.write(at + 4, 4, 0);
        assert_eq!(driver.read(at, 8), 0x1_0000 + 0x1000 * at);
    }
    assert_eq!((driver.read(0x18, 2), driver.read(0x1c, 2)), (8, 0));
    // Only address registers accept eight bytes, and only one register at a time.
    for at in [0x14, 0x18, 0x24, 0x2c] {
        driver.write(at, 8, 16 << 32 | 16);
    }
    assert_eq!(driver.read(0x18, 2), 8);
    assert_eq!(addresses.map(|at| driver.read(at, 8)), addresses.map(|at| 0x1_0000 + 0x1000 * at));
    driver.write(0x1c, 2, 0);
    driver.write(0x1c, 2, 2);
    assert_eq!(driver.read(0x1c, 2), 0);
    driver.write(0x1c, 2, 1);
    assert_eq!((driver.read(0x1c, 2), driver.status()), (1, 0));
    driver.write(0x18, 2, 4);
    for at in addresses {
        driver.write(at, 8, 0);
        assert_eq!(driver.read(at, 8), 0x1_0000 + 0x1000 * at);
    }
    driver.write(0x1c, 2, 0);
    assert_eq!((driver.read(0x18, 2), driver.read(0x1c, 2)), (8, 1));
    // The other queues are independent, and there is no fifth.
    for (queue, size) in [(0, 64), (2, 64), (4, 0)] {
        driver.write(0x16, 2, queue);
        assert_eq!([0x18, 0x1c, 0x20, 0x28, 0x30].map(|at| driver.read(at, 2)), [size, 0, 0, 0, 0]);
    }
    driver.write(0x18, 2, 8);
    driver.write(0x1c, 2, 1);
    assert_eq!((driver.read(0x1c, 2), driver.status()), (0, 0));
}

#[test]
fn a_reset_leaves_nothing() {
    let mut driver = Driver::with(Entropy::new(1));
    driver.start(VERSION_1);
    driver.write(0x10, 2, 1);
    driver.write(0, 4, 1);
    driver.offer(0, 0, &[(BUFFERS, 8, WRITE)]);
    driver.notify(0);
    assert_eq!(driver.bus.lines()[1], (17, true));
    driver.write(0x16, 2, 3);
    driver.write(0x14, 1, 0);
    let registers: Vec<u64> = [0, 4, 8, 0xc].map(|at| driver.read(at, 4)).to_vec();
    assert_eq!(registers, [0, 3 << 28, 0, 0]);
    let registers: Vec<u64> = [0x10, 0x12, 0x14, 0x16, 0x18, 0x1a, 0x1c, 0x1e].map(|at| driver.read(at, 2)).to_vec();
    assert_eq!(registers, [0xffff, 1, 0, 0, 64, 0xffff, 0, 0]);
    assert_eq!([0x20, 0x28, 0x30, 0x38].map(|at| driver.read(at, 8)), [0; 4]);
    assert_eq!((driver.bus.lines()[1], driver.bus.mmio_read(ISR, 1)), ((17, false), Some(0)));
    assert_eq!(driver.bus.config_read(1, 6, 1) & 8, 0);
}

#[test]
fn a_device_that_needs_a_reset_says_so_by_interrupt_once_it_is_driven() {
    let break_it = |driver: &mut Driver| {
        assert!(driver.ram.write(rings(0).1 + 2, &100u16.to_le_bytes()));
        driver.notify(0);
    };
    let mut driver = Driver::with(Entropy::new(1));
    driver.start(VERSION_1);
    driver.offer(0, 0, &[(BUFFERS, 8, WRITE)]);
    driver.notify(0);
    break_it(&mut driver);
    // Both causes are set until they are read.
    assert_eq!((driver.status(), driver.bus.lines()[1]), (0x4f, (17, true)));
    assert_eq!((driver.bus.mmio_read(ISR + 1, 1), driver.bus.mmio_read(ISR, 1)), (Some(0), Some(3)));
    assert_eq!((driver.bus.mmio_read(ISR, 1), driver.bus.lines()[1]), (Some(0), (17, false)));
    // Before the driver is ready, an invalid ring breaks the device without an interrupt.
    driver.write(0x14, 1, 0);
    driver.write(0x14, 1, 3);
    driver.write(0x20, 8, 1 << 40);
    driver.write(0x1c, 2, 1);
    assert_eq!((driver.status(), driver.bus.lines()[1]), (0x43, (17, false)));
}

#[test]
fn the_pin_is_for_those_without_messages_who_did_not_forbid_it() {
    let mut driver = block(&disk());
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!(driver.bus.lines()[1], (17, true));
    // Command register: interrupts by pin disabled.
    driver.bus.config_write(1, 4, 2, 0x406);
    assert_eq!(driver.bus.lines()[1], (17, false));
    driver.bus.config_write(1, 4, 2, 6);
    assert_eq!(driver.bus.lines()[1], (17, true));
    driver.enable_msix();
    assert_eq!((driver.bus.lines()[1], driver.messages()), ((17, false), vec![]));
}

#[test]
fn vectors_are_masked_and_pending_one_by_one() {
    let mut driver = block(&disk());
    driver.enable_msix();
    assert_eq!(driver.bus.mmio_read(TABLE + 16, 4), Some(0xfee0_0000));
    assert_eq!((driver.bus.mmio_read(TABLE + 24, 4), driver.bus.mmio_read(TABLE + 28, 4)), (Some(0x41), Some(0)));
    driver.bus.mmio_write(TABLE + 28, 4, 1);
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!((driver.messages(), driver.bus.mmio_read(BASE + 0x5000, 4)), (vec![], Some(2)));
    driver.bus.mmio_write(TABLE + 28, 4, 0);
    assert_eq!((driver.messages(), driver.bus.mmio_read(BASE + 0x5000, 4)), (vec![0x41], Some(0)));
}

#[test]
fn the_window_in_configuration_space_is_as_narrow_as_it_is_set() {
    let mut driver = Driver::with(Block::new(Box::new(disk()), ""));
    let at = driver.capability(9, |bus, at| bus.config_read(1, at + 3, 1) == 5);
    let read = |driver: &mut Driver, bar: u32, offset: u32, length: u32| {
        driver.bus.config_write(1, at + 4, 1, bar);
        driver.bus.config_write(1, at + 8, 4, offset);
        driver.bus.config_write(1, at + 12, 4, length);
        driver.bus.config_write(1, at + 16, 4, 0);
        driver.bus.config_read(1, at + 16, 4)
    };
    // The block size in the device's configuration, and its maximum number of segments.
    assert_eq!(read(&mut driver, 0, 0x2014, 4), 512);
    assert_eq!(read(&mut driver, 0, 0x200c, 2), 254);
    assert_eq!(read(&mut driver, 0, 0x2015, 1), 2);
    assert_eq!(driver.bus.config_read(1, at + 17, 1), 0, "the byte was read anew");
    // Another base address register, an unaligned offset, invalid lengths, and the end of the register.
    for (bar, offset, length) in
        [(1, 0x2014, 4), (0, 0x2013, 4), (0, 0x2015, 2), (0, 0x2014, 0), (0, 0x2014, 3), (0, 0x2014, 8)]
    {
        assert_eq!(read(&mut driver, bar, offset, length), 0, "{bar} {offset:#x} {length}");
    }
    // A write through the window writes exactly its length, at its offset.
    driver.bus.config_write(1, at + 4, 1, 0);
    driver.bus.config_write(1, at + 8, 4, 0x16);
    driver.bus.config_write(1, at + 12, 4, 2);
    driver.bus.config_write(1, at + 16, 4, 0xaaaa_0007);
    assert_eq!(driver.read(0x16, 2), 7);
    driver.bus.config_write(1, at + 8, 4, 0x18);
    assert_eq!(driver.read(0x16, 2), 7, "nothing is written by setting it");
    // An access beside the window has no effect.
    driver.bus.config_write(1, at + 8, 4, 0x14);
    driver.bus.config_write(1, at + 12, 4, 1);
    driver.bus.config_write(1, at + 14, 2, 0);
    driver.bus.config_write(1, at + 20, 4, 3);
    assert_eq!(driver.status(), 0);
    driver.bus.config_write(1, at + 16, 1, 3);
    assert_eq!(driver.status(), 3);
    // The last bytes of the register are accessible, those after it are not.
    assert!(driver.bus.mmio_write(BASE + 0x7ffc, 4, 1));
    assert_eq!((read(&mut driver, 0, 0x7ffc, 4), read(&mut driver, 0, 0x8000, 4)), (0, 0));
}

#[test]
fn registers_read_as_zero_beyond_their_end() {
    let mut driver = Driver::with(Entropy::new(1));
    driver.write(0x30, 8, u64::MAX);
    assert_eq!((driver.read(0x34, 8), driver.read(0x38, 8), driver.read(0x800, 4)), (0xffff_ffff, 0, 0));
    assert_eq!(driver.bus.mmio_read(DEVICE, 8), Some(0));
    assert_eq!((driver.bus.mmio_read(NOTIFY, 4), driver.bus.mmio_read(BASE + 0x6000, 4)), (Some(0), Some(0)));
}
