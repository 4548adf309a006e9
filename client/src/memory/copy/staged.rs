//! Copies between the program's memory and what devices reach: short ones inside of the record, others
//! through staging memory, piece by piece, so that pieces are copied here while others are copied there.
//!
//! Each byte is thus copied twice, and what that costs is where the bytes are meanwhile. So pieces are
//! small and few of them are on their way: they are still in the processor's cache when the other side
//! takes them. Where there are processors to spare, several threads share a large copy.
//!
//! Owns the size of pieces and how many are on their way. Called by `memory::copy`, which has found that it is this
//! way. Must not know handles, nor decide where an address lies.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;
use protocol::operations::{Space, Write};
use transport::session::Chunk;

use super::Return;
use super::sides::{ArrayPosition, CopySide, Extent, Location};
use super::wire_form::{End, enqueue};
use crate::os::signal_mask;
use crate::stream::StreamTarget;

/// Bytes that travel inside of a record.
const INLINE: u64 = 16 << 10;

/// Bytes of a piece of a large copy. The software GPU copies as much as this without waking a worker.
const PIECE: u64 = 256 << 10;

/// Bytes of a piece of a small one.
const LEAST_PIECE: u64 = 128 << 10;

/// Bytes of a piece of a copy that several threads share, and the most of any piece on a machine of many
/// processors: there the copy on the other side is rather another device's, to which each piece costs a
/// few microseconds.
const SHARED_PIECE: u64 = 512 << 10;

/// Pieces of a small copy on such a machine.
const FEW: u64 = 3;

/// Pieces that a thread may have on their way.
const AHEAD: usize = 8;

/// From so many bytes on a copy is shared by several threads: each takes some 50 µs to make.
const SHARED: u64 = 16 << 20;

/// From so many bytes on what arrives in the program's memory goes past the caches, which it would
/// only empty.
const PAST_CACHES: u64 = 4 << 20;

/// Threads that share a large copy with the calling one: one of four processors, since others have work
/// too, and no more than there is memory bandwidth for.
static HELPERS: LazyLock<usize> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 4).min(3)
});

/// A part of an extent that goes through staging at once: `rows` rows of `width` bytes from row `y`
/// of slice `z`, `x` bytes into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    x: u64,
    y: u64,
    z: u64,
    width: u64,
    rows: u64,
}

impl Piece {
    const fn bytes(&self) -> u64 {
        self.width * self.rows
    }

    /// Where it begins on a side, from where the side begins.
    const fn offset(&self, side: &CopySide) -> u64 {
        self.z * side.slice + self.y * side.pitch + self.x
    }

    /// Its rows: where each lies in a chunk, and on a side from where the side begins.
    fn rows(self, side: &CopySide) -> impl Iterator<Item = (usize, usize)> {
        let (offset, pitch) = (self.offset(side), side.pitch);
        (0..self.rows)
            .map(move |row| ((row * self.width) as usize, (offset + row * pitch) as usize))
    }

    /// Posts the copy of this piece between staging and a side that devices reach.
    fn enqueue(
        &self,
        target: &StreamTarget,
        side: &CopySide,
        chunk: &Chunk,
        into_staging: bool,
    ) -> Result<u64, CUresult> {
        let there = match side.place {
            Location::Array(place) => Location::Array(ArrayPosition {
                x: place.x + self.x,
                y: place.y + self.y,
                z: place.z + self.z,
                ..place
            }),
            place => place.advanced(self.offset(side)),
        };
        let there = End::of(&CopySide {
            place: there,
            ..*side
        });
        let staged = End {
            space: Space::Staging,
            ..End::of(&CopySide {
                place: Location::Device(chunk.offset()),
                pitch: self.width,
                slice: 0,
            })
        };
        let extent = Extent {
            width: self.width,
            height: self.rows,
            depth: 1,
        };
        if into_staging {
            enqueue(target, &staged, &there, &extent)
        } else {
            enqueue(target, &there, &staged, &extent)
        }
    }
}

