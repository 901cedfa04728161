//! TAP devices of the host: network interfaces whose other end is a file descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Maximum length of an interface name, without the terminating zero.
const NAME: usize = libc::IFNAMSIZ - 1;

/// Opens an existing TAP device by its name. The kernel would create a missing one for a privileged user, so that a
/// mistyped name would go unnoticed; therefore this function checks first that the device exists. Each read returns one
/// frame, or the error that it would block.
pub fn open(name: &str) -> io::Result<File> {
    if name.is_empty() || name.len() > NAME || name.contains('\0') {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // No interface name contains a slash.
    if name.contains('/') || !Path::new("/sys/class/net").join(name).exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no network device of that name"));
    }
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all of it is plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the file is open, and TUNSETIFF reads and writes one `ifreq`, which lives as long as the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}
