//! A program that shares a block of device memory, or opens one that another shares, as it is told a line at a time. What goes
//! wrong is said as `error` and its number.
//!
//! It knows nothing of OpenMPS. Tests start several, in servers of their choice, and kill some.

use tests::cuda::{Address, Code, Driver};
use tests::program::{answer, hear, say};

tests::functions! {
    get = "cuIpcGetMemHandle"(*mut [u8; 64], Address);
    open = "cuIpcOpenMemHandle_v2"(*mut Address, [u8; 64], std::ffi::c_uint);
    close = "cuIpcCloseMemHandle"(Address);
}

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
    say("ready");
    loop {
        let line = hear();
        let mut words = line.split(' ');
        let task = words.next().unwrap_or_default();
        let argument = words.next().unwrap_or_default();
        let number = || argument.parse::<usize>().expect("a number");
        let result = match task {
            "alloc" => driver.alloc(number()).map(|address| block = address),
            "get" => {
                let mut handle = [0; 64];
                // SAFETY: the out pointer is a local's.
                match ok(unsafe { (more.get)(&raw mut handle, block) }) {
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
