//! A client's memory: its windows, what of them is committed, and what each device has left.
//!
//! A device window is one sealed memfd, mapped whole and for as long as anything of the client runs,
//! so an access inside it is always memory-safe; the validity table beside it (`exec::Window`) says
//! which granules the client has. Taking memory back clears the marks and punches a hole: work that
//! still runs reads zeroes. The host window was mapped by somebody else and has only a table.
//!
//! Knows nothing of streams or kernels.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use engine::{CUresult, Owner, Region, Window, arena};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy;
use crate::exec;
use crate::sync::lock;

/// What one device has: bytes in all and bytes that clients have taken.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    taken: AtomicU64,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            taken: AtomicU64::new(0),
        }
    }

    pub(crate) fn free(&self) -> u64 {
        self.total - self.taken.load(Ordering::Relaxed)
    }

    /// Takes bytes of the device, if it has them.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), CUresult> {
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(bytes).filter(|&all| all <= self.total)
            })
            .map(|_| ())
            .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Counts what of a client is still mapped, so that its end can wait for the last piece of work.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    count: Mutex<usize>,
    none: Condvar,
}

impl Mapped {
    fn ticket(self: &Arc<Self>) -> Ticket {
        *lock(&self.count) += 1;
        Ticket(Arc::clone(self))
    }

