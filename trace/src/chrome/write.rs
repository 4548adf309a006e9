//! The writer: one event after the other into an [`Output`], in bounded memory.
//!
//! Called by `join`. Must not know records or sessions, nor where the bytes go.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use super::category;
use crate::event::{Activity, Clock, Process, Track, Work};
use crate::output::{Output, Storage};

/// What makes a whole file of what is there, after any event.
const TAIL: &[u8] = b"\n]}\n";

/// The first track that is no thread: Linux counts threads to 4,194,304 at most.
const FIRST_OTHER_TRACK: u64 = 1 << 22;

/// Tracks of a file, beyond which [`Writer::has_room_for`] says no.
const MOST_TRACKS: usize = 1 << 16;

/// Writes one process' file.
#[derive(Debug)]
pub struct Writer<S: Storage> {
    output: Output<S>,
    clock: Clock,
    pid: u32,
    tracks: BTreeMap<Track, u64>,
    /// The last thread and the last other track, and their numbers: most events are where the one before was.
    recent: [Option<(Track, u64)>; 2],
    /// One event's text, kept for its memory.
    text: String,
}

impl<S: Storage> Writer<S> {
    /// Begins a file.
    ///
    /// # Errors
    /// The storage's.
    pub fn new(storage: S, clock: Clock, process: &Process) -> io::Result<Self> {
        let mut head = String::from("{\n\"schemaVersion\": 1,\n\"displayTimeUnit\": \"ns\",\n");
        write_infallibly(
            &mut head,
            format_args!("\"baseTimeNanoseconds\": {},\n", clock.wall_ns),
        );
        head.push_str("\"openmps\": {\"monotonicNanoseconds\": ");
        write_infallibly(&mut head, format_args!("{}", clock.monotonic_ns));
        head.push_str(", \"boot\": ");
        push_text(&mut head, &clock.boot);
        head.push_str(", \"host\": ");
        push_text(&mut head, &process.host);
        head.push_str("},\n\"traceEvents\": [\n");
        // The first event: what follows begins with a comma.
        push_metadata(&mut head, "process_name", process.pid, 0, &process.name);
        head.push_str(",\n");
        push_metadata_of(
            &mut head,
            "process_labels",
            "labels",
            process.pid,
            0,
            &process.host,
        );
        Ok(Self {
            output: Output::new(storage, head.as_bytes(), TAIL)?,
            clock,
            pid: process.pid,
            tracks: BTreeMap::new(),
            recent: [None; 2],
            text: String::new(),
        })
    }

    /// Whether a track is in the file already, or so many more may come: who is recorded chooses their numbers.
    #[must_use]
    pub fn has_room_for(&self, track: Track) -> bool {
        self.tracks.len() < MOST_TRACKS
            || self.recent(track).is_some()
            || self.tracks.contains_key(&track)
    }

    fn recent(&self, track: Track) -> Option<u64> {
        let (known, number) = self.recent[usize::from(!matches!(track, Track::Thread { .. }))]?;
        (known == track).then_some(number)
    }

