//! What is measured, and how.
//!
//! Called by `gpu_bench`. Must not know how a peer starts its daemon: `peers` does.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::peers::Peer;

/// One or several rows of the table.
pub struct Figure {
    /// How its rows begin.
    pub name: &'static str,
    /// Rounds that it is worth.
    pub rounds: u32,
    /// Takes it once of a peer: how the rows go on, and the values.
    pub take: fn(&Peer) -> Vec<(String, f64)>,
}

/// All of them, in the table's order.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "launch + synchronise, ",
        rounds: 9,
        take: |peer| each(&[1, 8], |count| latency(peer, "latency", count, 0)),
    },
    Figure {
        name: "launch + copy of 4 B back, ",
        rounds: 9,
        take: |peer| each(&[1, 8], |count| latency(peer, "fetch", count, 0)),
    },
    Figure {
        name: "launch + copy of 4 B to page-locked memory, ",
        rounds: 9,
        take: |peer| each(&[1, 8], |count| latency(peer, "read", count, 0)),
    },
    Figure {
        name: "launch + synchronise, 1 client, us: ",
        rounds: 3,
        take: |peer| {
            [1, 10, 100]
                .iter()
                .filter_map(|milliseconds| {
                    // A client that got no answer has no median.
                    let rows = latency(peer, "latency", 1, 1000 * milliseconds);
                    let median = rows.into_iter().find(|(row, _)| row.ends_with("median"))?;
                    Some((format!("kernel of {milliseconds} ms"), median.1))
                })
                .collect()
        },
    },
    Figure {
        name: "empty kernels/s, ",
        rounds: 9,
        take: |peer| each(&[1, 8, 16], |count| rate(peer, count, 0)),
    },
    Figure {
        name: "kernels/s of 13 us, ",
        rounds: 9,
        take: |peer| each(&[4, 16, 32], |count| rate(peer, count, 13)),
    },
    Figure {
        name: "n-body, 14336 bodies, GFLOP/s, ",
        rounds: 9,
        take: |peer| {
            vec![
                ("1 client".into(), nbody(peer, 1, &[])),
                ("3 clients together".into(), nbody(peer, 3, &[])),
                (
                    "3 clients together, 33 % each".into(),
                    nbody(peer, 3, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "33")]),
                ),
            ]
        },
    },
    Figure {
        name: "n-body, fenced, 14336 bodies, GFLOP/s, ",
        rounds: 9,
        take: |peer| {
            if !peer.has_fences() {
                return Vec::new();
            }
            let fenced = [("OPENMPS_ISOLATION", "fenced")];
            vec![
                ("1 client".into(), nbody(peer, 1, &fenced)),
                ("3 clients together".into(), nbody(peer, 3, &fenced)),
                (
                    "1 client, not fenced, in the same turn".into(),
                    nbody(peer, 1, &[]),
                ),
            ]
        },
    },
    Figure {
        name: "one client, us: ",
        rounds: 9,
        take: |peer| {
            lines(peer, "launch_cost")
                .iter()
                .filter_map(|line| Some((text(line, "name")?, value(line, "median_us")?)))
                .collect()
        },
    },
    Figure {
        name: "copies, us: ",
        rounds: 2,
        take: |peer| {
            lines(peer, "copies")
                .iter()
                .filter_map(|line| {
                    let row = format!("{}, {} B", text(line, "name")?, value(line, "bytes")?);
                    Some((row, value(line, "median_us")?))
                })
                .collect()
        },
    },
    Figure {
        name: "idle clients: ",
        rounds: 1,
        take: idle,
    },
    Figure {
        name: "n-body of a client with half of the GPU, GFLOP/s, ",
        rounds: 5,
        take: half,
    },
    Figure {
        name: "multiprocessors told, at a percentage of ",
        rounds: 1,
        take: multiprocessors,
    },
    Figure {
        name: "server's CPU while 8 clients wait, % of a core",
        rounds: 2,
        take: waiting,
    },
];

/// Takes something with several counts of clients, whose rows begin with the count.
fn each(counts: &[usize], take: impl Fn(usize) -> Vec<(String, f64)>) -> Vec<(String, f64)> {
    let rows = counts.iter().flat_map(|&count| {
        let clients = if count == 1 { "client" } else { "clients" };
        let rows = take(count).into_iter();
        rows.map(move |(row, value)| (format!("{count} {clients}{row}"), value))
    });
    rows.collect()
}

/// Clients of `gpu_client` that begin together and work for a second; their lines.
pub(crate) fn together(peer: &Peer, count: usize, words: &[&str]) -> Vec<serde_json::Value> {
    together_for(peer, count, 1, words)
}

