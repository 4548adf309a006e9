//! What was used of devices from a beginning to an end: looks at the daemon's accounts, added up and kept as samples.
//!
//! Owns the thread that looks and the bound of what is kept. Must not know how it is shown. Called by `report`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use protocol::control_messages::View;

use crate::container_names::ContainerName;
use crate::machine;
use crate::usage::{self, ClientUsage, Total, Usage};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// How long the daemon may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Samples that are kept: when there are more, two become one.
const SAMPLES: usize = 600;

/// Clients that are told one by one.
const CLIENTS: usize = 1000;

/// A device's ordinal and a session.
pub type Key = (u32, u64);

/// A stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub seconds: f64,
    /// What each device's multiprocessors worked in it, in seconds of all of them, and the most bytes of its memory.
    pub devices: BTreeMap<u32, (f64, u64)>,
    /// The same of clients.
    pub clients: BTreeMap<Key, (f64, u64)>,
}

impl Sample {
    /// Takes the one behind it, too.
    fn extend(&mut self, next: &Self) {
        self.seconds += next.seconds;
        for (key, value) in &next.devices {
            add(self.devices.entry(*key).or_default(), *value);
        }
        for (key, value) in &next.clients {
            add(self.clients.entry(*key).or_default(), *value);
        }
    }
}

fn add(sum: &mut (f64, u64), value: (f64, u64)) {
    *sum = (sum.0 + value.0, sum.1.max(value.1));
}

/// A client and what it had.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Client {
    pub pid: i32,
    /// Its program's name, behind its label if it has one.
    pub title: String,
    pub user: String,
    pub group: Option<String>,
    pub place: ContainerName,
    /// When it was seen first and last, in seconds since the beginning.
    pub seen: (f64, f64),
    /// What it had of the device in that time.
    pub had: Total,
    /// The most bytes of memory that it was seen to have.
    pub memory: u64,
    /// For how many seconds it waited for others, by session; none stands for those that are not shown.
    pub waits: BTreeMap<Option<u64>, f64>,
    /// What it had had before it was seen first.
    pub before: Total,
}

/// A device and what all had of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    pub name: String,
    pub multiprocessors: u32,
    pub memory_total: u64,
}

/// All that was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    pub samples: Vec<Sample>,
    pub devices: BTreeMap<u32, Device>,
    pub clients: BTreeMap<Key, Client>,
    /// How many clients were not kept.
    pub left_out: usize,
    /// Looks that the daemon did not answer, and why the last of them.
    pub unanswered: (u32, Option<String>),
}

impl Recorded {
    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.iter().map(|sample| sample.seconds).sum()
    }

    /// What a device's multiprocessors worked, in seconds of all of them.
    pub fn worked(&self, device: u32) -> f64 {
        let of_it = |sample: &Sample| sample.devices.get(&device).map_or(0.0, |it| it.0);
        self.samples.iter().map(of_it).sum()
    }

    fn add_usage(&mut self, usage: &Usage, is_first: bool) {
        let begin = self.seconds();
        let now = begin + usage.seconds;
        let mut sample = Sample {
            seconds: usage.seconds,
            ..Sample::default()
        };
        for device in &usage.devices {
            self.devices.entry(device.device).or_insert_with(|| Device {
                name: device.name.clone(),
                multiprocessors: device.multiprocessors,
                memory_total: device.memory_total,
            });
            let worked = device.rates.multiprocessors * usage.seconds;
            sample
                .devices
                .insert(device.device, (worked, device.memory_used));
            for client in &device.clients {
                let key = (device.device, client.session);
                if !self.clients.contains_key(&key) && self.clients.len() >= CLIENTS {
                    self.left_out += 1;
                    continue;
                }
                let worked = client.rates.multiprocessors * usage.seconds;
                sample.clients.insert(key, (worked, client.memory));
                let kept = self.clients.entry(key).or_insert_with(|| Client {
                    pid: client.pid,
                    title: client.title(),
                    user: client.user.clone(),
                    group: client.group.clone(),
                    place: client.place.clone(),
                    seen: (begin, now),
                    // Who came since the last look has had all of it here.
                    before: if is_first {
                        client.total
                    } else {
                        Total::default()
                    },
                    ..Client::default()
                });
                kept.update(client, now, usage.seconds);
            }
        }
        if usage.seconds > 0.0 {
            self.samples.push(sample);
        }
        if self.samples.len() > SAMPLES {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let halves = self.samples.chunks(2).map(|both| {
            let mut one = both[0].clone();
            if let Some(next) = both.get(1) {
                one.extend(next);
            }
            one
        });
        self.samples = halves.collect();
    }
}

impl Client {
    fn update(&mut self, client: &ClientUsage, now: f64, seconds: f64) {
        self.seen.1 = now;
        self.had = client.total.since(&self.before);
        self.memory = self.memory.max(client.memory);
        for wait in &client.waits {
            *self.waits.entry(wait.session).or_default() += wait.part * seconds;
        }
    }
}

