//! One client of the comparison on a GPU (`benches/gpu.sh`): a program on the driver API, so that the same
//! binary measures OpenMPS, NVIDIA's MPS and the driver alone. Prints one line of JSON.
//!
//! `gpu_client MODE [MICROSECONDS] [--at MILLISECONDS] [--for SECONDS]`: `--at` is when to begin, in
//! milliseconds since 1970, so that several begin together. The modes:
//! * `first`: from the process' start to the first result of code that no one has loaded before, or that was loaded with
//!   the same `--seed`: a module with a variable and three kernels; microseconds.
//! * `full`: a stream that is kept full of kernels that take so long; how many ended, and the longest time between two
//!   ends; the first line comes when the first has ended.
//! * `rate`: kernels that take so long, launched back to back; kernels a second.
//! * `latency`: one kernel and a wait for it, again and again; median, 99th percentile, most, and how many a second.
//! * `fetch`: one kernel and a synchronous copy of four bytes back to pageable memory, likewise.
//! * `read`: one kernel, an asynchronous copy of four bytes back to page-locked memory, and a wait, likewise.
//! * `multiprocessors`: how many the device is said to have, and on how many kernels run.
//! * `serve`: requests that come by chance, on average every so many microseconds, each a copy there, ten kernels and a copy
//!   back; from a request's coming to its result: median, 99th percentile, most, and how many a second.
//! * `hog`: one thing without end, `--hog sm`, `bandwidth` or `copies`; how many a second.
//! * `soak`: random words that a kernel writes, copied back and compared, again and again; how many copies, and words.
//! * `reads`: pieces of random words that lie on the device, copied back and compared, as quickly as it goes; likewise.
//! * `hold`: a context with a module and a little memory, held until standard input ends.
//!
//! Started by `gpu_bench`. Must not know which peer it runs under.

use std::io::Read;
use std::ptr::null_mut;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tests::cuda::Driver;

mod shared_load;

/// Stays as many nanoseconds as its parameter says; none for 0.
const KERNEL: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry stay(.param .u64 nanoseconds)\n{\n\
    .reg .b64 %rd<5>;\n.reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [nanoseconds];\n\
    setp.eq.u64 %p1, %rd1, 0;\n@%p1 bra done;\n\
    mov.u64 %rd2, %globaltimer;\n\
    again:\n\
    mov.u64 %rd3, %globaltimer;\nsub.u64 %rd4, %rd3, %rd2;\n\
    setp.lt.u64 %p2, %rd4, %rd1;\n@%p2 bra again;\n\
    done:\nret;\n}\n";

/// As [`KERNEL`]; then stores a number where the program sees it.
const TELLING: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry stay(.param .u64 nanoseconds, .param .u64 to, .param .u64 number)\n{\n\
    .reg .b64 %rd<7>;\n.reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [nanoseconds];\n\
    ld.param.u64 %rd5, [to];\nld.param.u64 %rd6, [number];\n\
    mov.u64 %rd2, %globaltimer;\n\
    again:\n\
    mov.u64 %rd3, %globaltimer;\nsub.u64 %rd4, %rd3, %rd2;\n\
    setp.lt.u64 %p2, %rd4, %rd1;\n@%p2 bra again;\n\
    st.volatile.global.u64 [%rd5], %rd6;\nmembar.sys;\nret;\n}\n";

/// A module with a variable and three kernels, which make 6 times its first value of it. Its code differs by the seed.
fn first_code(seed: u64) -> String {
    let kernel = |name: &str, work: &str| {
        format!(
            ".visible .entry {name}()\n{{\n.reg .b64 %rd<3>;\n\
             ld.global.u64 %rd1, [value];\n{work}\nst.global.u64 [value], %rd1;\n\
             mov.u64 %rd2, {seed};\nret;\n}}\n"
        )
    };
    format!(
        ".version 7.0\n.target sm_52\n.address_size 64\n.visible .global .align 8 .u64 value = {seed};\n{}{}{}",
        kernel("double", "add.u64 %rd1, %rd1, %rd1;"),
        kernel("triple", "mul.lo.u64 %rd1, %rd1, 3;"),
        kernel("keep", "")
    )
}

