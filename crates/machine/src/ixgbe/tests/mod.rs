//! Tests of the device, which is connected to a network of its own and driven as a driver would.

mod receive;
mod registers;
mod states;
mod transmit;

use super::*;
use crate::device::Msi;
use crate::pci::testing::Rig;
use network::options::{Net, Nic};
use network::{Network, Plug};
use std::sync::{Arc, Mutex};

/// Clock with one tick per picosecond.
const CLOCK: Clock = Clock::new(1_000_000_000);
const BASE: u64 = 0xc000_0000;
const RX_RING: u64 = 0x1_0000;
const TX_RING: u64 = 0x2_0000;
/// Receive buffers, 4 KiB apart, and one transmit buffer.
const BUFFERS: u64 = 0x10_0000;
const SENT: u64 = 0x8_0000;
const ENTRIES: u32 = 64;
const HEADERS: u64 = 0x30_0000;
const MAC: [u8; 6] = [2, 0x74, 0x67, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0x74, 0x67, 0, 0, 2];

struct Bench {
    rig: Rig,
    network: Arc<Mutex<Network>>,
    tail: u32,
}

fn nic(text: &str) -> Nic {
    match text.parse().unwrap() {
        Net::Nic(nic) => nic,
        other => panic!("{other:?}"),
    }
}

fn device(text: &str) -> (Ixgbe, Arc<Mutex<Network>>) {
    let nic = nic(&format!("{text},model=ixgbe"));
    let network = Arc::new(Mutex::new(Network::new([(&nic, MAC)].into_iter())));
    (Ixgbe::new(MAC, Box::new(Plug::new(&network, 0)), CLOCK), network)
}

impl Bench {
    fn new(text: &str) -> Self {
        let (device, network) = device(text);
        let mut rig = Rig::new();
        rig.bus.add(Box::new(device)).unwrap();
        rig.config_write(1, 4, 2, 6);
        Self { rig, network, tail: 0 }
    }

    /// Creates a device with one receive and one transmit queue, all descriptors available, and vectors 0 and 1 for
    /// queue 0 and the other causes.
    fn started(text: &str) -> Self {
        let mut bench = Self::new(text);
        for (at, value) in [
            (reg::FCTRL, bit::FCTRL_BROADCAST),
            (reg::RXCSUM, bit::RXCSUM_NO_FRAGMENT_SUM),
            (reg::DMATXCTL, bit::DMATXCTL_ENABLE),
            (file::tx(0, reg::TDBAL), TX_RING as u32),
            (file::tx(0, reg::TDLEN), ENTRIES * 16),
            (file::tx(0, reg::TXDCTL), bit::QUEUE_ENABLE),
            (reg::IVAR, 0x8080),
            (reg::IVAR_MISC, 0x8100),
            (reg::GPIE, 1 << 4 | bit::GPIE_AUTO_MASK),
            (reg::EIAM_EX, !0),
        ] {
            bench.write(at, value);
        }
        bench.queue(0, ENTRIES - 1);
        bench.write(reg::RXCTRL, bit::RXCTRL_ENABLE);
        bench.write(reg::EIMS_EX, 3);
        bench.enable_msix(2);
        bench
    }

    /// Enables a receive queue with `count` descriptors of 2 KiB.
    fn queue(&mut self, queue: usize, count: u32) {
        let ring = RX_RING + 0x1000 * queue as u64;
        for number in 0..u64::from(ENTRIES) {
            let buffer = BUFFERS + 0x1000 * number + 0x4_0000 * queue as u64;
            assert!(self.rig.ram.write(ring + 16 * number, &buffer.to_le_bytes()));
            assert!(self.rig.ram.write(ring + 16 * number + 8, &(HEADERS + 0x100 * number).to_le_bytes()));
        }
        for (register, value) in [
            (reg::RDBAL, ring as u32),
            (reg::RDBAH, 0),
            (reg::RDLEN, ENTRIES * 16),
            (reg::SRRCTL, 1 << 25 | 2),
            (reg::RXDCTL, bit::QUEUE_ENABLE),
            (reg::RDT, count),
        ] {
            self.write(file::rx(queue, register), value);
        }
    }

