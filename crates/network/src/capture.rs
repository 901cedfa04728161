//! Packet captures: writing of pcapng, and reading of pcapng or the older pcap for replay.

use crate::frame::LONGEST;
use crate::time::Time;
use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::packet::PacketBlock;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{Block, PcapNgParser, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};
use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;
use thiserror::Error;

/// Maximum number of frames that are read.
const MOST: usize = 1 << 22;
/// Maximum number of interfaces per section that are read, because they are kept in memory.
const MOST_INTERFACES: usize = 1 << 12;
/// Timestamp resolution of written captures: the unit is 10 to the minus this, a picosecond.
const RESOLUTION: u8 = 12;
/// Default resolution of an interface: microseconds.
const DEFAULT_RESOLUTION: u8 = 6;

/// Reason for which a capture can't be read.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The file has another format, or is damaged.
    #[error("it is not a pcap or pcapng capture, or it is damaged: {0}")]
    Format(#[from] PcapError),
    /// The capture is of another kind of network.
    #[error("it is a capture of {0:?}; only captures of Ethernet can be sent")]
    NotEthernet(DataLink),
    /// The capture is too large.
    #[error("it has more than {MOST} frames")]
    TooMany,
    /// The times of the frames are needed, and the capture lacks them.
    #[error("it has packets in Simple Packet Blocks, which have no times: give a rate, such as rate=100K or rate=line")]
    NoTimes,
    /// The capture has no frame that can be sent.
    #[error("it has no complete Ethernet frame")]
    Empty,
}

/// Frames and their times.
pub type Recorded = Vec<(Time, Vec<u8>)>;

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by the NIC.
    In,
    /// Sent by the NIC.
    Out,
}

/// A capture that is being written. Each port is an interface of it.
pub struct Capture {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    /// The first error, after which nothing more is written.
    failed: Option<String>,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Capture").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Capture {
    /// Begins a capture of interfaces with these names and bit rates.
    pub fn new(to: Box<dyn Write + Send>, interfaces: &[(String, u64)]) -> Result<Self, PcapError> {
        let program = SectionHeaderOption::UserApplication(Cow::Borrowed("tollgate"));
        let section =
            SectionHeaderBlock { endianness: Endianness::Little, options: vec![program], ..Default::default() };
        let mut writer = PcapNgWriter::with_section_header(to, section)?;
        for (name, speed) in interfaces {
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfSpeed(*speed),
                InterfaceDescriptionOption::IfTsResol(RESOLUTION),
            ];
            let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
            writer.write_block(&Block::InterfaceDescription(block))?;
        }
        Ok(Self { writer, failed: None })
    }

    /// Writes a frame on an interface.
    pub fn frame(&mut self, interface: usize, now: Time, direction: Direction, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let flags = match direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        let block = EnhancedPacketBlock {
            interface_id: interface as u32,
            // The library writes the nanoseconds of a duration in the interface's unit.
            timestamp: Duration::from_nanos(now),
            original_len: bytes.len() as u32,
            data: Cow::Borrowed(bytes),
            options: vec![EnhancedPacketOption::Flags(flags)],
        };
        if let Err(error) = self.writer.write_block(&Block::EnhancedPacket(block)) {
            self.failed = Some(error.to_string());
        }
    }

    /// Ends the capture, and returns the first error.
    pub fn finish(mut self) -> Result<(), String> {
        match self.failed.take() {
            Some(failed) => Err(failed),
            None => self.writer.get_mut().flush().map_err(|error| error.to_string()),
        }
    }
}

/// Returns the frames of a capture, with the time since the first one. With `timed`, a frame without a time is an error;
/// otherwise the times are meaningless if there is such a frame.
pub fn read(file: &[u8], timed: bool) -> Result<Recorded, CaptureError> {
    const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
    let frames = if file.starts_with(&SECTION) { read_pcapng(file, timed)? } else { read_pcap(file)? };
    let first = frames.iter().map(|(time, _)| *time).min().ok_or(CaptureError::Empty)?;
    let mut last = 0;
    // If the clock was set back during the capture, later frames are not delayed by that.
    let in_order = frames.into_iter().map(|(time, bytes)| {
        last = last.max(time - first);
        (last, bytes)
    });
    Ok(in_order.collect())
}

/// Keeps a frame if it is complete.
fn keep(frames: &mut Recorded, time: u128, bytes: &[u8], original: u32) -> Result<(), CaptureError> {
    if bytes.len() == original as usize && (crate::headers::ETHERNET..=LONGEST).contains(&bytes.len()) {
        if frames.len() == MOST {
            return Err(CaptureError::TooMany);
        }
        // The picoseconds since 1970 exceed 64 bits: only the difference between frames matters.
        frames.push((time as u64 & (u64::MAX >> 1), bytes.to_vec()));
    }
    Ok(())
}

