//! State of the processor at the entry of an image.

use super::LoadError;
use super::bytes::put;
use super::space::LoadSpace;
use x86::control::*;
use x86::page::{self, PAGE};
use x86::{descriptor, flags, rights};

/// Mode in which the processor enters an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 32-bit protected mode, paging off.
    Protected32,
    /// 64-bit mode with the first 4 GiB mapped one to one.
    Long64,
}

/// A segment register with its hidden part; rights in the format of a VMCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntrySegment {
    /// Visible selector.
    pub selector: u16,
    /// Base.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u32,
    /// Access rights.
    pub rights: u32,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryTable {
    /// Linear base.
    pub base: u64,
    /// Limit.
    pub limit: u16,
}

/// State of the first processor at the entry of the image. Registers that are not listed have their reset values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Mode that results from the control registers and CS below.
    pub mode: Mode,
    /// Entry point.
    pub rip: u64,
    /// RAX: the multiboot magic, or 0.
    pub rax: u64,
    /// RBX: the multiboot or PVH information, or 0.
    pub rbx: u64,
    /// RSI: the zero page of Linux, or 0.
    pub rsi: u64,
    /// RFLAGS.
    pub rflags: u64,
    /// CR0.
    pub cr0: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// GDTR.
    pub gdt: EntryTable,
    /// IDTR.
    pub idt: EntryTable,
    /// CS.
    pub cs: EntrySegment,
    /// DS, ES, FS, GS and SS.
    pub data: EntrySegment,
    /// TR.
    pub tr: EntrySegment,
}

/// Selectors that Linux's boot protocol prescribes.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
const BOOT_TSS: u16 = 0x20;

/// Descriptors with the accessed bit set, so that the processor need not write to the table.
const CODE32: u64 = 0x00cf_9b00_0000_ffff;
const CODE64: u64 = 0x00af_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;
const TSS: u64 = 0x0000_8b00_0000_0067;

/// Accessed, readable code or writable data.
const RIGHTS: u32 = rights::ACCESSED | rights::RW | rights::S | rights::P | rights::G;
const RIGHTS_CODE32: u32 = RIGHTS | rights::CODE | rights::DB;
const RIGHTS_CODE64: u32 = RIGHTS | rights::CODE | rights::L;
const RIGHTS_DATA: u32 = RIGHTS | rights::DB;
const RIGHTS_TSS: u32 = (descriptor::TSS32 | descriptor::BUSY) as u32 | rights::P;

/// Creates the entry state for flat 32-bit protected mode at `eip`.
pub(super) fn protected32(space: &mut LoadSpace, eip: u32) -> Result<Entry, LoadError> {
    let flat = |selector, rights| EntrySegment { selector, base: 0, limit: u32::MAX, rights };
    Ok(Entry {
        mode: Mode::Protected32,
        rip: u64::from(eip),
        rax: 0,
        rbx: 0,
        rsi: 0,
        rflags: flags::FIXED,
        cr0: CR0_PE | CR0_ET,
        cr3: 0,
        cr4: 0,
        efer: 0,
        gdt: place_gdt(space, CODE32)?,
        idt: EntryTable::default(),
        cs: flat(BOOT_CS, RIGHTS_CODE32),
        data: flat(BOOT_DS, RIGHTS_DATA),
        tr: EntrySegment { selector: BOOT_TSS, base: 0, limit: 0x67, rights: RIGHTS_TSS },
    })
}

/// Creates the entry state for 64-bit mode at `rip`, with the first 4 GiB mapped one to one by 2 MiB pages.
pub(super) fn long64(space: &mut LoadSpace, rip: u64) -> Result<Entry, LoadError> {
    let cr3 = place_identity_map(space)?;
    let flat = |selector, rights| EntrySegment { selector, base: 0, limit: u32::MAX, rights };
    Ok(Entry {
        mode: Mode::Long64,
        rip,
        rax: 0,
        rbx: 0,
        rsi: 0,
        rflags: flags::FIXED,
        cr0: CR0_PE | CR0_ET | CR0_PG,
        cr3,
        cr4: CR4_PAE,
        efer: EFER_LME | EFER_LMA,
        gdt: place_gdt(space, CODE64)?,
        idt: EntryTable::default(),
        cs: flat(BOOT_CS, RIGHTS_CODE64),
        data: flat(BOOT_DS, RIGHTS_DATA),
        tr: EntrySegment { selector: BOOT_TSS, base: 0, limit: 0x67, rights: RIGHTS_TSS },
    })
}

fn place_gdt(space: &mut LoadSpace, code: u64) -> Result<EntryTable, LoadError> {
    // In 64-bit mode the last quadword is the upper half of the TSS descriptor.
    let descriptors = [0, CODE32, code, DATA, TSS, 0];
    let bytes: Vec<u8> = descriptors.iter().flat_map(|d| d.to_le_bytes()).collect();
    let base = space.place_low(&bytes, 8)?;
    Ok(EntryTable { base, limit: bytes.len() as u16 - 1 })
}

fn place_identity_map(space: &mut LoadSpace) -> Result<u64, LoadError> {
    const TABLE: u64 = page::P | page::RW;
    const LARGE_PAGE: u64 = TABLE | page::PS;
    const GIGABYTES: u64 = 4;
    let root = space.low((2 + GIGABYTES) * PAGE, PAGE)?;
    let mut block = vec![0; ((2 + GIGABYTES) * PAGE) as usize];
    put(&mut block, 0, &((root + PAGE) | TABLE).to_le_bytes());
    for gigabyte in 0..GIGABYTES {
        let directory = root + (2 + gigabyte) * PAGE;
        put(&mut block, (PAGE + 8 * gigabyte) as usize, &(directory | TABLE).to_le_bytes());
    }
    for (index, slot) in block[2 * PAGE as usize..].chunks_exact_mut(8).enumerate() {
        slot.copy_from_slice(&(((index as u64) << page::SHIFT_2M) | LARGE_PAGE).to_le_bytes());
    }
    space.fill(root, &block, "page tables")?;
    Ok(root)
}
