//! Fills every kind of memory with a pattern, or looks for it in memory that nobody has written: what a client that was
//! killed leaves for the next.
//!
//! `remains fill` says `filled` and stays, with kernels that write the pattern running; `remains look` says of each kind
//! `KIND COUNT`, how many words of the pattern it found. It knows nothing of OpenMPS.

use std::ffi::c_uint;
use std::ptr::null_mut;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::say;

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

/// A variable without a value, and kernels that copy what they find in shared and in local memory to `to`, or write
/// `value` there.
const IMAGE: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .global .align 4 .b8 variable[2097152];\n\
    .visible .entry shared(.param .u64 to, .param .u64 value) { .shared .align 4 .b8 own[16384];\n\
    .reg .b64 %d<6>; .reg .b32 %r<5>; .reg .pred %p<3>;\n\
    ld.param.u64 %d1, [to]; ld.param.u64 %d2, [value]; cvt.u32.u64 %r3, %d2; mov.u64 %d3, own; mov.u32 %r1, 0;\n\
    again: mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d3, %d4; add.u64 %d4, %d1, %d4;\n\
    ld.shared.u32 %r2, [%d5]; st.global.u32 [%d4], %r2; st.shared.u32 [%d5], %r3;\n\
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4096; @%p1 bra again; ret; }\n\
    .visible .entry local(.param .u64 to, .param .u64 value) { .local .align 4 .b8 own[16384];\n\
    .reg .b64 %d<6>; .reg .b32 %r<5>; .reg .pred %p<3>;\n\
    ld.param.u64 %d1, [to]; ld.param.u64 %d2, [value]; cvt.u32.u64 %r3, %d2; mov.u64 %d3, own; mov.u32 %r1, 0;\n\
    again: mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d3, %d4; add.u64 %d4, %d1, %d4;\n\
    ld.local.u32 %r2, [%d5]; st.global.u32 [%d4], %r2; st.local.u32 [%d5], %r3;\n\
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4096; @%p1 bra again; ret; }\n";

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($type:ty),*);)*) => {
        /// Functions of memory that the other tests have no use for.
        struct Functions {
            $($name: Symbol<unsafe extern "C" fn($($type),*) -> Code>,)*
            _library: Library,
        }

        impl Functions {
            fn open() -> Self {
                // SAFETY: loading a CUDA driver library runs no code that asks anything of its loader.
                let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }
                    .expect("libcuda.so.1 is on the path");
                $(
                    // SAFETY: the signature is the one that CUDA's manual gives for this symbol.
                    let $name = unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.expect($symbol);
                )*
                Self { $($name,)* _library: library }
            }
        }
    };
}

functions! {
    managed = "cuMemAllocManaged"(*mut Address, usize, c_uint);
    pool_alloc = "cuMemAllocAsync"(*mut Address, usize, Handle);
    reserve = "cuMemAddressReserve"(*mut Address, usize, usize, Address, u64);
    create = "cuMemCreate"(*mut u64, usize, *const u32, u64);
    map = "cuMemMap"(Address, usize, usize, u64, u64);
    access = "cuMemSetAccess"(Address, usize, *const u32, usize);
    array_create = "cuArrayCreate_v2"(*mut Handle, *const u64);
    array_to_device = "cuMemcpyAtoD_v2"(Address, Handle, usize, usize);
    device_to_array = "cuMemcpyDtoA_v2"(Handle, usize, Address, usize);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_filling = match arguments.first().map(String::as_str) {
        Some("fill") => true,
        Some("look") => false,
        _ => panic!("remains fill, or remains look"),
    };
    let result = run(is_filling);
    if let Err(code) = result {
        say(&format!("error {code}"));
    }
}

/// How many words have the pattern.
fn found(words: &[u32]) -> usize {
    words.iter().filter(|word| **word == PATTERN).count()
}

/// Fills memory of each kind and stays, or says what it finds in each.
fn run(is_filling: bool) -> Result<(), Code> {
    let driver = Driver::open();
    driver.enter()?;
    let more = Functions::open();
    let blocks = blocks(&driver, &more)?;
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
    if is_filling {
        words.fill(PATTERN);
        for (_, at) in blocks.iter().chain([&("variable", variable)]) {
            driver.upload(*at, &words)?;
        }
        for host in host_blocks(&driver)? {
            host.fill(PATTERN);
        }
        driver.upload(through, &words[..ARRAY_BYTES / 4])?;
        for array in arrays {
            // SAFETY: both have so many bytes.
            match unsafe { (more.device_to_array)(array, 0, through, ARRAY_BYTES) } {
                0 => {}
                code => return Err(code),
            }
        }
        say("filled");
        // Until it is killed, in the middle of a kernel or of a copy.
        loop {
            for (_, kernel) in kernels {
                driver.launch(kernel, 64, 1, NULL, &[seen, u64::from(PATTERN)])?;
            }
            driver.upload(blocks[0].1, &words)?;
        }
    }
    for (kind, at) in blocks.iter().chain([&("variable", variable)]) {
        driver.download(&mut words, *at)?;
        say(&format!("{kind} {}", found(&words)));
    }
    for host in host_blocks(&driver)? {
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
    for (kind, kernel) in kernels {
        for _ in 0..BLOCKS {
            driver.launch(kernel, 1, 1, NULL, &[seen, 0])?;
            driver.download(&mut words[..KERNEL_WORDS], seen)?;
            say(&format!("{kind} {}", found(&words[..KERNEL_WORDS])));
        }
    }
    Ok(())
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
fn host_blocks(driver: &Driver) -> Result<Vec<&'static mut [u32]>, Code> {
    let mut blocks = Vec::new();
    for _ in 0..BLOCKS {
        let mut at = null_mut();
        // SAFETY: the out pointer is a local's.
        unsafe { driver.mem_host_alloc(&raw mut at, BLOCK, 0)? };
        // SAFETY: so many bytes, which are never freed, and which nothing but this slice uses.
        blocks.push(unsafe { std::slice::from_raw_parts_mut(at.cast::<u32>(), BLOCK / 4) });
    }
    Ok(blocks)
}
