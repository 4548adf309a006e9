//! Copies: from which memory to which, and by what way.
//!
//! Memory that devices reach (device memory, page-locked host memory of ours) is copied by the
//! server alone. The program's own memory is not, so its bytes travel: short ones inside of the
//! record, others through staging memory (`staged`).
//!
//! Owns the choice of the way. Called by `api::copy` and `api::array_copy`, and by `graph::lower` for copies that
//! are made here. Must not know which function of CUDA's asked.

use cuda_abi::CUresult;

use crate::memory::address_space::AddressSpace;
use crate::stream::StreamTarget;
use crate::stream::capture::{CAPTURED, Operation};

pub(crate) mod recorded;
pub(crate) mod sides;
mod staged;
mod wire_form;

use recorded::RecordedCopy;
use sides::{CopySide, Extent, Location};
use staged::{copy_in, copy_out};
pub(crate) use wire_form::encode_copy;
use wire_form::{End, enqueue};

/// Whether a call comes back before the copy is done.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// As early as CUDA allows for the memory involved.
    Early,
    /// When the copy is done, or cannot be told from it.
    WhenDone,
}

/// Copies in the order of a stream.
///
/// # Safety
/// Memory of the program that a side names holds the extent, readable or writable as the side is,
/// until the call returns.
pub(crate) unsafe fn copy(
    addresses: &AddressSpace,
    target: &StreamTarget,
    to: CopySide,
    from: CopySide,
    extent: Extent,
    when: Return,
) -> Result<(), CUresult> {
    if extent.is_empty() {
        return Ok(());
    }
    addresses.check_side(&to, &extent)?;
    addresses.check_side(&from, &extent)?;
    if target.stream.mode_bits() & CAPTURED != 0
        && let Some(capture) = target.current_capture()?
    {
        let context = target.stream.context();
        let copy = RecordedCopy {
            to,
            from,
            extent,
            context,
            original: None,
        };
        return capture.add(target.slot, Operation::Described(Box::new(copy)));
    }
    match (to.place, from.place) {
        (Location::Program(to_start), Location::Program(from_start)) => {
            // Nothing for a device, but for the order: what was posted before comes first.
            target.wait(target.stream.posted())?;
            // SAFETY: the caller vouches for the program's memory on both sides.
            unsafe { copy_here(to_start, &to, from_start, &from, &extent) };
            Ok(())
        }
        // SAFETY: the caller vouches for the program's memory that the copy reads.
        (_, Location::Program(start)) => unsafe {
            copy_in(target, &to, start, &from, &extent, when)
        },
        // SAFETY: the caller vouches for the program's memory that the copy writes.
        (Location::Program(start), _) => unsafe { copy_out(target, start, &to, &from, &extent) },
        (to_place, from_place) => {
            let sequence = enqueue(target, &End::of(&to), &End::of(&from), &extent)?;
            // Between device memory a call need not wait; a program sees page-locked memory.
            let seen = matches!(to_place, Location::Pinned(_))
                || matches!(from_place, Location::Pinned(_));
            match when {
                Return::WhenDone if seen => target.wait(sequence),
                _ => Ok(()),
            }
        }
    }?;
    let is_sync = |side: &CopySide| {
        side.address()
            .is_some_and(|address| addresses.has_sync_memops(address))
    };
    match when {
        Return::WhenDone if is_sync(&to) || is_sync(&from) => target.wait(target.stream.posted()),
        _ => Ok(()),
    }
}

/// Copies between two sides, from where each begins.
///
/// # Safety
/// Both hold the extent, readable and writable as they are used.
pub(crate) unsafe fn copy_here(
    to_start: *mut u8,
    to: &CopySide,
    from_start: *mut u8,
    from: &CopySide,
    extent: &Extent,
) {
    for z in 0..extent.depth {
        for y in 0..extent.height {
            // SAFETY: the row lies in what the caller vouches for on both sides.
            unsafe {
                std::ptr::copy(
                    from_start.add((z * from.slice + y * from.pitch) as usize),
                    to_start.add((z * to.slice + y * to.pitch) as usize),
                    extent.width as usize,
                );
            }
        }
    }
}
