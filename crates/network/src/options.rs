//! The `--net` option: the NICs of a machine and their connections.
//!
//! Its format is `KIND[:PART,PART...]`, where a part is `KEY=VALUE`, or the one value that a kind has without a key: a
//! name or a file.

use crate::generator::{self, Config, Pace, SIZES, Sizes, Start, Trials, Vary};
use crate::headers::Mac;
use crate::time::{NANOSECOND, Rate, SECOND, Time};
use std::net::Ipv4Addr;
use std::str::FromStr;
use thiserror::Error;

/// Maximum number of queue pairs of a virtio device.
pub const MOST_QUEUES: u16 = 16;
/// Minimum and maximum size of a queue.
const RING: (u16, u16) = (16, 1024);
const RING_USUAL: u16 = 256;
/// Minimum and maximum size of an IP packet in a frame.
const MTU: (u16, u16) = (68, 65_535);
/// Longest time, half a day, so that no sum of times overflows.
const LONGEST: Time = 50_000 * SECOND;
/// Time for the last frames of a trial, unless the user sets another one: the two seconds of RFC 2544, section 23.
const SETTLE: Time = 2 * SECOND;

/// Error in an option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct OptionError(String);

fn wrong<T>(text: impl Into<String>) -> Result<T, OptionError> {
    Err(OptionError(text.into()))
}

/// A port of the host that is forwarded to one of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// True for UDP, false for TCP.
    pub udp: bool,
    /// Port of the host.
    pub host: u16,
    /// Port of the guest.
    pub guest: u16,
}

/// Connection of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// A traffic generator with a sink.
    Generator(Box<Config>),
    /// A sink without a generator.
    Sink,
    /// The bridge with this name.
    Bridge(String),
    /// The host's network by passt, with forwarded ports.
    User(Vec<Forward>),
    /// A TAP device of the host.
    Tap(String),
}

/// Device model of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// A virtio network device.
    Virtio,
    /// An Intel 82599, for the Linux driver `ixgbe`.
    Ixgbe,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Text of the option, which identifies the NIC in a snapshot.
    pub text: String,
    /// Device model.
    pub model: Model,
    /// Connection.
    pub attachment: Attachment,
    /// Capture file that a generator replays.
    pub replay: Option<String>,
    /// Number of queue pairs of a virtio device.
    pub queues: u16,
    /// Size of each queue of a virtio device.
    pub ring: u16,
    /// MAC address, if it should not be derived from the NIC's number.
    pub mac: Option<Mac>,
    /// Bit rate of its link.
    pub rate: Rate,
    /// Latency of the link.
    pub latency: Time,
    /// True if packed rings are offered.
    pub packed: bool,
    /// True if checksum and segmentation offloads are offered.
    pub offloads: bool,
    /// MTU for the driver, if any.
    pub mtu: Option<u16>,
}

/// Value of one `--net` option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Net {
    /// No network.
    None,
    /// A NIC.
    Nic(Nic),
    /// Frames of all NICs are written to this file.
    Capture(String),
}

impl Nic {
    fn new(attachment: Attachment) -> Self {
        Self {
            text: String::new(),
            model: Model::Virtio,
            attachment,
            replay: None,
            queues: 1,
            ring: RING_USUAL,
            mac: None,
            rate: Rate::TEN_GIGABITS,
            latency: 1000 * NANOSECOND,
            packed: false,
            offloads: true,
            mtu: None,
        }
    }

    /// Returns the address of NIC number `number` of machine number `member` of a run: the one that the user has set, or
    /// a locally administered one.
    pub fn address(&self, member: u8, number: usize) -> Mac {
        self.mac.unwrap_or([0x02, 0x74, 0x67, 0x00, member, number as u8 + 1])
    }

    /// Returns true if frames come from outside, at times that are not the machine's.
    pub fn reaches_host(&self) -> bool {
        matches!(self.attachment, Attachment::User(_) | Attachment::Tap(_))
    }
}

