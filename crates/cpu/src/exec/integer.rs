//! Moves and two-operand integer arithmetic.

use crate::exec::{control_register, debug, get0, get1, segment, set0, set1, sized};
use crate::fault::{Exec, Flow};
use crate::flags::Int;
use crate::op::{Handler, Op};
use crate::row::{Flags, Row, Treatment};
use crate::state::Cpu;
use iced_x86::{Code, Instruction, Mnemonic::*, OpKind};
use ledger::Class;

/// Instruction table rows of moves and arithmetic.
pub static ROWS: &[Row] = &[
    Row::new(Mov, Class::Alu, mov).treated(Treatment::Move).common(),
    Row::new(Movzx, Class::Alu, movzx).native(Flags::Listed).common(),
    Row::new(Movsx, Class::Alu, movsx).native(Flags::Listed).common(),
    Row::new(Movsxd, Class::Alu, movsx).treated(Treatment::ExtendDouble).common(),
    Row::new(Lea, Class::Alu, lea).treated(Treatment::Lea).common(),
    Row::new(Xchg, Class::Alu, xchg).native(Flags::Listed).common(),
    Row::new(Add, Class::Alu, binary::<ops::Add>).native(Flags::Listed).common(),
    Row::new(Or, Class::Alu, binary::<ops::Or>).native(Flags::Same).common(),
    Row::new(Adc, Class::Alu, binary::<ops::Adc>).native(Flags::Listed).common(),
    Row::new(Sbb, Class::Alu, binary::<ops::Sbb>).native(Flags::Listed).common(),
    Row::new(And, Class::Alu, binary::<ops::And>).native(Flags::Same).common(),
    Row::new(Sub, Class::Alu, binary::<ops::Sub>).native(Flags::Listed).common(),
    Row::new(Xor, Class::Alu, binary::<ops::Xor>).native(Flags::Same).common(),
    Row::new(Cmp, Class::Alu, compare::<ops::Sub>).native(Flags::Listed).common(),
    Row::new(Test, Class::Alu, compare::<ops::And>).native(Flags::Same).common(),
    Row::new(Inc, Class::Alu, unary::<ops::Inc>).native(Flags::Listed).common(),
    Row::new(Dec, Class::Alu, unary::<ops::Dec>).native(Flags::Listed).common(),
    Row::new(Neg, Class::Alu, unary::<ops::Neg>).native(Flags::Listed).common(),
    Row::new(Not, Class::Alu, unary::<ops::Not>).native(Flags::Listed).common(),
];

/// A binary operation that sets flags.
trait Binary {
    fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T;
}

/// A unary operation.
trait Unary {
    fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T;
}

mod ops {
    use super::{Binary, Unary};
    use crate::flags::Int;
    use crate::state::Cpu;

    pub struct Add;
    pub struct Adc;
    pub struct Sub;
    pub struct Sbb;
    pub struct And;
    pub struct Or;
    pub struct Xor;
    pub struct Inc;
    pub struct Dec;
    pub struct Neg;
    pub struct Not;

    impl Binary for Add {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64().wrapping_add(b.to_u64()));
            cpu.arch.lazy.set_add(a, b, r);
            r
        }
    }
    impl Binary for Adc {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64().wrapping_add(b.to_u64()).wrapping_add(u64::from(cpu.arch.lazy.cf())));
            cpu.arch.lazy.set_add(a, b, r);
            r
        }
    }
    impl Binary for Sub {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64().wrapping_sub(b.to_u64()));
            cpu.arch.lazy.set_sub(a, b, r);
            r
        }
    }
    impl Binary for Sbb {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64().wrapping_sub(b.to_u64()).wrapping_sub(u64::from(cpu.arch.lazy.cf())));
            cpu.arch.lazy.set_sub(a, b, r);
            r
        }
    }
    impl Binary for And {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64() & b.to_u64());
            cpu.arch.lazy.set_logic(r);
            r
        }
    }
    impl Binary for Or {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64() | b.to_u64());
            cpu.arch.lazy.set_logic(r);
            r
        }
    }
    impl Binary for Xor {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
            let r = T::from_u64(a.to_u64() ^ b.to_u64());
            cpu.arch.lazy.set_logic(r);
            r
        }
    }
    impl Unary for Inc {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
            let carry = cpu.arch.lazy.cf();
            let r = T::from_u64(a.to_u64().wrapping_add(1));
            cpu.arch.lazy.set_add(a, T::from_u64(1), r);
            cpu.arch.lazy.set_cf(carry);
            r
        }
    }
    impl Unary for Dec {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
            let carry = cpu.arch.lazy.cf();
            let r = T::from_u64(a.to_u64().wrapping_sub(1));
            cpu.arch.lazy.set_sub(a, T::from_u64(1), r);
            cpu.arch.lazy.set_cf(carry);
            r
        }
    }
    impl Unary for Neg {
        #[inline(always)]
        fn apply<T: Int>(cpu: &mut Cpu, a: T) -> T {
            let r = T::from_u64(a.to_u64().wrapping_neg());
            cpu.arch.lazy.set_sub(T::from_u64(0), a, r);
            r
        }
    }
    impl Unary for Not {
        #[inline(always)]
        fn apply<T: Int>(_: &mut Cpu, a: T) -> T {
            T::from_u64(!a.to_u64())
        }
    }
}

