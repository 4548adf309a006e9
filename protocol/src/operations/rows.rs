//! The rows: every operation, in one macro.
//!
//! A number is never used again, and a row only ever gains trailing fields, with its version. [`super`] says what the
//! classes are and what comes from a row. Must not know who implements a row.

/// Hands every operation to the macro `$callback`, as two groups: those that a session answers by
/// itself, and those that an engine carries out.
///
/// A row: `#[doc] class number version method(Request { field: type, … }) -> Reply { field: type, … };`
#[macro_export]
macro_rules! for_each_operation {
    ($callback:ident) => {
        $callback! {
            session {
                /// Says that the program called a function that is not built, so that the log names it.
                post 1 1 not_supported(NotSupported { function: u32 }) -> NoReply {};
                /// Adds bytes of an image that will be loaded. Data: none, the bytes are in staging.
                post 2 1 image_put(ImagePut { image: u64, total: u64, offset: u64, staging: u64, bytes: u64 }) -> NoReply {};
                /// Allocates device memory of a context.
                call 3 1 mem_alloc(MemAlloc { context: u32, bytes: u64 }) -> MemAllocReply { address: u64 };
                /// Frees device memory once all work posted before has finished.
                post 4 1 mem_free(MemFree { address: u64 }) -> NoReply {};
                /// Allocates page-locked host memory, at the same address in client and server.
                call 5 1 host_alloc(HostAlloc { context: u32, bytes: u64, flags: u32 }) -> HostAllocReply { address: u64 };
                /// Frees page-locked host memory once all work posted before has finished.
                post 6 1 host_free(HostFree { address: u64 }) -> NoReply {};
                /// Free and total device memory as this client may see them, in bytes.
                call 7 1 mem_info(MemInfo { device: u32 }) -> MemInfoReply { free: u64, total: u64 };
                /// Makes the stream's later work wait for the work of another stream up to a position.
                stream 8 1 stream_wait(StreamWait { on: u32, until: u64 }) -> NoReply {};
                /// Ends the session in good order: everything the client had is freed.
                post 9 1 detach(Detach { status: u32 }) -> NoReply {};
                /// Holds the stream until a [`HostRelease`](crate::operations::HostRelease) reaches this place in it: the client runs a host function there.
                stream 70 1 host_barrier(HostBarrier { reserved: u32 }) -> NoReply {};
                /// Releases the host barriers of a stream up to a place.
                post 71 1 host_release(HostRelease { stream: u32, until: u64 }) -> NoReply {};
                /// Holds the stream until a 4 or 8 byte value in memory compares with another as the flags of cuStreamWaitValue say.
                stream 72 1 value_wait(ValueWait { address: u64, value: u64, bytes: u32, flags: u32 }) -> NoReply {};
                /// Has a stream share a connection of the context: what is behind a kernel that cannot start yet waits with it.
                post 73 1 stream_connect(StreamConnect { stream: u32, connection: u32 }) -> NoReply {};
                /// Describes an image again, into a larger buffer in staging.
                call 10 1 image_describe(ImageDescribe { image: u64, staging: u64, capacity: u64 }) -> ImageDescribeReply { bytes: u64 };
                /// Allocates managed memory: in the host window, counted against the quota of the context's device. Freed as device memory is.
                call 80 1 managed_alloc(ManagedAlloc { context: u32, bytes: u64 }) -> ManagedAllocReply { address: u64 };
                /// Offers something to other clients of the same user, who find it by the token: see [`Exposed`](crate::operations::Exposed).
                call 81 1 expose(Expose { kind: u32, object: u64, bytes: u64 }) -> ExposeReply { token: [u64; 4] };
                /// Opens another client's block, which lies at the same address here if the same server has both clients. Opening it again changes nothing.
                call 82 1 mem_import(MemImport { token: [u64; 4] }) -> MemImportReply { address: u64, bytes: u64, device: u32 };
                /// Closes another client's block once all work posted before has finished.
                post 83 1 mem_close(MemClose { address: u64 }) -> NoReply {};
                /// Makes an event that can be offered to other clients of the same user, and gives its number.
                call 84 1 event_share(EventShare { reserved: u32 }) -> EventShareReply { event: u32 };
                /// Lets the kernels of a context reach the client's memory on another device, or no longer.
                call 85 1 peer_access(PeerAccess { context: u32, device: u32, enabled: u32 }) -> PeerAccessReply { reserved: u32 };
                /// Opens another client's event, and gives its number here.
                call 86 1 event_open(EventOpen { token: [u64; 4] }) -> EventOpenReply { event: u32 };
                /// Forgets a shared event once all work posted before has finished.
                post 87 1 event_forget(EventForget { event: u32 }) -> NoReply {};
                /// Says the number of a shared event's last record and how far it is; if `record` is 1, for a new record.
                call 88 1 event_mark(EventMark { event: u32, record: u32 }) -> EventMarkReply { recorded: u64, completed: u64 };
                /// A record of a shared event, whose number event_mark gave, in its place in a stream.
                stream 89 1 event_pass(EventPass { event: u32, number: u64 }) -> NoReply {};
                /// Makes the stream's later work wait until a shared event has reached a record.
                stream 90 1 event_await(EventAwait { event: u32, number: u64 }) -> NoReply {};
                /// Reserves addresses in the window of a device.
                call 91 1 address_reserve(AddressReserve { device: u32, bytes: u64, align: u64 }) -> AddressReserveReply { address: u64 };
                /// Gives reserved addresses back, in which nothing is mapped.
                post 92 1 address_free(AddressFree { address: u64 }) -> NoReply {};
                /// Allocates physical memory of a device, without an address, under the client's handle.
                call 93 1 physical_create(PhysicalCreate { handle: u64, device: u32, bytes: u64 }) -> PhysicalCreateReply { reserved: u32 };
                /// Frees physical memory that is mapped nowhere.
                post 94 1 physical_release(PhysicalRelease { handle: u64 }) -> NoReply {};
                /// Maps physical memory at reserved addresses. Nobody may reach it yet.
                call 95 1 physical_map(PhysicalMap { handle: u64, address: u64, bytes: u64, offset: u64 }) -> PhysicalMapReply { reserved: u32 };
                /// Takes the mapping that begins at an address away.
                call 96 1 physical_unmap(PhysicalUnmap { address: u64 }) -> PhysicalUnmapReply { reserved: u32 };
                /// Says how a device may reach a mapping: CUmemAccess_flags.
                call 97 1 physical_access(PhysicalAccess { address: u64, device: u32, access: u32 }) -> PhysicalAccessReply { reserved: u32 };
                /// Takes physical memory of another client under a handle of this one's.
                call 98 1 physical_import(PhysicalImport { handle: u64, token: [u64; 4] }) -> PhysicalImportReply { bytes: u64, device: u32 };
                /// Says in which window of the client's device memory an address lies, so that the client keeps the whole window from being its program's.
                call 150 1 window_of(WindowOf { address: u64 }) -> WindowOfReply { base: u64, bytes: u64 };
                /// Maps part of a file of the client's, whose descriptor came last over the session's socket, at addresses of the host window and page-locks it. Freed as page-locked memory is. Flags: 1 if the client can only read it.
                call 130 1 file_map(FileMap { context: u32, flags: u32, offset: u64, bytes: u64 }) -> FileMapReply { address: u64 };
                /// Reserves addresses of the host window for memory whose pages the client makes, which is to be page-locked then. Phase: how many bytes behind the beginning of a huge page they are to begin, in whole granules of 64 KiB. Freed as page-locked memory is.
                call 156 1 host_reserve(HostReserve { context: u32, bytes: u64, phase: u64 }) -> HostReserveReply { address: u64 };
                /// Page-locks what the client has put at addresses that host_reserve gave.
                call 157 1 host_pin(HostPin { address: u64 }) -> HostPinReply { reserved: u32 };
                /// Takes a semaphore of another interface, whose descriptor came last over the session's socket, under the client's handle. Kind: CUexternalSemaphoreHandleType.
                call 153 1 semaphore_import(SemaphoreImport { semaphore: u64, context: u32, kind: u32 }) -> SemaphoreImportReply { reserved: u32 };
                /// Lets a semaphore of another interface go once all work posted before has finished.
                post 154 1 semaphore_destroy(SemaphoreDestroy { semaphore: u64 }) -> NoReply {};
                /// Holds the stream until a semaphore of another interface is signalled, of a timeline with this value or more.
                stream 155 1 semaphore_wait(SemaphoreWait { semaphore: u64, value: u64 }) -> NoReply {};
                /// Says when the device worked for the client, since the last such question: the reply's data is a piece for a [`SpanReader`](crate::operations::SpanReader), oldest spans first. To be asked until there are none; the first question begins the keeping. Dropped: how many there was no room for, since then.
                call 151 1 trace_take(TraceTake { reserved: u32 }) -> TraceTakeReply { dropped: u64 };
                /// Tells of calls and work, for whoever has this client recorded. Data: records of the crate `trace`, of which nothing here knows more.
                post 152 1 trace_put(TracePut { reserved: u32 }) -> NoReply {};
            }
            engine {
                /// Makes a context on a device. The primary context of device `d` has the id `d`. Share: the part that it is to have at most, in millionths, rounded up: from a client, of the multiprocessors that it was told of; to an engine, of the device. 0 for the client's own, which it never exceeds.
                create 32 2 context_create(ContextCreate { context: u32, device: u32, flags: u32, share: u32 }) -> NoReply {};
                /// Ends a context and all that was made in it.
                post 33 1 context_destroy(ContextDestroy { context: u32 }) -> NoReply {};
                /// Makes the stream of a slot. Slots 0 to 31 are the legacy streams of contexts 0 to 31.
                create 34 1 stream_create(StreamCreate { stream: u32, context: u32, flags: u32, priority: i32 }) -> NoReply {};
                /// Ends a stream once its work has finished.
                stream 35 1 stream_destroy(StreamDestroy { reserved: u32 }) -> NoReply {};
                /// Reads an image (PTX, fatbin): the reply's data is its descriptor, or goes to staging if it is too long. Device: where the program is likely to use it first; what an engine does with a device to read the image, it does with that one. Data: none on the wire; the session gives the engine the whole image.
                call 36 2 image_load(ImageLoad { image: u64, staging: u64, capacity: u64, options: u32, device: u32 }) -> ImageLoadReply { status: u32, descriptor: u64, log: u64 };
                /// Forgets an image.
                post 37 1 image_unload(ImageUnload { image: u64 }) -> NoReply {};
                /// Makes a module of an image in a context. The reply's data is the address of each of its variables, 8 bytes each, in the descriptor's order.
                call 38 1 module_load(ModuleLoad { module: u64, image: u64, context: u32, staging: u64, capacity: u64 }) -> ModuleLoadReply { addresses: u64 };
                /// Unloads a module once all work posted before has finished.
                post 39 1 module_unload(ModuleUnload { module: u64 }) -> NoReply {};
                /// Sets an attribute of a kernel of a module.
                post 40 1 function_set(FunctionSet { module: u64, kernel: u32, attribute: u32, value: i32 }) -> NoReply {};
                /// Launches a kernel. Data: launch attributes (72 bytes each, `attributes` of them), then the parameter block.
                stream 41 1 launch(Launch { module: u64, kernel: u32, grid: [u32; 3], block: [u32; 3], shared: u32, flags: u32, attributes: u32 }) -> NoReply {};
                /// Copies between two places, up to three-dimensional. Pitches and slices in bytes; spaces as [`Space`](crate::operations::Space).
                stream 42 1 copy(Copy { to_space: u32, to: u64, to_pitch: u64, to_slice: u64, from_space: u32, from: u64, from_pitch: u64, from_slice: u64, width: u64, height: u64, depth: u64 }) -> NoReply {};
                /// Writes the record's data to an address.
                stream 43 1 write(Write { to: u64 }) -> NoReply {};
                /// Fills `height` rows of `width` elements with a value of 1, 2 or 4 bytes.
                stream 44 1 fill(Fill { to: u64, pitch: u64, value: u32, element: u32, width: u64, height: u64 }) -> NoReply {};
                /// Notes in an event's slot when the stream has come this far, if it keeps time.
                stream 45 1 event_record(EventRecord { event: u32, timing: u32 }) -> NoReply {};
                /// Launches all of a run, one after another, as one operation. A run whose module was unloaded is none.
                stream 46 1 run_launch(RunLaunch { run: u32 }) -> NoReply {};
                /// Takes text that the client's kernels printed: the reply's data, at most [`OUTPUT_PIECE`](crate::operations::OUTPUT_PIECE) bytes, and where it belongs. To be asked until there is none.
                call 64 1 output_take(OutputTake { reserved: u32 }) -> OutputTakeReply { sink: u32 };
                /// Sets a limit (a CUlimit) of a context.
                post 65 1 limit_set(LimitSet { context: u32, limit: u32, value: u64 }) -> NoReply {};
                /// Gives a context the device memory that its kernels' `malloc` takes from.
                post 66 1 heap_set(HeapSet { context: u32, address: u64, bytes: u64 }) -> NoReply {};
                /// Adds a launch to a run, which is made with its first. A run that was launched takes no more. What is wrong with a launch is what comes of launching the run. Data: as that of [`Launch`].
                post 68 1 run_add(RunAdd { run: u32, module: u64, kernel: u32, grid: [u32; 3], block: [u32; 3], shared: u32, flags: u32, attributes: u32 }) -> NoReply {};
                /// Forgets a run. What was launched of it goes on.
                post 69 1 run_destroy(RunDestroy { run: u32 }) -> NoReply {};
                /// Lets kernels of the client's graphs launch a run, as the executable graph of this number; a launch of the run is one of that graph. CUDA_ERROR_NOT_SUPPORTED where kernels launch no graphs.
                call 74 1 run_publish(RunPublish { run: u32, graph: u64 }) -> RunPublishReply { reserved: u32 };
                /// Makes an array of a context. The reply says how many bytes of device memory it takes.
                call 100 1 array_create(ArrayCreate { array: u64, context: u32, width: u64, height: u64, depth: u64, format: u32, channels: u32, flags: u32, levels: u32 }) -> ArrayCreateReply { bytes: u64 };
                /// Ends an array once all work posted before has finished.
                post 101 1 array_destroy(ArrayDestroy { array: u64 }) -> NoReply {};
                /// Copies where a side or both are arrays. For a side in an array `to` or `from` is its handle, and level, x (in bytes), y and z say where in it; a pitch or slice has no meaning there. For other sides as [`struct@Copy`].
                stream 102 1 array_copy(ArrayCopy { to_space: u32, to: u64, to_level: u32, to_x: u64, to_y: u64, to_z: u64, to_pitch: u64, to_slice: u64, from_space: u32, from: u64, from_level: u32, from_x: u64, from_y: u64, from_z: u64, from_pitch: u64, from_slice: u64, width: u64, height: u64, depth: u64 }) -> NoReply {};
                /// Makes a texture (`surface` 0) or surface (1) of a context. Data: a [`Spec`](crate::textures::Spec). The reply has the number by which kernels know it.
                call 103 1 texture_create(TextureCreate { context: u32, surface: u32 }) -> TextureCreateReply { object: u64 };
                /// Ends a texture or surface once all work posted before has finished.
                post 104 1 texture_destroy(TextureDestroy { object: u64, surface: u32, context: u32 }) -> NoReply {};
                /// Says how many clusters of a launch's shape fit on a device at once, or, if `largest` is 1, how many blocks its largest cluster may have. Data: launch attributes, as those of [`Launch`](crate::operations::Launch).
                call 105 1 cluster_occupancy(ClusterOccupancy { module: u64, kernel: u32, grid: [u32; 3], block: [u32; 3], shared: u32, attributes: u32, largest: u32 }) -> ClusterOccupancyReply { count: u32 };
                /// Makes the descriptor of a tensor for copies on a device. Data: a [`Spec`](crate::tensor_maps::Spec). The reply's data is the descriptor.
                call 120 1 tensor_map_encode(TensorMapEncode { device: u32 }) -> TensorMapEncodeReply { reserved: u32 };
                /// Puts another address into a descriptor, which is the data. The reply's data is the new descriptor.
                call 121 1 tensor_map_replace(TensorMapReplace { device: u32, address: u64 }) -> TensorMapReplaceReply { reserved: u32 };
                /// Signals a semaphore of another interface, of a timeline with this value.
                stream 122 1 semaphore_signal(SemaphoreSignal { semaphore: u64, value: u64 }) -> NoReply {};
            }
        }
    };
}
