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
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
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

/// The frames of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Frames that can be sent, with the time since the first one.
    pub frames: Recorded,
    /// Number of packets that are left out: those of which the capture has only a part, and those that are too short or
    /// too long for a frame.
    pub left_out: usize,
}

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

/// Returns the frames of a capture. With `timed`, a frame without a time is an error; otherwise the times are
/// meaningless if there is such a frame.
pub fn read(file: &[u8], timed: bool) -> Result<Replay, CaptureError> {
    const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
    let Packets { frames, left_out } =
        if file.starts_with(&SECTION) { read_pcapng(file, timed)? } else { read_pcap(file)? };
    let first = frames.iter().map(|(time, _)| *time).min().ok_or(CaptureError::Empty)?;
    let mut last = 0;
    // If the clock was set back during the capture, later frames are not delayed by that.
    let in_order = frames.into_iter().map(|(time, bytes)| {
        last = last.max(Time::try_from(time - first).unwrap_or(Time::MAX).min(Time::MAX / 2));
        (last, bytes)
    });
    Ok(Replay { frames: in_order.collect(), left_out })
}

/// The packets of a capture.
#[derive(Default)]
struct Packets {
    /// Frames that can be sent, with times in picoseconds since any moment.
    frames: Vec<(i128, Vec<u8>)>,
    left_out: usize,
}

impl Packets {
    /// Adds a packet of `original` bytes, the last `check` of which are the check sequence.
    fn add(&mut self, time: i128, bytes: &[u8], original: u32, check: usize) -> Result<(), CaptureError> {
        let frame = bytes.get(..bytes.len().saturating_sub(check)).unwrap_or_default();
        let complete = bytes.len() == original as usize;
        if !complete || !(crate::headers::ETHERNET..=LONGEST).contains(&frame.len()) {
            self.left_out += 1;
            return Ok(());
        }
        if self.frames.len() == MOST {
            return Err(CaptureError::TooMany);
        }
        self.frames.push((time, frame.to_vec()));
        Ok(())
    }
}

fn read_pcap(file: &[u8]) -> Result<Packets, CaptureError> {
    let (mut rest, parser) = PcapParser::new(file)?;
    let header = parser.header();
    let check = ethernet(header.datalink)?;
    let unit = match header.ts_resolution {
        TsResolution::MicroSecond => 1_000_000,
        TsResolution::NanoSecond => 1_000,
    };
    let mut packets = Packets::default();
    while !rest.is_empty() {
        // The library's checked packets exclude those that are longer than what the capture keeps of them.
        let (more, packet) = parser.next_raw_packet(rest)?;
        let time = i128::from(packet.ts_sec) * SECOND + i128::from(packet.ts_frac) * unit;
        packets.add(time, &packet.data, packet.orig_len, check)?;
        rest = more;
    }
    Ok(packets)
}

fn read_pcapng(file: &[u8], timed: bool) -> Result<Packets, CaptureError> {
    let (mut rest, mut parser) = PcapNgParser::new(file)?;
    let mut packets = Packets::default();
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
                let check = check_of(&packet.options).unwrap_or_else(|| check_sequence(interface));
                packets.add(time, &packet.data, packet.original_len, check)?;
            }
            Block::Packet(packet) => {
                let interface = interface(&parser, packet.interface_id.into())?;
                let time = picoseconds(units(packet, parser.section().endianness).into(), interface);
                packets.add(time, &packet.data, packet.original_len, check_sequence(interface))?;
            }
            Block::SimplePacket(packet) => {
                // The block has no number of an interface: the first one is meant.
                let interface = interface(&parser, 0)?;
                if timed {
                    return Err(CaptureError::NoTimes);
                }
                packets.add(0, captured(packet, interface), packet.original_len, check_sequence(interface))?;
            }
            _ => {}
        }
        rest = more;
    }
    Ok(packets)
}

