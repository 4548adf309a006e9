//! Two threads use streams of their own. One is stopped wherever it is, hundreds of times, and each time
//! the other puts work into its stream: whatever lock both used would be held by a stopped thread now and
//! then, and the other would sleep until it is free.
//!
//! One thing is no lock and holds up all the same: records are published in the order in which room for
//! them was taken, so a thread that is stopped while it copies one holds up those after it. Who waits for
//! that naps, and does not sleep by a futex, which is how it is told apart here.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tests::cuda::{Address, Code, Driver, Handle};
use tests::daemon::PATIENCE;
use tests::program::finish;

const KERNELS: &str = include_str!("../../kernels/kernels.ptx");

const CU_STREAM_NON_BLOCKING: u32 = 1;
const CU_EVENT_DISABLE_TIMING: u32 = 2;

const ROUNDS: u32 = 300;

/// Whether the first thread is to stand still, and whether it does.
static STOP: AtomicBool = AtomicBool::new(false);
static STANDS: AtomicBool = AtomicBool::new(false);
/// The last step that the second thread is to do, and has done; step 0 is to get ready. It works at odd
/// ones, and waits for its work at even ones.
static ASKED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(u32::MAX);
static OVER: AtomicBool = AtomicBool::new(false);

/// How long the second thread's work may take before it is looked at what it does.
const LONG: Duration = Duration::from_millis(100);

/// Stands still wherever the thread is. Does nothing that a signal handler may not.
extern "C" fn stand(_: c_int) {
    STANDS.store(true, Ordering::SeqCst);
    while STOP.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    STANDS.store(false, Ordering::SeqCst);
}

/// What a thread needs for its work.
struct Place<'a> {
    driver: &'a Driver,
    stream: Handle,
    event: Handle,
    data: Address,
    kernel: Handle,
}

impl<'a> Place<'a> {
    fn new(driver: &'a Driver) -> Result<Self, Code> {
        driver.enter()?;
        let mut event = 0;
        // SAFETY: the out pointer is a local's.
        unsafe { driver.event_create(&raw mut event, CU_EVENT_DISABLE_TIMING)? };
        Ok(Self {
            driver,
            stream: driver.stream(CU_STREAM_NON_BLOCKING)?,
            event,
            data: driver.alloc(4096)?,
            kernel: driver.function(driver.module(KERNELS)?, "sequence")?,
        })
    }

    /// Work of each kind that needs no answer.
    fn work(&self) -> Result<(), Code> {
        let bytes = [7_u8; 256];
        let Self { driver, stream, .. } = *self;
        for round in 0..4 {
            driver.launch(self.kernel, 1, 32, stream, &[self.data, 32, 3, round])?;
            // SAFETY: handles and memory are this program's own; so few bytes are taken at once.
            unsafe {
                driver.copy_to_device_async(self.data, bytes.as_ptr().cast(), 256, stream)?;
                driver.fill_8_async(self.data, 1, 4096, stream)?;
                driver.event_record(self.event, stream)?;
                driver.stream_wait_event(stream, self.event, 0)?;
            }
            // SAFETY: the stream is destroyed only when this program ends. That it has work is no error.
            let _ = unsafe { driver.stream_query(stream) };
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: the stream is destroyed only when this program ends.
        unsafe { self.driver.stream_synchronize(self.stream) }
    }
}

/// Whether a thread of this process sleeps by a futex.
fn sleeps(thread: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
    let number = call
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok());
    number == Some(libc::SYS_futex)
}

#[expect(
    clippy::exit,
    reason = "a thread that waited for too long ends the whole program"
)]
fn until(what: &str, check: impl Fn() -> bool) {
    let start = Instant::now();
    while !check() {
        if start.elapsed() > PATIENCE {
            STOP.store(false, Ordering::SeqCst);
            eprintln!("{what} for {PATIENCE:?}");
            std::process::exit(1);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn main() {
    let driver = Driver::ready();
    let stand: extern "C" fn(c_int) = stand;
    // SAFETY: the handler touches atomics only.
    unsafe { libc::signal(libc::SIGUSR1, stand as usize) };
    let both: [Result<(), Code>; 2] = std::thread::scope(|scope| {
        let (sender, first) = std::sync::mpsc::channel();
        let driver = &driver;
        let one = scope.spawn(move || {
            let place = Place::new(driver)?;
            place.work()?;
            place.synchronize()?;
            // SAFETY: asks for this thread's own handle.
            sender
                .send(unsafe { libc::pthread_self() })
                .expect("somebody waits");
            while !OVER.load(Ordering::SeqCst) {
                place.work()?;
                place.synchronize()?;
            }
            Ok(())
        });
        let (tell, second) = std::sync::mpsc::channel();
        let other = scope.spawn(move || {
            // SAFETY: asks for this thread's own number.
            tell.send(unsafe { libc::gettid() }.unsigned_abs())
                .expect("somebody waits");
            let place = Place::new(driver)?;
            place.work()?;
            place.synchronize()?;
            DONE.store(0, Ordering::SeqCst);
            while !OVER.load(Ordering::SeqCst) {
                let asked = ASKED.load(Ordering::SeqCst);
                if DONE.load(Ordering::SeqCst) < asked {
                    match asked % 2 {
                        0 => place.synchronize()?,
                        _ => place.work()?,
                    }
                    DONE.store(asked, Ordering::SeqCst);
                }
                std::thread::yield_now();
            }
            Ok(())
        });
        let first = first.recv().expect("the thread works");
        let ask = |step: u32, what: &str| {
            ASKED.store(step, Ordering::SeqCst);
            until(what, || DONE.load(Ordering::SeqCst) == step);
        };
        let second = second.recv().expect("the thread works");
        let mut held_up = 0;
        ask(0, "the second thread was not ready");
        for round in 0..ROUNDS {
            std::thread::sleep(Duration::from_micros(u64::from(round * 7919 % 400)));
            STOP.store(true, Ordering::SeqCst);
            // SAFETY: the thread lives until OVER is set.
            unsafe { libc::pthread_kill(first, libc::SIGUSR1) };
            until("the first thread could not be stopped", || {
                STANDS.load(Ordering::SeqCst)
            });
            ASKED.store(2 * round + 1, Ordering::SeqCst);
            let start = Instant::now();
            while DONE.load(Ordering::SeqCst) != 2 * round + 1 && start.elapsed() < LONG {
                std::thread::sleep(Duration::from_micros(50));
            }
            if DONE.load(Ordering::SeqCst) != 2 * round + 1 {
                held_up += 1;
                // Twice, since it may just be about to go on.
                let both = [(); 2].map(|()| {
                    std::thread::sleep(LONG);
                    sleeps(second)
                });
                if both == [true; 2] {
                    eprintln!("a stopped thread holds a lock of another");
                    std::process::exit(1);
                }
            }
            STOP.store(false, Ordering::SeqCst);
            // The server takes records one after another: one that is half written holds up answers.
            until("the second thread did not go on", || {
                DONE.load(Ordering::SeqCst) == 2 * round + 1
            });
            ask(2 * round + 2, "the second thread's work was not done");
            until("the first thread did not go on", || {
                !STANDS.load(Ordering::SeqCst)
            });
        }
        OVER.store(true, Ordering::SeqCst);
        assert!(held_up < ROUNDS / 10, "{held_up} of {ROUNDS} times");
        [one, other].map(|thread| thread.join().expect("no panic"))
    });
    finish(both.into_iter().collect());
}
