//! Memory of the program that it has registered: its pages become pages of the host window, so that
//! program and devices see the same bytes, the program at its own addresses and the devices at the
//! window's.
//!
//! The contents go over piece by piece, and each piece is replaced by the window's pages in one system
//! call, so that the program always finds its bytes. What another thread writes into the very piece
//! between its copy and its replacement is lost; but a page that a registration begins or ends in, and
//! that holds what the program did not name, is a piece of its own, and whoever writes to it meanwhile
//! is held up ([`guard`]) where the kernel allows that. Ending a registration goes the same way back,
//! into private pages.
//!
//! A fork's child would share such pages with its parent: it gets private ones before `fork` returns.
//!
//! Owns the pages' way there and back. Knows nothing of arguments' errors but its own.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::operations::{HostAlloc, HostFree};
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::context::Current;
use crate::memory::{self, Origin};
use crate::process_maps::{Area, areas};
use crate::session::Session;

mod guard;

use guard::Guard;

/// Bytes that go over at once.
const PIECE: u64 = 2 << 20;

/// The window's memory comes in units of this many bytes; less would not begin on a page of its own.
const UNIT: u64 = 64 << 10;

/// How long a fork waits for its child to have its pages. A child that is stopped in between is
/// better off with pages that are a little too new than its parent is without going on.
const CHILD_PATIENCE: Duration = Duration::from_secs(10);

/// All registrations of the process.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    blocks: Mutex<Vec<Block>>,
    /// How many there are; read without the lock by copies.
    count: AtomicUsize,
}

/// Pages of the program that are pages of the window.
#[derive(Clone, Debug)]
struct Block {
    pages: Range<u64>,
    /// The first one's address in the window.
    window: u64,
    read_only: bool,
    uses: Vec<Use>,
}

/// One registration.
#[derive(Clone, Copy, Debug)]
struct Use {
    base: u64,
    bytes: u64,
    context: u64,
}

/// What a registration is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub base: u64,
    pub bytes: u64,
    pub flags: u32,
    /// The program need not be able to write it.
    pub read_only: bool,
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Cuts pages into pieces; the first and the last page are pieces of their own.
fn pieces(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = pages.start;
    let inner_end = pages.end - page();
    std::iter::from_fn(move || {
        if at >= pages.end {
            return None;
        }
        let end = if at == pages.start || at >= inner_end {
            at + page()
        } else {
            (at + PIECE).min(inner_end)
        };
        let piece = at..end;
        at = end;
        Some(piece)
    })
}

impl Block {
    /// Whether a piece is the first or last page, where the program may have other things too.
    fn is_end(&self, piece: &Range<u64>) -> bool {
        let alone = piece.end - piece.start == page();
        alone && (piece.start == self.pages.start || piece.end == self.pages.end)
    }
}

