//! What is put into modules, run on the software GPU, and what comes of the records.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::AtomicU64;

use engine::CUresult;
use engine::conformance::rig::{Guest, params, simple_launch};
use ptx::rewrite::rewrite;

use super::ring::{CONTROL, Reader};
use super::*;

/// As a compiler has it: a format and arguments in local memory, and the result in global memory.
const SAYS: &str = r#"
.version 7.8
.target sm_75
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf
(
    .param .b64 vprintf_param_0,
    .param .b64 vprintf_param_1
)
;
.visible .entry say(.param .u64 format, .param .u64 arguments, .param .u64 result)
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [format];
    ld.param.u64 %rd2, [arguments];
    ld.param.u64 %rd3, [result];
    {
    .param .b64 param0;
    st.param.b64 [param0+0], %rd1;
    .param .b64 param1;
    st.param.b64 [param1+0], %rd2;
    .param .b32 retval0;
    call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %r1, [retval0+0];
    }
    atom.global.add.u32 %r2, [%rd3], %r1;
    ret;
}
"#;

const FAILS: &str = r#"
.version 7.8
.target sm_75
.address_size 64
.extern .func __assertfail
(
    .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e
)
;
.visible .entry fail(.param .u64 message, .param .u64 file, .param .u64 function)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<2>;
    .reg .pred %p1;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 5;
    @%p1 ret;
    ld.param.u64 %rd1, [message];
    ld.param.u64 %rd2, [file];
    ld.param.u64 %rd3, [function];
    {
    .param .b64 param0;
    st.param.b64 [param0], %rd1;
    .param .b64 param1;
    st.param.b64 [param1], %rd2;
    .param .b32 param2;
    st.param.b32 [param2], 77;
    .param .b64 param3;
    st.param.b64 [param3], %rd3;
    .param .b64 param4;
    st.param.b64 [param4], 1;
    call.uni __assertfail, (param0, param1, param2, param3, param4);
    }
    ret;
}
"#;

/// A rewritten module with a ring in the guest's host memory.
struct Printer {
    guest: Guest,
    module: u64,
    ring: u64,
    size: u64,
    /// Device memory for what is said, and how much of it is used.
    memory: u64,
    used: u64,
    reader: Reader,
}

impl Printer {
    fn new(engine: &engine_soft::SoftEngine, ptx: &str, size: u64) -> Self {
        let rewritten = rewrite(ptx, PRELUDE, REDIRECTS, ptx::Budget::default()).unwrap();
        let mut guest = Guest::new(engine);
        let memory = guest.commit(0, 1 << 20);
        // Managed variables, of which there are none, would be at the beginning.
        let ring = guest.commit_host() + (1 << 20);
        let (status, descriptor, log) = guest.image(1000, rewritten.text.as_bytes());
        assert_eq!(status, CUresult::SUCCESS, "{log}");
        let names = descriptor.variables.iter().map(|it| it.name.as_bytes());
        let index = names.clone().position(|name| name == RING.to_bytes());
        let (module, addresses) = guest.module_in(0, &rewritten.text);
        guest.upload(addresses[index.unwrap()], &ring.to_le_bytes());
        guest.set_host(ring + 8, &size.to_le_bytes());
        Self {
            guest,
            module,
            ring,
            size,
            memory,
            used: 0,
            reader: Reader::default(),
        }
    }