impl FromStr for Net {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let (kind, rest) = match text.find([':', ',']) {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        // Only a colon is followed by a value without a key.
        let named = text[kind.len()..].starts_with(':');
        let mut parts = rest.into_iter().flat_map(|rest| rest.split(',')).peekable();
        let mut value = || parts.next_if(|part| named && !part.contains('=') && !part.is_empty()).map(str::to_owned);
        let attachment = match kind {
            "none" if rest.is_none() => return Ok(Self::None),
            "pcap" => {
                return match (value(), parts.next()) {
                    (Some(file), None) => Ok(Self::Capture(file)),
                    _ => wrong("pcap needs a file: pcap:FILE"),
                };
            }
            "generator" => Attachment::Generator(Box::default()),
            "sink" => Attachment::Sink,
            "bridge" => Attachment::Bridge(value().unwrap_or_else(|| "bridge".into())),
            "user" => Attachment::User(Vec::new()),
            "tap" => match value() {
                // Device names in the kernel have at most 15 bytes.
                Some(name) if name.len() < 16 && !name.contains('/') => Attachment::Tap(name),
                _ => return wrong("tap needs the name of a device: tap:NAME"),
            },
            _ => return wrong("none, user, tap:NAME, bridge, generator, sink or pcap:FILE is expected"),
        };
        let mut nic = Nic::new(attachment);
        let mut given: Vec<&str> = Vec::new();
        for part in parts {
            if part.is_empty() {
                return wrong("an option is missing between two commas, or after the last one");
            }
            let Some((key, value)) = part.split_once('=') else {
                return wrong(format!("{part}: KEY=VALUE is expected"));
            };
            // A device can have any number of forwarded ports.
            if key != "forward" && given.contains(&key) {
                return wrong(format!("{key} is given twice"));
            }
            given.push(key);
            if !nic.set(key, value)? && !nic.set_end(key, value)? {
                return wrong(format!("{kind} has no {key}"));
            }
        }
        nic.check(&given)?;
        // Files are identified by their contents, not by their names on this host.
        let named = text.split(',').map(|part| match part.split_once("replay=") {
            Some((kind, _)) => format!("{kind}replay"),
            None => part.to_owned(),
        });
        nic.text = named.collect::<Vec<_>>().join(",");
        Ok(Self::Nic(nic))
    }
}

