//! Sealed memfds and their mappings.
//!
//! Owns every access to memory that another process can write: atomics by offset, and copies in and
//! out of contiguous bytes. There is never a `&[u8]` or a `&mut [u8]` onto it. Sizes come from our own
//! record, never from the peer's. Knows nothing of what lies where.

mod non_temporal;
mod overlay;

pub use overlay::{Overlay, page_of, torn_pages};

use crate::sync::{AtomicU64, Ordering};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Why memory could not be made, taken or mapped.
#[derive(Debug)]
pub enum MemoryError {
    /// The kernel refused; what we tried, and its error.
    System(&'static str, Errno),
    /// A descriptor that a peer sent is not a memfd that can neither shrink nor grow.
    NotSealed,
    /// A descriptor that a peer sent has another size than agreed.
    Size {
        /// Bytes that it must have.
        wanted: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// Something else is mapped at an address that must be free.
    Occupied {
        /// The address.
        address: u64,
    },
    /// A file that a peer sent cannot be mapped over our memory; what it is.
    Unsuitable(&'static str),
}

impl std::fmt::Display for MemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(what, errno) => write!(f, "{what}: {errno}"),
            Self::NotSealed => f.write_str("shared memory is not sealed against resizing"),
            Self::Size { wanted, found } => {
                write!(f, "shared memory has {found} bytes instead of {wanted}")
            }
            Self::Occupied { address } => {
                write!(f, "address {address:#x} is already in use in this process")
            }
            Self::Unsuitable(what) => write!(f, "the file is {what}"),
        }
    }
}

impl std::error::Error for MemoryError {}

fn system(what: &'static str) -> impl Fn(Errno) -> MemoryError {
    move |errno| MemoryError::System(what, errno)
}

/// A memfd that can neither shrink nor grow, so that no peer can make an access to it fault.
#[derive(Debug)]
pub struct Sealed {
    fd: OwnedFd,
    bytes: u64,
}

impl Sealed {
    /// Makes one of `bytes` bytes, all zero, and sealed for good. `name` shows in /proc.
    ///
    /// # Errors
    /// When the kernel has no descriptor or no room for it.
    pub fn create(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        let made = Self::create_open(name, bytes)?;
        rustix::fs::fcntl_add_seals(&made.fd, SealFlags::SEAL).map_err(system("seal a memfd"))?;
        Ok(made)
    }

