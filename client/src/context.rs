//! Contexts, and each thread's stack of them.
//!
//! The slot of a context is its number for the server. The first slots belong to the primary
//! contexts, whose handles exist from the start and never change; the server is told of one when
//! somebody first needs it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::facts::ALL_MULTIPROCESSORS;
use cuda_abi::operations::{
    CONTEXT_GREEN, CONTEXT_SLOTS, ContextCreate, ContextDestroy, HeapSet, LimitSet, MemAlloc,
    MemFree, MemInfo, PeerAccess,
};
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUcontext, CUdevice, CUdevice_attribute, CUlimit};

use crate::affinity;
use crate::handle::{Key, Kind};
use crate::session::{Device, Session, session};
use crate::slots::Slots;
use crate::stream::Target;

/// Limits that a context keeps, by their numbers.
const LIMITS: usize = 7;

/// What the limits are before anybody sets them, by their numbers.
const DEFAULT_LIMITS: [u64; LIMITS] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

/// The first major compute capability whose devices have no CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: kernels
/// cannot wait for those that they launched.
const NO_DEVICE_SYNCHRONIZATION: i32 = 9;

/// The numbers of the limits that the server keeps to.
const FIFO_LIMIT: usize = CUlimit::PRINTF_FIFO_SIZE.0 as usize;
const HEAP_LIMIT: usize = CUlimit::MALLOC_HEAP_SIZE.0 as usize;

/// What cuCtxGetApiVersion tells: the version of cuCtxCreate_v2.
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
    pub session: &'static Session,
    pub context: &'static Context,
    key: Key,
}

/// All contexts of the process.
#[derive(Debug)]
pub(crate) struct Contexts {
    table: Slots<Context>,
}

