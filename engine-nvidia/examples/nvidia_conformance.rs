//! Runs the conformance suite on the real driver, a process for each case: a fault ends a context for
//! good, and with it the process.
//!
//! ```text
//! nvidia_conformance                    every case
//! nvidia_conformance PART…              the cases whose names hold one of the parts
//! nvidia_conformance --all              those too that this engine does not promise
//! nvidia_conformance --case NAME        one case, in this process
//! nvidia_conformance --waits            which calls wait for a running kernel
//! nvidia_conformance --figures          times of attaching, launching and copying
//! ```
//! Prints a line a case and a summary; exits with 1 if a case failed.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, params};
use engine::conformance::{CASES, Case, kernels};
use engine::{Engine, Window};
use engine_nvidia::{NvidiaEngine, prepare_environment};
use protocol::operations::{Fill, ModuleUnload};

/// How long a case may take.
const LIMIT: Duration = Duration::from_secs(100);

/// Cases that ask for what the driver does not offer to an engine over one context, and why.
const NOT_PROMISED: &[(&str, &str)] = &[
    (
        "memory::a_device_has_only_so_much",
        "a window is smaller than the device",
    ),
    ("streams::streams_do_not_wait_for_each_other", ENDLESS),
    (
        "progress::clients_share_what_endless_kernels_leave",
        ENDLESS,
    ),
    ("progress::dropping_a_client_ends_its_kernels", ENDLESS),
    ("progress::destroying_a_context_ends_its_kernels", ENDLESS),
    ("shares::what_never_ends_keeps_nobody", ENDLESS),
    ("shares::what_is_reserved_and_busy_keeps_nobody", ENDLESS),
    ("shares::a_storm_of_shares_leaves_nothing", SHARED),
    ("progress::a_storm_of_clients_leaves_nothing", SHARED),
    ("progress::forty_kernels_wait_in_a_ring", QUEUES),
    ("faults::an_illegal_address_ends_its_context_only", SHARED),
    ("faults::a_neighbour_is_out_of_reach", SHARED),
    ("faults::a_fault_within_a_run_is_what_comes_of_it", SHARED),
    (
        "faults::faults_come_to_every_thread_that_makes_them",
        SHARED,
    ),
];
const ENDLESS: &str = "the driver cannot end one kernel";
const SHARED: &str = "a fault ends the device's one context";
const QUEUES: &str = "forty streams' signals share thirty-two hardware queues";

fn main() -> ExitCode {
    // SAFETY: no other thread has been started.
    unsafe { prepare_environment() };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--case") => one(arguments.get(1).map_or("", String::as_str)),
        Some("--waits") => waits(),
        Some("--figures") => figures(),
        Some("--all") => all(&[], true),
        _ => all(&arguments, false),
    }
}

fn open() -> Option<NvidiaEngine> {
    match NvidiaEngine::open() {
        Ok(engine) => Some(engine),
        Err(error) => {
            eprintln!("nvidia_conformance: {error}");
            None
        }
    }
}

fn one(name: &str) -> ExitCode {
    let Some(case) = CASES.iter().find(|case| case.name == name) else {
        eprintln!("nvidia_conformance: there is no case {name}");
        return ExitCode::FAILURE;
    };
    let Some(engine) = open() else {
        return ExitCode::FAILURE;
    };
    (case.run)(&engine);
    ExitCode::SUCCESS
}

