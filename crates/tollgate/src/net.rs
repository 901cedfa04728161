//! `--net`: the connections of a machine's NICs on this host, and the report on them.

use crate::output::{Named, say};
use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow, bail};
use machine::Machine;
use machine::host::HostFrame;
use network::capture::{self, Capture, Replay};
use network::generator::Pace;
use network::headers::Mac;
use network::options::{Attachment, Forward, Net, Nic};
use network::stream::{Condition, Link};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest capture that can be replayed, in bytes.
const LARGEST_CAPTURE: u64 = 1 << 30;
/// Longest wait for passt to start.
const LONGEST_START: Duration = Duration::from_secs(2);
/// Largest number of frames that a machine receives at a time from one connection.
const MOST_FRAMES: usize = 256;
/// Longest wait for the host while there are connections; keyboard input is not awaited at the same time.
const GLANCE: Duration = Duration::from_millis(2);

/// Longest wait for passt's exit, and the interval between checks.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);

/// IPv4 addresses of a guest whose software does not use DHCP.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Address of the guest.
    pub guest: &'static str,
    /// Network mask.
    pub mask: &'static str,
    /// Default gateway.
    pub router: &'static str,
    /// Name server.
    pub names: &'static str,
}

/// NICs and captures of the `--net` options.
pub struct Nets {
    /// The NICs.
    pub nics: Vec<Nic>,
    /// Capture file.
    capture: Option<String>,
    /// Captures that generators replay, by NIC.
    replays: Vec<(usize, Arc<capture::Recorded>, Vec<u8>)>,
}

/// Returns the captures that the options write.
pub fn captured(options: &[Net]) -> impl Iterator<Item = Named<'_>> {
    options.iter().filter_map(|net| match net {
        Net::Capture(file) => Some(("--net pcap", Path::new(file))),
        Net::None | Net::Nic(_) => None,
    })
}

/// Returns the captures that generators replay.
pub fn replayed(options: &[Net]) -> impl Iterator<Item = Named<'_>> {
    options.iter().filter_map(|net| match net {
        Net::Nic(nic) => nic.replay.as_deref().map(|file| ("--net generator:replay", Path::new(file))),
        Net::None | Net::Capture(_) => None,
    })
}

impl Nets {
    /// Reads the files of options that [`check`] accepts.
    pub fn new(options: &[Net]) -> Result<Self> {
        let mut nets = Self { nics: Vec::new(), capture: None, replays: Vec::new() };
        for net in options {
            match net {
                Net::None => {}
                Net::Nic(nic) => nets.nics.push(nic.clone()),
                Net::Capture(file) => nets.capture = Some(file.clone()),
            }
        }
        for (number, nic) in nets.nics.iter_mut().enumerate() {
            let (Some(file), Attachment::Generator(config)) = (&nic.replay, &mut nic.attachment) else { continue };
            let bytes = crate::input::read(Path::new(file), LARGEST_CAPTURE).context("--net")?;
            let Replay { frames, left_out } = capture::read(&bytes, config.pace == Pace::Recorded)
                .map_err(|error| anyhow!("--net: {file} can't be sent: {error}"))?;
            if left_out != 0 {
                let all = frames.len() + left_out;
                say(&format!(
                    "tollgate: {left_out} of the {all} packets of {file} are no complete frames, and are not sent"
                ));
            }
            let frames = Arc::new(frames);
            config.replay = Some(frames.clone());
            nets.replays.push((number, frames, bytes));
        }
        Ok(nets)
    }

    /// Returns the captures that generators replay, for the facts that identify a run.
    pub fn files(&self) -> impl Iterator<Item = (String, &[u8])> {
        self.replays.iter().map(|(number, _, bytes)| (capture_name(*number), bytes.as_slice()))
    }

    /// Returns the same captures with their paths.
    pub fn paths(&self) -> impl Iterator<Item = (String, &str)> {
        self.replays
            .iter()
            .filter_map(|(number, ..)| Some((capture_name(*number), self.nics[*number].replay.as_deref()?)))
    }

