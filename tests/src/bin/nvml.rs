//! A program that opens NVIDIA's management library in one of several ways and says what it was told.
//!
//! It knows nothing of OpenMPS. What it says is read by `tests/nvml.rs`.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tests::cuda::Driver;
use tests::program::{hear, say};

type Code = c_uint;
/// A pointer in C, but not one that this side may follow.
type Device = usize;

const SUCCESS: Code = 0;
const UNINITIALIZED: Code = 1;
const INVALID_ARGUMENT: Code = 2;
const NOT_SUPPORTED: Code = 3;
const NOT_FOUND: Code = 6;
const INSUFFICIENT_SIZE: Code = 7;
const VERSION_MISMATCH: Code = 25;

/// nvmlMemory_t
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// nvmlMemory_v2_t
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Memory2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

const MEMORY_2: u32 = 2 << 24 | 40;

/// Processes that there is room for.
const ROOM: usize = 64;

/// nvmlProcessInfo_v1_t
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Process1 {
    pid: u32,
    used: u64,
}

/// nvmlProcessInfo_t of versions 2 and 3
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Process {
    pid: u32,
    used: u64,
    instances: [u32; 2],
}

/// nvmlProcessDetail_v1_t
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Detail {
    process: Process,
    protected: u64,
}

/// nvmlProcessDetailList_t
#[repr(C)]
struct Details {
    version: u32,
    mode: u32,
    count: u32,
    array: *mut Detail,
}

const DETAILS: u32 = 1 << 24 | 24;

/// nvmlPciInfo_t
#[repr(C)]
struct Pci {
    legacy: [c_char; 16],
    numbers: [u32; 5],
    bus_id: [c_char; 32],
}

fn open() -> Library {
    // SAFETY: loading the library runs no code that asks anything of its loader.
    let library = unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_NOW | RTLD_LOCAL) };
    library.expect("libnvidia-ml.so.1 is on the path")
}

/// Calls a function with arguments of these types.
macro_rules! call {
    ($library:expr, $name:literal $(, $argument:expr => $type:ty)*) => {{
        // SAFETY: the types are those of NVIDIA's documentation; wrong values are what tests pass, and the
        // library under test must bear them.
        unsafe {
            let name = concat!($name, "\0").as_bytes();
            let function = $library.get::<unsafe extern "C" fn($($type),*) -> Code>(name).expect($name);
            function($($argument),*)
        }
    }};
}

fn first(library: &Library) -> Device {
    let mut device: Device = 0;
    let code = call!(library, "nvmlDeviceGetHandleByIndex_v2", 0 => c_uint, &raw mut device => *mut Device);
    assert_eq!(code, SUCCESS);
    device
}

fn memory(library: &Library, device: Device) -> Result<Memory, Code> {
    let mut memory = Memory::default();
    match call!(library, "nvmlDeviceGetMemoryInfo", device => Device, &raw mut memory => *mut Memory)
    {
        SUCCESS => Ok(memory),
        code => Err(code),
    }
}

/// The processes by the third form.
fn processes(library: &Library, device: Device) -> Vec<Process> {
    let mut found = [Process::default(); ROOM];
    let mut count = ROOM as c_uint;
    let code = call!(library, "nvmlDeviceGetComputeRunningProcesses_v3", device => Device, &raw mut count => *mut c_uint, found.as_mut_ptr() => *mut Process);
    assert_eq!(code, SUCCESS);
    found[..count as usize].to_vec()
}

