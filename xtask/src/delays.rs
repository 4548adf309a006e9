//! `cargo xtask delays`: the crates' tests with delays by chance where threads meet, which finds what else only a busy
//! machine shows now and then: a test that does not wait for what it needs, or a race of the product's.
//!
//! Called by `main` only: which tests fail is chance. Must not know which tests there are.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::development_build::{self, FEATURES, IS_BUILT};
use crate::shell::{root, run};
use crate::test_program::cargo_with_limits;

/// Runs the tests of the crates whose name contains `filter`, so many times.
///
/// # Errors
/// When a library cannot be made of `delays.c`, and when tests have failed, after all were run.
pub fn delays(filter: &str, rounds: u32) -> Result<()> {
    development_build::everything()?;
    let target = root().join("target/delays");
    fs::create_dir_all(&target).context("target/delays cannot be made")?;
    let library = target.join("delays.so");
    run(Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(root().join("xtask/src/delays.c"))
        .arg("-ldl"))?;
    let mut failed = 0;
    for round in 1..=rounds {
        println!("xtask: round {round} of {rounds}");
        let mut command = cargo_with_limits(Some(&library));
        command.args(["test", "--no-fail-fast"]);
        match filter {
            "" => command.args(["--workspace", "--exclude", "xtask", FEATURES]),
            // A pattern of cargo's.
            filter => command.args(["--package", &format!("*{filter}*")]),
        };
        failed += u32::from(run(command.env(IS_BUILT, "1")).is_err());
    }
    ensure!(failed == 0, "tests failed in {failed} of {rounds} rounds");
    Ok(())
}
