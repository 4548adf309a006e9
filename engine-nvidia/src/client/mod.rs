//! One client's objects, by its own handles, and the operations on them.
//!
//! Owns the tables of contexts, streams, modules, arrays and the like. Called by the session, one operation at a
//! time. Must not know other clients, nor how the driver is called.

mod arrays;
mod contexts;
mod images;
mod objects;
mod semaphores;
mod teardown;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cuda_abi::types::CUlimit;
use engine::{
    Attachment, Bound, CUresult, Client, FurtherWindow, KeptMemory, KernelPointers, MemoryHandle,
    MemoryPiece, Owner, PollResult, Runs, Share, Window, WorkInFlight,
};
use protocol::operations::{
    self, At, CONTEXT_SLOTS, OUTPUT_NONE, OUTPUT_PIECE, STREAM_NON_BLOCKING, STREAM_SLOTS,
};
use protocol::tensor_maps;

use self::semaphores::Semaphores;
use crate::code::images::ClientImage;
use crate::code::module::Module;
use crate::code::pointers;
use crate::code::warm_set::WarmShare;
use crate::device::context::Context;
use crate::device::fault_record::FaultRecord;
use crate::engine::SharedEngine;
use crate::memory::address_space::ClientAddressSpace;
use crate::memory::physical_mappings::Physical;
use crate::memory::shared_block::SharedBlock;
use crate::memory::tensor_map;
use crate::partition::allocator::SmClaim;
use crate::submit::array::{Array, Texture};
use crate::submit::client_streams::{ClientStreams, WatchedStreams};
use crate::submit::client_words::ClientWords;
use crate::submit::command::CommandKind;
use crate::submit::copy::{plan_copy, plan_fill, plan_write};
use crate::submit::graph_run::GraphRun;
use crate::submit::launch;
use crate::submit::stream::Stream;

/// Objects that a client may have of a kind; more are refused, so that it cannot fill the server.
const MOST_OBJECTS: usize = 1 << 16;

/// One client.
#[derive(Debug)]
pub(crate) struct NvidiaClient {
    client_streams: Arc<ClientStreams>,
    contexts: HashMap<u32, Arc<Context>>,
    streams: HashMap<u32, Arc<Stream>>,
    /// Streams whose slot has another by now, and that may still have work.
    replaced_streams: Vec<Arc<Stream>>,
    modules: HashMap<u64, Arc<Module>>,
    /// Modules that were unloaded while memory was looked at, which may be theirs.
    unloaded_modules: Vec<Arc<Module>>,
    /// Of the server's memory, what may be held for the client.
    server_memory: Arc<Bound>,
    images: HashMap<u64, Arc<ClientImage>>,
    /// Its device memory is to outlive this process.
    is_kept: bool,
    /// The process has ended that had its memory before, if one had.
    former_has_ended: bool,
    /// Constants whose values such a process has left, which code has not been given yet: the device, the client's and the driver's.
    inherited_constants: Vec<(usize, Window, u64)>,
    /// What it may bring to the images that are kept.
    warm_share: Arc<WarmShare>,
    runs: Runs<GraphRun>,
    arrays: HashMap<u64, Arc<Array>>,
    /// By context, kind (`true` for surfaces) and number.
    textures: HashMap<(u32, bool, u64), Texture>,
    semaphores: Semaphores,
    /// Of a fenced client, where its kernels' checks write, for each device; of others, nothing.
    records: Vec<Arc<FaultRecord>>,
    /// Goes last: its unmapping needs all work to be over.
    memory: ClientAddressSpace,
    scratch: Vec<Arc<Stream>>,
    /// What it has of the devices. After its memory, since others may have to be waited for.
    claim: SmClaim,
    /// After all that: what goes last is given back by its poller.
    shared: Arc<SharedEngine>,
}

