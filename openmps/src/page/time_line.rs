//! A time line of ten seconds of all clients, for the page to draw: recorded when somebody asks for it, one at a time.
//!
//! The answers start it and give what came of it. Recorded is as `openmps trace --all-processes` has it, what the device did without the
//! programs' calls. What clients tell of themselves is not trusted. Must not know HTTP, nor how it is drawn.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::directories::{DEFAULT_PIPE_DIRECTORY, named_pipe_directory};
use daemon_interface::time_lines::{Recorded, TimeLines};
use engine::clock;
use parking_lot::Mutex;
use protocol::control_messages::{RecordedPart, TimeLineRequest};
use protocol::operations::{At, HoldReason, OperationSpan, SPAN_COPY, SpanReader, SpanRecord};
use serde::Deserialize;
use serde_json::{Value, json};
use trace::event::Place;
use trace::thread_log::{ThreadRecord, ThreadsReader};
use trace::told::{Damaged, PostedWork, Reader, Told};

use crate::usage::printable;

/// For how many seconds it records, unless it is asked for fewer.
const SECONDS: u64 = 10;

/// For how long what was recorded before the end is waited for.
const LATE: Duration = Duration::from_millis(200);

/// How long the daemon may take to take the question, and between two looks at what came.
const PATIENCE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(50);

/// Clients, spans, operations and names that are kept of all; more are counted.
const CLIENTS: usize = 64;
const SPANS: usize = 1 << 20;
const POSTED: usize = 1 << 20;
const NAMES: usize = 1 << 14;

/// Characters of a name.
const NAME: usize = 200;

/// Tracks of a client, and of all.
const TRACKS: usize = 24;
const ALL_TRACKS: usize = 400;

/// Spans of all tracks together, and of one, that are given one by one; more are put together with their neighbours.
const ALL_DRAWN: usize = 60_000;
const DRAWN: usize = 6_000;

/// Lines of the table.
const LINES: usize = 200;

#[derive(Debug, Default)]
enum State {
    /// Nobody has asked yet.
    #[default]
    Nothing,
    /// Until then.
    Recording(Instant),
    /// What came of it, as JSON.
    There(Arc<Vec<u8>>),
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    seconds: Option<u64>,
}

/// The last time line.
#[derive(Debug, Default)]
pub struct TimeLine(Mutex<State>);

impl TimeLine {
    /// Begins to record, unless it does already.
    ///
    /// # Errors
    /// Why it does not.
    pub fn start(self: &Arc<Self>, wanted: &Wanted) -> Result<(), String> {
        let seconds = wanted.seconds.unwrap_or(SECONDS);
        if !(1..=SECONDS).contains(&seconds) {
            return Err(format!("a time line has 1 to {SECONDS} seconds"));
        }
        let mut state = self.0.lock();
        if matches!(*state, State::Recording(_)) {
            return Err("a time line is being recorded: wait for it".to_owned());
        }
        let this = Arc::clone(self);
        std::thread::Builder::new()
            .name("page trace".to_owned())
            .spawn(move || {
                let came = match record(seconds) {
                    Ok(recording) => recording.told(),
                    Err(error) => json!({ "state": "failed", "error": error }),
                };
                *this.0.lock() = State::There(Arc::new(came.to_string().into_bytes()));
            })
            .map_err(|error| format!("no thread can be made: {error}"))?;
        *state = State::Recording(Instant::now() + Duration::from_secs(seconds));
        Ok(())
    }

    /// What there is, as JSON.
    pub fn now(&self) -> Arc<Vec<u8>> {
        let value = match &*self.0.lock() {
            State::There(bytes) => return Arc::clone(bytes),
            State::Nothing => json!({ "state": "nothing" }),
            State::Recording(until) => {
                let left = until.saturating_duration_since(Instant::now());
                json!({ "state": "recording", "left": left.as_secs_f64().ceil() })
            }
        };
        Arc::new(value.to_string().into_bytes())
    }
}

/// Records all clients of the daemon that this user may see.
fn record(seconds: u64) -> Result<Recording, String> {
    let directory: PathBuf =
        named_pipe_directory().unwrap_or_else(|| DEFAULT_PIPE_DIRECTORY.into());
    let request = TimeLineRequest { pid: None };
    let lines = TimeLines::record(&directory.join("control"), request, PATIENCE);
    let lines = lines.map_err(|error| format!("the daemon does not record: {error}"))?;
    let mut recording = Recording::new(clock::now(), seconds);
    let end = Instant::now() + Duration::from_secs(seconds) + LATE;
    while Instant::now() < end {
        match lines.next(ROUND) {
            Ok(Some(Recorded::Client(facts))) => {
                let name = (facts.pid, cut(&facts.program));
                if let Some(client) = recording.client(facts.session) {
                    (client.pid, client.program) = name;
                }
            }
            Ok(Some(Recorded::Part(session, part))) => recording.take(session, part),
            Ok(Some(Recorded::End)) => break,
            Ok(None) => {}
            Err(error) => return Err(format!("the recording ended: {error}")),
        }
    }
    Ok(recording)
}

