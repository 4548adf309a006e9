//! A server for unit tests, in this very process: it runs what the library posts, on plain vectors.
//!
//! It knows images that are lists of lines (see [`server::image`]), and a few kernels that it
//! carries out by name. It keeps streams apart, lets one wait for another, and does nothing of what a
//! real server does to protect itself.
//!
//! Called by unit tests of `api`, `export_tables` and others; none of it is in the library that programs load.

mod server;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use cuda_abi::types::*;
use protocol::control_messages::{self, Packet, Purpose, Welcome};
use protocol::device_facts::DeviceFacts;
use protocol::operations::ContextCreate;
use transport::session::{Publisher, ServerEnd, SessionMemory};
use transport::socket::Listener;

use crate::pointers::{Address, CallbackData, FromOpaque, ImageStart, ParameterList, Untyped};

pub(crate) use server::Launched;

/// What tests and server share.
#[derive(Debug, Default)]
pub(crate) struct TestServer {
    /// Every launch so far.
    pub launches: Mutex<Vec<Launched>>,
    /// The runs that there are, by number, and the data of their launches.
    pub runs: Mutex<BTreeMap<u32, Vec<Vec<u8>>>>,
    /// Graphs that kernels may launch: their numbers, and how many launches they have.
    pub published: Mutex<Vec<(u64, usize)>>,
    /// Numbers of the functions that were called and are not built.
    pub not_supported: Mutex<Vec<u32>>,
    /// The contexts that were made.
    pub contexts: Mutex<Vec<ContextCreate>>,
    /// How many tensor maps were asked for.
    pub tensor_maps: Mutex<u32>,
    /// Open while kernels called `gate` may finish.
    gate: AtomicBool,
    publisher: Mutex<Option<Arc<Publisher>>>,
}

static SHARED: std::sync::LazyLock<Arc<TestServer>> = std::sync::LazyLock::new(Arc::default);

/// Held by a test that closes the gate, and by those that it would disturb.
pub(crate) static GATE: Mutex<()> = Mutex::new(());

/// Bytes of a device's window, and of the host window.
pub(crate) const WINDOW: u64 = 1 << 30;

const ARENA: u64 = 0x2a00_0000_0000;

/// Where a further window is, which the client has not had from the beginning.
pub(crate) const FURTHER: u64 = ARENA + 16 * WINDOW;

/// Bytes of memory that the test's devices say they have.
pub(crate) const MEMORY: u64 = 256 << 20;