/// An extent cut into pieces of at most so many bytes, which threads take one by one.
#[derive(Debug)]
struct Pieces {
    extent: Extent,
    /// Bytes of a row that a piece has, and its rows; less at the ends.
    width: u64,
    rows: u64,
    /// Pieces side by side in a row, and in a slice one above the other.
    across: u64,
    down: u64,
    /// The next one that nobody has taken.
    next: AtomicU64,
}

impl Pieces {
    /// `extent` is not empty.
    fn new(extent: Extent, most: u64) -> Self {
        let width = extent.width.min(most);
        let rows = if extent.width > most {
            1
        } else {
            (most / extent.width).max(1)
        };
        Self {
            extent,
            width,
            rows,
            across: extent.width.div_ceil(width),
            down: extent.height.div_ceil(rows),
            next: AtomicU64::new(0),
        }
    }

    /// Takes a piece, unless all are taken.
    fn next_piece(&self) -> Option<Piece> {
        // Relaxed: the number only says whose a piece is.
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let z = index / (self.across * self.down);
        if z >= self.extent.depth {
            return None;
        }
        let y = index / self.across % self.down * self.rows;
        let x = index % self.across * self.width;
        Some(Piece {
            x,
            y,
            z,
            width: self.width.min(self.extent.width - x),
            rows: self.rows.min(self.extent.height - y),
        })
    }

    /// Leaves nothing to take: something went wrong.
    fn stop(&self) {
        self.next.store(u64::MAX / 2, Ordering::Relaxed);
    }
}

/// Bytes of an extent.
const fn bytes_of(extent: &Extent) -> u64 {
    extent
        .width
        .saturating_mul(extent.height)
        .saturating_mul(extent.depth)
}

/// How many threads share the copy of an extent with the calling one.
fn helpers(extent: &Extent) -> usize {
    match bytes_of(extent) {
        ..SHARED => 0,
        _ => *HELPERS,
    }
}

/// Bytes of the pieces of an extent with so many helpers on hand: so many that pieces are copied on both
/// sides at once.
const fn piece_of(extent: &Extent, on_hand: usize) -> u64 {
    let (pieces, most) = match on_hand {
        0 => (AHEAD as u64, PIECE),
        _ => (FEW, SHARED_PIECE),
    };
    match bytes_of(extent) / pieces {
        ..LEAST_PIECE => LEAST_PIECE,
        bytes if bytes < most => bytes.next_multiple_of(4096),
        _ => most,
    }
}

/// A copy that several threads may share.
struct Copying<'a> {
    target: &'a StreamTarget,
    /// Where the program's side begins.
    program: *mut u8,
    /// The program's side, and that which devices reach.
    here: &'a CopySide,
    there: &'a CopySide,
    pieces: Pieces,
    helpers: usize,
}

// SAFETY: the program's memory is there until the call returns, as the makers of this vouch for, and
// that is after all threads that share it; no two of them take the same piece, so they touch different
// bytes. Everything else in it is shared by threads anyway.
unsafe impl Sync for Copying<'_> {}

impl<'a> Copying<'a> {
    /// # Safety
    /// Every byte of the extent on the side of `here` lies in memory at `program` that is readable, and writable if it is
    /// copied to, until this is dropped.
    unsafe fn new(
        target: &'a StreamTarget,
        program: *mut u8,
        here: &'a CopySide,
        there: &'a CopySide,
        extent: &Extent,
        helpers: usize,
    ) -> Self {
        Self {
            target,
            program,
            here,
            there,
            pieces: Pieces::new(*extent, piece_of(extent, *HELPERS)),
            helpers,
        }
    }

    /// Has all pieces copied, by this thread and helpers, each of which does `part` until there are no
    /// more pieces. Gives the last place in the stream that was taken, or the first error.
    fn share(&self, part: impl Fn(&Self) -> Result<u64, CUresult> + Sync) -> Result<u64, CUresult> {
        let part = || {
            let done = part(self);
            if done.is_err() {
                self.pieces.stop();
            }
            done
        };
        if self.helpers == 0 {
            return part();
        }
        std::thread::scope(|scope| {
            let signals = signal_mask::Blocked::now();
            let helpers: Vec<_> = (0..self.helpers)
                .map_while(|_| {
                    let builder = std::thread::Builder::new().name("cuda copy".into());
                    // Without another thread this one does more.
                    builder.spawn_scoped(scope, part).ok()
                })
                .collect();
            drop(signals);
            let mine = part();
            helpers.into_iter().fold(mine, |result, helper| {
                let theirs = helper.join().unwrap_or(Err(CUresult::ERROR_UNKNOWN));
                result.and_then(|last| theirs.map(|other| last.max(other)))
            })
        })
    }

