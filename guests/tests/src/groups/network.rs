//! Linux 6.1 and 6.12 with network devices: on a bridge, with a generator, and on the host's network.

use crate::bench::{Bench, free_port, need};
use crate::images::{debian, kernel, linux, mirror, net};
use crate::run::{Run, tollgate};
use crate::test::{Group, Outcome, Stop};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime};

/// Two devices of the kind that has the unmodified driver of the full kernels.
const TWO_82599: &str = "--net bridge,model=ixgbe --net bridge,model=ixgbe";
const USER: &str = "tollgate.run=user";

pub fn group() -> Group {
    let mut group = Group::on_request("network", 1200);
    for flavour in ["cloud", "backports"] {
        virtio(&mut group, flavour);
    }
    for (name, flavour) in [("amd64", "amd64"), ("backports_amd64", "backports-amd64")] {
        intel(&mut group, name, flavour);
    }
    group.add("pktgen_by_disciplines_and_sizes", |bench| {
        let workload = "for q in fq sfq htb tbf,rate,10gbit,burst,1mb,latency,1ms; do qdisc=$q warm=100 frames=200 sh /workloads/pktgen; done; \
                        size=1518 warm=100 frames=200 sh /workloads/pktgen";
        let run = guest("amd64")?.append("tollgate.run=-").words("--limit 60 --net sink:model=ixgbe");
        let output = bench.expect(&run.with("--workload", workload), 0, "200 [(]1514byte")?;
        let disciplines = ["fq", "sfq", "htb", "tbf"].iter().try_fold(output, |output, name| output.shows(&format!("^qdisc {name} 1: root")));
        disciplines?.shows("^result pktgen .* kpps")?.lacks("dropped [1-9]").map(drop)
    });
    group.add("ports_of_udp_on_an_82599", |bench| {
        let one_queue = "warning: all datagrams came to one of 2 queues";
        for (parameters, warned) in [("", true), ("rss=ports ", false)] {
            let run = guest("amd64")?.append("tollgate.run=-").words("--limit 60 --cpus 3 --memory 512M");
            let run = run.words("--net generator:start=request,learn=2,flows=64,model=ixgbe");
            let workload = format!("{parameters}queues=2 frames=2000 sh /workloads/udp-rx");
            let output = bench.expect(&run.with("--workload", workload), 0, "udpsink: 2000 datagrams")?;
            if warned {
                output.shows(one_queue)?
            } else {
                output.lacks(one_queue)?
            };
        }
        Ok(())
    });
    hosts_network(&mut group);
    group.limit(3600);
    group.add("a_debian_on_a_disk_installs_a_package", debian_disk);
    group
}

fn guest(flavour: &str) -> Result<Run, Stop> {
    linux(flavour, net(flavour)?)
}

fn virtio(group: &mut Group, flavour: &'static str) {
    for queues in [1, 4, 8] {
        group.add(format!("{flavour}_ping_and_iperf3_{queues}_queues"), move |bench| {
            let append = format!("tollgate.run=netns tollgate.bytes=5M tollgate.streams={queues}");
            let devices =
                format!("--cpus {queues} --net bridge,queues={queues} --net bridge,queues={queues},packed=on");
            let run = guest(flavour)?.append(&append).words("--limit 60").words(&devices);
            bench.expect(&run, 0, "workload netns: status 0").map(drop)
        });
    }
    group.add(format!("{flavour}_the_driver_is_bound_and_loaded_again"), move |bench| {
        let run = guest(flavour)?.append("tollgate.run=reload").words("--net bridge --net bridge --limit 60");
        bench.expect(&run, 0, "workload reload: status 0").map(drop)
    });
    group.add(format!("{flavour}_three_machines"), move |bench| three_machines(bench, flavour));
    group.add(format!("{flavour}_a_generator"), move |bench| {
        let generator = "--net generator:start=request,count=5K,rate=100K,flows=8,queues=2 --limit 60";
        generator_on_both_tiers(bench, guest(flavour)?.words(generator))
    });
    if flavour == "backports" {
        group.add("traffic_is_saved_and_goes_on", |bench| {
            saved(bench, guest("backports")?.words("--net bridge --net bridge --limit 60"), "0.8")
        });
    }
}

