//! Tests of requests that are long, fragmented, or at a limit.

use super::*;

#[test]
fn long_transfers_go_through_in_pieces() {
    let bytes: Vec<u8> = (0..1024 * 512u32).map(|i| (i / 7) as u8).collect();
    let backing = Memory { bytes: Arc::new(Mutex::new(bytes.clone())), read_only: false, broken: false };
    let mut driver = block(&backing);
    // Two pieces of the device's buffer, and one sector.
    let len = 2 * (128 << 10) + 512;
    assert_eq!(request(&mut driver, 0, 2, (len, WRITE)), (0, len + 1));
    let mut got = vec![0; len as usize];
    assert!(driver.ram.read(BUFFERS + 0x1000, &mut got));
    assert!(got == bytes[1024..][..len as usize]);
    got.reverse();
    assert!(driver.ram.write(BUFFERS + 0x1000, &got));
    assert_eq!(request(&mut driver, 1, 3, (len, 0)), (0, 1));
    let now = backing.bytes.lock().unwrap();
    assert!(now[1536..][..len as usize] == got && now[..1536] == bytes[..1536]);
    assert!(now[1536 + len as usize..] == bytes[1536 + len as usize..]);
}

/// A machine whose processors wait, and whose devices have no event, is one that nothing wakes.
#[test]
fn devices_that_only_answer_wake_no_machine() {
    let backing = Memory { bytes: Arc::default(), read_only: false, broken: false };
    for mut driver in [block(&backing), Driver::with(Ports::console()), Driver::with(Entropy::new(1))] {
        driver.start(VERSION_1);
        assert_eq!(crate::device::Device::next_event(&driver.bus.bus), None);
    }
}

#[test]
fn a_disk_ends_with_its_last_whole_sector() {
    let backing = Memory { bytes: Arc::new(Mutex::new(vec![1; 2 * 512 + 511])), read_only: false, broken: false };
    let mut driver = block(&backing);
    assert_eq!(driver.bus.mmio_read(DEVICE, 8), Some(2));
    assert_eq!(request(&mut driver, 0, 1, (512, WRITE)), (0, 513));
    assert_eq!(request(&mut driver, 0, 2, (512, WRITE)), (1, 1));
    assert_eq!(request(&mut driver, 0, 2, (0, WRITE)), (0, 1), "nothing at the end is nothing wrong");
    assert_eq!(request(&mut driver, 0, u64::MAX / 512, (1024, WRITE)), (1, 1));
}

#[test]
fn writes_to_a_broken_disk_fail() {
    let mut backing = disk();
    backing.broken = true;
    let mut driver = block(&backing);
    assert_eq!(request(&mut driver, 1, 0, (512, 0)), (1, 1));
}

#[test]
fn an_image_of_one_sector_is_a_disk_and_one_to_read_stays_as_it_is() {
    let path = std::env::temp_dir().join(format!("disk-sector-{}", std::process::id()));
    std::fs::write(&path, [7; 512]).unwrap();
    assert!(!Disk::open(&path, false).unwrap().read_only());
    let mut disk = Disk::open(&path, true).unwrap();
    assert!(disk.read_only() && !disk.is_empty());
    assert!(disk.write(0, b"x").is_err());
    std::fs::remove_file(&path).unwrap();
    let nothing = Memory { bytes: Arc::default(), read_only: false, broken: false };
    assert!(nothing.is_empty());
}

#[test]
fn entropy_is_splitmix64() {
    // The first numbers of the reference implementation for the seed 1234567.
    let known = [6_457_827_717_110_365_317u64, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
    let mut driver = Driver::with(Entropy::new(1_234_567));
    driver.start(VERSION_1);
    driver.offer(0, 0, &[(BUFFERS, 24, WRITE)]);
    driver.notify(0);
    let got: [u8; 24] = driver.bytes(BUFFERS);
    assert_eq!(got.to_vec(), known.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
}

#[test]
fn one_request_gets_so_much_entropy_and_no_more() {
    let mut driver = Driver::with(Entropy::new(1));
    driver.start(VERSION_1);
    driver.offer(0, 0, &[(BUFFERS, 65_537, WRITE)]);
    driver.notify(0);
    assert_eq!(driver.used(0), (1, 0, 65_536));
    assert_eq!(driver.bytes(BUFFERS + 65_536), [0]);
}

#[test]
fn a_console_passes_what_was_printed_in_order_up_to_a_limit() {
    let mut driver = Driver::with(Ports::console());
    driver.start(VERSION_1);
    const MOST: u64 = 1 << 20;
    assert!(driver.ram.write(BUFFERS, &vec![b'x'; MOST as usize + 1]));
    assert!(driver.ram.write(BUFFERS + MOST + 1, b"end!"));
    driver.offer(1, 0, &[(BUFFERS, MOST as u32 + 1, 0)]);
    driver.offer(1, 1, &[(BUFFERS + MOST + 1, 4, 0)]);
    driver.notify(1);
    let output = driver.printed();
    assert_eq!((output.len(), output.iter().filter(|byte| **byte == b'x').count()), (MOST as usize + 4, MOST as usize));
    assert!(output.ends_with(b"xend!"));
}

#[test]
fn a_ring_says_whether_it_wants_interrupts_only_for_what_it_gave_back() {
    // The ring was empty, so there is no reason for an interrupt.
    let mut driver = block(&disk());
    driver.notify(0);
    assert_eq!(driver.bus.lines()[1], (17, false));
    // The other bits of the flags have no effect.
    assert!(driver.ram.write(rings(0).1, &0xfffeu16.to_le_bytes()));
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!(driver.bus.lines()[1], (17, true));
    // With event indices the flags have no effect.
    let mut driver = Driver::with(Block::new(Box::new(disk()), ""));
    driver.start(VERSION_1 | EVENT_IDX);
    assert!(driver.ram.write(rings(0).1, &1u16.to_le_bytes()));
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!(driver.bus.lines()[1], (17, true));
}

#[test]
fn a_request_waits_for_its_notification() {
    let mut driver = block(&disk());
    driver.offer(0, 0, &[(BUFFERS, 16, 0), (BUFFERS + 0x1000, 513, WRITE)]);
    driver.input(b"");
    assert_eq!(driver.used(0).0, 0);
    driver.notify(0);
    assert_eq!(driver.used(0).0, 1);
}
