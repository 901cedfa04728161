//! Unwinding: from the registers to the addresses of all callers.
//!
//! Kernel frames are found by ORC tables if the kernel has them, a program's frames by the `.eh_frame` of its files if
//! these are known, and other frames by frame pointers. The guest's memory may hold any values: a stack has at most
//! [`DEEPEST`] frames, and a stack that cannot be followed to its end is cut and marked.

use ledger::stack::DEEPEST;
use ledger::symbols::orc::{Base, Entry, Frame};
use ledger::symbols::program::{Cfa, Register, Row};

/// The data for unwinding a stack.
pub trait Unwindable {
    /// Reads linear memory. Returns `false` unless all bytes were read.
    fn read(&mut self, linear: u64, out: &mut [u8]) -> bool;

    /// Returns the ORC entry for an address of the kernel.
    fn entry(&mut self, address: u64) -> Option<Entry>;

    /// Returns the frame of an address by the unwind table of its program.
    fn row(&mut self, address: u64) -> Option<Row>;
}

/// Initial registers of unwinding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Address of the instruction.
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
    /// True if the code is a kernel's, false if it is a program's.
    pub kernel: bool,
}

/// A call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Addresses, innermost first; for a CALL, the address of its last byte.
    pub frames: Vec<u64>,
    /// True if there are no further frames.
    pub whole: bool,
}

/// Addresses of programs: the lower half.
pub const USER: std::ops::Range<u64> = 0x1000..1 << 47;
/// Largest frame of a program.
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
/// Flags that are always set while a program runs, and flags that never are.
const ALWAYS: u64 = x86::flags::IF | 2;
const NEVER: u64 = !x86::flags::ALL & !2;
/// Number of stack words in which the kernel's exit path may hold its return state.
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

/// The state from which the kernel's next frame is found.
struct Next {
    ip: u64,
    /// True if the instruction at `ip` is the executed one, false if it follows a call.
    exact: bool,
    sp: u64,
    bp: u64,
    /// Other registers, if they are known.
    dx: Option<u64>,
    di: Option<u64>,
    r10: Option<u64>,
    r13: Option<u64>,
}

/// The step from a program's function to its caller.
enum Step {
    /// The return address, and RSP and RBP behind it.
    Caller { back: u64, sp: u64, bp: u64 },
    /// There is no caller.
    End,
    /// The caller cannot be found.
    Lost,
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
                return self.follow(address, first, next.sp, next.bp);
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

    /// Returns the frame that an entry leads to, and its IP and CS.
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

    /// Handles a kernel that is entering from a program or returning to one: its stack is still or already empty. After
    /// SYSCALL, and before SYSRET, RCX holds the program's address and R11 its flags; before IRET these are on the
    /// stack.
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

    /// Unwinds a program's stack. `exact` is true if it was interrupted at `ip`.
    fn user(&mut self, ip: u64, sp: u64, bp: u64, exact: bool) {
        if self.push(ip) {
            self.follow(ip, exact, sp, bp);
        }
    }

    /// Finds the callers of the function at an address that has been added, where no ORC table describes its frame.
    fn follow(&mut self, mut address: u64, mut exact: bool, mut sp: u64, mut bp: u64) {
        loop {
            let row = if sp == 0 { None } else { self.memory.row(address) };
            let step = match row {
                Some(row) => self.by_table(row, address, sp, bp),
                None => self.by_frame_pointer(if exact { Some(address) } else { None }, sp, bp),
            };
            match step {
                Step::End => {
                    self.stack.whole = true;
                    return;
                }
                Step::Caller { back, .. } if !self.push(back.wrapping_sub(1)) => return,
                Step::Caller { back, sp: above, bp: saved } => (address, sp, bp) = (back - 1, above, saved),
                Step::Lost => return,
            }
            exact = false;
        }
    }