impl Nic {
    /// Sets an option of all NICs. Returns false if the key is unknown.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, OptionError> {
        match key {
            "model" => {
                self.model = match value {
                    "virtio" => Model::Virtio,
                    "ixgbe" => Model::Ixgbe,
                    _ => return wrong("model: virtio or ixgbe is expected"),
                }
            }
            "queues" => self.queues = number(key, value, 1, MOST_QUEUES.into())? as u16,
            "ring" => {
                self.ring = number(key, value, RING.0.into(), RING.1.into())? as u16;
                if !self.ring.is_power_of_two() {
                    return wrong("ring: a power of two is expected");
                }
            }
            "mac" => self.mac = Some(mac(value)?),
            "rate" if !self.is_generator() => self.rate = link_rate(key, value)?,
            "link" => self.rate = link_rate(key, value)?,
            "latency" => self.latency = time(key, value)?,
            "packed" => self.packed = switch(key, value)?,
            "offloads" => self.offloads = switch(key, value)?,
            "mtu" => self.mtu = Some(number(key, value, MTU.0.into(), MTU.1.into())? as u16),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_generator(&self) -> bool {
        matches!(self.attachment, Attachment::Generator(_))
    }

    /// Sets an option of the NIC's connection.
    fn set_end(&mut self, key: &str, value: &str) -> Result<bool, OptionError> {
        match &mut self.attachment {
            Attachment::Generator(_) if key == "replay" => self.replay = Some(value.to_owned()),
            Attachment::Generator(config) => return set_generator(config, key, value),
            Attachment::User(forwards) if key == "forward" => {
                let new = forward(value)?;
                if forwards.iter().any(|known| (known.udp, known.host) == (new.udp, new.host)) {
                    return wrong(format!("forward: port {} of the host is forwarded twice", new.host));
                }
                forwards.push(new);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the given options against the model: an 82599 has fixed properties, and its driver makes the choices.
    fn check_model(&self, given: &[&str]) -> Result<(), OptionError> {
        const VIRTIO: [&str; 5] = ["queues", "ring", "packed", "offloads", "mtu"];
        match VIRTIO.iter().find(|key| given.contains(key) && self.model == Model::Ixgbe) {
            Some(key) => wrong(format!("{key}: this is an option of virtio devices")),
            None => Ok(()),
        }
    }

    fn check(&mut self, given: &[&str]) -> Result<(), OptionError> {
        self.check_model(given)?;
        let (replays, link) = (self.replay.is_some(), self.rate);
        let Attachment::Generator(config) = &mut self.attachment else { return Ok(()) };
        if config.trials.is_some() {
            check_search(config, replays, given)?;
        }
        match config.pace {
            Pace::Recorded if !replays => return wrong("rate=recorded needs replay=FILE"),
            Pace::Line if replays && !config.paced => config.pace = Pace::Recorded,
            Pace::Bits(bits) if bits.bits() > link.bits() => return wrong("rate: it exceeds that of the link"),
            // The smallest frame of a capture is not known yet.
            Pace::Frames(frames) if frames > line_rate(config, link) => {
                let most = line_rate(config, link);
                return wrong(format!("rate: the link takes {most} frames of this size a second at most"));
            }
            _ => {}
        }
        if let Some(key) = OWN_FRAMES.iter().find(|key| replays && given.contains(key)) {
            return wrong(format!("{key}: a capture has frames of its own: leave out {key} or replay"));
        }
        if config.duration == Some(0) {
            return wrong("duration: a generator sends for some time");
        }
        if config.source == config.destination {
            return wrong("source and destination are the same address");
        }
        let source = config.source;
        if source.is_multicast() || source.is_broadcast() || source.is_unspecified() || source.is_loopback() {
            return wrong("source: the address of one station is expected");
        }
        Ok(())
    }
}

/// Options of the frames that a generator makes, and of their order.
const OWN_FRAMES: [&str; 9] = ["size", "flows", "vary", "burst", "learn", "source", "port", "to", "checksum"];

/// Checks a search against the other options of its generator.
fn check_search(config: &Config, replays: bool, given: &[&str]) -> Result<(), OptionError> {
    match config.trials {
        _ if !given.contains(&"search") => wrong("settle and loss belong to a search: give search=TIME"),
        Some(Trials { length: 0, .. }) => wrong("search: a trial takes some time"),
        _ if config.learn > 0 => wrong("learn: a search has no learning frames"),
        _ if config.count.is_some() || config.duration.is_some() => {
            wrong("a search has trials of its own length: leave out count and duration")
        }
        _ if config.paced => wrong("a search chooses the rates of its trials: leave out rate"),
        _ if replays => wrong("a search counts frames by their stamps, which a capture lacks: leave out replay"),
        _ => Ok(()),
    }
}

/// Returns the largest number of frames a second that a link takes.
fn line_rate(config: &Config, link: Rate) -> u64 {
    (SECOND / link.duration(config.smallest()).max(1)).max(1)
}

fn set_generator(config: &mut Config, key: &str, value: &str) -> Result<bool, OptionError> {
    match key {
        "size" => {
            config.sizes = match value {
                "imix" => Sizes::Imix,
                _ => Sizes::Fixed(number(key, value, SIZES.0.into(), SIZES.1.into())? as u32),
            }
        }
        "rate" => (config.pace, config.paced) = (pace(key, value)?, true),
        "flows" => config.flows = number(key, value, 1, u16::MAX.into())? as u16,
        "vary" => {
            config.vary = match value {
                "ports" => Vary::Ports,
                "addresses" => Vary::Addresses,
                _ => return wrong("vary: ports or addresses is expected"),
            }
        }
        "learn" => config.learn = number(key, value, 0, 1000)? as u16,
        "burst" => config.burst = number(key, value, 1, 1 << 20)? as u32,
        "start" => {
            config.start = match value {
                "ready" => Start::Ready,
                "request" => Start::Request,
                _ => Start::At(time(key, value)?),
            }
        }
        "count" => config.count = Some(number(key, value, 1, u64::MAX)?),
        "duration" => config.duration = Some(time(key, value)?),
        "source" => config.source = address(key, value)?,
        "destination" => config.destination = address(key, value)?,
        "port" => config.port = number(key, value, 1, u16::MAX.into())? as u16,
        "checksum" => config.checksums = switch(key, value)?,
        "to" => config.to = Some(mac(value)?),
        "search" => config.trials_mut().length = time(key, value)?,
        "settle" => config.trials_mut().settle = time(key, value)?,
        "loss" => config.trials_mut().tolerance = number(key, value, 0, 1_000_000)? as u32,
        _ => return Ok(false),
    }
    Ok(true)
}

impl generator::Config {
    /// Returns the parameters of the throughput search, and enables it.
    fn trials_mut(&mut self) -> &mut Trials {
        self.trials.get_or_insert(Trials { length: 0, settle: SETTLE, tolerance: 0, parts: 100 })
    }
}

fn number(key: &str, value: &str, least: u64, most: u64) -> Result<u64, OptionError> {
    match scaled(value) {
        Some(number) if (least..=most).contains(&number) => Ok(number),
        _ if most == u64::MAX => wrong(format!("{key}: a number from {least} on is expected")),
        _ => wrong(format!("{key}: a number from {least} to {most} is expected")),
    }
}

/// Parses a number with K, M or G for thousands, millions and so on, optionally with a fraction.
fn scaled(value: &str) -> Option<u64> {
    let (digits, scale) = match value.char_indices().next_back()? {
        (at, 'k' | 'K') => (&value[..at], 1_000),
        (at, 'm' | 'M') => (&value[..at], 1_000_000),
        (at, 'g' | 'G') => (&value[..at], 1_000_000_000),
        _ => (value, 1),
    };
    fraction(digits, scale)
}

/// Parses a decimal number times a scale, if the result is whole.
fn fraction(digits: &str, scale: u64) -> Option<u64> {
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let decimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() < 18;
    if whole.is_empty() || !decimal(whole) || !decimal(part) {
        return None;
    }
    let unit = 10u128.pow(part.len() as u32);
    let value = whole.parse::<u128>().ok()? * unit + part.parse::<u128>().unwrap_or(0);
    let product = value * u128::from(scale);
    product.is_multiple_of(unit).then(|| u64::try_from(product / unit).ok())?
}

fn time(key: &str, value: &str) -> Result<Time, OptionError> {
    let units = [("ns", NANOSECOND), ("us", SECOND / 1_000_000), ("ms", SECOND / 1_000), ("s", SECOND)];
    let unit = units.iter().find_map(|(unit, scale)| Some((value.strip_suffix(unit)?, *scale)));
    match unit.and_then(|(digits, scale)| fraction(digits, scale)) {
        Some(time) if time <= LONGEST => Ok(time),
        _ => {
            let most = LONGEST / SECOND;
            wrong(format!("{key}: a time of at most {most}s, such as 500ns, 20us, 10ms or 1.5s, is expected"))
        }
    }
}

fn link_rate(key: &str, value: &str) -> Result<Rate, OptionError> {
    let rate = scaled(value.strip_suffix("bit").unwrap_or(value)).and_then(Rate::new);
    rate.ok_or_else(|| OptionError(format!("{key}: bits per second from 1K to 1000G are expected, such as 10G")))
}

fn pace(key: &str, value: &str) -> Result<Pace, OptionError> {
    match value {
        "line" => return Ok(Pace::Line),
        "recorded" => return Ok(Pace::Recorded),
        _ => {}
    }
    if let Some(bits) = value.strip_suffix("bit") {
        return link_rate(key, bits).map(Pace::Bits);
    }
    match scaled(value) {
        Some(frames @ 1..=10_000_000_000) => Ok(Pace::Frames(frames)),
        _ => wrong("rate: line, frames per second such as 1.5M, or bits per second such as 5Gbit are expected"),
    }
}

fn switch(key: &str, value: &str) -> Result<bool, OptionError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => wrong(format!("{key}: on or off is expected")),
    }
}

fn address(key: &str, value: &str) -> Result<Ipv4Addr, OptionError> {
    value.parse().map_err(|_| OptionError(format!("{key}: an IPv4 address is expected")))
}

fn mac(value: &str) -> Result<Mac, OptionError> {
    let bytes: Vec<u8> = value
        .split(':')
        .filter_map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2 && !byte.starts_with('+')))
        .collect();
    let bytes = (value.len() == 17).then(|| Mac::try_from(bytes).ok()).flatten();
    match bytes {
        Some(mac) if !crate::headers::is_group(mac) && mac != [0; 6] => Ok(mac),
        _ => wrong("a hardware address of one station is expected, such as 02:00:00:00:00:01"),
    }
}