/// What a span tells of, as the page draws it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Work,
    Wait,
    Hold,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Wait => "wait",
            Self::Hold => "hold",
        }
    }
}

#[derive(Debug, Default)]
struct Client {
    pid: i32,
    program: String,
    spans: Vec<OperationSpan>,
    threads: ThreadsReader,
    posted: HashMap<At, PostedWork>,
    kernels: HashMap<(u64, u32), String>,
    dropped: u64,
}

#[derive(Debug)]
struct Recording {
    began: u64,
    seconds: u64,
    clients: BTreeMap<u64, Client>,
    spans: usize,
    posted: usize,
    names: usize,
    left_out: u64,
}

/// What is drawn of a track: from when, for how long, what, and how many operations that is.
type Drawn = (u64, u64, Option<usize>, u64);

/// By device, stream and kind.
type Tracks = BTreeMap<(u32, u32, Kind), Vec<Drawn>>;

impl Recording {
    fn new(began: u64, seconds: u64) -> Self {
        Self {
            began,
            seconds,
            clients: BTreeMap::new(),
            spans: 0,
            posted: 0,
            names: 0,
            left_out: 0,
        }
    }

    fn client(&mut self, session: u64) -> Option<&mut Client> {
        if self.clients.len() >= CLIENTS && !self.clients.contains_key(&session) {
            self.left_out += 1;
            return None;
        }
        Some(self.clients.entry(session).or_default())
    }

    fn take(&mut self, session: u64, part: RecordedPart) {
        let (mut spans, mut posted, mut names) = (self.spans, self.posted, self.names);
        let Some(client) = self.client(session) else {
            return;
        };
        match part {
            RecordedPart::Spans(bytes) => {
                for record in SpanReader::new(&bytes).map_while(Result::ok) {
                    let SpanRecord::Span(span) = record else {
                        continue;
                    };
                    if spans >= SPANS {
                        client.dropped += 1;
                        continue;
                    }
                    spans += 1;
                    client.spans.push(span);
                }
            }
            // What cannot be read, and all behind it, is the client's matter.
            RecordedPart::Told(bytes) => {
                for told in Reader::new(&bytes).map_while(Result::ok) {
                    match told {
                        Told::Words { tid, words } => {
                            let read = client.threads.read(tid, words, |record| {
                                match record {
                                    ThreadRecord::Posted(work) if posted < POSTED => {
                                        posted += 1;
                                        let at = At {
                                            stream: work.stream,
                                            sequence: work.sequence,
                                        };
                                        client.posted.insert(at, work.work);
                                    }
                                    ThreadRecord::Posted(_) => client.dropped += 1,
                                    ThreadRecord::Call(_) => {}
                                }
                                Ok::<_, Damaged>(())
                            });
                            if read.is_err() {
                                break;
                            }
                        }
                        Told::Kernel {
                            module,
                            index,
                            name,
                            ..
                        } if names < NAMES => {
                            names += 1;
                            client.kernels.insert((module, index), cut(name));
                        }
                        Told::Dropped { count } => {
                            client.dropped = client.dropped.saturating_add(count);
                        }
                        _ => {}
                    }
                }
            }
            RecordedPart::Dropped { count } => {
                client.dropped = client.dropped.saturating_add(count);
            }
            RecordedPart::Over { .. } => {}
        }
        (self.spans, self.posted, self.names) = (spans, posted, names);
    }

    /// What there was, for the page.
    fn told(mut self) -> Value {
        let mut names = Names::default();
        let (mut clients, mut lines) = (Vec::new(), Vec::new());
        let span = (self.began, self.began + self.seconds * 1_000_000_000);
        let tracks = self.clients.values_mut();
        let tracks: Vec<_> = tracks
            .map(|client| client.tracks(span, &mut names))
            .collect();
        let given = |tracks: &Tracks| tracks.len().min(TRACKS);
        let all = tracks.iter().map(given).sum::<usize>();
        let most = (ALL_DRAWN / all.clamp(1, ALL_TRACKS)).min(DRAWN);
        let mut room = ALL_TRACKS;
        for ((session, client), tracks) in self.clients.iter().zip(tracks) {
            let all = tracks.len();
            let shown = given(&tracks).min(room);
            room -= shown;
            let mut given = Vec::new();
            for (index, ((device, stream, kind), mut drawn)) in tracks.into_iter().enumerate() {
                for &(_, took, name, _) in &drawn {
                    lines.push((*session, kind, name, took));
                }
                if index < shown {
                    put_together(&mut drawn, self.seconds * 1_000_000, most);
                    given.push(json!({
                        "device": device, "stream": stream, "kind": kind.word(), "spans": drawn,
                    }));
                }
            }
            clients.push(json!({
                "session": session, "pid": client.pid, "program": client.program,
                "tracks": given, "left_out": all - shown, "dropped": client.dropped,
            }));
        }
        json!({
            "state": "there",
            "seconds": self.seconds,
            "clients": clients,
            "left_out": self.left_out,
            "table": table(lines),
            "names": names.list,
        })
    }
}

