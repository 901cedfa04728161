//! Tests that drive devices as a driver would: through configuration space, registers and rings in guest memory.

use std::io;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::device::Msi;
use crate::memory::{GuestRam, layout};
use crate::pci::testing::Rig;

mod channels;
mod commands;
mod devices;
mod files;
mod hooks;
mod net;
mod overlay;
mod packed;
mod queues;
mod registers;
mod states;

const BASE: u64 = layout::PCI_WINDOW.start;
const ISR: u64 = BASE + 0x1000;
const DEVICE: u64 = BASE + 0x2000;
const NOTIFY: u64 = BASE + 0x3000;
const TABLE: u64 = BASE + 0x4000;

const QUEUE_SIZE: u16 = 8;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const BUFFERS: u64 = 0x10_0000;

const VERSION_1: u64 = 1 << 32;
const EVENT_IDX: u64 = 1 << 29;

/// Returns the addresses of the rings of a queue.
fn rings(queue: u16) -> (u64, u64, u64) {
    let at = 0x1_0000 + 0x3000 * u64::from(queue);
    (at, at + 0x1000, at + 0x2000)
}

struct Driver {
    ram: GuestRam,
    bus: Rig,
    available: [u16; 8],
}

impl Driver {
    fn with<D: Device + 'static>(device: D) -> Self {
        let mut bus = Rig::new();
        bus.bus.add(Box::new(VirtioPci::new(device))).unwrap();
        bus.config_write(1, 4, 2, 6);
        Self { ram: bus.ram.clone(), bus, available: [0; 8] }
    }

    fn read(&mut self, at: u64, size: u8) -> u64 {
        self.bus.mmio_read(BASE + at, size).unwrap()
    }

    fn write(&mut self, at: u64, size: u8, value: u64) {
        assert!(self.bus.mmio_write(BASE + at, size, value));
    }

    fn status(&mut self) -> u64 {
        self.read(0x14, 1)
    }

    /// Negotiates and sets up all queues. Queue n uses vector 1 + n.
    fn start(&mut self, features: u64) {
        self.write(0x14, 1, 0);
        self.available = [0; 8];
        self.write(0x14, 1, 3);
        for half in 0..2 {
            self.write(0x08, 4, half);
            self.write(0x0c, 4, features >> (32 * half) & 0xffff_ffff);
        }
        self.write(0x14, 1, 0xb);
        for queue in 0..self.read(0x12, 2) as u16 {
            self.set_up(queue, rings(queue));
        }
        self.write(0x14, 1, 0xf);
    }

    fn set_up(&mut self, queue: u16, (descriptors, available, used): (u64, u64, u64)) {
        self.write(0x16, 2, queue.into());
        self.write(0x18, 2, QUEUE_SIZE.into());
        self.write(0x1a, 2, u64::from(queue) + 1);
        self.write(0x20, 8, descriptors);
        self.write(0x28, 4, available);
        self.write(0x2c, 4, 0);
        self.write(0x30, 8, used);
        for ring in [available, used] {
            assert!(self.ram.write(ring, &[0; 0x100]));
        }
        self.write(0x1c, 2, 1);
    }

    fn descriptor(&self, table: u64, index: u16, (address, len, flags): (u64, u32, u16), next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        assert!(self.ram.write(table + 16 * u64::from(index), &bytes));
    }

    /// Describes a chain from descriptor `first` on, and makes it available.
    fn offer(&mut self, queue: u16, first: u16, buffers: &[(u64, u32, u16)]) {
        for (i, &(address, len, flags)) in buffers.iter().enumerate() {
            let index = first + i as u16;
            let more = if i + 1 < buffers.len() { NEXT } else { 0 };
            self.descriptor(rings(queue).0, index, (address, len, flags | more), index + 1);
        }
        self.publish(queue, first);
    }

    fn publish(&mut self, queue: u16, head: u16) {
        let index = &mut self.available[usize::from(queue)];
        let ring = rings(queue).1;
        assert!(self.ram.write(ring + 4 + 2 * u64::from(*index % QUEUE_SIZE), &head.to_le_bytes()));
        *index = index.wrapping_add(1);
        assert!(self.ram.write(ring + 2, &index.to_le_bytes()));
    }

    fn notify(&mut self, queue: u16) {
        assert!(self.bus.mmio_write(NOTIFY + 4 * u64::from(queue), 2, queue.into()));
    }

    /// Returns the used index, and head and length of the last entry.
    fn used(&self, queue: u16) -> (u16, u32, u32) {
        let ring = rings(queue).2;
        let index = u16::from_le_bytes(self.bytes(ring + 2));
        let entry = ring + 4 + 8 * u64::from(index.wrapping_sub(1) % QUEUE_SIZE);
        (index, u32::from_le_bytes(self.bytes(entry)), u32::from_le_bytes(self.bytes(entry + 4)))
    }

    fn bytes<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert!(self.ram.read(at, &mut bytes));
        bytes
    }

    fn enable_msix(&mut self) {
        for vector in 0..3u64 {
            let entry = TABLE + 16 * vector;
            self.bus.mmio_write(entry, 4, 0xfee0_0000);
            self.bus.mmio_write(entry + 8, 4, 0x40 + vector);
            self.bus.mmio_write(entry + 12, 4, 0);
        }
        let msix = self.capability(0x11, |_, _| true);
        self.bus.config_write(1, msix + 2, 2, 0x8000);
    }

    fn capability(&mut self, id: u32, wanted: impl Fn(&mut Rig, usize) -> bool) -> usize {
        let mut at = self.bus.config_read(1, 0x34, 1) as usize;
        while at != 0 {
            if self.bus.config_read(1, at, 1) == id && wanted(&mut self.bus, at) {
                return at;
            }
            at = self.bus.config_read(1, at + 1, 1) as usize;
        }
        panic!("no capability {id:#x}");
    }

    fn input(&mut self, bytes: &[u8]) {
        self.bus.input(1, bytes);
    }

    /// Returns true if the driver accepts input.
    fn open(&self) -> bool {
        self.bus.bus.inbox(1).open
    }

    /// Returns the output since the last call.
    fn printed(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bus.out.printed)
    }

    fn messages(&mut self) -> Vec<u32> {
        self.bus.take_interrupts().into_iter().map(|Msi { address: _, data }| data).collect()
    }
}

