use super::*;
use crate::symbols::btf::tests::Writer;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PGD: u64 = 0x9000;

/// Words of memory; the physical address of a linear one is the same.
#[derive(Default)]
struct Guest {
    words: BTreeMap<u64, u64>,
    root: u64,
}

impl Guest {
    fn put(&mut self, at: u64, value: u64) {
        self.words.insert(at, value);
    }

    fn text(&mut self, at: u64, text: &str) {
        for (number, part) in text.as_bytes().chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            self.put(at + 8 * number as u64, u64::from_le_bytes(bytes));
        }
    }
}

impl Lookup for Guest {
    fn read(&self, linear: u64, out: &mut [u8]) -> bool {
        for (at, byte) in (0u64..).zip(out) {
            let address = linear.wrapping_add(at);
            let word = self.words.get(&(address & !7)).copied().unwrap_or(0);
            *byte = word.to_le_bytes()[(address & 7) as usize];
        }
        linear != 0
    }

    fn physical(&self, linear: u64) -> Option<u64> {
        Some(linear)
    }

    fn root(&self) -> u64 {
        self.root
    }
}

fn layout() -> Option<MappingLayout> {
    let mut w = Writer::default();
    let int = w.add("unsigned long", 1, 0, 8, &[0x40]);
    let [pivots, slots] = [w.array(int, 15), w.array(int, 16)];
    let [few_pivots, few_slots] = [w.array(int, 9), w.array(int, 10)];
    w.structure("maple_range_64", 256, &[("pivot", pivots, 8), ("slot", slots, 128)]);
    w.structure("maple_arange_64", 256, &[("pivot", few_pivots, 8), ("slot", few_slots, 80)]);
    let tree = w.structure("maple_tree", 16, &[("ma_root", int, 8)]);
    w.structure("task_struct", 64, &[("active_mm", int, 32)]);
    w.structure("mm_struct", 64, &[("mm_mt", tree, 0), ("pgd", int, 16)]);
    let vma = [("vm_start", int, 0), ("vm_end", int, 8), ("vm_pgoff", int, 16), ("vm_file", int, 24)];
    w.structure("vm_area_struct", 64, &vma);
    let path = w.structure("path", 16, &[("dentry", int, 8)]);
    w.structure("file", 64, &[("f_path", path, 16), ("f_inode", int, 8)]);
    w.structure("inode", 64, &[("i_size", int, 40)]);
    w.structure("super_block", 64, &[("s_type", int, 32)]);
    w.structure("file_system_type", 64, &[("name", int, 0)]);
    let name = w.structure("qstr", 16, &[("len", int, 4), ("name", int, 8)]);
    w.structure("dentry", 64, &[("d_parent", int, 0), ("d_name", name, 8), ("d_sb", int, 24)]);
    let btf = w.bytes();
    let landmarks = Landmarks { btf: Some((0x1000, 0x1000 + btf.len() as u64)), ..Landmarks::default() };
    MappingLayout::from_btf(&landmarks, |linear, out| {
        out.copy_from_slice(&btf[(linear - 0x1000) as usize..][..out.len()]);
        true
    })
}

/// A task at 0x100, whose process has a file at 0x40_0000 and something else at 0x50_0000.
fn guest() -> Guest {
    let mut guest = Guest { root: PGD, ..Guest::default() };
    guest.put(0x120, 0x200);
    guest.put(0x208, 0x1000 | 3 << 3 | IS_NODE);
    guest.put(0x210, PGD);
    // A node with gaps: all addresses are below its second slot.
    guest.put(0x1008, 0xfff);
    guest.put(0x1010, u64::MAX);
    // Only the root has the mark of a node. Another node has a mark that says that it may have empty slots.
    guest.put(0x1050 + 8, 0x2000 | 1 << 3 | 4);
    // A leaf: nothing, the file, nothing, memory, nothing.
    for (slot, (last, vma)) in
        [(0x3f_ffff, 0), (0x40_2fff, 0x3000), (0x4f_ffff, 0), (0x50_0fff, 0x3100), (0, 0)].into_iter().enumerate()
    {
        guest.put(0x2008 + 8 * slot as u64, last);
        guest.put(0x2080 + 8 * slot as u64, vma);
    }
    for (at, value) in [(0x3000, 0x40_0000), (0x3008, 0x40_3000), (0x3010, 2), (0x3018, 0x4000)] {
        guest.put(at, value);
    }
    for (at, value) in [(0x3100, 0x50_0000), (0x3108, 0x50_1000)] {
        guest.put(at, value);
    }
    for (at, value) in [(0x4018, 0x5000), (0x4008, 0x6000), (0x6028, 0x1234)] {
        guest.put(at, value);
    }
    for (at, value) in [(0x5018, 0x6100), (0x6120, 0x6200), (0x6200, 0x6300)] {
        guest.put(at, value);
    }
    guest.text(0x6300, "virtiofs");
    for (dentry, parent, name) in [(0x5000, 0x5100, "libexample.so.1"), (0x5100, 0x5200, "lib"), (0x5200, 0x5200, "/")]
    {
        guest.put(dentry, parent);
        guest.put(dentry + 8, (name.len() as u64) << 32 | 0x1234);
        guest.put(dentry + 16, dentry + 0x40);
        guest.text(dentry + 0x40, name);
    }
    guest
}

