//! The host side: loads a state into the real processor, executes one instruction and stores the resulting state.
//!
//! The instruction lies on a page of INT3s and is followed by a jump to a stub that stores the state. Faults, and
//! branches to other places on the page, arrive as signals whose frames hold the state. Only one thread of a process
//! may use this module, since the addresses are fixed and signal handlers belong to the process.
//!
//! This is one of the modules with `unsafe`: it maps memory at fixed addresses and leaves Rust while the instruction
//! runs.

use crate::layout::*;
use crate::state::{Exception, Outcome, STATE_LEN, State, Wide, Xsave};
use std::io::Error as IoError;
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use x86::page::PAGE;

/// Reason why a comparison with the host is impossible.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The processor lacks a feature.
    #[error("the host processor does not have {0}")]
    Feature(&'static str),
    /// Fixed addresses or executable memory are not available.
    #[error("cannot map memory at {address:#x}")]
    Map {
        /// Address.
        address: u64,
        /// Error of the host.
        source: IoError,
    },
    /// Signal handlers cannot be installed.
    #[error("cannot handle signals: {0}")]
    Signals(IoError),
    /// Another instance exists in this process.
    #[error("already in use in this process")]
    Busy,
}

/// The data of the stubs, at [`CONTEXT`].
#[repr(C)]
struct StubContext {
    /// State to load.
    load: State,
    /// Stored state.
    store: State,
    host_rsp: u64,
    host_fs: u64,
    host_gs: u64,
    host_mxcsr: u32,
    host_fcw: u32,
    /// Destination of the jump after the instruction.
    exit: u64,
    /// Far pointer into 32-bit code: offset and selector.
    far: u64,
    /// 1 if the host has AVX-512.
    wide: u64,
    /// 1 while the instruction under test runs.
    running: u64,
    /// 1 if `exception` holds an exception; the signal handler sets it.
    trapped: u64,
    vector: u64,
    code: u64,
    address: u64,
}

const CONTEXT_LEN: u64 = 2 * PAGE;
const _: () = assert!(size_of::<StubContext>() as u64 <= CONTEXT_LEN);

const LOAD: u64 = CONTEXT;
const STORE: u64 = CONTEXT + STATE_LEN as u64;
const GPR: usize = offset_of!(State, gpr);