    /// Names a thread in place of its number.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn thread_name(&mut self, tid: u32, name: &str) -> io::Result<()> {
        let track = Track::Thread { tid };
        let known = self.tracks.insert(track, u64::from(tid)).is_some();
        self.begin();
        push_metadata(
            &mut self.text,
            "thread_name",
            self.pid,
            u64::from(tid),
            name,
        );
        self.end()?;
        if !known {
            self.sort(track, u64::from(tid))?;
        }
        Ok(())
    }

    /// Writes an activity, and its end of an arrow.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn activity(&mut self, activity: &Activity<'_>) -> io::Result<()> {
        let tid = self.track(activity.track)?;
        self.begin();
        let text = &mut self.text;
        text.push_str("{\"ph\":\"X\",\"cat\":\"");
        text.push_str(category_of(&activity.work));
        text.push_str("\",\"name\":");
        push_name(text, &activity.work);
        let (began, ended) = (self.clock.monotonic_ns, activity.ended_ns);
        let ts = activity.began_ns.saturating_sub(began);
        let duration = ended.saturating_sub(activity.began_ns);
        push_place(text, self.pid, tid, ts);
        text.push_str(",\"dur\":");
        push_microseconds(text, duration);
        text.push_str(",\"args\":{");
        push_arguments(text, activity, duration);
        text.push_str("}}");
        self.end()?;
        match &activity.work {
            _ if activity.correlation == 0 => Ok(()),
            Work::Call { .. } => self.arrow("s", "", tid, ts, activity.correlation),
            Work::Wait { .. } | Work::Hold { .. } => Ok(()),
            _ => self.arrow("f", ",\"bp\":\"e\"", tid, ts, activity.correlation),
        }
    }

    /// Says that activities are missing here.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn dropped(&mut self, at_ns: u64, count: u64) -> io::Result<()> {
        self.begin();
        let ts = at_ns.saturating_sub(self.clock.monotonic_ns);
        let text = &mut self.text;
        text.push_str("{\"ph\": \"i\", \"s\": \"p\", \"cat\": \"");
        text.push_str(category::NOTE);
        text.push_str("\", \"name\": \"dropped\"");
        push_place(text, self.pid, 0, ts);
        write_infallibly(text, format_args!(", \"args\": {{\"dropped\": {count}}}}}"));
        self.end()
    }

    /// Has all that was written so far reach the storage.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn begin(&mut self) {
        self.text.clear();
        self.text.push_str(",\n");
    }

    fn end(&mut self) -> io::Result<()> {
        self.output.append(self.text.as_bytes())
    }

    /// The number of a track, which is named when it is first used.
    fn track(&mut self, track: Track) -> io::Result<u64> {
        if let Some(tid) = self.recent(track) {
            return Ok(tid);
        }
        let place = usize::from(!matches!(track, Track::Thread { .. }));
        if let Some(&tid) = self.tracks.get(&track) {
            self.recent[place] = Some((track, tid));
            return Ok(tid);
        }
        let (tid, name) = match track {
            Track::Thread { tid } => (u64::from(tid), format!("thread {tid}")),
            Track::Stream { device, stream, .. } => (
                FIRST_OTHER_TRACK + self.tracks.len() as u64,
                format!("GPU {device} stream {stream}"),
            ),
            Track::Waits { device, stream, .. } => (
                FIRST_OTHER_TRACK + self.tracks.len() as u64,
                format!("GPU {device} stream {stream} waits"),
            ),
            Track::Holds { device, stream, .. } => (
                FIRST_OTHER_TRACK + self.tracks.len() as u64,
                format!("GPU {device} stream {stream} holds"),
            ),
        };
        self.tracks.insert(track, tid);
        self.begin();
        push_metadata(&mut self.text, "thread_name", self.pid, tid, &name);
        self.end()?;
        self.sort(track, tid)?;
        Ok(tid)
    }

    /// Threads come first, then streams by their numbers, each above its waits and holds.
    fn sort(&mut self, track: Track, tid: u64) -> io::Result<()> {
        let place =
            |device: u32, stream: u32| u64::from(device) * 15_000 + u64::from(stream % 5_000) * 3;
        let place = match track {
            Track::Thread { .. } => 0,
            Track::Stream { device, stream, .. } => 1 + place(device, stream),
            Track::Waits { device, stream, .. } => 2 + place(device, stream),
            Track::Holds { device, stream, .. } => 3 + place(device, stream),
        };
        self.begin();
        write_infallibly(
            &mut self.text,
            format_args!(
                "{{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": {}, \"tid\": {tid}, \
                 \"args\": {{\"sort_index\": {place}}}}}",
                self.pid
            ),
        );
        self.end()
    }

    fn arrow(&mut self, phase: &str, more: &str, tid: u64, ts: u64, id: u64) -> io::Result<()> {
        self.begin();
        let text = &mut self.text;
        text.push_str("{\"ph\":\"");
        text.push_str(phase);
        text.push_str("\",\"id\":");
        push_number(text, id);
        text.push_str(",\"cat\":\"");
        text.push_str(category::FLOW);
        text.push_str("\",\"name\":\"");
        text.push_str(category::FLOW);
        text.push('"');
        push_place(text, self.pid, tid, ts);
        text.push_str(more);
        text.push('}');
        self.end()
    }
}

/// A `String` takes everything.
fn write_infallibly(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).ok();
}

