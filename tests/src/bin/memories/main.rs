//! A program that uses memory of every kind and says `ok` when all that it checked was right.
//!
//! It knows nothing of OpenMPS. Tests start it as a client, some of them to kill it; some tasks
//! speak with the test over standard input and output, a line at a time.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{finish, handle_from_text, handle_to_text, hear, say};

mod exported;
mod files;
mod large;
mod quota;

const KERNELS: &str = include_str!("../../../kernels/kernels.ptx");

const NULL: Handle = 0;
const OUT_OF_MEMORY: Code = 2;
const MIB: usize = 1 << 20;

/// CUmemAllocationProp: pinned, of device 0, to be exported as a descriptor.
const PROPERTIES: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];

/// CUmemAccessDesc: device 0 reads and writes.
const ACCESS: [u32; 3] = [1, 0, 3];

tests::functions! {
    pitch = "cuMemAllocPitch_v2"(*mut Address, *mut usize, usize, usize, c_uint);
    managed = "cuMemAllocManaged"(*mut Address, usize, c_uint);
    register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister"(*mut c_void);
    device_pointer = "cuMemHostGetDevicePointer_v2"(*mut Address, *mut c_void, c_uint);
    pool_alloc = "cuMemAllocAsync"(*mut Address, usize, Handle);
    pool_free = "cuMemFreeAsync"(Address, Handle);
    pool_create = "cuMemPoolCreate"(*mut u64, *const [u64; 11]);
    pool_destroy = "cuMemPoolDestroy"(u64);
    alloc_from_pool = "cuMemAllocFromPoolAsync"(*mut Address, usize, u64, Handle);
    array_create = "cuArrayCreate_v2"(*mut u64, *const Array2d);
    array_create_3d = "cuArray3DCreate_v2"(*mut u64, *const Array3d);
    array_destroy = "cuArrayDestroy"(u64);
    mipmapped_create = "cuMipmappedArrayCreate"(*mut u64, *const Array3d, c_uint);
    mipmapped_destroy = "cuMipmappedArrayDestroy"(u64);
    library_load = "cuLibraryLoadData"(*mut u64, *const c_void, *const c_void, *const c_void, c_uint, *const c_void, *const c_void, c_uint);
    library_module = "cuLibraryGetModule"(*mut u64, u64);
    library_unload = "cuLibraryUnload"(u64);
    exec_destroy = "cuGraphExecDestroy"(Handle);
    graph_destroy = "cuGraphDestroy"(Handle);
    set_limit = "cuCtxSetLimit"(c_uint, usize);
    reserve = "cuMemAddressReserve"(*mut Address, usize, usize, Address, u64);
    address_free = "cuMemAddressFree"(Address, usize);
    total = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    unmap = "cuMemUnmap"(Address, usize);
    create = "cuMemCreate"(*mut u64, usize, *const u32, u64);
    release = "cuMemRelease"(u64);
    map = "cuMemMap"(Address, usize, usize, u64, u64);
    access = "cuMemSetAccess"(Address, usize, *const u32, usize);
    export = "cuMemExportToShareableHandle"(*mut c_int, u64, c_uint, u64);
    import = "cuMemImportFromShareableHandle"(*mut u64, *mut c_void, c_uint);
    ipc_get = "cuIpcGetMemHandle"(*mut [u8; 64], Address);
    ipc_open = "cuIpcOpenMemHandle_v2"(*mut Address, [u8; 64], c_uint);
    ipc_close = "cuIpcCloseMemHandle"(Address);
    ipc_event_get = "cuIpcGetEventHandle"(*mut [u8; 64], Handle);
    ipc_event_open = "cuIpcOpenEventHandle"(*mut Handle, [u8; 64]);
    event_query = "cuEventQuery"(Handle);
}

