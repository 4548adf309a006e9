//! Values of this process that a fork's child does not have, though all of its memory is a copy.
//!
//! Owns the pages on which their addresses are, which the kernel wipes in the child, and the mark that the
//! process ends. The tables that entry points begin with (`session`, `context`, `stream`) are found through
//! it, without a lock. It must not know what they are.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cuda_abi::CUresult;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Set once the process has begun to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// A value that is there from its publication until the process begins to end, and never in a fork's child.
#[derive(Debug)]
pub(crate) struct ForkLocal<T: 'static>(AtomicPtr<AtomicPtr<T>>);

impl<T> ForkLocal<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_INITIALIZED before cuInit has succeeded, and in a fork's child of a process in
    /// which it has; CUDA_ERROR_DEINITIALIZED once the process ends.
    #[inline(always)]
    pub(crate) fn get(&self) -> Result<&'static T, CUresult> {
        let page = self.0.load(Ordering::Acquire);
        if page.is_null() {
            return Err(CUresult::ERROR_NOT_INITIALIZED);
        }
        // SAFETY: the pointer is null or leads to the page that `publish` made, which is never unmapped;
        // zeroed by a fork the page holds a null pointer, else what `publish` wrote.
        let value = unsafe { &*page }.load(Ordering::Acquire);
        // SAFETY: the pointer is null or comes from a `&'static T`.
        unsafe { value.as_ref() }.ok_or_else(missing)
    }

    /// Whether there is a value in this process, or was in the one that it was forked from.
    pub(crate) fn was_published(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }

    /// Makes a value this process's. To be called once; the caller holds the lock of cuInit.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when the page cannot be made.
    pub(crate) fn publish(&self, value: &'static T) -> Result<(), CUresult> {
        let bytes = rustix::param::page_size();
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing of ours.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the page is a mapping of this call alone; wiping it in children is its purpose.
        unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) }
            .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let page = page.cast::<AtomicPtr<T>>();
        // SAFETY: the page is ours, zeroed (a null pointer) and aligned.
        unsafe { &*page }.store(std::ptr::from_ref(value).cast_mut(), Ordering::Release);
        self.0.store(page, Ordering::Release);
        Ok(())
    }

    /// Takes the value out of reach, because the process ends, and gives it for a last word.
    pub(crate) fn withdraw(&self) -> Option<&'static T> {
        let value = self.get().ok()?;
        ENDING.store(true, Ordering::Relaxed);
        let page = self.0.load(Ordering::Acquire);
        // SAFETY: `get` has just found the value on the page, so the pointer leads to the page that
        // `publish` made, which is never unmapped.
        unsafe { &*page }.store(std::ptr::null_mut(), Ordering::Release);
        Some(value)
    }
}

/// Why there is no value on a page.
#[cold]
fn missing() -> CUresult {
    if ENDING.load(Ordering::Relaxed) {
        CUresult::ERROR_DEINITIALIZED
    } else {
        CUresult::ERROR_NOT_INITIALIZED
    }
}
