//! Memory that goes over in pieces: each is copied to where it is to be, and that is then put in its place in
//! one system call. Several threads share what is large, since most of the time goes to the kernel, which
//! makes pages.
//!
//! Knows nothing of registrations.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use protocol::operations::HUGE_PAGE;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::guard::Guard;
use crate::os::prefault::make_present;
use crate::os::signal_mask;

/// Bytes that go over at once.
const PIECE: u64 = HUGE_PAGE;

/// Pieces that one thread takes at a time: some calls of the kernel cost as much for one.
const RUN: usize = 8;

/// Bytes for which one thread more is worth being made, and the most threads.
const SHARE: u64 = 8 << 20;
const THREADS: usize = 8;

/// Bytes of a page.
pub(super) fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// An address as the kernel takes it.
pub(super) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Cuts pages into pieces, which end where huge pages do. The first and the last page are pieces of their
/// own.
pub(super) fn pieces(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = pages.start;
    let inner_end = pages.end - page_size();
    std::iter::from_fn(move || {
        if at >= pages.end {
            return None;
        }
        let end = if at == pages.start || at >= inner_end {
            at + page_size()
        } else {
            (at / PIECE * PIECE + PIECE).min(inner_end)
        };
        let piece = at..end;
        at = end;
        Some(piece)
    })
}

