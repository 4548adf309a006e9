//! One client's objects, by its own handles, and the operations on them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::operations::{
    self, At, CONTEXT_SLOTS, IMAGE_PART, IMAGE_REGISTERS_SHIFT, IMAGE_VERBOSE, OUTPUT_NONE,
    OUTPUT_PIECE, OUTPUT_STDERR, OUTPUT_STDOUT, STREAM_NON_BLOCKING, STREAM_SLOTS, Space,
};
use cuda_abi::textures::{Resource, Spec};
use cuda_abi::types::CUlimit;
use engine::{Attachment, CUresult, Client, Granularity, Held, Share, Window};

use crate::array::{self, Array};
use crate::backing::{Physical, SharedBlock};
use crate::context::Context;
use crate::copy::{self, ArrayTransfer};
use crate::device::Shared;
use crate::exec;
use crate::grid::Grid;
use crate::image;
use crate::memory::{self, ClientMemory, Mapped};
use crate::module::{Image, Module};
use crate::services::Sink;
use crate::stream::{Common, Operation, Stream};

/// How long [`Client::assist`] may take.
const ASSIST: Duration = Duration::from_micros(100);

/// Objects that a client may have of a kind; more are refused, so that it cannot fill the server.
const MOST_OBJECTS: usize = 1 << 16;

/// One client.
#[derive(Debug)]
pub(crate) struct SoftClient {
    shared: Arc<Shared>,
    /// `None` only while it is being dropped.
    objects: Option<Objects>,
    mapped: Arc<Mapped>,
}

#[derive(Debug)]
struct Objects {
    common: Arc<Common>,
    /// SMs that the client sees. Its share may change, but not what it was told.
    sms: u64,
    memory: ClientMemory,
    contexts: HashMap<u32, Arc<Context>>,
    streams: HashMap<u32, Arc<Stream>>,
    images: HashMap<u64, Arc<Image>>,
    modules: HashMap<u64, Arc<Module>>,
    arrays: HashMap<u64, Arc<Array>>,
    /// What kernels read of them, and whose those numbers are; `true` for surfaces.
    textures: Arc<exec::Textures>,
    texture_owners: HashMap<(u64, bool), TextureOwner>,
}

/// Whose a texture or surface is.
#[derive(Clone, Copy, Debug)]
struct TextureOwner {
    context: u32,
    /// The array that it is made of.
    array: Option<u64>,
}

/// The SMs, of `all`, that a percentage grants.
fn granted(all: usize, percentage: f32) -> u64 {
    let all = u32::try_from(all).unwrap_or(u32::MAX);
    Granularity::default().granted(all, percentage).into()
}

/// Whether a percentage is one.
pub(crate) fn check_percentage(percentage: f32) -> Result<(), CUresult> {
    if percentage > 0.0 && percentage <= 100.0 {
        Ok(())
    } else {
        Err(CUresult::ERROR_INVALID_VALUE)
    }
}

