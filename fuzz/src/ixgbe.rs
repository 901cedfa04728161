//! The 82599 with registers, rings and descriptors that the bytes describe.

use crate::rig::Rig;
use arbitrary::{Result, Unstructured};
use machine::device::Device;
use machine::devices::Clock;
use machine::ixgbe::Ixgbe;
use machine::memory::{GuestRam, layout};
use machine::pci::Function;
use machine::state::Saved;
use network::options::{Net, Nic};
use network::{Network, Plug};
use std::sync::{Arc, Mutex};

const BASE: u64 = layout::PCI_WINDOW.start;
const STEPS: usize = 300;
/// Rings of 16 entries: receive queue n is at `RX + n * RING`, transmit queue n at `TX + n * RING`.
const RX: u64 = 0x1_0000;
const TX: u64 = 0x2_0000;
const RING: u64 = 0x1000;
const QUEUES: u64 = 3;
/// The clock of the device, with ticks of a picosecond.
const CLOCK: Clock = Clock::new(1_000_000_000);

/// Control registers and the values that a driver writes there first.
const STARTED: [(u64, u32); 24] = [
    (0x5080, 0x700),
    (0x5000, 0x2000),
    (0x4a80, 0x8100_0001),
    (0x0900, 0x8180_8080),
    (0x0904, 0x8180),
    (0x0a00, 0x8200),
    (0x0898, 0x4000_0010),
    (0x0ad0, 0xffff_ffff),
    (0x0aa0, 0xffff_ffff),
    (0x0880, 0x7fff_ffff),
    (0x0820, 0x40),
    (0x5818, 0x00f3_0001),
    (0x5c00, 0x0102_0001),
    (0x5c80, 0x1234_5678),
    (0xee00, 0x4a06_0001),
    (0xee2c, 0x0001_8041),
    (0x5088, 0x4000_8100),
    (0x5090, 0x0000_0004),
    (0x4268, 0x2600_0000),
    (0x4240, 0x0000_0407),
    (0x5128, 0x8000_88f7),
    (0xec00, 0x8001_0000),
    (0xea00, 0x0000_1330),
    (0x3000, 1),
];

/// Writes a register.
fn write(rig: &mut Rig, at: u64, value: u32) {
    rig.write(BASE + at, 4, value.into());
}

/// Makes a device, starts it as a driver does unless the bytes select otherwise, and executes their operations.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // An input that is too short ends this early.
    let _ = drive(&mut input);
}

fn nic(choice: u8) -> Nic {
    let options = [
        "user,model=ixgbe",
        "generator:rate=5M,size=imix,model=ixgbe",
        "bridge,model=ixgbe",
        "sink,rate=1G,model=ixgbe",
    ];
    let text = options[usize::from(choice & 3)];
    match text.parse() {
        Ok(Net::Nic(nic)) => nic,
        other => panic!("{text}: {other:?}"),
    }
}

fn device(nic: &Nic) -> (Ixgbe, Arc<Mutex<Network>>) {
    let network = Arc::new(Mutex::new(Network::new([(nic, nic.address(0, 0))].into_iter())));
    (Ixgbe::new(nic.address(0, 0), Box::new(Plug::new(&network, 0)), CLOCK), network)
}

fn drive(input: &mut Unstructured) -> Result<()> {
    let choice = input.arbitrary::<u8>()?;
    let nic = nic(choice);
    let (device, network) = device(&nic);
    let mut rig = Rig::new(Box::new(device), network);
    let ram = rig.ram.clone();
    if choice & 4 == 0 {
        start(&mut rig, choice);
    }
    let mut saved = false;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.arbitrary::<u8>()? & 15 {
            0 | 1 => {
                // Writes a descriptor of a transmit queue.
                let (queue, index, address) = input.arbitrary::<(u8, u8, u16)>()?;
                let (len, command, options) = input.arbitrary::<(u16, u16, u32)>()?;
                let command = u32::from(command) << 16 | u32::from(len);
                descriptor(&ram, TX, queue, index, [u32::from(address) << 4, 0, command, options]);
            }
            2 => {
                // Writes any descriptor.
                let (queue, index, words) = input.arbitrary::<(u8, u8, [u32; 4])>()?;
                descriptor(&ram, if queue & 128 != 0 { RX } else { TX }, queue, index, words);
            }
            3 | 4 => {
                // Writes the tail of a receive or transmit queue.
                let (queue, tail) = input.arbitrary::<(u8, u8)>()?;
                let first = if queue & 128 != 0 { 0x1018 } else { 0x6018 };
                write(&mut rig, first + 0x40 * (u64::from(queue) % QUEUES), u32::from(tail & 31));
            }
            5 => {
                let at = u64::from(input.arbitrary::<u16>()?) << 4;
                assert!(ram.write(at, &input.arbitrary::<u64>()?.to_le_bytes()));
            }
            6 => {
                let (at, value) = input.arbitrary::<(u16, u32)>()?;
                write(&mut rig, u64::from(at) << 2 & 0x1_ffff, value);
            }
            7 => {
                // Writes a control register.
                let (which, value) = input.arbitrary::<(u8, u32)>()?;
                let (at, usual) = STARTED[usize::from(which) % STARTED.len()];
                write(&mut rig, at, usual ^ value);
            }
            8 => {
                let (at, size) = input.arbitrary::<(u32, u8)>()?;
                let address = BASE + u64::from(at & 0x3_ffff);
                rig.with(|bus, ctx| bus.memory_read(address, 1 << (size & 3), ctx));
            }
            9 => {
                let (at, value) = input.arbitrary::<(u8, u32)>()?;
                rig.with(|bus, ctx| bus.config_write(1, usize::from(at & 0xfc), 4, value, ctx));
            }
            10 => {
                // Writes registers of a queue.
                let (queue, register, value) = input.arbitrary::<(u8, u8, u32)>()?;
                let first = if queue & 128 != 0 { 0x1000 } else { 0x6000 };
                write(&mut rig, first + 0x40 * (u64::from(queue) % QUEUES) + u64::from(register & 0x3c), value);
            }
            11 => {
                // Writes context descriptors with the packet's layout.
                let (queue, index, words) = input.arbitrary::<(u8, u8, [u16; 3])>()?;
                let [lengths, kind, segment] = words.map(u32::from);
                descriptor(&ram, TX, queue, index, [lengths, 0, kind | 2 << 20 | 1 << 29, segment << 8]);
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
                let len = usize::from(input.arbitrary::<u8>()?);
                network.host_frame(0, end, input.bytes(len).unwrap_or(&[]).to_vec());
            }
            13 => start(&mut rig, input.arbitrary::<u8>()?),
            14 => {
                let (at, value) = input.arbitrary::<(u16, u32)>()?;
                write(&mut rig, 0x2_0000 + u64::from(at & 0x3fff & !3), value);
            }
            // Once, since this takes as long as many other steps.
            _ if !saved => {
                saved = true;
                restored(&nic, &mut rig);
            }
            _ => {}
        }
        rig.out.messages.clear();
        rig.out.lines.clear();
        ram.take_written();
    }
    Ok(())
}

