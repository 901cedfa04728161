//! Data from the socket of a user-mode network, delivered to the NIC of a guest that has buffers for it, and the
//! guest's frames to the socket.

use crate::rig::Rig;
use machine::device::Device;
use machine::devices::Clock;
use machine::ixgbe::Ixgbe;
use machine::memory::layout;
use machine::pci::Function;
use machine::virtio::{Net, VirtioPci};
use network::options::{Net as Option, Nic};
use network::stream::{Condition, Frames, Link};
use network::{Network, Plug};
use std::io::{ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex};

const BASE: u64 = layout::PCI_WINDOW.start;
/// Number of frames taken at a time.
const MOST: usize = 7;
/// Number of times that the socket is polled.
const LOOKS: usize = 400;
/// The clock of the device, with ticks of a picosecond.
const CLOCK: Clock = Clock::new(1_000_000_000);
/// Picoseconds between two polls.
const INTERVAL: u64 = 5_000_000;
/// Addresses of rings and buffers.
const RING: u64 = 0x1_0000;
const BUFFERS: u64 = 0x4_0000;
const BUFFER: u64 = 0x1000;
const ENTRIES: u64 = 64;

/// The other end, which sends the bytes in pieces and then closes the connection, and accepts any amount.
struct Socket<'a> {
    bytes: &'a [u8],
    piece: usize,
    /// True if the next read finds no data yet.
    waits: bool,
    taken: usize,
}

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.waits = !self.waits;
        if self.waits {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = self.piece.min(buffer.len()).min(self.bytes.len());
        let (now, rest) = self.bytes.split_at(len);
        buffer[..len].copy_from_slice(now);
        self.bytes = rest;
        Ok(len)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.taken += 1;
        let len = bytes.len().min(self.piece);
        if self.taken.is_multiple_of(3) { Err(ErrorKind::WouldBlock.into()) } else { Ok(len) }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn nic(text: &str) -> Nic {
    match text.parse() {
        Ok(Option::Nic(nic)) => nic,
        other => panic!("{text}: {other:?}"),
    }
}

/// Creates a NIC with buffers for frames.
fn rig(ixgbe: bool) -> Rig {
    let nic = nic(if ixgbe { "user,model=ixgbe" } else { "user" });
    let network = Arc::new(Mutex::new(Network::new([(&nic, nic.address(0, 0))].into_iter())));
    let plug = Box::new(Plug::new(&network, 0));
    let device: Box<dyn Function> = match ixgbe {
        true => Box::new(Ixgbe::new(nic.address(0, 0), plug, CLOCK)),
        false => Box::new(VirtioPci::new(Net::new(&nic, nic.address(0, 0), plug, CLOCK))),
    };
    let mut rig = Rig::new(device, network);
    if ixgbe {
        let ring = (0..ENTRIES).flat_map(|entry| [BUFFERS + entry * BUFFER, 0]).flat_map(u64::to_le_bytes);
        assert!(rig.ram.write(RING, &ring.collect::<Vec<u8>>()));
        for (at, value) in [
            (0x1000, RING),
            (0x1004, 0),
            (0x1008, ENTRIES * 16),
            (0x1014, 0x0200_0404),
            (0x5080, 0x702),
            (0x1028, 0x0200_0000),
            (0x3000, 1),
            (0x1018, ENTRIES - 1),
        ] {
            rig.write(BASE + at, 4, value);
        }
        return rig;
    }
    for (at, size, value) in [(0x14, 1, 0), (0x14, 1, 3), (0x08, 4, 1), (0x0c, 4, 1), (0x14, 1, 0xb)] {
        rig.write(BASE + at, size, value);
    }
    let mut available = vec![0, 0];
    available.extend((ENTRIES as u16).to_le_bytes());
    for entry in 0..ENTRIES {
        let mut descriptor = (BUFFERS + entry * BUFFER).to_le_bytes().to_vec();
        descriptor.extend((BUFFER as u32).to_le_bytes());
        descriptor.extend([2, 0, 0, 0]);
        assert!(rig.ram.write(RING + 16 * entry, &descriptor));
        available.extend((entry as u16).to_le_bytes());
    }
    assert!(rig.ram.write(RING + 0x1000, &available));
    for (at, size, value) in [
        (0x16, 2, 0),
        (0x18, 2, ENTRIES),
        (0x20, 8, RING),
        (0x28, 8, RING + 0x1000),
        (0x30, 8, RING + 0x2000),
        (0x1c, 2, 1),
    ] {
        rig.write(BASE + at, size, value);
    }
    rig.write(BASE + 0x14, 1, 0xf);
    rig
}

/// Plays the other end of the socket. The first byte selects the NIC and the size of the pieces.
pub fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let mut whole = Frames::default();
    whole.push(data);
    let piece = match choice >> 1 {
        0 => data.len().max(1),
        piece => usize::from(piece) * usize::from(piece),
    };
    let mut link = Link::new(Socket { bytes: data, piece, waits: false, taken: 0 });
    let mut rig = rig(choice & 1 != 0);
    for _ in 0..LOOKS {
        let (frames, condition) = link.receive(MOST);
        assert!(frames.len() <= MOST);
        for frame in frames {
            assert_eq!(whole.next_frame(), Ok(Some(frame.clone())), "pieces change nothing");
            link.send(&frame);
            let network = rig.network.clone();
            network.lock().expect("nobody has panicked").host_frame(0, rig.now, frame);
        }
        link.flush();
        let end = rig.now + INTERVAL;
        while let Some(event) = Device::next_event(&rig.bus).filter(|event| *event <= end) {
            assert!(event > rig.now, "time passes");
            rig.now = event;
            rig.with(Device::advance);
        }
        rig.now = end;
        rig.with(Device::advance);
        rig.network.lock().expect("nobody has panicked").take_outgoing();
        rig.out.messages.clear();
        rig.out.lines.clear();
        rig.ram.take_written();
        match condition {
            Condition::Open => {}
            Condition::Closed => return assert_eq!(whole.next_frame(), Ok(None), "all that came in full is taken"),
            Condition::Nonsense(error) => return assert_eq!(whole.next_frame(), Err(error)),
        }
    }
}

/// Returns two frames for each NIC, in pieces of several sizes.
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = |len: usize| {
        let mut frame = (len as u32).to_be_bytes().to_vec();
        frame.extend([0xff; 6]);
        frame.extend([2; 6]);
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.resize(len + 4, 3);
        frame
    };
    let stream = [frame(60), frame(1514)].concat();
    [0, 1, 2, 3, 20, 21, 255].map(|choice| [&[choice][..], &stream].concat()).to_vec()
}
