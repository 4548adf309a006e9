//! The thread that takes a client's records and carries them out.
//!
//! Owns the memory, streams and images that it serves from. `testing` starts it. Must not know the client's tables:
//! it has the ring and the memory that both sides share.

mod arrays;
mod image;
mod memory;
mod order;

use std::collections::{BTreeMap, HashMap, VecDeque};

use cuda_abi::CUresult;
use protocol::arrays::Shape;
use protocol::device_facts::DeviceFacts;
use protocol::image_descriptor::Descriptor;
use protocol::operations::*;
use protocol::tensor_maps;
use protocol::textures::Spec;
use transport::memory::Mapping;
use transport::ring::Record;
use transport::session::{Consumer, Publisher};

use super::{FURTHER, MEMORY, TestServer, WINDOW};

/// A launch as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    pub name: String,
    pub stream: u32,
    pub sequence: u64,
    pub request: Launch,
    pub data: Vec<u8>,
}

/// A record that waits for its turn in a stream.
struct Pending {
    record: Record,
}

struct Server<'a> {
    publisher: &'a Publisher,
    staging: &'a Mapping,
    host: u64,
    host_next: u64,
    facts: &'a [DeviceFacts],
    shared: &'a TestServer,
    /// Memory by address.
    memory: BTreeMap<u64, Vec<u8>>,
    next: Vec<u64>,
    contexts: HashMap<u32, u32>,
    images: HashMap<u64, Vec<u8>>,
    descriptors: HashMap<u64, Descriptor>,
    modules: HashMap<u64, (u64, u32)>,
    runs: HashMap<u32, Vec<(Launch, Vec<u8>)>>,
    arrays: HashMap<u64, (Shape, Vec<u8>)>,
    streams: HashMap<u32, u32>,
    /// With their values.
    semaphores: HashMap<u64, u64>,
    /// The records of the event that is shared.
    recorded: u64,
    completed: HashMap<u32, u64>,
    /// Up to where the gates of each stream are open.
    released: HashMap<u32, u64>,
    pending: HashMap<u32, VecDeque<Pending>>,
    time: u64,
}

pub(super) fn run(
    mut consumer: Consumer,
    publisher: &Publisher,
    staging: &Mapping,
    host: u64,
    facts: &[DeviceFacts],
    shared: &TestServer,
) {
    let mut server = Server {
        publisher,
        staging,
        host,
        host_next: host,
        facts,
        shared,
        memory: BTreeMap::new(),
        next: facts.iter().map(|device| device.window).collect(),
        contexts: HashMap::new(),
        images: HashMap::new(),
        descriptors: HashMap::new(),
        modules: HashMap::new(),
        runs: HashMap::new(),
        arrays: HashMap::new(),
        streams: HashMap::new(),
        semaphores: HashMap::new(),
        recorded: 0,
        completed: HashMap::new(),
        released: HashMap::new(),
        pending: HashMap::new(),
        time: 1,
    };
    loop {
        let mut record = Record::default();
        while let Some(position) = consumer.next_record(&mut record).expect("a record") {
            consumer.retire(position);
            server.handle(std::mem::take(&mut record));
        }
        server.advance();
        consumer.wait();
    }
}

type Posted = Result<(), CUresult>;

/// Operations that the tests of this crate have no use for: those of whole processes do.
macro_rules! not_here {
    ($(call $method:ident($request:ident) -> $reply:ident;)* $(post $post:ident($posted:ident);)* $(stream $stream:ident($at:ident);)*) => {
        $(fn $method(&mut self, _: &$request, _: &[u8], _: &mut Vec<u8>) -> Result<$reply, CUresult> {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        })*
        $(fn $post(&mut self, _: &$posted, _: &[u8]) -> Posted {
            Ok(())
        })*
        $(fn $stream(&mut self, _: At, _: &$at, _: &[u8]) -> Posted {
            Ok(())
        })*
    };
}