fn all(parts: &[String], unpromised: bool) -> ExitCode {
    let Some(engine) = open() else {
        return ExitCode::FAILURE;
    };
    let version = engine.driver_version();
    println!(
        "driver {} for CUDA {}.{}",
        engine.driver_path().display(),
        version / 1000,
        version % 1000 / 10
    );
    for device in engine.devices() {
        println!("device {}, {} MiB", device.name, device.total_memory >> 20);
    }
    drop(engine);
    let (mut passed, mut failed, mut left_out) = (0, Vec::new(), 0);
    for case in CASES {
        if !parts.is_empty() && !parts.iter().any(|part| case.name.contains(&part[..])) {
            continue;
        }
        let promise = NOT_PROMISED.iter().find(|(name, _)| *name == case.name);
        if let Some((_, reason)) = promise
            && !unpromised
        {
            println!("----    {}: {reason}", case.name);
            left_out += 1;
            continue;
        }
        let started = Instant::now();
        let verdict = child(case);
        let took = started.elapsed().as_millis();
        match verdict {
            Ok(()) => {
                println!("passed  {} ({took} ms)", case.name);
                passed += 1;
            }
            Err(text) => {
                println!("FAILED  {} ({took} ms)\n{text}", case.name);
                failed.push(case.name);
            }
        }
    }
    println!(
        "{passed} passed, {} failed, {left_out} not promised",
        failed.len()
    );
    for name in &failed {
        println!("  failed: {name}");
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a case in a process of its own; its output if it fails.
fn child(case: &Case) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(["--case", case.name])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + LIMIT;
    let mut late = false;
    // Its few lines of output fit into the pipe.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) if !late => {
                late = true;
                let _ = child.kill();
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.to_string()),
        }
    };
    if status.success() {
        return Ok(());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let text: String = text
        .lines()
        .map(|line| format!("        {line}\n"))
        .collect();
    Err(if late {
        format!("        took too long\n{text}")
    } else {
        format!("        {status}\n{text}")
    })
}

/// Times calls that must not wait, while a kernel waits for the program.
fn waits() -> ExitCode {
    let Some(engine) = open() else {
        return ExitCode::FAILURE;
    };
    let mut holder = Guest::new(&engine);
    let mut guest = Guest::new(&engine);
    let flag = holder.commit_host();
    holder.stream(40);
    let relay = holder.module(kernels::RELAY);
    guest.stream(40);
    let spare = guest.module(kernels::COUNT);
    guest.launch(0, spare, 1, 1, &params(&[guest.windows[0].base]));
    guest.commit(0, GRANULE);
    let mut slow = false;
    let mut time = |name: &str, guest: &mut Guest, call: &mut dyn FnMut(&mut Guest)| {
        let started = Instant::now();
        // Should the call wait, the kernel is let go after a second, and the time says so.
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                if wait.recv_timeout(Duration::from_secs(1)).is_err() {
                    // SAFETY: the holder's host memory is mapped here and lives beyond this scope; the
                    // kernel reads the word, nobody else uses it meanwhile.
                    unsafe { (flag as *mut u32).write_volatile(1) };
                }
            });
            call(guest);
            let _ = done.send(());
        });
        let took = started.elapsed();
        slow |= took > Duration::from_millis(500);
        println!("{:>10.1} µs  {name}", took.as_secs_f64() * 1e6);
    };
    let again = |holder: &mut Guest| {
        holder.set_host(flag, &0_u32.to_le_bytes());
        holder.launch(40, relay, 1, 32, &params(&[flag, 1, flag + 8, 1]));
        std::thread::sleep(Duration::from_millis(5));
    };
    let finish = |holder: &mut Guest| {
        holder.set_host(flag, &1_u32.to_le_bytes());
        holder.wait(40).expect("the waiting kernel");
    };
    let window = |guest: &Guest, at: u64, bytes: u64| Window {
        base: guest.windows[0].base + at,
        bytes,
    };
    type Call<'a> = (&'a str, Box<dyn FnMut(&mut Guest) + 'a>);
    let calls: Vec<Call<'_>> = vec![
        (
            "commit 64 KiB",
            Box::new(|guest| _ = guest.commit(64 << 20, GRANULE)),
        ),
        (
            "commit 256 MiB",
            Box::new(|guest| _ = guest.commit(128 << 20, 256 << 20)),
        ),
        (
            "decommit 256 MiB",
            Box::new(move |guest| {
                let range = window(guest, 128 << 20, 256 << 20);
                guest.client.decommit(range);
            }),
        ),
        (
            "decommit 64 KiB",
            Box::new(move |guest| {
                let range = window(guest, 64 << 20, GRANULE);
                guest.client.decommit(range);
            }),
        ),
        (
            "commit host memory, 8 MiB",
            Box::new(|guest| _ = guest.commit_host()),
        ),
        (
            "write 4 bytes",
            Box::new(|guest| guest.write(0, guest.windows[0].base, &[1; 4])),
        ),
        (
            "write 60 KiB",
            Box::new(|guest| guest.write(0, guest.windows[0].base, &[1; 60 << 10])),
        ),
        (
            "fill host memory",
            Box::new(|guest| {
                let to = guest.host.base;
                guest.fill(
                    0,
                    &Fill {
                        to,
                        element: 1,
                        width: 4096,
                        height: 1,
                        ..Fill::default()
                    },
                );
            }),
        ),
        (
            "wait for all that",
            Box::new(|guest| guest.wait(0).expect("the work")),
        ),
        (
            "decommit host memory",
            Box::new(|guest| {
                let host = guest.host;
                guest.client.decommit(host);
            }),
        ),
        ("create a stream", Box::new(|guest| guest.stream(41))),
        (
            "destroy a stream and wait",
            Box::new(|guest| {
                guest.destroy(41);
                guest.wait(41).expect("the stream's end");
            }),
        ),
        (
            "load an image of PTX and a module",
            Box::new(|guest| _ = guest.module(kernels::SHARED)),
        ),
        (
            "unload a module",
            Box::new(move |guest| {
                let _ = guest
                    .client
                    .module_unload(&ModuleUnload { module: spare }, &[]);
            }),
        ),
        (
            "1500 writes into one stream",
            Box::new(|guest| {
                for _ in 0..1500 {
                    guest.write(40, guest.windows[0].base, &[1; 4]);
                }
            }),
        ),
        (
            "ask for free memory",
            Box::new(|guest| _ = std::hint::black_box(guest.client.free_memory(0))),
        ),
        (
            "attach and end a client",
            Box::new(|_| drop(Guest::new(&engine).end())),
        ),
    ];
    for (name, mut call) in calls {
        again(&mut holder);
        time(name, &mut guest, &mut *call);
        finish(&mut holder);
    }
    again(&mut holder);
    let started = Instant::now();
    for _ in 0..500 {
        holder.launch(40, relay, 1, 32, &params(&[flag, 1, flag + 8, 1]));
    }
    println!(
        "{:>10.1} µs  500 launches behind it",
        started.elapsed().as_secs_f64() * 1e6
    );
    finish(&mut holder);
    println!(
        "{}",
        if slow {
            "some calls WAITED"
        } else {
            "no call waited"
        }
    );
    ExitCode::SUCCESS
}