/// Sets the word of each multiprocessor that a block runs on.
const WHERE: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry where(.param .u64 words)\n{\n\
    .reg .b64 %rd<3>;\n.reg .b32 %r<3>;\n\
    ld.param.u64 %rd1, [words];\n\
    mov.u32 %r1, %smid;\n\
    mul.wide.u32 %rd2, %r1, 4;\n\
    add.s64 %rd1, %rd1, %rd2;\n\
    mov.u32 %r2, 1;\n\
    st.global.u32 [%rd1], %r2;\n\
    ret;\n}\n";

/// Writes [`word`] of `seed` and the thread's number to each of `count` words.
const WORDS: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry words(.param .u64 to, .param .u64 seed, .param .u64 count)\n{\n\
    .reg .b64 %rd<4>;\n.reg .b32 %r<8>;\n.reg .pred %p;\n\
    ld.param.u64 %rd1, [to];\nld.param.u32 %r1, [seed];\nld.param.u32 %r2, [count];\n\
    mov.u32 %r3, %tid.x;\nsetp.ge.u32 %p, %r3, %r2;\n@%p ret;\n\
    add.u32 %r4, %r1, %r3;\nmul.lo.u32 %r4, %r4, 0x9e3779b1;\n\
    shr.u32 %r5, %r4, 15;\nxor.b32 %r4, %r4, %r5;\nmul.lo.u32 %r4, %r4, 0x2c1b3c6d;\n\
    shr.u32 %r5, %r4, 12;\nxor.b32 %r4, %r4, %r5;\n\
    mul.wide.u32 %rd2, %r3, 4;\nadd.u64 %rd1, %rd1, %rd2;\n\
    st.global.u32 [%rd1], %r4;\nret;\n}\n";

/// What [`WORDS`] writes: one to one, so that in the long run every value there is comes up.
fn word(seed: u32, number: u32) -> u32 {
    let mixed = seed.wrapping_add(number).wrapping_mul(0x9e37_79b1);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
    mixed ^ mixed >> 12
}

/// More multiprocessors than a device has.
const MOST_MULTIPROCESSORS: usize = 1024;

/// Launches between two waits: fewer than any driver lets a stream have unfinished.
const BURST: u64 = 256;