/// A disk in memory whose contents outlive the device.
#[derive(Clone)]
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    read_only: bool,
    broken: bool,
}

impl Backing for Memory {
    fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("broken"));
        }
        buffer.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("broken"));
        }
        self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.broken { Err(io::Error::other("broken")) } else { Ok(()) }
    }
}

fn disk() -> Memory {
    let bytes = (0..64 * 512).map(|i| (i / 512) as u8).collect();
    Memory { bytes: Arc::new(Mutex::new(bytes)), read_only: false, broken: false }
}

fn block(backing: &Memory) -> Driver {
    let mut driver = Driver::with(Block::new(Box::new(backing.clone()), "disk-0"));
    driver.start(VERSION_1);
    driver
}

/// Executes one block request with `data` at [`BUFFERS`] + 0x1000. Returns status and used length.
fn request(driver: &mut Driver, kind: u32, sector: u64, data: (u32, u16)) -> (u8, u32) {
    let mut header = kind.to_le_bytes().to_vec();
    header.extend([0; 4]);
    header.extend(sector.to_le_bytes());
    assert!(driver.ram.write(BUFFERS, &header));
    assert!(driver.ram.write(BUFFERS + 0x800, &[0xee]));
    let before = driver.used(0).0;
    let data = (BUFFERS + 0x1000, data.0, data.1);
    driver.offer(0, 0, &[(BUFFERS, 16, 0), data, (BUFFERS + 0x800, 1, WRITE)]);
    driver.notify(0);
    let (index, head, len) = driver.used(0);
    assert_eq!((index, head), (before.wrapping_add(1), 0));
    (driver.bytes::<1>(BUFFERS + 0x800)[0], len)
}