/// Looks until it is told to stop.
#[derive(Debug)]
pub struct Recorder {
    stop: Arc<AtomicBool>,
    clients: Arc<AtomicUsize>,
    thread: JoinHandle<Recorded>,
}

impl Recorder {
    /// Begins. `pipe` is the daemon's pipe directory, if it is not the environment's. The first look is made before this returns.
    ///
    /// # Errors
    /// If the daemon does not answer.
    pub fn start(pipe: Option<PathBuf>) -> Result<Self> {
        let ask = move |within| match &pipe {
            Some(pipe) => machine::view_of(pipe, within),
            None => machine::view(within),
        };
        let first = ask(machine::PATIENCE)?;
        let (stop, clients) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (stopped, counted) = (stop.clone(), clients.clone());
        let thread = std::thread::Builder::new()
            .name("report".to_owned())
            .spawn(move || keep_looking(first, ask, &stopped, &counted))
            .context("cannot start a thread")?;
        Ok(Self {
            stop,
            clients,
            thread,
        })
    }

    /// How many clients were seen so far.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Looks once more and gives all that was seen.
    pub fn finish(self) -> Recorded {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

fn keep_looking(
    first: View,
    ask: impl Fn(Duration) -> Result<View>,
    stop: &AtomicBool,
    clients: &AtomicUsize,
) -> Recorded {
    let mut recorded = Recorded::default();
    recorded.add_usage(&usage::between(None, &first), true);
    let mut earlier = first;
    let mut is_last = false;
    while !is_last {
        let next = Instant::now() + INTERVAL;
        while !stop.load(Ordering::Relaxed) {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
        is_last = stop.load(Ordering::Relaxed);
        match ask(WITHIN) {
            Ok(view) => {
                recorded.add_usage(&usage::between(Some(&earlier), &view), false);
                clients.store(recorded.clients.len(), Ordering::Relaxed);
                earlier = view;
            }
            Err(error) => {
                recorded.unanswered.0 += 1;
                recorded.unanswered.1 = Some(format!("{error:#}"));
            }
        }
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{DeviceUsage, Rates, Wait};

    fn usage(seconds: f64, clients: &[(u64, f64, u64)]) -> Usage {
        let client = |&(session, part, kernels): &(u64, f64, u64)| ClientUsage {
            session,
            memory: 10 * session,
            rates: Rates {
                multiprocessors: part,
                ..Rates::default()
            },
            waits: vec![Wait {
                session: None,
                part: 0.5,
            }],
            total: Total {
                kernels,
                ..Total::default()
            },
            ..ClientUsage::default()
        };
        Usage {
            seconds,
            devices: vec![DeviceUsage {
                clients: clients.iter().map(client).collect(),
                rates: Rates {
                    multiprocessors: clients.iter().map(|it| it.1).sum(),
                    ..Rates::default()
                },
                ..DeviceUsage::default()
            }],
            servers: Vec::new(),
        }
    }

    #[test]
    fn what_clients_had_before_is_not_theirs_here() {
        let mut recorded = Recorded::default();
        recorded.add_usage(&usage(0.0, &[(1, 0.0, 100)]), true);
        recorded.add_usage(&usage(1.0, &[(1, 0.25, 130), (2, 0.5, 7)]), false);
        recorded.add_usage(&usage(1.0, &[(2, 0.5, 9)]), false);
        assert_eq!(recorded.seconds(), 2.0);
        assert_eq!(recorded.worked(0), 1.25);
        let [one, two] = [1, 2].map(|session| &recorded.clients[&(0, session)]);
        assert_eq!((one.had.kernels, two.had.kernels), (30, 9));
        assert_eq!((one.seen, two.seen), ((0.0, 1.0), (0.0, 2.0)));
        assert_eq!(two.waits[&None], 1.0);
        assert_eq!(two.memory, 20);
    }

    #[test]
    fn long_runs_take_no_more_memory_and_lose_nothing() {
        let mut recorded = Recorded::default();
        for _ in 0..SAMPLES * 5 {
            recorded.add_usage(&usage(0.5, &[(1, 0.5, 1)]), false);
        }
        assert!(recorded.samples.len() <= SAMPLES);
        assert_eq!(recorded.seconds(), SAMPLES as f64 * 2.5);
        assert_eq!(recorded.worked(0), SAMPLES as f64 * 1.25);
        let many: Vec<_> = (0..CLIENTS as u64 + 5)
            .map(|session| (session, 0.0, 0))
            .collect();
        recorded.add_usage(&usage(0.5, &many), false);
        assert_eq!(recorded.clients.len(), CLIENTS);
        assert_eq!(recorded.left_out, 5);
    }
}
