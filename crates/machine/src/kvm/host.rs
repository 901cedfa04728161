//! Operations in which KVM uses addresses of this program: guest memory, the page shared with KVM, signals, and calls
//! that kvm-ioctls lacks.

use crate::memory::GuestRam;
use kvm_bindings::{
    KVM_EXIT_HLT, KVM_EXIT_INTR, KVM_EXIT_IO, KVM_EXIT_IO_IN, KVM_EXIT_IRQ_WINDOW_OPEN, KVM_EXIT_MMIO,
    KVM_EXIT_SHUTDOWN, kvm_regs, kvm_run, kvm_sregs, kvm_userspace_memory_region,
};
use kvm_ioctls::{SyncReg, VcpuFd, VmFd};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU8, Ordering};

/// `_IOW(KVMIO, 0x86, struct kvm_interrupt)`.
const KVM_INTERRUPT: libc::c_ulong = 0x4004_ae86;
/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;

/// Registers the guest's RAM with a virtual machine, with a slot for each range.
pub fn set_memory(vm: &VmFd, ram: &GuestRam) -> io::Result<()> {
    for (slot, range) in (0..).zip(ram.host_ranges()) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: range.start,
            memory_size: range.len,
            userspace_addr: range.host as u64,
        };
        // SAFETY: the range is mapped as long as a clone of `ram` lives, which the caller keeps beside the virtual machine. Rust code
        // reaches it by volatile accesses alone.
        unsafe { vm.set_user_memory_region(region) }.map_err(io_error)?;
    }
    Ok(())
}