/// A second in picoseconds.
const SECOND: i128 = crate::time::SECOND as i128;

/// Returns the length of the check sequence at the end of each packet of an interface. Its option has octets in most
/// files, and bits according to the format's description.
fn check_sequence(interface: &InterfaceDescriptionBlock) -> usize {
    let octets_or_bits = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfFcsLen(length) => Some(*length),
        _ => None,
    });
    if matches!(octets_or_bits, Some(4 | 32)) { 4 } else { 0 }
}

/// Returns the length of the check sequence that a packet has itself: bits 5 to 8 of its flags, if they are not 0.
fn check_of(options: &[EnhancedPacketOption]) -> Option<usize> {
    options.iter().find_map(|option| match option {
        EnhancedPacketOption::Flags(flags) => Some((flags >> 5 & 15) as usize).filter(|length| *length != 0),
        _ => None,
    })
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

/// Converts units of an interface's clock to picoseconds, and adds the interface's offset.
fn picoseconds(units: u128, interface: &InterfaceDescriptionBlock) -> i128 {
    let (mut resolution, mut offset) = (DEFAULT_RESOLUTION, 0);
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
            // Seconds, signed.
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset = i128::from(*seconds as i64) * SECOND,
            _ => {}
        }
    }
    let exponent = u32::from(resolution & 0x7f);
    // `units` has 64 bits, a second in picoseconds 40.
    let scaled = units.saturating_mul(SECOND as u128);
    let time = match resolution & 0x80 {
        0x80 => scaled.checked_shr(exponent).unwrap_or(0),
        _ => 10u128.checked_pow(exponent).map_or(0, |per_second| scaled / per_second),
    };
    // Both are less than 2 to the 104.
    time as i128 + offset
}

