//! Paths through the kernel: lmbench's latencies of system calls, signals, faults, processes and pipes.
//!
//! These kernels need Linux around the program. They run on this machine's kernel and on one in the modelled machine.

use crate::kernel::{Data, Kernel};
use crate::layout::{SMALL, Slot};
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, dword_ptr, ptr, qword_ptr, registers::*};

type Emitted = Result<(), IcedError>;

/// Numbers of Linux's system calls.
mod call {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const OPEN: u32 = 2;
    pub const CLOSE: u32 = 3;
    pub const STAT: u32 = 4;
    pub const FSTAT: u32 = 5;
    pub const MMAP: u32 = 9;
    pub const MPROTECT: u32 = 10;
    pub const MUNMAP: u32 = 11;
    pub const RT_SIGACTION: u32 = 13;
    pub const RT_SIGRETURN: u32 = 15;
    pub const PIPE: u32 = 22;
    pub const SELECT: u32 = 23;
    pub const DUP2: u32 = 33;
    pub const GETPID: u32 = 39;
    pub const SOCKETPAIR: u32 = 53;
    pub const FORK: u32 = 57;
    pub const EXECVE: u32 = 59;
    pub const EXIT: u32 = 60;
    pub const WAIT4: u32 = 61;
    pub const KILL: u32 = 62;
    pub const GETPPID: u32 = 110;
    pub const PRCTL: u32 = 157;
    pub const CLOSE_RANGE: u32 = 436;
}

const SIGKILL: u64 = 9;
const SIGUSR1: u64 = 10;
const SIGSEGV: u64 = 11;
const SA_SIGINFO: u32 = 4;
const SA_RESTORER: u32 = 0x0400_0000;
const PR_SET_PDEATHSIG: u64 = 1;

/// Places in memory: names of files, a structure, a page that is protected, and the last child.
const ZERO: u64 = SMALL;
const NULL: u64 = SMALL + 32;
const BUFFER: u64 = SMALL + 0x1000;
const PROTECTED: u64 = SMALL + 0x2000;
const CHILD: u64 = SMALL + 0x3000;

/// Registers of a system call's arguments.
const ARGUMENTS: [iced_x86::code_asm::AsmRegister64; 6] = [rdi, rsi, rdx, r10, r8, r9];

/// An argument of a system call.
#[derive(Clone, Copy)]
enum Argument {
    /// This number.
    Is(u64),
    /// The value of R12, which holds a descriptor, an address or a process.
    R12,
    /// The value of R13, which holds a descriptor.
    R13,
}
use Argument::{Is, R12, R13};

/// Executes a system call.
fn system(a: &mut CodeAssembler, number: u32, arguments: &[Argument]) -> Emitted {
    for (register, argument) in ARGUMENTS.into_iter().zip(arguments) {
        match argument {
            Is(value) => a.mov(register, *value)?,
            R12 => a.mov(register, r12)?,
            R13 => a.mov(register, r13)?,
        }
    }
    a.mov(eax, number)?;
    a.syscall()
}

/// Opens a file and puts its descriptor into R12.
fn open(a: &mut CodeAssembler, name: u64) -> Emitted {
    system(a, call::OPEN, &[Is(name), Is(2), Is(0)])?;
    a.mov(r12, rax)
}

/// Makes a pair of descriptors at [`BUFFER`], and puts them into R12 and R13.
fn pair_of_descriptors(a: &mut CodeAssembler, sockets: bool) -> Emitted {
    match sockets {
        true => system(a, call::SOCKETPAIR, &[Is(1), Is(1), Is(0), Is(BUFFER)])?,
        false => system(a, call::PIPE, &[Is(BUFFER)])?,
    }
    a.mov(r12d, dword_ptr(BUFFER))?;
    a.mov(r13d, dword_ptr(BUFFER + 4))
}

/// Installs a handler of a signal. `handler` writes it, without its return.
fn handle(a: &mut CodeAssembler, signal: u64, flags: u32, handler: impl Fn(&mut CodeAssembler) -> Emitted) -> Emitted {
    let (mut over, mut entry, mut restorer) = (a.create_label(), a.create_label(), a.create_label());
    a.jmp(over)?;
    a.set_label(&mut entry)?;
    handler(a)?;
    a.ret()?;
    a.set_label(&mut restorer)?;
    a.mov(eax, call::RT_SIGRETURN)?;
    a.syscall()?;
    a.set_label(&mut over)?;
    a.lea(rax, ptr(entry))?;
    a.mov(qword_ptr(BUFFER), rax)?;
    a.mov(qword_ptr(BUFFER + 8), (SA_RESTORER | flags) as i32)?;
    a.lea(rax, ptr(restorer))?;
    a.mov(qword_ptr(BUFFER + 16), rax)?;
    a.mov(qword_ptr(BUFFER + 24), 0)?;
    system(a, call::RT_SIGACTION, &[Is(signal), Is(BUFFER), Is(0), Is(8)])
}

