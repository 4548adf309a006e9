//! The reader: one event after the other out of a file, in bounded memory, whoever wrote it.
//!
//! It is liberal: a bare array is a file too, numbers may be texts, what is no event is passed over, and a file that
//! was cut off gives what is there. Depth is bounded by `serde_json`, an event's size by [`LARGEST_EVENT`].
//!
//! Called by `merge`, `summary` and `openmps trace`. Must not know what a category means.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Value};

/// The most bytes of the file that one event, or one value beside the events, may be.
pub const LARGEST_EVENT: u64 = 16 << 20;

/// What a file says besides its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// The time of day, in nanoseconds since 1970, from which its times count.
    pub wall_ns: Option<u64>,
    /// The same moment on CLOCK_MONOTONIC, and of which boot: files of ours say so.
    pub monotonic: Option<(u64, String)>,
    /// Values among the events that are no events.
    pub passed_over: u64,
    /// Why the file ends before its end, where it does: what came before was given.
    pub cut_short: Option<String>,
}

/// One event, with all that stands in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry(pub Map<String, Value>);

impl Entry {
    /// A field's text; empty where there is none.
    #[must_use]
    pub fn text(&self, field: &str) -> &str {
        self.0
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The letter that says what kind of event it is; 0 where there is none.
    #[must_use]
    pub fn phase(&self) -> u8 {
        self.text("ph").bytes().next().unwrap_or_default()
    }

    /// A time field, in nanoseconds; texts of numbers are numbers.
    #[must_use]
    pub fn nanoseconds(&self, field: &str) -> Option<i64> {
        let microseconds = match self.0.get(field)? {
            Value::Number(number) => {
                if let Some(whole) = number.as_i64() {
                    return whole.checked_mul(1000);
                }
                number.as_f64()?
            }
            Value::String(text) => text.trim().parse().ok()?,
            _ => return None,
        };
        // What is beyond is no time of this age. Whole and rest apart: the product of times of day would be rounded
        // to a quarter of a microsecond.
        if !(-9.0e15..9.0e15).contains(&microseconds) {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, reason = "it is in range")]
        let (whole, rest) = (
            microseconds.trunc() as i64,
            (microseconds.fract() * 1000.0).round() as i64,
        );
        Some(whole * 1000 + rest)
    }

    /// A field that names a process, a thread or an arrow, as a text to compare.
    #[must_use]
    pub fn identity(&self, field: &str) -> String {
        match self.0.get(field) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        }
    }

    /// One of its arguments.
    #[must_use]
    pub fn argument(&self, name: &str) -> Option<&Value> {
        self.0.get("args")?.get(name)
    }
}

/// Why a file cannot be read at all.
#[derive(Debug)]
pub enum ReadError {
    /// It is no time line.
    NotATrace(String),
    /// The system's error, or the taker's.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATrace(why) => write!(f, "it is no time line in Chrome's JSON: {why}"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}

/// Gives `take` each event of a file, in the file's order. An error of `take` ends it.
///
/// # Errors
/// [`ReadError::NotATrace`] when it does not begin as one, or is compressed; [`ReadError::Io`] when it cannot be
/// read, and what `take` returned.
pub fn read(
    file: impl Read,
    mut take: impl FnMut(Entry) -> io::Result<()>,
) -> Result<Header, ReadError> {
    let mut file = BufReader::with_capacity(1 << 16, file);
    let start = io::BufRead::fill_buf(&mut file).map_err(ReadError::Io)?;
    if start.starts_with(&[0x1f, 0x8b]) {
        return Err(ReadError::NotATrace(
            "it is compressed; `gunzip` makes it one".into(),
        ));
    }
    if let Some(other) = start
        .iter()
        .find(|byte| !byte.is_ascii_whitespace())
        .filter(|byte| !b"{[\xef".contains(byte))
    {
        return Err(ReadError::NotATrace(format!(
            "it begins with {:?}",
            char::from(*other)
        )));
    }
    if start.is_empty() {
        return Err(ReadError::NotATrace("it is empty".into()));
    }
    if start.starts_with(b"\xef\xbb\xbf") {
        io::BufRead::consume(&mut file, 3);
    }
    let budget = Rc::new(Cell::new(LARGEST_EVENT));
    let mut state = State {
        header: Header::default(),
        budget: Rc::clone(&budget),
        take: &mut take,
        refused: None,
        any_events: false,
    };
    let bounded = Bounded {
        inner: file,
        budget,
    };
    let mut json = serde_json::Deserializer::from_reader(bounded);
    let end = json.deserialize_any(Top(&mut state));
    if let Some(error) = state.refused {
        return Err(ReadError::Io(error));
    }
    match end {
        Ok(()) if state.any_events => Ok(state.header),
        Ok(()) => Err(ReadError::NotATrace("it has no \"traceEvents\"".into())),
        Err(error)
            if error.is_io() && error.io_error_kind() != Some(io::ErrorKind::FileTooLarge) =>
        {
            Err(ReadError::Io(error.into()))
        }
        Err(error) if state.any_events => {
            state.header.cut_short = Some(error.to_string());
            Ok(state.header)
        }
        Err(error) => Err(ReadError::NotATrace(error.to_string())),
    }
}

/// Reads until the budget is used up; whoever begins a new value renews it.
struct Bounded<R> {
    inner: R,
    budget: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.get();
        if left == 0 {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("one event is larger than {} MiB", LARGEST_EVENT >> 20),
            ));
        }
        let most = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.inner.read(&mut buffer[..most])?;
        self.budget.set(left - count as u64);
        Ok(count)
    }
}

