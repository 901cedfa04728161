//! The initial RAM disk: process 1, the modules that it loads, and, for kernels that can't mount them, the command's files.

use anyhow::{Context, Result, anyhow, bail};
use guestfs::archive::Archive;
use guestfs::kernel_modules::Modules;
use guestfs::{Kind, Packed};
use network::options::{Model, Nic};

/// Process 1 (guests/linux/exec/init.c), compiled with this program.
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/exec-init"));
/// Modules that every run needs.
const NEEDED: [&str; 2] = ["virtio_pci", "virtio_console"];
/// Modules for mounted files.
const FILES: [&str; 2] = ["virtiofs", "overlay"];

/// Drivers of network devices.
const NETWORK: [&str; 2] = ["virtio_net", "ixgbe"];

/// Returns the names of all modules that runs load.
pub fn loaded() -> Vec<&'static str> {
    [&NEEDED[..], &FILES, &NETWORK].concat()
}

/// Returns the driver of a network device.
fn driver_of(nic: &Nic) -> &'static str {
    match nic.model {
        Model::Virtio => NETWORK[0],
        Model::Ixgbe => NETWORK[1],
    }
}

/// Returns the drivers of network devices. The first device's is loaded first, so that its interface is `eth0`.
fn drivers(modules: &Modules, nics: &[Nic]) -> Result<Vec<&'static str>> {
    let mut drivers = Vec::new();
    for nic in nics {
        let driver = driver_of(nic);
        if !modules.has(driver) {
            bail!("--net {}: the kernel lacks the driver {driver} ({})", nic.text, option_of(driver));
        }
        if !drivers.contains(&driver) {
            drivers.push(driver);
        }
    }
    Ok(drivers)
}

/// Returns the option of the kernel's configuration for a module.
fn option_of(module: &str) -> String {
    match module {
        "virtiofs" => "CONFIG_VIRTIO_FS".to_owned(),
        "overlay" => "CONFIG_OVERLAY_FS".to_owned(),
        _ => format!("CONFIG_{}", module.to_uppercase()),
    }
}

/// The way in which the command's files reach the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through a virtio file system device.
    Mounted,
    /// In the initial RAM disk.
    Archived,
}

/// Returns the way that a kernel with these modules supports.
pub fn way(modules: Option<&Modules>) -> Way {
    let mounts = modules.is_none_or(|modules| FILES.iter().all(|name| modules.has(name)));
    if mounts { Way::Mounted } else { Way::Archived }
}

/// Returns the module without which the guest could not mount the command's files, from its own message.
pub fn unmounted(message: &str) -> Option<&'static str> {
    FILES.into_iter().find(|name| message.contains(&format!("({name}): No such device")))
}

/// Names the modules for mounted files that a kernel lacks, with their options.
pub fn lacking(modules: &Modules) -> String {
    let lacking = FILES.iter().filter(|name| !modules.has(name));
    let named: Vec<String> = lacking.map(|name| format!("{name}.ko ({})", option_of(name))).collect();
    named.join(" and ") + if named.len() > 1 { " are" } else { " is" }
}

/// Returns the archive, without the command's files.
pub fn archive(modules: Option<&Modules>, way: Way, nics: &[Nic]) -> Result<Archive> {
    let mut archive = Archive::default();
    let directory = Kind::Directory as u32 | 0o755;
    for name in ["dev", "modules"] {
        archive.add(name.as_bytes(), directory, b"");
    }
    archive.add_device(b"dev/console", 0o600, 5, 1);
    archive.add(b"init", Kind::File as u32 | 0o755, INIT);
    if let Some(modules) = modules {
        let mut names = NEEDED.to_vec();
        if way == Way::Mounted {
            names.extend(FILES);
        }
        names.extend(drivers(modules, nics)?);
        let needs = || {
            let options: Vec<_> = names.iter().map(|name| option_of(name)).collect();
            format!(
                "the kernel lacks a driver that a command needs: its configuration must have {}, built in, or as modules that have been built and are in a directory or a package that --modules names",
                options.join(", ")
            )
        };
        let loaded = modules.load(&names).with_context(needs)?;
        let order: String = loaded.iter().map(|(name, _)| format!("{name}.ko\n")).collect();
        for (name, bytes) in &loaded {
            archive.add(format!("modules/{name}.ko").as_bytes(), Kind::File as u32 | 0o644, bytes);
        }
        archive.add(b"modules/order", Kind::File as u32 | 0o644, order.as_bytes());
    }
    Ok(archive)
}

/// Adds the command's files.
pub fn add_files(archive: &mut Archive, files: &mut Packed) -> Result<()> {
    archive.add(b"payload", Kind::Directory as u32 | 0o755, b"");
    archive.add_tree("payload/", files).map_err(|error| anyhow!("a file can't be packed: {error}"))
}
