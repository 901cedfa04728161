//! The SIGSYS handler: it names a system call that the filter refused, then the process ends by SIGSYS.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use std::io::Result;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use syscalls::Sysno;

/// The settings of the terminal, which the handler restores.
static mut TERMINAL: MaybeUninit<libc::termios> = MaybeUninit::uninit();
/// True once [`TERMINAL`] is initialized.
static HAS_TERMINAL: AtomicBool = AtomicBool::new(false);

/// The part of `siginfo_t` that the kernel fills in for SIGSYS (sigaction(2)).
#[repr(C)]
struct Refused {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    _padding: libc::c_int,
    address: *const libc::c_void,
    call: libc::c_int,
    architecture: libc::c_uint,
}

fn write(bytes: &[u8]) {
    // A failure of the write can't be reported. `std::io::stderr()` names the descriptor, and takes no lock for that.
    let _ = nix::unistd::write(std::io::stderr(), bytes);
}

/// Writes a number without allocating.
fn write_number(mut number: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return write(&digits[at..]);
        }
    }
}

/// Names the refused call. The handler is async-signal-safe: it makes system calls only, and neither allocates nor takes a lock.
extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if HAS_TERMINAL.load(Ordering::Acquire) {
        // SAFETY: the settings were written before the flag was set, and are not written again.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, (&raw const TERMINAL).cast()) };
    }
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid `siginfo_t`, which for SIGSYS has this layout.
    let call = unsafe { (*info.cast::<Refused>()).call } as usize;
    let name = Sysno::new(call).map_or("without a name", |call| call.name());
    write(b"\ntollgate: the sandbox has refused the system call ");
    write(name.as_bytes());
    write(b" (number ");
    write_number(call);
    write(b"), which no machine needs: either Tollgate has a flaw, or the guest has used one. --sandbox off disables the sandbox\n");
    // The action is the default one again (SA_RESETHAND), and the signal is not blocked (SA_NODEFER).
    let _ = raise(Signal::SIGSYS);
}

/// Installs the handler, which restores the terminal's current settings before it names a refused call.
pub fn announce() -> Result<()> {
    // SAFETY: no other code writes the settings, and the handler reads them only once the flag is set.
    if unsafe { libc::tcgetattr(libc::STDIN_FILENO, (&raw mut TERMINAL).cast()) } == 0 {
        HAS_TERMINAL.store(true, Ordering::Release);
    }
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_RESETHAND | SaFlags::SA_NODEFER | SaFlags::SA_ONSTACK;
    let action = SigAction::new(SigHandler::SigAction(handle), flags, SigSet::empty());
    // SAFETY: the handler may be called at any time.
    unsafe { sigaction(Signal::SIGSYS, &action) }?;
    Ok(())
}
