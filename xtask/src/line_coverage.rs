//! `cargo xtask line-coverage`: the lines of each crate that its own unit tests run, which may only become more.
//!
//! The compiler counts (`-C instrument-coverage`), LLVM's tools of the same toolchain add up, and what each crate had
//! stands in `line-coverage.txt`: less than that is an error, and so is a crate that is missing on either side. Tests
//! of whole processes are not counted: they would run nearly every line, and say little of which are looked at.
//!
//! Called by `main` only, so that it is no part of `test`. Must not know which tests there are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::development_build::FEATURES;
use crate::shell::{cargo, root, run};

/// What each crate had: a name and a percentage in each line.
const FILE: &str = "xtask/line-coverage.txt";

/// Points of a percentage by which a run may be below: threads and times decide about some lines.
const TOLERANCE: f64 = 0.5;

/// Packages that are no product: their lines do not count, nor are their tests run.
const NOT_THE_PRODUCT: [&str; 3] = ["tests", "benches", "xtask"];

/// Lines of a crate: how many there are, and how many were run.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    count: u64,
    covered: u64,
}

impl Lines {
    fn percent(self) -> f64 {
        #[allow(
            clippy::cast_precision_loss,
            reason = "no crate has more lines than an f64 counts"
        )]
        let [covered, count] = [self.covered, self.count].map(|it| it as f64);
        100.0 * covered / count.max(1.0)
    }
}

/// Measures the crates whose folder contains `filter`, and compares them with the file; with `is_update` it writes the
/// file instead.
pub fn line_coverage(filter: &str, is_update: bool) -> Result<()> {
    ensure!(
        filter.is_empty() || !is_update,
        "the file has all crates: --update takes no name"
    );
    let tools = Tools::find()?;
    let target = root().join("target/line-coverage");
    let mut programs: BTreeMap<String, Vec<TestProgram>> = BTreeMap::new();
    for program in build(&target, filter)? {
        programs.entry(program.name()?).or_default().push(program);
    }
    let mut crates = BTreeMap::new();
    for (name, programs) in &programs {
        // What one's tests run of another says nothing of the other's tests.
        let lines = tools.measure(programs, &target)?;
        crates.insert(name.clone(), of_crate(&lines, name)?);
    }
    if is_update {
        let text = to_text(&crates);
        print!("{text}");
        return Ok(fs::write(root().join(FILE), text)?);
    }
    let mut before = from_text(&fs::read_to_string(root().join(FILE)).context(FILE)?)?;
    before.retain(|name, _| name.contains(filter));
    compare(&before, &crates)
}

/// LLVM's tools that read what this compiler counts.
#[derive(Debug)]
struct Tools(PathBuf);

impl Tools {
    /// Those of the toolchain, installed on first use.
    fn find() -> Result<Self> {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir"]);
        let output = rustc.output().context("cannot run rustc")?;
        let libraries = String::from_utf8(output.stdout)?;
        let folder = Path::new(libraries.trim()).with_file_name("bin");
        let tools = Self(folder);
        if !tools.tool("llvm-cov").exists() {
            run(Command::new("timeout")
                .args(["--kill-after=10", "300"])
                .args(["rustup", "component", "add", "llvm-tools"]))
            .context(
                "llvm-cov and llvm-profdata of the Rust toolchain are missing: they come by `rustup component \
                 add llvm-tools`; those of another LLVM do not read what this compiler writes",
            )?;
        }
        ensure!(
            tools.tool("llvm-cov").exists() && tools.tool("llvm-profdata").exists(),
            "llvm-cov and llvm-profdata are not in {}",
            tools.0.display()
        );
        Ok(tools)
    }

