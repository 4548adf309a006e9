//! A client's memory: its windows, what of them is committed, and what each device has left.
//!
//! A client has one window on each device at first, and gets more as its memory there grows. Each
//! (`backing`) is mapped whole and for as long as any work runs that was held to it, so an access
//! inside it is always memory-safe; the validity table beside it (`ptx_vm::Window`) says which
//! granules the client has. Taking memory back clears the marks, waits until no bytes are being moved that were
//! allowed before ([`CopySpace::moving`]), and punches a hole, so that nothing is written into what counts
//! for nobody any more. A kernel's accesses find the marks each by itself. The host window was mapped by
//! somebody else and has only a table.
//!
//! What a kernel or a copy may touch is a list of such windows, made anew when it changes: work is
//! held to the list as it was when the work was posted.
//!
//! Knows nothing of streams or kernels.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{Bound, CUresult, FurtherWindow, Owner, Region, Window, arena};
use parking_lot::RwLock;
use rustix::mm::Advice;

mod backing;
mod copy_space;
mod device_window;
mod mapped;
pub(crate) mod raw;

use self::backing::{Backing, Mappings};
pub(crate) use self::backing::{Physical, SharedBlock};
use self::copy_space::Borrowed;
pub(crate) use self::copy_space::{CopySpace, read};
use self::device_window::{DeviceWindow, KeptMapped, table};
pub(crate) use self::mapped::Mapped;

/// Memory outside of its own window that a device of the client may reach.
#[derive(Debug)]
struct ReachableWindow {
    /// The one device; all of them if there is none.
    device: Option<u32>,
    window: Arc<ptx_vm::Window>,
}

/// One device's part of a client's memory.
#[derive(Debug)]
struct DevicePart {
    budget: Arc<Bound>,
    /// What a kernel on this device may touch: its windows and the host's, and what else it was let.
    space: Arc<ptx_vm::AddressSpace>,
}

/// A client's memory.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    devices: Vec<DevicePart>,
    /// The first of each device, in their order, then further ones.
    spans: Vec<DeviceWindow>,
    mappings: Arc<Mappings>,
    host: Window,
    host_table: Arc<ptx_vm::Window>,
    copies: Arc<RwLock<Arc<CopySpace>>>,
    /// See [`CopySpace::moving`].
    moving: Arc<RwLock<()>>,
    mapped: Arc<Mapped>,
    extras: Vec<ReachableWindow>,
    /// What others mapped over the host window, by first address.
    lent: HashMap<u64, Arc<dyn Owner>>,
    /// What kernels may touch whose context has peers: by device and peers, as bits.
    with_peers: HashMap<(u32, u32), Arc<ptx_vm::AddressSpace>>,
}

impl ClientMemory {
    /// Maps a client's windows, of files if there are any. Nothing is accessible yet.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the windows, or the files that there are, are not as many as the devices, not made of granules,
    /// or overlap; CUDA_ERROR_OUT_OF_MEMORY if the system refuses the mapping.
    pub(crate) fn new(
        (windows, files): (&[Window], Vec<OwnedFd>),
        budgets: &[Arc<Bound>],
        addresses: &Arc<dyn Owner>,
        host: &Region,
        staging: &Region,
    ) -> Result<Self, CUresult> {
        let mut sorted: Vec<Window> = windows.to_vec();
        sorted.push(host.window);
        sorted.sort_by_key(|window| window.base);
        if windows.len() != budgets.len()
            || !files.is_empty() && files.len() != windows.len()
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
        let mappings = Arc::default();
        let mut devices = Vec::new();
        let mut spans = Vec::new();
        let mut files = files.into_iter();
        for (device, (&window, budget)) in windows.iter().zip(budgets).enumerate() {
            let place = (device, window, files.next());
            let span = DeviceWindow::map(place, budget, addresses, &mappings, &mapped, None)?;
            spans.push(span);
            devices.push(DevicePart {
                space: Arc::default(),
                budget: Arc::clone(budget),
            });
        }
        let moving = Arc::default();
        let copies = Arc::new(CopySpace {
            unified: ptx_vm::AddressSpace::default(),
            staging: staging.window,
            _staging: Arc::new(borrow(staging)),
            moving: Arc::clone(&moving),
        });
        let mut memory = Self {
            devices,
            spans,
            mappings,
            host: host.window,
            host_table,
            copies: Arc::new(RwLock::new(copies)),
            moving,
            mapped,
            extras: Vec::new(),
            lent: HashMap::new(),
            with_peers: HashMap::new(),
        };
        memory.renew_spaces();
        Ok(memory)
    }

