//! Looks at the daemon's accounts once a second, also while nobody asks: what the page shows is made here, once for all readers.
//!
//! Must not know HTTP. Called by `page`, which gives it a thread, and by `answers` for what it has seen.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use protocol::control_messages::View;
use serde::Serialize;
use serde_json::Value;

use super::history::{History, Span};
use super::store::Store;
use crate::machine;
use crate::usage::{self, DeviceUsage, Wait};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the daemon may take.
const WITHIN: Duration = Duration::from_secs(2);

/// How long a daemon may take to come that is started with the page.
const COMES: Duration = Duration::from_secs(60);

/// Clients that are shown of a device.
const SHOWN: usize = 500;

/// Others of whom a client says that it waited for them; the rest is one sum.
const WAITS: usize = 24;

/// What the page shows of now.
#[derive(Debug, Serialize)]
struct Now<'a> {
    hostname: &'a str,
    version: &'a str,
    /// Milliseconds since 1970.
    time: u64,
    /// Why there is nothing.
    error: Option<&'a str>,
    devices: &'a [DeviceUsage],
    /// Clients that are not shown.
    left_out: usize,
}

#[derive(Debug, Default)]
struct Seen {
    now: Arc<Vec<u8>>,
    devices: Vec<DeviceUsage>,
    history: History,
}

/// What was seen last, for those who answer.
#[derive(Debug)]
pub struct Watch {
    hostname: String,
    store: Mutex<HistoryStorage>,
    seen: RwLock<Seen>,
}

/// Where the history is kept.
#[derive(Debug)]
enum HistoryStorage {
    /// In memory only.
    Here,
    /// In this file, once the daemon has been there.
    Soon(PathBuf),
    /// In a file too, up to and without this minute.
    InFile(Store, u64),
}

impl Watch {
    /// Nothing seen yet. The history is kept in the file, if one is given.
    pub fn new(hostname: String, history: Option<PathBuf>) -> Self {
        let watch = Self {
            hostname,
            store: Mutex::new(history.map_or(HistoryStorage::Here, HistoryStorage::Soon)),
            seen: RwLock::default(),
        };
        watch.add_usage(0, Err("the daemon has not been asked yet"));
        watch
    }

    /// What there is now, as JSON.
    pub fn now(&self) -> Arc<Vec<u8>> {
        self.seen.read().now.clone()
    }

    /// What devices were used for, for plots.
    pub fn history(&self, span: Span) -> Value {
        self.seen.read().history.of_devices(span)
    }

    /// The small curves of all clients.
    pub fn recent(&self) -> Value {
        self.seen.read().history.of_clients()
    }

    /// The same of a client, if it has a history.
    pub fn history_of(&self, device: u32, session: u64, span: Span) -> Option<Value> {
        self.seen.read().history.of_client(device, session, span)
    }

    /// The devices and all their clients.
    pub fn devices(&self) -> Vec<DeviceUsage> {
        self.seen.read().devices.clone()
    }

    /// Looks again and again. With `until_gone`, until a daemon that was there is there no more, or none has come in [`COMES`].
    pub fn poll_daemon(&self, until_gone: bool) {
        let begin = Instant::now();
        // By this clock alone from here on, whoever sets the time of day.
        let began_at = since_1970().as_secs();
        let mut earlier: Option<View> = None;
        let mut was_there = false;
        loop {
            let looked = machine::view(WITHIN);
            let second = began_at + begin.elapsed().as_secs();
            match looked {
                Ok(view) => {
                    was_there = true;
                    self.store_minute(second / 60);
                    self.add_usage(second, Ok(usage::between(earlier.as_ref(), &view).devices));
                    earlier = Some(view);
                }
                Err(_)
                    if until_gone
                        && (was_there || begin.elapsed() > COMES)
                        && !machine::has_daemon(WITHIN) =>
                {
                    return;
                }
                Err(error) => {
                    self.add_usage(second, Err(&format!("{error:#}")));
                    // What a daemon has counted that comes back says nothing of the time between.
                    earlier = None;
                }
            }
            // At whole seconds since the beginning, so that none is left out for long.
            let passed = begin.elapsed().as_nanos() % INTERVAL.as_nanos();
            let left = INTERVAL.as_nanos() - passed;
            std::thread::sleep(Duration::from_nanos(u64::try_from(left).unwrap_or(0)));
        }
    }

    /// It is this minute: those before it are written into the file, which is read first.
    fn store_minute(&self, minute: u64) {
        let mut kept = self.store.lock();
        match &mut *kept {
            HistoryStorage::Here => {}
            HistoryStorage::Soon(path) => match Store::open(path, minute) {
                Ok((store, records)) => {
                    self.seen.write().history.restore(minute * 60, records);
                    *kept = HistoryStorage::InFile(store, minute);
                }
                Err(error) => {
                    eprintln!("openmps page: the history is kept in memory only: {error:#}");
                    *kept = HistoryStorage::Here;
                }
            },
            HistoryStorage::InFile(store, since) if *since < minute => {
                let records = self.seen.read().history.minute(*since);
                store.write(*since, &records);
                *since = minute;
            }
            HistoryStorage::InFile(..) => {}
        }
    }

