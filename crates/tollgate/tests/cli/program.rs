//! The program and its files, as the tests use them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The address of a guest's code.
pub const ENTRY: u32 = 0x10_0030;

/// Exit statuses, as `tollgate run --help` lists them.
pub const WRONG_ARGUMENTS: i32 = 2;
pub const RESET_UNASKED: i32 = 122;
pub const PANICKED: i32 = 123;
pub const TIMED_OUT: i32 = 124;
pub const GUEST_DIED: i32 = 125;
pub const FAILED: i32 = 126;
pub const UNREAD: i32 = 141;

/// mov edx, 0x3f8; mov al, '*'; out dx, al
pub const PRINT: &[u8] = b"\xba\xf8\x03\0\0\xb0*\xee";
/// mov edx, 0x604; mov ax, 0x2000; out dx, ax; jmp $
pub const POWER_OFF: &[u8] = b"\xba\x04\x06\0\0\x66\xb8\0\x20\x66\xef\xeb\xfe";
/// mov al, 0xfe; out 0x64, al; jmp $
pub const RESET: &[u8] = b"\xb0\xfe\xe6\x64\xeb\xfe";
/// mov dx, 0x1f0d; mov al, 7; out dx, al
pub const STATUS_7: &[u8] = b"\x66\xba\x0d\x1f\xb0\x07\xee";

/// A directory of files for one test.
pub struct Files(pub PathBuf);

impl Files {
    pub fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        // An earlier run may have left files.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    pub fn put(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }

    /// A multiboot image with this code, entered in 32-bit protected mode with an empty IDT.
    pub fn guest(&self, name: &str, code: &[u8]) -> String {
        let flags = 1u32 << 16;
        let end = ENTRY + code.len() as u32;
        let mut image = Vec::new();
        for word in [
            0x1bad_b002,
            flags,
            0u32.wrapping_sub(0x1bad_b002 + flags),
            0x10_0000,
            0x10_0000,
            end,
            end,
            ENTRY,
            0,
            0,
            0,
            0,
        ] {
            image.extend(word.to_le_bytes());
        }
        image.extend(code);
        self.put(name, &image)
    }

    /// A guest that prints `*` and powers off.
    pub fn good(&self) -> String {
        self.guest("good", &[PRINT, POWER_OFF].concat())
    }
}

pub fn tollgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap()
}

pub fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = tollgate(&[&["run"], arguments].concat());
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("it was not killed"), text(&output.stdout), text(&output.stderr))
}

/// The run is refused in one line that contains `message`, before the guest does anything.
#[track_caller]
pub fn refused(arguments: &[&str], message: &str) {
    refused_with(FAILED, arguments, message);
}

/// The same for options that no files and no host make right.
#[track_caller]
pub fn wrong(arguments: &[&str], message: &str) {
    refused_with(WRONG_ARGUMENTS, arguments, message);
}

#[track_caller]
pub fn refused_with(expected: i32, arguments: &[&str], message: &str) {
    let (status, printed, error) = run(arguments);
    assert_eq!((status, printed.as_str()), (expected, ""), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("tollgate: error: ") && error.contains(message), "{error}");
}

/// Runs a guest with this code, and returns its exit status and the output of `--json`.
#[track_caller]
pub fn ends(files: &Files, code: &[&[u8]], options: &[&str]) -> (i32, String, Option<u64>) {
    let guest = files.guest("ends", &code.concat());
    let (status, _, error) = run(&[&["--kernel", &guest, "--json"], options].concat());
    let json: serde_json::Value = serde_json::from_str(error.lines().last().expect("a report")).unwrap();
    assert_eq!(json["status"], status, "{error}");
    (status, json["reason"].as_str().unwrap().to_owned(), json["workload_status"].as_u64())
}

/// Checks the message of a guest that ends badly: the way in which it ended, and the position of each processor.
#[track_caller]
pub fn post_mortem(arguments: &[&str], status: i32, how: &str, place: &str, bytes: &str) {
    let (code, printed, error) = run(arguments);
    assert_eq!((code, printed.as_str()), (status, ""), "{error}");
    let mut lines = error.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with(&format!("tollgate: {how} after ")), "{error}");
    let cpu = lines.next().unwrap();
    assert!(cpu.starts_with("cpu 0 ") && cpu.contains(place) && cpu.contains(bytes), "{error}");
    assert!(cpu.contains("ring 0") && cpu.contains("32-bit code") && error.contains("rax="), "{error}");
}

/// A command line is refused as a wrong one, with a message, and without a word about a command that was run.
#[track_caller]
pub fn wrong_use(arguments: &[&str], message: &str) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).env("TOLLGATE_CONFIG", "").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(WRONG_ARGUMENTS), "{arguments:?}: {error}");
    assert!(error.contains(message) && !error.contains("ended with status"), "{arguments:?}: {error}");
}
