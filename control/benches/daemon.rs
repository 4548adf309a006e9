//! What the daemon and a session cost, with an engine that does nothing: attaching, posting, waiting, allocating, a command, and
//! a thousand processes at once. Printed, not judged: `cargo bench -p control --bench daemon`.
//!
//! The daemon, its servers and its clients are this program under other names, as in the tests (`tests/daemon`).

#![allow(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to say"
)]

#[path = "../../server/tests/rig/engine.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod fake;
#[path = "../tests/daemon/groups.rs"]
#[allow(dead_code, reason = "only what clients under the name `lim` do")]
mod groups;
#[path = "../tests/daemon/harness.rs"]
#[allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "the tests use more of it"
)]
mod harness;
#[path = "../tests/daemon/roles.rs"]
mod roles;
#[path = "../../tests/src/skipped.rs"]
#[allow(dead_code, reason = "tests say what they skip")]
mod skipped;

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use protocol::operations::{EventRecord, MemAlloc, MemFree};

use crate::harness::Rig;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let name = arguments.next().unwrap_or_default();
    let host = control::HostProgram {
        start_server: roles::server_program,
        supervise_underlay: control::this_program,
        driver: || None,
        open_modes: || Ok(None),
        drives_hardware: || false,
    };
    let arguments: Vec<String> = arguments.collect();
    roles::play(&name, &arguments, host).unwrap_or_else(|| {
        operations();
        thousand_clients();
        ExitCode::SUCCESS
    })
}

/// A thousand processes that were started before connect at once, do a little work, and say so.
fn thousand_clients() {
    const CLIENTS: usize = 1000;
    let rig = Rig::new();
    rig.attach().work();
    let (begin, go) = std::io::pipe().unwrap();
    let (said, say) = std::io::pipe().unwrap();
    let mut children: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut command = rig.command(&["late"]);
            std::os::unix::process::CommandExt::arg0(&mut command, "lim");
            command
                .stdin(Stdio::from(begin.try_clone().unwrap()))
                .stdout(Stdio::from(say.try_clone().unwrap()))
                .spawn()
                .unwrap()
        })
        .collect();
    drop((begin, say));
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    drop(go);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(said));
    let served = (0..CLIENTS)
        .filter(|_| lines.next().unwrap().unwrap() == "ready")
        .count();
    println!(
        "  {served} of {CLIENTS} clients served in {:?}",
        began.elapsed()
    );
    let asked = Instant::now();
    assert_eq!(rig.ask("ps").lines().count(), CLIENTS + 1);
    println!("  ps of them: {:?}", asked.elapsed());
    for child in &mut children {
        let _ = child.kill();
    }
    for child in &mut children {
        let _ = child.wait();
    }
    assert_eq!(served, CLIENTS);
}

/// What each operation takes.
fn operations() {
    let rig = Rig::new();
    let first = rig.attach();
    first.work();
    drop(first);
    let began = Instant::now();
    for _ in 0..100 {
        drop(rig.attach());
    }
    println!("  attach: {} µs", began.elapsed().as_micros() / 100);
    let client = rig.attach();
    client.work();
    let mut sequence = 1;
    for round in 0..3 {
        let began = Instant::now();
        for _ in 0..20_000 {
            sequence += 1;
            client.work_again(sequence);
        }
        let awake = began.elapsed().as_nanos() as f64 / 2e7;
        let mut asleep = Duration::ZERO;
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(2));
            let began = Instant::now();
            sequence += 1;
            client.work_again(sequence);
            asleep += began.elapsed();
        }
        let asleep = asleep.as_nanos() as f64 / 2e5;
        println!("  round {round}: post and wait {awake:.2} µs awake, {asleep:.2} µs asleep");
    }
    for _ in 0..3 {
        const COUNT: u64 = 200_000;
        let began = Instant::now();
        for _ in 0..COUNT {
            sequence += 1;
            client.end.wait_for_depth(0, sequence).unwrap();
            client
                .end
                .post(0, sequence, &EventRecord::default(), &[])
                .unwrap();
        }
        client.end.wait(0, sequence).unwrap();
        let each = began.elapsed().as_nanos() as f64 / COUNT as f64;
        println!("  a stream of records: {each:.0} ns each");
        let began = Instant::now();
        for _ in 0..20_000 {
            let alloc = MemAlloc {
                context: 0,
                bytes: 4 << 20,
            };
            let address = client.end.call(&alloc, &[]).unwrap().fields.address;
            client.end.post(0, 0, &MemFree { address }, &[]).unwrap();
        }
        let each = began.elapsed().as_nanos() as f64 / 2e7;
        println!("  allocate and free 4 MiB: {each:.2} µs");
    }
    let began = Instant::now();
    for _ in 0..100 {
        rig.ask("get_server_list");
    }
    println!("  a command: {} µs", began.elapsed().as_micros() / 100);
}