    /// See [`engine::Client::window_add`].
    pub(crate) fn add_window(&mut self, further: FurtherWindow) -> Result<(), CUresult> {
        let FurtherWindow {
            device,
            window,
            addresses,
            file,
        } = further;
        let device = device as usize;
        let part = self.devices.get(device);
        let budget = &part.ok_or(CUresult::ERROR_INVALID_DEVICE)?.budget;
        let mut known = self.spans.iter().map(|span| span.window);
        if !is_granular(window)
            || window.bytes == 0
            || overlap(self.host, window)
            || known.any(|other| overlap(other, window))
            || self
                .extras
                .iter()
                .any(|extra| overlap(extra.range(), window))
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (mappings, mapped) = (&self.mappings, &self.mapped);
        let counted = Some(mappings.take()?);
        let place = (device, window, file);
        let span = DeviceWindow::map(place, budget, &addresses, mappings, mapped, counted)?;
        self.spans.push(span);
        self.renew_spaces();
        Ok(())
    }

    /// See [`engine::Client::window_remove`].
    pub(crate) fn remove_window(&mut self, window: Window) {
        let first = self.devices.len();
        let is_it = |span: &DeviceWindow| span.window == window;
        let Some(at) = self.spans.iter().skip(first).position(is_it) else {
            return;
        };
        let span = self.spans.remove(first + at);
        self.give_up(&span);
        self.renew_spaces();
    }

    /// Takes all away that is in a window whose client has done with it.
    fn give_up(&self, span: &DeviceWindow) {
        // What is mapped there is not of the window's own memory, and was counted by itself.
        for at in span.backing.unmap_all() {
            span.table.set_valid(at.base, at.bytes, false);
        }
        if span.backing.is_shared() {
            // It stays, and all but what is shared goes.
            self.withdraw(&span.table, span.window);
        }
        span.backing.leave(span.committed.load(Ordering::Relaxed));
    }

    /// What kernels on a device may touch, whose context has these peers. The order of the windows
    /// does not matter: a space sorts them.
    fn space(&self, device: u32, peers: u32) -> Arc<ptx_vm::AddressSpace> {
        let is_in = |number: usize| number == device as usize || peers >> number & 1 != 0;
        let mut windows = vec![Arc::clone(&self.host_table)];
        let mut foreign = Vec::new();
        for span in &self.spans {
            match is_in(span.device) {
                true => windows.push(Arc::clone(&span.table)),
                false => foreign.push(span.window),
            }
        }
        let reached = self.extras.iter().filter(|extra| {
            let inside = self.span_of(extra.range()).is_some();
            let apart = foreign
                .iter()
                .any(|window| window.contains(extra.range().base, extra.range().bytes));
            // What lies in a window that is reached anyway is reached with it.
            (!inside || apart) && extra.device.is_none_or(|only| only == device)
        });
        windows.extend(reached.map(|extra| Arc::clone(&extra.window)));
        Arc::new(ptx_vm::AddressSpace::new(windows))
    }

    /// Makes the spaces anew: work that is posted from now on is held to them.
    fn renew_spaces(&mut self) {
        let spaces: Vec<_> = (0..self.devices.len())
            .map(|device| self.space(device as u32, 0))
            .collect();
        for (part, space) in self.devices.iter_mut().zip(spaces) {
            part.space = space;
        }
        let keys: Vec<(u32, u32)> = self.with_peers.keys().copied().collect();
        for key in keys {
            let space = self.space(key.0, key.1);
            self.with_peers.insert(key, space);
        }
        let mut all: Vec<_> = self
            .spans
            .iter()
            .map(|span| Arc::clone(&span.table))
            .collect();
        all.push(Arc::clone(&self.host_table));
        let outside = self.extras.iter().filter(|extra| extra.device.is_none());
        all.extend(outside.map(|extra| Arc::clone(&extra.window)));
        let mut copies = self.copies.write();
        *copies = Arc::new(CopySpace {
            unified: ptx_vm::AddressSpace::new(all),
            staging: copies.staging,
            _staging: Arc::clone(&copies._staging),
            moving: Arc::clone(&self.moving),
        });
    }

