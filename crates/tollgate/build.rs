//! Makes process 1 of guests that run one command (`tollgate exec`): a static program in C.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let source =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../guests/linux/exec/init.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("exec-init");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-unused-result", "-static", "-no-pie", "-s"]);
    command.arg("-Wl,--build-id=none").arg("-o").arg(&out).arg(&source);
    let made = command.status().is_ok_and(|status| status.success());
    assert!(
        made,
        "{compiler:?} can't build {} (a static C library is needed; on Debian: gcc, libc6-dev)",
        source.display()
    );
}
