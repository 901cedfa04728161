//! A guest with random operations on its page tables, on bare hardware and under every configuration: every access,
//! every fault and all memory must be equal.
//!
//! The guest is an interpreter of scripts. Its own pages stay mapped one to one, supervisor-only; the scripts use other
//! addresses. A script changes tables, flushes as the architecture requires, and accesses memory at both privilege
//! levels; the interpreter records the result of each step.

use crate::common::*;
use cpu::arch::TableRegister;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use testkit::Random;
use x86::control::*;

/// Scripts: steps of 32 bytes (kind, two operands).
const SCRIPT: u64 = 0x20_0000;
/// Notes: 32 bytes for each step.
const NOTES: u64 = 0x28_0000;
/// Tables that scripts change.
const ARENA: u64 = 0x30_0000;
const ARENA_FRAMES: u64 = 24;
/// Number of roots, which are the first tables.
const ROOTS: u64 = 3;
/// Last-level tables that only the permanent entries point to, and of which single entries are changed and flushed.
const LEAVES: u64 = 0x32_0000;
const LEAF_TABLES: u64 = 2;
/// Tables that are never changed.
const KEPT: u64 = 0x33_0000;
/// Code that runs at CPL 3.
const USER: u64 = 0x40_0000;
/// Data frames, and the offset of a RET in each.
const DATA_FRAMES: u64 = 0x70_0000;
const RETURN: u64 = 0xff0;
/// Task-state segment.
const TSS: u64 = 0xd000;

const STEPS: u64 = 250;
/// Written values may become table entries; a global one would survive loads of CR3 on bare hardware.
const NOT_GLOBAL: u64 = !0x100_0000_0100;

/// Kind of a step.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Kind {
    End,
    Read,
    Write,
    Execute,
    UserRead,
    UserWrite,
    UserExecute,
    Invlpg,
    Cr3,
    Cr0,
    Cr4,
    Efer,
    Flags,
}

/// Paging mode of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Legacy,
    Pae,
    Long,
}

/// Assembles the interpreter of 64-bit guests: RSI is the script, RDI the notes, R9 the flags for memory accesses.
fn interpreter64(a: &mut CodeAssembler, handlers: &mut Vec<(u64, u64)>) -> Result<(), IcedError> {
    let mut next = a.create_label();
    let mut note = a.create_label();
    let mut kinds: Vec<CodeLabel> = (0..13).map(|_| a.create_label()).collect();
    let mut user = a.create_label();
    a.set_label(&mut next)?;
    a.mov(rsp, STACK)?;
    a.push(r9)?;
    a.popfq()?;
    a.mov(eax, dword_ptr(rsi))?;
    a.mov(rbx, qword_ptr(rsi + 8))?;
    a.mov(rcx, qword_ptr(rsi + 16))?;
    a.add(rsi, 32)?;
    for (number, label) in kinds.iter().enumerate() {
        a.cmp(eax, number as i32)?;
        a.je(*label)?;
    }
    let mut done = a.create_label();
    let step = |a: &mut CodeAssembler, kind: Kind, kinds: &mut Vec<CodeLabel>| a.set_label(&mut kinds[kind as usize]);
    step(a, Kind::End, &mut kinds)?;
    a.cli()?;
    a.hlt()?;
    step(a, Kind::Read, &mut kinds)?;
    a.mov(r8, qword_ptr(rbx))?;
    a.jmp(done)?;
    step(a, Kind::Write, &mut kinds)?;
    a.mov(qword_ptr(rbx), rcx)?;
    a.jmp(done)?;
    step(a, Kind::Execute, &mut kinds)?;
    a.call(rbx)?;
    a.jmp(done)?;
    for (kind, offset) in [(Kind::UserRead, 0u64), (Kind::UserWrite, 32), (Kind::UserExecute, 64)] {
        step(a, kind, &mut kinds)?;
        a.mov(rdx, USER + offset)?;
        a.jmp(user)?;
    }
    a.set_label(&mut user)?;
    a.push(0x2b)?;
    a.mov(rax, USER + 0x800)?;
    a.push(rax)?;
    a.push(r9)?;
    a.push(0x33)?;
    a.push(rdx)?;
    a.iretq()?;
    step(a, Kind::Invlpg, &mut kinds)?;
    a.invlpg(byte_ptr(rbx))?;
    a.jmp(done)?;
    step(a, Kind::Cr3, &mut kinds)?;
    a.mov(cr3, rbx)?;
    a.jmp(done)?;
    step(a, Kind::Cr0, &mut kinds)?;
    a.mov(cr0, rbx)?;
    a.jmp(done)?;
    step(a, Kind::Cr4, &mut kinds)?;
    a.mov(cr4, rbx)?;
    a.jmp(done)?;
    step(a, Kind::Efer, &mut kinds)?;
    a.mov(ecx, 0xc000_0080u32)?;
    a.mov(eax, ebx)?;
    a.xor(edx, edx)?;
    a.wrmsr()?;
    a.jmp(done)?;
    step(a, Kind::Flags, &mut kinds)?;
    a.mov(r9, rbx)?;
    a.jmp(done)?;
    a.set_label(&mut done)?;
    a.mov(rdx, r8)?;
    a.mov(ecx, 0x30)?;
    a.xor(eax, eax)?;
    a.set_label(&mut note)?;
    a.mov(qword_ptr(rdi), rcx)?;
    a.mov(qword_ptr(rdi + 8), rax)?;
    a.mov(qword_ptr(rdi + 16), rdx)?;
    a.add(rdi, 32)?;
    a.xor(r8d, r8d)?;
    a.jmp(next)?;
    for vector in [13u64, 14, 0x30] {
        let mut label = a.create_label();
        a.set_label(&mut label)?;
        handlers.push((vector, a.instructions().len() as u64));
        a.mov(ecx, vector as u32)?;
        match vector {
            0x30 => {
                a.mov(rdx, r8)?;
                a.xor(eax, eax)?;
            }
            _ => {
                a.pop(rax)?;
                a.mov(rdx, cr2)?;
            }
        }
        a.jmp(note)?;
    }
    Ok(())
}

