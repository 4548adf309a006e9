//! What travels: the operations that a client asks of its server.
//!
//! The driver's functions (`functions`) say what a program sees; many of them come down to the same
//! request: thirty copy functions are one [`struct@Copy`], nine ways to launch are one [`Launch`]. Each
//! request is a row of [`for_each_operation!`](crate::for_each_operation), and from the row come its
//! struct, its codec, its [`Opcode`], the method that the server's session must have, and, for rows
//! of the engine's group, the method that every engine must have. A row without an implementation
//! does not compile.
//!
//! Numbers are explicit and never reused. A row only ever gains trailing fields, with its version.
//!
//! A row's class:
//! * `post`: no reply; an error is kept and surfaces at the next synchronising call.
//! * `create`: no reply; the client chose the handle, and knows that it can be made.
//! * `stream`: no reply; belongs to a stream's order. The header's channel is the stream's slot and
//!   its sequence the place in that order; completion is read from the stream's completion word.
//! * `call`: the client waits for a reply.
//!
//! And what becomes of its effect when an executor is replaced: `lost`, `replayed`, `survives`.

use crate::wire::{Field, Fields, Malformed};

/// Hands every operation to the macro `$callback`, as two groups: those that a session answers by
/// itself, and those that an engine carries out.
///
/// A row: `#[doc] class number version method(Request { field: type, … }) -> Reply { field: type, … } effect;`
#[macro_export]
macro_rules! for_each_operation {
    ($callback:ident) => {
        $callback! {
            session {
                /// Says that the program called a function that is not built, so that the log names it.
                post 1 1 not_supported(NotSupported { function: u32 }) -> NoReply {} lost;
                /// Adds bytes of an image that will be loaded. Data: none, the bytes are in staging.
                post 2 1 image_put(ImagePut { image: u64, total: u64, offset: u64, staging: u64, bytes: u64 }) -> NoReply {} replayed;
                /// Allocates device memory of a context.
                call 3 1 mem_alloc(MemAlloc { context: u32, bytes: u64 }) -> MemAllocReply { address: u64 } survives;
                /// Frees device memory once all work posted before has finished.
                post 4 1 mem_free(MemFree { address: u64 }) -> NoReply {} survives;
                /// Allocates page-locked host memory, at the same address in client and server.
                call 5 1 host_alloc(HostAlloc { context: u32, bytes: u64, flags: u32 }) -> HostAllocReply { address: u64 } survives;
                /// Frees page-locked host memory once all work posted before has finished.
                post 6 1 host_free(HostFree { address: u64 }) -> NoReply {} survives;
                /// Free and total device memory as this client may see them, in bytes.
                call 7 1 mem_info(MemInfo { device: u32 }) -> MemInfoReply { free: u64, total: u64 } lost;
                /// Makes the stream's later work wait for the work of another stream up to a position.
                stream 8 1 stream_wait(StreamWait { on: u32, until: u64 }) -> NoReply {} lost;
                /// Ends the session in good order: everything the client had is freed.
                post 9 1 detach(Detach { status: u32 }) -> NoReply {} lost;
                /// Holds the stream until a [`HostRelease`](crate::operations::HostRelease) reaches this place in it: the client runs a host function there.
                stream 70 1 host_gate(HostGate { reserved: u32 }) -> NoReply {} lost;
                /// Opens the gates of a stream up to a place.
                post 71 1 host_release(HostRelease { stream: u32, until: u64 }) -> NoReply {} lost;
                /// Holds the stream until a 4 or 8 byte value in memory compares with another as the flags of cuStreamWaitValue say.
                stream 72 1 value_wait(ValueWait { address: u64, value: u64, bytes: u32, flags: u32 }) -> NoReply {} lost;
                /// Has a stream share a connection of the context: what is behind a kernel that cannot start yet waits with it.
                post 73 1 stream_connect(StreamConnect { stream: u32, connection: u32 }) -> NoReply {} lost;
                /// Describes an image again, into a larger buffer in staging.
                call 10 1 image_describe(ImageDescribe { image: u64, staging: u64, capacity: u64 }) -> ImageDescribeReply { bytes: u64 } lost;
                /// Allocates managed memory: in the host window, counted against the quota of the context's device. Freed as device memory is.
                call 80 1 managed_alloc(ManagedAlloc { context: u32, bytes: u64 }) -> ManagedAllocReply { address: u64 } survives;
                /// Offers something to other clients of the same user, who find it by the token: see [`Exposed`](crate::operations::Exposed).
                call 81 1 expose(Expose { kind: u32, object: u64, bytes: u64 }) -> ExposeReply { token: [u64; 4] } lost;
                /// Opens another client's block, which lies at the same address here. Opening it again changes nothing.
                call 82 1 mem_import(MemImport { token: [u64; 4] }) -> MemImportReply { address: u64, bytes: u64, device: u32 } lost;
                /// Closes another client's block once all work posted before has finished.
                post 83 1 mem_close(MemClose { address: u64 }) -> NoReply {} lost;
                /// Makes an event that can be offered to other clients of the same user, and gives its slot.
                call 84 1 event_share(EventShare { reserved: u32 }) -> EventShareReply { event: u32 } lost;
                /// Lets the kernels of a context reach the client's memory on another device, or no longer.
                call 85 1 peer_access(PeerAccess { context: u32, device: u32, enabled: u32 }) -> PeerAccessReply { reserved: u32 } replayed;
                /// Opens another client's event, and gives its slot here.
                call 86 1 event_open(EventOpen { token: [u64; 4] }) -> EventOpenReply { event: u32 } lost;
                /// Forgets a shared event once all work posted before has finished.
                post 87 1 event_forget(EventForget { event: u32 }) -> NoReply {} lost;
                /// Says the number of a shared event's last record and how far it has come; if `record` is 1, for a new record.
                call 88 1 event_mark(EventMark { event: u32, record: u32 }) -> EventMarkReply { recorded: u64, completed: u64 } lost;
                /// A record of a shared event, whose number event_mark gave, in its place in a stream.
                stream 89 1 event_pass(EventPass { event: u32, number: u64 }) -> NoReply {} lost;
                /// Makes the stream's later work wait until a shared event has come as far as a record.
                stream 90 1 event_await(EventAwait { event: u32, number: u64 }) -> NoReply {} lost;
                /// Reserves addresses in the window of a device.
                call 91 1 address_reserve(AddressReserve { device: u32, bytes: u64, align: u64 }) -> AddressReserveReply { address: u64 } survives;
                /// Gives reserved addresses back, in which nothing is mapped.
                post 92 1 address_free(AddressFree { address: u64 }) -> NoReply {} survives;
                /// Allocates physical memory of a device, without an address, under the client's handle.
                call 93 1 physical_create(PhysicalCreate { handle: u64, device: u32, bytes: u64 }) -> PhysicalCreateReply { reserved: u32 } survives;
                /// Frees physical memory that is mapped nowhere.
                post 94 1 physical_release(PhysicalRelease { handle: u64 }) -> NoReply {} survives;
                /// Maps physical memory at reserved addresses. Nobody may reach it yet.
                call 95 1 physical_map(PhysicalMap { handle: u64, address: u64, bytes: u64, offset: u64 }) -> PhysicalMapReply { reserved: u32 } survives;
                /// Takes the mapping that begins at an address away.
                call 96 1 physical_unmap(PhysicalUnmap { address: u64 }) -> PhysicalUnmapReply { reserved: u32 } survives;
                /// Says how a device may reach a mapping: CUmemAccess_flags.
                call 97 1 physical_access(PhysicalAccess { address: u64, device: u32, access: u32 }) -> PhysicalAccessReply { reserved: u32 } survives;
                /// Takes physical memory of another client under a handle of this one's.
                call 98 1 physical_import(PhysicalImport { handle: u64, token: [u64; 4] }) -> PhysicalImportReply { bytes: u64, device: u32 } lost;
                /// Says in which window of the client's device memory an address lies, so that the client keeps the whole window from being its program's.
                call 150 1 window_of(WindowOf { address: u64 }) -> WindowOfReply { base: u64, bytes: u64 } lost;
                /// Maps part of a file of the client's, whose descriptor came last over the session's socket, at addresses of the host window and page-locks it. Freed as page-locked memory is. Flags: 1 if the client can only read it.
                call 130 1 file_map(FileMap { context: u32, flags: u32, offset: u64, bytes: u64 }) -> FileMapReply { address: u64 } lost;
            }
            engine {
                /// Makes a context on a device. The primary context of device `d` has the id `d`. Share: the part that it is to have at most, in millionths, rounded up: from a client, of the multiprocessors that it was told of; to an engine, of the device. 0 for the client's own, which it never exceeds.
                create 32 2 context_create(ContextCreate { context: u32, device: u32, flags: u32, share: u32 }) -> NoReply {} replayed;
                /// Ends a context and all that was made in it.
                post 33 1 context_destroy(ContextDestroy { context: u32 }) -> NoReply {} replayed;
                /// Makes the stream of a slot. Slots 0 to 31 are the legacy streams of contexts 0 to 31.
                create 34 1 stream_create(StreamCreate { stream: u32, context: u32, flags: u32, priority: i32 }) -> NoReply {} replayed;
                /// Ends a stream once its work has finished.
                stream 35 1 stream_destroy(StreamDestroy { reserved: u32 }) -> NoReply {} replayed;
                /// Reads an image (PTX, fatbin): the reply's data is its descriptor, or goes to staging if it is too long. Data: none on the wire; the session gives the engine the whole image.
                call 36 1 image_load(ImageLoad { image: u64, staging: u64, capacity: u64, options: u32 }) -> ImageLoadReply { status: u32, descriptor: u64, log: u64 } replayed;
                /// Forgets an image.
                post 37 1 image_unload(ImageUnload { image: u64 }) -> NoReply {} replayed;
                /// Makes a module of an image in a context. The reply's data is the address of each of its variables, 8 bytes each, in the descriptor's order.
                call 38 1 module_load(ModuleLoad { module: u64, image: u64, context: u32, staging: u64, capacity: u64 }) -> ModuleLoadReply { addresses: u64 } lost;
                /// Unloads a module once all work posted before has finished.
                post 39 1 module_unload(ModuleUnload { module: u64 }) -> NoReply {} replayed;
                /// Sets an attribute of a kernel of a module.
                post 40 1 function_set(FunctionSet { module: u64, kernel: u32, attribute: u32, value: i32 }) -> NoReply {} replayed;
                /// Launches a kernel. Data: launch attributes (72 bytes each, `attributes` of them), then the parameter block.
                stream 41 1 launch(Launch { module: u64, kernel: u32, grid: [u32; 3], block: [u32; 3], shared: u32, flags: u32, attributes: u32 }) -> NoReply {} lost;
                /// Copies between two places, up to three-dimensional. Pitches and slices in bytes; spaces as [`Space`](crate::operations::Space).
                stream 42 1 copy(Copy { to_space: u32, to: u64, to_pitch: u64, to_slice: u64, from_space: u32, from: u64, from_pitch: u64, from_slice: u64, width: u64, height: u64, depth: u64 }) -> NoReply {} survives;
                /// Writes the record's data to an address.
                stream 43 1 write(Write { to: u64 }) -> NoReply {} survives;
                /// Fills `height` rows of `width` elements with a value of 1, 2 or 4 bytes.
                stream 44 1 fill(Fill { to: u64, pitch: u64, value: u32, element: u32, width: u64, height: u64 }) -> NoReply {} survives;
                /// Notes in an event's slot when the stream has come this far, if it keeps time.
                stream 45 1 event_record(EventRecord { event: u32, timing: u32 }) -> NoReply {} lost;
                /// Launches all of a run, one after another, as one operation. A run whose module was unloaded is none.
                stream 46 1 run_launch(RunLaunch { run: u32 }) -> NoReply {} lost;
                /// Takes text that the client's kernels printed: the reply's data, at most [`OUTPUT_PIECE`](crate::operations::OUTPUT_PIECE) bytes, and where it belongs. To be asked until there is none.
                call 64 1 output_take(OutputTake { reserved: u32 }) -> OutputTakeReply { sink: u32 } lost;
                /// Sets a limit (a CUlimit) of a context.
                post 65 1 limit_set(LimitSet { context: u32, limit: u32, value: u64 }) -> NoReply {} replayed;
                /// Gives a context the device memory that its kernels' `malloc` takes from.
                post 66 1 heap_set(HeapSet { context: u32, address: u64, bytes: u64 }) -> NoReply {} replayed;
                /// Adds a launch to a run, which is made with its first. A run that was launched takes no more. What is wrong with a launch is what comes of launching the run. Data: as that of [`Launch`].
                post 68 1 run_add(RunAdd { run: u32, module: u64, kernel: u32, grid: [u32; 3], block: [u32; 3], shared: u32, flags: u32, attributes: u32 }) -> NoReply {} lost;
                /// Forgets a run. What was launched of it goes on.
                post 69 1 run_destroy(RunDestroy { run: u32 }) -> NoReply {} lost;
                /// Makes an array of a context. The reply says how many bytes of device memory it takes.
                call 100 1 array_create(ArrayCreate { array: u64, context: u32, width: u64, height: u64, depth: u64, format: u32, channels: u32, flags: u32, levels: u32 }) -> ArrayCreateReply { bytes: u64 } lost;
                /// Ends an array once all work posted before has finished.
                post 101 1 array_destroy(ArrayDestroy { array: u64 }) -> NoReply {} lost;
                /// Copies where a side or both are arrays. For a side in an array `to` or `from` is its handle, and level, x (in bytes), y and z say where in it; a pitch or slice has no meaning there. For other sides as [`struct@Copy`].
                stream 102 1 array_copy(ArrayCopy { to_space: u32, to: u64, to_level: u32, to_x: u64, to_y: u64, to_z: u64, to_pitch: u64, to_slice: u64, from_space: u32, from: u64, from_level: u32, from_x: u64, from_y: u64, from_z: u64, from_pitch: u64, from_slice: u64, width: u64, height: u64, depth: u64 }) -> NoReply {} lost;
                /// Makes a texture (`surface` 0) or surface (1) of a context. Data: a [`Spec`](crate::textures::Spec). The reply has the number by which kernels know it.
                call 103 1 texture_create(TextureCreate { context: u32, surface: u32 }) -> TextureCreateReply { object: u64 } lost;
                /// Ends a texture or surface once all work posted before has finished.
                post 104 1 texture_destroy(TextureDestroy { object: u64, surface: u32, context: u32 }) -> NoReply {} lost;
                /// Says how many clusters of a launch's shape fit on a device at once, or, if `largest` is 1, how many blocks its largest cluster may have. Data: launch attributes, as those of [`Launch`](crate::operations::Launch).
                call 105 1 cluster_occupancy(ClusterOccupancy { module: u64, kernel: u32, grid: [u32; 3], block: [u32; 3], shared: u32, attributes: u32, largest: u32 }) -> ClusterOccupancyReply { count: u32 } lost;
                /// Makes the descriptor of a tensor for copies on a device. Data: a [`Spec`](crate::tensor_maps::Spec). The reply's data is the descriptor.
                call 120 1 tensor_map_encode(TensorMapEncode { device: u32 }) -> TensorMapEncodeReply { reserved: u32 } lost;
                /// Puts another address into a descriptor, which is the data. The reply's data is the new descriptor.
                call 121 1 tensor_map_replace(TensorMapReplace { device: u32, address: u64 }) -> TensorMapReplaceReply { reserved: u32 } lost;
            }
        }
    };
}

