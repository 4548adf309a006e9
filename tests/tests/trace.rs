//! `openmps trace`: tables and merged files, of a file of ours and one as PyTorch's profiler writes them; and what a recorded
//! program's file says beside what the program knows that it did.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tests::daemon::{Daemon, openmps};

const OURS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../trace/tests/files/ours.json"
);
const KINETO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../trace/tests/files/kineto.json"
);

fn trace(arguments: &[&str]) -> Output {
    let mut command = Command::new(openmps());
    command.arg("trace").args(arguments).output().unwrap()
}

/// What a command that succeeds prints, and what it says beside.
fn printed(arguments: &[&str]) -> (String, String) {
    let output = trace(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

/// What a command that fails says.
fn refused(arguments: &[&str]) -> String {
    let output = trace(arguments);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn events(file: &Path) -> Vec<Value> {
    let all: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    all["traceEvents"].as_array().unwrap().clone()
}

const TABLE: &str = "           Type  Time(%)       Time      Calls        Avg        Min        Max  Name
GPU activities:   69.05%   30.125µs          1   30.125µs   30.125µs   30.125µs  scan
                  27.51%   12.000µs          1   12.000µs   12.000µs   12.000µs  void add<float>(float*)
                   3.44%   1.5000µs          1   1.5000µs   1.5000µs   1.5000µs  [CUDA memcpy HtoD]
     API calls:   56.52%   3.2500µs          1   3.2500µs   3.2500µs   3.2500µs  cudaLaunchKernel
                  43.48%   2.5000µs          1   2.5000µs   2.5000µs   2.5000µs  cuLaunchKernel
";

#[test]
fn the_summary_has_nvprofs_tables() {
    let (text, said) = printed(&["summary", OURS, KINETO]);
    assert_eq!(text, TABLE);
    assert!(said.contains("3 activities are missing"), "{said}");
    let (text, _) = printed(&["summary", "--csv", OURS]);
    let row = "\"GPU activities\",100.000000,30125,1,30125,30125,30125,\"scan\"";
    assert!(text.lines().any(|line| line == row), "{text}");
    let (text, _) = printed(&["summary", "--json", OURS]);
    let rows: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(rows[0]["type"], "GPU activities");
    assert_eq!(rows[0]["time_ns"], 30_125);
}

#[test]
fn several_files_become_one() {
    let folder = tempfile::tempdir().unwrap();
    let merged = folder.path().join("all.json");
    let path = merged.to_str().unwrap();
    printed(&["merge", "-o", path, OURS, KINETO]);
    let all = events(&merged);
    let of = |name: &str| all.iter().find(|event| event["name"] == name).unwrap();
    // Both bases are 200 µs apart, and the file begins with what came first.
    let (ours, theirs) = (of("cuLaunchKernel"), of("cudaLaunchKernel"));
    let apart = ours["ts"].as_f64().unwrap() - theirs["ts"].as_f64().unwrap();
    assert!((apart - 100.5).abs() < 1e-3, "{apart}");
    assert_ne!(ours["pid"], theirs["pid"]);
    let (text, _) = printed(&["summary", path]);
    assert_eq!(text, TABLE);

    let said = refused(&["merge", "-o", path, OURS]);
    assert!(said.contains("--force"), "{said}");
    let said = refused(&["merge", "-f", "-o", path, path]);
    assert!(said.contains("another name"), "{said}");
    assert_eq!(events(&merged), all);

    let other = folder.path().join("all.perfetto");
    let path = other.to_str().unwrap();
    printed(&["merge", "--format", "perfetto", "-o", path, OURS, KINETO]);
    let bytes = std::fs::read(&other).unwrap();
    assert_eq!(bytes[0], 0x0a, "a packet of a trace");
    let name = b"void add<float>(float*)";
    assert!(bytes.windows(name.len()).any(|window| window == name));
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (path, said) in [
        (file("a.gz", b"\x1f\x8b\x08"), "gunzip"),
        (file("empty", b""), "it is empty"),
        (file("page", b"<html>"), "no time line"),
        (folder.path().to_str().unwrap().to_owned(), "is a folder"),
        ("/nowhere/to/be".to_owned(), "cannot open /nowhere/to/be"),
    ] {
        let error = refused(&["summary", &path]);
        assert!(error.contains(said) && error.contains(&path), "{error}");
        let out = folder.path().join("out");
        let error = refused(&["merge", "-o", out.to_str().unwrap(), &path]);
        assert!(error.contains(said) && !out.exists(), "{error}");
    }
    let cut = std::fs::read(OURS).unwrap();
    let cut = file("cut", &cut[..cut.len() - 100]);
    let (text, said) = printed(&["summary", &cut]);
    assert!(
        text.contains("scan") && said.contains("before its end"),
        "{said}"
    );
    // What comes of a full disk is told, and nothing is written beside.
    let said = refused(&["merge", "-f", "-o", "/dev/full", OURS]);
    assert!(said.contains("cannot write /dev/full"), "{said}");
}

/// Launches 40 kernels and 5 graphs of 3, copies 256 KiB each way and half of that within the device.
const PROGRAM: &str = env!("CARGO_BIN_EXE_accounted");
const DATA: u64 = 8 << 15;

/// Records the program into a folder, and gives what it printed.
fn recorded(daemon: &Daemon, pattern: &str) -> Output {
    let mut command = Command::new(openmps());
    command
        .args(["trace", "-o", pattern, "--", PROGRAM, "40", "5", "50"])
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .stdin(Stdio::null());
    command.output().unwrap()
}

/// The only file of a folder.
fn only_file(folder: &Path) -> std::path::PathBuf {
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    let [file] = &files[..] else {
        panic!("{files:?}");
    };
    file.as_ref().unwrap().path()
}

fn times(event: &Value) -> (u64, u64) {
    let began = (event["ts"].as_f64().unwrap() * 1000.0).round() as u64;
    let took = (event["dur"].as_f64().unwrap() * 1000.0).round() as u64;
    (began, began + took)
}

#[test]
fn a_recorded_program_has_everything_once() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("out.%p");
    let output = recorded(&daemon, pattern.to_str().unwrap());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    let took = printed.lines().find_map(|line| line.strip_prefix("took "));
    let took: u64 = took.unwrap().parse().unwrap();
    let file = only_file(folder.path());
    let all = events(&file);
    let pid = all[0]["pid"].to_string();
    assert_eq!(
        file.file_name().unwrap().to_str().unwrap(),
        format!("out.{pid}")
    );
    let of = |category: &str| {
        all.iter()
            .filter(|event| event["cat"] == category)
            .collect::<Vec<_>>()
    };

    let kernels = of("kernel");
    let launched: Vec<_> = kernels
        .iter()
        .filter(|event| event["name"] == "churn")
        .collect();
    // The graph's first launch comes in its three nodes.
    assert_eq!(launched.len(), 40 + 3, "{all:?}");
    for kernel in &launched {
        assert_eq!(kernel["args"]["grid"], serde_json::json!([8, 1, 1]));
        assert_eq!(kernel["args"]["block"], serde_json::json!([256, 1, 1]));
    }
    let whole_graphs = kernels
        .iter()
        .filter(|event| event["name"] == "graph: churn and 2 more");
    assert_eq!(whole_graphs.count(), 4);

    // One after another on each stream, and within what the program's own events say.
    let mut spans: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for event in &kernels {
        spans
            .entry(event["tid"].to_string())
            .or_default()
            .push(times(event));
    }
    for spans in spans.values_mut() {
        spans.sort_unstable();
        assert!(
            spans.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "{spans:?}"
        );
    }
    let [spans] = &spans.into_values().collect::<Vec<_>>()[..] else {
        panic!("one stream has kernels");
    };
    // A float of milliseconds has 24 bits.
    let most = took + took / 1_000_000 + 1_000;
    let lasted = spans.last().unwrap().1 - spans[0].0;
    assert!(lasted <= most, "{lasted} {took}");

    let bytes = |name: &str| -> u64 {
        let copies = of("gpu_memcpy").into_iter();
        let copies = copies.filter(|event| event["name"].as_str().unwrap().starts_with(name));
        copies
            .map(|event| event["args"]["bytes"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(bytes("Memcpy HtoD (Pageable -> Device)"), DATA);
    assert_eq!(bytes("Memcpy DtoH (Device -> Pageable)"), DATA);
    assert_eq!(bytes("Memcpy DtoD"), DATA / 2);

    // Calls, of which three were captured, and arrows from them to the work.
    let calls = of("cuda_driver");
    let launches = calls
        .iter()
        .filter(|event| event["name"] == "cuLaunchKernel");
    let launches: Vec<_> = launches.collect();
    assert_eq!(launches.len(), 43);
    let graph_launches = calls
        .iter()
        .filter(|event| event["name"] == "cuGraphLaunch");
    let of_graph = graph_launches.map(|event| event["args"]["correlation"].as_u64().unwrap());
    let correlations: BTreeSet<u64> = launches
        .iter()
        .filter_map(|event| event["args"]["correlation"].as_u64())
        .chain(of_graph.take(1))
        .collect();
    let of_kernels = launched
        .iter()
        .map(|event| event["args"]["correlation"].as_u64().unwrap());
    assert_eq!(of_kernels.collect::<BTreeSet<_>>(), correlations);
    let ends = |phase: &str| -> BTreeSet<u64> {
        let arrows = of("ac2g").into_iter().filter(|event| event["ph"] == phase);
        arrows.map(|event| event["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(ends("s"), ends("f"));
    assert!(of("openmps").is_empty(), "nothing was dropped");

    let (text, _) = printed_of(&file);
    assert!(
        text.contains("churn") && text.contains("[CUDA memcpy HtoD]"),
        "{text}"
    );
}

fn printed_of(file: &Path) -> (String, String) {
    printed(&["summary", file.to_str().unwrap()])
}

#[test]
fn patterns_are_held_to_what_they_can_be() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (pattern, said) in [
        (of("a.%d"), "%d stands for nothing"),
        (of("a%"), "a percent sign is %%"),
        (of("%q{"), "%q needs a variable's name"),
        (of("nowhere/a.%p"), "there is no folder"),
    ] {
        let output = recorded(&daemon, &pattern);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(said), "{error}");
        assert_eq!(output.stdout, b"", "the program did not run");
    }
    let one = of("one");
    assert!(recorded(&daemon, &one).status.success());
    let before = std::fs::read(&one).unwrap();
    let output = recorded(&daemon, &one);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("--force"),
        "{error}"
    );
    assert_eq!(std::fs::read(&one).unwrap(), before);
}