/// Assembles the interpreter of 32-bit guests: ESI is the script, EDI the notes, [`SCRIPT`] - 8 the flags, EBP the
/// value read.
fn interpreter32(a: &mut CodeAssembler, handlers: &mut Vec<(u64, u64)>) -> Result<(), IcedError> {
    let flags = (SCRIPT - 8) as u32;
    let mut next = a.create_label();
    let mut note = a.create_label();
    let mut done = a.create_label();
    let mut user = a.create_label();
    let mut kinds: Vec<CodeLabel> = (0..13).map(|_| a.create_label()).collect();
    a.mov(eax, 0x2b)?;
    a.mov(ds, eax)?;
    a.mov(es, eax)?;
    a.set_label(&mut next)?;
    a.mov(esp, STACK as u32)?;
    a.push(dword_ptr(flags))?;
    a.popfd()?;
    a.mov(eax, dword_ptr(esi))?;
    a.mov(ebx, dword_ptr(esi + 8))?;
    a.mov(ecx, dword_ptr(esi + 16))?;
    a.add(esi, 32)?;
    for (number, label) in kinds.iter().enumerate() {
        a.cmp(eax, number as i32)?;
        a.je(*label)?;
    }
    let step = |a: &mut CodeAssembler, kind: Kind, kinds: &mut Vec<CodeLabel>| a.set_label(&mut kinds[kind as usize]);
    step(a, Kind::End, &mut kinds)?;
    a.cli()?;
    a.hlt()?;
    step(a, Kind::Read, &mut kinds)?;
    a.mov(ebp, dword_ptr(ebx))?;
    a.jmp(done)?;
    step(a, Kind::Write, &mut kinds)?;
    a.mov(dword_ptr(ebx), ecx)?;
    a.jmp(done)?;
    step(a, Kind::Execute, &mut kinds)?;
    a.call(ebx)?;
    a.jmp(done)?;
    for (kind, offset) in [(Kind::UserRead, 0u32), (Kind::UserWrite, 32), (Kind::UserExecute, 64)] {
        step(a, kind, &mut kinds)?;
        a.mov(edx, USER as u32 + offset)?;
        a.jmp(user)?;
    }
    a.set_label(&mut user)?;
    a.push(0x2b)?;
    a.push(USER as i32 + 0x800)?;
    a.push(dword_ptr(flags))?;
    a.push(0x23)?;
    a.push(edx)?;
    a.iretd()?;
    step(a, Kind::Invlpg, &mut kinds)?;
    a.invlpg(byte_ptr(ebx))?;
    a.jmp(done)?;
    step(a, Kind::Cr3, &mut kinds)?;
    a.mov(cr3, ebx)?;
    a.jmp(done)?;
    step(a, Kind::Cr0, &mut kinds)?;
    a.mov(cr0, ebx)?;
    a.jmp(done)?;
    step(a, Kind::Cr4, &mut kinds)?;
    a.mov(cr4, ebx)?;
    a.jmp(done)?;
    step(a, Kind::Efer, &mut kinds)?;
    a.mov(ecx, 0xc000_0080u32)?;
    a.mov(eax, ebx)?;
    a.xor(edx, edx)?;
    a.wrmsr()?;
    a.jmp(done)?;
    step(a, Kind::Flags, &mut kinds)?;
    a.mov(dword_ptr(flags), ebx)?;
    a.jmp(done)?;
    a.set_label(&mut done)?;
    a.mov(edx, ebp)?;
    a.mov(ecx, 0x30)?;
    a.xor(eax, eax)?;
    a.set_label(&mut note)?;
    a.mov(dword_ptr(edi), ecx)?;
    a.mov(dword_ptr(edi + 8), eax)?;
    a.mov(dword_ptr(edi + 16), edx)?;
    a.add(edi, 32)?;
    a.xor(ebp, ebp)?;
    a.jmp(next)?;
    for vector in [13u64, 14, 0x30] {
        let mut label = a.create_label();
        a.set_label(&mut label)?;
        handlers.push((vector, a.instructions().len() as u64));
        a.mov(ecx, vector as u32)?;
        match vector {
            0x30 => {
                a.mov(edx, ebp)?;
                a.xor(eax, eax)?;
            }
            _ => {
                a.pop(eax)?;
                a.mov(edx, cr2)?;
            }
        }
        a.jmp(note)?;
    }
    Ok(())
}