    /// Puts something where kernels can read it.
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.memory + self.used;
        self.used += (bytes.len() as u64 + 1).next_multiple_of(64);
        self.guest.upload(at, &[bytes, &[0]].concat());
        at
    }

    fn say(&mut self, blocks: u32, threads: u32, format: &str, arguments: &[u8]) -> u32 {
        let format = self.put(format.as_bytes());
        let arguments = self.put(arguments);
        let result = self.put(&[0; 4]);
        let launch = simple_launch(self.module, blocks, threads);
        let params = params(&[format, arguments, result]);
        assert_eq!(self.guest.launch_result(0, &launch, &params), Ok(()));
        self.guest.word(result)
    }

    /// Takes the records, as the engine does from its own memory.
    fn take(&mut self) -> Vec<Record> {
        let bytes = self
            .guest
            .host_bytes(self.ring, self.size + 8 * CONTROL as u64);
        let words: Vec<AtomicU64> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&word| AtomicU64::new(u64::from_le_bytes(word)))
            .collect();
        let mut records = Vec::new();
        self.reader.read(&words, |record| records.push(record));
        let after: Vec<u8> = words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        self.guest.set_host(self.ring, &after);
        records
    }

    fn texts(&mut self) -> Vec<String> {
        let texts = self.take().into_iter().map(|record| {
            let (sink, text) = record.text().unwrap();
            assert_eq!(sink, OUTPUT_STDOUT);
            String::from_utf8(text).unwrap()
        });
        texts.collect()
    }
}

fn engine() -> engine_soft::SoftEngine {
    let config = engine_soft::Config {
        workers: 2,
        memory: 64 << 20,
        ..engine_soft::Config::with_devices(1)
    };
    engine_soft::SoftEngine::new(&config).unwrap()
}

#[test]
fn what_kernels_print_is_what_c_prints() {
    let engine = engine();
    let mut printer = Printer::new(&engine, SAYS, 64 << 10);
    let name = printer.put(b"device memory");
    let long = printer.put(&[b'x'; 5000]);
    let wide = |value: u64| value.to_le_bytes().to_vec();
    let narrow = |value: u32| value.to_le_bytes().to_vec();
    let minus = (-5_i32).cast_unsigned();
    let float = |value: f64| wide(value.to_bits());
    for (format, arguments, expected, count) in [
        ("nothing\n", vec![], "nothing\n", 0),
        ("100%%|%5%", vec![], "100%|%5%", 0),
        (
            "%d %5u|%-5d|%05d%c",
            [minus, 42, 42, 42, 65].map(narrow).concat(),
            "-5    42|42   |00042A",
            5,
        ),
        (
            "%d %lld %hhu",
            [narrow(7), narrow(0), wide(u64::MAX), narrow(0x1ff)].concat(),
            "7 -1 255",
            3,
        ),
        (
            "%*d|%.*f",
            [narrow(4), narrow(7), narrow(2), narrow(0), float(1.0)].concat(),
            "   7|1.00",
            4,
        ),
        (
            "%f %.3e %g %a",
            [1.5, 12345.678, 0.0001, 1.0].map(float).concat(),
            "1.500000 1.235e+04 0.0001 0x1p+0",
            4,
        ),
        (
            "%s, %s and %.3s %p%%\n",
            [name, 0, name, 0x1234].map(wide).concat(),
            "device memory, (null) and dev 0x1234%\n",
            4,
        ),
        ("%n %y %", vec![], "%n %y %", 0),
    ] {
        assert_eq!(printer.say(1, 1, format, &arguments), count, "{format}");
        assert_eq!(printer.texts(), [expected], "{format}");
    }
    // Long strings end somewhere.
    assert_eq!(printer.say(1, 1, "%s!", &wide(long)), 1);
    assert_eq!(printer.texts(), [format!("{}!", "x".repeat(4096))]);
    // No format.
    let result = printer.put(&[0; 4]);
    let launch = simple_launch(printer.module, 1, 1);
    let nothing = params(&[0, 0, result]);
    assert_eq!(printer.guest.launch_result(0, &launch, &nothing), Ok(()));
    assert_eq!(printer.guest.word(result), u32::MAX);
    assert!(printer.take().is_empty());
}

#[test]
fn many_threads_print_into_a_ring_that_goes_round() {
    let engine = engine();
    let mut printer = Printer::new(&engine, SAYS, 8192);
    for round in 0..40 {
        let format = format!("{}%d", "y".repeat(round));
        assert_eq!(printer.say(3, 32, &format, &[9, 0, 0, 0]), 96);
        let texts = printer.texts();
        let record = 16 + (round + 2).next_multiple_of(8) + 8;
        let fit = 8192 / record.next_multiple_of(16);
        // What is passed over at the end may have had one more.
        assert!(
            texts.len() == 96.min(fit) || texts.len() + 1 == fit,
            "{} of {fit}",
            texts.len()
        );
        let expected = format!("{}9", "y".repeat(round));
        assert!(texts.iter().all(|text| *text == expected));
    }
}