    /// Captures the frames of a machine's NICs.
    pub fn capture(&self, machine: &Machine) -> Result<()> {
        let Some(path) = &self.capture else { return Ok(()) };
        let failed = || format!("can't write the capture {path}");
        let file = BufWriter::new(File::create(path).with_context(failed)?);
        let board = machine.board();
        let interfaces = board.network().interfaces();
        let capture = Capture::new(Box::new(file), &interfaces).with_context(failed)?;
        board.network().capture(capture);
        Ok(())
    }

    /// Finishes the capture. Returns true if it is complete.
    pub fn finish(&self, machine: &Machine) -> bool {
        let ended = machine.board().network().end_capture();
        if let (Err(error), Some(path)) = (&ended, &self.capture) {
            say(&format!("tollgate: can't write the capture {path}: {error}"));
        }
        ended.is_ok()
    }
}

/// Returns the name of the capture that the generator of a NIC replays.
fn capture_name(nic: usize) -> String {
    format!("capture {nic}")
}

/// The `--net` options of a machine, and its name if the run has several machines.
pub type Member<'a> = (Option<&'a str>, &'a [Net]);

/// Refuses `--net` options of a run that exclude each other.
pub fn check(machines: &[Member]) -> Result<()> {
    for (name, options) in machines {
        let checked = combined(options);
        match name {
            Some(name) => checked.with_context(|| (*name).to_owned())?,
            None => checked?,
        }
    }
    apart(machines)
}

/// Refuses `--net` options of a machine that exclude each other.
fn combined(options: &[Net]) -> Result<()> {
    let count = |wanted: fn(&Net) -> bool| options.iter().filter(|net| wanted(net)).count();
    let (nics, captures) = (count(|net| matches!(net, Net::Nic(_))), count(|net| matches!(net, Net::Capture(_))));
    let wrong = |text| Err(WrongArguments::new(text).into());
    if options.len() > 1 && options.contains(&Net::None) {
        return wrong("--net none excludes other --net options");
    }
    match (captures, nics) {
        (2.., _) => wrong("--net pcap: a run has only one capture"),
        (1, 0) => wrong("--net pcap captures the frames of NICs: add one, for example with --net user"),
        _ => Ok(()),
    }
}

/// Refuses two NICs of a run that exclude each other: they have one address on one bridge, or forward one port of the
/// host.
fn apart(machines: &[Member]) -> Result<()> {
    let (mut stations, mut ports) = (BTreeMap::new(), BTreeMap::new());
    for (name, nic, mac) in nics(machines) {
        match &nic.attachment {
            Attachment::Bridge(bridge) => {
                if let Some(other) = stations.insert((bridge, mac), name.clone()) {
                    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
                    let text = format!("{other} and {name} have the same address on the bridge {bridge}: mac={mac}");
                    bail!(WrongArguments::new(format!("--net bridge: {text}")));
                }
            }
            Attachment::User(forwards) => {
                for Forward { udp, host, .. } in forwards {
                    if let Some(other) = ports.insert((udp, host), name.clone()) {
                        let protocol = if *udp { "udp" } else { "tcp" };
                        let text = format!("{other} and {name} forward the same port of the host: {protocol}:{host}");
                        bail!(WrongArguments::new(format!("--net user: {text}")));
                    }
                }
            }
            Attachment::Generator(_) | Attachment::Sink | Attachment::Tap(_) => {}
        }
    }
    Ok(())
}

/// Returns the NICs of all machines, with their names and addresses.
fn nics<'a>(machines: &'a [Member<'a>]) -> impl Iterator<Item = (String, &'a Nic, Mac)> {
    machines.iter().enumerate().flat_map(|(member, (machine, options))| {
        let nics = options.iter().filter_map(|net| match net {
            Net::Nic(nic) => Some(nic),
            Net::None | Net::Capture(_) => None,
        });
        nics.enumerate().map(move |(number, nic)| {
            let name = machine.map_or(format!("net{number}"), |machine| format!("net{number} of {machine}"));
            (name, nic, nic.address(member as u8, number))
        })
    })
}

