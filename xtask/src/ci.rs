//! What must pass before anything lands.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::fetch::Crate;
use crate::parts::{self, Part, part};
use crate::shell::{cargo, run};
use crate::{
    corpus, coverage, fuzz, import_cycles, links, mpi, platforms, python, reviewed, skipped,
};

/// The cargo-deny that `deny.toml` was written for.
const DENY: Crate = Crate {
    name: "cargo-deny",
    version: "0.20.2",
    is_debug: false,
};

/// What is not built without being asked for, and must pass all the same.
const FEATURES: &str = "--features=platform/kubernetes,openmps/kubernetes";

/// Seconds of each fuzz target in a test run.
const SMOKE_SECONDS: u32 = 10;

/// What the tests of platforms may take together in CI. They install a good deal, and one of them builds
/// Kubernetes; what would take longer than is left is skipped by name.
const PLATFORMS: Duration = Duration::from_secs(12 * 60);

/// Formatting, lints, policy, then all tests.
pub fn all() -> Result<()> {
    let mut parts = vec![
        part("formatting", formatting),
        part("clippy", || {
            run(cargo().args([
                "clippy",
                "--workspace",
                "--all-targets",
                FEATURES,
                "--",
                "-D",
                "warnings",
            ]))
        }),
        part("licences and sources", deny),
        part("reviewed crates", reviewed::check),
    ];
    parts.extend(tests(true, Some(PLATFORMS)));
    parts::run(parts)
}

/// All tests; with `all_toolkits` the CUDA programs run with runtimes of other releases too, with
/// `platforms` what runs real containers does, as far as it fits into that time.
pub fn test(all_toolkits: bool, platforms: Option<Duration>) -> Result<()> {
    parts::run(tests(all_toolkits, platforms))
}

/// What a developer runs between edits: nothing is installed, and no process but the tests' own runs.
pub fn quick() -> Result<()> {
    parts::run(vec![
        part("formatting", formatting),
        part("generated pages", coverage::check),
        part("links in papers", links::check),
        part("import cycles", import_cycles::check),
        part("pictures of figures", pictures),
        // Links in comments break as easily as a name changes.
        part("documentation", documentation),
        part("unit tests", || {
            run(cargo().args([
                "test",
                "--workspace",
                "--lib",
                "--bins",
                FEATURES,
                "--no-fail-fast",
            ]))
        }),
    ])
}

fn formatting() -> Result<()> {
    run(cargo().args(["fmt", "--all", "--check"]))
}

/// The pictures in docs/figures are what their script draws from the JSON beside them.
fn pictures() -> Result<()> {
    run(Command::new("python3").args(["docs/figures/plot.py", "--check"]))
}

fn tests(all_toolkits: bool, platforms: Option<Duration>) -> Vec<Part> {
    let mut parts = vec![
        part("generated pages", coverage::check),
        part("links in papers", links::check),
        part("import cycles", import_cycles::check),
        part("pictures of figures", pictures),
        part("release build", || {
            run(cargo().args([
                "build",
                "--release",
                "--package",
                "openmps",
                "--package",
                "nbody",
            ]))
        }),
        part("models of the ring", loom),
        part("fuzzing", || {
            fuzz::run(fuzz::Until::Seconds(SMOKE_SECONDS), "")
        }),
        part("documentation", documentation),
        part("CUDA programs", move || corpus::test(all_toolkits)),
        part("MPI programs", mpi::mpi),
        part("Python programs", || python::python("")),
    ];
    if let Some(within) = platforms {
        parts.push(part("platforms", move || platforms::platforms("", within)));
    }
    // Last, since CI reads its summary.
    parts.push(part("crates", || {
        run(cargo()
            .args(["test", "--workspace", FEATURES, "--no-fail-fast"])
            .env(skipped::VARIABLE, skipped::list()))
    }));
    parts
}

fn documentation() -> Result<()> {
    run(cargo()
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        // The docs are for those who work here: they lead to private items too.
        .env(
            "RUSTDOCFLAGS",
            "-D warnings -A rustdoc::private-intra-doc-links -A rustdoc::redundant-explicit-links",
        ))
}

/// The models of the ring, of its bell and of their memory orders. A build of its own: loom
/// replaces the atomics.
pub fn loom() -> Result<()> {
    run(cargo()
        .args([
            "test",
            "--package",
            "transport",
            "--release",
            "--lib",
            "loom",
        ])
        .args(["--target-dir", "target/loom"])
        .env("RUSTFLAGS", "--cfg loom"))
}

/// Licences, duplicates and sources of foreign crates. Installs the tool on first use.
fn deny() -> Result<()> {
    let program = DENY.install()?.join("cargo-deny");
    run(Command::new(program).args(["check", "bans", "licenses", "sources"]))
}