fn together_for(peer: &Peer, count: usize, seconds: u64, words: &[&str]) -> Vec<serde_json::Value> {
    // Enough for all to attach, natively too.
    let head_start = Duration::from_millis(700 + 60 * count as u64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let at = now.expect("a clock after 1970") + head_start;
    let children: Vec<Child> = (0..count)
        .map(|_| {
            peer.client("gpu_client")
                .args(words)
                .args(["--at", &at.as_millis().to_string()])
                .args(["--for", &seconds.to_string()])
                .stdin(Stdio::null())
                .spawn()
                .expect("the client starts")
        })
        .collect();
    children.into_iter().filter_map(output).collect()
}

/// The line of a client that succeeded.
fn output(child: Child) -> Option<serde_json::Value> {
    let output = child.wait_with_output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

pub(crate) fn value(line: &serde_json::Value, name: &str) -> Option<f64> {
    line.get(name)?.as_f64()
}

fn text(line: &serde_json::Value, name: &str) -> Option<String> {
    line.get(name)?.as_str().map(str::to_owned)
}

/// In a mode that prints them, the mean client's median, and the worst client's 99th percentile; how many
/// clients there were if not all.
fn latency(peer: &Peer, mode: &str, count: usize, microseconds: u32) -> Vec<(String, f64)> {
    let lines = together(peer, count, &[mode, &microseconds.to_string()]);
    if lines.len() < count {
        return vec![(
            ", us: clients that got no answer".into(),
            (count - lines.len()) as f64,
        )];
    }
    let all = |name| lines.iter().filter_map(move |line| value(line, name));
    vec![
        (
            ", us: median".into(),
            all("median").sum::<f64>() / count as f64,
        ),
        (
            ", us: 99th percentile".into(),
            all("p99").fold(0.0, f64::max),
        ),
    ]
}

fn rate(peer: &Peer, count: usize, microseconds: u32) -> Vec<(String, f64)> {
    let lines = together(peer, count, &["rate", &microseconds.to_string()]);
    if lines.len() < count {
        return vec![(": clients that failed".into(), (count - lines.len()) as f64)];
    }
    let rates = lines.iter().filter_map(|line| value(line, "rate"));
    vec![(String::new(), rates.sum())]
}

/// The sum of the clients' rates, as each prints it; 0 if one failed. Their environment has these variables besides.
pub(crate) fn nbody(peer: &Peer, count: usize, environment: &[(&str, &str)]) -> f64 {
    let children: Vec<Child> = (0..count)
        .map(|_| {
            let mut command = peer.client("nbody");
            command.args(["-benchmark", "-numbodies=14336", "-iterations=1500"]);
            command.envs(environment.iter().copied());
            command.stdin(Stdio::null()).spawn().expect("n-body starts")
        })
        .collect();
    let rates: Vec<Option<f64>> = children.into_iter().map(gigaflops).collect();
    rates.into_iter().sum::<Option<f64>>().unwrap_or(0.0)
}

/// The rate that n-body prints.
fn gigaflops(child: Child) -> Option<f64> {
    let output = child.wait_with_output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `= 20345.678 single-precision GFLOP/s at 20 flops per interaction`
    let line = text.lines().find(|line| line.contains("GFLOP/s"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// What a program prints with `--json`.
fn lines(peer: &Peer, program: &str) -> Vec<serde_json::Value> {
    let output = peer
        .client(program)
        .arg("--json")
        .stdin(Stdio::null())
        .output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Clients that hold a context: how many there can be, up to 500, and what each costs.
fn idle(peer: &Peer) -> Vec<(String, f64)> {
    const MOST: usize = 500;
    const FEW: usize = 16;
    let mut rows = Vec::new();
    let mut held: Vec<Child> = Vec::new();
    let mut attach = Vec::new();
    let before = used_memory();
    // Without a server every client has a context of half a gigabyte.
    let most = if peer.has_server() { MOST } else { 2 * FEW };
    let until = Instant::now() + Duration::from_secs(90);
    while held.len() < most && Instant::now() < until {
        let wanted = (most - held.len()).min(FEW);
        let mut started: Vec<Child> = (0..wanted)
            .map(|_| {
                peer.client("gpu_client")
                    .arg("hold")
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("the client starts")
            })
            .collect();
        let mut refused = false;
        for mut child in started.drain(..) {
            match first_line(&mut child).and_then(|line| value(&line, "attach")) {
                Some(microseconds) => {
                    attach.push(microseconds);
                    held.push(child);
                }
                None => {
                    refused = true;
                    let _ = child.wait();
                }
            }
        }
        if held.len() == FEW || (refused && held.len() < FEW) {
            let each = (used_memory() - before) / held.len().max(1) as f64;
            rows.push(("GPU memory of each of the first 16, MiB".into(), each));
        }
        if refused {
            break;
        }
    }
    attach.sort_by(f64::total_cmp);
    if let Some(middle) = attach.get(attach.len() / 2) {
        rows.push(("cuInit to current context, us, median".into(), *middle));
    }
    rows.push((format!("at once, of {MOST}"), held.len() as f64));
    for child in &mut held {
        // Its standard input ends, and so does it.
        drop(child.stdin.take());
    }
    for mut child in held {
        let _ = child.wait();
    }
    rows
}

pub(crate) fn first_line(child: &mut Child) -> Option<serde_json::Value> {
    use std::io::Read;
    let (mut line, out) = (Vec::new(), child.stdout.as_mut()?);
    let mut byte = [0];
    // Nothing behind it is read.
    while out.read(&mut byte).ok()? == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    serde_json::from_slice(&line).ok()
}

/// MiB of the first GPU's memory that is in use.
pub(crate) fn used_memory() -> f64 {
    let asked = Command::new("nvidia-smi")
        .args([
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
            "-i",
            "0",
        ])
        .output();
    let text = asked.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .trim()
        .parse()
        .unwrap_or(f64::NAN)
}

/// Processor time of the server while eight clients wait for kernels of 100 ms.
fn waiting(peer: &Peer) -> Vec<(String, f64)> {
    const SECONDS: u64 = 8;
    if !peer.has_server() {
        return Vec::new();
    }
    let measured = std::thread::scope(|scope| {
        let work = scope.spawn(|| together_for(peer, 8, SECONDS, &["latency", "100000"]));
        // In the midst of it.
        std::thread::sleep(Duration::from_millis(700 + 60 * 8 + 1000));
        let begin = (Instant::now(), peer.server().and_then(processor_ticks));
        std::thread::sleep(Duration::from_secs(SECONDS - 2));
        let end = (Instant::now(), peer.server().and_then(processor_ticks));
        let _ = work.join();
        Some((end.1? - begin.1?) as f64 / (end.0 - begin.0).as_secs_f64())
    });
    // A tick is 10 ms, so ticks a second are per cent.
    measured
        .map(|share| (String::new(), share))
        .into_iter()
        .collect()
}

fn processor_ticks(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// A client that may use half of the device's multiprocessors: alone, beside three that may use all, and
/// beside these when its half is reserved for it.
fn half(peer: &Peer) -> Vec<(String, f64)> {
    if !peer.has_server() {
        return Vec::new();
    }
    let rate = |mut client: Command, greedy: usize| {
        let mut others: Vec<Child> = (0..greedy)
            .map(|_| {
                let mut other = peer.client("nbody");
                other.args(["-benchmark", "-numbodies=14336", "-iterations=1000000"]);
                other.stdin(Stdio::null()).spawn().expect("n-body starts")
            })
            .collect();
        // Until they are all at it.
        std::thread::sleep(Duration::from_secs(1));
        client.args(["-benchmark", "-numbodies=14336", "-iterations=1500"]);
        let child = client.stdin(Stdio::null()).spawn().expect("n-body starts");
        let rate = gigaflops(child);
        for other in &mut others {
            let _ = other.kill();
            let _ = other.wait();
        }
        rate.unwrap_or(0.0)
    };
    let limited = || {
        let mut client = peer.client("nbody");
        client.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50");
        client
    };
    let mut rows = vec![
        ("alone".into(), rate(limited(), 0)),
        ("beside 3 with all of it".into(), rate(limited(), 3)),
    ];
    if let Some(group) = peer.reserve(50) {
        let mut client = peer.client("nbody");
        client.env("CUDA_MPS_PIPE_DIRECTORY", group);
        rows.push(("reserved, beside 3".into(), rate(client, 3)));
        peer.stop_daemon();
    }
    rows
}

/// What clients held to each whole percentage are told of the device's multiprocessors, and at how many
/// percentages their kernels run on another number of them.
fn multiprocessors(peer: &Peer) -> Vec<(String, f64)> {
    if !peer.has_server() {
        return Vec::new();
    }
    let mut others = 0;
    let told = (1..=100).filter_map(|percentage: u32| {
        let child = peer
            .client("gpu_client")
            .arg("multiprocessors")
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage.to_string())
            .stdin(Stdio::null())
            .spawn()
            .expect("the client starts");
        let line = output(child)?;
        let count = value(&line, "multiprocessors")?;
        others += u32::from(value(&line, "used")? != count);
        Some((percentage.to_string(), count))
    });
    let mut rows: Vec<_> = told.collect();
    rows.push(("which others are used".into(), f64::from(others)));
    rows
}
