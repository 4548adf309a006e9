//! An engine whose work ends when a test says so.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{
    Attachment, Client, Engine, ExportedMemory, FurtherWindow, GroupShare, Guilt, MemoryHandle,
    MemoryPiece, Observer, Owner, PollResult, Region, Window,
};
use protocol::device_facts::{DeviceFacts, PCI_BUS_ID, PCI_DEVICE_ID, PCI_DOMAIN_ID};
use protocol::image_descriptor::{Descriptor, Variable};
use protocol::operations::*;

/// Kernels: one that ends at once, one that ends when its gate (grid's x) is opened, one that faults,
/// one that makes the engine panic, one that its device does not survive.
pub const INSTANT: u32 = 0;
pub const GATED: u32 = 1;
pub const FAULTING: u32 = 2;
pub const PANICKING: u32 = 3;
pub const KILLING: u32 = 4;

/// Bytes of a piece of memory that is shared with other processes.
pub const PIECE: u64 = 4 << 20;

#[derive(Debug)]
pub struct FakeEngine {
    devices: Vec<DeviceFacts>,
    shared: Arc<World>,
}

/// Called when the engine is asked to assist.
type Assist = Box<dyn FnMut() -> bool + Send>;

/// Called when the engine is asked how far a client's work has come.
type Poll = Box<dyn FnMut() -> PollResult + Send>;

#[derive(Default)]
struct Hooks {
    assist: Mutex<Option<Assist>>,
    poll: Mutex<Option<Poll>>,
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooks")
    }
}

#[derive(Debug, Default)]
pub struct World {
    hooks: Hooks,
    /// Whoever has this lets no group be set, and no client end.
    slow: Mutex<()>,
    /// It keeps variables, and of the modules of each image it has one.
    keeps_variables: bool,
    stuck: AtomicBool,
    clients: AtomicUsize,
    committed: AtomicU64,
    arrays: AtomicU64,
    peeks: AtomicU64,
    /// To what all semaphores were signalled.
    signalled: AtomicU64,
    /// In how many pieces shared memory lies.
    pieces: AtomicUsize,
    /// Whether memory of other processes cannot be had.
    refuses: AtomicBool,
    /// What was done with mappings of physical memory, in order.
    mappings: Mutex<Vec<Mapping>>,
    room: u64,
    groups: Mutex<HashMap<u32, GroupShare>>,
    /// 0, or what its device died of.
    lost: AtomicU32,
    /// Where the device itself tells the client that came last how far its streams are.
    completions: Mutex<Option<Region>>,
    work: Mutex<Work>,
}

/// Something that was done with a mapping of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    Made,
    Reached,
    OutOfReach,
    Gone,
}

#[derive(Debug, Default)]
struct Work {
    next_client: u64,
    open: HashSet<u32>,
    queues: HashMap<(u64, u32), VecDeque<Queued>>,
    /// The gates of what was handed over, in order, 0 where there is none.
    handed: Vec<u32>,
}

#[derive(Debug)]
struct Queued {
    at: At,
    gate: Option<u32>,
    result: Result<(), CUresult>,
    observer: Arc<dyn Observer>,
}

impl FakeEngine {
    pub fn new() -> Self {
        Self::with_room(64 << 30)
    }

    pub fn with_room(room: u64) -> Self {
        Self::with(room, false)
    }

    /// One that takes the memory of variables by itself.
    pub fn keeping_variables() -> Self {
        Self::with(64 << 30, true)
    }

    fn with(room: u64, keeps_variables: bool) -> Self {
        let mut attributes = vec![100; 130];
        for (attribute, value) in [(PCI_DOMAIN_ID, 0), (PCI_BUS_ID, 0), (PCI_DEVICE_ID, 6)] {
            attributes[attribute as usize] = value;
        }
        let device = DeviceFacts {
            name: "Fake GPU".into(),
            uuid: *b"0123456789abcdef",
            total_memory: 16 << 30,
            attributes,
            ..DeviceFacts::default()
        };
        Self {
            devices: vec![device],
            shared: Arc::new(World {
                room,
                keeps_variables,
                pieces: AtomicUsize::new(2),
                ..World::default()
            }),
        }
    }

    pub fn clients(&self) -> usize {
        self.shared.clients.load(Ordering::SeqCst)
    }

    pub fn committed(&self) -> u64 {
        self.shared.committed.load(Ordering::SeqCst)
    }

    pub fn arrays(&self) -> u64 {
        self.shared.arrays.load(Ordering::SeqCst)
    }

