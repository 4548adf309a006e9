//! `openmps trace`: tables and merged files, of a file of ours and one as PyTorch's profiler writes them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tests::daemon::openmps;

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
