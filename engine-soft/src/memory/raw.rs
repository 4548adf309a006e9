//! The only raw accesses of the layers above the executor: bytes of a client's memory moved or filled.
//!
//! Memory of a client is never seen as a Rust reference, for the client may write it meanwhile. Called by copies,
//! with addresses that a window was found for. Must not know whose they are.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Moves bytes between two places of this process, which may overlap.
///
/// A naturally aligned 1, 2, 4 or 8 bytes arrive in one store, for kernels that wait for a flag.
///
/// # Safety
/// `count` bytes at `to` and at `from` stay mapped meanwhile, those at `to` writable and no part of an object that Rust
/// sees by reference.
#[inline]
pub(crate) unsafe fn move_bytes(to: u64, from: u64, count: u64) {
    macro_rules! whole {
        ($atomic:ty) => {{
            // SAFETY: the caller's: both sides are mapped; they are aligned to the type's size.
            let (to, from) = unsafe { (&*(to as *const $atomic), &*(from as *const $atomic)) };
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }};
    }
    let aligned = (to | from).is_multiple_of(count.max(1));
    match count {
        1 => whole!(AtomicU8),
        2 if aligned => whole!(AtomicU16),
        4 if aligned => whole!(AtomicU32),
        8 if aligned => whole!(AtomicU64),
        // SAFETY: the caller's: both sides are mapped. They may overlap, which `copy` allows. A client that writes
        // meanwhile gets a mix of its own bytes, as on a GPU.
        _ => unsafe {
            std::ptr::copy(from as *const u8, to as *mut u8, count as usize);
        },
    }
}

/// Repeats the low `element` bytes of a value.
///
/// # Safety
/// `count` bytes at `to` stay mapped and writable meanwhile, and are no part of an object that Rust sees by reference;
/// `to` and `count` are multiples of `element`, which is 1, 2 or 4.
#[inline]
pub(crate) unsafe fn fill_bytes(to: u64, value: u32, element: u32, count: u64) {
    let bytes = value.to_le_bytes();
    let pattern = &bytes[..element as usize];
    if pattern.iter().all(|&byte| byte == pattern[0]) && count != element.into() {
        // SAFETY: the caller's: the range is mapped.
        unsafe { std::ptr::write_bytes(to as *mut u8, pattern[0], count as usize) };
        return;
    }
    for at in (to..to + count).step_by(element as usize) {
        match element {
            // SAFETY: the caller's: the range is mapped.
            1 => unsafe { (at as *mut u8).write_volatile(value as u8) },
            // SAFETY: the caller's: the range is mapped, and its start a multiple of 2.
            2 => unsafe { (at as *mut u16).write(value as u16) },
            // SAFETY: the caller's: the range is mapped, and its start a multiple of 4.
            _ => unsafe { (at as *mut u32).write(value) },
        }
    }
}
