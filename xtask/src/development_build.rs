//! The development build: the programs that tests of all kinds run, and the tests of the crates.
//!
//! A run of many parts builds all of them once, in one go, and then says so by a variable, which the tests of crates
//! know too (`tests/src/daemon.rs`). Built one by one, with other features each, they would compile the same crates
//! again and again, and replace the programs that a part beside them runs.
//!
//! Called by `ci` first, and by whoever needs one of the programs. Must not know which tests those are for.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::shell::{cargo, root, run};

/// What is not built without being asked for, and must pass all the same.
pub const FEATURES: &str = "--features=platform/kubernetes,openmps/kubernetes";

/// The variable that says that programs are built.
pub const IS_BUILT: &str = "OPENMPS_PROGRAMS_ARE_BUILT";

/// Builds all programs, and all tests as `cargo test` wants them.
pub fn everything() -> Result<()> {
    run(cargo().args([
        "build",
        "--workspace",
        "--bins",
        "--tests",
        "--examples",
        FEATURES,
    ]))
}

/// A program of the development build, which cargo builds from these words unless all are built.
pub fn program(name: &str, words: &[&str]) -> Result<PathBuf> {
    let program = root().join("target/debug").join(name);
    if std::env::var_os(IS_BUILT).is_none() {
        run(cargo().arg("build").args(words))?;
    }
    ensure!(program.exists(), "{} is not there", program.display());
    Ok(program)
}
