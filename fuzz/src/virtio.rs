//! Virtio devices with rings that the bytes describe.

use crate::rig::Rig;
use arbitrary::{Result, Unstructured};
use machine::device::Device;
use machine::devices::Clock;
use machine::memory::layout;
use machine::pci::Function;
use machine::virtio::{Backing, Block, Entropy, Net, Ports, VirtioPci};
use network::options::{Net as NetOption, Nic};
use network::{Network, Plug};
use std::io;
use std::sync::{Arc, Mutex};

const BASE: u64 = layout::PCI_WINDOW.start;
const NOTIFY: u64 = BASE + 0x3000;
const TABLE: u64 = BASE + 0x4000;
const STEPS: usize = 200;
/// Address of the rings, three pages for each queue: descriptors, available ring, used ring.
const RINGS: u64 = 0x1_0000;

/// A disk in memory.
struct Sectors(Vec<u8>);

impl Backing for Sectors {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let from = self.0.get(offset as usize..offset as usize + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(from);
        Ok(())
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let to = self.0.get_mut(offset as usize..offset as usize + bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        to.copy_from_slice(bytes);
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a device, starts it as a driver does unless the bytes select otherwise, and executes their operations.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // An input that is too short ends this early.
    let _ = drive(&mut input);
}

fn drive(input: &mut Unstructured) -> Result<()> {
    let (choices, features) = input.arbitrary::<(u8, u64)>()?;
    let nics = nics(choices);
    let network = Arc::new(Mutex::new(Network::new(nics.iter().map(|nic| (nic, nic.address(0, 0))))));
    let device: Box<dyn Function> = match choices & 3 {
        // The ticks of this clock are picoseconds.
        3 => Box::new(VirtioPci::new(Net::new(
            &nics[0],
            nics[0].address(0, 0),
            Box::new(Plug::new(&network, 0)),
            Clock::new(1_000_000_000),
        ))),
        0 => Box::new(VirtioPci::new(Ports::console())),
        1 => Box::new(VirtioPci::new(Entropy::new(1))),
        _ => Box::new(VirtioPci::new(Block::new(Box::new(Sectors(vec![7; 8 * 512 + 100])), "disk"))),
    };
    let mut rig = Rig::new(device, network);
    let ram = rig.ram.clone();
    if choices & 4 == 0 {
        start(&mut rig, features);
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.arbitrary::<u8>()? & 15 {
            0 | 1 => {
                // Writes a descriptor.
                let (queue, index, address) = input.arbitrary::<(u8, u8, u16)>()?;
                let (len, flags, next) = input.arbitrary::<(u16, u8, u8)>()?;
                let mut bytes = (u64::from(address) << 4).to_le_bytes().to_vec();
                bytes.extend(u32::from(len).to_le_bytes());
                bytes.extend(u16::from(flags).to_le_bytes());
                bytes.extend(u16::from(next).to_le_bytes());
                assert!(ram.write(rings(queue) + 16 * u64::from(index & 15), &bytes));
            }
            2 | 3 => {
                // Makes a descriptor available.
                let (queue, head) = input.arbitrary::<(u8, u8)>()?;
                let ring = rings(queue) + 0x1000;
                let mut index = [0; 2];
                assert!(ram.read(ring + 2, &mut index));
                let index = u16::from_le_bytes(index);
                assert!(ram.write(ring + 4 + 2 * u64::from(index & 7), &u16::from(head).to_le_bytes()));
                assert!(ram.write(ring + 2, &index.wrapping_add(1).to_le_bytes()));
            }
            4 | 5 => {
                let queue = u64::from(input.arbitrary::<u8>()? & 3);
                rig.write(NOTIFY + 4 * queue, 2, queue);
            }
            6 => {
                let at = u64::from(input.arbitrary::<u16>()?) << 4;
                assert!(ram.write(at, &input.arbitrary::<u64>()?.to_le_bytes()));
            }
            7 => {
                let (at, size, value) = input.arbitrary::<(u16, u8, u64)>()?;
                rig.write(BASE + u64::from(at & 0x7fff), 1 << (size & 3), value);
            }
            8 => {
                let address = BASE + u64::from(input.arbitrary::<u16>()? & 0x7fff);
                rig.with(|bus, ctx| bus.memory_read(address, 4, ctx));
            }
            9 => {
                let (at, value) = input.arbitrary::<(u8, u32)>()?;
                rig.with(|bus, ctx| bus.config_write(1, usize::from(at & 0xfc), 4, value, ctx));
            }
            10 => {
                let at = usize::from(input.arbitrary::<u8>()?);
                rig.with(|bus, ctx| bus.config_read(1, at, 1, ctx));
            }
            11 => {
                let bytes = input.arbitrary::<[u8; 5]>()?;
                rig.with(|bus, ctx| bus.input(1, &bytes, ctx));
            }
            12 => {
                // Time advances as on the board: to each event, up to a time.
                let end = rig.now + u64::from(input.arbitrary::<u16>()?) * 1000;
                while let Some(event) = Device::next_event(&rig.bus).filter(|event| *event <= end) {
                    assert!(event > rig.now, "time passes");
                    rig.now = event;
                    rig.with(Device::advance);
                }
                rig.now = end;
                rig.with(Device::advance);
                let network = rig.network.clone();
                let mut network = network.lock().expect("nobody has panicked");
                network.take_outgoing();
                network.host_frame(0, end, input.bytes(60).unwrap_or(&[]).to_vec());
            }
            13 => start(&mut rig, features),
            14 => {
                let (vector, value) = input.arbitrary::<(u8, u8)>()?;
                rig.write(TABLE + 16 * u64::from(vector & 3) + 12, 4, u64::from(value & 1));
            }
            _ => rig.out.printed.clear(),
        }
        rig.out.messages.clear();
        rig.out.lines.clear();
        ram.take_written();
    }
    Ok(())
}

fn rings(queue: u8) -> u64 {
    RINGS + 0x3000 * u64::from(queue & 3)
}

/// Returns a network device at one of several kinds of ports.
fn nics(choices: u8) -> Vec<Nic> {
    let options = ["user,packed=on", "generator:rate=5M,size=imix,packed=on", "user,queues=2", "bridge"];
    let nic = |text: &str| match text.parse() {
        Ok(NetOption::Nic(nic)) => nic,
        other => panic!("{text}: {other:?}"),
    };
    vec![nic(options[usize::from(choices >> 4 & 3)])]
}

/// Starts the device as a driver does: negotiates, and sets up all queues with eight entries.
fn start(rig: &mut Rig, features: u64) {
    let mut write = |at: u64, size: u8, value: u64| rig.write(BASE + at, size, value);
    for (at, size, value) in [
        (0x14, 1, 0),
        (0x14, 1, 3),
        (0x08, 4, 0),
        (0x0c, 4, features & 0xffff_ffff),
        (0x08, 4, 1),
        (0x0c, 4, features >> 32 | 1),
        (0x14, 1, 0xb),
    ] {
        write(at, size, value);
    }
    for queue in 0..3u8 {
        let at = rings(queue);
        for (offset, size, value) in [
            (0x16, 2, u64::from(queue)),
            (0x18, 2, 8),
            (0x1a, 2, u64::from(queue)),
            (0x20, 8, at),
            (0x28, 8, at + 0x1000),
            (0x30, 8, at + 0x2000),
            (0x1c, 2, 1),
        ] {
            write(offset, size, value);
        }
    }
    write(0x14, 1, 0xf);
}

/// Returns a request to each device.
pub fn seeds() -> Vec<Vec<u8>> {
    let descriptor = |queue: u8, index: u8, address: u16, len: u16, flags: u8, next: u8| {
        let mut bytes = vec![0, queue, index];
        bytes.extend(address.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend([flags, next]);
        bytes
    };
    let mut seeds = Vec::new();
    for device in [0, 1, 2, 3, 0x13, 0x23] {
        for queue in 0..2u8 {
            // A network device merges buffers and has a control queue.
            let features = if device & 3 == 3 { [0, 0x80, 2, 0, 0, 0, 0, 0] } else { [0; 8] };
            let mut seed = vec![device];
            seed.extend(features);
            seed.extend([11, b'i', b'n', b'p', b'u', b't']);
            seed.extend(descriptor(queue, 0, 0x8000, 16, 1, 1));
            seed.extend(descriptor(queue, 1, 0x9000, 512, 3, 2));
            seed.extend(descriptor(queue, 2, 0xa000, 1, 2, 0));
            seed.extend([2, queue, 0, 4, queue, 12, 0xff, 0xff, 15]);
            seeds.push(seed);
        }
    }
    seeds
}
