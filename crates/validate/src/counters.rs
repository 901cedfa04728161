//! The processor's counters of a program that is started next, where the kernel grants them (perf_event_open).

#![allow(unsafe_code, reason = "the C library has no function for this system call")]

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;

/// The first version of the kernel's `perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

/// Kinds of counters.
const HARDWARE: u32 = 0;
#[cfg(test)]
const SOFTWARE: u32 = 1;
/// Hardware counters.
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
/// The counter begins at the execution of a program, is inherited, and counts neither kernel nor hypervisor.
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ENABLE_ON_EXEC: u64 = 1 << 12;

/// Counters of cycles and instructions.
pub struct Counters([File; 2]);

impl Counters {
    /// Creates counters for the children of this thread, from the program on that they execute. `None` if the kernel
    /// does not grant them or the processor has none.
    pub fn of_next_program() -> Option<Self> {
        Some(Self([open(HARDWARE, CYCLES)?, open(HARDWARE, INSTRUCTIONS)?]))
    }

    /// Returns the counts, after the end of the program.
    pub fn read(self) -> Option<[u64; 2]> {
        let [cycles, instructions] = self.0;
        let counts = [value(cycles)?, value(instructions)?];
        // A virtual machine may have counters that do not count.
        counts.iter().all(|count| *count > 0).then_some(counts)
    }
}

fn value(mut counter: File) -> Option<u64> {
    let mut bytes = [0; 8];
    counter.read_exact(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

fn open(kind: u32, config: u64) -> Option<File> {
    let flags = DISABLED | INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | ENABLE_ON_EXEC;
    let attributes = Attributes { kind, size: size_of::<Attributes>() as u32, config, flags, ..Attributes::default() };
    const CLOSE_ON_EXEC: u64 = 1 << 3;
    // SAFETY: the structure has the size that it states; process 0 is this thread, processor -1 is any, group -1 none.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0i32, -1i32, -1i32, CLOSE_ON_EXEC) };
    // SAFETY: the descriptor is new, and nobody else closes it.
    (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_counts_the_next_program_alone() {
        // Page faults are counted without hardware. A kernel may refuse even that.
        const PAGE_FAULTS: u64 = 2;
        let (Some(idle), Some(counter)) = (open(SOFTWARE, PAGE_FAULTS), open(SOFTWARE, PAGE_FAULTS)) else { return };
        assert_eq!(value(idle), Some(0));
        assert!(std::process::Command::new("true").status().unwrap().success());
        assert!(value(counter).unwrap() > 0);
    }
}