struct State<'a> {
    header: Header,
    budget: Rc<Cell<u64>>,
    take: &'a mut dyn FnMut(Entry) -> io::Result<()>,
    refused: Option<io::Error>,
    any_events: bool,
}

impl State<'_> {
    fn renew(&self) {
        self.budget.set(LARGEST_EVENT);
    }

    fn head(&mut self, key: &str, value: &Value) {
        match key {
            "baseTimeNanoseconds" => self.header.wall_ns = value.as_u64(),
            "openmps" => {
                let boot = value.get("boot").and_then(Value::as_str);
                let monotonic = value.get("monotonicNanoseconds").and_then(Value::as_u64);
                self.header.monotonic = monotonic
                    .zip(boot.filter(|boot| !boot.is_empty()))
                    .map(|(monotonic, boot)| (monotonic, boot.to_owned()));
            }
            _ => {}
        }
    }
}

/// The whole file: an object with the events in one field, or the events alone.
struct Top<'a, 'b>(&'a mut State<'b>);

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with traceEvents, or an array of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.0.renew();
            match key.as_str() {
                "traceEvents" => map.next_value_seed(Events(&mut *self.0))?,
                "baseTimeNanoseconds" | "openmps" => self.0.head(&key, &map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            self.0.renew();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self.0).visit_seq(seq)
    }
}

struct Events<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.any_events = true;
        loop {
            self.0.renew();
            match seq.next_element::<Value>()? {
                None => return Ok(()),
                Some(Value::Object(fields)) => {
                    if let Err(error) = (self.0.take)(Entry(fields)) {
                        let said = A::Error::custom(&error);
                        self.0.refused = Some(error);
                        return Err(said);
                    }
                }
                Some(_) => self.0.header.passed_over += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<(Header, Vec<Entry>), ReadError> {
        let mut entries = Vec::new();
        let header = read(text, |entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok((header, entries))
    }

    #[test]
    fn what_people_write_is_read() {
        let (header, entries) = all(br#"{"a": [1, {}], "traceEvents": [{"ph": "X", "ts": "12.5", "pid": "Spans",
            "tid": 4}, 7, null], "baseTimeNanoseconds": 5, "openmps": {"monotonicNanoseconds": 3, "boot": "x"}}"#)
        .unwrap();
        assert_eq!(header.wall_ns, Some(5));
        assert_eq!(header.monotonic, Some((3, "x".into())));
        assert_eq!((header.passed_over, header.cut_short), (2, None));
        assert_eq!(entries[0].phase(), b'X');
        assert_eq!(entries[0].nanoseconds("ts"), Some(12_500));
        assert_eq!(entries[0].identity("pid"), "Spans");
        assert_eq!(entries[0].identity("tid"), "4");
        assert_eq!(all(b"\xef\xbb\xbf[{}]").unwrap().1.len(), 1);
    }

    #[test]
    fn a_file_that_was_cut_off_gives_what_is_there() {
        for cut in [
            "[{\"ph\":\"X\"}",
            "[{\"ph\":\"X\"},",
            "{\"traceEvents\": [{\"ph\":\"X\"}, {\"ph",
        ] {
            let (header, entries) = all(cut.as_bytes()).unwrap();
            assert_eq!(entries.len(), 1, "{cut}");
            assert!(header.cut_short.is_some(), "{cut}");
        }
    }

    #[test]
    fn what_is_no_time_line_is_told() {
        for (text, said) in [
            (&b"\x1f\x8b\x08\0"[..], "gunzip"),
            (b"", "empty"),
            (b"{}", "traceEvents"),
            (b"{\"traceEvents\": 3}", "array"),
            (b"<html>", "begins with '<'"),
            (b"\x0a\x05", "begins with"),
        ] {
            let error = all(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = format!("[{{\"ph\": \"X\"}}, {}", "[".repeat(1_000_000));
        let (header, entries) = all(deep.as_bytes()).unwrap();
        assert_eq!(entries.len(), 1);
        assert!(header.cut_short.unwrap().contains("recursion"));
        let large = io::Cursor::new("[{}, \"")
            .chain(io::repeat(b'x').take(LARGEST_EVENT + 1))
            .chain(io::Cursor::new("\"]"));
        let header = read(large, |_| Ok(())).unwrap();
        assert!(header.cut_short.unwrap().contains("larger than 16 MiB"));
        // Many of them may be more than that together.
        let one = format!("{{\"a\": \"{}\"}}", "x".repeat(1 << 20));
        let many = io::Cursor::new("[")
            .chain(io::Cursor::new(format!("{one},").repeat(20)))
            .chain(io::Cursor::new(format!("{one}]")));
        assert_eq!(read(many, |_| Ok(())).unwrap().cut_short, None);
    }

    #[test]
    fn numbers_beyond_all_times_are_none() {
        for text in ["1e300", "-1e300", "\"NaN\"", "9223372036854775807", "{}"] {
            let (_, entries) = all(format!("[{{\"ts\": {text}}}]").as_bytes()).unwrap();
            assert_eq!(entries[0].nanoseconds("ts"), None, "{text}");
        }
    }

    #[test]
    fn the_takers_error_comes_through() {
        let error = read(&b"[{}, {}]"[..], |_| Err(io::ErrorKind::StorageFull.into()));
        assert!(
            matches!(error, Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::StorageFull)
        );
    }
}
