//! `cargo xtask corpus`: builds the CUDA programs of `tests/programs` and runs them.
//!
//! A program checks its own results. What it prints must also equal, line by line, what it printed
//! on NVIDIA's driver, as far as that was recorded in `tests/programs/recorded.txt`. With
//! `--build-only --out DIR` it makes a folder to carry to a machine that has such a driver.
//!
//! Called by `main`, and by `ci` as a part of its own. Must not know how nvcc is fetched (`toolkit`).

mod build;
mod program;
mod run;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::runtimes;
use crate::shell::root;
use crate::skipped;
use crate::toolkit::Toolkit;
use build::Builder;
use program::Program;
use run::{ProgramOutcome, Runner};

/// What OpenMPS can do so far; a program that needs more is skipped, and the table says so.
pub const BUILT: &[&str] = &[
    "assert",
    "callbacks",
    "clusters",
    "cooperative",
    "device_graphs",
    "graphs",
    "heap",
    "ipc",
    "jit",
    "launches",
    "managed",
    "mapped",
    "peer",
    "plain",
    "pools",
    "printf",
    "ptds",
    "sm_80",
    "sm_89",
    "sm_90",
    "textures",
    "vmm",
];

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only programs whose name contains this
    #[arg(long, default_value = "")]
    filter: String,
    /// How the programs are linked to CUDA's runtime
    #[arg(long, value_enum, default_value_t = Cudart::Static)]
    cudart: Cudart,
    /// Run on the driver of this machine instead of under OpenMPS
    #[arg(long)]
    native: bool,
    /// Run also programs whose features are not built yet
    #[arg(long)]
    all: bool,
    /// Build, and run nothing
    #[arg(long)]
    build_only: bool,
    /// With --build-only: a folder for stripped programs and a script that runs them
    #[arg(long, requires = "build_only", value_name = "DIR")]
    out: Option<PathBuf>,
    /// Compilers at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// What `cargo xtask test` runs: all programs with the static runtime, some with the shared one
    #[arg(long, conflicts_with_all = ["cudart", "native", "build_only"])]
    ci: bool,
    /// Also these some with the newest runtime, and one program with runtimes of every release
    #[arg(long)]
    all_toolkits: bool,
}

/// Programs that run with a shared runtime too: registration, start and end, threads, and a call of
/// every family, since that is where the two kinds differ.
const SHARED: &[&str] = &[
    "contexts",
    "device_queries",
    "device_reset",
    "events",
    "fork_exec",
    "graph_capture",
    "host_functions",
    "ipc",
    "jit",
    "launches",
    "launch_errors",
    "managed",
    "many_streams",
    "many_threads",
    "per_thread_stream",
    "pinned_async",
    "pools",
    "symbols",
    "textures",
    "thrust_sort",
    "vector_add",
    "visible_devices",
];

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Cudart {
    Static,
    Shared,
}

impl Cudart {
    fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Shared => "shared",
        }
    }
}

/// The command.
pub fn corpus(arguments: &Arguments) -> Result<()> {
    if arguments.ci || arguments.all_toolkits {
        return ci(arguments);
    }
    one(arguments, &[], None)
}

/// What a submission must pass.
pub fn test(all_toolkits: bool) -> Result<()> {
    ci(&Arguments {
        filter: String::new(),
        cudart: Cudart::Static,
        native: false,
        all: false,
        build_only: false,
        out: None,
        jobs: 2,
        ci: true,
        all_toolkits,
    })
}

fn ci(arguments: &Arguments) -> Result<()> {
    let shared = Arguments {
        filter: arguments.filter.clone(),
        cudart: Cudart::Shared,
        out: None,
        ..*arguments
    };
    // All parts, for all that is wrong to be seen in one run.
    let mut results = vec![one(arguments, &[], None), one(&shared, SHARED, None)];
    if arguments.all_toolkits {
        results.push(runtimes::newest().and_then(|newest| one(&shared, SHARED, Some(newest))));
        results.push(runtimes::runtimes());
    }
    results.into_iter().collect()
}

