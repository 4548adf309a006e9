//! A program that shares a block of device memory or an event, or opens one that another shares, as it is told a line at a time.
//! What goes wrong is said as `error` and its number.
//!
//! It knows nothing of OpenMPS. Its kernel is for a driver whose kernels end when a test says so. Tests start several, in servers of their choice, and kill some.

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{answer, hear, say};

tests::functions! {
    get = "cuIpcGetMemHandle"(*mut [u8; 64], Address);
    open = "cuIpcOpenMemHandle_v2"(*mut Address, [u8; 64], std::ffi::c_uint);
    close = "cuIpcCloseMemHandle"(Address);
    event_get = "cuIpcGetEventHandle"(*mut [u8; 64], Handle);
    event_open = "cuIpcOpenEventHandle"(*mut Handle, [u8; 64]);
    event_query = "cuEventQuery"(Handle);
    event_destroy = "cuEventDestroy_v2"(Handle);
}

/// CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING
const SHARED: u32 = 6;

/// The default stream.
const NULL: Handle = 0;

const KERNEL: &str = ".version 7.8\n.visible .entry k() {}";

/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
const LAZY: u32 = 1;

fn ok(code: Code) -> Result<(), Code> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

fn hex(bytes: &[u8; 64]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits");
    }
    bytes
}

fn main() {
    let driver = Driver::ready();
    let more = Functions::open();
    // What it made or opened last.
    let mut block: Address = 0;
    let mut event: Handle = 0;
    say("ready");
    loop {
        let line = hear();
        let mut words = line.split(' ');
        let task = words.next().unwrap_or_default();
        let argument = words.next().unwrap_or_default();
        let number = || argument.parse::<usize>().expect("a number");
        let result = match task {
            "alloc" => driver.alloc(number()).map(|address| block = address),
            "get" | "get-event" => {
                let mut handle = [0; 64];
                // SAFETY: the out pointer is a local's, and what is shared this program's own.
                let got = unsafe {
                    match task {
                        "get" => (more.get)(&raw mut handle, block),
                        _ => (more.event_get)(&raw mut handle, event),
                    }
                };
                match ok(got) {
                    Ok(()) => {
                        say(&hex(&handle));
                        continue;
                    }
                    error => error,
                }
            }
            "open" => {
                // SAFETY: the out pointer is a local's.
                ok(unsafe { (more.open)(&raw mut block, bytes(argument), LAZY) })
            }
            // SAFETY: nothing that this program does later uses it.
            "close" => ok(unsafe { (more.close)(block) }),
            // SAFETY: as above.
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
            // SAFETY: the out pointer is a local's.
            "event" => unsafe { driver.event_create(&raw mut event, SHARED) },
            // SAFETY: the out pointer is a local's.
            "open-event" => ok(unsafe { (more.event_open)(&raw mut event, bytes(argument)) }),
            "run" => driver
                .module(KERNEL)
                .and_then(|module| driver.function(module, "k"))
                .and_then(|kernel| driver.launch(kernel, 1, 1, NULL, &[])),
            // SAFETY: an event of this program's.
            "record" => unsafe { driver.event_record(event, NULL) },
            // SAFETY: as above.
            "wait" => unsafe { driver.stream_wait_event(NULL, event, 0) },
            // SAFETY: as above.
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