#[test]
fn negotiation_insists_on_version_1_and_known_features() {
    let mut driver = Driver::with(Entropy::new(1));
    assert_eq!(driver.bus.config_read(1, 0, 4), 0x1044_1af4);
    driver.write(0, 4, 1);
    assert_eq!(driver.read(4, 4), 1);
    driver.write(0, 4, 0);
    assert_eq!(driver.read(4, 4), 3 << 28);
    for (features, accepted) in [(0, false), (VERSION_1 | 1 << 5, false), (VERSION_1 | EVENT_IDX, true)] {
        driver.start(features);
        assert_eq!(driver.status(), if accepted { 0xf } else { 3 });
    }
    driver.write(0x14, 1, 0);
    assert_eq!((driver.status(), driver.read(0x1c, 2), driver.read(0x18, 2)), (0, 0, 64));
    driver.write(0x16, 2, 5);
    assert_eq!((driver.read(0x18, 2), driver.read(0x1a, 2)), (0, 0xffff));
}

#[test]
fn a_disk_reads_writes_flushes_and_names_itself() {
    let backing = disk();
    let mut driver = block(&backing);
    assert_eq!(driver.bus.mmio_read(DEVICE, 8), Some(64));
    assert_eq!(driver.bus.mmio_read(DEVICE + 20, 4), Some(512));
    driver.ram.take_written();
    assert_eq!(request(&mut driver, 0, 3, (1024, WRITE)), (0, 1025));
    assert_eq!((driver.bytes(BUFFERS + 0x1000), driver.bytes(BUFFERS + 0x1200)), ([3; 512], [4; 512]));
    let written = driver.ram.take_written();
    assert!(written.iter().any(|r| r.contains(&(BUFFERS + 0x1000)) && r.contains(&(BUFFERS + 0x13ff))));
    assert!(driver.ram.write(BUFFERS + 0x1000, &[0xab; 512]));
    assert_eq!(request(&mut driver, 1, 63, (512, 0)), (0, 1));
    assert_eq!(backing.bytes.lock().unwrap()[63 * 512..], [0xab; 512]);
    assert_eq!(request(&mut driver, 4, 0, (0, 0)), (0, 1));
    assert_eq!(request(&mut driver, 8, 0, (20, WRITE)), (0, 21));
    assert_eq!(driver.bytes::<7>(BUFFERS + 0x1000), *b"disk-0\0");
}

#[test]
fn bad_disk_requests_get_an_error() {
    let mut backing = disk();
    let mut driver = block(&backing);
    assert_eq!(request(&mut driver, 0, 64, (512, WRITE)), (1, 1));
    assert_eq!(request(&mut driver, 0, 63, (1024, WRITE)), (1, 1));
    assert_eq!(request(&mut driver, 0, u64::MAX, (512, WRITE)), (1, 1));
    assert_eq!(request(&mut driver, 0, 0, (511, WRITE)), (1, 1));
    assert_eq!(request(&mut driver, 99, 0, (512, WRITE)), (2, 1));
    backing.read_only = true;
    let mut driver = block(&backing);
    assert_eq!(request(&mut driver, 1, 0, (512, 0)), (1, 1));
    backing.broken = true;
    let mut driver = block(&backing);
    assert_eq!(request(&mut driver, 0, 0, (512, WRITE)), (1, 1));
    assert_eq!(request(&mut driver, 4, 0, (0, 0)), (1, 1));
    // Without room for a status, or without a header, requests are returned.
    driver.offer(0, 0, &[(BUFFERS, 16, 0)]);
    driver.offer(0, 4, &[(BUFFERS, 1, WRITE)]);
    driver.notify(0);
    assert_eq!(driver.used(0), (4, 4, 1));
    assert_eq!(driver.bytes(BUFFERS), [1]);
}

#[test]
fn indirect_descriptors_are_followed() {
    let mut driver = block(&disk());
    assert!(driver.ram.write(BUFFERS, &[0; 16]));
    let table = BUFFERS + 0x4000;
    driver.descriptor(table, 0, (BUFFERS, 16, NEXT), 1);
    driver.descriptor(table, 1, (BUFFERS + 0x1000, 513, WRITE), 0);
    driver.offer(0, 3, &[(table, 32, INDIRECT)]);
    driver.notify(0);
    assert_eq!(driver.used(0), (1, 3, 513));
}

