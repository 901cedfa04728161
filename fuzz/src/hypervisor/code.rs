//! Code made of the input's bytes: pieces that concern the system, with meaningful operands, and plain bytes. Each
//! piece starts at a multiple of [`SLOT`], at which handlers continue.

use super::guest::*;
use arbitrary::{Result, Unstructured};
use hypervisor::paravirt::{MSR_HYPERCALL_PAGE, MSR_STATE_PAGE};

/// Largest number of pieces.
const PIECES: usize = 100;

/// Instructions without operands that matter, or with operands in registers.
const PLAIN: &[&[u8]] = &[
    &[0x0f, 0x06],
    &[0x0f, 0x09],
    &[0x0f, 0x08],
    &[0x0f, 0xa2],
    &[0x0f, 0x31],
    &[0x0f, 0x33],
    &[0xf3, 0x90],
    &[0x0f, 0x01, 0xd0],
    &[0x0f, 0x01, 0xd1],
    &[0x0f, 0x01, 0xf8],
    &[0x0f, 0x01, 0xf9],
    &[0x0f, 0x01, 0xc8],
    &[0x0f, 0x01, 0xc9],
    &[0x0f, 0x05],
    &[0x0f, 0x07],
    &[0x48, 0x0f, 0x07],
    &[0x0f, 0x34],
    &[0x0f, 0x35],
    &[0x0f, 0x0b],
    &[0xcf],
    &[0x48, 0xcf],
    &[0xcb],
    &[0xfa],
    &[0xfb],
    &[0xfb, 0xf4],
    &[0xf4],
    &[0xcc],
    &[0xce],
    &[0xf1],
    &[0x9c],
    &[0x9d],
    &[0x0f, 0x00, 0xd0],
    &[0x0f, 0x00, 0xd8],
    &[0x0f, 0x00, 0xc8],
    &[0x0f, 0x01, 0xe0],
    &[0x0f, 0x01, 0xf0],
    &[0x0f, 0x01, 0x17],
    &[0x0f, 0x01, 0x1f],
    &[0x0f, 0x01, 0x07],
    &[0x0f, 0x01, 0x37],
    &[0x0f, 0x00, 0x17],
    &[0x0f, 0x00, 0x1f],
    &[0x66, 0x0f, 0x38, 0x82, 0x07],
    &[0x8e, 0xd0, 0xfb, 0xf4],
    &[0x8e, 0xd8],
    &[0x8e, 0xe8],
    &[0x0f, 0xb2, 0x27],
    &[0xec],
    &[0xef],
    &[0xed],
    &[0xf3, 0x6c],
    &[0xf3, 0x6f],
    &[0x6d],
    &[0xff, 0x2f],
    &[0xff, 0x1f],
    &[0x0f, 0xae, 0x07],
    &[0x0f, 0xae, 0x0f],
    &[0x0f, 0xc7, 0x0f],
    &[0x0f, 0xc7, 0x37],
    &[0x0f, 0x01, 0xc1],
    &[0x0f, 0x01, 0xd9],
    &[0x0f, 0x01, 0xc4],
    &[0x0f, 0x01, 0xca],
    &[0x0f, 0x01, 0xcb],
    &[0x66, 0xea, 0x00, 0x00, 0x01, 0x00, 0x08, 0x00],
];

/// Instructions on the memory at RDI.
const MEMORY: &[&[u8]] = &[
    &[0x8b, 0x07],
    &[0x89, 0x07],
    &[0x88, 0x07],
    &[0xff, 0x07],
    &[0xf0, 0x0f, 0xb1, 0x0f],
    &[0xf0, 0x0f, 0xc7, 0x0f],
    &[0x87, 0x07],
    &[0xa4],
    &[0xf3, 0xa4],
    &[0xf3, 0xab],
    &[0xf3, 0xa6],
    &[0xff, 0x37],
    &[0x8f, 0x07],
    &[0x0f, 0xab, 0x0f],
    &[0xff, 0xd7],
    &[0xff, 0xe7],
    &[0x0f, 0x01, 0x3f],
    &[0x0f, 0x11, 0x07],
    &[0x48, 0x87, 0x07],
    &[0x0f, 0xc1, 0x47, 0xfe],
];

