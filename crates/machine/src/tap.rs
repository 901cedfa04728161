//! TAP devices of the host: network interfaces whose other end is a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The most bytes of a name, beside the zero at its end.
const NAME: usize = libc::IFNAMSIZ - 1;

/// Opens a TAP device by its name. The kernel would make one that is not there for a user who may, so that a mistyped name would go unnoticed: it is
/// looked for first. A read gives one frame, or an error that it would block.
pub fn open(name: &str) -> io::Result<File> {
    if name.is_empty() || name.len() > NAME || name.contains('\0') {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // A name with a slash is none of a device.
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
