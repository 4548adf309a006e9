//! What is written is read, in few words, and what nobody writes is refused. Must not know who carries words.

use super::read::MOST_THREADS;
use super::*;
use crate::event::Place;
use crate::told::Damaged;

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn read(reader: &mut ThreadsReader, words: &[u64]) -> Result<Vec<ThreadRecord>, Damaged> {
    let mut all = Vec::new();
    reader.read(7, &bytes(words), |record| {
        all.push(record);
        Ok::<_, Damaged>(())
    })?;
    Ok(all)
}

fn kernel(stream: u32, sequence: u64, index: u32) -> Posted {
    Posted {
        stream,
        sequence,
        context: 2,
        correlation: correlation(stream, sequence),
        work: PostedWork::Kernel {
            module: 1 << 40,
            index,
            grid: [index + 1, 2, 3],
            block: [4, 5, 6],
            shared_bytes: 7,
        },
    }
}

fn work(work: PostedWork) -> Posted {
    Posted {
        work,
        ..kernel(9, u64::MAX, 0)
    }
}

/// What a thread does next in the tests: puts some work into streams, and a call.
fn some(step: u64, stream: u32, sequence: u64) -> (Vec<Posted>, Call) {
    let posted = match step % 11 {
        0..=4 => vec![kernel(stream, sequence, 3)],
        5 => vec![kernel(stream, sequence, (step % 130) as u32)],
        6 => vec![kernel(stream, sequence, 3), kernel(stream, sequence + 1, 3)],
        7 => vec![
            work(PostedWork::Copy {
                from: Place::Managed,
                to: Place::Pageable,
                bytes: u64::MAX,
            }),
            kernel(stream, sequence, 3),
        ],
        8 => vec![
            kernel(stream, sequence, 3),
            work(PostedWork::Fill { bytes: 5 }),
            work(PostedWork::Graph),
            work(PostedWork::Run {
                module: u64::MAX,
                index: u32::MAX,
                launches: 9,
            }),
        ],
        _ => Vec::new(),
    };
    let began = 1_000_000 + step * 5_000 + (step % 17) * 1_000_000_000;
    let first = posted.first();
    let call = Call {
        function: (step % 3 * 300) as u16,
        began,
        ended: began + step * 1_000 % 200_000_000_000,
        correlation: first.map_or(0, |posted| posted.correlation),
    };
    (posted, call)
}

#[test]
fn what_a_thread_writes_is_read() {
    let mut writer = ThreadWriter::default();
    let mut reader = ThreadsReader::default();
    let mut sequence = 5;
    for step in 0..2_000 {
        if step == 1_000 {
            writer.restart();
        }
        let stream = (step / 100) as u32;
        let (posted, call) = some(step, stream, sequence);
        sequence += posted.len() as u64;
        writer.begin();
        posted.iter().for_each(|posted| writer.posted(posted));
        writer.call(&call);
        let mut all = read(&mut reader, writer.words()).unwrap();
        writer.clear();
        // The call may stand before its work.
        let call = ThreadRecord::Call(call);
        let place = all
            .iter()
            .position(|record| *record == call)
            .expect("the call");
        all.remove(place);
        let posted: Vec<_> = posted.into_iter().map(ThreadRecord::Posted).collect();
        assert_eq!(all, posted, "{step}");
    }
}

#[test]
fn a_launch_like_others_is_one_word() {
    let mut writer = ThreadWriter::default();
    let words = |writer: &mut ThreadWriter, index: u32, sequence: u64| {
        let posted = kernel(4, sequence, index);
        writer.begin();
        writer.posted(&posted);
        assert!(writer.is_holding());
        writer.call(&Call {
            function: 11,
            began: sequence * 1_000,
            ended: sequence * 1_000 + 300,
            correlation: posted.correlation,
        });
        let count = writer.words().len();
        writer.clear();
        count
    };
    let first = words(&mut writer, 1, 1);
    assert!(first > 10, "{first}");
    assert_eq!(words(&mut writer, 1, 2), 1);
    assert_eq!(words(&mut writer, 2, 3), 1 + LONGEST, "another kernel");
    for sequence in (4..100).step_by(2) {
        assert_eq!(words(&mut writer, 1, sequence), 1);
        assert_eq!(words(&mut writer, 2, sequence + 1), 1);
    }
    assert!(words(&mut writer, 1, 300) > 1, "elsewhere");
}

#[test]
fn every_record_has_its_length_and_says_what_it_names() {
    let mut writer = ThreadWriter::default();
    let mut named_here = Vec::new();
    for step in 0..100 {
        let (posted, call) = some(step, 1, step * 10);
        writer.begin();
        posted.iter().for_each(|posted| writer.posted(posted));
        writer.call(&call);
    }
    let mut words = writer.words();
    while let Some(first) = words.first() {
        let (record, rest) = words.split_at(length(*first).unwrap());
        named_here.extend(named(record));
        words = rest;
    }
    for name in [
        Named::Function(300),
        Named::Function(600),
        Named::Kernel(1 << 40, 3),
        Named::Kernel(u64::MAX, u32::MAX),
    ] {
        assert!(named_here.contains(&name), "{name:?}");
    }
}

#[test]
fn ticks_are_put_on_the_clock() {
    let clock = TickClock {
        ticks: [1_000, 3_000],
        nanoseconds: [50_000, 51_000],
    };
    for (ticks, nanoseconds) in [
        (1_000, 50_000),
        (2_000, 50_500),
        (5_000, 52_000),
        (0, 49_500),
    ] {
        assert_eq!(clock.nanoseconds(ticks), nanoseconds);
    }
    assert_eq!(TickClock::default().nanoseconds(77), 77);
    // Of what no clock says there is some time.
    for ticks in [[0, 1], [u64::MAX, 0], [5, 4]] {
        let odd = TickClock {
            ticks,
            nanoseconds: [u64::MAX, 1],
        };
        assert!(odd.nanoseconds(u64::MAX / 2) >= 1);
    }
}

#[test]
fn what_no_thread_writes_is_refused_or_passed_over() {
    let mut reader = ThreadsReader::default();
    let call = [CALL, 1, 2, 0];
    assert_eq!(read(&mut reader, &call), Ok(vec![]), "of another recording");
    assert_eq!(read(&mut reader, &[START]), Ok(vec![]));
    assert_eq!(read(&mut reader, &call).unwrap().len(), 1);
    for words in [
        &[15][..],
        &[CALL, 1, 2],
        &[LAUNCH],
        &[KERNEL, 0, 0, 0],
        &[COPY | 9 << 4, 0, 0, 0, 0],
    ] {
        assert_eq!(read(&mut reader, words), Err(Damaged), "{words:?}");
    }
    let none = |_| Ok::<_, Damaged>(());
    assert_eq!(reader.read(7, &[0; 9], none), Err(Damaged));
    for tid in 0..100_000 {
        reader.read(tid, &bytes(&[START]), none).unwrap();
    }
    assert!(reader.count() <= MOST_THREADS);
}
