//! A program that uses CUDA in one of several ways and says `ok` when all that it checked was right.
//!
//! It knows nothing of OpenMPS. Tests start it as a client, some of them to kill it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{finish, hear, say};

const KERNELS: &str = include_str!("../../kernels/kernels.ptx");

/// The default stream.
const NULL: Handle = 0;

const CU_STREAM_NON_BLOCKING: u32 = 1;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments
            .get(index)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let task = arguments.first().map_or("", String::as_str);
    let result = match task {
        "init" => Driver::open().enter(),
        "stay" => stay(),
        "work" => work(number(1, 10), None),
        "busy" => busy(),
        "hold" => hold(number(1, 1 << 20)),
        "wild" => wild(number(1, 0x1234)),
        "survive" => work(200, Some("running")),
        "bystander" => bystander(),
        "forever" => forever(),
        "streams" => streams(number(1, 2)),
        "threads" => threads(),
        "fork" => fork(),
        "fork-before" => fork_before(),
        "worker" => worker(),
        "memory" => memory(),
        "absent" => absent(),
        "events" => events(),
        "image" => image(&arguments[1]),
        "kernel" => kernel(&arguments[1], arguments.get(2)),
        "in-function" => in_function(&arguments[1]),
        "contexts" => contexts(&arguments[1..]),
        "in-capture" => in_capture(&arguments[1]),
        other => panic!("no task {other:?}"),
    };
    finish(result);
}

fn sequence(driver: &Driver, at: Address, count: u64, factor: u64, round: u64) -> Result<(), Code> {
    let kernel = driver.function(driver.module(KERNELS)?, "sequence")?;
    driver.launch(kernel, 8, 128, NULL, &[at, count, factor, round])
}

/// Tells in how many multiprocessors it runs.
const MULTIPROCESSORS: &str = "
    .version 7.0
    .target sm_70
    .address_size 64
    .visible .entry multiprocessors(.param .u64 out)
    {
        .reg .u32 %r<2>;
        .reg .u64 %d<3>;
        ld.param.u64 %d1, [out];
        mov.u32 %r1, %nsmid;
        cvt.u64.u32 %d2, %r1;
        st.global.u64 [%d1], %d2;
        ret;
    }
";

/// Makes contexts, each with another active thread percentage in the environment, `-` for none or `*` for
/// the one before, and after a slash the multiprocessors that the program asks for itself. Says of each what
/// cuCtxGetExecAffinity tells, and what a kernel sees; of the device first.
fn contexts(percentages: &[String]) -> Result<(), Code> {
    const NAME: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: i32 = 16;
    const CU_EXEC_AFFINITY_TYPE_SM_COUNT: u32 = 0;
    let driver = Driver::open();
    let mut count = 0;
    // SAFETY: the out pointer is a local's.
    unsafe {
        driver.init(0)?;
        let attribute = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        driver.device_get_attribute(&raw mut count, attribute, 0)?;
    }
    say(&format!("device {count}"));
    for text in percentages {
        let (percentage, asked) = text.split_once('/').unwrap_or((text, ""));
        match percentage {
            "*" => {}
            // SAFETY: this program has no other thread of its own, and the library's read no variables.
            "-" => unsafe { std::env::remove_var(NAME) },
            // SAFETY: this program has no other thread of its own, and the library's read no variables.
            value => unsafe { std::env::set_var(NAME, value) },
        }
        let mut context = 0;
        let mut affinity = [CU_EXEC_AFFINITY_TYPE_SM_COUNT, asked.parse().unwrap_or(0)];
        let many = i32::from(!asked.is_empty());
        // SAFETY: as many pairs as are said; the out pointers are locals'.
        let made =
            unsafe { driver.ctx_create_with(&raw mut context, &raw mut affinity, many, 0, 0) };
        if let Err(code) = made {
            say(&format!("{text} error {code}"));
            continue;
        }
        // SAFETY: the out pointer is a local's.
        unsafe { driver.ctx_get_exec_affinity(&raw mut affinity, affinity[0])? };
        let kernel = driver.function(driver.module(MULTIPROCESSORS)?, "multiprocessors")?;
        let mut seen = [0u64];
        let data = driver.alloc(8)?;
        driver.launch(kernel, 1, 1, NULL, &[data])?;
        driver.download(&mut seen, data)?;
        say(&format!("{text} {} {}", affinity[1], seen[0]));
        // SAFETY: a context of this program's own.
        unsafe { driver.ctx_destroy(context)? };
    }
    Ok(())
}

