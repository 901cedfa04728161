//! The debugger's registers, in the order of their numbers: those that gdb defines for x86-64, then the system
//! registers with QEMU's names. Under a hypervisor they are the guest's registers.

use crate::machine::Machine;
use std::fmt::Write;
use std::sync::LazyLock;
use x86::{flags, reg, seg};

/// Identity of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A general register.
    General(u8),
    /// RIP.
    Rip,
    /// RFLAGS, of which gdb uses the lower half.
    Flags,
    /// A segment's selector.
    Selector(u8),
    /// ST(i).
    X87(u8),
    /// Control, status, tags, code segment, instruction pointer, data segment, data pointer, opcode.
    X87Control(u8),
    /// The lower half of a vector register.
    Xmm(u8),
    /// MXCSR.
    Mxcsr,
    /// A segment's base.
    Base(u8),
    /// The upper half of a vector register.
    UpperYmm(u8),
    /// IA32_KERNEL_GS_BASE.
    KernelGsBase,
    /// A control register.
    Control(u8),
    /// IA32_EFER.
    Efer,
}

/// A register.
#[derive(Clone, Debug)]
pub struct Register {
    /// Name of the register.
    pub name: String,
    /// Length in bytes.
    pub len: usize,
    /// Type with which gdb displays the register.
    kind: &'static str,
    /// Index of the feature in the target description.
    feature: usize,
    /// Identity of the register.
    pub what: What,
}

const FEATURES: [&str; 5] = [
    "org.gnu.gdb.i386.core",
    "org.gnu.gdb.i386.sse",
    "org.gnu.gdb.i386.segments",
    "org.gnu.gdb.i386.avx",
    "org.tollgate.system",
];

const X87_CONTROL: [&str; 8] = ["fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop"];

/// General registers in gdb's order.
const GENERAL: [u8; 16] =
    [reg::RAX, reg::RBX, reg::RCX, reg::RDX, reg::RSI, reg::RDI, reg::RBP, reg::RSP, 8, 9, 10, 11, 12, 13, 14, 15];

/// All registers.
pub static REGISTERS: LazyLock<Vec<Register>> = LazyLock::new(|| {
    let mut all = Vec::new();
    let mut add = |feature, name: &str, len, kind, what| {
        all.push(Register { name: name.to_owned(), len, kind, feature, what });
    };
    for number in GENERAL {
        let kind = if matches!(number, reg::RBP | reg::RSP) { "data_ptr" } else { "int64" };
        add(0, reg::NAMES[usize::from(number)], 8, kind, What::General(number));
    }
    add(0, "rip", 8, "code_ptr", What::Rip);
    add(0, "eflags", 4, "i386_eflags", What::Flags);
    let segments =
        [("cs", seg::CS), ("ss", seg::SS), ("ds", seg::DS), ("es", seg::ES), ("fs", seg::FS), ("gs", seg::GS)];
    for (name, number) in segments {
        add(0, name, 4, "int32", What::Selector(number));
    }
    for number in 0..8 {
        add(0, &format!("st{number}"), 10, "i387_ext", What::X87(number));
    }
    for (number, name) in (0..).zip(X87_CONTROL) {
        add(0, name, 4, "int", What::X87Control(number));
    }
    for number in 0..16 {
        add(1, &format!("xmm{number}"), 16, "vec128", What::Xmm(number));
    }
    add(1, "mxcsr", 4, "i386_mxcsr", What::Mxcsr);
    add(2, "fs_base", 8, "int64", What::Base(seg::FS));
    add(2, "gs_base", 8, "int64", What::Base(seg::GS));
    for number in 0..16 {
        add(3, &format!("ymm{number}h"), 16, "uint128", What::UpperYmm(number));
    }
    add(4, "k_gs_base", 8, "int64", What::KernelGsBase);
    for number in [0, 2, 3, 4, 8] {
        add(4, &format!("cr{number}"), 8, "int64", What::Control(number));
    }
    add(4, "efer", 8, "int64", What::Efer);
    all
});

/// Returns the type description of a flags register, which gdb displays by names.
fn flags_type(id: &str, flags: &[(u8, &str)]) -> String {
    let fields = flags.iter().map(|(bit, name)| format!("<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>"));
    format!("<flags id=\"{id}\" size=\"4\">{}</flags>", fields.collect::<String>())
}

const EFLAGS: [(u8, &str); 18] = [
    (0, "CF"),
    (1, ""),
    (2, "PF"),
    (4, "AF"),
    (6, "ZF"),
    (7, "SF"),
    (8, "TF"),
    (9, "IF"),
    (10, "DF"),
    (11, "OF"),
    (14, "NT"),
    (16, "RF"),
    (17, "VM"),
    (18, "AC"),
    (19, "VIF"),
    (20, "VIP"),
    (21, "ID"),
    (31, ""),
];

const MXCSR: [(u8, &str); 15] = [
    (0, "IE"),
    (1, "DE"),
    (2, "ZE"),
    (3, "OE"),
    (4, "UE"),
    (5, "PE"),
    (6, "DAZ"),
    (7, "IM"),
    (8, "DM"),
    (9, "ZM"),
    (10, "OM"),
    (11, "UM"),
    (12, "PM"),
    (15, "FZ"),
    (17, "MM"),
];

const VECTOR: &str = r#"<vector id="v4f" type="ieee_single" count="4"/><vector id="v2d" type="ieee_double" count="2"/><vector id="v16i8" type="int8" count="16"/><vector id="v8i16" type="int16" count="8"/><vector id="v4i32" type="int32" count="4"/><vector id="v2i64" type="int64" count="2"/><union id="vec128"><field name="v4_float" type="v4f"/><field name="v2_double" type="v2d"/><field name="v16_int8" type="v16i8"/><field name="v8_int16" type="v8i16"/><field name="v4_int32" type="v4i32"/><field name="v2_int64" type="v2i64"/><field name="uint128" type="uint128"/></union>"#;

