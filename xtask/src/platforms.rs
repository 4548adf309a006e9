//! `cargo xtask platforms`: real containers with real engines, on the software GPU.
//!
//! What a test needs is installed from Debian where this is root; a test that cannot run says why, by
//! name, and again at the end: nothing passes in silence. Each runs in a process of its own, for a limited
//! time, and what it leaves is taken away (`apart`, `traces`).
//!
//! Called by `main` and `ci`. Owns the list of tests; must not know what one of them looks at.

mod apart;
mod cdi;
mod cloudpods;
mod commands;
mod compose;
mod deb;
mod docker;
mod folder;
pub mod helm;
mod musl;
mod needs;
mod newer;
mod page;
mod podman;
mod printed;
mod programs;
mod traces;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub use crate::skipped::{skip, why_skipped};
use crate::{images, kubernetes, package, skipped, slurm};
use apart::{TestFolders, TestOutcome};
pub use commands::{PATIENCE, output, said, start, until};
pub use folder::Folder;
pub use needs::{bridges, containers, install, is_root, is_there, need};
pub use printed::{in_order, last_line, number_before};
pub use programs::{CANARY, archive, canary, memory_program, openmps};

/// As long as all of them take.
pub const NO_LIMIT: Duration = Duration::MAX;

type Test = fn() -> Result<()>;

/// A test in the list.
struct PlatformTest {
    name: &'static str,
    test: Test,
    /// How long it usually takes on two cores.
    usual: fn() -> Duration,
    /// How long it may take.
    limit: Duration,
}

/// What a test with containers may take.
const LIMIT: Duration = Duration::from_secs(480);

/// One that takes so many seconds.
macro_rules! entry {
    ($name:literal, $test:expr, $seconds:literal) => {
        PlatformTest {
            name: $name,
            test: $test,
            usual: || Duration::from_secs($seconds),
            limit: LIMIT,
        }
    };
}

/// The tests, in the order in which they run: first what needs the least of a machine.
const TESTS: &[PlatformTest] = &[
    entry!("cloudpods", cloudpods::daemon, 20),
    entry!("cloudpods-files", cloudpods::files, 5),
    entry!("kubernetes-files", kubernetes::files, 15),
    entry!("packages", package::development, 30),
    entry!("glibc", package::floor, 60),
    entry!("musl", musl::refused, 10),
    entry!("helm-chart", helm::chart, 30),
    entry!("slurm", slurm::slurm, 40),
    entry!("page", page::in_a_browser, 120),
    entry!("compose-ours", compose::ours, 40),
    entry!("compose-upstream", compose::upstream, 40),
    entry!("compose-early", compose::early, 40),
    entry!("compose-newer", compose::newer, 60),
    entry!("docker-cdi", newer::docker, 40),
    entry!("containerd-cdi", newer::containerd, 20),
    entry!("podman-cdi", podman::root_user, 40),
    entry!("podman-rootless", podman::rootless, 40),
    PlatformTest {
        name: "cdi",
        test: cdi::oracle,
        usual: cdi::usual,
        limit: LIMIT,
    },
    PlatformTest {
        name: "deb",
        test: deb::installed,
        usual: deb::usual,
        limit: Duration::from_secs(900),
    },
    PlatformTest {
        name: "kubernetes",
        test: kubernetes::kubernetes,
        usual: kubernetes::usual,
        limit: Duration::from_secs(1200),
    },
];

/// Runs the tests whose name contains `filter`. Within a limited time, what would take longer than is
/// left is skipped.
pub fn platforms(filter: &str, within: Duration) -> Result<()> {
    let chosen: Vec<_> = TESTS
        .iter()
        .filter(|entry| entry.name.contains(filter))
        .collect();
    ensure!(!chosen.is_empty(), "no test has `{filter}` in its name");
    let start = Instant::now();
    images::build(true)?;
    let place = TestFolders::new()?;
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for entry in chosen {
        let name = entry.name;
        println!("xtask: platforms: {name}");
        let begun = Instant::now();
        let outcome = match too_long(start.elapsed(), (entry.usual)(), within) {
            Some(why) => TestOutcome::Skipped(why),
            None => place.run(name, entry.limit)?,
        };
        let took = begun.elapsed().as_secs_f32();
        lines.push(match outcome {
            TestOutcome::Passed => format!("{name:20} {took:7.2} s  pass"),
            TestOutcome::Skipped(why) => {
                skipped::record(name, &why)?;
                format!("skipped: {name}: {why}")
            }
            TestOutcome::Failed(why) => {
                failed.push(format!("{name}: {why}"));
                format!("{name:20} {took:7.2} s  FAIL: {why}")
            }
        });
        println!("{}", lines.last().map_or("", String::as_str));
    }
    println!(
        "\nplatforms, in {:.0} s:\n{}",
        start.elapsed().as_secs_f32(),
        lines.join("\n")
    );
    // By name: what comes after may be so long that only the last error is still read.
    ensure!(
        failed.is_empty(),
        "platform tests failed:\n{}",
        failed.join("\n")
    );
    Ok(())
}

/// Runs one test in this process, and writes how it ended.
pub fn one(name: &str, answer: &Path) -> Result<()> {
    let entry = TESTS.iter().find(|entry| entry.name == name);
    apart::answer(entry.context("a test's name")?.test, answer)
}

/// Why a test is not begun any more.
fn too_long(passed: Duration, usual: Duration, within: Duration) -> Option<String> {
    (passed + usual > within).then(|| {
        format!(
            "it takes {} s, and of the {} s that all of these may take {} are left; `cargo xtask \
             platforms` has no such limit",
            usual.as_secs(),
            within.as_secs(),
            within.saturating_sub(passed).as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_is_left_has_begun_no_kernel() {
        let seconds = Duration::from_secs;
        assert_eq!(too_long(seconds(900), seconds(900), NO_LIMIT), None);
        assert_eq!(too_long(seconds(600), seconds(100), seconds(700)), None);
        let why = too_long(seconds(601), seconds(100), seconds(700)).unwrap();
        assert!(
            why.contains("it takes 100 s") && why.contains("99 are left"),
            "{why}"
        );
    }

    #[test]
    fn names_of_tests_are_their_own() {
        let mut names: Vec<_> = TESTS.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TESTS.len());
    }

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
