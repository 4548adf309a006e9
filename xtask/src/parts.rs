//! The parts of a long run, some beside each other: what is under way, and at the end a table of what each came to.
//!
//! Each part is a process of its own, whose output goes to a file. The output of one is shown as it comes; that of
//! those beside it is shown whole when they end, or from where they are once nothing else is shown. So no lines
//! mix. A part that fails keeps only those from running that need what it makes, so that one run shows all that is
//! wrong. Every part has a limit of time, and whoever ends the run ends its parts.
//!
//! Called by `ci` and `miri`, which say what the parts are. Must not know what a part does.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::process_tree::{self, Process};
use crate::shell::root;
use crate::skipped;
use outcome::{Ending, PartOutcome, minutes, table};

mod failures;
mod outcome;

/// The variable that tells a process which part of the run it is.
const VARIABLE: &str = "OPENMPS_XTASK_PART";

/// Between looks at what is under way.
const INTERVAL: Duration = Duration::from_millis(50);

/// Between lines that say what is under way.
const REMINDER: Duration = Duration::from_secs(60);

/// What a part may take if it does not say.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// A part that is to run.
pub struct Part {
    plan: Plan,
    run: Box<dyn FnOnce() -> Result<()>>,
}

/// What the run knows of a part.
#[derive(Debug)]
struct Plan {
    name: &'static str,
    /// Parts before it that must have passed, as far as they are in the run.
    after: Vec<&'static str>,
    /// Parts before it that must have ended: they would disturb each other.
    behind: Vec<&'static str>,
    /// What it finds in its environment.
    variables: Vec<(&'static str, OsString)>,
    limit: Duration,
}

/// A part by its name.
pub fn part(name: &'static str, run: impl FnOnce() -> Result<()> + 'static) -> Part {
    let plan = Plan {
        name,
        after: Vec::new(),
        behind: Vec::new(),
        variables: Vec::new(),
        limit: LIMIT,
    };
    let run = Box::new(run);
    Part { plan, run }
}

impl Part {
    /// Has it begin once another has passed, which must come before it in the list.
    pub fn after(mut self, other: &'static str) -> Self {
        self.plan.after.push(other);
        self
    }

    /// Has it begin once another has ended, however that went. It too must come before it.
    pub fn behind(mut self, other: &'static str) -> Self {
        self.plan.behind.push(other);
        self
    }

    /// Whether another must have passed.
    pub fn needs(&self, other: &str) -> bool {
        self.plan.after.contains(&other)
    }

    /// Gives it a variable.
    pub fn with(mut self, variable: &'static str, value: impl Into<OsString>) -> Self {
        self.plan.variables.push((variable, value.into()));
        self
    }
}

/// Runs parts, so many at once, and prints the table. In the process of a part it runs that, and does not return.
///
/// # Errors
/// When some failed: which.
pub fn run(parts: Vec<Part>, at_once: usize) -> Result<()> {
    if let Some(name) = std::env::var_os(VARIABLE) {
        run_here(parts, &name);
    }
    let plans: Vec<Plan> = parts.into_iter().map(|part| part.plan).collect();
    // Not `self`: a part builds this program anew.
    let itself = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let is_colored = io::stdout().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_interrupted))
            .context("to notice that the run is to end")?;
    }
    let folder = root().join("target/parts");
    let begun = Instant::now();
    let outcomes = Run {
        at_once,
        folder: &folder,
        is_interrupted: &is_interrupted,
        reminder: REMINDER,
        out: &mut io::stdout(),
        command: &|plan| {
            let mut command = Command::new(&itself);
            command
                .args(std::env::args_os().skip(1))
                .env(VARIABLE, plan.name)
                .env(skipped::VARIABLE, skipped::list())
                .current_dir(root());
            if is_colored {
                command.env("CARGO_TERM_COLOR", "always");
            }
            command
        },
    }
    .all(&plans)?;
    println!("{}", table(&outcomes, begun.elapsed()));
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.result != Ending::Passed);
    let failed: Vec<&str> = failed.map(|outcome| outcome.name).collect();
    for name in &failed {
        // Of a part that did not run there is none.
        let output = fs::read(log_path(&folder, name)).unwrap_or_default();
        for line in failures::lines(&String::from_utf8_lossy(&output)) {
            println!("{name}: {line}");
        }
    }
    if is_interrupted.load(Ordering::Relaxed) {
        bail!("ended by a signal before all was run");
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the part that this process is for.
#[expect(
    clippy::exit,
    reason = "this process is one part of a run, and the part is over"
)]
fn run_here(parts: Vec<Part>, name: &std::ffi::OsStr) -> ! {
    // A run that is killed leaves nobody to show or to end this.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let part = parts.into_iter().find(|part| part.plan.name == name);
    let result = part
        .context("there is no part of this name")
        .and_then(|part| (part.run)());
    if let Err(error) = &result {
        println!("xtask: {} failed: {error:#}", name.display());
    }
    std::process::exit(i32::from(result.is_err()));
}

