//! What the cases share: a client with its memory, an observer that remembers, and short ways to ask.
//!
//! Called by the suite's cases and by engines' own tests. Must not know which engine it drives.

mod memory;
mod recording_observer;

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::memory::{Extents, Memory};
pub use self::memory::{More, more_addresses};
pub use self::recording_observer::{Completion, RecordingObserver};
use super::kernels;
use crate::arena::GRANULE;
use crate::{
    Attachment, Bound, CUresult, Client, Engine, KeptMemory, Observer, Owner, Region, Share, Window,
};
use protocol::image_descriptor::Descriptor;
use protocol::operations::{
    At, ContextCreate, Copy, EventRecord, Fill, HeapSet, ImageLoad, Launch, ModuleLoad, RunAdd,
    RunDestroy, RunLaunch, Space, StreamCreate, StreamDestroy, Write,
};

/// How long a case waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Does what would never end if the engine were wrong. After [`PATIENCE`] it says what that was and ends the test's process, since
/// no thread can be ended that waits.
pub fn bounded<R>(what: &str, work: impl FnOnce() -> R) -> R {
    let (running, is_over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                // What `eprintln!` says is kept by the test's harness, which ends with the process.
                let _ = writeln!(std::io::stderr(), "not within {PATIENCE:?}: {what}");
                std::process::abort();
            }
        });
        let result = work();
        // So that the other thread ends; where the work panics this is dropped too.
        drop(running);
        result
    })
}

/// Bytes of a client's staging memory.
pub const STAGING: u64 = 16 << 20;

/// Bytes of a client's page-locked host memory.
pub const HOST: u64 = 8 << 20;

/// A client of an engine, with all that a session would have for it.
#[derive(Debug)]
pub struct Guest {
    /// The engine's side.
    pub client: Box<dyn Client>,
    /// Its window on each device.
    pub windows: Vec<Window>,
    /// Its page-locked memory.
    pub host: Window,
    /// What the engine has reported of it.
    pub observer: Arc<RecordingObserver>,
    staging: Arc<Memory>,
    host_memory: Arc<Memory>,
    completions: Arc<Memory>,
    /// Given back when the client is gone.
    _extents: Arc<Extents>,
    next: HashMap<u32, u64>,
    /// The device of each context.
    devices: HashMap<u32, u32>,
    modules: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A case that failed in another thread says nothing about this one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    /// A client with everything of the device, and context 0 on device 0.
    pub fn new(engine: &dyn Engine) -> Self {
        let mut guest = Self::with_share(engine, Share::default());
        guest.context(0, 0);
        guest
    }

    /// A client without a context.
    pub fn with_share(engine: &dyn Engine, share: Share) -> Self {
        Self::in_group(engine, share, None)
    }

    /// A client of a group, without a context.
    pub fn in_group(engine: &dyn Engine, share: Share, group: Option<u32>) -> Self {
        let held = Arc::new(Bound::new(u64::MAX));
        Self::with(engine, (share, group), held, false, KeptMemory::None)
    }

    /// A client for which a server holds so much of its own memory, with context 0 on device 0.
    pub fn with_held(engine: &dyn Engine, held: Arc<Bound>) -> Self {
        let everything = (Share::default(), None);
        let mut guest = Self::with(engine, everything, held, false, KeptMemory::None);
        guest.context(0, 0);
        guest
    }

    /// A fenced client, with everything of the device, and context 0 on device 0.
    pub fn fenced(engine: &dyn Engine) -> Self {
        let held = Arc::new(Bound::new(u64::MAX));
        let everything = (Share::default(), None);
        let mut guest = Self::with(engine, everything, held, true, KeptMemory::None);
        guest.context(0, 0);
        guest
    }

    /// A client whose device memory is kept in chunks, with everything of the device, and context 0 on device 0.
    pub fn kept(engine: &dyn Engine) -> Self {
        let held = Arc::new(Bound::new(u64::MAX));
        let everything = (Share::default(), None);
        let kept = KeptMemory::Chunks(Vec::new());
        let mut guest = Self::with(engine, everything, held, false, kept);
        guest.context(0, 0);
        guest
    }