    /// Has sessions call something when they have nothing else to do; it says whether it helped.
    pub fn on_assist(&self, assist: Option<Assist>) {
        *self.shared.hooks.assist.lock().unwrap() = assist;
    }

    /// Has sessions call something where they look how far their work has come.
    pub fn on_poll(&self, poll: Option<Poll>) {
        *self.shared.hooks.poll.lock().unwrap() = poll;
    }

    /// Groups are not set, and clients do not end, as long as this is kept.
    pub fn be_slow(&self) -> MutexGuard<'_, ()> {
        self.shared.slow.lock().unwrap()
    }

    /// What clients left that have gone does not end.
    pub fn be_stuck(&self, on: bool) {
        self.shared.stuck.store(on, Ordering::SeqCst);
    }

    /// How often memory was looked at for a wait.
    pub fn peeks(&self) -> u64 {
        self.shared.peeks.load(Ordering::SeqCst)
    }

    /// Signals all semaphores, as another interface would.
    pub fn signal(&self, value: u64) {
        self.shared.signalled.store(value, Ordering::SeqCst);
    }

    /// Shared memory lies in so many pieces.
    pub fn lie_in_pieces(&self, count: usize) {
        self.shared.pieces.store(count, Ordering::SeqCst);
    }

    /// Memory of other processes cannot be had, or can again.
    pub fn refuse_foreign(&self, on: bool) {
        self.shared.refuses.store(on, Ordering::SeqCst);
    }

    /// What was done with mappings of physical memory since this was last asked.
    pub fn take_mappings(&self) -> Vec<Mapping> {
        std::mem::take(&mut *self.shared.mappings.lock().unwrap())
    }

    /// As the device does it, without a word to the observer.
    pub fn tell(&self, stream: u32, sequence: u64) {
        let region = self.shared.completions.lock().unwrap();
        let region = region.as_ref().expect("the client can be told");
        let at = u64::from(stream) * 8;
        assert!(at < region.window.bytes);
        // SAFETY: the region is mapped as long as its owner, which is kept, and its words are reached as whole words only.
        let word = unsafe { &*((region.window.base + at) as *const AtomicU64) };
        word.store(sequence, Ordering::Release);
    }

    /// Lets the kernels with this gate end, on the calling thread.
    pub fn open(&self, gate: u32) {
        let mut work = self.shared.lock();
        work.open.insert(gate);
        let streams: Vec<_> = work.queues.keys().copied().collect();
        let done: Vec<_> = streams.into_iter().flat_map(|key| work.pump(key)).collect();
        drop(work);
        tell(done);
    }

    /// Gates in the order in which their kernels were handed over.
    pub fn gates(&self) -> Vec<u32> {
        let work = self.shared.lock();
        work.handed.clone()
    }

    pub fn was_handed(&self, gate: u32) -> bool {
        self.gates().contains(&gate)
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

impl Work {
    fn pump(&mut self, key: (u64, u32)) -> Vec<Queued> {
        let mut done = Vec::new();
        let Some(queue) = self.queues.get_mut(&key) else {
            return done;
        };
        while let Some(front) = queue.front()
            && front.gate.is_none_or(|gate| self.open.contains(&gate))
        {
            done.extend(queue.pop_front());
        }
        done
    }
}

fn tell(done: Vec<Queued>) {
    for queued in done {
        queued.observer.completed(queued.at, queued.result);
    }
}

impl Engine for FakeEngine {
    /// In as many pieces as the world says.
    fn export_memory(&self, _: &MemoryHandle, _: Duration) -> Result<ExportedMemory, CUresult> {
        let piece = |_| MemoryPiece {
            bytes: PIECE,
            descriptor: std::fs::File::open("/dev/null").unwrap().into(),
        };
        let count = self.shared.pieces.load(Ordering::SeqCst);
        Ok(ExportedMemory {
            pieces: (0..count).map(piece).collect(),
            offset: 512,
        })
    }

    fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        drop(self.shared.slow.lock());
        let mut groups = self.shared.groups.lock().unwrap_or_else(|p| p.into_inner());
        let others = groups.iter().filter(|(other, _)| **other != group);
        let others: f32 = others
            .filter(|(_, share)| share.reserved)
            .map(|(_, share)| share.percentage)
            .sum();
        match share {
            Some(share) if share.reserved && others + share.percentage > 100.01 => {
                return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
            }
            Some(share) => groups.insert(group, share),
            None => groups.remove(&group),
        };
        Ok(())
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.devices
    }

    fn lost(&self) -> Option<CUresult> {
        let code = self.shared.lost.load(Ordering::SeqCst);
        (code != 0).then_some(CUresult(code))
    }

    fn hung_work(&self) -> Option<String> {
        let stuck = self.shared.stuck.load(Ordering::SeqCst);
        stuck.then(|| "spin on device 0 (Fake GPU)".into())
    }

    fn attach(&self, attachment: Attachment) -> Result<Box<dyn Client>, CUresult> {
        let mut work = self.shared.lock();
        work.next_client += 1;
        *self.shared.completions.lock().unwrap() = attachment.completions.clone();
        self.shared.clients.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(FakeClient {
            number: work.next_client,
            world: self.shared.clone(),
            attachment,
            further: HashMap::new(),
            committed: HashSet::new(),
            contexts: HashSet::new(),
            streams: HashMap::new(),
            images: HashSet::new(),
            lent: HashMap::new(),
        }))
    }
}