/// Waits for a child.
fn wait(a: &mut CodeAssembler) -> Emitted {
    system(a, call::WAIT4, &[Is(u64::MAX), Is(0), Is(0), Is(0)])
}

/// Starts a child that answers each byte which it reads with one. Afterwards this process reads from R12 and writes to
/// R13.
fn echo(a: &mut CodeAssembler, sockets: bool) -> Emitted {
    let (mut parent, mut child) = (a.create_label(), a.create_label());
    if sockets {
        pair_of_descriptors(a, true)?;
        a.mov(rbx, r12)?;
        a.mov(rbp, r13)?;
        // This process has both ends: it uses the first for both ways, and the child the second.
        a.mov(r14, r13)?;
        a.mov(r13, r12)?;
    } else {
        pair_of_descriptors(a, false)?;
        a.mov(rbx, r12)?;
        a.mov(rbp, r13)?;
        pair_of_descriptors(a, false)?;
        a.mov(r14, r13)?;
        a.mov(r13, rbp)?;
    }
    system(a, call::FORK, &[])?;
    a.mov(qword_ptr(CHILD), rax)?;
    a.test(rax, rax)?;
    a.jne(parent)?;
    if sockets {
        a.mov(r12, r14)?;
        a.mov(r13, r14)?;
    } else {
        a.mov(r12, rbx)?;
        a.mov(r13, r14)?;
    }
    system(a, call::PRCTL, &[Is(PR_SET_PDEATHSIG), Is(SIGKILL)])?;
    a.set_label(&mut child)?;
    system(a, call::READ, &[R12, Is(BUFFER + 64), Is(1)])?;
    system(a, call::WRITE, &[R13, Is(BUFFER + 64), Is(1)])?;
    a.jmp(child)?;
    a.set_label(&mut parent)?;
    a.nop()
}

/// Sends a byte and waits for one.
fn round_trip(a: &mut CodeAssembler) -> Emitted {
    system(a, call::WRITE, &[R13, Is(BUFFER + 64), Is(1)])?;
    system(a, call::READ, &[R12, Is(BUFFER + 64), Is(1)])
}

/// Forks, has the child do something and exit, and waits for it.
fn fork(a: &mut CodeAssembler, child: impl Fn(&mut CodeAssembler) -> Emitted) -> Emitted {
    let mut parent = a.create_label();
    system(a, call::FORK, &[])?;
    a.test(rax, rax)?;
    a.jne(parent)?;
    child(a)?;
    system(a, call::EXIT, &[Is(0)])?;
    a.set_label(&mut parent)?;
    wait(a)
}

/// Waits for nothing with so many descriptors, beginning with 100, that are never ready.
fn select(a: &mut CodeAssembler, count: u64) -> Emitted {
    let end = 100 + count;
    for word in 0..4u64 {
        let bits =
            (0..64).filter(|bit| (100..end).contains(&(64 * word + bit))).fold(0u64, |bits, bit| bits | 1 << bit);
        a.mov(rax, bits)?;
        a.mov(qword_ptr(BUFFER + 64 + 8 * word), rax)?;
    }
    a.mov(qword_ptr(BUFFER + 128), 0)?;
    a.mov(qword_ptr(BUFFER + 136), 0)?;
    system(a, call::SELECT, &[Is(end), Is(BUFFER + 64), Is(0), Is(0), Is(BUFFER + 128)])
}

/// Prepares the descriptors of [`select`], which other measurements do not see.
fn descriptors(a: &mut CodeAssembler) -> Emitted {
    pair_of_descriptors(a, false)?;
    (100..200u64).try_for_each(|number| system(a, call::DUP2, &[R12, Is(number)]))
}

/// Ends the child and closes the descriptors of the measurement before.
fn clean(a: &mut CodeAssembler) -> Emitted {
    let mut alone = a.create_label();
    a.mov(r12, qword_ptr(CHILD))?;
    a.test(r12, r12)?;
    a.je(alone)?;
    system(a, call::KILL, &[R12, Is(SIGKILL)])?;
    wait(a)?;
    a.mov(qword_ptr(CHILD), 0)?;
    a.set_label(&mut alone)?;
    system(a, call::CLOSE_RANGE, &[Is(3), Is(u64::from(u32::MAX)), Is(0)])
}

/// Adds what every kernel needs: names of files, and a process as it was at its beginning.
fn complete(mut kernel: Kernel) -> Kernel {
    let own = std::mem::replace(&mut kernel.prepare, Box::new(clean));
    kernel.prepare = Box::new(move |a| {
        clean(a)?;
        own(a)
    });
    kernel.with(Data::Bytes(ZERO, b"/dev/zero\0".to_vec())).with(Data::Bytes(NULL, b"/dev/null\0".to_vec()))
}

/// Pages that are touched in a round.
const TOUCHED: u64 = 128;
/// Arguments of mmap for private memory without a file, which is read and written.
const READ_WRITE: u64 = 3;
const ANONYMOUS: u64 = 0x22;

