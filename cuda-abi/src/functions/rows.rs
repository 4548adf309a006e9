//! The rows: every function that drivers 535 to 580 export, in one macro.
//!
//! Declarative macros cannot join tables, so all rows stand here, in sections by family. Versions
//! and twins agree with what real drivers answer (`tests/exports.rs`, `tests/proc_address.rs`);
//! numbers are held by `tests/data/numbers.tsv`.
//!
//! Expanded by `client` for its exports, by `engine-nvidia` for the driver's pointers, and by `xtask` for
//! `docs/coverage.md`. Must not know how a function is built.

/// Hands every driver function to the macro `$callback`, all rows in one call.
///
/// A row:
/// ```text
/// /// What the function does.
/// post 201 since 3020 twin "_ptsz" 7000 capture node =>
///     fn cuMemsetD8Async(dst_device: val(CUdeviceptr), value: val(u8), count: val(usize), stream: val(CUstream));
/// ```
/// * the class (see [`Class`](crate::functions::Class)): to build a function or to take it out,
///   change this word;
/// * a number that is never given to another function;
/// * `since`: the CUDA version that introduced this form of the function, 0 where
///   `cuGetProcAddress` does not offer it;
/// * `twin`, where there is one: the suffix of the same function for a per-thread default stream,
///   and the version from which `cuGetProcAddress` offers it;
/// * `capture`: what the call does while streams are captured ([`Capture`](crate::functions::Capture));
/// * `partial`, where not all of the function is built: a string that says what is not
///   (`capture node partial "flags are kept, and change nothing" =>`), for `docs/coverage.md`;
/// * the exported name and the parameters. All functions return
///   [`CUresult`](crate::errors::CUresult).
///
/// A parameter is `name: mode(…)`; [`c_type!`](crate::c_type) makes its C type:
///
/// | mode | C type | |
/// |---|---|---|
/// | `val(T)` | `T` | a value |
/// | `len(T, of)` | `T` | how many elements or bytes `of` has |
/// | `out(T)` | `*mut T` | one value that the function writes |
/// | `inout(T)` | `*mut T` | one value that it reads and writes |
/// | `new(T)` | `*mut T` | a handle that it makes |
/// | `struct_in(T)`, `struct_out(T)` | `*const T`, `*mut T` | one structure |
/// | `list(T, n)`, `list_out(T, n)` | `*const T`, `*mut T` | as many as parameter `n` says |
/// | `bytes(n)`, `bytes_out(n)` | `*const c_void`, `*mut c_void` | `n` bytes |
/// | `chars_out(n)` | `*mut c_char` | room for text of `n` bytes with its zero |
/// | `cstr()` | `*const c_char` | text up to its zero |
/// | `opaque(T)` | `T` | a pointer whose meaning or length no mode says |
///
/// Types are those of [`types`](crate::types): a consumer needs `use cuda_abi::types::*;`.
///
/// # Writing a consumer
/// Match plain repetition and give what depends on class or mode to a helper macro. The shells of a
/// client:
/// ```
/// use cuda_abi::functions::Function;
/// use cuda_abi::types::*;
///
/// mod api {
///     // One safe function of the same name for every row that is not `absent`.
/// #   #![allow(non_snake_case)]
/// #   use cuda_abi::types::*;
/// #   macro_rules! api {
/// #       ($( $(#[$d:meta])* $class:ident $n:literal since $s:literal $(twin $x:literal $y:literal)?
/// #           capture $c:ident $(partial $h:literal)?
/// #           => fn $name:ident($($a:ident: $mode:ident $tokens:tt),*); )*) => {
/// #           $( pub fn $name($(_: cuda_abi::c_type!($mode $tokens)),*) -> CUresult {
/// #               CUresult::SUCCESS
/// #           } )*
/// #       };
/// #   }
/// #   cuda_abi::for_each_function!(api);
/// }
///
/// fn absent(_function: Function) -> CUresult {
///     CUresult::ERROR_NOT_SUPPORTED
/// }
///
/// macro_rules! answer {
///     (absent $name:ident($($argument:ident),*)) => {{
///         $(let _ = $argument;)*
///         absent(Function::$name)
///     }};
///     ($class:ident $name:ident($($argument:ident),*)) => { api::$name($($argument),*) };
/// }
///
/// macro_rules! twin {
///     ([] $($rest:tt)*) => {};
///     ([$suffix:literal] $class:ident $name:ident($($argument:ident: $mode:ident $tokens:tt),*)) => {
///         // a client adds #[unsafe(export_name = concat!(stringify!($name), $suffix))] here
///         extern "C" fn $name($($argument: cuda_abi::c_type!($mode $tokens)),*) -> CUresult {
///             answer!($class $name($($argument),*))
///         }
///     };
/// }
///
/// macro_rules! shells {
///     ($(
///         $(#[$doc:meta])*
///         $class:ident $number:literal since $since:literal $(twin $suffix:literal $from:literal)?
///             capture $capture:ident $(partial $how:literal)? =>
///             fn $name:ident($($argument:ident: $mode:ident $tokens:tt),*);
///     )*) => {
///         $(
///             $(#[$doc])*
///             // a client adds #[unsafe(no_mangle)] here
/// #           #[allow(non_snake_case)]
///             extern "C" fn $name($($argument: cuda_abi::c_type!($mode $tokens)),*) -> CUresult {
///                 answer!($class $name($($argument),*))
///             }
///         )*
///         mod per_thread {
/// #           #![allow(non_snake_case, dead_code)]
///             use super::*;
///             $(twin!([$($suffix)?] $class $name($($argument: $mode $tokens),*));)*
///         }
///     };
/// }
/// cuda_abi::for_each_function!(shells);
/// # fn main() {
/// assert_eq!(cuDriverGetVersion(&mut 0), CUresult::SUCCESS);
/// assert_eq!(cuGLInit(), CUresult::ERROR_NOT_SUPPORTED);
/// # }
/// ```
#[macro_export]
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            // Initialisation, version, errors, entry points.
            /// Prepares the driver for this process: finds the daemon and attaches.
            custom 1 since 2000 capture allowed =>
                fn cuInit(flags: val(u32));
            /// Reports the CUDA version that this library implements, as 1000 × major + 10 × minor.
            local 2 since 2020 capture allowed =>
                fn cuDriverGetVersion(driver_version: out(i32));
            /// Gives the constant name of a status, or a null pointer and INVALID_VALUE for an unknown one.
            local 3 since 6000 capture allowed =>
                fn cuGetErrorName(error: val(CUresult), text: out(*const c_char));
            /// Gives a sentence about a status, or a null pointer and INVALID_VALUE for an unknown one.
            local 4 since 6000 capture allowed =>
                fn cuGetErrorString(error: val(CUresult), text: out(*const c_char));
            /// Finds the entry point of a name at a CUDA version. Form of CUDA 11.3.
            local 5 since 11030 capture allowed =>
                fn cuGetProcAddress(
                    symbol: cstr(), pointer: out(*mut c_void), driver_version: val(i32),
                    flags: val(u64));
            /// Finds the entry point of a name at a CUDA version. Form of CUDA 12.0.
            local 6 since 12000 capture allowed =>
                fn cuGetProcAddress_v2(
                    symbol: cstr(), pointer: out(*mut c_void), driver_version: val(i32),
                    flags: val(u64), symbol_found: out(CUdriverProcAddressQueryResult));
            /// Hands out a private table of functions by its UUID, for the CUDA runtime and libraries.
            local 7 since 3000 capture allowed
                partial "the tables that runtimes and libraries need; others are refused" =>
                fn cuGetExportTable(table: out(*const c_void), id: struct_in(CUuuid));
            // Devices.
            /// Gives the device of an ordinal.
            local 8 since 2000 capture allowed =>
                fn cuDeviceGet(device: out(CUdevice), ordinal: val(i32));
            /// Counts the devices that this process may use.
            local 9 since 2000 capture allowed =>
                fn cuDeviceGetCount(count: out(i32));
            /// Writes the name of a device, cut to the buffer and ended by a zero.
            local 10 since 2000 capture allowed =>
                fn cuDeviceGetName(
                    name: chars_out(len), len: len(i32, name), device: val(CUdevice));
            /// Gives the 16 bytes that name a device for good. Form of CUDA 9.2.
            local 11 since 9020 capture allowed =>
                fn cuDeviceGetUuid(uuid: struct_out(CUuuid), device: val(CUdevice));
            /// Gives the 16 bytes that name a device for good. Form of CUDA 11.4.
            local 12 since 11040 capture allowed =>
                fn cuDeviceGetUuid_v2(uuid: struct_out(CUuuid), device: val(CUdevice));
            /// Gives the Windows adapter id of a device.
            local 13 since 10000 capture allowed =>
                fn cuDeviceGetLuid(
                    luid: opaque(*mut c_char), device_node_mask: out(u32), device: val(CUdevice));
            /// Total memory of a device in bytes, as this client may see it. Form of CUDA 2.0.
            local 14 since 2000 capture allowed =>
                fn cuDeviceTotalMem(bytes: out(u32), device: val(CUdevice));
            /// Total memory of a device in bytes, as this client may see it. Form of CUDA 3.2.
            local 15 since 3020 capture allowed =>
                fn cuDeviceTotalMem_v2(bytes: out(usize), device: val(CUdevice));
            /// Gives one number about a device.
            local 16 since 2000 capture allowed =>
                fn cuDeviceGetAttribute(
                    value: out(i32), attribute: val(CUdevice_attribute), device: val(CUdevice));
            /// Fills the old structure of device facts.
            local 17 since 2000 capture allowed =>
                fn cuDeviceGetProperties(properties: struct_out(CUdevprop), device: val(CUdevice));
            /// Gives the major and minor architecture version of a device.
            local 18 since 2000 capture allowed =>
                fn cuDeviceComputeCapability(
                    major: out(i32), minor: out(i32), device: val(CUdevice));
            /// Finds a device by the text of its PCI address.
            local 19 since 4010 capture allowed =>
                fn cuDeviceGetByPCIBusId(device: out(CUdevice), bus_id: cstr());
            /// Writes the PCI address of a device as text.
            local 20 since 4010 capture allowed =>
                fn cuDeviceGetPCIBusId(
                    bus_id: chars_out(len), len: len(i32, bus_id), device: val(CUdevice));
            /// Says whether a device can reach the memory of another.
            local 21 since 4000 capture allowed =>
                fn cuDeviceCanAccessPeer(
                    can_access_peer: out(i32), device: val(CUdevice), peer_dev: val(CUdevice));
            /// Gives one number about the link between two devices.
            local 22 since 8000 capture allowed
                partial "all links are alike; no arrays of other devices" =>
                fn cuDeviceGetP2PAttribute(
                    value: out(i32), attribute: val(CUdevice_P2PAttribute),
                    src_device: val(CUdevice), dst_device: val(CUdevice));
            // Primary contexts.
            /// Takes a share in the primary context of a device, making it at need.
            create 23 since 7000 capture allowed =>
                fn cuDevicePrimaryCtxRetain(ctx: new(CUcontext), device: val(CUdevice));
            /// Gives a share in the primary context back; the last one ends it. Form of CUDA 7.0.
            post 24 since 7000 capture prohibited =>
                fn cuDevicePrimaryCtxRelease(device: val(CUdevice));
            /// Gives a share in the primary context back; the last one ends it. Form of CUDA 11.0.
            post 25 since 11000 capture prohibited =>
                fn cuDevicePrimaryCtxRelease_v2(device: val(CUdevice));
            /// Ends all that lives in the primary context, whoever holds shares in it. Form of CUDA 7.0.
            post 26 since 7000 capture prohibited =>
                fn cuDevicePrimaryCtxReset(device: val(CUdevice));
            /// Ends all that lives in the primary context, whoever holds shares in it. Form of CUDA 11.0.
            post 27 since 11000 capture prohibited =>
                fn cuDevicePrimaryCtxReset_v2(device: val(CUdevice));
            /// Gives the flags of the primary context, and whether it exists.
            local 28 since 7000 capture allowed =>
                fn cuDevicePrimaryCtxGetState(
                    device: val(CUdevice), flags: out(u32), active: out(i32));
            /// Sets the flags of the primary context. Form of CUDA 7.0.
            local 29 since 7000 capture prohibited
                partial "flags are kept and told; how threads wait does not follow them" =>
                fn cuDevicePrimaryCtxSetFlags(device: val(CUdevice), flags: val(u32));
            /// Sets the flags of the primary context. Form of CUDA 11.0.
            local 30 since 11000 capture prohibited
                partial "as cuDevicePrimaryCtxSetFlags" =>
                fn cuDevicePrimaryCtxSetFlags_v2(device: val(CUdevice), flags: val(u32));
            // Contexts.
            /// Makes a context on a device and pushes it on the stack of the calling thread. Form of CUDA 2.0.
            create 31 since 2000 capture allowed =>
                fn cuCtxCreate(ctx: new(CUcontext), flags: val(u32), device: val(CUdevice));
            /// Makes a context on a device and pushes it on the stack of the calling thread. Form of CUDA 3.2.
            create 32 since 3020 capture allowed =>
                fn cuCtxCreate_v2(ctx: new(CUcontext), flags: val(u32), device: val(CUdevice));
            /// Makes a context on a device and pushes it on the stack of the calling thread. Form of CUDA 11.4.
            create 33 since 11040 capture allowed
                partial "an execution affinity is not rounded to what the device can grant" =>
                fn cuCtxCreate_v3(
                    ctx: new(CUcontext), params_array: list(CUexecAffinityParam, num_params),
                    num_params: len(i32, params_array), flags: val(u32), device: val(CUdevice));
            /// Makes a context on a device and pushes it on the stack of the calling thread. Form of CUDA 12.5.
            create 34 since 12050 capture allowed
                partial "graphics parameters are refused; an execution affinity is not rounded to what the device can grant" =>
                fn cuCtxCreate_v4(
                    ctx: new(CUcontext), ctx_create_params: struct_in(CUctxCreateParams),
                    flags: val(u32), device: val(CUdevice));
            /// Ends a context and all that was made in it. Form of CUDA 2.0.
            post 35 since 2000 capture prohibited =>
                fn cuCtxDestroy(ctx: val(CUcontext));
            /// Ends a context and all that was made in it. Form of CUDA 4.0.
            post 36 since 4000 capture prohibited =>
                fn cuCtxDestroy_v2(ctx: val(CUcontext));
            /// Adds a share in the current context.
            local 37 since 2000 capture allowed =>
                fn cuCtxAttach(ctx: out(CUcontext), flags: val(u32));
            /// Gives a share in a context back; the last one ends it.
            post 38 since 2000 capture prohibited =>
                fn cuCtxDetach(ctx: val(CUcontext));
            /// Pushes a context on the stack of the calling thread. Form of CUDA 2.0.
            local 39 since 2000 capture allowed =>
                fn cuCtxPushCurrent(ctx: val(CUcontext));
            /// Pushes a context on the stack of the calling thread. Form of CUDA 4.0.
            local 40 since 4000 capture allowed =>
                fn cuCtxPushCurrent_v2(ctx: val(CUcontext));
            /// Takes the top context from the stack of the calling thread. Form of CUDA 2.0.
            local 41 since 2000 capture allowed =>
                fn cuCtxPopCurrent(ctx: out(CUcontext));
            /// Takes the top context from the stack of the calling thread. Form of CUDA 4.0.
            local 42 since 4000 capture allowed =>
                fn cuCtxPopCurrent_v2(ctx: out(CUcontext));
            /// Replaces the top of the stack of the calling thread; null pops it.
            local 43 since 4000 capture allowed =>
                fn cuCtxSetCurrent(ctx: val(CUcontext));
            /// Gives the current context of the calling thread, or null.
            local 44 since 4000 capture allowed =>
                fn cuCtxGetCurrent(ctx: out(CUcontext));
            /// Gives the device of a context. Form of CUDA 2.0.
            local 45 since 2000 capture allowed =>
                fn cuCtxGetDevice(device: out(CUdevice));
            /// Gives the device of a context. Form of CUDA 13.0.
            local 46 since 13000 capture allowed =>
                fn cuCtxGetDevice_v2(device: out(CUdevice), ctx: val(CUcontext));
            /// Gives the flags of the current context.
            local 47 since 7000 capture allowed =>
                fn cuCtxGetFlags(flags: out(u32));
            /// Sets the flags of the current context.
            local 48 since 12010 capture allowed
                partial "flags are kept and told; how threads wait does not follow them" =>
                fn cuCtxSetFlags(flags: val(u32));
            /// Gives a number that no other context of this process has had.
            local 49 since 12000 capture allowed =>
                fn cuCtxGetId(ctx: val(CUcontext), id: out(u64));
            /// Gives the interface version that a context was made with.
            local 50 since 3020 capture allowed =>
                fn cuCtxGetApiVersion(ctx: val(CUcontext), version: out(u32));
            /// Waits for all work of this client in a context. Form of CUDA 2.0.
            custom 51 since 2000 capture invalidates =>
                fn cuCtxSynchronize();
            /// Waits for all work of this client in a context. Form of CUDA 13.0.
            custom 52 since 13000 capture invalidates =>
                fn cuCtxSynchronize_v2(ctx: val(CUcontext));
            /// Gives a limit of the current context.
            local 53 since 3010 capture allowed =>
                fn cuCtxGetLimit(value: out(usize), limit: val(CUlimit));
            /// Asks for a limit of the current context.
            local 54 since 3010 capture allowed
                partial "kept and told; beside the sizes of the printf buffer and of the heap no engine is bound by them" =>
                fn cuCtxSetLimit(limit: val(CUlimit), value: val(usize));
            /// Gives the cache preference of the current context.
            local 55 since 3020 capture allowed =>
                fn cuCtxGetCacheConfig(config: out(CUfunc_cache));
            /// Sets the cache preference of the current context; a hint.
            local 56 since 3020 capture allowed
                partial "kept and told; a preference that no engine follows" =>
                fn cuCtxSetCacheConfig(config: val(CUfunc_cache));
            /// Gives the shared memory bank size of the current context.
            local 57 since 4020 capture allowed =>
                fn cuCtxGetSharedMemConfig(config: out(CUsharedconfig));
            /// Sets the shared memory bank size of the current context; a hint.
            local 58 since 4020 capture allowed
                partial "kept and told; a preference that no engine follows" =>
                fn cuCtxSetSharedMemConfig(config: val(CUsharedconfig));
            /// Gives the numbers of the least and the greatest stream priority.
            local 59 since 5050 capture allowed =>
                fn cuCtxGetStreamPriorityRange(least: out(i32), greatest: out(i32));
            /// Returns persisting cache lines to normal; a hint.
            local 60 since 11000 capture allowed
                partial "nothing persists: access policies are not passed on" =>
                fn cuCtxResetPersistingL2Cache();
            /// Lets the current context reach the memory of another one.
            call 61 since 4000 capture prohibited =>
                fn cuCtxEnablePeerAccess(peer_context: val(CUcontext), flags: val(u32));
            /// Ends what cuCtxEnablePeerAccess allowed.
            call 62 since 4000 capture prohibited
                partial "on NVIDIA GPUs what was reached stays within reach" =>
                fn cuCtxDisablePeerAccess(peer_context: val(CUcontext));
            /// Gives the multiprocessor share of the current context.
            local 63 since 11040 capture allowed =>
                fn cuCtxGetExecAffinity(
                    exec_affinity: struct_out(CUexecAffinityParam), kind: val(CUexecAffinityType));
            /// Records an event after all work of a context.
            post 64 since 12050 capture invalidates =>
                fn cuCtxRecordEvent(ctx: val(CUcontext), event: val(CUevent));
            /// Makes all later work of a context wait for an event.
            post 65 since 12050 capture invalidates
                partial "not for events of other processes" =>
                fn cuCtxWaitEvent(ctx: val(CUcontext), event: val(CUevent));
            /// Gives a resource that a context was made from.
            local 66 since 12040 capture allowed =>
                fn cuCtxGetDevResource(
                    ctx: val(CUcontext), result: struct_out(CUdevResource),
                    kind: val(CUdevResourceType));
            // Modules.
            /// Loads a module from a file of PTX, a cubin or a fatbin.
            call 67 since 2000 capture allowed =>
                fn cuModuleLoad(module: new(CUmodule), file_name: cstr());
            /// Loads a module from memory; the image says its own length.
            call 68 since 2000 capture allowed =>
                fn cuModuleLoadData(module: new(CUmodule), image: opaque(*const c_void));
            /// Loads a module from memory with compiler options, which can ask for logs.
            call 69 since 2010 capture allowed
                partial "options for logs, times, registers and verbosity; other hints to the compiler are not passed on" =>
                fn cuModuleLoadDataEx(
                    module: new(CUmodule), image: opaque(*const c_void),
                    num_options: len(u32, options), options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options));
            /// Loads a module from a fatbin in memory.
            call 70 since 2000 capture allowed =>
                fn cuModuleLoadFatBinary(module: new(CUmodule), image: opaque(*const c_void));
            /// Unloads a module.
            post 71 since 2000 capture prohibited =>
                fn cuModuleUnload(module: val(CUmodule));
            /// Finds a kernel of a module by name.
            local 72 since 2000 capture allowed =>
                fn cuModuleGetFunction(
                    function: new(CUfunction), module: val(CUmodule), name: cstr());
            /// Gives address and size of a variable of a module. Form of CUDA 2.0.
            local 73 since 2000 capture allowed =>
                fn cuModuleGetGlobal(
                    dptr: out(CUdeviceptr_v1), bytes: out(u32), module: val(CUmodule), name: cstr());
            /// Gives address and size of a variable of a module. Form of CUDA 3.2.
            local 74 since 3020 capture allowed =>
                fn cuModuleGetGlobal_v2(
                    dptr: out(CUdeviceptr), bytes: out(usize), module: val(CUmodule), name: cstr());
            /// Counts the kernels of a module.
            local 75 since 12040 capture allowed =>
                fn cuModuleGetFunctionCount(count: out(u32), module: val(CUmodule));
            /// Lists kernels of a module.
            local 76 since 12040 capture allowed =>
                fn cuModuleEnumerateFunctions(
                    functions: list_out(CUfunction, num_functions),
                    num_functions: len(u32, functions), module: val(CUmodule));
            /// Says whether modules are loaded at once or at first use.
            local 77 since 11070 capture allowed =>
                fn cuModuleGetLoadingMode(mode: out(CUmoduleLoadingMode));
            /// Finds a texture reference of a module by name.
            local 78 since 2000 capture allowed
                partial "of modules that come with PTX" =>
                fn cuModuleGetTexRef(tex_ref: out(CUtexref), module: val(CUmodule), name: cstr());
            /// Finds a surface reference of a module by name.
            local 79 since 3000 capture allowed
                partial "of modules that come with PTX" =>
                fn cuModuleGetSurfRef(
                    surf_ref: out(CUsurfref), module: val(CUmodule), name: cstr());
            // Libraries: modules of no particular context.
            /// Loads a library from memory; needs no context.
            call 80 since 12000 capture allowed
                partial "options for logs, times, registers and verbosity; other hints to the compiler are not passed on" =>
                fn cuLibraryLoadData(
                    library: new(CUlibrary), code: opaque(*const c_void),
                    jit_options: list(CUjit_option, num_jit_options),
                    jit_options_values: list(*mut c_void, num_jit_options),
                    num_jit_options: len(u32, jit_options),
                    library_options: list(CUlibraryOption, num_library_options),
                    library_option_values: list(*mut c_void, num_library_options),
                    num_library_options: len(u32, library_options));
            /// Loads a library from a file; needs no context.
            call 81 since 12000 capture allowed
                partial "options for logs, times, registers and verbosity; other hints to the compiler are not passed on" =>
                fn cuLibraryLoadFromFile(
                    library: new(CUlibrary), file_name: cstr(),
                    jit_options: list(CUjit_option, num_jit_options),
                    jit_options_values: list(*mut c_void, num_jit_options),
                    num_jit_options: len(u32, jit_options),
                    library_options: list(CUlibraryOption, num_library_options),
                    library_option_values: list(*mut c_void, num_library_options),
                    num_library_options: len(u32, library_options));
            /// Unloads a library from all contexts.
            post 82 since 12000 capture allowed =>
                fn cuLibraryUnload(library: val(CUlibrary));
            /// Finds a kernel of a library by name.
            local 83 since 12000 capture allowed =>
                fn cuLibraryGetKernel(kernel: new(CUkernel), library: val(CUlibrary), name: cstr());
            /// Gives the module that a library is in the current context.
            call 84 since 12000 capture allowed =>
                fn cuLibraryGetModule(module: new(CUmodule), library: val(CUlibrary));
            /// Gives address and size of a variable of a library in the current context.
            call 85 since 12000 capture allowed =>
                fn cuLibraryGetGlobal(
                    dptr: out(CUdeviceptr), bytes: out(usize), library: val(CUlibrary),
                    name: cstr());
            /// Gives address and size of a managed variable of a library.
            call 86 since 12000 capture allowed
                partial "each context has variables of its own, managed ones too; on NVIDIA GPUs images of machine code alone with managed variables are refused" =>
                fn cuLibraryGetManaged(
                    dptr: out(CUdeviceptr), bytes: out(usize), library: val(CUlibrary),
                    name: cstr());
            /// Gives a pointer to a function for host and device.
            local 87 since 12000 capture allowed =>
                fn cuLibraryGetUnifiedFunction(
                    fptr: out(*mut c_void), library: val(CUlibrary), symbol: cstr());
            /// Counts the kernels of a library.
            local 88 since 12040 capture allowed =>
                fn cuLibraryGetKernelCount(count: out(u32), library: val(CUlibrary));
            /// Lists kernels of a library.
            local 89 since 12040 capture allowed =>
                fn cuLibraryEnumerateKernels(
                    kernels: list_out(CUkernel, num_kernels), num_kernels: len(u32, kernels),
                    library: val(CUlibrary));
            // Kernels of libraries.
            /// Gives the function that a kernel is in the current context.
            call 90 since 12000 capture allowed =>
                fn cuKernelGetFunction(function: new(CUfunction), kernel: val(CUkernel));
            /// Gives the library of a kernel.
            local 91 since 12050 capture allowed =>
                fn cuKernelGetLibrary(library: out(CUlibrary), kernel: val(CUkernel));
            /// Gives the name of a kernel; the text lives as long as its library.
            local 92 since 12030 capture allowed =>
                fn cuKernelGetName(name: out(*const c_char), function: val(CUkernel));
            /// Gives offset and size in bytes of a parameter of a kernel.
            local 93 since 12040 capture allowed =>
                fn cuKernelGetParamInfo(
                    kernel: val(CUkernel), param_index: val(usize), param_offset: out(usize),
                    param_size: out(usize));
            /// Gives one number about a kernel on a device.
            local 94 since 12000 capture allowed =>
                fn cuKernelGetAttribute(
                    value: out(i32), attribute: val(CUfunction_attribute), kernel: val(CUkernel),
                    device: val(CUdevice));
            /// Sets an attribute of a kernel on a device.
            post 95 since 12000 capture allowed =>
                fn cuKernelSetAttribute(
                    attribute: val(CUfunction_attribute), val: val(i32), kernel: val(CUkernel),
                    device: val(CUdevice));
            /// Sets the cache preference of a kernel on a device; a hint.
            local 96 since 12000 capture allowed
                partial "checked; a preference that no engine follows" =>
                fn cuKernelSetCacheConfig(
                    kernel: val(CUkernel), config: val(CUfunc_cache), device: val(CUdevice));
            // Functions of modules.
            /// Gives the module of a function.
            local 97 since 11000 capture allowed =>
                fn cuFuncGetModule(module: out(CUmodule), function: val(CUfunction));
            /// Gives the name of a function; the text lives as long as its module.
            local 98 since 12030 capture allowed =>
                fn cuFuncGetName(name: out(*const c_char), function: val(CUfunction));
            /// Gives offset and size in bytes of a parameter of a function.
            local 99 since 12040 capture allowed =>
                fn cuFuncGetParamInfo(
                    function: val(CUfunction), param_index: val(usize), param_offset: out(usize),
                    param_size: out(usize));
            /// Gives one number about a function.
            local 100 since 2020 capture allowed =>
                fn cuFuncGetAttribute(
                    value: out(i32), attribute: val(CUfunction_attribute),
                    function: val(CUfunction));
            /// Sets an attribute of a function.
            post 101 since 9000 capture allowed =>
                fn cuFuncSetAttribute(
                    function: val(CUfunction), attribute: val(CUfunction_attribute),
                    value: val(i32));
            /// Sets the cache preference of a function; a hint.
            local 102 since 3000 capture allowed
                partial "checked; a preference that no engine follows" =>
                fn cuFuncSetCacheConfig(function: val(CUfunction), config: val(CUfunc_cache));
            /// Sets the shared memory bank size of a function; a hint.
            local 103 since 4020 capture allowed
                partial "checked; a preference that no engine follows" =>
                fn cuFuncSetSharedMemConfig(function: val(CUfunction), config: val(CUsharedconfig));
            /// Says whether the code of a function is on the device yet.
            local 104 since 12040 capture allowed =>
                fn cuFuncIsLoaded(state: out(CUfunctionLoadingState), function: val(CUfunction));
            /// Has the code of a function on the device from now on.
            local 105 since 12040 capture allowed =>
                fn cuFuncLoad(function: val(CUfunction));
            /// Sets the block size of the next old-style launch.
            local 106 since 2000 capture prohibited =>
                fn cuFuncSetBlockShape(
                    function: val(CUfunction), x: val(i32), y: val(i32), z: val(i32));
            /// Sets the dynamic shared memory of the next old-style launch.
            local 107 since 2000 capture prohibited =>
                fn cuFuncSetSharedSize(function: val(CUfunction), bytes: val(u32));
            /// Sets the parameter size of the next old-style launch.
            local 108 since 2000 capture prohibited =>
                fn cuParamSetSize(function: val(CUfunction), bytes: val(u32));
            /// Sets an integer parameter of the next old-style launch.
            local 109 since 2000 capture prohibited =>
                fn cuParamSeti(function: val(CUfunction), offset: val(i32), value: val(u32));
            /// Sets a float parameter of the next old-style launch.
            local 110 since 2000 capture prohibited =>
                fn cuParamSetf(function: val(CUfunction), offset: val(i32), value: val(f32));
            /// Sets the bytes of a parameter of the next old-style launch.
            local 111 since 2000 capture prohibited =>
                fn cuParamSetv(
                    function: val(CUfunction), offset: val(i32), ptr: bytes(bytes),
                    bytes: len(u32, ptr));
            /// Binds a texture reference to an old-style launch.
            local 112 since 2000 capture prohibited =>
                fn cuParamSetTexRef(
                    function: val(CUfunction), texunit: val(i32), tex_ref: val(CUtexref));
            // Launches.
            /// Launches a kernel; parameters come as pointers or as one packed buffer.
            post 113 since 4000 twin "_ptsz" 7000 capture node =>
                fn cuLaunchKernel(
                    function: val(CUfunction), grid_dim_x: val(u32), grid_dim_y: val(u32),
                    grid_dim_z: val(u32), block_dim_x: val(u32), block_dim_y: val(u32),
                    block_dim_z: val(u32), shared_mem_bytes: val(u32), stream: val(CUstream),
                    kernel_params: opaque(*mut *mut c_void), extra: opaque(*mut *mut c_void));
            /// Launches a kernel with launch attributes.
            post 114 since 11060 twin "_ptsz" 11060 capture node
                partial "events of attributes are recorded once the kernel is done; nodes that the device updates are refused" =>
                fn cuLaunchKernelEx(
                    config: struct_in(CUlaunchConfig), function: val(CUfunction),
                    kernel_params: opaque(*mut *mut c_void), extra: opaque(*mut *mut c_void));
            /// Launches a kernel all of whose blocks are resident at once.
            post 115 since 9000 twin "_ptsz" 9000 capture node =>
                fn cuLaunchCooperativeKernel(
                    function: val(CUfunction), grid_dim_x: val(u32), grid_dim_y: val(u32),
                    grid_dim_z: val(u32), block_dim_x: val(u32), block_dim_y: val(u32),
                    block_dim_z: val(u32), shared_mem_bytes: val(u32), stream: val(CUstream),
                    kernel_params: opaque(*mut *mut c_void));
            /// Launches cooperating kernels on several devices.
            post 116 since 9000 capture prohibited
                partial "kernels that synchronise across devices are refused when they are loaded" =>
                fn cuLaunchCooperativeKernelMultiDevice(
                    launch_params_list: list(CUDA_LAUNCH_PARAMS, num_devices),
                    num_devices: len(u32, launch_params_list), flags: val(u32));
            /// Calls a host function when the stream has come so far.
            custom 117 since 10000 twin "_ptsz" 10000 capture node =>
                fn cuLaunchHostFunc(
                    stream: val(CUstream), callback: val(CUhostFn), user_data: opaque(*mut c_void));
            /// Launches an old-style kernel with one block.
            post 118 since 2000 capture prohibited =>
                fn cuLaunch(function: val(CUfunction));
            /// Launches an old-style kernel with a grid of blocks.
            post 119 since 2000 capture prohibited =>
                fn cuLaunchGrid(
                    function: val(CUfunction), grid_width: val(i32), grid_height: val(i32));
            /// Launches an old-style kernel with a grid of blocks in a stream.
            post 120 since 2000 capture node =>
                fn cuLaunchGridAsync(
                    function: val(CUfunction), grid_width: val(i32), grid_height: val(i32),
                    stream: val(CUstream));
            // Occupancy.
            /// Blocks of a kernel that fit on one multiprocessor.
            local 121 since 6050 capture allowed =>
                fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    num_blocks: out(i32), function: val(CUfunction), block_size: val(i32),
                    dynamic_bytes: val(usize));
            /// Blocks of a kernel that fit on one multiprocessor, with flags.
            local 122 since 7000 capture allowed =>
                fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                    num_blocks: out(i32), function: val(CUfunction), block_size: val(i32),
                    dynamic_bytes: val(usize), flags: val(u32));
            /// Proposes a block size for full use of the device.
            local 123 since 6050 capture allowed =>
                fn cuOccupancyMaxPotentialBlockSize(
                    min_grid_size: out(i32), block_size: out(i32), function: val(CUfunction),
                    dynamic_bytes_of: val(CUoccupancyB2DSize), dynamic_bytes: val(usize),
                    block_size_limit: val(i32));
            /// Proposes a block size for full use of the device, with flags.
            local 124 since 7000 capture allowed =>
                fn cuOccupancyMaxPotentialBlockSizeWithFlags(
                    min_grid_size: out(i32), block_size: out(i32), function: val(CUfunction),
                    dynamic_bytes_of: val(CUoccupancyB2DSize), dynamic_bytes: val(usize),
                    block_size_limit: val(i32), flags: val(u32));
            /// Dynamic shared memory in bytes a block may have with so many blocks on a multiprocessor.
            local 125 since 10020 capture allowed =>
                fn cuOccupancyAvailableDynamicSMemPerBlock(
                    dynamic_bytes: out(usize), function: val(CUfunction), num_blocks: val(i32),
                    block_size: val(i32));
            /// Clusters of a launch that fit on the device at once.
            local 126 since 11070 capture allowed =>
                fn cuOccupancyMaxActiveClusters(
                    num_clusters: out(i32), function: val(CUfunction),
                    config: struct_in(CUlaunchConfig));
            /// The greatest cluster that a launch could have.
            local 127 since 11070 capture allowed =>
                fn cuOccupancyMaxPotentialClusterSize(
                    cluster_size: out(i32), function: val(CUfunction),
                    config: struct_in(CUlaunchConfig));
            // Memory.
            /// Free and total device memory in bytes, as this client may see them. Form of CUDA 2.0.
            call 128 since 2000 capture allowed =>
                fn cuMemGetInfo(free: out(u32), total: out(u32));
            /// Free and total device memory in bytes, as this client may see them. Form of CUDA 3.2.
            call 129 since 3020 capture allowed =>
                fn cuMemGetInfo_v2(free: out(usize), total: out(usize));
            /// Allocates device memory. Form of CUDA 2.0.
            call 130 since 2000 capture prohibited
                partial "no memory lies at addresses of 32 bits: always out of memory" =>
                fn cuMemAlloc(dptr: out(CUdeviceptr_v1), byte_count: val(u32));
            /// Allocates device memory. Form of CUDA 3.2.
            call 131 since 3020 capture prohibited =>
                fn cuMemAlloc_v2(dptr: out(CUdeviceptr), byte_count: val(usize));
            /// Allocates rows of device memory at a pitch that suits copies. Form of CUDA 2.0.
            call 132 since 2000 capture prohibited
                partial "no memory lies at addresses of 32 bits: always out of memory" =>
                fn cuMemAllocPitch(
                    dptr: out(CUdeviceptr_v1), pitch: out(u32), width: val(u32), height: val(u32),
                    element_size_bytes: val(u32));
            /// Allocates rows of device memory at a pitch that suits copies. Form of CUDA 3.2.
            call 133 since 3020 capture prohibited =>
                fn cuMemAllocPitch_v2(
                    dptr: out(CUdeviceptr), pitch: out(usize), width: val(usize),
                    height: val(usize), element_size_bytes: val(u32));
            /// Frees device memory once the work posted before has finished. Form of CUDA 2.0.
            post 134 since 2000 capture prohibited =>
                fn cuMemFree(dptr: val(CUdeviceptr_v1));
            /// Frees device memory once the work posted before has finished. Form of CUDA 3.2.
            post 135 since 3020 capture prohibited =>
                fn cuMemFree_v2(dptr: val(CUdeviceptr));
            /// Gives base and size of the allocation that an address lies in. Form of CUDA 2.0.
            local 136 since 2000 capture allowed =>
                fn cuMemGetAddressRange(
                    base: out(CUdeviceptr_v1), size: out(u32), dptr: val(CUdeviceptr_v1));
            /// Gives base and size of the allocation that an address lies in. Form of CUDA 3.2.
            local 137 since 3020 capture allowed =>
                fn cuMemGetAddressRange_v2(
                    base: out(CUdeviceptr), size: out(usize), dptr: val(CUdeviceptr));
            /// Allocates page-locked host memory. Form of CUDA 2.0.
            call 138 since 2000 capture prohibited =>
                fn cuMemAllocHost(pointer: out(*mut c_void), byte_count: val(u32));
            /// Allocates page-locked host memory. Form of CUDA 3.2.
            call 139 since 3020 capture prohibited =>
                fn cuMemAllocHost_v2(pointer: out(*mut c_void), byte_count: val(usize));
            /// Allocates page-locked host memory, with flags.
            call 140 since 2020 capture prohibited =>
                fn cuMemHostAlloc(
                    pointer: out(*mut c_void), byte_count: val(usize), flags: val(u32));
            /// Frees page-locked host memory.
            post 141 since 2000 capture prohibited =>
                fn cuMemFreeHost(pointer: opaque(*mut c_void));
            /// Gives the device address of page-locked host memory. Form of CUDA 2.2.
            local 142 since 2020 capture allowed =>
                fn cuMemHostGetDevicePointer(
                    dptr: out(CUdeviceptr_v1), pointer: opaque(*mut c_void), flags: val(u32));
            /// Gives the device address of page-locked host memory. Form of CUDA 3.2.
            local 143 since 3020 capture allowed =>
                fn cuMemHostGetDevicePointer_v2(
                    dptr: out(CUdeviceptr), pointer: opaque(*mut c_void), flags: val(u32));
            /// Gives the flags that page-locked host memory was allocated with.
            local 144 since 2030 capture allowed =>
                fn cuMemHostGetFlags(flags: out(u32), pointer: opaque(*mut c_void));
            /// Page-locks host memory of the program. Form of CUDA 4.0.
            call 145 since 4000 capture prohibited
                partial "not stacks, code, or part of another registration's page; shared mappings only if their file is found (by a descriptor, its path, or with CAP_CHECKPOINT_RESTORE) and lies in tmpfs, hugetlbfs, ext4, XFS, Btrfs or F2FS; where userfaultfd is not allowed, what other threads write to its first and last page during the call may be lost" =>
                fn cuMemHostRegister(
                    pointer: opaque(*mut c_void), byte_count: val(usize), flags: val(u32));
            /// Page-locks host memory of the program. Form of CUDA 6.5.
            call 146 since 6050 capture prohibited
                partial "not stacks, code, or part of another registration's page; shared mappings only if their file is found (by a descriptor, its path, or with CAP_CHECKPOINT_RESTORE) and lies in tmpfs, hugetlbfs, ext4, XFS, Btrfs or F2FS; where userfaultfd is not allowed, what other threads write to its first and last page during the call may be lost" =>
                fn cuMemHostRegister_v2(
                    pointer: opaque(*mut c_void), byte_count: val(usize), flags: val(u32));
            /// Ends the page-locking of host memory of the program.
            call 147 since 4000 capture prohibited =>
                fn cuMemHostUnregister(pointer: opaque(*mut c_void));
            /// Gives one fact about an address.
            local 148 since 4000 capture allowed
                partial "tokens for peer access are refused" =>
                fn cuPointerGetAttribute(
                    data: opaque(*mut c_void), attribute: val(CUpointer_attribute),
                    ptr: val(CUdeviceptr));
            /// Gives several facts about an address; unknown addresses are no error.
            local 149 since 7000 capture allowed =>
                fn cuPointerGetAttributes(
                    num_attributes: len(u32, attributes),
                    attributes: list(CUpointer_attribute, num_attributes),
                    data: list(*mut c_void, num_attributes), ptr: val(CUdeviceptr));
            /// Sets an attribute of an allocation.
            local 150 since 6000 capture allowed =>
                fn cuPointerSetAttribute(
                    value: opaque(*const c_void), attribute: val(CUpointer_attribute),
                    ptr: val(CUdeviceptr));
            // Copies.
            /// Copies between two addresses, whatever memory they lie in.
            custom 151 since 4000 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpy(dst: val(CUdeviceptr), src: val(CUdeviceptr), byte_count: val(usize));
            /// Copies host memory to the device; the source may be reused on return. Form of CUDA 2.0.
            custom 152 since 2000 capture invalidates =>
                fn cuMemcpyHtoD(
                    dst_device: val(CUdeviceptr_v1), src_host: bytes(byte_count),
                    byte_count: len(u32, src_host));
            /// Copies host memory to the device; the source may be reused on return. Form of CUDA 3.2.
            custom 153 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyHtoD_v2(
                    dst_device: val(CUdeviceptr), src_host: bytes(byte_count),
                    byte_count: len(usize, src_host));
            /// Copies device memory to the host. Form of CUDA 2.0.
            custom 154 since 2000 capture invalidates =>
                fn cuMemcpyDtoH(
                    dst_host: bytes_out(byte_count), src_device: val(CUdeviceptr_v1),
                    byte_count: len(u32, dst_host));
            /// Copies device memory to the host. Form of CUDA 3.2.
            custom 155 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyDtoH_v2(
                    dst_host: bytes_out(byte_count), src_device: val(CUdeviceptr),
                    byte_count: len(usize, dst_host));
            /// Copies device memory to device memory. Form of CUDA 2.0.
            post 156 since 2000 capture invalidates =>
                fn cuMemcpyDtoD(
                    dst_device: val(CUdeviceptr_v1), src_device: val(CUdeviceptr_v1),
                    byte_count: val(u32));
            /// Copies device memory to device memory. Form of CUDA 3.2.
            post 157 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyDtoD_v2(
                    dst_device: val(CUdeviceptr), src_device: val(CUdeviceptr),
                    byte_count: val(usize));
            /// Copies a rectangle. Form of CUDA 2.0.
            custom 158 since 2000 capture invalidates =>
                fn cuMemcpy2D(copy: struct_in(CUDA_MEMCPY2D_v1));
            /// Copies a rectangle. Form of CUDA 3.2.
            custom 159 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpy2D_v2(copy: struct_in(CUDA_MEMCPY2D));
            /// Copies a rectangle, whatever its pitches. Form of CUDA 2.0.
            custom 160 since 2000 capture invalidates =>
                fn cuMemcpy2DUnaligned(copy: struct_in(CUDA_MEMCPY2D_v1));
            /// Copies a rectangle, whatever its pitches. Form of CUDA 3.2.
            custom 161 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpy2DUnaligned_v2(copy: struct_in(CUDA_MEMCPY2D));
            /// Copies a box. Form of CUDA 2.0.
            custom 162 since 2000 capture invalidates =>
                fn cuMemcpy3D(copy: struct_in(CUDA_MEMCPY3D_v1));
            /// Copies a box. Form of CUDA 3.2.
            custom 163 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpy3D_v2(copy: struct_in(CUDA_MEMCPY3D));
            /// Copies between two addresses in a stream, whatever memory they lie in.
            custom 164 since 4000 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyAsync(
                    dst: val(CUdeviceptr), src: val(CUdeviceptr), byte_count: val(usize),
                    stream: val(CUstream));
            /// Copies host memory to the device in a stream. Form of CUDA 2.0.
            custom 165 since 2000 capture node =>
                fn cuMemcpyHtoDAsync(
                    dst_device: val(CUdeviceptr_v1), src_host: bytes(byte_count),
                    byte_count: len(u32, src_host), stream: val(CUstream));
            /// Copies host memory to the device in a stream. Form of CUDA 3.2.
            custom 166 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyHtoDAsync_v2(
                    dst_device: val(CUdeviceptr), src_host: bytes(byte_count),
                    byte_count: len(usize, src_host), stream: val(CUstream));
            /// Copies device memory to the host in a stream. Form of CUDA 2.0.
            custom 167 since 2000 capture node =>
                fn cuMemcpyDtoHAsync(
                    dst_host: bytes_out(byte_count), src_device: val(CUdeviceptr_v1),
                    byte_count: len(u32, dst_host), stream: val(CUstream));
            /// Copies device memory to the host in a stream. Form of CUDA 3.2.
            custom 168 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyDtoHAsync_v2(
                    dst_host: bytes_out(byte_count), src_device: val(CUdeviceptr),
                    byte_count: len(usize, dst_host), stream: val(CUstream));
            /// Copies device memory to device memory in a stream. Form of CUDA 3.0.
            post 169 since 3000 capture node =>
                fn cuMemcpyDtoDAsync(
                    dst_device: val(CUdeviceptr_v1), src_device: val(CUdeviceptr_v1),
                    byte_count: val(u32), stream: val(CUstream));
            /// Copies device memory to device memory in a stream. Form of CUDA 3.2.
            post 170 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyDtoDAsync_v2(
                    dst_device: val(CUdeviceptr), src_device: val(CUdeviceptr),
                    byte_count: val(usize), stream: val(CUstream));
            /// Copies a rectangle in a stream. Form of CUDA 2.0.
            custom 171 since 2000 capture node =>
                fn cuMemcpy2DAsync(copy: struct_in(CUDA_MEMCPY2D_v1), stream: val(CUstream));
            /// Copies a rectangle in a stream. Form of CUDA 3.2.
            custom 172 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpy2DAsync_v2(copy: struct_in(CUDA_MEMCPY2D), stream: val(CUstream));
            /// Copies a box in a stream. Form of CUDA 2.0.
            custom 173 since 2000 capture node =>
                fn cuMemcpy3DAsync(copy: struct_in(CUDA_MEMCPY3D_v1), stream: val(CUstream));
            /// Copies a box in a stream. Form of CUDA 3.2.
            custom 174 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpy3DAsync_v2(copy: struct_in(CUDA_MEMCPY3D), stream: val(CUstream));
            /// Copies between two contexts.
            custom 175 since 4000 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyPeer(
                    dst_device: val(CUdeviceptr), dst_context: val(CUcontext),
                    src_device: val(CUdeviceptr), src_context: val(CUcontext),
                    byte_count: val(usize));
            /// Copies between two contexts in a stream.
            custom 176 since 4000 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyPeerAsync(
                    dst_device: val(CUdeviceptr), dst_context: val(CUcontext),
                    src_device: val(CUdeviceptr), src_context: val(CUcontext),
                    byte_count: val(usize), stream: val(CUstream));
            /// Copies a box between two contexts.
            custom 177 since 4000 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpy3DPeer(copy: struct_in(CUDA_MEMCPY3D_PEER));
            /// Copies a box between two contexts in a stream.
            custom 178 since 4000 twin "_ptsz" 7000 capture node =>
                fn cuMemcpy3DPeerAsync(copy: struct_in(CUDA_MEMCPY3D_PEER), stream: val(CUstream));
            /// Copies a list of runs in a stream. Form of CUDA 12.8.
            custom 179 since 12080 twin "_ptsz" 12080 capture prohibited =>
                fn cuMemcpyBatchAsync(
                    dsts: list(CUdeviceptr, count), srcs: list(CUdeviceptr, count),
                    sizes: list(usize, count), count: len(usize, dsts),
                    attrs: list(CUmemcpyAttributes, num_attrs), attr_idxs: list(usize, num_attrs),
                    num_attrs: len(usize, attrs), fail_idx: out(usize), stream: val(CUstream));
            /// Copies a list of runs in a stream. Form of CUDA 13.0.
            custom 180 since 13000 twin "_ptsz" 13000 capture prohibited =>
                fn cuMemcpyBatchAsync_v2(
                    dsts: list(CUdeviceptr, count), srcs: list(CUdeviceptr, count),
                    sizes: list(usize, count), count: len(usize, dsts),
                    attrs: list(CUmemcpyAttributes, num_attrs), attr_idxs: list(usize, num_attrs),
                    num_attrs: len(usize, attrs), stream: val(CUstream));
            /// Copies a list of boxes in a stream. Form of CUDA 12.8.
            custom 181 since 12080 twin "_ptsz" 12080 capture prohibited =>
                fn cuMemcpy3DBatchAsync(
                    num_params: len(usize, op_list),
                    op_list: list(CUDA_MEMCPY3D_BATCH_OP, num_params), fail_idx: out(usize),
                    flags: val(u64), stream: val(CUstream));
            /// Copies a list of boxes in a stream. Form of CUDA 13.0.
            custom 182 since 13000 twin "_ptsz" 13000 capture prohibited =>
                fn cuMemcpy3DBatchAsync_v2(
                    num_params: len(usize, op_list),
                    op_list: list(CUDA_MEMCPY3D_BATCH_OP, num_params), flags: val(u64),
                    stream: val(CUstream));
            /// Copies host memory to an array. Form of CUDA 2.0.
            custom 183 since 2000 capture invalidates =>
                fn cuMemcpyHtoA(
                    dst_array: val(CUarray), dst_offset: val(u32), src_host: bytes(byte_count),
                    byte_count: len(u32, src_host));
            /// Copies host memory to an array. Form of CUDA 3.2.
            custom 184 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyHtoA_v2(
                    dst_array: val(CUarray), dst_offset: val(usize), src_host: bytes(byte_count),
                    byte_count: len(usize, src_host));
            /// Copies an array to host memory. Form of CUDA 2.0.
            custom 185 since 2000 capture invalidates =>
                fn cuMemcpyAtoH(
                    dst_host: bytes_out(byte_count), src_array: val(CUarray), src_offset: val(u32),
                    byte_count: len(u32, dst_host));
            /// Copies an array to host memory. Form of CUDA 3.2.
            custom 186 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyAtoH_v2(
                    dst_host: bytes_out(byte_count), src_array: val(CUarray),
                    src_offset: val(usize), byte_count: len(usize, dst_host));
            /// Copies device memory to an array. Form of CUDA 2.0.
            post 187 since 2000 capture invalidates =>
                fn cuMemcpyDtoA(
                    dst_array: val(CUarray), dst_offset: val(u32), src_device: val(CUdeviceptr_v1),
                    byte_count: val(u32));
            /// Copies device memory to an array. Form of CUDA 3.2.
            post 188 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyDtoA_v2(
                    dst_array: val(CUarray), dst_offset: val(usize), src_device: val(CUdeviceptr),
                    byte_count: val(usize));
            /// Copies an array to device memory. Form of CUDA 2.0.
            post 189 since 2000 capture invalidates =>
                fn cuMemcpyAtoD(
                    dst_device: val(CUdeviceptr_v1), src_array: val(CUarray), src_offset: val(u32),
                    byte_count: val(u32));
            /// Copies an array to device memory. Form of CUDA 3.2.
            post 190 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyAtoD_v2(
                    dst_device: val(CUdeviceptr), src_array: val(CUarray), src_offset: val(usize),
                    byte_count: val(usize));
            /// Copies an array to an array. Form of CUDA 2.0.
            post 191 since 2000 capture invalidates =>
                fn cuMemcpyAtoA(
                    dst_array: val(CUarray), dst_offset: val(u32), src_array: val(CUarray),
                    src_offset: val(u32), byte_count: val(u32));
            /// Copies an array to an array. Form of CUDA 3.2.
            post 192 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemcpyAtoA_v2(
                    dst_array: val(CUarray), dst_offset: val(usize), src_array: val(CUarray),
                    src_offset: val(usize), byte_count: val(usize));
            /// Copies host memory to an array in a stream. Form of CUDA 2.0.
            custom 193 since 2000 capture node =>
                fn cuMemcpyHtoAAsync(
                    dst_array: val(CUarray), dst_offset: val(u32), src_host: bytes(byte_count),
                    byte_count: len(u32, src_host), stream: val(CUstream));
            /// Copies host memory to an array in a stream. Form of CUDA 3.2.
            custom 194 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyHtoAAsync_v2(
                    dst_array: val(CUarray), dst_offset: val(usize), src_host: bytes(byte_count),
                    byte_count: len(usize, src_host), stream: val(CUstream));
            /// Copies an array to host memory in a stream. Form of CUDA 2.0.
            custom 195 since 2000 capture node =>
                fn cuMemcpyAtoHAsync(
                    dst_host: bytes_out(byte_count), src_array: val(CUarray), src_offset: val(u32),
                    byte_count: len(u32, dst_host), stream: val(CUstream));
            /// Copies an array to host memory in a stream. Form of CUDA 3.2.
            custom 196 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemcpyAtoHAsync_v2(
                    dst_host: bytes_out(byte_count), src_array: val(CUarray),
                    src_offset: val(usize), byte_count: len(usize, dst_host), stream: val(CUstream));
            // Fills.
            /// Fills device memory with bytes; the host does not wait. Form of CUDA 2.0.
            post 197 since 2000 capture invalidates =>
                fn cuMemsetD8(dst_device: val(CUdeviceptr_v1), value: val(u8), count: val(u32));
            /// Fills device memory with bytes; the host does not wait. Form of CUDA 3.2.
            post 198 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemsetD8_v2(dst_device: val(CUdeviceptr), value: val(u8), count: val(usize));
            /// Fills rows of device memory with bytes; the host does not wait. Form of CUDA 2.0.
            post 199 since 2000 capture invalidates =>
                fn cuMemsetD2D8(
                    dst_device: val(CUdeviceptr_v1), dst_pitch: val(u32), value: val(u8),
                    width: val(u32), height: val(u32));
            /// Fills rows of device memory with bytes; the host does not wait. Form of CUDA 3.2.
            post 200 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemsetD2D8_v2(
                    dst_device: val(CUdeviceptr), dst_pitch: val(usize), value: val(u8),
                    width: val(usize), height: val(usize));
            /// Fills device memory with bytes in a stream.
            post 201 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemsetD8Async(
                    dst_device: val(CUdeviceptr), value: val(u8), count: val(usize),
                    stream: val(CUstream));
            /// Fills rows of device memory with bytes in a stream.
            post 202 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemsetD2D8Async(
                    dst_device: val(CUdeviceptr), dst_pitch: val(usize), value: val(u8),
                    width: val(usize), height: val(usize), stream: val(CUstream));
            /// Fills device memory with 16-bit values; the host does not wait. Form of CUDA 2.0.
            post 203 since 2000 capture invalidates =>
                fn cuMemsetD16(dst_device: val(CUdeviceptr_v1), value: val(u16), count: val(u32));
            /// Fills device memory with 16-bit values; the host does not wait. Form of CUDA 3.2.
            post 204 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemsetD16_v2(dst_device: val(CUdeviceptr), value: val(u16), count: val(usize));
            /// Fills rows of device memory with 16-bit values; the host does not wait. Form of CUDA 2.0.
            post 205 since 2000 capture invalidates =>
                fn cuMemsetD2D16(
                    dst_device: val(CUdeviceptr_v1), dst_pitch: val(u32), value: val(u16),
                    width: val(u32), height: val(u32));
            /// Fills rows of device memory with 16-bit values; the host does not wait. Form of CUDA 3.2.
            post 206 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemsetD2D16_v2(
                    dst_device: val(CUdeviceptr), dst_pitch: val(usize), value: val(u16),
                    width: val(usize), height: val(usize));
            /// Fills device memory with 16-bit values in a stream.
            post 207 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemsetD16Async(
                    dst_device: val(CUdeviceptr), value: val(u16), count: val(usize),
                    stream: val(CUstream));
            /// Fills rows of device memory with 16-bit values in a stream.
            post 208 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemsetD2D16Async(
                    dst_device: val(CUdeviceptr), dst_pitch: val(usize), value: val(u16),
                    width: val(usize), height: val(usize), stream: val(CUstream));
            /// Fills device memory with 32-bit values; the host does not wait. Form of CUDA 2.0.
            post 209 since 2000 capture invalidates =>
                fn cuMemsetD32(dst_device: val(CUdeviceptr_v1), value: val(u32), count: val(u32));
            /// Fills device memory with 32-bit values; the host does not wait. Form of CUDA 3.2.
            post 210 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemsetD32_v2(dst_device: val(CUdeviceptr), value: val(u32), count: val(usize));
            /// Fills rows of device memory with 32-bit values; the host does not wait. Form of CUDA 2.0.
            post 211 since 2000 capture invalidates =>
                fn cuMemsetD2D32(
                    dst_device: val(CUdeviceptr_v1), dst_pitch: val(u32), value: val(u32),
                    width: val(u32), height: val(u32));
            /// Fills rows of device memory with 32-bit values; the host does not wait. Form of CUDA 3.2.
            post 212 since 3020 twin "_ptds" 7000 capture invalidates =>
                fn cuMemsetD2D32_v2(
                    dst_device: val(CUdeviceptr), dst_pitch: val(usize), value: val(u32),
                    width: val(usize), height: val(usize));
            /// Fills device memory with 32-bit values in a stream.
            post 213 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemsetD32Async(
                    dst_device: val(CUdeviceptr), value: val(u32), count: val(usize),
                    stream: val(CUstream));
            /// Fills rows of device memory with 32-bit values in a stream.
            post 214 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuMemsetD2D32Async(
                    dst_device: val(CUdeviceptr), dst_pitch: val(usize), value: val(u32),
                    width: val(usize), height: val(usize), stream: val(CUstream));
            // Streams.
            /// Makes a stream.
            create 215 since 2000 capture allowed =>
                fn cuStreamCreate(stream: new(CUstream), flags: val(u32));
            /// Makes a stream with a priority.
            create 216 since 5050 capture allowed =>
                fn cuStreamCreateWithPriority(
                    stream: new(CUstream), flags: val(u32), priority: val(i32));
            /// Ends a stream; its work runs to the end first. Form of CUDA 2.0.
            post 217 since 2000 capture invalidates =>
                fn cuStreamDestroy(stream: val(CUstream));
            /// Ends a stream; its work runs to the end first. Form of CUDA 4.0.
            post 218 since 4000 capture invalidates =>
                fn cuStreamDestroy_v2(stream: val(CUstream));
            /// Waits for all work of a stream.
            custom 219 since 2000 twin "_ptsz" 7000 capture invalidates =>
                fn cuStreamSynchronize(stream: val(CUstream));
            /// Says whether all work of a stream has finished (NOT_READY if not).
            local 220 since 2000 twin "_ptsz" 7000 capture invalidates =>
                fn cuStreamQuery(stream: val(CUstream));
            /// Makes later work of a stream wait for an event.
            post 221 since 3020 twin "_ptsz" 7000 capture node =>
                fn cuStreamWaitEvent(stream: val(CUstream), event: val(CUevent), flags: val(u32));
            /// Gives the priority of a stream.
            local 222 since 5050 twin "_ptsz" 7000 capture allowed =>
                fn cuStreamGetPriority(stream: val(CUstream), priority: out(i32));
            /// Gives the flags of a stream.
            local 223 since 5050 twin "_ptsz" 7000 capture allowed =>
                fn cuStreamGetFlags(stream: val(CUstream), flags: out(u32));
            /// Gives a number that no other stream of this process has had.
            local 224 since 12000 twin "_ptsz" 12000 capture allowed =>
                fn cuStreamGetId(stream: val(CUstream), stream_id: out(u64));
            /// Gives the context of a stream. Form of CUDA 9.2.
            local 225 since 9020 twin "_ptsz" 9020 capture allowed =>
                fn cuStreamGetCtx(stream: val(CUstream), ctx: out(CUcontext));
            /// Gives the context of a stream. Form of CUDA 12.5.
            local 226 since 12050 twin "_ptsz" 12050 capture allowed =>
                fn cuStreamGetCtx_v2(
                    stream: val(CUstream), ctx: out(CUcontext), green_ctx: out(CUgreenCtx));
            /// Gives the device of a stream.
            local 227 since 12080 twin "_ptsz" 12080 capture allowed =>
                fn cuStreamGetDevice(stream: val(CUstream), device: out(CUdevice));
            /// Calls a host function with the status of the stream when it has come so far.
            custom 228 since 5000 twin "_ptsz" 7000 capture invalidates =>
                fn cuStreamAddCallback(
                    stream: val(CUstream), callback: val(CUstreamCallback),
                    user_data: opaque(*mut c_void), flags: val(u32));
            /// Ties managed memory to a stream.
            local 229 since 6000 twin "_ptsz" 7000 capture prohibited =>
                fn cuStreamAttachMemAsync(
                    stream: val(CUstream), dptr: val(CUdeviceptr), length: val(usize),
                    flags: val(u32));
            /// Gives a stream the attributes of another.
            local 230 since 11000 twin "_ptsz" 11000 capture allowed =>
                fn cuStreamCopyAttributes(dst_stream: val(CUstream), src_stream: val(CUstream));
            /// Gives an attribute of a stream.
            local 231 since 11000 twin "_ptsz" 11000 capture allowed =>
                fn cuStreamGetAttribute(
                    stream: val(CUstream), attribute: val(CUstreamAttrID),
                    value: struct_out(CUstreamAttrValue));
            /// Sets an attribute of a stream.
            local 232 since 11000 twin "_ptsz" 11000 capture allowed =>
                fn cuStreamSetAttribute(
                    stream: val(CUstream), attribute: val(CUstreamAttrID),
                    param: struct_in(CUstreamAttrValue));
            /// Makes a stream wait for a 32-bit value in memory. Form of CUDA 8.0.
            post 233 since 8000 twin "_ptsz" 8000 capture node =>
                fn cuStreamWaitValue32(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u32), flags: val(u32));
            /// Makes a stream wait for a 32-bit value in memory. Form of CUDA 11.7.
            post 234 since 11070 twin "_ptsz" 11070 capture node =>
                fn cuStreamWaitValue32_v2(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u32), flags: val(u32));
            /// Makes a stream wait for a 64-bit value in memory. Form of CUDA 9.0.
            post 235 since 9000 twin "_ptsz" 9000 capture node =>
                fn cuStreamWaitValue64(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u64), flags: val(u32));
            /// Makes a stream wait for a 64-bit value in memory. Form of CUDA 11.7.
            post 236 since 11070 twin "_ptsz" 11070 capture node =>
                fn cuStreamWaitValue64_v2(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u64), flags: val(u32));
            /// Has a stream write a 32-bit value to memory. Form of CUDA 8.0.
            post 237 since 8000 twin "_ptsz" 8000 capture node =>
                fn cuStreamWriteValue32(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u32), flags: val(u32));
            /// Has a stream write a 32-bit value to memory. Form of CUDA 11.7.
            post 238 since 11070 twin "_ptsz" 11070 capture node =>
                fn cuStreamWriteValue32_v2(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u32), flags: val(u32));
            /// Has a stream write a 64-bit value to memory. Form of CUDA 9.0.
            post 239 since 9000 twin "_ptsz" 9000 capture node =>
                fn cuStreamWriteValue64(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u64), flags: val(u32));
            /// Has a stream write a 64-bit value to memory. Form of CUDA 11.7.
            post 240 since 11070 twin "_ptsz" 11070 capture node =>
                fn cuStreamWriteValue64_v2(
                    stream: val(CUstream), addr: val(CUdeviceptr), value: val(u64), flags: val(u32));
            /// Has a stream carry out a list of waits and writes on memory. Form of CUDA 8.0.
            post 241 since 8000 twin "_ptsz" 8000 capture node =>
                fn cuStreamBatchMemOp(
                    stream: val(CUstream), count: len(u32, param_array),
                    param_array: list(CUstreamBatchMemOpParams, count), flags: val(u32));
            /// Has a stream carry out a list of waits and writes on memory. Form of CUDA 11.7.
            post 242 since 11070 twin "_ptsz" 11070 capture node =>
                fn cuStreamBatchMemOp_v2(
                    stream: val(CUstream), count: len(u32, param_array),
                    param_array: list(CUstreamBatchMemOpParams, count), flags: val(u32));
            // Stream capture.
            /// Says whether a stream is being captured.
            local 243 since 10000 twin "_ptsz" 10000 capture allowed =>
                fn cuStreamIsCapturing(stream: val(CUstream), status: out(CUstreamCaptureStatus));
            /// Gives the state of the capture of a stream. Form of CUDA 10.1.
            local 244 since 10010 twin "_ptsz" 10010 capture allowed =>
                fn cuStreamGetCaptureInfo(
                    stream: val(CUstream), status: out(CUstreamCaptureStatus), id: out(u64));
            /// Gives the state of the capture of a stream. Form of CUDA 11.3.
            local 245 since 11030 twin "_ptsz" 11030 capture allowed =>
                fn cuStreamGetCaptureInfo_v2(
                    stream: val(CUstream), status: out(CUstreamCaptureStatus), id: out(u64),
                    graph: out(CUgraph), dependencies: out(*const CUgraphNode),
                    num_dependencies: out(usize));
            /// Gives the state of the capture of a stream. Form of CUDA 12.3.
            local 246 since 12030 twin "_ptsz" 12030 capture allowed =>
                fn cuStreamGetCaptureInfo_v3(
                    stream: val(CUstream), status: out(CUstreamCaptureStatus), id: out(u64),
                    graph: out(CUgraph), dependencies: out(*const CUgraphNode),
                    edge_data: out(*const CUgraphEdgeData), num_dependencies: out(usize));
            /// Swaps the capture mode of the calling thread with the one given.
            local 247 since 10010 capture allowed =>
                fn cuThreadExchangeStreamCaptureMode(mode: inout(CUstreamCaptureMode));
            /// Begins to capture a stream into a graph. Form of CUDA 10.0.
            local 248 since 10000 twin "_ptsz" 10000 capture invalidates =>
                fn cuStreamBeginCapture(stream: val(CUstream));
            /// Begins to capture a stream into a graph. Form of CUDA 10.1.
            local 249 since 10010 twin "_ptsz" 10010 capture invalidates =>
                fn cuStreamBeginCapture_v2(stream: val(CUstream), mode: val(CUstreamCaptureMode));
            /// Begins to capture a stream into a given graph.
            local 250 since 12030 twin "_ptsz" 12030 capture invalidates =>
                fn cuStreamBeginCaptureToGraph(
                    stream: val(CUstream), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    dependency_data: list(CUgraphEdgeData, num_dependencies),
                    num_dependencies: len(usize, dependencies), mode: val(CUstreamCaptureMode));
            /// Ends a capture and gives the graph.
            local 251 since 10000 twin "_ptsz" 10000 capture allowed =>
                fn cuStreamEndCapture(stream: val(CUstream), graph: new(CUgraph));
            /// Changes what the next captured node of a stream depends on. Form of CUDA 11.3.
            local 252 since 11030 twin "_ptsz" 11030 capture allowed =>
                fn cuStreamUpdateCaptureDependencies(
                    stream: val(CUstream), dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies), flags: val(u32));
            /// Changes what the next captured node of a stream depends on. Form of CUDA 12.3.
            local 253 since 12030 twin "_ptsz" 12030 capture allowed =>
                fn cuStreamUpdateCaptureDependencies_v2(
                    stream: val(CUstream), dependencies: list(CUgraphNode, num_dependencies),
                    dependency_data: list(CUgraphEdgeData, num_dependencies),
                    num_dependencies: len(usize, dependencies), flags: val(u32));
            // Events.
            /// Makes an event.
            local 254 since 2000 capture allowed =>
                fn cuEventCreate(event: new(CUevent), flags: val(u32));
            /// Ends an event. Form of CUDA 2.0.
            local 255 since 2000 capture allowed =>
                fn cuEventDestroy(event: val(CUevent));
            /// Ends an event. Form of CUDA 4.0.
            local 256 since 4000 capture allowed =>
                fn cuEventDestroy_v2(event: val(CUevent));
            /// Notes how far a stream has come.
            post 257 since 2000 twin "_ptsz" 7000 capture node =>
                fn cuEventRecord(event: val(CUevent), stream: val(CUstream));
            /// Notes how far a stream has come, with flags.
            post 258 since 11010 twin "_ptsz" 11010 capture node =>
                fn cuEventRecordWithFlags(
                    event: val(CUevent), stream: val(CUstream), flags: val(u32));
            /// Says whether the work before an event has finished (NOT_READY if not).
            local 259 since 2000 capture invalidates =>
                fn cuEventQuery(event: val(CUevent));
            /// Waits for the work before an event.
            custom 260 since 2000 capture invalidates =>
                fn cuEventSynchronize(event: val(CUevent));
            /// Milliseconds between two events. Form of CUDA 2.0.
            local 261 since 2000 capture allowed =>
                fn cuEventElapsedTime(
                    milliseconds: out(f32), start: val(CUevent), end: val(CUevent));
            /// Milliseconds between two events. Form of CUDA 12.8.
            local 262 since 12080 capture allowed =>
                fn cuEventElapsedTime_v2(
                    milliseconds: out(f32), start: val(CUevent), end: val(CUevent));
            // Profiler.
            /// Marks the beginning of what a profiler is to see; does nothing here.
            local 263 since 4000 capture allowed
                partial "no profiler listens" =>
                fn cuProfilerStart();
            /// Marks the end of what a profiler is to see; does nothing here.
            local 264 since 4000 capture allowed
                partial "no profiler listens" =>
                fn cuProfilerStop();
            /// Sets up the profiler of old drivers.
            local 265 since 4000 capture allowed =>
                fn cuProfilerInitialize(
                    config_file: cstr(), output_file: cstr(), output_mode: val(CUoutput_mode));
            // Linker.
            /// Adds an image in memory to a link. Form of CUDA 5.5.
            call 266 since 5050 capture allowed
                partial "options of one input are not passed on" =>
                fn cuLinkAddData(
                    state: val(CUlinkState), kind: val(CUjitInputType), data: bytes(size),
                    size: len(usize, data), name: cstr(), num_options: len(u32, options),
                    options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options));
            /// Adds an image in memory to a link. Form of CUDA 6.5.
            call 267 since 6050 capture allowed
                partial "PTX, fatbins, objects and libraries of them, and images of earlier links; link-time optimisation is refused, and machine code on the software GPU" =>
                fn cuLinkAddData_v2(
                    state: val(CUlinkState), kind: val(CUjitInputType), data: bytes(size),
                    size: len(usize, data), name: cstr(), num_options: len(u32, options),
                    options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options));
            /// Adds an image in a file to a link. Form of CUDA 5.5.
            call 268 since 5050 capture allowed
                partial "options of one input are not passed on" =>
                fn cuLinkAddFile(
                    state: val(CUlinkState), kind: val(CUjitInputType), path: cstr(),
                    num_options: len(u32, options), options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options));
            /// Adds an image in a file to a link. Form of CUDA 6.5.
            call 269 since 6050 capture allowed
                partial "as cuLinkAddData" =>
                fn cuLinkAddFile_v2(
                    state: val(CUlinkState), kind: val(CUjitInputType), path: cstr(),
                    num_options: len(u32, options), options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options));
            /// Ends a link and gives the image.
            call 270 since 5050 capture allowed =>
                fn cuLinkComplete(
                    state: val(CUlinkState), cubin_out: out(*mut c_void), size_out: out(usize));
            /// Begins to link device code. Form of CUDA 5.5.
            local 271 since 5050 capture allowed
                partial "options for logs, times, registers and verbosity; other hints to the compiler are not passed on" =>
                fn cuLinkCreate(
                    num_options: len(u32, options), options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options), state_out: new(CUlinkState));
            /// Begins to link device code. Form of CUDA 6.5.
            local 272 since 6050 capture allowed
                partial "as cuLinkCreate" =>
                fn cuLinkCreate_v2(
                    num_options: len(u32, options), options: list(CUjit_option, num_options),
                    option_values: list(*mut c_void, num_options), state_out: new(CUlinkState));
            /// Forgets a link and its image.
            post 273 since 5050 capture allowed =>
                fn cuLinkDestroy(state: val(CUlinkState));
            // Stream-ordered memory and its pools.
            /// Gives the pool that a device began with.
            local 274 since 11020 capture allowed =>
                fn cuDeviceGetDefaultMemPool(pool: out(CUmemoryPool), device: val(CUdevice));
            /// Gives the current pool of a device.
            local 275 since 11020 capture allowed =>
                fn cuDeviceGetMemPool(pool: out(CUmemoryPool), device: val(CUdevice));
            /// Sets the current pool of a device.
            local 276 since 11020 capture allowed =>
                fn cuDeviceSetMemPool(device: val(CUdevice), pool: val(CUmemoryPool));
            /// Allocates device memory in the order of a stream.
            custom 277 since 11020 twin "_ptsz" 11020 capture node =>
                fn cuMemAllocAsync(
                    dptr: out(CUdeviceptr), byte_count: val(usize), stream: val(CUstream));
            /// Allocates from a pool in the order of a stream.
            custom 278 since 11020 twin "_ptsz" 11020 capture node =>
                fn cuMemAllocFromPoolAsync(
                    dptr: out(CUdeviceptr), byte_count: val(usize), pool: val(CUmemoryPool),
                    stream: val(CUstream));
            /// Frees device memory in the order of a stream.
            local 279 since 11020 twin "_ptsz" 11020 capture node =>
                fn cuMemFreeAsync(dptr: val(CUdeviceptr), stream: val(CUstream));
            /// Gives the pool that a place began with.
            local 280 since 13000 capture allowed
                partial "pools of devices only" =>
                fn cuMemGetDefaultMemPool(
                    pool: out(CUmemoryPool), location: struct_in(CUmemLocation),
                    kind: val(CUmemAllocationType));
            /// Gives the current pool of a place.
            local 281 since 13000 capture allowed
                partial "pools of devices only" =>
                fn cuMemGetMemPool(
                    pool: out(CUmemoryPool), location: struct_in(CUmemLocation),
                    kind: val(CUmemAllocationType));
            /// Makes a memory pool.
            local 282 since 11020 capture prohibited
                partial "pools of device memory" =>
                fn cuMemPoolCreate(pool: new(CUmemoryPool), pool_props: struct_in(CUmemPoolProps));
            /// Ends a memory pool.
            local 283 since 11020 capture prohibited =>
                fn cuMemPoolDestroy(pool: val(CUmemoryPool));
            /// Makes a token with which another process finds an allocation of a shared pool.
            call 284 since 11020 capture prohibited =>
                fn cuMemPoolExportPointer(
                    share_data: struct_out(CUmemPoolPtrExportData), ptr: val(CUdeviceptr));
            /// Exports a memory pool as a handle for other processes.
            local 285 since 11020 capture prohibited =>
                fn cuMemPoolExportToShareableHandle(
                    handle: opaque(*mut c_void), pool: val(CUmemoryPool),
                    handle_type: val(CUmemAllocationHandleType), flags: val(u64));
            /// Says how a place may reach the memory of a pool.
            local 286 since 11020 capture allowed =>
                fn cuMemPoolGetAccess(
                    flags: out(CUmemAccess_flags), mem_pool: val(CUmemoryPool),
                    location: struct_in(CUmemLocation));
            /// Gives a setting or a count of a memory pool.
            local 287 since 11020 capture allowed =>
                fn cuMemPoolGetAttribute(
                    pool: val(CUmemoryPool), attribute: val(CUmemPool_attribute),
                    value: opaque(*mut c_void));
            /// Takes a memory pool from a handle of another process.
            local 288 since 11020 capture prohibited =>
                fn cuMemPoolImportFromShareableHandle(
                    pool: new(CUmemoryPool), handle: opaque(*mut c_void),
                    handle_type: val(CUmemAllocationHandleType), flags: val(u64));
            /// Finds an allocation of a shared pool by its token.
            call 289 since 11020 capture prohibited =>
                fn cuMemPoolImportPointer(
                    ptr: out(CUdeviceptr), pool: val(CUmemoryPool),
                    share_data: struct_in(CUmemPoolPtrExportData));
            /// Says which places may reach the memory of a pool, and how.
            local 290 since 11020 capture prohibited
                partial "what a peer was given stays within its reach; other processes' pools are their device's alone" =>
                fn cuMemPoolSetAccess(
                    pool: val(CUmemoryPool), map: list(CUmemAccessDesc, count),
                    count: len(usize, map));
            /// Changes a setting of a memory pool.
            local 291 since 11020 capture allowed =>
                fn cuMemPoolSetAttribute(
                    pool: val(CUmemoryPool), attribute: val(CUmemPool_attribute),
                    value: opaque(*mut c_void));
            /// Gives unused memory of a pool back, down to a size.
            local 292 since 11020 capture prohibited =>
                fn cuMemPoolTrimTo(pool: val(CUmemoryPool), min_bytes_to_keep: val(usize));
            /// Sets the current pool of a place.
            local 293 since 13000 capture allowed
                partial "pools of devices only" =>
                fn cuMemSetMemPool(
                    location: struct_in(CUmemLocation), kind: val(CUmemAllocationType),
                    pool: val(CUmemoryPool));
            // Virtual memory.
            /// Gives a range of device addresses back.
            post 294 since 10020 capture allowed =>
                fn cuMemAddressFree(ptr: val(CUdeviceptr), size: val(usize));
            /// Reserves a range of device addresses.
            call 295 since 10020 capture allowed
                partial "the wished address is not honoured" =>
                fn cuMemAddressReserve(
                    ptr: out(CUdeviceptr), size: val(usize), alignment: val(usize),
                    addr: val(CUdeviceptr), flags: val(u64));
            /// Allocates physical memory without an address.
            call 296 since 10020 capture prohibited =>
                fn cuMemCreate(
                    handle: new(CUmemGenericAllocationHandle), size: val(usize),
                    properties: struct_in(CUmemAllocationProp), flags: val(u64));
            /// Exports physical memory as a handle for other processes.
            call 297 since 10020 capture prohibited
                partial "descriptors, which are good while the exporter lives" =>
                fn cuMemExportToShareableHandle(
                    shareable_handle: opaque(*mut c_void),
                    handle: val(CUmemGenericAllocationHandle),
                    handle_type: val(CUmemAllocationHandleType), flags: val(u64));
            /// Says how a location may reach an address.
            local 298 since 10020 capture allowed =>
                fn cuMemGetAccess(
                    flags: out(u64), location: struct_in(CUmemLocation), ptr: val(CUdeviceptr));
            /// Gives the unit of physical allocations.
            local 299 since 10020 capture allowed =>
                fn cuMemGetAllocationGranularity(
                    granularity: out(usize), properties: struct_in(CUmemAllocationProp),
                    option: val(CUmemAllocationGranularity_flags));
            /// Gives how physical memory was allocated.
            local 300 since 10020 capture allowed =>
                fn cuMemGetAllocationPropertiesFromHandle(
                    properties: struct_out(CUmemAllocationProp),
                    handle: val(CUmemGenericAllocationHandle));
            /// Not in the public headers; its parameters are not known.
            absent 301 since 0 capture allowed =>
                fn cuMemGetAttribute();
            /// Not in the public headers; its parameters are not known.
            absent 302 since 0 capture allowed =>
                fn cuMemGetAttribute_v2();
            /// Exports an address range as a handle, such as a dma-buf.
            local 303 since 11070 capture allowed =>
                fn cuMemGetHandleForAddressRange(
                    handle: opaque(*mut c_void), dptr: val(CUdeviceptr), size: val(usize),
                    handle_type: val(CUmemRangeHandleType), flags: val(u64));
            /// Takes physical memory from a handle of another process.
            call 304 since 10020 capture prohibited =>
                fn cuMemImportFromShareableHandle(
                    handle: new(CUmemGenericAllocationHandle), os_handle: opaque(*mut c_void),
                    sh_handle_type: val(CUmemAllocationHandleType));
            /// Puts physical memory at reserved addresses.
            call 305 since 10020 capture prohibited =>
                fn cuMemMap(
                    ptr: val(CUdeviceptr), size: val(usize), offset: val(usize),
                    handle: val(CUmemGenericAllocationHandle), flags: val(u64));
            /// Maps parts of sparse arrays in a stream.
            absent 306 since 11010 twin "_ptsz" 11010 capture prohibited =>
                fn cuMemMapArrayAsync(
                    map_info_list: list(CUarrayMapInfo, count), count: len(u32, map_info_list),
                    stream: val(CUstream));
            /// Gives a share in physical memory back.
            post 307 since 10020 capture prohibited =>
                fn cuMemRelease(handle: val(CUmemGenericAllocationHandle));
            /// Takes a share in the physical memory at an address.
            local 308 since 11000 capture prohibited =>
                fn cuMemRetainAllocationHandle(
                    handle: out(CUmemGenericAllocationHandle), addr: opaque(*mut c_void));
            /// Says which devices may reach a range, and how.
            call 309 since 10020 capture prohibited
                partial "who may read may write" =>
                fn cuMemSetAccess(
                    ptr: val(CUdeviceptr), size: val(usize), desc: list(CUmemAccessDesc, count),
                    count: len(usize, desc));
            /// Takes physical memory from its addresses.
            call 310 since 10020 capture prohibited =>
                fn cuMemUnmap(ptr: val(CUdeviceptr), size: val(usize));
            // Managed memory.
            /// Advises on the use of managed memory. Form of CUDA 8.0.
            local 311 since 8000 capture allowed =>
                fn cuMemAdvise(
                    dev_ptr: val(CUdeviceptr), count: val(usize), advice: val(CUmem_advise),
                    device: val(CUdevice));
            /// Advises on the use of managed memory. Form of CUDA 12.2.
            local 312 since 12020 capture allowed =>
                fn cuMemAdvise_v2(
                    dev_ptr: val(CUdeviceptr), count: val(usize), advice: val(CUmem_advise),
                    location: val(CUmemLocation));
            /// Allocates memory that host and device share.
            call 313 since 6000 capture prohibited
                partial "on NVIDIA GPUs memory of a device without concurrent managed access, as its attributes say; prefetching and advice are taken all the same" =>
                fn cuMemAllocManaged(
                    dptr: out(CUdeviceptr), byte_count: val(usize), flags: val(u32));
            /// Drops the contents of managed ranges and moves them, in a stream.
            local 314 since 13000 twin "_ptsz" 13000 capture prohibited =>
                fn cuMemDiscardAndPrefetchBatchAsync(
                    dptrs: list(CUdeviceptr, count), sizes: list(usize, count),
                    count: len(usize, dptrs),
                    prefetch_locs: list(CUmemLocation, num_prefetch_locs),
                    prefetch_loc_idxs: list(usize, num_prefetch_locs),
                    num_prefetch_locs: len(usize, prefetch_locs), flags: val(u64),
                    stream: val(CUstream));
            /// Drops the contents of managed ranges, in a stream.
            local 315 since 13000 twin "_ptsz" 13000 capture prohibited =>
                fn cuMemDiscardBatchAsync(
                    dptrs: list(CUdeviceptr, count), sizes: list(usize, count),
                    count: len(usize, dptrs), flags: val(u64), stream: val(CUstream));
            /// Moves managed memory ahead of its use, in a stream. Form of CUDA 8.0.
            local 316 since 8000 twin "_ptsz" 8000 capture node =>
                fn cuMemPrefetchAsync(
                    dev_ptr: val(CUdeviceptr), count: val(usize), dst_device: val(CUdevice),
                    stream: val(CUstream));
            /// Moves managed memory ahead of its use, in a stream. Form of CUDA 12.2.
            local 317 since 12020 twin "_ptsz" 12020 capture node =>
                fn cuMemPrefetchAsync_v2(
                    dev_ptr: val(CUdeviceptr), count: val(usize), location: val(CUmemLocation),
                    flags: val(u32), stream: val(CUstream));
            /// Moves managed ranges ahead of their use, in a stream.
            local 318 since 13000 twin "_ptsz" 13000 capture prohibited =>
                fn cuMemPrefetchBatchAsync(
                    dptrs: list(CUdeviceptr, count), sizes: list(usize, count),
                    count: len(usize, dptrs),
                    prefetch_locs: list(CUmemLocation, num_prefetch_locs),
                    prefetch_loc_idxs: list(usize, num_prefetch_locs),
                    num_prefetch_locs: len(usize, prefetch_locs), flags: val(u64),
                    stream: val(CUstream));
            /// Gives one fact about a managed range.
            local 319 since 8000 capture allowed =>
                fn cuMemRangeGetAttribute(
                    data: bytes_out(data_size), data_size: len(usize, data),
                    attribute: val(CUmem_range_attribute), dev_ptr: val(CUdeviceptr),
                    count: val(usize));
            /// Gives several facts about a managed range.
            local 320 since 8000 capture allowed =>
                fn cuMemRangeGetAttributes(
                    data: list(*mut c_void, num_attributes),
                    data_sizes: list(usize, num_attributes),
                    attributes: list(CUmem_range_attribute, num_attributes),
                    num_attributes: len(usize, data), dev_ptr: val(CUdeviceptr), count: val(usize));
            // Multicast objects.
            /// Adds a device to a multicast object.
            absent 321 since 12010 capture allowed =>
                fn cuMulticastAddDevice(
                    mc_handle: val(CUmemGenericAllocationHandle), device: val(CUdevice));
            /// Binds mapped memory to a multicast object.
            absent 322 since 12010 capture prohibited =>
                fn cuMulticastBindAddr(
                    mc_handle: val(CUmemGenericAllocationHandle), mc_offset: val(usize),
                    memptr: val(CUdeviceptr), size: val(usize), flags: val(u64));
            /// Binds physical memory to a multicast object.
            absent 323 since 12010 capture prohibited =>
                fn cuMulticastBindMem(
                    mc_handle: val(CUmemGenericAllocationHandle), mc_offset: val(usize),
                    mem_handle: val(CUmemGenericAllocationHandle), mem_offset: val(usize),
                    size: val(usize), flags: val(u64));
            /// Makes a multicast object.
            absent 324 since 12010 capture prohibited =>
                fn cuMulticastCreate(
                    mc_handle: new(CUmemGenericAllocationHandle),
                    properties: struct_in(CUmulticastObjectProp));
            /// Gives the unit of multicast sizes.
            absent 325 since 12010 capture allowed =>
                fn cuMulticastGetGranularity(
                    granularity: out(usize), properties: struct_in(CUmulticastObjectProp),
                    option: val(CUmulticastGranularity_flags));
            /// Takes memory from a multicast object.
            absent 326 since 12010 capture prohibited =>
                fn cuMulticastUnbind(
                    mc_handle: val(CUmemGenericAllocationHandle), device: val(CUdevice),
                    mc_offset: val(usize), size: val(usize));
            // Between processes.
            /// Closes an allocation of another process.
            post 327 since 4010 capture prohibited =>
                fn cuIpcCloseMemHandle(dptr: val(CUdeviceptr));
            /// Makes a token with which another process opens an event.
            call 328 since 4010 capture allowed =>
                fn cuIpcGetEventHandle(handle: struct_out(CUipcEventHandle), event: val(CUevent));
            /// Makes a token with which another process opens an allocation.
            call 329 since 4010 capture allowed =>
                fn cuIpcGetMemHandle(handle: struct_out(CUipcMemHandle), dptr: val(CUdeviceptr));
            /// Opens an event of another process.
            call 330 since 4010 capture prohibited =>
                fn cuIpcOpenEventHandle(event: new(CUevent), handle: val(CUipcEventHandle));
            /// Opens an allocation of another process. Form of CUDA 4.1.
            call 331 since 4010 capture prohibited =>
                fn cuIpcOpenMemHandle(
                    dptr: out(CUdeviceptr), handle: val(CUipcMemHandle), flags: val(u32));
            /// Opens an allocation of another process. Form of CUDA 11.0.
            call 332 since 11000 capture prohibited =>
                fn cuIpcOpenMemHandle_v2(
                    dptr: out(CUdeviceptr), handle: val(CUipcMemHandle), flags: val(u32));
            // Other memory functions.
            /// Makes writes of other PCI devices visible.
            absent 333 since 11030 capture allowed =>
                fn cuFlushGPUDirectRDMAWrites(
                    target: val(CUflushGPUDirectRDMAWritesTarget),
                    scope: val(CUflushGPUDirectRDMAWritesScope));
            /// Decompresses a list of buffers in a stream.
            local 334 since 12060 twin "_ptsz" 12060 capture node =>
                fn cuMemBatchDecompressAsync(
                    params_array: list(CUmemDecompressParams, count),
                    count: len(usize, params_array), flags: val(u32), error_index: out(usize),
                    stream: val(CUstream));
            // Graphs.
            /// Gives a count about the memory that graphs hold on a device.
            local 335 since 11040 capture allowed =>
                fn cuDeviceGetGraphMemAttribute(
                    device: val(CUdevice), attribute: val(CUgraphMem_attribute),
                    value: opaque(*mut c_void));
            /// Gives unused memory of graphs on a device back.
            local 336 since 11040 capture allowed =>
                fn cuDeviceGraphMemTrim(device: val(CUdevice));
            /// Resets a count about the memory that graphs hold on a device.
            local 337 since 11040 capture allowed =>
                fn cuDeviceSetGraphMemAttribute(
                    device: val(CUdevice), attribute: val(CUgraphMem_attribute),
                    value: opaque(*mut c_void));
            /// Adds a node of waits and writes on memory to a graph.
            local 338 since 11070 capture allowed =>
                fn cuGraphAddBatchMemOpNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: struct_in(CUDA_BATCH_MEM_OP_NODE_PARAMS));
            /// Adds a node that holds a copy of another graph.
            local 339 since 10000 capture allowed =>
                fn cuGraphAddChildGraphNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies), child_graph: val(CUgraph));
            /// Adds edges between nodes of a graph. Form of CUDA 10.0.
            local 340 since 10000 capture allowed =>
                fn cuGraphAddDependencies(
                    graph: val(CUgraph), from: list(CUgraphNode, num_dependencies),
                    to: list(CUgraphNode, num_dependencies), num_dependencies: len(usize, from));
            /// Adds edges between nodes of a graph. Form of CUDA 12.3.
            local 341 since 12030 capture allowed =>
                fn cuGraphAddDependencies_v2(
                    graph: val(CUgraph), from: list(CUgraphNode, num_dependencies),
                    to: list(CUgraphNode, num_dependencies),
                    edge_data: list(CUgraphEdgeData, num_dependencies),
                    num_dependencies: len(usize, from));
            /// Adds a node that does nothing to a graph.
            local 342 since 10000 capture allowed =>
                fn cuGraphAddEmptyNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies));
            /// Adds a node that records an event to a graph.
            local 343 since 11010 capture allowed =>
                fn cuGraphAddEventRecordNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies), event: val(CUevent));
            /// Adds a node that waits for an event to a graph.
            local 344 since 11010 capture allowed =>
                fn cuGraphAddEventWaitNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies), event: val(CUevent));
            /// Adds a node that signals external semaphores to a graph.
            local 345 since 11020 capture allowed =>
                fn cuGraphAddExternalSemaphoresSignalNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: struct_in(CUDA_EXT_SEM_SIGNAL_NODE_PARAMS));
            /// Adds a node that waits for external semaphores to a graph.
            local 346 since 11020 capture allowed =>
                fn cuGraphAddExternalSemaphoresWaitNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: struct_in(CUDA_EXT_SEM_WAIT_NODE_PARAMS));
            /// Adds a node that calls a host function to a graph.
            local 347 since 10000 capture allowed =>
                fn cuGraphAddHostNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: struct_in(CUDA_HOST_NODE_PARAMS));
            /// Adds a kernel launch to a graph. Form of CUDA 10.0.
            local 348 since 10000 capture allowed =>
                fn cuGraphAddKernelNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: struct_in(CUDA_KERNEL_NODE_PARAMS_v1));
            /// Adds a kernel launch to a graph. Form of CUDA 12.0.
            local 349 since 12000 capture allowed =>
                fn cuGraphAddKernelNode_v2(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: struct_in(CUDA_KERNEL_NODE_PARAMS));
            /// Adds an allocation to a graph and gives its address.
            custom 350 since 11040 capture allowed =>
                fn cuGraphAddMemAllocNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: inout(CUDA_MEM_ALLOC_NODE_PARAMS));
            /// Adds the freeing of an allocation to a graph.
            local 351 since 11040 capture allowed =>
                fn cuGraphAddMemFreeNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies), dptr: val(CUdeviceptr));
            /// Adds a copy to a graph.
            local 352 since 10000 capture allowed =>
                fn cuGraphAddMemcpyNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    copy_params: struct_in(CUDA_MEMCPY3D), ctx: val(CUcontext));
            /// Adds a fill to a graph.
            local 353 since 10000 capture allowed =>
                fn cuGraphAddMemsetNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    memset_params: struct_in(CUDA_MEMSET_NODE_PARAMS), ctx: val(CUcontext));
            /// Adds a node of any kind to a graph. Form of CUDA 12.2.
            custom 354 since 12020 capture allowed
                partial "semaphores of other interfaces are refused" =>
                fn cuGraphAddNode(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: inout(CUgraphNodeParams));
            /// Adds a node of any kind to a graph. Form of CUDA 12.3.
            custom 355 since 12030 capture allowed
                partial "semaphores of other interfaces are refused" =>
                fn cuGraphAddNode_v2(
                    graph_node: out(CUgraphNode), graph: val(CUgraph),
                    dependencies: list(CUgraphNode, num_dependencies),
                    dependency_data: list(CUgraphEdgeData, num_dependencies),
                    num_dependencies: len(usize, dependencies),
                    node_params: inout(CUgraphNodeParams));
            /// Gives the operations of a node of waits and writes.
            local 356 since 11070 capture allowed =>
                fn cuGraphBatchMemOpNodeGetParams(
                    node: val(CUgraphNode), node_params: struct_out(CUDA_BATCH_MEM_OP_NODE_PARAMS));
            /// Sets the operations of a node of waits and writes.
            local 357 since 11070 capture allowed =>
                fn cuGraphBatchMemOpNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_BATCH_MEM_OP_NODE_PARAMS));
            /// Gives the graph inside a child graph node.
            local 358 since 10000 capture allowed =>
                fn cuGraphChildGraphNodeGetGraph(node: val(CUgraphNode), graph: out(CUgraph));
            /// Copies a graph.
            local 359 since 10000 capture allowed =>
                fn cuGraphClone(graph_clone: new(CUgraph), original_graph: val(CUgraph));
            /// Makes the condition of a conditional node.
            local 360 since 12030 capture allowed
                partial "on NVIDIA GPUs the kernels that set values must come as PTX" =>
                fn cuGraphConditionalHandleCreate(
                    handle: new(CUgraphConditionalHandle), graph: val(CUgraph),
                    ctx: val(CUcontext), default_launch_value: val(u32), flags: val(u32));
            /// Makes an empty graph.
            local 361 since 10000 capture allowed =>
                fn cuGraphCreate(graph: new(CUgraph), flags: val(u32));
            /// Writes a graph to a file in the DOT language.
            local 362 since 11030 capture allowed =>
                fn cuGraphDebugDotPrint(graph: val(CUgraph), path: cstr(), flags: val(u32));
            /// Ends a graph.
            local 363 since 10000 capture allowed =>
                fn cuGraphDestroy(graph: val(CUgraph));
            /// Takes a node out of its graph.
            local 364 since 10000 capture allowed =>
                fn cuGraphDestroyNode(node: val(CUgraphNode));
            /// Gives the event of an event record node.
            local 365 since 11010 capture allowed =>
                fn cuGraphEventRecordNodeGetEvent(node: val(CUgraphNode), event: out(CUevent));
            /// Sets the event of an event record node.
            local 366 since 11010 capture allowed =>
                fn cuGraphEventRecordNodeSetEvent(node: val(CUgraphNode), event: val(CUevent));
            /// Gives the event of an event wait node.
            local 367 since 11010 capture allowed =>
                fn cuGraphEventWaitNodeGetEvent(node: val(CUgraphNode), event: out(CUevent));
            /// Sets the event of an event wait node.
            local 368 since 11010 capture allowed =>
                fn cuGraphEventWaitNodeSetEvent(node: val(CUgraphNode), event: val(CUevent));
            /// Sets the operations of a node of waits and writes, in an executable graph.
            local 369 since 11070 capture allowed =>
                fn cuGraphExecBatchMemOpNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUDA_BATCH_MEM_OP_NODE_PARAMS));
            /// Sets parameters inside a child graph node, in an executable graph.
            local 370 since 11010 capture allowed =>
                fn cuGraphExecChildGraphNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode), child_graph: val(CUgraph));
            /// Ends an executable graph.
            local 371 since 10000 capture allowed =>
                fn cuGraphExecDestroy(graph_exec: val(CUgraphExec));
            /// Sets the event of an event record node, in an executable graph.
            local 372 since 11010 capture allowed =>
                fn cuGraphExecEventRecordNodeSetEvent(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode), event: val(CUevent));
            /// Sets the event of an event wait node, in an executable graph.
            local 373 since 11010 capture allowed =>
                fn cuGraphExecEventWaitNodeSetEvent(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode), event: val(CUevent));
            /// Sets what a signal node signals, in an executable graph.
            local 374 since 11020 capture allowed =>
                fn cuGraphExecExternalSemaphoresSignalNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUDA_EXT_SEM_SIGNAL_NODE_PARAMS));
            /// Sets what a wait node waits for, in an executable graph.
            local 375 since 11020 capture allowed =>
                fn cuGraphExecExternalSemaphoresWaitNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUDA_EXT_SEM_WAIT_NODE_PARAMS));
            /// Gives the flags that an executable graph was made with.
            local 376 since 12000 capture allowed =>
                fn cuGraphExecGetFlags(graph_exec: val(CUgraphExec), flags: out(u64));
            /// Sets the function of a host node, in an executable graph.
            local 377 since 10020 capture allowed =>
                fn cuGraphExecHostNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUDA_HOST_NODE_PARAMS));
            /// Sets the launch of a kernel node, in an executable graph. Form of CUDA 10.1.
            local 378 since 10010 capture allowed =>
                fn cuGraphExecKernelNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUDA_KERNEL_NODE_PARAMS_v1));
            /// Sets the launch of a kernel node, in an executable graph. Form of CUDA 12.0.
            local 379 since 12000 capture allowed =>
                fn cuGraphExecKernelNodeSetParams_v2(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUDA_KERNEL_NODE_PARAMS));
            /// Sets the copy of a copy node, in an executable graph.
            local 380 since 10020 capture allowed =>
                fn cuGraphExecMemcpyNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    copy_params: struct_in(CUDA_MEMCPY3D), ctx: val(CUcontext));
            /// Sets the fill of a fill node, in an executable graph.
            local 381 since 10020 capture allowed =>
                fn cuGraphExecMemsetNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    memset_params: struct_in(CUDA_MEMSET_NODE_PARAMS), ctx: val(CUcontext));
            /// Sets the parameters of a node of any kind, in an executable graph.
            local 382 since 12020 capture allowed =>
                fn cuGraphExecNodeSetParams(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode),
                    node_params: struct_in(CUgraphNodeParams));
            /// Gives an executable graph the parameters of another graph. Form of CUDA 10.2.
            custom 383 since 10020 capture allowed =>
                fn cuGraphExecUpdate(
                    graph_exec: val(CUgraphExec), graph: val(CUgraph),
                    error_node: out(CUgraphNode), update_result: out(CUgraphExecUpdateResult));
            /// Gives an executable graph the parameters of another graph. Form of CUDA 12.0.
            custom 384 since 12000 capture allowed =>
                fn cuGraphExecUpdate_v2(
                    graph_exec: val(CUgraphExec), graph: val(CUgraph),
                    result_info: struct_out(CUgraphExecUpdateResultInfo));
            /// Gives what a signal node signals.
            local 385 since 11020 capture allowed =>
                fn cuGraphExternalSemaphoresSignalNodeGetParams(
                    node: val(CUgraphNode), params: struct_out(CUDA_EXT_SEM_SIGNAL_NODE_PARAMS));
            /// Sets what a signal node signals.
            local 386 since 11020 capture allowed =>
                fn cuGraphExternalSemaphoresSignalNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_EXT_SEM_SIGNAL_NODE_PARAMS));
            /// Gives what a wait node waits for.
            local 387 since 11020 capture allowed =>
                fn cuGraphExternalSemaphoresWaitNodeGetParams(
                    node: val(CUgraphNode), params: struct_out(CUDA_EXT_SEM_WAIT_NODE_PARAMS));
            /// Sets what a wait node waits for.
            local 388 since 11020 capture allowed =>
                fn cuGraphExternalSemaphoresWaitNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_EXT_SEM_WAIT_NODE_PARAMS));
            /// Lists the edges of a graph. Form of CUDA 10.0.
            local 389 since 10000 capture allowed =>
                fn cuGraphGetEdges(
                    graph: val(CUgraph), from: list_out(CUgraphNode, num_edges),
                    to: list_out(CUgraphNode, num_edges), num_edges: inout(usize));
            /// Lists the edges of a graph. Form of CUDA 12.3.
            local 390 since 12030 capture allowed =>
                fn cuGraphGetEdges_v2(
                    graph: val(CUgraph), from: list_out(CUgraphNode, num_edges),
                    to: list_out(CUgraphNode, num_edges),
                    edge_data: list_out(CUgraphEdgeData, num_edges), num_edges: inout(usize));
            /// Lists the nodes of a graph.
            local 391 since 10000 capture allowed =>
                fn cuGraphGetNodes(
                    graph: val(CUgraph), nodes: list_out(CUgraphNode, num_nodes),
                    num_nodes: inout(usize));
            /// Lists the nodes of a graph that depend on none.
            local 392 since 10000 capture allowed =>
                fn cuGraphGetRootNodes(
                    graph: val(CUgraph), root_nodes: list_out(CUgraphNode, num_root_nodes),
                    num_root_nodes: inout(usize));
            /// Gives the function of a host node.
            local 393 since 10000 capture allowed =>
                fn cuGraphHostNodeGetParams(
                    node: val(CUgraphNode), node_params: struct_out(CUDA_HOST_NODE_PARAMS));
            /// Sets the function of a host node.
            local 394 since 10000 capture allowed =>
                fn cuGraphHostNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_HOST_NODE_PARAMS));
            /// Makes an executable graph; a log says what is wrong with it. Form of CUDA 10.0.
            custom 395 since 10000 capture allowed =>
                fn cuGraphInstantiate(
                    graph_exec: new(CUgraphExec), graph: val(CUgraph),
                    error_node: out(CUgraphNode), log_buffer: chars_out(buffer_size),
                    buffer_size: len(usize, log_buffer));
            /// Makes an executable graph; a log says what is wrong with it. Form of CUDA 11.0.
            custom 396 since 11000 capture allowed =>
                fn cuGraphInstantiate_v2(
                    graph_exec: new(CUgraphExec), graph: val(CUgraph),
                    error_node: out(CUgraphNode), log_buffer: chars_out(buffer_size),
                    buffer_size: len(usize, log_buffer));
            /// Makes an executable graph, with flags.
            custom 397 since 11040 capture allowed
                partial "graphs that kernels launch: kernel nodes only, 128 at most, on the software GPU" =>
                fn cuGraphInstantiateWithFlags(
                    graph_exec: new(CUgraphExec), graph: val(CUgraph), flags: val(u64));
            /// Makes an executable graph, with parameters.
            custom 398 since 12000 twin "_ptsz" 12000 capture allowed
                partial "graphs that kernels launch: kernel nodes only, 128 at most, on the software GPU" =>
                fn cuGraphInstantiateWithParams(
                    graph_exec: new(CUgraphExec), graph: val(CUgraph),
                    instantiate_params: inout(CUDA_GRAPH_INSTANTIATE_PARAMS));
            /// Gives a kernel node the attributes of another.
            local 399 since 11000 capture allowed =>
                fn cuGraphKernelNodeCopyAttributes(dst: val(CUgraphNode), src: val(CUgraphNode));
            /// Gives an attribute of a kernel node.
            local 400 since 11000 capture allowed =>
                fn cuGraphKernelNodeGetAttribute(
                    node: val(CUgraphNode), attribute: val(CUkernelNodeAttrID),
                    value: struct_out(CUkernelNodeAttrValue));
            /// Gives the launch of a kernel node. Form of CUDA 10.0.
            local 401 since 10000 capture allowed =>
                fn cuGraphKernelNodeGetParams(
                    node: val(CUgraphNode), node_params: struct_out(CUDA_KERNEL_NODE_PARAMS_v1));
            /// Gives the launch of a kernel node. Form of CUDA 12.0.
            local 402 since 12000 capture allowed =>
                fn cuGraphKernelNodeGetParams_v2(
                    node: val(CUgraphNode), node_params: struct_out(CUDA_KERNEL_NODE_PARAMS));
            /// Sets an attribute of a kernel node.
            local 403 since 11000 capture allowed =>
                fn cuGraphKernelNodeSetAttribute(
                    node: val(CUgraphNode), attribute: val(CUkernelNodeAttrID),
                    value: struct_in(CUkernelNodeAttrValue));
            /// Sets the launch of a kernel node. Form of CUDA 10.0.
            local 404 since 10000 capture allowed =>
                fn cuGraphKernelNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_KERNEL_NODE_PARAMS_v1));
            /// Sets the launch of a kernel node. Form of CUDA 12.0.
            local 405 since 12000 capture allowed =>
                fn cuGraphKernelNodeSetParams_v2(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_KERNEL_NODE_PARAMS));
            /// Runs an executable graph in a stream.
            custom 406 since 10000 twin "_ptsz" 10000 capture node =>
                fn cuGraphLaunch(graph: val(CUgraphExec), stream: val(CUstream));
            /// Gives what an allocation node allocates.
            local 407 since 11040 capture allowed =>
                fn cuGraphMemAllocNodeGetParams(
                    node: val(CUgraphNode), params: struct_out(CUDA_MEM_ALLOC_NODE_PARAMS));
            /// Gives the address that a free node frees.
            local 408 since 11040 capture allowed =>
                fn cuGraphMemFreeNodeGetParams(node: val(CUgraphNode), dptr: out(CUdeviceptr));
            /// Gives the copy of a copy node.
            local 409 since 10000 capture allowed =>
                fn cuGraphMemcpyNodeGetParams(
                    node: val(CUgraphNode), node_params: struct_out(CUDA_MEMCPY3D));
            /// Sets the copy of a copy node.
            local 410 since 10000 capture allowed =>
                fn cuGraphMemcpyNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_MEMCPY3D));
            /// Gives the fill of a fill node.
            local 411 since 10000 capture allowed =>
                fn cuGraphMemsetNodeGetParams(
                    node: val(CUgraphNode), node_params: struct_out(CUDA_MEMSET_NODE_PARAMS));
            /// Sets the fill of a fill node.
            local 412 since 10000 capture allowed =>
                fn cuGraphMemsetNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUDA_MEMSET_NODE_PARAMS));
            /// Finds the copy of a node in a copied graph.
            local 413 since 10000 capture allowed =>
                fn cuGraphNodeFindInClone(
                    node: out(CUgraphNode), original_node: val(CUgraphNode),
                    cloned_graph: val(CUgraph));
            /// Lists what a node depends on. Form of CUDA 10.0.
            local 414 since 10000 capture allowed =>
                fn cuGraphNodeGetDependencies(
                    node: val(CUgraphNode), dependencies: list_out(CUgraphNode, num_dependencies),
                    num_dependencies: inout(usize));
            /// Lists what a node depends on. Form of CUDA 12.3.
            local 415 since 12030 capture allowed =>
                fn cuGraphNodeGetDependencies_v2(
                    node: val(CUgraphNode), dependencies: list_out(CUgraphNode, num_dependencies),
                    edge_data: list_out(CUgraphEdgeData, num_dependencies),
                    num_dependencies: inout(usize));
            /// Lists what depends on a node. Form of CUDA 10.0.
            local 416 since 10000 capture allowed =>
                fn cuGraphNodeGetDependentNodes(
                    node: val(CUgraphNode),
                    dependent_nodes: list_out(CUgraphNode, num_dependent_nodes),
                    num_dependent_nodes: inout(usize));
            /// Lists what depends on a node. Form of CUDA 12.3.
            local 417 since 12030 capture allowed =>
                fn cuGraphNodeGetDependentNodes_v2(
                    node: val(CUgraphNode),
                    dependent_nodes: list_out(CUgraphNode, num_dependent_nodes),
                    edge_data: list_out(CUgraphEdgeData, num_dependent_nodes),
                    num_dependent_nodes: inout(usize));
            /// Says whether a node of an executable graph is enabled.
            local 418 since 11060 capture allowed =>
                fn cuGraphNodeGetEnabled(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode), is_enabled: out(u32));
            /// Gives the kind of a node.
            local 419 since 10000 capture allowed =>
                fn cuGraphNodeGetType(node: val(CUgraphNode), kind: out(CUgraphNodeType));
            /// Enables or disables a node of an executable graph.
            local 420 since 11060 capture allowed =>
                fn cuGraphNodeSetEnabled(
                    graph_exec: val(CUgraphExec), node: val(CUgraphNode), is_enabled: val(u32));
            /// Sets the parameters of a node of any kind.
            local 421 since 12020 capture allowed =>
                fn cuGraphNodeSetParams(
                    node: val(CUgraphNode), node_params: struct_in(CUgraphNodeParams));
            /// Gives shares that a graph has in a user object back.
            local 422 since 11030 capture allowed =>
                fn cuGraphReleaseUserObject(
                    graph: val(CUgraph), object: val(CUuserObject), count: val(u32));
            /// Takes edges between nodes out of a graph. Form of CUDA 10.0.
            local 423 since 10000 capture allowed =>
                fn cuGraphRemoveDependencies(
                    graph: val(CUgraph), from: list(CUgraphNode, num_dependencies),
                    to: list(CUgraphNode, num_dependencies), num_dependencies: len(usize, from));
            /// Takes edges between nodes out of a graph. Form of CUDA 12.3.
            local 424 since 12030 capture allowed =>
                fn cuGraphRemoveDependencies_v2(
                    graph: val(CUgraph), from: list(CUgraphNode, num_dependencies),
                    to: list(CUgraphNode, num_dependencies),
                    edge_data: list(CUgraphEdgeData, num_dependencies),
                    num_dependencies: len(usize, from));
            /// Gives a graph shares in a user object.
            local 425 since 11030 capture allowed =>
                fn cuGraphRetainUserObject(
                    graph: val(CUgraph), object: val(CUuserObject), count: val(u32),
                    flags: val(u32));
            /// Readies an executable graph on the device, in a stream.
            local 426 since 11010 twin "_ptsz" 11010 capture allowed =>
                fn cuGraphUpload(graph: val(CUgraphExec), stream: val(CUstream));
            // User objects.
            /// Makes an object that graphs can hold, with the host function that ends it.
            local 427 since 11030 capture allowed =>
                fn cuUserObjectCreate(
                    object: new(CUuserObject), ptr: opaque(*mut c_void), destroy: val(CUhostFn),
                    initial_refcount: val(u32), flags: val(u32));
            /// Gives shares in a user object back.
            local 428 since 11030 capture allowed =>
                fn cuUserObjectRelease(object: val(CUuserObject), count: val(u32));
            /// Takes more shares in a user object.
            local 429 since 11030 capture allowed =>
                fn cuUserObjectRetain(object: val(CUuserObject), count: val(u32));
            // Arrays.
            /// Makes an array of up to three dimensions. Form of CUDA 2.0.
            call 430 since 2000 capture prohibited =>
                fn cuArray3DCreate(
                    handle: new(CUarray), allocate_array: struct_in(CUDA_ARRAY3D_DESCRIPTOR_v1));
            /// Makes an array of up to three dimensions. Form of CUDA 3.2.
            call 431 since 3020 capture prohibited
                partial "ordinary formats of 1, 2 or 4 channels; sparse arrays, deferred mapping and compressed formats are refused" =>
                fn cuArray3DCreate_v2(
                    handle: new(CUarray), allocate_array: struct_in(CUDA_ARRAY3D_DESCRIPTOR));
            /// Gives format and size of an array of up to three dimensions. Form of CUDA 2.0.
            local 432 since 2000 capture allowed =>
                fn cuArray3DGetDescriptor(
                    array_descriptor: struct_out(CUDA_ARRAY3D_DESCRIPTOR_v1), array: val(CUarray));
            /// Gives format and size of an array of up to three dimensions. Form of CUDA 3.2.
            local 433 since 3020 capture allowed =>
                fn cuArray3DGetDescriptor_v2(
                    array_descriptor: struct_out(CUDA_ARRAY3D_DESCRIPTOR), array: val(CUarray));
            /// Makes an array of one or two dimensions. Form of CUDA 2.0.
            call 434 since 2000 capture prohibited =>
                fn cuArrayCreate(
                    handle: new(CUarray), allocate_array: struct_in(CUDA_ARRAY_DESCRIPTOR_v1));
            /// Makes an array of one or two dimensions. Form of CUDA 3.2.
            call 435 since 3020 capture prohibited =>
                fn cuArrayCreate_v2(
                    handle: new(CUarray), allocate_array: struct_in(CUDA_ARRAY_DESCRIPTOR));
            /// Ends an array.
            post 436 since 2000 capture prohibited =>
                fn cuArrayDestroy(array: val(CUarray));
            /// Gives format and size of an array of one or two dimensions. Form of CUDA 2.0.
            local 437 since 2000 capture allowed =>
                fn cuArrayGetDescriptor(
                    array_descriptor: struct_out(CUDA_ARRAY_DESCRIPTOR_v1), array: val(CUarray));
            /// Gives format and size of an array of one or two dimensions. Form of CUDA 3.2.
            local 438 since 3020 capture allowed =>
                fn cuArrayGetDescriptor_v2(
                    array_descriptor: struct_out(CUDA_ARRAY_DESCRIPTOR), array: val(CUarray));
            /// Gives the size and alignment of memory that an array needs.
            local 439 since 11060 capture allowed =>
                fn cuArrayGetMemoryRequirements(
                    memory_requirements: struct_out(CUDA_ARRAY_MEMORY_REQUIREMENTS),
                    array: val(CUarray), device: val(CUdevice));
            /// Gives a plane of an array of several planes.
            local 440 since 11020 capture allowed =>
                fn cuArrayGetPlane(
                    plane_array: out(CUarray), array: val(CUarray), plane_idx: val(u32));
            /// Gives the layout of a sparse array.
            local 441 since 11010 capture allowed =>
                fn cuArrayGetSparseProperties(
                    sparse_properties: struct_out(CUDA_ARRAY_SPARSE_PROPERTIES),
                    array: val(CUarray));
            /// Makes an array with mipmap levels.
            call 442 since 5000 capture prohibited
                partial "as cuArray3DCreate" =>
                fn cuMipmappedArrayCreate(
                    handle: new(CUmipmappedArray),
                    mipmapped_array_desc: struct_in(CUDA_ARRAY3D_DESCRIPTOR),
                    num_mipmap_levels: val(u32));
            /// Ends an array with mipmap levels.
            post 443 since 5000 capture prohibited =>
                fn cuMipmappedArrayDestroy(mipmapped_array: val(CUmipmappedArray));
            /// Gives a level of an array with mipmap levels.
            local 444 since 5000 capture allowed =>
                fn cuMipmappedArrayGetLevel(
                    level_array: out(CUarray), mipmapped_array: val(CUmipmappedArray),
                    level: val(u32));
            /// Gives the size and alignment of memory that an array with mipmap levels needs.
            local 445 since 11060 capture allowed =>
                fn cuMipmappedArrayGetMemoryRequirements(
                    memory_requirements: struct_out(CUDA_ARRAY_MEMORY_REQUIREMENTS),
                    mipmap: val(CUmipmappedArray), device: val(CUdevice));
            /// Gives the layout of a sparse array with mipmap levels.
            local 446 since 11010 capture allowed =>
                fn cuMipmappedArrayGetSparseProperties(
                    sparse_properties: struct_out(CUDA_ARRAY_SPARSE_PROPERTIES),
                    mipmap: val(CUmipmappedArray));
            // Texture and surface objects.
            /// Makes a surface object.
            call 447 since 5000 capture prohibited =>
                fn cuSurfObjectCreate(
                    surf_object: new(CUsurfObject), res_desc: struct_in(CUDA_RESOURCE_DESC));
            /// Ends a surface object.
            post 448 since 5000 capture prohibited =>
                fn cuSurfObjectDestroy(surf_object: val(CUsurfObject));
            /// Gives what a surface object was made of.
            local 449 since 5000 capture allowed =>
                fn cuSurfObjectGetResourceDesc(
                    res_desc: struct_out(CUDA_RESOURCE_DESC), surf_object: val(CUsurfObject));
            /// Makes a texture object.
            call 450 since 5000 capture prohibited
                partial "anisotropy is disregarded, and cubes are filtered face by face on the software GPU" =>
                fn cuTexObjectCreate(
                    tex_object: new(CUtexObject), res_desc: struct_in(CUDA_RESOURCE_DESC),
                    tex_desc: struct_in(CUDA_TEXTURE_DESC),
                    res_view_desc: struct_in(CUDA_RESOURCE_VIEW_DESC));
            /// Ends a texture object.
            post 451 since 5000 capture prohibited =>
                fn cuTexObjectDestroy(tex_object: val(CUtexObject));
            /// Gives what a texture object was made of.
            local 452 since 5000 capture allowed =>
                fn cuTexObjectGetResourceDesc(
                    res_desc: struct_out(CUDA_RESOURCE_DESC), tex_object: val(CUtexObject));
            /// Gives how a texture object sees its resource.
            local 453 since 5000 capture allowed =>
                fn cuTexObjectGetResourceViewDesc(
                    res_view_desc: struct_out(CUDA_RESOURCE_VIEW_DESC),
                    tex_object: val(CUtexObject));
            /// Gives how a texture object is read.
            local 454 since 5000 capture allowed =>
                fn cuTexObjectGetTextureDesc(
                    tex_desc: struct_out(CUDA_TEXTURE_DESC), tex_object: val(CUtexObject));
            // Texture and surface references.
            /// Gives the array of a surface reference.
            local 455 since 3000 capture allowed =>
                fn cuSurfRefGetArray(array: out(CUarray), surf_ref: val(CUsurfref));
            /// Sets the array of a surface reference.
            call 456 since 3000 capture prohibited =>
                fn cuSurfRefSetArray(
                    surf_ref: val(CUsurfref), array: val(CUarray), flags: val(u32));
            /// Makes a texture reference.
            local 457 since 2000 capture prohibited =>
                fn cuTexRefCreate(tex_ref: new(CUtexref));
            /// Ends a texture reference.
            call 458 since 2000 capture prohibited =>
                fn cuTexRefDestroy(tex_ref: val(CUtexref));
            /// Gives the address of a texture reference. Form of CUDA 2.0.
            local 459 since 2000 capture allowed =>
                fn cuTexRefGetAddress(dptr: out(CUdeviceptr_v1), tex_ref: val(CUtexref));
            /// Gives the address of a texture reference. Form of CUDA 3.2.
            local 460 since 3020 capture allowed =>
                fn cuTexRefGetAddress_v2(dptr: out(CUdeviceptr), tex_ref: val(CUtexref));
            /// Gives what a texture reference does beyond an edge.
            local 461 since 2000 capture allowed =>
                fn cuTexRefGetAddressMode(
                    mode: out(CUaddress_mode), tex_ref: val(CUtexref), dim: val(i32));
            /// Gives the array of a texture reference.
            local 462 since 2000 capture allowed =>
                fn cuTexRefGetArray(array: out(CUarray), tex_ref: val(CUtexref));
            /// Gives the border colour of a texture reference.
            local 463 since 8000 capture allowed =>
                fn cuTexRefGetBorderColor(border_color: struct_out([f32; 4]), tex_ref: val(CUtexref));
            /// Gives how a texture reference interpolates.
            local 464 since 2000 capture allowed =>
                fn cuTexRefGetFilterMode(mode: out(CUfilter_mode), tex_ref: val(CUtexref));
            /// Gives the flags of a texture reference.
            local 465 since 2000 capture allowed =>
                fn cuTexRefGetFlags(flags: out(u32), tex_ref: val(CUtexref));
            /// Gives the element format of a texture reference.
            local 466 since 2000 capture allowed =>
                fn cuTexRefGetFormat(
                    format: out(CUarray_format), num_channels: out(i32), tex_ref: val(CUtexref));
            /// Gives the greatest anisotropy of a texture reference.
            local 467 since 5000 capture allowed =>
                fn cuTexRefGetMaxAnisotropy(max_anisotropy: out(i32), tex_ref: val(CUtexref));
            /// Gives how a texture reference interpolates between mipmap levels.
            local 468 since 5000 capture allowed =>
                fn cuTexRefGetMipmapFilterMode(mode: out(CUfilter_mode), tex_ref: val(CUtexref));
            /// Gives the bias of the mipmap level of a texture reference.
            local 469 since 5000 capture allowed =>
                fn cuTexRefGetMipmapLevelBias(bias: out(f32), tex_ref: val(CUtexref));
            /// Gives the range of mipmap levels of a texture reference.
            local 470 since 5000 capture allowed =>
                fn cuTexRefGetMipmapLevelClamp(
                    min_mipmap_level_clamp: out(f32), max_mipmap_level_clamp: out(f32),
                    tex_ref: val(CUtexref));
            /// Gives the array with mipmap levels of a texture reference.
            local 471 since 5000 capture allowed =>
                fn cuTexRefGetMipmappedArray(
                    mipmapped_array: out(CUmipmappedArray), tex_ref: val(CUtexref));
            /// Sets the linear memory of a texture reference. Form of CUDA 2.0.
            call 472 since 2000 capture prohibited =>
                fn cuTexRefSetAddress(
                    byte_offset: out(u32), tex_ref: val(CUtexref), dptr: val(CUdeviceptr_v1),
                    bytes: val(u32));
            /// Sets the linear memory of a texture reference. Form of CUDA 3.2.
            call 473 since 3020 capture prohibited =>
                fn cuTexRefSetAddress_v2(
                    byte_offset: out(usize), tex_ref: val(CUtexref), dptr: val(CUdeviceptr),
                    bytes: val(usize));
            /// Sets the pitched memory of a texture reference. Form of CUDA 2.2.
            call 474 since 2020 capture prohibited =>
                fn cuTexRefSetAddress2D(
                    tex_ref: val(CUtexref), desc: struct_in(CUDA_ARRAY_DESCRIPTOR_v1),
                    dptr: val(CUdeviceptr_v1), pitch: val(u32));
            /// Sets the pitched memory of a texture reference. Form of CUDA 3.2.
            call 475 since 3020 capture prohibited =>
                fn cuTexRefSetAddress2D_v2(
                    tex_ref: val(CUtexref), desc: struct_in(CUDA_ARRAY_DESCRIPTOR),
                    dptr: val(CUdeviceptr), pitch: val(usize));
            /// Sets the pitched memory of a texture reference. Form of CUDA 4.1.
            call 476 since 4010 capture prohibited =>
                fn cuTexRefSetAddress2D_v3(
                    tex_ref: val(CUtexref), desc: struct_in(CUDA_ARRAY_DESCRIPTOR),
                    dptr: val(CUdeviceptr), pitch: val(usize));
            /// Sets what a texture reference does beyond an edge.
            call 477 since 2000 capture prohibited =>
                fn cuTexRefSetAddressMode(
                    tex_ref: val(CUtexref), dim: val(i32), mode: val(CUaddress_mode));
            /// Sets the array of a texture reference.
            call 478 since 2000 capture prohibited =>
                fn cuTexRefSetArray(tex_ref: val(CUtexref), array: val(CUarray), flags: val(u32));
            /// Sets the border colour of a texture reference.
            call 479 since 8000 capture prohibited =>
                fn cuTexRefSetBorderColor(tex_ref: val(CUtexref), border_color: struct_in([f32; 4]));
            /// Sets how a texture reference interpolates.
            call 480 since 2000 capture prohibited =>
                fn cuTexRefSetFilterMode(tex_ref: val(CUtexref), mode: val(CUfilter_mode));
            /// Sets the flags of a texture reference.
            call 481 since 2000 capture prohibited =>
                fn cuTexRefSetFlags(tex_ref: val(CUtexref), flags: val(u32));
            /// Sets the element format of a texture reference.
            call 482 since 2000 capture prohibited =>
                fn cuTexRefSetFormat(
                    tex_ref: val(CUtexref), format: val(CUarray_format),
                    num_packed_components: val(i32));
            /// Sets the greatest anisotropy of a texture reference.
            call 483 since 5000 capture prohibited =>
                fn cuTexRefSetMaxAnisotropy(tex_ref: val(CUtexref), max_anisotropy: val(u32));
            /// Sets how a texture reference interpolates between mipmap levels.
            call 484 since 5000 capture prohibited =>
                fn cuTexRefSetMipmapFilterMode(tex_ref: val(CUtexref), mode: val(CUfilter_mode));
            /// Sets the bias of the mipmap level of a texture reference.
            call 485 since 5000 capture prohibited =>
                fn cuTexRefSetMipmapLevelBias(tex_ref: val(CUtexref), bias: val(f32));
            /// Sets the range of mipmap levels of a texture reference.
            call 486 since 5000 capture prohibited =>
                fn cuTexRefSetMipmapLevelClamp(
                    tex_ref: val(CUtexref), min_mipmap_level_clamp: val(f32),
                    max_mipmap_level_clamp: val(f32));
            /// Sets the array with mipmap levels of a texture reference.
            call 487 since 5000 capture prohibited =>
                fn cuTexRefSetMipmappedArray(
                    tex_ref: val(CUtexref), mipmapped_array: val(CUmipmappedArray), flags: val(u32));
            // Tensor maps.
            /// Encodes the descriptor of im2col tensor copies.
            call 488 since 12000 capture allowed =>
                fn cuTensorMapEncodeIm2col(
                    tensor_map: struct_out(CUtensorMap),
                    tensor_data_type: val(CUtensorMapDataType), tensor_rank: len(u32, global_dim),
                    global_address: opaque(*mut c_void), global_dim: list(u64, tensor_rank),
                    global_strides: list(u64, tensor_rank),
                    pixel_box_lower_corner: list(i32, tensor_rank),
                    pixel_box_upper_corner: list(i32, tensor_rank), channels_per_pixel: val(u32),
                    pixels_per_column: val(u32), element_strides: list(u32, tensor_rank),
                    interleave: val(CUtensorMapInterleave), swizzle: val(CUtensorMapSwizzle),
                    l2_promotion: val(CUtensorMapL2promotion),
                    oob_fill: val(CUtensorMapFloatOOBfill));
            /// Encodes the descriptor of wide im2col tensor copies.
            call 489 since 12080 capture allowed =>
                fn cuTensorMapEncodeIm2colWide(
                    tensor_map: struct_out(CUtensorMap),
                    tensor_data_type: val(CUtensorMapDataType), tensor_rank: len(u32, global_dim),
                    global_address: opaque(*mut c_void), global_dim: list(u64, tensor_rank),
                    global_strides: list(u64, tensor_rank), pixel_box_lower_corner_width: val(i32),
                    pixel_box_upper_corner_width: val(i32), channels_per_pixel: val(u32),
                    pixels_per_column: val(u32), element_strides: list(u32, tensor_rank),
                    interleave: val(CUtensorMapInterleave), mode: val(CUtensorMapIm2ColWideMode),
                    swizzle: val(CUtensorMapSwizzle), l2_promotion: val(CUtensorMapL2promotion),
                    oob_fill: val(CUtensorMapFloatOOBfill));
            /// Encodes the descriptor of tiled tensor copies.
            call 490 since 12000 capture allowed =>
                fn cuTensorMapEncodeTiled(
                    tensor_map: struct_out(CUtensorMap),
                    tensor_data_type: val(CUtensorMapDataType), tensor_rank: len(u32, global_dim),
                    global_address: opaque(*mut c_void), global_dim: list(u64, tensor_rank),
                    global_strides: list(u64, tensor_rank), box_dim: list(u32, tensor_rank),
                    element_strides: list(u32, tensor_rank),
                    interleave: val(CUtensorMapInterleave), swizzle: val(CUtensorMapSwizzle),
                    l2_promotion: val(CUtensorMapL2promotion),
                    oob_fill: val(CUtensorMapFloatOOBfill));
            /// Puts another address into a tensor copy descriptor.
            call 491 since 12000 capture allowed =>
                fn cuTensorMapReplaceAddress(
                    tensor_map: inout(CUtensorMap), global_address: opaque(*mut c_void));
            // Memory and semaphores of other interfaces.
            /// Lets memory of another interface go.
            post 492 since 10000 capture prohibited =>
                fn cuDestroyExternalMemory(ext_mem: val(CUexternalMemory));
            /// Lets a semaphore of another interface go.
            post 493 since 10000 capture prohibited =>
                fn cuDestroyExternalSemaphore(ext_sem: val(CUexternalSemaphore));
            /// Gives the device address of memory of another interface.
            call 494 since 10000 capture prohibited =>
                fn cuExternalMemoryGetMappedBuffer(
                    dev_ptr: out(CUdeviceptr), ext_mem: val(CUexternalMemory),
                    buffer_desc: struct_in(CUDA_EXTERNAL_MEMORY_BUFFER_DESC));
            /// Gives memory of another interface as an array with mipmap levels.
            absent 495 since 10000 capture prohibited =>
                fn cuExternalMemoryGetMappedMipmappedArray(
                    mipmap: out(CUmipmappedArray), ext_mem: val(CUexternalMemory),
                    mipmap_desc: struct_in(CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC));
            /// Takes memory of another interface.
            call 496 since 10000 capture prohibited
                partial "descriptors of memory of cuMemCreate; memory of other interfaces is refused" =>
                fn cuImportExternalMemory(
                    memory: new(CUexternalMemory),
                    mem_handle_desc: struct_in(CUDA_EXTERNAL_MEMORY_HANDLE_DESC));
            /// Takes a semaphore of another interface.
            call 497 since 10000 capture prohibited
                partial "of Vulkan, in a server of one client (`--isolation=client`) on an NVIDIA GPU" =>
                fn cuImportExternalSemaphore(
                    semaphore: new(CUexternalSemaphore),
                    sem_handle_desc: struct_in(CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC));
            /// Signals external semaphores in a stream.
            post 498 since 10000 twin "_ptsz" 10000 capture node =>
                fn cuSignalExternalSemaphoresAsync(
                    ext_sem_array: list(CUexternalSemaphore, num_ext_sems),
                    params_array: list(CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, num_ext_sems),
                    num_ext_sems: len(u32, ext_sem_array), stream: val(CUstream));
            /// Makes a stream wait for external semaphores.
            post 499 since 10000 twin "_ptsz" 10000 capture node =>
                fn cuWaitExternalSemaphoresAsync(
                    ext_sem_array: list(CUexternalSemaphore, num_ext_sems),
                    params_array: list(CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, num_ext_sems),
                    num_ext_sems: len(u32, ext_sem_array), stream: val(CUstream));
            // Green contexts and device resources.
            /// Gives the context of a green context.
            local 500 since 12040 capture allowed =>
                fn cuCtxFromGreenCtx(context: out(CUcontext), ctx: val(CUgreenCtx));
            /// Makes a descriptor of device resources.
            local 501 since 12040 capture allowed =>
                fn cuDevResourceGenerateDesc(
                    desc: out(CUdevResourceDesc), resources: list(CUdevResource, nb_resources),
                    nb_resources: len(u32, resources));
            /// Splits multiprocessors into groups.
            local 502 since 12040 capture allowed
                partial "on a device whose parts come in groups what is in no group is left over, so that an H200 has 7 groups of 16 where NVIDIA's driver finds 8" =>
                fn cuDevSmResourceSplitByCount(
                    result: list_out(CUdevResource, nb_groups), nb_groups: inout(u32),
                    input: struct_in(CUdevResource), remaining: struct_out(CUdevResource),
                    use_flags: val(u32), min_count: val(u32));
            /// Gives a resource of a device.
            local 503 since 12040 capture allowed =>
                fn cuDeviceGetDevResource(
                    device: val(CUdevice), result: struct_out(CUdevResource),
                    kind: val(CUdevResourceType));
            /// Makes a green context: a context with a share of the multiprocessors.
            create 504 since 12040 capture prohibited
                partial "as many multiprocessors as the description says, apart from other green contexts' while these leave enough in one run; a fault in it is its own" =>
                fn cuGreenCtxCreate(
                    ctx: new(CUgreenCtx), desc: val(CUdevResourceDesc), device: val(CUdevice),
                    flags: val(u32));
            /// Ends a green context.
            post 505 since 12040 capture prohibited =>
                fn cuGreenCtxDestroy(ctx: val(CUgreenCtx));
            /// Gives a resource of a green context.
            local 506 since 12040 capture allowed =>
                fn cuGreenCtxGetDevResource(
                    ctx: val(CUgreenCtx), result: struct_out(CUdevResource),
                    kind: val(CUdevResourceType));
            /// Gives the number of a green context.
            local 507 since 12090 capture allowed =>
                fn cuGreenCtxGetId(green_ctx: val(CUgreenCtx), green_ctx_id: out(u64));
            /// Records an event after all work of a green context.
            post 508 since 12040 capture prohibited =>
                fn cuGreenCtxRecordEvent(ctx: val(CUgreenCtx), event: val(CUevent));
            /// Makes a stream of a green context.
            create 509 since 12050 capture prohibited =>
                fn cuGreenCtxStreamCreate(
                    stream: new(CUstream), green_ctx: val(CUgreenCtx), flags: val(u32),
                    priority: val(i32));
            /// Makes all later work of a green context wait for an event.
            post 510 since 12040 capture prohibited
                partial "not for events of other processes" =>
                fn cuGreenCtxWaitEvent(ctx: val(CUgreenCtx), event: val(CUevent));
            /// Gives the green context of a stream.
            local 511 since 12040 capture allowed =>
                fn cuStreamGetGreenCtx(stream: val(CUstream), ctx: out(CUgreenCtx));
            // Graphics resources.
            /// Registers an EGL image.
            absent 512 since 7000 capture prohibited =>
                fn cuGraphicsEGLRegisterImage(
                    cuda_resource: new(CUgraphicsResource), image: val(EGLImageKHR),
                    flags: val(u32));
            /// Registers an OpenGL buffer.
            absent 513 since 3000 capture prohibited =>
                fn cuGraphicsGLRegisterBuffer(
                    cuda_resource: new(CUgraphicsResource), buffer: val(u32), flags: val(u32));
            /// Registers an OpenGL image.
            absent 514 since 3000 capture prohibited =>
                fn cuGraphicsGLRegisterImage(
                    cuda_resource: new(CUgraphicsResource), image: val(u32), target: val(u32),
                    flags: val(u32));
            /// Maps graphics resources, in a stream.
            absent 515 since 3000 twin "_ptsz" 7000 capture prohibited =>
                fn cuGraphicsMapResources(
                    count: len(u32, resources), resources: list(CUgraphicsResource, count),
                    stream: val(CUstream));
            /// Gives the frame of a mapped EGL resource.
            absent 516 since 7000 capture prohibited =>
                fn cuGraphicsResourceGetMappedEglFrame(
                    egl_frame: struct_out(CUeglFrame), resource: val(CUgraphicsResource),
                    index: val(u32), mip_level: val(u32));
            /// Gives the array with mipmap levels of a mapped graphics resource.
            absent 517 since 5000 capture prohibited =>
                fn cuGraphicsResourceGetMappedMipmappedArray(
                    mipmapped_array: out(CUmipmappedArray), resource: val(CUgraphicsResource));
            /// Gives address and size of a mapped graphics resource. Form of CUDA 3.0.
            absent 518 since 3000 capture prohibited =>
                fn cuGraphicsResourceGetMappedPointer(
                    dev_ptr: out(CUdeviceptr_v1), size: out(u32), resource: val(CUgraphicsResource));
            /// Gives address and size of a mapped graphics resource. Form of CUDA 3.2.
            absent 519 since 3020 capture prohibited =>
                fn cuGraphicsResourceGetMappedPointer_v2(
                    dev_ptr: out(CUdeviceptr), size: out(usize), resource: val(CUgraphicsResource));
            /// Sets how a graphics resource will be mapped. Form of CUDA 3.0.
            absent 520 since 3000 capture prohibited =>
                fn cuGraphicsResourceSetMapFlags(
                    resource: val(CUgraphicsResource), flags: val(u32));
            /// Sets how a graphics resource will be mapped. Form of CUDA 6.5.
            absent 521 since 6050 capture prohibited =>
                fn cuGraphicsResourceSetMapFlags_v2(
                    resource: val(CUgraphicsResource), flags: val(u32));
            /// Gives an array of a mapped graphics resource.
            absent 522 since 3000 capture prohibited =>
                fn cuGraphicsSubResourceGetMappedArray(
                    array: out(CUarray), resource: val(CUgraphicsResource), array_index: val(u32),
                    mip_level: val(u32));
            /// Unmaps graphics resources, in a stream.
            absent 523 since 3000 twin "_ptsz" 7000 capture prohibited =>
                fn cuGraphicsUnmapResources(
                    count: len(u32, resources), resources: list(CUgraphicsResource, count),
                    stream: val(CUstream));
            /// Ends the registration of a graphics resource.
            absent 524 since 3000 capture prohibited =>
                fn cuGraphicsUnregisterResource(resource: val(CUgraphicsResource));
            /// Registers a VDPAU output surface.
            absent 525 since 3010 capture prohibited =>
                fn cuGraphicsVDPAURegisterOutputSurface(
                    cuda_resource: new(CUgraphicsResource), vdp_surface: val(u32), flags: val(u32));
            /// Registers a VDPAU video surface.
            absent 526 since 3010 capture prohibited =>
                fn cuGraphicsVDPAURegisterVideoSurface(
                    cuda_resource: new(CUgraphicsResource), vdp_surface: val(u32), flags: val(u32));
            // OpenGL.
            /// Makes a context that works with OpenGL. Form of CUDA 2.0.
            absent 527 since 2000 capture prohibited =>
                fn cuGLCtxCreate(ctx: new(CUcontext), flags: val(u32), device: val(CUdevice));
            /// Makes a context that works with OpenGL. Form of CUDA 3.2.
            absent 528 since 3020 capture prohibited =>
                fn cuGLCtxCreate_v2(ctx: new(CUcontext), flags: val(u32), device: val(CUdevice));
            /// Lists the devices that the OpenGL context uses. Form of CUDA 4.1.
            absent 529 since 4010 capture allowed =>
                fn cuGLGetDevices(
                    found: out(u32), cuda_devices: list_out(CUdevice, cuda_device_count),
                    cuda_device_count: len(u32, cuda_devices), device_list: val(CUGLDeviceList));
            /// Lists the devices that the OpenGL context uses. Form of CUDA 6.5.
            absent 530 since 6050 capture allowed =>
                fn cuGLGetDevices_v2(
                    found: out(u32), cuda_devices: list_out(CUdevice, cuda_device_count),
                    cuda_device_count: len(u32, cuda_devices), device_list: val(CUGLDeviceList));
            /// Readies the old OpenGL functions.
            absent 531 since 2000 capture prohibited =>
                fn cuGLInit();
            /// Maps an OpenGL buffer. Form of CUDA 2.0.
            absent 532 since 2000 capture prohibited =>
                fn cuGLMapBufferObject(dptr: out(CUdeviceptr_v1), size: out(u32), buffer: val(u32));
            /// Maps an OpenGL buffer. Form of CUDA 3.2.
            absent 533 since 3020 twin "_ptds" 7000 capture prohibited =>
                fn cuGLMapBufferObject_v2(
                    dptr: out(CUdeviceptr), size: out(usize), buffer: val(u32));
            /// Maps an OpenGL buffer, in a stream. Form of CUDA 2.3.
            absent 534 since 2030 capture prohibited =>
                fn cuGLMapBufferObjectAsync(
                    dptr: out(CUdeviceptr_v1), size: out(u32), buffer: val(u32),
                    stream: val(CUstream));
            /// Maps an OpenGL buffer, in a stream. Form of CUDA 3.2.
            absent 535 since 3020 twin "_ptsz" 7000 capture prohibited =>
                fn cuGLMapBufferObjectAsync_v2(
                    dptr: out(CUdeviceptr), size: out(usize), buffer: val(u32),
                    stream: val(CUstream));
            /// Registers an OpenGL buffer, the old way.
            absent 536 since 2000 capture prohibited =>
                fn cuGLRegisterBufferObject(buffer: val(u32));
            /// Sets how an OpenGL buffer will be mapped.
            absent 537 since 2030 capture prohibited =>
                fn cuGLSetBufferObjectMapFlags(buffer: val(u32), flags: val(u32));
            /// Unmaps an OpenGL buffer.
            absent 538 since 2000 capture prohibited =>
                fn cuGLUnmapBufferObject(buffer: val(u32));
            /// Unmaps an OpenGL buffer, in a stream.
            absent 539 since 2030 capture prohibited =>
                fn cuGLUnmapBufferObjectAsync(buffer: val(u32), stream: val(CUstream));
            /// Ends the registration of an OpenGL buffer.
            absent 540 since 2000 capture prohibited =>
                fn cuGLUnregisterBufferObject(buffer: val(u32));
            // EGL.
            /// Not in the public headers; its parameters are not known.
            absent 541 since 0 capture prohibited =>
                fn cuEGLApiInit();
            /// Takes a frame from an EGL stream.
            absent 542 since 7000 capture allowed =>
                fn cuEGLStreamConsumerAcquireFrame(
                    conn: inout(CUeglStreamConnection), cuda_resource: out(CUgraphicsResource),
                    stream: out(CUstream), timeout: val(u32));
            /// Connects to an EGL stream to take frames.
            absent 543 since 7000 capture allowed =>
                fn cuEGLStreamConsumerConnect(
                    conn: inout(CUeglStreamConnection), stream: val(EGLStreamKHR));
            /// Connects to an EGL stream to take frames, with flags.
            absent 544 since 8000 capture allowed =>
                fn cuEGLStreamConsumerConnectWithFlags(
                    conn: inout(CUeglStreamConnection), stream: val(EGLStreamKHR), flags: val(u32));
            /// Ends the taking of frames from an EGL stream.
            absent 545 since 7000 capture allowed =>
                fn cuEGLStreamConsumerDisconnect(conn: inout(CUeglStreamConnection));
            /// Gives a frame back to an EGL stream.
            absent 546 since 7000 capture prohibited =>
                fn cuEGLStreamConsumerReleaseFrame(
                    conn: inout(CUeglStreamConnection), cuda_resource: val(CUgraphicsResource),
                    stream: out(CUstream));
            /// Connects to an EGL stream to give frames.
            absent 547 since 7000 capture allowed =>
                fn cuEGLStreamProducerConnect(
                    conn: inout(CUeglStreamConnection), stream: val(EGLStreamKHR), width: val(i32),
                    height: val(i32));
            /// Ends the giving of frames to an EGL stream.
            absent 548 since 7000 capture allowed =>
                fn cuEGLStreamProducerDisconnect(conn: inout(CUeglStreamConnection));
            /// Gives a frame to an EGL stream.
            absent 549 since 7000 capture allowed =>
                fn cuEGLStreamProducerPresentFrame(
                    conn: inout(CUeglStreamConnection), eglframe: val(CUeglFrame),
                    stream: out(CUstream));
            /// Takes back a frame that an EGL stream is done with.
            absent 550 since 7000 capture allowed =>
                fn cuEGLStreamProducerReturnFrame(
                    conn: inout(CUeglStreamConnection), eglframe: struct_in(CUeglFrame),
                    stream: out(CUstream));
            // VDPAU.
            /// Makes a context that works with VDPAU. Form of CUDA 3.1.
            absent 551 since 3010 capture prohibited =>
                fn cuVDPAUCtxCreate(
                    ctx: new(CUcontext), flags: val(u32), device: val(CUdevice),
                    vdp_device: val(u32), vdp_get_proc_address: opaque(*mut c_void));
            /// Makes a context that works with VDPAU. Form of CUDA 3.2.
            absent 552 since 3020 capture prohibited =>
                fn cuVDPAUCtxCreate_v2(
                    ctx: new(CUcontext), flags: val(u32), device: val(CUdevice),
                    vdp_device: val(u32), vdp_get_proc_address: opaque(*mut c_void));
            /// Gives the device of a VDPAU device.
            absent 553 since 3010 capture allowed =>
                fn cuVDPAUGetDevice(
                    device: out(CUdevice), vdp_device: val(u32),
                    vdp_get_proc_address: opaque(*mut c_void));
            // Other device functions.
            /// Says whether contexts of a device can have an execution affinity.
            local 554 since 11040 capture allowed =>
                fn cuDeviceGetExecAffinitySupport(
                    value: out(i32), kind: val(CUexecAffinityType), device: val(CUdevice));
            /// Says which atomic operations a device can do on host memory.
            local 555 since 13000 capture allowed =>
                fn cuDeviceGetHostAtomicCapabilities(
                    capabilities: list_out(u32, count), operations: list(CUatomicOperation, count),
                    count: len(u32, capabilities), device: val(CUdevice));
            /// Fills the NvSciSync attributes of a device.
            absent 556 since 10020 capture allowed =>
                fn cuDeviceGetNvSciSyncAttributes(
                    nv_sci_sync_attr_list: opaque(*mut c_void), device: val(CUdevice),
                    flags: val(i32));
            /// Says which atomic operations a device can do on the memory of another.
            local 557 since 13000 capture allowed =>
                fn cuDeviceGetP2PAtomicCapabilities(
                    capabilities: list_out(u32, count), operations: list(CUatomicOperation, count),
                    count: len(u32, capabilities), src_device: val(CUdevice),
                    dst_device: val(CUdevice));
            /// Gives how many elements a linear texture may have.
            local 558 since 11010 capture allowed =>
                fn cuDeviceGetTexture1DLinearMaxWidth(
                    max_width_in_elements: out(usize), format: val(CUarray_format),
                    num_channels: val(u32), device: val(CUdevice));
            /// Asks to be called when something happens to a device.
            local 559 since 12040 capture prohibited =>
                fn cuDeviceRegisterAsyncNotification(
                    device: val(CUdevice), callback_func: val(CUasyncCallback),
                    user_data: opaque(*mut c_void), callback: new(CUasyncCallbackHandle));
            /// Ends what cuDeviceRegisterAsyncNotification asked.
            local 560 since 12040 capture prohibited =>
                fn cuDeviceUnregisterAsyncNotification(
                    device: val(CUdevice), callback: val(CUasyncCallbackHandle));
            // Checkpoints, core dumps, logs.
            /// Moves the device state of a locked process to host memory.
            absent 561 since 12080 capture allowed =>
                fn cuCheckpointProcessCheckpoint(
                    pid: val(i32), args: struct_in(CUcheckpointCheckpointArgs));
            /// Gives the thread of a process that restores it.
            absent 562 since 12080 capture allowed =>
                fn cuCheckpointProcessGetRestoreThreadId(pid: val(i32), tid: out(i32));
            /// Gives how far the checkpoint of a process is.
            absent 563 since 12080 capture allowed =>
                fn cuCheckpointProcessGetState(pid: val(i32), state: out(CUprocessState));
            /// Makes the driver calls of a process wait.
            absent 564 since 12080 capture allowed =>
                fn cuCheckpointProcessLock(pid: val(i32), args: struct_in(CUcheckpointLockArgs));
            /// Moves the device state of a process back to devices.
            absent 565 since 12080 capture allowed =>
                fn cuCheckpointProcessRestore(
                    pid: val(i32), args: struct_in(CUcheckpointRestoreArgs));
            /// Lets the driver calls of a process go on.
            absent 566 since 12080 capture allowed =>
                fn cuCheckpointProcessUnlock(
                    pid: val(i32), args: struct_in(CUcheckpointUnlockArgs));
            /// Gives a setting of core dumps of the current context.
            absent 567 since 12010 capture allowed =>
                fn cuCoredumpGetAttribute(
                    setting: val(CUcoredumpSettings), value: bytes_out(size), size: inout(usize));
            /// Gives a setting of core dumps of the process.
            absent 568 since 12010 capture allowed =>
                fn cuCoredumpGetAttributeGlobal(
                    setting: val(CUcoredumpSettings), value: bytes_out(size), size: inout(usize));
            /// Changes a setting of core dumps of the current context.
            absent 569 since 12010 capture allowed =>
                fn cuCoredumpSetAttribute(
                    setting: val(CUcoredumpSettings), value: bytes(size), size: inout(usize));
            /// Changes a setting of core dumps of the process.
            absent 570 since 12010 capture allowed =>
                fn cuCoredumpSetAttributeGlobal(
                    setting: val(CUcoredumpSettings), value: bytes(size), size: inout(usize));
            /// Gives the present end of the driver's log.
            local 571 since 12090 capture allowed =>
                fn cuLogsCurrent(iterator: out(CUlogIterator), flags: val(u32));
            /// Writes the driver's log from a place on to a file.
            local 572 since 12090 capture allowed =>
                fn cuLogsDumpToFile(
                    iterator: inout(CUlogIterator), path_to_file: cstr(), flags: val(u32));
            /// Writes the driver's log from a place on to memory.
            local 573 since 12090 capture allowed =>
                fn cuLogsDumpToMemory(
                    iterator: inout(CUlogIterator), buffer: chars_out(size), size: inout(usize),
                    flags: val(u32));
            /// Asks to be called with each line of the driver's log.
            local 574 since 12090 capture allowed =>
                fn cuLogsRegisterCallback(
                    callback_func: val(CUlogsCallback), user_data: opaque(*mut c_void),
                    callback: new(CUlogsCallbackHandle));
            /// Ends what cuLogsRegisterCallback asked.
            local 575 since 12090 capture allowed =>
                fn cuLogsUnregisterCallback(callback: val(CUlogsCallbackHandle));
        }
    };
}

/// The C type of a parameter, from its mode: `c_type!(out(i32))` is `*mut i32`.
///
/// The modes are those of [`for_each_function!`](crate::for_each_function).
#[macro_export]
macro_rules! c_type {
    (val($type:ty)) => { $type };
    (len($type:ty, $of:ident)) => { $type };
    (out($type:ty)) => { *mut $type };
    (inout($type:ty)) => { *mut $type };
    (new($type:ty)) => { *mut $type };
    (struct_in($type:ty)) => { *const $type };
    (struct_out($type:ty)) => { *mut $type };
    (list($type:ty, $count:ident)) => { *const $type };
    (list_out($type:ty, $count:ident)) => { *mut $type };
    (bytes($count:ident)) => { *const $crate::types::c_void };
    (bytes_out($count:ident)) => { *mut $crate::types::c_void };
    (chars_out($count:ident)) => { *mut $crate::types::c_char };
    (cstr()) => { *const $crate::types::c_char };
    (opaque($type:ty)) => { $type };
}