/// Times of what clients do most.
fn figures() -> ExitCode {
    let started = Instant::now();
    let Some(engine) = open() else {
        return ExitCode::FAILURE;
    };
    println!(
        "{:>10.1} ms  open the engine",
        started.elapsed().as_secs_f64() * 1e3
    );
    let median = |name: &str, rounds: usize, call: &mut dyn FnMut()| {
        let mut times: Vec<f64> = (0..rounds)
            .map(|_| {
                let started = Instant::now();
                call();
                started.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!(
            "{:>10.2} µs  {name} (99 %: {:.2})",
            times[rounds / 2],
            times[rounds * 99 / 100]
        );
    };
    drop(Guest::new(&engine));
    median("attach, make a context and end", 20, &mut || {
        drop(Guest::new(&engine));
    });
    let mut guest = Guest::new(&engine);
    let device = guest.commit(0, 64 << 20);
    let module = guest.module(kernels::COUNT);
    let data = params(&[device]);
    median("launch and wait", 5000, &mut || {
        guest.launch(0, module, 1, 1, &data);
        guest.wait(0).expect("a launch");
    });
    median("launch", 60, &mut || guest.launch(0, module, 1, 1, &data));
    guest.wait(0).expect("the launches");
    median("write 4 bytes and wait", 2000, &mut || {
        guest.write(0, device, &[1; 4]);
        guest.wait(0).expect("a write");
    });
    let started = Instant::now();
    let many = 20_000_u32;
    for _ in 0..many {
        // As a session does: never more than the depth of a stream.
        let at = guest.at(0).sequence;
        while at > 900 && guest.observer.result_of(0, at - 900).is_none() {
            let _ = guest.client.assist();
        }
        guest.launch(0, module, 1, 1, &data);
    }
    guest.wait(0).expect("the launches");
    println!(
        "{:>10.0} k/s launches of one stream",
        f64::from(many) / started.elapsed().as_secs_f64() / 1e3
    );
    let base = guest.windows[0].base + (1 << 30);
    median("commit and decommit 4 MiB", 50, &mut || {
        let range = Window {
            base,
            bytes: 4 << 20,
        };
        guest.client.commit(range).expect("memory");
        guest.write(0, base, &[1]);
        guest.wait(0).expect("a write");
        guest.client.decommit(range);
    });
    println!("{} MiB free", guest.client.free_memory(0) >> 20);
    ExitCode::SUCCESS
}