fn main() {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let (mut microseconds, mut at, mut length) = (0, None, Duration::from_secs(1));
    let (mut seed, mut hog) = (0, String::new());
    while let Some(word) = words.next() {
        let mut number = || -> u64 {
            let next = words.next().expect("a number follows");
            next.parse().expect("a whole number")
        };
        match word.as_str() {
            "--hog" => hog = words.next().expect("what it is to take"),
            "--at" => at = Some(UNIX_EPOCH + Duration::from_millis(number())),
            "--seed" => seed = number(),
            "--for" => length = Duration::from_secs(number()),
            _ => microseconds = word.parse().expect("a whole number of microseconds"),
        }
    }
    let begin = Instant::now();
    let driver = Driver::ready();
    let attach = begin.elapsed();
    if mode == "first" {
        first(&driver, seed);
        let microseconds = begin.elapsed().as_secs_f64() * 1e6;
        let attach = attach.as_secs_f64() * 1e6;
        println!("{{\"first\":{microseconds:.1},\"attach\":{attach:.1}}}");
        return;
    }
    let kernel = driver
        .module(KERNEL)
        .and_then(|module| driver.function(module, "stay"))
        .expect("the kernel loads");
    let stream = driver.stream(1).expect("a stream");
    let launch = || {
        driver
            .launch(kernel, 1, 1, stream, &[microseconds * 1000])
            .expect("it launches");
    };
    // SAFETY: the stream was made in this function, which does not destroy it before its end.
    let wait = || unsafe { driver.stream_synchronize(stream) }.expect("it ran");
    launch();
    wait();
    if let Some(left) = at.and_then(|at| at.duration_since(SystemTime::now()).ok()) {
        std::thread::sleep(left);
    }
    let begin = Instant::now();
    match mode.as_str() {
        "serve" => shared_load::serve(&driver, microseconds, length),
        "hog" => shared_load::hog(&driver, &hog, length),
        "rate" => {
            let mut launched = 0;
            while begin.elapsed() < length {
                for _ in 0..BURST {
                    launch();
                }
                wait();
                launched += BURST;
            }
            let rate = launched as f64 / begin.elapsed().as_secs_f64();
            println!("{{\"rate\":{rate:.1}}}");
        }
        "full" => full(&driver, stream, microseconds, length),
        "latency" => again_and_again(length, || {
            launch();
            wait();
        }),
        "fetch" => {
            let (mut word, from) = ([0_u32], driver.alloc(4).expect("a little memory"));
            again_and_again(length, || {
                // In the default stream, as the copy.
                driver
                    .launch(kernel, 1, 1, 0, &[microseconds * 1000])
                    .expect("it launches");
                driver.download(&mut word, from).expect("it is read");
            });
        }
        "read" => {
            let (mut to, from) = (null_mut(), driver.alloc(4).expect("a little memory"));
            // SAFETY: the out pointer is a local's.
            unsafe { driver.mem_host_alloc(&raw mut to, 4, 0) }.expect("page-locked memory");
            again_and_again(length, || {
                launch();
                // SAFETY: both are 4 bytes long, and stay.
                unsafe { driver.copy_to_host_async(to, from, 4, stream) }.expect("it is read");
                wait();
            });
        }
        "multiprocessors" => {
            // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
            let mut count = 0;
            // SAFETY: the out pointer is a local's.
            unsafe { driver.device_get_attribute(&raw mut count, 16, 0) }.expect("an attribute");
            let mut words = [0_u32; MOST_MULTIPROCESSORS];
            let seen = driver.alloc(size_of_val(&words)).expect("a little memory");
            driver.upload(seen, &words).expect("it is cleared");
            let kernel = driver
                .module(WHERE)
                .and_then(|module| driver.function(module, "where"))
                .expect("the kernel loads");
            // More blocks than all multiprocessors hold.
            driver
                .launch(kernel, 4096, 1024, stream, &[seen])
                .expect("it launches");
            wait();
            driver.download(&mut words, seen).expect("it is read");
            let used = words.iter().filter(|word| **word != 0).count();
            println!("{{\"multiprocessors\":{count},\"used\":{used}}}");
        }
        "soak" => {
            let kernel = driver
                .module(WORDS)
                .and_then(|module| driver.function(module, "words"))
                .expect("the kernel loads");
            let mut words = [0_u32; 1024];
            let from = driver.alloc(size_of_val(&words)).expect("a little memory");
            // Apart from those of clients that begin at the same time.
            let mut seed = std::process::id().wrapping_mul(0x0100_0193);
            let (mut copies, mut compared) = (0_u64, 0_u64);
            while begin.elapsed() < length {
                let count = 1 + word(seed, 0) % 1024;
                let to = &mut words[..count as usize];
                driver
                    .launch(kernel, 1, 1024, 0, &[from, seed.into(), count.into()])
                    .expect("it launches");
                driver.download(to, from).expect("it is read");
                for (number, read) in to.iter().enumerate() {
                    let wanted = word(seed, number as u32);
                    assert_eq!(
                        *read, wanted,
                        "word {number} of {count}, copy {copies}, seed {seed}"
                    );
                }
                (copies, compared) = (copies + 1, compared + u64::from(count));
                seed = seed.wrapping_add(count);
            }
            println!("{{\"copies\":{copies},\"words\":{compared}}}");
        }
        "reads" => reads(&driver, begin, length),
        "hold" => {
            driver.alloc(1 << 16).expect("a little memory");
            println!("{{\"attach\":{:.1}}}", attach.as_secs_f64() * 1e6);
            let _ = std::io::stdin().read(&mut [0]);
        }
        _ => panic!(
            "serve, hog, first, full, rate, latency, fetch, read, multiprocessors, soak, reads or hold"
        ),
    }
}

/// Words on the device from which [`reads`] takes pieces.
const TABLE: usize = 1 << 22;

/// Every other piece has as many words at most as a flag or a sum has, so that there are many of them in a second; the
/// others as many as the longest copy of which the data itself tells that it has come.
const PIECES: [u32; 2] = [16, 1024];

