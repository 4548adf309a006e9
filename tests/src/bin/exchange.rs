//! A program that shares a block of device memory or an event, or opens one that another shares, as it is told a line at a time.
//! What goes wrong is said as `error` and its number.
//!
//! It knows nothing of OpenMPS. Tests start several, in servers of their choice, and kill some; so does `exchange_pair`, on a GPU.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{answer, handle_from_text, handle_to_text, hear, say};
use transport::socket::Connection;

tests::functions! {
    get = "cuIpcGetMemHandle"(*mut [u8; 64], Address);
    open = "cuIpcOpenMemHandle_v2"(*mut Address, [u8; 64], c_uint);
    close = "cuIpcCloseMemHandle"(Address);
    event_get = "cuIpcGetEventHandle"(*mut [u8; 64], Handle);
    event_open = "cuIpcOpenEventHandle"(*mut Handle, [u8; 64]);
    event_query = "cuEventQuery"(Handle);
    event_destroy = "cuEventDestroy_v2"(Handle);
    pool_create = "cuMemPoolCreate"(*mut u64, *const [u64; 11]);
    pool_alloc = "cuMemAllocFromPoolAsync"(*mut Address, usize, u64, Handle);
    pool_free = "cuMemFreeAsync"(Address, Handle);
    pool_export = "cuMemPoolExportToShareableHandle"(*mut c_int, u64, c_uint, u64);
    pool_import = "cuMemPoolImportFromShareableHandle"(*mut u64, *mut c_void, c_uint, u64);
    pointer_export = "cuMemPoolExportPointer"(*mut [u8; 64], Address);
    pointer_import = "cuMemPoolImportPointer"(*mut Address, u64, *const [u8; 64]);
}