#[derive(Debug)]
struct FakeClient {
    number: u64,
    world: Arc<World>,
    attachment: Attachment,
    /// Windows that were added, by address.
    further: HashMap<u64, Arc<dyn Owner>>,
    committed: HashSet<u64>,
    contexts: HashSet<u32>,
    /// Streams, and their contexts.
    streams: HashMap<u32, u32>,
    images: HashSet<u64>,
    lent: HashMap<u64, Arc<dyn Owner>>,
}

impl FakeClient {
    fn enqueue(
        &self,
        at: At,
        gate: Option<u32>,
        result: Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        if !self.streams.contains_key(&at.stream) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let mut work = self.world.lock();
        work.handed.push(gate.unwrap_or(0));
        let key = (self.number, at.stream);
        work.queues.entry(key).or_default().push_back(Queued {
            at,
            gate,
            result,
            observer: self.attachment.observer.clone(),
        });
        let done = work.pump(key);
        drop(work);
        tell(done);
        Ok(())
    }
}

impl Drop for FakeClient {
    fn drop(&mut self) {
        drop(self.world.slow.lock());
        let mut work = self.world.lock();
        let number = self.number;
        work.queues.retain(|(client, _), _| *client != number);
        let left = self.committed.len() as u64 * engine::arena::GRANULE;
        self.world.committed.fetch_sub(left, Ordering::SeqCst);
        self.world.clients.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Client for FakeClient {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        let mut windows = self.attachment.windows.iter();
        let host = self.attachment.host.window;
        assert!(
            windows.any(|window| window.contains(range.base, range.bytes))
                || host.contains(range.base, range.bytes),
            "outside of the client's windows"
        );
        let before = self
            .world
            .committed
            .fetch_add(range.bytes, Ordering::SeqCst);
        if before + range.bytes > self.world.room {
            self.world
                .committed
                .fetch_sub(range.bytes, Ordering::SeqCst);
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        for at in (range.base..range.base + range.bytes).step_by(engine::arena::GRANULE as usize) {
            assert!(self.committed.insert(at), "committed twice");
        }
        Ok(())
    }

    fn decommit(&mut self, range: Window) {
        for at in (range.base..range.base + range.bytes).step_by(engine::arena::GRANULE as usize) {
            assert!(self.committed.remove(&at), "was not committed");
        }
        self.world
            .committed
            .fetch_sub(range.bytes, Ordering::SeqCst);
    }

    fn window_add(&mut self, further: FurtherWindow) -> Result<(), CUresult> {
        let FurtherWindow {
            device,
            window,
            addresses,
            ..
        } = further;
        assert_eq!(device, 0);
        let inside = |other: &Window| {
            other.base < window.base + window.bytes && window.base < other.base + other.bytes
        };
        assert!(!self.attachment.windows.iter().any(inside), "had already");
        self.attachment.windows.push(window);
        self.further.insert(window.base, addresses);
        Ok(())
    }

    fn window_remove(&mut self, window: Window) {
        let within = |at: &&u64| window.contains(**at, 1);
        assert_eq!(self.committed.iter().find(within), None);
        self.attachment.windows.retain(|other| *other != window);
        let known = self.further.remove(&window.base);
        assert!(known.is_some(), "a window that was added");
    }

    fn host_lend(&mut self, range: Window, memory: Arc<dyn Owner>) -> Result<(), CUresult> {
        let host = self.attachment.host.window;
        assert!(
            host.contains(range.base, range.bytes),
            "outside of the host window"
        );
        assert!(self.lent.insert(range.base, memory).is_none(), "lent twice");
        Ok(())
    }

    fn host_return(&mut self, range: Window) {
        assert!(self.lent.remove(&range.base).is_some(), "was not lent");
    }

    fn free_memory(&self, _: u32) -> u64 {
        self.world.room - self.world.committed.load(Ordering::SeqCst)
    }

    fn share(&mut self, _: Window) -> Result<MemoryHandle, CUresult> {
        Ok(MemoryHandle::new(Arc::new(())))
    }

    fn import(&mut self, _: &MemoryHandle) -> Result<(), CUresult> {
        Ok(())
    }

    fn physical_create(&mut self, _: u32, _: u64) -> Result<MemoryHandle, CUresult> {
        Ok(MemoryHandle::new(Arc::new(())))
    }

    fn physical_map(&mut self, _: Window, _: &MemoryHandle, _: u64) -> Result<(), CUresult> {
        self.world.mappings.lock().unwrap().push(Mapping::Made);
        Ok(())
    }

    fn physical_unmap(&mut self, _: Window) {
        self.world.mappings.lock().unwrap().push(Mapping::Gone);
    }

    fn foreign_import(&mut self, _: u32, _: &MemoryPiece) -> Result<MemoryHandle, CUresult> {
        match self.world.refuses.load(Ordering::SeqCst) {
            true => Err(CUresult::ERROR_OUT_OF_MEMORY),
            false => Ok(MemoryHandle::new(Arc::new(()))),
        }
    }

    fn foreign_map(&mut self, at: Window, _: &MemoryHandle, part: Window) -> Result<(), CUresult> {
        assert!(at.contains(part.base, part.bytes));
        self.world.mappings.lock().unwrap().push(Mapping::Made);
        Ok(())
    }

    fn physical_access(&mut self, _: Window, device: u32, reaches: bool) -> Result<(), CUresult> {
        if device > 0 {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        self.world.mappings.lock().unwrap().push(match reaches {
            true => Mapping::Reached,
            false => Mapping::OutOfReach,
        });
        Ok(())
    }

    fn peek(&mut self, _: u64, _: u32) -> Result<u64, CUresult> {
        self.world.peeks.fetch_add(1, Ordering::SeqCst);
        Ok(0)
    }

    fn semaphore_wait(&mut self, _: At, request: &SemaphoreWait) -> Result<(), CUresult> {
        match self.world.signalled.load(Ordering::SeqCst) >= request.value {
            true => Ok(()),
            false => Err(CUresult::ERROR_NOT_READY),
        }
    }

    fn assist(&mut self) -> bool {
        let mut assist = self.world.hooks.assist.lock().unwrap();
        assist.as_mut().is_some_and(|assist| assist())
    }

    fn poll(&mut self) -> PollResult {
        let mut poll = self.world.hooks.poll.lock().unwrap();
        poll.as_mut().map_or(PollResult::Idle, |poll| poll())
    }

    fn context_create(&mut self, request: &ContextCreate, _: &[u8]) -> Result<(), CUresult> {
        assert!(self.contexts.insert(request.context), "made twice");
        self.streams.insert(request.context, request.context);
        Ok(())
    }

    fn context_destroy(&mut self, request: &ContextDestroy, _: &[u8]) -> Result<(), CUresult> {
        self.contexts.remove(&request.context);
        self.streams
            .retain(|_, context| *context != request.context);
        Ok(())
    }

    fn stream_create(&mut self, request: &StreamCreate, _: &[u8]) -> Result<(), CUresult> {
        let former = self.streams.insert(request.stream, request.context);
        assert!(former.is_none(), "made twice");
        Ok(())
    }

    fn stream_destroy(&mut self, at: At, _: &StreamDestroy, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))?;
        self.streams.remove(&at.stream);
        Ok(())
    }

    fn image_load(
        &mut self,
        request: &ImageLoad,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ImageLoadReply, CUresult> {
        if data.is_empty() {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        self.images.insert(request.image);
        if data.len() == 1 {
            return Ok(ImageLoadReply {
                status: CUresult::ERROR_INVALID_PTX.0,
                ..ImageLoadReply::default()
            });
        }
        if request.options & IMAGE_PART != 0 {
            return Ok(ImageLoadReply::written(CUresult::SUCCESS, &[], &[], reply));
        }
        // As many variables as the image's first byte says, with names as long as its second.
        let variable = Variable {
            name: "v".repeat(data[1].into()),
            bytes: 1000,
            align: if self.world.keeps_variables { 0 } else { 8 },
            ..Variable::default()
        };
        let descriptor = Descriptor {
            kernels: Vec::new(),
            variables: vec![variable; data[0].into()],
            heap: false,
        }
        .encode();
        let status = CUresult::SUCCESS;
        Ok(ImageLoadReply::written(status, &descriptor, &[], reply))
    }

    fn image_unload(&mut self, request: &ImageUnload, _: &[u8]) -> Result<(), CUresult> {
        let known = self.images.remove(&request.image);
        assert!(known || self.world.keeps_variables);
        Ok(())
    }

    fn module_load(
        &mut self,
        request: &ModuleLoad,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ModuleLoadReply, CUresult> {
        if self.world.keeps_variables {
            return Ok(ModuleLoadReply { addresses: 0 });
        }
        for _ in 0..3 {
            let window = self
                .attachment
                .observer
                .allocate(request.context, 1000, false)?;
            reply.extend(window.base.to_le_bytes());
        }
        Ok(ModuleLoadReply { addresses: 3 })
    }

    fn module_unload(&mut self, _: &ModuleUnload, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn function_set(&mut self, _: &FunctionSet, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn output_take(
        &mut self,
        _: &OutputTake,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<OutputTakeReply, CUresult> {
        Ok(OutputTakeReply { sink: OUTPUT_NONE })
    }

    fn limit_set(&mut self, _: &LimitSet, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn run_add(&mut self, _: &RunAdd, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn run_destroy(&mut self, _: &RunDestroy, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn run_publish(
        &mut self,
        _: &RunPublish,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<RunPublishReply, CUresult> {
        Ok(RunPublishReply { reserved: 0 })
    }

    fn run_launch(&mut self, at: At, _: &RunLaunch, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))
    }

    fn heap_set(&mut self, _: &HeapSet, _: &[u8]) -> Result<(), CUresult> {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    fn launch(&mut self, at: At, request: &Launch, _: &[u8]) -> Result<(), CUresult> {
        match request.kernel {
            INSTANT => self.enqueue(at, None, Ok(())),
            GATED => self.enqueue(at, Some(request.grid[0]), Ok(())),
            FAULTING | KILLING => {
                let code = CUresult::ERROR_ILLEGAL_ADDRESS;
                let context = self.streams[&at.stream];
                if request.kernel == KILLING {
                    self.world.lost.store(code.0, Ordering::SeqCst);
                }
                let observer = &self.attachment.observer;
                observer.fault(context, code, Guilt::Guilty, "wrote to 0x10");
                self.enqueue(at, None, Err(code))
            }
            PANICKING => panic!("the engine has a defect"),
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    fn copy(&mut self, at: At, _: &Copy, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))
    }

    fn write(&mut self, at: At, _: &Write, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))
    }

    fn semaphore_signal(&mut self, at: At, _: &SemaphoreSignal, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))
    }

    fn fill(&mut self, at: At, _: &Fill, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))
    }

    fn event_record(&mut self, at: At, request: &EventRecord, _: &[u8]) -> Result<(), CUresult> {
        if request.timing != 0 {
            self.attachment.observer.event_time(request.event, 42);
        }
        self.enqueue(at, None, Ok(()))
    }

    fn array_create(
        &mut self,
        _: &ArrayCreate,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ArrayCreateReply, CUresult> {
        self.world.arrays.fetch_add(1, Ordering::SeqCst);
        Ok(ArrayCreateReply { bytes: 0 })
    }

    fn array_destroy(&mut self, _: &ArrayDestroy, _: &[u8]) -> Result<(), CUresult> {
        self.world.arrays.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn array_copy(&mut self, at: At, _: &ArrayCopy, _: &[u8]) -> Result<(), CUresult> {
        self.enqueue(at, None, Ok(()))
    }

    fn texture_create(
        &mut self,
        _: &TextureCreate,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<TextureCreateReply, CUresult> {
        Ok(TextureCreateReply { object: 1 })
    }

    fn tensor_map_encode(
        &mut self,
        _: &TensorMapEncode,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TensorMapEncodeReply, CUresult> {
        reply.extend(data);
        Ok(TensorMapEncodeReply { reserved: 0 })
    }

    fn tensor_map_replace(
        &mut self,
        _: &TensorMapReplace,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TensorMapReplaceReply, CUresult> {
        reply.extend(data);
        Ok(TensorMapReplaceReply { reserved: 0 })
    }

    fn texture_destroy(&mut self, _: &TextureDestroy, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn cluster_occupancy(
        &mut self,
        _: &ClusterOccupancy,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ClusterOccupancyReply, CUresult> {
        Ok(ClusterOccupancyReply { count: 7 })
    }
}
