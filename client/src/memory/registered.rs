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
//! A fork's child would share such pages with its parent: it gets private ones before `fork` returns
//! ([`fork`]). Memory that is shared already goes another way ([`files`]).
//!
//! Owns the pages' way there and back. Knows nothing of arguments' errors but its own.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use protocol::operations::{HUGE_PAGE, HostAlloc, HostFree, HostPin, HostReserve};

use crate::context::Current;
use crate::memory::ranges::{self, Origin, Ranges};
use crate::os::prefault;
use crate::os::process_maps::{MappedArea, areas};
use crate::session::connection::Connection;
use crate::session::fork_local::ForkLocal;

mod files;
mod fork;
mod guard;
mod pieces;

use files::{FilePart, NotFound};
use pieces::page_size;

/// The window's memory comes in units of this many bytes; less would not begin on a page of its own.
const UNIT: u64 = 64 << 10;

/// All registrations of the process.
#[derive(Debug)]
pub(crate) struct Registered {
    connection: &'static Connection,
    ranges: &'static Ranges,
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
    /// What the server gave there.
    allocation: u64,
    read_only: bool,
    /// They are a file's, which is mapped at both places.
    of_file: bool,
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

/// Checks that pages can be put where the server says.
fn check_given(connection: &Connection, window: u64, bytes: u64) -> Result<(), CUresult> {
    connection.check_in_host_window(window, bytes)?;
    if window.is_multiple_of(page_size()) {
        return Ok(());
    }
    crate::log::log!(
        "the server gave host memory at {window:#x}, which is not where a page begins"
    );
    Err(CUresult::ERROR_UNKNOWN)
}

static REGISTERED: ForkLocal<Registered> = ForkLocal::new();

impl Registered {
    /// No registrations yet; they are noted among the ranges.
    pub(crate) fn new(connection: &'static Connection, ranges: &'static Ranges) -> Self {
        Self {
            connection,
            ranges,
            blocks: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Makes them the process's, for forks.
    ///
    /// # Errors
    /// As [`ForkLocal::publish`]'s.
    pub(crate) fn publish(&'static self) -> Result<(), CUresult> {
        REGISTERED.publish(self)
    }

    /// Takes them out of reach, because the process ends.
    pub(crate) fn withdraw() {
        REGISTERED.withdraw();
    }

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
        let last = end.checked_next_multiple_of(page_size()).ok_or(wrong)?;
        let pages = request.base / page_size() * page_size()..last;
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
        let holds = |block: &Block| {
            let around = block.pages.start <= pages.start && pages.end <= block.pages.end;
            around && (request.read_only || !block.read_only)
        };
        // Of a file a page can be mapped often.
        let neighbour = blocks.iter_mut().find(|block| {
            let touches = block.pages.start < pages.end && pages.start < block.pages.end;
            touches && (!block.of_file || holds(block))
        });
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
                self.ranges,
                current,
                &request,
                block.window + (request.base - block.pages.start),
            )?;
            block.uses.push(one);
        } else {
            let block = self.share(current, &request, pages)?;
            let inserted = note(
                self.ranges,
                current,
                &request,
                block.window + (request.base - block.pages.start),
            );
            if let Err(error) = inserted {
                unshare(current.connection(), &block)?;
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
        let connection = current.connection();
        let read_only = match check(&pages, request)? {
            Registrable::Private { read_only } => read_only,
            Registrable::Shared(part) => {
                let window = part.share(current)?;
                return Ok(Block {
                    window,
                    allocation: window,
                    pages: part.pages,
                    read_only: part.read_only,
                    of_file: true,
                    uses: Vec::new(),
                });
            }
        };
        fork::watch_forks();
        let bytes = pages.end - pages.start;
        let is_large = bytes >= HUGE_PAGE;
        let (allocation, window) = match is_large {
            true => reserve(current, &pages)?,
            false => {
                let reply = connection.call(&HostAlloc {
                    context: current.slot(),
                    bytes: bytes.max(UNIT),
                    flags: request.flags,
                })?;
                (reply.fields.address, reply.fields.address)
            }
        };
        check_given(connection, window, bytes)?;
        let block = Block {
            pages,
            window,
            allocation,
            read_only,
            of_file: false,
            uses: Vec::new(),
        };
        let there = |page: u64| window + (page - block.pages.start);
        let make = |run: &Range<u64>| {
            prefault::make_huge_if_none(&(there(run.start)..there(run.end)));
        };
        let replaced = pieces::each(&block.pages, make, |piece| {
            let there = there(piece.start);
            // SAFETY: the piece is the program's readable memory (`check` has looked), which it has
            // given into our hands for this call; the window's memory is ours to write, and was given
            // for this block just now.
            unsafe { pieces::replace(piece, there, block.read_only) }
        });
        if let Err(error) = replaced {
            crate::log::log!("cuMemHostRegister: pages cannot be shared: {error}");
            // Those that are.
            unshare(connection, &block)?;
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        if is_large {
            let pin = HostPin {
                address: allocation,
            };
            if let Err(error) = connection.call(&pin) {
                unshare(connection, &block)?;
                return Err(error);
            }
        }
        Ok(block)
    }

    /// Ends the registration that begins at an address. All work that may use it is done.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED if none does.
    pub(crate) fn remove(&self, base: u64) -> Result<(), CUresult> {
        self.remove_all(|one| one.base == base)
            .ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?
    }

    /// The handle of the context of the registration that begins at an address.
    pub(crate) fn context_of(&self, base: u64) -> Option<u64> {
        let blocks = self.blocks();
        let mut uses = blocks.iter().flat_map(|block| &block.uses);
        Some(uses.find(|one| one.base == base)?.context)
    }

    /// Ends the registrations of a context that ends, before the server does.
    pub(crate) fn forget(&self, context: u64) {
        // Pages that could not be given back stay shared, and the window keeps them.
        let _ = self.remove_all(|one| one.context == context);
    }

    fn remove_all(&self, goes: impl Fn(&Use) -> bool) -> Option<Result<(), CUresult>> {
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
                    let registered = |range: &ranges::Range| range.origin == Origin::Registered;
                    self.ranges.remove(base, registered);
                }
                false
            });
            if block.uses.is_empty()
                && let Err(error) = unshare(self.connection, block)
            {
                result = Some(Err(error));
            }
            !block.uses.is_empty()
        });
        result
    }
}