fn category_of(work: &Work<'_>) -> &'static str {
    match work {
        Work::Call { .. } => category::DRIVER_CALL,
        Work::Kernel { .. } => category::KERNEL,
        Work::Copy { .. } => category::COPY,
        Work::Fill { .. } => category::FILL,
        Work::Wait { .. } => category::WAIT,
        Work::Hold { .. } => category::HOLD,
    }
}

fn push_name(text: &mut String, work: &Work<'_>) {
    match work {
        Work::Call { name }
        | Work::Kernel { name, .. }
        | Work::Wait { name }
        | Work::Hold { name } => {
            push_text(text, name);
        }
        Work::Copy { from, to, .. } => write_infallibly(
            text,
            format_args!(
                "\"Memcpy {}to{} ({} -> {})\"",
                from.letter(),
                to.letter(),
                from.word(),
                to.word()
            ),
        ),
        Work::Fill { place, .. } => {
            write_infallibly(text, format_args!("\"Memset ({})\"", place.word()));
        }
    }
}

fn push_arguments(text: &mut String, activity: &Activity<'_>, duration: u64) {
    let mut separator = "";
    if let Track::Stream {
        device,
        context,
        stream,
    }
    | Track::Waits {
        device,
        context,
        stream,
    }
    | Track::Holds {
        device,
        context,
        stream,
    } = activity.track
    {
        push_numbers(text, "\"device\":", &[device]);
        push_numbers(text, ",\"context\":", &[context]);
        push_numbers(text, ",\"stream\":", &[stream]);
        separator = ",";
    }
    if activity.correlation != 0 {
        text.push_str(separator);
        text.push_str("\"correlation\":");
        push_number(text, activity.correlation);
    }
    match &activity.work {
        Work::Kernel {
            grid,
            block,
            shared_bytes,
            registers,
            ..
        } => {
            push_numbers(text, ",\"registers per thread\":", &[*registers]);
            push_numbers(text, ",\"shared memory\":", &[*shared_bytes]);
            push_numbers(text, ",\"grid\":[", grid);
            push_numbers(text, "],\"block\":[", block);
            text.push(']');
        }
        Work::Copy { bytes, .. } | Work::Fill { bytes, .. } => {
            text.push_str(",\"bytes\":");
            push_number(text, *bytes);
            if duration > 0 {
                #[allow(
                    clippy::cast_precision_loss,
                    reason = "a rate, for people, with three places"
                )]
                let rate = *bytes as f64 / duration as f64;
                write_infallibly(text, format_args!(",\"memory bandwidth (GB/s)\":{rate:.3}"));
            }
        }
        Work::Call { .. } | Work::Wait { .. } | Work::Hold { .. } => {}
    }
}

fn push_place(text: &mut String, pid: u32, tid: u64, ts: u64) {
    push_numbers(text, ",\"pid\":", &[pid]);
    text.push_str(",\"tid\":");
    push_number(text, tid);
    text.push_str(",\"ts\":");
    push_microseconds(text, ts);
}

/// Nanoseconds as the decimal number of microseconds that they are.
fn push_microseconds(text: &mut String, nanoseconds: u64) {
    push_number(text, nanoseconds / 1000);
    let places = nanoseconds % 1000;
    text.push('.');
    for place in [places / 100, places / 10 % 10, places % 10] {
        text.push(digit(place));
    }
}

/// Numbers with commas between them, behind what they are.
fn push_numbers(text: &mut String, what: &str, numbers: &[u32]) {
    text.push_str(what);
    for (index, number) in numbers.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        push_number(text, (*number).into());
    }
}

/// A number in decimal: events are mostly numbers, and formatting takes several times as long.
fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    // Digits are text.
    text.push_str(std::str::from_utf8(&digits[first..]).unwrap_or_default());
}

fn digit(digit: u64) -> char {
    char::from(b'0' + digit as u8)
}

fn push_metadata(text: &mut String, what: &str, pid: u32, tid: u64, name: &str) {
    push_metadata_of(text, what, "name", pid, tid, name);
}

fn push_metadata_of(text: &mut String, what: &str, key: &str, pid: u32, tid: u64, value: &str) {
    write_infallibly(
        text,
        format_args!(
            "{{\"ph\": \"M\", \"name\": \"{what}\", \"pid\": {pid}, \"tid\": {tid}, \"args\": {{\"{key}\": "
        ),
    );
    push_text(text, value);
    text.push_str("}}");
}

/// The longest name that is written, in bytes: programs choose names, and some are megabytes.
const LONGEST_NAME: usize = 4096;

