//! The memory behind a device window, and physical memory without an address.
//!
//! A device window is one sealed memfd, mapped whole. Physical memory is a memfd of its own, mapped
//! over parts of windows, as often as the client likes. A block of a window can be shared: then the
//! window stays mapped, and the block's granules allocated, until the last who shares it is gone,
//! though its client may have left long before.
//!
//! Owns every mapping and file of device memory. Knows nothing of who may reach it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use engine::{Bound, CUresult, Charge, Owner, Window, arena};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Mappings that the system gives a process where it does not say.
const USUAL_MAPPINGS: usize = 65_530;
/// What part of those all clients' physical memory and further windows may use: one costs the system up to two, and clients
/// that come, with all that they bring, need theirs.
const ALL_CLIENTS: usize = 4;
/// What part of that one client may use.
const ONE_CLIENT: usize = 8;

/// Such mappings of all clients.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// How many mappings of physical memory, and windows beside its first ones, one client has.
#[derive(Debug, Default)]
pub(crate) struct Mappings(AtomicUsize);

/// One of them.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Mappings>);

impl Mappings {
    /// Counts one more.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if the client or all together have as many as they may.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Counted, CUresult> {
        static MOST: OnceLock<usize> = OnceLock::new();
        let most = *MOST.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
            text.trim().parse().unwrap_or(USUAL_MAPPINGS) / ALL_CLIENTS
        });
        // Taken first, so that clients who come at once do not pass the bound together.
        let own = self.0.fetch_add(1, Ordering::Relaxed);
        let all = MAPPINGS.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(self));
        if own >= most / ONE_CLIENT || all >= most {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A device window's memory. Unmapped when the last piece of work that may touch it is gone.
#[derive(Debug)]
pub(crate) struct Backing {
    window: Window,
    file: OwnedFd,
    budget: Arc<Bound>,
    kept: Mutex<Kept>,
    /// What is mapped over the window's own memory, by first address.
    physical: Mutex<BTreeMap<u64, Mapped>>,
    mappings: Arc<Mappings>,
    /// What the window itself counts for, if it is none of its client's first.
    _counted: Option<Counted>,
    /// Until here nobody else may have the addresses.
    _addresses: Arc<dyn Owner>,
}

/// Physical memory where it is mapped.
#[derive(Debug)]
struct Mapped {
    bytes: u64,
    _memory: Arc<Physical>,
    /// It was to be unmapped, and the system could not: nothing else may lie there until it can.
    stuck: bool,
    _counted: Counted,
}

/// What of a window others share.
#[derive(Debug, Default)]
struct Kept {
    /// How many blocks that are shared touch each granule, by its first address.
    granules: BTreeMap<u64, u32>,
    /// The client is gone: a granule that nobody shares any more is free.
    left: bool,
}

/// A block of a window that others may use. Its memory stays as long as this does.
#[derive(Debug)]
pub(crate) struct SharedBlock {
    range: Window,
    backing: Arc<Backing>,
}

/// Physical memory of a device.
#[derive(Debug)]
pub(crate) struct Physical {
    file: OwnedFd,
    /// Of what the device has.
    taken: Charge,
}

fn memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The granules that a range touches.
fn granules(range: Window) -> impl Iterator<Item = u64> {
    let first = range.base / arena::GRANULE * arena::GRANULE;
    (first..range.base + range.bytes).step_by(arena::GRANULE as usize)
}

impl Backing {
    /// Maps a window's memory at its addresses: a file's that was given, or a new one's.
    pub(crate) fn map(
        (window, file): (Window, Option<OwnedFd>),
        budget: &Arc<Bound>,
        addresses: &Arc<dyn Owner>,
        mappings: &Arc<Mappings>,
        counted: Option<Counted>,
    ) -> Result<Arc<Self>, Errno> {
        let file = match file {
            Some(file) => file,
            None => memfd("openmps-device", window.bytes)?,
        };
        // SAFETY: FIXED_NOREPLACE only ever maps where nothing was, so no Rust object is touched;
        // what is mapped is reached through raw pointers only, and unmapped in `drop`.
        let at = unsafe {
            rustix::mm::mmap(
                window.base as *mut _,
                window.bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
                &file,
                0,
            )?
        };
        let backing = Self {
            window: Window {
                base: at as u64,
                bytes: window.bytes,
            },
            file,
            budget: Arc::clone(budget),
            kept: Mutex::default(),
            physical: Mutex::default(),
            mappings: Arc::clone(mappings),
            _counted: counted,
            _addresses: Arc::clone(addresses),
        };
        // Kernels before 4.17 take the address as a hint.
        if backing.window != window {
            return Err(Errno::EXIST);
        }
        // Large pages where the system gives them to shared memory; without them all works too.
        // SAFETY: the advice changes no content, and the range was mapped above.
        let _ = unsafe { rustix::mm::madvise(at, window.bytes as usize, Advice::LinuxHugepage) };
        Ok(Arc::new(backing))
    }

    /// Gives the pages of a range back to the system; it reads as zeroes from now on.
    pub(crate) fn punch(&self, range: Window) {
        if range.bytes == 0 {
            return;
        }
        let done = rustix::fs::fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            range.base - self.window.base,
            range.bytes,
        );
        debug_assert!(done.is_ok(), "a hole in our own memfd: {done:?}");
    }

    /// Shares a block, which lies in the window and is committed.
    pub(crate) fn share(this: &Arc<Self>, range: Window) -> Arc<SharedBlock> {
        let mut kept = this.kept.lock();
        for granule in granules(range) {
            *kept.granules.entry(granule).or_default() += 1;
        }
        Arc::new(SharedBlock {
            range,
            backing: Arc::clone(this),
        })
    }

    /// Bytes that the window's own memory takes of the machine.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        const BLOCK: u64 = 512;
        let stat = rustix::fs::fstat(&self.file).expect("an open file");
        stat.st_blocks.unsigned_abs() * BLOCK
    }

    /// Whether others use blocks of the window.
    pub(crate) fn is_shared(&self) -> bool {
        !self.kept.lock().granules.is_empty()
    }

    /// The client is gone, which had `committed` bytes: all that nobody shares is free now.
    pub(crate) fn leave(&self, committed: u64) {
        let mut kept = self.kept.lock();
        kept.left = true;
        let shared = kept.granules.len() as u64 * arena::GRANULE;
        self.budget.uncharge(committed.saturating_sub(shared));
        if shared == 0 {
            return; // The whole window goes, as soon as the last work does.
        }
        let mut at = self.window.base;
        for &granule in kept.granules.keys() {
            let bytes = granule - at;
            self.punch(Window { base: at, bytes });
            at = granule + arena::GRANULE;
        }
        let bytes = self.window.base + self.window.bytes - at;
        self.punch(Window { base: at, bytes });
    }

    /// Maps physical memory over a part of the window.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the memory has not as much or something is mapped there,
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub(crate) fn map_physical(
        &self,
        at: Window,
        memory: &Arc<Physical>,
        offset: u64,
    ) -> Result<(), CUresult> {
        let mut physical = self.physical.lock();
        let end = at.base + at.bytes;
        self.retry(&mut physical, at)?;
        let before = physical.range(..end).next_back();
        let occupied = before.is_some_and(|(base, mapped)| base + mapped.bytes > at.base);
        let fits = offset.is_multiple_of(arena::GRANULE)
            && offset
                .checked_add(at.bytes)
                .is_some_and(|end| end <= memory.taken.amount());
        if occupied || !fits || !self.window.contains(at.base, at.bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let counted = self.mappings.take()?;
        self.replace(at, &memory.file, offset)
            .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        let mapped = Mapped {
            bytes: at.bytes,
            _memory: Arc::clone(memory),
            stuck: false,
            _counted: counted,
        };
        physical.insert(at.base, mapped);
        Ok(())
    }

    /// Makes sure that the window's own memory is where it was not mapped to anything else.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY while the system cannot take away what was unmapped there.
    pub(crate) fn settle(&self, at: Window) -> Result<(), CUresult> {
        self.retry(&mut self.physical.lock(), at)
    }

    fn retry(&self, physical: &mut BTreeMap<u64, Mapped>, at: Window) -> Result<(), CUresult> {
        let end = at.base.saturating_add(at.bytes);
        let overlaps = |base: u64, mapped: &Mapped| base + mapped.bytes > at.base;
        let stuck = physical
            .range(..end)
            .rev()
            .take_while(|(base, mapped)| overlaps(**base, mapped))
            .filter(|(_, mapped)| mapped.stuck);
        let stuck: Vec<Window> = stuck
            .map(|(&base, mapped)| Window {
                base,
                bytes: mapped.bytes,
            })
            .collect();
        for range in stuck {
            self.take_away(physical, range)
                .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        }
        Ok(())
    }

    /// Puts the window's own memory, which is zero there, in the place of a mapping.
    fn take_away(&self, physical: &mut BTreeMap<u64, Mapped>, at: Window) -> Result<(), Errno> {
        let own = at.base - self.window.base;
        self.replace(at, &self.file, own)?;
        physical.remove(&at.base);
        Ok(())
    }

    /// Whether a range is what one mapping of physical memory covers.
    pub(crate) fn is_physical(&self, at: Window) -> bool {
        let physical = self.physical.lock();
        physical
            .get(&at.base)
            .is_some_and(|mapped| mapped.bytes == at.bytes && !mapped.stuck)
    }

    /// Puts the window's own memory, which is zero there, in the place of a mapping.
    pub(crate) fn unmap_physical(&self, at: Window) {
        let mut physical = self.physical.lock();
        let known = physical.get(&at.base);
        if known.is_none_or(|mapped| mapped.bytes != at.bytes) {
            return;
        }
        // If the system is short of memory for its own tables, what is mapped stays, out of reach, and
        // the addresses are of no use to anybody until they can be had back: the memory may be another
        // client's.
        if self.take_away(&mut physical, at).is_err()
            && let Some(mapped) = physical.get_mut(&at.base)
        {
            mapped.stuck = true;
        }
    }

    /// Takes all physical memory away, and says where it was.
    pub(crate) fn unmap_all(&self) -> Vec<Window> {
        let all: Vec<Window> = self
            .physical
            .lock()
            .iter()
            .map(|(&base, mapped)| Window {
                base,
                bytes: mapped.bytes,
            })
            .collect();
        for &at in &all {
            self.unmap_physical(at);
        }
        all
    }

    /// Maps a part of a file at a part of the window, in the place of what is there.
    fn replace(&self, at: Window, file: &OwnedFd, offset: u64) -> Result<(), Errno> {
        // SAFETY: the range lies in the window, which is ours since `map` and reached through raw
        // pointers only; it is mapped before and after, and an access meets one or the other.
        unsafe {
            rustix::mm::mmap(
                at.base as *mut _,
                at.bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
                file,
                offset,
            )
        }
        .map(drop)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: this range is ours since `map`, and every pointer into it is used under an Arc of
        // this object (the AddressSpace's windows hold it), so nobody can use one any more.
        let gone =
            unsafe { rustix::mm::munmap(self.window.base as *mut _, self.window.bytes as usize) };
        debug_assert!(gone.is_ok(), "unmapping our own window: {gone:?}");
    }
}

impl SharedBlock {
    /// Its addresses.
    pub(crate) const fn range(&self) -> Window {
        self.range
    }
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        let mut kept = self.backing.kept.lock();
        for granule in granules(self.range) {
            let count = kept.granules.entry(granule).or_default();
            *count = count.saturating_sub(1);
            if *count > 0 {
                continue;
            }
            kept.granules.remove(&granule);
            if kept.left {
                self.backing.punch(Window {
                    base: granule,
                    bytes: arena::GRANULE,
                });
                self.backing.budget.uncharge(arena::GRANULE);
            }
        }
    }
}

impl Physical {
    /// Allocates physical memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is not made of granules, CUDA_ERROR_OUT_OF_MEMORY.
    pub(crate) fn new(budget: &Arc<Bound>, bytes: u64) -> Result<Arc<Self>, CUresult> {
        if bytes == 0 || !bytes.is_multiple_of(arena::GRANULE) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut taken = Charge::new(Arc::clone(budget));
        if !taken.grow(bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let file = memfd("openmps-physical", bytes).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        Ok(Arc::new(Self { file, taken }))
    }
}