    /// Copies pieces out of the program's memory, and posts their copies to where they belong. If the
    /// call waits for all in the end (`waits`), it also waits in between, so that few chunks of staging
    /// memory are used again and again.
    fn copy_to_device(&self, waits: bool) -> Result<u64, CUresult> {
        let connection = self.target.current.connection();
        let mut under_way = VecDeque::new();
        while let Some(piece) = self.pieces.next_piece() {
            if waits && under_way.len() == AHEAD {
                // For half of them: both sides have something to do while one wakes the other.
                if let Some(sequence) = under_way.drain(..AHEAD / 2).next_back() {
                    self.target.wait(sequence)?;
                }
            }
            let chunk = connection.stage(piece.bytes() as usize)?;
            for (at, offset) in piece.rows(self.here) {
                // SAFETY: the row lies in the extent, which `copy_in`'s caller vouches for.
                unsafe {
                    chunk.copy_in_from(at, self.program.add(offset), piece.width as usize);
                }
            }
            let sequence = piece.enqueue(self.target, self.there, &chunk, false)?;
            connection.reuse_after(chunk, self.target.slot, sequence);
            under_way.push_back(sequence);
        }
        Ok(under_way.back().copied().unwrap_or(0))
    }

    /// Posts copies of pieces into staging memory, and copies them from there to the program's.
    fn copy_from_device(&self) -> Result<u64, CUresult> {
        let connection = self.target.current.connection();
        let mut under_way: VecDeque<(Piece, Chunk, u64)> = VecDeque::new();
        let mut result = Ok(0);
        while let Some(piece) = self.pieces.next_piece() {
            if under_way.len() == AHEAD
                && let Some(first) = under_way.pop_front()
            {
                result = self.arrive(first);
            }
            let posted = result.and_then(|_| {
                let chunk = connection.stage(piece.bytes() as usize)?;
                let sequence = piece.enqueue(self.target, self.there, &chunk, true)?;
                Ok((piece, chunk, sequence))
            });
            match posted {
                Ok(posted) => under_way.push_back(posted),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        for piece in under_way {
            // After an error, this only sees to it that the chunks are kept as long as they are used.
            result = result.and(self.arrive(piece));
        }
        result
    }

    /// Waits for a piece, and copies it to the program's memory.
    fn arrive(&self, (piece, chunk, sequence): (Piece, Chunk, u64)) -> Result<u64, CUresult> {
        if let Err(error) = self.target.wait(sequence) {
            // The server may still write there.
            let connection = self.target.current.connection();
            connection.reuse_after(chunk, self.target.slot, sequence);
            return Err(error);
        }
        let past_caches = bytes_of(&self.pieces.extent) >= PAST_CACHES;
        for (at, offset) in piece.rows(self.here) {
            // SAFETY: the row lies in the extent, which `copy_out`'s caller vouches for.
            unsafe {
                let (into, bytes) = (self.program.add(offset), piece.width as usize);
                match past_caches {
                    true => chunk.copy_out_non_temporal(at, into, bytes),
                    false => chunk.copy_out_to(at, into, bytes),
                }
            }
        }
        Ok(sequence)
    }
}

/// Copies from the program's memory.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy_in(
    target: &StreamTarget,
    to: &CopySide,
    start: *mut u8,
    from: &CopySide,
    extent: &Extent,
    when: Return,
) -> Result<(), CUresult> {
    if let Some(to) = to.address()
        && extent.height == 1
        && extent.depth == 1
        && extent.width <= INLINE
    {
        // SAFETY: the program's memory is readable for the run. It must not write it meanwhile,
        // as for any copy of CUDA's.
        let bytes = unsafe { std::slice::from_raw_parts(start, extent.width as usize) };
        // Even a synchronous copy of so little comes back before it has arrived, as CUDA's does.
        return target.enqueue(&Write { to }, &[bytes]).map(drop);
    }
    let waits = when == Return::WhenDone;
    // SAFETY: the caller vouches that the extent from `start` on is readable during this call.
    let copying = unsafe { Copying::new(target, start, from, to, extent, helpers(extent)) };
    let last = copying.share(|copying| copying.copy_to_device(waits))?;
    match when {
        Return::WhenDone => target.wait(last),
        Return::Early => Ok(()),
    }
}

/// Copies to the program's memory. Returns when all of it is there.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy_out(
    target: &StreamTarget,
    start: *mut u8,
    to: &CopySide,
    from: &CopySide,
    extent: &Extent,
) -> Result<(), CUresult> {
    // SAFETY: the caller vouches that the extent from `start` on is writable during this call.
    let copying = unsafe { Copying::new(target, start, to, from, extent, helpers(extent)) };
    copying.share(Copying::copy_from_device).map(drop)
}