std::arch::global_asm!(
    ".globl difftest_enter64, difftest_enter32, difftest_exit, difftest_leave",
    ".macro difftest_prologue",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "pushfq",
    "mov [{host_rsp}], rsp",
    "stmxcsr [{host_mxcsr}]",
    "fnstcw [{host_fcw}]",
    "rdfsbase rax",
    "mov [{host_fs}], rax",
    "rdgsbase rax",
    "mov [{host_gs}], rax",
    "mov rax, [{load} + {fs}]",
    "wrfsbase rax",
    "mov rax, [{load} + {gs}]",
    "wrgsbase rax",
    "mov eax, 7",
    "xor edx, edx",
    "xrstor64 [{load} + {x}]",
    "cmp qword ptr [{has_wide}], 0",
    "je 2f",
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "vinserti64x4 zmm\\number, zmm\\number, [{load} + {wide} + 32 * \\number], 1",
    ".endr",
    ".irp number, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "vmovdqu64 zmm\\number, [{load} + {wide} + 512 + 64 * (\\number - 16)]",
    ".endr",
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7",
    "kmovq k\\number, [{load} + {wide} + 1536 + 8 * \\number]",
    ".endr",
    "2:",
    "mov rsp, {load} + {flags}",
    "popfq",
    "mov rax, [{load}]",
    "mov rcx, [{load} + 8]",
    "mov rdx, [{load} + 16]",
    "mov rbx, [{load} + 24]",
    "mov rsp, [{load} + 32]",
    "mov rbp, [{load} + 40]",
    "mov rsi, [{load} + 48]",
    "mov rdi, [{load} + 56]",
    "mov r8, [{load} + 64]",
    "mov r9, [{load} + 72]",
    "mov r10, [{load} + 80]",
    "mov r11, [{load} + 88]",
    "mov r12, [{load} + 96]",
    "mov r13, [{load} + 104]",
    "mov r14, [{load} + 112]",
    "mov r15, [{load} + 120]",
    ".endm",
    "difftest_enter64:",
    "difftest_prologue",
    "jmp qword ptr [{load} + {rip}]",
    // 32-bit code needs DS and ES that are not null.
    "difftest_enter32:",
    "mov eax, 0x2b",
    "mov ds, eax",
    "mov es, eax",
    "difftest_prologue",
    "jmp fword ptr [{far}]",
    "difftest_exit:",
    "mov [{store}], rax",
    "mov [{store} + 8], rcx",
    "mov [{store} + 16], rdx",
    "mov [{store} + 24], rbx",
    "mov [{store} + 32], rsp",
    "mov [{store} + 40], rbp",
    "mov [{store} + 48], rsi",
    "mov [{store} + 56], rdi",
    "mov [{store} + 64], r8",
    "mov [{store} + 72], r9",
    "mov [{store} + 80], r10",
    "mov [{store} + 88], r11",
    "mov [{store} + 96], r12",
    "mov [{store} + 104], r13",
    "mov [{store} + 112], r14",
    "mov [{store} + 120], r15",
    "mov rsp, {store} + {flags} + 8",
    "pushfq",
    "rdfsbase rax",
    "mov [{store} + {fs}], rax",
    "rdgsbase rax",
    "mov [{store} + {gs}], rax",
    "mov eax, 7",
    "xor edx, edx",
    "xsave64 [{store} + {x}]",
    "cmp qword ptr [{has_wide}], 0",
    "je 2f",
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "vextracti64x4 [{store} + {wide} + 32 * \\number], zmm\\number, 1",
    ".endr",
    ".irp number, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "vmovdqu64 [{store} + {wide} + 512 + 64 * (\\number - 16)], zmm\\number",
    ".endr",
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7",
    "kmovq [{store} + {wide} + 1536 + 8 * \\number], k\\number",
    ".endr",
    "2:",
    "difftest_leave:",
    "xor eax, eax",
    "mov ds, eax",
    "mov es, eax",
    "mov rax, [{host_fs}]",
    "wrfsbase rax",
    "mov rax, [{host_gs}]",
    "wrgsbase rax",
    "fninit",
    "fldcw [{host_fcw}]",
    "ldmxcsr [{host_mxcsr}]",
    "vzeroupper",
    "mov rsp, [{host_rsp}]",
    "popfq",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    load = const LOAD,
    store = const STORE,
    rip = const offset_of!(State, rip),
    flags = const offset_of!(State, rflags),
    fs = const offset_of!(State, fs_base),
    gs = const offset_of!(State, gs_base),
    x = const offset_of!(State, x),
    wide = const offset_of!(State, wide),
    has_wide = const CONTEXT + offset_of!(StubContext, wide) as u64,
    host_rsp = const CONTEXT + offset_of!(StubContext, host_rsp) as u64,
    host_fs = const CONTEXT + offset_of!(StubContext, host_fs) as u64,
    host_gs = const CONTEXT + offset_of!(StubContext, host_gs) as u64,
    host_mxcsr = const CONTEXT + offset_of!(StubContext, host_mxcsr) as u64,
    host_fcw = const CONTEXT + offset_of!(StubContext, host_fcw) as u64,
    far = const CONTEXT + offset_of!(StubContext, far) as u64,
);

const _: () = assert!(GPR == 0);
const _: () = assert!(offset_of!(Wide, high) == 512 && offset_of!(Wide, k) == 1536);

unsafe extern "C" {
    fn difftest_enter64();
    fn difftest_enter32();
    fn difftest_exit();
    fn difftest_leave();
}

/// Selectors of Linux's 64-bit and 32-bit user code.
const USER_CS: u16 = 0x33;
const USER32_CS: u16 = 0x23;

static BUSY: AtomicBool = AtomicBool::new(false);