    fn with(
        engine: &dyn Engine,
        (share, group): (Share, Option<u32>),
        held: Arc<Bound>,
        fenced: bool,
        kept: KeptMemory,
    ) -> Self {
        let devices = engine.devices().len();
        let extents = Extents::take(devices + 2);
        let windows = extents.0[..devices].to_vec();
        let part = |index: usize, bytes| Window {
            base: extents.0[devices + index].base,
            bytes,
        };
        let host_memory = Memory::map(part(0, HOST));
        let staging = Memory::map(part(1, STAGING));
        let completions = Memory::anywhere(GRANULE);
        // The upper half of the first window is for modules' variables.
        let half = windows[0].bytes / 2 / GRANULE * GRANULE;
        let variables = Window {
            base: windows[0].base + half,
            bytes: windows[0].bytes - half,
        };
        let observer = Arc::new(RecordingObserver::new(variables, host_memory.window));
        let region = |memory: &Arc<Memory>| Region {
            window: memory.window,
            owner: Arc::clone(memory) as Arc<dyn Owner>,
        };
        let is_told = matches!(kept, KeptMemory::None);
        let attachment = Attachment {
            windows: windows.clone(),
            kept,
            further: Vec::new(),
            addresses: extents.clone(),
            host: region(&host_memory),
            staging: region(&staging),
            completions: is_told.then(|| region(&completions)),
            share,
            group,
            fenced,
            held,
            observer: Arc::clone(&observer) as Arc<dyn Observer>,
        };
        Self {
            client: engine.attach(attachment).expect("room for one more client"),
            windows,
            host: host_memory.window,
            observer,
            staging,
            host_memory,
            completions,
            _extents: extents,
            next: HashMap::new(),
            devices: HashMap::new(),
            modules: 0,
        }
    }

    /// Makes a context.
    pub fn context(&mut self, context: u32, device: u32) {
        let request = ContextCreate {
            context,
            device,
            flags: 0,
            share: 0,
        };
        self.client
            .context_create(&request, &[])
            .expect("a context");
        self.devices.insert(context, device);
    }

    /// Makes a stream in context 0.
    pub fn stream(&mut self, stream: u32) {
        self.stream_in(stream, 0).expect("a stream");
    }

    /// Makes a stream.
    pub fn stream_in(&mut self, stream: u32, context: u32) -> Result<(), CUresult> {
        let request = StreamCreate {
            stream,
            context,
            flags: 1,
            priority: 0,
        };
        self.client.stream_create(&request, &[])
    }

    /// Commits bytes of device 0 from an offset of its window, rounded up to granules.
    pub fn commit(&mut self, offset: u64, bytes: u64) -> u64 {
        let base = self.windows[0].base + offset;
        let bytes = bytes.next_multiple_of(GRANULE);
        self.client.commit(Window { base, bytes }).expect("memory");
        base
    }

    /// Gives the kernels of context 0 a heap of so many bytes of device 0, from an offset of its window on.
    pub fn heap(&mut self, offset: u64, bytes: u64) -> u64 {
        let address = self.commit(offset, bytes);
        let request = HeapSet {
            context: 0,
            address,
            bytes,
        };
        self.client.heap_set(&request, &[]).expect("a heap");
        address
    }

    /// Commits all of the host window.
    pub fn commit_host(&mut self) -> u64 {
        self.client.commit(self.host).expect("host memory");
        self.host.base
    }

    /// The next place in a stream's order. Positions of operations that are refused are used again.
    pub fn at(&self, stream: u32) -> At {
        let sequence = self.next.get(&stream).copied().unwrap_or(0) + 1;
        At { stream, sequence }
    }

    /// Notes whether an operation was taken.
    pub fn taken(&mut self, at: At, result: Result<(), CUresult>) -> Result<(), CUresult> {
        if result.is_ok() {
            self.next.insert(at.stream, at.sequence);
        }
        result
    }

    /// Puts a copy into a stream.
    pub fn copy(&mut self, stream: u32, request: &Copy) {
        let at = self.at(stream);
        let result = self.client.copy(at, request, &[]);
        self.taken(at, result).expect("a copy that is taken");
    }

    /// Puts a fill into a stream.
    pub fn fill(&mut self, stream: u32, request: &Fill) {
        let at = self.at(stream);
        let result = self.client.fill(at, request, &[]);
        self.taken(at, result).expect("a fill that is taken");
    }

    /// Puts a write into a stream.
    pub fn write(&mut self, stream: u32, to: u64, data: &[u8]) {
        let at = self.at(stream);
        let result = self.client.write(at, &Write { to }, data);
        self.taken(at, result).expect("a write that is taken");
    }

