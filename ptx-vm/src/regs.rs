//! The register file of a lane group: arrays of lanes, 16 lanes (a *strip*) at a time.
//!
//! A register has a slot: for a value that differs between lanes, all lanes of the lane group one after the
//! other; for one that is the same in all lanes, one strip that holds it 16 times. So the same loop
//! serves both, with a step of one strip or of nothing.
//!
//! Used by `ops`, `lane_group` and `machine`; `analysis::layout` says the slots. Must not know what a register
//! means.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

/// Lanes of a strip.
pub(crate) const STRIP: usize = 16;
/// Alignment of slots: a cache line, the widest vector.
pub(crate) const ALIGN: usize = 64;

/// A type that a lane of a register may have: any bytes are a value of it.
///
/// # Safety
/// Every bit pattern is valid, and there is no padding.
pub(crate) unsafe trait Lane: Copy + Default + 'static {}

macro_rules! lanes {
    ($($number:ident)*) => {$(
        // SAFETY: a primitive number: every bit pattern is one, and it has no padding.
        unsafe impl Lane for $number {}
    )*};
}
lanes!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

/// Zeroed bytes at a fixed place, aligned to a cache line, reached only through raw pointers.
pub(crate) struct Bytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes, like a Vec<u8>.
unsafe impl Send for Bytes {}
// SAFETY: a shared reference gives only the address and the length.
unsafe impl Sync for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

impl Bytes {
    /// `len` zero bytes; `None` if the system has no such memory. A program says how many it wants, so
    /// that there are none is no failure of ours.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(ALIGN)?;
        let layout = Self::layout(len)?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start)?;
        Some(Self { start, len })
    }

    /// A copy of `bytes`, zeroes after them; `None` as for [`Bytes::new`].
    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Self> {
        let copy = Self::new(bytes.len())?;
        // SAFETY: the copy is new and at least as long.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.ptr(), bytes.len()) };
        Some(copy)
    }

    /// At least `len` bytes, with the old ones at their front. By half at least, so that what is left behind
    /// by a recursion that grows step by step is no more than what it needs. `None` as for [`Bytes::new`].
    pub(crate) fn grow(&mut self, len: usize) -> Option<()> {
        if len > self.len {
            let bigger = Self::new(len.max(self.len + self.len / 2))?;
            // SAFETY: both are live, apart, and at least as long as the old length.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr(), bigger.ptr(), self.len) };
            *self = bigger;
        }
        Some(())
    }

    /// Makes all of them zero.
    pub(crate) fn clear(&mut self) {
        // SAFETY: all bytes are ours, and the exclusive reference says that nobody uses them now.
        unsafe { std::ptr::write_bytes(self.ptr(), 0, self.len) };
    }

    /// The same through a shared reference.
    ///
    /// # Safety
    /// Nobody uses them now.
    pub(crate) unsafe fn zero(&self) {
        // SAFETY: all bytes are ours, and nobody uses them by the caller's word.
        unsafe { std::ptr::write_bytes(self.ptr(), 0, self.len) };
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, ALIGN).ok()
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // There is one: `new` made it.
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// The registers of the frame that runs now: a pointer to its start, and how far it reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    start: *mut u8,
    len: usize,
}

impl Frame {
    /// The part of `file` from `base` on.
    ///
    /// # Panics
    /// If `base` lies outside or is not aligned.
    pub(crate) fn new(file: &Bytes, base: usize) -> Self {
        assert!(base <= file.len() && base.is_multiple_of(ALIGN));
        // SAFETY: just checked to lie inside.
        let start = unsafe { file.ptr().add(base) };
        Self {
            start,
            len: file.len() - base,
        }
    }

    /// The address of `count` bytes from `offset` on. A program's offsets are ours, not the PTX's; this
    /// check is against our own mistakes.
    ///
    /// # Panics
    /// If they are outside of the frame.
    #[inline(always)]
    pub(crate) fn at(self, offset: usize, count: usize) -> *mut u8 {
        assert!(offset + count <= self.len);
        // SAFETY: inside the allocation by the assertion.
        unsafe { self.start.add(offset) }
    }