const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// Registers of [`State::gpr`] in a signal frame.
const FRAME_GPR: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Takes the state from the frame and resumes in the stub that restores the host's state. FS is the guest's here, so
/// the handler must call nothing that uses thread-local storage.
extern "C" fn on_signal(signal: i32, _: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    // SAFETY: the context page is mapped before the handler is installed; the kernel passes a valid frame, in which
    // `fpregs` points to a standard-format XSAVE area of at least x87, SSE and AVX state (their presence is checked at
    // start).
    unsafe {
        let context = &mut *(CONTEXT as *mut StubContext);
        let frame = &mut *frame.cast::<libc::ucontext_t>();
        if context.running == 0 {
            // The signal has another cause: the default action ends the process when the instruction is retried.
            libc::signal(signal, libc::SIG_DFL);
            return;
        }
        let regs = &mut frame.uc_mcontext.gregs;
        for (to, from) in context.store.gpr.iter_mut().zip(FRAME_GPR) {
            *to = regs[from as usize] as u64;
        }
        context.store.rip = regs[libc::REG_RIP as usize] as u64;
        context.store.rflags = regs[libc::REG_EFL as usize] as u64;
        std::arch::asm!("rdfsbase {}", out(reg) context.store.fs_base);
        std::arch::asm!("rdgsbase {}", out(reg) context.store.gs_base);
        let area = frame.uc_mcontext.fpregs.cast::<u8>();
        context.store.x = area.cast::<Xsave>().read_unaligned();
        if context.wide != 0 {
            context.store.wide = saved_wide(area, context.store.x.header[0]);
        }
        context.trapped = 1;
        context.vector = regs[libc::REG_TRAPNO as usize] as u64;
        context.code = regs[libc::REG_ERR as usize] as u64;
        context.address = regs[libc::REG_CR2 as usize] as u64;
        regs[libc::REG_RIP as usize] = difftest_leave as *const () as i64;
        regs[libc::REG_EFL as usize] = 0x202;
        let selectors = regs[libc::REG_CSGSFS as usize] & !0xffff;
        regs[libc::REG_CSGSFS as usize] = selectors | i64::from(USER_CS);
    }
}

/// Returns true if the host has the registers of AVX-512.
pub fn has_avx_512() -> bool {
    std::is_x86_feature_detected!("avx512bw")
}

/// Offsets of the AVX-512 state components in the host's standard format, from CPUID: opmasks, upper halves, ZMM16-31.
static COMPONENTS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

fn find_components() {
    for (offset, number) in COMPONENTS.iter().zip([5, 6, 7]) {
        offset.store(std::arch::x86_64::__cpuid_count(13, number).ebx, Ordering::Relaxed);
    }
}

/// Returns the AVX-512 state of an area whose header names its components.
///
/// # Safety
///
/// `area` is a standard-format XSAVE area with the components that the header names.
unsafe fn saved_wide(area: *const u8, header: u64) -> Wide {
    let component = |number: usize| {
        let offset = COMPONENTS[number - 5].load(Ordering::Relaxed) as usize;
        // SAFETY: the component is in the area if it is present.
        (header >> number & 1 != 0).then(|| unsafe { area.add(offset) })
    };
    // SAFETY: each component has the size of its field.
    unsafe {
        Wide {
            k: component(5).map_or([0; 8], |at| at.cast::<[u64; 8]>().read_unaligned()),
            upper: component(6).map_or([[0; 4]; 16], |at| at.cast::<[[u64; 4]; 16]>().read_unaligned()),
            high: component(7).map_or([[0; 8]; 16], |at| at.cast::<[[u64; 8]; 16]>().read_unaligned()),
        }
    }
}

fn map(address: u64, len: u64, rights: i32, fixed: i32) -> Result<(), Unavailable> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: either the range is free (MAP_FIXED_NOREPLACE) or it lies in the reservation made that way.
    let got = unsafe { libc::mmap(address as *mut _, len as usize, rights, flags, -1, 0) };
    if got as u64 == address {
        return Ok(());
    }
    let source =
        if got == libc::MAP_FAILED { IoError::last_os_error() } else { IoError::from_raw_os_error(libc::EEXIST) };
    Err(Unavailable::Map { address, source })
}

fn protect(address: u64, len: u64, rights: i32) -> Result<(), Unavailable> {
    // SAFETY: the range lies in the reservation.
    match unsafe { libc::mprotect(address as *mut _, len as usize, rights) } {
        0 => Ok(()),
        _ => Err(Unavailable::Map { address, source: IoError::last_os_error() }),
    }
}

/// Checks that the host has the required features.
fn check_features() -> Result<(), Unavailable> {
    for (name, present) in [
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("FMA", std::is_x86_feature_detected!("fma")),
        ("F16C", std::is_x86_feature_detected!("f16c")),
        ("BMI1", std::is_x86_feature_detected!("bmi1")),
        ("BMI2", std::is_x86_feature_detected!("bmi2")),
        ("LZCNT", std::is_x86_feature_detected!("lzcnt")),
        ("MOVBE", std::is_x86_feature_detected!("movbe")),
        ("XSAVE", std::is_x86_feature_detected!("xsave")),
    ] {
        if !present {
            return Err(Unavailable::Feature(name));
        }
    }
    // SAFETY: this reads the auxiliary vector. Bit 1 is set if the FSGSBASE instructions are enabled.
    let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    if hwcap2 & 2 == 0 {
        return Err(Unavailable::Feature("FSGSBASE enabled by the kernel"));
    }
    Ok(())
}