/// Works for some rounds. Says `word` after the first.
fn work(rounds: u64, word: Option<&str>) -> Result<(), Code> {
    work_while(|round| {
        if let (1, Some(word)) = (round, word) {
            say(word);
        }
        round < rounds
    })
}

/// Works until its input ends. Says a word after the first round, and then how many there were and how long the
/// longest took, in milliseconds.
fn bystander() -> Result<(), Code> {
    static OVER: AtomicBool = AtomicBool::new(false);
    let (mut rounds, mut worst, mut began) = (0, Duration::ZERO, Instant::now());
    work_while(|round| {
        match round {
            0 => {}
            1 => {
                std::thread::spawn(|| {
                    hear();
                    OVER.store(true, Ordering::Relaxed);
                });
                say("running");
            }
            _ => worst = worst.max(began.elapsed()),
        }
        rounds = round;
        began = Instant::now();
        !OVER.load(Ordering::Relaxed)
    })?;
    say(&format!("{rounds} {}", worst.as_millis()));
    Ok(())
}

/// Launches, copies and checks, with block sums in between, as long as it is told before each round to go on.
fn work_while(mut goes_on: impl FnMut(u64) -> bool) -> Result<(), Code> {
    const COUNT: usize = 64 * 256;
    let driver = Driver::ready();
    let module = driver.module(KERNELS)?;
    let (sequence, sum) = (
        driver.function(module, "sequence")?,
        driver.function(module, "block_sum")?,
    );
    let (data, sums) = (driver.alloc(COUNT * 8)?, driver.alloc(64 * 8)?);
    let mut values = vec![0u64; COUNT];
    let mut totals = vec![0u64; 64];
    let factor = u64::from(std::process::id());
    let mut round = 0;
    while goes_on(round) {
        driver.launch(
            sequence,
            16,
            128,
            NULL,
            &[data, COUNT as u64, factor, round],
        )?;
        driver.launch(sum, 64, 256, NULL, &[data, sums])?;
        driver.download(&mut values, data)?;
        driver.download(&mut totals, sums)?;
        for (i, value) in values.iter().enumerate() {
            assert_eq!(
                *value,
                i as u64 * factor + round,
                "element {i} of round {round}"
            );
        }
        for (block, total) in totals.iter().enumerate() {
            let expected: u64 = values[block * 256..][..256].iter().sum();
            assert_eq!(*total, expected, "block {block} of round {round}");
        }
        driver.upload(data, &values)?;
        round += 1;
    }
    // SAFETY: an address of this program's own.
    unsafe { driver.mem_free(data) }
}

/// Works until it is killed.
fn busy() -> Result<(), Code> {
    const COUNT: usize = 1 << 16;
    let driver = Driver::ready();
    let churn = driver.function(driver.module(KERNELS)?, "churn")?;
    let data = driver.alloc(COUNT * 8)?;
    let streams = [
        driver.stream(0)?,
        driver.stream(CU_STREAM_NON_BLOCKING)?,
        NULL,
    ];
    let mut values = vec![1u64; COUNT];
    say("running");
    loop {
        for stream in streams {
            driver.launch(churn, 4, 256, stream, &[data, COUNT as u64, 20])?;
        }
        driver.upload(data, &values)?;
        driver.download(&mut values, data)?;
        let extra = driver.alloc(1 << 20)?;
        // SAFETY: an address of this program's own.
        unsafe { driver.mem_free(extra)? };
    }
}

