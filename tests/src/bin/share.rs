//! What runs in a pod that has so many MiB of a GPU: it takes all of them, by two processes, and finds
//! that the next one is refused. `share MIB` says `ok` and ends; `share MIB hold` keeps half of them.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use tests::cuda::{Driver, Handle};
use tests::program::say;

/// CUDA_ERROR_OUT_OF_MEMORY
const OUT_OF_MEMORY: u32 = 2;

const MIB: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let limit: usize = arguments[1].parse().expect("a number of MiB");
    let driver = Driver::open();
    enter(&driver);
    match arguments.get(2).map(String::as_str) {
        Some("rest") => rest(&driver, limit),
        how => all(&driver, limit, how == Some("hold")),
    }
    ExitCode::SUCCESS
}

/// A primary context of device 0; it waits for the daemon as long as the library does.
fn enter(driver: &Driver) {
    let mut context: Handle = 0;
    // SAFETY: the places are this function's own.
    unsafe {
        driver.init(0).expect("cuInit");
        driver
            .primary_retain(&raw mut context, 0)
            .expect("a context");
        driver.ctx_set_current(context).expect("the context");
    }
}

fn take(driver: &Driver, mib: usize) -> Result<u64, u32> {
    let mut address = 0;
    // SAFETY: the place is this function's own.
    unsafe { driver.mem_alloc(&raw mut address, mib * MIB) }.map(|()| address)
}

/// Takes what another process of the pod has left, one MiB after the other.
fn rest(driver: &Driver, mib: usize) {
    for number in 0..mib {
        take(driver, 1).unwrap_or_else(|code| panic!("MiB {number} of {mib}: error {code}"));
    }
    assert_eq!(
        take(driver, 1),
        Err(OUT_OF_MEMORY),
        "one MiB more than the pod has"
    );
}

fn all(driver: &Driver, limit: usize, holds: bool) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the places are this function's own.
    unsafe { driver.mem_get_info(&raw mut free, &raw mut total) }.expect("cuMemGetInfo");
    println!("total {} MiB, free {} MiB", total / MIB, free / MIB);
    let half = limit / 2;
    take(driver, half).expect("half of it");
    let program = std::env::current_exe().expect("this program");
    let other = Command::new(program)
        .args([&(limit - half).to_string(), "rest"])
        .status()
        .expect("this program, again");
    assert!(other.success(), "the other process: {other}");
    println!("two processes had {limit} MiB together");
    if !holds {
        // What the other had is free soon after its end.
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(code) = take(driver, limit - half) {
            assert!(
                code == OUT_OF_MEMORY && Instant::now() < deadline,
                "error {code}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            take(driver, 1),
            Err(OUT_OF_MEMORY),
            "one MiB more than the pod has"
        );
    }
    say("ok");
    if !holds {
        return;
    }
    loop {
        // SAFETY: nothing is asked for.
        unsafe { driver.ctx_synchronize() }.expect("the device goes on");
        std::thread::sleep(Duration::from_millis(100));
    }
}