/// The connection of a NIC.
enum End {
    Passt { child: Child, link: Link<UnixStream> },
    Tap(File),
}

/// Connections to this host's networks.
#[derive(Default)]
pub struct Connections {
    ends: Vec<(u8, End)>,
}

impl Connections {
    /// Connects NICs.
    pub fn open(nics: &[Nic]) -> Result<Self> {
        Self::open_with(nics, None)
    }

    /// Connects NICs. With `addresses`, passt gives them to the guest in place of the host's.
    pub fn open_with(nics: &[Nic], addresses: Option<&Addresses>) -> Result<Self> {
        let mut ends = Vec::new();
        for (number, nic) in nics.iter().enumerate() {
            let end = match &nic.attachment {
                Attachment::User(forwards) => passt(forwards, addresses)?,
                Attachment::Tap(name) => End::Tap(machine::tap::open(name).with_context(|| {
                    format!("--net tap:{name}: the device can't be opened (make it with `ip tuntap add {name} mode tap user $USER`)")
                })?),
                _ => continue,
            };
            ends.push((number as u8, end));
        }
        Ok(Self { ends })
    }

    /// Returns true if there are connections.
    pub fn any(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Returns frames that have arrived for NICs with room.
    pub fn frames(&mut self, room: &dyn Fn(u8) -> bool) -> Vec<HostFrame> {
        let mut all = Vec::new();
        self.ends.retain_mut(|(nic, end)| {
            if !room(*nic) {
                return true;
            }
            let (frames, goes_on) = end.read();
            all.extend(frames.into_iter().map(|bytes| HostFrame { nic: *nic, bytes }));
            goes_on
        });
        all
    }

    /// Sends frames of NICs.
    pub fn send(&mut self, frames: &[HostFrame]) {
        for frame in frames {
            if let Some((_, end)) = self.ends.iter_mut().find(|(nic, _)| *nic == frame.nic) {
                end.send(&frame.bytes);
            }
        }
        self.ends.iter_mut().for_each(|(_, end)| end.flush());
    }

    /// Waits until a frame arrives, up to a limit.
    pub fn wait(&mut self, limit: Duration) {
        self.ends.iter_mut().for_each(|(_, end)| end.flush());
        let mut files: Vec<PollFd> =
            self.ends.iter().map(|(_, end)| PollFd::new(end.file(), PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(limit.min(GLANCE)).unwrap_or(PollTimeout::ZERO);
        // A signal or an error ends the wait.
        let _ = nix::poll::poll(&mut files, timeout);
    }
}

impl End {
    fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Passt { link, .. } => link.stream().as_fd(),
            Self::Tap(file) => file.as_fd(),
        }
    }

    /// Reads frames, and returns true with them if more may arrive.
    fn read(&mut self) -> (Vec<Vec<u8>>, bool) {
        let (frames, condition) = match self {
            Self::Passt { link, .. } => link.receive(MOST_FRAMES),
            Self::Tap(file) => return (read_tap(file), true),
        };
        match condition {
            Condition::Open => {}
            Condition::Closed => self.over(),
            Condition::Nonsense(error) => {
                say(&format!("tollgate: --net user: passt sent invalid data ({error}): the connection is closed"));
            }
        }
        (frames, condition == Condition::Open)
    }

    /// Reports the reason why the other end closed a connection.
    fn over(&mut self) {
        if let Self::Passt { child, .. } = self {
            say(&format!("tollgate: --net user: {}", end_of_passt(child)));
        }
    }

    fn send(&mut self, frame: &[u8]) {
        match self {
            Self::Passt { link, .. } => link.send(frame),
            // A full queue drops frames, as in any network.
            Self::Tap(file) => {
                let _ = file.write(frame);
            }
        }
    }

    fn flush(&mut self) {
        if let Self::Passt { link, .. } = self {
            link.flush();
        }
    }
}

/// Reads frames from a TAP device. A device that is down returns errors until it is up.
fn read_tap(file: &mut File) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut frame = vec![0; network::frame::LONGEST + 1];
    while all.len() < MOST_FRAMES {
        match file.read(&mut frame) {
            Ok(len @ 1..) => all.push(frame[..len].to_vec()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    all
}

impl Drop for End {
    fn drop(&mut self) {
        if let Self::Passt { child, link } = self {
            // passt exits with its connection. A confined process can't end another process, so a passt that hangs stays.
            let _ = link.stream().shutdown(Shutdown::Both);
            let begun = Instant::now();
            while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Starts passt with a socket as its standard input.
fn passt(forwards: &[Forward], addresses: Option<&Addresses>) -> Result<End> {
    let (ours, theirs) = UnixStream::pair().context("--net user: can't create a socket")?;
    ours.set_nonblocking(true).context("--net user")?;
    let mut command = Command::new("passt");
    command.args(["--foreground", "--quiet", "--fd", "0"]);
    if let Some(Addresses { guest, mask, router, names }) = addresses {
        let given = [("--address", guest), ("--netmask", mask), ("--gateway", router), ("--dns-forward", names)];
        command.arg("--ipv4-only").args(given.iter().flat_map(|(option, value)| [*option, **value]));
    }
    for forward in forwards {
        let option = if forward.udp { "--udp-ports" } else { "--tcp-ports" };
        command.arg(option).arg(format!("{}:{}", forward.host, forward.guest));
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            anyhow!("--net user needs passt, which is not installed (on Debian and Ubuntu: apt-get install passt)")
        }
        _ => anyhow!(error).context("--net user: passt can't be started"),
    })?;
    if !is_ready(&mut child) {
        bail!("--net user: {}", end_of_passt(&mut child));
    }
    Ok(End::Passt { child, link: Link::new(ours) })
}

/// Waits until passt has its ports. Returns false if it has ended instead. passt confines itself by seccomp as the last
/// step before it serves its socket.
fn is_ready(passt: &mut Child) -> bool {
    let status = format!("/proc/{}/status", passt.id());
    let until = Instant::now() + LONGEST_START;
    while Instant::now() < until {
        if passt.try_wait().is_ok_and(|ended| ended.is_some()) {
            return false;
        }
        if std::fs::read_to_string(&status).is_ok_and(|text| text.lines().any(|line| line == "Seccomp:\t2")) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Waits for the end of passt, and returns the reason that it gave.
fn end_of_passt(passt: &mut Child) -> String {
    let mut said = String::new();
    let _ = passt.wait();
    if let Some(stderr) = &mut passt.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    let mut lines = said.lines().filter(|line| !line.trim().is_empty() && !line.contains("syslog"));
    format!("passt has ended: {}", lines.next_back().unwrap_or("it did not say why"))
}

/// Returns the statistics of a machine's NICs as JSON.
pub fn report(machine: &Machine) -> serde_json::Value {
    let board = machine.board();
    let network = board.network();
    let nics = network.report().map(|port| {
        let counts = port.counts;
        let mut nic = serde_json::json!({
            "name": port.name,
            "sent": counts.sent, "received": counts.received, "lost": counts.lost, "dropped": counts.dropped,
        });
        let Some(tester) = port.tester else { return nic };
        if let Some(generator) = tester.generator() {
            let stream = tester.stream();
            let received: u64 = network.report().filter_map(|port| port.tester).map(|sink| sink.received(stream)).sum();
            nic["generator"] = serde_json::json!({ "stream": stream, "sent": generator.sent(), "came_back": received });
        }
        let sink = tester.sink();
        let streams = sink.streams().map(|(stream, came)| {
            let latency = came.latency().map(|latency| {
                let quantile = |quantile| latency.value_at_quantile(quantile);
                serde_json::json!({
                    "min": latency.min(), "mean": latency.mean(), "p50": quantile(0.5), "p90": quantile(0.9),
                    "p99": quantile(0.99), "max": latency.max(),
                })
            });
            serde_json::json!({
                "stream": stream, "frames": came.frames, "bytes": came.bytes, "lost": came.lost(), "reordered": came.reordered,
                "frames_per_second": came.rate(),
                "latency_ns": latency,
            })
        });
        nic["sink"] = serde_json::json!({ "others": sink.others, "streams": streams.collect::<Vec<_>>() });
        if let Some(search) = tester.search() {
            let trials = search.trials().iter().map(|trial| {
                serde_json::json!({ "frames_per_second": trial.rate, "sent": trial.sent, "received": trial.received })
            });
            nic["rfc2544"] =
                serde_json::json!({ "throughput": search.throughput(), "floor": search.floor(), "trials": trials.collect::<Vec<_>>() });
        }
        nic
    });
    nics.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is wrong with the options of a machine, or of two, if anything.
    fn refused(machines: &[&[&str]]) -> Option<String> {
        let parsed: Vec<Vec<Net>> =
            machines.iter().map(|options| options.iter().map(|text| text.parse().unwrap()).collect()).collect();
        let names = if parsed.len() > 1 { [Some("a"), Some("b")] } else { [None; 2] };
        let members: Vec<Member> = names.into_iter().zip(parsed.iter().map(Vec::as_slice)).collect();
        apart(&members).err().map(|error| error.to_string())
    }

    #[test]
    fn stations_of_a_bridge_have_different_addresses() {
        let same = |text: &str| Some(format!("--net bridge: {text}"));
        let explicit = "bridge,mac=02:00:00:00:00:09";
        assert_eq!(
            refused(&[&[explicit, "bridge", explicit]]),
            same("net0 and net2 have the same address on the bridge bridge: mac=02:00:00:00:00:09")
        );
        let second = "bridge:lan,mac=02:74:67:00:00:02";
        let message = "net0 and net1 have the same address on the bridge lan: mac=02:74:67:00:00:02";
        assert_eq!(refused(&[&[second, "bridge:lan"]]), same(message));
        // Other bridges and connections have stations of their own, and a capture is no device.
        assert_eq!(refused(&[&[second, "bridge"]]), None);
        assert_eq!(refused(&[&[second, "sink"]]), None);
        assert_eq!(refused(&[&["pcap:f", "bridge:lan", second]]), None);
        // The machines of a run have defaults of their own.
        let other = "bridge:lan,mac=02:74:67:00:01:01";
        let message = "net0 of a and net0 of b have the same address on the bridge lan: mac=02:74:67:00:01:01";
        assert_eq!(refused(&[&[other], &["bridge:lan"]]), same(message));
        assert_eq!(refused(&[&["bridge:lan"], &[second, "bridge:lan"]]), None);
        assert!(refused(&[&["bridge:lan", "bridge:lan"], &[second]]).is_some());
    }

    #[test]
    fn a_port_of_the_host_leads_to_one_device() {
        let same = |text: &str| Some(format!("--net user: {text}"));
        let ssh = "user,forward=tcp:2222:22";
        assert_eq!(
            refused(&[&[ssh, "bridge", "user,forward=udp:2222:22,forward=2222:80"]]),
            same("net0 and net2 forward the same port of the host: tcp:2222")
        );
        assert_eq!(
            refused(&[&[ssh], &[ssh]]),
            same("net0 of a and net0 of b forward the same port of the host: tcp:2222")
        );
        assert_eq!(refused(&[&[ssh, "user,forward=udp:2222:22", "user,forward=2223:22"]]), None);
    }
}
