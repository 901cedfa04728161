//! ELF images with a PVH entry: 32-bit protected mode, with the address of a `hvm_start_info` in EBX (Xen's
//! `public/arch-x86/hvm/start_info.h`).

use super::bytes::put;
use super::elf::Elf;
use super::entry::{Entry, protected32};
use super::space::LoadSpace;
use super::{LoadError, Options};

const MAGIC: u32 = 0x336e_c578;
const VERSION: u32 = 1;
const START_INFO_LEN: usize = 56;
const MODULE_LEN: usize = 32;
const MEMORY_ENTRY_LEN: usize = 24;

pub(super) fn load(space: &mut LoadSpace, file: &Elf, entry: u64, options: &Options) -> Result<Entry, LoadError> {
    file.place(space)?;
    let entry = file.physical_entry(entry)?;
    let mut modules = Vec::new();
    for module in options.modules {
        let start = space.initrd_high(&module.bytes, space.ram.low_end())?;
        modules.push((start, module.bytes.len() as u64, &module.cmdline));
    }
    let map = space.ram.e820();
    let modules_at = START_INFO_LEN;
    let map_at = modules_at + MODULE_LEN * modules.len();
    let cmdline_at = map_at + MEMORY_ENTRY_LEN * map.len();
    let texts_at = cmdline_at + options.cmdline.len() + 1;
    let texts: usize = options.modules.iter().map(|module| module.cmdline.len() + 1).sum();
    let mut block = vec![0; texts_at + texts];
    let base = space.low(block.len() as u64, 16)?;
    let address = |offset: usize| (base + offset as u64).to_le_bytes();

    put(&mut block, 0, &MAGIC.to_le_bytes());
    put(&mut block, 4, &VERSION.to_le_bytes());
    if !modules.is_empty() {
        put(&mut block, 12, &(modules.len() as u32).to_le_bytes());
        put(&mut block, 16, &address(modules_at));
    }
    let mut text_at = texts_at;
    for (index, (start, len, text)) in modules.into_iter().enumerate() {
        let slot = modules_at + MODULE_LEN * index;
        put(&mut block, slot, &start.to_le_bytes());
        put(&mut block, slot + 8, &len.to_le_bytes());
        put(&mut block, slot + 16, &address(text_at));
        put(&mut block, text_at, text.as_bytes());
        text_at += text.len() + 1;
    }
    put(&mut block, 24, &address(cmdline_at));
    put(&mut block, 32, &options.rsdp.unwrap_or(0).to_le_bytes());
    put(&mut block, 40, &address(map_at));
    put(&mut block, 48, &(map.len() as u32).to_le_bytes());
    for (index, entry) in map.iter().enumerate() {
        let slot = map_at + MEMORY_ENTRY_LEN * index;
        put(&mut block, slot, &entry.start.to_le_bytes());
        put(&mut block, slot + 8, &entry.len.to_le_bytes());
        put(&mut block, slot + 16, &(entry.kind as u32).to_le_bytes());
    }
    put(&mut block, cmdline_at, options.cmdline.as_bytes());
    space.fill(base, &block, "PVH start info")?;
    Ok(Entry { rbx: base, ..protected32(space, entry)? })
}