/// A client that has a context and does nothing in it.
fn stay() -> Result<(), Code> {
    Driver::open().enter()?;
    say("staying");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Takes memory and keeps it until it is killed.
fn hold(bytes: u64) -> Result<(), Code> {
    let driver = Driver::ready();
    let data = driver.alloc(usize::try_from(bytes).expect("64-bit"))?;
    sequence(&driver, data, bytes / 8, 3, 1)?;
    driver.synchronize()?;
    say("holding");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A kernel writes where this client has nothing; the error must be sticky.
fn wild(address: u64) -> Result<(), Code> {
    let driver = Driver::ready();
    let write = driver.function(driver.module(KERNELS)?, "write_to")?;
    driver.launch(write, 1, 1, NULL, &[address, 42])?;
    let first = driver.synchronize();
    let second = driver.alloc(4096);
    assert_eq!(first.err(), second.err(), "the error is sticky");
    first
}

fn forever() -> Result<(), Code> {
    let driver = Driver::ready();
    let data = driver.alloc(4096)?;
    let kernel = driver.function(driver.module(KERNELS)?, "forever")?;
    driver.launch(kernel, 1, 32, NULL, &[data])?;
    say("running");
    driver.synchronize()
}

/// Pairs of streams, each with a kernel that spins until the other's has run.
fn streams(pairs: u64) -> Result<(), Code> {
    let driver = Driver::ready();
    let module = driver.module(KERNELS)?;
    let (wait, set) = (
        driver.function(module, "wait_for")?,
        driver.function(module, "set")?,
    );
    let flags = driver.alloc(4096 * 8)?;
    // SAFETY: an address of this program's own.
    unsafe { driver.fill_32(flags, 0, 8192)? };
    let mut made = Vec::new();
    for pair in 0..pairs {
        let (first, second) = (
            driver.stream(CU_STREAM_NON_BLOCKING)?,
            driver.stream(CU_STREAM_NON_BLOCKING)?,
        );
        let (a, b) = (flags + pair * 16, flags + pair * 16 + 8);
        driver.launch(wait, 1, 1, first, &[a, 1])?;
        driver.launch(set, 1, 1, first, &[b, 1])?;
        made.push((first, second, a, b));
    }
    for (_, second, a, b) in &made {
        driver.launch(set, 1, 1, *second, &[*a, 1])?;
        driver.launch(wait, 1, 1, *second, &[*b, 1])?;
    }
    driver.synchronize()
}

/// Two threads, each launching a kernel that spins until the other thread's has run.
fn threads() -> Result<(), Code> {
    let driver = Driver::ready();
    let module = driver.module(KERNELS)?;
    let flags = driver.alloc(4096)?;
    // SAFETY: an address of this program's own.
    unsafe { driver.fill_32(flags, 0, 1024)? };
    let functions = [
        driver.function(module, "wait_for")?,
        driver.function(module, "set")?,
    ];
    std::thread::scope(|scope| {
        let driver = &driver;
        let side = |mine: Address, theirs: Address| {
            move || {
                driver.enter()?;
                let stream = driver.stream(CU_STREAM_NON_BLOCKING)?;
                driver.launch(functions[1], 1, 1, stream, &[mine, 1])?;
                driver.launch(functions[0], 1, 1, stream, &[theirs, 1])?;
                // SAFETY: a stream of this thread's own.
                unsafe { driver.stream_synchronize(stream) }
            }
        };
        let first = scope.spawn(side(flags, flags + 8));
        let second = scope.spawn(side(flags + 8, flags));
        first
            .join()
            .expect("no panic")
            .and(second.join().expect("no panic"))
    })
}

/// The child of a process that used CUDA has none; its parent goes on.
fn fork() -> Result<(), Code> {
    const NOT_INITIALIZED: Code = 3;
    let driver = Driver::ready();
    let data = driver.alloc(4096)?;
    // SAFETY: the child calls the library under test, and leaves without running the parent's exits.
    match unsafe { libc::fork() } {
        0 => {
            let codes = [
                driver.alloc(64).err(),
                driver.synchronize().err(),
                driver.enter().err(),
            ];
            let right = codes.iter().all(|code| *code == Some(NOT_INITIALIZED));
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!right)) }
        }
        child => assert_eq!(status_of(child), 0, "the child got other errors"),
    }
    // A child made behind the C library's back, so that no atfork handler runs.
    // SAFETY: a clone without flags is a fork: the child has its own copy of everything, and only ends itself.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        0 => {
            let right = driver.alloc(64).err() == Some(NOT_INITIALIZED);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!right)) }
        }
        child => {
            let child = i32::try_from(child).expect("a process id");
            assert_eq!(status_of(child), 0, "the cloned child got other errors");
        }
    }
    sequence(&driver, data, 512, 1, 0)?;
    driver.synchronize()
}

