//! The mappings of a Linux process: its VMAs and their files, read from guest memory.
//!
//! The layout of the kernel's structures comes from its BTF. Kernels before Linux 6.1 have no maple tree of VMAs, and their
//! mappings are not read. The memory may hold any values: every size and every search is bounded.

use super::btf::{Btf, TypeId};
use super::kallsyms::Landmarks;
use std::ops::Range;
use x86::page::PAGE;

/// Bytes of a maple tree's node; its address is a multiple.
const NODE: usize = 256;
/// Maximum depth of the tree.
const DEEPEST: usize = 16;
/// Maximum number of directories above a file, and maximum length of a name (NAME_MAX).
const MOST_DIRECTORIES: usize = 64;
const LONGEST_NAME: u64 = 255;
/// Maximum length of the name of a kind of file systems.
const LONGEST_TYPE: u64 = 32;
/// Low bits of an entry of the kernel's arrays and trees, and their value if a root is a node.
const MARKS: u64 = 3;
const IS_NODE: u64 = 2;
/// Bits of a node's address that hold its type, and all bits that are no part of the address.
const NODE_TYPE_SHIFT: u32 = 3;
const NODE_TYPE: u64 = 0xf;
const NODE_MARKS: u64 = 0xff;
/// Distance from the root of the kernel's page tables to that of the user's with page-table isolation (KPTI).
const ISOLATED: u64 = PAGE;

/// Access to guest memory through the kernel's page tables.
pub trait Lookup {
    /// Reads linear memory. Returns false unless all bytes were read.
    fn read(&self, linear: u64, out: &mut [u8]) -> bool;

    /// Returns the physical address of a linear address.
    fn physical(&self, linear: u64) -> Option<u64>;

    /// Returns the physical address of the root of the page tables in use.
    fn root(&self) -> u64;

    /// Reads a word.
    fn word(&self, linear: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(linear, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

/// Offsets of a node's arrays, and the number of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    pivots: usize,
    slots: usize,
    count: usize,
}

impl Node {
    fn of(btf: &Btf, name: &str) -> Option<Self> {
        let node = btf.structure(name)?;
        let [pivot, slot] = [btf.field(node, "pivot")?, btf.field(node, "slot")?];
        let count = btf.array(slot.of)?.1 as usize;
        let [pivots, slots] = [pivot.offset as usize, slot.offset as usize];
        let fits = |from: usize, count: usize| from.checked_add(8 * count).is_some_and(|end| end <= NODE);
        (count > 1 && count < NODE && fits(pivots, count - 1) && fits(slots, count)).then_some(Self {
            pivots,
            slots,
            count,
        })
    }
}

/// Types of a maple tree's nodes. Only a leaf's entries are VMAs.
const LEAF: u64 = 1;

/// Offsets of the fields that lead from a task to its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingLayout {
    task_mm: u64,
    mm_root: u64,
    mm_pgd: u64,
    vma_start: u64,
    vma_end: u64,
    vma_offset: u64,
    vma_file: u64,
    file_dentry: u64,
    file_inode: u64,
    inode_size: u64,
    dentry_parent: u64,
    dentry_len: u64,
    dentry_name: u64,
    dentry_superblock: u64,
    superblock_type: u64,
    type_name: u64,
    /// By the type of a node: leaf, range and range with gaps.
    nodes: [Node; 3],
}

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses.
    pub range: Range<u64>,
    /// The offset in the file of the first address.
    pub offset: u64,
    /// The mapped file. `None` for a mapping without a file.
    pub file: Option<MappedFile>,
}

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// The kind of the file system, as `virtiofs`.
    pub filesystem: Vec<u8>,
    /// The path of the file in its file system, with a slash in front of each name.
    pub path: Vec<u8>,
    /// The size of the file in bytes.
    pub size: u64,
}

impl MappingLayout {
    /// Returns the layout by the kernel's BTF. `read` reads linear memory: all of the bytes, or it returns `false`.
    pub fn from_btf(landmarks: &Landmarks, read: impl Fn(u64, &mut [u8]) -> bool) -> Option<Self> {
        let bytes = landmarks.btf_bytes(read)?;
        let btf = Btf::parse(&bytes)?;
        let within = |of: TypeId, names: &[&str]| {
            names.iter().try_fold((0u64, of), |(at, of), name| {
                let field = btf.field(of, name)?;
                Some((at.checked_add(field.offset)?, field.of))
            })
        };
        let at = |structure: &str, names: &[&str]| Some(within(btf.structure(structure)?, names)?.0);
        let leaf = Node::of(&btf, "maple_range_64")?;
        Some(Self {
            // Unlike `mm`, this stays while the process ends.
            task_mm: at("task_struct", &["active_mm"])?,
            mm_root: at("mm_struct", &["mm_mt", "ma_root"])?,
            mm_pgd: at("mm_struct", &["pgd"])?,
            vma_start: at("vm_area_struct", &["vm_start"])?,
            vma_end: at("vm_area_struct", &["vm_end"])?,
            vma_offset: at("vm_area_struct", &["vm_pgoff"])?,
            vma_file: at("vm_area_struct", &["vm_file"])?,
            file_dentry: at("file", &["f_path", "dentry"])?,
            file_inode: at("file", &["f_inode"])?,
            inode_size: at("inode", &["i_size"])?,
            dentry_parent: at("dentry", &["d_parent"])?,
            dentry_len: at("dentry", &["d_name", "len"])?,
            dentry_name: at("dentry", &["d_name", "name"])?,
            dentry_superblock: at("dentry", &["d_sb"])?,
            superblock_type: at("super_block", &["s_type"])?,
            type_name: at("file_system_type", &["name"])?,
            nodes: [leaf, leaf, Node::of(&btf, "maple_arange_64")?],
        })
    }