/// The kernel's description of a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    /// Vector.
    pub vector: u8,
    /// Error code.
    pub code: u32,
    /// CR2 of the last page fault.
    pub address: u64,
    /// Instruction pointer at the trap.
    pub rip: u64,
}

/// Leaves Rust for the code at `at`, with the state in the context.
///
/// # Safety
///
/// `context` is the context page, and the caller answers for the effects of the code.
unsafe fn enter(context: *mut StubContext, at: u64, code64: bool) {
    // SAFETY: the stubs preserve the registers that the calling convention requires.
    unsafe {
        (*context).load.rip = at;
        (*context).far = at | u64::from(USER32_CS) << 32;
        (*context).trapped = 0;
        (*context).running = 1;
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        if code64 {
            difftest_enter64();
        } else {
            difftest_enter32();
        }
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        (*context).running = 0;
    }
}

/// Properties in which the host's processor may differ from the processor under test.
#[derive(Clone, Copy)]
pub struct HostTraits {
    /// True if only instructions that raise an unmasked exception update the x87 data pointer
    /// (CPUID.(EAX=7,ECX=0):EBX\[6\]). It is then not compared after other instructions.
    pub data_pointer_kept: bool,
    /// True if the host is AMD's; see [`testkit::host_is_amd`].
    pub amd: bool,
}

impl HostTraits {
    /// Returns the traits of this host.
    pub fn new() -> Self {
        let data_pointer_kept = std::arch::x86_64::__cpuid_count(7, 0).ebx >> 6 & 1 != 0;
        Self { data_pointer_kept, amd: testkit::host_is_amd() }
    }
}

impl Default for HostTraits {
    fn default() -> Self {
        Self::new()
    }
}

/// The host's processor, ready to execute instructions under test.
pub struct Native {
    /// Number of bytes of the code page that are not INT3.
    dirty: usize,
}

impl Native {
    /// Maps memory and takes over signals. `arena` is the arena's initial contents.
    pub fn new(arena: &[u8; ARENA_LEN]) -> Result<Self, Unavailable> {
        check_features()?;
        find_components();
        if BUSY.swap(true, Ordering::SeqCst) {
            return Err(Unavailable::Busy);
        }
        let (none, write) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
        map(RESERVED, RESERVED_LEN, none, libc::MAP_FIXED_NOREPLACE)?;
        protect(CODE, 2 * PAGE, write | libc::PROT_EXEC)?;
        protect(SWEEP, PAGE, write | libc::PROT_EXEC)?;
        protect(CONTEXT, CONTEXT_LEN, write)?;
        protect(ARENA, ARENA_LEN as u64, write)?;
        // SAFETY: the memory was just mapped writable, and no one else refers to it.
        unsafe {
            (CODE as *mut u8).write_bytes(0xcc, 2 * PAGE as usize);
            (SWEEP as *mut u8).write_bytes(0xcc, PAGE as usize);
            let context = &mut *(CONTEXT as *mut StubContext);
            context.wide = u64::from(has_avx_512());
            context.exit = difftest_exit as *const () as u64;
            // This is `jmp qword ptr [context.exit]`, by absolute address.
            let exit = (&raw const context.exit as u32).to_le_bytes();
            let jump64 = [0xff, 0x24, 0x25, exit[0], exit[1], exit[2], exit[3]];
            std::ptr::copy_nonoverlapping(jump64.as_ptr(), STUB64 as *mut u8, jump64.len());
            // This is `jmp 33h:STUB64`, for 32-bit code.
            let to = (STUB64 as u32).to_le_bytes();
            let jump32 = [0xea, to[0], to[1], to[2], to[3], USER_CS as u8, 0];
            std::ptr::copy_nonoverlapping(jump32.as_ptr(), STUB32 as *mut u8, jump32.len());
            std::ptr::copy_nonoverlapping(arena.as_ptr(), ARENA as *mut u8, ARENA_LEN);
        }
        for (i, rights) in RIGHTS.iter().enumerate() {
            let address = ARENA + i as u64 * PAGE;
            match rights {
                // The page is fresh, so that it is not present.
                Rights::None => map(address, PAGE, none, libc::MAP_FIXED)?,
                Rights::Read => protect(address, PAGE, libc::PROT_READ)?,
                Rights::Write => {}
            }
        }
        Self::handle_signals().map_err(Unavailable::Signals)?;
        Ok(Self { dirty: 0 })
    }

