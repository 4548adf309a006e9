//! A client's memory: which blocks it has, to which context each belongs, and what it may have.
//!
//! Addresses come from the client's own windows, of each device and for page-locked host memory;
//! an address that is not the start of one of its blocks reaches nothing. Quotas are counted in what
//! blocks take, from the call that makes a block until its memory is free again, which for a posted
//! free is when all work taken before it has finished. What counts against a device counts against
//! the client's group as well.
//!
//! Knows neither streams nor records; how blocks lie is `heap`'s.

use std::collections::{BTreeMap, btree_map};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;
use engine::{Bound, Window};

use crate::admission::groups::{Group, GroupCharge};
use crate::memory::heap::{Backing, Heap};

/// Blocks that one client may have, so that a hostile one cannot fill the server with their records.
const MAX_BLOCKS: usize = 1 << 20;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// On a device, by its ordinal.
    Device(u32),
    /// In page-locked host memory.
    Host,
    /// In the host window, as page-locked memory is, but counted against a device, by its ordinal:
    /// managed memory.
    Managed(u32),
    /// At addresses of the host window, over which something of the client's is mapped.
    BareHost,
}

/// A block that no longer belongs to the client, but whose memory is not free yet.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    place: MemoryKind,
    context: u32,
    start: u64,
    bytes: u64,
}

/// The blocks of windows of one kind, and a quota.
#[derive(Debug)]
struct Pool {
    heap: Heap,
    /// Bytes that count against the quota, those being freed included. Others may look; only the client's
    /// session changes it.
    used: Arc<AtomicU64>,
    /// Bytes that may count.
    limit: u64,
    /// Bytes that any limit can be at most.
    most: u64,
}

impl MemoryBlock {
    /// What it takes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its first address.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }
}

/// What a client may have of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The addresses that it begins with.
    pub window: Window,
    /// The bytes.
    pub limit: u64,
    /// The bytes that any limit can be at most.
    pub most: u64,
}

/// The memory of one client.
#[derive(Debug)]
pub struct ClientMemory {
    devices: Vec<Pool>,
    host: Pool,
    /// By address.
    blocks: BTreeMap<u64, MemoryBlock>,
    /// What all of it but page-locked memory counts against too.
    group: Option<Arc<Group>>,
    /// What it may have in its host window, within what all clients may, and what it has of that.
    pinned: Arc<Bound>,
    pinned_used: u64,
}

impl Pool {
    fn new(allowance: Allowance, device: Option<u32>) -> Self {
        Self {
            heap: Heap::new(allowance.window, device),
            used: Arc::default(),
            limit: allowance.limit.min(allowance.most),
            most: allowance.most,
        }
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts bytes, or no longer.
    fn count(&self, used: u64) {
        self.used.store(used, Ordering::Relaxed);
    }
}

impl MemoryKind {
    /// The device whose quota it counts against.
    const fn device(self) -> Option<u32> {
        match self {
            Self::Device(device) | Self::Managed(device) => Some(device),
            Self::Host | Self::BareHost => None,
        }
    }

    /// Whether it lies in the host window.
    const fn on_host(self) -> bool {
        matches!(self, Self::Host | Self::Managed(_) | Self::BareHost)
    }
}

impl ClientMemory {
    /// The memory of a new client.
    #[must_use]
    pub fn new(
        devices: &[Allowance],
        host: Allowance,
        group: Option<Arc<Group>>,
        pinned: Arc<Bound>,
    ) -> Self {
        Self {
            pinned,
            pinned_used: 0,
            devices: (0..)
                .zip(devices)
                .map(|(device, &allowance)| Pool::new(allowance, Some(device)))
                .collect(),
            host: Pool::new(host, None),
            blocks: BTreeMap::new(),
            group,
        }
    }

