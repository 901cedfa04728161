//! Unwinding: from the registers to the addresses of all callers.
//!
//! Kernel frames are found by ORC tables where the kernel has some, and else by frame pointers, as are a program's. What is read is the
//! guest's, and may be anything: a stack has at most [`DEEPEST`] frames, and one that can't be followed to its end is cut and says so.

use ledger::stack::DEEPEST;
use ledger::symbols::orc::{Base, Entry, Frame};

/// What a stack is unwound by.
pub trait Unwindable {
    /// Reads linear memory: all of the bytes, or it returns `false`.
    fn read(&mut self, linear: u64, out: &mut [u8]) -> bool;

    /// The ORC entry for an address of the kernel.
    fn entry(&mut self, address: u64) -> Option<Entry>;
}

/// Registers that unwinding begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// The instruction.
    pub ip: u64,
    /// RSP.
    pub sp: u64,
    /// RBP.
    pub bp: u64,
    /// RCX.
    pub cx: u64,
    /// RDX.
    pub dx: u64,
    /// RDI.
    pub di: u64,
    /// R10.
    pub r10: u64,
    /// R11.
    pub r11: u64,
    /// R13.
    pub r13: u64,
    /// The code is a kernel's, not a program's.
    pub kernel: bool,
}

/// A stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Addresses, the innermost first; of a CALL, that of its last byte.
    pub frames: Vec<u64>,
    /// There are no further ones.
    pub whole: bool,
}

/// Programs have the lower half of the addresses.
const USER: std::ops::Range<u64> = 0x1000..1 << 47;
/// A frame of a program is no larger.
const LARGEST_FRAME: u64 = 8 << 20;
/// Offsets in `struct pt_regs`.
mod saved {
    pub const R13: u64 = 16;
    pub const BP: u64 = 32;
    pub const R10: u64 = 56;
    pub const DX: u64 = 96;
    pub const DI: u64 = 112;
    pub const IP: u64 = 128;
}
/// Flags that are set wherever a program runs, and those that are never.
const ALWAYS: u64 = x86::flags::IF | 2;
const NEVER: u64 = !x86::flags::ALL & !2;
/// Words of the stack in which the kernel's way out may have what it returns to.
const WAY_OUT: u64 = 5;

/// Unwinds a stack.
pub fn unwind(memory: &mut impl Unwindable, registers: Registers) -> Stack {
    let mut unwinding = Unwinding { memory, stack: Stack::default() };
    match registers.kernel {
        true => unwinding.kernel(registers),
        false => unwinding.user(registers.ip, registers.sp, registers.bp, true),
    }
    unwinding.stack
}

struct Unwinding<'a, M> {
    memory: &'a mut M,
    stack: Stack,
}

/// What the next frame of the kernel is found by.
struct Next {
    ip: u64,
    /// The instruction at `ip` is the one that is executed, not the one after a call.
    exact: bool,
    sp: u64,
    bp: u64,
    /// Other registers, as far as they are known.
    dx: Option<u64>,
    di: Option<u64>,
    r10: Option<u64>,
    r13: Option<u64>,
}

