//! The system calls that a confined process may make, and what for.

use syscalls::Sysno;

/// What a group of calls is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// By any machine.
    Always,
    /// Files are opened by name. It follows from the names.
    Files,
    /// … and changed.
    Changes,
    /// A debugger connects.
    Debugger,
    /// The host's KVM executes the guest.
    Kvm,
    /// A machine is made during the run, with executable memory of its own.
    NewMachines,
}

/// What an argument must be.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// The 32 low bits of the argument with this number are these.
    Is(u8, u32),
    /// Of these bits of the argument, these are set.
    Bits(u8, u32, u32),
    /// The argument is a null pointer.
    Null(u8),
    /// The argument is this process.
    Own(u8),
}

/// A call that may be made.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What it is for.
    pub needed: Use,
    /// Which one it is.
    pub call: Sysno,
    /// What its arguments must be, all of it. A call may have several such rows.
    pub checks: &'static [Check],
}

const fn any(call: Sysno) -> Call {
    Call { needed: Use::Always, call, checks: &[] }
}

const fn only(call: Sysno, checks: &'static [Check]) -> Call {
    Call { needed: Use::Always, call, checks }
}

const fn needed(needed: Use, call: Sysno, checks: &'static [Check]) -> Call {
    Call { needed, call, checks }
}

const EXECUTABLE: u32 = libc::PROT_EXEC as u32;
const READ_AND_EXECUTE: u32 = (libc::PROT_READ | libc::PROT_EXEC) as u32;
const PROTECTIONS: u32 = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32;
const KIND_OF_MAPPING: u32 = libc::MAP_TYPE as u32;
const SHARED: u32 = libc::MAP_SHARED as u32;
/// Flags of clone(2) that only a thread of this process has.
const THREAD: u32 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u32;
/// Flags of open(2) by which a file is changed or made.
const CHANGES: u32 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
/// The type of KVM's requests (Linux: Documentation/userspace-api/ioctl/ioctl-number.rst), and where it is in a request.
const KVM_REQUESTS: u32 = 0xae00;
const TYPE_OF_REQUEST: u32 = 0xff00;
/// The file that a descriptor stands for, not one of a name.
const BY_DESCRIPTOR: u32 = libc::AT_EMPTY_PATH as u32;