    /// As [`Sealed::create`], but it can still be sealed against writing.
    ///
    /// # Errors
    /// When the kernel has no descriptor or no room for it.
    pub fn create_open(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag; some of the later ones demand it.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
            other => other,
        }
        .map_err(system("make a memfd"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(system("size a memfd"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(system("seal a memfd"))?;
        Ok(Self { fd, bytes })
    }

    /// Takes a descriptor that somebody sent, if it is sealed against resizing and has `bytes` bytes.
    ///
    /// # Errors
    /// When it is not.
    pub fn from_fd(fd: OwnedFd, bytes: u64) -> Result<Self, MemoryError> {
        let needed = SealFlags::SHRINK | SealFlags::GROW;
        // What is no memfd has no seals, and the question fails.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| MemoryError::NotSealed)?;
        if !seals.contains(needed) {
            return Err(MemoryError::NotSealed);
        }
        let found = rustix::fs::fstat(&fd)
            .map_err(system("look at a memfd"))?
            .st_size;
        let found = u64::try_from(found).unwrap_or(0);
        if found != bytes {
            return Err(MemoryError::Size {
                wanted: bytes,
                found,
            });
        }
        Ok(Self { fd, bytes })
    }

    /// From now on nobody can map it writable or write to it; what is mapped stays writable. Only
    /// memory of [`Sealed::create_open`] can be so sealed.
    ///
    /// # Errors
    /// When it was sealed for good before, or the kernel is older than 5.1.
    pub fn seal_future_write(&self) -> Result<(), MemoryError> {
        rustix::fs::fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(system("seal a memfd against writing"))
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes bytes to it that lie in one piece. Where they are many and the memory is new, that is quicker than through a mapping.
    ///
    /// # Errors
    /// When the kernel has no room, or the memory is sealed against writing.
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let mut written = 0;
        while written < bytes.len() {
            let rest = bytes.get(written..).unwrap_or_default();
            match rustix::io::pwrite(&self.fd, rest, at + written as u64) {
                Ok(0) => return Err(MemoryError::System("write to a memfd", Errno::NOSPC)),
                Ok(more) => written += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(MemoryError::System("write to a memfd", errno)),
            }
        }
        Ok(())
    }

    /// Another descriptor of the same memory.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> Result<Self, MemoryError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(system("copy a memfd"))?;
        Ok(Self {
            fd,
            bytes: self.bytes,
        })
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Sealed> for OwnedFd {
    fn from(sealed: Sealed) -> Self {
        sealed.fd
    }
}

/// Memory mapped into this process; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access to it goes through
// atomics or raw copies, which make no claim on what other threads do meanwhile.
unsafe impl Send for Mapping {}
// SAFETY: threads that share it read and write the memory by atomics and raw copies alone, and the rest of it
// does not change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of it, readable and writable.
    ///
    /// # Errors
    /// When the kernel has no room, or the memory is sealed against writing.
    pub fn map(memory: &Sealed) -> Result<Self, MemoryError> {
        Self::new(memory, ProtFlags::READ | ProtFlags::WRITE, None)
    }

    /// Maps all of it, readable. Writing to it ends the process.
    ///
    /// # Errors
    /// When the kernel has no room.
    pub fn map_read_only(memory: &Sealed) -> Result<Self, MemoryError> {
        Self::new(memory, ProtFlags::READ, None)
    }

    /// Maps all of it, readable and writable, at this very address.
    ///
    /// # Errors
    /// [`MemoryError::Occupied`] when something else is there; nothing is ever replaced.
    pub fn map_at(memory: &Sealed, address: u64) -> Result<Self, MemoryError> {
        Self::new(memory, ProtFlags::READ | ProtFlags::WRITE, Some(address))
    }

    /// Keeps a range of addresses out of everybody's hands. Any access to it ends the process.
    ///
    /// # Errors
    /// [`MemoryError::Occupied`] when something else is there; nothing is ever replaced.
    pub fn reserve(address: u64, bytes: u64) -> Result<Self, MemoryError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let len = length(bytes)?;
        // SAFETY: NOREPLACE: no memory that anybody uses changes. Nothing is given access to.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(at(address), len, ProtFlags::empty(), flags) };
        Self::checked(mapped, len, Some(address))
    }

    /// Puts other memory of the same size in the place of this, readable, and keeps it from children. Who reads meanwhile
    /// reads one or the other.
    ///
    /// # Errors
    /// When the sizes differ or the kernel has no room; then nothing has changed.
    pub fn replace_read_only(&self, memory: &Sealed) -> Result<(), MemoryError> {
        self.replace(memory, ProtFlags::READ, MapFlags::SHARED)?;
        self.keep_from_children()
    }

    /// Parts it from the memory that it is of: what is there stays as it is now for all others, whatever any thread of this process
    /// writes through this mapping from here on.
    ///
    /// # Errors
    /// When the sizes differ or the kernel has no room; then nothing has changed.
    pub fn part_from(&self, memory: &Sealed) -> Result<(), MemoryError> {
        self.replace(
            memory,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }

    /// Maps memory of the same size in the place of this.
    fn replace(
        &self,
        memory: &Sealed,
        protection: ProtFlags,
        sharing: MapFlags,
    ) -> Result<(), MemoryError> {
        if memory.bytes != self.len as u64 {
            return Err(MemoryError::Size {
                wanted: self.len as u64,
                found: memory.bytes,
            });
        }
        // SAFETY: the range is this mapping's own, and all access to it goes through atomics or raw copies; the memfd is
        // sealed, so all of it stays accessible.
        unsafe {
            rustix::mm::mmap(
                self.base.as_ptr().cast(),
                self.len,
                protection,
                sharing | MapFlags::NORESERVE | MapFlags::FIXED,
                &memory.fd,
                0,
            )
        }
        .map_err(system("map memory"))?;
        Ok(())
    }

    fn new(
        memory: &Sealed,
        protection: ProtFlags,
        address: Option<u64>,
    ) -> Result<Self, MemoryError> {
        let mut flags = MapFlags::SHARED | MapFlags::NORESERVE;
        if address.is_some() {
            flags |= MapFlags::FIXED_NOREPLACE;
        }
        let len = length(memory.bytes)?;
        // SAFETY: without an address the kernel chooses free ones, with one NOREPLACE holds: no
        // memory that anybody uses changes. The memfd is sealed, so all of it stays accessible.
        let mapped = unsafe {
            rustix::mm::mmap(
                at(address.unwrap_or(0)),
                len,
                protection,
                flags,
                &memory.fd,
                0,
            )
        };
        Self::checked(mapped, len, address)
    }

    fn checked(
        mapped: Result<*mut c_void, Errno>,
        len: usize,
        address: Option<u64>,
    ) -> Result<Self, MemoryError> {
        let base = match (mapped, address) {
            (Err(Errno::EXIST), Some(address)) => return Err(MemoryError::Occupied { address }),
            (mapped, _) => mapped.map_err(system("map memory"))?,
        };
        let base = NonNull::new(base.cast::<u8>())
            .ok_or(MemoryError::System("map memory", Errno::FAULT))?;
        let mapping = Self { base, len };
        match address {
            // Kernels before 4.17 take the flag for a hint and map somewhere else.
            Some(address) if mapping.base() != address => Err(MemoryError::Occupied { address }),
            _ => Ok(mapping),
        }
    }

    /// The first address.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes, which the kernel does not allow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Children of this process shall not have it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn keep_from_children(&self) -> Result<(), MemoryError> {
        self.advise(0, self.len, Advice::LinuxDontFork)
            .map_err(system("keep memory from children"))
    }

    /// Touches a range for writing, so that the pages exist and this process pays for them.
    ///
    /// # Panics
    /// When the range is not in the mapping.
    pub fn populate_for_writing(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes, 1);
        if self
            .advise(offset, bytes, Advice::LinuxPopulateWrite)
            .is_err()
        {
            for at in (offset.next_multiple_of(8)..offset + bytes.saturating_sub(8)).step_by(4096) {
                self.word(at).fetch_or(0, Ordering::Relaxed);
            }
        }
    }

    /// Touches a range for reading, so that the pages exist and this process pays for them.
    ///
    /// # Panics
    /// When the range is not in the mapping.
    pub fn populate_for_reading(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes, 1);
        if self
            .advise(offset, bytes, Advice::LinuxPopulateRead)
            .is_err()
        {
            for at in (offset.next_multiple_of(8)..offset + bytes.saturating_sub(8)).step_by(4096) {
                self.word(at).load(Ordering::Relaxed);
            }
        }
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range lies in this mapping (the callers checked), and none of the advices used
        // here changes its contents in this process.
        unsafe { rustix::mm::madvise(self.base.as_ptr().add(offset).cast(), bytes, advice) }
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize, align: usize) {
        assert!(
            offset.is_multiple_of(align) && bytes <= self.len && offset <= self.len - bytes,
            "{bytes} bytes at {offset} are not in a mapping of {}",
            self.len
        );
    }