    fn tool(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs programs, and gives what they ran of each file.
    fn measure(&self, programs: &[TestProgram], target: &Path) -> Result<Value> {
        let profiles = target.join("profiles");
        fs::remove_dir_all(&profiles).ok();
        fs::create_dir_all(&profiles)?;
        for program in programs {
            program.run(&profiles)?;
        }
        let merged = target.join("merged.profdata");
        self.merge(&profiles, &merged)?;
        self.export(programs, &merged)
    }

    fn merge(&self, profiles: &Path, merged: &Path) -> Result<()> {
        let mut command = Command::new(self.tool("llvm-profdata"));
        command.args(["merge", "--sparse", "--output"]).arg(merged);
        for entry in fs::read_dir(profiles)? {
            command.arg(entry?.path());
        }
        let status = command.status().context("cannot run llvm-profdata")?;
        ensure!(status.success(), "llvm-profdata: {status}");
        Ok(())
    }

    /// What was run of each file, as llvm-cov writes it.
    fn export(&self, programs: &[TestProgram], merged: &Path) -> Result<Value> {
        let mut command = Command::new(self.tool("llvm-cov"));
        command.args(["export", "--summary-only", "--instr-profile"]);
        command.arg(merged);
        for (number, program) in programs.iter().enumerate() {
            if number > 0 {
                command.arg("--object");
            }
            command.arg(&program.path);
        }
        let output = command.output().context("cannot run llvm-cov")?;
        ensure!(
            output.status.success(),
            "llvm-cov: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// A package's unit tests, built.
#[derive(Debug)]
struct TestProgram {
    path: PathBuf,
    /// The package's folder.
    folder: PathBuf,
}

impl TestProgram {
    /// The package's folder, from the root.
    fn name(&self) -> Result<String> {
        let folder = self.folder.strip_prefix(root())?;
        Ok(folder.to_str().context("a folder's name")?.to_owned())
    }

    /// Runs it as cargo does: in the package's own folder.
    fn run(&self, profiles: &Path) -> Result<()> {
        // A file for each process: tests start others, which may be killed.
        let file = profiles.join("%m-%p.profraw");
        let status = Command::new("timeout")
            .args(["--kill-after=10", "300"])
            .arg(&self.path)
            .arg("--quiet")
            .env("LLVM_PROFILE_FILE", file)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .current_dir(&self.folder)
            .status()
            .context("cannot run timeout")?;
        ensure!(status.success(), "{}: {status}", self.path.display());
        Ok(())
    }
}

/// Builds the unit tests of the crates of the product whose name contains `filter`, with counters.
fn build(target: &Path, filter: &str) -> Result<Vec<TestProgram>> {
    let mut command = cargo();
    command.args(["test", "--lib", "--bins"]);
    if filter.is_empty() {
        command.args(["--workspace", FEATURES]);
        for package in NOT_THE_PRODUCT {
            command.args(["--exclude", package]);
        }
    } else {
        // A pattern of cargo's.
        command.args(["--package", &format!("*{filter}*")]);
    }
    command
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .arg("--target-dir")
        .arg(target)
        .env("RUSTFLAGS", "-C instrument-coverage")
        // Build scripts and macros are counted too, and would leave what they counted in their packages' folders.
        .env("LLVM_PROFILE_FILE", "/dev/null")
        .current_dir(root());
    println!("xtask: builds the unit tests with counters");
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "the tests do not build: {}",
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    let mut programs = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line)?;
        if message["profile"]["test"] == true
            && let Some(path) = message["executable"].as_str()
        {
            let manifest = message["manifest_path"].as_str().context("a manifest")?;
            let folder = Path::new(manifest).parent().context("a folder")?;
            let program = TestProgram {
                path: path.into(),
                folder: folder.to_owned(),
            };
            if !NOT_THE_PRODUCT.contains(&program.name()?.as_str()) {
                programs.push(program);
            }
        }
    }
    ensure!(!programs.is_empty(), "cargo names no tests");
    Ok(programs)
}

/// Adds up the files of a crate. Tests with files of their own do not count; those at the end of a file count with it.
fn of_crate(export: &Value, name: &str) -> Result<Lines> {
    let mut sum = Lines::default();
    let files = export["data"][0]["files"].as_array();
    for file in files.context("llvm-cov names no files")? {
        let path = file["filename"].as_str().context("a file's name")?;
        let lines = &file["summary"]["lines"];
        let (Some(count), Some(covered)) = (lines["count"].as_u64(), lines["covered"].as_u64())
        else {
            bail!("llvm-cov says nothing of the lines of {path}");
        };
        if counts(path, name, &root()) {
            sum.count += count;
            sum.covered += covered;
        }
    }
    ensure!(sum.count > 0, "llvm-cov has seen no line of {name}");
    Ok(sum)
}

/// Whether a file's lines count for a crate.
fn counts(file: &str, name: &str, root: &Path) -> bool {
    let sources = root.join(name).join("src");
    Path::new(file)
        .strip_prefix(sources)
        .ok()
        .and_then(Path::to_str)
        .is_some_and(|rest| {
            !rest.ends_with("tests.rs") && !rest.split('/').any(|part| part == "tests")
        })
}

fn to_text(crates: &BTreeMap<String, Lines>) -> String {
    let mut text =
        "# Lines of each crate that its unit tests run, in percent: they may only become more.\n\
                    # `cargo xtask line-coverage` compares, and with `--update` writes this.\n"
            .to_owned();
    for (name, lines) in crates {
        text += &format!("{name} {:.1}\n", lines.percent());
    }
    text
}

fn from_text(text: &str) -> Result<BTreeMap<String, f64>> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, percent) = line.split_once(' ').context("a name and a percentage")?;
            let percent: f64 = percent.parse().with_context(|| line.to_owned())?;
            ensure!((0.0..=100.0).contains(&percent), "{line}: no percentage");
            Ok((name.to_owned(), percent))
        })
        .collect()
}

