//! What devices and clients were used for, of ten minutes by the second and of a day by the minute, in bounded memory.
//!
//! The watcher fills it, the answers read it. Must not know where samples come from, nor how they are drawn.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::history_form::{self, IN_MINUTE, Record};
use crate::usage::{ClientUsage, DeviceUsage, Rates};

/// Seconds that are kept one by one.
const SECONDS: usize = 600;

/// Minutes that are kept as averages.
const MINUTES: usize = 24 * 60;

/// Seconds that the small curves of a table show.
const SHORT: usize = 60;

/// Clients that have a history at most, those that have left among them.
const CLIENTS: usize = 256;

/// Devices that have one.
const DEVICES: usize = 64;

/// Clients that a plot shows one by one; others are what is left of the device.
const DRAWN: usize = 8;

/// What is kept of a moment: the parts of kernels, of multiprocessors and of waiting, and bytes of memory. A moment that nobody
/// has seen has no numbers.
type Sample = [f32; 4];

const UNSEEN: Sample = [f32::NAN; 4];

/// Names of a sample's numbers, and by how much they are multiplied to be whole numbers.
const NAMES: [(&str, f32); 4] = [
    ("kernels", 1000.0),
    ("multiprocessors", 1000.0),
    ("waited", 1000.0),
    ("memory", 1.0 / 1024.0),
];

/// Which numbers of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Kernels = 0,
    Multiprocessors = 1,
    Memory = 3,
}

/// How far back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The last [`SHORT`] seconds.
    Minute,
    /// The last ten minutes.
    Minutes,
    /// The last day, by the minute.
    Day,
}

impl Span {
    /// The one of a name in a question.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "minute" => Self::Minute,
            "minutes" => Self::Minutes,
            "day" => Self::Day,
            _ => return None,
        })
    }

    /// How many samples it has, and of how many seconds each.
    fn samples(self) -> (usize, u64) {
        match self {
            Self::Minute => (SHORT, 1),
            Self::Minutes => (SECONDS, 1),
            Self::Day => (MINUTES, 60),
        }
    }
}

/// Samples at equal distances, the oldest of which make room.
#[derive(Debug, Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// The moment after the last.
    end: u64,
}

impl Ring {
    /// Puts a sample at its moment; one that is there already is replaced.
    fn push(&mut self, moment: u64, sample: Sample, most: usize) {
        if moment < self.end {
            if let (true, Some(last)) = (moment + 1 == self.end, self.samples.back_mut()) {
                *last = sample;
            }
            return;
        }
        let unseen = usize::try_from(moment - self.end).unwrap_or(most).min(most);
        if !self.samples.is_empty() {
            self.samples.extend(std::iter::repeat_n(UNSEEN, unseen));
        }
        self.samples.push_back(sample);
        let surplus = self.samples.len().saturating_sub(most);
        self.samples.drain(..surplus);
        self.end = moment + 1;
    }

    /// The last `count` up to and without this moment.
    fn last(&self, count: usize, end: u64) -> impl Iterator<Item = Sample> {
        let first = self.end - self.samples.len() as u64;
        (1..=count as u64).rev().map(move |ago| {
            let at = end
                .checked_sub(ago)
                .and_then(|moment| moment.checked_sub(first));
            let at = at.and_then(|at| usize::try_from(at).ok());
            at.and_then(|at| self.samples.get(at).copied())
                .unwrap_or(UNSEEN)
        })
    }
}

/// One device's or client's.
#[derive(Debug, Default)]
struct Series {
    seconds: Ring,
    minutes: Ring,
    /// Of the latest minute.
    sum: [f64; 4],
    count: u32,
}

impl Series {
    fn add_sample(&mut self, second: u64, sample: Sample) {
        self.seconds.push(second, sample, SECONDS);
        let minute = second / 60;
        if self.minutes.end <= minute {
            (self.sum, self.count) = ([0.0; 4], 0);
        }
        self.count += 1;
        for (sum, value) in self.sum.iter_mut().zip(sample) {
            *sum += f64::from(value);
        }
        let average = self.sum.map(|sum| (sum / f64::from(self.count)) as f32);
        self.minutes.push(minute, average, MINUTES);
    }

    /// The second after the last of which something is known.
    fn end(&self) -> u64 {
        self.seconds.end.max(self.minutes.end * 60)
    }

