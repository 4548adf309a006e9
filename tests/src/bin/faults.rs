//! A client that does a wrong, or works beside one that does and checks each of its results: the programs of the
//! fault matrix.
//!
//! `faults guilty WRONG` says `ready`, waits for a line, does it, and says `in the middle` where it does not end by
//! itself; `faults free` says how much memory the device has left; `faults present` says `running`, has a
//! context and nothing else until its input ends; `faults neighbour WORK` says `running` after its first checked round and works until its input ends. The
//! last line of both is `exact ROUNDS MICROSECONDS` (the longest round), `told CODE ROUNDS MICROSECONDS`, or `wrong
//! WHAT`. Started by `tests::fault_matrix`. Must not know whose library answers.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tests::cuda::{Address, Code, Driver, Handle};
use tests::program::{hear, say};

const KERNELS: &str = include_str!("../../kernels/kernels.ptx");

/// The kernels that fault by themselves.
const FAULTS: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n\
    .global .align 1 .b8 text[4] = {120, 61, 49, 0};\n\
    .visible .entry fail() { .reg .b64 %d<3>; mov.u64 %d1, text; cvta.global.u64 %d2, %d1;\n\
    { .param .b64 a; st.param.b64 [a], %d2; .param .b64 b; st.param.b64 [b], %d2; .param .b32 c; st.param.b32 [c], 12;\n\
    .param .b64 d; st.param.b64 [d], %d2; .param .b64 e; st.param.b64 [e], 1; call __assertfail, (a, b, c, d, e); } ret; }\n\
    .visible .entry stop() { trap; ret; }\n";

/// Calls without end, each with a frame that it writes. By itself, as a driver may refuse recursion whose stack it cannot size.
const RECURSION: &str = ".version 7.0\n.target sm_52\n.address_size 64\n\
    .func (.param .b32 r) f(.param .b32 a) { .local .align 4 .b8 frame[256]; .reg .b32 %r<5>; .reg .b64 %d<3>;\n\
    ld.param.u32 %r1, [a]; mov.u64 %d1, frame; st.local.u32 [%d1], %r1; add.u32 %r2, %r1, 1;\n\
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r2; call (q), f, (p); ld.param.b32 %r3, [q]; }\n\
    ld.local.u32 %r4, [%d1]; add.u32 %r3, %r3, %r4; st.param.b32 [r], %r3; ret; }\n\
    .visible .entry deep() { .reg .b32 %r<3>; mov.u32 %r1, %tid.x;\n\
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call (q), f, (p); ld.param.b32 %r2, [q]; } ret; }\n";

const NULL: Handle = 0;
const MIB: usize = 1 << 20;
const CU_STREAM_NON_BLOCKING: u32 = 1;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["guilty", wrong] => match guilty(wrong) {
            Ok(()) => say("exact 0 0"),
            Err(code) => say(&format!("told {code} 0 0")),
        },
        ["neighbour", work] => {
            let mut rounds = Rounds::default();
            let said = match neighbour(work, &mut rounds) {
                Ok(()) if rounds.wrong.is_empty() => "exact".to_owned(),
                Ok(()) => format!("wrong {}", rounds.wrong),
                Err(code) => format!("told {code}"),
            };
            say(&format!(
                "{said} {} {}",
                rounds.count,
                rounds.longest.as_micros()
            ));
        }
        ["free"] => match Driver::ready().memory() {
            Ok((free, _)) => say(&format!("free {free}")),
            Err(code) => say(&format!("told {code} 0 0")),
        },
        ["present"] => {
            let driver = Driver::ready();
            say("running");
            hear();
            match driver.synchronize() {
                Ok(()) => say("exact 0 0"),
                Err(code) => say(&format!("told {code} 0 0")),
            }
        }
        _ => panic!("faults guilty WRONG, faults neighbour WORK, faults present, or faults free"),
    }
}