thread_local! {
    /// The handle of the calling thread's context, or 0. Without a destructor, so that it can be
    /// read until the thread is gone.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// The handles below it on the stack.
    static BELOW: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Contexts {
    /// Makes the handles of the primary contexts of the devices that the program sees; the slots of
    /// all `all_devices` that the server has are set aside.
    pub(crate) fn new(devices: &[Device], all_devices: u32) -> Self {
        let table: Slots<Context> = Slots::new(all_devices, CONTEXT_SLOTS);
        for (ordinal, device) in (0..).zip(devices) {
            table.occupy(device.number, |context| {
                context.fill(ordinal, 0);
                context.primary.store(true, Ordering::Relaxed);
            });
        }
        Self { table }
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
        *self.gathering() = None;
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

    fn gathering(&self) -> MutexGuard<'_, Option<Key>> {
        self.gathering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn fences_now(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.fences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the work of streams that are made from now on wait until a stream has come to a place.
    pub(crate) fn add_fence(&self, session: &Session, slot: u32, sequence: u64) {
        let mut fences = self.fences_now();
        fences.retain(|slot, sequence| !session.reached(*slot, *sequence));
        let known = fences.entry(slot).or_default();
        *known = sequence.max(*known);
    }

    /// The places of streams that the work of a new stream waits for.
    pub(crate) fn fences(&self, session: &Session) -> Vec<(u32, u64)> {
        let mut fences = self.fences_now();
        fences.retain(|slot, sequence| !session.reached(*slot, *sequence));
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
    pub(crate) fn banks(&self) -> &AtomicU32 {
        &self.banks
    }
}

impl Current {
    /// Its slot, which is its number for the server.
    pub(crate) fn slot(&self) -> u32 {
        self.key.index()
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> u64 {
        self.key.handle(Kind::Context)
    }

    /// The handle of the context whose memory, code and events its streams use.
    #[inline]
    pub(crate) fn home_handle(&self) -> u64 {
        match self.context.home.load(Ordering::Relaxed) {
            0 => self.handle(),
            home => home,
        }
    }

    /// The context whose memory, code and events its streams use, ready for use: itself, but for a
    /// green one.
    ///
    /// # Errors
    /// As [`usable`].
    pub(crate) fn home(&self) -> Result<Self, CUresult> {
        match self.context.is_green() {
            true => usable(self.session, self.home_handle()),
            false => Ok(*self),
        }
    }

    /// The handle of a green context.
    pub(crate) fn green_handle(&self) -> u64 {
        self.key.handle(Kind::GreenContext)
    }

    /// A number that no other context of the process has or had.
    pub(crate) fn id(&self) -> u64 {
        u64::from(self.key.generation()) << 32 | u64::from(self.slot())
    }

    /// Its device.
    pub(crate) fn device(&self) -> Result<&'static Device, CUresult> {
        self.session.device(self.context.device())
    }

    /// Tells the server of it, unless it knows.
    fn make(&self, users: &MutexGuard<'_, u32>) -> Result<(), CUresult> {
        let _ = users;
        if self.context.is_made() {
            return Ok(());
        }
        let granted = self.device()?;
        let share = self.share(granted)?;
        let device = granted.number;
        self.session.post(&ContextCreate {
            context: self.slot(),
            device,
            flags: self.context.flags.load(Ordering::Relaxed)
                | if self.context.is_green() {
                    CONTEXT_GREEN
                } else {
                    0
                },
            share,
        })?;
        if granted.attribute(CUdevice_attribute::COMPUTE_MODE) != 0 {
            // It may well be refused, which is known once the server has come past it.
            self.session.call(&MemInfo { device })?;
            if let Err(refused) = self.session.check_fault(self.slot()) {
                let context = self.slot();
                self.session.post(&ContextDestroy { context })?;
                return Err(refused);
            }
        }
        if self.session.check_fault(self.slot()).is_err() {
            // The slot's last tenant died of a fault. The server has forgotten it once it has come
            // past the creation, which any reply shows.
            self.session.call(&MemInfo { device })?;
        }
        // What was refused to the slot's last tenant is none of this one's business.
        let refused = self.session.link().refused(self.slot());
        self.session.contexts.refused(self.slot(), refused);
        self.session.streams.make_legacy(self.slot(), self.handle());
        self.context.made.store(true, Ordering::Release);
        let fifo = self.context.limits[FIFO_LIMIT].load(Ordering::Relaxed);
        if fifo != DEFAULT_LIMITS[FIFO_LIMIT] {
            self.tell_limit(CUlimit::PRINTF_FIFO_SIZE, fifo)?;
        }
        for other in self.session.pools.reached_from(self.context.device()) {
            self.session.call(&PeerAccess {
                context: self.slot(),
                device: self.session.device(other)?.number,
                enabled: 1,
            })?;
        }
        Ok(())
    }

    /// The part of what is granted to the client that it is to have, in millionths; 0 for all.
    fn share(&self, device: &Device) -> Result<u32, CUresult> {
        let granted = device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT);
        let Some(granted) = u32::try_from(granted).ok().filter(|granted| *granted > 0) else {
            // The device is partitioned, and no partition is this client's.
            return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
        };
        let place = &self.context.multiprocessors;
        let all = device.attribute(CUdevice_attribute(ALL_MULTIPROCESSORS));
        if let Some(percentage) = affinity::percentage_now()?
            && all > 0
        {
            // Of the whole device, as the client's own percentage is, so that the lowest holds.
            let part = f64::from(all) * f64::from(percentage) / 100.0;
            // A percentage such as 33.3 is no exact number.
            let part = ((part + 1e-4) as u32).max(1);
            let own = place.load(Ordering::Relaxed);
            if self.context.is_primary() || own == 0 || own > part {
                place.store(part, Ordering::Relaxed);
            }
        }
        let asked = u64::from(place.load(Ordering::Relaxed));
        if asked >= u64::from(granted) {
            place.store(0, Ordering::Relaxed);
            return Ok(0);
        }
        Ok((asked * 1_000_000).div_ceil(u64::from(granted)) as u32)
    }

    /// Tells the server of a limit.
    fn tell_limit(&self, limit: CUlimit, value: u64) -> Result<(), CUresult> {
        self.session.post(&LimitSet {
            context: self.slot(),
            limit: limit.0,
            value,
        })
    }

    /// Where a limit is kept that programs may set.
    fn kept_limit(&self, limit: CUlimit) -> Result<&AtomicU64, CUresult> {
        let capability = CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR;
        match limit {
            CUlimit::DEV_RUNTIME_SYNC_DEPTH
                if self.device()?.attribute(capability) >= NO_DEVICE_SYNCHRONIZATION =>
            {
                Err(CUresult::ERROR_UNSUPPORTED_LIMIT)
            }
            CUlimit::CIG_SHMEM_FALLBACK_ENABLED => Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
            _ => {
                let kept = self.context.limits.get(limit.0 as usize);
                kept.ok_or(CUresult::ERROR_INVALID_VALUE)
            }
        }
    }

    /// A limit's value. Those of contexts shared with graphics are there to be read: cuBLAS asks for
    /// them before every product. Driver 580 answers as this does on an H200.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a number that is no limit, CUDA_ERROR_UNSUPPORTED_LIMIT for one that
    /// the device does not have.
    pub(crate) fn limit(&self, limit: CUlimit) -> Result<u64, CUresult> {
        let block = CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        match limit {
            CUlimit::SHMEM_SIZE => Ok(u64::try_from(self.device()?.attribute(block)).unwrap_or(0)),
            CUlimit::CIG_ENABLED => Ok(0),
            _ => Ok(self.kept_limit(limit)?.load(Ordering::Relaxed)),
        }
    }

    /// Sets a limit, and tells the server if that is what keeps to it.
    ///
    /// # Errors
    /// As [`limit`](Self::limit)'s, and CUDA_ERROR_NOT_PERMITTED for limits of contexts that are shared
    /// with graphics, which this one is not.
    pub(crate) fn set_limit(&self, limit: CUlimit, value: u64) -> Result<(), CUresult> {
        if matches!(limit, CUlimit::SHMEM_SIZE | CUlimit::CIG_ENABLED) {
            return Err(CUresult::ERROR_NOT_PERMITTED);
        }
        self.kept_limit(limit)?.store(value, Ordering::Relaxed);
        // Held so that the context does not begin or end meanwhile.
        let users = self.context.users();
        if !self.context.is_made() {
            return Ok(());
        }
        match limit {
            CUlimit::PRINTF_FIFO_SIZE => self.tell_limit(limit, value),
            CUlimit::MALLOC_HEAP_SIZE => {
                drop(users);
                // A heap that was made meanwhile makes room for one of the new size while it is empty.
                match *self.heap_bytes() {
                    0 => Ok(()),
                    _ => self.make_heap(),
                }
            }
            _ => Ok(()),
        }
    }

    fn heap_bytes(&self) -> MutexGuard<'_, u64> {
        self.context
            .heap
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the server memory for the heap of device code, as much as the limit says, unless it has it.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there is not as much.
    pub(crate) fn make_heap(&self) -> Result<(), CUresult> {
        let bytes = self.context.limits[HEAP_LIMIT].load(Ordering::Relaxed);
        let mut made = self.heap_bytes();
        if *made == bytes || bytes == 0 {
            return Ok(());
        }
        let reply = self.session.call(&MemAlloc {
            context: self.slot(),
            bytes,
        })?;
        let address = reply.fields.address;
        if let Err(code) = self.session.reserve_around(address) {
            self.session.post(&MemFree { address })?;
            return Err(code);
        }
        self.session.post(&HeapSet {
            context: self.slot(),
            address,
            bytes,
        })?;
        *made = bytes;
        Ok(())
    }

    /// Makes a primary context that was made current before anybody retained it.
    #[cold]
    fn make_late(&self) -> Result<(), CUresult> {
        self.make(&self.context.users())
    }

    /// Ends it on the server, once its work is done, and all that was made in it.
    fn end(&self, users: &MutexGuard<'_, u32>) -> Result<(), CUresult> {
        let _ = users;
        if !self.context.is_made() {
            return Ok(());
        }
        // What its last work came to is no concern of whoever ends it.
        let _ = self.drain();
        let handle = self.handle();
        self.context.made.store(false, Ordering::Release);
        *self.heap_bytes() = 0;
        let session = self.session;
        session.graphs.forget(handle);
        session.registered.forget(session, handle);
        session.pools.forget_context(handle);
        self.context.peers().clear();
        session.modules.forget(session, handle);
        session.arrays.forget(handle);
        session.events.forget(handle);
        session.streams.end_of(session, handle);
        session.ranges.remove_all(|range| range.context == handle);
        session.post(&ContextDestroy {
            context: self.slot(),
        })
    }

    /// A stream of its own, for events of all of its work.
    ///
    /// # Errors
    /// As [`Streams::create`](crate::stream::Streams::create).
    pub(crate) fn gathering_stream(&self) -> Result<Target, CUresult> {
        let streams = &self.session.streams;
        let mut known = self.context.gathering();
        let live = known.and_then(|key| Some((key, streams.get(key)?)));
        let (key, stream) = match live {
            Some(live) => live,
            None => {
                let key = streams.create(self, CU_STREAM_NON_BLOCKING, 0)?;
                *known = Some(key);
                let made = streams.get(key);
                (key, made.ok_or(CUresult::ERROR_INVALID_CONTEXT)?)
            }
        };
        Ok(Target {
            current: *self,
            slot: key.index(),
            stream,
        })
    }

    /// Waits for all work of all of its streams that was posted until now.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while one of them is captured, whose capture breaks; and
    /// what became of the work.
    pub(crate) fn drain(&self) -> Result<(), CUresult> {
        self.session.graphs.captures.forbid_in(self.handle())?;
        self.session.streams.drain(self.session, self.handle())?;
        self.session.pools.synchronized(self.session);
        self.session.outcome(self.slot())
    }

    /// Notes one user more of a primary context, and makes it for the first one.
    pub(crate) fn retain(&self) -> Result<(), CUresult> {
        let mut users = self.context.users();
        self.make(&users)?;
        *users += 1;
        Ok(())
    }

    /// Notes one user less of a context that is no primary one, and says whether it was the last.
    pub(crate) fn detach(&self) -> Result<bool, CUresult> {
        if self.context.is_primary() {
            return self.release().map(|()| false);
        }
        let mut users = self.context.users();
        *users = users.saturating_sub(1);
        Ok(*users == 0)
    }

    /// Notes one user less, and ends the context after the last one.
    pub(crate) fn release(&self) -> Result<(), CUresult> {
        let mut users = self.context.users();
        *users = users
            .checked_sub(1)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        if *users > 0 {
            return Ok(());
        }
        let ended = self.end(&users);
        drop(users);
        self.forget_stored();
        ended
    }

    /// Ends a primary context whoever uses it. Its handle stays.
    pub(crate) fn reset(&self) -> Result<(), CUresult> {
        let ended = {
            let mut users = self.context.users();
            *users = 0;
            self.end(&users)
        };
        self.forget_stored();
        ended
    }

    /// Ends what runtimes keep with it. Their destructors run, and may call any entry point: so no
    /// lock is held.
    fn forget_stored(&self) {
        crate::export_tables::context_destroyed(CUcontext::from_bits(self.handle()));
    }
}

impl Session {
    /// The context of a handle, made or not, healthy or not.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT for what names no context that is alive.
    #[inline(always)]
    pub(crate) fn context(&'static self, handle: u64) -> Result<Current, CUresult> {
        let found = Key::of(handle, Kind::Context)
            .and_then(|key| Some((key, self.contexts.table.get(key)?)));
        let (key, context) = found.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        Ok(Current {
            session: self,
            context,
            key,
        })
    }

    /// The contexts on a device that the server has.
    pub(crate) fn contexts_on(&'static self, ordinal: CUdevice) -> Vec<Current> {
        let live = self.contexts.table.live();
        live.filter(|(_, context)| context.device() == ordinal && context.is_made())
            .map(|(key, context)| Current {
                session: self,
                context,
                key,
            })
            .collect()
    }

    /// The primary context of a device.
    pub(crate) fn primary(&'static self, ordinal: CUdevice) -> Result<Current, CUresult> {
        let number = self.device(ordinal)?.number;
        let key = self.contexts.table.tenant(number);
        self.context(
            key.ok_or(CUresult::ERROR_INVALID_DEVICE)?
                .handle(Kind::Context),
        )
    }

    /// The context of a green context's handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT for what names none that is alive.
    pub(crate) fn green(&'static self, handle: u64) -> Result<Current, CUresult> {
        let key = Key::of(handle, Kind::GreenContext).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        self.context(key.handle(Kind::Context))
            .ok()
            .filter(|current| current.context.is_green())
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    /// Makes a green context on a device, which uses its primary one: so many multiprocessors, the
    /// first of them by its place among the client's.
    pub(crate) fn create_green(
        &'static self,
        ordinal: CUdevice,
        first: u32,
        multiprocessors: u32,
    ) -> Result<Current, CUresult> {
        let primary = self.primary(ordinal)?;
        primary.retain()?;
        let home = primary.handle();
        let made = self.new_context(ordinal, 0, multiprocessors, |context| {
            context.home.store(home, Ordering::Relaxed);
            context.first.store(first, Ordering::Relaxed);
        });
        if made.is_err() {
            primary.release()?;
        }
        made
    }

    /// Ends a green context.
    pub(crate) fn destroy_green(&'static self, handle: u64) -> Result<(), CUresult> {
        let current = self.green(handle)?;
        let primary = self.context(current.home_handle())?;
        let ended = self.remove_context(&current);
        primary.release()?;
        ended
    }

    /// Makes a context of its own on a device.
    pub(crate) fn create_context(
        &'static self,
        ordinal: CUdevice,
        flags: u32,
        multiprocessors: u32,
    ) -> Result<Current, CUresult> {
        self.new_context(ordinal, flags, multiprocessors, |_| {})
    }

    fn new_context(
        &'static self,
        ordinal: CUdevice,
        flags: u32,
        multiprocessors: u32,
        and: impl FnOnce(&Context),
    ) -> Result<Current, CUresult> {
        self.device(ordinal)?;
        let table = &self.contexts.table;
        let key = table
            .insert(
                |_, _| true,
                |_, context| {
                    context.fill(ordinal, flags);
                    let place = &context.multiprocessors;
                    place.store(multiprocessors, Ordering::Relaxed);
                    and(context);
                },
            )
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let current = self.context(key.handle(Kind::Context))?;
        let mut users = current.context.users();
        *users = 1;
        if let Err(error) = current.make(&users) {
            table.remove(key);
            table.release(key.index());
            return Err(error);
        }
        drop(users);
        Ok(current)
    }

    /// Ends a context that is no primary one.
    pub(crate) fn destroy_context(&'static self, handle: u64) -> Result<(), CUresult> {
        let current = self.context(handle)?;
        if current.context.is_primary() || current.context.is_green() {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        self.remove_context(&current)
    }

    fn remove_context(&'static self, current: &Current) -> Result<(), CUresult> {
        let table = &self.contexts.table;
        let handle = current.handle();
        let ended = {
            let mut users = current.context.users();
            *users = 0;
            let ended = current.end(&users);
            // Of several threads that destroy it only one is told that it did.
            table
                .remove(current.key)
                .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
            ended
        };
        current.forget_stored();
        table.release(current.slot());
        if top() == handle {
            pop()?;
        }
        ended
    }
}

/// The handle of the calling thread's context, or 0.
pub(crate) fn top() -> u64 {
    CURRENT.get()
}

/// Makes a context the calling thread's in place of the one that is; 0 for none.
pub(crate) fn replace(handle: u64) {
    CURRENT.set(handle);
}

/// Puts a context onto the calling thread's stack.
pub(crate) fn push(handle: u64) -> Result<(), CUresult> {
    BELOW
        .try_with(|below| below.borrow_mut().push(CURRENT.get()))
        .map_err(|_| CUresult::ERROR_DEINITIALIZED)?;
    CURRENT.set(handle);
    Ok(())
}

/// Takes the top of the calling thread's stack.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT when the stack is empty.
pub(crate) fn pop() -> Result<u64, CUresult> {
    let below = BELOW
        .try_with(|below| below.borrow_mut().pop())
        .map_err(|_| CUresult::ERROR_DEINITIALIZED)?;
    match CURRENT.get() {
        0 if below.is_none() => Err(CUresult::ERROR_INVALID_CONTEXT),
        top => {
            CURRENT.set(below.unwrap_or(0));
            Ok(top)
        }
    }
}

/// The calling thread's context, made or not, healthy or not.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED when another thread has
/// destroyed it.
#[inline(always)]
pub(crate) fn current_as_it_is() -> Result<Current, CUresult> {
    let session = session()?;
    match CURRENT.get() {
        0 => Err(CUresult::ERROR_INVALID_CONTEXT),
        handle => session
            .context(handle)
            .map_err(|_| CUresult::ERROR_CONTEXT_IS_DESTROYED),
    }
}

// Always inlined: what these give is a few words that a launch reads at once, and passing them
// through memory costs a store that is not yet there when it is read.

/// The calling thread's context, ready for use.
///
/// # Errors
/// As [`current_as_it_is`], and the error that the context died of.
#[inline(always)]
pub(crate) fn current() -> Result<Current, CUresult> {
    ready(current_as_it_is()?)
}

/// The context whose memory, code and events the calling thread's context uses, ready for use.
///
/// # Errors
/// As [`current`].
pub(crate) fn home() -> Result<Current, CUresult> {
    current()?.home()
}

/// The context of a handle, ready for use.
///
/// # Errors
/// CUDA_ERROR_CONTEXT_IS_DESTROYED for a dead one, and the error that it died of.
#[inline(always)]
pub(crate) fn usable(session: &'static Session, handle: u64) -> Result<Current, CUresult> {
    ready(
        session
            .context(handle)
            .map_err(|_| CUresult::ERROR_CONTEXT_IS_DESTROYED)?,
    )
}
#[inline(always)]
fn ready(current: Current) -> Result<Current, CUresult> {
    if !current.context.is_made() {
        current.make_late()?;
    }
    current.session.check_fault(current.slot())?;
    Ok(current)
}
