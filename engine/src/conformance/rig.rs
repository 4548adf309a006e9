//! What the cases share: a client with its memory, an observer that remembers, and short ways to ask.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_abi::descriptor::Descriptor;
use cuda_abi::operations::{
    At, ContextCreate, Copy, EventRecord, Fill, ImageLoad, Launch, ModuleLoad, Space, StreamCreate,
    StreamDestroy, Write,
};
use rustix::mm::{MapFlags, ProtFlags};

use super::kernels;
use crate::arena::{Arena, GRANULE};
use crate::{Attachment, CUresult, Client, Engine, Observer, Owner, Region, Share, Window};

/// How long a case waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a client's staging memory.
pub const STAGING: u64 = 16 << 20;

/// Bytes of a client's page-locked host memory.
pub const HOST: u64 = 8 << 20;

/// Extents are in one hand at a time in this process too.
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// A client of an engine, with all that a session would have for it.
#[derive(Debug)]
pub struct Guest {
    /// The engine's side.
    pub client: Box<dyn Client>,
    /// Its window on each device.
    pub windows: Vec<Window>,
    /// Its page-locked memory.
    pub host: Window,
    /// What it was told.
    pub told: Arc<Told>,
    staging: Arc<Memory>,
    host_memory: Arc<Memory>,
    /// Given back when the client is gone.
    _extents: Arc<Extents>,
    next: HashMap<u32, u64>,
    modules: u64,
}

/// An observer that remembers everything.
#[derive(Debug)]
pub struct Told {
    state: Mutex<ToldState>,
    changed: Condvar,
    /// Variables of modules are placed here, by counting up.
    variables: Window,
    /// Managed ones here: all of the host window.
    managed: Window,
}

/// A position and what became of it.
pub type Completion = (u64, Result<(), CUresult>);

#[derive(Debug, Default)]
struct ToldState {
    /// How often it was told that there is text.
    wrote: u64,
    completed: HashMap<u32, Vec<Completion>>,
    times: HashMap<u32, u64>,
    faults: Vec<(u32, CUresult, String)>,
    variable_bytes: u64,
    managed_bytes: u64,
}

/// Anonymous shared memory, at an address of the arena.
#[derive(Debug)]
struct Memory {
    window: Window,
}

impl Memory {
    fn map(window: Window) -> Arc<Self> {
        // SAFETY: nothing is replaced, and what is mapped is only reached through this object.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                window.base as *mut _,
                window.bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
            )
        };
        assert_eq!(
            at.expect("the arena's addresses are free") as u64,
            window.base
        );
        Arc::new(Self { window })
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.window.bytes);
        let to = (self.window.base + offset) as *mut u8;
        // SAFETY: the range is inside the mapping, and no reference into it exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        assert!(offset + bytes <= self.window.bytes);
        let mut out = vec![0; bytes as usize];
        let from = (self.window.base + offset) as *const u8;
        // SAFETY: the range is inside the mapping, and no reference into it exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        out
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; engines keep an Arc of this object while they may touch it.
        let _ =
            unsafe { rustix::mm::munmap(self.window.base as *mut _, self.window.bytes as usize) };
    }
}

impl Owner for Memory {}

/// Extents, given back when dropped.
#[derive(Debug)]
struct Extents(Vec<Window>);

impl Extents {
    fn take(count: usize) -> Arc<Self> {
        let mut arena = lock(&ARENA);
        let extents = arena.get_or_insert_default().take(count);
        Arc::new(Self(extents.expect("the arena has room for the suite")))
    }
}

impl Owner for Extents {}