/// Reads pieces of a table of random words, of any length and from anywhere, until `length` has passed since `begin`.
fn reads(driver: &Driver, begin: Instant, length: Duration) {
    // Apart from those of other clients.
    let mut seed = std::process::id().wrapping_mul(0x0100_0193);
    let table: Vec<u32> = (0..TABLE as u32).map(|number| word(seed, number)).collect();
    let from = driver.alloc(TABLE * 4).expect("memory for a table");
    driver.upload(from, &table).expect("the table is written");
    let mut words = [0_u32; 1024];
    let (mut copies, mut compared) = (0_u64, 0_u64);
    while begin.elapsed() < length {
        // The clock is looked at seldom.
        for _ in 0..64 {
            seed = seed.wrapping_add(1);
            let (place, any) = (word(seed, 0), word(seed, 1));
            let count = (1 + any % PIECES[copies as usize % 2]) as usize;
            let first = place as usize % (TABLE - count);
            let to = &mut words[..count];
            driver
                .download(to, from + first as u64 * 4)
                .expect("it is read");
            assert_eq!(
                to,
                &table[first..first + count],
                "{count} words from {first} on, copy {copies}"
            );
            (copies, compared) = (copies + 1, compared + count as u64);
        }
    }
    println!("{{\"copies\":{copies},\"words\":{compared}}}");
}

/// Loads code, runs it and looks at what it made.
fn first(driver: &Driver, seed: u64) {
    let module = driver.module(&first_code(seed)).expect("the code loads");
    for kernel in ["double", "triple", "keep"] {
        let kernel = driver.function(module, kernel).expect("a kernel");
        driver.launch(kernel, 1, 1, 0, &[]).expect("it launches");
    }
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the out pointers are locals', and the name is a string of C.
    unsafe {
        driver.module_get_global(&raw mut address, &raw mut bytes, module, c"value".as_ptr())
    }
    .expect("the variable");
    let mut value = [0_u64];
    driver.download(&mut value, address).expect("it is read");
    assert_eq!(value[0], seed.wrapping_mul(6), "a wrong result");
}

/// Keeps a stream full for so long.
fn full(driver: &Driver, stream: tests::cuda::Handle, microseconds: u64, length: Duration) {
    /// What is posted before the first of it has ended, in microseconds and in kernels.
    const AHEAD: u64 = 2_000_000;
    const MOST: u64 = 900;
    let ahead = (AHEAD / microseconds.max(1)).clamp(2, MOST);
    let kernel = driver
        .module(TELLING)
        .and_then(|module| driver.function(module, "stay"))
        .expect("the kernel loads");
    let mut to = null_mut();
    // SAFETY: the out pointer is a local's.
    unsafe { driver.mem_host_alloc(&raw mut to, 8, 0) }.expect("page-locked memory");
    let word = to.cast::<u64>();
    // SAFETY: eight bytes of ours, which kernels write whole.
    let ended = || unsafe { word.read_volatile() };
    // SAFETY: eight bytes of ours; no kernel that writes them is posted yet.
    unsafe { word.write_volatile(0) };
    let (mut posted, mut seen) = (0, 0);
    let (mut first, mut last, mut longest) = (None, Instant::now(), Duration::ZERO);
    while first.is_none_or(|first: Instant| first.elapsed() < length) || seen < posted {
        let now = ended();
        if now != seen {
            let at = Instant::now();
            match first {
                None => {
                    println!("{{\"running\":1}}");
                    first = Some(at);
                }
                Some(_) => longest = longest.max(at - last),
            }
            (seen, last) = (now, at);
        }
        if posted < seen + ahead && first.is_none_or(|first| first.elapsed() < length) {
            posted += 1;
            let parameters = [microseconds * 1000, to as u64, posted];
            driver
                .launch(kernel, 1, 1, stream, &parameters)
                .expect("it launches");
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let longest = longest.as_secs_f64() * 1e3;
    println!("{{\"kernels\":{seen},\"longest\":{longest:.3}}}");
}

/// Does something for so long, and prints the median and the 99th percentile of how long it takes.
fn again_and_again(length: Duration, mut step: impl FnMut()) {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < length {
        let start = Instant::now();
        step();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    print_times(times, length);
}

/// Prints the line of so many times in microseconds, taken for so long.
fn print_times(mut times: Vec<f64>, length: Duration) {
    times.sort_by(f64::total_cmp);
    let part = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "{{\"median\":{:.3},\"p99\":{:.3},\"most\":{:.3},\"rate\":{:.1}}}",
        part(0.5),
        part(0.99),
        part(1.0),
        times.len() as f64 / length.as_secs_f64()
    );
}
