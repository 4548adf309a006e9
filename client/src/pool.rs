//! Memory pools: memory that is freed in the order of a stream is kept here and given out again
//! without asking the server, which has counted it against the quota all the while.
//!
//! A block that was freed in a stream is there for the same stream at once; for others when the
//! freeing stream has come past the free, or when they wait for an event recorded behind it.
//! What a pool holds beyond its release threshold goes back to the server when the program
//! synchronises, and all of it that nothing uses when memory runs out.
//!
//! Owns the blocks that are free, and the counts. Knows neither addresses' ranges nor arguments.

use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::operations::{MemAlloc, MemFree};
use cuda_abi::types::CUmemAllocationHandleType;

use crate::context::Current;
use crate::handle::{Key, Kind};
use crate::memory::Range;
use crate::session::{Device, Session};
use crate::slots::{Held, Slots};
use crate::stream::Target;

/// Blocks begin at multiples of this many bytes.
const ALIGNMENT: u64 = 512;

/// Bytes by which a block may be too large for what it is given out for, beyond twice its size.
const SLACK: u64 = 64 << 10;

/// Waits of streams for one another that are remembered.
const MOST_WAITS: usize = 4096;

/// All pools of the process.
#[derive(Debug)]
pub(crate) struct Pools {
    table: Slots<Held<Pool>>,
    /// The pools that devices begin with, by ordinal.
    standard: Vec<u64>,
    /// Those that cuMemAllocAsync takes from.
    current: Vec<AtomicU64>,
    /// Free blocks in all pools; read without a lock when the program synchronises.
    free: AtomicUsize,
    /// How far a stream (the first) has waited for another, by slots.
    waits: Mutex<HashMap<(u32, u32), u64>>,
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The ordinal of its device.
    pub device: i32,
    /// Whose it is, and who else may have it.
    pub reach: Reach,
    state: Mutex<State>,
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
struct State {
    settings: Settings,
    free: Vec<Free>,
    /// Bytes of the blocks that are given out, by address.
    given: HashMap<u64, Given>,
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
struct Given {
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

impl State {
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
            state: Mutex::new(State {
                settings,
                ..State::default()
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
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
    pub(crate) fn new(devices: &[Device]) -> Self {
        let table: Slots<Held<Pool>> = Slots::new(0, u32::MAX);
        let standard: Vec<u64> = (0..devices.len())
            .map(|ordinal| {
                let pool = Arc::new(Pool::new(ordinal as i32, Reach::Own, Settings::default()));
                insert(&table, pool).unwrap_or(0)
            })
            .collect();
        Self {
            table,
            current: standard.iter().copied().map(AtomicU64::new).collect(),
            standard,
            free: AtomicUsize::new(0),
            waits: Mutex::default(),
        }
    }

    /// The pool of a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<Pool>, CUresult> {
        Key::of(handle, Kind::Pool)
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
    pub(crate) fn destroy(&self, session: &Session, handle: u64) -> Result<(), CUresult> {
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
        self.release_all(session, &pool);
        self.end_if_empty(handle, &pool);
        Ok(())
    }

    /// Forgets a pool that was destroyed once nothing of it is given out.
    fn end_if_empty(&self, handle: u64, pool: &Pool) {
        let state = pool.state();
        if state.ended
            && state.given.is_empty()
            && let Some(key) = Key::of(handle, Kind::Pool)
            && let Some(place) = self.table.remove(key)
        {
            drop(place.put(None));
            self.table.release(key.index());
        }
    }

    /// Takes memory for work in a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY
    pub(crate) fn allocate(
        &self,
        target: &Target,
        handle: u64,
        bytes: u64,
    ) -> Result<u64, CUresult> {
        let session = target.current.session;
        let none = CUresult::ERROR_OUT_OF_MEMORY;
        let pool = self.get(handle)?;
        pool.own()?;
        let asked = bytes;
        let bytes = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(none)?;
        // Memory belongs to a context of the pool's device.
        let owner = match target.current.context.device() == pool.device {
            true => target.current.home()?,
            false => crate::context::usable(session, session.primary(pool.device)?.handle())?,
        };
        if let Some(address) = self.reuse(target, &pool, bytes, asked) {
            return Ok(address);
        }
        {
            let state = pool.state();
            let after = state.reserved.checked_add(bytes).ok_or(none)?;
            if state.settings.most != 0 && after > state.settings.most {
                return Err(none);
            }
        }
        let address = session.take_memory(&owner, bytes)?;
        let mut state = pool.state();
        state.reserved += bytes;
        state.reserved_high = state.reserved_high.max(state.reserved);
        let context = owner.handle();
        let given = Given {
            bytes,
            asked,
            context,
            exported: false,
        };
        state.given.insert(address, given);
        state.add_used(asked);
        Ok(address)
    }

    /// Gives a free block out again: the smallest that is large enough and that may be used.
    fn reuse(&self, target: &Target, pool: &Pool, bytes: u64, asked: u64) -> Option<u64> {
        if self.free.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let session = target.current.session;
        let mut state = pool.state();
        let Settings {
            follow_events,
            opportunistic,
            ..
        } = state.settings;
        let most = bytes.saturating_mul(2).saturating_add(SLACK);
        let usable = |block: &Free| {
            block.stream == target.stream.id()
                || (opportunistic && session.reached(block.slot, block.sequence))
                || (follow_events && self.has_waited(target.slot, block.slot, block.sequence))
        };
        let (at, _) = state
            .free
            .iter()
            .enumerate()
            .filter(|(_, block)| (bytes..=most).contains(&block.bytes) && usable(block))
            .min_by_key(|(_, block)| block.bytes)?;
        let block = state.free.swap_remove(at);
        self.free.fetch_sub(1, Ordering::Relaxed);
        let given = Given {
            bytes: block.bytes,
            asked,
            context: block.context,
            exported: false,
        };
        state.given.insert(block.address, given);
        state.add_used(asked);
        Some(block.address)
    }

    /// Takes memory back that was freed in a stream.
    pub(crate) fn free(&self, target: &Target, range: &Range) -> Result<(), CUresult> {
        let session = target.current.session;
        let pool = self.get(range.pool)?;
        let mut state = pool.state();
        let given = state.given.remove(&range.base);
        let given = given.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        state.used -= given.asked;
        if state.ended || given.exported {
            state.reserved -= given.bytes;
            drop(state);
            self.end_if_empty(range.pool, &pool);
            // The server keeps it until all work posted before is done.
            return session.post(&MemFree {
                address: range.base,
            });
        }
        self.free.fetch_add(1, Ordering::Relaxed);
        state.free.push(Free {
            address: range.base,
            bytes: given.bytes,
            context: given.context,
            slot: target.slot,
            stream: target.stream.id(),
            sequence: target.stream.posted(),
        });
        Ok(())
    }

    /// Notes that other processes may have an allocation.
    pub(crate) fn note_exported(&self, range: &Range) -> Result<(), CUresult> {
        let pool = self.get(range.pool)?;
        let mut state = pool.state();
        let given = state.given.get_mut(&range.base);
        given.ok_or(CUresult::ERROR_INVALID_VALUE)?.exported = true;
        Ok(())
    }

    /// The ordinals of devices whose pools' memory another device may reach.
    pub(crate) fn reached_from(&self, device: i32) -> Vec<i32> {
        let mut reached: Vec<i32> = self
            .all()
            .iter()
            .filter(|pool| pool.state().peers.contains(&device))
            .map(|pool| pool.device)
            .collect();
        reached.sort_unstable();
        reached.dedup();
        reached
    }

    /// Notes that an allocation goes back to the server by another way.
    pub(crate) fn forget_allocation(&self, range: &Range) {
        if range.pool == 0 {
            return;
        }
        if let Ok(pool) = self.get(range.pool) {
            let mut state = pool.state();
            if let Some(given) = state.given.remove(&range.base) {
                state.used -= given.asked;
                state.reserved -= given.bytes;
            }
            drop(state);
            self.end_if_empty(range.pool, &pool);
        }
    }

    /// Notes that a stream waits for another's work up to a place.
    pub(crate) fn note_wait(&self, waiter: u32, on: u32, until: u64) {
        if self.free.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.len() >= MOST_WAITS {
            waits.clear(); // Only a chance to use a block earlier is lost.
        }
        let known = waits.entry((waiter, on)).or_default();
        *known = until.max(*known);
    }

    fn has_waited(&self, waiter: u32, on: u32, sequence: u64) -> bool {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits
            .get(&(waiter, on))
            .is_some_and(|&until| until >= sequence)
    }

    fn all(&self) -> Vec<Arc<Pool>> {
        self.table
            .live()
            .filter_map(|(_, place)| place.get())
            .collect()
    }

    /// The program has synchronised: pools give back what they hold beyond their thresholds.
    #[inline]
    pub(crate) fn synchronized(&self, session: &Session) {
        if self.free.load(Ordering::Relaxed) != 0 {
            self.release_excess(session);
        }
    }

    #[cold]
    fn release_excess(&self, session: &Session) {
        for pool in self.all() {
            let threshold = pool.settings().threshold;
            // A server that is gone has taken all of it with it.
            let _ = self.trim(session, &pool, threshold);
        }
    }

    /// Gives back what no work uses, until the pool has no more than `keep` bytes.
    pub(crate) fn trim(&self, session: &Session, pool: &Pool, keep: u64) -> Result<(), CUresult> {
        let mut gone = Vec::new();
        {
            let mut state = pool.state();
            let State { free, reserved, .. } = &mut *state;
            free.retain(|block| {
                let goes = *reserved > keep && session.reached(block.slot, block.sequence);
                if goes {
                    *reserved -= block.bytes;
                    gone.push(block.address);
                }
                !goes
            });
        }
        self.send_back(session, &gone)
    }

    /// Gives back all that is free, whether work still uses it or not: the server waits for that.
    fn release_all(&self, session: &Session, pool: &Pool) {
        let gone: Vec<u64> = {
            let mut state = pool.state();
            let free = std::mem::take(&mut state.free);
            state.reserved -= free.iter().map(|block| block.bytes).sum::<u64>();
            free.iter().map(|block| block.address).collect()
        };
        let _ = self.send_back(session, &gone);
    }

    fn send_back(&self, session: &Session, blocks: &[u64]) -> Result<(), CUresult> {
        self.free.fetch_sub(blocks.len(), Ordering::Relaxed);
        blocks
            .iter()
            .try_for_each(|&address| session.post(&MemFree { address }))
    }

    /// Forgets what the server frees with a context that ends.
    pub(crate) fn forget_context(&self, context: u64) {
        for pool in self.all() {
            let mut state = pool.state();
            let State {
                free,
                given,
                used,
                reserved,
                ..
            } = &mut *state;
            free.retain(|block| {
                let goes = block.context == context;
                if goes {
                    *reserved -= block.bytes;
                    self.free.fetch_sub(1, Ordering::Relaxed);
                }
                !goes
            });
            given.retain(|_, block| {
                let goes = block.context == context;
                if goes {
                    *reserved -= block.bytes;
                    *used -= block.asked;
                }
                !goes
            });
        }
    }
}

fn insert(table: &Slots<Held<Pool>>, pool: Arc<Pool>) -> Option<u64> {
    let key = table.insert(|_, _| true, |_, place| drop(place.put(Some(pool))))?;
    Some(key.handle(Kind::Pool))
}

impl Session {
    /// Asks the server for memory; when there is none, gives back what pools hold and asks again.
    pub(crate) fn with_caches_trimmed<T>(
        &self,
        ask: impl Fn() -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        match ask() {
            Err(CUresult::ERROR_OUT_OF_MEMORY) if self.pools.free.load(Ordering::Relaxed) != 0 => {
                for pool in self.pools.all() {
                    self.pools.release_all(self, &pool);
                }
                ask()
            }
            other => other,
        }
    }

    /// Device memory of a context, from the server.
    pub(crate) fn take_memory(&self, current: &Current, bytes: u64) -> Result<u64, CUresult> {
        let context = current.slot();
        let ask = || self.call(&MemAlloc { context, bytes });
        let address = self.with_caches_trimmed(ask)?.fields.address;
        if let Err(code) = self.reserve_around(address) {
            self.post(&MemFree { address })?;
            return Err(code);
        }
        Ok(address)
    }
}
