//! The memory of an array.
//!
//! Owns its mapping, which arrays' handles and textures share. Called by the engine's copies and by what reads
//! textures. Must not know the elements' format.

use std::fmt;

use rustix::mm::{MapFlags, ProtFlags};

use crate::access::{self, Cell};
use crate::regs::Bytes;

/// Up to this many bytes come from the heap: a process can have only so many mappings.
const SMALL: u64 = 64 << 10;

/// Zeroed memory for texels, given back when the last user lets go. Only raw accesses reach it: kernels
/// and copies may read and write it at any time.
pub struct Texels {
    start: u64,
    len: u64,
    /// Where it comes from, if from the heap.
    heap: Option<Bytes>,
}

impl fmt::Debug for Texels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Texels({})", self.len)
    }
}

impl Texels {
    /// `len` zero bytes, which cost memory as they are written.
    ///
    /// # Errors
    /// When the system refuses them.
    pub fn new(len: u64) -> Result<Self, rustix::io::Errno> {
        if len <= SMALL {
            let heap = Bytes::new(len as usize).ok_or(rustix::io::Errno::NOMEM)?;
            return Ok(Self {
                start: heap.ptr().expose_provenance() as u64,
                len: len.max(1),
                heap: Some(heap),
            });
        }
        let bytes = usize::try_from(len).map_err(|_| rustix::io::Errno::NOMEM)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches nothing of ours.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Ok(Self {
            start: start.expose_provenance() as u64,
            len,
            heap: None,
        })
    }

    /// The address of `bytes` bytes from `offset` on, if they are inside.
    #[must_use]
    pub fn address(&self, offset: u64, bytes: u64) -> Option<u64> {
        (bytes <= self.len && offset <= self.len - bytes).then(|| self.start + offset)
    }

    /// One channel of 1, 2 or 4 bytes, at a multiple of them; 0 outside.
    pub(crate) fn channel(&self, offset: u64, bytes: u64) -> u32 {
        match self.address(offset, bytes) {
            // SAFETY: inside the mapping; callers keep channels aligned, as the mapping is.
            Some(address) => unsafe { load(address, bytes) },
            None => 0,
        }
    }

    /// Copies bytes out, all of which are inside, or none.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) {
        if let Some(address) = self.address(offset, to.len() as u64) {
            // SAFETY: `address` has tested that the range lies inside of the mapping; `to` is a slice of this length.
            unsafe { access::copy_in(to.as_mut_ptr(), address, to.len()) };
        }
    }

    /// Copies bytes in, if all of their place is inside.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        if let Some(address) = self.address(offset, from.len() as u64) {
            // SAFETY: `address` has tested that the range lies inside of the mapping; `from` is a slice of this length.
            unsafe { access::copy_out(address, from.as_ptr(), from.len()) };
        }
    }
}

/// Reads 1, 2 or 4 bytes.
///
/// # Safety
/// `access`'s contract: mapped, and aligned to `bytes`.
pub(super) unsafe fn load(address: u64, bytes: u64) -> u32 {
    // SAFETY: the caller keeps that the bytes are mapped, and aligned to their number.
    unsafe {
        match bytes {
            1 => u8::load(address).into(),
            2 => u16::load(address).into(),
            _ => u32::load(address),
        }
    }
}

impl Drop for Texels {
    fn drop(&mut self) {
        if self.heap.is_some() {
            return;
        }
        // SAFETY: mapped in `new`; whoever could reach it held a reference, and nobody does any more.
        let gone = unsafe {
            rustix::mm::munmap(
                std::ptr::with_exposed_provenance_mut(self.start as usize),
                self.len as usize,
            )
        };
        debug_assert!(gone.is_ok(), "unmapping our own mapping: {gone:?}");
    }
}