/// The target description in XML (gdb manual, "Target Descriptions").
pub static DESCRIPTION: LazyLock<String> = LazyLock::new(|| {
    let mut xml = String::from("<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target>");
    xml.push_str("<architecture>i386:x86-64</architecture>");
    for (number, feature) in FEATURES.iter().enumerate() {
        let _ = write!(xml, "<feature name=\"{feature}\">");
        match number {
            0 => xml.push_str(&flags_type("i386_eflags", &EFLAGS)),
            1 => {
                xml.push_str(VECTOR);
                xml.push_str(&flags_type("i386_mxcsr", &MXCSR));
            }
            _ => {}
        }
        for register in REGISTERS.iter().filter(|register| register.feature == number) {
            let Register { name, len, kind, .. } = register;
            let group = if matches!(register.what, What::X87Control(_)) { " group=\"float\"" } else { "" };
            let _ = write!(xml, "<reg name=\"{name}\" bitsize=\"{}\" type=\"{kind}\"{group}/>", 8 * len);
        }
        xml.push_str("</feature>");
    }
    xml.push_str("</target>");
    xml
});

/// Reads a register; the value is in the low bytes.
pub fn read(machine: &Machine, processor: usize, what: What) -> u128 {
    let cpu = &machine.vcpus.all[processor].cpu;
    let view = cpu.visible();
    let x87 = &cpu.arch.x87;
    let top = usize::from(x87.status >> 11 & 7);
    let ymm = |number: u8, half: usize| {
        let words = &cpu.arch.vector.ymm[usize::from(number)];
        u128::from(words[2 * half]) | u128::from(words[2 * half + 1]) << 64
    };
    u128::from(match what {
        What::General(number) => cpu.reg(number),
        What::Rip => cpu.arch.rip,
        What::Flags => cpu.rflags(),
        What::Selector(number) => u64::from(cpu.arch.seg[usize::from(number)].selector),
        What::X87(number) => {
            let value = x87.regs[(top + usize::from(number)) & 7];
            return u128::from(value.significand) | u128::from(value.sign_exponent) << 64;
        }
        What::X87Control(number) => match number {
            0 => u64::from(x87.control),
            1 => u64::from(x87.status),
            2 => u64::from(x87.tag_word()),
            3 => u64::from(x87.cs),
            4 => x87.ip & 0xffff_ffff,
            5 => u64::from(x87.ds),
            6 => x87.dp & 0xffff_ffff,
            _ => u64::from(x87.opcode),
        },
        What::Xmm(number) => return ymm(number, 0),
        What::UpperYmm(number) => return ymm(number, 1),
        What::Mxcsr => u64::from(cpu.arch.vector.mxcsr),
        What::Base(number) => cpu.arch.seg[usize::from(number)].base,
        What::KernelGsBase => cpu.arch.msr.kernel_gs_base,
        What::Control(0) => view.cr0,
        What::Control(2) => cpu.arch.cr2,
        What::Control(3) => view.cr3,
        What::Control(4) => view.cr4,
        What::Control(_) => u64::from(machine.board().lapic(processor).cr8()),
        What::Efer => view.efer,
    })
}

/// Writes a register. Returns false if the register can't be written, because the write would have consequences that
/// only the guest can control, or would fault in the guest.
pub fn write(machine: &mut Machine, processor: usize, what: What, value: u128) -> bool {
    let (low, high) = (value as u64, (value >> 64) as u64);
    let vcpu = &mut machine.vcpus.all[processor];
    let is_guest = vcpu.guest.is_some();
    let cpu = &mut vcpu.cpu;
    match what {
        What::General(number) => cpu.set::<u64>(number, low),
        What::Rip if cpu.arch.rip == low => {}
        What::Rip => {
            cpu.abandon_block(&mut machine.vcpus.cache);
            cpu.begin_run();
            cpu.arch.rip = if cpu.engine.long64 { low } else { low & 0xffff_ffff };
        }
        // Setting VM alone does not enter virtual-8086 mode.
        What::Flags => {
            let kept = cpu.rflags() & flags::VM;
            cpu.set_rflags(low & flags::ALL & !flags::VM | kept);
        }
        What::X87(number) => {
            let top = usize::from(cpu.arch.x87.status >> 11 & 7);
            let register = &mut cpu.arch.x87.regs[(top + usize::from(number)) & 7];
            (register.significand, register.sign_exponent) = (low, high as u16);
        }
        What::Xmm(number) => cpu.arch.vector.ymm[usize::from(number)][..2].copy_from_slice(&[low, high]),
        What::UpperYmm(number) => cpu.arch.vector.ymm[usize::from(number)][2..].copy_from_slice(&[low, high]),
        What::Base(number) if cpu.canonical_base(low) => cpu.arch.seg[usize::from(number)].base = low,
        What::KernelGsBase if cpu.canonical_base(low) => cpu.arch.msr.kernel_gs_base = low,
        // Under a hypervisor these are the guest's view of the registers, not the processor's.
        What::Control(0 | 3 | 4) | What::Efer if is_guest => return false,
        What::Control(number) => {
            cpu.abandon_block(&mut machine.vcpus.cache);
            return cpu.write_control(number, low);
        }
        What::Efer => {
            cpu.abandon_block(&mut machine.vcpus.cache);
            return cpu.write_efer(low);
        }
        // A debugger that changes one register writes all of them back.
        _ => return read(machine, processor, what) == value,
    }
    true
}
