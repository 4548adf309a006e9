//! What the server's own part costs, with an engine that does nothing: `cargo bench -p server`.

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::time::Instant;

use protocol::operations::MemFree;
use rig::Rig;
use rig::engine::{FakeEngine, INSTANT};

fn main() {
    launches();
    attaching_and_idling();
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().split(' ').next().unwrap();
    number.parse().unwrap()
}

fn launches() {
    let rig = Rig::new(FakeEngine::new());
    let client = rig.attach_with_context();
    for round in 0..3 {
        const COUNT: u64 = 200_000;
        let began = Instant::now();
        let mut last = 0;
        for _ in 0..COUNT {
            last = client.launch(0, INSTANT, 0);
        }
        let posted = began.elapsed();
        client.end.wait(0, last).unwrap();
        let done = began.elapsed();
        println!(
            "round {round}: {:.0} ns a launch posted, {:.0} ns done",
            posted.as_nanos() as f64 / COUNT as f64,
            done.as_nanos() as f64 / COUNT as f64
        );
        let began = Instant::now();
        for _ in 0..20_000 {
            let place = client.launch(0, INSTANT, 0);
            client.end.wait(0, place).unwrap();
        }
        println!(
            "  launch and wait: {:.2} µs",
            began.elapsed().as_nanos() as f64 / 2e7
        );
        let began = Instant::now();
        for _ in 0..20_000 {
            let address = client.alloc(4 << 20).unwrap();
            client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
        }
        println!(
            "  allocate and free 4 MiB: {:.2} µs",
            began.elapsed().as_nanos() as f64 / 2e7
        );
    }
}

fn attaching_and_idling() {
    const CLIENTS: usize = 500;
    let rig = Rig::new(FakeEngine::new());
    rig.attach_with_context();
    let before = resident_kib();
    let began = Instant::now();
    let clients: Vec<_> = (0..CLIENTS).map(|_| rig.attach_with_context()).collect();
    println!(
        "{:.0} µs to attach, one after another",
        began.elapsed().as_micros() as f64 / CLIENTS as f64
    );
    for client in &clients {
        client.round_trip();
    }
    println!(
        "{} KiB a client, the client's own pages included",
        (resident_kib() - before) / CLIENTS as u64
    );
}