    /// The process ends: writes what there is of the last minute.
    pub fn save_last_minute(&self) {
        if let HistoryStorage::InFile(store, since) = &mut *self.store.lock() {
            let records = self.seen.read().history.minute(*since);
            store.write(*since, &records);
        }
    }

    fn add_usage(&self, second: u64, looked: Result<Vec<DeviceUsage>, &str>) {
        let (devices, error) = match looked {
            Ok(devices) => (devices, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let shown = most_active(&devices);
        let left_out = |devices: &[DeviceUsage]| -> usize {
            devices.iter().map(|device| device.clients.len()).sum()
        };
        let now = Now {
            hostname: &self.hostname,
            version: env!("CARGO_PKG_VERSION"),
            time: u64::try_from(since_1970().as_millis()).unwrap_or(0),
            error,
            devices: &shown,
            left_out: left_out(&devices) - left_out(&shown),
        };
        let now = Arc::new(serde_json::to_vec(&now).unwrap_or_default());
        let mut seen = self.seen.write();
        match error {
            None => seen.history.add_second(second, &devices),
            Some(_) => seen.history.skip_second(second),
        }
        seen.devices = devices;
        seen.now = now;
    }
}

fn since_1970() -> Duration {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time.unwrap_or_default()
}

/// The devices with so many of their clients, those that use most.
fn most_active(devices: &[DeviceUsage]) -> Vec<DeviceUsage> {
    let mut devices = devices.to_vec();
    for device in &mut devices {
        if device.clients.len() > SHOWN {
            let part = |client: &usage::ClientUsage| client.rates.kernels;
            device
                .clients
                .sort_by(|one, other| part(other).total_cmp(&part(one)));
            device.clients.truncate(SHOWN);
        }
        for client in &mut device.clients {
            shorten(&mut client.waits);
        }
    }
    devices
}

/// Leaves those that were waited for most.
fn shorten(waits: &mut Vec<Wait>) {
    if waits.len() <= WAITS {
        return;
    }
    // Those that are not shown are one of the rest, however much they had.
    waits.sort_by(|one, other| {
        let others = one.session.is_none().cmp(&other.session.is_none());
        others.then(other.part.total_cmp(&one.part))
    });
    let part = waits.drain(WAITS - 1..).map(|wait| wait.part).sum();
    waits.push(Wait {
        session: None,
        part,
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::usage::ClientUsage;

    fn now(watch: &Watch) -> Value {
        serde_json::from_slice(&watch.now()).unwrap()
    }

    #[test]
    fn waits_are_told_of_the_greatest_and_add_up() {
        let wait = |session| Wait {
            session: Some(session),
            part: session as f64,
        };
        let mut waits: Vec<Wait> = (0..100).map(wait).collect();
        shorten(&mut waits);
        assert_eq!(waits.len(), WAITS);
        assert_eq!(waits[0], wait(99));
        assert_eq!(waits[WAITS - 1].session, None);
        assert_eq!(waits.iter().map(|wait| wait.part).sum::<f64>(), 4950.0);
    }

    #[test]
    fn what_there_is_now_is_bounded_and_says_why_it_is_nothing() {
        let watch = Watch::new("h".into(), None);
        assert!(
            now(&watch)["error"]
                .as_str()
                .unwrap()
                .contains("not been asked")
        );
        let mut device = DeviceUsage::default();
        for session in 0..600 {
            let mut client = ClientUsage {
                session,
                program: "<b>\"\u{202e}".into(),
                ..ClientUsage::default()
            };
            client.rates.kernels = session as f64;
            device.clients.push(client);
        }
        watch.add_usage(1, Ok(vec![device]));
        let shown = now(&watch);
        assert_eq!(shown["error"], Value::Null);
        assert_eq!(shown["left_out"], 100);
        let clients = shown["devices"][0]["clients"].as_array().unwrap();
        assert_eq!(clients.len(), SHOWN);
        assert_eq!(clients[0]["session"], 599);
        assert_eq!(watch.devices()[0].clients.len(), 600);
        assert!(watch.history_of(0, 3, Span::Minutes).is_some());
        watch.add_usage(2, Err("gone"));
        assert_eq!(now(&watch)["error"], "gone");
    }

    #[test]
    fn a_history_outlives_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let usage = || {
            let mut client = ClientUsage {
                session: 3,
                ..ClientUsage::default()
            };
            client.rates.kernels = 0.5;
            vec![DeviceUsage {
                clients: vec![client],
                ..DeviceUsage::default()
            }]
        };
        let minute = 29_000_000;
        let watch = Watch::new("h".into(), Some(path.clone()));
        for second in minute * 60..(minute + 1) * 60 + 5 {
            watch.store_minute(second / 60);
            watch.add_usage(second, Ok(usage()));
        }
        watch.save_last_minute();
        drop(watch);
        let watch = Watch::new("h".into(), Some(path));
        watch.store_minute(minute + 3);
        watch.add_usage((minute + 3) * 60, Ok(usage()));
        let day = watch.history_of(0, 3, Span::Day).unwrap();
        let kernels = day["kernels"].as_array().unwrap();
        let end = &kernels[kernels.len() - 5..];
        assert_eq!(
            *end,
            [json!(null), json!(500), json!(500), json!(null), json!(500)]
        );
    }
}
