//! One client: what each operation does to its objects, which are in `objects` by its own handles.
//!
//! Owns the client's tables, and what is done when the client goes. Called by the session, one operation at a time.
//! Must not know other clients.

use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::types::CUlimit;
use engine::plan::checks;
use engine::{
    Attachment, CUresult, Charge, Client, FurtherWindow, KeptMemory, KernelPointers, MemoryHandle,
    Owner, Runs, Share, Window, WorkInFlight,
};
use protocol::operations::{self, At, CONTEXT_SLOTS, STREAM_NON_BLOCKING, STREAM_SLOTS};
use protocol::tensor_maps;

use self::objects::{Objects, granted};
use crate::client_state::ClientState;
use crate::context::Context;
use crate::device::Devices;
use crate::grid;
use crate::image::{Workspace, pointers};
use crate::launch_pool::LaunchPool;
use crate::memory::{self, ClientMemory, Mapped, Physical, SharedBlock};
use crate::stream::{GraphLaunch, Operation};
use ptx_vm::tensor_map;

mod images;
mod objects;
mod textures;

/// How long [`Client::assist`] may take.
const ASSIST: Duration = Duration::from_micros(100);

/// One client.
#[derive(Debug)]
pub(crate) struct SoftClient {
    devices: Arc<Devices>,
    /// `None` only while it is being dropped.
    objects: Option<Objects>,
    mapped: Arc<Mapped>,
}

impl SoftClient {
    pub(crate) fn new(devices: &Arc<Devices>, attachment: Attachment) -> Result<Self, CUresult> {
        // Each access of a kernel is checked for every client, so that `fenced` asks for nothing more.
        let Attachment {
            windows,
            kept,
            further,
            addresses,
            host,
            staging,
            // Ends are seen by threads of ours, which tell the observer.
            completions: _,
            share,
            group,
            fenced: _,
            held,
            observer,
        } = attachment;
        checks::percentage(share.percentage)?;
        let files = match kept {
            KeptMemory::Files(files) => files,
            KeptMemory::None | KeptMemory::Chunks(_) => Vec::new(),
        };
        let mut memory = ClientMemory::new(
            (&windows, files),
            &devices.budgets,
            &addresses,
            &host,
            &staging,
        )?;
        for window in further {
            memory.add_window(window)?;
        }
        let scheduler = Arc::clone(devices.pool.scheduler());
        // As the server tells the client of MULTIPROCESSOR_COUNT: what occupancy is computed by.
        let sms = granted(scheduler.workers(), share.percentage);
        let account = scheduler.join(share, group)?;
        Ok(Self {
            devices: Arc::clone(devices),
            mapped: memory.mapped(),
            objects: Some(Objects {
                client: Arc::new(ClientState {
                    observer,
                    account,
                    scheduler,
                    rest: Arc::clone(&devices.rest),
                    spaces: memory.copy_spaces(),
                    facts: Arc::clone(&devices.facts),
                    launches: Arc::new(LaunchPool::new()),
                    jobs: Arc::default(),
                    graphs: Mutex::default(),
                    closed: AtomicBool::new(false),
                    waiting: AtomicU64::new(0),
                    waiting_held: Mutex::new(Charge::new(Arc::clone(&held))),
                }),
                sms,
                memory,
                runs: Runs::new(&held),
                graphs: HashMap::new(),
                held,
                contexts: HashMap::new(),
                streams: HashMap::new(),
                images: HashMap::new(),
                modules: HashMap::new(),
                arrays: HashMap::new(),
                textures: Arc::default(),
                texture_owners: HashMap::new(),
            }),
        })
    }

    fn objects(&mut self) -> &mut Objects {
        self.objects
            .as_mut()
            .expect("invariant: only drop takes the objects out")
    }
}