fn is_memory(i: &Instruction, operand: u32) -> bool {
    i.op_kind(operand) == OpKind::Memory
}

fn is_register(i: &Instruction, operand: u32) -> bool {
    i.op_kind(operand) == OpKind::Register
}

fn binary<O: Binary>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match (is_memory(i, 0), is_memory(i, 1), is_register(i, 1)) {
        (true, _, true) => sized!(op.size; binary_mr<O>),
        (true, ..) => sized!(op.size; binary_mi<O>),
        (_, true, _) => sized!(op.size; binary_rm<O>),
        (_, _, true) => sized!(op.size; binary_rr<O>),
        _ => sized!(op.size; binary_ri<O>),
    }
}

fn binary_rr<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let r = O::apply::<T>(cpu, get0(cpu, op), get1(cpu, op));
    set0(cpu, op, r);
    Ok(Flow::Next)
}

fn binary_ri<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let r = O::apply::<T>(cpu, get0(cpu, op), T::from_u64(op.imm));
    set0(cpu, op, r);
    Ok(Flow::Next)
}

fn binary_rm<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = cpu.load::<T>(op)?;
    let r = O::apply::<T>(cpu, get0(cpu, op), b);
    set0(cpu, op, r);
    Ok(Flow::Next)
}

fn binary_mr<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = get1::<T>(cpu, op);
    cpu.modify::<T>(op, |cpu, a| O::apply(cpu, a, b))?;
    Ok(Flow::Next)
}

fn binary_mi<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.modify::<T>(op, |cpu, a| O::apply(cpu, a, T::from_u64(op.imm)))?;
    Ok(Flow::Next)
}

fn compare<O: Binary>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match (is_memory(i, 0), is_memory(i, 1), is_register(i, 1)) {
        (true, _, true) => sized!(op.size; compare_mr<O>),
        (true, ..) => sized!(op.size; compare_mi<O>),
        (_, true, _) => sized!(op.size; compare_rm<O>),
        (_, _, true) => sized!(op.size; compare_rr<O>),
        _ => sized!(op.size; compare_ri<O>),
    }
}

fn compare_rr<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    O::apply::<T>(cpu, get0(cpu, op), get1(cpu, op));
    Ok(Flow::Next)
}

fn compare_ri<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    O::apply::<T>(cpu, get0(cpu, op), T::from_u64(op.imm));
    Ok(Flow::Next)
}

fn compare_rm<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let b = cpu.load::<T>(op)?;
    O::apply::<T>(cpu, get0(cpu, op), b);
    Ok(Flow::Next)
}

fn compare_mr<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let a = cpu.load::<T>(op)?;
    O::apply::<T>(cpu, a, get1(cpu, op));
    Ok(Flow::Next)
}

fn compare_mi<O: Binary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let a = cpu.load::<T>(op)?;
    O::apply::<T>(cpu, a, T::from_u64(op.imm));
    Ok(Flow::Next)
}

fn unary<O: Unary>(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if is_memory(i, 0) { sized!(op.size; unary_m<O>) } else { sized!(op.size; unary_r<O>) }
}

fn unary_r<O: Unary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let r = O::apply::<T>(cpu, get0(cpu, op));
    set0(cpu, op, r);
    Ok(Flow::Next)
}

fn unary_m<O: Unary, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.modify::<T>(op, |cpu, a| O::apply(cpu, a))?;
    Ok(Flow::Next)
}

fn mov(i: &Instruction, op: &mut Op) -> Option<Handler> {
    for register in (0..2).filter(|n| is_register(i, *n)).map(|n| i.op_register(n)) {
        if register.is_segment_register() {
            return segment::bind_mov(i, op);
        }
        if register.is_cr() {
            return control_register::bind_mov(i, op);
        }
        if register.is_dr() {
            return debug::bind_mov(i, op);
        }
        if register.is_tr() {
            return None;
        }
    }
    match (is_memory(i, 0), is_memory(i, 1), is_register(i, 1)) {
        (true, _, true) => sized!(op.size; mov_mr<>),
        (true, ..) => sized!(op.size; mov_mi<>),
        (_, true, _) => sized!(op.size; mov_rm<>),
        (_, _, true) => sized!(op.size; mov_rr<>),
        _ => sized!(op.size; mov_ri<>),
    }
}