/// All forms of a question say the same, while nobody comes or goes.
fn forms_agree(library: &Library, device: Device) {
    let (mut one, mut detail) = ([Process1::default(); ROOM], [Detail::default(); ROOM]);
    let mut count = ROOM as c_uint;
    let mut details = Details {
        version: DETAILS,
        mode: 0,
        count: ROOM as u32,
        array: detail.as_mut_ptr(),
    };
    let codes = [
        call!(library, "nvmlDeviceGetComputeRunningProcesses", device => Device, &raw mut count => *mut c_uint, one.as_mut_ptr() => *mut Process1),
        call!(library, "nvmlDeviceGetRunningProcessDetailList", device => Device, &raw mut details => *mut Details),
    ];
    assert_eq!(codes, [SUCCESS; 2]);
    let found = processes(library, device);
    assert_eq!([count, details.count], [found.len() as u32; 2]);
    for (at, process) in found.iter().enumerate() {
        assert_eq!((one[at].pid, one[at].used), (process.pid, process.used));
        let same = detail[at].process;
        assert_eq!((same.pid, same.used), (process.pid, process.used));
        assert_eq!(process.instances, [u32::MAX; 2]);
    }
    let (first, second) = (memory(library, device), memory_2(library, device));
    let first = first.expect("memory");
    assert_eq!((second.total, second.free), (first.total, first.free));
    assert_eq!(first.total, first.free + first.used);
}

/// The second form, whose parts make up the whole.
fn memory_2(library: &Library, device: Device) -> Memory2 {
    let mut memory = Memory2 {
        version: MEMORY_2,
        ..Memory2::default()
    };
    let code = call!(library, "nvmlDeviceGetMemoryInfo_v2", device => Device, &raw mut memory => *mut Memory2);
    assert_eq!(code, SUCCESS);
    assert_eq!(memory.total, memory.free + memory.used + memory.reserved);
    memory
}

fn text(field: &[c_char]) -> String {
    // SAFETY: a field of the library's, which ends with a NUL.
    let text = unsafe { CStr::from_ptr(field.as_ptr()) };
    text.to_string_lossy().into_owned()
}

/// A text that a function gives for a device.
macro_rules! text_of {
    ($library:expr, $name:literal, $device:expr) => {{
        let mut field = [0 as c_char; 96];
        let code = call!($library, $name, $device => Device, field.as_mut_ptr() => *mut c_char, 96 => c_uint);
        assert_eq!(code, SUCCESS, $name);
        text(&field)
    }};
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let library = open();
    match arguments.first().map_or("", String::as_str) {
        "code" => say(&call!(library, "nvmlInit_v2").to_string()),
        "show" => show(&library),
        "hold" => hold(&library, arguments[1].parse().expect("bytes")),
        "same" => same(&library),
        "wrong" => wrong(&library),
        "counts" => counts(&library),
        "threads" => threads(&library),
        "fork" => fork(&library),
        "sensor" => sensor(&library),
        "lost" => lost(&library),
        other => panic!("no task {other:?}"),
    }
}

/// Total, used and free memory of each device, and processes.
fn show(library: &Library) {
    assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
    let mut count = 0;
    assert_eq!(
        call!(library, "nvmlDeviceGetCount_v2", &raw mut count => *mut c_uint),
        SUCCESS
    );
    for index in 0..count {
        let mut device: Device = 0;
        let code = call!(library, "nvmlDeviceGetHandleByIndex_v2", index => c_uint, &raw mut device => *mut Device);
        assert_eq!(code, SUCCESS);
        let shown = memory_2(library, device);
        let mut line = format!("{index} {} {} {}", shown.total, shown.used, shown.free);
        for process in processes(library, device) {
            line += &format!(" {}:{}", process.pid, process.used);
        }
        say(&line);
    }
    say("end");
}

/// Becomes a client with so much memory, shows what it is told, and again when it is asked.
fn hold(library: &Library, bytes: usize) {
    let driver = Driver::ready();
    driver.alloc(bytes).expect("memory");
    show(library);
    loop {
        match hear().as_str() {
            "" => return,
            _ => show(library),
        }
    }
}