    /// Lets nothing reach a range from now on, and waits until no bytes are being moved there.
    fn withdraw(&self, table: &ptx_vm::Window, range: Window) {
        table.set_valid(range.base, range.bytes, false);
        drop(self.moving.write());
    }

    /// Lets contexts with these peers be launched in.
    pub(crate) fn prepare_peers(&mut self, device: u32, peers: u32) {
        if peers != 0 && !self.with_peers.contains_key(&(device, peers)) {
            let space = self.space(device, peers);
            self.with_peers.insert((device, peers), space);
        }
    }

    /// See [`engine::Client::share`].
    pub(crate) fn share(&self, range: Window) -> Result<Arc<SharedBlock>, CUresult> {
        let span = self.span_of(range).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let space = &self.devices[span.device].space;
        if range.bytes == 0 || !space.allows(range.base, range.bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Backing::share(&span.backing, range))
    }

    /// See [`engine::Client::import`].
    pub(crate) fn import(&mut self, shared: &Arc<SharedBlock>) -> Result<(), CUresult> {
        let range = shared.range();
        let known = |extra: &ReachableWindow| extra.device.is_none() && extra.range() == range;
        if self.extras.iter().any(known) {
            return Ok(());
        }
        let is_own = self.span_of(range).is_some() || self.host.contains(range.base, range.bytes);
        if is_own
            || self
                .extras
                .iter()
                .any(|extra| overlap(extra.range(), range))
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the shared block keeps its memory mapped, and only raw accesses reach it. The
        // ticket makes the client's end wait for work that uses it.
        let window = unsafe {
            ptx_vm::Window::whole(
                range.base,
                range.bytes,
                Arc::new((Arc::clone(shared), self.mapped.ticket())),
            )
        };
        self.extras.push(ReachableWindow {
            device: None,
            window: Arc::new(window),
        });
        self.renew_spaces();
        Ok(())
    }

    /// See [`engine::Client::close`].
    pub(crate) fn close(&mut self, shared: &Arc<SharedBlock>) {
        let range = shared.range();
        self.extras
            .retain(|extra| extra.device.is_some() || extra.range() != range);
        self.renew_spaces();
    }

    /// See [`engine::Client::physical_map`].
    pub(crate) fn map_physical(
        &self,
        at: Window,
        memory: &Arc<Physical>,
        offset: u64,
    ) -> Result<(), CUresult> {
        let span = self.span_of(at).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !is_granular(at) || at.bytes == 0 || span.table.valid_bytes(at.base, at.bytes) != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        span.backing.map_physical(at, memory, offset)
    }

    /// See [`engine::Client::physical_unmap`].
    pub(crate) fn unmap_physical(&mut self, at: Window) {
        let Some(span) = self.span_of(at).filter(|_| is_granular(at)) else {
            return;
        };
        span.table.set_valid(at.base, at.bytes, false);
        span.backing.unmap_physical(at);
        let before = self.extras.len();
        self.extras.retain(|extra| !overlap(extra.range(), at));
        if self.extras.len() != before {
            self.renew_spaces();
        }
    }