/// Prints both, and fails on what has become less.
fn compare(before: &BTreeMap<String, f64>, crates: &BTreeMap<String, Lines>) -> Result<()> {
    let mut problems = Vec::new();
    for name in before.keys().filter(|name| !crates.contains_key(*name)) {
        problems.push(format!(
            "{name} stands in {FILE}, and has no lines any more"
        ));
    }
    println!(
        "{:<20} {:>7} {:>7} {:>7}",
        "crate", "lines", "before", "now"
    );
    for (name, lines) in crates {
        let now = lines.percent();
        let Some(&before) = before.get(name) else {
            problems.push(format!("{name} is not in {FILE}: write it with --update"));
            continue;
        };
        println!("{name:<20} {:>7} {before:>7.1} {now:>7.1}", lines.count);
        if now + TOLERANCE < before {
            problems.push(format!(
                "{name}: its unit tests run {now:.1} % of its lines, and ran {before:.1} %"
            ));
        }
        if now > before + TOLERANCE {
            println!("  more than before: keep it with --update");
        }
    }
    ensure!(
        problems.is_empty(),
        "line coverage:\n{}",
        problems.join("\n")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(count: u64, covered: u64) -> Lines {
        Lines { count, covered }
    }

    #[test]
    fn less_than_before_fails_and_so_does_what_is_missing() {
        let before = from_text("# x\na 50.0\nb 10.0\n").unwrap();
        let compared = |a, b: Option<Lines>, c: Option<Lines>| {
            let all = [("a", Some(a)), ("b", b), ("c", c)];
            let all = all.into_iter();
            let crates = all.filter_map(|(name, lines)| Some((name.to_owned(), lines?)));
            compare(&before, &crates.collect()).map_err(|error| error.to_string())
        };
        let b = Some(lines(10, 1));
        assert_eq!(compared(lines(1000, 500), b, None), Ok(()));
        assert_eq!(compared(lines(1000, 496), b, None), Ok(()));
        let less = compared(lines(1000, 494), b, None).unwrap_err();
        assert!(less.contains("49.4 %") && less.contains("50.0 %"), "{less}");
        assert!(
            compared(lines(2, 1), None, None)
                .unwrap_err()
                .contains("b stands")
        );
        let new = compared(lines(2, 1), b, b).unwrap_err();
        assert!(new.contains("c is not in"), "{new}");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let crates = [("a", lines(3, 1)), ("b", lines(0, 0))];
        let crates = crates.map(|(name, lines)| (name.to_owned(), lines)).into();
        let read = from_text(&to_text(&crates)).unwrap();
        assert_eq!(read, [("a".to_owned(), 33.3), ("b".to_owned(), 0.0)].into());
        assert!(from_text("a 101.0").is_err() && from_text("a").is_err());
    }

    #[test]
    fn files_are_added_up_by_crate_without_their_tests() {
        let root = root();
        let file = |path: &str, count: u64, covered: u64| {
            json!({
                "filename": root.join(path),
                "summary": {"lines": {"count": count, "covered": covered}},
            })
        };
        let export = json!({"data": [{"files": [
            file("ptx/src/a.rs", 10, 5),
            file("ptx/src/b/c.rs", 10, 10),
            file("ptx/src/b/tests.rs", 10, 10),
            file("ptx/src/tests/d.rs", 10, 10),
            file("examples/nbody/src/main.rs", 4, 1),
            {"filename": "/elsewhere/src/x.rs", "summary": {"lines": {"count": 1, "covered": 1}}},
        ]}]});
        let of = |name| of_crate(&export, name).map(|it| (it.count, it.covered));
        assert_eq!(of("ptx").unwrap(), (20, 15));
        assert_eq!(of("examples/nbody").unwrap(), (4, 1));
        // Nothing seen is not nothing run.
        assert!(of("engine").is_err());
    }
}
