//! Fills every kind of memory with a pattern, or looks for it in memory that nobody has written: what a client that was
//! killed leaves for the next.
//!
//! `remains fill` says `filled` and stays, with kernels that write the pattern running; `remains look` says of each kind
//! `KIND COUNT`, how many words of the pattern it found; `remains find` fills and looks for it where it has filled, so that it
//! must find some of each kind. `remains lend` has memory that these import. Of OpenMPS it knows what its staging memory is called.

use std::ffi::c_uint;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{hear, say};

/// What the first client writes everywhere, and nobody else does.
const PATTERN: u32 = 0x5EC2_E7A1;

/// Bytes of each block, and how many there are of each kind: more than a lucky place.
const BLOCK: usize = 2 << 20;
const BLOCKS: usize = 8;

const NULL: Handle = 0;

/// Words of shared and of local memory that a kernel looks at.
const KERNEL_WORDS: usize = 4096;

/// CUmemAllocationProp: pinned, of device 0.
const PROPERTIES: [u32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];

/// CUmemAccessDesc: device 0 reads and writes.
const ACCESS: [u32; 3] = [1, 0, 3];

/// CUDA_ARRAY_DESCRIPTOR, in words of 64 bits: width, height, format (32 bits unsigned) and channels.
const ARRAY: [u64; 3] = [65536, 0, 3 | 1 << 32];

/// Its bytes.
const ARRAY_BYTES: usize = 65536 * 4;

/// A variable without a value, and kernels that copy what they find in shared and in local memory to `to` and write
/// `value` there, so many times.
const IMAGE: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .global .align 4 .b8 variable[2097152];\n\
    .visible .entry shared(.param .u64 to, .param .u64 value, .param .u64 rounds) { .shared .align 4 .b8 own[16384];\n\
    .reg .b64 %d<7>; .reg .b32 %r<5>; .reg .pred %p<3>;\n\
    ld.param.u64 %d1, [to]; ld.param.u64 %d2, [value]; ld.param.u64 %d6, [rounds];\n\
    cvt.u32.u64 %r3, %d2; mov.u64 %d3, own;\n\
    round: mov.u32 %r1, 0;\n\
    again: mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d3, %d4; add.u64 %d4, %d1, %d4;\n\
    ld.shared.u32 %r2, [%d5]; st.global.u32 [%d4], %r2; st.shared.u32 [%d5], %r3;\n\
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4096; @%p1 bra again;\n\
    sub.u64 %d6, %d6, 1; setp.ne.u64 %p2, %d6, 0; @%p2 bra round; ret; }\n\
    .visible .entry local(.param .u64 to, .param .u64 value, .param .u64 rounds) { .local .align 4 .b8 own[16384];\n\
    .reg .b64 %d<7>; .reg .b32 %r<5>; .reg .pred %p<3>;\n\
    ld.param.u64 %d1, [to]; ld.param.u64 %d2, [value]; ld.param.u64 %d6, [rounds];\n\
    cvt.u32.u64 %r3, %d2; mov.u64 %d3, own;\n\
    round: mov.u32 %r1, 0;\n\
    again: mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d3, %d4; add.u64 %d4, %d1, %d4;\n\
    ld.local.u32 %r2, [%d5]; st.global.u32 [%d4], %r2; st.local.u32 [%d5], %r3;\n\
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4096; @%p1 bra again;\n\
    sub.u64 %d6, %d6, 1; setp.ne.u64 %p2, %d6, 0; @%p2 bra round; ret; }\n";

tests::functions! {
    managed = "cuMemAllocManaged"(*mut Address, usize, c_uint);
    pool_alloc = "cuMemAllocAsync"(*mut Address, usize, Handle);
    reserve = "cuMemAddressReserve"(*mut Address, usize, usize, Address, u64);
    create = "cuMemCreate"(*mut u64, usize, *const u32, u64);
    map = "cuMemMap"(Address, usize, usize, u64, u64);
    access = "cuMemSetAccess"(Address, usize, *const u32, usize);
    array_create = "cuArrayCreate_v2"(*mut Handle, *const u64);
    array_to_device = "cuMemcpyAtoD_v2"(Address, Handle, usize, usize);
    device_to_array = "cuMemcpyDtoA_v2"(Handle, usize, Address, usize);
    ipc_get = "cuIpcGetMemHandle"(*mut [u8; 64], Address);
    ipc_open = "cuIpcOpenMemHandle_v2"(*mut Address, [u8; 64], c_uint);
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Fill,
    Look,
    Find,
}

