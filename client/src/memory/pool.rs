//! Memory pools: memory that is freed in the order of a stream is kept here and given out again
//! without asking the server, which has counted it against the quota all the while.
//!
//! A block that was freed in a stream is there for the same stream at once; for others when the
//! freeing stream is past the free, or when they wait for an event recorded behind it.
//! What a pool holds beyond its release threshold goes back to the server when the program
//! synchronises, and all of it that nothing uses when memory runs out.
//!
//! Owns the blocks that are free, and the counts. Knows neither addresses' ranges nor arguments.
//!
//! Called by `api::pool` and `api::pool_sharing`, by graphs' memory, and where the program synchronises.

mod blocks;

use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::CUmemAllocationHandleType;
use protocol::operations::{MemAlloc, MemFree};

use crate::context::Current;
use crate::handle::object_table::{ArcSlot, Slots};
use crate::handle::{HandleKind, Key};
use crate::session::connection::Connection;
use crate::stream::cross_stream_waits::CrossStreamWaits;

/// All pools of the process.
#[derive(Debug)]
pub(crate) struct Pools {
    table: Slots<ArcSlot<Pool>>,
    /// The pools that devices begin with, by ordinal.
    standard: Vec<u64>,
    /// Those that cuMemAllocAsync takes from.
    current: Vec<AtomicU64>,
    connection: &'static Connection,
    /// How far streams have waited for one another, and whether blocks are free.
    waits: &'static CrossStreamWaits,
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The ordinal of its device.
    pub device: i32,
    /// Whose it is, and who else may have it.
    pub reach: Reach,
    state: Mutex<PoolState>,
}

/// Whether a pool is shared between processes.
#[derive(Debug)]
pub(crate) enum Reach {
    /// It is this process's alone.
    Own,
    /// Others may have it: by this name, once it has been given to any.
    Exportable(OnceLock<PoolName>),
    /// It is another process's. Nothing can be allocated from it.
    Imported(PoolName),
}

/// What tells a pool that is shared from all others: random bits.
pub(crate) type PoolName = [u64; 2];

#[derive(Debug, Default)]
struct PoolState {
    settings: Settings,
    free: Vec<Free>,
    /// Bytes of the blocks that are given out, by address.
    in_use: HashMap<u64, PoolBlock>,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    /// Destroyed: what comes back is not kept.
    ended: bool,
    /// The ordinals of other devices that may reach its memory.
    peers: Vec<i32>,
}

/// What a program may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Blocks are given to streams that wait for an event behind the free.
    pub follow_events: bool,
    /// Blocks are given to streams when the free is past.
    pub opportunistic: bool,
    /// Streams may be made to wait for a free to get a block.
    pub internal: bool,
    /// Bytes that are kept when the program synchronises.
    pub threshold: u64,
    /// Bytes that the pool may have; 0 for no bound.
    pub most: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            follow_events: true,
            opportunistic: true,
            internal: true,
            threshold: 0,
            most: 0,
        }
    }
}

/// What a pool counts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
}

#[derive(Clone, Copy, Debug)]
struct PoolBlock {
    bytes: u64,
    /// Bytes that were asked for: what the pool counts as used.
    asked: u64,
    context: u64,
    /// Other processes may have it: it is not given out again.
    exported: bool,
}

/// A block that was freed.
#[derive(Clone, Copy, Debug)]
struct Free {
    address: u64,
    bytes: u64,
    /// The context that the server has it in.
    context: u64,
    /// The stream that it was freed in, by slot and by number, and its place there.
    slot: u32,
    stream: u64,
    sequence: u64,
}

impl PoolState {
    fn add_used(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
    }
}