/// What both libraries say is the same.
fn same(library: &Library) {
    assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
    let device = first(library);
    assert_eq!(
        processes(library, device).len(),
        0,
        "nobody is a client yet"
    );
    // SAFETY: the name is a C string; loading runs the library's own initialisers only.
    let cuda = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) };
    let cuda = cuda.expect("libcuda.so.1 is on the path");
    let driver = Driver::ready();
    driver.alloc(4 << 20).expect("memory");

    let mut uuid = [0_u8; 16];
    assert_eq!(
        call!(cuda, "cuDeviceGetUuid", uuid.as_mut_ptr() => *mut u8, 0 => c_int),
        SUCCESS
    );
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let named = text_of!(library, "nvmlDeviceGetUUID", device);
    assert_eq!(
        named
            .strip_prefix("GPU-")
            .expect("its form")
            .replace('-', ""),
        digits
    );
    let by_uuid = CString::new(named).expect("no NUL");
    let mut found: Device = 0;
    let code = call!(library, "nvmlDeviceGetHandleByUUID", by_uuid.as_ptr() => *const c_char, &raw mut found => *mut Device);
    assert_eq!((code, found), (SUCCESS, device));

    let mut bus_id = [0 as c_char; 32];
    let code = call!(cuda, "cuDeviceGetPCIBusId", bus_id.as_mut_ptr() => *mut c_char, 32 => c_int, 0 => c_int);
    assert_eq!(code, SUCCESS);
    let mut pci = Pci {
        legacy: [0; 16],
        numbers: [0; 5],
        bus_id: [0; 32],
    };
    let code =
        call!(library, "nvmlDeviceGetPciInfo_v3", device => Device, &raw mut pci => *mut Pci);
    assert_eq!(code, SUCCESS);
    assert_eq!(text(&pci.legacy), text(&bus_id));
    assert_eq!(text(&pci.bus_id), format!("0000{}", text(&bus_id)));
    let code = call!(library, "nvmlDeviceGetHandleByPciBusId_v2", bus_id.as_ptr() => *const c_char, &raw mut found => *mut Device);
    assert_eq!((code, found), (SUCCESS, device));

    let mut name = [0 as c_char; 96];
    assert_eq!(
        call!(cuda, "cuDeviceGetName", name.as_mut_ptr() => *mut c_char, 96 => c_int, 0 => c_int),
        SUCCESS
    );
    assert_eq!(text_of!(library, "nvmlDeviceGetName", device), text(&name));

    let (mut major, mut minor) = (0, 0);
    let code = call!(library, "nvmlDeviceGetCudaComputeCapability", device => Device, &raw mut major => *mut c_int, &raw mut minor => *mut c_int);
    assert_eq!(code, SUCCESS);
    for (attribute, expected) in [(75, major), (76, minor)] {
        let mut value = 0;
        assert_eq!(
            call!(cuda, "cuDeviceGetAttribute", &raw mut value => *mut c_int, attribute => c_int, 0 => c_int),
            SUCCESS
        );
        assert_eq!(value, expected);
    }
    let (mut one, mut other) = (0, 0);
    assert_eq!(
        call!(library, "nvmlSystemGetCudaDriverVersion_v2", &raw mut one => *mut c_int),
        SUCCESS
    );
    assert_eq!(
        call!(cuda, "cuDriverGetVersion", &raw mut other => *mut c_int),
        SUCCESS
    );
    assert_eq!(one, other);

    let (mut free, mut total) = (0_usize, 0_usize);
    let code =
        call!(cuda, "cuMemGetInfo_v2", &raw mut free => *mut usize, &raw mut total => *mut usize);
    assert_eq!(code, SUCCESS);
    let shown = memory(library, device).expect("memory");
    assert_eq!((shown.total, shown.free), (total as u64, free as u64));
    forms_agree(library, device);
    let own = processes(library, device);
    assert_eq!(own.len(), 1);
    assert_eq!((own[0].pid, own[0].used), (std::process::id(), shown.used));
    say("ok");
}

