//! `cargo xtask platforms`: real containers with real engines, on the software GPU.
//!
//! What a test needs is installed from Debian where this is root; a test that cannot run says why, by
//! name, and again at the end: nothing passes in silence.

mod cdi;
mod cloudpods;
mod compose;
mod docker;
mod podman;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::{root, run};
use crate::{images, kubernetes, package, slurm};

/// What anything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A test that this machine cannot run, and why.
#[derive(Debug)]
struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Says that this machine cannot run a test.
pub fn skip<T>(why: impl Into<String>) -> Result<T> {
    Err(Skipped(why.into()).into())
}

/// A test.
type Test = fn() -> Result<()>;

/// The tests, in the order in which they run.
const TESTS: &[(&str, Test)] = &[
    ("cdi", cdi::oracle),
    ("cloudpods", cloudpods::daemon),
    ("cloudpods-files", cloudpods::files),
    ("compose-ours", compose::ours),
    ("compose-upstream", compose::upstream),
    ("compose-early", compose::early),
    ("docker-cdi", docker::cdi),
    ("podman-cdi", podman::root_user),
    ("podman-rootless", podman::rootless),
    ("kubernetes", kubernetes::kubernetes),
    ("slurm", slurm::slurm),
    ("packages", package::development),
];

/// Runs the tests whose name contains `filter`.
pub fn platforms(filter: &str) -> Result<()> {
    let chosen: Vec<_> = TESTS
        .iter()
        .filter(|(name, _)| name.contains(filter))
        .collect();
    ensure!(!chosen.is_empty(), "no test has `{filter}` in its name");
    images::build(true)?;
    let mut lines = Vec::new();
    let mut failed = 0;
    for (name, test) in chosen {
        println!("xtask: platforms: {name}");
        let start = Instant::now();
        let result = test();
        let took = start.elapsed().as_secs_f32();
        lines.push(match result {
            Ok(()) => format!("{name:20} {took:7.2} s  pass"),
            Err(error) => match error.downcast_ref::<Skipped>() {
                Some(Skipped(why)) => format!("{name:20} {took:7.2} s  SKIPPED: {why}"),
                None => {
                    failed += 1;
                    format!("{name:20} {took:7.2} s  FAIL: {error:#}")
                }
            },
        });
        println!("{}", lines.last().map_or("", String::as_str));
    }
    println!("\nPlatforms:\n{}", lines.join("\n"));
    ensure!(failed == 0, "{failed} platform tests failed");
    Ok(())
}

/// Whether a program is on the path.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Whether this is root.
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}

/// Has programs on the path, if need be from Debian's packages.
fn need(programs: &[&str], packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|it| !is_there(it))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    if !is_root() {
        return skip(format!(
            "{missing} missing, and only root can install packages"
        ));
    }
    if !is_there("apt-get") {
        return skip(format!(
            "{missing} missing, and this is no Debian to install them from"
        ));
    }
    run(Command::new("apt-get").args(["update", "-qq"])).ok();
    let installed = run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive"));
    match installed {
        Ok(()) => Ok(()),
        Err(error) => skip(format!("{missing} missing, and not to be had: {error:#}")),
    }
}

/// A folder of this run's own, gone when it is dropped. Short, since sockets are in it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("openmps-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs a command to its end, without input.
fn output(command: &mut Command) -> Result<Output> {
    let name = format!("{command:?}");
    command.stdin(Stdio::null()).output().context(name)
}

/// What a command prints, if it succeeds.
fn said(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}\n{text}{errors}", output.status);
    }
    Ok(text)
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(
            Instant::now() < deadline,
            "{what}: not within {} s",
            PATIENCE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Checks that texts follow each other, with anything between.
fn in_order(text: &str, parts: &[&str]) -> Result<()> {
    let mut rest = text;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => bail!("{part:?} is missing, or out of order, in:\n{text}"),
        }
    }
    Ok(())
}

/// The development build.
fn openmps() -> PathBuf {
    root().join("target/debug/openmps")
}

/// The program that looks how much memory it may have, built by the machine's C compiler.
fn memory_program() -> Result<PathBuf> {
    let folder = root().join("target/platforms");
    std::fs::create_dir_all(&folder)?;
    let program = folder.join("memory");
    let source = root().join("tests/platforms/memory.c");
    run(Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg("-ldl"))?;
    Ok(program)
}

/// The number that stands before a word on the first line that has both.
fn number_before(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (before, _) = line.split_once(word)?;
        before.split_whitespace().next_back()?.parse().ok()
    })
}

/// An image's archive.
fn archive(name: &str) -> PathBuf {
    Path::new("target/images").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_checked() {
        assert!(in_order("a b c", &["a", "c"]).is_ok());
        assert!(in_order("a b c", &["c", "a"]).is_err());
        assert!(in_order("a", &["a", "a"]).is_err());
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(
            number_before("x\n3013 MiB, 8 multiprocessors\n", " MiB"),
            Some(3013)
        );
        assert_eq!(number_before("none", " MiB"), None);
    }
}
