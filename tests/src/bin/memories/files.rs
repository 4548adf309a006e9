//! Registered memory that is a file's, which the program does with as it likes.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use tests::cuda::{Code, Driver};

use super::{Functions, MIB, ok};

const ILLEGAL_ADDRESS: Code = 700;

/// A memfd, and where it is mapped.
pub fn shared(bytes: usize) -> (File, *mut c_void) {
    // SAFETY: the descriptor is new, and the mapping too.
    unsafe {
        let file = File::from_raw_fd(libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC));
        file.set_len(bytes as u64).expect("room");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let nowhere = std::ptr::null_mut();
        let at = libc::mmap(
            nowhere,
            bytes,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        (file, at)
    }
}

/// Whether this process may open the file of a mapping of two pages by the mapping's addresses.
pub fn finds_files_of_mappings(at: *mut c_void) -> bool {
    let (start, end) = (at.addr(), at.addr() + 8192);
    let path = format!("/proc/self/map_files/{start:x}-{end:x}");
    File::options().read(true).write(true).open(path).is_ok()
}

/// A file that is cut short while it is registered: the context fails, and nobody else.
pub fn torn() -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let (file, at) = shared(MIB);
    let to = driver.alloc(MIB)?;
    let mut from = 0;
    // SAFETY: out pointers lead to locals. The mapping stays; its pages are not touched here.
    let copied = unsafe {
        ok((more.register)(at, MIB, 2))?;
        ok((more.device_pointer)(&raw mut from, at, 0))?;
        driver.copy_on_device(to, from, MIB)?;
        driver.synchronize()?;
        file.set_len(4096).expect("less room");
        driver.copy_on_device(to, from, MIB)
    };
    match copied.and_then(|()| driver.synchronize()) {
        Err(ILLEGAL_ADDRESS) => Ok(()),
        other => panic!("a file without pages: {other:?}"),
    }
}
