//! Several files as one, on one clock.
//!
//! Files of one boot are put together by the monotonic clock, others by the time of day; one that knows neither begins
//! where all begin. Processes of different files stay apart although they have one number, and so do arrows.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};

use serde_json::{Number, Value};

use crate::chrome::read::{Entry, Header, ReadError, read};

/// Times before that, as microseconds, are no times of day: September 2001.
const FIRST_WALL_NS: i64 = 1_000_000_000_000_000_000;

/// The first number that a process gets whose own is taken: Linux counts to 4,194,304.
const FIRST_FREE_PID: u64 = 10_000_000;

/// Arrows of a file are counted to that; files are told apart by what is above.
const ARROWS_OF_A_FILE: u64 = 1 << 40;

/// What must be known of a file before it can be put beside others.
#[derive(Debug, Default)]
struct Facts {
    header: Header,
    first_ns: Option<i64>,
    pids: HashSet<String>,
}

/// Looks at files, and then gives their events as they stand in one.
#[derive(Debug, Default)]
pub struct Merge {
    files: Vec<Facts>,
    taken: HashSet<String>,
    next_pid: u64,
}

/// What of a file is not as it should be, for people.
pub type Remarks = Vec<String>;

/// Where a file goes in the merged one.
#[derive(Debug)]
pub struct Place {
    index: u64,
    shift_ns: i64,
    pids: HashMap<String, u64>,
}

impl Merge {
    /// Looks at the next file.
    ///
    /// # Errors
    /// As [`read`] has them.
    pub fn look(&mut self, file: impl Read) -> Result<Remarks, ReadError> {
        let mut facts = Facts::default();
        facts.header = read(file, |entry| {
            if entry.0.contains_key("pid") && facts.pids.len() < 1_000_000 {
                facts.pids.insert(entry.identity("pid"));
            }
            if entry.phase() != b'M'
                && let Some(ts) = entry.nanoseconds("ts")
            {
                facts.first_ns = Some(facts.first_ns.map_or(ts, |first| first.min(ts)));
            }
            Ok(())
        })?;
        let mut remarks = Remarks::new();
        if let Some(why) = &facts.header.cut_short {
            remarks.push(format!(
                "it ends before its end ({why}); what is there is used"
            ));
        }
        if facts.header.passed_over > 0 {
            remarks.push(format!(
                "{} values among its events are none",
                facts.header.passed_over
            ));
        }
        if base_of(&facts).is_none() {
            remarks.push(
                "it does not say at which time of day it began; it begins where all do".into(),
            );
        }
        self.files.push(facts);
        Ok(remarks)
    }

    /// Where the files go, in their order, and the time of day from which the merged file's times count. To be
    /// called once, when all were looked at.
    #[must_use]
    pub fn places(mut self) -> (u64, Vec<Place>) {
        let mut anchors: HashMap<&str, i64> = HashMap::new();
        let mut bases = Vec::new();
        for facts in &self.files {
            let mut base = base_of(facts);
            if let (Some(wall), Some((monotonic, boot))) = (base, &facts.header.monotonic) {
                let monotonic = i64::try_from(*monotonic).unwrap_or_default();
                let anchor = *anchors
                    .entry(boot)
                    .or_insert_with(|| wall.saturating_sub(monotonic));
                base = Some(anchor.saturating_add(monotonic));
            }
            bases.push(base);
        }
        let starts = self.files.iter().zip(&bases);
        let first = starts
            .filter_map(|(facts, base)| {
                Some((*base)?.saturating_add(facts.first_ns.unwrap_or_default()))
            })
            .min();
        let first = first.unwrap_or_default().max(0);
        let mut places = Vec::new();
        self.next_pid = FIRST_FREE_PID;
        for (index, facts) in self.files.iter().enumerate() {
            let base = bases[index]
                .unwrap_or_else(|| first.saturating_sub(facts.first_ns.unwrap_or_default()));
            let mut pids = HashMap::new();
            let mut own: Vec<&String> = facts.pids.iter().collect();
            own.sort();
            for pid in own {
                if !self.taken.insert(pid.clone()) {
                    pids.insert(pid.clone(), self.next_pid);
                    self.next_pid += 1;
                }
            }
            places.push(Place {
                index: index as u64,
                shift_ns: base.saturating_sub(first),
                pids,
            });
        }
        (u64::try_from(first).unwrap_or_default(), places)
    }
}

/// The time of day from which a file's times count.
fn base_of(facts: &Facts) -> Option<i64> {
    match facts.header.wall_ns {
        Some(wall) => i64::try_from(wall).ok(),
        // Of old, Kineto wrote times of day themselves.
        None => facts
            .first_ns
            .is_some_and(|first| first > FIRST_WALL_NS)
            .then_some(0),
    }
}