/// A JSON string.
fn push_text(text: &mut String, value: &str) {
    text.push('"');
    let mut end = value.len().min(LONGEST_NAME);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if value.len() == end && value.as_bytes().iter().all(is_plain) {
        text.push_str(value);
        text.push('"');
        return;
    }
    for character in value[..end].chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            // DEL, and what turns the direction of text or ends lines, too: viewers show it as it is.
            _ if character.is_control() || ('\u{2028}'..='\u{202e}').contains(&character) => {
                write_infallibly(text, format_args!("\\u{:04x}", u32::from(character)));
            }
            _ => text.push(character),
        }
    }
    if end < value.len() {
        text.push('…');
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Place;

    fn clock() -> Clock {
        Clock {
            monotonic_ns: 1_000,
            wall_ns: 1_700_000_000_000_000_000,
            boot: "b".into(),
        }
    }

    fn process(name: &str) -> Process {
        Process {
            pid: 42,
            name: name.into(),
            host: "here".into(),
        }
    }

    const STREAM: Track = Track::Stream {
        device: 0,
        context: 1,
        stream: 7,
    };

    #[test]
    fn an_activity_has_kinetos_words() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, clock(), &process("p")).unwrap();
        let kernel = Work::Kernel {
            name: "k\"\u{1b}".into(),
            grid: [4, 1, 1],
            block: [128, 2, 1],
            shared_bytes: 512,
            registers: 16,
        };
        let copy = Work::Copy {
            from: Place::Pageable,
            to: Place::Device,
            bytes: 4096,
        };
        for (track, began_ns, work) in [
            (
                Track::Thread { tid: 43 },
                1_500,
                Work::Call {
                    name: "cuLaunchKernel".into(),
                },
            ),
            (STREAM, 2_001, kernel),
            (STREAM, 3_000, copy),
        ] {
            let activity = Activity {
                track,
                began_ns,
                ended_ns: began_ns + 1_024,
                work,
                correlation: 9,
            };
            writer.activity(&activity).unwrap();
        }
        writer.dropped(5_000, 3).unwrap();
        drop(writer);
        let all: serde_json::Value = serde_json::from_slice(&file).unwrap();
        assert_eq!(all["baseTimeNanoseconds"], 1_700_000_000_000_000_000_u64);
        let events = all["traceEvents"].as_array().unwrap();
        let of = |category: &str| {
            events
                .iter()
                .find(|event| event["cat"] == category)
                .unwrap()
        };
        let kernel = of("kernel");
        assert_eq!(kernel["name"], "k\"\u{1b}");
        assert_eq!(kernel["ts"], 1.001);
        assert_eq!(kernel["dur"], 1.024);
        assert_eq!(
            kernel["args"],
            serde_json::json!({"device": 0, "context": 1, "stream": 7, "correlation": 9,
                "registers per thread": 16, "shared memory": 512, "grid": [4, 1, 1], "block": [128, 2, 1]})
        );
        let copy = of("gpu_memcpy");
        assert_eq!(copy["name"], "Memcpy HtoD (Pageable -> Device)");
        assert_eq!(copy["args"]["memory bandwidth (GB/s)"], 4.0);
        assert_eq!(of("openmps")["args"]["dropped"], 3);
        let arrows: Vec<_> = events
            .iter()
            .filter(|event| event["cat"] == "ac2g")
            .collect();
        assert_eq!(arrows.len(), 3);
        assert_eq!(
            (&arrows[0]["ph"], &arrows[0]["id"]),
            (&"s".into(), &9.into())
        );
        assert_eq!(
            (&arrows[1]["ph"], &arrows[1]["bp"]),
            (&"f".into(), &"e".into())
        );
        assert_eq!(arrows[1]["tid"], kernel["tid"]);
        assert_eq!(arrows[1]["ts"], kernel["ts"]);
    }

    #[test]
    fn numbers_are_decimal() {
        let mut seed = 7_u64;
        for round in 0..2_000_u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for number in [seed >> (round % 64), u64::from(round), u64::MAX] {
                let mut text = String::new();
                push_number(&mut text, number);
                assert_eq!(text, number.to_string());
                text.clear();
                push_microseconds(&mut text, number);
                assert_eq!(text, format!("{}.{:03}", number / 1000, number % 1000));
            }
        }
    }

    #[test]
    fn hostile_names_stay_names() {
        let mut file = Vec::new();
        let name = format!("</script>\"\\\n\0\u{202e}{}", "ü".repeat(10_000_000));
        Writer::new(&mut file, clock(), &process(&name)).unwrap();
        assert!(file.len() < 10_000, "{}", file.len());
        let all: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let said = all["traceEvents"][0]["args"]["name"].as_str().unwrap();
        assert!(said.starts_with("</script>\"\\\n\0\u{202e}ü") && said.ends_with('…'));
        assert!(!file.contains(&0));
    }
}