/// The calls that may be made.
pub const TABLE: &[Call] = &[
    // Memory. None becomes executable, and nothing is executable that can be written to.
    any(Sysno::brk),
    any(Sysno::munmap),
    any(Sysno::mremap),
    any(Sysno::madvise),
    only(Sysno::mmap, &[Check::Bits(2, EXECUTABLE, 0)]),
    only(Sysno::mprotect, &[Check::Bits(2, EXECUTABLE, 0)]),
    // Open files, pipes, sockets and terminals.
    any(Sysno::read),
    any(Sysno::write),
    any(Sysno::readv),
    any(Sysno::writev),
    any(Sysno::pread64),
    any(Sysno::pwrite64),
    any(Sysno::lseek),
    any(Sysno::close),
    any(Sysno::fstat),
    any(Sysno::fsync),
    any(Sysno::fdatasync),
    any(Sysno::poll),
    any(Sysno::ppoll),
    only(Sysno::newfstatat, &[Check::Bits(3, BY_DESCRIPTOR, BY_DESCRIPTOR)]),
    only(Sysno::statx, &[Check::Bits(2, BY_DESCRIPTOR, BY_DESCRIPTOR)]),
    only(Sysno::fcntl, &[Check::Is(1, libc::F_GETFD as u32)]),
    only(Sysno::fcntl, &[Check::Is(1, libc::F_SETFD as u32)]),
    only(Sysno::fcntl, &[Check::Is(1, libc::F_GETFL as u32)]),
    only(Sysno::fcntl, &[Check::Is(1, libc::F_DUPFD_CLOEXEC as u32)]),
    only(Sysno::ioctl, &[Check::Is(1, libc::TCGETS as u32)]),
    only(Sysno::ioctl, &[Check::Is(1, libc::TCSETS as u32)]),
    only(Sysno::ioctl, &[Check::Is(1, libc::TIOCGWINSZ as u32)]),
    // Sockets that are connected already.
    only(Sysno::recvfrom, &[Check::Null(4)]),
    only(Sysno::sendto, &[Check::Null(4)]),
    any(Sysno::shutdown),
    // Time.
    any(Sysno::clock_gettime),
    any(Sysno::clock_nanosleep),
    any(Sysno::nanosleep),
    any(Sysno::gettimeofday),
    any(Sysno::time),
    // Threads, and their signals.
    only(Sysno::clone, &[Check::Bits(0, THREAD, THREAD)]),
    any(Sysno::set_robust_list),
    any(Sysno::rseq),
    any(Sysno::futex),
    any(Sysno::sched_yield),
    any(Sysno::sched_getaffinity),
    any(Sysno::sigaltstack),
    any(Sysno::rt_sigaction),
    any(Sysno::rt_sigprocmask),
    any(Sysno::rt_sigreturn),
    any(Sysno::restart_syscall),
    only(Sysno::tgkill, &[Check::Own(0)]),
    only(Sysno::prctl, &[Check::Is(0, libc::PR_SET_NAME as u32)]),
    only(Sysno::prctl, &[Check::Is(0, libc::PR_SET_VMA as u32)]),
    any(Sysno::exit),
    any(Sysno::exit_group),
    // Children that were started before: passt, and who writes a file at the end.
    any(Sysno::wait4),
    any(Sysno::waitid),
    // Who one is, and numbers.
    any(Sysno::getpid),
    any(Sysno::gettid),
    any(Sysno::getuid),
    any(Sysno::geteuid),
    any(Sysno::getrandom),
    // Names are looked up. Landlock says which lead to a file.
    needed(Use::Files, Sysno::openat, &[Check::Bits(2, CHANGES, 0)]),
    needed(Use::Files, Sysno::openat2, &[]),
    needed(Use::Files, Sysno::newfstatat, &[]),
    needed(Use::Files, Sysno::statx, &[]),
    needed(Use::Files, Sysno::fstatfs, &[]),
    needed(Use::Files, Sysno::getdents64, &[]),
    needed(Use::Files, Sysno::readlinkat, &[]),
    // Files are made, changed and removed.
    needed(Use::Changes, Sysno::openat, &[]),
    needed(Use::Changes, Sysno::mkdirat, &[]),
    needed(Use::Changes, Sysno::mknodat, &[]),
    needed(Use::Changes, Sysno::symlinkat, &[]),
    needed(Use::Changes, Sysno::linkat, &[]),
    needed(Use::Changes, Sysno::unlinkat, &[]),
    needed(Use::Changes, Sysno::renameat, &[]),
    needed(Use::Changes, Sysno::renameat2, &[]),
    needed(Use::Changes, Sysno::fchmodat, &[]),
    needed(Use::Changes, Sysno::fchownat, &[]),
    needed(Use::Changes, Sysno::utimensat, &[]),
    needed(Use::Changes, Sysno::ftruncate, &[]),
    needed(Use::Changes, Sysno::fallocate, &[]),
    // A debugger connects to a socket that listens already.
    needed(Use::Debugger, Sysno::accept4, &[]),
    needed(Use::Debugger, Sysno::getsockname, &[]),
    needed(Use::Debugger, Sysno::getsockopt, &[]),
    needed(Use::Debugger, Sysno::setsockopt, &[]),
    needed(Use::Debugger, Sysno::ioctl, &[Check::Is(1, libc::FIONBIO as u32)]),
    // KVM's descriptors are open already, but for those of processors.
    needed(Use::Kvm, Sysno::ioctl, &[Check::Bits(1, TYPE_OF_REQUEST, KVM_REQUESTS)]),
    // Translated code: a file without a name is mapped once to be written and once to be executed.
    needed(Use::NewMachines, Sysno::memfd_create, &[]),
    needed(Use::NewMachines, Sysno::ftruncate, &[]),
    needed(
        Use::NewMachines,
        Sysno::mmap,
        &[Check::Bits(2, PROTECTIONS, READ_AND_EXECUTE), Check::Bits(3, KIND_OF_MAPPING, SHARED)],
    ),
];

/// Calls that answer with an error where they are not needed, since the C library or the Rust runtime tries them and can do without: a new thread, and a
/// panic that shows its stack.
pub const TRIED: &[(u16, Sysno)] = &[
    (libc::ENOSYS as u16, Sysno::clone3),
    (libc::EACCES as u16, Sysno::open),
    (libc::EACCES as u16, Sysno::openat),
    (libc::EACCES as u16, Sysno::readlink),
    (libc::EACCES as u16, Sysno::getcwd),
];