#[test]
fn completions_interrupt_by_message_or_pin() {
    let mut driver = block(&disk());
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!(driver.bus.lines()[1], (17, true));
    assert_eq!(driver.bus.config_read(1, 6, 1) & 8, 8);
    assert_eq!((driver.bus.mmio_read(ISR, 1), driver.bus.mmio_read(ISR, 1)), (Some(1), Some(0)));
    assert_eq!(driver.bus.lines()[1], (17, false));
    assert!(driver.messages().is_empty());
    driver.enable_msix();
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!(driver.messages(), [0x41]);
    assert_eq!((driver.bus.mmio_read(ISR, 1), driver.bus.lines()[1]), (Some(0), (17, false)));
    // The driver suppresses the interrupt.
    assert!(driver.ram.write(rings(0).1, &1u16.to_le_bytes()));
    request(&mut driver, 4, 0, (0, 0));
    assert!(driver.messages().is_empty());
}

#[test]
fn event_indices_suppress_interrupts_and_ask_for_notifications() {
    let mut driver = Driver::with(Block::new(Box::new(disk()), ""));
    driver.start(VERSION_1 | EVENT_IDX);
    driver.enable_msix();
    let used_event = rings(0).1 + 4 + 2 * u64::from(QUEUE_SIZE);
    let avail_event = rings(0).2 + 4 + 8 * u64::from(QUEUE_SIZE);
    assert!(driver.ram.write(used_event, &1u16.to_le_bytes()));
    request(&mut driver, 4, 0, (0, 0));
    assert!(driver.messages().is_empty());
    assert_eq!(driver.bytes(avail_event), 1u16.to_le_bytes());
    request(&mut driver, 4, 0, (0, 0));
    assert_eq!(driver.messages(), [0x41]);
    assert_eq!(driver.bytes(avail_event), 2u16.to_le_bytes());
}

#[test]
fn nothing_happens_before_the_driver_is_ready_or_without_bus_mastering() {
    let mut driver = block(&disk());
    driver.write(0x14, 1, 0);
    driver.offer(0, 0, &[(BUFFERS, 16, 0), (BUFFERS + 0x1000, 513, WRITE)]);
    driver.notify(0);
    assert_eq!(driver.used(0).0, 0);
    driver.start(VERSION_1);
    driver.bus.config_write(1, 4, 2, 2);
    driver.offer(0, 0, &[(BUFFERS, 16, 0), (BUFFERS + 0x1000, 513, WRITE)]);
    driver.notify(0);
    assert_eq!(driver.used(0).0, 0);
    driver.bus.config_write(1, 4, 2, 6);
    driver.notify(0);
    driver.notify(7);
    assert_eq!(driver.used(0), (1, 0, 513));
}

#[test]
fn output_of_a_console_waits_for_its_notification() {
    let mut driver = Driver::with(Ports::console());
    driver.start(VERSION_1);
    assert!(driver.ram.write(BUFFERS, b"hello"));
    driver.offer(1, 0, &[(BUFFERS, 5, 0)]);
    driver.notify(0);
    assert!(driver.printed().is_empty());
    driver.notify(1);
    assert_eq!(driver.printed(), b"hello");
}

#[test]
fn a_console_passes_bytes_both_ways() {
    let mut driver = Driver::with(Ports::console());
    driver.start(VERSION_1);
    driver.enable_msix();
    assert!(driver.ram.write(BUFFERS, b"hello"));
    driver.offer(1, 0, &[(BUFFERS, 3, 0), (BUFFERS + 3, 2, 0)]);
    driver.notify(1);
    assert_eq!(driver.printed(), b"hello");
    assert!(driver.printed().is_empty());
    assert_eq!((driver.used(1), driver.messages()), ((1, 0, 0), vec![0x42]));

    driver.input(b"abcdef");
    assert!(driver.messages().is_empty());
    driver.offer(0, 0, &[(BUFFERS, 4, WRITE)]);
    driver.notify(0);
    assert_eq!((driver.used(0), driver.messages()), ((1, 0, 4), vec![0x41]));
    assert_eq!(driver.bytes(BUFFERS), *b"abcd");
    driver.offer(0, 1, &[(BUFFERS, 4, WRITE)]);
    driver.offer(0, 2, &[(BUFFERS + 8, 4, WRITE)]);
    driver.input(b"");
    assert_eq!((driver.used(0), driver.bytes(BUFFERS)), ((2, 1, 2), *b"ef"));
    driver.input(b"");
    assert_eq!(driver.used(0).0, 2);
}