/// Builds and runs programs: all that the filter lets through, or those of `chosen` if it names any.
/// `libraries` has the shared runtime to run with; else it is the compiler's own.
fn one(arguments: &Arguments, chosen: &[&str], libraries: Option<PathBuf>) -> Result<()> {
    let folder = root().join("tests/programs");
    let mut programs = Program::all(&folder, &arguments.filter)?;
    if !chosen.is_empty() {
        programs.retain(|program| chosen.contains(&program.name.as_str()));
        if programs.is_empty() {
            return Ok(());
        }
    }
    ensure!(
        !programs.is_empty(),
        "no program has `{}` in its name",
        arguments.filter
    );
    let toolkit = Toolkit::install()?;
    let builder = Builder::new(&toolkit, arguments.cudart, &folder)?;
    let built = builder.build_all(&programs, arguments.jobs);
    if let Some(out) = &arguments.out {
        build::pack(&programs, &built, &toolkit, arguments.cudart, out)?;
    }

    let recorded = recorded(&fs::read_to_string(folder.join("recorded.txt")).unwrap_or_default());
    let libraries = libraries.unwrap_or_else(|| toolkit.libraries());
    println!(
        "xtask: {} programs, {} runtime, {}",
        programs.len(),
        arguments.cudart.name(),
        libraries.display()
    );
    let mut runner = match (arguments.build_only, arguments.native) {
        (true, _) => None,
        (false, true) => Some(Runner::native(libraries)?),
        (false, false) => Some(Runner::under_openmps(libraries)?),
    };
    let mut table = Table::new();
    for (program, built) in programs.iter().zip(built) {
        let missing: Vec<&str> = program
            .needs
            .iter()
            .map(String::as_str)
            .filter(|need| !arguments.all && !arguments.native && !BUILT.contains(need))
            .collect();
        let (outcome, took) = match (built, &mut runner) {
            (Err(error), _) => (
                ProgramOutcome::NotBuilt(format!("{error:#}")),
                Duration::ZERO,
            ),
            (Ok(_), None) => (ProgramOutcome::NotRun, Duration::ZERO),
            (Ok(_), Some(_)) if !missing.is_empty() => (
                ProgramOutcome::Skipped(format!("needs {}", missing.join(", "))),
                Duration::ZERO,
            ),
            (Ok(path), Some(runner)) => runner.run(program, &path, recorded.get(&program.name)),
        };
        if let ProgramOutcome::Skipped(why) = &outcome {
            skipped::record(&program.name, why)?;
        }
        table.add(program, &outcome, took);
    }
    table.finish()
}

/// What programs printed on NVIDIA's driver: sections that begin with `== name`.
fn recorded(text: &str) -> BTreeMap<String, String> {
    let mut outputs: BTreeMap<String, String> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            current = Some(outputs.entry(name.to_owned()).or_default());
        } else if let Some(output) = &mut current {
            output.push_str(line);
            output.push('\n');
        }
    }
    outputs
}

/// The one table, printed as the programs end.
#[derive(Debug)]
struct Table {
    passed: usize,
    /// The lines of what failed, said again at the end: the log of a long run is often cut.
    failed: Vec<String>,
    skipped: usize,
    not_run: usize,
}

impl Table {
    fn new() -> Self {
        println!(
            "{:24} {:20} {:5} {:>7}  result",
            "program", "needs", "built", "seconds"
        );
        Self {
            passed: 0,
            failed: Vec::new(),
            skipped: 0,
            not_run: 0,
        }
    }

    fn add(&mut self, program: &Program, outcome: &ProgramOutcome, took: Duration) {
        let built = !matches!(outcome, ProgramOutcome::NotBuilt(_));
        let result = match outcome {
            ProgramOutcome::Passed => {
                self.passed += 1;
                "pass".to_owned()
            }
            ProgramOutcome::NotRun => {
                self.not_run += 1;
                String::new()
            }
            ProgramOutcome::Skipped(why) => {
                self.skipped += 1;
                format!("skipped: {why}")
            }
            ProgramOutcome::Failed(why) | ProgramOutcome::NotBuilt(why) => {
                self.failed.push(format!("{}: {why}", program.name));
                format!("FAIL: {why}")
            }
        };
        let seconds = match took.is_zero() {
            true => String::new(),
            false => format!("{:.2}", took.as_secs_f32()),
        };
        println!(
            "{:24} {:20} {:5} {:>7}  {}",
            program.name,
            program.needs.join(" "),
            if built { "yes" } else { "NO" },
            seconds,
            result
        );
    }

    fn finish(self) -> Result<()> {
        let mut summary = format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped
        );
        if self.not_run > 0 {
            summary += &format!(", {} built and not run", self.not_run);
        }
        println!("{summary}");
        ensure!(
            self.failed.is_empty(),
            "{} programs failed:\n{}",
            self.failed.len(),
            self.failed.join("\n")
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_sections_keep_their_lines() {
        let outputs = recorded("# comment\n== a\n1\n2\n== b\n== c\nPASS\n");
        assert_eq!(outputs.len(), 3);
        assert_eq!(outputs["a"], "1\n2\n");
        assert_eq!(outputs["b"], "");
        assert_eq!(outputs["c"], "PASS\n");
    }
}
