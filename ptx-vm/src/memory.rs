//! The memory that a kernel may touch: windows of always-mapped addresses, each with a table that says
//! which granules are allocated.
//!
//! Safety rests on the windows (an access inside one never leaves memory that its owner keeps mapped);
//! the table gives the client's errors (an access to a granule that is not allocated is the client's
//! fault, and touches nobody else). This module must not know who owns a window.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of one granule, the unit in which a window's validity is kept: 64 KiB.
pub const GRANULE: u64 = 1 << GRANULE_SHIFT;
const GRANULE_SHIFT: u32 = 16;
/// Granules that are looked at on each side of an address to find what else may be read: 256 MiB.
const AROUND: usize = 4096;

/// A range of host virtual addresses, readable and writable for as long as the window lives.
pub struct Window {
    base: u64,
    len: u64,
    /// By granule; none at all if everything is allocated.
    valid: Box<[AtomicU8]>,
    /// How often granules stopped being valid.
    freed: AtomicU64,
    /// Keeps the mapping alive.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:#x}..{:#x})", self.base, self.base + self.len)
    }
}

impl Window {
    /// Takes a range under kernels' accesses. All granules start invalid. `owner` is kept until the
    /// window is dropped.
    ///
    /// # Panics
    /// If `base` or `len` is not a multiple of [`GRANULE`], or the range wraps around.
    ///
    /// # Safety
    /// All of `[base, base + len)` stays mapped readable and writable while `owner` lives, is not part
    /// of any Rust object that is accessed as a plain reference, and may be written at any time by
    /// kernels.
    #[must_use]
    pub unsafe fn new(base: u64, len: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        assert!(base.is_multiple_of(GRANULE) && len.is_multiple_of(GRANULE));
        assert!(base.checked_add(len).is_some());
        // Zeroed by the allocator, so that the table of a large window that is not used costs no memory.
        let valid = Box::into_raw(vec![0_u8; (len >> GRANULE_SHIFT) as usize].into_boxed_slice());
        // SAFETY: the allocation is a boxed slice of u8 that we own, and AtomicU8 has u8's layout.
        let valid = unsafe { Box::from_raw(valid as *mut [AtomicU8]) };
        Self {
            base,
            len,
            valid,
            freed: AtomicU64::new(0),
            _owner: owner,
        }
    }

    /// As [`Window::new`], but all of the range is allocated, and its ends need not be a granule's.
    ///
    /// # Safety
    /// As [`Window::new`].
    #[must_use]
    pub unsafe fn whole(base: u64, len: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            base,
            len,
            valid: Box::default(),
            freed: AtomicU64::new(0),
            _owner: owner,
        }
    }

    /// First address.
    #[must_use]
    #[inline]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the window has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Says whether the granules that `[address, address + len)` touches are allocated. Takes effect for
    /// the accesses that running kernels make from now on; a lane group that runs may read what was allocated until
    /// its budget ends. Parts outside the window are ignored.
    #[inline]
    pub fn set_valid(&self, address: u64, len: u64, valid: bool) {
        let Some(last) = len.checked_sub(1) else {
            return;
        };
        let from = address.max(self.base);
        let to = address
            .saturating_add(last)
            .min(self.base + self.len.saturating_sub(1));
        if from > to || self.valid.is_empty() {
            return;
        }
        let range = ((from - self.base) >> GRANULE_SHIFT) as usize
            ..=((to - self.base) >> GRANULE_SHIFT) as usize;
        for granule in &self.valid[range] {
            granule.store(u8::from(valid), Ordering::Relaxed);
        }
        if !valid {
            self.freed.fetch_add(1, Ordering::Release);
        }
    }

    /// Bytes of the granules that are allocated among those that lie wholly in `[address, address + len)`,
    /// a range of whole granules inside the window.
    #[must_use]
    pub fn valid_bytes(&self, address: u64, len: u64) -> u64 {
        let first = ((address - self.base) >> GRANULE_SHIFT) as usize;
        let granules = &self.valid[first..first + (len >> GRANULE_SHIFT) as usize];
        let count = granules
            .iter()
            .filter(|granule| granule.load(Ordering::Relaxed) != 0)
            .count();
        (count as u64) << GRANULE_SHIFT
    }

    /// The valid bytes around `address`, which lies inside the window: the first, and how many. `None` if it is in no
    /// valid granule.
    fn around(&self, address: u64) -> Option<(u64, u64)> {
        if self.valid.is_empty() {
            return Some((self.base, self.len));
        }
        let here = ((address - self.base) >> GRANULE_SHIFT) as usize;
        let is_valid = |granule: &&AtomicU8| granule.load(Ordering::Relaxed) != 0;
        let (before, after) = self.valid.split_at(here);
        let before = before.iter().rev().take(AROUND).take_while(is_valid);
        let first = here - before.count();
        let count = after.iter().take(AROUND).take_while(is_valid).count();
        let bytes = ((here + count - first) as u64) << GRANULE_SHIFT;
        (count > 0).then_some((self.base + ((first as u64) << GRANULE_SHIFT), bytes))
    }

    /// Whether every granule of `[first, last]` is valid. The range lies inside the window.
    #[inline]
    fn holds(&self, first: u64, last: u64) -> bool {
        if self.valid.is_empty() {
            return true;
        }
        let range = ((first - self.base) >> GRANULE_SHIFT) as usize
            ..=((last - self.base) >> GRANULE_SHIFT) as usize;
        self.valid[range]
            .iter()
            .all(|granule| granule.load(Ordering::Relaxed) != 0)
    }
}

/// A client's windows: everything that its kernels may touch by a global or generic address.
#[derive(Debug, Default)]
pub struct AddressSpace {
    /// Sorted by base, without overlap.
    windows: Vec<Arc<Window>>,
}

impl AddressSpace {
    /// The space made of these windows.
    ///
    /// # Panics
    /// If two windows overlap.
    #[must_use]
    pub fn new(mut windows: Vec<Arc<Window>>) -> Self {
        windows.retain(|window| !window.is_empty());
        windows.sort_by_key(|window| window.base);
        for pair in windows.windows(2) {
            assert!(
                pair[0].base + pair[0].len <= pair[1].base,
                "windows overlap"
            );
        }
        Self { windows }
    }

    /// Its windows, sorted by address.
    #[must_use]
    #[inline]
    pub fn windows(&self) -> &[Arc<Window>] {
        &self.windows
    }

    /// A number that changes whenever something of it stops being allocated.
    pub(crate) fn generation(&self) -> u64 {
        let freed = self.windows.iter();
        freed.fold(0, |sum, window| {
            sum.wrapping_add(window.freed.load(Ordering::Acquire))
        })
    }

    /// The allocated bytes around `address`, all in one window: the first, and how many.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let window = self.window(address)?;
        (address - window.base < window.len)
            .then(|| window.around(address))
            .flatten()
    }

    /// The last window that begins at or before `address`.
    #[inline]
    fn window(&self, address: u64) -> Option<&Window> {
        let after = self
            .windows
            .partition_point(|window| window.base <= address);
        Some(&self.windows[after.checked_sub(1)?])
    }

    /// Whether all of `[first, first + len)` lies in one window and is allocated. `len` is not 0.
    #[must_use]
    #[inline]
    pub fn allows(&self, first: u64, len: u64) -> bool {
        let Some(last) = first.checked_add(len - 1) else {
            return false;
        };
        let Some(window) = self.window(first) else {
            return false;
        };
        last - window.base < window.len && window.holds(first, last)
    }
}