impl Pool {
    fn new(device: i32, reach: Reach, settings: Settings) -> Self {
        Self {
            device,
            reach,
            state: Mutex::new(PoolState {
                settings,
                ..PoolState::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses another process's pool, which has memory and settings there only.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE
    pub(crate) fn own(&self) -> Result<&Self, CUresult> {
        match self.reach {
            Reach::Imported(_) => Err(CUresult::ERROR_INVALID_VALUE),
            Reach::Own | Reach::Exportable(_) => Ok(self),
        }
    }

    /// The name by which other processes may have it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if they may not, CUDA_ERROR_OPERATING_SYSTEM without random bits.
    pub(crate) fn export(&self) -> Result<PoolName, CUresult> {
        let Reach::Exportable(name) = &self.reach else {
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        if let Some(name) = name.get() {
            return Ok(*name);
        }
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let bits = u128::from_le_bytes(bytes);
        Ok(*name.get_or_init(|| [bits as u64, (bits >> 64) as u64]))
    }

    /// The kinds of handles that it can be exported as.
    pub(crate) fn handle_types(&self) -> CUmemAllocationHandleType {
        match self.reach {
            Reach::Exportable(_) => CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            Reach::Own | Reach::Imported(_) => CUmemAllocationHandleType::NONE,
        }
    }

    /// Whether a device may reach its memory, by ordinal.
    pub(crate) fn is_reached(&self, device: i32) -> bool {
        device == self.device || self.state().peers.contains(&device)
    }

    /// Notes whether another device may reach its memory.
    pub(crate) fn set_peer(&self, device: i32, reaches: bool) {
        let peers = &mut self.state().peers;
        peers.retain(|&other| other != device);
        if reaches {
            peers.push(device);
        }
    }

    /// What was set.
    pub(crate) fn settings(&self) -> Settings {
        self.state().settings
    }

    /// Changes what is set.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state().settings);
    }

    /// What it has and what of it is given out.
    pub(crate) fn counts(&self) -> Counts {
        let state = self.state();
        Counts {
            used: state.used,
            used_high: state.used_high,
            reserved: state.reserved,
            reserved_high: state.reserved_high,
        }
    }

    /// Sets a high mark to what is now: that of used memory, or of reserved.
    pub(crate) fn reset_high(&self, used: bool) {
        let mut state = self.state();
        match used {
            true => state.used_high = state.used,
            false => state.reserved_high = state.reserved,
        }
    }
}

impl Pools {
    /// The pools that devices begin with.
    pub(crate) fn new(connection: &'static Connection, waits: &'static CrossStreamWaits) -> Self {
        let table: Slots<ArcSlot<Pool>> = Slots::new(0, u32::MAX);
        let standard: Vec<u64> = (0..connection.devices().len())
            .map(|ordinal| {
                let pool = Arc::new(Pool::new(ordinal as i32, Reach::Own, Settings::default()));
                insert(&table, pool).unwrap_or(0)
            })
            .collect();
        Self {
            table,
            current: standard.iter().copied().map(AtomicU64::new).collect(),
            standard,
            connection,
            waits,
        }
    }

    /// The pool of a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<Pool>, CUresult> {
        Key::of(handle, HandleKind::Pool)
            .and_then(|key| self.table.get(key)?.get())
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The handle of the pool that a device began with.
    pub(crate) fn standard(&self, ordinal: i32) -> Result<u64, CUresult> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.standard.get(ordinal).copied())
            .ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// The handle of the pool that allocations on a device come from.
    pub(crate) fn current(&self, ordinal: i32) -> Result<&AtomicU64, CUresult> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.current.get(ordinal))
            .ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// Makes a pool on a device.
    pub(crate) fn create(
        &self,
        ordinal: i32,
        reach: Reach,
        settings: Settings,
    ) -> Result<u64, CUresult> {
        insert(&self.table, Arc::new(Pool::new(ordinal, reach, settings)))
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Ends a pool. What is given out of it stays until it is freed.
    pub(crate) fn destroy(&self, connection: &Connection, handle: u64) -> Result<(), CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        if self.standard.contains(&handle) {
            return Err(wrong);
        }
        let pool = self.get(handle)?;
        for (current, standard) in self.current.iter().zip(&self.standard) {
            let _ =
                current.compare_exchange(handle, *standard, Ordering::Relaxed, Ordering::Relaxed);
        }
        pool.state().ended = true;
        self.release_all(connection, &pool);
        self.end_if_empty(handle, &pool);
        Ok(())
    }

    /// Forgets a pool that was destroyed once nothing of it is given out.
    fn end_if_empty(&self, handle: u64, pool: &Pool) {
        let state = pool.state();
        if state.ended
            && state.in_use.is_empty()
            && let Some(key) = Key::of(handle, HandleKind::Pool)
            && let Some(place) = self.table.remove(key)
        {
            drop(place.put(None));
            self.table.release(key.index());
        }
    }
}

fn insert(table: &Slots<ArcSlot<Pool>>, pool: Arc<Pool>) -> Option<u64> {
    let key = table.insert(|_, _| true, |_, place| drop(place.put(Some(pool))))?;
    Some(key.handle(HandleKind::Pool))
}

impl Pools {
    /// Asks the server for memory; when there is none, gives back what pools hold and asks again.
    pub(crate) fn with_caches_trimmed<T>(
        &self,
        ask: impl Fn() -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        match ask() {
            Err(CUresult::ERROR_OUT_OF_MEMORY) if self.waits.any_free_block() => {
                for pool in self.all() {
                    self.release_all(self.connection, &pool);
                }
                ask()
            }
            other => other,
        }
    }

    /// Device memory of a context, from the server.
    pub(crate) fn allocate_device_memory(
        &self,
        current: &Current,
        bytes: u64,
    ) -> Result<u64, CUresult> {
        let context = current.slot();
        let ask = || self.connection.call(&MemAlloc { context, bytes });
        let address = self.with_caches_trimmed(ask)?.fields.address;
        if let Err(code) = self.connection.reserve_around(address) {
            self.connection.post(&MemFree { address })?;
            return Err(code);
        }
        Ok(address)
    }
}