/// What cuArray3DCreate takes. cuArrayCreate's has no depth and no flags.
#[repr(C)]
struct Array3d {
    width: usize,
    height: usize,
    depth: usize,
    /// CU_AD_FORMAT_UNSIGNED_INT8 is 1.
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

#[repr(C)]
struct Array2d {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

fn ok(code: Code) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map_or("", String::as_str) {
        "quota" => quota::quota(),
        "large" => large::large(141 << 30),
        "large-quota" => large::large_quota(),
        "beyond" => large::beyond(),
        "confined" => large::confined(),
        "export" => exported::export(&arguments[1]),
        "import" => exported::import(&arguments[1]),
        "hold" => hold(&arguments[1]),
        "free" => free(),
        "registered" => registered(),
        "torn" => files::torn(),
        "offer" => offer(),
        "use" => use_offered(),
        "meet" => meet(&arguments[1]),
        other => panic!("no task {other:?}"),
    };
    finish(result);
}

/// Says how much memory is free.
fn free() -> Result<(), Code> {
    println!("free {}", Driver::ready().memory()?.0);
    Ok(())
}

/// Takes memory of a kind, works on it and never ends.
fn hold(kind: &str) -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let sequence = driver.function(driver.module(KERNELS)?, "sequence")?;
    let count = MIB / 8;
    let mut address: Address = 0;
    let mut own = vec![0_u64; count + 100];
    // SAFETY: out pointers lead to locals, addresses and handles are this program's own, and memory
    // that is registered is never freed.
    unsafe {
        match kind {
            "managed" => ok((more.managed)(&raw mut address, MIB, 1))?,
            "registered" => {
                let start = own.as_mut_ptr().add(50).cast();
                ok((more.register)(start, MIB, 2))?;
                ok((more.device_pointer)(&raw mut address, start, 0))?;
            }
            "file" => {
                let (_file, start) = files::shared(MIB);
                ok((more.register)(start, MIB, 2))?;
                ok((more.device_pointer)(&raw mut address, start, 0))?;
            }
            "pool" => ok((more.pool_alloc)(&raw mut address, MIB, NULL))?,
            "virtual" => {
                let (unit, mut handle) = (2 * MIB, 0);
                ok((more.reserve)(&raw mut address, 4 * unit, 0, 0, 0))?;
                ok((more.create)(&raw mut handle, unit, PROPERTIES.as_ptr(), 0))?;
                for part in 0..2 {
                    let at = address + (part * unit) as u64;
                    ok((more.map)(at, unit, 0, handle, 0))?;
                    ok((more.access)(at, unit, ACCESS.as_ptr(), 1))?;
                }
                let mut file = -1;
                ok((more.export)(&raw mut file, handle, 1, 0))?;
            }
            "exported" => {
                address = driver.alloc(MIB)?;
                let mut handle = [0; 64];
                ok((more.ipc_get)(&raw mut handle, address))?;
                let mut event = NULL;
                driver.event_create(&raw mut event, 6)?;
                ok((more.ipc_event_get)(&raw mut handle, event))?;
            }
            other => panic!("no kind {other:?}"),
        }
        say("holding");
        loop {
            driver.launch(sequence, 8, 128, NULL, &[address, count as u64, 3, 1])?;
            if kind == "pool" {
                ok((more.pool_free)(address, NULL))?;
                ok((more.pool_alloc)(&raw mut address, MIB, NULL))?;
            }
        }
    }
}