impl Client for SoftClient {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        self.objects().memory.commit(range)
    }

    fn decommit(&mut self, range: Window) {
        self.objects().memory.decommit(range);
    }

    fn window_add(&mut self, further: FurtherWindow) -> Result<(), CUresult> {
        self.objects().memory.add_window(further)
    }

    fn window_remove(&mut self, window: Window) {
        self.objects().memory.remove_window(window);
    }

    fn host_lend(&mut self, range: Window, memory: Arc<dyn Owner>) -> Result<(), CUresult> {
        self.objects().memory.lend(range, memory)
    }

    fn host_return(&mut self, range: Window) {
        self.objects().memory.take_back(range);
    }

    fn free_memory(&self, device: u32) -> u64 {
        self.devices
            .budgets
            .get(device as usize)
            .map_or(0, |budget| budget.remaining())
    }

    fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        memory::read(&self.objects().client.spaces).peek(address, bytes)
    }

    fn kernel_pointers(&self, image: &[u8], kernel: &str) -> Result<KernelPointers, String> {
        let objects = self.objects.as_ref().ok_or("the client has gone")?;
        let memory = Workspace::new(&objects.held);
        pointers::of_kernel(image, kernel, self.devices.capability, &memory)
    }

    fn set_share(&mut self, share: Share) -> Result<(), CUresult> {
        checks::percentage(share.percentage)?;
        let ClientState {
            scheduler, account, ..
        } = &*self.objects().client;
        scheduler.set_share(account, share)
    }

    fn work_in_flight(&self) -> Option<Arc<dyn WorkInFlight>> {
        let objects = self.objects.as_ref()?;
        Some(Arc::clone(&objects.client.jobs) as _)
    }

    fn assist(&mut self) -> bool {
        let ClientState {
            scheduler, account, ..
        } = &*self.objects().client;
        scheduler.help(account, ASSIST)
    }

    fn share(&mut self, range: Window) -> Result<MemoryHandle, CUresult> {
        self.objects().memory.share(range).map(MemoryHandle::new)
    }

    fn import(&mut self, shared: &MemoryHandle) -> Result<(), CUresult> {
        let shared = shared.get::<SharedBlock>();
        let shared = shared.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.objects().memory.import(&shared)
    }

    fn close(&mut self, shared: &MemoryHandle) {
        if let Some(shared) = shared.get::<SharedBlock>() {
            self.objects().memory.close(&shared);
        }
    }

    fn physical_create(&mut self, device: u32, bytes: u64) -> Result<MemoryHandle, CUresult> {
        let budget = self.devices.budgets.get(device as usize);
        let budget = budget.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        Physical::new(budget, bytes).map(MemoryHandle::new)
    }

    fn physical_map(
        &mut self,
        at: Window,
        memory: &MemoryHandle,
        offset: u64,
    ) -> Result<(), CUresult> {
        let memory = memory.get::<Physical>();
        let memory = memory.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.objects().memory.map_physical(at, &memory, offset)
    }

    fn physical_unmap(&mut self, at: Window) {
        self.objects().memory.unmap_physical(at);
    }

    fn physical_access(&mut self, at: Window, device: u32, reaches: bool) -> Result<(), CUresult> {
        self.objects().memory.access_physical(at, device, reaches)
    }

    fn peer_access(&mut self, context: u32, device: u32, enabled: bool) -> Result<(), CUresult> {
        let devices = self.devices.budgets.len() as u32;
        let objects = self.objects();
        let context = Arc::clone(objects.context(context)?);
        if device >= devices {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        if device == context.device {
            return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let before = context.peers.load(Ordering::Relaxed);
        let peers = match enabled {
            true => before | 1 << device,
            false => before & !(1 << device),
        };
        objects.memory.prepare_peers(context.device, peers);
        context.peers.store(peers, Ordering::Relaxed);
        Ok(())
    }

    fn context_create(
        &mut self,
        request: &operations::ContextCreate,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let devices = self.devices.budgets.len();
        let objects = self.objects();
        if request.device as usize >= devices {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        if request.context >= CONTEXT_SLOTS || objects.contexts.contains_key(&request.context) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let observer = Arc::clone(&objects.client.observer);
        let part = match request.share {
            0 => 100.0,
            millionths => (f64::from(millionths) / 1e4).min(100.0) as f32,
        };
        let context = Context::new(request.context, request.device, part, observer);
        let context = match request.flags & operations::CONTEXT_GREEN {
            0 => context,
            _ => context.of_home(objects.context(request.device)?),
        };
        let context = Arc::new(context);
        // The legacy stream comes with its context.
        objects.add_stream(request.context, 0, Arc::clone(&context))?;
        objects.contexts.insert(request.context, context);
        Ok(())
    }

    fn context_destroy(
        &mut self,
        request: &operations::ContextDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let context = objects
            .contexts
            .remove(&request.context)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        // What runs is cancelled; whoever has a stream in hand reports all that waits in it.
        context.destroy();
        for stream in objects.streams.values() {
            stream.end_with(&context);
        }
        objects
            .modules
            .retain(|_, module| !Arc::ptr_eq(&module.context, &context));
        objects.forget_runs();
        objects
            .arrays
            .retain(|_, array| !Arc::ptr_eq(&array.context, &context));
        objects.remove_textures(|owner| owner.context == request.context);
        Ok(())
    }

    fn stream_create(
        &mut self,
        request: &operations::StreamCreate,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let context = Arc::clone(objects.context(request.context)?);
        context.check()?;
        let slots = CONTEXT_SLOTS..STREAM_SLOTS;
        if request.stream == request.context {
            // Its legacy stream, which is there.
            return Ok(());
        }
        if !slots.contains(&request.stream) || request.flags & !STREAM_NON_BLOCKING != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        objects.add_stream(request.stream, request.priority, context)
    }

    fn stream_destroy(
        &mut self,
        at: At,
        _request: &operations::StreamDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.objects().post(at, Operation::Destroy)
    }

    fn image_load(
        &mut self,
        request: &operations::ImageLoad,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::ImageLoadReply, CUresult> {
        let devices = Arc::clone(&self.devices);
        self.objects().load_image(&devices, request, data, reply)
    }

    fn image_unload(
        &mut self,
        request: &operations::ImageUnload,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let images = &mut self.objects().images;
        images
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
        self.objects().load_module(request, reply)
    }

    fn module_unload(
        &mut self,
        request: &operations::ModuleUnload,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        // Grids that were posted before keep it.
        let objects = self.objects();
        let module = objects.modules.remove(&request.module);
        objects.forget_runs();
        module.map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    fn function_set(
        &mut self,
        request: &operations::FunctionSet,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let module = self.objects().module(request.module)?;
        module.set(request.kernel, request.attribute, request.value)
    }

    fn output_take(
        &mut self,
        _request: &operations::OutputTake,
        _data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::OutputTakeReply, CUresult> {
        self.objects().take_output(reply)
    }

    fn limit_set(&mut self, request: &operations::LimitSet, _data: &[u8]) -> Result<(), CUresult> {
        let objects = self.objects();
        let context = objects.context(request.context)?;
        let launches = &objects.client.launches;
        // The others bound what this engine has no bound for, or what the client itself keeps to.
        match CUlimit(request.limit) {
            CUlimit::PRINTF_FIFO_SIZE => context.services.set_fifo(request.value),
            CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => launches.set_limit(request.value),
            _ => {}
        }
        Ok(())
    }

    fn run_add(&mut self, request: &operations::RunAdd, data: &[u8]) -> Result<(), CUresult> {
        let objects = self.objects();
        let module = objects.modules.contains_key(&request.module);
        objects.runs.add(request.run, data.len(), |launches| {
            if !module {
                return Err(CUresult::ERROR_INVALID_HANDLE);
            }
            launches.push((request.launch(), data.into()));
            Ok(())
        })
    }

    fn run_destroy(
        &mut self,
        request: &operations::RunDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        objects.withdraw(request.run);
        objects.runs.remove(request.run)
    }

    fn run_publish(
        &mut self,
        request: &operations::RunPublish,
        _data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::RunPublishReply, CUresult> {
        self.objects().publish(request.run, request.graph)?;
        Ok(operations::RunPublishReply { reserved: 0 })
    }

    fn run_launch(
        &mut self,
        at: At,
        request: &operations::RunLaunch,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let stream = objects.stream(at.stream)?;
        if let Some(graph) = objects.graphs.get(&request.run) {
            let launch = graph.first_module().and_then(|module| {
                let (place, priority) = objects.place(stream, module)?;
                Ok(Box::new(GraphLaunch {
                    graph: Arc::clone(graph),
                    place,
                    priority,
                }))
            });
            let operation = launch.map_or_else(Operation::Refused, Operation::Graph);
            return stream.post(at.sequence, operation);
        }
        let grids = objects.runs.get(request.run).and_then(|launches| {
            let mut grids = launches.iter();
            grids.try_fold(VecDeque::new(), |mut grids, (launch, data)| {
                grids.push_back(objects.grid(stream, launch, data)?);
                Ok(grids)
            })
        });
        let operation = grids.map_or_else(Operation::Refused, Operation::Run);
        stream.post(at.sequence, operation)
    }

    fn heap_set(&mut self, request: &operations::HeapSet, _data: &[u8]) -> Result<(), CUresult> {
        let context = self.objects().context(request.context)?;
        // Whether it is the client's memory shows when a kernel touches it. A heap in use stays.
        context.services.set_heap(request.address, request.bytes);
        Ok(())
    }

    fn launch(
        &mut self,
        at: At,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let stream = objects.stream(at.stream)?;
        let operation = match objects.grid(stream, request, data) {
            Ok(grid) => Operation::Launch(grid),
            Err(code) => Operation::Refused(code),
        };
        stream.post(at.sequence, operation)
    }

    fn copy(&mut self, at: At, request: &operations::Copy, _data: &[u8]) -> Result<(), CUresult> {
        self.objects().post(at, Operation::Copy(*request))
    }

    fn write(&mut self, at: At, request: &operations::Write, data: &[u8]) -> Result<(), CUresult> {
        let operation = Operation::Write {
            to: request.to,
            data: Cow::Borrowed(data),
        };
        self.objects().post(at, operation)
    }

    fn semaphore_signal(
        &mut self,
        _at: At,
        _request: &operations::SemaphoreSignal,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        // None can be imported.
        Err(CUresult::ERROR_INVALID_HANDLE)
    }

    fn fill(&mut self, at: At, request: &operations::Fill, _data: &[u8]) -> Result<(), CUresult> {
        self.objects().post(at, Operation::Fill(*request))
    }

    fn event_record(
        &mut self,
        at: At,
        request: &operations::EventRecord,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let operation = Operation::Event {
            event: request.event,
            timing: request.timing != 0,
        };
        self.objects().post(at, operation)
    }

    fn array_create(
        &mut self,
        request: &operations::ArrayCreate,
        _data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::ArrayCreateReply, CUresult> {
        let devices = Arc::clone(&self.devices);
        self.objects().make_array(&devices, request)
    }

    fn array_destroy(
        &mut self,
        request: &operations::ArrayDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.objects().end_array(request.array)
    }

    fn array_copy(
        &mut self,
        at: At,
        request: &operations::ArrayCopy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.objects().copy_array(at, request)
    }

    fn texture_create(
        &mut self,
        request: &operations::TextureCreate,
        data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::TextureCreateReply, CUresult> {
        self.objects().make_texture(request, data)
    }

    fn tensor_map_encode(
        &mut self,
        _request: &operations::TensorMapEncode,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::TensorMapEncodeReply, CUresult> {
        reply.extend(tensor_map::encode(&tensor_maps::Spec::decode(data)?));
        Ok(operations::TensorMapEncodeReply { reserved: 0 })
    }

    fn tensor_map_replace(
        &mut self,
        request: &operations::TensorMapReplace,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<operations::TensorMapReplaceReply, CUresult> {
        reply.extend(tensor_map::replace(data, request.address)?);
        Ok(operations::TensorMapReplaceReply { reserved: 0 })
    }

    fn texture_destroy(
        &mut self,
        request: &operations::TextureDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        self.objects()
            .end_texture(request.object, request.surface != 0)
    }

    fn cluster_occupancy(
        &mut self,
        request: &operations::ClusterOccupancy,
        data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::ClusterOccupancyReply, CUresult> {
        let objects = self.objects();
        let module = objects.module(request.module)?;
        let count = grid::cluster_occupancy(module, objects.sms, request, data)?;
        Ok(operations::ClusterOccupancyReply { count })
    }
}

impl Drop for SoftClient {
    fn drop(&mut self) {
        let Some(objects) = self.objects.take() else {
            return;
        };
        objects.client.closed.store(true, Ordering::Relaxed);
        for context in objects.contexts.values() {
            context.destroy();
        }
        objects.client.scheduler.leave(&objects.client.account);
        // What waits there would keep the client's memory for ever.
        objects.client.launches.close();
        for stream in objects.streams.values() {
            stream.clear();
        }
        objects.client.graphs.lock().clear();
        drop(objects);
        // Every thread has let go of the work, and with the last of it the memory is unmapped.
        self.mapped.wait_until_none();
    }
}