fn three_machines(bench: &Bench, flavour: &str) -> Outcome {
    let machine = |net: &str, append: &str| Ok::<_, Stop>(guest(flavour)?.append(append).words("--net").words(net));
    for tier in ["auto", "interpreter"] {
        let ledger = |machine: u32| bench.file(&format!("{tier}.{machine}"));
        let client = machine("bridge,queues=2", "tollgate.run=client tollgate.bytes=3M tollgate.streams=2")?;
        let client = client.words("--cpus 2 --limit 60").with("--tier", tier).with("--ledger", ledger(1));
        let server = machine("bridge", "tollgate.run=server")?.words("--cpu icx").with("--ledger", ledger(2));
        let third = machine("bridge,latency=5us", "tollgate.run=client tollgate.host=3 tollgate.bytes=1M")?;
        // What comes before the options of a machine is the command `run`.
        let mut run = client;
        for mut other in [server, third] {
            other.arguments.remove(0);
            run = run.words("--and").and(&other);
        }
        bench.expect(&run, 0, "m1 .*workload client: status 0")?;
    }
    bench.equal("auto.1", "interpreter.1")?;
    bench.equal("auto.2", "interpreter.2")
}

fn generator_on_both_tiers(bench: &Bench, run: Run) -> Outcome {
    let run = run.words("--cpus 2").append("tollgate.run=generator tollgate.frames=3000");
    for tier in ["auto", "interpreter"] {
        let run = run.clone().with("--tier", tier).with("--ledger", bench.file(tier));
        bench.expect(&run, 0, "udpsink: 3000 datagrams")?;
    }
    bench.equal("auto", "interpreter")
}

/// Saves a machine in the middle of its traffic and lets it go on.
fn saved(bench: &Bench, run: Run, seconds: &str) -> Outcome {
    let run = run.append("tollgate.run=netns tollgate.bytes=2M");
    let (snapshot, ended) = (bench.file("traffic.snapshot"), "workload netns: status 0");
    let saving = run.clone().with("--ledger", bench.file("a")).with("--save-at", seconds).arg(&snapshot);
    bench.expect(&saving, 0, ended)?;
    bench.expect(&run.with("--ledger", bench.file("b")).with("--restore", snapshot), 0, ended)?;
    bench.equal("a", "b")
}

/// The 82599 with its unmodified driver.
fn intel(group: &mut Group, name: &str, flavour: &'static str) {
    for queues in [1, 4, 8] {
        group.add(format!("{name}_82599_ping_and_iperf3_{queues}_queues"), move |bench| {
            let append = format!("tollgate.run=netns tollgate.bytes=5M tollgate.streams={queues}");
            let run =
                guest(flavour)?.append(&append).words("--limit 90").with("--cpus", queues.to_string()).words(TWO_82599);
            bench.expect(&run, 0, "workload netns: status 0").map(drop)
        });
    }
    group.add(format!("{name}_82599_ethtool_filters_resets_suspension"), move |bench| {
        let run = guest(flavour)?.append("tollgate.run=nic").words("--limit 90 --cpus 2").words(TWO_82599);
        bench.expect(&run, 0, "workload nic: status 0").map(drop)
    });
    group.add(format!("{name}_82599_the_driver_is_bound_and_loaded_again"), move |bench| {
        let run = guest(flavour)?.append("tollgate.run=reload").words("--limit 90").words(TWO_82599);
        bench.expect(&run, 0, "workload reload: status 0").map(drop)
    });
    group.add(format!("{name}_82599_a_generator"), move |bench| {
        let generator = "--limit 90 --net generator:start=request,count=5K,rate=100K,flows=8,model=ixgbe";
        generator_on_both_tiers(bench, guest(flavour)?.words(generator))
    });
    if flavour == "backports-amd64" {
        group.add("traffic_of_an_82599_is_saved_and_goes_on", |bench| {
            saved(bench, guest("backports-amd64")?.words("--limit 90").words(TWO_82599), "2.1")
        });
    }
}