/// Where a part's output goes.
fn log_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.log", name.replace(' ', "-")))
}

/// How parts are run.
struct Run<'a> {
    at_once: usize,
    /// Where their outputs go.
    folder: &'a Path,
    is_interrupted: &'a AtomicBool,
    reminder: Duration,
    /// Where what they print is shown.
    out: &'a mut dyn Write,
    command: &'a dyn Fn(&Plan) -> Command,
}

/// A part under way.
struct UnderWay<'a> {
    number: usize,
    plan: &'a Plan,
    child: Child,
    begun: Instant,
    /// What it prints, to write to and to read from.
    log: File,
    output: File,
    /// Whether what it prints is shown as it comes.
    is_shown: bool,
}

impl Run<'_> {
    /// Runs all, and gives what each came to, in the order in which they ended.
    fn all(&mut self, plans: &[Plan]) -> Result<Vec<PartOutcome>> {
        fs::create_dir_all(self.folder)?;
        let mut waiting: Vec<(usize, &Plan)> = (1..).zip(plans).collect();
        let mut under_way: Vec<UnderWay<'_>> = Vec::new();
        let mut outcomes: Vec<PartOutcome> = Vec::new();
        let mut told = Instant::now();
        while !(waiting.is_empty() && under_way.is_empty()) {
            let is_interrupted = self.is_interrupted.load(Ordering::Relaxed);
            let mut still = Vec::new();
            for (number, plan) in waiting {
                let name = plan.name;
                match standing(plan, plans, &outcomes) {
                    _ if is_interrupted => {
                        outcomes.push(PartOutcome::not_run(name, "the run was ended"));
                    }
                    Standing::Never(other) => {
                        let why = format!("{other} did not pass");
                        self.say(&format!("part {number}, {name}: not run: {why}"))?;
                        outcomes.push(PartOutcome::not_run(name, &why));
                    }
                    Standing::Ready if under_way.len() < self.at_once => {
                        under_way.push(self.start(number, plan, plans.len())?);
                    }
                    Standing::Ready | Standing::NotYet => still.push((number, plan)),
                }
            }
            waiting = still;
            // With nothing under way nothing would ever come to an end.
            ensure!(
                waiting.is_empty() || !under_way.is_empty(),
                "{} waits for what comes after it",
                waiting[0].1.name
            );
            self.show(&mut under_way)?;
            let mut go_on = Vec::new();
            for mut part in under_way {
                match self.look_at(&mut part, is_interrupted)? {
                    Some(outcome) => outcomes.push(outcome),
                    None => go_on.push(part),
                }
            }
            under_way = go_on;
            if told.elapsed() > self.reminder && under_way.len() > 1 {
                told = Instant::now();
                let unseen = under_way.iter().filter(|part| !part.is_shown);
                let unseen: Vec<String> = unseen
                    .map(|part| format!("{} ({})", part.plan.name, minutes(part.begun.elapsed())))
                    .collect();
                self.say(&format!("beside it: {}", unseen.join(", ")))?;
            }
            std::thread::sleep(INTERVAL);
        }
        Ok(outcomes)
    }

    fn say(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "xtask: {text}")?;
        Ok(self.out.flush()?)
    }

    fn start<'a>(&mut self, number: usize, plan: &'a Plan, count: usize) -> Result<UnderWay<'a>> {
        let name = plan.name;
        let path = log_path(self.folder, name);
        let log = File::create(&path).with_context(|| path.display().to_string())?;
        let child = (self.command)(plan)
            .envs(plan.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            // A file and not a pipe: who outlives the part would keep a pipe open.
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start the part {name}"))?;
        self.say(&format!("part {number} of {count} begins: {name}"))?;
        Ok(UnderWay {
            number,
            plan,
            child,
            begun: Instant::now(),
            log,
            output: File::open(path)?,
            is_shown: false,
        })
    }

    /// Shows the whole lines that have come of the part that is shown; if none is, of the first from now on.
    fn show(&mut self, under_way: &mut [UnderWay<'_>]) -> Result<()> {
        if !under_way.iter().any(|part| part.is_shown)
            && let Some(first) = under_way.first_mut()
        {
            first.is_shown = true;
            let (number, name) = (first.number, first.plan.name);
            self.say(&format!("part {number}, {name}, prints:"))?;
        }
        match under_way.iter_mut().find(|part| part.is_shown) {
            Some(part) => part.print(self.out, false),
            None => Ok(()),
        }
    }

    /// What a part came to, if it has ended by now; at its limit it is ended.
    fn look_at(
        &mut self,
        part: &mut UnderWay<'_>,
        is_interrupted: bool,
    ) -> Result<Option<PartOutcome>> {
        let id = part.child.id();
        let mut why = None;
        if part.begun.elapsed() > part.plan.limit {
            why = Some(format!("no end within {}", minutes(part.plan.limit)));
            for (pid, line) in process_tree::command_lines(id) {
                writeln!(part.log, "xtask: process {pid}: {line}")?;
            }
        } else if is_interrupted {
            why = Some("ended by a signal".to_owned());
        }
        if why.is_some() {
            process_tree::end(id);
        }
        // As long as nobody has asked for its status, the kernel keeps what it took.
        let process = Process::of(id);
        let status = match why {
            Some(_) => part.child.wait()?,
            None if process.as_ref().is_some_and(|it| !it.has_ended) => return Ok(None),
            None => match part.child.try_wait()? {
                Some(status) => status,
                None => return Ok(None),
            },
        };
        if !part.is_shown {
            let (number, name) = (part.number, part.plan.name);
            self.say(&format!("part {number}, {name}, has printed:"))?;
        }
        part.print(self.out, true)?;
        // Of what was killed nobody has told it.
        let process = process.filter(|_| why.is_none());
        let outcome = part.outcome(status, why, process.map(|it| it.processor_time()));
        let (result, _) = outcome.result.words();
        let took = minutes(outcome.took);
        self.say(&format!(
            "part {}, {}: {result} after {took}",
            part.number, part.plan.name
        ))?;
        Ok(Some(outcome))
    }
}