    /// The 64-bit word at an offset.
    ///
    /// # Panics
    /// When it is not in the mapping or not aligned: offsets are ours, never a peer's.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words(offset, 1)[0]
    }

    /// The `count` 64-bit words at an offset.
    ///
    /// # Panics
    /// When they are not in the mapping or not aligned: offsets are ours, never a peer's.
    #[inline]
    #[must_use]
    pub fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.check(offset, count.saturating_mul(8), 8);
        // SAFETY: the words are in the mapping and aligned (just checked; mappings begin at a page),
        // and stay mapped while `self` is borrowed. Other processes change them, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// Copies bytes into the mapping.
    ///
    /// # Panics
    /// When they do not fit there: callers check ranges that come from a peer.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        // SAFETY: the slice is readable for its length.
        unsafe { self.copy_in_from(offset, from.as_ptr(), from.len()) }
    }

    /// Copies bytes out of the mapping. What comes may be of several moments.
    ///
    /// # Panics
    /// When they are not there: callers check ranges that come from a peer.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: the slice is writable for its length.
        unsafe { self.copy_out_to(offset, into.as_mut_ptr(), into.len()) }
    }

    /// As [`Mapping::copy_in`], from memory that a program gave a pointer to.
    ///
    /// # Safety
    /// `from` must be readable for `bytes` bytes. The caller's caller, the program, keeps that.
    ///
    /// # Panics
    /// When they do not fit there.
    #[inline]
    pub unsafe fn copy_in_from(&self, offset: usize, from: *const u8, bytes: usize) {
        self.check(offset, bytes, 1);
        // SAFETY: the target lies in the mapping (just checked); the source is the caller's promise.
        // `copy` allows that the program's memory and the mapping are the same. Peers may write
        // meanwhile: then the bytes are of several moments, which no code here gives a meaning to.
        unsafe { std::ptr::copy(from, self.base.as_ptr().add(offset), bytes) }
    }

    /// As [`Mapping::copy_out`], into memory that a program gave a pointer to.
    ///
    /// # Safety
    /// `into` must be writable for `bytes` bytes. The caller's caller, the program, keeps that.
    ///
    /// # Panics
    /// When they are not there.
    #[inline]
    pub unsafe fn copy_out_to(&self, offset: usize, into: *mut u8, bytes: usize) {
        self.check(offset, bytes, 1);
        // SAFETY: the source lies in the mapping (just checked); the target is the caller's promise. `copy` allows that
        // the program's memory and the mapping are the same. Peers may write meanwhile: then the bytes are of several
        // moments, which no code here gives a meaning to.
        unsafe { std::ptr::copy(self.base.as_ptr().add(offset), into, bytes) }
    }

    /// As [`Mapping::copy_out_to`], with stores that go past the processor's caches.
    ///
    /// # Safety
    /// As [`Mapping::copy_out_to`].
    ///
    /// # Panics
    /// When the bytes are not there.
    pub unsafe fn copy_out_non_temporal(&self, offset: usize, into: *mut u8, bytes: usize) {
        self.check(offset, bytes, 1);
        // SAFETY: the source lies in the mapping (just checked); the target is the caller's promise. Peers may write
        // meanwhile: then the bytes are of several moments, which no code here gives a meaning to.
        unsafe { non_temporal::copy(self.base.as_ptr().add(offset), into, bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours alone (it was made in `new` or `reserve`), and borrows of it have
        // ended. It fails only for a range that is no mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn at(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

fn length(bytes: u64) -> Result<usize, MemoryError> {
    usize::try_from(bytes).map_err(|_| MemoryError::System("map memory", Errno::OVERFLOW))
}

/// A word that tells a process whether it is a forked child of the one that made it, without a
/// system call: the kernel clears the page in the child.
#[derive(Debug)]
pub struct WipeOnFork {
    page: Mapping,
}

impl WipeOnFork {
    const MARK: u64 = 0x004f_776e_6572;

    /// Makes it, in the process that shall not be a child.
    ///
    /// # Errors
    /// When the kernel has no room, or is older than 4.14.
    pub fn new() -> Result<Self, MemoryError> {
        const PAGE: usize = 4096;
        let flags = MapFlags::PRIVATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses free addresses: no memory that anybody uses changes.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, protection, flags) };
        let page = Mapping::checked(mapped, PAGE, None)?;
        page.advise(0, PAGE, Advice::LinuxWipeOnFork)
            .map_err(system("wipe a page on fork"))?;
        page.word(0).store(Self::MARK, Ordering::Relaxed);
        Ok(Self { page })
    }

    /// Whether this process is a child, by fork or a raw clone without shared memory, of the maker.
    #[inline]
    #[must_use]
    pub fn is_wiped(&self) -> bool {
        self.page.word(0).load(Ordering::Relaxed) != Self::MARK
    }
}