/// Model-specific registers.
const MSRS: &[u32] = &[
    MSR_HYPERCALL_PAGE,
    MSR_STATE_PAGE,
    0xc000_0080,
    0xc000_0081,
    0xc000_0082,
    0xc000_0084,
    0xc000_0100,
    0xc000_0101,
    0xc000_0102,
    0x10,
    0x1b,
    0x3a,
    0x48,
    0x174,
    0x175,
    0x176,
    0x1a0,
    0x1d9,
    0x277,
    0x2ff,
    0x6e0,
    0x808,
    0xda0,
    0x4b56_4d00,
];

/// Reads a meaningful address, or one near it.
pub fn address(input: &mut Unstructured) -> Result<u64> {
    const USEFUL: [u64; 16] =
        [TABLES, DATA, DATA, STACK, GDT, IDT, TSS, CODE, STATE, HYPERCALLS, RAM, POOL, DEVICE, WINDOW, WINDOW, LOG];
    let (which, at) = input.arbitrary::<(u8, u8)>()?;
    let page = u64::from(which >> 4) << 12;
    Ok(match USEFUL[usize::from(which & 15)] {
        TABLES => TABLES + u64::from(at) * 8 + (page & 0x7000),
        paged @ (DATA | WINDOW | RAM | POOL) => paged + page + u64::from(at) * 0x11,
        near => near.wrapping_add(u64::from(at) * 4).wrapping_sub(if which & 0x80 != 0 { 0x3fe } else { 0 }),
    })
}

/// Reads a value for a page-table entry.
pub fn entry(input: &mut Unstructured) -> Result<u64> {
    let (frame, flags) = input.arbitrary::<(u8, u8)>()?;
    let base = match frame {
        0..=7 => TABLES + (u64::from(frame) << 12),
        8..=127 => DATA + (u64::from(frame & 0x3f) << 12),
        128..=135 => STATE + (u64::from(frame & 1) << 12),
        136..=143 => u64::from(frame & 1) << 21,
        144..=151 => RAM - 0x2000 + (u64::from(frame & 7) << 12),
        152..=159 => POOL + (u64::from(frame & 7) << 12),
        160..=167 => DEVICE,
        168..=175 => 1 << (32 + 2 * u64::from(frame & 7)),
        176..=183 => CODE + (u64::from(frame & 1) << 12),
        184..=191 => [IDT, GDT, TSS, LOG, HANDLERS, 0, STACK, STACK - 0x1000][usize::from(frame & 7)],
        192..=207 => 1 << 63 | DATA,
        208..=223 => TABLES | 1 << (8 + u64::from(frame & 7)),
        _ => return input.arbitrary(),
    };
    // Entries are mostly present, and seldom have the caching bits.
    let flags = u64::from(flags);
    Ok(base | flags & 0xe6 | u64::from(flags & 0x18 != 0x18) | flags >> 7 << 8)
}

/// Reads the address of a page-table entry.
pub fn entry_address(input: &mut Unstructured) -> Result<u64> {
    let (table, index) = input.arbitrary::<(u8, u8)>()?;
    let index = if table & 0x80 != 0 { u64::from(index) * 2 } else { u64::from(index & 15) };
    Ok(TABLES + ((u64::from(table) % TABLE_PAGES) << 12) + 8 * index)
}

/// The code under construction.
struct Author<'a, 'b> {
    input: &'a mut Unstructured<'b>,
    bits: u32,
    bytes: Vec<u8>,
}

