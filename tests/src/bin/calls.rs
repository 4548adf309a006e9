//! Makes the calls of a file and compares what they return with what the file says.
//!
//! `calls FILE` prints every difference and fails if there is one. Where the file says what OpenMPS gives
//! instead, that alone will do; with `--either` NVIDIA's answer will do too, since those differences are
//! the software GPU's and a real one may have none. `calls --record FILE` prints the file with the codes
//! that the driver at hand gives. `tests/calls/wrong_arguments.txt` was recorded so, on
//! NVIDIA's own driver, and says how a line is written.
//!
//! Some wrong arguments crash a driver, so a child process makes the calls, and a new one goes on
//! behind a line that ended it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};

use cuda_abi::functions::ROWS;
use tests::script::State;

/// A kernel that can be launched with one parameter, one that allows 64 threads a block, a variable.
const IMAGE: &str = ".version 6.0\n.target sm_50\n.address_size 64\n\
    .visible .global .align 4 .b8 numbers[64];\n\
    .visible .entry nothing(.param .u64 out) { ret; }\n\
    .visible .entry small(.param .u64 out) .maxntid 64, 1, 1 { ret; }\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--child", file, from] => {
            let text = std::fs::read_to_string(file).expect("the file is readable");
            child(&text, from.parse().expect("a number"));
            ExitCode::SUCCESS
        }
        ["--record", file] => {
            let text = std::fs::read_to_string(file).expect("the file is readable");
            record(&text, &answers(file, &text));
            ExitCode::SUCCESS
        }
        [file] | ["--either", file] => {
            let text = std::fs::read_to_string(file).expect("the file is readable");
            compare(&text, &answers(file, &text), words.len() == 2)
        }
        _ => {
            eprintln!("usage: calls [--record | --either] FILE");
            ExitCode::from(2)
        }
    }
}

/// A line that makes calls: the calls, what the driver answers, and what OpenMPS answers instead.
struct Line<'a> {
    calls: &'a str,
    expected: &'a str,
    ours: Option<&'a str>,
}

impl<'a> Line<'a> {
    /// `calls = codes` or `calls = codes ~ codes of OpenMPS (reason)`; None for other lines.
    fn of(text: &'a str) -> Option<Self> {
        if text.trim_start().starts_with('#') || text.trim().is_empty() {
            return None;
        }
        let (calls, answers) = text.split_once(" = ").unwrap_or((text, ""));
        let (expected, ours) = match answers.split_once(" ~ ") {
            Some((expected, ours)) => (expected, ours.split(" (").next()),
            None => (answers, None),
        };
        Some(Self {
            calls: calls.trim(),
            expected: expected.trim(),
            ours: ours.map(str::trim),
        })
    }
}

/// What each line of the file is answered with, by its index; made by as many children as it takes.
fn answers(file: &str, text: &str) -> HashMap<usize, String> {
    let lines: Vec<usize> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| Line::of(line).is_some())
        .map(|(index, _)| index)
        .collect();
    let mut answers = HashMap::new();
    let mut from = 0;
    while let Some(&next) = lines.iter().find(|&&index| index >= from) {
        let mut child =
            Command::new(std::env::current_exe().expect("a running program has a path"))
                .args(["--child", file, &next.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .expect("a child can be started");
        let output = child.stdout.take().expect("it is piped");
        let mut begun = None;
        for line in BufReader::new(output).lines() {
            let line = line.expect("text");
            match line.split_once('\t') {
                Some((index, "")) => begun = Some(index.parse().expect("an index")),
                Some((index, codes)) => {
                    begun = None;
                    from = index.parse::<usize>().expect("an index") + 1;
                    answers.insert(from - 1, codes.to_owned());
                }
                None => eprintln!("{line}"),
            }
        }
        let status = child.wait().expect("it ends");
        assert!(status.code() != Some(101), "a line cannot be read");
        match begun {
            Some(index) => {
                answers.insert(index, "crash".to_owned());
                from = index + 1;
            }
            None if from <= next => panic!("no driver to ask: {status}"),
            None => {}
        }
    }
    answers
}

fn record(text: &str, answers: &HashMap<usize, String>) {
    for (index, line) in text.lines().enumerate() {
        match (Line::of(line), answers.get(&index)) {
            (Some(parsed), Some(answer)) => {
                let rest = line.split_once(" ~ ").map(|(_, rest)| format!(" ~ {rest}"));
                println!("{} = {answer}{}", parsed.calls, rest.unwrap_or_default());
            }
            _ => println!("{line}"),
        }
    }
}

fn compare(text: &str, answers: &HashMap<usize, String>, either: bool) -> ExitCode {
    let (mut same, mut other, mut absent) = (0, 0, 0);
    for (index, line) in text.lines().enumerate() {
        let (Some(line), Some(answer)) = (Line::of(line), answers.get(&index)) else {
            continue;
        };
        if answer.contains("NOT_SUPPORTED") && line.calls.split(';').any(is_absent) {
            absent += 1;
            continue;
        }
        // Where NVIDIA's driver crashes, anything but a crash will do.
        let fine = match (line.expected, line.ours) {
            ("crash", _) => answer != "crash",
            (expected, ours) => {
                answer == ours.unwrap_or(expected) || (either && answer == expected)
            }
        };
        if fine {
            same += 1;
        } else {
            other += 1;
            let wanted = line.ours.unwrap_or(line.expected);
            println!(
                "line {}: {}\n    {answer}, not {wanted}",
                index + 1,
                line.calls
            );
        }
    }
    println!("{same} as recorded, {other} not, {absent} of functions that are not built");
    ExitCode::from(u8::from(other > 0))
}

/// Whether a call is of a function that docs/coverage.md lists as absent.
fn is_absent(call: &str) -> bool {
    let name = call.split_whitespace().next();
    ROWS.iter()
        .any(|row| Some(row.function.name()) == name && !row.is_built())
}

/// Makes the calls of all lines from an index on, until one spoils the context.
fn child(text: &str, from: usize) {
    let mut state = State::new(IMAGE);
    let mut out = std::io::stdout().lock();
    for (index, line) in text.lines().enumerate().skip(from) {
        let Some(line) = Line::of(line) else { continue };
        writeln!(out, "{index}\t").expect("somebody reads");
        out.flush().expect("somebody reads");
        let codes = state.line(line.calls);
        let spoilt = !settle(&mut state);
        let sticky = if spoilt { " sticky" } else { "" };
        writeln!(out, "{index}\t{codes}{sticky}").expect("somebody reads");
        out.flush().expect("somebody reads");
        if spoilt {
            return;
        }
    }
}

/// Makes the context current again, and says whether it can still be used.
fn settle(state: &mut State) -> bool {
    state.line("cuCtxSetCurrent ctx; cuCtxSynchronize") == "SUCCESS SUCCESS"
}
