//! The library as programs get it: its symbols, and what it needs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

use cuda_abi::nvml::ROWS;

/// The library, built as this test was: cargo does not build it for the tests by itself.
fn library() -> PathBuf {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "nvml"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success());
    });
    let test = std::env::current_exe().expect("a path");
    let target = test.ancestors().nth(2).expect("target/debug/deps");
    target.join("libnvidia_ml.so")
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("binutils");
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn it_exports_the_tables_names_and_its_mark() {
    let symbols = output(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library()),
    );
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let table = ROWS.iter().map(|row| row.name);
    let table: BTreeSet<&str> = table.chain(["openmps_libnvidia_ml"]).collect();
    assert_eq!(exported, table);
}

#[test]
fn it_has_nvidias_name_and_needs_libc_only() {
    let dynamic = output(Command::new("readelf").arg("-d").arg(library()));
    let of = |kind: &str| -> Vec<&str> {
        dynamic
            .lines()
            .filter(|line| line.contains(kind))
            .filter_map(|line| line.split(['[', ']']).nth(1))
            .collect()
    };
    assert_eq!(of("(SONAME)"), ["libnvidia-ml.so.1"]);
    for needed in of("(NEEDED)") {
        assert!(
            matches!(needed, "libc.so.6" | "ld-linux-x86-64.so.2"),
            "{needed}"
        );
    }
}
