//! What must pass before anything lands.
//!
//! Owns the list of parts of `test`, `quick` and `all`. Called by `main`. Must not know how a part does its work,
//! nor how parts are run beside each other (`parts`).

use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::development_build::{self, FEATURES};
use crate::fetch::Crate;
use crate::parts::{self, Part, part};
use crate::shell::{cargo, run};
use crate::test_program::cargo_with_limits;
use crate::{
    corpus, coverage, fuzz, import_cycles, links, minimum_rust, mpi, platforms, python, reviewed,
    safety_comments,
};

/// The cargo-deny that `deny.toml` was written for.
const DENY: Crate = Crate {
    name: "cargo-deny",
    version: "0.20.2",
    is_debug: true,
};

/// The part that builds what most others run.
const PROGRAMS: &str = "programs and tests";

/// Parts under way at once. What compiles would keep two cores busy alone, but for its beginning and end; what
/// tests waits more than it computes. More than these would only take memory.
const AT_ONCE: usize = 3;

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
        part("oldest Rust", minimum_rust::check),
    ];
    parts.extend(tests(true, Some(PLATFORMS)));
    parts::run(parts, AT_ONCE)
}

/// All tests; with `all_toolkits` the CUDA programs run with runtimes of other releases too, with
/// `platforms` what runs real containers does, as far as it fits into that time.
pub fn test(all_toolkits: bool, platforms: Option<Duration>) -> Result<()> {
    parts::run(tests(all_toolkits, platforms), AT_ONCE)
}

/// What a developer runs between edits: nothing is installed, and no process but the tests' own runs.
pub fn quick() -> Result<()> {
    let parts = vec![
        part("formatting", formatting),
        part("generated pages", coverage::check),
        part("links in papers", links::check),
        part("import cycles", import_cycles::check),
        part("reasons of unsafe code", safety_comments::check),
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
    ];
    // One after another: cargo's build directory is one.
    parts::run(parts, 1)
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
        part("reasons of unsafe code", safety_comments::check),
        part("pictures of figures", pictures),
        // What clippy looks at lies in the same folder, which cargo locks.
        part(PROGRAMS, development_build::everything).behind("clippy"),
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
        part("fuzzing", fuzz::smoke),
        part("models of the ring", loom),
        // The tests of crates build two libraries, and should not wait for the lock.
        part("documentation", documentation).behind(PROGRAMS),
        part("CUDA programs", move || corpus::test(all_toolkits)).after(PROGRAMS),
        part("crates", || {
            run(cargo_with_limits(None).args(["test", "--workspace", FEATURES, "--no-fail-fast"]))
        })
        .after(PROGRAMS)
        .behind("documentation"),
        // With the compiler that the programs before have fetched.
        part("MPI programs", mpi::mpi)
            .after(PROGRAMS)
            .behind("CUDA programs"),
        part("Python programs", || python::python("")).after(PROGRAMS),
    ];
    if let Some(within) = platforms {
        // Both ask Debian's archive.
        parts.push(
            part("platforms", move || platforms::platforms("", within))
                .after(PROGRAMS)
                .behind("MPI programs"),
        );
    }
    parts
        .into_iter()
        .map(|part| match part.needs(PROGRAMS) {
            true => part.with(development_build::IS_BUILT, "1"),
            false => part,
        })
        .collect()
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
