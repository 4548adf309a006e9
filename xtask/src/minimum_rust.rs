//! The oldest Rust that builds the workspace, `rust-version` of the root's Cargo.toml: where the Rust in use is newer, everything is
//! checked with that one too.
//!
//! Called by `ci`. Must not know what needs which release.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::development_build::FEATURES;
use crate::shell::{cargo, root, run};

/// A release without its patch: 1.95 as 1, 95.
type Release = (u32, u32);

/// Checks the workspace with the oldest Rust, unless that is what builds it anyway.
pub fn check() -> Result<()> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let oldest = promised(&manifest).context("Cargo.toml names no rust-version")?;
    let version = cargo().arg("--version").output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let here = release(&version).with_context(|| format!("cargo --version: {version:?}"))?;
    let toolchain = format!("{}.{}", oldest.0, oldest.1);
    if here == oldest {
        println!(
            "xtask: Rust {toolchain}, the oldest, is the one in use: all other parts check it"
        );
        return Ok(());
    }
    if here < oldest {
        bail!("Rust {toolchain} or newer is needed, and this is {version}");
    }
    run(Command::new("timeout")
        .args(["--kill-after=10", "600", "rustup", "toolchain", "install"])
        .args([&*toolchain, "--profile", "minimal", "--no-self-update"]))
    .with_context(|| format!("Rust {toolchain} is missing: it comes by rustup and the network"))?;
    run(Command::new("rustup")
        .args([
            "run",
            &*toolchain,
            "cargo",
            "check",
            "--workspace",
            "--all-targets",
        ])
        .args([FEATURES, "--target-dir", "target/minimum-rust"]))
}

/// The `rust-version` of a manifest.
fn promised(manifest: &str) -> Option<Release> {
    let value = manifest
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))?;
    numbers(value.trim_matches('"'))
}

/// The release of `cargo 1.95.0 (…)`.
fn release(version: &str) -> Option<Release> {
    numbers(version.split_whitespace().nth(1)?)
}

fn numbers(text: &str) -> Option<Release> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_workspaces_promise_the_same_release() {
        let of = |path: &str| promised(&fs::read_to_string(root().join(path)).unwrap());
        assert!(of("Cargo.toml") >= Some((1, 95)));
        assert_eq!(of("Cargo.toml"), of("fuzz/Cargo.toml"));
        assert_eq!(promised("[package]\nname = \"x\"\n"), None);
    }

    #[test]
    fn a_release_is_read_without_its_patch() {
        assert_eq!(
            release("cargo 1.95.0 (1234567 2026-04-14)\n"),
            Some((1, 95))
        );
        assert_eq!(
            release("cargo 1.96.0-nightly (1234567 2026-04-14)"),
            Some((1, 96))
        );
        assert_eq!(release("cargo"), None);
    }
}