    /// One lane of a slot.
    #[inline(always)]
    pub(crate) fn lane<T: Lane>(self, offset: usize, lane: usize) -> T {
        let at = self
            .at(offset + lane * size_of::<T>(), size_of::<T>())
            .cast::<T>();
        // SAFETY: `at` has tested the bounds; slots are aligned to cache lines, so a lane is aligned to its size;
        // the lane group runs on one thread, so nobody else uses the frame.
        unsafe { at.read() }
    }

    /// Sets one lane of a slot.
    #[inline(always)]
    pub(crate) fn set_lane<T: Lane>(self, offset: usize, lane: usize, value: T) {
        let at = self
            .at(offset + lane * size_of::<T>(), size_of::<T>())
            .cast::<T>();
        // SAFETY: `at` has tested the bounds; slots are aligned to cache lines, so a lane is aligned to its size;
        // the lane group runs on one thread, so nobody else uses the frame.
        unsafe { at.write(value) };
    }

    /// One strip of a slot.
    #[inline(always)]
    pub(crate) fn strip<T: Lane>(self, offset: usize, strip: usize) -> [T; STRIP] {
        let bytes = STRIP * size_of::<T>();
        // SAFETY: `at` has tested the bounds; slots are aligned to cache lines, so a strip is aligned to its lanes;
        // the lane group runs on one thread, so nobody else uses the frame.
        unsafe {
            self.at(offset + strip * bytes, bytes)
                .cast::<[T; STRIP]>()
                .read()
        }
    }

    /// Sets one strip of a slot.
    #[inline(always)]
    pub(crate) fn set_strip<T: Lane>(self, offset: usize, strip: usize, value: [T; STRIP]) {
        let bytes = STRIP * size_of::<T>();
        // SAFETY: `at` has tested the bounds; slots are aligned to cache lines, so a strip is aligned to its lanes;
        // the lane group runs on one thread, so nobody else uses the frame.
        unsafe {
            self.at(offset + strip * bytes, bytes)
                .cast::<[T; STRIP]>()
                .write(value);
        };
    }

    /// One lane of a slot of `width` bytes a lane, zero-extended.
    #[inline(always)]
    pub(crate) fn wide(self, offset: usize, lane: usize, width: u8) -> u64 {
        match width {
            1 => u64::from(self.lane::<u8>(offset, lane)),
            2 => u64::from(self.lane::<u16>(offset, lane)),
            4 => u64::from(self.lane::<u32>(offset, lane)),
            _ => self.lane::<u64>(offset, lane),
        }
    }

    /// Sets one lane of a slot of `width` bytes a lane to the low bytes of `value`.
    #[inline(always)]
    pub(crate) fn set_wide(self, offset: usize, lane: usize, width: u8, value: u64) {
        match width {
            1 => self.set_lane(offset, lane, value as u8),
            2 => self.set_lane(offset, lane, value as u16),
            4 => self.set_lane(offset, lane, value as u32),
            _ => self.set_lane(offset, lane, value),
        }
    }
}

/// Walks the strips of a slot: a pointer to one strip, and the bytes to the next (0 for a uniform slot).
pub(crate) struct Cursor<T> {
    at: *mut [T; STRIP],
    step: usize,
}

impl<T: Lane> Cursor<T> {
    /// Over strips `low..high` of the slot at `offset`; over its one strip if it is not varying.
    #[inline(always)]
    pub(crate) fn new(frame: Frame, offset: u32, varying: bool, low: usize, high: usize) -> Self {
        let bytes = STRIP * size_of::<T>();
        let offset = offset as usize;
        let (at, step) = if varying {
            (frame.at(offset + low * bytes, (high - low) * bytes), bytes)
        } else {
            (frame.at(offset, bytes), 0)
        };
        Self {
            at: at.cast(),
            step,
        }
    }

    /// The strip under the cursor; moves on.
    ///
    /// # Safety
    /// Called at most once for each strip that the cursor was made for.
    #[inline(always)]
    pub(crate) unsafe fn read(&mut self) -> [T; STRIP] {
        // SAFETY: inside the slot (caller), which is aligned and initialised.
        let value = unsafe { self.at.read() };
        self.at = self.at.wrapping_byte_add(self.step);
        value
    }

    /// Sets the strip under the cursor; moves on.
    ///
    /// # Safety
    /// As for [`Cursor::read`].
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, value: [T; STRIP]) {
        // SAFETY: inside the slot (caller), which is aligned.
        unsafe { self.at.write(value) };
        self.at = self.at.wrapping_byte_add(self.step);
    }
}