fn read_pcap(file: &[u8]) -> Result<Recorded, CaptureError> {
    let (mut rest, parser) = PcapParser::new(file)?;
    ethernet(parser.header().datalink)?;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (more, packet) = parser.next_packet(rest)?;
        keep(&mut frames, packet.timestamp.as_nanos() * 1000, &packet.data, packet.orig_len)?;
        rest = more;
    }
    Ok(frames)
}

fn read_pcapng(file: &[u8], timed: bool) -> Result<Recorded, CaptureError> {
    let (mut rest, mut parser) = PcapNgParser::new(file)?;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (more, block) = parser.next_block(rest)?;
        if parser.interfaces().len() > MOST_INTERFACES {
            return Err(CaptureError::TooMany);
        }
        match &block {
            Block::EnhancedPacket(packet) => {
                let interface = interface(&parser, packet.interface_id)?;
                // The library returns the interface's units as nanoseconds.
                let time = picoseconds(packet.timestamp.as_nanos(), interface);
                keep(&mut frames, time, &packet.data, packet.original_len)?;
            }
            Block::Packet(packet) => {
                let interface = interface(&parser, packet.interface_id.into())?;
                let time = picoseconds(units(packet, parser.section().endianness).into(), interface);
                keep(&mut frames, time, &packet.data, packet.original_len)?;
            }
            Block::SimplePacket(packet) => {
                // The block has no number of an interface: the first one is meant.
                let interface = interface(&parser, 0)?;
                if timed {
                    return Err(CaptureError::NoTimes);
                }
                keep(&mut frames, 0, captured(packet, interface), packet.original_len)?;
            }
            _ => {}
        }
        rest = more;
    }
    Ok(frames)
}

/// Returns an interface of a capture, which must be one of Ethernet.
fn interface(parser: &PcapNgParser, number: u32) -> Result<&InterfaceDescriptionBlock<'static>, CaptureError> {
    let interface = parser.interfaces().get(number as usize).ok_or(PcapError::InvalidInterfaceId(number))?;
    ethernet(interface.linktype)?;
    Ok(interface)
}

/// Returns the time of an obsolete packet in units of its interface. The upper half comes first in each order of bytes;
/// the library reads both as one number.
fn units(packet: &PacketBlock, order: Endianness) -> u64 {
    match order {
        Endianness::Big => packet.timestamp,
        Endianness::Little => packet.timestamp.rotate_left(32),
    }
}

/// Returns the captured bytes of a simple packet, which the library returns with their padding.
fn captured<'a>(packet: &'a SimplePacketBlock, interface: &InterfaceDescriptionBlock) -> &'a [u8] {
    let most = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
    let length = packet.original_len.min(most) as usize;
    packet.data.get(..length).unwrap_or(&packet.data)
}

/// Converts units of an interface's clock to picoseconds.
fn picoseconds(units: u128, interface: &InterfaceDescriptionBlock) -> u128 {
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(DEFAULT_RESOLUTION);
    let exponent = u32::from(resolution & 0x7f);
    let second = u128::from(crate::time::SECOND);
    match resolution & 0x80 {
        // A power of two: `units` has 64 bits, a second in picoseconds 40.
        0x80 => units.saturating_mul(second).checked_shr(exponent).unwrap_or(0),
        _ => match 10u128.checked_pow(exponent) {
            Some(per_second) => units.saturating_mul(second) / per_second,
            None => 0,
        },
    }
}