/// Does a wrong.
fn guilty(wrong: &str) -> Result<(), Code> {
    let driver = Driver::open();
    driver.enter()?;
    let module = driver.module(KERNELS)?;
    let data = driver.alloc(4096)?;
    let launch = |kernel: Handle, values: &[u64]| {
        driver.launch(kernel, 1, 1, NULL, values)?;
        driver.synchronize()
    };
    let ready = || {
        say("ready");
        hear();
    };
    match wrong {
        "illegal-address" | "misaligned-address" => {
            let write = driver.function(module, "write_to")?;
            ready();
            let at = if wrong == "illegal-address" {
                0x1230
            } else {
                data + 1
            };
            launch(write, &[at, 42])
        }
        "assert" | "trap" => {
            let module = driver.module(FAULTS)?;
            let name = if wrong == "assert" { "fail" } else { "stop" };
            let kernel = driver.function(module, name)?;
            ready();
            launch(kernel, &[])
        }
        "stack-overflow" => {
            let kernel = driver.function(driver.module(RECURSION)?, "deep")?;
            ready();
            launch(kernel, &[])
        }
        "endless-kernel" => {
            let kernel = driver.function(module, "forever")?;
            ready();
            driver.launch(kernel, 1, 32, NULL, &[data])?;
            say("in the middle");
            driver.synchronize()
        }
        "endless-copies" => {
            let mut values = vec![7_u64; 64 * MIB / 8];
            let data = driver.alloc(64 * MIB)?;
            ready();
            driver.upload(data, &values)?;
            say("in the middle");
            loop {
                driver.upload(data, &values)?;
                driver.download(&mut values, data)?;
            }
        }
        "out-of-memory" => {
            ready();
            let mut taken = Vec::new();
            let refused = loop {
                match driver.alloc(64 * MIB) {
                    Ok(data) => taken.push(data),
                    Err(code) => break code,
                }
            };
            for data in taken {
                // SAFETY: an address of this program's own.
                unsafe { driver.mem_free(data)? };
            }
            // It is told, and can go on.
            let data = driver.alloc(64 * MIB)?;
            // SAFETY: an address of this program's own.
            unsafe { driver.mem_free(data)? };
            Err(refused)
        }
        other => panic!("no wrong is called {other:?}"),
    }
}

/// What a neighbour has done.
#[derive(Debug, Default)]
struct Rounds {
    count: u64,
    longest: Duration,
    /// The first result that was not exact.
    wrong: String,
}

impl Rounds {
    /// Works until the program's input ends, or a result is wrong. `round` gives what was wrong.
    fn work(&mut self, mut round: impl FnMut(u64) -> Result<(), Wrong>) -> Result<(), Code> {
        let over = Arc::new(AtomicBool::new(false));
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            let result = round(self.count);
            if self.count > 0 {
                self.longest = self.longest.max(began.elapsed());
            }
            match result {
                Ok(()) => self.count += 1,
                Err(Wrong::Code(code)) => return Err(code),
                Err(Wrong::Result(wrong)) => {
                    self.wrong = wrong;
                    return Ok(());
                }
            }
            if self.count == 1 {
                say("running");
                let over = Arc::clone(&over);
                std::thread::spawn(move || {
                    let mut line = String::new();
                    // Its end as well ends the work.
                    std::io::stdin().lock().read_line(&mut line).ok();
                    over.store(true, Ordering::Relaxed);
                });
            }
        }
        Ok(())
    }
}

/// Why a round was not as it should be.
#[derive(Debug)]
enum Wrong {
    Code(Code),
    Result(String),
}

impl From<Code> for Wrong {
    fn from(code: Code) -> Self {
        Self::Code(code)
    }
}

/// That a word is what it should be.
fn exact(what: &str, value: u64, expected: u64) -> Result<(), Wrong> {
    if value == expected {
        return Ok(());
    }
    let text = format!("{what}: {value:#x}, not {expected:#x}");
    Err(Wrong::Result(text.replace(' ', "_")))
}

