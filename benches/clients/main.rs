//! What clients cost the server: attaching, and memory while they are idle.
//!
//! `cargo run --release -p benches --bin clients` starts a daemon of its own.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tests::daemon::{Daemon, eventually};

fn main() {
    let clients: usize = std::env::args()
        .nth(1)
        .map_or(100, |text| text.parse().expect("a number of clients"));
    let daemon = Daemon::start();
    // The first client starts the server.
    let mut first = hold(&daemon);
    eventually("the first client holds", || {
        !daemon.control(&["get_server_list"]).stdout.is_empty() && daemon.clients().len() == 1
    });
    let before = memory(daemon.server());

    let start = Instant::now();
    let mut children: Vec<Child> = (0..clients).map(|_| hold(&daemon)).collect();
    eventually("all clients hold", || daemon.clients().len() == clients + 1);
    let attached = start.elapsed();
    // They have said that they hold: wait until their memory is touched and the server sleeps.
    std::thread::sleep(Duration::from_secs(1));
    let after = memory(daemon.server());
    let busy = cpu_ticks(daemon.server());
    std::thread::sleep(Duration::from_secs(2));
    let idle = cpu_ticks(daemon.server()) - busy;

    println!(
        "{clients} clients started and attached in {:.1} ms",
        attached.as_secs_f64() * 1e3
    );
    println!(
        "server memory per idle client (a context and a loaded module, 64 KiB of device memory touched): {:.1} KiB",
        (after - before) as f64 / clients as f64
    );
    println!(
        "server CPU in 2 s with {clients} idle clients: {} ms",
        idle * 10
    );
    for child in children.iter_mut().chain([&mut first]) {
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
    }
}

fn hold(daemon: &Daemon) -> Child {
    daemon
        .probe(&["hold", "65536"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the probe starts")
}

/// KiB of memory that a process has to itself, or its share of what is shared.
fn memory(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("it runs");
    let line = text
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .expect("the kernel says");
    line.split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("KiB")
}

/// Ticks of 10 ms that a process has run.
fn cpu_ticks(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let after_name = text.rsplit(')').next().expect("a name in parentheses");
    after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|word| word.parse::<u64>().expect("ticks"))
        .sum()
}
