//! A server that waits for requests, and what takes the GPU from it: clients of `neighbours.sh`'s tails.
//!
//! Called by `gpu_client`'s modes `serve` and `hog`. Must not know who shares the GPU, nor how.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use tests::cuda::{Address, Driver, Handle};

/// Multiplies and adds so many times in each thread, and stores what came of it where nobody's blocks are so many.
const MULTIPLY: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry multiply(.param .u64 times, .param .u64 to)\n{\n\
    .reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n.reg .f32 %f<6>;\n.reg .pred %p<3>;\n\
    ld.param.u32 %r1, [times];\nld.param.u64 %rd1, [to];\n\
    mov.u32 %r2, %tid.x;\ncvt.rn.f32.u32 %f1, %r2;\n\
    mov.f32 %f2, 0f3f7fbe77;\nmov.f32 %f3, 0f3a83126f;\nmov.f32 %f4, %f1;\n\
    again:\n\
    fma.rn.f32 %f1, %f1, %f2, %f3;\nfma.rn.f32 %f4, %f4, %f2, %f3;\n\
    fma.rn.f32 %f1, %f1, %f2, %f3;\nfma.rn.f32 %f4, %f4, %f2, %f3;\n\
    sub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra again;\n\
    add.f32 %f1, %f1, %f4;\nsetp.neu.f32 %p2, %f1, 0f7f800000;\n@%p2 ret;\n\
    st.global.f32 [%rd1], %f1;\nret;\n}\n";

/// Copies 16 bytes a thread.
const MOVE: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .visible .entry move(.param .u64 from, .param .u64 to)\n{\n\
    .reg .b64 %rd<6>;\n.reg .b32 %r<9>;\n\
    ld.param.u64 %rd1, [from];\nld.param.u64 %rd2, [to];\n\
    mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n\
    mul.wide.u32 %rd3, %r1, %r2;\ncvt.u64.u32 %rd4, %r3;\nadd.u64 %rd3, %rd3, %rd4;\nshl.b64 %rd3, %rd3, 4;\n\
    add.u64 %rd1, %rd1, %rd3;\nadd.u64 %rd2, %rd2, %rd3;\n\
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1];\n\
    st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};\nret;\n}\n";

/// What a request brings, and what it gets, in bytes.
const QUESTION: usize = 256 << 10;
const ANSWER: usize = 4 << 10;
/// A request's kernels, their blocks, and how often each thread of these multiplies: some 30 µs each on an H200.
const KERNELS: usize = 10;
const BLOCKS: u32 = 132;
const TIMES: u64 = 3_000;

/// The blocks and multiplications of a kernel of some milliseconds that fills an H200.
const HOG_BLOCKS: u32 = 132 * 8 * 4;
const HOG_TIMES: u64 = 3_000;
/// Bytes of a kernel that moves, and of a copy between host and device.
const MOVED: usize = 1 << 30;
const COPIED: usize = 64 << 20;
/// Unfinished things of a hog.
const AHEAD: usize = 16;
const THREADS: u32 = 256;

fn page_locked(driver: &Driver, bytes: usize) -> *mut std::ffi::c_void {
    let mut memory = null_mut();
    // SAFETY: the out pointer is a local's.
    unsafe { driver.mem_host_alloc(&raw mut memory, bytes, 0) }.expect("page-locked memory");
    memory
}

fn wait(driver: &Driver, stream: Handle) {
    // SAFETY: both callers made the stream, and destroy none.
    unsafe { driver.stream_synchronize(stream) }.expect("it ran");
}

fn event(driver: &Driver) -> Handle {
    /// CU_EVENT_DISABLE_TIMING.
    const WITHOUT_TIMING: u32 = 2;
    let mut event = 0;
    // SAFETY: the out pointer is a local's.
    unsafe { driver.event_create(&raw mut event, WITHOUT_TIMING) }.expect("an event");
    event
}