impl Author<'_, '_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds an instruction with the prefix that gives it 32-bit operands in 16-bit code.
    fn wide(&mut self, bytes: &[u8]) {
        if self.bits == 16 {
            self.bytes.push(0x66);
        }
        self.put(bytes);
    }

    /// Adds a MOV of 32 bits to a register.
    fn set(&mut self, register: u8, value: u64) {
        self.wide(&[0xb8 | register & 7]);
        self.put(&(value as u32).to_le_bytes());
    }

    /// Adds an instruction with RDI as its address.
    fn through_rdi(&mut self, bytes: &[u8]) {
        if self.bits == 16 {
            self.bytes.push(0x67);
        }
        self.wide(bytes);
    }

    /// Adds a MOV of 32 bits to `[RDI + offset]`.
    fn store(&mut self, offset: u8, value: u32) {
        self.through_rdi(&[0xc7, 0x47, offset]);
        self.put(&value.to_le_bytes());
    }

    /// Adds a few steps of one kind.
    fn piece(&mut self) -> Result<()> {
        let kind = self.input.arbitrary::<u8>()?;
        match kind {
            0..=15 => {
                let value = address(self.input)?;
                self.set(kind, value);
            }
            16..=23 => {
                let value = self.input.arbitrary::<u32>()?;
                self.set(kind, u64::from(value));
            }
            24..=31 => {
                // This is a MOV of 64 bits, for addresses that are not canonical.
                let value = self.input.arbitrary::<u64>()?;
                self.put(&[0x48]);
                self.set(kind, value);
                self.put(&((value >> 32) as u32).to_le_bytes());
            }
            32..=55 => self.control_register()?,
            56..=79 => {
                let at = entry_address(self.input)?;
                let value = entry(self.input)?;
                self.set(7, at);
                self.store(0, value as u32);
                if kind & 3 != 0 {
                    self.store(4, (value >> 32) as u32);
                }
            }
            80..=87 => {
                let at = address(self.input)?;
                self.set(7, at);
                self.through_rdi(&[0x0f, 0x01, 0x3f]);
            }
            88..=119 => {
                let (which, at) = (self.input.arbitrary::<u8>()?, address(self.input)?);
                self.set(7, at);
                if which & 0x80 != 0 {
                    self.set(1, u64::from(which >> 2 & 15));
                }
                self.through_rdi(MEMORY[usize::from(which & 0x7f) % MEMORY.len()]);
            }
            120..=139 => self.msr(kind & 1 != 0)?,
            140..=149 => {
                let number = self.input.arbitrary::<u8>()?;
                let argument = address(self.input)?;
                self.set(0, u64::from(number & 7));
                self.set(3, argument);
                match number >> 4 & 3 {
                    0 => self.put(&[0x0f, 0x01, 0xd9]),
                    1 => {
                        self.set(7, HYPERCALLS);
                        self.wide(&[0xff, 0xd7]);
                    }
                    _ => self.put(&[0x0f, 0x01, 0xc1]),
                }
            }
            150..=155 => {
                // These write the state page: a field, or the root of a CR3 cache entry.
                let (field, value) = self.input.arbitrary::<(u8, u32)>()?;
                self.set(7, STATE + u64::from(field % 24) * 4);
                if field & 0x80 != 0 {
                    self.through_rdi(&[0x8b, 0x07]);
                    self.put(&[0x0f, 0x22, 0xd8]);
                } else {
                    self.store(0, value);
                }
            }
            156..=165 => {
                let (port, operation) = self.input.arbitrary::<(u16, u8)>()?;
                self.set(2, u64::from(port));
                self.put(&[[0xec, 0xed, 0xee, 0xef, 0x6c, 0x6d, 0x6e, 0x6f][usize::from(operation & 7)]]);
            }
            166..=171 => {
                let vector = self.input.arbitrary::<u8>()?;
                self.put(&[0xcd, vector]);
            }
            172..=177 => {
                // The flags are TF, IF, AC and others.
                let flags = u32::from(self.input.arbitrary::<u8>()?) << 8;
                self.wide(&[0x9c]);
                self.put(if self.bits == 16 { &[0x67, 0x66] } else { &[] });
                self.put(&[0x81, 0x0c, 0x24]);
                self.put(&(flags & 0x0004_7fff).to_le_bytes());
                self.wide(&[0x9d]);
            }
            178..=183 => {
                // This is a far return to the next slot.
                let selector = self.input.arbitrary::<u8>()?;
                let next = (self.bytes.len() / SLOT + 1) * SLOT;
                let target = if self.bits == 16 { next as u64 } else { CODE + next as u64 };
                self.put(&[0x6a, selector & 0x7b]);
                self.wide(&[0x68]);
                self.put(&(target as u32).to_le_bytes());
                self.put(match self.bits {
                    64 => &[0x48, 0xcb],
                    _ => &[0xcb],
                });
            }
            184..=189 => {
                let (which, value) = (self.input.arbitrary::<u8>()?, address(self.input)?);
                self.set(0, if which & 7 == 7 { value & 0xffff | 0x155 } else { value });
                self.put(&[0x0f, 0x23, 0xc0 | (which & 7) << 3]);
            }
            190..=197 => {
                // This jumps a few slots back, a few times.
                let back = usize::from(self.input.arbitrary::<u8>()? & 3) + 1;
                self.set(7, DATA + 0x3f000);
                self.through_rdi(&[0xff, 0x0f]);
                let target = (self.bytes.len() / SLOT).saturating_sub(back) * SLOT;
                let from = self.bytes.len() + 2;
                if let Some(offset) = from.checked_sub(target).filter(|offset| *offset <= 128) {
                    self.put(&[0x75, (offset as u8).wrapping_neg()]);
                }
            }
            198..=229 => {
                let which = self.input.arbitrary::<u8>()?;
                self.put(PLAIN[usize::from(which) % PLAIN.len()]);
            }
            _ => {
                let count = usize::from(kind & 15) + 1;
                let bytes = self.input.bytes(count.min(self.input.len()))?.to_vec();
                self.put(&bytes);
            }
        }
        Ok(())
    }

    fn control_register(&mut self) -> Result<()> {
        let (which, value) = self.input.arbitrary::<(u8, u8)>()?;
        match which & 7 {
            // This changes one bit of CR0 or CR4.
            0..=3 => {
                let register = if which & 1 == 0 { 0xc0 } else { 0xe0 };
                const USUAL: [u8; 16] = [16, 31, 16, 3, 4, 5, 7, 0, 1, 18, 20, 17, 11, 21, 30, 29];
                let bit = if value & 0x80 == 0 { USUAL[usize::from(value & 15)] } else { value & 31 };
                self.put(&[0x0f, 0x20, register]);
                self.wide(&[0x35]);
                self.put(&(1u32 << bit).to_le_bytes());
                self.put(&[0x0f, 0x22, register]);
            }
            4 => self.put(&[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]),
            5 => {
                self.set(0, (TABLES + ((u64::from(value) % TABLE_PAGES) << 12)) | u64::from(value & 0x18));
                self.put(&[0x0f, 0x22, 0xd8]);
            }
            6 => self.put(&[0x0f, 0x20, 0xc0 | value & 0x3f]),
            _ => self.put(&[0x0f, 0x22, 0xc0 | value & 0x3f]),
        }
        Ok(())
    }

    fn msr(&mut self, write: bool) -> Result<()> {
        let which = self.input.arbitrary::<u8>()?;
        let index = match which {
            255 => self.input.arbitrary()?,
            _ => MSRS[usize::from(which) % MSRS.len()],
        };
        let value = match index {
            MSR_HYPERCALL_PAGE if which < 128 => HYPERCALLS | 1,
            MSR_STATE_PAGE if which < 128 => STATE | 1,
            0xc000_0080 => [0x500, 0xd00, 0x900, 0x100, 0x501, 0xd01, 0, 1][usize::from(which >> 5)],
            _ if write => address(self.input)?,
            _ => 0,
        };
        self.set(1, u64::from(index));
        if !write {
            self.put(&[0x0f, 0x32]);
            return Ok(());
        }
        self.set(0, value);
        self.put(&[0x31, 0xd2, 0x0f, 0x30]);
        Ok(())
    }
}

/// Returns the guest's code, with CLI and HLT at its end.
pub fn code(input: &mut Unstructured, bits: u32) -> Vec<u8> {
    // The first fetch may leave RF set, as on hardware, so an interrupt must not be the first to see it.
    let mut author = Author { input, bits, bytes: vec![0x90; SLOT] };
    for _ in 0..PIECES {
        if author.input.is_empty() || author.piece().is_err() {
            break;
        }
        while !author.bytes.len().is_multiple_of(SLOT) {
            author.bytes.push(0x90);
        }
    }
    author.bytes.extend([0xfa, 0xf4, 0xeb, 0xfc]);
    author.bytes.resize(author.bytes.len() + SLOT, 0xf4);
    author.bytes
}