/// Checks that a device restores another's state and then has the same.
fn restored(nic: &Nic, rig: &mut Rig) {
    let state = rig.bus.function(1).expect("there is a device").save().expect("it can be saved");
    let (mut other, _) = device(nic);
    // The bus has given the function a pin.
    other.config_mut().set_interrupt(0, 0);
    other.restore(&state).expect("it is a state of such a device");
    assert!(other.save().expect("it can be saved") == state, "the state is another");
}

fn descriptor(ram: &GuestRam, ring: u64, queue: u8, index: u8, words: [u32; 4]) {
    let at = ring + RING * (u64::from(queue & 127) % QUEUES) + 16 * u64::from(index & 15);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(ram.write(at, &bytes));
}

/// Starts the device as a driver does: switches everything on, and sets up queues with sixteen entries.
fn start(rig: &mut Rig, choice: u8) {
    for queue in 0..QUEUES {
        let block = |first: u64| first + 0x40 * queue;
        let form = u32::from(choice >> 5) << 25;
        for (at, value) in [
            (block(0x1000), (RX + RING * queue) as u32),
            (block(0x1008), 256),
            (block(0x1014), form | 0x201 | u32::from(choice & 16) << 24),
            (block(0x1028), 0x4200_0000),
            (block(0x1018), 15),
            (block(0x6000), (TX + RING * queue) as u32),
            (block(0x6008), 256),
            (block(0x6028), 0x0200_0000),
        ] {
            write(rig, at, value);
        }
        for number in 0..16u64 {
            let buffer = 0x8_0000 + 0x1000 * number + 0x400 * queue;
            assert!(rig.ram.write(RX + RING * queue + 16 * number, &buffer.to_le_bytes()));
        }
    }
    for (at, value) in STARTED {
        write(rig, at, value);
    }
    if choice & 8 != 0 {
        rig.with(|bus, ctx| bus.config_write(1, 0x70, 4, 0x8000_0011, ctx));
    }
}

/// Returns a sent frame and a received one, on each kind of port and with each kind of receive descriptor.
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = [
        2, 0x74, 0x67, 0, 0, 1, 2, 0x74, 0x67, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1,
        10, 0, 0, 2, 0, 9, 0, 9, 0, 26, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
    ];
    let transmit = |index: u8, command: u16, options: u32| {
        let mut bytes = vec![0, 0, index, 0, 0x0a];
        bytes.extend((frame.len() as u16).to_le_bytes());
        bytes.extend(command.to_le_bytes());
        bytes.extend(options.to_le_bytes());
        bytes
    };
    let mut seeds = Vec::new();
    for port in 0..4u8 {
        for form in [0u8, 1, 2, 5] {
            let mut seed = vec![port | 8 | form << 5];
            for (number, part) in frame.chunks(8).enumerate() {
                let mut part = part.to_vec();
                part.resize(8, 0);
                seed.push(5);
                seed.extend((0x0a00 + number as u16 / 2).to_le_bytes());
                seed.extend(part);
            }
            // A context for UDP over IPv4 is followed by data with checksums, segments and a tag.
            seed.extend([11, 0, 0, 20, 28, 0, 4, 8, 1]);
            seed.extend(transmit(1, 0x2b30, 0x300));
            seed.extend(transmit(2, 0xab30, 0x300));
            seed.extend(transmit(3, 0x4b30 | 0x2000, 0));
            seed.extend([3, 0, 4, 12, 0xff, 0xff, frame.len() as u8]);
            seed.extend(frame);
            seed.extend([12, 0xff, 0xff, 0, 15]);
            seeds.push(seed);
        }
    }
    seeds
}