/// Returns the code for CPL 3: a read, a write, a call, 32 bytes apart.
fn user_code(bits: u32) -> [Vec<u8>; 3] {
    let piece = |offset: u64, write: &dyn Fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        testkit::assemble(bits, USER + offset, |a| {
            write(a)?;
            a.int(0x30)
        })
    };
    if bits == 64 {
        [
            piece(0, &|a| a.mov(r8, qword_ptr(rbx))),
            piece(32, &|a| a.mov(qword_ptr(rbx), rcx)),
            piece(64, &|a| a.call(rbx)),
        ]
    } else {
        [
            piece(0, &|a| a.mov(ebp, dword_ptr(ebx))),
            piece(32, &|a| a.mov(dword_ptr(ebx), ecx)),
            piece(64, &|a| a.call(ebx)),
        ]
    }
}

/// Generator of a script.
struct Author {
    random: Random,
    shape: Shape,
    steps: Vec<(Kind, u64, u64)>,
    cr0: u64,
    cr3: u64,
    cr4: u64,
    efer: u64,
    /// Initial contents of tables.
    tables: Vec<(u64, u64)>,
}

impl Author {
    fn new(seed: u64, shape: Shape) -> Self {
        let mut author = Self {
            random: Random::new(seed),
            shape,
            steps: Vec::new(),
            cr0: CR0_PE | CR0_ET | CR0_NE | CR0_WP | CR0_PG,
            cr3: ARENA,
            cr4: if shape == Shape::Legacy { CR4_PSE } else { CR4_PAE },
            efer: if shape == Shape::Long { EFER_LME | EFER_LMA | EFER_NXE } else { 0 },
            tables: Vec::new(),
        };
        author.lay_out();
        for (kind, value) in [(Kind::Cr3, ARENA), (Kind::Cr4, author.cr4), (Kind::Cr0, author.cr0)] {
            author.steps.push((kind, value, 0));
        }
        if shape == Shape::Pae {
            author.efer = EFER_NXE;
            author.steps.push((Kind::Efer, author.efer, 0));
        }
        while (author.steps.len() as u64) < STEPS {
            author.go_on();
        }
        author.steps.push((Kind::End, 0, 0));
        author
    }

    fn size(&self) -> u64 {
        if self.shape == Shape::Legacy { 4 } else { 8 }
    }

    /// Returns a tested index of a table; those below 4 keep the interpreter mapped.
    fn index(&mut self) -> u64 {
        let last = 4096 / self.size() - 1;
        self.random.of(&[4, 5, 6, last - 1, last])
    }

