//! Contexts, and each thread's stack of them.
//!
//! The slot of a context is its number for the server. The first slots belong to the primary
//! contexts, whose handles exist from the start and never change; the server is told of one when
//! somebody first needs it.
//!
//! Owns contexts, by handle. `api::context` makes and ends them, nearly all else asks for the current one. Must not
//! know what is made in a context: `Lifecycle` ends that.

mod context_stack;
mod current;
mod limits;
pub(crate) mod local_storage;
mod registry;
pub(crate) mod thread_percentage;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice, CUdevice_attribute, CUlimit};
use protocol::device_facts::ALL_MULTIPROCESSORS;
use protocol::operations::{
    CONTEXT_GREEN, CONTEXT_SLOTS, ContextCreate, ContextDestroy, MemInfo, PeerAccess,
};

use crate::handle::object_table::Slots;
use crate::handle::{HandleKind, Key};
use crate::session::connection::{Connection, Device};
use crate::session::fork_local::ForkLocal;

pub(crate) use context_stack::{
    current, current_as_it_is, pop, push, replace, resource_context, top, usable,
};

/// Limits that a context keeps, by their numbers.
const LIMITS: usize = 7;

/// What the limits are before anybody sets them, by their numbers.
const DEFAULT_LIMITS: [u64; LIMITS] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

/// The numbers of the limits that the server keeps to.
/// The limits that the server keeps to.
const TOLD_LIMITS: [CUlimit; 2] = [
    CUlimit::PRINTF_FIFO_SIZE,
    CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT,
];
const HEAP_LIMIT: usize = CUlimit::MALLOC_HEAP_SIZE.0 as usize;

/// What cuCtxGetApiVersion returns: the version of cuCtxCreate_v2.
pub(crate) const API_VERSION: u32 = 3020;

/// One context.
#[derive(Debug, Default)]
pub(crate) struct Context {
    /// The ordinal of its device.
    device: AtomicI32,
    flags: AtomicU32,
    /// The multiprocessors that it is to have, or 0 for all that are granted to the client.
    multiprocessors: AtomicU32,
    primary: AtomicBool,
    /// The handle of the context whose memory, code and events its streams use; 0 for its own. It is
    /// another one's for a green context: its device's primary one's.
    home: AtomicU64,
    /// Of a green context: the first of its multiprocessors among the client's.
    first: AtomicU32,
    /// Whether the server has it. Written with `users` locked.
    made: AtomicBool,
    /// How often it was retained (a primary one) or attached to.
    users: Mutex<u32>,
    limits: [AtomicU64; LIMITS],
    /// Bytes of the heap of device code that the server has; 0 while it has none.
    heap: Mutex<u64>,
    cache: AtomicU32,
    banks: AtomicU32,
    /// The last refused operation that the program was told of, as the link numbers them.
    refused: AtomicU32,
    /// The handles of the contexts whose memory its kernels may reach.
    peers: Mutex<Vec<u64>>,
    /// The stream in which events of all of its work are recorded, once there is one.
    gathering: Mutex<Option<Key>>,
    /// Places of streams, by slots, that all of its later work waits for.
    fences: Mutex<HashMap<u32, u64>>,
}

/// A context that a call is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub contexts: &'static Contexts,
    pub context: &'static Context,
    key: Key,
}

/// All contexts of the process.
#[derive(Debug)]
pub(crate) struct Contexts {
    pub connection: &'static Connection,
    table: Slots<Context>,
    owner: OnceLock<&'static dyn Lifecycle>,
}

static CONTEXTS: ForkLocal<Contexts> = ForkLocal::new();

/// The contexts of this process.
///
/// # Errors
/// As [`ForkLocal::get`]'s.
#[inline(always)]
pub(crate) fn contexts() -> Result<&'static Contexts, CUresult> {
    CONTEXTS.get()
}

/// What else happens when contexts begin, are waited for and end: whoever has something of a context does it.
pub(crate) trait Lifecycle: std::fmt::Debug + Send + Sync {
    /// The server has the context; what every context has is made.
    fn begins(&self, current: &Current);

    /// The ordinals of the devices that the context's kernels reach because of pools.
    fn reached_by_pools(&self, current: &Current) -> Vec<CUdevice>;

    /// Waits for all of its work.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while one of its streams is captured, whose capture breaks; and
    /// what became of the work.
    fn drain(&self, current: &Current) -> Result<(), CUresult>;

    /// The context is about to end: all that was made in it goes.
    fn ends(&self, current: &Current);

    /// It has ended. What runtimes keep with it goes; their destructors run, and may call any entry point,
    /// so no lock is held.
    fn ended(&self, current: &Current);
}