/// Serves for so long, and prints how long requests took.
pub fn serve(driver: &Driver, mean: u64, length: Duration) {
    let module = driver.module(MULTIPLY).expect("the kernel loads");
    let kernel = driver.function(module, "multiply").expect("a kernel");
    let memory = driver.alloc(QUESTION).expect("a little memory");
    let (question, answer) = (page_locked(driver, QUESTION), page_locked(driver, ANSWER));
    let stream = driver.stream(1).expect("a stream");
    let request = || {
        // SAFETY: both are that long, and stay.
        unsafe { driver.copy_to_device_async(memory, question, QUESTION, stream) }
            .expect("it comes");
        for _ in 0..KERNELS {
            driver
                .launch(kernel, BLOCKS, THREADS, stream, &[TIMES, memory])
                .expect("it launches");
        }
        // SAFETY: `answer` has ANSWER bytes and is read after the wait below; the memory is allocated.
        unsafe { driver.copy_to_host_async(answer, memory, ANSWER, stream) }.expect("it goes");
        wait(driver, stream);
    };
    for _ in 0..50 {
        request();
    }
    println!("{{\"running\":1}}");
    let (mut seed, begin) = (0x2545_f491_4f6c_dd1d_u64, Instant::now());
    let (mut comes, mut times) = (Duration::ZERO, Vec::new());
    while comes < length {
        // Exponential times between them, by a generator of xorshift: the same requests each time.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let part = ((seed >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        comes += Duration::from_secs_f64(mean as f64 * 1e-6 * -part.ln());
        while begin.elapsed() < comes {
            std::hint::spin_loop();
        }
        request();
        times.push((begin.elapsed() - comes).as_secs_f64() * 1e6);
    }
    crate::print_times(times, length);
}

/// Takes as much of one thing as there is for so long, and prints how much it got.
pub fn hog(driver: &Driver, what: &str, length: Duration) {
    let streams = [1, 1].map(|flags| driver.stream(flags).expect("a stream"));
    let step: Box<dyn Fn(Handle)> = match what {
        "sm" => {
            let module = driver.module(MULTIPLY).expect("the kernel loads");
            let kernel = driver.function(module, "multiply").expect("a kernel");
            let to = driver.alloc(4).expect("a little memory");
            Box::new(move |stream| {
                driver
                    .launch(kernel, HOG_BLOCKS, THREADS, stream, &[HOG_TIMES, to])
                    .expect("it launches");
            })
        }
        "bandwidth" => {
            let module = driver.module(MOVE).expect("the kernel loads");
            let kernel = driver.function(module, "move").expect("a kernel");
            let [from, to]: [Address; 2] = [0; 2].map(|_| driver.alloc(MOVED).expect("memory"));
            let blocks = (MOVED / 16) as u32 / THREADS;
            Box::new(move |stream| {
                driver
                    .launch(kernel, blocks, THREADS, stream, &[from, to])
                    .expect("it launches");
            })
        }
        "copies" => {
            let memory = driver.alloc(COPIED).expect("memory");
            let (host, there) = (page_locked(driver, COPIED), streams[0]);
            Box::new(move |stream| {
                // SAFETY: both are that long, and stay.
                unsafe {
                    if stream == there {
                        driver.copy_to_device_async(memory, host, COPIED, stream)
                    } else {
                        driver.copy_to_host_async(host, memory, COPIED, stream)
                    }
                }
                .expect("it is copied");
            })
        }
        _ => panic!("sm, bandwidth or copies"),
    };
    for stream in streams {
        step(stream);
        wait(driver, stream);
    }
    println!("{{\"running\":1}}");
    // One half of what is unfinished is posted when the half before the last has ended.
    let halves = streams.map(|_| [(); 2].map(|()| event(driver)));
    let (begin, mut posted) = (Instant::now(), 0_usize);
    for half in 0.. {
        if begin.elapsed() >= length {
            break;
        }
        for (&stream, events) in streams.iter().zip(&halves) {
            for _ in 0..AHEAD / 2 {
                step(stream);
            }
            posted += AHEAD / 2;
            // SAFETY: the stream and its events were made in this function, and nobody destroys them before it ends.
            unsafe { driver.event_record(events[half % 2], stream) }.expect("it is recorded");
            // SAFETY: the event was made in this function and lives; one that was never recorded is complete.
            unsafe { driver.event_synchronize(events[(half + 1) % 2]) }.expect("it ran");
        }
    }
    for stream in streams {
        wait(driver, stream);
    }
    let rate = posted as f64 / begin.elapsed().as_secs_f64();
    println!("{{\"rate\":{rate:.1}}}");
}