impl NvidiaClient {
    /// Attaches a client.
    ///
    /// # Errors
    /// See [`engine::Engine::attach`]; what a device died of, if one did.
    pub(crate) fn new(
        shared: &Arc<SharedEngine>,
        attachment: Attachment,
    ) -> Result<Self, CUresult> {
        let Attachment {
            windows,
            kept,
            further,
            addresses,
            host,
            staging,
            completions,
            share,
            group,
            fenced,
            held: server_memory,
            observer,
        } = attachment;
        for device in &shared.devices {
            device.probe()?;
        }
        let claim = shared.shares.add_client(share, group)?;
        let mut memory =
            ClientAddressSpace::new(&shared.devices, &windows, &addresses, host, staging)?;
        for window in further {
            memory.add_window(window)?;
        }
        if let KeptMemory::Chunks(chunks) = &kept {
            memory.keep_chunks(&observer, chunks)?;
        }
        let is_kept = matches!(kept, KeptMemory::Chunks(_));
        let waker = Arc::clone(shared.poller.waker());
        let devices = shared.devices.clone();
        let client_streams = Arc::new(ClientStreams::new(
            observer,
            waker,
            memory.cleared(),
            devices,
            shared.supplies.clone(),
            completions.map(ClientWords::new),
            is_kept,
        ));
        let mut records = Vec::new();
        if fenced {
            memory.fence(client_streams.busy_count())?;
            let devices = shared.devices.iter();
            records = devices
                .map(|device| FaultRecord::new(device).map(Arc::new))
                .collect::<Result<_, _>>()?;
        }
        client_streams.set_below_normal(share.priority != 0);
        shared.poller.add(Arc::clone(&client_streams));
        Ok(Self {
            shared: Arc::clone(shared),
            client_streams,
            contexts: HashMap::new(),
            streams: HashMap::new(),
            replaced_streams: Vec::new(),
            modules: HashMap::new(),
            unloaded_modules: Vec::new(),
            runs: Runs::new(&server_memory),
            server_memory,
            images: HashMap::new(),
            is_kept,
            former_has_ended: false,
            inherited_constants: Vec::new(),
            warm_share: shared.images.share(),
            arrays: HashMap::new(),
            textures: HashMap::new(),
            semaphores: Semaphores::default(),
            records,
            memory,
            scratch: Vec::new(),
            claim,
        })
    }
}

