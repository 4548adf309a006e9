//! Runs the fuzz targets with libFuzzer, on the stable toolchain and without cargo-fuzz.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{self, cargo, root};

/// What libFuzzer needs to see of the code; `cargo fuzz` passes the same. The compiler flags are
/// stable's own passes, which only RUSTC_BOOTSTRAP lets one name. With trace-compares it is told what
/// is compared with what, and puts that into the next input: magic numbers, keywords and lengths are
/// found in seconds that counters alone do not find at all. It costs a call at each comparison.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1 --cfg fuzzing";

/// How long a target runs.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Seconds(u32),
    /// So many inputs.
    Runs(u64),
}

/// Whole sessions with a live server, as many as that. An
/// input that waits for what never comes takes half a second.
pub fn sessions(count: u64) -> Result<()> {
    run(Until::Runs(count), "sessions")
}

/// Builds all targets and runs those whose name contains `filter`.
pub fn run(until: Until, filter: &str) -> Result<()> {
    let folder = root().join("fuzz");
    let target = root().join("target/fuzz");
    shell::run(
        cargo()
            .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"])
            .args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"])
            .arg(&target)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS),
    )?;
    let mut names: Vec<String> = std::fs::read_dir(folder.join("fuzz_targets"))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .filter(|name| name.contains(filter))
        .collect();
    names.sort();
    ensure!(
        !names.is_empty(),
        "no fuzz target has `{filter}` in its name"
    );
    for name in names {
        let corpus = target.join("corpus").join(&name);
        std::fs::create_dir_all(&corpus)?;
        let seeds = folder.join("seeds").join(&name);
        let mut command = Command::new(target.join("x86_64-unknown-linux-gnu/release").join(&name));
        command.arg(&corpus);
        if seeds.exists() {
            command.arg(&seeds);
        }
        let limit = match until {
            Until::Seconds(seconds) => format!("-max_total_time={seconds}"),
            Until::Runs(count) => format!("-runs={count}"),
        };
        command
            .arg(limit)
            .args(["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/{name}-", target.display()));
        shell::run(&mut command).with_context(|| format!("fuzz target {name} found something"))?;
    }
    Ok(())
}
