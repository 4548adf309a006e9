//! What each operation of the table does in a session.
//!
//! One table, a method a row of `for_each_operation!`, and so one file. Streams' operations come here when they may go
//! to the engine. What concerns all of a client's work (frees, unloads, a context's end) is deferred (`freeing`).
//! Called by the session's loop through the operations' table. Must not know when an operation may go.

use std::time::Instant;

use cuda_abi::{CUresult, Function};
use engine::{Guilt, Observer, Window};
use protocol::operations::{
    AddressFree, AddressReserve, AddressReserveReply, ArrayCopy, ArrayCreate, ArrayCreateReply,
    ArrayDestroy, At, CONTEXT_SLOTS, ClusterOccupancy, ClusterOccupancyReply, ContextCreate,
    ContextDestroy, Copy, Detach, EVENT_SLOTS, EventAwait, EventForget, EventMark, EventMarkReply,
    EventOpen, EventOpenReply, EventPass, EventRecord, EventShare, EventShareReply, Expose,
    ExposeReply, Exposed, FileMap, FileMapReply, Fill, FunctionSet, HeapSet, HostAlloc,
    HostAllocReply, HostBarrier, HostFree, HostPin, HostPinReply, HostRelease, HostReserve,
    HostReserveReply, ImageDescribe, ImageDescribeReply, ImageLoad, ImageLoadReply, ImagePut,
    ImageUnload, Launch, LimitSet, ManagedAlloc, ManagedAllocReply, MemAlloc, MemAllocReply,
    MemClose, MemFree, MemImport, MemImportReply, MemInfo, MemInfoReply, ModuleLoad,
    ModuleLoadReply, ModuleUnload, NotSupported, Operations, OutputTake, OutputTakeReply,
    PeerAccess, PeerAccessReply, PhysicalAccess, PhysicalAccessReply, PhysicalCreate,
    PhysicalCreateReply, PhysicalImport, PhysicalImportReply, PhysicalMap, PhysicalMapReply,
    PhysicalRelease, PhysicalUnmap, PhysicalUnmapReply, RunAdd, RunDestroy, RunLaunch, RunPublish,
    RunPublishReply, STREAM_SLOTS, SemaphoreDestroy, SemaphoreImport, SemaphoreImportReply,
    SemaphoreSignal, SemaphoreWait, StreamConnect, StreamCreate, StreamDestroy, StreamWait,
    TensorMapEncode, TensorMapEncodeReply, TensorMapReplace, TensorMapReplaceReply, TextureCreate,
    TextureCreateReply, TextureDestroy, TracePut, TraceTake, TraceTakeReply, ValueWait, WindowOf,
    WindowOfReply, Write,
};

use crate::admission::device_list::uuid;
use crate::code::modules::Loader;
use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::MemoryKind;
use crate::session::{BlockedWork, DeferredAction, Partition, Session};
use crate::stream_scheduler::completion::host_barrier;

impl Session {
    /// The device of a context that is alive and not about to end.
    pub(crate) fn device_of(&self, context: u32) -> Result<u32, CUresult> {
        let device = self.contexts.get(context as usize).copied().flatten();
        device
            .filter(|_| self.ending_contexts & (1 << context) == 0)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    /// The part of its device that a new context is to have at most, of the part that the client
    /// asked for of what it was told of.
    fn share_of_device(&self, request: &ContextCreate) -> u32 {
        let (told, all) = self.granted[request.device as usize];
        let share = u64::from(request.share.min(1_000_000)) * u64::from(told);
        share.div_ceil(u64::from(all.max(1))) as u32
    }

    /// Keeps the place of something that is over when it comes to its turn in a stream: an empty record,
    /// so that whoever is before it in the stream is complete before it is.
    fn post_empty_record(&mut self, at: At) -> Result<(), CUresult> {
        let mark = EventRecord {
            event: 0,
            timing: 0,
        };
        self.client.event_record(at, &mark, &[])
    }

    /// Makes a stream whose slot is free.
    pub(crate) fn make_stream(&mut self, request: &StreamCreate) {
        // The client was promised that it can be made; that it could not is told when it is used.
        if let Err(code) = self.client.stream_create(request, &[]) {
            self.error_line(&format!(
                "stream {} could not be made: error {}",
                request.stream, code.0
            ));
        }
    }

    /// Takes memory of the client's, at the cost of its quota.
    pub(crate) fn allocate(
        &mut self,
        place: MemoryKind,
        context: u32,
        bytes: u64,
    ) -> Result<u64, CUresult> {
        let mut committer = ClientBacking(&mut *self.client, &self.addresses);
        self.memory.allocate(place, context, bytes, &mut committer)
    }
}

impl Operations for Session {
    fn not_supported(&mut self, request: &NotSupported, _: &[u8]) -> Result<(), CUresult> {
        let number = request.function;
        // Only real functions are remembered, so there is a bound.
        if let Some(function) = u16::try_from(number).ok().and_then(Function::from_number)
            && self.missed.insert(number)
        {
            self.log.line(format_args!(
                "{} is not built; it was answered with CUDA_ERROR_NOT_SUPPORTED",
                function.name()
            ));
        }
        Ok(())
    }