/// What a program does in the middle of something.
#[expect(clippy::exit, reason = "how a program ends is what is tested")]
fn in_the_middle(driver: &Driver, what: &str) -> Result<(), Code> {
    const NOT_INITIALIZED: Code = 3;
    match what {
        "stay" => {
            say("in the middle");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        "exit" => {
            println!("ok");
            std::process::exit(0);
        }
        "fork" => {
            // SAFETY: the child calls the library under test, and leaves without running exits.
            match unsafe { libc::fork() } {
                0 => {
                    let right = driver.alloc(64).err() == Some(NOT_INITIALIZED);
                    // SAFETY: ends this process at once.
                    unsafe { libc::_exit(i32::from(!right)) }
                }
                child => assert_eq!(status_of(child), 0, "the child got other errors"),
            }
            Ok(())
        }
        other => panic!("no {other:?}"),
    }
}

/// Something happens while a host function runs, with work of the stream behind it.
fn in_function(what: &str) -> Result<(), Code> {
    static ENTERED: AtomicBool = AtomicBool::new(false);
    static LEAVE: AtomicBool = AtomicBool::new(false);
    extern "C" fn function(_: *mut c_void) {
        ENTERED.store(true, Ordering::SeqCst);
        while !LEAVE.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let driver = Driver::ready();
    let data = driver.alloc(1 << 20)?;
    let stream = driver.stream(CU_STREAM_NON_BLOCKING)?;
    let kernel = driver.function(driver.module(KERNELS)?, "sequence")?;
    let launch = || driver.launch(kernel, 2, 64, stream, &[data, 128, 3, 1]);
    launch()?;
    // SAFETY: the function takes no data.
    unsafe { driver.launch_host_function(stream, function, std::ptr::null_mut())? };
    launch()?;
    while !ENTERED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    in_the_middle(&driver, what)?;
    LEAVE.store(true, Ordering::SeqCst);
    // SAFETY: the stream is destroyed only when this program ends.
    unsafe { driver.stream_synchronize(stream) }
}

/// Something happens while a stream is captured; then the graph is launched.
fn in_capture(what: &str) -> Result<(), Code> {
    const RELAXED: u32 = 2;
    let driver = Driver::ready();
    let data = driver.alloc(1 << 20)?;
    let stream = driver.stream(CU_STREAM_NON_BLOCKING)?;
    let kernel = driver.function(driver.module(KERNELS)?, "sequence")?;
    let (mut graph, mut exec) = (0, 0);
    // SAFETY: handles are what the library gave, and out pointers are locals'.
    unsafe {
        driver.stream_begin_capture(stream, RELAXED)?;
        for round in 0..3 {
            driver.launch(kernel, 2, 64, stream, &[data, 128, 3, round])?;
        }
        in_the_middle(&driver, what)?;
        driver.stream_end_capture(stream, &raw mut graph)?;
        driver.graph_instantiate(&raw mut exec, graph, 0)?;
        driver.graph_launch(exec, stream)?;
        driver.stream_synchronize(stream)
    }
}

/// The child of a parent that never called cuInit may use CUDA.
fn fork_before() -> Result<(), Code> {
    // SAFETY: this program has one thread.
    match unsafe { libc::fork() } {
        0 => {
            let right = work(2, None).is_ok();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(!right)) }
        }
        child => assert_eq!(status_of(child), 0, "the child could not work"),
    }
    work(2, None)
}