/// Sends a control message of a console's driver: event and value, for port 0.
fn say(driver: &mut Driver, slot: u16, event: u16, value: u16) {
    let at = BUFFERS + 0x1000 + 8 * u64::from(slot);
    assert!(driver.ram.write(at, &[0; 4]));
    assert!(driver.ram.write(at + 4, &event.to_le_bytes()) && driver.ram.write(at + 6, &value.to_le_bytes()));
    driver.offer(3, slot, &[(at, 8, 0)]);
    driver.notify(3);
}

#[test]
fn a_console_waits_until_a_driver_with_control_messages_has_opened_it() {
    let mut driver = Driver::with(Ports::console());
    assert_eq!(driver.bus.mmio_read(DEVICE + 4, 4), Some(1), "one port");
    driver.start(VERSION_1 | 2);
    for slot in 0..3 {
        driver.offer(2, slot, &[(BUFFERS + 8 * u64::from(slot), 8, WRITE)]);
    }
    driver.notify(2);
    say(&mut driver, 0, 0, 1);
    assert_eq!((driver.used(2).0, driver.bytes(BUFFERS)), (1, [0, 0, 0, 0, 1, 0, 1, 0]), "the port is added");
    driver.offer(0, 0, &[(BUFFERS + 0x800, 4, WRITE)]);
    driver.notify(0);
    driver.input(b"abc");
    assert_eq!((driver.open(), driver.used(0).0), (false, 0), "the driver would drop it");
    say(&mut driver, 1, 3, 1);
    assert_eq!(driver.bytes(BUFFERS + 8), [0, 0, 0, 0, 4, 0, 1, 0], "it is a console");
    assert_eq!((driver.used(2).0, driver.bytes(BUFFERS + 16)), (3, [0, 0, 0, 0, 6, 0, 1, 0]), "somebody is there");
    say(&mut driver, 2, 6, 1);
    assert_eq!((driver.open(), driver.used(0), driver.bytes(BUFFERS + 0x800)), (true, (1, 0, 3), *b"abc"));
    say(&mut driver, 3, 6, 0);
    assert!(!driver.open());
    say(&mut driver, 4, 6, 1);
    driver.write(0x14, 1, 0);
    assert!(!driver.open(), "after a reset of the device");
}

#[test]
fn control_messages_that_nobody_takes_are_bounded() {
    let mut driver = Driver::with(Ports::console());
    driver.start(VERSION_1 | 2);
    (0..1000).for_each(|turn| say(&mut driver, turn % 8, 0, 1));
    let mut taken = 0;
    for turn in 0..300 {
        driver.offer(2, turn % 8, &[(BUFFERS, 8, WRITE)]);
        driver.notify(2);
        taken = driver.used(2).0;
    }
    assert_eq!(taken, 256);
}

#[test]
fn entropy_is_the_same_for_the_same_seed() {
    let fill = |seed| {
        let mut driver = Driver::with(Entropy::new(seed));
        driver.start(VERSION_1);
        driver.offer(0, 0, &[(BUFFERS, 33, WRITE)]);
        driver.notify(0);
        assert_eq!(driver.used(0), (1, 0, 33));
        driver.bytes::<34>(BUFFERS)
    };
    assert_eq!(fill(1), fill(1));
    assert_ne!(fill(1), fill(2));
    assert_eq!(fill(1)[33], 0);
    assert!(fill(1)[..33].iter().any(|&b| b != 0));
}