/// Parses `tcp:2222:22`, `udp:53:5353`, or `2222:22`.
fn forward(value: &str) -> Result<Forward, OptionError> {
    let (udp, ports) = match value.split_once(':') {
        Some(("udp", ports)) => (true, ports),
        Some(("tcp", ports)) => (false, ports),
        _ => (false, value),
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
    let both = ports.split_once(':').and_then(|(host, guest)| Some((port(host)?, port(guest)?)));
    let Some((host, guest)) = both else { return wrong("forward: tcp:HOST-PORT:GUEST-PORT or udp:... is expected") };
    Ok(Forward { udp, host, guest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(text: &str) -> Nic {
        match text.parse() {
            Ok(Net::Nic(nic)) => nic,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn options_say_what_they_say() {
        assert_eq!("none".parse(), Ok(Net::None));
        assert_eq!("pcap:a b.pcapng".parse(), Ok(Net::Capture("a b.pcapng".into())));
        assert_eq!(nic("bridge").attachment, Attachment::Bridge("bridge".into()));
        let bridge = nic(
            "bridge:lan,queues=4,mac=02:00:00:00:0a:FF,rate=2.5G,latency=1.5us,packed=on,offloads=off,mtu=9000,ring=512",
        );
        assert_eq!(bridge.attachment, Attachment::Bridge("lan".into()));
        assert_eq!((bridge.queues, bridge.mac, bridge.ring), (4, Some([2, 0, 0, 0, 0x0a, 0xff]), 512));
        assert_eq!((bridge.rate.bits(), bridge.latency, bridge.mtu), (2_500_000_000, 1_500_000, Some(9000)));
        assert!(bridge.packed && !bridge.offloads);
        assert_eq!(nic("bridge,queues=2").queues, 2);
        let Attachment::Generator(config) =
            nic("generator:size=imix,rate=1.5M,flows=8,vary=addresses,burst=32,start=request,count=5K,duration=10ms")
                .attachment
        else {
            panic!()
        };
        assert_eq!((config.sizes, config.pace, config.flows), (Sizes::Imix, Pace::Frames(1_500_000), 8));
        assert_eq!((config.vary, config.burst, config.start), (Vary::Addresses, 32, Start::Request));
        assert_eq!((config.count, config.duration), (Some(5000), Some(SECOND / 100)));
        let Attachment::Generator(config) = nic("generator:link=40G,search=20ms,loss=10").attachment else { panic!() };
        assert_eq!((config.pace, config.trials.unwrap().length), (Pace::Line, SECOND / 50));
        let Attachment::Generator(config) = nic("generator:rate=5Gbit,link=40G").attachment else { panic!() };
        assert_eq!(config.pace, Pace::Bits(Rate::new(5_000_000_000).unwrap()));
        assert_eq!((nic("bridge").model, nic("bridge:lan,model=ixgbe").model), (Model::Virtio, Model::Ixgbe));
        let forwards = nic("user:forward=tcp:2222:22,forward=udp:53:5353,forward=80:80").attachment;
        let forward = |udp, host, guest| Forward { udp, host, guest };
        assert_eq!(
            forwards,
            Attachment::User(vec![forward(false, 2222, 22), forward(true, 53, 5353), forward(false, 80, 80)])
        );
        assert_eq!(nic("tap:tap0").attachment, Attachment::Tap("tap0".into()));
        // The name of a capture identifies nothing.
        assert_eq!(nic("generator:replay=a.pcap,rate=1K").text, "generator:replay,rate=1K");
        assert_eq!(nic("generator:rate=1K,replay=a.pcap").text, "generator:rate=1K,replay");
    }

    fn generator(text: &str) -> Config {
        match nic(text).attachment {
            Attachment::Generator(config) => *config,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_generator_has_what_its_options_say() {
        let usual = Config::default();
        let trials = Trials { length: SECOND / 1000, settle: SETTLE, tolerance: 0, parts: 100 };
        let paced = |pace| Config { pace, paced: true, ..usual.clone() };
        for (text, expected) in [
            ("flows=1", usual.clone()),
            ("port=53", Config { port: 53, ..usual.clone() }),
            ("checksum=on", Config { checksums: true, ..usual.clone() }),
            ("to=02:00:00:00:00:07", Config { to: Some([2, 0, 0, 0, 0, 7]), ..usual.clone() }),
            ("vary=ports", usual.clone()),
            ("start=ready", usual.clone()),
            ("start=1.5ms", Config { start: Start::At(1_500_000_000), ..usual.clone() }),
            ("learn=7", Config { learn: 7, ..usual.clone() }),
            ("size=9018", Config { sizes: Sizes::Fixed(9018), ..usual.clone() }),
            ("source=10.0.0.1", Config { source: [10, 0, 0, 1].into(), ..usual.clone() }),
            ("destination=10.0.0.1", Config { destination: [10, 0, 0, 1].into(), ..usual.clone() }),
            ("duration=50000s", Config { duration: Some(LONGEST), ..usual.clone() }),
            ("count=99999999999999999", Config { count: Some(99_999_999_999_999_999), ..usual.clone() }),
            ("count=1.25k", Config { count: Some(1250), ..usual.clone() }),
            ("count=2.m", Config { count: Some(2_000_000), ..usual.clone() }),
            ("search=1ms", Config { trials: Some(trials), ..usual.clone() }),
            (
                "search=1ms,settle=5us,loss=9",
                Config { trials: Some(Trials { settle: 5_000_000, tolerance: 9, ..trials }), ..usual.clone() },
            ),
            // The largest rates of a link of 10 Gb/s.
            ("rate=line", paced(Pace::Line)),
            ("rate=14880952", paced(Pace::Frames(14_880_952))),
            ("rate=10Gbit", paced(Pace::Bits(Rate::TEN_GIGABITS))),
            // A capture has its own times, unless the user sets a rate.
            ("replay=a", Config { pace: Pace::Recorded, ..usual.clone() }),
            ("replay=a,rate=recorded", paced(Pace::Recorded)),
            ("replay=a,rate=line", paced(Pace::Line)),
            ("replay=a,rate=5", paced(Pace::Frames(5))),
        ] {
            assert_eq!(generator(&format!("generator:{text}")), expected, "{text}");
        }
    }

    #[test]
    fn a_nic_has_an_address_and_a_way_to_the_host() {
        for (text, member, number, address, host) in [
            ("sink", 0, 0, [2, 0x74, 0x67, 0, 0, 1], false),
            ("user", 0, 1, [2, 0x74, 0x67, 0, 0, 2], true),
            ("tap:abcdefghijklmno,model=virtio", 3, 0, [2, 0x74, 0x67, 0, 3, 1], true),
            ("bridge,mac=02:00:00:00:00:01", 1, 9, [2, 0, 0, 0, 0, 1], false),
        ] {
            let nic = nic(text);
            assert_eq!((nic.address(member, number), nic.reaches_host()), (address, host), "{text}");
            assert_eq!((nic.model, nic.queues, nic.ring, nic.mtu), (Model::Virtio, 1, 256, None));
        }
        assert_eq!(nic("sink").attachment, Attachment::Sink);
    }

    #[test]
    fn mistakes_are_named() {
        let kinds = "none, user, tap:NAME, bridge, generator, sink or pcap:FILE is expected";
        let hardware = "a hardware address of one station is expected, such as 02:00:00:00:00:01";
        let device = "tap needs the name of a device: tap:NAME";
        let station = "source: the address of one station is expected";
        let count = "count: a number from 1 on is expected";
        for (text, expected) in [
            ("none:", kinds),
            ("pcap:a,b", "pcap needs a file: pcap:FILE"),
            ("tap:abcdefghijklmnop", device),
            ("tap:a/b", device),
            ("user:port=1", "user has no port"),
            ("generator:forward=1:1", "generator has no forward"),
            ("generator:count=0", count),
            ("generator:count=.5K", count),
            ("generator:count=x", count),
            ("generator:count=x.5K", count),
            ("generator:count=1.xK", count),
            ("generator:count=1.0005K", count),
            ("generator:count=100000000000000000", count),
            ("generator:rate=14880953", "rate: the link takes 14880952 frames of this size a second at most"),
            ("generator:rate=10.000000001Gbit", "rate: it exceeds that of the link"),
            ("generator:source=255.255.255.255", station),
            ("generator:source=0.0.0.0", station),
            ("generator:search=1ms,learn=1", "learn: a search has no learning frames"),
            ("generator:search=1ms,duration=5s", "a search has trials of its own length: leave out count and duration"),
            (
                "generator:duration=50000.1s",
                "duration: a time of at most 50000s, such as 500ns, 20us, 10ms or 1.5s, is expected",
            ),
            ("bridge,mac=02:00:00:00:00:+1", hardware),
            ("bridge,mac=0:002:00:00:00:01", hardware),
            ("bridge,mac=00:00:00:00:00:00", hardware),
            ("", "none, user, tap:NAME, bridge, generator, sink or pcap:FILE is expected"),
            ("generator:search=0ms", "search: a trial takes some time"),
            ("generator:loss=10,settle=1ms", "settle and loss belong to a search: give search=TIME"),
            ("generator:search=1ms,rate=1M", "a search chooses the rates of its trials: leave out rate"),
            (
                "generator:search=1ms,replay=a.pcap",
                "a search counts frames by their stamps, which a capture lacks: leave out replay",
            ),
            ("generator:search=1ms,count=5", "a search has trials of its own length: leave out count and duration"),
            ("generator:rate=20M", "rate: the link takes 14880952 frames of this size a second at most"),
            ("generator:rate=20Gbit", "rate: it exceeds that of the link"),
            ("generator:source=10.0.0.1,destination=10.0.0.1", "source and destination are the same address"),
            ("generator:source=224.0.0.1", "source: the address of one station is expected"),
            ("generator:size=64,size=128", "size is given twice"),
            ("bridge:lan,queues=1,model=ixgbe", "queues: this is an option of virtio devices"),
            ("bridge:lan,model=ixgbe,offloads=on", "offloads: this is an option of virtio devices"),
            ("nat", "none, user, tap:NAME, bridge, generator, sink or pcap:FILE is expected"),
            ("tap", "tap needs the name of a device: tap:NAME"),
            ("pcap", "pcap needs a file: pcap:FILE"),
            ("bridge:lan,queues=0", "queues: a number from 1 to 16 is expected"),
            ("bridge:lan,ring=100", "ring: a power of two is expected"),
            ("bridge:lan,size=64", "bridge has no size"),
            ("bridge:lan,model=e1000", "model: virtio or ixgbe is expected"),
            ("bridge:lan,queues=2,model=ixgbe", "queues: this is an option of virtio devices"),
            ("bridge:lan,oops", "oops: KEY=VALUE is expected"),
            ("bridge,queues", "queues: KEY=VALUE is expected"),
            ("bridge,,queues=2", "an option is missing between two commas, or after the last one"),
            ("bridge:lan,", "an option is missing between two commas, or after the last one"),
            ("generator:replay=a.pcap,burst=8", "burst: a capture has frames of its own: leave out burst or replay"),
            ("generator:replay=a.pcap,learn=1", "learn: a capture has frames of its own: leave out learn or replay"),
            ("generator:duration=0s", "duration: a generator sends for some time"),
            (
                "generator:duration=0.5",
                "duration: a time of at most 50000s, such as 500ns, 20us, 10ms or 1.5s, is expected",
            ),
            ("generator:source=127.0.0.1", "source: the address of one station is expected"),
            (
                "bridge:a,latency=1000000000s",
                "latency: a time of at most 50000s, such as 500ns, 20us, 10ms or 1.5s, is expected",
            ),
            ("generator:size=63", "size: a number from 64 to 9018 is expected"),
            ("generator:rate=recorded", "rate=recorded needs replay=FILE"),
            (
                "generator:duration=5",
                "duration: a time of at most 50000s, such as 500ns, 20us, 10ms or 1.5s, is expected",
            ),
            ("user:forward=tcp:80:80,forward=80:81", "forward: port 80 of the host is forwarded twice"),
            ("user:forward=1", "forward: tcp:HOST-PORT:GUEST-PORT or udp:... is expected"),
            (
                "bridge:a,mac=ff:ff:ff:ff:ff:ff",
                "a hardware address of one station is expected, such as 02:00:00:00:00:01",
            ),
            ("bridge:a,rate=1", "rate: bits per second from 1K to 1000G are expected, such as 10G"),
        ] {
            assert_eq!(text.parse::<Net>().map_err(|error| error.to_string()), Err(expected.to_owned()), "{text}");
        }
    }
}