fn main() {
    let argument = std::env::args().nth(1);
    let result = match argument.as_deref() {
        Some("fill") => run(Task::Fill),
        Some("look") => run(Task::Look),
        Some("find") => run(Task::Find),
        Some("lend") => lend(),
        _ => panic!("remains fill, look, find, or lend"),
    };
    if let Err(code) = result {
        say(&format!("error {code}"));
    }
}

/// How many words have the pattern.
fn found(words: &[u32]) -> usize {
    words.iter().filter(|word| **word == PATTERN).count()
}

/// Fills memory of each kind and stays, or says what it finds in each.
fn run(task: Task) -> Result<(), Code> {
    let driver = Driver::open();
    driver.enter()?;
    let more = Functions::open();
    let mut blocks = blocks(&driver, &more)?;
    let (lender, imported) = import(&more)?;
    blocks.extend(imported.iter().map(|at| ("imported", *at)));
    let arrays = arrays(&more)?;
    let module = driver.module(IMAGE)?;
    let (mut variable, mut bytes) = (0, 0);
    // SAFETY: the out pointers are locals', and the name ends with a zero byte.
    unsafe {
        driver.module_get_global(
            &raw mut variable,
            &raw mut bytes,
            module,
            c"variable".as_ptr(),
        )?;
    }
    // What the device copies through is of its own, and written whole before it is read.
    let through = driver.alloc(ARRAY_BYTES)?;
    let kernels = [
        ("shared", driver.function(module, "shared")?),
        ("local", driver.function(module, "local")?),
    ];
    let seen = driver.alloc(KERNEL_WORDS * 4)?;
    let mut words = vec![0_u32; BLOCK / 4];
    let hosts = host_blocks(&driver)?;
    if task == Task::Look {
        // Before anything passes through.
        say(&format!("staging {}", staging()));
    } else {
        words.fill(PATTERN);
        for (_, at) in blocks.iter().chain([&("variable", variable)]) {
            driver.upload(*at, &words)?;
        }
        for host in &hosts {
            // SAFETY: so many bytes, which are never freed, and which nothing else uses now.
            unsafe { std::slice::from_raw_parts_mut(*host, BLOCK / 4) }.fill(PATTERN);
        }
        driver.upload(through, &words[..ARRAY_BYTES / 4])?;
        for array in &arrays {
            // SAFETY: both have so many bytes.
            match unsafe { (more.device_to_array)(*array, 0, through, ARRAY_BYTES) } {
                0 => {}
                code => return Err(code),
            }
        }
    }
    if task == Task::Fill {
        // The memory that is imported has nobody else any more.
        drop(lender);
        say("filled");
        // Until it is killed, in the middle of a kernel or of a copy.
        loop {
            for (_, kernel) in kernels {
                driver.launch(kernel, 64, 1, NULL, &[seen, u64::from(PATTERN), 1])?;
            }
            driver.upload(blocks[0].1, &words)?;
        }
    }
    if task == Task::Find {
        say(&format!("staging {}", staging()));
    }
    for (kind, at) in blocks.iter().chain([&("variable", variable)]) {
        words.fill(0);
        driver.download(&mut words, *at)?;
        say(&format!("{kind} {}", found(&words)));
    }
    for host in &hosts {
        // SAFETY: so many bytes, which are never freed, and which nothing writes now.
        let host = unsafe { std::slice::from_raw_parts(*host, BLOCK / 4) };
        say(&format!("host {}", found(host)));
    }
    for array in arrays {
        // SAFETY: both have so many bytes.
        match unsafe { (more.array_to_device)(through, array, 0, ARRAY_BYTES) } {
            0 => {}
            code => return Err(code),
        }
        driver.download(&mut words[..ARRAY_BYTES / 4], through)?;
        say(&format!("array {}", found(&words[..ARRAY_BYTES / 4])));
    }
    // What a block of threads has it finds again itself, and no other block.
    let (value, rounds) = match task {
        Task::Find => (u64::from(PATTERN), 2),
        _ => (0, 1),
    };
    for (kind, kernel) in kernels {
        for _ in 0..BLOCKS {
            driver.launch(kernel, 1, 1, NULL, &[seen, value, rounds])?;
            driver.download(&mut words[..KERNEL_WORDS], seen)?;
            say(&format!("{kind} {}", found(&words[..KERNEL_WORDS])));
        }
    }
    drop(lender);
    Ok(())
}

