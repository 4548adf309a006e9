//! What the joiner writes of what was told and of when the device worked. Must not know the file's text beyond its JSON.

use super::*;
use crate::event::{Clock, Process};
use crate::thread_log::{Call, ThreadWriter};

fn joiner(file: &mut Vec<u8>) -> Joiner<&mut Vec<u8>> {
    let clock = Clock {
        monotonic_ns: 0,
        wall_ns: 0,
        boot: String::new(),
    };
    let process = Process {
        pid: 42,
        name: "p".into(),
        host: String::new(),
    };
    Joiner::new(Writer::new(file, clock, &process).unwrap())
}

fn span(sequence: u64, began_ns: u64, ended_ns: u64) -> Span {
    Span {
        stream: 3,
        sequence,
        began_ns,
        ended_ns,
        device: 0,
        kind: SpanKind::Kernel,
    }
}

/// What a thread tells that has put work into the stream, in a call each.
fn posted(sequence: u64, work: PostedWork) -> Vec<u8> {
    let mut writer = ThreadWriter::default();
    let correlation = 100 + sequence;
    writer.posted(&Posted {
        stream: 3,
        sequence,
        context: 1,
        correlation,
        work,
    });
    writer.call(&Call {
        function: 5,
        began: 10,
        ended: 20,
        correlation,
    });
    let words: Vec<u8> = writer
        .words()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    bytes(&[Told::Words {
        tid: 43,
        words: &words,
    }])
}

fn launch(sequence: u64, index: u32) -> Vec<u8> {
    posted(
        sequence,
        PostedWork::Kernel {
            module: 9,
            index,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
        },
    )
}

fn bytes(all: &[Told<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    all.iter().for_each(|told| told.put(&mut bytes));
    bytes
}

/// Name, begin and duration of each kernel, in the file's order.
fn kernels(file: &[u8]) -> Vec<(String, f64, f64)> {
    let all: serde_json::Value = serde_json::from_slice(file).unwrap();
    let events = all["traceEvents"].as_array().unwrap().iter();
    events
        .filter(|event| event["cat"] == "kernel")
        .map(|event| {
            let number = |of: &str| event[of].as_f64().unwrap();
            let name = event["name"].as_str().unwrap().to_owned();
            (name, number("ts"), number("dur"))
        })
        .collect()
}

#[test]
fn work_waits_for_its_last_piece_and_for_its_name() {
    let mut file = Vec::new();
    let mut joiner = joiner(&mut file);
    joiner.ran(span(1, 1_000, 2_000)).unwrap();
    joiner.ran(span(1, 5_000, 6_000)).unwrap();
    joiner.write(10_000, 100).unwrap();
    assert_eq!(joiner.records(), 0, "it has not ended");
    joiner.reached(3, 1);
    joiner.write(10_000, 100).unwrap();
    assert_eq!(joiner.records(), 0, "nobody has said what it is");
    let kernel = Told::Kernel {
        module: 9,
        index: 4,
        shared_bytes: 0,
        registers: 8,
        name: "churn",
    };
    joiner.told(&bytes(&[kernel])).unwrap();
    joiner.told(&launch(1, 4)).unwrap();
    assert_eq!(joiner.records(), 1, "the call");
    joiner.write(10_000, 100).unwrap();
    joiner.flush(10_000).unwrap();
    drop(joiner);
    assert_eq!(kernels(&file), [("churn".to_owned(), 1.0, 5.0)]);
}

#[test]
fn work_of_which_nothing_is_told_has_no_name() {
    let mut file = Vec::new();
    let mut joiner = joiner(&mut file);
    for sequence in 1..=3 {
        joiner
            .ran(span(sequence, sequence * 1_000, sequence * 1_000 + 500))
            .unwrap();
    }
    joiner.reached(3, 2);
    // The first was put there before all that is told now; the second is waited for, and the third may have more.
    let until = Told::Until { time_ns: 1_500 };
    joiner.told(&bytes(&[until])).unwrap();
    joiner.write(10_000, 100).unwrap();
    assert_eq!(joiner.records(), 1);
    joiner.write(10_000 + PATIENCE_NS, 100).unwrap();
    assert_eq!(joiner.records(), 2);
    joiner.dropped(7);
    joiner.finish(20_000).unwrap();
    assert_eq!((joiner.records(), joiner.dropped_in_all()), (3, 7));
    drop(joiner);
    assert!(kernels(&file).iter().all(|(name, ..)| name == "kernel"));
}

#[test]
fn runs_and_waits_are_told_apart_from_kernels() {
    let mut file = Vec::new();
    let mut joiner = joiner(&mut file);
    let kernel = Told::Kernel {
        module: 9,
        index: 4,
        shared_bytes: 0,
        registers: 8,
        name: "churn",
    };
    let run = PostedWork::Run {
        module: 9,
        index: 4,
        launches: 3,
    };
    joiner.told(&bytes(&[kernel])).unwrap();
    joiner.told(&posted(1, run)).unwrap();
    let wait = Span {
        kind: SpanKind::Held {
            why: "others",
            is_others: true,
            is_order: false,
        },
        ..span(1, 500, 1_000)
    };
    joiner.ran(wait).unwrap();
    joiner
        .ran(Span {
            kind: SpanKind::Held {
                why: "event",
                is_others: false,
                is_order: true,
            },
            ..span(1, 200, 500)
        })
        .unwrap();
    joiner.ran(span(1, 1_000, 2_000)).unwrap();
    joiner.finish(3_000).unwrap();
    drop(joiner);
    let name = "graph: churn and 2 more".to_owned();
    assert_eq!(kernels(&file), [(name, 1.0, 1.0)]);
    let all: serde_json::Value = serde_json::from_slice(&file).unwrap();
    let mut events = all["traceEvents"].as_array().unwrap().iter();
    let wait = events.find(|event| event["cat"] == "gpu_wait").unwrap();
    assert_eq!(
        (&wait["dur"], &wait["args"]["context"]),
        (&0.5.into(), &1.into())
    );
    let mut events = all["traceEvents"].as_array().unwrap().iter();
    let hold = events.find(|event| event["cat"] == "gpu_hold").unwrap();
    assert_eq!(
        (&hold["name"], &hold["dur"]),
        (&"event".into(), &0.3.into())
    );
    assert_ne!(hold["tid"], wait["tid"], "they may overlap");
}

#[test]
fn what_cannot_be_read_ends_it() {
    let mut file = Vec::new();
    let mut joiner = joiner(&mut file);
    let error = joiner.told(&[99]).unwrap_err();
    assert!(matches!(error, JoinError::Damaged(_)), "{error}");
    joiner.finish(0).unwrap();
    drop(joiner);
    assert!(kernels(&file).is_empty());
}

/// A disk that is full from the second block on.
#[derive(Debug)]
struct Full(bool);

impl Storage for Full {
    fn write_at(&mut self, _: &[u8], _: u64) -> io::Result<()> {
        match std::mem::replace(&mut self.0, true) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn truncate(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn of_a_full_disk_the_first_error_is_told() {
    let clock = Clock {
        monotonic_ns: 0,
        wall_ns: 0,
        boot: String::new(),
    };
    let process = Process {
        pid: 42,
        name: "p".into(),
        host: String::new(),
    };
    let mut joiner = Joiner::new(Writer::new(Full(false), clock, &process).unwrap());
    for sequence in 1..1_000 {
        let began = sequence * 1_000;
        joiner.ran(span(sequence, began, began + 500)).unwrap();
    }
    let error = joiner.finish(2_000_000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}
