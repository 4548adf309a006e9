//! What a filter costs a system call: `cargo run --release -p sandbox --example cost`.

use std::hint::black_box;

use sandbox::{Profile, filter_calls};

/// Calls of each kind in a round.
const CALLS: u32 = 500_000;

/// Rounds, of which the median counts.
const ROUNDS: usize = 9;

/// What this process has used of a processor, in nanoseconds.
fn used() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes a time to where there is one.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn each(call: impl Fn()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = used();
            (0..CALLS).for_each(|_| call());
            (used() - begin) / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn measure(under: &str) {
    let word = 0u32;
    // SAFETY: wakes nobody: no thread waits for this word.
    let wake = each(|| unsafe {
        black_box(libc::syscall(
            libc::SYS_futex,
            &raw const word,
            libc::FUTEX_WAKE,
            1,
        ));
    });
    // SAFETY: looks at a flag of a descriptor, if there is one.
    let look = each(|| unsafe {
        black_box(libc::fcntl(0, libc::F_GETFD));
    });
    println!("{under:<30} futex {wake:>6.0} ns   fcntl {look:>6.0} ns");
}

fn main() {
    measure("no filter");
    filter_calls(Profile::Daemon).expect("the kernel filters calls");
    measure("the daemon's");
    filter_calls(Profile::Server).expect("the kernel filters calls");
    measure("the daemon's and a server's");
}