    /// Puts a timed event into a stream.
    pub fn event(&mut self, stream: u32, event: u32) {
        let at = self.at(stream);
        let result = self
            .client
            .event_record(at, &EventRecord { event, timing: 1 }, &[]);
        self.taken(at, result).expect("an event that is taken");
    }

    /// Puts a stream's destruction into it.
    pub fn destroy(&mut self, stream: u32) {
        let at = self.at(stream);
        let result = self
            .client
            .stream_destroy(at, &StreamDestroy::default(), &[]);
        self.taken(at, result).expect("a destruction that is taken");
    }

    /// Loads an image for the first device; the statuses, its descriptor and its log.
    pub fn image(&mut self, image: u64, bytes: &[u8]) -> (CUresult, Descriptor, String) {
        self.image_for(0, image, bytes)
    }

    /// Loads an image for a device; the statuses, its descriptor and its log.
    pub fn image_for(
        &mut self,
        device: u32,
        image: u64,
        bytes: &[u8],
    ) -> (CUresult, Descriptor, String) {
        let request = ImageLoad {
            image,
            staging: 0,
            capacity: 0,
            options: 0,
            device,
        };
        let mut reply = Vec::new();
        let facts = self
            .client
            .image_load(&request, bytes, &mut reply)
            .expect("a reply about the image");
        assert_eq!(reply.len() as u64, facts.descriptor + facts.log);
        let (descriptor, log) = reply.split_at(facts.descriptor as usize);
        let descriptor = match descriptor {
            [] => Descriptor::default(),
            bytes => Descriptor::decode(bytes).expect("a descriptor that is whole"),
        };
        let log = String::from_utf8(log.to_vec()).expect("a log in UTF-8");
        (CUresult(facts.status), descriptor, log)
    }

    /// Loads PTX as a module of a context; its handle and its variables' addresses.
    pub fn module_in(&mut self, context: u32, ptx: &str) -> (u64, Vec<u64>) {
        let device = self.devices.get(&context).copied().unwrap_or(0);
        self.module_for(device, context, ptx)
    }

    /// Loads PTX, as an image for one device, as a module of a context of perhaps another one; its handle and its
    /// variables' addresses.
    pub fn module_for(&mut self, device: u32, context: u32, ptx: &str) -> (u64, Vec<u64>) {
        self.modules += 1;
        let module = self.modules;
        let (status, _, log) = self.image_for(device, module, ptx.as_bytes());
        assert_eq!(status, CUresult::SUCCESS, "{log}");
        let request = ModuleLoad {
            module,
            image: module,
            context,
            staging: 0,
            capacity: 0,
        };
        let mut reply = Vec::new();
        let facts = self
            .client
            .module_load(&request, &[], &mut reply)
            .expect("a module");
        assert_eq!(reply.len() as u64, 8 * facts.addresses);
        let addresses = reply.as_chunks().0.iter().map(|&a| u64::from_le_bytes(a));
        (module, addresses.collect())
    }

    /// Loads PTX as a module of context 0, and gives its handle.
    pub fn module(&mut self, ptx: &str) -> u64 {
        self.module_in(0, ptx).0
    }

    /// Puts a launch of a module's first kernel into a stream.
    pub fn launch(&mut self, stream: u32, module: u64, grid: u32, block: u32, params: &[u8]) {
        let request = simple_launch(module, grid, block);
        let at = self.at(stream);
        let result = self.client.launch(at, &request, params);
        self.taken(at, result).expect("a launch that is taken");
    }

    /// Adds a launch to a run.
    pub fn run_add(&mut self, run: u32, launch: &Launch, data: &[u8]) {
        let added = self.client.run_add(&RunAdd::new(run, launch), data);
        added.expect("a run's number");
    }

    /// Forgets a run.
    pub fn run_destroy(&mut self, run: u32) {
        let forgotten = self.client.run_destroy(&RunDestroy { run }, &[]);
        forgotten.expect("a run");
    }

    /// Puts a run into a stream.
    pub fn run_launch(&mut self, stream: u32, run: u32) {
        let at = self.at(stream);
        let result = self.client.run_launch(at, &RunLaunch { run }, &[]);
        self.taken(at, result).expect("a run that is taken");
    }

