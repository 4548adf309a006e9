//! Memory that graphs allocate.
//!
//! Its address is known when the node is made, so the memory is there from then on: it comes from the
//! server as any other, within the client's quota. A launch only decides whether the program owns it
//! at the moment, from the node that allocates to whatever frees it. It goes back to the server when
//! neither a graph nor an executable graph nor the program has it any more.
//!
//! Owns these allocations by address. `api::graph::nodes` makes them, launches make them live, frees of
//! `api::memory` and `api::pool` ask here first. Must not know nodes, nor when a graph runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CU_MEM_ATTACH_GLOBAL, CUgraphMem_attribute};
use protocol::operations::{ManagedAlloc, MemFree};

use crate::context::Current;
use crate::memory::pool::Pools;
use crate::memory::ranges::{Origin, Range, Ranges};
use crate::session::connection::Connection;

/// All memory of graphs, by address.
#[derive(Debug)]
pub(crate) struct Memories {
    connection: &'static Connection,
    ranges: &'static Ranges,
    pools: &'static Pools,
    map: Mutex<AllocationMap>,
}

#[derive(Debug, Default)]
struct AllocationMap {
    by_address: BTreeMap<u64, AllocationState>,
    /// The most bytes since each of the two marks was reset, by device.
    high: BTreeMap<i32, (u64, u64)>,
}

#[derive(Debug)]
struct AllocationState {
    bytes: u64,
    /// The ordinal of the device.
    device: i32,
    /// The handle of the context.
    context: u64,
    /// Whether the program has it: a launch has allocated it, and nothing has freed it since.
    live: bool,
    /// Whether a launch has ever allocated it: from then on it counts.
    launched: bool,
    /// Whether a graph or an executable graph has it.
    held: bool,
}

/// The hold that graphs have on an allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    memories: &'static Memories,
    address: u64,
    bytes: u64,
    context: u64,
    managed: bool,
}

impl Memories {
    /// None yet; they come from the server, after what pools hold, and are noted among the ranges.
    pub(super) fn new(
        connection: &'static Connection,
        ranges: &'static Ranges,
        pools: &'static Pools,
    ) -> Self {
        Self {
            connection,
            ranges,
            pools,
            map: Mutex::default(),
        }
    }

    fn map(&self) -> MutexGuard<'_, AllocationMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a launch allocates. `again` is whether memory that is not freed yet counts as freed.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the program has it still.
    pub(crate) fn make_live(&self, address: u64, again: bool) -> Result<(), CUresult> {
        let mut map = self.map();
        let entry = map.by_address.get_mut(&address);
        let entry = entry.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if entry.live && !again {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        entry.live = true;
        entry.launched = true;
        let device = entry.device;
        map.note_high(device);
        Ok(())
    }

    /// Whether the program has it.
    pub(crate) fn is_live(&self, address: u64) -> bool {
        self.map()
            .by_address
            .get(&address)
            .is_some_and(|entry| entry.live)
    }

    /// Whether an address is that of an allocation of a graph.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.map().by_address.contains_key(&address)
    }

    /// Frees what a launch has allocated; `None` if the address is none of a graph's.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the program has it no more.
    pub(crate) fn free(&self, address: u64) -> Option<Result<(), CUresult>> {
        let mut map = self.map();
        let entry = map.by_address.get_mut(&address)?;
        if !std::mem::take(&mut entry.live) {
            return Some(Err(CUresult::ERROR_INVALID_VALUE));
        }
        if entry.held {
            return Some(Ok(()));
        }
        map.by_address.remove(&address);
        drop(map);
        Some(self.give_back(address))
    }

    /// Allocates memory for a graph: a device's, or managed memory.
    pub(crate) fn allocate(
        &'static self,
        current: &Current,
        bytes: u64,
        managed: bool,
    ) -> Result<Arc<Allocation>, CUresult> {
        if bytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (address, range) = match managed {
            false => {
                let address = self.pools.allocate_device_memory(current, bytes)?;
                let range = Range::new(current, Origin::Device, address, bytes);
                (address, range)
            }
            true => {
                let context = current.slot();
                let ask = || self.connection.call(&ManagedAlloc { context, bytes });
                let address = self.pools.with_caches_trimmed(ask)?.fields.address;
                let range = Range {
                    flags: CU_MEM_ATTACH_GLOBAL,
                    ..Range::new(current, Origin::Managed, address, bytes)
                };
                (address, range)
            }
        };
        let noted = self.ranges.insert(range);
        if !noted {
            return Err(CUresult::ERROR_UNKNOWN);
        }
        let device = current.context.device();
        let mut map = self.map();
        let entry = AllocationState {
            bytes,
            device,
            context: current.handle(),
            live: false,
            launched: false,
            held: true,
        };
        map.by_address.insert(address, entry);
        drop(map);
        Ok(Arc::new(Allocation {
            memories: self,
            address,
            bytes,
            context: current.handle(),
            managed,
        }))
    }

    fn give_back(&self, address: u64) -> Result<(), CUresult> {
        // The context's end may have taken it before.
        match self.ranges.remove(address, |_| true) {
            Some(_) => self.connection.post(&MemFree { address }),
            None => Ok(()),
        }
    }

    /// Forgets the memory of a context that has ended; it ended with it.
    pub(crate) fn forget(&self, context: u64) {
        let mut map = self.map();
        map.by_address.retain(|_, entry| entry.context != context);
    }

    /// A count about a device's memory of graphs, in bytes. As NVIDIA's driver counts, memory that was
    /// launched once is in use until it goes, also between the node that frees it and the next launch.
    pub(crate) fn attribute(
        &self,
        device: i32,
        attribute: CUgraphMem_attribute,
    ) -> Result<u64, CUresult> {
        let map = self.map();
        let now = map.now(device);
        let (most_used, most_reserved) = map.high.get(&device).copied().unwrap_or((0, 0));
        match attribute {
            CUgraphMem_attribute::USED_MEM_CURRENT | CUgraphMem_attribute::RESERVED_MEM_CURRENT => {
                Ok(now)
            }
            CUgraphMem_attribute::USED_MEM_HIGH => Ok(most_used),
            CUgraphMem_attribute::RESERVED_MEM_HIGH => Ok(most_reserved),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Makes a high-water mark what is true now.
    pub(crate) fn reset(
        &self,
        device: i32,
        attribute: CUgraphMem_attribute,
    ) -> Result<(), CUresult> {
        let mut map = self.map();
        let now = map.now(device);
        let high = map.high.entry(device).or_default();
        match attribute {
            CUgraphMem_attribute::USED_MEM_HIGH => high.0 = now,
            CUgraphMem_attribute::RESERVED_MEM_HIGH => high.1 = now,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}

impl AllocationMap {
    /// Bytes that launches have allocated.
    fn now(&self, device: i32) -> u64 {
        let all = self.by_address.values();
        let counted = all.filter(|it| it.device == device && it.launched);
        counted.map(|entry| entry.bytes).sum()
    }

    fn note_high(&mut self, device: i32) {
        let now = self.now(device);
        let high = self.high.entry(device).or_default();
        *high = (high.0.max(now), high.1.max(now));
    }
}

impl Allocation {
    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is managed memory.
    pub(crate) fn is_managed(&self) -> bool {
        self.managed
    }

    /// The handle of its context.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut map = self.memories.map();
        let Some(entry) = map.by_address.get_mut(&self.address) else {
            return;
        };
        entry.held = false;
        if entry.live {
            return; // The program has it, and frees it.
        }
        map.by_address.remove(&self.address);
        drop(map);
        // If there is no server any more there is no memory either.
        let _ = self.memories.give_back(self.address);
    }
}