    /// Creates the initial tables: the interpreter's, the leaves', and random ones.
    fn lay_out(&mut self) {
        let size = self.size();
        match self.shape {
            Shape::Legacy => {
                for number in 0..4 {
                    for page in 0..1024 {
                        let address = number << 22 | page << 12;
                        let user = if address >> 12 == USER >> 12 { 4 } else { 0 };
                        self.tables.push((KEPT + number * 4096 + page * 4, address | 0x63 | user));
                    }
                }
                for root in 0..ROOTS {
                    for number in 0..4 {
                        self.tables.push((ARENA + root * 4096 + number * 4, (KEPT + number * 4096) | 0x67));
                    }
                    for leaf in 0..LEAF_TABLES {
                        self.tables.push((ARENA + root * 4096 + (8 + leaf) * 4, (LEAVES + leaf * 4096) | 0x67));
                    }
                }
            }
            Shape::Pae | Shape::Long => {
                // KEPT: a directory of 2 MiB pages, then the leaves.
                for number in 0..8 {
                    let user = if number == USER >> 21 { 4 } else { 0 };
                    self.tables.push((KEPT + number * 8, number << 21 | 0xe3 | user));
                }
                for leaf in 0..LEAF_TABLES {
                    self.tables.push((KEPT + (8 + leaf) * 8, (LEAVES + leaf * 4096) | 0x67));
                }
                self.tables.push((KEPT + 0x1000, KEPT | 0x67));
                for root in 0..ROOTS {
                    let top = if self.shape == Shape::Pae { KEPT | 1 } else { (KEPT + 0x1000) | 0x67 };
                    self.tables.push((ARENA + root * 4096, top));
                    if self.shape == Shape::Pae {
                        for number in 1..4 {
                            let table = ARENA + (ROOTS + number) * 4096;
                            self.tables.push((ARENA + root * 4096 + number * 8, table | 1));
                        }
                    }
                }
            }
        }
        for frame in 0..ARENA_FRAMES {
            for _ in 0..8 {
                let (index, entry) = (self.index(), self.entry(frame));
                self.tables.push((ARENA + frame * 4096 + index * size, entry));
            }
        }
    }

    /// Returns an entry for a table, by the number of its frame: those of higher levels come first.
    fn entry(&mut self, frame: u64) -> u64 {
        let last_level = frame * 4 >= ARENA_FRAMES * 3;
        let random = &mut self.random;
        let large = random.below(8) == 0;
        let far = if self.shape == Shape::Legacy { DEVICE } else { 0x5_0000_0000 };
        let address = match random.below(24) {
            0 => random.of(&[DEVICE, 0xfee0_0000, 0xd800_0000, 16 << 20, far]),
            1 => ARENA + random.below(ARENA_FRAMES) * 4096,
            _ if large => random.of(&[0x80_0000, 0xa0_0000, 0xc0_0000, 0xe0_0000]),
            _ if last_level => DATA_FRAMES + random.below(32) * 4096,
            _ => ARENA + (frame + 1 + random.below(ARENA_FRAMES - frame - 1)) * 4096,
        };
        let mut value = address | 1 | if large { 0x80 } else { 0 };
        for (bit, of) in [(2u64, 6), (4, 5)] {
            if random.below(of) != 0 {
                value |= bit;
            }
        }
        for (bit, of) in [(1u64 << 5, 2), (1 << 6, 2), (1 << 63, 10), (1 << 52, 50), (1 << 50, 50), (1 << 13, 40)] {
            if random.below(of) == 0 {
                value |= bit;
            }
        }
        if random.below(10) == 0 {
            value &= !1;
        }
        value
    }

    /// Adds a step that writes to a table, by its physical address.
    fn write_entry(&mut self, address: u64, value: u64) {
        match self.shape {
            Shape::Pae => {
                self.steps.push((Kind::Write, address, value & 0xffff_ffff));
                self.steps.push((Kind::Write, address + 4, value >> 32));
            }
            _ => self.steps.push((Kind::Write, address, value)),
        }
    }

    /// Returns an address that is translated by tested tables.
    fn address(&mut self) -> u64 {
        let offset = self.random.below(0x1d0) * 8 + 8;
        let (one, two, three, four) = (self.index(), self.index(), self.index(), self.index());
        match self.shape {
            Shape::Legacy => one << 22 | two << 12 | offset,
            Shape::Pae => (1 + self.random.below(3)) << 30 | one << 21 | two << 12 | offset,
            Shape::Long => (((one << 39 | two << 30 | three << 21 | four << 12 | offset) << 16) as i64 >> 16) as u64,
        }
    }

