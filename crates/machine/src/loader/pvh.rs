//! ELF images with a PVH entry: 32-bit protected mode, EBX at a `hvm_start_info` (Xen's
//! `public/arch-x86/hvm/start_info.h`).

use super::bytes::put;
use super::elf::Elf;
use super::entry::{Entry, protected32};
use super::space::Space;
use super::{LoadError, Options};

const MAGIC: u32 = 0x336e_c578;
const VERSION: u32 = 1;
const START_INFO_LEN: usize = 56;
const MODULE_LEN: usize = 32;
const MEMORY_ENTRY_LEN: usize = 24;

pub(super) fn load(space: &mut Space, file: &Elf, entry: u32, options: &Options) -> Result<Entry, LoadError> {
    file.place(space)?;
    file.checked_entry(u64::from(entry))?;
    let module = match options.initrd {
        Some(initrd) => Some((space.initrd_high(initrd, space.ram.low_end())?, initrd.len() as u64)),
        None => None,
    };
    let map = space.ram.e820();
    let modules_at = START_INFO_LEN;
    let map_at = modules_at + MODULE_LEN * usize::from(module.is_some());
    let cmdline_at = map_at + MEMORY_ENTRY_LEN * map.len();
    let name_at = cmdline_at + options.cmdline.len() + 1;
    let mut block = vec![0; name_at + options.initrd_name.len() + 1];
    let base = space.low(block.len() as u64, 16)?;
    let address = |offset: usize| (base + offset as u64).to_le_bytes();

    put(&mut block, 0, &MAGIC.to_le_bytes());
    put(&mut block, 4, &VERSION.to_le_bytes());
    if let Some((start, len)) = module {
        put(&mut block, 12, &1u32.to_le_bytes());
        put(&mut block, 16, &address(modules_at));
        put(&mut block, modules_at, &start.to_le_bytes());
        put(&mut block, modules_at + 8, &len.to_le_bytes());
        put(&mut block, modules_at + 16, &address(name_at));
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
    put(&mut block, name_at, options.initrd_name.as_bytes());
    space.fill(base, &block, "PVH start info")?;
    Ok(Entry { rbx: base, ..protected32(space, entry)? })
}