impl Registered {
    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Registers memory.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED if some of it is, CUDA_ERROR_INVALID_VALUE for what
    /// is not mapped or not writable, CUDA_ERROR_NOT_SUPPORTED for what cannot be shared without
    /// harm, CUDA_ERROR_OUT_OF_MEMORY; then all is as before.
    pub(crate) fn add(&self, current: &Current, request: Request) -> Result<(), CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        let end = request.base.checked_add(request.bytes).ok_or(wrong)?;
        let last = end.checked_next_multiple_of(page()).ok_or(wrong)?;
        let pages = request.base / page() * page()..last;
        let mut blocks = self.blocks();
        let in_use = |at: &Use| at.base < end && request.base < at.base + at.bytes;
        if blocks.iter().any(|block| block.uses.iter().any(in_use)) {
            return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let one = Use {
            base: request.base,
            bytes: request.bytes,
            context: current.handle(),
        };
        let neighbour = blocks
            .iter_mut()
            .find(|block| block.pages.start < pages.end && pages.start < block.pages.end);
        if let Some(block) = neighbour {
            if block.pages.start > pages.start || block.pages.end < pages.end {
                // Its pages would have to follow each other in the window, where they cannot.
                crate::log::log!(
                    "cuMemHostRegister: {} bytes at {:#x} begin or end on a page of another \
                     registration, which is not supported",
                    request.bytes,
                    request.base
                );
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            note(
                current,
                &request,
                block.window + (request.base - block.pages.start),
            )?;
            block.uses.push(one);
        } else {
            let block = self.share(current, &request, pages)?;
            let inserted = note(
                current,
                &request,
                block.window + (request.base - block.pages.start),
            );
            if let Err(error) = inserted {
                give_back(current.session, &block)?;
                return Err(error);
            }
            blocks.push(Block {
                uses: vec![one],
                ..block
            });
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Puts the window's pages in the place of the program's.
    fn share(
        &self,
        current: &Current,
        request: &Request,
        pages: Range<u64>,
    ) -> Result<Block, CUresult> {
        let read_only = check(&pages, request)?;
        notice_forks();
        let session = current.session;
        let bytes = pages.end - pages.start;
        let reply = session.call(&HostAlloc {
            context: current.slot(),
            bytes: bytes.max(UNIT),
            flags: request.flags,
        })?;
        let window = reply.fields.address;
        let fits = window.is_multiple_of(page())
            && session.host.contains(&window)
            && window
                .checked_add(bytes)
                .is_some_and(|end| end <= session.host.end);
        if !fits {
            crate::log::log!("the server gave host memory at {window:#x}, which cannot be used");
            return Err(CUresult::ERROR_UNKNOWN);
        }
        let block = Block {
            pages,
            window,
            read_only,
            uses: Vec::new(),
        };
        for piece in pieces(block.pages.clone()) {
            let there = window + (piece.start - block.pages.start);
            let guard = block.is_end(&piece).then(|| Guard::over(&piece));
            // SAFETY: the piece is the program's readable memory (`check` has looked), which it has
            // given into our hands for this call; the window's memory is ours to write, and was given
            // for this block just now.
            let replaced = unsafe { replace(&piece, there, block.read_only) };
            drop(guard);
            if let Err(error) = replaced {
                crate::log::log!("cuMemHostRegister: pages cannot be shared: {error}");
                let done = Block {
                    pages: block.pages.start..piece.start,
                    ..block
                };
                give_back(session, &done)?;
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
        }
        Ok(block)
    }

    /// Ends the registration that begins at an address. All work that may use it is done.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED if none does.
    pub(crate) fn remove(&self, session: &Session, base: u64) -> Result<(), CUresult> {
        self.remove_all(session, |one| one.base == base)
            .ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?
    }

    /// The handle of the context of the registration that begins at an address.
    pub(crate) fn context_of(&self, base: u64) -> Option<u64> {
        let blocks = self.blocks();
        let mut uses = blocks.iter().flat_map(|block| &block.uses);
        Some(uses.find(|one| one.base == base)?.context)
    }

    /// Ends the registrations of a context that ends, before the server does.
    pub(crate) fn forget(&self, session: &Session, context: u64) {
        // Pages that could not be given back stay shared, and the window keeps them.
        let _ = self.remove_all(session, |one| one.context == context);
    }

    fn remove_all(
        &self,
        session: &Session,
        goes: impl Fn(&Use) -> bool,
    ) -> Option<Result<(), CUresult>> {
        if !self.any() {
            return None;
        }
        let mut result = None;
        self.blocks().retain_mut(|block| {
            let (window, start) = (block.window, block.pages.start);
            block.uses.retain(|one| {
                if !goes(one) {
                    return true;
                }
                result.get_or_insert(Ok(()));
                self.count.fetch_sub(1, Ordering::Relaxed);
                for base in [one.base, window + (one.base - start)] {
                    let registered = |range: &memory::Range| range.origin == Origin::Registered;
                    session.ranges.remove(base, registered);
                }
                false
            });
            if block.uses.is_empty()
                && let Err(error) = give_back(session, block)
            {
                result = Some(Err(error));
            }
            !block.uses.is_empty()
        });
        result
    }
}

/// Notes a registration at both of its addresses.
fn note(current: &Current, request: &Request, there: u64) -> Result<(), CUresult> {
    let ranges = &current.session.ranges;
    let range = |base, other| memory::Range {
        flags: request.flags,
        other,
        ..memory::Range::new(current, Origin::Registered, base, request.bytes)
    };
    if !ranges.insert(range(request.base, there)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if !ranges.insert(range(there, request.base)) {
        ranges.remove(request.base, |range| range.origin == Origin::Registered);
        return Err(CUresult::ERROR_UNKNOWN);
    }
    Ok(())
}

/// Whether the window's pages can take the place of these without harm to the program;
/// gives whether the program can only read them.
fn check(pages: &Range<u64>, request: &Request) -> Result<bool, CUresult> {
    let areas = areas(pages).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    let refused = |why: &str| {
        crate::log::log!(
            "cuMemHostRegister: {} bytes at {:#x} are {why}, which is not supported",
            request.bytes,
            request.base
        );
        Err(CUresult::ERROR_NOT_SUPPORTED)
    };
    let here = 0_u8;
    let stack = (&raw const here).addr() as u64;
    let read_only = areas.first().is_some_and(|area| !area.writable);
    let mut at = pages.start;
    for area in &areas {
        if area.addresses.start > at || !area.readable {
            break;
        }
        if !area.writable && !request.read_only {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if area.shared {
            return refused("shared with others already");
        }
        if area.executable {
            return refused("code");
        }
        if area.stack || area.addresses.contains(&stack) {
            return refused("a stack");
        }
        if area.writable == read_only {
            return refused("writable in part");
        }
        at = area.addresses.end;
    }
    if at < pages.end {
        return Err(CUresult::ERROR_INVALID_VALUE); // Not mapped, or not readable.
    }
    Ok(read_only)
}

/// Copies a piece to the window, and puts the window's pages in its place.
///
/// # Safety
/// The piece is readable memory of the program and `there` the window's for as many bytes, which
/// nobody uses yet.
unsafe fn replace(piece: &Range<u64>, there: u64, read_only: bool) -> rustix::io::Result<()> {
    let bytes = (piece.end - piece.start) as usize;
    // SAFETY: the caller's promise; the two do not overlap, as one is in the window and one is not.
    // A mapping of old size 0 is made a second time, at the piece's address, which it replaces.
    unsafe {
        std::ptr::copy_nonoverlapping(
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
    Ok(())
}

/// Copies a piece into private pages and puts them in its place. Makes system calls only, since a
/// fork's child calls it.
///
/// # Safety
/// The piece is mapped and readable, and the program knows of nothing else that is there.
unsafe fn make_private(piece: &Range<u64>, read_only: bool) -> rustix::io::Result<()> {
    let bytes = (piece.end - piece.start) as usize;
    // SAFETY: the first mapping is new and ours alone until it is moved, whole, to where the piece
    // was; the piece is the caller's to give.
    unsafe {
        let fresh = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?;
        std::ptr::copy_nonoverlapping(
            pointer(piece.start).cast::<u8>().cast_const(),
            fresh.cast::<u8>(),
            bytes,
        );
        let protected = match read_only {
            true => rustix::mm::mprotect(fresh, bytes, MprotectFlags::READ),
            false => Ok(()),
        };
        protected
            .and_then(|()| {
                rustix::mm::mremap_fixed(
                    fresh,
                    bytes,
                    bytes,
                    MremapFlags::MAYMOVE,
                    pointer(piece.start),
                )
            })
            .map(drop)
            .inspect_err(|_| {
                let _ = rustix::mm::munmap(fresh, bytes);
            })
    }
}

/// The parts of a block that are still the window's pages: the program may have unmapped them, or
/// mapped something else there, though it should not have.
fn still_shared(session: &Session, block: &Block) -> std::io::Result<Vec<Range<u64>>> {
    let start = session.host.start;
    let window: Vec<Area> = areas(&(start..start + 1))?;
    let Some(window) = window.first() else {
        return Ok(Vec::new());
    };
    let is_ours = |area: &Area| {
        let in_file = |address: u64| address - area.addresses.start + area.offset;
        let from = area.addresses.start.max(block.pages.start);
        let expected = block.window + (from - block.pages.start) - start + window.offset;
        area.shared && area.file == window.file && in_file(from) == expected
    };
    Ok(areas(&block.pages)?
        .iter()
        .filter(|area| is_ours(area))
        .map(|area| {
            area.addresses.start.max(block.pages.start)..area.addresses.end.min(block.pages.end)
        })
        .collect())
}

/// Gives the program private pages again, and the window's back to the server.
fn give_back(session: &Session, block: &Block) -> Result<(), CUresult> {
    let failed = |error: &dyn std::fmt::Display| {
        // The window keeps the pages: the program still has them.
        crate::log::log!("registered memory stays shared: {error}");
        CUresult::ERROR_OUT_OF_MEMORY
    };
    if !block.pages.is_empty() {
        for part in still_shared(session, block).map_err(|error| failed(&error))? {
            for piece in pieces(part) {
                let guard = block.is_end(&piece).then(|| Guard::over(&piece));
                // SAFETY: `still_shared` has just found our own pages there.
                let done = unsafe { make_private(&piece, block.read_only) };
                drop(guard);
                done.map_err(|error| failed(&error))?;
            }
        }
    }
    session.post(&HostFree {
        address: block.window,
    })
}

unsafe extern "C" {
    /// POSIX.
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> std::ffi::c_int;
}

/// Has forks noticed from now on.
fn notice_forks() {
    static NOTICED: Once = Once::new();
    NOTICED.call_once(|| {
        // SAFETY: the three functions live as long as this library, which is never unloaded once it
        // has a session, and keep to what is allowed in them.
        let status =
            unsafe { pthread_atfork(Some(before_fork), Some(parent_of_fork), Some(child_of_fork)) };
        if status != 0 {
            crate::log::log!("forks cannot be noticed: children share registered memory");
        }
    });
}

/// What a fork under way needs on both sides.
struct Fork {
    /// Keeps registrations as they are until the child has its pages.
    _blocks: MutexGuard<'static, Vec<Block>>,
    pages: Vec<(Range<u64>, bool)>,
    /// The child's end of the second is closed when it has its pages, or is gone.
    pipe: Option<(OwnedFd, OwnedFd)>,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

unsafe extern "C" fn before_fork() {
    let Ok(session) = crate::session::session() else {
        return;
    };
    if !session.registered.any() {
        return;
    }
    let blocks = session.registered.blocks();
    let pages = blocks
        .iter()
        .map(|block| (block.pages.clone(), block.read_only))
        .collect();
    let fork = Fork {
        _blocks: blocks,
        pages,
        pipe: rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok(),
    };
    // A thread that is ending forks without our help; nothing can be done for it.
    let _ = FORK.try_with(|place| place.replace(Some(fork)));
}

unsafe extern "C" fn parent_of_fork() {
    let fork = FORK.try_with(|place| place.borrow_mut().take());
    if let Ok(Some(fork)) = fork
        && let Some((ready, childs_end)) = fork.pipe
    {
        drop(childs_end);
        let _ = transport::socket::poll(&[ready.as_fd()], Some(CHILD_PATIENCE));
    }
}

unsafe extern "C" fn child_of_fork() {
    let _ = FORK.try_with(|place| {
        let Some(fork) = place.borrow_mut().take() else {
            return;
        };
        for (pages, read_only) in &fork.pages {
            for piece in pieces(pages.clone()) {
                // SAFETY: the parent held its registrations as they were while this process came to
                // be, so the window's pages are there. A program that unmapped them itself has broken
                // CUDA's rules, and its child is not worse off than it.
                let _ = unsafe { make_private(&piece, *read_only) };
            }
        }
        // The session's lock is the parent's; here nobody asks for it any more.
        let _held = std::mem::ManuallyDrop::new(fork._blocks);
        drop(fork.pipe);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_pages_and_the_ends_are_alone() {
        let page = page();
        for count in [1, 2, 3, 512, 513, 514, 2000] {
            let pages = 16 * page..(16 + count) * page;
            let cut: Vec<_> = pieces(pages.clone()).collect();
            assert_eq!(cut[0].end - cut[0].start, page);
            let last = &cut[cut.len() - 1];
            assert_eq!((last.end - last.start, last.end), (page, pages.end));
            let mut at = pages.start;
            for piece in cut {
                assert_eq!(piece.start, at);
                assert!(piece.end > at && piece.end - at <= PIECE);
                at = piece.end;
            }
        }
    }
}