    fn enable_msix(&mut self, vectors: u64) {
        let table = BASE + 0x2_0000;
        for vector in 0..vectors {
            for (at, value) in [(0, 0xfee0_0000), (4, 0), (8, 0x40 + vector), (12, 0)] {
                self.rig.mmio_write(table + 16 * vector + at, 4, value);
            }
        }
        self.rig.config_write(1, 0x72, 2, 0x8000);
    }

    fn write(&mut self, at: u32, value: u32) {
        self.rig.mmio_write(BASE + u64::from(at), 4, value.into());
    }

    fn read(&mut self, at: u32) -> u32 {
        self.rig.mmio_read(BASE + u64::from(at), 4).unwrap() as u32
    }

    fn run_until(&mut self, end: u64) {
        while let Some(event) = crate::device::Device::next_event(&self.rig.bus).filter(|event| *event <= end) {
            assert!(event > self.rig.now, "time passes");
            self.rig.advance(event);
        }
        self.rig.advance(end);
    }

    fn run(&mut self, time: u64) {
        self.run_until(self.rig.now + time);
    }

    fn host_sends(&mut self, bytes: &[u8]) {
        let now = self.rig.now;
        self.network.lock().unwrap().host_frame(0, now, bytes.to_vec());
    }

    fn to_host(&self) -> Vec<Vec<u8>> {
        self.network.lock().unwrap().take_outgoing().into_iter().map(|(_, bytes)| bytes).collect()
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.rig.ram.read(at, &mut bytes));
        bytes
    }

    fn words(&self, at: u64) -> [u32; 4] {
        let bytes = self.bytes(at, 16);
        std::array::from_fn(|word| u32::from_le_bytes(bytes[4 * word..4 * word + 4].try_into().unwrap()))
    }

    /// Returns a descriptor of a receive queue.
    fn received(&self, queue: usize, number: u64) -> [u32; 4] {
        self.words(RX_RING + 0x1000 * queue as u64 + 16 * number)
    }

    fn buffer(&self, queue: usize, number: u64, len: usize) -> Vec<u8> {
        self.bytes(BUFFERS + 0x1000 * number + 0x4_0000 * queue as u64, len)
    }

    fn describe(&mut self, words: [u32; 4]) {
        let at = TX_RING + 16 * u64::from(self.tail);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(self.rig.ram.write(at, &bytes));
        self.tail = (self.tail + 1) % ENTRIES;
    }

    /// Sends a frame with one data descriptor, with additional commands and options.
    fn send(&mut self, frame: &[u8], command: u32, options: u32) {
        assert!(self.rig.ram.write(SENT, frame));
        let command = command | frame.len() as u32 | 3 << 20 | 1 << 24 | 1 << 27 | 1 << 29;
        self.describe([SENT as u32, 0, command, options | (frame.len() as u32) << 14]);
        self.write(file::tx(0, reg::TDT), self.tail);
    }

    fn context(&mut self, mac: u32, ip: u32, l4: u32, kind: u32, size: u32, tag: u32) {
        self.describe([tag << 16 | mac << 9 | ip, 0, kind | 2 << 20 | 1 << 29, size << 16 | l4 << 8]);
    }

    fn interrupts(&mut self) -> Vec<u32> {
        self.rig.take_interrupts().iter().map(|Msi { data, .. }| *data).collect()
    }
}

/// Returns a UDP datagram from another station.
fn udp(to: [u8; 6], source_port: u16, payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2(OTHER, to)
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
        .udp(source_port, 9)
        .write(&mut frame, &vec![7; payload])
        .unwrap();
    frame
}

/// Returns a TCP segment from the device's own address.
fn tcp(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2(MAC, OTHER)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 77, 500)
        .write(&mut frame, &(0..payload).map(|at| at as u8).collect::<Vec<_>>())
        .unwrap();
    frame
}
