//! A guest's input.

use crate::program::{Files, POWER_OFF};
use std::io::Write;
use std::process::{Command, Stdio};

/// A guest that sets up its serial port as drivers do, clearing the FIFO and reading what came before, waits for so many bytes, sends
/// them back and powers off.
fn echo(files: &Files, count: u8) -> String {
    let mut code = Vec::new();
    // mov dx, port; mov al, value; out dx, al
    for (port, value) in [(0x3fc_u16, 0x0b_u8), (0x3fa, 0x07), (0x3fa, 0x01)] {
        let [low, high] = port.to_le_bytes();
        code.extend([0x66, 0xba, low, high, 0xb0, value, 0xee]);
    }
    code.extend([0x66, 0xba, 0xf8, 0x03, 0xec]); // mov dx, 0x3f8; in al, dx
    code.extend([0xb9, count, 0, 0, 0]); // mov ecx, count
    // wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; out dx, al; loop wait
    code.extend([0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0x66, 0xba, 0xf8, 0x03, 0xec, 0xee, 0xe2, 0xef]);
    code.extend(POWER_OFF);
    files.guest("echo", &code)
}

#[test]
fn input_waits_for_the_guest() {
    let files = Files::new("input");
    let text = "uname -r\nexit 7\n";
    let guest = echo(&files, text.len() as u8);
    let run = |input: Stdio, ledger: &str| {
        let arguments = ["run", "--kernel", &guest, "--timeout", "60", "--ledger", ledger];
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).stdin(input).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut child = run(Stdio::piped(), &files.path("pipe"));
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), text.to_owned()));
    // A file is there before the run begins: it repeats.
    let file = files.put("typed", text.as_bytes());
    let ledger = |name: &str| {
        let input = std::fs::File::open(&file).unwrap();
        let output = run(input.into(), &files.path(name)).wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(0), text.to_owned()));
        std::fs::read(files.path(name)).unwrap()
    };
    assert_eq!(ledger("one"), ledger("two"));
}

#[test]
fn an_idle_guest_follows_the_clock_of_whoever_may_type() {
    let files = Files::new("idle");
    // sti with an interrupt controller that lets none through; hlt
    let guest = files.guest("idle", b"\xb0\xff\xe6\x21\xe6\xa1\xfb\xf4\xeb\xfd");
    let seconds = |input: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--kernel", &guest, "--timeout", "0.5", "--json"]);
        let mut child = command.stdin(input).stderr(Stdio::piped()).spawn().unwrap();
        // An open pipe; it is closed only afterwards.
        let pipe = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(pipe);
        let error = String::from_utf8(output.stderr).unwrap();
        let json: serde_json::Value = serde_json::from_str(error.lines().last().unwrap()).unwrap();
        json["virtual_seconds"].as_f64().unwrap()
    };
    let (attended, alone) = (seconds(Stdio::piped()), seconds(Stdio::null()));
    assert!(attended < 1.0 && alone > 2.0 * attended, "{attended} {alone}");
}