impl RunAdd {
    /// What adds a launch to a run.
    #[must_use]
    pub const fn new(run: u32, launch: &Launch) -> Self {
        let Launch {
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        } = *launch;
        Self {
            run,
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        }
    }

    /// The launch.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        let Self {
            run: _,
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        } = *self;
        Launch {
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        }
    }

    /// What a launch counts for against [`RUN_BYTES`], with so many bytes of data.
    #[must_use]
    pub const fn bytes(data: usize) -> usize {
        size_of::<Launch>() + 64 + data
    }
}

/// What an [`Expose`] offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Exposed {
    /// A block of device memory, by its address, of which others see so many bytes.
    Block = 0,
    /// A shared event, by its slot.
    Event = 1,
    /// Physical memory, by its handle.
    Physical = 2,
}

impl Exposed {
    /// The kind with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Block),
            1 => Some(Self::Event),
            2 => Some(Self::Physical),
            _ => None,
        }
    }
}

/// Shared events that one client may have open.
pub const SHARED_EVENT_SLOTS: u32 = 4096;

/// Where a side of a [`struct@Copy`] lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Space {
    /// A unified address: device memory or page-locked host memory of this client.
    Unified = 0,
    /// An offset into this client's staging memory.
    Staging = 1,
    /// An array of this client: only in an [`ArrayCopy`].
    Array = 2,
}