    /// Returns the address of a task's `struct mm_struct`, if the page tables in use are those of that process.
    pub fn mm(&self, memory: &impl Lookup, task: u64) -> Option<u64> {
        let mm = memory.word(task.wrapping_add(self.task_mm)).filter(|mm| *mm != 0)?;
        let tables = memory.physical(memory.word(mm.wrapping_add(self.mm_pgd))?)?;
        let root = memory.root();
        (tables == root || tables == root & !ISOLATED).then_some(mm)
    }

    /// Returns the mapping that an address of a process is in.
    pub fn find(&self, memory: &impl Lookup, mm: u64, address: u64) -> Option<Mapping> {
        let vma = self.vma(memory, mm, address)?;
        let field = |at: u64| memory.word(vma.wrapping_add(at));
        let range = field(self.vma_start)?..field(self.vma_end)?;
        if !range.contains(&address) {
            return None;
        }
        let offset = field(self.vma_offset)?.checked_mul(PAGE)?;
        let file = match field(self.vma_file)? {
            0 => None,
            file => Some(self.file(memory, file)?),
        };
        Some(Mapping { range, offset, file })
    }

    /// Returns the VMA in whose part of the tree an address is.
    fn vma(&self, memory: &impl Lookup, mm: u64, address: u64) -> Option<u64> {
        let is_vma = |entry: &u64| *entry != 0 && *entry & MARKS == 0;
        let mut entry = memory.word(mm.wrapping_add(self.mm_root))?;
        if entry & MARKS != IS_NODE {
            // The tree of a single VMA from address 0 on has no node.
            return Some(entry).filter(is_vma);
        }
        for _ in 0..DEEPEST {
            let kind = entry >> NODE_TYPE_SHIFT & NODE_TYPE;
            let node = self.nodes.get(kind.checked_sub(LEAF)? as usize)?;
            let mut bytes = [0; NODE];
            if !memory.read(entry & !NODE_MARKS, &mut bytes) {
                return None;
            }
            let word = |at: usize| {
                let word = bytes.get(at..)?.first_chunk()?;
                Some(u64::from_le_bytes(*word))
            };
            // A pivot is the last address of its slot. A pivot of 0 behind the first one ends the node.
            let is_last = |slot: &usize| {
                let pivot = word(node.pivots + 8 * slot).unwrap_or(0);
                pivot >= address || (pivot == 0 && *slot != 0)
            };
            let slot = (0..node.count - 1).find(is_last).unwrap_or(node.count - 1);
            entry = word(node.slots + 8 * slot)?;
            if kind == LEAF {
                return Some(entry).filter(is_vma);
            }
        }
        None
    }

    /// Returns a file.
    fn file(&self, memory: &impl Lookup, file: u64) -> Option<MappedFile> {
        let field = |of: u64, at: u64| memory.word(of.wrapping_add(at));
        let dentry = field(file, self.file_dentry)?;
        let kind = field(field(dentry, self.dentry_superblock)?, self.superblock_type)?;
        Some(MappedFile {
            filesystem: text(memory, field(kind, self.type_name)?)?,
            path: self.path(memory, dentry)?,
            size: field(field(file, self.file_inode)?, self.inode_size)?,
        })
    }

    /// Returns the path of a directory's entry.
    fn path(&self, memory: &impl Lookup, mut dentry: u64) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        while names.len() <= MOST_DIRECTORIES {
            let field = |at: u64| memory.word(dentry.wrapping_add(at));
            let parent = field(self.dentry_parent)?;
            if parent == dentry {
                let path = names.iter().rev().flat_map(|name| [&b"/"[..], name]);
                return Some(path.collect::<Vec<_>>().concat());
            }
            let len = (field(self.dentry_len)? & 0xffff_ffff).min(LONGEST_NAME);
            let mut name = vec![0; len as usize];
            if !memory.read(field(self.dentry_name)?, &mut name) {
                return None;
            }
            names.push(name);
            dentry = parent;
        }
        None
    }
}

/// Reads a short text that ends with a zero.
fn text(memory: &impl Lookup, at: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for offset in 0..LONGEST_TYPE {
        let mut byte = [0];
        if !memory.read(at.wrapping_add(offset), &mut byte) {
            return None;
        }
        if byte == [0] {
            return Some(text);
        }
        text.push(byte[0]);
    }
    None
}

#[cfg(test)]
mod tests;