#[test]
fn hostile_chains_are_dropped_or_bounded() {
    let mut driver = Driver::with(Entropy::new(1));
    driver.start(VERSION_1);
    // A loop, a buffer outside memory, one that wraps around, a next index outside the table, an indirect table that
    // refers to an indirect table, one of odd length, one outside memory.
    driver.descriptor(rings(0).0, 0, (BUFFERS, 8, WRITE | NEXT), 0);
    driver.descriptor(rings(0).0, 1, (1 << 40, 8, WRITE), 0);
    driver.descriptor(rings(0).0, 2, (u64::MAX - 3, 8, WRITE), 0);
    driver.descriptor(rings(0).0, 3, (BUFFERS, 8, WRITE | NEXT), 999);
    driver.descriptor(rings(0).0, 4, (rings(0).0 + 64, 16, INDIRECT), 0);
    driver.descriptor(rings(0).0, 5, (rings(0).0, 17, INDIRECT), 0);
    driver.descriptor(rings(0).0, 6, (1 << 50, 16, INDIRECT), 0);
    driver.descriptor(rings(0).0, 7, (0, 4 << 20, WRITE), 0);
    for head in 0..7 {
        driver.publish(0, head);
    }
    driver.notify(0);
    assert_eq!((driver.used(0).0, driver.status()), (7, 0xf));
    // A chain that starts outside the table can't be returned.
    driver.publish(0, 77);
    driver.notify(0);
    assert_eq!((driver.used(0).0, driver.status()), (7, 0x4f));
    // A buffer that covers the rings themselves must not cause an endless loop.
    driver.start(VERSION_1);
    driver.publish(0, 7);
    driver.notify(0);
}

#[test]
fn broken_rings_need_a_reset_and_recover_by_it() {
    let mut driver = Driver::with(Entropy::new(1));
    driver.start(VERSION_1);
    driver.enable_msix();
    driver.write(0x10, 2, 0);
    // More requests than the size of the ring.
    assert!(driver.ram.write(rings(0).1 + 2, &100u16.to_le_bytes()));
    driver.notify(0);
    assert_eq!((driver.status(), driver.messages()), (0x4f, vec![0x40]));
    driver.notify(0);
    assert!(driver.messages().is_empty());
    driver.start(VERSION_1);
    driver.offer(0, 0, &[(BUFFERS, 8, WRITE)]);
    driver.notify(0);
    assert_eq!((driver.status(), driver.used(0)), (0xf, (1, 0, 8)));
    // Rings outside memory.
    for bad in [(1 << 40, 0x1000, 0x2000), (0x1000, 1 << 40, 0x2000), (0x1000, 0x2000, 0xffff_ffff_ffff_fff0)] {
        driver.write(0x14, 1, 0);
        driver.write(0x14, 1, 3);
        driver.write(0x16, 2, 0);
        driver.write(0x20, 8, bad.0);
        driver.write(0x28, 8, bad.1);
        driver.write(0x30, 8, bad.2);
        driver.write(0x1c, 2, 1);
        assert_eq!((driver.read(0x1c, 2), driver.status() & 0x40), (0, 0x40));
    }
}

/// Sets up queue 0 with its used ring at `used`, and makes the device ready.
fn start_with_used_ring_at<D: Device + 'static>(device: D, used: u64) -> Driver {
    let mut driver = Driver::with(device);
    driver.start(VERSION_1);
    driver.write(0x14, 1, 0);
    driver.write(0x14, 1, 3);
    driver.write(0x08, 4, 1);
    driver.write(0x0c, 4, 1);
    driver.write(0x14, 1, 0xb);
    let (descriptors, available, _) = rings(0);
    driver.set_up(0, (descriptors, available, used));
    driver.write(0x14, 1, 0xf);
    driver
}

#[test]
fn overlapping_rings_end() {
    let (descriptors, available, _) = rings(0);
    let mut driver = start_with_used_ring_at(Entropy::new(1), available);
    driver.descriptor(descriptors, 0, (BUFFERS, 2, WRITE), 0);
    driver.publish(0, 0);
    driver.notify(0);
    // The index in the used ring, which is also the index in the available ring, says that the one request is done.
    assert_eq!(driver.status(), 0xf);
    assert_eq!(
        (driver.bytes::<2>(available + 2), driver.bytes::<8>(available + 4)),
        ([1, 0], [0, 0, 0, 0, 2, 0, 0, 0])
    );
    assert_ne!(driver.bytes::<2>(BUFFERS), [0, 0]);
    driver.notify(0);
    assert_eq!((driver.status(), driver.bytes::<2>(available + 2)), (0xf, [1, 0]));
}