impl Space {
    /// The space with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Unified),
            1 => Some(Self::Staging),
            2 => Some(Self::Array),
            _ => None,
        }
    }
}

/// Bit of [`ImageLoad::options`]: the image is only looked at, as a part of what will be linked.
pub const IMAGE_PART: u32 = 1;

/// Bit of [`ImageLoad::options`]: the log tells of what was compiled.
pub const IMAGE_VERBOSE: u32 = 2;

/// Where the most registers of a thread stand in [`ImageLoad::options`]: 8 bits, 0 for no limit.
pub const IMAGE_REGISTERS_SHIFT: u32 = 8;

/// Bit of [`Launch::flags`]: all blocks must be resident at once (cooperative launch).
pub const LAUNCH_COOPERATIVE: u32 = 1;

/// Bit of [`ContextCreate::flags`]: its kernels are those of the device's primary context, of whose
/// multiprocessors it has a part (a green context). Beyond the flags that programs give.
pub const CONTEXT_GREEN: u32 = 1 << 31;

/// Bit of [`StreamCreate::flags`]: does not synchronise with the legacy stream (CU_STREAM_NON_BLOCKING).
pub const STREAM_NON_BLOCKING: u32 = 1;

/// [`OutputTakeReply::sink`]: there is no text.
pub const OUTPUT_NONE: u32 = 0;
/// [`OutputTakeReply::sink`]: for the program's standard output.
pub const OUTPUT_STDOUT: u32 = 1;
/// [`OutputTakeReply::sink`]: for its standard error.
pub const OUTPUT_STDERR: u32 = 2;
/// The most bytes of text in one reply.
pub const OUTPUT_PIECE: usize = 3072;

