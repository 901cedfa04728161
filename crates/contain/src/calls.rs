//! The system calls that a confined process may make, with the purpose of each.

use syscalls::Sysno;

/// The purpose of a group of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Every machine needs the calls.
    Always,
    /// The process opens files by name. [`Needs`](crate::Needs) implies it when it lists files.
    Files,
    /// The process creates, changes or removes files by name.
    Changes,
    /// A debugger may connect.
    Debugger,
    /// Commands may join the guest.
    Joins,
    /// The host's KVM executes the guest.
    Kvm,
    /// The run creates further machines, each of which maps executable memory.
    NewMachines,
}

/// A condition on an argument of a system call.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// The low 32 bits of the argument with this number equal this value.
    Is(u8, u32),
    /// The argument's bits under the mask (second field) equal the third field.
    Bits(u8, u32, u32),
    /// The argument is a null pointer.
    Null(u8),
    /// The argument is the number of this process.
    Own(u8),
}

/// A permitted system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The purpose of the call.
    pub needed: Use,
    /// The system call.
    pub call: Sysno,
    /// Conditions on the arguments, all of which must hold. A call with alternative conditions has several rows.
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
/// Flags of clone(2) that only the creation of a thread in this process sets.
const THREAD: u32 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u32;
/// Flags of open(2) with which a call changes or creates a file.
const CHANGES: u32 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
/// The type byte of KVM's ioctl requests (Linux: Documentation/userspace-api/ioctl/ioctl-number.rst), at its position in the request.
const KVM_REQUESTS: u32 = 0xae00;
const TYPE_OF_REQUEST: u32 = 0xff00;
/// The flags of a connection that nobody waits for and that no program inherits.
const NOT_WAITING: u32 = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as u32;
/// The flag with which a call acts on a descriptor in place of a name.
const BY_DESCRIPTOR: u32 = libc::AT_EMPTY_PATH as u32;

/// The permitted calls.
pub const TABLE: &[Call] = &[
    // Memory. No call makes memory executable, and no memory is writable and executable.
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
    // Sockets that are already connected.
    only(Sysno::recvfrom, &[Check::Null(4)]),
    only(Sysno::sendto, &[Check::Null(4)]),
    any(Sysno::shutdown),
    // Time.
    any(Sysno::clock_gettime),
    any(Sysno::clock_nanosleep),
    any(Sysno::nanosleep),
    any(Sysno::gettimeofday),
    any(Sysno::time),
    // Threads and their signals.
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
    // Children that run already: passt, and the process that writes a file at the end.
    any(Sysno::wait4),
    any(Sysno::waitid),
    // Identities and random numbers.
    any(Sysno::getpid),
    any(Sysno::gettid),
    any(Sysno::getuid),
    any(Sysno::geteuid),
    any(Sysno::getrandom),
    // Lookups of names. Landlock decides which names lead to a file.
    needed(Use::Files, Sysno::openat, &[Check::Bits(2, CHANGES, 0)]),
    needed(Use::Files, Sysno::openat2, &[]),
    needed(Use::Files, Sysno::newfstatat, &[]),
    needed(Use::Files, Sysno::statx, &[]),
    needed(Use::Files, Sysno::fstatfs, &[]),
    needed(Use::Files, Sysno::getdents64, &[]),
    needed(Use::Files, Sysno::readlinkat, &[]),
    // Creation, change and removal of files.
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
    // A debugger connects to a socket that already listens.
    needed(Use::Debugger, Sysno::accept4, &[]),
    needed(Use::Debugger, Sysno::getsockname, &[]),
    needed(Use::Debugger, Sysno::getsockopt, &[]),
    needed(Use::Debugger, Sysno::setsockopt, &[]),
    needed(Use::Debugger, Sysno::ioctl, &[Check::Is(1, libc::FIONBIO as u32)]),
    // Commands that join a guest connect to a socket that already listens.
    needed(Use::Joins, Sysno::accept4, &[Check::Is(3, NOT_WAITING)]),
    // KVM's descriptors are already open, except those of virtual processors.
    needed(Use::Kvm, Sysno::ioctl, &[Check::Bits(1, TYPE_OF_REQUEST, KVM_REQUESTS)]),
    // Translated code: an anonymous file is mapped twice, once writable and once executable.
    needed(Use::NewMachines, Sysno::memfd_create, &[]),
    needed(Use::NewMachines, Sysno::ftruncate, &[]),
    needed(
        Use::NewMachines,
        Sysno::mmap,
        &[Check::Bits(2, PROTECTIONS, READ_AND_EXECUTE), Check::Bits(3, KIND_OF_MAPPING, SHARED)],
    ),
];

/// Flags of open(2) with which a call creates a new file for writing and follows no link.
const NEW_FILE: u32 = (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW) as u32;
/// Flags of open(2) that must be as in [`NEW_FILE`].
const KIND_OF_OPEN: u32 = CHANGES | (libc::O_EXCL | libc::O_NOFOLLOW | libc::O_PATH | libc::O_DIRECTORY) as u32;

/// The permitted calls of the process that writes or removes one file in a directory that it has open. Rows that [`TABLE`] has as well are repeated:
/// a call that machines come to need does not become a call of this process.
pub const KEEPER: &[Call] = &[
    // The contents arrive by a pipe, and an error leaves by a pipe.
    any(Sysno::read),
    any(Sysno::write),
    any(Sysno::close),
    any(Sysno::poll),
    // The standard library looks at a descriptor before it closes it, if it was built with assertions.
    only(Sysno::fcntl, &[Check::Is(1, libc::F_GETFD as u32)]),
    // The file. Landlock decides about the directory.
    only(Sysno::openat, &[Check::Bits(2, KIND_OF_OPEN, NEW_FILE)]),
    any(Sysno::renameat),
    only(Sysno::unlinkat, &[Check::Is(2, 0)]),
    // Memory. No call makes memory executable.
    any(Sysno::brk),
    any(Sysno::munmap),
    any(Sysno::mremap),
    any(Sysno::madvise),
    only(Sysno::mmap, &[Check::Bits(2, EXECUTABLE, 0)]),
    only(Sysno::mprotect, &[Check::Bits(2, EXECUTABLE, 0)]),
    // Signals and the end of the process.
    any(Sysno::sigaltstack),
    any(Sysno::rt_sigprocmask),
    any(Sysno::rt_sigreturn),
    any(Sysno::restart_syscall),
    any(Sysno::futex),
    any(Sysno::getpid),
    any(Sysno::gettid),
    only(Sysno::tgkill, &[Check::Own(0)]),
    any(Sysno::exit),
    any(Sysno::exit_group),
];

/// Calls that fail with an error, instead of ending the process, where they are not needed. The C library and the Rust runtime try these calls and
/// work without them: at the start of a thread, and in a panic that prints its stack.
pub const TRIED: &[(u16, Sysno)] = &[
    (libc::ENOSYS as u16, Sysno::clone3),
    (libc::EACCES as u16, Sysno::open),
    (libc::EACCES as u16, Sysno::openat),
    (libc::EACCES as u16, Sysno::readlink),
    (libc::EACCES as u16, Sysno::getcwd),
];