#[test]
fn a_ring_that_refills_itself_is_broken() {
    let mut driver = Driver::with(Ports::console());
    driver.start(VERSION_1);
    let (descriptors, available, _) = rings(0);
    // Each request gets two bytes of input, written over the index of the available ring: that adds one request.
    driver.descriptor(descriptors, 0, (available + 2, 2, WRITE), 0);
    driver.input(&(2..100).flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    driver.publish(0, 0);
    driver.notify(0);
    assert_eq!((driver.status(), driver.used(0)), (0x4f, (2 * QUEUE_SIZE, 0, 2)));
}

#[test]
fn the_configuration_window_reaches_the_registers() {
    let mut driver = Driver::with(Entropy::new(1));
    let at = driver.capability(9, |bus, at| bus.config_read(1, at + 3, 1) == 5);
    driver.bus.config_write(1, at + 8, 4, 0x12);
    driver.bus.config_write(1, at + 12, 4, 2);
    assert_eq!(driver.bus.config_read(1, at + 16, 2), 1);
    driver.bus.config_write(1, at + 8, 4, 0x14);
    driver.bus.config_write(1, at + 12, 4, 1);
    driver.bus.config_write(1, at + 16, 1, 3);
    assert_eq!(driver.status(), 3);
    for (offset, length) in [(0xffff_ffff, 4), (0x8000, 4), (1, 4), (0, 0), (0, 3)] {
        driver.bus.config_write(1, at + 8, 4, offset);
        driver.bus.config_write(1, at + 12, 4, length);
        driver.bus.config_write(1, at + 16, 4, 0);
        driver.bus.config_read(1, at + 16, 4);
    }
    assert_eq!(driver.status(), 3);
}

#[test]
fn disk_files_are_checked() {
    use std::path::Path;
    assert!(matches!(Disk::open(Path::new("/nonexistent"), true), Err(DiskError::Open { .. })));
    assert!(matches!(Disk::open(Path::new("/"), true), Err(DiskError::NotADisk(_))));
    assert!(matches!(Disk::open(Path::new("/dev/null"), true), Err(DiskError::NotADisk(_))));
    let path = std::env::temp_dir().join(format!("disk-{}", std::process::id()));
    std::fs::write(&path, [7; 1300]).unwrap();
    let mut disk = Disk::open(&path, false).unwrap();
    let mut bytes = [0; 4];
    disk.write(512, b"data").unwrap();
    disk.read(512, &mut bytes).unwrap();
    disk.flush().unwrap();
    assert_eq!((disk.len(), bytes), (1300, *b"data"));
    assert!(disk.read(1298, &mut bytes).is_err());
    std::fs::write(&path, [7; 100]).unwrap();
    assert!(matches!(Disk::open(&path, false), Err(DiskError::TooSmall(_))));
    std::fs::remove_file(&path).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// Random rings and register writes must cause neither a panic nor an endless loop.
    #[test]
    fn garbage_does_no_harm(
        table in prop::collection::vec(any::<u8>(), 128),
        addresses in prop::collection::vec(0u64..0x40_0000, 8),
        heads in prop::collection::vec(0u16..10, 8),
        accesses in prop::collection::vec((0u64..0x8000, prop::sample::select(vec![1u8, 2, 4, 8]), any::<u64>()), 0..20),
    ) {
            for kind in 0..3 {
            let mut driver = match kind {
                0 => Driver::with(Ports::console()),
                1 => Driver::with(Block::new(Box::new(disk()), "x")),
                _ => Driver::with(Entropy::new(1)),
            };
            driver.start(VERSION_1);
            driver.input(b"input");
            for queue in 0..driver.read(0x12, 2) as u16 {
                prop_assert!(driver.ram.write(rings(queue).0, &table));
                for (index, &address) in addresses.iter().enumerate() {
                    // Most descriptors point into memory; otherwise the devices would do little.
                    prop_assert!(driver.ram.write(rings(queue).0 + 16 * index as u64, &address.to_le_bytes()));
                    prop_assert!(driver.ram.write(rings(queue).0 + 16 * index as u64 + 10, &[0, 0]));
                }
                for &head in &heads {
                    driver.publish(queue, head);
                }
                driver.notify(queue);
            }
            driver.input(b"");
            for &(at, size, value) in &accesses {
                driver.bus.mmio_write(BASE + at, size, value);
                driver.bus.mmio_read(BASE + at, size);
            }
            driver.notify(0);
            driver.printed();
        }
    }
}