impl Contexts {
    /// Makes the handles of the primary contexts of the devices that the program sees; the slots of
    /// all `all_devices` that the server has are set aside.
    pub(crate) fn new(connection: &'static Connection, all_devices: u32) -> Self {
        let table: Slots<Context> = Slots::new(all_devices, CONTEXT_SLOTS);
        for (ordinal, device) in (0..).zip(connection.devices()) {
            table.insert_at(device.number, |context| {
                context.fill(ordinal, 0);
                context.primary.store(true, Ordering::Relaxed);
            });
        }
        Self {
            connection,
            table,
            owner: OnceLock::new(),
        }
    }

    /// Makes them the process's, with who has the rest of each.
    ///
    /// # Errors
    /// As [`ForkLocal::publish`]'s.
    pub(crate) fn publish(&'static self, owner: &'static dyn Lifecycle) -> Result<(), CUresult> {
        let _ = self.owner.set(owner);
        CONTEXTS.publish(self)
    }

    /// Takes them out of reach, because the process ends.
    pub(crate) fn withdraw() {
        CONTEXTS.withdraw();
    }

    /// What became of a context's work: the error that it died of, or, once, the error of the last
    /// operation that was refused.
    ///
    /// # Errors
    /// These.
    pub(crate) fn outcome(&self, context: u32) -> Result<(), CUresult> {
        self.connection.check_fault(context)?;
        let refused = self.connection.link().refused(context);
        match self.refused(context, refused) {
            true => CUresult(refused & 0xffff).ok(),
            false => Ok(()),
        }
    }

    /// Notes that the program is told of a refused operation of a context. Says whether it was not
    /// told before.
    pub(crate) fn refused(&self, context: u32, refused: u32) -> bool {
        self.table.at(context).is_some_and(|context| {
            // The plain load keeps the usual case, nothing new, free of a locked instruction.
            context.refused.load(Ordering::Relaxed) != refused
                && context.refused.swap(refused, Ordering::Relaxed) != refused
        })
    }
}

impl Context {
    fn fill(&self, device: CUdevice, flags: u32) {
        self.device.store(device, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
        self.multiprocessors.store(0, Ordering::Relaxed);
        self.primary.store(false, Ordering::Relaxed);
        self.home.store(0, Ordering::Relaxed);
        self.first.store(0, Ordering::Relaxed);
        self.cache.store(0, Ordering::Relaxed);
        self.banks.store(0, Ordering::Relaxed);
        self.peers().clear();
        *self.all_work_stream() = None;
        self.fences_now().clear();
        for (limit, value) in self.limits.iter().zip(DEFAULT_LIMITS) {
            limit.store(value, Ordering::Relaxed);
        }
        *self.heap.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    fn users(&self) -> MutexGuard<'_, u32> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ordinal of its device.
    pub(crate) fn device(&self) -> CUdevice {
        self.device.load(Ordering::Relaxed)
    }

    /// The handles of the contexts whose memory its kernels may reach.
    pub(crate) fn peers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream in which events of all of its work are recorded, once there is one.
    pub(crate) fn all_work_stream(&self) -> MutexGuard<'_, Option<Key>> {
        self.gathering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn fences_now(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the work of streams that are made from now on wait until a stream has reached a place.
    pub(crate) fn add_fence(&self, connection: &Connection, slot: u32, sequence: u64) {
        let mut fences = self.fences_now();
        fences.retain(|slot, sequence| !connection.reached(*slot, *sequence));
        let known = fences.entry(slot).or_default();
        *known = sequence.max(*known);
    }

    /// The places of streams that the work of a new stream waits for.
    pub(crate) fn fences(&self, connection: &Connection) -> Vec<(u32, u64)> {
        let mut fences = self.fences_now();
        fences.retain(|slot, sequence| !connection.reached(*slot, *sequence));
        fences
            .iter()
            .map(|(slot, sequence)| (*slot, *sequence))
            .collect()
    }

    /// Whether it is its device's primary context.
    pub(crate) fn is_primary(&self) -> bool {
        self.primary.load(Ordering::Relaxed)
    }

    /// Whether it is a green context.
    pub(crate) fn is_green(&self) -> bool {
        self.home.load(Ordering::Relaxed) != 0
    }

    /// Of a green context: the first of its multiprocessors among the client's.
    pub(crate) fn first_multiprocessor(&self) -> u32 {
        self.first.load(Ordering::Relaxed)
    }

    /// Whether the server has it.
    pub(crate) fn is_made(&self) -> bool {
        self.made.load(Ordering::Acquire)
    }

    /// The multiprocessors that it was made with, or 0 for all that are granted to the client.
    pub(crate) fn multiprocessors(&self) -> &AtomicU32 {
        &self.multiprocessors
    }

    /// The flags that it was made with, or that its making will take.
    pub(crate) fn flags(&self) -> &AtomicU32 {
        &self.flags
    }

    /// The preferred split of cache and shared memory.
    pub(crate) fn cache(&self) -> &AtomicU32 {
        &self.cache
    }

    /// The width of the banks of shared memory.
    pub(crate) fn bank_width(&self) -> &AtomicU32 {
        &self.banks
    }
}