impl Client {
    /// What was done and waited for by device, stream and kind, oldest first, in microseconds from the beginning on.
    fn tracks(&mut self, (began, end): (u64, u64), names: &mut Names) -> Tracks {
        // Pieces of one operation are one.
        let mut whole: HashMap<(u32, At, u64), (u64, u64)> = HashMap::new();
        let mut tracks = Tracks::new();
        let draw = |(from, to): (u64, u64), name| {
            let (from, to) = (from.clamp(began, end), to.clamp(began, end));
            let micros = |time: u64| (time - began) / 1000;
            (to > from).then(|| (micros(from), (to - from).div_ceil(1000), Some(name), 1))
        };
        for span in std::mem::take(&mut self.spans) {
            if let Some(why) = HoldReason::of_span(span.kind) {
                let kind = match why.is_others() {
                    true => Kind::Wait,
                    false => Kind::Hold,
                };
                let name = names.number(why.text());
                let drawn = draw((span.began, span.ended), name);
                tracks
                    .entry((span.device, span.at.stream, kind))
                    .or_default()
                    .extend(drawn);
                continue;
            }
            let of_it = whole.entry((span.device, span.at, span.kind));
            let (from, to) = of_it.or_insert((span.began, span.ended));
            (*from, *to) = ((*from).min(span.began), (*to).max(span.ended));
        }
        for ((device, at, kind), times) in whole {
            let name = names.number(&self.name(self.posted.get(&at), kind == SPAN_COPY));
            let drawn = draw(times, name);
            tracks
                .entry((device, at.stream, Kind::Work))
                .or_default()
                .extend(drawn);
        }
        tracks.retain(|_, drawn| !drawn.is_empty());
        for drawn in tracks.values_mut() {
            drawn.sort_unstable();
        }
        tracks
    }

    fn name(&self, posted: Option<&PostedWork>, copied: bool) -> String {
        let kernel = |module: &u64, index: &u32| {
            let name = self.kernels.get(&(*module, *index));
            name.map_or("kernel", |name| name)
        };
        match posted {
            Some(PostedWork::Kernel { module, index, .. }) => kernel(module, index).to_owned(),
            Some(PostedWork::Run {
                module,
                index,
                launches,
            }) => format!(
                "graph: {} and {} more",
                kernel(module, index),
                launches.saturating_sub(1)
            ),
            Some(PostedWork::Copy { from, to, .. }) => {
                let letter = |place: &Place| place.letter();
                format!("copy {}to{}", letter(from), letter(to))
            }
            Some(PostedWork::Fill { .. }) => "fill".to_owned(),
            Some(PostedWork::Graph) => "graph".to_owned(),
            None if copied => "copy".to_owned(),
            None => "kernel".to_owned(),
        }
    }
}

/// Names by numbers, so that each is told once.
#[derive(Debug, Default)]
struct Names {
    list: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Names {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.list.len();
        self.list.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

/// A name of a client's choice, as much as is shown of it.
fn cut(name: &str) -> String {
    let text: String = name.chars().take(NAME).collect();
    printable(&text)
}

/// Puts neighbours together until there are few enough: first those of a name, and then whatever lies as close.
fn put_together(drawn: &mut Vec<Drawn>, microseconds: u64, most: usize) {
    let mut near = microseconds / most as u64;
    let mut of_a_name = true;
    while drawn.len() > most {
        let mut fewer: Vec<Drawn> = Vec::with_capacity(most);
        for next in drawn.drain(..) {
            match fewer.last_mut() {
                Some(last)
                    if next.0 <= last.0 + last.1 + near && (!of_a_name || next.2 == last.2) =>
                {
                    last.1 = (next.0 + next.1).max(last.0 + last.1) - last.0;
                    last.2 = last.2.filter(|name| Some(*name) == next.2);
                    last.3 += next.3;
                }
                _ => fewer.push(next),
            }
        }
        *drawn = fewer;
        if !of_a_name {
            near *= 2;
        }
        of_a_name = false;
    }
}

/// How often, and how many microseconds in all and of the longest.
type Sums = (u64, u64, u64);

/// What took how long, those that took most first: session, kind, name, count, microseconds in all and of the longest.
fn table(lines: Vec<(u64, Kind, Option<usize>, u64)>) -> Vec<Value> {
    let mut sums: BTreeMap<(u64, Kind, Option<usize>), Sums> = BTreeMap::new();
    for (session, kind, name, took) in lines {
        let (count, all, longest) = sums.entry((session, kind, name)).or_default();
        *count += 1;
        *all += took;
        *longest = took.max(*longest);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(key, (_, all, _))| (std::cmp::Reverse(*all), *key));
    sums.truncate(LINES);
    let lines = sums.into_iter();
    let lines = lines.map(|((session, kind, name), (count, all, longest))| {
        json!([session, kind.word(), name, count, all, longest])
    });
    lines.collect()
}

#[cfg(test)]
mod tests;