/// Streams that one client may have; slots of completion words.
pub const STREAM_SLOTS: u32 = 4096;

/// [`FileMap`]: the client can only read the file.
pub const FILE_READ_ONLY: u32 = 1;

/// The packet with which a client sends the descriptor of a file that it is about to have mapped.
pub const FILE_PACKET: &[u8] = b"file";

/// Runs that one client may have; their numbers are below it.
pub const RUNS: u32 = 256;

/// Launches that one run may have.
pub const RUN_LENGTH: usize = 128;

/// Bytes that all launches of a client's runs may take, each as [`RunAdd::bytes`] says.
pub const RUN_BYTES: usize = 4 << 20;

/// Legacy streams, and so contexts, that one client may have.
pub const CONTEXT_SLOTS: u32 = 32;

/// Connections of a context that streams can share.
pub const CONNECTIONS: u32 = 32;

/// Timed events that one client may have at once.
pub const EVENT_SLOTS: u32 = 16384;

/// Work that one stream may have posted and unfinished; the client waits beyond it, as CUDA does
/// when its launch queue is full, and the server ends a client that goes further.
pub const STREAM_DEPTH: u64 = 1024;

/// What kind of answer an operation has; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationClass {
    /// No reply.
    Post,
    /// No reply; makes an object under the client's handle.
    Create,
    /// No reply; ordered in a stream.
    Stream,
    /// Waits for a reply.
    Call,
}