/// Guests on the host's network, by passt.
fn hosts_network(group: &mut Group) {
    group.add("a_file_of_the_host_is_fetched_and_replayed", |bench| {
        need("passt")?;
        let server = Served::start(vec![0; 1_000_000])?;
        let append = format!("{USER} tollgate.fetch=http://ROUTER:{}/file", server.port);
        let run = guest("backports")?.append(&append).words("--net user");
        let fetched = "fetched 1000000 bytes";
        let record = run.clone().with("--record", bench.file("input")).with("--ledger", bench.file("a"));
        bench.expect(&record, 0, fetched)?;
        drop(server);
        let replay = run.with("--replay", bench.file("input")).with("--ledger", bench.file("b"));
        bench.expect(&replay, 0, fetched)?;
        bench.equal("a", "b")
    });
    group.add("iperf3_of_an_82599_with_the_host", |bench| {
        ["passt", "iperf3"].into_iter().try_for_each(need)?;
        let port = free_port()?;
        let _server = bench.start(&Run::new("iperf3").words("-s -B 127.0.0.1 -p").arg(port.to_string()))?;
        let run = guest("amd64")?.append(&format!("{USER} tollgate.iperf={port}")).words("--net user,model=ixgbe");
        bench.expect(&run, 0, "workload user: status 0").map(drop)
    });
    group.add("ssh_into_a_guest_with_an_82599", ssh);
}

fn ssh(bench: &Bench) -> Outcome {
    ["passt", "ssh", "ssh-keygen"].into_iter().try_for_each(need)?;
    let (key, port) = (bench.file("key"), free_port()?);
    bench.expect(&Run::new("ssh-keygen").words("-q -t ed25519 -N").arg("").with("-C", "").with("-f", &key), 0, "")?;
    let public = std::fs::read_to_string(key.with_extension("pub"))?;
    let public = public.split_whitespace().take(2).collect::<Vec<_>>().join(",");
    let run = guest("amd64")?.append(&format!("{USER} tollgate.ssh={public}"));
    let guest = bench.start(&run.words("--net").arg(format!("user,model=ixgbe,forward=tcp:{port}:22")))?;
    let options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 root@127.0.0.1";
    let ssh = Run::new("ssh").with("-i", key).with("-p", port.to_string()).words(options).arg("uname -s >/tmp/end");
    // The guest ends when somebody has logged in, so the last attempt may fail; the guest's end tells.
    for _ in 0..60 {
        std::thread::sleep(Duration::from_secs(2));
        if bench.expect(&ssh, 0, "").is_ok() {
            break;
        }
    }
    bench.expect_of(guest, 0, "somebody was here: Linux").map(drop)
}

/// apt-get in a Debian on an ext4 disk, with the package mirror of this host.
fn debian_disk(bench: &Bench) -> Outcome {
    need("passt")?;
    let (disk, initrd) = debian()?;
    reachable(&mirror()?)?;
    let copy = bench.file("debian.img");
    bench.expect(&Run::new("cp").words("--sparse=always").arg(disk).arg(&copy), 0, "")?;
    let run = |append: &str| {
        let run = tollgate("run").with("--kernel", kernel("amd64")?).with("--initrd", &initrd).with("--disk", &copy);
        Ok::<_, Stop>(run.append(&format!("root=/dev/vda {append}")))
    };
    bench.expect(&run("tollgate.run=setup")?, 0, "workload setup: status 0")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let install = format!("tollgate.run=apt tollgate.install=hello tollgate.date={now}");
    bench.expect(&run(&install)?.words("--net user"), 0, "Setting up hello")?;
    bench.expect(&run("tollgate.run=hello")?, 0, "^Hello, world!").map(drop)
}

/// Tries a connection to the server of that address.
fn reachable(url: &str) -> Outcome {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let host = rest.split('/').next().unwrap_or(rest);
    let port = if scheme == "https" { 443 } else { 80 };
    let host = if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") };
    let mut addresses = host.to_socket_addrs().into_iter().flatten();
    match addresses.any(|address| TcpStream::connect_timeout(&address, Duration::from_secs(10)).is_ok()) {
        true => Ok(()),
        false => Err(Stop::Skipped("the package mirror can't be reached".to_owned())),
    }
}

/// A server on this host that answers each HTTP request with the same bytes, until it is dropped.
pub struct Served {
    pub port: u16,
}

impl Served {
    pub fn start(body: Vec<u8>) -> Result<Self, Stop> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // The server itself connects at its end, and says nothing.
                match stream.map(|stream| answer(stream, &body)) {
                    Ok(Ok(true)) => {}
                    _ => break,
                }
            }
        });
        Ok(Self { port })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Answers one request. Returns whether there was one.
fn answer(mut stream: TcpStream, body: &[u8]) -> std::io::Result<bool> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => return Ok(false),
            read => request.extend_from_slice(&part[..read]),
        }
    }
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(body)?;
    Ok(true)
}