fn mov_rr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    set0(cpu, op, get1::<T>(cpu, op));
    Ok(Flow::Next)
}

fn mov_ri<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    set0(cpu, op, T::from_u64(op.imm));
    Ok(Flow::Next)
}

fn mov_rm<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = cpu.load::<T>(op)?;
    set0(cpu, op, value);
    Ok(Flow::Next)
}

fn mov_mr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.store(op, get1::<T>(cpu, op))?;
    Ok(Flow::Next)
}

fn mov_mi<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    cpu.store(op, T::from_u64(op.imm))?;
    Ok(Flow::Next)
}

/// Returns the size of the second operand in bytes.
fn source_size(i: &Instruction) -> u8 {
    match i.op1_kind() {
        OpKind::Memory => i.memory_size().size() as u8,
        _ => i.op1_register().size() as u8,
    }
}

fn movzx(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match (source_size(i), is_memory(i, 1)) {
        (1, true) => sized!(op.size; movzx_m<u8>),
        (1, false) => sized!(op.size; movzx_r<u8>),
        (2, true) => sized!(op.size; movzx_m<u16>),
        (2, false) => sized!(op.size; movzx_r<u16>),
        _ => None,
    }
}

fn movzx_r<S: Int, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = get1::<S>(cpu, op).to_u64();
    cpu.set(op.r0, T::from_u64(value));
    Ok(Flow::Next)
}

fn movzx_m<S: Int, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = cpu.load::<S>(op)?.to_u64();
    cpu.set(op.r0, T::from_u64(value));
    Ok(Flow::Next)
}

fn movsx(i: &Instruction, op: &mut Op) -> Option<Handler> {
    match (source_size(i), is_memory(i, 1)) {
        (1, true) => sized!(op.size; movsx_m<u8>),
        (1, false) => sized!(op.size; movsx_r<u8>),
        (2, true) if i.code() == Code::Movsxd_r16_rm16 => Some(movsxd_word),
        (2, true) => sized!(op.size; movsx_m<u16>),
        (2, false) => sized!(op.size; movsx_r<u16>),
        (4, true) => sized!(op.size; movsx_m<u32>),
        (4, false) => sized!(op.size; movsx_r<u32>),
        _ => None,
    }
}

fn movsx_r<S: Int, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = get1::<S>(cpu, op).to_i64() as u64;
    cpu.set(op.r0, T::from_u64(value));
    Ok(Flow::Next)
}

fn movsx_m<S: Int, T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = cpu.load::<S>(op)?.to_i64() as u64;
    cpu.set(op.r0, T::from_u64(value));
    Ok(Flow::Next)
}

/// MOVSXD with 16-bit operand size: AMD processors read 32 bits (APM vol. 3, MOVSXD: r16, r/m32).
fn movsxd_word(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let value = if cpu.wiring.capabilities.amd { cpu.load::<u32>(op)? as u16 } else { cpu.load::<u16>(op)? };
    cpu.set(op.r0, value);
    Ok(Flow::Next)
}

fn lea(_: &Instruction, op: &mut Op) -> Option<Handler> {
    // LEA does not access memory.
    op.flags &= !(Op::MEM | Op::MEM0);
    sized!(op.size; lea_sized<>)
}

fn lea_sized<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let address = op.ea(cpu);
    cpu.set(op.r0, T::from_u64(address));
    Ok(Flow::Next)
}

fn xchg(i: &Instruction, op: &mut Op) -> Option<Handler> {
    if is_memory(i, 0) {
        op.class = Class::Locked;
        return sized!(op.size; xchg_mr<>);
    }
    sized!(op.size; xchg_rr<>)
}

fn xchg_rr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let (a, b) = (get0::<T>(cpu, op), get1::<T>(cpu, op));
    set0(cpu, op, b);
    set1(cpu, op, a);
    Ok(Flow::Next)
}

fn xchg_mr<T: Int>(cpu: &mut Cpu, op: &Op) -> Exec<Flow> {
    let new = get1::<T>(cpu, op);
    let mut old = T::from_u64(0);
    cpu.modify::<T>(op, |_, a| {
        old = a;
        new
    })?;
    set1(cpu, op, old);
    Ok(Flow::Next)
}
