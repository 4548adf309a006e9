//! Runs the fuzz targets with libFuzzer, on the stable toolchain and without cargo-fuzz.
//!
//! Called by `main` and `ci`. Must not know what a target feeds: that is in `fuzz/`.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::shell::{self, cargo, root};

/// What libFuzzer needs to see of the code; `cargo fuzz` passes the same. The compiler flags are
/// stable's own passes, which only RUSTC_BOOTSTRAP lets one name. With trace-compares it is told what
/// is compared with what, and puts that into the next input: magic numbers, keywords and lengths are
/// found in seconds that counters alone do not find at all. It costs a call at each comparison.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1 --cfg fuzzing";

/// Sessions wait more than they compute: so many processes for each core.
const PROCESSES_PER_CORE: u64 = 2;

/// Whole sessions with a live server, as many as that, of several processes at once, each with a server and a
/// bystander of its own; they share what they find. Says how many there were in all.
pub fn sessions(count: u64) -> Result<()> {
    build()?;
    let cores = available_parallelism()?.get() as u64;
    let processes = (cores * PROCESSES_PER_CORE).min(count.max(1));
    let each = count.div_ceil(processes);
    println!("xtask: {processes} processes of {each} sessions each");
    let begun = Instant::now();
    let mut children = Vec::new();
    for number in 0..processes {
        let log = target().join(format!("{SESSIONS}-{number}.log"));
        let mut command = command(SESSIONS)?;
        command
            .args([format!("-runs={each}"), "-reload=10".to_owned()])
            .stderr(File::create(&log)?);
        children.push((command.spawn()?, log));
    }
    let (mut executed, mut edges, mut failed) = (0, 0, Vec::new());
    for (mut child, log) in children {
        let status = child.wait()?;
        let text = std::fs::read_to_string(&log)?;
        if !status.success() {
            failed.push(format!("{}: {status}", log.display()));
        }
        executed += executions(&text);
        edges = edges.max(edges_reached(&text));
    }
    let seconds = begun.elapsed().as_secs_f32();
    println!(
        "xtask: {executed} sessions in {seconds:.0} s; one process reached {edges} edges of the code"
    );
    ensure!(
        failed.is_empty(),
        "something was found, see {}",
        failed.join(", ")
    );
    Ok(())
}

/// How many inputs a target says that it has run.
fn executions(log: &str) -> u64 {
    log.lines()
        .filter_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

/// How many edges of the code a target says that it has reached, at last.
fn edges_reached(log: &str) -> u64 {
    let told = log.lines().rev().find_map(|line| line.split_once(" cov: "));
    let number = told.and_then(|(_, rest)| rest.split(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn target() -> PathBuf {
    root().join("target/fuzz")
}

/// The target that drives whole sessions with a live server.
const SESSIONS: &str = "sessions";

/// What CI runs: each target for a few seconds, and whole sessions for a minute.
pub fn smoke() -> Result<()> {
    run_each("", |name| match name {
        SESSIONS => 60,
        _ => 5,
    })
}

/// Builds all targets and runs those whose name contains `filter`, each for so many seconds.
pub fn run(seconds: u32, filter: &str) -> Result<()> {
    run_each(filter, |_| seconds)
}

fn run_each(filter: &str, seconds: impl Fn(&str) -> u32) -> Result<()> {
    build()?;
    let mut names: Vec<String> = std::fs::read_dir(root().join("fuzz/fuzz_targets"))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .filter(|name| name.contains(filter))
        .collect();
    names.sort();
    ensure!(
        !names.is_empty(),
        "no fuzz target has `{filter}` in its name"
    );
    for name in names {
        let mut command = command(&name)?;
        command.arg(format!("-max_total_time={}", seconds(&name)));
        shell::run(&mut command).with_context(|| format!("fuzz target {name} found something"))?;
    }
    Ok(())
}

fn build() -> Result<()> {
    shell::run(
        cargo()
            .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"])
            .args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"])
            .arg(target())
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", FLAGS),
    )
}

/// A target's program with the inputs that it begins with and the limits of one input; it adds what it finds.
fn command(name: &str) -> Result<Command> {
    let target = target();
    let corpus = target.join("corpus").join(name);
    std::fs::create_dir_all(&corpus)?;
    let mut command = Command::new(target.join("x86_64-unknown-linux-gnu/release").join(name));
    command.arg(corpus);
    let seeds = root().join("fuzz/seeds").join(name);
    if seeds.exists() {
        command.arg(seeds);
    }
    command
        .args(["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/{name}-", target.display()));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::{edges_reached, executions};

    #[test]
    fn what_a_target_says_at_its_end_is_counted() {
        let log = "#2\tNEW    cov: 3 ft: 4\n#7\tDONE   cov: 9673 ft: 18989 corp: 9\nstat::number_of_executed_units: 7419\nstat::peak_rss_mb: 50\n";
        assert_eq!(executions(log), 7419);
        assert_eq!(edges_reached(log), 9673);
        assert_eq!(executions("it was ended before"), 0);
        assert_eq!(edges_reached("it was ended before"), 0);
    }
}