/// How many words of the pattern are in the staging memory of this process: what pageable memory goes through on its way.
fn staging() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("its own mappings");
    let memory = std::fs::File::open("/proc/self/mem").expect("its own memory");
    let staging = maps.lines().filter(|line| line.contains("openmps-staging"));
    let mut bytes = Vec::new();
    for line in staging {
        let (range, _) = line.split_once(' ').expect("a range");
        let (from, to) = range.split_once('-').expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        let (from, to) = (address(from), address(to));
        let at = bytes.len();
        bytes.resize(at + usize::try_from(to - from).expect("it is mapped"), 0);
        memory
            .read_exact_at(&mut bytes[at..], from)
            .expect("it can be read");
    }
    assert!(!bytes.is_empty(), "there is staging memory");
    let (words, _) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    found(&words)
}

/// Has memory for others until its input ends, and says by which handles they import it.
fn lend() -> Result<(), Code> {
    let driver = Driver::open();
    driver.enter()?;
    let more = Functions::open();
    for _ in 0..BLOCKS {
        let at = driver.alloc(BLOCK)?;
        let mut handle = [0; 64];
        // SAFETY: the out pointer is a local's, and the memory is this program's own.
        match unsafe { (more.ipc_get)(&raw mut handle, at) } {
            0 => {}
            code => return Err(code),
        }
        let digits: Vec<String> = handle.iter().map(|byte| format!("{byte:02x}")).collect();
        say(&digits.concat());
    }
    hear();
    Ok(())
}

/// The process that lends; dropping it kills it.
struct Lender(Child);

impl Drop for Lender {
    fn drop(&mut self) {
        self.0.kill().expect("it is a child");
        self.0.wait().expect("it is a child");
    }
}

/// Another process that lends memory, and where it is here.
fn import(more: &Functions) -> Result<(Lender, Vec<Address>), Code> {
    let mut lender = Lender(
        Command::new(std::env::current_exe().expect("a program"))
            .arg("lend")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts"),
    );
    let output = BufReader::new(lender.0.stdout.take().expect("it is piped"));
    let mut imported = Vec::new();
    for line in output.lines().take(BLOCKS) {
        let line = line.expect("text");
        let mut handle = [0; 64];
        for (byte, digits) in handle.iter_mut().zip(line.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).expect("text");
            *byte = u8::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("no handle: {line}"));
        }
        let mut at = 0;
        // SAFETY: the out pointer is a local's, and the handle is what the lender has given.
        match unsafe { (more.ipc_open)(&raw mut at, handle, 1) } {
            0 => imported.push(at),
            code => return Err(code),
        }
    }
    Ok((lender, imported))
}

/// Blocks of every kind of device memory that has an address.
fn blocks(driver: &Driver, more: &Functions) -> Result<Vec<(&'static str, Address)>, Code> {
    let ok = |code| if code == 0 { Ok(()) } else { Err(code) };
    let mut blocks = Vec::new();
    for _ in 0..BLOCKS {
        blocks.push(("device", driver.alloc(BLOCK)?));
        let (mut at, mut handle) = (0, 0);
        // SAFETY: the out pointers are locals', and addresses and handles are this program's own.
        unsafe {
            ok((more.pool_alloc)(&raw mut at, BLOCK, NULL))?;
            blocks.push(("pool", at));
            ok((more.managed)(&raw mut at, BLOCK, 1))?;
            blocks.push(("managed", at));
            ok((more.reserve)(&raw mut at, BLOCK, 0, 0, 0))?;
            ok((more.create)(
                &raw mut handle,
                BLOCK,
                PROPERTIES.as_ptr(),
                0,
            ))?;
            ok((more.map)(at, BLOCK, 0, handle, 0))?;
            ok((more.access)(at, BLOCK, ACCESS.as_ptr(), 1))?;
            blocks.push(("virtual", at));
        }
    }
    driver.synchronize()?;
    Ok(blocks)
}

/// Arrays.
fn arrays(more: &Functions) -> Result<[Handle; BLOCKS], Code> {
    let mut arrays = [0; BLOCKS];
    for array in &mut arrays {
        // SAFETY: the out pointer is a local's, and the descriptor is a constant.
        match unsafe { (more.array_create)(array, ARRAY.as_ptr()) } {
            0 => {}
            code => return Err(code),
        }
    }
    Ok(arrays)
}

/// Page-locked memory of the host.
fn host_blocks(driver: &Driver) -> Result<Vec<*mut u32>, Code> {
    let mut blocks = Vec::new();
    for _ in 0..BLOCKS {
        let mut at = null_mut();
        // SAFETY: the out pointer is a local's.
        unsafe { driver.mem_host_alloc(&raw mut at, BLOCK, 0)? };
        blocks.push(at.cast::<u32>());
    }
    Ok(blocks)
}
