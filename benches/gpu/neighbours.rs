//! What clients lose by their neighbours.
//!
//! Called by `gpu_bench`. Must not know how a peer starts its daemon: `peers` does.

use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::figures::{Figure, first_line, nbody, together, value};
use crate::peers::Peer;

/// All of them, in the table's order.
pub const NEIGHBOURS: &[Figure] = &[
    Figure {
        name: "a new program beside ",
        rounds: 3,
        take: |peer| {
            let rows = [0, 1_000, 20_000, 300_000, 3_000_000];
            rows.iter()
                .flat_map(|&length| start(peer, length))
                .collect()
        },
    },
    Figure {
        name: "launch + synchronise, ",
        rounds: 3,
        take: |peer| {
            let counts = [1, 4, 8, 12, 16, 24, 48, 64];
            counts
                .iter()
                .flat_map(|&count| awake(peer, count))
                .collect()
        },
    },
    Figure {
        name: "requests, ",
        rounds: 3,
        take: |peer| {
            let hogs = [None, Some("sm"), Some("bandwidth"), Some("copies")];
            hogs.iter().flat_map(|&hog| served(peer, hog)).collect()
        },
    },
    Figure {
        name: "n-body, 14336 bodies, ",
        rounds: 3,
        take: |peer| {
            let rate = |count| {
                let name = format!("{count} together, GFLOP/s");
                (name, nbody(peer, count, &[]))
            };
            vec![rate(1), rate(3)]
        },
    },
    Figure {
        name: "GPU memory before there is a client, MiB",
        rounds: 1,
        take: |peer| vec![(String::new(), peer.memory())],
    },
];

/// Microseconds: an H200 takes some 350 for one.
const MEAN_BETWEEN_REQUESTS: &str = "700";

/// Milliseconds to the first result of a program whose code nobody has seen, and of one with the same code after it,
/// beside kernels of so many microseconds, which another client has queued without end; and how much longer than its
/// kernel that client's longest time between two ends was.
fn start(peer: &Peer, length: u64) -> Vec<(String, f64)> {
    let name = match length {
        0 => "nothing".to_owned(),
        1..1_000_000 => format!("kernels of {} ms", length / 1000),
        _ => format!("kernels of {} s", length / 1_000_000),
    };
    let neighbour = (length > 0).then(|| {
        // Enough for both programs, and for what is queued at first.
        let seconds = 2 + 3 * length / 1_000_000;
        let mut child = peer
            .client("gpu_client")
            .args(["full", &length.to_string(), "--for", &seconds.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .expect("the neighbour starts");
        first_line(&mut child);
        // So that its queue is full, and what is learnt of it is learnt.
        std::thread::sleep(Duration::from_micros(500_000 + length));
        child
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = now.expect("a clock after 1970").as_nanos() as u64 >> 10;
    let mut rows = Vec::new();
    for code in ["new code", "code seen before"] {
        let line = first(peer, seed).unwrap_or_default();
        for (of, what) in [("attach", "attached after"), ("first", "first result")] {
            let microseconds = value(&line, of).unwrap_or(f64::NAN);
            rows.push((format!("{name}, {code}: {what}, ms"), microseconds / 1e3));
        }
    }
    if let Some(child) = neighbour {
        let longest = rest(child).and_then(|line| value(&line, "longest"));
        let lost = longest.unwrap_or(f64::NAN) - length as f64 / 1e3;
        rows.push((format!("{name}: the neighbour's longest pause, ms"), lost));
    }
    rows
}

fn first(peer: &Peer, seed: u64) -> Option<serde_json::Value> {
    let output = peer
        .client("gpu_client")
        .args(["first", "--seed", &seed.to_string()])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// The line that follows the first.
fn rest(child: Child) -> Option<serde_json::Value> {
    let output = child.wait_with_output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// How long requests of a server take that come by chance at about half of what it can serve, alone and beside one who takes
/// without end as a client of lower priority (CUDA_MPS_CLIENT_PRIORITY); and how much that one gets, alone and beside the server.
fn served(peer: &Peer, hog: Option<&str>) -> Vec<(String, f64)> {
    const SECONDS: &str = "4";
    let run = |what: &[&str], below: bool| {
        let mut command = peer.client("gpu_client");
        command.args(what).stdin(Stdio::null());
        if below {
            command.env("CUDA_MPS_CLIENT_PRIORITY", "1");
        }
        let mut child = command.spawn().expect("a client starts");
        first_line(&mut child);
        child
    };
    let serve = ["serve", MEAN_BETWEEN_REQUESTS, "--for", SECONDS];
    let Some(hog) = hog else {
        let line = rest(run(&serve, false));
        return times("alone", line.as_ref());
    };
    let alone = rest(run(&["hog", "--hog", hog, "--for", "2"], true));
    // It has begun before the requests come, and is not over before the last: what the two have for themselves counts little.
    let beside = run(&["hog", "--hog", hog, "--for", SECONDS], true);
    let line = rest(run(&serve, false));
    let beside = rest(beside);
    let rate = |line: Option<serde_json::Value>| value(&line?, "rate");
    let name = format!("beside {hog}");
    let mut rows = times(&name, line.as_ref());
    rows.push((
        format!("{name}: that one's rate, of its rate alone"),
        rate(beside).unwrap_or(f64::NAN) / rate(alone).unwrap_or(f64::NAN),
    ));
    rows
}

fn times(name: &str, line: Option<&serde_json::Value>) -> Vec<(String, f64)> {
    let row = |what, of| {
        let value = line.and_then(|line| value(line, what));
        (format!("{name}: {of}, us"), value.unwrap_or(f64::NAN))
    };
    vec![
        row("median", "median"),
        row("p99", "99th percentile"),
        row("most", "most"),
    ]
}

/// So many clients that launch and wait at once.
fn awake(peer: &Peer, count: usize) -> Vec<(String, f64)> {
    let name = if count == 1 {
        "1 client".into()
    } else {
        format!("{count} clients")
    };
    let lines = together(peer, count, &["latency", "0"]);
    if lines.len() < count {
        let refused = (count - lines.len()) as f64;
        return vec![(format!("{name}: got no answer"), refused)];
    }
    let all = |what| lines.iter().filter_map(move |line| value(line, what));
    let worst = |what| all(what).fold(0.0, f64::max);
    vec![
        (format!("{name}: a second in all"), all("rate").sum()),
        (
            format!("{name}: median, us"),
            all("median").sum::<f64>() / count as f64,
        ),
        (
            format!("{name}: 99th percentile, us, mean"),
            all("p99").sum::<f64>() / count as f64,
        ),
        (format!("{name}: 99th percentile, us, worst"), worst("p99")),
        (format!("{name}: most, us"), worst("most")),
    ]
}