/// Bad input is refused, each in its own way.
fn wrong(library: &Library) {
    let null = std::ptr::null_mut::<c_uint>();
    // Before nvmlInit, whatever else is wrong.
    assert_eq!(
        call!(library, "nvmlDeviceGetCount_v2", null => *mut c_uint),
        UNINITIALIZED
    );
    assert_eq!(
        call!(library, "nvmlDeviceSetPersistenceMode"),
        UNINITIALIZED
    );
    assert_eq!(
        call!(library, "nvmlDeviceGetTemperature", 0 => Device, 0 => c_uint, null => *mut c_uint),
        UNINITIALIZED
    );
    assert_eq!(call!(library, "nvmlShutdown"), UNINITIALIZED);
    assert_eq!(
        call!(library, "nvmlInitWithFlags", 8 => c_uint),
        INVALID_ARGUMENT
    );
    assert_eq!(call!(library, "nvmlInitWithFlags", 1 => c_uint), SUCCESS);

    let device = first(library);
    let mut number = 7;
    let count = &raw mut number;
    assert_eq!(
        call!(library, "nvmlDeviceGetCount_v2", null => *mut c_uint),
        INVALID_ARGUMENT
    );
    for none in [0, 1, 0xdead_0000, device + 1, device - 1, usize::MAX] {
        assert_eq!(
            call!(library, "nvmlDeviceGetIndex", none => Device, count => *mut c_uint),
            INVALID_ARGUMENT
        );
        assert_eq!(memory(library, none), Err(INVALID_ARGUMENT));
        assert_eq!(
            call!(library, "nvmlDeviceGetTemperature", none => Device, 0 => c_uint, count => *mut c_uint),
            INVALID_ARGUMENT
        );
    }
    let mut found: Device = 0;
    let code = call!(library, "nvmlDeviceGetHandleByIndex_v2", 99 => c_uint, &raw mut found => *mut Device);
    assert_eq!(code, INVALID_ARGUMENT);
    for (bus_id, expected) in [
        (c"0000:ff:1f.0", NOT_FOUND),
        (c"nonsense", INVALID_ARGUMENT),
    ] {
        let code = call!(library, "nvmlDeviceGetHandleByPciBusId_v2", bus_id.as_ptr() => *const c_char, &raw mut found => *mut Device);
        assert_eq!(code, expected);
    }
    let code = call!(library, "nvmlDeviceGetHandleByUUID", c"GPU-none".as_ptr() => *const c_char, &raw mut found => *mut Device);
    assert_eq!(code, NOT_FOUND);
    let nothing = std::ptr::null::<c_char>();
    let code = call!(library, "nvmlDeviceGetHandleByUUID", nothing => *const c_char, &raw mut found => *mut Device);
    assert_eq!(code, INVALID_ARGUMENT);

    let mut name = [1 as c_char; 4];
    let code = call!(library, "nvmlDeviceGetName", device => Device, name.as_mut_ptr() => *mut c_char, 4 => c_uint);
    assert_eq!((code, name), (INSUFFICIENT_SIZE, [1; 4]));
    let code = call!(library, "nvmlDeviceGetName", device => Device, std::ptr::null_mut() => *mut c_char, 96 => c_uint);
    assert_eq!(code, INVALID_ARGUMENT);

    let mut second = Memory2::default();
    for version in [0, MEMORY_2 + 1, 1 << 24 | 40] {
        second.version = version;
        let code = call!(library, "nvmlDeviceGetMemoryInfo_v2", device => Device, &raw mut second => *mut Memory2);
        assert_eq!(code, VERSION_MISMATCH);
    }
    let mut details = Details {
        version: DETAILS,
        mode: 17,
        count: 0,
        array: std::ptr::null_mut(),
    };
    let code = call!(library, "nvmlDeviceGetRunningProcessDetailList", device => Device, &raw mut details => *mut Details);
    assert_eq!(code, INVALID_ARGUMENT);

    // With a client, there is something that may not fit.
    let driver = Driver::ready();
    driver.alloc(1 << 20).expect("memory");
    number = 0;
    let no_room = std::ptr::null_mut::<Process>();
    let code = call!(library, "nvmlDeviceGetComputeRunningProcesses_v3", device => Device, count => *mut c_uint, no_room => *mut Process);
    assert_eq!((code, number), (INSUFFICIENT_SIZE, 1));
    // There is room, it says, and there is none.
    let code = call!(library, "nvmlDeviceGetComputeRunningProcesses_v3", device => Device, count => *mut c_uint, no_room => *mut Process);
    assert_eq!(code, INVALID_ARGUMENT);
    let code = call!(library, "nvmlDeviceGetComputeRunningProcesses_v3", device => Device, null => *mut c_uint, no_room => *mut Process);
    assert_eq!(code, INVALID_ARGUMENT);
    let code = call!(library, "nvmlDeviceGetGraphicsRunningProcesses_v3", device => Device, count => *mut c_uint, no_room => *mut Process);
    assert_eq!((code, number), (SUCCESS, 0));

    assert_eq!(
        call!(library, "nvmlDeviceSetPersistenceMode", device => Device, 1 => c_uint),
        NOT_SUPPORTED
    );
    assert_eq!(
        call!(library, "nvmlSystemGetProcessName", u32::MAX => c_uint, name.as_mut_ptr() => *mut c_char, 4 => c_uint),
        NOT_FOUND
    );
    let code = call!(library, "nvmlSystemGetProcessName", std::process::id() => c_uint, name.as_mut_ptr() => *mut c_char, 4 => c_uint);
    assert_eq!((code, text(&name).len()), (SUCCESS, 3));
    say("ok");
}

