//! Raw access to the memory that kernels address: the one place of the executor that dereferences an
//! address which a kernel made.
//!
//! Called by `ops`, `spaces` and `texture`, after their tests. Tests nothing itself, and must not know which space
//! an address is of.
//!
//! Client memory may be written by anybody at any time (the client, its other kernels), so nothing here
//! makes a reference to it: single values go through relaxed atomics, runs of bytes through a string
//! move in assembly, which the compiler cannot take for an ordinary access.
//!
//! All functions have one contract: **the bytes at `address` were tested** (`Machine::addresses`), that
//! is, they lie in a [`super::Window`] (mapped for as long as the launch's [`super::AddressSpace`] lives),
//! in the block's shared memory, in the lane group's local memory, in the memory that a cooperative grid's blocks
//! meet in, or in the launch's parameter buffer (loads only); and `address` is a multiple of the access's size.

use std::arch::asm;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The most bytes that are read or written at once.
pub(crate) const WHOLE: usize = 16;

/// A type of memory access.
pub(crate) trait Cell: Copy {
    /// Reads one value.
    ///
    /// # Safety
    /// The module's contract.
    unsafe fn load(address: u64) -> Self;

    /// Writes one value.
    ///
    /// # Safety
    /// The module's contract.
    unsafe fn store(address: u64, value: Self);

    /// Replaces a value by a function of it, atomically; returns the old one. `None` leaves it.
    ///
    /// # Safety
    /// The module's contract.
    unsafe fn update(address: u64, f: impl FnMut(Self) -> Option<Self>) -> Self;

    /// The value of the lowest bits.
    fn of_bits(bits: u128) -> Self;

    /// The value as the lowest bits, above which are zeros.
    fn to_bits(self) -> u128;
}

macro_rules! cell {
    ($($plain:ident $atomic:ident),*) => {$(
        impl Cell for $plain {
            #[inline(always)]
            unsafe fn load(address: u64) -> Self {
                // SAFETY: the caller keeps the module's contract: tested, and aligned to the access.
                unsafe { $atomic::from_ptr(address as *mut Self) }.load(Ordering::Relaxed)
            }

            #[inline(always)]
            unsafe fn store(address: u64, value: Self) {
                // SAFETY: the caller keeps the module's contract: tested, and aligned to the access.
                unsafe { $atomic::from_ptr(address as *mut Self) }.store(value, Ordering::Relaxed);
            }

            #[inline(always)]
            unsafe fn update(address: u64, f: impl FnMut(Self) -> Option<Self>) -> Self {
                // SAFETY: the caller keeps the module's contract: tested, and aligned to the access.
                let cell = unsafe { $atomic::from_ptr(address as *mut Self) };
                match cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, f) {
                    Ok(old) | Err(old) => old,
                }
            }

            #[inline(always)]
            fn of_bits(bits: u128) -> Self {
                bits as Self
            }

            #[inline(always)]
            fn to_bits(self) -> u128 {
                u128::from(self)
            }
        }
    )*};
}
cell!(u8 AtomicU8, u16 AtomicU16, u32 AtomicU32, u64 AtomicU64);

macro_rules! signed {
    ($($signed:ident $unsigned:ident),*) => {$(
        impl Cell for $signed {
            #[inline(always)]
            unsafe fn load(address: u64) -> Self {
                // SAFETY: the caller keeps the module's contract for all bytes of the access.
                unsafe { $unsigned::load(address) as Self }
            }

            #[inline(always)]
            unsafe fn store(address: u64, value: Self) {
                // SAFETY: the caller keeps the module's contract for all bytes of the access.
                unsafe { $unsigned::store(address, value as $unsigned) }
            }

            #[inline(always)]
            unsafe fn update(address: u64, mut f: impl FnMut(Self) -> Option<Self>) -> Self {
                // SAFETY: the caller keeps the module's contract for all bytes of the access.
                unsafe {
                    $unsigned::update(address, |old| f(old as Self).map(|new| new as $unsigned)) as Self
                }
            }

            #[inline(always)]
            fn of_bits(bits: u128) -> Self {
                bits as Self
            }

            #[inline(always)]
            fn to_bits(self) -> u128 {
                u128::from(self as $unsigned)
            }
        }
    )*};
}
signed!(i8 u8, i16 u16, i32 u32);

/// Reads so many bytes at once: 2, 4, 8 or [`WHOLE`].
///
/// # Safety
/// The module's contract.
#[inline(always)]
pub(crate) unsafe fn load_whole(address: u64, bytes: usize) -> u128 {
    // SAFETY: the caller keeps the module's contract for all bytes of the access.
    unsafe {
        match bytes {
            2 => u16::load(address).into(),
            4 => u32::load(address).into(),
            8 => u64::load(address).into(),
            _ => {
                let (low, high): (u64, u64);
                // Every processor that has AVX makes one access of it, as do those others that are known.
                asm!(
                    "movdqa {both}, [{address}]",
                    "movq {low}, {both}",
                    "psrldq {both}, 8",
                    "movq {high}, {both}",
                    address = in(reg) address,
                    both = out(xmm_reg) _,
                    low = lateout(reg) low,
                    high = lateout(reg) high,
                    options(nostack, preserves_flags, readonly),
                );
                u128::from(high) << 64 | u128::from(low)
            }
        }
    }
}

