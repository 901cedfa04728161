use super::*;
use guestfs::Packed;
use std::path::Path;

fn file(filesystem: &str, path: &str, size: u64) -> MappedFile {
    MappedFile { filesystem: filesystem.into(), path: path.into(), size }
}

/// A function that stays one, however the rest is compiled.
#[inline(never)]
fn a_function_of_its_own(number: u64) -> u64 {
    std::hint::black_box(number) ^ 0x5eed
}

/// Returns the programs of a tree with this program and a text, and this program's size.
fn programs() -> (Programs, u64) {
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut files = Packed::new();
    files.put_bytes(Path::new("/usr/bin/program"), 0o755, &own).unwrap();
    files.put_bytes(Path::new("/etc/text"), 0o644, b"text").unwrap();
    files.put_link(Path::new("/bin"), b"usr/bin").unwrap();
    let mut shared = Packed::new();
    shared.put_bytes(Path::new("/program"), 0o755, &own).unwrap();
    let trees: Vec<NamedTree> = vec![("root".to_owned(), Box::new(files)), ("share0".to_owned(), Box::new(shared))];
    (Programs::new(trees), own.len() as u64)
}

#[test]
fn a_mapped_file_is_found_in_the_trees_of_the_guest() {
    let (mut programs, size) = programs();
    let mut name = |kind, path, size| String::from_utf8(programs.name(&file(kind, path, size))).unwrap();
    // The same file: of the overlay, of the file system below it, and of the initial RAM disk.
    for (kind, path) in
        [("overlay", "/usr/bin/program"), ("virtiofs", "/root/usr/bin/program"), ("rootfs", "/payload/usr/bin/program")]
    {
        assert_eq!(name(kind, path, size), "root/usr/bin/program");
    }
    assert_eq!(name("virtiofs", "/share0/program", size), "share0/program");
    // Files that the guest has changed or made, a link, names that lead elsewhere, and no name at all.
    assert_eq!(name("overlay", "/usr/bin/program", size + 1), "?/program");
    for (kind, path) in [
        ("tmpfs", "/usr/bin/program"),
        ("overlay", "/tmp/program"),
        ("overlay", "/bin/program"),
        ("overlay", "/usr/../usr/bin/program"),
        ("virtiofs", "/share1/program"),
        ("rootfs", "/usr/bin/program"),
    ] {
        assert_eq!(name(kind, path, size), "?/program", "{kind} {path}");
    }
    for path in ["", "/", "///"] {
        for kind in ["overlay", "virtiofs", "rootfs", ""] {
            assert_eq!(name(kind, path, 0), "?/");
        }
    }
    assert_eq!(name("virtiofs", "/root", 0), "?/root");
}

#[test]
fn functions_of_programs_have_names() {
    assert_eq!(a_function_of_its_own(0), 0x5eed);
    let (mut programs, size) = programs();
    let mut recorder = Recorder::default();
    let program = programs.number(&recorder, file("overlay", "/usr/bin/program", size)).unwrap();
    let text = programs.number(&recorder, file("overlay", "/etc/text", 4)).unwrap();
    let unknown = programs.number(&recorder, file("tmpfs", "/lib/libunknown.so.1", 9)).unwrap();
    let wanted = "a_function_of_its_own";
    let functions = programs.program(&recorder, program).functions().to_vec();
    let function = functions.iter().find(|function| function.name.contains(wanted)).unwrap();
    assert!(programs.row(&recorder, program, function.start).is_some());
    assert!(programs.row(&recorder, text, 0).is_none() && programs.row(&recorder, unknown, 0).is_none());
    let places = [(program, function.start + 1), (text, 2), (unknown, 0x1234)];
    let places = places.map(|(file, offset)| in_file(file, offset).unwrap());
    recorder.stack(&places, true);
    let mut symbols = Symbols::default();
    programs.add_to(&recorder, &mut symbols);
    let found = places.map(|place| symbols.find(AddressSpace::of(0x1000), place).unwrap());
    assert!(found[0].name.contains(wanted) && found[0].module == "program", "{found:?}");
    assert_eq!((found[1].name.as_str(), found[1].module.as_str()), ("text+0x2", "text"));
    assert_eq!((found[2].name.as_str(), found[2].module.as_str()), ("libunknown.so.1+0x1234", "libunknown.so.1"));
    // A restored machine has the names of files from its snapshot.
    let (saved, charges) = recorder.save();
    let restored = Recorder::restore(saved, charges).unwrap();
    let mut again = Symbols::default();
    self::programs().0.add_to(&restored, &mut again);
    assert_eq!(places.map(|place| again.find(AddressSpace::default(), place).unwrap()), found);
}

#[test]
fn functions_have_names_at_the_addresses_at_which_their_file_is_mapped() {
    let (mut programs, size) = programs();
    let recorder = Recorder::default();
    let number = programs.number(&recorder, file("overlay", "/usr/bin/program", size)).unwrap();
    let functions = programs.program(&recorder, number).functions().to_vec();
    let function = functions.iter().find(|function| function.name.contains("a_function_of_its_own")).unwrap();
    // The mapping begins at a page in front of the function, and ends within the function.
    let offset = function.start & !0xfff;
    let at = 0x5555_0000_0000 + (function.start - offset);
    let mapped = Mapped { range: 0x5555_0000_0000..at + 1, number, offset };
    let space = AddressSpace::of(0x1000);
    programs.see(space, vec![mapped]);
    let mut symbols = Symbols::default();
    programs.add_mapped(&recorder, &mut symbols);
    let found = symbols.find(space, at).unwrap();
    assert!(found.name.contains("a_function_of_its_own") && found.module == "program", "{found:?}");
    assert_eq!((found.start, found.size), (at, 1));
    assert_eq!(symbols.find(space, at + 1), None, "behind the mapping");
    assert_eq!(symbols.find(AddressSpace::of(0x2000), at), None, "in another address space");
}