/// Memory of the program's own, registered in the middle of others, through a fork and back.
fn registered() -> Result<(), Code> {
    const INVALID_VALUE: Code = 1;
    const ALREADY_REGISTERED: Code = 712;
    const NOT_REGISTERED: Code = 713;
    const NOT_SUPPORTED: Code = 801;
    let driver = Driver::ready();
    let more = Functions::open();
    let sequence = driver.function(driver.module(KERNELS)?, "sequence")?;
    // Neither end is at a page's, and what is before and behind must not change.
    let mut all: Vec<u64> = (0..200_000).collect();
    let (start, count) = (777, 150_003);
    let part = all[start..].as_mut_ptr().cast::<c_void>();
    let mut address = 0;
    // SAFETY: out pointers lead to locals; the memory is this program's own and lives longer than its
    // registration.
    unsafe {
        ok((more.register)(part, count * 8, 2))?;
        ok((more.device_pointer)(&raw mut address, part, 0))?;
        assert_ne!(address, part.addr() as u64);
        // Of the very middle of it, and a neighbour on a page of it.
        let middle = all[start + 5000..].as_mut_ptr().cast();
        assert_eq!((more.register)(middle, 8000, 0), ALREADY_REGISTERED);
        assert_eq!(all[..start], (0..start as u64).collect::<Vec<_>>()[..]);
        driver.launch(sequence, 8, 128, NULL, &[address, count as u64, 5, 9])?;
        driver.synchronize()?;
    }
    let right = |all: &[u64]| {
        all.iter().enumerate().all(|(at, &value)| {
            let inside = (start..start + count).contains(&at);
            value
                == if inside {
                    (at - start) as u64 * 5 + 9
                } else {
                    at as u64
                }
        })
    };
    assert!(right(&all), "the kernel's, and nothing else");
    // A child has its own: what it writes is not seen here, nor what a kernel writes seen there.
    // SAFETY: the child only touches its memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = right(&all);
        all[start - 1] = 4711;
        all[start + 1000] = 4711;
        all[start + count] = 4711;
        std::thread::sleep(Duration::from_millis(50));
        let kept = all[start + 2000] == 2000 * 5 + 9;
        // SAFETY: _exit takes a number, and nothing of this process has to be cleaned up.
        unsafe { libc::_exit(if same && kept { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child is this program's own; the status is a local.
    unsafe {
        std::thread::sleep(Duration::from_millis(10));
        driver.launch(sequence, 8, 128, NULL, &[address, count as u64, 7, 1])?;
        driver.synchronize()?;
        libc::waitpid(child, &raw mut status, 0);
        assert_eq!(status, 0, "the child saw its own memory");
        driver.launch(sequence, 8, 128, NULL, &[address, count as u64, 5, 9])?;
        driver.synchronize()?;
        assert!(right(&all), "the parent saw nothing of the child's");
        ok((more.unregister)(part))?;
        assert_eq!((more.unregister)(part), NOT_REGISTERED);
    }
    assert!(right(&all), "it is all there afterwards");
    let smaps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let shared = smaps
        .lines()
        .filter_map(|line| line.split_once('-'))
        .any(|(first, rest)| {
            let first = u64::from_str_radix(first, 16).expect("an address");
            let end = rest.split(' ').next().expect("an end");
            let end = u64::from_str_radix(end, 16).expect("an address");
            (first..end).contains(&(part.addr() as u64)) && rest.contains("rw-s")
        });
    assert!(!shared, "the pages are private again");
    all[start] = 1;
    // What cannot be had.
    let mut here = [0_u64; 100];
    // SAFETY: what is refused is not touched.
    unsafe {
        let stack = here.as_mut_ptr().cast();
        assert_eq!((more.register)(stack, 800, 0), NOT_SUPPORTED);
        let shared = libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        // Only who may look for the file under /proc finds it.
        let expected = match files::finds_files_of_mappings(shared) {
            true => 0,
            false => NOT_SUPPORTED,
        };
        assert_eq!((more.register)(shared, 8192, 0), expected);
        if expected == 0 {
            ok((more.device_pointer)(&raw mut address, shared, 0))?;
            driver.launch(sequence, 8, 128, NULL, &[address, 1024, 5, 9])?;
            driver.synchronize()?;
            assert_eq!(shared.cast::<u64>().add(1023).read(), 1023 * 5 + 9);
            ok((more.unregister)(shared))?;
        }
        libc::munmap(shared, 8192);
        assert_eq!((more.register)(shared, 8192, 0), INVALID_VALUE, "unmapped");
        // A context's end is a registration's.
        ok((more.register)(part, count * 8, 0))?;
        driver.ctx_set_current(0)?;
        let mut context = 0;
        driver.ctx_create(&raw mut context, 0, 0)?;
        let second = all[start + count + 5000..].as_mut_ptr().cast();
        ok((more.register)(second, 40_000, 0))?;
        driver.ctx_destroy(context)?;
        assert_eq!((more.unregister)(second), NOT_REGISTERED);
        ok((more.unregister)(part))?;
    }
    assert_eq!(all[start + count + 5001], (start + count + 5001) as u64);
    Ok(())
}

/// Offers a block and an event; the test says when to do what with them.
fn offer() -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let sequence = driver.function(driver.module(KERNELS)?, "sequence")?;
    // Two small blocks, which share a granule of memory, and a large one.
    let (block, other) = (driver.alloc(8192)?, driver.alloc(8192)?);
    let large = driver.alloc(8 * MIB)?;
    let (mut memory, mut event) = ([0; 64], [0; 64]);
    let mut shared = NULL;
    // SAFETY: out pointers lead to locals, addresses are this program's own.
    unsafe {
        driver.event_create(&raw mut shared, 6)?;
        ok((more.ipc_event_get)(&raw mut event, shared))?;
        ok((more.ipc_get)(&raw mut memory, block))?;
        say(&format!(
            "{} {} {other}",
            handle_to_text(&memory),
            handle_to_text(&event)
        ));
        ok((more.ipc_get)(&raw mut memory, large))?;
        say(&handle_to_text(&memory));
        loop {
            match hear().as_str() {
                "write" => {
                    driver.launch(sequence, 1, 32, NULL, &[block, 1024, 2, 7])?;
                    driver.event_record(shared, NULL)?;
                    say("written");
                }
                "free" => {
                    driver.mem_free(block)?;
                    driver.mem_free(large)?;
                    driver.synchronize()?;
                    say(&format!("free {}", driver.memory()?.0));
                }
                "memory" => say(&format!("free {}", driver.memory()?.0)),
                _ => return Ok(()),
            }
        }
    }
}

/// Uses what another process offers.
fn use_offered() -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    let line = hear();
    let words: Vec<&str> = line.split(' ').collect();
    let neighbour: Address = words[2].parse().expect("an address");
    let (mut block, mut event) = (0, NULL);
    // SAFETY: out pointers lead to locals; addresses are this program's own, or another's, which the
    // driver is to refuse.
    unsafe {
        let before = driver.memory()?.0;
        ok((more.ipc_open)(
            &raw mut block,
            handle_from_text(words[0]),
            1,
        ))?;
        ok((more.ipc_event_open)(
            &raw mut event,
            handle_from_text(words[1]),
        ))?;
        let mut twice = 0;
        ok((more.ipc_open)(
            &raw mut twice,
            handle_from_text(words[0]),
            1,
        ))?;
        assert_eq!(twice, block);
        ok((more.ipc_close)(twice))?;
        assert_eq!(driver.memory()?.0, before, "it is not counted here");
        // Nothing else by this way: no other token, nothing of the neighbour on the same granule.
        let mut wrong = handle_from_text(words[0]);
        wrong[20] ^= 1;
        let mut none = 0;
        assert_ne!((more.ipc_open)(&raw mut none, wrong, 1), 0);
        let mut word = [0_u64; 1];
        assert!(driver.download(&mut word, neighbour).is_err());
        assert!(driver.download(&mut word, block + 8192).is_err());
        assert!(driver.mem_free(block).is_err());
        say("open");
        loop {
            match hear().as_str() {
                "read" => {
                    driver.stream_wait_event(NULL, event, 0)?;
                    let mut values = [0_u64; 1024];
                    driver.download(&mut values, block)?;
                    let right = (0..1024).all(|at| values[at] == at as u64 * 2 + 7);
                    assert!(right, "{:?}", &values[..4]);
                    assert_eq!((more.event_query)(event), 0);
                    driver.upload(block, &values)?;
                    say("right");
                }
                "close" => {
                    ok((more.ipc_close)(block))?;
                    assert!(driver.download(&mut word, block).is_err());
                    driver.synchronize()?;
                    say("closed");
                }
                "wild" => {
                    let write = driver.function(driver.module(KERNELS)?, "write_to")?;
                    driver.launch(write, 1, 1, NULL, &[neighbour, 42])?;
                    let code = driver.synchronize().err().unwrap_or(0);
                    say(&format!("error {code}"));
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }
}

/// Two such programs, of which one is "first", wait for each other's kernels in each round, in memory
/// that each has from the other. The host is asked for nothing until all rounds are over.
fn meet(role: &str) -> Result<(), Code> {
    const ROUNDS: u64 = 8;
    let driver = Driver::ready();
    let more = Functions::open();
    let module = driver.module(KERNELS)?;
    let (wait, set) = (
        driver.function(module, "wait_for")?,
        driver.function(module, "set")?,
    );
    let flag = driver.alloc(4096)?;
    let (mut handle, mut others) = ([0; 64], 0);
    // SAFETY: out pointers lead to locals; addresses are this program's own, or one that it opened.
    unsafe {
        driver.fill_32(flag, 0, 1024)?;
        ok((more.ipc_get)(&raw mut handle, flag))?;
        say(&handle_to_text(&handle));
        ok((more.ipc_open)(
            &raw mut others,
            handle_from_text(&hear()),
            1,
        ))?;
    }
    for round in 1..=ROUNDS {
        // The second answers, so no flag goes on before it was seen.
        let order = match role {
            "first" => [(set, others), (wait, flag)],
            _ => [(wait, flag), (set, others)],
        };
        for (kernel, at) in order {
            driver.launch(kernel, 1, 1, NULL, &[at, round])?;
        }
    }
    driver.synchronize()?;
    let mut seen = [0];
    driver.download(&mut seen, flag)?;
    assert_eq!(seen, [ROUNDS]);
    // SAFETY: cuIpcOpenMemHandle gave the address, and the work that used it is complete.
    ok(unsafe { (more.ipc_close)(others) })
}