    fn accesses(&mut self, count: u64) {
        for _ in 0..count {
            let address = self.address();
            let kind = self.random.of(&[Kind::Read, Kind::Write, Kind::UserRead, Kind::UserWrite]);
            let writes = matches!(kind, Kind::Write | Kind::UserWrite);
            let value = self.random.next() & 0x00ff_ff00_0f0f_0fe7 & NOT_GLOBAL;
            self.steps.push((kind, address, value));
            if writes {
                // It may have been a table.
                self.steps.push((Kind::Cr3, self.cr3, 0));
            }
        }
    }

    /// Adds steps that change one last-level entry, flush its address, and access it in all ways.
    fn change_leaf(&mut self) {
        let (leaf, page) = (self.random.below(LEAF_TABLES), self.random.below(6));
        let span = if self.shape == Shape::Legacy { 22 } else { 21 };
        let linear = ((8 + leaf) << span) | page << 12;
        let mut entry = (DATA_FRAMES + self.random.below(32) * 4096) | self.random.below(8) | 1;
        entry |= self.random.of(&[0, 0x20, 0x60, 0x60]);
        if self.random.below(8) == 0 {
            entry = 0;
        }
        if self.shape != Shape::Legacy && self.efer & EFER_NXE != 0 && self.random.below(6) == 0 {
            entry |= 1 << 63;
        }
        self.write_entry(LEAVES + leaf * 4096 + page * self.size(), entry);
        self.steps.push((Kind::Invlpg, linear, 0));
        let any = [Kind::Read, Kind::Write, Kind::Execute, Kind::UserRead, Kind::UserWrite, Kind::UserExecute];
        for _ in 0..4 {
            let kind = self.random.of(&any);
            let offset = if matches!(kind, Kind::Execute | Kind::UserExecute) { RETURN } else { 8 * page };
            let value = self.random.next() & NOT_GLOBAL;
            self.steps.push((kind, linear + offset, value));
        }
    }

    fn go_on(&mut self) {
        match self.random.below(20) {
            0..=4 => {
                for _ in 0..=self.random.below(3) {
                    let frame = if self.shape == Shape::Pae { ROOTS } else { 0 };
                    let frame = frame + self.random.below(ARENA_FRAMES - frame);
                    let entry = if self.random.below(6) == 0 { 0 } else { self.entry(frame) };
                    let address = ARENA + frame * 4096 + self.index() * self.size();
                    self.write_entry(address, entry);
                }
                self.steps.push((Kind::Cr3, self.cr3, 0));
                self.accesses(3);
            }
            5..=11 => self.change_leaf(),
            12..=14 => self.accesses(5),
            15 | 16 => {
                self.cr3 = ARENA + self.random.below(ROOTS) * 4096;
                self.steps.push((Kind::Cr3, self.cr3, 0));
            }
            17 => {
                self.cr0 ^= CR0_WP;
                self.steps.push((Kind::Cr0, self.cr0, 0));
                self.accesses(2);
            }
            18 => {
                // Outside of memory all bits are set, which is a valid and global entry of a 32-bit table.
                let last = if self.shape == Shape::Legacy { CR4_SMAP } else { CR4_PGE };
                self.cr4 ^= self.random.of(&[CR4_SMEP, CR4_SMAP, last]);
                self.steps.push((Kind::Cr4, self.cr4, 0));
                self.accesses(2);
            }
            _ => {
                let ac = self.random.below(2) << 18;
                self.steps.push((Kind::Flags, 2 | ac, 0));
                if self.shape != Shape::Legacy && self.random.below(3) == 0 {
                    self.efer ^= EFER_NXE;
                    self.steps.push((Kind::Efer, self.efer & !EFER_LMA, 0));
                    self.steps.push((Kind::Cr3, self.cr3, 0));
                }
            }
        }
    }