/// Leaves a child that keeps every descriptor, and ends.
fn worker() -> Result<(), Code> {
    let driver = Driver::ready();
    let data = driver.alloc(64 << 20)?;
    sequence(&driver, data, 1024, 1, 0)?;
    driver.synchronize()?;
    // SAFETY: the child sleeps and leaves.
    match unsafe { libc::fork() } {
        0 => {
            // Whoever reads this program's output is not to wait for its worker.
            for descriptor in [1, 2] {
                // SAFETY: nothing in this process uses the descriptor any more.
                unsafe { libc::close(descriptor) };
            }
            std::thread::sleep(Duration::from_secs(60));
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
        child => say(&format!("worker {child}")),
    }
    Ok(())
}

fn status_of(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the out pointer is a local's.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}

/// Allocations, their limits, and memory that was freed right after a launch.
fn memory() -> Result<(), Code> {
    const OUT_OF_MEMORY: Code = 2;
    const INVALID_VALUE: Code = 1;
    let driver = Driver::ready();
    let sequence = driver.function(driver.module(KERNELS)?, "sequence")?;
    let (before, total) = driver.memory()?;
    assert!(before <= total);
    assert_eq!(driver.alloc(total + (1 << 20)).err(), Some(OUT_OF_MEMORY));
    let data = driver.alloc(16 << 20)?;
    assert!(driver.memory()?.0 <= before - (16 << 20));
    driver.launch(sequence, 8, 128, NULL, &[data, 1 << 20, 5, 2])?;
    // SAFETY: addresses of this program's own, and one that is not any more.
    unsafe {
        driver.mem_free(data)?;
        assert_eq!(driver.mem_free(data).err(), Some(INVALID_VALUE));
        assert_eq!(driver.mem_free(12345).err(), Some(INVALID_VALUE));
    }
    driver.synchronize()?;
    let start = Instant::now();
    while driver.memory()?.0 < before && start.elapsed() < Duration::from_secs(5) {}
    assert_eq!(driver.memory()?.0, before, "everything came back");
    // Page-locked memory is the same bytes for a kernel and for the program.
    let mut pinned: *mut c_void = std::ptr::null_mut();
    // SAFETY: the out pointer is a local's; the memory holds 1,024 words.
    unsafe {
        driver.mem_host_alloc(&raw mut pinned, 8192, 0)?;
        driver.launch(sequence, 1, 128, NULL, &[pinned as Address, 1024, 9, 4])?;
        driver.synchronize()?;
        let words = std::slice::from_raw_parts(pinned.cast::<u64>(), 1024);
        assert!(
            words
                .iter()
                .enumerate()
                .all(|(i, word)| *word == i as u64 * 9 + 4)
        );
        driver.mem_free_host(pinned)?;
    }
    // Large pageable copies there and back.
    let big: Vec<u64> = (0..12 << 20)
        .map(|i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .collect();
    let data = driver.alloc(size_of_val(&big[..]))?;
    driver.upload(data, &big)?;
    let mut back = vec![0u64; big.len()];
    driver.download(&mut back, data)?;
    assert!(back == big, "a large copy came back changed");
    Ok(())
}

/// A function that is not built says so.
fn absent() -> Result<(), Code> {
    const NOT_SUPPORTED: Code = 801;
    let driver = Driver::ready();
    // SAFETY: the signature is CUDA's.
    let status = unsafe {
        type Function = unsafe extern "C" fn(*mut u64, *const u64) -> Code;
        let library = libloading::Library::new("libcuda.so.1").expect("it is loaded already");
        let multicast: libloading::Symbol<'_, Function> = library
            .get(b"cuMulticastCreate\0")
            .expect("every name is exported");
        let (mut handle, properties) = (0, [0; 8]);
        multicast(&raw mut handle, properties.as_ptr());
        multicast(&raw mut handle, properties.as_ptr())
    };
    assert_eq!(status, NOT_SUPPORTED);
    driver.synchronize()
}

/// Loads an image from a file and says what the loader said.
fn image(path: &str) -> Result<(), Code> {
    let mut bytes = std::fs::read(path).expect("a file");
    // A container says its own length, and a damaged one may say too much: what follows is readable.
    bytes.resize(bytes.len() + (1 << 20), 0);
    let driver = Driver::ready();
    driver
        .module_with_log(&bytes)
        .map(|_| ())
        .map_err(|(code, log)| {
            say(log.trim_end());
            code
        })
}

/// Loads PTX and runs its kernel `k`, and loads this PTX meanwhile, if any.
fn kernel(path: &str, meanwhile: Option<&String>) -> Result<(), Code> {
    let text = std::fs::read_to_string(path).expect("a file");
    let driver = Driver::ready();
    let kernel = driver.function(driver.module(&text)?, "k")?;
    driver.launch(kernel, 1, 64, NULL, &[])?;
    say("running");
    if let Some(path) = meanwhile {
        driver.module(&std::fs::read_to_string(path).expect("a file"))?;
    }
    driver.synchronize()
}

/// Order between streams by events, and their times.
fn events() -> Result<(), Code> {
    let driver = Driver::ready();
    let churn = driver.function(driver.module(KERNELS)?, "churn")?;
    let data = driver.alloc(1 << 16)?;
    let (first, second) = (
        driver.stream(CU_STREAM_NON_BLOCKING)?,
        driver.stream(CU_STREAM_NON_BLOCKING)?,
    );
    let mut events = [NULL; 2];
    // SAFETY: out pointers are locals', handles are this program's own.
    unsafe {
        for event in &mut events {
            driver.event_create(event, 0)?;
        }
        for round in 0..50u64 {
            driver.fill_8_async(data, round as u8, 1 << 16, first)?;
            driver.event_record(events[0], first)?;
            driver.launch(churn, 4, 64, first, &[data, 1 << 13, 50])?;
            driver.event_record(events[1], first)?;
            driver.stream_wait_event(second, events[1], 0)?;
            let mut words = vec![0u64; 1 << 13];
            driver.copy_to_host_async(words.as_mut_ptr().cast(), data, 1 << 16, second)?;
            driver.stream_synchronize(second)?;
            let mut expected = u64::from_ne_bytes([round as u8; 8]);
            for _ in 0..50 {
                expected = expected
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
            }
            assert!(words.iter().all(|word| *word == expected), "round {round}");
        }
        driver.event_synchronize(events[1])?;
        let mut milliseconds = -1.0;
        driver.event_elapsed_time(&raw mut milliseconds, events[0], events[1])?;
        assert!(milliseconds > 0.0, "{milliseconds} ms");
    }
    Ok(())
}