/// Opens the statistics of a virtual machine or of one of its processors.
pub fn statistics(of: &impl AsRawFd) -> io::Result<File> {
    // SAFETY: the call takes no argument, and makes a file descriptor.
    let fd = unsafe { libc::ioctl(of.as_raw_fd(), KVM_GET_STATS_FD as _, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Converts an error of kvm-ioctls to an I/O error.
pub fn io_error(error: kvm_ioctls::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

/// Reason for which a virtual processor has left its guest.
#[derive(Debug)]
pub enum Exit<'a> {
    /// IN: each element of `size` bytes must be filled.
    In { port: u16, size: u8, data: &'a mut [u8] },
    /// OUT, with elements of `size` bytes.
    Out { port: u16, size: u8, data: &'a [u8] },
    /// Read from an address outside of RAM.
    Read { address: u64, data: &'a mut [u8] },
    /// Write to an address outside of RAM.
    Write { address: u64, data: &'a [u8] },
    /// HLT.
    Halt,
    /// An interrupt can be injected.
    Window,
    /// Triple fault.
    Shutdown,
    /// Another thread or a signal requested the exit.
    Kicked,
    /// KVM can't continue.
    Failed(String),
}

/// State of a virtual processor after it has left its guest.
#[derive(Debug)]
pub struct Left<'a> {
    /// Reason.
    pub exit: Exit<'a>,
    /// RFLAGS.IF.
    pub interrupts: bool,
    /// CR8.
    pub cr8: u64,
    /// IA32_APIC_BASE.
    pub apic_base: u64,
}

/// A virtual processor that can be run.
pub struct Runner {
    fd: VcpuFd,
}

impl Runner {
    /// Creates a runner for a virtual processor.
    pub fn new(fd: VcpuFd) -> Self {
        Self { fd }
    }

    /// Returns the virtual processor.
    pub fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    /// Returns the structure shared with KVM, without the part that depends on the exit.
    pub fn shared(&mut self) -> &mut kvm_run {
        self.fd.get_kvm_run()
    }

    /// Requests registers with each exit.
    pub fn show_registers(&mut self) {
        self.fd.set_sync_valid_reg(SyncReg::Register);
        self.fd.set_sync_valid_reg(SyncReg::SystemRegister);
    }

    /// Returns the registers at the last exit, after [`Runner::show_registers`].
    pub fn shown(&mut self) -> (kvm_regs, kvm_sregs) {
        let all = self.fd.sync_regs();
        (all.regs, all.sregs)
    }

    /// Injects an external interrupt.
    pub fn inject(&mut self, vector: u8) -> io::Result<()> {
        let number = u32::from(vector);
        // SAFETY: the call reads four bytes, which live until it returns.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), KVM_INTERRUPT as _, &number) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns a handle with which other threads make the processor leave the guest.
    pub fn kick(&mut self) -> Kick {
        let flag: *mut u8 = &mut self.fd.get_kvm_run().immediate_exit;
        // SAFETY: the call has no argument and can't fail.
        Kick { flag: flag.cast(), thread: unsafe { libc::pthread_self() } }
    }

    /// Completes the instruction that caused the last exit, without executing another one.
    pub fn complete(&mut self) -> io::Result<()> {
        self.fd.set_kvm_immediate_exit(1);
        let result = self.fd.run().map(drop).map_err(io_error);
        self.fd.set_kvm_immediate_exit(0);
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs the guest until the next exit.
    pub fn run(&mut self) -> io::Result<Left<'_>> {
        let kicked = match self.fd.run().map(drop).map_err(io_error) {
            Ok(()) => false,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => true,
            Err(error) => return Err(error),
        };
        let run = self.fd.get_kvm_run();
        let (interrupts, cr8, apic_base) = (run.if_flag != 0, run.cr8, run.apic_base);
        let exit = match run.exit_reason {
            _ if kicked => Exit::Kicked,
            KVM_EXIT_IO => io_exit(run),
            KVM_EXIT_MMIO => {
                // SAFETY: the exit reason selects this member of the union.
                let mmio = unsafe { &mut run.__bindgen_anon_1.mmio };
                let len = (mmio.len as usize).min(mmio.data.len());
                let data = &mut mmio.data[..len];
                match mmio.is_write {
                    0 => Exit::Read { address: mmio.phys_addr, data },
                    _ => Exit::Write { address: mmio.phys_addr, data },
                }
            }
            KVM_EXIT_HLT => Exit::Halt,
            KVM_EXIT_IRQ_WINDOW_OPEN => Exit::Window,
            KVM_EXIT_INTR => Exit::Kicked,
            KVM_EXIT_SHUTDOWN => Exit::Shutdown,
            reason => Exit::Failed(failure(run, reason)),
        };
        Ok(Left { exit, interrupts, cr8, apic_base })
    }
}

/// Decodes a port access. Its data is in the pages after the shared structure.
fn io_exit(run: &mut kvm_run) -> Exit<'_> {
    let start: *mut kvm_run = run;
    // SAFETY: the exit reason selects this member of the union.
    let io = unsafe { run.__bindgen_anon_1.io };
    // SAFETY: KVM gives the offset of the elements in the processor's mapping. Nothing else accesses them until the
    // processor runs again, for which the borrow must have ended.
    let data = unsafe {
        let first = start.cast::<u8>().add(io.data_offset as usize);
        std::slice::from_raw_parts_mut(first, usize::from(io.size) * io.count as usize)
    };
    match u32::from(io.direction) {
        KVM_EXIT_IO_IN => Exit::In { port: io.port, size: io.size, data },
        _ => Exit::Out { port: io.port, size: io.size, data },
    }
}

/// Describes an exit that can't be handled.
fn failure(run: &kvm_run, reason: u32) -> String {
    match reason {
        kvm_bindings::KVM_EXIT_FAIL_ENTRY => {
            // SAFETY: the exit reason selects this member of the union.
            let why = unsafe { run.__bindgen_anon_1.fail_entry.hardware_entry_failure_reason };
            format!("the host's processor refuses to enter the guest, reason {why:#x}")
        }
        kvm_bindings::KVM_EXIT_INTERNAL_ERROR => {
            // SAFETY: as above.
            let internal = unsafe { &run.__bindgen_anon_1.internal };
            match internal.suberror {
                kvm_bindings::KVM_INTERNAL_ERROR_EMULATION => "KVM cannot emulate an instruction".to_owned(),
                kvm_bindings::KVM_INTERNAL_ERROR_DELIVERY_EV => {
                    "KVM left the guest while it delivered an event".to_owned()
                }
                other => format!("internal error {other} of KVM"),
            }
        }
        reason => format!("exit of KVM for reason {reason}, which nothing asked for"),
    }
}

/// Handle that makes a virtual processor leave its guest, from any thread.
#[derive(Clone, Copy, Debug)]
pub struct Kick {
    flag: *const AtomicU8,
    thread: libc::pthread_t,
}

// SAFETY: the flag is accessed atomically, and a thread ID may be used by all threads.
unsafe impl Send for Kick {}

impl Kick {
    /// Makes the processor leave the guest, or not enter it. The thread that created the handle must still run, and the
    /// processor must exist.
    pub fn leave(&self) {
        // SAFETY: the caller guarantees that the processor exists, and with it the page. KVM reads the flag after it
        // blocks signals for the guest's entry, so that either the flag or the signal is noticed.
        unsafe { (*self.flag).store(1, Ordering::SeqCst) };
        // SAFETY: the caller guarantees that the thread runs.
        unsafe { libc::pthread_kill(self.thread, signal()) };
    }
}

/// Returns the signal that ends KVM_RUN; nothing else uses it.
fn signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Installs a handler that does nothing, so that the signal only interrupts system calls.
pub fn prepare_signal() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeros is an action without flags and with no signal blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the action is complete, and its handler may be called at any time.
    match unsafe { libc::sigaction(signal(), &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