#[test]
fn a_failed_assertion_leaves_its_message() {
    let engine = engine();
    let mut printer = Printer::new(&engine, FAILS, 8192);
    let [message, file, function] =
        [&b"1 < 0"[..], b"some/file.cu", b"void kernel(int)"].map(|text| printer.put(text));
    let params = params(&[message, file, function]);
    let launch = simple_launch(printer.module, 1, 32);
    let result = printer.guest.launch_result(0, &launch, &params);
    assert_eq!(
        result,
        Err(CUresult::ERROR_ASSERT),
        "the driver's own ends it"
    );
    let [record] = &printer.take()[..] else {
        panic!("one record");
    };
    let (sink, text) = record.text().unwrap();
    assert_eq!(sink, OUTPUT_STDERR);
    assert_eq!(
        String::from_utf8(text).unwrap(),
        "some/file.cu:77: void kernel(int): block: [0,0,0], thread: [5,0,0] Assertion `1 < 0` failed.\n"
    );
}

#[test]
fn nothing_is_believed_of_a_ring() {
    let ring = |words: &[(usize, u64)]| {
        let ring: Vec<AtomicU64> = (0..CONTROL + 32).map(|_| AtomicU64::new(0)).collect();
        for &(at, word) in words {
            ring[CONTROL + at].store(word, Ordering::Relaxed);
        }
        ring
    };
    let read = |ring: &[AtomicU64]| {
        let mut records = Vec::new();
        let mut reader = Reader::default();
        for _ in 0..3 {
            reader.read(ring, |record| records.push(record));
        }
        records
    };
    let printed = PRINTED << 56;
    for header in [
        1,
        printed,
        printed | 8,
        printed | 24,
        printed | 272,
        printed | ((1 << 56) - 16),
        (4 << 56) | 16,
        u64::MAX,
    ] {
        assert_eq!(read(&ring(&[(0, header)])), [], "{header:#x}");
    }
    // Words of whatever content make some text or none.
    let mut state = 7_u64;
    for length in 0..200 {
        for kind in [PRINTED, FAILED] {
            let words = (0..length).map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                if state >> 62 == 0 { state } else { state >> 58 }
            });
            let record = Record {
                kind,
                words: words.collect(),
            };
            let _ = record.text();
        }
    }
}

#[test]
fn the_oldest_records_make_room_and_text_is_taken_in_pieces() {
    let record = |text: &str| {
        let mut words = vec![text.len() as u64];
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(text.len().next_multiple_of(8), 0);
        words.extend(bytes.as_chunks().0.iter().map(|&w| u64::from_le_bytes(w)));
        Record {
            kind: PRINTED,
            words,
        }
    };
    let output = Output::default();
    let mut out = Vec::new();
    assert_eq!(output.take_text(100, &mut out), None);
    for text in ["one, ", "two, ", "three"] {
        output.push(record(text));
    }
    assert_eq!(output.take_text(3, &mut out), Some(OUTPUT_STDOUT));
    assert_eq!(out, b"one");
    while output.take_text(3, &mut out).is_some() {}
    assert_eq!(out, b"one, two, three");
    output.set_limit(0);
    for text in ["one", "two", "three"] {
        output.push(record(text));
    }
    out.clear();
    while output.take_text(100, &mut out).is_some() {}
    assert_eq!(out, b"three");
    assert_eq!(output.state.lock().bytes, 0);
    // Rings are only so many.
    let bytes = output.ring_bytes().unwrap();
    let more = std::iter::from_fn(|| output.ring_bytes()).count();
    assert_eq!((more + 1) * bytes, MOST_RING_BYTES);
    output.ring_freed(bytes);
    assert!(output.ring_bytes().is_some());
}