/// Does something with each piece of some pages, on several threads if they are many; before that, something with each
/// run of pieces that one thread takes. Whoever writes to the first or last page meanwhile, where the program may have other
/// things too, is held up.
///
/// # Errors
/// What one of the pieces gave; others may be done by then.
pub(super) fn each(
    pages: &Range<u64>,
    prepare: impl Fn(&Range<u64>) + Sync,
    work: impl Fn(&Range<u64>) -> rustix::io::Result<()> + Sync,
) -> rustix::io::Result<()> {
    let is_end = |piece: &Range<u64>| {
        let alone = piece.end - piece.start == page_size();
        alone && (piece.start == pages.start || piece.end == pages.end)
    };
    let (ends, inner): (Vec<_>, Vec<_>) = pieces(pages.clone()).partition(is_end);
    for end in &ends {
        let guard = Guard::over(end);
        let done = work(end);
        drop(guard);
        done?;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let worth = 1 + (pages.end - pages.start) / SHARE;
    let threads = processors.min(THREADS).min(worth as usize);
    let left = Mutex::new(inner.chunks(RUN));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let part = || {
        while let Some(run) = next() {
            if let (Some(first), Some(last)) = (run.first(), run.last()) {
                prepare(&(first.start..last.end));
            }
            run.iter().try_for_each(&work).inspect_err(|_| {
                // Nobody begins another one.
                *left.lock().unwrap_or_else(PoisonError::into_inner) = [].chunks(RUN);
            })?;
        }
        Ok(())
    };
    if threads <= 1 {
        return part();
    }
    std::thread::scope(|scope| {
        let signals = signal_mask::Blocked::now();
        let helpers: Vec<_> = (1..threads)
            .map_while(|_| {
                let builder = std::thread::Builder::new().name("cuda register".into());
                // Without another thread this one does more.
                builder.spawn_scoped(scope, part).ok()
            })
            .collect();
        drop(signals);
        let mine = part();
        helpers.into_iter().fold(mine, |result, helper| {
            let theirs = helper.join().unwrap_or(Err(rustix::io::Errno::FAULT));
            result.and(theirs)
        })
    })
}

/// Copies what differs, page by page: memory that was never touched is as empty as the window's, and need
/// not be written.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]; nobody else touches `to`.
unsafe fn copy_differences(from: *const u8, to: *mut u8, bytes: usize) {
    let step = page_size() as usize;
    for at in (0..bytes).step_by(step) {
        // SAFETY: the caller's promise; all of it is whole pages.
        unsafe {
            let (from, to) = (from.add(at), to.add(at));
            if !same(from, to, step) {
                std::ptr::copy_nonoverlapping(from, to, step);
            }
        }
    }
}

unsafe extern "C" {
    /// C.
    fn memcmp(one: *const c_void, other: *const c_void, bytes: usize) -> std::ffi::c_int;
}

/// Whether two pieces are the same, of which others may write one meanwhile.
///
/// # Safety
/// Both are readable.
unsafe fn same(one: *const u8, other: *const u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise. By the C library, since no Rust reference may lead to what others write.
    unsafe { memcmp(one.cast(), other.cast(), bytes) == 0 }
}

/// Copies a piece to the window, and puts the window's pages in its place.
///
/// # Safety
/// The piece is readable memory of the program and `there` the window's for as many bytes, which
/// nobody uses yet.
pub(super) unsafe fn replace(
    piece: &Range<u64>,
    there: u64,
    read_only: bool,
) -> rustix::io::Result<()> {
    let bytes = (piece.end - piece.start) as usize;
    make_present(&(there..there + bytes as u64));
    // SAFETY: the caller's promise; the two do not overlap, as one is in the window and one is not.
    // A mapping of old size 0 is made a second time, at the piece's address, which it replaces.
    unsafe {
        copy_differences(
            pointer(piece.start).cast::<u8>().cast_const(),
            pointer(there).cast::<u8>(),
            bytes,
        );
        rustix::mm::mremap_fixed(
            pointer(there),
            0,
            bytes,
            MremapFlags::MAYMOVE,
            pointer(piece.start),
        )?;
        if read_only {
            rustix::mm::mprotect(pointer(piece.start), bytes, MprotectFlags::READ)?;
        }
    }
    make_present(piece);
    Ok(())
}

/// New private memory that takes the place of pages, piece by piece. What of it is still where it was made is
/// whoever's has it to unmap.
#[derive(Clone, Copy)]
struct Fresh {
    /// The first page's new memory, which is as far from a huge page's beginning as the page is.
    first: u64,
    pages_start: u64,
    read_only: bool,
}

impl Fresh {
    fn of(pages: &Range<u64>, read_only: bool) -> rustix::io::Result<Self> {
        let bytes = pages.end - pages.start;
        let room = if bytes < PIECE { bytes } else { bytes + PIECE };
        // SAFETY: the mapping is new, and what is unmapped of it is nobody's.
        let first = unsafe {
            let nowhere = std::ptr::null_mut();
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let made =
                rustix::mm::mmap_anonymous(nowhere, room as usize, access, MapFlags::PRIVATE)?;
            let made = made.addr() as u64;
            let first = match room == bytes {
                true => made,
                false => made + pages.start.wrapping_sub(made) % PIECE,
            };
            for (from, to) in [(made, first), (first + bytes, made + room)] {
                if from < to {
                    let _ = rustix::mm::munmap(pointer(from), (to - from) as usize);
                }
            }
            // One page fault in the place of 512, where the system has huge pages.
            if room != bytes {
                let _ = rustix::mm::madvise(pointer(first), bytes as usize, Advice::LinuxHugepage);
            }
            first
        };
        Ok(Self {
            first,
            pages_start: pages.start,
            read_only,
        })
    }

    fn place(self, piece: &Range<u64>) -> *mut c_void {
        pointer(self.first + (piece.start - self.pages_start))
    }

    /// Makes the pages of a run at once. Where the kernel does not know that, the copies make them.
    fn make_present(self, run: &Range<u64>) {
        let bytes = (run.end - run.start) as usize;
        // SAFETY: the memory is ours alone.
        let _ = unsafe { rustix::mm::madvise(self.place(run), bytes, Advice::LinuxPopulateWrite) };
    }

    /// Copies a piece and puts the copy in its place. Makes system calls only.
    ///
    /// # Safety
    /// The piece is mapped and readable, the program knows of nothing else that is there, and nobody has replaced or
    /// unmapped it.
    unsafe fn replace(self, piece: &Range<u64>) -> rustix::io::Result<()> {
        let bytes = (piece.end - piece.start) as usize;
        let copy = self.place(piece);
        // SAFETY: the copy's memory is ours alone until it is moved to where the piece was, which is the caller's
        // to give.
        unsafe {
            std::ptr::copy_nonoverlapping(
                pointer(piece.start).cast::<u8>().cast_const(),
                copy.cast::<u8>(),
                bytes,
            );
            if self.read_only {
                rustix::mm::mprotect(copy, bytes, MprotectFlags::READ)?;
            }
            let there = pointer(piece.start);
            rustix::mm::mremap_fixed(copy, bytes, bytes, MremapFlags::MAYMOVE, there)?;
        }
        Ok(())
    }

    /// Unmaps what was to replace a piece.
    ///
    /// # Safety
    /// It has not.
    unsafe fn discard(self, piece: &Range<u64>) {
        let bytes = (piece.end - piece.start) as usize;
        // SAFETY: by the caller's promise this is still ours.
        let _ = unsafe { rustix::mm::munmap(self.place(piece), bytes) };
    }
}

/// Copies pages into private memory and puts it in their place.
///
/// # Errors
/// What the kernel said of one of the pieces; others are private by then.
///
/// # Safety
/// The pages are mapped and readable, and the program knows of nothing else that is there.
pub(super) unsafe fn make_private(pages: &Range<u64>, read_only: bool) -> rustix::io::Result<()> {
    let fresh = Fresh::of(pages, read_only)?;
    let failed = Mutex::new(None);
    let first_error = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    each(
        pages,
        |run| fresh.make_present(run),
        |piece| {
            let before = *first_error();
            // SAFETY: the caller's promise; each piece comes once.
            let done = before.map_or_else(|| unsafe { fresh.replace(piece) }, Err);
            if let Err(error) = done {
                first_error().get_or_insert(error);
                // SAFETY: it was not moved.
                unsafe { fresh.discard(piece) };
            }
            // All others are to be moved or unmapped.
            Ok(())
        },
    )?;
    let error = *first_error();
    error.map_or(Ok(()), Err)
}

/// As [`make_private`], by system calls alone, since a fork's child calls it. What cannot be made private stays.
///
/// # Safety
/// As [`make_private`].
pub(super) unsafe fn make_private_in_child(pages: &Range<u64>, read_only: bool) {
    let Ok(fresh) = Fresh::of(pages, read_only) else {
        return;
    };
    for piece in pieces(pages.clone()) {
        // SAFETY: the caller's promise; each piece comes once, and is unmapped where it was not moved.
        unsafe {
            if fresh.replace(&piece).is_err() {
                fresh.discard(&piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn pieces_cover_all_pages_and_the_ends_are_alone() {
        let page = page_size();
        for first in [0, 16, 511, 512] {
            for count in [1, 2, 3, 512, 513, 514, 2000] {
                let pages = first * page..(first + count) * page;
                let cut: Vec<_> = pieces(pages.clone()).collect();
                assert_eq!(cut[0].end - cut[0].start, page);
                let last = &cut[cut.len() - 1];
                assert_eq!((last.end - last.start, last.end), (page, pages.end));
                let mut at = pages.start;
                for piece in cut {
                    assert_eq!(piece.start, at);
                    assert!(piece.end > at && piece.end - at <= PIECE);
                    assert_eq!(piece.start / PIECE, (piece.end - 1) / PIECE);
                    at = piece.end;
                }
            }
        }
    }

    #[test]
    fn all_pieces_are_worked_on_once_and_an_error_is_told() {
        let bytes = 4 * SHARE as usize;
        // SAFETY: a new private mapping at no fixed address replaces nothing.
        let memory = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE)
        }
        .unwrap();
        let pages = memory.addr() as u64..memory.addr() as u64 + bytes as u64;
        let done = Mutex::new(Vec::new());
        let (runs, bytes_of_runs) = (AtomicU64::new(0), AtomicU64::new(0));
        let run = |run: &Range<u64>| {
            runs.fetch_add(1, Ordering::Relaxed);
            bytes_of_runs.fetch_add(run.end - run.start, Ordering::Relaxed);
        };
        each(&pages, run, |piece| {
            done.lock().unwrap().push(piece.clone());
            Ok(())
        })
        .unwrap();
        let mut done = done.into_inner().unwrap();
        done.sort_by_key(|piece| piece.start);
        assert_eq!(done, pieces(pages.clone()).collect::<Vec<_>>());
        let middle = pages.start + bytes as u64 / 2;
        let in_runs = bytes as u64 - 2 * page_size();
        assert_eq!(bytes_of_runs.load(Ordering::Relaxed), in_runs);
        assert!(runs.load(Ordering::Relaxed) <= 3);
        let refused = each(&pages, run, |piece| match piece.contains(&middle) {
            true => Err(rustix::io::Errno::NOMEM),
            false => Ok(()),
        });
        assert_eq!(refused, Err(rustix::io::Errno::NOMEM));
        // SAFETY: `memory` is a mapping of this test alone, of so many bytes.
        unsafe { rustix::mm::munmap(memory, bytes) }.unwrap();
    }
}