#[cfg(test)]
mod tests {
    use cuda_abi::types::CUstream;

    use super::*;
    use crate::stream::target;
    use crate::testing;

    #[test]
    fn pieces_cover_an_extent_once() {
        for (width, height, depth) in [(1, 1, 1), (10, 3, 2), (7, 1, 1), (8, 9, 1), (25, 2, 3)] {
            let mut seen = vec![0; (width * height * depth) as usize];
            let extent = Extent {
                width,
                height,
                depth,
            };
            let pieces = Pieces::new(extent, 8);
            while let Some(piece) = pieces.next_piece() {
                assert!(piece.bytes() <= 8 && piece.bytes() > 0);
                for row in 0..piece.rows {
                    for x in 0..piece.width {
                        let at = (piece.z * height + piece.y + row) * width + piece.x + x;
                        seen[at as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "{extent:?}");
        }
    }
    #[test]
    fn several_threads_share_a_copy_both_ways() {
        let mine = testing::context(0);
        // More than all of staging, in rows that pieces have several of.
        let (width, height) = (10_007, 4000);
        let bytes = (width * height) as usize;
        let device = CopySide {
            place: Location::Device(testing::allocate(bytes)),
            pitch: width,
            slice: 0,
        };
        let mut from: Vec<u8> = (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut to = vec![0; bytes];
        let extent = Extent {
            width,
            height,
            depth: 1,
        };
        let target = target(CUstream::NULL).unwrap();
        let program = |memory: &mut Vec<u8>| CopySide {
            place: Location::Program(memory.as_mut_ptr()),
            ..device
        };
        let here = program(&mut from);
        // SAFETY: `from` has the extent's bytes and lives longer.
        let copying_in =
            unsafe { Copying::new(&target, from.as_mut_ptr(), &here, &device, &extent, 3) };
        let last = copying_in
            .share(|copying| copying.copy_to_device(true))
            .unwrap();
        target.wait(last).unwrap();
        let here = program(&mut to);
        // SAFETY: `to` has the extent's bytes and lives longer.
        let copying_out =
            unsafe { Copying::new(&target, to.as_mut_ptr(), &here, &device, &extent, 3) };
        copying_out.share(Copying::copy_from_device).unwrap();
        assert!(from == to);
        crate::api::cuCtxDestroy(mine).unwrap();
    }

    #[test]
    fn an_error_of_one_thread_ends_the_copy_of_all() {
        let mine = testing::context(0);
        let extent = Extent::linear(1 << 20);
        let mut memory = vec![0_u8; 1 << 20];
        let side = CopySide::linear(Location::Program(memory.as_mut_ptr()));
        let target = target(CUstream::NULL).unwrap();
        // SAFETY: `memory` has the extent's bytes and lives longer.
        let copying =
            unsafe { Copying::new(&target, memory.as_mut_ptr(), &side, &side, &extent, 3) };
        let wrong = CUresult::ERROR_INVALID_VALUE;
        assert_eq!(copying.share(|_| Err(wrong)), Err(wrong));
        assert_eq!(copying.pieces.next_piece(), None);
        crate::api::cuCtxDestroy(mine).unwrap();
    }
}
