//! Kernels, modules and disks of a run.

use crate::program::{Files, refused, run};

#[test]
fn kernels_that_are_none_are_refused() {
    let files = Files::new("kernels");
    let good = std::fs::read(files.good()).unwrap();
    refused(&["--kernel", &files.path("missing")], "No such file");
    refused(&["--kernel", &files.path("")], "not a regular file");
    refused(&["--kernel", "/dev/zero"], "not a regular file");
    refused(&["--kernel", &files.put("photo", b"\xff\xd8\xff\xe0\x00\x10JFIF")], "is a JPEG picture");
    refused(&["--kernel", &files.put("empty", b"")], "the kernel is empty");
    refused(&["--kernel", &files.put("text", b"hello\n")], "the file is a text file");
    refused(&["--kernel", &files.put("zeroes", &[0; 100_000])], "all zeroes");
    refused(&["--kernel", &files.put("half", &good[..good.len() - 4])], "truncated");
    refused(&["--kernel", &files.good(), "--initrd", &files.path("missing")], "No such file");
    refused(&["--kernel", &files.good(), "--initrd", &files.path("empty")], "the initrd is empty");
    refused(&["--kernel", &files.good(), "--append", &"a".repeat(5000)], "at most 4095");
}

/// Prints the command lines of its modules, each with a bar behind it, and exits with status 11.
const LIST_MODULES: &[u8] = b"\x8b\x73\x18\x8b\x4b\x14\xba\xf8\x03\0\0\x8b\x7e\x08\x8a\x07\x84\xc0\x74\x04\xee\x47\xeb\xf6\xb0|\xee\x83\xc6\x10\xe2\xeb\
    \xb0\x05\xe6\xf4\xeb\xfe";

#[test]
fn modules_come_with_their_command_lines() {
    let files = Files::new("modules");
    let guest = files.guest("guest", LIST_MODULES);
    let [kernel, initrd] = [files.put("kernel", b"1"), files.put("initrd,cpio", b"2")];
    let list = format!("{kernel} root=/dev/vda ro,,x, {} b", initrd.replace(',', ",,"));
    let (status, printed, error) = run(&["--kernel", &guest, "--initrd", &list]);
    // The guest is not told what files are called here.
    assert_eq!((status, printed.as_str()), (11, "initrd root=/dev/vda ro,x|initrd b|"), "{error}");
    for wrong in [format!("{kernel},"), format!("{kernel},{initrd}")] {
        refused(&["--kernel", &guest, "--initrd", &wrong], "No such file");
    }
}

#[test]
fn disks_are_checked() {
    let files = Files::new("disks");
    let good = files.good();
    refused(&["--kernel", &good, "--disk", &files.path("missing.img")], "No such file");
    refused(&["--kernel", &good, "--disk", &files.path("")], "neither a regular file nor a block device");
    refused(&["--kernel", &good, "--disk", &files.put("tiny.img", &[0; 100])], "smaller than one sector");
    let odd = files.put("odd.img", &[0; 1300]);
    assert_eq!(run(&["--kernel", &good, "--disk", &odd]).0, 0);
    assert_eq!(run(&["--kernel", &good, "--disk", &format!("{odd},ro")]).0, 0);
    let disk = files.put("mode.img", &[0; 512]);
    refused(&["--kernel", &good, "--disk", &format!("{disk},rx")], "the mode 'rx' is unknown: there is ro");
    assert_eq!(run(&["--kernel", &good, "--disk", &format!("{disk},ro")]).0, 0);
    let odd = files.put("odd.img,rx", &[0; 512]);
    assert_eq!(run(&["--kernel", &good, "--disk", &odd]).0, 0);
}