    /// The samples of a span that ends with this second.
    fn samples(&self, span: Span, second: u64) -> Vec<Sample> {
        let (count, step) = span.samples();
        match step {
            1 => self.seconds.last(count, second + 1).collect(),
            _ => self.minutes.last(count, second / 60 + 1).collect(),
        }
    }
}

/// A client's, and who it is.
#[derive(Debug)]
struct OfClient {
    pid: i32,
    program: String,
    user: String,
    series: Series,
}

impl OfClient {
    fn new(pid: i32, program: &str, user: &str) -> Self {
        Self {
            pid,
            program: program.to_owned(),
            user: user.to_owned(),
            series: Series::default(),
        }
    }

    /// Whether it is this client's. A file has the beginning of a long name.
    fn is(&self, pid: i32, program: &str) -> bool {
        self.pid == pid && (program.starts_with(&self.program) || self.program.starts_with(program))
    }
}

/// A device's ordinal and a session.
type Key = (u32, u64);

#[derive(Debug, Default)]
pub struct History {
    /// Seconds since 1970: the moment of the latest sample.
    second: u64,
    devices: BTreeMap<u32, Series>,
    clients: BTreeMap<Key, OfClient>,
}

impl History {
    /// Takes what was used in a second, which is counted from 1970 on.
    pub fn add_second(&mut self, second: u64, devices: &[DeviceUsage]) {
        self.second = second;
        let day = (MINUTES * 60) as u64;
        self.clients
            .retain(|_, client| client.series.end() + day > second);
        for device in devices {
            if self.devices.len() < DEVICES || self.devices.contains_key(&device.device) {
                let series = self.devices.entry(device.device).or_default();
                series.add_sample(second, sample(&device.rates, device.memory_used));
            }
            for client in &device.clients {
                self.take_client((device.device, client.session), client);
            }
        }
    }

    /// Takes that nothing is known of a second.
    pub fn skip_second(&mut self, second: u64) {
        self.second = second;
    }

    /// Takes what a file has of a day that ends with this second, oldest first, before anything else is taken.
    pub fn restore(&mut self, second: u64, records: Vec<Record>) {
        self.second = second;
        for record in records {
            let series = match record.client {
                None => self.devices.entry(record.device).or_default(),
                Some(client) => {
                    let key = (record.device, client.session);
                    if self.clients.len() >= CLIENTS && !self.clients.contains_key(&key) {
                        continue;
                    }
                    let fresh = || OfClient::new(client.pid, &client.program, &client.user);
                    let there = self.clients.entry(key).or_insert_with(fresh);
                    if !there.is(client.pid, &client.program) {
                        *there = fresh();
                    }
                    &mut there.series
                }
            };
            series.minutes.push(record.minute, record.sample, MINUTES);
        }
    }

    /// What was seen in the latest minute, if it is this one, as far as a file has room for it: devices, and those of their clients that had most.
    pub fn minute(&self, minute: u64) -> Vec<Record> {
        let of = |series: &Series, device: u32, client| {
            let is_of_it = series.minutes.end == minute + 1;
            let sample = series.minutes.samples.back().copied();
            let sample =
                sample.filter(|sample| is_of_it && sample.iter().all(|it| !it.is_nan()))?;
            Some(Record {
                minute,
                device,
                client,
                sample,
            })
        };
        let devices = self.devices.iter();
        let mut records: Vec<Record> = devices
            .filter_map(|(&device, series)| of(series, device, None))
            .collect();
        let clients = self.clients.iter();
        let mut of_clients: Vec<Record> = clients
            .filter_map(|(&(device, session), client)| {
                let named = history_form::Client {
                    session,
                    pid: client.pid,
                    program: client.program.clone(),
                    user: client.user.clone(),
                };
                of(&client.series, device, Some(named))
            })
            .collect();
        let part = |record: &Record| record.sample[Number::Multiprocessors as usize];
        of_clients.sort_by(|one, other| part(other).total_cmp(&part(one)));
        records.append(&mut of_clients);
        records.truncate(IN_MINUTE);
        records
    }

    fn take_client(&mut self, key: Key, client: &ClientUsage) {
        let second = self.second;
        // Daemons count their clients from the beginning again.
        if let Some(there) = self.clients.get(&key)
            && !there.is(client.pid, &client.program)
        {
            self.clients.remove(&key);
        }
        if !self.clients.contains_key(&key) && self.clients.len() >= CLIENTS {
            // Who left first makes room; while all are there, a new one has none.
            let of = |(key, client): (&Key, &OfClient)| (client.series.seconds.end, *key);
            match self.clients.iter().map(of).min() {
                // Who is there was seen in this second or the one before.
                Some((end, left)) if end + 1 < second => self.clients.remove(&left),
                _ => return,
            };
        }
        let fresh = || OfClient::new(client.pid, &client.program, &client.user);
        let of_client = self.clients.entry(key).or_insert_with(fresh);
        let sample = sample(&client.rates, client.memory);
        of_client.series.add_sample(second, sample);
    }

