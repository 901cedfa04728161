//! Writes the seeds of each target, the fuzzer's initial inputs, to `corpus/<target>`.

use std::{fs, io};
use tollgate_fuzz::{
    capture, decode, devices, files, hypervisor, ixgbe, ledger, loader, nested, passt, profile, restore, shared,
    snapshot, translate, virtio, vmx,
};

fn main() -> io::Result<()> {
    let targets = [
        ("decode", decode::seeds()),
        ("devices", devices::seeds()),
        ("files", files::seeds()),
        ("hypervisor", hypervisor::seeds()),
        ("ixgbe", ixgbe::seeds()),
        ("ledger", ledger::seeds()),
        ("loader", loader::seeds()),
        ("nested", nested::seeds()),
        ("passt", passt::seeds()),
        ("profile", profile::seeds()),
        ("restore", restore::seeds()),
        ("shared", shared::seeds()),
        ("snapshot", snapshot::seeds()),
        ("translate", translate::seeds()),
        ("capture", capture::seeds()),
        ("virtio", virtio::seeds()),
        ("vmx", vmx::seeds()),
    ];
    for (target, seeds) in targets {
        let directory = format!("{}/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        fs::create_dir_all(&directory)?;
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(format!("{directory}/seed-{number:03}"), seed)?;
        }
    }
    Ok(())
}
