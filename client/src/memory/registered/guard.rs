//! Keeps other threads from writing to a page while it is replaced.
//!
//! The page on which a registration begins or ends holds the program's other objects too, and their
//! owners write whenever they like. The kernel holds such writers up (userfaultfd's write protection)
//! until the page is replaced, whereupon they write to the new one. Where it does not let us (a seccomp
//! filter, a kernel before 5.7, pages of a file), a write that comes between the copy and the replacement
//! is lost.
//!
//! Owns the page's protection. Knows nothing of what replaces the page.

use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

use crate::os::signal_mask::Blocked;

/// The kernel's struct uffdio_api.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// The kernel's struct uffdio_register.
#[repr(C)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// The kernel's struct uffdio_writeprotect.
#[repr(C)]
struct Protect {
    start: u64,
    bytes: u64,
    mode: u64,
}

const API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0x00);
const PROTECT: Opcode = opcode::read_write::<Protect>(0xaa, 0x06);

/// The version of all of this.
const VERSION: u64 = 0xaa;
/// Write protection of private memory, and of memory in files without a disk.
const FEATURE_PRIVATE: u64 = 1 << 0;
const FEATURE_SHARED: u64 = 1 << 12;
const REGISTER_FOR_PROTECTION: u64 = 1 << 1;
const PROTECTED: u64 = 1;
/// Only what programs do themselves is held up: all that is allowed without privileges. What the
/// kernel writes for them fails with EFAULT instead of being lost.
const USER_MODE_ONLY: u32 = 1;

/// While this lives, whoever writes to a page waits. That holds for the calling thread too: it must
/// neither allocate nor call anything that writes to memory of the program's.
pub(super) struct Guard {
    /// Its end wakes those who wait: they find what is in the page's place then. Before the signals,
    /// whose handlers may write to the page.
    _waiters: OwnedFd,
    _signals: Blocked,
}

impl Guard {
    /// Protects a page, which is mapped and readable; `None` where the kernel does not do it.
    pub(super) fn over(page: &Range<u64>) -> Option<Self> {
        let signals = Blocked::now();
        let features = [FEATURE_PRIVATE | FEATURE_SHARED, FEATURE_PRIVATE];
        let waiters = features
            .iter()
            .find_map(|features| protect(page, *features).ok())?;
        Some(Self {
            _waiters: waiters,
            _signals: signals,
        })
    }
}

fn open() -> Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC;
    let user_mode = UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: what the descriptor can do to memory is done by the calls below, and only to the page.
    unsafe { userfaultfd(flags) }.or_else(|error| match error {
        // SAFETY: the calls below use the descriptor for the one page only, in user mode too.
        Errno::PERM => unsafe { userfaultfd(flags | user_mode) },
        error => Err(error),
    })
}

fn protect(page: &Range<u64>, features: u64) -> Result<OwnedFd> {
    let waiters = open()?;
    let (start, bytes) = (page.start, page.end - page.start);
    let mut api = Api {
        api: VERSION,
        features,
        ioctls: 0,
    };
    let mut register = Register {
        start,
        bytes,
        mode: REGISTER_FOR_PROTECTION,
        ioctls: 0,
    };
    let mut protect = Protect {
        start,
        bytes,
        mode: PROTECTED,
    };
    // SAFETY: each is the structure that the kernel has for its call, and lies on this thread's stack,
    // which is not what is protected: registrations of stacks are refused. The page is mapped and
    // readable, by the caller's promise; it must be there to be protected, hence it is read.
    unsafe {
        ioctl(&waiters, Updater::<API, _>::new(&mut api))?;
        ioctl(&waiters, Updater::<REGISTER, _>::new(&mut register))?;
        std::ptr::with_exposed_provenance::<u8>(start as usize).read_volatile();
        ioctl(&waiters, Updater::<PROTECT, _>::new(&mut protect))?;
    }
    Ok(waiters)
}