    /// Puts a launch into a stream, waits, and gives its result, whichever way it comes.
    pub fn launch_result(
        &mut self,
        stream: u32,
        request: &Launch,
        data: &[u8],
    ) -> Result<(), CUresult> {
        let at = self.at(stream);
        let result = self.client.launch(at, request, data);
        self.taken(at, result)?;
        self.wait(stream)
    }

    /// Waits for all that a stream was given, and gives the last result. Helps meanwhile, as a
    /// session does.
    pub fn wait(&mut self, stream: u32) -> Result<(), CUresult> {
        let last = self.next.get(&stream).copied().unwrap_or(0);
        if last == 0 {
            return Ok(());
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(result) = self.observer.result_of(stream, last) {
                assert!(self.told_by_device(stream) <= last, "before it was posted");
                return result;
            }
            assert!(Instant::now() < deadline, "stream {stream} is stuck");
            if !self.client.assist() {
                self.observer.wait_a_moment();
            }
        }
    }

    /// How far a stream has come by the device's own word, of the streams that have one.
    pub fn told_by_device(&self, stream: u32) -> u64 {
        let at = u64::from(stream) * 8;
        if at >= GRANULE {
            return 0;
        }
        let word = self.completions.read(at, 8);
        word.first_chunk().copied().map_or(0, u64::from_le_bytes)
    }

    /// Whether a stream has nothing left to do.
    pub fn is_done(&self, stream: u32) -> bool {
        let last = self.next.get(&stream).copied().unwrap_or(0);
        self.observer.result_of(stream, last).is_some()
    }

    /// Puts bytes into staging.
    pub fn stage(&self, offset: u64, bytes: &[u8]) {
        self.staging.write(offset, bytes);
    }

    /// What lies in staging.
    pub fn staged(&self, offset: u64, bytes: u64) -> Vec<u8> {
        self.staging.read(offset, bytes)
    }

    /// What lies at an address of the host window.
    pub fn host_bytes(&self, address: u64, bytes: u64) -> Vec<u8> {
        self.host_memory.read(address - self.host.base, bytes)
    }

    /// Writes to host memory as the client itself would.
    pub fn set_host(&self, address: u64, bytes: &[u8]) {
        self.host_memory.write(address - self.host.base, bytes);
    }

    /// Copies bytes to an address by way of staging, and waits. Uses the end of staging.
    pub fn upload(&mut self, to: u64, bytes: &[u8]) {
        let half = STAGING / 2;
        for (index, part) in bytes.chunks(half as usize).enumerate() {
            self.stage(half, part);
            let request = Copy {
                to: to + index as u64 * half,
                from_space: Space::Staging as u32,
                from: half,
                width: part.len() as u64,
                height: 1,
                depth: 1,
                ..Copy::default()
            };
            self.copy(0, &request);
            self.wait(0).expect("an upload");
        }
    }

    /// Copies bytes from an address by way of staging. Uses the end of staging.
    pub fn download(&mut self, from: u64, bytes: u64) -> Vec<u8> {
        let half = STAGING / 2;
        let mut out = Vec::new();
        while (out.len() as u64) < bytes {
            let done = out.len() as u64;
            let width = half.min(bytes - done);
            let request = Copy {
                to_space: Space::Staging as u32,
                to: half,
                from: from + done,
                width,
                height: 1,
                depth: 1,
                ..Copy::default()
            };
            self.copy(0, &request);
            self.wait(0).expect("a download");
            out.extend(self.staged(half, width));
        }
        out
    }

    /// The 32-bit word at an address.
    pub fn word(&mut self, address: u64) -> u32 {
        let bytes = self.download(address, 4);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Starts a kernel that never ends, one block of 32 threads.
    pub fn launch_endless(&mut self, stream: u32) {
        let module = self.module(kernels::ENDLESS);
        self.launch(stream, module, 1, 32, &[]);
    }

    /// Ends the client; its addresses are free afterwards.
    pub fn end(self) -> Arc<RecordingObserver> {
        // The fields go in their order: the engine's side first, the addresses last.
        Arc::clone(&self.observer)
    }
}

/// A launch of a module's first kernel, in one dimension.
#[must_use]
pub fn simple_launch(module: u64, grid: u32, block: u32) -> Launch {
    Launch {
        module,
        kernel: 0,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared: 0,
        flags: 0,
        attributes: 0,
    }
}

/// A parameter block of 64-bit parameters.
#[must_use]
pub fn params(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Bytes that differ from place to place.
#[must_use]
pub fn noise(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(step).collect()
}