/// Replaces [`WHOLE`] bytes by a function of them, atomically; returns the old ones. `None` leaves them.
///
/// # Safety
/// The module's contract, and the processor has `cmpxchg16b`.
pub(crate) unsafe fn update_whole(address: u64, mut f: impl FnMut(u128) -> Option<u128>) -> u128 {
    // SAFETY: the caller keeps the module's contract for all bytes of the access.
    let mut old = unsafe { load_whole(address, WHOLE) };
    loop {
        let Some(new) = f(old) else {
            return old;
        };
        let (low, high) = (old as u64, (old >> 64) as u64);
        let (found_low, found_high): (u64, u64);
        // SAFETY: the caller keeps the module's contract, alignment with it, and that the instruction is there. The
        // compiler has a use of its own for `rbx`, which gets its value back.
        unsafe {
            asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b [rdi]",
                "mov rbx, rsi",
                in("rdi") address,
                inout("rsi") new as u64 => _,
                in("rcx") (new >> 64) as u64,
                inout("rax") low => found_low,
                inout("rdx") high => found_high,
                options(nostack),
            );
        }
        let found = u128::from(found_high) << 64 | u128::from(found_low);
        if found == old {
            return old;
        }
        old = found;
    }
}

/// Writes so many bytes at once: 2, 4, 8 or [`WHOLE`].
///
/// # Safety
/// The module's contract.
#[inline(always)]
pub(crate) unsafe fn store_whole(address: u64, bytes: usize, value: u128) {
    // SAFETY: the caller keeps the module's contract for all bytes of the access.
    unsafe {
        match bytes {
            2 => u16::store(address, value as u16),
            4 => u32::store(address, value as u32),
            8 => u64::store(address, value as u64),
            // Every processor that has AVX makes one access of it, as do those others that are known.
            _ => asm!(
                "movq {both}, {low}",
                "movq {other}, {high}",
                "punpcklqdq {both}, {other}",
                "movdqa [{address}], {both}",
                address = in(reg) address,
                low = in(reg) value as u64,
                high = in(reg) (value >> 64) as u64,
                both = out(xmm_reg) _,
                other = out(xmm_reg) _,
                options(nostack, preserves_flags),
            ),
        }
    }
}

/// Copies a short row from client memory to `to`: `LEN` bytes, a multiple of 16.
///
/// # Safety
/// The module's contract for all of the row at `from`, but that it need not be aligned; `to` is valid for writing it.
#[inline(always)]
pub(crate) unsafe fn copy_row_in<const LEN: usize>(to: *mut u8, from: u64) {
    for at in (0..LEN).step_by(16) {
        // SAFETY: the caller's; both rows end where the loop does.
        unsafe {
            asm!(
                "movups {part}, xmmword ptr [{from}]",
                "movups xmmword ptr [{to}], {part}",
                from = in(reg) from + at as u64,
                to = in(reg) to.add(at),
                part = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `len` bytes from client memory to `to`.
///
/// # Safety
/// The module's contract for all `len` bytes at `from`; `to` is valid for writing `len` bytes.
pub(crate) unsafe fn copy_in(to: *mut u8, from: u64, len: usize) {
    // SAFETY: the caller keeps that `from` may be read and `to` written for `len` bytes; the direction flag is clear
    // by the ABI.
    unsafe { string_move(to as u64, from, len) }
}

/// Copies `len` bytes from `from` to client memory.
///
/// # Safety
/// The module's contract for all `len` bytes at `to`; `from` is valid for reading `len` bytes.
pub(crate) unsafe fn copy_out(to: u64, from: *const u8, len: usize) {
    // SAFETY: the caller keeps that `from` may be read and `to` written for `len` bytes; the direction flag is clear
    // by the ABI.
    unsafe { string_move(to, from as u64, len) }
}

/// Copies `len` bytes of client memory to another place of it.
///
/// # Safety
/// The module's contract for all `len` bytes at both, at `to` for writing.
pub(crate) unsafe fn copy(to: u64, from: u64, len: usize) {
    // SAFETY: the caller keeps that both are client memory of `len` bytes, `to` for writing; the direction flag is
    // clear by the ABI.
    unsafe { string_move(to, from, len) }
}

/// Moves bytes outside of the compiler's sight.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
unsafe fn string_move(to: u64, from: u64, len: usize) {
    // SAFETY: the caller's; only the named registers and that memory change.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}