/// CUmemPoolProps as numbers: pinned memory that goes as a descriptor (1, 1), on the device (1) of number 0.
static POOL: [u64; 11] = [1 | 1 << 32, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
const DESCRIPTOR: c_uint = 1;

/// CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING
const SHARED: u32 = 6;

/// The default stream.
const NULL: Handle = 0;

/// Runs for a fifth of a second; under a driver of our own, as long as a test says.
const KERNEL: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry k()\n{\n\
    .reg .b64 %rd<4>;\n.reg .pred %p<2>;\n\
    mov.u64 %rd1, %globaltimer;\n\
    again:\n\
    mov.u64 %rd2, %globaltimer;\nsub.u64 %rd3, %rd2, %rd1;\n\
    setp.lt.u64 %p1, %rd3, 200000000;\n@%p1 bra again;\n\
    ret;\n}\n";

/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
const LAZY: u32 = 1;

fn ok(code: Code) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

/// How long it takes to open a block and to close it, the median of many.
fn open_and_close(more: &Functions, handle: [u8; 64]) -> Result<Duration, Code> {
    let mut times = Vec::new();
    for _ in 0..101 {
        let (begun, mut block) = (Instant::now(), 0);
        // SAFETY: the out pointer is a local's, and nothing uses the block.
        unsafe {
            ok((more.open)(&raw mut block, handle, LAZY))?;
            ok((more.close)(block))?;
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Makes a pool, and gives the test its descriptor.
fn make_pool(more: &Functions, path: &str) -> Result<u64, Code> {
    let (mut pool, mut number) = (0, -1);
    // SAFETY: the pointers are to locals and to a constant of CUDA's layout.
    unsafe {
        ok((more.pool_create)(&raw mut pool, &raw const POOL))?;
        ok((more.pool_export)(&raw mut number, pool, DESCRIPTOR, 0))?;
    }
    // SAFETY: the call gave this program a descriptor of its own.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    let test = Connection::connect(path).expect("the test listens");
    test.send(b"pool", &[descriptor.as_fd()])
        .expect("it takes a descriptor");
    Ok(pool)
}

/// Takes a pool's descriptor from the test.
fn open_pool(more: &Functions, path: &str) -> Result<u64, Code> {
    let test = Connection::connect(path).expect("the test listens");
    let (_, descriptors) = test.receive().expect("a descriptor");
    let number = std::ptr::without_provenance_mut(descriptors[0].as_raw_fd() as usize);
    let mut pool = 0;
    // SAFETY: the descriptor is open and the pointer is to a local.
    ok(unsafe { (more.pool_import)(&raw mut pool, number, DESCRIPTOR, 0) })?;
    Ok(pool)
}

fn main() {
    let driver = Driver::ready();
    let more = Functions::open();
    // What it made or opened last.
    let mut block: Address = 0;
    let mut event: Handle = 0;
    let mut pool = 0;
    say("ready");
    loop {
        let line = hear();
        let mut words = line.split(' ');
        let task = words.next().unwrap_or_default();
        let argument = words.next().unwrap_or_default();
        let number = || argument.parse::<usize>().expect("a number");
        let result = match task {
            "alloc" => driver.alloc(number()).map(|address| block = address),
            "get" | "get-event" | "get-pointer" => {
                let mut handle = [0; 64];
                // SAFETY: the out pointer is a local's, and what is shared this program's own.
                let got = unsafe {
                    match task {
                        "get" => (more.get)(&raw mut handle, block),
                        "get-pointer" => (more.pointer_export)(&raw mut handle, block),
                        _ => (more.event_get)(&raw mut handle, event),
                    }
                };
                match ok(got) {
                    Ok(()) => {
                        say(&handle_to_text(&handle));
                        continue;
                    }
                    error => error,
                }
            }
            "open" => {
                // SAFETY: the out pointer is a local's.
                ok(unsafe { (more.open)(&raw mut block, handle_from_text(argument), LAZY) })
            }
            "at" => {
                block = number() as Address;
                Ok(())
            }
            "where" => {
                say(&block.to_string());
                continue;
            }
            "time" => match open_and_close(&more, handle_from_text(argument)) {
                Ok(each) => {
                    say(&format!("{:.0}", each.as_secs_f64() * 1e6));
                    continue;
                }
                Err(code) => Err(code),
            },
            // SAFETY: nothing that this program does later uses it.
            "close" => ok(unsafe { (more.close)(block) }),
            // SAFETY: the program frees a block of its own, and uses it no more.
            "free" => unsafe { driver.mem_free(block) },
            // Others see it once it is done.
            "write" => driver
                .upload(block, &vec![number() as u64; 512])
                .and_then(|()| driver.synchronize()),
            "read" => {
                let mut seen = vec![0u64; 512];
                let read = driver.download(&mut seen, block);
                if read.is_ok() {
                    seen.dedup();
                    say(&format!("{seen:?}"));
                    continue;
                }
                read
            }
            "pool" => make_pool(&more, argument).map(|made| pool = made),
            "open-pool" => open_pool(&more, argument).map(|opened| pool = opened),
            // SAFETY: the out pointer is a local's.
            "pool-alloc" => ok(unsafe { (more.pool_alloc)(&raw mut block, number(), pool, NULL) }),
            "open-pointer" => {
                let data = handle_from_text(argument);
                // SAFETY: the pointers are to locals.
                ok(unsafe { (more.pointer_import)(&raw mut block, pool, &raw const data) })
            }
            // SAFETY: nothing that this program does later uses it.
            "pool-free" => ok(unsafe { (more.pool_free)(block, NULL) }),
            // SAFETY: the out pointer is a local's.
            "event" => unsafe { driver.event_create(&raw mut event, SHARED) },
            "open-event" => {
                let handle = handle_from_text(argument);
                // SAFETY: the out pointer is a local's.
                ok(unsafe { (more.event_open)(&raw mut event, handle) })
            }
            "run" => driver
                .module(KERNEL)
                .and_then(|module| driver.function(module, "k"))
                .and_then(|kernel| driver.launch(kernel, 1, 1, NULL, &[])),
            // SAFETY: the event is this program's and the stream the default one.
            "record" => unsafe { driver.event_record(event, NULL) },
            // SAFETY: the stream is the default one and the event this program's.
            "wait" => unsafe { driver.stream_wait_event(NULL, event, 0) },
            // SAFETY: the event is one that this program has made or opened.
            "query" => ok(unsafe { (more.event_query)(event) }),
            // SAFETY: the default stream is there as long as the program.
            "idle" => unsafe { driver.stream_query(NULL) },
            "sync" => driver.synchronize(),
            // SAFETY: an event of this program's, which it does not use later.
            "destroy" => ok(unsafe { (more.event_destroy)(event) }),
            "memory" => match driver.memory() {
                Ok((free, _)) => {
                    say(&free.to_string());
                    continue;
                }
                Err(code) => Err(code),
            },
            _ => return,
        };
        answer(result);
    }
}