fn facts() -> Vec<DeviceFacts> {
    let mut attributes = vec![0; 148];
    for (attribute, value) in [
        (CUdevice_attribute::MAX_THREADS_PER_BLOCK, 1024),
        (CUdevice_attribute::MAX_BLOCK_DIM_X, 1024),
        (CUdevice_attribute::MAX_BLOCK_DIM_Y, 1024),
        (CUdevice_attribute::MAX_BLOCK_DIM_Z, 64),
        (CUdevice_attribute::CLUSTER_LAUNCH, 1),
        (CUdevice_attribute::MAX_GRID_DIM_X, i32::MAX),
        (CUdevice_attribute::MAX_GRID_DIM_Y, 65535),
        (CUdevice_attribute::MAX_GRID_DIM_Z, 65535),
        (CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK, 49152),
        (
            CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            99 << 10,
        ),
        (
            CUdevice_attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            100 << 10,
        ),
        (CUdevice_attribute::RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
        (CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR, 2048),
        (CUdevice_attribute::MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
        (CUdevice_attribute::MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
        (CUdevice_attribute::MAX_REGISTERS_PER_BLOCK, 65536),
        (CUdevice_attribute::MULTIPROCESSOR_COUNT, 4),
        (CUdevice_attribute::WARP_SIZE, 32),
        (CUdevice_attribute::COOPERATIVE_LAUNCH, 1),
        (CUdevice_attribute::COOPERATIVE_MULTI_DEVICE_LAUNCH, 1),
        (CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR, 12),
        (CUdevice_attribute::COMPUTE_CAPABILITY_MINOR, 1),
        (CUdevice_attribute::PCI_BUS_ID, 0x1a),
    ] {
        attributes[attribute.0 as usize] = value;
    }
    (0..2)
        .map(|device| {
            let mut attributes = attributes.clone();
            attributes[CUdevice_attribute::PCI_DEVICE_ID.0 as usize] = device;
            attributes[CUdevice_attribute::HOST_NATIVE_ATOMIC_SUPPORTED.0 as usize] = device;
            DeviceFacts {
                name: format!("test device {device}"),
                uuid: [device as u8 + 1; 16],
                total_memory: MEMORY,
                attributes,
                window: ARENA + WINDOW * (1 + device as u64),
                window_bytes: WINDOW,
            }
        })
        .collect()
}

/// A daemon that has a server ready, and serves one client.
fn serve(listener: &Listener) {
    let connection = listener.accept().expect("a client");
    let (hello, _) = connection.receive().expect("a packet");
    let Ok(Packet::Hello(hello)) = Packet::decode(&hello) else {
        panic!("not a hello");
    };
    assert!(matches!(hello.purpose, Purpose::Client(fields) if !fields.program.is_empty()));
    let memory = SessionMemory::create(WINDOW).expect("memory");
    let end = ServerEnd::new(&memory).expect("a server's end");
    let staging = transport::memory::Mapping::map(&memory.staging).expect("staging");
    let facts = facts();
    let welcome = Packet::Welcome(Welcome {
        version: control_messages::VERSION,
        session: 1,
        server_pid: std::process::id() as i32,
        facts: facts.clone(),
        host_base: ARENA,
        host_bytes: WINDOW,
    });
    let fds = memory.fds();
    connection
        .send(&welcome.encode(), &fds.each_ref().map(AsFd::as_fd))
        .expect("sent");
    let (consumer, publisher) = end.split();
    *SHARED
        .publisher
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&publisher));
    server::run(consumer, &publisher, &staging, ARENA, &facts, &SHARED);
    drop(connection);
}

/// Starts the server and calls cuInit, once for all tests.
pub(crate) fn start() -> &'static TestServer {
    static START: Once = Once::new();
    START.call_once(|| {
        let directory =
            std::env::temp_dir().join(format!("openmps-client-test-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let listener = Listener::bind(directory.join("control")).expect("a socket");
        std::thread::spawn(move || serve(&listener));
        // SAFETY: the only thread that reads the environment is this one, in cuInit.
        unsafe { std::env::set_var("CUDA_MPS_PIPE_DIRECTORY", &directory) };
        assert_eq!(crate::api::cuInit(0), Ok(()));
        std::fs::remove_dir_all(&directory).expect("it was there");
    });
    &SHARED
}

impl TestServer {
    /// Lets kernels called `gate` finish, or keeps them from it.
    pub(crate) fn open_gate(&self, open: bool) {
        self.gate.store(open, Ordering::SeqCst);
        if let Some(publisher) = &*self
            .publisher
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            publisher.ring_self();
        }
    }

    /// As a device says by itself how far a stream is, of which the server knows nothing.
    pub(crate) fn tell(&self, stream: u32, sequence: u64) {
        let publisher = self
            .publisher
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (memory, words) = publisher.as_ref().expect("a client").device_completions();
        let word = memory.word(words.start + stream as usize * 8);
        word.store(sequence, Ordering::Release);
    }

    fn gate_is_open(&self) -> bool {
        self.gate.load(Ordering::SeqCst)
    }
}

/// Starts the server and makes a context of the test's own current, on a device.
pub(crate) fn context(device: i32) -> CUcontext {
    start();
    let mut context = CUcontext::NULL;
    crate::api::cuCtxCreate(out(&mut context), 0, device).expect("a context");
    context
}

/// A parameter that is written.
pub(crate) fn out<T>(value: &mut T) -> crate::pointers::Out<T> {
    // SAFETY: the tests' values outlive the calls.
    unsafe { crate::pointers::Out::new(value) }
}

/// A value's place as a parameter whose type another one names.
pub(crate) fn untyped(pointer: *mut c_void) -> Untyped {
    // SAFETY: the tests' values outlive the calls, and have the type that is named.
    unsafe { Untyped::from_opaque(pointer) }
}

/// The parameters of a launch.
pub(crate) fn parameters(list: *mut *mut c_void) -> ParameterList {
    // SAFETY: NULL, or a test's own list, which is as its kernel has it.
    unsafe { ParameterList::from_opaque(list) }
}

/// What a test's function is called with.
pub(crate) fn data_of_call(data: *mut c_void) -> CallbackData {
    // SAFETY: the tests' functions take what they are given, on any thread.
    unsafe { CallbackData::from_opaque(data) }
}

/// An image as a parameter.
pub(crate) fn image_start(start: *const c_void) -> ImageStart {
    // SAFETY: NULL, or the start of a test's own image, which is whole.
    unsafe { ImageStart::from_opaque(start) }
}

/// An address as a parameter.
pub(crate) fn address_of(pointer: *mut c_void) -> Address {
    Address::from(pointer)
}

/// Text as a parameter; it ends in a NUL.
pub(crate) fn text(text: &'static str) -> crate::pointers::Text {
    assert!(text.ends_with('\0'));
    // SAFETY: it ends in a NUL.
    unsafe { crate::pointers::Text::new(text.as_ptr().cast()) }
}

/// Bytes of a test as a parameter.
pub(crate) fn bytes(bytes: &[u8]) -> crate::pointers::Bytes {
    // SAFETY: the tests' slices outlive the calls.
    unsafe { crate::pointers::Bytes::new(bytes.as_ptr().cast::<c_void>()) }
}

/// Room in a test as a parameter.
pub(crate) fn room(bytes: &mut [u8]) -> crate::pointers::BytesOut {
    // SAFETY: the tests' slices outlive the calls.
    unsafe { crate::pointers::BytesOut::new(bytes.as_mut_ptr().cast::<c_void>()) }
}

/// Allocates device memory.
pub(crate) fn allocate(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    crate::api::cuMemAlloc_v2(out(&mut address), bytes).expect("memory");
    address
}

/// What stands in device memory.
pub(crate) fn read(address: CUdeviceptr, count: usize) -> Vec<u8> {
    let mut content = vec![0; count];
    crate::api::cuMemcpyDtoH_v2(room(&mut content), address, count).expect("a copy");
    content
}

/// Loads a module, see [`server::image`].
pub(crate) fn load(image: &'static str) -> CUmodule {
    assert!(image.ends_with('\0'));
    let mut module = CUmodule::NULL;
    crate::api::cuModuleLoadData(out(&mut module), image_start(image.as_ptr().cast()))
        .expect("a module");
    module
}

/// A function of a module.
pub(crate) fn function(module: CUmodule, name: &'static str) -> CUfunction {
    let mut function = CUfunction::NULL;
    crate::api::cuModuleGetFunction(out(&mut function), module, text(name)).expect("a function");
    function
}

/// Launches one block of one thread.
pub(crate) fn launch(
    function: CUfunction,
    stream: CUstream,
    params: &mut [*mut c_void],
) -> crate::api::Outcome {
    let each = params.as_mut_ptr();
    crate::api::cuLaunchKernel(
        function,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        stream,
        parameters(each),
        parameters(std::ptr::null_mut()),
    )
}