    /// Finds the caller of the function at an address by the unwind table of the program.
    fn by_table(&mut self, row: Row, address: u64, sp: u64, bp: u64) -> Step {
        let moved = |from: u64, offset: i32| from.wrapping_add(i64::from(offset) as u64);
        let from = |register: Register, offset| match register {
            Register::Sp => moved(sp, offset),
            Register::Bp => moved(bp, offset),
        };
        let cfa = match row.cfa {
            Cfa::From(register, offset) => Some(from(register, offset)),
            Cfa::At(register, offset, more) => self.word(from(register, offset)).map(|word| moved(word, more)),
            Cfa::Linkage(pushed) => Some(moved(sp, if address & 15 >= u64::from(pushed) { 16 } else { 8 })),
            Cfa::End => return Step::End,
            Cfa::Unknown => None,
        };
        let Some(cfa) = cfa.filter(|cfa| *cfa > sp && *cfa - sp <= LARGEST_FRAME) else { return Step::Lost };
        let bp = match row.bp {
            Some(offset) => self.word(moved(cfa, offset)),
            None => Some(bp),
        };
        let (Some(bp), Some(back)) = (bp, self.word(cfa - 8)) else { return Step::Lost };
        self.caller_at(back, cfa, bp)
    }

    /// Returns the step to a caller with its RSP and RBP, if a call is in front of the return address.
    fn caller_at(&mut self, back: u64, sp: u64, bp: u64) -> Step {
        match back {
            0 => Step::End,
            _ if self.follows_call(back) => Step::Caller { back, sp, bp },
            _ => Step::Lost,
        }
    }

    /// Finds the caller by RBP, or by the instruction at `ip` if the function was interrupted there.
    fn by_frame_pointer(&mut self, ip: Option<u64>, sp: u64, bp: u64) -> Step {
        if let Some(ip) = ip.filter(|_| sp != 0)
            && let Some(caller) = self.by_prologue(ip, sp, bp)
        {
            return caller;
        }
        if bp == 0 {
            return Step::End;
        }
        if bp < sp || bp - sp > LARGEST_FRAME || bp & 7 != 0 {
            return Step::Lost;
        }
        let (Some(saved), Some(back)) = (self.word(bp), self.word(bp.wrapping_add(8))) else { return Step::Lost };
        self.caller_at(back, bp.wrapping_add(16), saved)
    }

    /// Finds the caller of a function that was interrupted at one of its first instructions: the return address is on
    /// top of the stack.
    fn by_prologue(&mut self, ip: u64, sp: u64, bp: u64) -> Option<Step> {
        let depth = self.prologue(ip)?;
        let back = self.word(sp.wrapping_add(depth))?;
        // RBP has been saved below the return address, or is the caller's.
        let bp = if depth == 0 { bp } else { self.word(sp)? };
        let above = sp.wrapping_add(depth + 8);
        self.follows_call(back).then_some(Step::Caller { back, sp: above, bp })
    }

    /// Returns the distance of the return address from the top of the stack, if the code at an address shows it: a
    /// function begins there, or returns.
    fn prologue(&mut self, ip: u64) -> Option<u64> {
        let mut code = [0; 4];
        if !self.memory.read(ip, &mut code) {
            return None;
        }
        match code {
            // ENDBR64; PUSH RBP; RET; JMP through a table of addresses.
            [0xf3, 0x0f, 0x1e, 0xfa] | [0x55, ..] | [0xc3, ..] | [0xff, 0x25, ..] => Some(0),
            // MOV RBP, RSP after the PUSH.
            [0x48, 0x89, 0xe5, _] | [0x48, 0x8b, 0xec, _] => Some(8),
            _ => None,
        }
    }

    /// Returns true if the instruction in front of an address is a call, as it is in front of every return address.
    fn follows_call(&mut self, address: u64) -> bool {
        const LONGEST: usize = 8;
        let mut code = [0; LONGEST];
        if address < LONGEST as u64 || !self.memory.read(address - LONGEST as u64, &mut code) {
            return false;
        }
        // A CALL is a relative one, or FF /2 through a register or memory, by the lengths of its forms.
        let indirect = |length: usize| code[LONGEST - length] == 0xff && code[LONGEST - length + 1] >> 3 & 7 == 2;
        code[LONGEST - 5] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(indirect)
    }
}

#[cfg(test)]
mod tests;