    /// Counts bytes against the quota of a place, the group's, and the machine's.
    fn charge_kind(&mut self, place: MemoryKind, bytes: u64) -> Result<(), CUresult> {
        let quota = self.quota(place).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        if bytes > quota.limit.saturating_sub(quota.used()) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        if place.on_host() && !self.pinned.charge(bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        if let (Some(group), Some(device)) = (&self.group, place.device())
            && !group.charge(device, bytes)
        {
            if place.on_host() {
                self.pinned.uncharge(bytes);
            }
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        if place.on_host() {
            self.pinned_used += bytes;
        }
        let quota = self.quota(place).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        quota.count(quota.used() + bytes);
        Ok(())
    }

    /// Counts bytes back.
    fn uncharge_kind(&mut self, place: MemoryKind, bytes: u64) {
        let Some(quota) = self.quota(place) else {
            return;
        };
        let bytes = bytes.min(quota.used());
        quota.count(quota.used() - bytes);
        if let (Some(group), Some(device)) = (&self.group, place.device()) {
            group.uncharge(device, bytes);
        }
        if place.on_host() {
            let bytes = bytes.min(self.pinned_used);
            self.pinned_used -= bytes;
            self.pinned.uncharge(bytes);
        }
    }

    /// Sets the quota of a device. What is taken beyond it stays; more is not to be had before less
    /// is taken.
    pub fn set_limit(&mut self, device: u32, limit: u64) {
        if let Some(quota) = self.quota(MemoryKind::Device(device)) {
            quota.limit = limit.min(quota.most);
        }
    }

    /// Bytes of a device that the client may have.
    #[must_use]
    pub fn limit(&self, device: u32) -> u64 {
        self.devices
            .get(device as usize)
            .map_or(0, |pool| pool.limit)
    }

    /// Where these bytes are counted, for who looks from another thread.
    #[must_use]
    pub fn counts(&self) -> Vec<Arc<AtomicU64>> {
        let pools = self.devices.iter();
        pools.map(|pool| Arc::clone(&pool.used)).collect()
    }

    /// Takes bytes of a device from the client's count, but not from its group's, which has them
    /// until what this gives is dropped.
    #[must_use]
    pub fn pass_to_group(&mut self, device: u32, bytes: u64) -> Option<GroupCharge> {
        let quota = self.quota(MemoryKind::Device(device))?;
        let bytes = bytes.min(quota.used());
        quota.count(quota.used() - bytes);
        let group = self.group.clone()?;
        Some(GroupCharge::new(group, device, bytes))
    }

    /// The quota against which blocks of a place count.
    fn quota(&mut self, place: MemoryKind) -> Option<&mut Pool> {
        match place {
            MemoryKind::Device(device) | MemoryKind::Managed(device) => {
                self.devices.get_mut(device as usize)
            }
            MemoryKind::Host | MemoryKind::BareHost => Some(&mut self.host),
        }
    }

    /// The window that blocks of a place lie in.
    fn heap(&mut self, place: MemoryKind) -> Option<&mut Heap> {
        match place {
            MemoryKind::Device(device) => Some(&mut self.devices.get_mut(device as usize)?.heap),
            MemoryKind::Host | MemoryKind::Managed(_) | MemoryKind::BareHost => {
                Some(&mut self.host.heap)
            }
        }
    }

    /// Makes a block and gives its address.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for no bytes, CUDA_ERROR_INVALID_DEVICE, and
    /// CUDA_ERROR_OUT_OF_MEMORY beyond the quota or what the device has; then nothing has changed.
    pub fn allocate(
        &mut self,
        place: MemoryKind,
        context: u32,
        bytes: u64,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        if bytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let nowhere = CUresult::ERROR_INVALID_DEVICE;
        let bytes = self
            .heap(place)
            .ok_or(nowhere)?
            .rounded(bytes)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.charge_kind(place, bytes)?;
        let heap = self.heap(place).ok_or(nowhere)?;
        let made = heap.allocate(bytes, backing);
        let start = made.inspect_err(|_| self.uncharge_kind(place, bytes))?;
        self.blocks.insert(
            start,
            MemoryBlock {
                place,
                context,
                start,
                bytes,
            },
        );
        Ok(start)
    }

    /// Adds a further window of a device that the client had in a former server.
    pub fn add_window(&mut self, device: u32, window: Window) {
        if let Some(heap) = self.heap(MemoryKind::Device(device)) {
            heap.add_window(window);
        }
    }

    /// Makes a block where one lay in a former server, with what is in it.
    ///
    /// # Errors
    /// As [`ClientMemory::allocate`], and CUDA_ERROR_INVALID_VALUE where there is no room for it.
    pub fn place(
        &mut self,
        (place, context): (MemoryKind, u32),
        (start, bytes): (u64, u64),
        backing: &mut dyn Backing,
    ) -> Result<(), CUresult> {
        if bytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (full, nowhere) = (
            CUresult::ERROR_OUT_OF_MEMORY,
            CUresult::ERROR_INVALID_DEVICE,
        );
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(full);
        }
        let heap = self.heap(place).ok_or(nowhere)?;
        let bytes = heap.rounded(bytes).ok_or(full)?;
        self.charge_kind(place, bytes)?;
        let heap = self.heap(place).ok_or(nowhere)?;
        let placed = heap.place(start, bytes, backing);
        placed.inspect_err(|_| self.uncharge_kind(place, bytes))?;
        let block = MemoryBlock {
            place,
            context,
            start,
            bytes,
        };
        self.blocks.insert(start, block);
        Ok(())
    }

    /// A block of [`ClientMemory::place`] of which the former server has not left everything, though it is none of those that
    /// are freed: it may have given the memory of these back. `is_freed` is told a block's address and its context.
    #[must_use]
    pub fn lost_block(&self, is_freed: impl Fn(u64, u32) -> bool) -> Option<u64> {
        let pools = || self.devices.iter().chain([&self.host]);
        if pools().all(|pool| pool.heap.has_all_left()) {
            return None;
        }
        let is_lost = |block: &&MemoryBlock| {
            !is_freed(block.start, block.context)
                && pools().any(|pool| pool.heap.is_lost(block.start, block.bytes))
        };
        self.blocks.values().find(is_lost).map(|block| block.start)
    }

    /// Takes back whatever a former server left in memory that is in no block.
    pub fn clear_vacant(&self, backing: &mut dyn Backing) {
        self.host.heap.clear_vacant(backing);
        for pool in &self.devices {
            pool.heap.clear_vacant(backing);
        }
    }

    /// Makes a block of bare addresses of the host window, over which something of the client's is to be
    /// mapped. They are whole granules.
    ///
    /// # Errors
    /// As [`ClientMemory::allocate`].
    pub fn allocate_addresses(
        &mut self,
        context: u32,
        bytes: u64,
        align: u64,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        self.allocate_bare(context, bytes, |heap| heap.reserve(bytes, align, backing))
    }

    /// As [`ClientMemory::allocate_addresses`], which begin `phase` bytes behind where a huge page does, if there is room.
    ///
    /// # Errors
    /// As [`ClientMemory::allocate`].
    pub fn allocate_addresses_in_phase(
        &mut self,
        context: u32,
        bytes: u64,
        phase: u64,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        self.allocate_bare(context, bytes, |heap| {
            heap.reserve_in_phase(bytes, phase, backing)
        })
    }

    fn allocate_bare(
        &mut self,
        context: u32,
        bytes: u64,
        reserve: impl FnOnce(&mut Heap) -> Result<u64, CUresult>,
    ) -> Result<u64, CUresult> {
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let place = MemoryKind::BareHost;
        self.charge_kind(place, bytes)?;
        let reserved = reserve(&mut self.host.heap);
        let start = reserved.inspect_err(|_| self.uncharge_kind(place, bytes))?;
        let block = MemoryBlock {
            place,
            context,
            start,
            bytes,
        };
        self.blocks.insert(start, block);
        Ok(start)
    }

    /// Takes addresses of the host window back over which nothing is mapped any more.
    pub fn return_addresses(&mut self, range: Window) {
        self.host.heap.unreserve(range.base, range.bytes);
    }

    /// Takes a block from the client, by its address: one that counts against a device, or one of
    /// page-locked memory. Its memory stays as it is until [`ClientMemory::release`].
    pub fn remove(&mut self, address: u64, on_device: bool) -> Option<MemoryBlock> {
        let block = self.blocks.get(&address)?;
        if on_device == matches!(block.place, MemoryKind::Host | MemoryKind::BareHost) {
            return None;
        }
        self.blocks.remove(&address)
    }

    /// The device and the bytes of a block of device memory, by its address.
    #[must_use]
    pub fn device_block(&self, address: u64) -> Option<(u32, u64)> {
        let block = self.blocks.get(&address)?;
        match block.place {
            MemoryKind::Device(device) => Some((device, block.bytes)),
            MemoryKind::Host | MemoryKind::Managed(_) | MemoryKind::BareHost => None,
        }
    }

    /// The block in which an address lies, and the one that ends there.
    #[must_use]
    pub fn blocks_at(&self, address: u64) -> [Option<Range<u64>>; 2] {
        let last = |mut blocks: btree_map::Range<'_, u64, MemoryBlock>| {
            let (_, block) = blocks.next_back()?;
            Some(block.start..block.start + block.bytes)
        };
        [
            last(self.blocks.range(..=address)).filter(|block| block.contains(&address)),
            last(self.blocks.range(..address)).filter(|block| block.end == address),
        ]
    }