impl Place {
    /// An event of the file as it stands in the merged one.
    #[must_use]
    pub fn moved(&self, mut entry: Entry) -> Entry {
        if let Some(ts) = entry.nanoseconds("ts") {
            let ts = ts.saturating_add(self.shift_ns);
            entry.0.insert("ts".into(), microseconds(ts));
        }
        if let Some(pid) = self.pids.get(&entry.identity("pid"))
            && entry.0.contains_key("pid")
        {
            entry.0.insert("pid".into(), (*pid).into());
        }
        if self.index > 0
            && let Some(id) = entry.0.get("id").and_then(Value::as_u64)
        {
            let id = self.index * ARROWS_OF_A_FILE + id % ARROWS_OF_A_FILE;
            entry.0.insert("id".into(), id.into());
        }
        entry
    }
}

fn microseconds(nanoseconds: i64) -> Value {
    #[allow(
        clippy::cast_precision_loss,
        reason = "exact to the nanosecond for a file of a hundred days"
    )]
    let microseconds = nanoseconds as f64 / 1000.0;
    Number::from_f64(microseconds).map_or(Value::Null, Value::Number)
}

/// What a merged file begins with, and what ends it; events go between, parted by commas.
#[must_use]
pub fn frame(wall_ns: u64) -> (String, &'static [u8]) {
    (
        format!(
            "{{\n\"schemaVersion\": 1,\n\"displayTimeUnit\": \"ns\",\n\"baseTimeNanoseconds\": {wall_ns},\n\
             \"traceEvents\": [\n{{\"ph\": \"M\", \"name\": \"openmps_merged\", \"pid\": 0, \"args\": {{}}}}"
        ),
        b"\n]}\n",
    )
}

/// An event's text in a merged file.
///
/// # Errors
/// None in practice: what was read as JSON is written as it.
pub fn text(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut text = b",\n".to_vec();
    serde_json::to_writer(&mut text, &entry.0)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(files: &[&str]) -> (u64, Vec<Entry>, Vec<Remarks>) {
        let mut merge = Merge::default();
        let remarks = files
            .iter()
            .map(|file| merge.look(file.as_bytes()).unwrap())
            .collect();
        let (base, places) = merge.places();
        let mut all = Vec::new();
        for (file, place) in files.iter().zip(&places) {
            read(file.as_bytes(), |entry| {
                all.push(place.moved(entry));
                Ok(())
            })
            .unwrap();
        }
        (base, all, remarks)
    }

    #[test]
    fn files_of_one_boot_go_by_its_clock() {
        // The second's time of day was set back by a second between the two.
        let (base, all, remarks) = merged(&[
            r#"{"baseTimeNanoseconds": 1700000000000000000, "openmps": {"monotonicNanoseconds": 1000, "boot": "a"},
                "traceEvents": [{"ph": "X", "pid": 1, "ts": 5.5, "name": "a"}, {"ph": "s", "id": 3, "pid": 1, "ts": 6}]}"#,
            r#"{"traceEvents": [{"ph": "X", "pid": 1, "ts": 0, "name": "b"}, {"ph": "f", "id": 3, "pid": 1, "ts": 1}],
                "openmps": {"monotonicNanoseconds": 9000, "boot": "a"}, "baseTimeNanoseconds": 1699999999000000000}"#,
        ]);
        assert_eq!(base, 1_700_000_000_000_005_500);
        assert!(remarks.iter().all(Vec::is_empty), "{remarks:?}");
        let at = |index: usize| all[index].nanoseconds("ts").unwrap();
        assert_eq!((at(0), at(2)), (0, 2_500));
        assert_eq!(all[0].identity("pid"), "1");
        assert_eq!(all[2].identity("pid"), "10000000");
        assert_ne!(all[1].0["id"], all[3].0["id"]);
    }

    #[test]
    fn files_of_others_go_by_the_time_of_day() {
        let (base, all, remarks) = merged(&[
            r#"{"baseTimeNanoseconds": 1700000000000000000, "traceEvents": [{"ph": "X", "pid": 1, "ts": 10}]}"#,
            r#"[{"ph": "X", "pid": "Spans", "ts": 1700000000000004.5}]"#,
            r#"[{"ph": "X", "pid": 2, "ts": 700}, {"ph": "M", "pid": 2, "ts": 0}]"#,
        ]);
        assert_eq!(base, 1_700_000_000_000_004_500);
        let at = |index: usize| all[index].nanoseconds("ts").unwrap();
        assert_eq!((at(0), at(1), at(2)), (5_500, 0, 0));
        assert_eq!(remarks[2].len(), 1);
        assert_eq!(all[1].identity("pid"), "Spans");
    }

    #[test]
    fn the_frame_makes_a_file() {
        let (head, tail) = frame(7);
        let entry = Entry(
            serde_json::json!({"ph": "X", "a": [1]})
                .as_object()
                .unwrap()
                .clone(),
        );
        let file = [head.as_bytes(), &text(&entry).unwrap(), tail].concat();
        let all: Value = serde_json::from_slice(&file).unwrap();
        assert_eq!(all["traceEvents"][1]["a"][0], 1);
        assert_eq!(all["baseTimeNanoseconds"], 7);
    }
}