impl SoftClient {
    pub(crate) fn new(shared: &Arc<Shared>, attachment: Attachment) -> Result<Self, CUresult> {
        let Attachment {
            windows,
            addresses,
            host,
            staging,
            share,
            group,
            observer,
        } = attachment;
        check_percentage(share.percentage)?;
        let memory = ClientMemory::new(&windows, &shared.budgets, &addresses, &host, &staging)?;
        let scheduler = Arc::clone(shared.pool.scheduler());
        // As the server tells the client of MULTIPROCESSOR_COUNT: what occupancy is computed by.
        let sms = granted(scheduler.workers(), share.percentage);
        let account = scheduler.join(share, group)?;
        Ok(Self {
            shared: Arc::clone(shared),
            mapped: memory.mapped(),
            objects: Some(Objects {
                common: Arc::new(Common {
                    observer,
                    account,
                    scheduler,
                    spaces: memory.copy_spaces(),
                    closed: AtomicBool::new(false),
                    waiting: AtomicU64::new(0),
                }),
                sms,
                memory,
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

impl Objects {
    fn context(&self, id: u32) -> Result<&Arc<Context>, CUresult> {
        self.contexts
            .get(&id)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    fn stream(&self, slot: u32) -> Result<&Arc<Stream>, CUresult> {
        self.streams
            .get(&slot)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    fn module(&self, handle: u64) -> Result<&Arc<Module>, CUresult> {
        self.modules
            .get(&handle)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Takes out all textures and surfaces of some owners.
    fn remove_textures(&mut self, goes: impl Fn(&TextureOwner) -> bool) {
        let textures = &self.textures;
        self.texture_owners.retain(|&(object, surface), owner| {
            let gone = goes(owner);
            if gone {
                remove_texture(textures, object, surface);
            }
            !gone
        });
    }

    fn add_stream(
        &mut self,
        slot: u32,
        priority: i32,
        context: Arc<Context>,
    ) -> Result<(), CUresult> {
        if let Some(stream) = self.streams.get(&slot) {
            return stream.renew(priority, context);
        }
        let common = Arc::clone(&self.common);
        let stream = Stream::new(slot, priority, context, common);
        self.streams.insert(slot, stream);
        Ok(())
    }

    fn post(&self, at: At, operation: Operation<'_>) -> Result<(), CUresult> {
        self.stream(at.stream)?.post(at.sequence, operation)
    }

    fn grid(
        &self,
        stream: &Stream,
        request: &operations::Launch,
        data: &[u8],
    ) -> Result<Grid, CUresult> {
        let (context, priority) = stream.place()?;
        context.check()?;
        Grid::new(
            self.module(request.module)?,
            &context,
            (
                self.memory
                    .kernel_space(context.device, context.peers.load(Ordering::Relaxed))?,
                &self.textures,
            ),
            priority,
            self.sms
                .min(granted(self.common.scheduler.workers(), context.part)),
            request,
            data,
        )
    }
}

impl Client for SoftClient {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        self.objects().memory.commit(range)
    }

    fn decommit(&mut self, range: Window) {
        self.objects().memory.decommit(range);
    }

    fn free_memory(&self, device: u32) -> u64 {
        self.shared
            .budgets
            .get(device as usize)
            .map_or(0, |budget| budget.free())
    }

    fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        copy::peek(&memory::read(&self.objects().common.spaces), address, bytes)
    }

    fn set_share(&mut self, share: Share) -> Result<(), CUresult> {
        check_percentage(share.percentage)?;
        let Common {
            scheduler, account, ..
        } = &*self.objects().common;
        scheduler.set_share(account, share)
    }

    fn assist(&mut self) -> bool {
        let Common {
            scheduler, account, ..
        } = &*self.objects().common;
        scheduler.help(account, ASSIST)
    }

    fn share(&mut self, range: Window) -> Result<Held, CUresult> {
        self.objects().memory.share(range).map(Held::new)
    }

    fn import(&mut self, shared: &Held) -> Result<(), CUresult> {
        let shared = shared.get::<SharedBlock>();
        let shared = shared.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.objects().memory.import(&shared)
    }

    fn close(&mut self, shared: &Held) {
        if let Some(shared) = shared.get::<SharedBlock>() {
            self.objects().memory.close(&shared);
        }
    }

    fn physical_create(&mut self, device: u32, bytes: u64) -> Result<Held, CUresult> {
        let budget = self.shared.budgets.get(device as usize);
        let budget = budget.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        Physical::new(budget, bytes).map(Held::new)
    }

    fn physical_map(&mut self, at: Window, memory: &Held, offset: u64) -> Result<(), CUresult> {
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
        let devices = self.shared.budgets.len() as u32;
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
        let devices = self.shared.budgets.len();
        let objects = self.objects();
        if request.device as usize >= devices {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        if request.context >= CONTEXT_SLOTS || objects.contexts.contains_key(&request.context) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let observer = Arc::clone(&objects.common.observer);
        let part = match request.share {
            0 => 100.0,
            millionths => (f64::from(millionths) / 1e4).min(100.0) as f32,
        };
        let context = Context::new(request.context, request.device, part, observer);
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
        let shared = Arc::clone(&self.shared);
        let objects = self.objects();
        if objects.images.contains_key(&request.image) || objects.images.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let most = request.options >> IMAGE_REGISTERS_SHIFT & 0xff;
        let options = exec::Options {
            max_registers: Some(most).filter(|&most| most != 0),
            ..exec::Options::default()
        };
        let loaded = if request.options & IMAGE_PART != 0 {
            image::check_part(data).map(|()| None)
        } else {
            let image = shared.images.load(data, &options, image::compile);
            image.map(Some)
        };
        Ok(match loaded {
            Ok(None) => operations::ImageLoadReply::default(),
            Ok(Some(image)) => {
                let log = if request.options & IMAGE_VERBOSE != 0 {
                    image::remarks(&image.module)
                } else {
                    String::new()
                };
                reply.extend_from_slice(&image.descriptor);
                reply.extend_from_slice(log.as_bytes());
                let descriptor = image.descriptor.len() as u64;
                objects.images.insert(request.image, image);
                operations::ImageLoadReply {
                    status: CUresult::SUCCESS.0,
                    descriptor,
                    log: log.len() as u64,
                }
            }
            Err(refused) => {
                reply.extend_from_slice(refused.log.as_bytes());
                operations::ImageLoadReply {
                    status: refused.code.0,
                    descriptor: 0,
                    log: refused.log.len() as u64,
                }
            }
        })
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
        let objects = self.objects();
        let context = Arc::clone(objects.context(request.context)?);
        context.check()?;
        let image = objects
            .images
            .get(&request.image)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if objects.modules.contains_key(&request.module) || objects.modules.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let observer = Arc::clone(&objects.common.observer);
        let allocate = |bytes, managed| observer.allocate(request.context, bytes, managed);
        let module = Module::new(Arc::clone(image), context, &objects.memory, allocate)?;
        for address in &*module.globals {
            reply.extend(address.to_le_bytes());
        }
        let addresses = module.globals.len() as u64;
        objects.modules.insert(request.module, Arc::new(module));
        Ok(operations::ModuleLoadReply { addresses })
    }

    fn module_unload(
        &mut self,
        request: &operations::ModuleUnload,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        // Grids that were posted before keep it.
        let modules = &mut self.objects().modules;
        modules
            .remove(&request.module)
            .map(drop)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
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
        let contexts = &self.objects().contexts;
        let mut slots: Vec<u32> = contexts.keys().copied().collect();
        slots.sort_unstable();
        for slot in slots {
            let taken = contexts
                .get(&slot)
                .and_then(|context| context.services.take(OUTPUT_PIECE, reply));
            if let Some((sink, _)) = taken {
                // Whoever takes on finds out whether that was all.
                return Ok(operations::OutputTakeReply {
                    sink: match sink {
                        Sink::Out => OUTPUT_STDOUT,
                        Sink::Err => OUTPUT_STDERR,
                    },
                });
            }
        }
        Ok(operations::OutputTakeReply { sink: OUTPUT_NONE })
    }

    fn limit_set(&mut self, request: &operations::LimitSet, _data: &[u8]) -> Result<(), CUresult> {
        let context = self.objects().context(request.context)?;
        // The others bound what this engine has no bound for, or what the client itself keeps to.
        if CUlimit(request.limit) == CUlimit::PRINTF_FIFO_SIZE {
            context.services.set_fifo(request.value);
        }
        Ok(())
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
        let shared = Arc::clone(&self.shared);
        let objects = self.objects();
        let context = Arc::clone(objects.context(request.context)?);
        context.check()?;
        if objects.arrays.contains_key(&request.array) || objects.arrays.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let budget = shared
            .budgets
            .get(context.device as usize)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        let array = Array::new(request, context, budget)?;
        let bytes = array.shape.bytes();
        objects.arrays.insert(request.array, Arc::new(array));
        Ok(operations::ArrayCreateReply { bytes })
    }

    fn array_destroy(
        &mut self,
        request: &operations::ArrayDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let array = objects.arrays.remove(&request.array);
        array.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        // Its memory is free from here on, so nothing may keep it; copies under way do until they end.
        objects.remove_textures(|owner| owner.array == Some(request.array));
        Ok(())
    }

    fn array_copy(
        &mut self,
        at: At,
        request: &operations::ArrayCopy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let stream = objects.stream(at.stream)?;
        let find = |space: u32, array: u64| match Space::from_number(space) {
            Some(Space::Array) => objects
                .arrays
                .get(&array)
                .map(|array| Some(Arc::clone(array)))
                .ok_or(CUresult::ERROR_INVALID_HANDLE),
            _ => Ok(None),
        };
        let sides = find(request.to_space, request.to)
            .and_then(|to| Ok((to, find(request.from_space, request.from)?)));
        let operation = match sides {
            Ok((to, from)) => Operation::ArrayCopy(Box::new(ArrayTransfer {
                request: *request,
                to,
                from,
            })),
            Err(code) => Operation::Refused(code),
        };
        stream.post(at.sequence, operation)
    }

    fn texture_create(
        &mut self,
        request: &operations::TextureCreate,
        data: &[u8],
        _reply: &mut Vec<u8>,
    ) -> Result<operations::TextureCreateReply, CUresult> {
        let spec = Spec::decode(data)?;
        let objects = self.objects();
        let context = Arc::clone(objects.context(request.context)?);
        context.check()?;
        if objects.texture_owners.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let find = |array: u64| {
            objects
                .arrays
                .get(&array)
                .filter(|array| array.context.device == context.device)
                .cloned()
                .ok_or(CUresult::ERROR_INVALID_HANDLE)
        };
        let surface = request.surface != 0;
        let object = if surface {
            objects.textures.add_surface(array::surface(&spec, &find)?)
        } else {
            objects.textures.add_texture(array::texture(&spec, &find)?)
        };
        let array = match spec.resource {
            Resource::Array(array) | Resource::Mipmapped(array) => Some(array),
            Resource::Linear { .. } | Resource::Pitched { .. } => None,
        };
        let owner = TextureOwner {
            context: request.context,
            array,
        };
        objects.texture_owners.insert((object, surface), owner);
        Ok(operations::TextureCreateReply { object })
    }

    fn texture_destroy(
        &mut self,
        request: &operations::TextureDestroy,
        _data: &[u8],
    ) -> Result<(), CUresult> {
        let objects = self.objects();
        let surface = request.surface != 0;
        objects.texture_owners.remove(&(request.object, surface));
        if remove_texture(&objects.textures, request.object, surface) {
            Ok(())
        } else {
            Err(CUresult::ERROR_INVALID_HANDLE)
        }
    }
}

fn remove_texture(textures: &exec::Textures, object: u64, surface: bool) -> bool {
    if surface {
        textures.remove_surface(object)
    } else {
        textures.remove_texture(object)
    }
}

impl Drop for SoftClient {
    fn drop(&mut self) {
        let Some(objects) = self.objects.take() else {
            return;
        };
        objects.common.closed.store(true, Ordering::Relaxed);
        for context in objects.contexts.values() {
            context.destroy();
        }
        objects.common.scheduler.leave(&objects.common.account);
        for stream in objects.streams.values() {
            stream.clear();
        }
        drop(objects);
        // Every thread has let go of the work, and with the last of it the memory is unmapped.
        self.mapped.wait_until_none();
    }
}
