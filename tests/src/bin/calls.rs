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
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};

use cuda_abi::CUresult;
use cuda_abi::functions::ROWS;
use libloading::os::unix::{Library, RTLD_NOW};

/// A kernel that can be launched with one parameter, one that allows 64 threads a block, a variable.
const IMAGE: &str = ".version 6.0\n.target sm_50\n.address_size 64\n\
    .visible .global .align 4 .b8 numbers[64];\n\
    .visible .entry nothing(.param .u64 out) { ret; }\n\
    .visible .entry small(.param .u64 out) .maxntid 64, 1, 1 { ret; }\n";

/// Bytes of each buffer that a line can name.
const BYTES: usize = 1 << 16;

/// Most arguments of a call.
const ARGUMENTS: usize = 14;

/// An entry point, whatever its arguments: on x86-64 a caller may pass more than a function reads, and
/// integers and pointers are passed alike.
type Entry = unsafe extern "C" fn(
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
) -> u32;

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

/// The driver, and the names that a line may use.
struct State {
    library: Library,
    values: HashMap<String, u64>,
    /// Keeps what pointers lead to.
    memory: Vec<Box<[u64]>>,
}

/// Makes the calls of all lines from an index on, until one spoils the context.
fn child(text: &str, from: usize) {
    let mut state = State::new();
    let mut out = std::io::stdout().lock();
    for (index, line) in text.lines().enumerate().skip(from) {
        let Some(line) = Line::of(line) else { continue };
        writeln!(out, "{index}\t").expect("somebody reads");
        out.flush().expect("somebody reads");
        let codes = state.line(line.calls);
        let spoilt = !state.settle();
        let sticky = if spoilt { " sticky" } else { "" };
        writeln!(out, "{index}\t{codes}{sticky}").expect("somebody reads");
        out.flush().expect("somebody reads");
        if spoilt {
            return;
        }
    }
}

impl State {
    fn new() -> Self {
        // SAFETY: loading a CUDA driver library runs no code that asks anything of its loader.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) };
        let mut state = Self {
            library: library.expect("libcuda.so.1 is on the path"),
            values: HashMap::new(),
            memory: Vec::new(),
        };
        let image = CString::new(IMAGE).expect("no NUL in it");
        let image = state.keep(image.as_bytes_with_nul());
        state.values.insert("image".into(), image);
        for buffer in ["heap", "out"] {
            let at = state.keep(&vec![0; BYTES]);
            state.values.insert(buffer.into(), at);
        }
        for line in [
            "cuInit 0",
            "cuDevicePrimaryCtxRetain &primary 0",
            "cuCtxCreate_v2 &ctx 0 0",
            "cuMemAlloc_v2 &dptr 65536",
            "cuMemHostAlloc &host 65536 0",
            "cuStreamCreate &stream 1",
            "cuEventCreate &event 0",
            "cuEventRecord event stream",
            "cuModuleLoadData &module image",
            "cuModuleGetFunction &nothing module \"nothing\"",
            "cuModuleGetFunction &small module \"small\"",
        ] {
            let codes = state.line(line);
            assert!(codes == "SUCCESS", "{line}: {codes}");
        }
        state
    }

    /// The address of a copy of bytes that lives as long as this.
    fn keep(&mut self, bytes: &[u8]) -> u64 {
        let mut words = vec![0_u64; bytes.len().div_ceil(8) + 1].into_boxed_slice();
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(whole);
        }
        let at = words.as_mut_ptr().expose_provenance() as u64;
        self.memory.push(words);
        at
    }

    /// Makes the calls of a line, and gives the names of what they returned.
    fn line(&mut self, calls: &str) -> String {
        let codes: Vec<String> = calls.split(';').map(|call| self.call(call)).collect();
        codes.join(" ")
    }

    fn call(&mut self, call: &str) -> String {
        let words = words(call);
        let (name, rest) = words.split_first().expect("a call has a name");
        let mut arguments = [0_u64; ARGUMENTS];
        let mut results = Vec::new();
        for (argument, word) in arguments.iter_mut().zip(rest) {
            *argument = match word.strip_prefix('&') {
                Some(variable) => {
                    let at = self.keep(&[0; 8]);
                    results.push((variable.to_owned(), at));
                    at
                }
                None => self.value(word),
            };
        }
        let symbol = format!("{name}\0");
        // SAFETY: every cu… symbol is a function that takes integers and pointers and returns a code.
        let Ok(entry) = (unsafe { self.library.get::<Entry>(symbol.as_bytes()) }) else {
            return "no such function".into();
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = arguments;
        // SAFETY: wrong arguments are what the file is for, and this process is made to be spent.
        let code = unsafe { entry(a, b, c, d, e, f, g, h, i, j, k, l, m, n) };
        for (variable, at) in results {
            let place = std::ptr::with_exposed_provenance::<u64>(at as usize);
            // SAFETY: `at` is a word of `memory`, which the call may have written and nobody else does.
            let value = unsafe { place.read() };
            self.values.insert(variable, value);
        }
        match cuda_abi::errors::name(CUresult(code)) {
            Some("CUDA_SUCCESS") => "SUCCESS".into(),
            Some(name) => name.trim_start_matches("CUDA_ERROR_").into(),
            None => code.to_string(),
        }
    }

    fn value(&mut self, word: &str) -> u64 {
        if let Some(text) = word.strip_prefix('"') {
            let text = CString::new(text.trim_end_matches('"')).expect("no NUL in it");
            return self.keep(text.as_bytes_with_nul());
        }
        if let Some(fields) = word.strip_prefix('{') {
            let bytes = self.structure(fields.trim_end_matches('}'));
            return self.keep(&bytes);
        }
        if let Some((base, offset)) = word.split_once('+') {
            return self.value(base).wrapping_add(self.value(offset));
        }
        if let Some(digits) = word.strip_prefix("0x") {
            return u64::from_str_radix(digits, 16).expect("hexadecimal digits");
        }
        if let Ok(number) = word.parse::<i128>() {
            return number as u64;
        }
        match word {
            "NULL" => 0,
            _ => *self
                .values
                .get(word)
                .unwrap_or_else(|| panic!("nothing is called {word:?}")),
        }
    }

    /// A struct from `bits:value,…`, each field at a multiple of its size as C has it; `bits*count:value`
    /// repeats one.
    fn structure(&mut self, fields: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in fields.split(',').filter(|field| !field.is_empty()) {
            let (kind, value) = field.split_once(':').expect("bits:value");
            let (bits, count) = kind.split_once('*').unwrap_or((kind, "1"));
            let size = bits.parse::<usize>().expect("bits") / 8;
            let value = self.value(value).to_le_bytes();
            for _ in 0..count.parse().expect("a count") {
                bytes.resize(bytes.len().next_multiple_of(size), 0);
                bytes.extend(&value[..size]);
            }
        }
        bytes.resize(bytes.len().max(512), 0);
        bytes
    }

    /// Makes the context current again, and says whether it can still be used.
    fn settle(&mut self) -> bool {
        self.line("cuCtxSetCurrent ctx; cuCtxSynchronize") == "SUCCESS SUCCESS"
    }
}

/// The words of a call. Blanks in quotes belong to the word.
fn words(call: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = call.trim_start();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"').and_then(|text| text.find('"')) {
            Some(quote) => quote + 2,
            None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    words
}