/// Whether a part may begin.
enum Standing {
    Ready,
    NotYet,
    /// What it needs did not pass.
    Never(&'static str),
}

fn standing(plan: &Plan, plans: &[Plan], outcomes: &[PartOutcome]) -> Standing {
    let mut standing = Standing::Ready;
    for &name in plan.after.iter().chain(&plan.behind) {
        match outcomes.iter().find(|outcome| outcome.name == name) {
            Some(outcome) if outcome.result == Ending::Passed || !plan.after.contains(&name) => {}
            Some(_) => return Standing::Never(name),
            None if plans.iter().any(|plan| plan.name == name) => standing = Standing::NotYet,
            None => {}
        }
    }
    standing
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // Only what could not be shown to its end is still there.
        if matches!(self.child.try_wait(), Ok(None)) {
            process_tree::end(self.child.id());
            self.child.wait().ok();
        }
    }
}

impl UnderWay<'_> {
    /// Prints what has come since: whole lines, or all of it, with an end of line behind.
    fn print(&mut self, out: &mut dyn Write, is_all: bool) -> Result<()> {
        let mut text = Vec::new();
        self.output.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |last| last + 1);
        if is_all {
            out.write_all(&text)?;
            if whole < text.len() {
                out.write_all(b"\n")?;
            }
        } else {
            out.write_all(&text[..whole])?;
            let begun = i64::try_from(text.len() - whole)?;
            self.output.seek(SeekFrom::Current(-begun))?;
        }
        Ok(out.flush()?)
    }

    fn outcome(
        &self,
        status: ExitStatus,
        why: Option<String>,
        processors: Option<Duration>,
    ) -> PartOutcome {
        let result = match why {
            Some(why) => Ending::Failed(why),
            None if status.success() => Ending::Passed,
            // It has said itself what was wrong.
            None if status.code() == Some(1) => Ending::Failed(String::new()),
            None => Ending::Failed(status.to_string()),
        };
        PartOutcome {
            name: self.plan.name,
            took: self.begun.elapsed(),
            processors,
            result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part that is this text of the shell.
    fn shell(name: &'static str, text: &'static str) -> Part {
        part(name, || Ok(())).with("TEXT", text)
    }

    /// What parts came to, and what was printed.
    fn ran(parts: Vec<Part>, at_once: usize, is_interrupted: bool) -> (Vec<PartOutcome>, String) {
        let folder = tempfile::tempdir().unwrap();
        let plans: Vec<Plan> = parts.into_iter().map(|part| part.plan).collect();
        let mut out = Vec::new();
        let outcomes = Run {
            at_once,
            folder: folder.path(),
            is_interrupted: &AtomicBool::new(is_interrupted),
            reminder: REMINDER,
            out: &mut out,
            command: &|_| {
                let mut command = Command::new("sh");
                command.args(["-c", "eval \"$TEXT\""]);
                command.current_dir(folder.path());
                command
            },
        }
        .all(&plans)
        .unwrap();
        (outcomes, String::from_utf8(out).unwrap())
    }

    #[test]
    fn all_parts_run_but_those_that_need_what_failed() {
        let parts = vec![
            shell("one", "exit 1"),
            shell("two", "true"),
            shell("three", "true").after("one"),
            shell("four", "true").after("two").after("not asked for"),
            shell("five", "kill -9 $$"),
            shell("six", "true").behind("five"),
        ];
        let (outcomes, _) = ran(parts, 2, false);
        let mut results: Vec<_> = outcomes
            .iter()
            .map(|it| (it.name, it.result.words()))
            .collect();
        results.sort_unstable();
        assert_eq!(
            results,
            [
                ("five", ("FAILED", "signal: 9 (SIGKILL)")),
                ("four", ("passed", "")),
                ("one", ("FAILED", "")),
                ("six", ("passed", "")),
                ("three", ("NOT RUN", "one did not pass")),
                ("two", ("passed", "")),
            ]
        );
    }

    /// Two parts that end only if they run at the same time, each with lines that come in pieces.
    #[test]
    fn parts_beside_each_other_do_not_mix_their_lines() {
        const MEET: &str = "touch $ME; printf 'first of '; n=0; \
            until [ -e $OTHER ] || [ $n = 600 ]; do n=$((n+1)); sleep 0.05; done; \
            echo $ME; printf 'second of '; [ -e $OTHER ]; printf $ME";
        let parts = vec![
            shell("one", MEET).with("ME", "a").with("OTHER", "b"),
            shell("two", MEET).with("ME", "b").with("OTHER", "a"),
        ];
        let (outcomes, printed) = ran(parts, 2, false);
        assert!(
            outcomes.iter().all(|it| it.result == Ending::Passed),
            "{printed}"
        );
        for name in ["a", "b"] {
            for line in ["first of ", "second of "] {
                let line = format!("{line}{name}");
                assert_eq!(
                    printed.lines().filter(|it| *it == line).count(),
                    1,
                    "{printed}"
                );
            }
        }
    }

    #[test]
    fn at_its_limit_a_part_ends_with_what_it_has_started() {
        let mut slow = shell("slow", "sleep 600 & echo $!; wait");
        slow.plan.limit = Duration::from_millis(500);
        let (outcomes, printed) = ran(vec![slow], 1, false);
        assert_eq!(outcomes[0].result.words().0, "FAILED");
        let pid = printed.lines().find_map(|line| line.parse::<u32>().ok());
        let process = pid.and_then(Process::of);
        assert!(process.is_none_or(|it| it.has_ended), "{printed}");
        let says = |line: &str| line.starts_with("xtask: process ") && line.ends_with("sleep 600");
        assert!(printed.lines().any(says), "{printed}");
    }

    #[test]
    fn a_run_that_is_ended_begins_nothing() {
        let (outcomes, printed) = ran(vec![shell("one", "echo begun")], 1, true);
        assert_eq!(outcomes[0].result.words().0, "NOT RUN");
        assert!(!printed.contains("begun"), "{printed}");
    }

    #[test]
    fn the_table_has_times_and_results() {
        let outcome = |name, seconds, result| PartOutcome {
            name,
            took: Duration::from_secs(seconds),
            processors: Some(Duration::from_secs(2 * seconds)),
            result,
        };
        let outcomes = [
            outcome("build", 75, Ending::Passed),
            outcome("loom", 4, Ending::Failed(String::new())),
            PartOutcome::not_run("crates", "build did not pass"),
        ];
        let table = table(&outcomes, Duration::from_secs(76));
        let lines: Vec<String> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "part min:s processors result",
                "build 1:15 2:30 passed",
                "loom 0:04 0:08 FAILED",
                "crates 0:00 NOT RUN: build did not pass",
                "all 1:16 2:38",
            ]
        );
    }
}
