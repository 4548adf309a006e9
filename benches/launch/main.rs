//! What launching costs one client: a program on the driver API, so that the same binary measures
//! OpenMPS and NVIDIA's driver.
//!
//! `cargo run --release -p benches --bin launch_cost` measures whatever `libcuda.so.1` is on the
//! loader's path; `openmps run -- target/release/launch_cost` measures OpenMPS.

use std::ffi::c_void;
use std::ptr;
use std::time::{Duration, Instant};

use tests::cuda::{Driver, Handle};

const KERNEL: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry nothing(.param .u64 p)\n{\n\tret;\n}\n";

const NULL: Handle = 0;

/// Launches that are posted in one go; fewer than a stream may have unfinished.
const BURST: u32 = 500;

/// Blocks that live beside the one that is allocated and freed.
const OTHERS: usize = 1000;

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let start = Instant::now();
    let driver = Driver::ready();
    let attach = start.elapsed();
    let kernel = driver
        .module(KERNEL)
        .and_then(|module| driver.function(module, "nothing"))
        .expect("an empty kernel loads");
    // Prepared once, as a program does: what is measured is the driver's call and nothing else.
    let mut value = 0u64;
    let mut params = [ptr::from_mut(&mut value).cast::<c_void>()];
    let params = params.as_mut_ptr();
    let launch = || {
        // SAFETY: the one parameter is eight readable bytes.
        unsafe { driver.launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, ptr::null_mut()) }
            .expect("it launches");
    };
    let wait = || driver.synchronize().expect("it ran");
    for _ in 0..100 {
        launch();
        wait();
    }

    // Rounds in turn, so that drift favours nobody.
    let mut post = Vec::new();
    let mut awake = Vec::new();
    let mut asleep = Vec::new();
    let mut allocate = Vec::new();
    let mut crowded = Vec::new();
    let mut copy = Vec::new();
    let data = driver.alloc(4096).expect("4 KiB are there");
    let mut host = [0u64; 512];
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..BURST {
            launch();
        }
        post.push(start.elapsed() / BURST);
        wait();
        for _ in 0..500 {
            awake.push(timed(|| {
                launch();
                wait();
            }));
        }
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(5));
            asleep.push(timed(|| {
                launch();
                wait();
            }));
        }
        for _ in 0..100 {
            copy.push(timed(|| {
                driver.upload(data, &host).expect("it is copied");
                driver.download(&mut host, data).expect("it is copied");
            }));
        }
        let allocate_and_free = |times: &mut Vec<Duration>| {
            times.push(timed(|| {
                let address = driver.alloc(4 << 20).expect("4 MiB are there");
                // SAFETY: the address was just given to this program.
                unsafe { driver.mem_free(address) }.expect("it can be freed");
            }));
        };
        for _ in 0..20 {
            allocate_and_free(&mut allocate);
        }
        let others: Vec<_> = (0..OTHERS)
            .map(|_| driver.alloc(4096).expect("4 KiB are there"))
            .collect();
        for _ in 0..20 {
            allocate_and_free(&mut crowded);
        }
        for address in others {
            // SAFETY: it is this program's own and used by nobody.
            unsafe { driver.mem_free(address) }.expect("it can be freed");
        }
    }
    let rows = [
        ("attach: first cuInit to current context", vec![attach]),
        ("post one launch", post),
        ("launch + synchronise, both awake", awake),
        ("launch + synchronise, both asleep before", asleep),
        ("4 KiB to the device and back", copy),
        ("cuMemAlloc + cuMemFree of 4 MiB", allocate),
        ("the same beside 1000 other blocks", crowded),
    ];
    for (name, mut times) in rows {
        times.sort();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        let (median, p99) = (at(0.5), at(0.99));
        if json {
            println!("{{\"name\":\"{name}\",\"median_us\":{median:.3},\"p99_us\":{p99:.3}}}");
        } else {
            println!("{name:<45} median {median:>10.3} µs   p99 {p99:>10.3} µs");
        }
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
