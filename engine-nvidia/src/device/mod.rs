//! A device: its one context, which all clients share, and whether it still works.
//!
//! Owns the driver's context, the quiesce gate and whatever there is once a device: clock, pinned pieces, local
//! memory, SM partitions. Called by all who need the context to be current. Must not know clients.

pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod duration_table;
pub(crate) mod fault_record;
pub(crate) mod fence;
pub(crate) mod foreground;
pub(crate) mod local_memory;
pub(crate) mod pinned;
pub(crate) mod quiesce;
pub(crate) mod signal_kernel;
pub(crate) mod waker;
pub(crate) mod work_signature;

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Window;
use protocol::device_facts::{
    COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, DeviceFacts, MULTIPROCESSOR_COUNT,
};

use crate::device::clock::Clock;
use crate::device::foreground::Foreground;
use crate::device::local_memory::LocalMemory;
use crate::device::pinned::{BounceBufferPool, FencePool};
use crate::device::quiesce::QuiesceGate;
use crate::device::signal_kernel::SignalKernel;
use crate::driver::{Driver, OpenError, allocation, facts};
use crate::partition::green_context::GreenContexts;
use crate::partition::sm_set::SmSet;
use crate::sync::Handle;

/// cuMemHostRegister: pinned for all contexts, with a device address, which is that of the processor.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR
const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 39;

/// How long who finds no memory waits for an idle device, which gives back what was kept, and between two tries.
const LONGEST_GIVING_UP: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_micros(200);

thread_local! {
    /// The context that this thread last made current.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// When a call is made that waits for all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// As soon as nothing runs, which the device's gate sees to.
    Wait,
    /// Now, if nothing runs; else not at all.
    IfIdle,
}

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    driver: Arc<Driver>,
    ordinal: i32,
    context: Handle<CUcontext>,
    facts: DeviceFacts,
    /// The engine's own stream: asked whether the context is well.
    service: Handle<CUstream>,
    clock: Clock,
    fences: FencePool,
    bounce_buffers: BounceBufferPool,
    /// Physical memory comes in multiples of this many bytes.
    granularity: u64,
    /// Stream priorities: the least urgent (the greatest number) and the most.
    priorities: (i32, i32),
    /// Streams that there are.
    streams: AtomicUsize,
    gate: QuiesceGate,
    foreground: Foreground,
    local: LocalMemory,
    parts: GreenContexts,
    /// `None` if the driver has no use for it.
    signal_kernel: Option<SignalKernel>,
    /// Devices whose memory this one can reach, as bits.
    reachable: u64,
    /// Those whose driver's own allocations, such as variables, it may reach by now.
    enabled: AtomicU64,
    /// What gives up memory that is kept for nobody.
    reserve: Reserve,
    /// 0, or the error that the context died of.
    dead: AtomicU32,
}

/// Gives up memory that is kept for nobody. Whether there was any.
type GiveUp = Box<dyn Fn() -> bool + Send + Sync>;

/// What is kept for nobody.
#[derive(Default)]
struct Reserve(OnceLock<GiveUp>);

impl Debug for Reserve {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reserve").finish_non_exhaustive()
    }
}