    /// See [`engine::Client::physical_access`].
    pub(crate) fn access_physical(
        &mut self,
        at: Window,
        device: u32,
        reaches: bool,
    ) -> Result<(), CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        if device as usize >= self.devices.len() || !is_granular(at) {
            return Err(wrong);
        }
        let span = self.span_of(at).ok_or(wrong)?;
        if !span.backing.is_physical(at) {
            return Err(wrong);
        }
        let is_this = |extra: &ReachableWindow| extra.device == Some(device) && extra.range() == at;
        let known = self.extras.iter().any(is_this);
        if device as usize == span.device {
            span.table.set_valid(at.base, at.bytes, reaches);
        } else if reaches && !known {
            // Copies have no device: what any device reaches, they do.
            span.table.set_valid(at.base, at.bytes, true);
            let owner = KeptMapped {
                _backing: Arc::clone(&span.backing),
                _ticket: self.mapped.ticket(),
            };
            // SAFETY: the backing keeps its window mapped, whatever is mapped in it.
            let window = unsafe { ptx_vm::Window::whole(at.base, at.bytes, Arc::new(owner)) };
            self.extras.push(ReachableWindow {
                device: Some(device),
                window: Arc::new(window),
            });
            self.renew_spaces();
        } else if !reaches && known {
            self.extras.retain(|extra| !is_this(extra));
            self.renew_spaces();
        }
        Ok(())
    }

    /// What a kernel on this device may touch, whose context has these peers.
    pub(crate) fn kernel_space(
        &self,
        device: u32,
        peers: u32,
    ) -> Result<&Arc<ptx_vm::AddressSpace>, CUresult> {
        let part = self
            .devices
            .get(device as usize)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        Ok(match peers {
            0 => &part.space,
            _ => self.with_peers.get(&(device, peers)).unwrap_or(&part.space),
        })
    }

    /// What copies may touch.
    pub(crate) fn copy_space(&self) -> Arc<CopySpace> {
        read(&self.copies)
    }

    /// Where what copies may touch is found at any time.
    pub(crate) fn copy_spaces(&self) -> Arc<RwLock<Arc<CopySpace>>> {
        Arc::clone(&self.copies)
    }

    /// Makes a range of granules accessible. Granules that already are stay as they are.
    pub(crate) fn commit(&self, range: Window) -> Result<(), CUresult> {
        if !is_granular(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if let Some(span) = self.span_of(range) {
            span.backing.settle(range)?;
            let missing = range.bytes - span.table.valid_bytes(range.base, range.bytes);
            if !self.devices[span.device].budget.charge(missing) {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            span.committed.fetch_add(missing, Ordering::Relaxed);
            span.table.set_valid(range.base, range.bytes, true);
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
        if let Some(span) = self.span_of(range) {
            let given = span.table.valid_bytes(range.base, range.bytes);
            self.withdraw(&span.table, range);
            span.backing.punch(range);
            span.committed.fetch_sub(given, Ordering::Relaxed);
            self.devices[span.device].budget.uncharge(given);
        } else if self.host.contains(range.base, range.bytes) {
            self.withdraw(&self.host_table, range);
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

    /// See [`engine::Client::host_lend`].
    pub(crate) fn lend(&mut self, range: Window, memory: Arc<dyn Owner>) -> Result<(), CUresult> {
        let is_free = is_granular(range)
            && range.bytes > 0
            && self.host.contains(range.base, range.bytes)
            && self.host_table.valid_bytes(range.base, range.bytes) == 0;
        if !is_free {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.lent.insert(range.base, memory);
        self.host_table.set_valid(range.base, range.bytes, true);
        Ok(())
    }

    /// See [`engine::Client::host_return`]. Work that runs on all the same finds the owner's own memory.
    pub(crate) fn take_back(&mut self, range: Window) {
        if let Some(memory) = self.lent.remove(&range.base) {
            self.host_table.set_valid(range.base, range.bytes, false);
            drop(memory);
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
        let copies = self.copy_space();
        if !copies.unified.allows(range.base, range.bytes) {
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
        match self.span_of(whole) {
            Some(span) if whole.bytes > 0 => {
                copies.zero(window(range.base, first))?;
                span.backing.punch(whole);
                copies.zero(window(last, end))
            }
            _ => copies.zero(range),
        }
    }

    /// What tells when the last of this memory is unmapped.
    pub(crate) fn mapped(&self) -> Arc<Mapped> {
        Arc::clone(&self.mapped)
    }

    fn span_of(&self, range: Window) -> Option<&DeviceWindow> {
        self.spans
            .iter()
            .find(|span| span.window.contains(range.base, range.bytes))
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        for span in &self.spans {
            self.give_up(span);
        }
    }
}

impl ReachableWindow {
    fn range(&self) -> Window {
        Window {
            base: self.window.base(),
            bytes: self.window.len(),
        }
    }
}

fn overlap(one: Window, other: Window) -> bool {
    one.base < other.base + other.bytes && other.base < one.base + one.bytes
}

fn is_granular(range: Window) -> bool {
    range.base.is_multiple_of(arena::GRANULE)
        && range.bytes.is_multiple_of(arena::GRANULE)
        && range.base.checked_add(range.bytes).is_some()
}

#[cfg(test)]
mod tests;