    fn image_put(&mut self, request: &ImagePut, _: &[u8]) -> Result<(), CUresult> {
        self.add_image_piece(request)
    }

    fn mem_alloc(
        &mut self,
        request: &MemAlloc,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<MemAllocReply, CUresult> {
        let device = self.device_of(request.context)?;
        let address = self.allocate(MemoryKind::Device(device), request.context, request.bytes)?;
        Ok(MemAllocReply { address })
    }

    fn managed_alloc(
        &mut self,
        request: &ManagedAlloc,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ManagedAllocReply, CUresult> {
        let device = self.device_of(request.context)?;
        let address = self.allocate(MemoryKind::Managed(device), request.context, request.bytes)?;
        Ok(ManagedAllocReply { address })
    }

    fn expose(
        &mut self,
        request: &Expose,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ExposeReply, CUresult> {
        let token = match Exposed::from_number(request.kind) {
            Some(Exposed::Block) => self.shared_blocks.export(
                (request.object, request.bytes),
                &self.memory,
                &mut *self.client,
                &self.observer,
            ),
            Some(Exposed::Event) => {
                let slot = u32::try_from(request.object);
                let slot = slot.map_err(|_| CUresult::ERROR_INVALID_HANDLE)?;
                self.shared_events.export(slot)
            }
            Some(Exposed::Physical) => {
                let session = self.observer.session();
                self.virtual_memory.export(request.object, session)
            }
            None => Err(CUresult::ERROR_INVALID_VALUE),
        }?;
        Ok(ExposeReply { token })
    }

    fn mem_import(
        &mut self,
        request: &MemImport,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<MemImportReply, CUresult> {
        let session = self.observer.session();
        let backing = ClientBacking(&mut *self.client, &self.addresses);
        self.shared_blocks
            .import(&request.token, session, &mut self.memory, backing)
    }

    fn mem_close(&mut self, request: &MemClose, _: &[u8]) -> Result<(), CUresult> {
        self.shared_blocks.begin_close_import(request.address)?;
        self.defer(DeferredAction::CloseImport(request.address));
        Ok(())
    }

    fn event_share(
        &mut self,
        _: &EventShare,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<EventShareReply, CUresult> {
        let event = self.shared_events.create(&self.observer)?;
        Ok(EventShareReply { event })
    }

    fn event_open(
        &mut self,
        request: &EventOpen,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<EventOpenReply, CUresult> {
        let event = self.shared_events.import(&self.observer, &request.token)?;
        if let Some(forgotten) = self.shared_events.begin_close_forgotten() {
            self.defer(DeferredAction::CloseEvent(forgotten));
        }
        Ok(EventOpenReply { event })
    }

    fn event_forget(&mut self, request: &EventForget, _: &[u8]) -> Result<(), CUresult> {
        if self.shared_events.is_forgotten(request.event) {
            return Ok(());
        }
        self.shared_events.begin_close(request.event)?;
        self.defer(DeferredAction::CloseEvent(request.event));
        Ok(())
    }

    fn event_mark(
        &mut self,
        request: &EventMark,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<EventMarkReply, CUresult> {
        self.shared_events.mark(request.event, request.record == 1)
    }

    fn event_pass(&mut self, at: At, request: &EventPass, _: &[u8]) -> Result<(), CUresult> {
        let mark = self
            .shared_events
            .remove_mark(request.event, request.number)?;
        // The place says when the record is past.
        self.post_empty_record(at)?;
        self.shared_events
            .put_in_stream(at, mark, &self.observer.progress);
        Ok(())
    }

    fn event_await(&mut self, at: At, _: &EventAwait, _: &[u8]) -> Result<(), CUresult> {
        // Over by now, as any wait that comes here.
        self.post_empty_record(at)
    }

    fn peer_access(
        &mut self,
        request: &PeerAccess,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<PeerAccessReply, CUresult> {
        self.device_of(request.context)?;
        self.client
            .peer_access(request.context, request.device, request.enabled != 0)?;
        Ok(PeerAccessReply { reserved: 0 })
    }

    fn address_reserve(
        &mut self,
        request: &AddressReserve,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<AddressReserveReply, CUresult> {
        let backing = ClientBacking(&mut *self.client, &self.addresses);
        let address = self
            .virtual_memory
            .reserve(request, &mut self.memory, backing)?;
        Ok(AddressReserveReply { address })
    }

    fn address_free(&mut self, request: &AddressFree, _: &[u8]) -> Result<(), CUresult> {
        let (device, at) = self.virtual_memory.remove_reservation(request.address)?;
        self.unreserve(device, at);
        Ok(())
    }

    fn window_of(
        &mut self,
        request: &WindowOf,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<WindowOfReply, CUresult> {
        let window = self.memory.window_of(request.address);
        let Window { base, bytes } = window.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(WindowOfReply { base, bytes })
    }

    fn physical_create(
        &mut self,
        request: &PhysicalCreate,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<PhysicalCreateReply, CUresult> {
        let backing = ClientBacking(&mut *self.client, &self.addresses);
        self.virtual_memory
            .create(request, &mut self.memory, backing, &self.observer)?;
        Ok(PhysicalCreateReply { reserved: 0 })
    }

    fn physical_release(&mut self, request: &PhysicalRelease, _: &[u8]) -> Result<(), CUresult> {
        self.virtual_memory
            .release(request.handle, &mut self.memory)
    }

    fn physical_map(
        &mut self,
        request: &PhysicalMap,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<PhysicalMapReply, CUresult> {
        self.virtual_memory.map(request, &mut *self.client)?;
        Ok(PhysicalMapReply { reserved: 0 })
    }

    fn physical_unmap(
        &mut self,
        request: &PhysicalUnmap,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<PhysicalUnmapReply, CUresult> {
        self.virtual_memory.begin_unmap(request.address)?;
        self.defer(DeferredAction::Withdraw(request.address));
        Ok(PhysicalUnmapReply { reserved: 0 })
    }

    fn physical_access(
        &mut self,
        request: &PhysicalAccess,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<PhysicalAccessReply, CUresult> {
        self.virtual_memory.set_access(request, &mut *self.client)?;
        Ok(PhysicalAccessReply { reserved: 0 })
    }

    fn physical_import(
        &mut self,
        request: &PhysicalImport,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<PhysicalImportReply, CUresult> {
        self.virtual_memory.import(request, &mut *self.client)
    }

    fn file_map(
        &mut self,
        request: &FileMap,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<FileMapReply, CUresult> {
        let address = self.map_file(request)?;
        Ok(FileMapReply { address })
    }

    fn mem_free(&mut self, request: &MemFree, _: &[u8]) -> Result<(), CUresult> {
        let block = self.memory.remove(request.address, true);
        self.defer(DeferredAction::Free(
            block.ok_or(CUresult::ERROR_INVALID_VALUE)?,
        ));
        Ok(())
    }

    fn host_alloc(
        &mut self,
        request: &HostAlloc,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<HostAllocReply, CUresult> {
        self.device_of(request.context)?;
        let address = self.allocate(MemoryKind::Host, request.context, request.bytes)?;
        Ok(HostAllocReply { address })
    }

    fn host_reserve(
        &mut self,
        request: &HostReserve,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<HostReserveReply, CUresult> {
        let address = self.reserve_host(request)?;
        Ok(HostReserveReply { address })
    }

    fn host_pin(
        &mut self,
        request: &HostPin,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<HostPinReply, CUresult> {
        self.pin_host(request)?;
        Ok(HostPinReply { reserved: 0 })
    }

    fn host_free(&mut self, request: &HostFree, _: &[u8]) -> Result<(), CUresult> {
        let block = self.memory.remove(request.address, false);
        self.defer(DeferredAction::Free(
            block.ok_or(CUresult::ERROR_INVALID_VALUE)?,
        ));
        Ok(())
    }

    fn mem_info(
        &mut self,
        request: &MemInfo,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<MemInfoReply, CUresult> {
        let vacant = self.client.free_memory(request.device);
        let (free, total) = self
            .memory
            .info(request.device, vacant)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        Ok(MemInfoReply { free, total })
    }

    fn stream_wait(&mut self, at: At, _: &StreamWait, _: &[u8]) -> Result<(), CUresult> {
        // The wait is over.
        self.post_empty_record(at)
    }

    fn host_barrier(&mut self, at: At, _: &HostBarrier, _: &[u8]) -> Result<(), CUresult> {
        // Released by now.
        self.post_empty_record(at)
    }

    fn value_wait(&mut self, at: At, _: &ValueWait, _: &[u8]) -> Result<(), CUresult> {
        self.value_waits.finish(at)?;
        self.post_empty_record(at)
    }

    fn semaphore_import(
        &mut self,
        request: &SemaphoreImport,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<SemaphoreImportReply, CUresult> {
        self.import_semaphore(request)?;
        Ok(SemaphoreImportReply { reserved: 0 })
    }

    fn semaphore_destroy(&mut self, request: &SemaphoreDestroy, _: &[u8]) -> Result<(), CUresult> {
        self.defer(DeferredAction::EndSemaphore(request.semaphore));
        Ok(())
    }

    fn semaphore_wait(&mut self, at: At, _: &SemaphoreWait, _: &[u8]) -> Result<(), CUresult> {
        self.value_waits.finish(at)?;
        self.post_empty_record(at)
    }

    fn stream_connect(&mut self, request: &StreamConnect, _: &[u8]) -> Result<(), CUresult> {
        self.scheduler.connect(request.stream, request.connection);
        Ok(())
    }

    fn host_release(&mut self, request: &HostRelease, _: &[u8]) -> Result<(), CUresult> {
        if request.stream >= STREAM_SLOTS {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        // A client that releases too early only hurts its own order. What waits for this is looked
        // at when `progress` is next asked whether anything is due, before the next record.
        let _ = self
            .observer
            .progress
            .complete(host_barrier(request.stream), request.until);
        Ok(())
    }

    fn detach(&mut self, _: &Detach, _: &[u8]) -> Result<(), CUresult> {
        self.detached = true;
        Ok(())
    }

    fn image_describe(
        &mut self,
        request: &ImageDescribe,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ImageDescribeReply, CUresult> {
        self.describe_image(request)
    }

    fn context_create(&mut self, request: &ContextCreate, data: &[u8]) -> Result<(), CUresult> {
        let context = request.context;
        if request.device as usize >= self.devices.len() {
            // The client was told which devices there are.
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        if let Err(violation) = self
            .scheduler
            .context_created(context, &self.observer.progress)
        {
            self.broken = Some(violation.to_string());
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.observer.context_created(context, request.device);
        // Noted even if the engine fails, so that the client can end it and try again.
        self.contexts[context as usize] = Some(request.device);
        let allowed = match self.partition {
            Partition::Everywhere | Partition::On(None) => true,
            Partition::On(Some(device)) => device == request.device,
            Partition::Nowhere => false,
        };
        let result = if allowed {
            let share = self.share_of_device(request);
            let request = ContextCreate { share, ..*request };
            self.observer
                .may_have_context(request.device)
                .and_then(|()| self.client.context_create(&request, data))
        } else {
            Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION)
        };
        if let Err(code) = result {
            let text = "the context was not made";
            // Nothing of its work is why.
            self.observer.fault(context, code, Guilt::Innocent, text);
            return Err(code);
        }
        let device = &self.devices[request.device as usize];
        self.log.active(&device.name, &uuid(&device.uuid));
        Ok(())
    }

    fn context_destroy(&mut self, request: &ContextDestroy, _: &[u8]) -> Result<(), CUresult> {
        self.device_of(request.context)?;
        self.ending_contexts |= 1 << request.context;
        self.defer(DeferredAction::EndContext(request.context));
        Ok(())
    }

    fn stream_create(&mut self, request: &StreamCreate, _: &[u8]) -> Result<(), CUresult> {
        let progress = &self.observer.progress;
        let (slot, context, flags) = (request.stream, request.context, request.flags);
        let made = match self.scheduler.may_create(slot, progress) {
            Ok(true) => self
                .scheduler
                .stream_created(slot, context, flags, progress)
                .map(|()| true),
            Ok(false) => {
                let item = (BlockedWork::Create(*request), size_of::<BlockedWork>());
                self.scheduler
                    .hold_creation(slot, context, flags, progress, item)
                    .map(|()| false)
            }
            Err(violation) => Err(violation),
        };
        match made {
            Ok(true) => self.make_stream(request),
            Ok(false) => {}
            Err(violation) => self.broken = Some(violation.to_string()),
        }
        Ok(())
    }

    fn stream_destroy(
        &mut self,
        at: At,
        request: &StreamDestroy,
        data: &[u8],
    ) -> Result<(), CUresult> {
        if at.stream < CONTEXT_SLOTS {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        self.client.stream_destroy(at, request, data)
    }

    fn image_load(
        &mut self,
        request: &ImageLoad,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ImageLoadReply, CUresult> {
        self.load_image(request, reply)
    }

    fn image_unload(&mut self, request: &ImageUnload, _: &[u8]) -> Result<(), CUresult> {
        self.unload_image(request);
        Ok(())
    }

    fn module_load(
        &mut self,
        request: &ModuleLoad,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ModuleLoadReply, CUresult> {
        let device = self.device_of(request.context)?;
        let loader = Loader {
            images: &mut self.images,
            memory: &mut self.memory,
            backing: ClientBacking(&mut *self.client, &self.addresses),
            observer: &self.observer,
            placed: None,
        };
        let begun = Instant::now();
        let fields = self.modules.load(request, device, loader, reply)?;
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.accounts.add_module_load(device, took);
        self.move_reply_to_staging(request.staging, request.capacity, reply);
        Ok(fields)
    }

    fn module_unload(&mut self, request: &ModuleUnload, _: &[u8]) -> Result<(), CUresult> {
        self.modules.begin_unload(request.module)?;
        self.defer(DeferredAction::Unload(request.module));
        Ok(())
    }

    fn function_set(&mut self, request: &FunctionSet, data: &[u8]) -> Result<(), CUresult> {
        self.client.function_set(request, data)
    }

    fn output_take(
        &mut self,
        request: &OutputTake,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<OutputTakeReply, CUresult> {
        self.client.output_take(request, data, reply)
    }

    fn trace_take(
        &mut self,
        _: &TraceTake,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TraceTakeReply, CUresult> {
        let dropped = self.observer.recording.drain_for_client(reply);
        Ok(TraceTakeReply { dropped })
    }

    fn trace_put(&mut self, _: &TracePut, data: &[u8]) -> Result<(), CUresult> {
        self.observer.recording.add_client_records(data);
        Ok(())
    }

    fn limit_set(&mut self, request: &LimitSet, data: &[u8]) -> Result<(), CUresult> {
        self.device_of(request.context)?;
        self.client.limit_set(request, data)
    }

    fn run_add(&mut self, request: &RunAdd, data: &[u8]) -> Result<(), CUresult> {
        self.client.run_add(request, data)?;
        // Only what the engine has taken, which holds so many and no more.
        *self.run_lengths.entry(request.run).or_default() += 1;
        Ok(())
    }

    fn run_publish(
        &mut self,
        request: &RunPublish,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<RunPublishReply, CUresult> {
        self.client.run_publish(request, data, reply)
    }

    fn run_destroy(&mut self, request: &RunDestroy, data: &[u8]) -> Result<(), CUresult> {
        self.run_lengths.remove(&request.run);
        self.client.run_destroy(request, data)
    }

    fn run_launch(&mut self, at: At, request: &RunLaunch, data: &[u8]) -> Result<(), CUresult> {
        self.client.run_launch(at, request, data)?;
        let kernels = self.run_lengths.get(&request.run).copied().unwrap_or(0);
        self.count_launches(at, kernels);
        Ok(())
    }

    fn heap_set(&mut self, request: &HeapSet, data: &[u8]) -> Result<(), CUresult> {
        self.device_of(request.context)?;
        self.client.heap_set(request, data)
    }

    fn launch(&mut self, at: At, request: &Launch, data: &[u8]) -> Result<(), CUresult> {
        self.client.launch(at, request, data)?;
        self.count_launches(at, 1);
        Ok(())
    }

    fn copy(&mut self, at: At, request: &Copy, data: &[u8]) -> Result<(), CUresult> {
        self.client.copy(at, request, data)?;
        self.count_copy(at, request);
        Ok(())
    }

    fn write(&mut self, at: At, request: &Write, data: &[u8]) -> Result<(), CUresult> {
        self.client.write(at, request, data)?;
        self.count_write(at, request.to, data.len() as u64);
        Ok(())
    }

    fn semaphore_signal(
        &mut self,
        at: At,
        request: &SemaphoreSignal,
        data: &[u8],
    ) -> Result<(), CUresult> {
        self.client.semaphore_signal(at, request, data)
    }

    fn fill(&mut self, at: At, request: &Fill, data: &[u8]) -> Result<(), CUresult> {
        self.client.fill(at, request, data)?;
        let row = request.width.saturating_mul(request.element.into());
        self.count_fill(at, request.to, row.saturating_mul(request.height));
        Ok(())
    }

    fn event_record(&mut self, at: At, request: &EventRecord, data: &[u8]) -> Result<(), CUresult> {
        if request.event >= EVENT_SLOTS {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        self.client.event_record(at, request, data)
    }

    fn array_create(
        &mut self,
        request: &ArrayCreate,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ArrayCreateReply, CUresult> {
        let device = self.device_of(request.context)?;
        self.arrays
            .create(request, device, &mut self.memory, &mut *self.client, reply)
    }

    fn array_destroy(&mut self, request: &ArrayDestroy, _: &[u8]) -> Result<(), CUresult> {
        let charge = self.arrays.remove(request.array)?;
        self.defer(DeferredAction::EndArray(request.array, charge));
        Ok(())
    }

    fn array_copy(&mut self, at: At, request: &ArrayCopy, data: &[u8]) -> Result<(), CUresult> {
        self.client.array_copy(at, request, data)?;
        self.count_array_copy(at, request);
        Ok(())
    }

    fn texture_create(
        &mut self,
        request: &TextureCreate,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TextureCreateReply, CUresult> {
        self.device_of(request.context)?;
        self.arrays
            .create_texture(request, data, &mut *self.client, reply)
    }

    fn tensor_map_encode(
        &mut self,
        request: &TensorMapEncode,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TensorMapEncodeReply, CUresult> {
        self.client.tensor_map_encode(request, data, reply)
    }

    fn tensor_map_replace(
        &mut self,
        request: &TensorMapReplace,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TensorMapReplaceReply, CUresult> {
        self.client.tensor_map_replace(request, data, reply)
    }

    fn texture_destroy(&mut self, request: &TextureDestroy, _: &[u8]) -> Result<(), CUresult> {
        self.arrays.remove_texture(request)?;
        self.defer(DeferredAction::EndTexture(*request));
        Ok(())
    }

    fn cluster_occupancy(
        &mut self,
        request: &ClusterOccupancy,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ClusterOccupancyReply, CUresult> {
        self.client.cluster_occupancy(request, data, reply)
    }
}
