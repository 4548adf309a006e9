//! What the page is given of a recording, and what it is not. Must not ask a daemon.

use super::*;
use protocol::operations::SpanWriter;
use trace::thread_log::ThreadWriter;
use trace::told::Posted;

fn span(stream: u32, sequence: u64, began: u64, ended: u64, kind: u64) -> OperationSpan {
    OperationSpan {
        at: At { stream, sequence },
        device: 0,
        kind,
        began,
        ended,
    }
}

fn spans(all: &[OperationSpan]) -> RecordedPart {
    let mut writer = SpanWriter::default();
    all.iter().for_each(|span| writer.put(span));
    writer.put_reached(At::default());
    RecordedPart::Spans(writer.take().into())
}

#[test]
fn work_has_names_and_waits_have_reasons() {
    let mut recording = Recording::new(1_000_000, 10);
    let mut told = Vec::new();
    Told::Kernel {
        module: 3,
        index: 1,
        shared_bytes: 0,
        registers: 0,
        name: "chu\u{1b}rn",
    }
    .put(&mut told);
    let mut thread = ThreadWriter::default();
    thread.posted(&Posted {
        stream: 5,
        sequence: 2,
        context: 0,
        correlation: 0,
        work: PostedWork::Kernel {
            module: 3,
            index: 1,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
        },
    });
    thread.begin();
    let words: Vec<u8> = thread
        .words()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    Told::Words {
        tid: 9,
        words: &words,
    }
    .put(&mut told);
    recording.take(7, RecordedPart::Told(told.into()));
    recording.take(
        7,
        spans(&[
            span(5, 1, 0, 900_000, 0),
            // Two pieces of one operation, and one that began before.
            span(5, 2, 1_500_000, 1_600_000, 0),
            span(5, 2, 1_700_000, 1_900_000, 0),
            span(5, 3, 900_000, 1_100_000, SPAN_COPY),
            span(5, 2, 1_200_000, 1_500_000, HoldReason::Others.span_kind()),
            span(5, 2, 1_100_000, 1_150_000, HoldReason::Event.span_kind()),
        ]),
    );
    recording.take(7, RecordedPart::Dropped { count: 4 });
    recording.take(7, RecordedPart::Told(vec![99].into()));
    let told = recording.told();
    let name = |text: &str| {
        let names = told["names"].as_array().unwrap();
        names.iter().position(|name| name == text).expect(text)
    };
    let client = &told["clients"][0];
    assert_eq!(
        (&client["session"], &client["dropped"]),
        (&json!(7), &json!(4))
    );
    let track = |kind| {
        let tracks = client["tracks"].as_array().unwrap();
        let found = tracks.iter().find(|track| track["kind"] == kind);
        found.unwrap()["spans"].clone()
    };
    let (copy, kernel) = (name("copy"), name("chu\\u{1b}rn"));
    assert_eq!(
        track("work"),
        json!([[0, 100, copy, 1], [500, 400, kernel, 1]])
    );
    let others = name("others have the device");
    assert_eq!(track("wait"), json!([[200, 300, others, 1]]));
    assert_eq!(track("hold")[0][1], 50);
    let first = json!([7, "work", kernel, 1, 400, 400]);
    assert_eq!(told["table"][0], first);
    assert_eq!(told["table"].as_array().unwrap().len(), 4);
}

#[test]
fn what_is_too_much_is_put_together_or_counted() {
    let mut recording = Recording::new(0, 10);
    let one = |index: u64| span(1, index, index * 1_000, index * 1_000 + 500, 0);
    let some: Vec<_> = (0..500_000).map(one).collect();
    for _ in 0..3 {
        recording.take(1, spans(&some));
    }
    for session in 0..100 {
        recording.take(session, spans(&[one(1)]));
    }
    assert_eq!((recording.clients.len(), recording.spans), (CLIENTS, SPANS));
    assert_eq!(recording.left_out, 100 - CLIENTS as u64);
    let told = recording.told();
    let track = told["clients"][1]["tracks"][0]["spans"].as_array().unwrap();
    assert!(track.len() <= ALL_DRAWN / CLIENTS, "{}", track.len());
    let counted = |track: &[Value]| track.iter().map(|it| it[3].as_u64().unwrap()).sum::<u64>();
    assert_eq!(counted(track), 500_000, "each operation once");
    // Of many names, far from each other.
    let mut drawn: Vec<Drawn> = (0..100_000)
        .map(|at| (at * 90, 1, Some(at as usize), 1))
        .collect();
    put_together(&mut drawn, 10_000_000, 50);
    assert!(drawn.len() <= 50 && drawn.iter().map(|it| it.3).sum::<u64>() == 100_000);
    assert!(drawn[0].2.is_none(), "of several names");
}

#[test]
fn one_is_recorded_at_a_time() {
    let line = Arc::new(TimeLine::default());
    let state = || serde_json::from_slice::<Value>(&line.now()).unwrap()["state"].clone();
    assert_eq!(state(), "nothing");
    for seconds in [0, 11, u64::MAX] {
        let seconds = Some(seconds);
        assert!(line.start(&Wanted { seconds }).is_err());
    }
    *line.0.lock() = State::Recording(Instant::now());
    assert_eq!(state(), "recording");
    assert!(
        line.start(&Wanted::default())
            .unwrap_err()
            .contains("wait for it")
    );
}