/// The kernels but the one that has a variable, which not every server can take over.
fn without_variables() -> String {
    let (before, from) = KERNELS
        .split_once(".visible .entry bump(")
        .expect("there is such a kernel");
    let (_, after) = from.split_once("// .globl").expect("another follows");
    let text = format!("{before}// .globl{after}");
    text.lines()
        .filter(|line| !line.starts_with(".global "))
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn neighbour(work: &str, rounds: &mut Rounds) -> Result<(), Code> {
    let driver = Driver::open();
    driver.enter()?;
    let module = match work {
        "graph" => driver.module(KERNELS)?,
        _ => driver.module(&without_variables())?,
    };
    let seed = u64::from(std::process::id());
    match work {
        "idle" => idle(&driver, seed, rounds),
        "kernels" => kernels(&driver, module, seed, rounds, 0),
        "third" => kernels(&driver, module, seed, rounds, 2),
        "graph" => graph(&driver, module, rounds),
        "copies" => copies(&driver, seed, rounds),
        other => panic!("no work is called {other:?}"),
    }
}

/// Has memory, does nothing, and looks at the memory in the end.
fn idle(driver: &Driver, seed: u64, rounds: &mut Rounds) -> Result<(), Code> {
    let mut values: Vec<u64> = (0..MIB as u64 / 8).map(|i| i ^ seed).collect();
    let data = driver.alloc(MIB)?;
    driver.upload(data, &values)?;
    rounds.work(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    })?;
    driver.download(&mut values, data)?;
    let wrong = values.iter().enumerate().find_map(|(at, value)| {
        let expected = at as u64 ^ seed;
        exact("word", *value, expected).err()
    });
    if let Some(Wrong::Result(wrong)) = wrong {
        rounds.wrong = wrong;
    }
    Ok(())
}

/// Kernels of which one reads what the other wrote, and between the rounds `pauses` times as long nothing.
fn kernels(
    driver: &Driver,
    module: Handle,
    seed: u64,
    rounds: &mut Rounds,
    pauses: u32,
) -> Result<(), Code> {
    const BLOCKS: usize = 16;
    const COUNT: usize = BLOCKS * 256;
    let sequence = driver.function(module, "sequence")?;
    let sum = driver.function(module, "block_sum")?;
    let (data, sums) = (driver.alloc(COUNT * 8)?, driver.alloc(BLOCKS * 8)?);
    let (mut values, mut totals) = (vec![0_u64; COUNT], vec![0_u64; BLOCKS]);
    let mut took = Duration::ZERO;
    rounds.work(|round| {
        std::thread::sleep(took * pauses);
        let began = Instant::now();
        driver.launch(sequence, 16, 128, NULL, &[data, COUNT as u64, seed, round])?;
        driver.launch(sum, 16, 256, NULL, &[data, sums])?;
        driver.download(&mut values, data)?;
        driver.download(&mut totals, sums)?;
        for (at, value) in values.iter().enumerate() {
            exact("element", *value, at as u64 * seed + round)?;
        }
        for (block, total) in totals.iter().enumerate() {
            exact("sum", *total, values[block * 256..][..256].iter().sum())?;
        }
        took = began.elapsed().min(Duration::from_millis(50));
        Ok(())
    })
}

/// A graph whose kernels count on in a variable of their module, so that a kernel too many or too few shows.
fn graph(driver: &Driver, module: Handle, rounds: &mut Rounds) -> Result<(), Code> {
    const KERNELS: u64 = 8;
    /// What the variable is at first.
    const FIRST: u64 = 7;
    let bump = driver.function(module, "bump")?;
    let data: Address = driver.alloc(8)?;
    let stream = driver.stream(CU_STREAM_NON_BLOCKING)?;
    let (mut graph, mut exec) = (0, 0);
    // SAFETY: the out pointers are locals', and the stream is this program's own.
    unsafe {
        driver.stream_begin_capture(stream, 0)?;
        for _ in 0..KERNELS {
            driver.launch(bump, 1, 1, stream, &[data])?;
        }
        driver.stream_end_capture(stream, &raw mut graph)?;
        driver.graph_instantiate(&raw mut exec, graph, 0)?;
    }
    let mut counted = [0_u64];
    rounds.work(|round| {
        // SAFETY: handles of this program's own.
        unsafe {
            driver.graph_launch(exec, stream)?;
            driver.stream_synchronize(stream)?;
        }
        driver.download(&mut counted, data)?;
        // The kernel stores what the variable was before.
        exact("count", counted[0], FIRST + KERNELS * (round + 1) - 1)
    })
}

/// Sixteen mebibytes there and back, other ones each time.
fn copies(driver: &Driver, seed: u64, rounds: &mut Rounds) -> Result<(), Code> {
    const WORDS: usize = 16 * MIB / 8;
    let data = driver.alloc(WORDS * 8)?;
    let (mut there, mut back) = (vec![0_u64; WORDS], vec![0_u64; WORDS]);
    rounds.work(|round| {
        let word = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round;
        there.fill(word);
        driver.upload(data, &there)?;
        driver.download(&mut back, data)?;
        match back.iter().find(|value| **value != word) {
            Some(value) => exact("word", *value, word),
            None => Ok(()),
        }
    })
}
