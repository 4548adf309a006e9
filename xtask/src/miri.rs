//! `cargo xtask miri`: unit tests in Miri, which sees undefined behaviour that a processor does not mind: pointers
//! that lead out of their allocation, what is read before it is written, data races.
//!
//! For the crates that meet foreign bytes or have unsafe code, as far as no kernel is asked for what Miri does not
//! know; such tests say so (`cfg_attr(miri, ignore = "why")`). What two sides do with the ring is loom's.
//!
//! Called by `main` only. Must not know a crate's tests by name: what Miri cannot run says so itself.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::parts::{self, part};
use crate::shell::run;

/// The toolchain: Miri comes with no stable one.
const TOOLCHAIN: &str = "nightly-2026-10-30";

/// The crates, those that take longest first.
const CRATES: [&str; 4] = ["ptx", "engine", "transport", "cuda-abi"];

/// Files and the environment are the machine's; of what a property test draws, few are enough for each rule.
const ENVIRONMENT: [(&str, &str); 2] = [
    ("MIRIFLAGS", "-Zmiri-disable-isolation"),
    ("PROPTEST_CASES", "8"),
];

/// Installs Miri where it is not, and runs the tests of the crates whose name contains `filter`.
pub fn miri(filter: &str) -> Result<()> {
    let chosen = CRATES.iter().filter(|name| name.contains(filter));
    let mut parts = vec![part("Miri", install)];
    parts.extend(chosen.map(|name| part(name, || tests(name)).after("Miri")));
    ensure!(
        parts.len() > 1,
        "no crate that Miri runs has `{filter}` in its name: {}",
        CRATES.join(", ")
    );
    // Miri has one processor for each.
    parts::run(parts, 2)
}

/// A program of the toolchain.
fn toolchain(words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", TOOLCHAIN]).args(words);
    command
}

fn install() -> Result<()> {
    // It makes Miri's standard library, for which all of the toolchain must be there.
    let set_up = || run(toolchain(&["cargo", "miri", "setup"]).envs(ENVIRONMENT));
    if set_up().is_err() {
        run(Command::new("timeout")
            .args(["--kill-after=10", "600", "rustup", "toolchain", "install"])
            .args([TOOLCHAIN, "--profile", "minimal", "--no-self-update"])
            .args(["--component", "miri", "--component", "rust-src"]))
        .with_context(|| {
            format!("Miri is missing: it comes with Rust's {TOOLCHAIN}, by rustup and the network")
        })?;
    }
    set_up()
}

fn tests(name: &str) -> Result<()> {
    let mut command = toolchain(&["cargo", "miri", "test", "--lib", "--no-fail-fast"]);
    // A folder for each: else one would wait for the other's build.
    let folder = format!("target/miri/{name}");
    run(command
        .args(["--package", name, "--target-dir", &folder])
        .envs(ENVIRONMENT))
}
