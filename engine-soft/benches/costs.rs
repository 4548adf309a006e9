//! What the engine costs without anything around it: attaching, small operations, large copies. Printed, not judged:
//! `cargo bench -p engine-soft --bench costs`.
#![allow(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to say"
)]

use std::time::{Duration, Instant};

use engine::Engine;
use engine::conformance::kernels;
use engine::conformance::rig::{Guest, params};
use engine_soft::{Config, SoftEngine};
use protocol::operations::{Copy, Fill};
use rustix::time::{ClockId, clock_gettime};

fn main() {
    attaching_and_idling();
    small_operations();
    large_copies();
}

/// A field of /proc/self/status, in KiB.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Processor time of this thread: what a busy machine changes least.
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

fn attaching_and_idling() {
    let engine = SoftEngine::new(&Config::with_devices(2)).unwrap();
    drop(Guest::new(&engine));
    let used = || status("VmRSS") + status("VmPTE");
    let before = used();
    let started = Instant::now();
    let guests: Vec<Guest> = (0..200).map(|_| Guest::new(&engine)).collect();
    let attached = started.elapsed() / 200;
    let each = (used() - before) / 200;
    let started = Instant::now();
    drop(guests);
    let detached = started.elapsed() / 200;
    println!("attach {attached:?}, detach {detached:?}, {each} KiB of memory for each idle client");
}

fn small_operations() {
    let engine = SoftEngine::new(&Config::default()).unwrap();
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, 1 << 20);
    let time = |name: &str, guest: &mut Guest, post: &dyn Fn(&mut Guest)| {
        let rounds = 20_000;
        for _ in 0..100 {
            post(guest);
        }
        guest.wait(0).unwrap();
        let (started, used) = (Instant::now(), thread_time());
        for round in 0..rounds {
            post(guest);
            // Within the depth that a stream may have.
            if round % 512 == 0 {
                guest.wait(0).unwrap();
            }
        }
        let (took, used) = (started.elapsed() / rounds, (thread_time() - used) / rounds);
        guest.wait(0).unwrap();
        println!("{name}: {took:?} each, {used:?} of the calling thread");
    };
    time("event", &mut guest, &|guest| guest.event(0, 0));
    time("write of 4 bytes", &mut guest, &|guest| {
        guest.write(0, device, &[1; 4]);
    });
    let fill = Fill {
        to: device,
        element: 4,
        width: 16,
        height: 1,
        ..Fill::default()
    };
    time("fill of 64 bytes", &mut guest, &|guest| {
        guest.fill(0, &fill);
    });
    let module = guest.module(kernels::POKE);
    let data = params(&[device, 1]);
    time("kernel of one thread", &mut guest, &|guest| {
        guest.launch(0, module, 1, 1, &data);
    });
    time("kernel of 8 blocks of 256", &mut guest, &|guest| {
        guest.launch(0, module, 8, 256, &data);
    });
}

fn large_copies() {
    let engine = SoftEngine::new(&Config::default()).unwrap();
    let mut guest = Guest::new(&engine);
    let bytes = 256 << 20;
    let device = guest.commit(0, 2 * bytes);
    let copy = Copy {
        to: device + bytes,
        from: device,
        width: bytes,
        height: 1,
        depth: 1,
        ..Copy::default()
    };
    for round in 0..4 {
        let started = Instant::now();
        guest.copy(0, &copy);
        guest.wait(0).unwrap();
        let rate = bytes as f64 / started.elapsed().as_secs_f64() / 1e9;
        println!("round {round}: device to device {rate:.1} GB/s");
    }
    let free = guest.client.free_memory(0);
    let range = engine::Window {
        base: device,
        bytes: 2 * bytes,
    };
    let started = Instant::now();
    guest.client.decommit(range);
    println!(
        "decommit of 512 MiB: {:?}; {free} bytes were free",
        started.elapsed()
    );
    assert!(engine.devices()[0].total_memory >= free);
}