fn counts(library: &Library) {
    let mut number = 0;
    let mut count = || call!(library, "nvmlDeviceGetCount_v2", &raw mut number => *mut c_uint);
    for _ in 0..3 {
        assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
        assert_eq!(call!(library, "nvmlInit"), SUCCESS);
        assert_eq!(call!(library, "nvmlShutdown"), SUCCESS);
        assert_eq!(count(), SUCCESS);
        assert_eq!(call!(library, "nvmlShutdown"), SUCCESS);
        assert_eq!(count(), UNINITIALIZED);
        assert_eq!(call!(library, "nvmlShutdown"), UNINITIALIZED);
    }
    say("ok");
}

fn threads(library: &Library) {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
                    let device = first(library);
                    assert!(memory(library, device).expect("memory").total > 0);
                    assert_eq!(call!(library, "nvmlShutdown"), SUCCESS);
                }
            });
        }
    });
    say("ok");
}

/// Children of a process whose other threads use the library all the time use it too.
fn fork(library: &Library) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let ended = AtomicBool::new(false);
    assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
    let device = first(library);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    memory(library, device).expect("memory");
                }
            });
        }
        for _ in 0..20 {
            // SAFETY: the child calls the library, which is what is tested, and ends without anything else.
            match unsafe { libc::fork() } {
                0 => {
                    let works = memory(library, device).is_ok()
                        && call!(library, "nvmlInit_v2") == SUCCESS
                        && call!(library, "nvmlShutdown") == SUCCESS;
                    // SAFETY: it ends this process at once.
                    unsafe { libc::_exit(i32::from(!works)) };
                }
                child => {
                    let mut status = 0;
                    // SAFETY: a child of this process, and a place for its status.
                    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                    assert_eq!((waited, status), (child, 0));
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    say("ok");
}

/// What a device measures.
fn sensor(library: &Library) {
    assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
    let device = first(library);
    let mut value = 0;
    let code = call!(library, "nvmlDeviceGetTemperature", device => Device, 0 => c_uint, &raw mut value => *mut c_uint);
    say(&format!("{code} {value}"));
}

/// The daemon goes while the library is in use.
fn lost(library: &Library) {
    assert_eq!(call!(library, "nvmlInit_v2"), SUCCESS);
    let device = first(library);
    say("ready");
    hear();
    let code = memory(library, device).expect_err("nobody is there");
    say(&format!(
        "{code} {}",
        text_of!(library, "nvmlDeviceGetName", device)
    ));
}