/// Checks that a capture is of Ethernet. Returns the length of the check sequence at the end of its packets, which the
/// upper bits of an old capture's link type have: bit 26 if it is known, and then its half in bits 28 to 31.
fn ethernet(link: DataLink) -> Result<usize, CaptureError> {
    let word = u32::from(link);
    if DataLink::from(word & 0xffff) != DataLink::ETHERNET {
        return Err(CaptureError::NotEthernet(link));
    }
    Ok(if word & 1 << 26 != 0 { (word >> 28) as usize * 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
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
        let frames = vec![(0, vec![1; 60]), (67_200, vec![2; 61])];
        assert_eq!(read(&file.0.lock().unwrap(), true).unwrap(), Replay { frames, left_out: 0 });
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
        let Replay { frames, left_out } = read(&file, false).unwrap();
        let frames: Vec<Vec<u8>> = frames.into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!((frames, left_out), (vec![long.to_vec(), short.to_vec()], 1));
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
            let frames = read(&obsolete(order), true).unwrap().frames;
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
        let frames = read(&writer.into_writer(), true).unwrap().frames;
        assert_eq!(
            frames.iter().map(|(time, bytes)| (*time, bytes.len())).collect::<Vec<_>>(),
            [(0, 60), (7_000_000, 1514)]
        );
    }

    #[test]
    fn times_of_old_captures_have_seconds_and_fractions() {
        for (resolution, unit) in [(TsResolution::MicroSecond, 1_000_000), (TsResolution::NanoSecond, 1_000)] {
            let header = PcapHeader { ts_resolution: resolution, ..PcapHeader::default() };
            let mut file = PcapWriter::with_header(Vec::new(), header).unwrap().into_writer();
            for (seconds, fraction) in [(5u32, 3u32), (8, 1)] {
                file.extend([seconds, fraction, 60, 60].map(u32::to_be_bytes).concat());
                file.extend([1; 60]);
            }
            let frames = read(&file, true).unwrap().frames;
            assert_eq!(frames, [(0, vec![1; 60]), (3 * crate::time::SECOND - 2 * unit, vec![1; 60])]);
        }
    }

    #[test]
    fn a_section_has_a_limited_number_of_interfaces() {
        let interfaces = vec![(String::new(), 1); MOST_INTERFACES + 1];
        let captured = |count: usize| {
            let file = Bytes::default();
            let mut capture = Capture::new(Box::new(file.clone()), &interfaces[..count]).unwrap();
            capture.frame(count - 1, 0, Direction::In, &[0; 60]);
            capture.finish().unwrap();
            let bytes = file.0.lock().unwrap().clone();
            read(&bytes, true).map(|replay| replay.frames.len())
        };
        assert!(matches!(captured(MOST_INTERFACES), Ok(1)));
        assert!(matches!(captured(MOST_INTERFACES + 1), Err(CaptureError::TooMany)));
    }

    #[test]
    fn parts_of_packets_are_left_out_of_old_captures_too() {
        let header = PcapHeader { snaplen: 64, datalink: DataLink::ETHERNET, ..PcapHeader::default() };
        let mut file = PcapWriter::with_header(Vec::new(), header).unwrap().into_writer();
        for (captured, original) in [(64u32, 100u32), (60, 60)] {
            // Seconds, microseconds, lengths; in the order of the header.
            file.extend([1, 0, captured, original].map(u32::to_be_bytes).concat());
            file.extend(vec![5; captured as usize]);
        }
        assert_eq!(read(&file, true).unwrap(), Replay { frames: vec![(0, vec![5; 60])], left_out: 1 });
    }

    #[test]
    fn check_sequences_are_not_sent() {
        // Bit 26: the length is known; bits 28 to 31: it is two units of 16 bits.
        let link = DataLink::from(2 << 28 | 1 << 26 | u32::from(DataLink::ETHERNET));
        assert_eq!(ethernet(link).unwrap(), 4);
        let known = |word: u32| ethernet(DataLink::from(word | u32::from(DataLink::ETHERNET))).unwrap();
        assert_eq!([3 << 28 | 1 << 26, 1 << 26, 3 << 28].map(known), [6, 0, 0]);
        assert!(ethernet(DataLink::from(1 << 26 | u32::from(DataLink::RAW))).is_err());
        let header = PcapHeader { datalink: link, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        writer.write_packet(&PcapPacket::new(Duration::ZERO, 64, &[6; 64])).unwrap();
        assert_eq!(read(&writer.into_writer(), true).unwrap().frames, [(0, vec![6; 60])]);
        let described = |length| interface_with(vec![InterfaceDescriptionOption::IfFcsLen(length)]);
        assert_eq!([0, 4, 32, 200].map(|length| check_sequence(&described(length))), [0, 4, 4, 0]);
        assert_eq!(check_of(&[EnhancedPacketOption::Flags(4 << 5 | 1)]), Some(4));
        assert_eq!(check_of(&[EnhancedPacketOption::Flags(1)]), None);
    }

    fn interface_with(options: Vec<InterfaceDescriptionOption<'static>>) -> InterfaceDescriptionBlock<'static> {
        InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options }
    }

    #[test]
    fn interfaces_have_resolutions_and_offsets() {
        use InterfaceDescriptionOption::{IfTsOffset, IfTsResol};
        let time = |units: u64, options| picoseconds(units.into(), &interface_with(options));
        assert_eq!(time(1_000_020, vec![]), SECOND + 20_000_000);
        assert_eq!(time(20, vec![IfTsOffset(1)]), SECOND + 20_000_000);
        assert_eq!(time(20, vec![IfTsOffset(-5i64 as u64), IfTsResol(9)]), 20_000 - 5 * SECOND);
        assert_eq!(time(3, vec![IfTsResol(0x81)]), SECOND * 3 / 2);
        for resolution in [0, 0x7f, 0x80, 0xff] {
            for offset in [0, 1 << 63, u64::MAX >> 1] {
                // No value overflows.
                time(u64::MAX, vec![IfTsResol(resolution), IfTsOffset(offset)]);
            }
        }
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