fn ethernet(link: DataLink) -> Result<(), CaptureError> {
    if link == DataLink::ETHERNET { Ok(()) } else { Err(CaptureError::NotEthernet(link)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapPacket, PcapWriter};
    use std::sync::{Arc, Mutex};

    /// A file in memory.
    #[derive(Clone, Default)]
    struct Bytes(Arc<Mutex<Vec<u8>>>);

    impl Write for Bytes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_captured_can_be_read() {
        let file = Bytes::default();
        let interfaces = [("net0".to_owned(), 10_000_000_000), ("net1".to_owned(), 1_000_000_000)];
        let mut capture = Capture::new(Box::new(file.clone()), &interfaces).unwrap();
        capture.frame(0, 1_000_000, Direction::Out, &[1; 60]);
        capture.frame(1, 1_067_200, Direction::In, &[2; 61]);
        // Nothing is written for an unknown interface.
        capture.finish().unwrap();
        let frames = read(&file.0.lock().unwrap(), true).unwrap();
        assert_eq!(frames, [(0, vec![1; 60]), (67_200, vec![2; 61])]);
    }

    /// Returns a capture of simple packets, which are given as their original lengths and captured bytes.
    fn simple(link: DataLink, snaplen: u32, packets: &[(u32, &[u8])]) -> Vec<u8> {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = InterfaceDescriptionBlock { linktype: link, snaplen, options: Vec::new() };
        writer.write_block(&Block::InterfaceDescription(interface)).unwrap();
        for (original_len, bytes) in packets {
            let block = SimplePacketBlock { original_len: *original_len, data: Cow::Borrowed(bytes) };
            writer.write_block(&Block::SimplePacket(block)).unwrap();
        }
        writer.into_inner()
    }

    #[test]
    fn simple_packets_need_a_rate() {
        let (long, short) = ([1; 61], [2; 60]);
        let packets: [(u32, &[u8]); 3] = [(61, &long), (60, &short), (63, &long)];
        let file = simple(DataLink::ETHERNET, 61, &packets);
        assert!(matches!(read(&file, true), Err(CaptureError::NoTimes)));
        // The padding of 61 bytes is not captured, and a frame of 63 bytes is not complete.
        let frames: Vec<Vec<u8>> = read(&file, false).unwrap().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(frames, [long.to_vec(), short.to_vec()]);
        let other = simple(DataLink::RAW, 0, &packets);
        assert!(matches!(read(&other, true), Err(CaptureError::NotEthernet(DataLink::RAW))));
    }

    /// Returns a capture with two packets in obsolete blocks, 65 and 60 bytes long and 2^32 + 5 µs apart.
    fn obsolete(order: Endianness) -> Vec<u8> {
        let section = SectionHeaderBlock { endianness: order, ..SectionHeaderBlock::default() };
        let mut writer = PcapNgWriter::with_section_header(Vec::new(), section).unwrap();
        let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options: Vec::new() };
        writer.write_block(&Block::InterfaceDescription(interface)).unwrap();
        let mut file = writer.into_inner();
        let word = |file: &mut Vec<u8>, word: u32| {
            file.extend_from_slice(&match order {
                Endianness::Big => word.to_be_bytes(),
                Endianness::Little => word.to_le_bytes(),
            });
        };
        for (high, low, len) in [(1, 7, 65), (2, 12, 60)] {
            let padded = u32::next_multiple_of(len, 4);
            // Type, length of the block, interface and drops, time, captured and original length.
            for field in [2, 32 + padded, 0, high, low, len, len] {
                word(&mut file, field);
            }
            file.extend_from_slice(&vec![4; padded as usize]);
            word(&mut file, 32 + padded);
        }
        file
    }

    #[test]
    fn obsolete_packets_have_times_in_both_orders_of_bytes() {
        for order in [Endianness::Big, Endianness::Little] {
            let frames = read(&obsolete(order), true).unwrap();
            let expected = [(0, vec![4; 65]), (((1 << 32) + 5) * 1_000_000, vec![4; 60])];
            assert_eq!(frames, expected, "{order:?}");
        }
    }

    #[test]
    fn old_captures_can_be_read() {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        for (micros, len) in [(1_700_000_000_000_000u64, 60), (1_700_000_000_000_007, 1514)] {
            writer.write_packet(&PcapPacket::new(Duration::from_micros(micros), len, &vec![9; len as usize])).unwrap();
        }
        let frames = read(&writer.into_writer(), true).unwrap();
        assert_eq!(
            frames.iter().map(|(time, bytes)| (*time, bytes.len())).collect::<Vec<_>>(),
            [(0, 60), (7_000_000, 1514)]
        );
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        assert!(matches!(read(b"", true), Err(CaptureError::Format(_))));
        assert!(matches!(read(&[0; 100], true), Err(CaptureError::Format(_))));
        let file = Bytes::default();
        Capture::new(Box::new(file.clone()), &[]).unwrap().finish().unwrap();
        assert!(matches!(read(&file.0.lock().unwrap(), true), Err(CaptureError::Empty)));
    }

    #[test]
    fn a_capture_that_is_cut_or_changed_does_no_harm() {
        let file = Bytes::default();
        let mut capture = Capture::new(Box::new(file.clone()), &[("net0".to_owned(), 1)]).unwrap();
        capture.frame(0, 5, Direction::In, &[3; 100]);
        let timed = file.0.lock().unwrap().clone();
        for bytes in [timed, simple(DataLink::ETHERNET, 100, &[(100, &[3; 100])]), obsolete(Endianness::Little)] {
            for at in 0..bytes.len() {
                let _ = read(&bytes[..at], false);
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[at] ^= 1 << bit;
                    let _ = read(&changed, false);
                }
            }
        }
    }
}