impl Drop for Extents {
    fn drop(&mut self) {
        if let Some(arena) = lock(&ARENA).as_mut() {
            arena.give_back(&self.0);
        }
    }
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
        let devices = engine.devices().len();
        let extents = Extents::take(devices + 2);
        let windows = extents.0[..devices].to_vec();
        let part = |index: usize, bytes| Window {
            base: extents.0[devices + index].base,
            bytes,
        };
        let host_memory = Memory::map(part(0, HOST));
        let staging = Memory::map(part(1, STAGING));
        // The upper half of the first window is for modules' variables.
        let half = windows[0].bytes / 2 / GRANULE * GRANULE;
        let told = Arc::new(Told {
            state: Mutex::default(),
            changed: Condvar::new(),
            variables: Window {
                base: windows[0].base + half,
                bytes: windows[0].bytes - half,
            },
            managed: host_memory.window,
        });
        let region = |memory: &Arc<Memory>| Region {
            window: memory.window,
            owner: Arc::clone(memory) as Arc<dyn Owner>,
        };
        let attachment = Attachment {
            windows: windows.clone(),
            addresses: extents.clone(),
            host: region(&host_memory),
            staging: region(&staging),
            share,
            group,
            observer: Arc::clone(&told) as Arc<dyn Observer>,
        };
        Self {
            client: engine.attach(attachment).expect("room for one more client"),
            windows,
            host: host_memory.window,
            told,
            staging,
            host_memory,
            _extents: extents,
            next: HashMap::new(),
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

    /// Loads an image; the statuses, its descriptor and its log.
    pub fn image(&mut self, image: u64, bytes: &[u8]) -> (CUresult, Descriptor, String) {
        let request = ImageLoad {
            image,
            staging: 0,
            capacity: 0,
            options: 0,
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
        self.modules += 1;
        let module = self.modules;
        let (status, _, log) = self.image(module, ptx.as_bytes());
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
            if let Some(result) = self.told.result_of(stream, last) {
                return result;
            }
            assert!(Instant::now() < deadline, "stream {stream} is stuck");
            if !self.client.assist() {
                self.told.wait_a_moment();
            }
        }
    }

    /// Whether a stream has nothing left to do.
    pub fn is_done(&self, stream: u32) -> bool {
        let last = self.next.get(&stream).copied().unwrap_or(0);
        self.told.result_of(stream, last).is_some()
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
    pub fn end(self) -> Arc<Told> {
        // The fields go in their order: the engine's side first, the addresses last.
        Arc::clone(&self.told)
    }
}

impl Told {
    /// What became of a position, if it is complete.
    pub fn result_of(&self, stream: u32, sequence: u64) -> Option<Result<(), CUresult>> {
        let state = lock(&self.state);
        let completed = state.completed.get(&stream)?;
        // Positions are complete in order.
        let found = completed.binary_search_by_key(&sequence, |(at, _)| *at);
        found.ok().map(|index| completed[index].1)
    }

    /// Where the next module's variables will lie.
    pub fn variables_begin(&self) -> u64 {
        self.variables.base + lock(&self.state).variable_bytes
    }

    /// Everything that a stream completed, in the order in which it was told.
    pub fn completed(&self, stream: u32) -> Vec<Completion> {
        let state = lock(&self.state);
        state.completed.get(&stream).cloned().unwrap_or_default()
    }

    /// When an event was passed.
    pub fn time(&self, event: u32) -> Option<u64> {
        lock(&self.state).times.get(&event).copied()
    }

    /// How often it was told that there is text.
    pub fn wrote(&self) -> u64 {
        lock(&self.state).wrote
    }

    /// The faults, in order.
    pub fn faults(&self) -> Vec<(u32, CUresult, String)> {
        lock(&self.state).faults.clone()
    }

    /// Waits until a fault was told, and gives the first.
    pub fn fault(&self) -> (u32, CUresult, String) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(fault) = self.faults().into_iter().next() {
                return fault;
            }
            assert!(Instant::now() < deadline, "no fault was told");
            self.wait_a_moment();
        }
    }

    fn wait_a_moment(&self) {
        let state = lock(&self.state);
        let _ = self.changed.wait_timeout(state, Duration::from_millis(5));
    }
}

impl Observer for Told {
    fn completed(&self, at: At, result: Result<(), CUresult>) {
        let mut state = lock(&self.state);
        let completed = state.completed.entry(at.stream).or_default();
        completed.push((at.sequence, result));
        self.changed.notify_all();
    }

    fn event_time(&self, event: u32, nanoseconds: u64) {
        lock(&self.state).times.insert(event, nanoseconds);
    }

    fn wrote(&self) {
        lock(&self.state).wrote += 1;
    }

    fn fault(&self, context: u32, code: CUresult, text: &str) {
        lock(&self.state).faults.push((context, code, text.into()));
        self.changed.notify_all();
    }

    fn allocate(&self, _context: u32, bytes: u64, managed: bool) -> Result<Window, CUresult> {
        let mut state = lock(&self.state);
        let (window, used) = match managed {
            true => (self.managed, &mut state.managed_bytes),
            false => (self.variables, &mut state.variable_bytes),
        };
        let base = window.base + *used;
        let bytes = bytes.next_multiple_of(256);
        if !window.contains(base, bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        *used += bytes;
        Ok(Window { base, bytes })
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