impl Operations for Server<'_> {
    not_here! {
        call expose(Expose) -> ExposeReply;
        call event_open(EventOpen) -> EventOpenReply;
        call peer_access(PeerAccess) -> PeerAccessReply;
        call address_reserve(AddressReserve) -> AddressReserveReply;
        call physical_create(PhysicalCreate) -> PhysicalCreateReply;
        call physical_map(PhysicalMap) -> PhysicalMapReply;
        call physical_unmap(PhysicalUnmap) -> PhysicalUnmapReply;
        call physical_access(PhysicalAccess) -> PhysicalAccessReply;
        call physical_import(PhysicalImport) -> PhysicalImportReply;
        post mem_close(MemClose);
        post event_forget(EventForget);
        post address_free(AddressFree);
        post physical_release(PhysicalRelease);
        stream event_pass(EventPass);
        stream event_await(EventAwait);
    }

    fn not_supported(&mut self, request: &NotSupported, _: &[u8]) -> Posted {
        self.shared
            .not_supported
            .lock()
            .unwrap()
            .push(request.function);
        Ok(())
    }

    fn image_put(&mut self, request: &ImagePut, _: &[u8]) -> Posted {
        let piece = self.load(Space::Staging as u32, request.staging, request.bytes);
        let image = self.images.entry(request.image).or_default();
        assert_eq!(image.len() as u64, request.offset);
        image.extend(piece);
        assert!(image.len() as u64 <= request.total);
        Ok(())
    }

    /// There is one that is shared, whose records are past at once.
    fn event_share(
        &mut self,
        _: &EventShare,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<EventShareReply, CUresult> {
        Ok(EventShareReply { event: 0 })
    }

    fn event_mark(
        &mut self,
        request: &EventMark,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<EventMarkReply, CUresult> {
        self.recorded += u64::from(request.record);
        let (recorded, completed) = (self.recorded, self.recorded);
        Ok(EventMarkReply {
            recorded,
            completed,
        })
    }

    /// A token says where the block lies, and its bytes.
    fn mem_import(
        &mut self,
        request: &MemImport,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<MemImportReply, CUresult> {
        let [address, bytes, ..] = request.token;
        Ok(MemImportReply {
            address,
            bytes,
            device: 0,
        })
    }

    fn window_of(
        &mut self,
        request: &WindowOf,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<WindowOfReply, CUresult> {
        let (base, bytes) = (FURTHER, WINDOW);
        let is_inside = (base..base + bytes).contains(&request.address);
        match is_inside {
            true => Ok(WindowOfReply { base, bytes }),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn mem_alloc(
        &mut self,
        request: &MemAlloc,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<MemAllocReply, CUresult> {
        let address = self.allocate(request.context, request.bytes)?;
        Ok(MemAllocReply { address })
    }

    fn managed_alloc(
        &mut self,
        request: &ManagedAlloc,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ManagedAllocReply, CUresult> {
        let of_host = HostAlloc {
            context: request.context,
            bytes: request.bytes,
            ..HostAlloc::default()
        };
        let HostAllocReply { address } = self.host_alloc(&of_host, data, reply)?;
        Ok(ManagedAllocReply { address })
    }

    fn mem_free(&mut self, request: &MemFree, _: &[u8]) -> Posted {
        // Managed memory lies in the host window.
        assert!(self.memory.contains_key(&request.address) || self.is_host(request.address));
        Ok(())
    }

    fn host_alloc(
        &mut self,
        request: &HostAlloc,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<HostAllocReply, CUresult> {
        let address = self.host_next;
        self.host_next = (address + request.bytes).next_multiple_of(4096);
        Ok(HostAllocReply { address })
    }

    fn host_reserve(
        &mut self,
        request: &HostReserve,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<HostReserveReply, CUresult> {
        let first = self.host_next.next_multiple_of(HUGE_PAGE);
        let address = first + request.phase;
        self.host_next = (address + request.bytes).next_multiple_of(4096);
        Ok(HostReserveReply { address })
    }

    fn host_pin(
        &mut self,
        request: &HostPin,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<HostPinReply, CUresult> {
        assert!(self.is_host(request.address));
        Ok(HostPinReply { reserved: 0 })
    }

    fn file_map(
        &mut self,
        _: &FileMap,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<FileMapReply, CUresult> {
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

    fn host_free(&mut self, _: &HostFree, _: &[u8]) -> Posted {
        Ok(())
    }

    fn mem_info(
        &mut self,
        _: &MemInfo,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<MemInfoReply, CUresult> {
        Ok(MemInfoReply {
            free: MEMORY / 2,
            total: MEMORY,
        })
    }

    fn stream_wait(&mut self, _: At, _: &StreamWait, _: &[u8]) -> Posted {
        Ok(())
    }

    fn host_barrier(&mut self, _: At, _: &HostBarrier, _: &[u8]) -> Posted {
        Ok(())
    }

    fn value_wait(&mut self, _: At, _: &ValueWait, _: &[u8]) -> Posted {
        Ok(())
    }

    fn semaphore_import(
        &mut self,
        request: &SemaphoreImport,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<SemaphoreImportReply, CUresult> {
        self.semaphores.insert(request.semaphore, 0);
        Ok(SemaphoreImportReply { reserved: 0 })
    }

    fn semaphore_destroy(&mut self, request: &SemaphoreDestroy, _: &[u8]) -> Posted {
        assert!(self.semaphores.remove(&request.semaphore).is_some());
        Ok(())
    }

    fn semaphore_wait(&mut self, _: At, request: &SemaphoreWait, _: &[u8]) -> Posted {
        assert!(self.semaphores[&request.semaphore] >= request.value);
        Ok(())
    }

    fn semaphore_signal(&mut self, _: At, request: &SemaphoreSignal, _: &[u8]) -> Posted {
        self.semaphores.insert(request.semaphore, request.value);
        Ok(())
    }

    fn stream_connect(&mut self, request: &StreamConnect, _: &[u8]) -> Posted {
        assert!(self.streams.contains_key(&request.stream));
        assert!(request.connection < CONNECTIONS);
        Ok(())
    }

    fn host_release(&mut self, request: &HostRelease, _: &[u8]) -> Posted {
        let released = self.released.entry(request.stream).or_default();
        *released = (*released).max(request.until);
        Ok(())
    }

    fn detach(&mut self, _: &Detach, _: &[u8]) -> Posted {
        Ok(())
    }

    fn image_describe(
        &mut self,
        request: &ImageDescribe,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ImageDescribeReply, CUresult> {
        let (_, mut data, log) = self.description(request.image);
        data.extend(log);
        self.staging.copy_in(request.staging as usize, &data);
        Ok(ImageDescribeReply {
            bytes: data.len() as u64,
        })
    }

    fn context_create(&mut self, request: &ContextCreate, _: &[u8]) -> Posted {
        let mut contexts = self.shared.contexts.lock().expect("unpoisoned");
        contexts.push(*request);
        drop(contexts);
        assert!(
            self.contexts
                .insert(request.context, request.device)
                .is_none()
        );
        self.publisher.set_fault(request.context, CUresult::SUCCESS);
        Ok(())
    }

    fn context_destroy(&mut self, request: &ContextDestroy, _: &[u8]) -> Posted {
        assert!(self.contexts.remove(&request.context).is_some());
        // A server ends it when all of the client's work is done; who has not ended the streams before
        // uses their slots too early.
        assert!(!self.streams.values().any(|of| *of == request.context));
        Ok(())
    }

    fn stream_create(&mut self, request: &StreamCreate, _: &[u8]) -> Posted {
        assert!(request.stream >= CONTEXT_SLOTS);
        assert!(self.contexts.contains_key(&request.context));
        assert!(
            self.streams
                .insert(request.stream, request.context)
                .is_none()
        );
        Ok(())
    }

    fn stream_destroy(&mut self, at: At, _: &StreamDestroy, _: &[u8]) -> Posted {
        assert!(self.streams.remove(&at.stream).is_some());
        Ok(())
    }

    fn image_load(
        &mut self,
        request: &ImageLoad,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ImageLoadReply, CUresult> {
        let (status, descriptor, log) = self.description(request.image);
        if status == CUresult::SUCCESS {
            let known = Descriptor::decode(&descriptor).expect("just encoded");
            self.descriptors.insert(request.image, known);
        }
        let mut bytes = Vec::new();
        let fields = ImageLoadReply::written(status, &descriptor, &log, &mut bytes);
        self.place(bytes, request.staging, request.capacity, reply);
        Ok(fields)
    }

    fn image_unload(&mut self, request: &ImageUnload, _: &[u8]) -> Posted {
        self.images.remove(&request.image);
        Ok(())
    }

    fn module_load(
        &mut self,
        request: &ModuleLoad,
        _: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<ModuleLoadReply, CUresult> {
        let variables = self.descriptors[&request.image].variables.clone();
        let mut addresses = Vec::new();
        for variable in &variables {
            addresses.extend(
                self.allocate(request.context, variable.bytes)?
                    .to_le_bytes(),
            );
        }
        self.modules
            .insert(request.module, (request.image, request.context));
        self.place(addresses, request.staging, request.capacity, reply);
        Ok(ModuleLoadReply {
            addresses: variables.len() as u64,
        })
    }

    fn module_unload(&mut self, request: &ModuleUnload, _: &[u8]) -> Posted {
        assert!(self.modules.remove(&request.module).is_some());
        Ok(())
    }

    fn function_set(&mut self, request: &FunctionSet, _: &[u8]) -> Posted {
        assert!(self.modules.contains_key(&request.module));
        Ok(())
    }

    fn launch(&mut self, at: At, request: &Launch, data: &[u8]) -> Posted {
        let name = self.name(request);
        let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        match name.as_str() {
            // store(u64 *to, u64 value)
            "store" => {
                let (to, value) = (word(0), word(8));
                self.store(Space::Unified as u32, to, &value.to_le_bytes());
            }
            "die" => {
                let context = self.modules[&request.module].1;
                self.publisher
                    .set_fault(context, CUresult::ERROR_ILLEGAL_ADDRESS);
            }
            _ => {}
        }
        self.shared.launches.lock().unwrap().push(Launched {
            name,
            stream: at.stream,
            sequence: at.sequence,
            request: *request,
            data: data.to_vec(),
        });
        Ok(())
    }

    fn copy(&mut self, _: At, request: &Copy, _: &[u8]) -> Posted {
        for z in 0..request.depth {
            for y in 0..request.height {
                let from = request.from + z * request.from_slice + y * request.from_pitch;
                let to = request.to + z * request.to_slice + y * request.to_pitch;
                let row = self.load(request.from_space, from, request.width);
                self.store(request.to_space, to, &row);
            }
        }
        Ok(())
    }

    fn write(&mut self, _: At, request: &Write, data: &[u8]) -> Posted {
        self.store(Space::Unified as u32, request.to, data);
        Ok(())
    }

    fn fill(&mut self, _: At, request: &Fill, _: &[u8]) -> Posted {
        let value = request.value.to_le_bytes();
        let row = value[..request.element as usize].repeat(request.width as usize);
        for y in 0..request.height {
            self.store(Space::Unified as u32, request.to + y * request.pitch, &row);
        }
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

    fn trace_put(&mut self, _: &TracePut, _: &[u8]) -> Result<(), CUresult> {
        Ok(())
    }

    fn trace_take(
        &mut self,
        _: &TraceTake,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<TraceTakeReply, CUresult> {
        Ok(TraceTakeReply { dropped: 0 })
    }

    fn limit_set(&mut self, _: &LimitSet, _: &[u8]) -> Posted {
        Ok(())
    }

    fn run_add(&mut self, request: &RunAdd, data: &[u8]) -> Posted {
        let run = self.runs.entry(request.run).or_default();
        run.push((request.launch(), data.to_vec()));
        let mut runs = self.shared.runs.lock().unwrap();
        runs.entry(request.run).or_default().push(data.to_vec());
        Ok(())
    }

    fn run_destroy(&mut self, request: &RunDestroy, _: &[u8]) -> Posted {
        self.runs.remove(&request.run).expect("a run");
        self.shared.runs.lock().unwrap().remove(&request.run);
        Ok(())
    }

    fn run_publish(
        &mut self,
        request: &RunPublish,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<RunPublishReply, CUresult> {
        let launches = self.runs[&request.run].len();
        let mut published = self.shared.published.lock().unwrap();
        published.push((request.graph, launches));
        Ok(RunPublishReply { reserved: 0 })
    }

    fn run_launch(&mut self, at: At, request: &RunLaunch, _: &[u8]) -> Posted {
        for (launch, data) in self.runs[&request.run].clone() {
            self.launch(at, &launch, &data)?;
        }
        Ok(())
    }

    fn heap_set(&mut self, _: &HeapSet, _: &[u8]) -> Posted {
        Ok(())
    }

    fn event_record(&mut self, _: At, request: &EventRecord, _: &[u8]) -> Posted {
        if request.timing != 0 {
            self.time += 1_000_000;
            self.publisher.event_time(request.event, self.time);
        }
        Ok(())
    }

    fn array_create(
        &mut self,
        request: &ArrayCreate,
        _: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<ArrayCreateReply, CUresult> {
        self.make_array(request)
    }

    fn array_destroy(&mut self, request: &ArrayDestroy, _: &[u8]) -> Posted {
        assert!(self.arrays.remove(&request.array).is_some());
        Ok(())
    }

    fn array_copy(&mut self, _: At, request: &ArrayCopy, _: &[u8]) -> Posted {
        self.copy_array(request);
        Ok(())
    }

    fn texture_create(
        &mut self,
        _: &TextureCreate,
        data: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<TextureCreateReply, CUresult> {
        Spec::decode(data)?;
        self.time += 1;
        Ok(TextureCreateReply { object: self.time })
    }

    /// The address, the device and zeroes.
    fn tensor_map_encode(
        &mut self,
        request: &TensorMapEncode,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TensorMapEncodeReply, CUresult> {
        let spec = tensor_maps::Spec::decode(data)?;
        *self.shared.tensor_maps.lock().expect("unpoisoned") += 1;
        reply.extend(spec.address.to_le_bytes());
        reply.extend(u64::from(request.device).to_le_bytes());
        reply.resize(tensor_maps::BYTES, 0);
        Ok(TensorMapEncodeReply { reserved: 0 })
    }

    fn tensor_map_replace(
        &mut self,
        request: &TensorMapReplace,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TensorMapReplaceReply, CUresult> {
        reply.extend(request.address.to_le_bytes());
        reply.extend(&data[8..]);
        Ok(TensorMapReplaceReply { reserved: 0 })
    }

    fn texture_destroy(&mut self, _: &TextureDestroy, _: &[u8]) -> Posted {
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