impl Client for NvidiaClient {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        self.memory.commit(range)
    }

    fn recommit(&mut self, range: Window) -> Result<bool, CUresult> {
        self.memory.recommit(range)
    }

    fn former_ended(&mut self) -> Result<(), CUresult> {
        self.former_has_ended = true;
        self.read_inherited_constants()
    }

    fn make_ready(&mut self) -> bool {
        let late = self.modules.values().find(|module| !module.is_loaded());
        // Where it fails, whoever needs it is told.
        late.is_some_and(|module| module.load().is_ok())
    }

    fn decommit(&mut self, range: Window) {
        self.memory.decommit(range);
    }

    fn window_add(&mut self, further: FurtherWindow) -> Result<(), CUresult> {
        self.memory.add_window(further)
    }

    fn window_remove(&mut self, window: Window) {
        self.memory.remove_window(window);
    }

    fn host_lend(&mut self, range: Window, memory: Arc<dyn Owner>) -> Result<(), CUresult> {
        self.memory.map_external(range, memory)
    }

    fn host_settle(&mut self, range: Window) -> Result<(), CUresult> {
        self.memory.settle(range)
    }

    fn host_return(&mut self, range: Window) {
        self.memory.unmap_external(range);
    }

    fn free_memory(&self, device: u32) -> u64 {
        self.shared
            .devices
            .get(device as usize)
            .map_or(0, |device| device.free_memory())
    }

    fn set_share(&mut self, share: Share) -> Result<(), CUresult> {
        self.claim.set(share)?;
        if self.client_streams.set_below_normal(share.priority != 0) {
            for context in self.contexts.values() {
                context.remake_streams();
            }
        }
        Ok(())
    }

    fn work_in_flight(&self) -> Option<Arc<dyn WorkInFlight>> {
        let streams = Arc::downgrade(&self.client_streams);
        Some(Arc::new(WatchedStreams(streams)))
    }

    fn assist(&mut self) -> bool {
        self.client_streams.pause(false);
        self.memory.tidy();
        if !self.unloaded_modules.is_empty() && self.memory.looks_are_over() {
            self.unloaded_modules.clear();
        }
        self.client_streams.poll(&mut self.scratch).progress
    }

    fn poll(&mut self) -> PollResult {
        self.client_streams.start_polling();
        if self.client_streams.poll(&mut self.scratch).progress {
            PollResult::Progress
        } else if self.client_streams.is_busy() {
            PollResult::Pending
        } else {
            PollResult::Idle
        }
    }

    fn stop_polling(&mut self) {
        self.client_streams.stop_polling();
    }

    fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        self.memory.peek(address, bytes)
    }

    fn kernel_pointers(&self, image: &[u8], kernel: &str) -> Result<KernelPointers, String> {
        pointers::of_kernel(image, kernel)
    }

    fn share(&mut self, range: Window) -> Result<MemoryHandle, CUresult> {
        self.memory
            .share(range)
            .map(Arc::new)
            .map(MemoryHandle::new)
    }

    fn import(&mut self, shared: &MemoryHandle) -> Result<(), CUresult> {
        let block = shared.get::<SharedBlock>();
        self.memory
            .import(&block.ok_or(CUresult::ERROR_INVALID_VALUE)?)
    }

    fn close(&mut self, shared: &MemoryHandle) {
        if let Some(block) = shared.get::<SharedBlock>() {
            self.memory.close(&block);
        }
    }

    fn physical_create(&mut self, device: u32, bytes: u64) -> Result<MemoryHandle, CUresult> {
        let made = self.memory.create_physical(device, bytes);
        made.map(Arc::new).map(MemoryHandle::new)
    }

    fn physical_map(
        &mut self,
        at: Window,
        memory: &MemoryHandle,
        offset: u64,
    ) -> Result<(), CUresult> {
        let physical = memory.get::<Physical>();
        let physical = physical.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.memory.map_physical(at, &physical, offset)
    }

    fn foreign_import(
        &mut self,
        device: u32,
        piece: &MemoryPiece,
    ) -> Result<MemoryHandle, CUresult> {
        let imported = self.memory.import_foreign(device, piece);
        imported.map(|physical| MemoryHandle::new(Arc::new(physical)))
    }

    fn foreign_map(
        &mut self,
        at: Window,
        memory: &MemoryHandle,
        part: Window,
    ) -> Result<(), CUresult> {
        let physical = memory.get::<Physical>();
        let physical = physical.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.memory.map_foreign(at, &physical, part)
    }

    fn physical_unmap(&mut self, at: Window) {
        self.memory.unmap_physical(at);
    }

    fn physical_access(&mut self, at: Window, device: u32, reaches: bool) -> Result<(), CUresult> {
        self.memory.access_physical(at, device, reaches)
    }

    fn peer_access(&mut self, context: u32, device: u32, enabled: bool) -> Result<(), CUresult> {
        let on = self.context(context)?.device().number();
        self.memory.peer(device as usize, on, enabled)
    }

    fn semaphore_import(
        &mut self,
        request: &operations::SemaphoreImport,
        descriptor: OwnedFd,
    ) -> Result<(), CUresult> {
        self.import_semaphore(request, descriptor)
    }

    fn semaphore_destroy(&mut self, semaphore: u64) {
        self.semaphores.destroy(semaphore);
    }

    fn semaphore_wait(
        &mut self,
        at: At,
        request: &operations::SemaphoreWait,
    ) -> Result<(), CUresult> {
        self.semaphores.wait(at, request)
    }

    fn semaphore_signal(
        &mut self,
        at: At,
        request: &operations::SemaphoreSignal,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.signal_semaphore(at, request)
    }

    fn context_create(
        &mut self,
        request: &operations::ContextCreate,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.create_context(request)
    }

    fn context_destroy(
        &mut self,
        request: &operations::ContextDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.destroy_context(request.context)
    }

    fn stream_create(
        &mut self,
        request: &operations::StreamCreate,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        if request.stream == request.context {
            // Its legacy stream, which is there.
            return Ok(());
        }
        if !(CONTEXT_SLOTS..STREAM_SLOTS).contains(&request.stream)
            || request.flags & !STREAM_NON_BLOCKING != 0
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.add_stream(request.stream, request.priority, context)
    }

    fn stream_destroy(
        &mut self,
        at: At,
        _request: &operations::StreamDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.post(at, Ok(CommandKind::Destroy))
    }

    fn image_load(
        &mut self,
        request: &operations::ImageLoad,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::ImageLoadReply, CUresult> {
        self.load_image(request, data, reply)
    }

    fn image_unload(
        &mut self,
        request: &operations::ImageUnload,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.images
            .remove(&request.image)
            .map(drop)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    fn module_load(
        &mut self,
        request: &operations::ModuleLoad,
        _data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::ModuleLoadReply, CUresult> {
        self.load_module(request, reply)
    }

    fn module_unload(
        &mut self,
        request: &operations::ModuleUnload,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.unload_module(request)
    }

    fn function_set(
        &mut self,
        request: &operations::FunctionSet,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.set_function(request)
    }

    fn output_take(
        &mut self,
        _request: &operations::OutputTake,
        _data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::OutputTakeReply, CUresult> {
        let taken = self
            .client_streams
            .code
            .output()
            .take_text(OUTPUT_PIECE, reply);
        Ok(operations::OutputTakeReply {
            sink: taken.unwrap_or(OUTPUT_NONE),
        })
    }

    fn limit_set(&mut self, request: &operations::LimitSet, _data: &[u8]) -> Result<(), CUresult> {
        self.context(request.context)?;
        // The others are those of the one context that all clients share.
        if CUlimit(request.limit) == CUlimit::PRINTF_FIFO_SIZE {
            self.client_streams.code.output().set_limit(request.value);
        }
        Ok(())
    }

    fn run_add(&mut self, request: &operations::RunAdd, data: &[u8]) -> Result<(), CUresult> {
        let module = self.module(request.module);
        let launch = module.and_then(|module| self.plan_launch(module, &request.launch(), data));
        self.runs.add(request.run, data.len(), |run| {
            run.add(launch?);
            Ok(())
        })
    }

    fn run_publish(
        &mut self,
        _request: &operations::RunPublish,
        _data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::RunPublishReply, CUresult> {
        // A graph that the driver lets kernels launch is one of the client's own context, which there is not.
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    fn run_destroy(
        &mut self,
        request: &operations::RunDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.runs.remove(request.run)
    }

    fn run_launch(
        &mut self,
        at: At,
        request: &operations::RunLaunch,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let renewed = self.renew_fences(request.run);
        let context = self.stream(at.stream)?.context();
        let run = self.runs.get(request.run).and_then(|run| {
            let fits = run.is_for(context);
            fits.then(|| Arc::clone(run))
                .ok_or(CUresult::ERROR_INVALID_HANDLE)
        });
        self.post(
            at,
            renewed.and(run).map(|run| {
                let all = 0..run.launches().len();
                CommandKind::Run(run, all)
            }),
        )
    }

    fn heap_set(&mut self, _request: &operations::HeapSet, _data: &[u8]) -> Result<(), CUresult> {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    fn launch(
        &mut self,
        at: At,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<(), CUresult> {
        let renewed = self.renew_fence(request.module);
        let context = self.stream(at.stream)?.context();
        let module = self.module(request.module);
        let module = module.and_then(|module| {
            let fits = context.runs_kernels_of(module.context());
            fits.then_some(module).ok_or(CUresult::ERROR_INVALID_HANDLE)
        });
        let module = renewed.and(module);
        let launch = module.and_then(|module| self.plan_launch(module, request, data));
        self.post(at, launch.map(CommandKind::Launch))
    }

    fn copy(&mut self, at: At, request: &operations::Copy, _data: &[u8]) -> Result<(), CUresult> {
        let on = self.device_of(at)?;
        let planned = plan_copy(&mut self.memory, on, request);
        self.post(at, planned)
    }

    fn write(&mut self, at: At, request: &operations::Write, data: &[u8]) -> Result<(), CUresult> {
        let on = self.device_of(at)?;
        let planned = plan_write(&mut self.memory, on, request.to, data);
        self.post(at, planned.map(CommandKind::steps))
    }

    fn fill(&mut self, at: At, request: &operations::Fill, _data: &[u8]) -> Result<(), CUresult> {
        let on = self.device_of(at)?;
        let planned = plan_fill(&mut self.memory, on, request);
        self.post(at, planned.map(CommandKind::steps))
    }

    fn event_record(
        &mut self,
        at: At,
        request: &operations::EventRecord,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let work = CommandKind::Event {
            event: request.event,
            timing: request.timing != 0,
        };
        self.post(at, Ok(work))
    }

    fn array_create(
        &mut self,
        request: &operations::ArrayCreate,
        _data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::ArrayCreateReply, CUresult> {
        self.create_array(request)
    }

    fn array_destroy(
        &mut self,
        request: &operations::ArrayDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.destroy_array(request.array)
    }

    fn array_copy(
        &mut self,
        at: At,
        request: &operations::ArrayCopy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.copy_array(at, request)
    }

    fn texture_create(
        &mut self,
        request: &operations::TextureCreate,
        data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::TextureCreateReply, CUresult> {
        self.create_texture(request, data)
    }

    fn tensor_map_encode(
        &mut self,
        request: &operations::TensorMapEncode,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::TensorMapEncodeReply, CUresult> {
        let spec = tensor_maps::Spec::decode(data)?;
        let map = tensor_map::encode(self.device(request.device)?, &spec)?;
        reply.extend(map);
        Ok(operations::TensorMapEncodeReply { reserved: 0 })
    }

    fn tensor_map_replace(
        &mut self,
        request: &operations::TensorMapReplace,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::TensorMapReplaceReply, CUresult> {
        let device = self.device(request.device)?;
        reply.extend(tensor_map::replace(device, data, request.address)?);
        Ok(operations::TensorMapReplaceReply { reserved: 0 })
    }

    fn texture_destroy(
        &mut self,
        request: &operations::TextureDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let key = (request.context, request.surface != 0, request.object);
        self.textures
            .remove(&key)
            .map(drop)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    fn cluster_occupancy(
        &mut self,
        request: &operations::ClusterOccupancy,
        data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::ClusterOccupancyReply, CUresult> {
        let module = self.module(request.module)?;
        let count = launch::cluster_occupancy(module, request, data)?;
        Ok(operations::ClusterOccupancyReply { count })
    }
}