    /// Waits until nothing is mapped any more.
    pub(crate) fn wait_until_none(&self) {
        let mut count = lock(&self.count);
        while *count != 0 {
            count = self
                .none
                .wait(count)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// One thing that [`Mapped`] counts.
#[derive(Debug)]
struct Ticket(Arc<Mapped>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut count = lock(&self.0.count);
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// A device window's memory. Unmapped when the last piece of work that may touch it is gone.
#[derive(Debug)]
struct Backing {
    window: Window,
    file: OwnedFd,
    _ticket: Ticket,
}

impl Backing {
    fn map(window: Window, ticket: Ticket) -> Result<Self, Errno> {
        let file = rustix::fs::memfd_create(
            "openmps-device",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, window.bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
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
            _ticket: ticket,
        };
        // Kernels before 4.17 take the address as a hint.
        if backing.window != window {
            return Err(Errno::EXIST);
        }
        // Large pages where the system gives them to shared memory; without them all works too.
        // SAFETY: the advice changes no content, and the range was mapped above.
        let _ = unsafe { rustix::mm::madvise(at, window.bytes as usize, Advice::LinuxHugepage) };
        Ok(backing)
    }

    /// Gives the pages of a range back to the system; it reads as zeroes from now on.
    fn punch(&self, range: Window) {
        let done = rustix::fs::fallocate(
            &self.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            range.base - self.window.base,
            range.bytes,
        );
        debug_assert!(done.is_ok(), "a hole in our own memfd: {done:?}");
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

/// Keeps a region that somebody else mapped.
#[derive(Debug)]
struct Borrowed {
    _owner: Arc<dyn Owner>,
    _ticket: Ticket,
}

/// One device's part of a client's memory.
#[derive(Debug)]
struct DevicePart {
    window: Window,
    table: Arc<exec::Window>,
    backing: Arc<Backing>,
    budget: Arc<Budget>,
    /// Bytes that are committed.
    committed: AtomicU64,
    /// What a kernel on this device may touch: this window and the host's.
    space: Arc<exec::AddressSpace>,
}

/// What copies may touch: all windows of a client, and its staging memory.
#[derive(Debug)]
pub(crate) struct CopySpace {
    /// Unified addresses.
    pub(crate) unified: exec::AddressSpace,
    /// Staging, as mapped here.
    pub(crate) staging: Window,
    _staging: Borrowed,
}

/// A client's memory.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    devices: Vec<DevicePart>,
    host: Window,
    host_table: Arc<exec::Window>,
    copies: Arc<CopySpace>,
    mapped: Arc<Mapped>,
}

impl ClientMemory {
    /// Maps a client's windows. Nothing is accessible yet.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the windows are not as many as the devices, not made of granules,
    /// or overlap; CUDA_ERROR_OUT_OF_MEMORY if the system refuses the mapping.
    pub(crate) fn new(
        windows: &[Window],
        budgets: &[Arc<Budget>],
        host: &Region,
        staging: &Region,
    ) -> Result<Self, CUresult> {
        let mut sorted: Vec<Window> = windows.to_vec();
        sorted.push(host.window);
        sorted.sort_by_key(|window| window.base);
        if windows.len() != budgets.len()
            || sorted.iter().any(|window| !is_granular(*window))
            || sorted
                .windows(2)
                .any(|pair| pair[0].base + pair[0].bytes > pair[1].base)
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mapped = Arc::new(Mapped::default());
        let borrow = |region: &Region| Borrowed {
            _owner: Arc::clone(&region.owner),
            _ticket: mapped.ticket(),
        };
        let host_table = table(host.window, Arc::new(borrow(host)));
        let mut devices = Vec::new();
        for (&window, budget) in windows.iter().zip(budgets) {
            let backing = Arc::new(
                Backing::map(window, mapped.ticket()).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?,
            );
            let own = table(window, Arc::clone(&backing) as Arc<dyn Any + Send + Sync>);
            devices.push(DevicePart {
                window,
                space: Arc::new(exec::AddressSpace::new(vec![
                    Arc::clone(&own),
                    Arc::clone(&host_table),
                ])),
                table: own,
                backing,
                budget: Arc::clone(budget),
                committed: AtomicU64::new(0),
            });
        }
        let mut all: Vec<_> = devices.iter().map(|part| Arc::clone(&part.table)).collect();
        all.push(Arc::clone(&host_table));
        let copies = Arc::new(CopySpace {
            unified: exec::AddressSpace::new(all),
            staging: staging.window,
            _staging: borrow(staging),
        });
        Ok(Self {
            devices,
            host: host.window,
            host_table,
            copies,
            mapped,
        })
    }

    /// What a kernel on this device may touch.
    pub(crate) fn kernel_space(&self, device: u32) -> Result<&Arc<exec::AddressSpace>, CUresult> {
        let part = self
            .devices
            .get(device as usize)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        Ok(&part.space)
    }

    /// What copies may touch.
    pub(crate) fn copy_space(&self) -> &Arc<CopySpace> {
        &self.copies
    }

    /// Makes a range of granules accessible. Granules that already are stay as they are.
    pub(crate) fn commit(&self, range: Window) -> Result<(), CUresult> {
        if !is_granular(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if let Some(part) = self.part_of(range) {
            let missing = range.bytes - part.table.valid_bytes(range.base, range.bytes);
            part.budget.take(missing)?;
            part.committed.fetch_add(missing, Ordering::Relaxed);
            part.table.set_valid(range.base, range.bytes, true);
            Ok(())
        } else if self.host.contains(range.base, range.bytes) {
            self.host_table.set_valid(range.base, range.bytes, true);
            Ok(())
        } else {
            Err(CUresult::ERROR_INVALID_VALUE)
        }
    }

    /// Commits the granules around a range of bytes: a module's variable, whose memory the session
    /// chose but could not commit while this engine was at work.
    pub(crate) fn commit_around(&self, range: Window) -> Result<(), CUresult> {
        let base = range.base / arena::GRANULE * arena::GRANULE;
        let end = range
            .base
            .checked_add(range.bytes)
            .and_then(|end| end.checked_next_multiple_of(arena::GRANULE))
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.commit(Window {
            base,
            bytes: end - base,
        })
    }

    /// Takes a range of granules back. Ranges outside of the windows are ignored.
    pub(crate) fn decommit(&self, range: Window) {
        if !is_granular(range) {
            return;
        }
        if let Some(part) = self.part_of(range) {
            let given = part.table.valid_bytes(range.base, range.bytes);
            part.table.set_valid(range.base, range.bytes, false);
            part.backing.punch(range);
            part.committed.fetch_sub(given, Ordering::Relaxed);
            part.budget.give_back(given);
        } else if self.host.contains(range.base, range.bytes) {
            self.host_table.set_valid(range.base, range.bytes, false);
            // The file is not ours, so the pages go by way of the mapping. Should the owner have
            // mapped something that cannot lose pages, they stay, and only this client sees them.
            // SAFETY: the owner keeps the region mapped, and only clients' raw accesses reach it.
            let _ = unsafe {
                rustix::mm::madvise(
                    range.base as *mut _,
                    range.bytes as usize,
                    Advice::LinuxRemove,
                )
            };
        }
    }

    /// Fills a committed range with zeroes: the bytes at its ends by hand, and whole granules between
    /// by giving their pages back, so that a large range costs no memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if not all of the range is committed memory.
    pub(crate) fn zero(&self, range: Window) -> Result<(), CUresult> {
        if range.bytes == 0 {
            return Ok(());
        }
        if !self.copies.unified.allows(range.base, range.bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let end = range.base + range.bytes;
        let first = range.base.next_multiple_of(arena::GRANULE).min(end);
        let last = (end / arena::GRANULE * arena::GRANULE).max(first);
        let window = |from, to| Window {
            base: from,
            bytes: to - from,
        };
        let whole = window(first, last);
        match self.part_of(whole) {
            Some(part) if whole.bytes > 0 => {
                copy::zero(&self.copies, window(range.base, first))?;
                part.backing.punch(whole);
                copy::zero(&self.copies, window(last, end))
            }
            _ => copy::zero(&self.copies, range),
        }
    }

    /// What tells when the last of this memory is unmapped.
    pub(crate) fn mapped(&self) -> Arc<Mapped> {
        Arc::clone(&self.mapped)
    }

    fn part_of(&self, range: Window) -> Option<&DevicePart> {
        self.devices
            .iter()
            .find(|part| part.window.contains(range.base, range.bytes))
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        for part in &self.devices {
            part.budget
                .give_back(part.committed.load(Ordering::Relaxed));
        }
    }
}

fn is_granular(range: Window) -> bool {
    range.base.is_multiple_of(arena::GRANULE)
        && range.bytes.is_multiple_of(arena::GRANULE)
        && range.base.checked_add(range.bytes).is_some()
}

fn table(window: Window, owner: Arc<dyn Any + Send + Sync>) -> Arc<exec::Window> {
    // SAFETY: `owner` is what keeps the range mapped, readable and writable: our own mapping, or the
    // region's owner by the contract of `engine::Region`. Nothing in it is a Rust object.
    Arc::new(unsafe { exec::Window::new(window.base, window.bytes, owner) })
}

#[cfg(test)]
impl CopySpace {
    /// A space without any memory.
    pub(crate) fn empty() -> Self {
        #[derive(Debug)]
        struct Nobody;
        impl Owner for Nobody {}
        Self {
            unified: exec::AddressSpace::default(),
            staging: Window { base: 0, bytes: 0 },
            _staging: Borrowed {
                _owner: Arc::new(Nobody),
                _ticket: Arc::new(Mapped::default()).ticket(),
            },
        }
    }
}