    /// The window of a device in which an address lies.
    #[must_use]
    pub fn window_of(&self, address: u64) -> Option<Window> {
        let mut heaps = self.devices.iter().map(|pool| &pool.heap);
        heaps.find_map(|heap| heap.window_of(address))
    }

    /// Whether an address lies in the host window.
    #[must_use]
    pub fn is_in_host_window(&self, address: u64) -> bool {
        self.host.heap.window_of(address).is_some()
    }

    /// Whether an address lies in any window.
    #[must_use]
    pub fn is_in_window(&self, address: u64) -> bool {
        self.window_of(address).is_some() || self.is_in_host_window(address)
    }

    /// Sets addresses of a device aside.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, and CUDA_ERROR_OUT_OF_MEMORY when there are not as many in a row.
    pub fn reserve(
        &mut self,
        device: u32,
        bytes: u64,
        align: u64,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        let heap = self.heap(MemoryKind::Device(device));
        heap.ok_or(CUresult::ERROR_INVALID_DEVICE)?
            .reserve(bytes, align, backing)
    }

    /// Takes addresses back that [`ClientMemory::reserve`] gave.
    pub fn unreserve(&mut self, device: u32, start: u64, bytes: u64) {
        if let Some(heap) = self.heap(MemoryKind::Device(device)) {
            heap.unreserve(start, bytes);
        }
    }