    /// The devices' plots: each device with those of its clients that had most of it.
    pub fn of_devices(&self, span: Span) -> Value {
        let devices = self.devices.iter().map(|(&ordinal, series)| {
            let samples = series.samples(span, self.second);
            json!({
                "device": ordinal,
                "multiprocessors": numbers(&samples, Number::Multiprocessors),
                "memory": numbers(&samples, Number::Memory),
                "clients": self.most_active(ordinal, span),
            })
        });
        let devices: Vec<Value> = devices.collect();
        json!({ "step": span.samples().1, "devices": devices })
    }

    fn most_active(&self, device: u32, span: Span) -> Vec<Value> {
        let of_device = self.clients.range((device, 0)..=(device, u64::MAX));
        let mut with_sums: Vec<_> = of_device
            .map(|((_, session), client)| {
                let samples = client.series.samples(span, self.second);
                let seen = samples
                    .iter()
                    .map(|it| it[Number::Multiprocessors as usize]);
                let sum: f32 = seen.filter(|value| !value.is_nan()).sum();
                (sum, *session, client, samples)
            })
            .filter(|(sum, ..)| *sum > 0.0)
            .collect();
        with_sums.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        with_sums.truncate(DRAWN);
        // In the order in which they came, so that they keep their places.
        with_sums.sort_by_key(|(_, session, ..)| *session);
        with_sums
            .into_iter()
            .map(|(_, session, client, samples)| {
                json!({
                    "session": session,
                    "pid": client.pid,
                    "program": client.program,
                    "user": client.user,
                    "multiprocessors": numbers(&samples, Number::Multiprocessors),
                })
            })
            .collect()
    }

    /// The small curves of all clients that are there.
    pub fn of_clients(&self) -> Value {
        let there = self
            .clients
            .iter()
            .filter(|(_, client)| client.series.seconds.end > self.second);
        let clients: Vec<Value> = there
            .map(|((device, session), client)| {
                let samples = client.series.samples(Span::Minute, self.second);
                json!({
                    "device": device,
                    "session": session,
                    "kernels": numbers(&samples, Number::Kernels),
                })
            })
            .collect();
        json!({ "step": 1, "clients": clients })
    }

    /// All of one client, if it has a history.
    pub fn of_client(&self, device: u32, session: u64, span: Span) -> Option<Value> {
        let client = self.clients.get(&(device, session))?;
        let samples = client.series.samples(span, self.second);
        let mut value = json!({ "step": span.samples().1 });
        for (at, (name, _)) in NAMES.iter().enumerate() {
            value[name] = numbers_at(&samples, at);
        }
        Some(value)
    }
}

fn sample(rates: &Rates, memory: u64) -> Sample {
    [
        rates.kernels as f32,
        rates.multiprocessors as f32,
        rates.waited as f32,
        memory as f32,
    ]
}

fn numbers(samples: &[Sample], number: Number) -> Value {
    numbers_at(samples, number as usize)
}