#[test]
fn addresses_are_in_mappings_of_files() {
    let (layout, mut guest) = (layout().expect("is complete"), guest());
    let mm = layout.mm(&guest, 0x100).expect("has a process");
    let file = MappedFile { filesystem: b"virtiofs".to_vec(), path: b"/lib/libexample.so.1".to_vec(), size: 0x1234 };
    let file = Mapping { range: 0x40_0000..0x40_3000, offset: 0x2000, file: Some(file) };
    for address in [0x40_0000, 0x40_2fff] {
        assert_eq!(layout.find(&guest, mm, address).as_ref(), Some(&file));
    }
    let memory = Mapping { range: 0x50_0000..0x50_1000, offset: 0, file: None };
    assert_eq!(layout.find(&guest, mm, 0x50_0010), Some(memory));
    for address in [0, 0xfff, 0x3f_ffff, 0x40_3000, 0x50_1000, u64::MAX] {
        assert_eq!(layout.find(&guest, mm, address), None, "{address:#x}");
    }
    guest.put(0x5200, 0x5000);
    assert_eq!(layout.find(&guest, mm, 0x40_0000), None, "a path without end");
}

#[test]
fn the_tree_of_few_mappings_is_a_leaf() {
    let (layout, mut guest) = (layout().expect("is complete"), guest());
    guest.put(0x208, 0x2000 | 1 << 3 | 4 | IS_NODE);
    assert_eq!(layout.find(&guest, 0x200, 0x50_0010).map(|found| found.range), Some(0x50_0000..0x50_1000));
    guest.put(0x208, 0x3100);
    assert_eq!(layout.find(&guest, 0x200, 0x50_0010).map(|found| found.range), Some(0x50_0000..0x50_1000));
    // An entry that is no address is none.
    guest.put(0x208, 0x3100 | 1);
    assert_eq!(layout.find(&guest, 0x200, 0x50_0010), None);
}

#[test]
fn the_page_tables_tell_if_the_process_is_the_task_s() {
    let (layout, mut guest) = (layout().expect("is complete"), guest());
    guest.root = 0x8000;
    assert_eq!(layout.mm(&guest, 0x100), None);
    guest.put(0x210, 0x8000);
    assert_eq!(layout.mm(&guest, 0x100), Some(0x200));
    guest.root = 0x9000;
    assert_eq!(layout.mm(&guest, 0x100), Some(0x200), "the user's tables with page-table isolation");
    guest.put(0x120, 0);
    assert_eq!(layout.mm(&guest, 0x100), None, "no process yet");
}

proptest! {
    #[test]
    fn no_memory_makes_it_panic(changes in prop::collection::vec((0u64..0x7000, any::<u64>()), 0..60), address: u64) {
        let (layout, mut guest) = (layout().expect("is complete"), guest());
        let places: Vec<u64> = guest.words.keys().copied().collect();
        for (at, value) in changes {
            let value = if value % 3 == 0 { value % 0x7000 } else { value };
            guest.put(places[at as usize % places.len()], value);
        }
        for task in [0x100, address] {
            if let Some(mm) = layout.mm(&guest, task) {
                let _ = (layout.find(&guest, mm, address), layout.find(&guest, mm, 0x40_0000));
            }
        }
    }
}