    /// Takes all blocks of a context from the client.
    pub fn remove_context(&mut self, context: u32) -> Vec<MemoryBlock> {
        let mut removed = Vec::new();
        self.blocks.retain(|_, block| {
            if block.context != context {
                return true;
            }
            removed.push(MemoryBlock { ..*block });
            false
        });
        removed
    }

    /// Counts bytes of a device that are taken, but in no block: arrays, physical memory.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY beyond the quota, CUDA_ERROR_INVALID_DEVICE.
    pub fn charge(&mut self, device: u32, bytes: u64) -> Result<(), CUresult> {
        if bytes == 0 {
            return Ok(());
        }
        self.charge_kind(MemoryKind::Device(device), bytes)
    }

    /// Counts bytes of [`ClientMemory::charge`] back.
    pub fn uncharge(&mut self, device: u32, bytes: u64) {
        self.uncharge_kind(MemoryKind::Device(device), bytes);
    }

    /// Frees a block's memory, which nothing uses any more. Bare addresses are given back apart, by
    /// [`ClientMemory::return_addresses`].
    pub fn release(&mut self, block: &MemoryBlock, backing: &mut dyn Backing) {
        if block.place != MemoryKind::BareHost
            && let Some(heap) = self.heap(block.place)
        {
            heap.release(block.start, block.bytes, backing);
        }
        self.uncharge_kind(block.place, block.bytes);
    }

    /// Free and total bytes of a device as the client is told: its quota or its group's, whichever is
    /// lower, as total, and of it what is left and what the device still has. `vacant` is what nobody has taken of the device.
    #[must_use]
    pub fn info(&self, device: u32, vacant: u64) -> Option<(u64, u64)> {
        let pool = self.devices.get(device as usize)?;
        let mut left = pool.limit.saturating_sub(pool.used());
        let mut total = pool.limit;
        if let Some(group) = &self.group {
            left = left.min(group.remaining(device));
            total = total.min(group.limit(device));
        }
        Some((left.min(vacant.saturating_add(pool.heap.unused())), total))
    }

    /// Whether [`ClientMemory::trim`] has something to give back.
    #[must_use]
    pub fn has_unused(&self) -> bool {
        self.host.heap.retains() || self.devices.iter().any(|pool| pool.heap.retains())
    }

    /// Gives memory that no block uses back to the devices.
    pub fn trim(&mut self, backing: &mut dyn Backing) {
        self.host.heap.trim(backing);
        for pool in &mut self.devices {
            pool.heap.trim(backing);
        }
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.pinned.uncharge(self.pinned_used);
        if let Some(group) = &self.group {
            for (device, pool) in (0..).zip(&self.devices) {
                group.uncharge(device, pool.used());
            }
        }
    }
}

#[cfg(test)]
mod tests;