    fn handle_signals() -> Result<(), IoError> {
        let stack = vec![0u8; 256 << 10].leak();
        // SAFETY: the alternate stack is never freed; the handler has the signature that SA_SIGINFO requires.
        unsafe {
            let alternate = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
            if libc::sigaltstack(&alternate, std::ptr::null_mut()) != 0 {
                return Err(IoError::last_os_error());
            }
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for signal in SIGNALS {
                if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
                    return Err(IoError::last_os_error());
                }
            }
        }
        Ok(())
    }

    /// Writes bytes to a writable part of the arena.
    pub fn poke(&mut self, address: u64, bytes: &[u8]) {
        debug_assert!(address >= ARENA && address + bytes.len() as u64 <= ARENA + ARENA_LEN as u64);
        // SAFETY: callers pass only writable pages of the arena, to which no Rust reference points.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
    }

    /// Returns a range of readable pages of the arena.
    pub fn memory(&self, range: std::ops::Range<usize>) -> &[u8] {
        // SAFETY: nothing writes to the range while the borrow of `self` lasts.
        unsafe { std::slice::from_raw_parts((ARENA as usize + range.start) as *const u8, range.len()) }
    }

    /// Executes these bytes at an address in the page of [`SWEEP`], with INT3s behind them, until something traps: the
    /// INT3 behind an instruction at the latest, or a branch's target.
    pub fn trap(&mut self, bytes: &[u8], at: u64, state: &State, code64: bool) -> Trap {
        assert!(at >= SWEEP && at + bytes.len() as u64 <= SWEEP + PAGE);
        // SAFETY: the bytes are within the page, which belongs to this process; see `execute` for the rest.
        let context = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len());
            let context = &raw mut *(CONTEXT as *mut StubContext);
            (*context).load = *state;
            enter(context, at, code64);
            (at as *mut u8).write_bytes(0xcc, bytes.len());
            &*context
        };
        debug_assert_eq!(context.trapped, 1, "only a trap leads out of that page");
        Trap {
            vector: context.vector as u8,
            code: context.code as u32,
            address: context.address,
            rip: context.store.rip,
        }
    }

    /// Executes the instruction of these bytes at [`CODE_START`]. `state.rip` is ignored.
    pub fn execute(&mut self, bytes: &[u8], state: &State, code64: bool) -> Outcome {
        let mut code = [0xcc; 24];
        code[..bytes.len()].copy_from_slice(bytes);
        let end = bytes.len() + 5;
        let stub = if code64 { STUB64 } else { STUB32 };
        let distance = (stub as u32).wrapping_sub(CODE_START as u32 + end as u32);
        code[bytes.len()] = 0xe9;
        code[bytes.len() + 1..end].copy_from_slice(&distance.to_le_bytes());
        // SAFETY: the code page belongs to this process, only this thread uses the context, and the stubs preserve the
        // registers that the calling convention requires. The caller generates the addresses and so answers for the
        // instruction's own accesses.
        let context = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), CODE_START as *mut u8, end.max(self.dirty));
            self.dirty = end;
            let context = &raw mut *(CONTEXT as *mut StubContext);
            (*context).load = *state;
            enter(context, CODE_START, code64);
            &*context
        };
        let mut state = context.store;
        if context.trapped == 0 {
            state.rip = CODE_START + bytes.len() as u64;
            return Outcome { state, exception: None };
        }
        // A fault saves RFLAGS with RF set; the program never sees RF.
        state.rflags &= !(1 << 16);
        let at = state.rip.wrapping_sub(1);
        let landed = context.vector == 3
            && (CODE..CODE + PAGE).contains(&at)
            && !(CODE_START..CODE_START + end as u64).contains(&at);
        if landed {
            state.rip = at;
            return Outcome { state, exception: None };
        }
        let vector = context.vector as u8;
        // A branch to an unfetchable address completes, and the fetch faults.
        if vector == 14 && context.code & 0x10 != 0 && context.address == state.rip && state.rip != CODE_START {
            return Outcome { state, exception: None };
        }
        let code = context.code as u32;
        let address = if vector == 14 { context.address } else { 0 };
        Outcome { state, exception: Some(Exception { vector, code, address }) }
    }
}