/// One of the samples' numbers as whole ones: thousandths and kibibytes; `null` where nothing was seen.
fn numbers_at(samples: &[Sample], at: usize) -> Value {
    let whole = samples.iter().map(|sample| match sample[at] {
        value if value.is_nan() => Value::Null,
        value => Value::from((value * NAMES[at].1).round() as u64),
    });
    whole.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(sessions: std::ops::Range<u64>, part: f64) -> Vec<DeviceUsage> {
        let rates = Rates {
            kernels: part,
            multiprocessors: part,
            ..Rates::default()
        };
        let client = |session| ClientUsage {
            session,
            program: format!("p{session}"),
            memory: 2048,
            rates,
            ..ClientUsage::default()
        };
        vec![DeviceUsage {
            rates,
            clients: sessions.map(client).collect(),
            ..DeviceUsage::default()
        }]
    }

    fn seen(value: &Value) -> Vec<Option<u64>> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(Value::as_u64)
            .collect()
    }

    #[test]
    fn moments_that_nobody_saw_are_none() {
        let mut history = History::default();
        history.add_second(3, &usage(1..2, 0.5));
        history.skip_second(4);
        history.add_second(5, &usage(1..2, 0.25));
        let of_it = history.of_client(0, 1, Span::Minutes).unwrap();
        let kernels = seen(&of_it["kernels"]);
        assert_eq!(kernels.len(), SECONDS, "also those before it began");
        assert_eq!(kernels[SECONDS - 4..], [None, Some(500), None, Some(250)]);
        assert_eq!(seen(&of_it["memory"])[SECONDS - 1], Some(2));
        history.skip_second(2000);
        let later = history.of_client(0, 1, Span::Minutes).unwrap();
        assert_eq!(seen(&later["kernels"]), vec![None; SECONDS]);
        assert_eq!(history.of_clients()["clients"], json!([]), "it has left");
        assert!(history.of_client(0, 9, Span::Day).is_none());
    }

    #[test]
    fn a_day_is_kept_by_the_minute_and_bounded() {
        let mut history = History::default();
        for second in 0..180_000 {
            let part = if second % 2 == 0 { 0.2 } else { 0.4 };
            history.add_second(second, &usage(1..2, part));
        }
        let day = history.of_devices(Span::Day);
        assert_eq!(day["step"], 60);
        let samples = seen(&day["devices"][0]["multiprocessors"]);
        assert_eq!(samples, vec![Some(300); MINUTES]);
        let client = &history.clients[&(0, 1)].series;
        assert!(client.minutes.samples.len() <= MINUTES);
        assert!(client.seconds.samples.len() <= SECONDS);
        // Whoever left keeps its last minute, and is forgotten after a day.
        history.add_second(180_100, &usage(0..0, 0.0));
        let day = history.of_client(0, 1, Span::Day).unwrap();
        assert_eq!(seen(&day["kernels"])[MINUTES - 3], Some(300));
        history.add_second(180_000 + 90_000, &usage(0..0, 0.0));
        assert!(history.of_client(0, 1, Span::Day).is_none());
    }

    #[test]
    fn clients_beyond_the_bound_have_the_room_of_those_that_left() {
        let most = CLIENTS as u64;
        let mut history = History::default();
        history.add_second(1, &usage(0..most, 0.1));
        history.add_second(2, &usage(1..most + 2, 0.1));
        assert_eq!(history.clients.len(), CLIENTS);
        history.add_second(9, &usage(1..most + 2, 0.1));
        assert_eq!(history.clients.len(), CLIENTS);
        assert!(!history.clients.contains_key(&(0, 0)), "it left first");
        assert!(history.clients.contains_key(&(0, 1)));
        assert!(history.clients.contains_key(&(0, most)));
        let drawn = history.of_devices(Span::Minutes);
        let drawn = drawn["devices"][0]["clients"].as_array().unwrap();
        assert_eq!(drawn.len(), DRAWN);
    }

    #[test]
    fn what_a_file_has_kept_goes_on() {
        let mut history = History::default();
        let begin = 20_000 * 86_400;
        let minute = begin / 60;
        let mut kept = Vec::new();
        for second in begin..begin + 120 {
            history.add_second(second, &usage(1..100, 0.5));
            if second % 60 == 59 {
                kept.extend(history.minute(second / 60));
            }
        }
        assert_eq!(kept.len(), 2 * IN_MINUTE, "as many as there is room for");
        assert!(kept[0].client.is_none() && kept[1].client.is_some());
        assert_eq!(history.minute(minute + 2), [], "not yet");

        let mut later = History::default();
        later.restore(begin + 180, kept);
        later.add_second(begin + 180, &usage(1..2, 0.25));
        let day = later.of_client(0, 1, Span::Day).unwrap();
        let expected = [Some(500), Some(500), None, Some(250)];
        assert_eq!(seen(&day["kernels"])[MINUTES - 4..], expected);
        let day = later.of_devices(Span::Day);
        let device = seen(&day["devices"][0]["multiprocessors"]);
        assert_eq!(device[MINUTES - 4..], expected);
        assert_eq!(later.of_clients()["clients"].as_array().unwrap().len(), 1);
        // Another daemon's client of the same number.
        let mut other = usage(1..2, 0.25);
        other[0].clients[0].pid = 9;
        later.add_second(begin + 240, &other);
        let day = later.of_client(0, 1, Span::Day).unwrap();
        assert_eq!(
            seen(&day["kernels"])[MINUTES - 5..],
            [None, None, None, None, Some(250)]
        );
    }
}
