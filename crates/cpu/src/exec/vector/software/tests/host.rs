//! Execution of an instruction on the host's own units.

use super::{Operands, Outcome, forms::MEMORY};
use iced_x86::code_asm::*;
use iced_x86::{Code, CpuidFeature, Instruction, OpKind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Data that the code loads and stores, relative to RDI.
#[repr(C, align(64))]
struct Context {
    dest: [u8; 64],
    a: [u8; 64],
    b: [u8; 64],
    memory: [u8; 64],
    mask: u64,
    k: u64,
    source: u64,
    general: u64,
    rflags: u64,
    mxcsr: u32,
    flags: u32,
    initial: u32,
}

/// A page of code.
pub struct Host {
    page: *mut u8,
}

const PAGE: usize = 4096;

/// Flags that a comparison can set: ZF, PF, CF.
const COMPARED: u64 = 0x45;

/// Address of the page, for the SIGFPE handler.
static START: AtomicUsize = AtomicUsize::new(0);
/// MXCSR when an unmasked exception stopped the instruction, with the highest bit set.
static STOPPED: AtomicU32 = AtomicU32::new(0);
const HAS_STOPPED: u32 = 1 << 31;

/// Signal handler: continues after the instruction, whose end is in R8, and records MXCSR.
extern "C" fn stopped(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the thread's state to a handler with SA_SIGINFO.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let start = START.load(Ordering::Relaxed);
    if !(start..start + PAGE).contains(&(machine.gregs[libc::REG_RIP as usize] as usize)) {
        // SAFETY: the signal has another origin: the instruction faults again, and ends the process as without a
        // handler.
        unsafe { libc::signal(libc::SIGFPE, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the pointer refers to the state of the floating-point unit in the same frame.
    let unit = unsafe { &mut *machine.fpregs };
    STOPPED.store(unit.mxcsr | HAS_STOPPED, Ordering::Relaxed);
    unit.mxcsr = 0x1f80;
    machine.gregs[libc::REG_RIP as usize] = machine.gregs[libc::REG_R8 as usize];
}

impl Host {
    /// Returns access to the host's units, if they have AVX-512.
    pub fn new() -> Option<Self> {
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512bw") {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: a new private mapping, to which nothing else refers.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        START.store(page as usize, Ordering::Relaxed);
        // SAFETY: the action is zero except for the handler, which is a function of the right type, and its flag.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stopped as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGFPE, &action, std::ptr::null_mut());
        }
        Some(Host { page: page.cast() })
    }

    /// Returns true if the host has the extensions of a form.
    pub fn has(&self, code: Code) -> bool {
        use CpuidFeature::*;
        code.cpuid_features().iter().all(|feature| match *feature {
            AVX512F => true,
            AVX512BW => is_x86_feature_detected!("avx512bw"),
            AVX512VL => is_x86_feature_detected!("avx512vl"),
            AVX512DQ => is_x86_feature_detected!("avx512dq"),
            AVX512CD => is_x86_feature_detected!("avx512cd"),
            AVX512_VBMI => is_x86_feature_detected!("avx512vbmi"),
            AVX512_VBMI2 => is_x86_feature_detected!("avx512vbmi2"),
            AVX512_IFMA => is_x86_feature_detected!("avx512ifma"),
            AVX512_VNNI => is_x86_feature_detected!("avx512vnni"),
            AVX512_BITALG => is_x86_feature_detected!("avx512bitalg"),
            AVX512_VPOPCNTDQ => is_x86_feature_detected!("avx512vpopcntdq"),
            AVX512_BF16 => is_x86_feature_detected!("avx512bf16"),
            AVX512_FP16 => is_x86_feature_detected!("avx512fp16"),
            GFNI => is_x86_feature_detected!("gfni"),
            VAES => is_x86_feature_detected!("vaes"),
            VPCLMULQDQ => is_x86_feature_detected!("vpclmulqdq"),
            _ => false,
        })
    }

    /// Assembles the code that executes an instruction.
    pub fn load(&mut self, i: &Instruction) {
        let bytes = assemble(i).unwrap_or_else(|error| panic!("{:?}: {error}", i.code()));
        assert!(bytes.len() <= PAGE);
        // SAFETY: the page is writable and no code in it is running.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.page, bytes.len()) };
    }

    /// Executes the loaded instruction. If an unmasked exception stops it, only the MXCSR flags are meaningful.
    pub fn run(&mut self, i: &Instruction, o: &Operands) -> Outcome {
        let source = |n: u32| if n == 1 { &o.a } else { &o.b };
        let general = (1..i.op_count().min(3))
            .find(|&n| i.op_kind(n) == OpKind::Register && (i.op_register(n).is_gpr() || i.op_register(n).is_k()));
        let low = |v: &[u8; 64]| u64::from_le_bytes(v[..8].try_into().expect("eight bytes"));
        let memory = (0..i.op_count()).find(|&n| i.op_kind(n) == OpKind::Memory);
        let mut context = Context {
            dest: o.dest,
            a: o.a,
            b: o.b,
            memory: match memory {
                Some(0) => o.dest,
                Some(n) => *source(n),
                None => [0; 64],
            },
            mask: o.mask,
            k: 0,
            source: general.map_or(0, |n| low(source(n))),
            general: 0,
            rflags: 0,
            mxcsr: o.mxcsr,
            flags: 0,
            initial: 0x1f80,
        };
        // SAFETY: the page contains a function of this signature that accesses nothing but the context and caller-saved
        // registers.
        unsafe {
            let function: extern "sysv64" fn(*mut Context) = std::mem::transmute(self.page);
            function(&mut context);
        }
        let stopped = STOPPED.swap(0, Ordering::Relaxed);
        if stopped != 0 {
            context.flags = stopped & !HAS_STOPPED;
        }
        let mut dest = context.dest;
        if memory == Some(0) {
            dest = context.memory;
            dest[i.memory_size().size()..].fill(0);
        }
        Outcome {
            dest,
            k: context.k,
            general: context.general,
            mxcsr_flags: context.flags & 0x3f,
            rflags: context.rflags & COMPARED,
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no code in it is running.
        unsafe { libc::munmap(self.page.cast(), PAGE) };
    }
}

fn assemble(i: &Instruction) -> Result<Vec<u8>, iced_x86::IcedError> {
    let at = |offset: usize| rdi + offset as i32;
    let mut asm = CodeAssembler::new(64)?;
    asm.vmovups(zmm1, zmmword_ptr(at(0)))?;
    asm.vmovups(zmm2, zmmword_ptr(at(64)))?;
    asm.vmovups(zmm3, zmmword_ptr(at(128)))?;
    asm.kmovq(k1, qword_ptr(at(std::mem::offset_of!(Context, mask))))?;
    asm.kxorq(k2, k2, k2)?;
    asm.kmovq(k3, qword_ptr(at(std::mem::offset_of!(Context, source))))?;
    asm.mov(rcx, qword_ptr(at(std::mem::offset_of!(Context, source))))?;
    asm.xor(eax, eax)?;
    asm.ldmxcsr(dword_ptr(at(std::mem::offset_of!(Context, mxcsr))))?;
    let mut after = asm.create_label();
    asm.lea(r8, qword_ptr(after))?;
    asm.add_instruction(*i)?;
    asm.set_label(&mut after)?;
    asm.pushfq()?;
    asm.stmxcsr(dword_ptr(at(std::mem::offset_of!(Context, flags))))?;
    asm.ldmxcsr(dword_ptr(at(std::mem::offset_of!(Context, initial))))?;
    asm.pop(rcx)?;
    asm.mov(qword_ptr(at(std::mem::offset_of!(Context, rflags))), rcx)?;
    asm.mov(qword_ptr(at(std::mem::offset_of!(Context, general))), rax)?;
    asm.kmovq(qword_ptr(at(std::mem::offset_of!(Context, k))), k2)?;
    asm.vmovups(zmmword_ptr(at(0)), zmm1)?;
    asm.vzeroupper()?;
    asm.ret()?;
    assert_eq!(std::mem::offset_of!(Context, memory) as u64, MEMORY);
    asm.assemble(0)
}