/// Returns the kernels.
pub fn kernels() -> Vec<Kernel> {
    let nothing = |_: &mut CodeAssembler| Ok(());
    let mapped = |a: &mut CodeAssembler, pages: u64| {
        system(a, call::MMAP, &[Is(0), Is(4096 * pages), Is(READ_WRITE), Is(ANONYMOUS), Is(u64::MAX), Is(0)])?;
        a.mov(r12, rax)
    };
    let all = vec![
        Kernel::new("getppid", 1000, nothing, |a| system(a, call::GETPPID, &[])),
        Kernel::new(
            "read of a byte from /dev/zero",
            500,
            |a| open(a, ZERO),
            |a| system(a, call::READ, &[R12, Is(BUFFER), Is(1)]),
        ),
        Kernel::new(
            "write of a byte to /dev/null",
            500,
            |a| open(a, NULL),
            |a| system(a, call::WRITE, &[R12, Is(BUFFER), Is(1)]),
        ),
        Kernel::new("stat", 300, nothing, |a| system(a, call::STAT, &[Is(NULL), Is(BUFFER)])),
        Kernel::new("fstat", 500, |a| open(a, NULL), |a| system(a, call::FSTAT, &[R12, Is(BUFFER)])),
        Kernel::new("open and close", 200, nothing, |a| {
            open(a, NULL)?;
            system(a, call::CLOSE, &[R12])
        }),
        Kernel::new("select of 10 descriptors", 200, descriptors, |a| select(a, 10)),
        Kernel::new("select of 100 descriptors", 100, descriptors, |a| select(a, 100)),
        Kernel::new(
            "signal: installing a handler",
            500,
            |a| handle(a, SIGUSR1, 0, |_| Ok(())),
            |a| system(a, call::RT_SIGACTION, &[Is(SIGUSR1), Is(BUFFER), Is(0), Is(8)]),
        ),
        Kernel::new(
            "signal: catching one of its own",
            200,
            |a| {
                handle(a, SIGUSR1, 0, |_| Ok(()))?;
                system(a, call::GETPID, &[])?;
                a.mov(r12, rax)
            },
            |a| system(a, call::KILL, &[R12, Is(SIGUSR1)]),
        ),
        Kernel::new(
            "signal: a protection fault",
            200,
            |a| {
                // The handler skips the store, which has three bytes: RIP is in the context that it gets in RDX.
                handle(a, SIGSEGV, SA_SIGINFO, |a| a.add(qword_ptr(rdx + 168), 3))?;
                system(a, call::MPROTECT, &[Is(PROTECTED), Is(4096), Is(1)])?;
                a.mov(rbx, PROTECTED)
            },
            |a| a.mov(qword_ptr(rbx), rax),
        ),
        Kernel::new("page fault", 5, nothing, move |a| {
            mapped(a, TOUCHED)?;
            let mut top = a.create_label();
            a.xor(ecx, ecx)?;
            a.set_label(&mut top)?;
            a.mov(qword_ptr(r12 + rcx), rax)?;
            a.add(ecx, 4096)?;
            a.cmp(ecx, 4096 * TOUCHED as i32)?;
            a.jb(top)?;
            system(a, call::MUNMAP, &[R12, Is(4096 * TOUCHED)])
        })
        .steps(TOUCHED as f64),
        Kernel::new("mmap and munmap", 200, nothing, move |a| {
            mapped(a, 16)?;
            system(a, call::MUNMAP, &[R12, Is(4096 * 16)])
        }),
        Kernel::new("pipe to itself", 200, |a| pair_of_descriptors(a, false), round_trip),
        Kernel::new("pipe to another process and back", 100, |a| echo(a, false), round_trip),
        Kernel::new("Unix socket to another process and back", 100, |a| echo(a, true), round_trip),
        Kernel::new("fork and exit", 20, nothing, |a| fork(a, |_| Ok(()))),
        Kernel::new("fork, exec and exit", 10, nothing, |a| {
            fork(a, |a| {
                // The arguments are the program's name twice: with more than one argument the program ends at once.
                a.mov(rax, qword_ptr(Slot::Name.address()))?;
                a.mov(qword_ptr(BUFFER), rax)?;
                a.mov(qword_ptr(BUFFER + 8), rax)?;
                a.mov(qword_ptr(BUFFER + 16), 0)?;
                a.mov(rdi, rax)?;
                a.mov(rsi, BUFFER)?;
                a.xor(edx, edx)?;
                a.mov(eax, call::EXECVE)?;
                a.syscall()?;
                // The program can't be executed. Its first process ends, so that nobody takes the failure for a figure.
                system(a, call::GETPPID, &[])?;
                a.mov(r12, rax)?;
                system(a, call::KILL, &[R12, Is(SIGKILL)])
            })
        }),
    ];
    all.into_iter().map(complete).collect()
}