/// Gives addresses of the window for pages of the program: what the server gave, and where the first page is to be, which
/// is as far from a huge page's beginning as the program has it, so that they can be huge pages in both places.
fn reserve(current: &Current, pages: &Range<u64>) -> Result<(u64, u64), CUresult> {
    let gap = pages.start % UNIT;
    let bytes = gap + (pages.end - pages.start);
    let connection = current.connection();
    let reply = connection.call(&HostReserve {
        context: current.slot(),
        bytes,
        phase: (pages.start - gap) % HUGE_PAGE,
    })?;
    let allocation = reply.fields.address;
    check_given(connection, allocation, bytes)?;
    Ok((allocation, allocation + gap))
}

/// Notes a registration at both of its addresses.
fn note(ranges: &Ranges, current: &Current, request: &Request, there: u64) -> Result<(), CUresult> {
    let range = |base, other| ranges::Range {
        flags: request.flags,
        other,
        ..ranges::Range::new(current, Origin::Registered, base, request.bytes)
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

/// What memory can be registered as.
enum Registrable {
    /// The window's pages can take the place of these.
    Private { read_only: bool },
    /// Others have it too, as they have this file.
    Shared(FilePart),
}

/// Finds out how memory can be registered without harm to the program.
fn check(pages: &Range<u64>, request: &Request) -> Result<Registrable, CUresult> {
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
        if area.shared != areas[0].shared {
            return refused("private in part, and in part shared");
        }
        if area.executable && !area.shared {
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
    if !areas[0].shared {
        return Ok(Registrable::Private { read_only });
    }
    match FilePart::find(&areas, pages, read_only) {
        Ok(part) => Ok(Registrable::Shared(part)),
        Err(NotFound::Several) => {
            refused("mappings of several files, or of parts that do not follow")
        }
        Err(NotFound::Unsuitable(what)) => refused(&format!(
            "mapped from a file that cannot be shared ({what})"
        )),
        Err(NotFound::Nothing) => refused(
            "shared memory whose file cannot be found: no descriptor or path leads to it, and opening \
             /proc/self/map_files needs CAP_CHECKPOINT_RESTORE. Keep the descriptor open, or use \
             memfd_create or shm_open instead of MAP_ANONYMOUS,",
        ),
    }
}

/// The parts of a block that are still the window's pages: the program may have unmapped them, or
/// mapped something else there, though it should not have.
fn still_shared(connection: &Connection, block: &Block) -> std::io::Result<Vec<Range<u64>>> {
    let stat = rustix::fs::fstat(connection.host_memory())?;
    let window = (files::device(&stat), stat.st_ino);
    let is_ours = |area: &MappedArea| {
        let from = area.addresses.start.max(block.pages.start);
        let in_file = from - area.addresses.start + area.offset;
        let expected = connection.host_offset(block.window + (from - block.pages.start));
        area.shared && area.file == window && in_file == expected
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
fn unshare(connection: &Connection, block: &Block) -> Result<(), CUresult> {
    let failed = |error: &dyn std::fmt::Display| {
        // The window keeps the pages: the program still has them.
        crate::log::log!("cuMemHostUnregister: pages stay shared with the server: {error}");
        CUresult::ERROR_OUT_OF_MEMORY
    };
    if block.of_file {
        let bytes = block.pages.end - block.pages.start;
        return files::unshare(connection, block.window..block.window + bytes);
    }
    if !block.pages.is_empty() {
        for part in still_shared(connection, block).map_err(|error| failed(&error))? {
            // SAFETY: `still_shared` has just found our own pages there.
            let done = unsafe { pieces::make_private(&part, block.read_only) };
            done.map_err(|error| failed(&error))?;
        }
    }
    connection.post(&HostFree {
        address: block.allocation,
    })
}