impl<M: Unwindable> Unwinding<'_, M> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// Adds a frame, if there is room for another one.
    fn push(&mut self, address: u64) -> bool {
        let room = self.stack.frames.len() < DEEPEST;
        if room {
            self.stack.frames.push(address);
        }
        room
    }

    fn kernel(&mut self, registers: Registers) {
        let Registers { ip, sp, bp, dx, di, r10, r13, .. } = registers;
        let mut next = Next { ip, exact: true, sp, bp, dx: Some(dx), di: Some(di), r10: Some(r10), r13: Some(r13) };
        loop {
            let address = if next.exact { next.ip } else { next.ip.wrapping_sub(1) };
            if !self.push(address) {
                return;
            }
            let first = self.stack.frames.len() == 1;
            let Some(entry) = self.memory.entry(address) else {
                return if first { self.callers(ip, sp, bp) } else { self.by_frame_pointers(next.sp, next.bp) };
            };
            match entry.frame {
                Frame::Undefined | Frame::End if first => return self.way_in_or_out(&registers),
                Frame::End => {
                    self.stack.whole = true;
                    return;
                }
                Frame::Undefined => return,
                Frame::Call | Frame::Registers | Frame::Interrupt => {}
            }
            let Some(caller) = self.caller(&next, entry) else { return };
            let (ip, cs) = caller.1;
            if cs & 3 == 3 {
                return self.user(ip, caller.0.sp, caller.0.bp, true);
            }
            if (caller.0.ip, caller.0.sp) == (next.ip, next.sp) {
                return;
            }
            next = caller.0;
        }
    }

    /// The frame that an entry leads to, and its IP and CS.
    fn caller(&mut self, now: &Next, entry: Entry) -> Option<(Next, (u64, u64))> {
        let (base, offset) = (entry.sp.0, i64::from(entry.sp.1) as u64);
        let from = |value: u64| value.wrapping_add(offset);
        let sp = match base {
            Base::Sp => from(now.sp),
            Base::Bp => from(now.bp),
            Base::Dx => from(now.dx?),
            Base::Di => from(now.di?),
            Base::R10 => from(now.r10?),
            Base::R13 => from(now.r13?),
            Base::AtBp => self.word(from(now.bp))?,
            Base::AtSp => from(self.word(now.sp)?),
            Base::Undefined | Base::CallerSp => return None,
        };
        let unknown = Next { ip: 0, exact: false, sp, bp: now.bp, dx: None, di: None, r10: None, r13: None };
        let (mut next, cs) = match entry.frame {
            Frame::Registers => {
                let register = |this: &mut Self, at: u64| this.word(sp.wrapping_add(at));
                let ip = register(self, saved::IP)?;
                let (cs, old_sp) = (register(self, saved::IP + 8)?, register(self, saved::IP + 24)?);
                let [dx, di, r10, r13] = [saved::DX, saved::DI, saved::R10, saved::R13].map(|at| register(self, at));
                let bp = register(self, saved::BP)?;
                (Next { ip, exact: true, sp: old_sp, bp, dx, di, r10, r13 }, cs)
            }
            Frame::Interrupt => {
                let (ip, cs) = (self.word(sp)?, self.word(sp.wrapping_add(8))?);
                let old_sp = self.word(sp.wrapping_add(24))?;
                (Next { ip, exact: true, sp: old_sp, ..unknown }, cs)
            }
            _ => (Next { ip: self.word(sp.wrapping_sub(8))?, ..unknown }, 0),
        };
        let saved = i64::from(entry.bp.1) as u64;
        match entry.bp.0 {
            Base::CallerSp => next.bp = self.word(sp.wrapping_add(saved))?,
            Base::Bp => next.bp = self.word(now.bp.wrapping_add(saved))?,
            _ => {}
        }
        let ip = next.ip;
        Some((next, (ip, cs)))
    }

    /// The kernel is on its way in from a program, or out to one: its stack has nothing yet, or no more. After SYSCALL, and before SYSRET,
    /// RCX has the program's address and R11 its flags; before IRET these are on the stack.
    fn way_in_or_out(&mut self, registers: &Registers) {
        for at in (0..WAY_OUT).map(|word| registers.sp.wrapping_add(8 * word)) {
            let (ip, cs) = (self.word(at), self.word(at.wrapping_add(8)));
            let (flags, sp) = (self.word(at.wrapping_add(16)), self.word(at.wrapping_add(24)));
            if let (Some(ip), Some(0x33), Some(flags), Some(sp)) = (ip, cs, flags, sp)
                && USER.contains(&ip)
                && flags & (ALWAYS | NEVER) == ALWAYS
            {
                return self.user(ip, sp, registers.bp, true);
            }
        }
        if USER.contains(&registers.cx) && registers.r11 & (ALWAYS | NEVER) == ALWAYS {
            // The address is that of the instruction after SYSCALL.
            let sp = if USER.contains(&registers.sp) { registers.sp } else { 0 };
            return self.user(registers.cx.wrapping_sub(1), sp, registers.bp, false);
        }
        self.stack.whole = true;
    }

    /// The callers by frame pointers alone, where nothing else is known.
    fn by_frame_pointers(&mut self, sp: u64, bp: u64) {
        let mut above = sp;
        let mut bp = bp;
        loop {
            if bp == 0 {
                self.stack.whole = true;
                return;
            }
            if bp < above || bp - above > LARGEST_FRAME || bp & 7 != 0 {
                return;
            }
            let (Some(next), Some(back)) = (self.word(bp), self.word(bp.wrapping_add(8))) else { return };
            if back == 0 {
                self.stack.whole = true;
                return;
            }
            if !self.follows_call(back) || !self.push(back - 1) {
                return;
            }
            (above, bp) = (bp.wrapping_add(16), next);
        }
    }

    /// A program's stack. `exact`: it has been interrupted at `ip`.
    fn user(&mut self, ip: u64, sp: u64, bp: u64, exact: bool) {
        if !self.push(ip) {
            return;
        }
        match exact && sp != 0 {
            true => self.callers(ip, sp, bp),
            false => self.by_frame_pointers(sp, bp),
        }
    }

    /// The callers of a function that has been interrupted, where no table says what its stack is like.
    fn callers(&mut self, ip: u64, sp: u64, bp: u64) {
        // At a function's first instructions the return address is on top of the stack.
        let depth = self.prologue(ip);
        let top = depth.and_then(|depth| Some((depth, self.word(sp.wrapping_add(depth))?)));
        let Some((depth, back)) = top.filter(|(_, back)| self.follows_call(*back)) else {
            return self.by_frame_pointers(sp, bp);
        };
        if self.push(back - 1) {
            // RBP has been saved below the return address, or is the caller's.
            let bp = if depth == 0 { Some(bp) } else { self.word(sp) };
            if let Some(bp) = bp {
                self.by_frame_pointers(sp.wrapping_add(depth + 8), bp);
            }
        }
    }

    /// How far from the top of the stack the return address is, where the code at an address says so: a function begins there, or returns.
    fn prologue(&mut self, ip: u64) -> Option<u64> {
        let mut code = [0; 4];
        if !self.memory.read(ip, &mut code) {
            return None;
        }
        match code {
            // ENDBR64; PUSH RBP; RET.
            [0xf3, 0x0f, 0x1e, 0xfa] | [0x55, ..] | [0xc3, ..] => Some(0),
            // MOV RBP, RSP after the PUSH.
            [0x48, 0x89, 0xe5, _] | [0x48, 0x8b, 0xec, _] => Some(8),
            _ => None,
        }
    }

    /// Whether the instruction in front of an address is a call, as in front of every return address.
    fn follows_call(&mut self, address: u64) -> bool {
        const LONGEST: usize = 8;
        let mut code = [0; LONGEST];
        if address < LONGEST as u64 || !self.memory.read(address - LONGEST as u64, &mut code) {
            return false;
        }
        // CALL of a relative address, or FF /2: through a register or memory, by the lengths of its forms.
        let indirect = |length: usize| code[LONGEST - length] == 0xff && code[LONGEST - length + 1] >> 3 & 7 == 2;
        code[LONGEST - 5] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(indirect)
    }
}

#[cfg(test)]
mod tests;
