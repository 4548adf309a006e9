//! A file system whose server lets its own process open a file, and answers nobody else.
//!
//! It speaks the kernel's protocol itself (linux/fuse.h, version 7.31). Whoever waits for it is let go when its
//! process ends.
//!
//! Called by the program `attacker`. Must not know who is sent its file.

use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Bytes of an answer's head.
const SAID: usize = 16;

/// Bytes of the file.
const BYTES: u64 = 1 << 16;

/// The root directory's number; the file has the next one.
const ROOT: u64 = 1;

/// Mounts it on a folder, in a mount namespace of this process's own, and opens its file for reading and writing.
///
/// To be called while the process has one thread.
///
/// # Errors
/// Why this machine does not let it.
pub fn open(folder: &Path) -> Result<OwnedFd, String> {
    let failed = |what: &str| format!("{what}: {}", Error::last_os_error());
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|error| format!("/dev/fuse: {error}"))?;
    // SAFETY: the call takes numbers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(failed("a mount namespace"));
    }
    let path = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes())
        .map_err(|error| error.to_string())?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0",
        device.as_raw_fd()
    );
    let none = std::ptr::null();
    // SAFETY: texts that end in a zero and live until the calls are over.
    let mounted = unsafe {
        libc::mount(
            none,
            c"/".as_ptr(),
            none,
            libc::MS_REC | libc::MS_PRIVATE,
            none.cast(),
        ) == 0
            && libc::mount(
                c"hostile".as_ptr(),
                path.as_ptr(),
                c"fuse".as_ptr(),
                0,
                options.as_ptr().cast(),
            ) == 0
    };
    if !mounted {
        return Err(failed("a FUSE file system"));
    }
    std::thread::spawn(move || serve(device));
    rustix::fs::open(folder.join("file"), OFlags::RDWR, Mode::empty())
        .map_err(|error| format!("a file in FUSE: {error}"))
}

/// What a request is.
struct Asked {
    what: u32,
    number: u64,
    node: u64,
    /// The thread that waits, or 0.
    thread: u32,
}

impl Asked {
    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            what: word(4)?,
            number: long(8)?,
            node: long(16)?,
            thread: word(32)?,
        })
    }

    /// Whether this process waits, which is to go on.
    fn is_own(&self) -> bool {
        Path::new(&format!("/proc/self/task/{}", self.thread)).exists()
    }
}

fn serve(mut device: File) {
    let mut bytes = vec![0; 1 << 20];
    // Ends when the file system is gone.
    while let Ok(count) = device.read(&mut bytes) {
        let Some(asked) = Asked::read(&bytes[..count]) else {
            return;
        };
        let answer = match asked.what {
            INIT => start(),
            _ if !asked.is_own() => continue,
            LOOKUP => [&entry()[..], &attributes(ROOT + 1)].concat(),
            GETATTR => [&[0; 16], &attributes(asked.node)[..]].concat(),
            OPEN => vec![0; 16],
            FLUSH => Vec::new(),
            _ => continue,
        };
        let length = u32::try_from(SAID + answer.len()).expect("it is short");
        let mut said = length.to_le_bytes().to_vec();
        said.extend(0_i32.to_le_bytes());
        said.extend(asked.number.to_le_bytes());
        said.extend(answer);
        // Who asked may be gone.
        device.write_all(&said).ok();
    }
}

/// The protocol's version, and no options.
fn start() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(7_u32.to_le_bytes());
    bytes.extend(31_u32.to_le_bytes());
    bytes.resize(20, 0);
    bytes.extend(4096_u32.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.resize(64, 0);
    bytes
}

/// The file's number, known for no time at all.
fn entry() -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(&(ROOT + 1).to_le_bytes());
    bytes
}

fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = match node {
        ROOT => 0o040_755,
        _ => 0o100_666,
    };
    let mut bytes = Vec::new();
    bytes.extend(node.to_le_bytes());
    bytes.extend(BYTES.to_le_bytes());
    bytes.resize(60, 0);
    bytes.extend(mode.to_le_bytes());
    bytes.extend(1_u32.to_le_bytes());
    bytes.resize(88, 0);
    bytes
}