impl Device {
    /// Takes a device's primary context.
    ///
    /// # Errors
    /// Which call failed.
    pub(crate) fn new(driver: &Arc<Driver>, ordinal: i32) -> Result<Arc<Self>, OpenError> {
        let facts =
            facts::of(driver, ordinal).map_err(OpenError::of("reading the device's facts"))?;
        let mut context = CUcontext::NULL;
        let mut service = CUstream::NULL;
        let mut priorities = (0, 0);
        // SAFETY: all pointers are to locals; the context is current for what follows its retaining.
        unsafe {
            driver
                .cuDevicePrimaryCtxRetain(&raw mut context, ordinal)
                .map_err(OpenError::of("cuDevicePrimaryCtxRetain"))?;
            driver
                .cuCtxSetCurrent(context)
                .map_err(OpenError::of("cuCtxSetCurrent"))?;
            driver
                .cuStreamCreate(&raw mut service, CU_STREAM_NON_BLOCKING)
                .map_err(OpenError::of("cuStreamCreate"))?;
            driver
                .cuCtxGetStreamPriorityRange(&raw mut priorities.0, &raw mut priorities.1)
                .map_err(OpenError::of("cuCtxGetStreamPriorityRange"))?;
        }
        CURRENT.set(context.0.addr());
        let granularity = allocation::granularity(driver, ordinal)
            .map_err(OpenError::of("cuMemGetAllocationGranularity"))?;
        let clock =
            Clock::new(driver, service).map_err(OpenError::of("starting the event clock"))?;
        Ok(Arc::new(Self {
            driver: Arc::clone(driver),
            ordinal,
            context: Handle(context),
            facts,
            service: Handle(service),
            clock,
            fences: FencePool::default(),
            bounce_buffers: BounceBufferPool::default(),
            granularity,
            priorities,
            streams: AtomicUsize::new(0),
            gate: QuiesceGate::default(),
            foreground: Foreground::default(),
            local: LocalMemory::default(),
            parts: GreenContexts::new(driver, ordinal, Handle(context)),
            signal_kernel: SignalKernel::load(driver),
            reachable: reachable(driver, ordinal),
            enabled: AtomicU64::new(0),
            reserve: Reserve::default(),
            dead: AtomicU32::new(0),
        }))
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Its place among the engine's devices.
    pub(crate) fn number(&self) -> usize {
        // The engine takes all devices, in their order.
        self.ordinal.unsigned_abs() as usize
    }

    /// Its architecture's number: 90 for compute capability 9.0.
    pub(crate) fn architecture(&self) -> u32 {
        10 * self.fact(COMPUTE_CAPABILITY_MAJOR) + self.fact(COMPUTE_CAPABILITY_MINOR)
    }

    /// Threads that can be on it at once.
    fn threads(&self) -> u64 {
        u64::from(self.fact(MAX_THREADS_PER_MULTIPROCESSOR))
            * u64::from(self.fact(MULTIPROCESSOR_COUNT))
    }

    /// An attribute that is a count; 0 if the driver did not tell.
    fn fact(&self, number: u32) -> u32 {
        let value = self.facts.attribute(number).unwrap_or(0);
        value.max(0).cast_unsigned()
    }

    /// The bit that stands for it.
    pub(crate) fn bit(&self) -> u64 {
        1_u64.checked_shl(self.ordinal.unsigned_abs()).unwrap_or(0)
    }

    /// Whether its kernels can reach another device's memory.
    pub(crate) fn can_reach(&self, other: &Self) -> bool {
        self.reachable & other.bit() != 0
    }

    /// Lets its kernels reach what the driver itself allocates on another device.
    ///
    /// # Errors
    /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if they cannot, and the driver's status.
    pub(crate) fn enable_peer(&self, other: &Self) -> Result<(), CUresult> {
        if !self.can_reach(other) {
            return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if self.enabled.load(Ordering::Acquire) & other.bit() != 0 {
            return Ok(());
        }
        // SAFETY: the other context is alive as long as the engine's clients, of whom one asks.
        match unsafe { self.enter()?.cuCtxEnablePeerAccess(other.context.0, 0) } {
            Ok(()) | Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED) => {
                self.enabled.fetch_or(other.bit(), Ordering::AcqRel);
                Ok(())
            }
            Err(code) => self.confirm(Err(code)),
        }
    }

    pub(crate) fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn fences(&self) -> &FencePool {
        &self.fences
    }

    pub(crate) fn bounce_buffers(&self) -> &BounceBufferPool {
        &self.bounce_buffers
    }

    /// Streams of all clients.
    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// There is one stream more, or less.
    pub(crate) fn count_stream(&self, more: bool) {
        if more {
            self.streams.fetch_add(1, Ordering::Relaxed);
        } else {
            self.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// What operations of streams pass on their way to the driver.
    pub(crate) fn foreground(&self) -> &Foreground {
        &self.foreground
    }

    pub(crate) fn gate(&self) -> &QuiesceGate {
        &self.gate
    }

    /// Whether a thread of its kernels can have so many bytes of local memory without anybody's waiting.
    pub(crate) fn has_local_memory(&self, bytes: u64) -> bool {
        self.local.has(bytes)
    }

    /// Lets each thread have so many bytes of local memory. Waits for what runs.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if it is more than its part of the device's memory, or more than there is;
    /// and as [`Device::run_exclusive`].
    pub(crate) fn reserve_local_memory(&self, bytes: u64) -> Result<(), CUresult> {
        if !LocalMemory::is_within_bound(bytes, self.threads(), self.facts.total_memory) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        self.take_local_memory(bytes, Turn::Wait)
    }

    /// As [`Device::reserve_local_memory`], if nothing runs now, and it is no more than so many bytes for all threads.
    ///
    /// # Errors
    /// As there, and CUDA_ERROR_NOT_READY while something runs.
    pub(crate) fn reserve_local_memory_ahead(&self, bytes: u64, most: u64) -> Result<(), CUresult> {
        if self.has_local_memory(bytes) || LocalMemory::of_all(bytes, self.threads()) > most {
            return Ok(());
        }
        self.take_local_memory(bytes, Turn::IfIdle)
    }

    fn take_local_memory(&self, bytes: u64, turn: Turn) -> Result<(), CUresult> {
        let driver = self.enter()?;
        let taken = self.run_in(turn, || self.local.reserve(driver, self.service.0, bytes));
        self.confirm(taken)
    }

    /// Makes the part of it that is this place. Waits for what runs.
    ///
    /// # Errors
    /// The driver's status, and as [`Device::run_exclusive`].
    pub(crate) fn make_green_context(&self, place: SmSet) -> Result<(), CUresult> {
        self.parts.make(place, |make| {
            let driver = self.enter()?;
            self.confirm(self.run_exclusive(|| make(driver)))
        })
    }

    /// How it is split among clients with a percentage.
    pub(crate) fn parts(&self) -> &GreenContexts {
        &self.parts
    }

    /// The kernel that ends batches, if there can be any.
    pub(crate) fn signal_kernel(&self) -> Option<&SignalKernel> {
        self.signal_kernel.as_ref()
    }

    /// Page-locks memory of this process's, so that the GPU reaches it where the processor does.
    ///
    /// # Safety
    /// It stays mapped until the driver was told to unregister it.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) unsafe fn register_host(&self, memory: Window) -> Result<(), CUresult> {
        let driver = self.enter()?;
        let (at, bytes) = (memory.base as *mut c_void, memory.bytes as usize);
        // SAFETY: the caller keeps the memory mapped for as long as it is registered.
        let registered = unsafe { driver.cuMemHostRegister_v2(at, bytes, PORTABLE_AND_MAPPED) };
        self.confirm(registered)
    }

    /// Makes a call that would wait for all kernels, while there are none. See [`QuiesceGate::run_exclusive`].
    ///
    /// # Errors
    /// As there, or the call's.
    pub(crate) fn run_exclusive<T>(
        &self,
        call: impl FnOnce() -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        self.gate.run_exclusive(|| self.check().is_err(), call)?
    }

    /// As [`Device::run_exclusive`], in this turn.
    ///
    /// # Errors
    /// As there, and CUDA_ERROR_NOT_READY where it is not the turn now.
    pub(crate) fn run_in<T>(
        &self,
        turn: Turn,
        call: impl FnOnce() -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        match turn {
            Turn::Wait => self.run_exclusive(call),
            Turn::IfIdle => {
                let result = self.gate.try_exclusive(call);
                result.unwrap_or(Err(CUresult::ERROR_NOT_READY))
            }
        }
    }

    /// Calls the driver while there are no kernels, for what would wait for all of them: to give something back, of so many bytes
    /// of memory, or to make a graph. Not done on a device that has died.
    pub(crate) fn when_idle(
        self: &Arc<Self>,
        bytes: u64,
        work: impl FnOnce(&Driver) + Send + 'static,
    ) {
        // The device keeps its gate, and that what is retired: it must not keep the device in turn.
        let device = Arc::downgrade(self);
        let call = move || {
            if let Some(device) = device.upgrade()
                && let Ok(driver) = device.enter()
            {
                work(driver);
            }
        };
        self.gate.when_idle(bytes, call);
    }

    /// To be called before anything is made that will be [retired](Device::when_idle): waits while there is
    /// much of it already.
    ///
    /// # Errors
    /// See [`QuiesceGate::make_room`].
    pub(crate) fn make_room(&self) -> Result<(), CUresult> {
        self.gate.make_room(|| self.check().is_err())
    }

    /// Waits until all that is [retired](Device::when_idle) by now is given back.
    ///
    /// # Errors
    /// See [`QuiesceGate::give_back`].
    pub(crate) fn give_back(&self) -> Result<(), CUresult> {
        self.gate.give_back(|| self.check().is_err())
    }

    /// Who keeps memory for nobody, and gives it up when there is no other.
    pub(crate) fn set_reserve(&self, give_up: impl Fn() -> bool + Send + Sync + 'static) {
        // The engine sets it, once.
        let _ = self.reserve.0.set(Box::new(give_up));
    }

    /// Takes memory, for which what is kept for nobody is given up if need be. Waits a while for an idle device then.
    ///
    /// # Errors
    /// The call's.
    pub(crate) fn take_memory<T>(
        &self,
        take: impl Fn(&Driver) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        let driver = self.enter()?;
        let taken = take(driver);
        if matches!(taken, Err(CUresult::ERROR_OUT_OF_MEMORY))
            && self.reserve.0.get().is_some_and(|give_up| give_up())
        {
            // Who finds no memory is told so, rather than wait for what may not end.
            let until = Instant::now() + LONGEST_GIVING_UP;
            while !self.gate.run_pending() && Instant::now() < until {
                std::thread::sleep(BETWEEN_TRIES);
            }
            return take(driver);
        }
        taken
    }

    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Least and greatest urgency of streams; a lower number is more urgent.
    pub(crate) fn priorities(&self) -> (i32, i32) {
        self.priorities
    }

    /// Makes the device's context current for the calling thread.
    ///
    /// # Errors
    /// What the device died of, or the driver's status.
    pub(crate) fn enter(&self) -> Result<&Driver, CUresult> {
        self.check()?;
        self.enter_anyway()
    }

    /// Makes calls with another context current: this device's, or one of a part of it.
    ///
    /// # Errors
    /// What the device died of, the driver's status, or the calls'.
    pub(crate) fn within<T>(
        &self,
        context: Handle<CUcontext>,
        calls: impl FnOnce(&Driver) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        let driver = self.enter()?;
        if context == self.context {
            return calls(driver);
        }
        // SAFETY: contexts of parts live as long as the process.
        unsafe { driver.cuCtxSetCurrent(context.0)? };
        CURRENT.set(0);
        let result = calls(driver);
        self.enter_anyway()?;
        result
    }

    /// As [`Device::enter`], for cleaning up.
    fn enter_anyway(&self) -> Result<&Driver, CUresult> {
        let context = self.context.0.0.addr();
        if CURRENT.get() != context {
            // SAFETY: the context is alive as long as `self`.
            unsafe { self.driver.cuCtxSetCurrent(self.context.0)? };
            CURRENT.set(context);
        }
        Ok(&self.driver)
    }

    /// Whether the device still works.
    ///
    /// # Errors
    /// What it died of.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        match self.dead.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Asks the driver whether the context is well. Does not wait.
    ///
    /// # Errors
    /// What it died of.
    pub(crate) fn probe(&self) -> Result<(), CUresult> {
        self.enter()?;
        // SAFETY: the stream is ours and lives as long as `self`.
        match unsafe { self.driver.cuStreamQuery(self.service.0) } {
            Ok(()) | Err(CUresult::ERROR_NOT_READY) => Ok(()),
            Err(code) => {
                // The first error is the cause.
                let _ = self
                    .dead
                    .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
                self.check()
            }
        }
    }

    /// Passes on a result of a call in the context. If the context has died, the cause replaces the
    /// error.
    ///
    /// # Errors
    /// As told.
    pub(crate) fn confirm<T>(&self, result: Result<T, CUresult>) -> Result<T, CUresult> {
        if result.is_err() {
            self.probe()?;
        }
        result
    }

    /// Bytes of memory that nobody has taken, what waits to be given back among them if that can be now.
    pub(crate) fn free_memory(&self) -> u64 {
        self.gate.run_pending();
        let (mut free, mut total) = (0, 0);
        let asked = self.enter().and_then(|driver| {
            // SAFETY: the pointers are to locals.
            unsafe { driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }
        });
        if asked.is_ok() { free as u64 } else { 0 }
    }
}

/// The devices whose memory one can reach, as bits. A driver that does not say reaches none.
fn reachable(driver: &Driver, ordinal: i32) -> u64 {
    let mut count = 0;
    // SAFETY: the pointer is to a local.
    if unsafe { driver.cuDeviceGetCount(&raw mut count) }.is_err() {
        return 0;
    }
    (0..count.min(64))
        .filter(|&other| {
            let mut can = 0;
            // SAFETY: the pointer is to a local.
            let asked = unsafe { driver.cuDeviceCanAccessPeer(&raw mut can, ordinal, other) };
            other != ordinal && asked.is_ok() && can != 0
        })
        .fold(0, |bits, other| bits | 1 << other)
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.enter_anyway().is_ok() {
            self.fences.close(&self.driver);
            self.bounce_buffers.close(&self.driver);
            self.clock.close(&self.driver);
            // SAFETY: the stream was made in `new` for this device alone, which is going.
            let _ = unsafe { self.driver.cuStreamDestroy_v2(self.service.0) };
        }
        CURRENT.set(0);
        // SAFETY: retained once in `new`; everything made in it holds an Arc of this device, so that
        // nothing is left.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.ordinal) };
    }
}