/// What becomes of an operation's effect when an executor is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Gone with the executor.
    Lost,
    /// Made again from the journal.
    Replayed,
    /// Held outside of the executor.
    Survives,
}

/// The facts of a row, for logs, metrics and documentation.
#[derive(Clone, Copy, Debug)]
pub struct OperationRow {
    /// Its number.
    pub number: u16,
    /// The version of the row.
    pub version: u8,
    /// The method's name, which is also the metric label and the trace name.
    pub name: &'static str,
    /// Its class.
    pub class: OperationClass,
    /// What becomes of its effect.
    pub effect: Effect,
    /// Whether an engine carries it out.
    pub engine: bool,
    /// Field slots of its request.
    pub slots: usize,
}

/// A request of the table.
pub trait Request: Fields {
    /// Its operation.
    const OPCODE: Opcode;
    /// The version of its row.
    const VERSION: u8;
    /// Its class.
    const CLASS: OperationClass;
    /// What the reply carries, beside a status and data.
    type Reply: Fields;
}

macro_rules! class {
    (post) => {
        OperationClass::Post
    };
    (create) => {
        OperationClass::Create
    };
    (stream) => {
        OperationClass::Stream
    };
    (call) => {
        OperationClass::Call
    };
}

macro_rules! effect {
    (lost) => {
        Effect::Lost
    };
    (replayed) => {
        Effect::Replayed
    };
    (survives) => {
        Effect::Survives
    };
}

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the row's text says what the fields are")]
        pub struct $name { $(pub $field: $type),* }

        impl Fields for $name {
            const SLOTS: usize = 0 $(+ <$type as Field>::SLOTS)*;
            #[inline]
            fn write(&self, slots: &mut [u64]) {
                let mut _rest = slots;
                $(
                    let (here, after) = _rest.split_at_mut(<$type as Field>::SLOTS);
                    self.$field.write(here);
                    _rest = after;
                )*
            }
            #[inline]
            fn read(slots: &[u64]) -> Result<Self, Malformed> {
                let mut all = [0u64; crate::wire::MAX_FIELD_SLOTS];
                let known = slots.len().min(Self::SLOTS);
                all[..known].copy_from_slice(&slots[..known]);
                let mut _at = 0;
                $(
                    let $field = <$type as Field>::read(&all[_at.._at + <$type as Field>::SLOTS], _at)?;
                    _at += <$type as Field>::SLOTS;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

macro_rules! reply {
    (NoReply {}) => {};
    ($name:ident $fields:tt) => {
        fields! {
            /// What the reply of the operation carries.
            $name $fields
        }
    };
}

fields! {
    /// The reply of an operation that has none.
    NoReply {}
}

macro_rules! operations {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt $effect:ident;
    )* })*) => {
        /// The numbers of the operations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode {
            $($($(#[$doc])* $request = $number,)*)*
        }

        impl Opcode {
            /// The operation with this number, if this build knows it.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($($number => Some(Self::$request),)*)*
                    _ => None,
                }
            }

            /// The facts of its row.
            #[must_use]
            pub const fn row(self) -> OperationRow {
                match self {
                    $($(Self::$request => OperationRow {
                        number: $number,
                        version: $version,
                        name: stringify!($method),
                        class: class!($class),
                        effect: effect!($effect),
                        engine: matches!(stringify!($group).as_bytes(), b"engine"),
                        slots: <$request as Fields>::SLOTS,
                    },)*)*
                }
            }
        }

        /// Every operation, in order of the table.
        pub const OPERATIONS: &[Opcode] = &[$($(Opcode::$request,)*)*];

        $($(
            fields! { $(#[$doc])* $request $fields }
            reply! { $reply $reply_fields }
            impl Request for $request {
                const OPCODE: Opcode = Opcode::$request;
                const VERSION: u8 = $version;
                const CLASS: OperationClass = class!($class);
                type Reply = $reply;
            }
            const _: () = assert!(<$request as Fields>::SLOTS <= crate::wire::MAX_FIELD_SLOTS);
            const _: () = assert!(<$reply as Fields>::SLOTS <= crate::wire::MAX_FIELD_SLOTS);
        )*)*
    };
}

for_each_operation!(operations);

/// Declares a trait with one method for each row that `for_each_operation!` gives, and its dispatch.
///
/// By class the methods are
/// `fn post(&mut self, request: &R, data: &[u8]) -> Result<(), CUresult>`,
/// `fn stream(&mut self, at: At, request: &R, data: &[u8]) -> Result<(), CUresult>` and
/// `fn call(&mut self, request: &R, data: &[u8], reply: &mut Vec<u8>) -> Result<Reply, CUresult>`.
#[macro_export]
macro_rules! operation_method {
    (post $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the driver function that asked for it.
        fn $method(&mut self, request: &$crate::operations::$request, data: &[u8]) -> Result<(), $crate::CUresult>;
    };
    (create $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $crate::operation_method! { post $(#[$doc])* $method($request) -> $reply }
    };
    (stream $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the driver function that asked for it.
        fn $method(&mut self, at: $crate::operations::At, request: &$crate::operations::$request, data: &[u8]) -> Result<(), $crate::CUresult>;
    };
    (call $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $(#[$doc])*
        ///
        /// What it appends to `reply` travels behind the reply's fields.
        ///
        /// # Errors
        /// As the driver function that asked for it.
        fn $method(&mut self, request: &$crate::operations::$request, data: &[u8], reply: &mut Vec<u8>) -> Result<$crate::operations::$reply, $crate::CUresult>;
    };
}

/// A place in a stream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The stream's slot.
    pub stream: u32,
    /// The position, from 1.
    pub sequence: u64,
}

/// What a record came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A record without a reply, and its error if it had one.
    Posted(Result<(), crate::CUresult>),
    /// A call: its status, and the fields of its reply (none when it failed).
    Replied {
        /// The status.
        status: crate::CUresult,
        /// Fields of the reply.
        slots: [u64; crate::wire::MAX_FIELD_SLOTS],
        /// How many of `slots` there are.
        count: usize,
    },
}

/// A record that could not be handed to a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The record is damaged: its sender is to be disconnected.
    Malformed(Malformed),
    /// This build does not know the operation: answered with CUDA_ERROR_NOT_SUPPORTED.
    Unknown(u16),
}

macro_rules! run {
    (post $handler:ident $method:ident $request:ident $header:ident $slots:ident $data:ident $reply:ident) => {
        Outcome::Posted($handler.$method(&read::<$request>($slots)?, $data))
    };
    (create $($rest:tt)*) => {
        run!(post $($rest)*)
    };
    (stream $handler:ident $method:ident $request:ident $header:ident $slots:ident $data:ident $reply:ident) => {{
        let at = At { stream: $header.channel, sequence: $header.sequence };
        Outcome::Posted($handler.$method(at, &read::<$request>($slots)?, $data))
    }};
    (call $handler:ident $method:ident $request:ident $header:ident $slots:ident $data:ident $reply:ident) => {{
        let request = read::<$request>($slots)?;
        let mut slots = [0; crate::wire::MAX_FIELD_SLOTS];
        match $handler.$method(&request, $data, $reply) {
            Ok(fields) => {
                let count = count_of(&fields);
                fields.write(&mut slots[..count]);
                Outcome::Replied { status: crate::CUresult::SUCCESS, slots, count }
            }
            Err(status) => Outcome::Replied { status, slots, count: 0 },
        }
    }};
}

fn read<R: Fields>(slots: &[u64]) -> Result<R, Refused> {
    R::read(slots).map_err(Refused::Malformed)
}

fn count_of<R: Fields>(_: &R) -> usize {
    R::SLOTS
}

macro_rules! dispatcher {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt $effect:ident;
    )* })*) => {
        /// Whoever carries out a client's operations: one method a row.
        pub trait Operations {
            $($($crate::operation_method! { $class $(#[$doc])* $method($request) -> $reply })*)*
        }

        /// Reads a record's fields and hands them to the method of its row.
        ///
        /// `data` is the record's run of bytes, `reply` takes what a call appends.
        ///
        /// # Errors
        /// When the operation is not known or a field's value does not fit.
        pub fn dispatch<H: Operations + ?Sized>(
            handler: &mut H,
            header: &crate::wire::Header,
            slots: &[u64],
            data: &[u8],
            reply: &mut Vec<u8>,
        ) -> Result<Outcome, Refused> {
            let opcode = Opcode::from_number(header.opcode).ok_or(Refused::Unknown(header.opcode))?;
            Ok(match opcode {
                $($(Opcode::$request => run!($class handler $method $request header slots data reply),)*)*
            })
        }
    };
}

for_each_operation!(dispatcher);