    /// Writes the script and tables to a guest.
    fn install(&self, guest: &mut Guest) {
        let bits = if self.shape == Shape::Long { 64 } else { 32 };
        let ram = guest.cpu.wiring.ram.clone();
        for frame in 0..32 {
            ram.write(DATA_FRAMES + frame * 4096 + RETURN, 0xc3u8);
        }
        for (address, value) in &self.tables {
            match self.shape {
                Shape::Legacy => ram.write(*address, *value as u32),
                _ => ram.write(*address, *value),
            };
        }
        for (number, (kind, first, second)) in self.steps.iter().enumerate() {
            let at = SCRIPT + number as u64 * 32;
            ram.write(at, u64::from(*kind as u32));
            ram.write(at + 8, *first);
            ram.write(at + 16, *second);
        }
        for (number, piece) in user_code(bits).iter().enumerate() {
            assert!(piece.len() <= 32 && ram.write_bytes(USER + number as u64 * 32, piece));
        }
        ram.write(SCRIPT - 8, 2u64);
        let user = [0x00cf_fb00_0000_ffffu64, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff];
        for (number, descriptor) in user.iter().enumerate() {
            ram.write(GDT + 32 + number as u64 * 8, *descriptor);
        }
        guest.cpu.arch.gdtr = TableRegister { base: GDT, limit: 55 };
        if bits == 64 {
            ram.write(TSS + 4, STACK);
        } else {
            ram.write(TSS + 4, STACK as u32);
            ram.write(TSS + 8, 0x10u32);
        }
        let mut handlers = Vec::new();
        let mut assembler = CodeAssembler::new(bits).unwrap();
        let interpreter = if bits == 64 { interpreter64 } else { interpreter32 };
        interpreter(&mut assembler, &mut handlers).unwrap();
        let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let block = assembler.assemble_options(CODE, options).unwrap().inner;
        assert!(ram.write_bytes(CODE, &block.code_buffer));
        for (vector, number) in handlers {
            let stub = CODE + u64::from(block.new_instruction_offsets[number as usize]);
            let (selector, width) = if bits == 64 { (0x18, 16) } else { (0x08, 8) };
            let rights = if vector == 0x30 { 0xee00u64 } else { 0x8e00 };
            ram.write(IDT + vector * width, (stub & 0xffff) | selector << 16 | rights << 32 | (stub >> 16) << 48);
        }
        let cpu = &mut guest.cpu;
        cpu.arch.gpr[usize::from(x86::reg::RSI)] = SCRIPT;
        cpu.arch.gpr[usize::from(x86::reg::RDI)] = NOTES;
        cpu.arch.gpr[9] = 2;
    }
}

/// Returns the guest's notes, and all memory that the script may change.
fn run(author: &Author, config: Option<hypervisor::VmConfig>) -> (Vec<u64>, Vec<u64>) {
    let mode = if author.shape == Shape::Long { Mode::Long } else { Mode::Protected };
    let mut guest = Guest::new("icx", config, mode);
    author.install(&mut guest);
    guest.finish();
    let words = |from: u64, to: u64| (from..to).step_by(8).map(|at| guest.word(at)).collect::<Vec<_>>();
    let notes = words(NOTES, NOTES + author.steps.len() as u64 * 32);
    let memory = words(ARENA, KEPT)
        .into_iter()
        .chain(words(DATA_FRAMES, DATA_FRAMES + 32 * 4096))
        .chain(words(STACK - 0x1000, RAM));
    let memory = memory.collect();
    (notes, memory)
}

fn compare(shape: Shape, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let author = Author::new(seed, shape);
        let bare = run(&author, None);
        let faults = bare.0.iter().step_by(4).filter(|vector| **vector == 14).count();
        assert!(faults * 20 > author.steps.len() && faults * 2 < author.steps.len(), "{faults} faults: a dull script");
        for config in configurations() {
            let here = run(&author, Some(config.clone()));
            if let Some(at) = (0..bare.0.len()).find(|at| bare.0[*at] != here.0[*at]) {
                let step = at / 4;
                let (kind, first, second) = author.steps[step];
                panic!(
                    "seed {seed} under {config:?}: step {step}, {} of {first:#x} {second:#x}: {:x?}, not {:x?}",
                    kind as u32,
                    &here.0[step * 4..step * 4 + 3],
                    &bare.0[step * 4..step * 4 + 3],
                );
            }
            if let Some(at) = (0..bare.1.len()).find(|at| bare.1[*at] != here.1[*at]) {
                panic!("seed {seed} under {config:?}: word {at:#x} is {:#x}, not {:#x}", here.1[at], bare.1[at]);
            }
        }
    }
}

#[test]
fn legacy_paging_is_the_same_everywhere() {
    compare(Shape::Legacy, 1..9);
}

#[test]
fn pae_paging_is_the_same_everywhere() {
    compare(Shape::Pae, 1..9);
}

#[test]
fn long_mode_paging_is_the_same_everywhere() {
    compare(Shape::Long, 1..9);
}
