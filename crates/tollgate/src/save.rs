//! The ledger of a run: gathered, given symbols, saved.

use anyhow::{Context, Result};
use ledger::symbols::{elf, kallsyms, vmlinux_from_bzimage};
use ledger::{Ledger, Symbol, Symbols};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Kernels move themselves by multiples of this.
const KASLR_STEP: u64 = 0x20_0000;

/// Functions of the kernel in a file (bzImage or ELF, with kallsyms or a table of symbols), at the addresses it runs at. That
/// is known from `lstar`, where the running kernel wants system calls to go. Without symbols, reports show addresses.
pub fn kernel_symbols(kernel: &[u8], lstar: u64) -> Symbols {
    let unpacked = vmlinux_from_bzimage(kernel).ok();
    let image = unpacked.as_deref().unwrap_or(kernel);
    let functions = kallsyms(image, 0).or_else(|_| elf(image, 0)).unwrap_or_default();
    let mut symbols = Symbols::default();
    let slide = slide(&functions, lstar);
    let moved = functions.into_iter().map(|f| Symbol { start: f.start.wrapping_add(slide), ..f });
    symbols.add("", 0, moved.collect());
    symbols
}

/// How far a kernel has moved itself from where it was linked.
fn slide(functions: &[Symbol], lstar: u64) -> u64 {
    let entry = functions.iter().find(|function| function.name == "entry_SYSCALL_64");
    match entry.map(|entry| lstar.wrapping_sub(entry.start)) {
        Some(slide) if slide.is_multiple_of(KASLR_STEP) && slide >> 32 == 0 => slide,
        _ => 0,
    }
}

/// Writes a ledger. It appears under its name when it is complete, or not at all.
pub fn save(ledger: &Ledger, path: &Path) -> Result<()> {
    let unwritable = || format!("the ledger can't be written to {}", path.display());
    // A device or a pipe can't be replaced: it is written to.
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, ledger.to_bytes()).with_context(unwritable);
    }
    let mut name = path.file_name().with_context(unwritable)?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = write_all(&temporary, &ledger.to_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: what is reported is why it could not be written.
        let _ = std::fs::remove_file(&temporary);
    }
    written.with_context(unwritable)
}

fn write_all(path: &PathBuf, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn a_kernel_is_found_where_it_has_moved_to() {
        let functions = [
            Symbol::new(0xffff_ffff_8100_0000, 16, "startup_64"),
            Symbol::new(0xffff_ffff_81c0_0080, 41, "entry_SYSCALL_64"),
        ];
        assert_eq!(slide(&functions, 0xffff_ffff_a3c0_0080), 0x2200_0000);
        assert_eq!(slide(&functions, 0), 0, "it has not begun to");
        assert_eq!(slide(&functions, 0xffff_ffff_a3c0_0081), 0);
        assert_eq!(slide(&functions[..1], 0xffff_ffff_a3c0_0080), 0);
        assert!(kernel_symbols(b"no kernel", 0).is_empty());
    }

    #[test]
    fn a_saved_ledger_is_read_again_and_nothing_else_is_left() {
        let directory = std::env::temp_dir().join(format!("tollgate-save-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("is new");
        let path = directory.join("run.ledger");
        let ledger = sample(1);
        save(&ledger, &path).expect("is writable");
        save(&ledger, &path).expect("may be replaced");
        assert_eq!(crate::table::read_ledger(&path).expect("is readable"), ledger);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
        let error = save(&ledger, &directory.join("absent/run.ledger")).expect_err("there is no such directory");
        assert!(format!("{error:#}").starts_with("the ledger can't be written to "));
        std::fs::remove_dir_all(&directory).expect("is ours");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        assert!(save(&sample(1), Path::new("/dev/full")).is_err());
    }
}
