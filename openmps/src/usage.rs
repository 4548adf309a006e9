//! Who used what of each device between two looks at the daemon's accounts.
//!
//! `top` and `metrics` show it. Must not know how it is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::control_messages::{DeviceAccount, STANDBY_LABEL, Takeovers, View, ViewedProcess};
use serde::Serialize;

use crate::container_names::{ContainerName, ContainerNames};

/// What all devices were used for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Usage {
    /// The time between the two looks.
    pub seconds: f64,
    /// By ordinal.
    pub devices: Vec<DeviceUsage>,
    /// The servers that can be seen, with what they have taken over.
    pub servers: Vec<ServerUsage>,
}

/// A server.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct ServerUsage {
    /// Its process id.
    pub pid: i32,
    /// Whether it stands by, without clients, for the end of another one.
    pub standby: bool,
    /// What it has taken over.
    pub takeovers: TakenOver,
}

/// What one device was used for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceUsage {
    /// Its ordinal.
    pub device: u32,
    /// `GPU-…`
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory that there are.
    pub memory_total: u64,
    /// Bytes of these that are taken.
    pub memory_used: u64,
    /// Operations in all clients' streams that are not complete.
    pub queued: u64,
    /// For how many seconds nothing has ended on it though it has work, if that is for longer than a server's watchdog waits.
    pub still_seconds: Option<f64>,
    /// What all clients had.
    pub rates: Rates,
    /// Those that are there, the most recent last.
    pub clients: Vec<ClientUsage>,
}

/// What one client used a device for.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientUsage {
    /// A number that no other client has had.
    pub session: u64,
    /// Its process id, or 0 where it cannot be seen.
    pub pid: i32,
    /// Its server's.
    pub server: i32,
    /// Its program's name, with what a terminal would take for commands made visible.
    pub program: String,
    /// Its user's name, or the number where there is none.
    pub user: String,
    /// Its group's name.
    pub group: Option<String>,
    /// What it is called besides, as fit for a terminal.
    pub label: Option<String>,
    /// Its container's and pod's names, or what stands for them.
    #[serde(flatten)]
    pub place: ContainerName,
    /// Bytes of the device's memory that it has.
    pub memory: u64,
    /// Bytes that it may have.
    pub memory_limit: u64,
    /// Operations in its streams that are not complete.
    pub queued: u64,
    /// What it had between the looks.
    pub rates: Rates,
    /// Whom its work waited for between the looks.
    pub waits: Vec<Wait>,
    /// What it has had since it came, or was last taken over.
    pub total: Total,
    /// How often its session was taken over, and what became of what was under way.
    pub takeovers: TakenOver,
}

/// How often sessions were taken over, and what became of the operations that were under way.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct TakenOver {
    pub count: u64,
    pub untouched: u64,
    pub repeated: u64,
    pub failed: u64,
}

impl From<Takeovers> for TakenOver {
    fn from(takeovers: Takeovers) -> Self {
        Self {
            count: takeovers.count,
            untouched: takeovers.untouched,
            repeated: takeovers.repeated,
            failed: takeovers.failed,
        }
    }
}

/// That a client's work waited for another client.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub struct Wait {
    /// The other's session; none stands for all that are not shown.
    pub session: Option<u64>,
    /// The part of the time. The time that a client waited is divided among the others by the multiprocessors' time that they had
    /// meanwhile.
    pub part: f64,
}

/// What was had per time; parts of the time are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Rates {
    /// The part of the time in which kernels ran. Of a device the sum over its clients, which is above 1 where kernels of several
    /// ran side by side.
    pub kernels: f64,
    /// The part of all multiprocessors' time.
    pub multiprocessors: f64,
    /// The part of the time in which memory was copied.
    pub copies: f64,
    /// The part of the time in which work waited for other clients' to end.
    pub waited: f64,
    /// Kernels that were launched, a second.
    pub launches: f64,
    /// Bytes from host memory to the device, a second.
    pub to_device: f64,
    /// Bytes from the device to host memory, a second.
    pub from_device: f64,
}

/// As [`DeviceAccount`], with times in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Total {
    pub kernels: u64,
    pub kernel_seconds: f64,
    pub multiprocessor_seconds: f64,
    pub copies: u64,
    pub copy_seconds: f64,
    pub bytes_to_device: u64,
    pub bytes_from_device: u64,
    pub bytes_within_device: u64,
    pub loads: u64,
    pub load_seconds: f64,
    pub waited_seconds: f64,
    pub throttled_seconds: f64,
    pub faults: u64,
}

impl Total {
    /// What came since another.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            kernels: self.kernels.saturating_sub(before.kernels),
            kernel_seconds: self.kernel_seconds - before.kernel_seconds,
            multiprocessor_seconds: self.multiprocessor_seconds - before.multiprocessor_seconds,
            copies: self.copies.saturating_sub(before.copies),
            copy_seconds: self.copy_seconds - before.copy_seconds,
            bytes_to_device: self.bytes_to_device.saturating_sub(before.bytes_to_device),
            bytes_from_device: self
                .bytes_from_device
                .saturating_sub(before.bytes_from_device),
            bytes_within_device: self
                .bytes_within_device
                .saturating_sub(before.bytes_within_device),
            loads: self.loads.saturating_sub(before.loads),
            load_seconds: self.load_seconds - before.load_seconds,
            waited_seconds: self.waited_seconds - before.waited_seconds,
            throttled_seconds: self.throttled_seconds - before.throttled_seconds,
            faults: self.faults.saturating_sub(before.faults),
        }
    }
}

impl ClientUsage {
    /// What it is known by: its label, if it has one, before its program.
    pub fn title(&self) -> String {
        match &self.label {
            Some(label) => format!("{label} ({})", self.program),
            None => self.program.clone(),
        }
    }
}

impl From<&DeviceAccount> for Total {
    fn from(account: &DeviceAccount) -> Self {
        Self {
            kernels: account.kernels,
            kernel_seconds: seconds(account.kernel_time),
            multiprocessor_seconds: seconds(account.multiprocessor_time),
            copies: account.copies,
            copy_seconds: seconds(account.copy_time),
            bytes_to_device: account.bytes_to_device,
            bytes_from_device: account.bytes_from_device,
            bytes_within_device: account.bytes_within_device,
            loads: account.loads,
            load_seconds: seconds(account.load_time),
            waited_seconds: seconds(account.waited),
            throttled_seconds: seconds(account.throttled),
            faults: account.faults,
        }
    }
}

/// A time of an account.
pub fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

/// What was used between two views, the earlier of which may be missing: then rates are 0.
pub fn between(earlier: Option<&View>, now: &View) -> Usage {
    let span = earlier.map_or(0, |earlier| now.time.saturating_sub(earlier.time));
    let key = |process: &ViewedProcess| (process.device, process.session);
    let processes = earlier.into_iter().flat_map(|view| &view.processes);
    let former: BTreeMap<_, _> = processes
        .filter(|process| !process.is_server)
        .map(|process| (key(process), process.account))
        .collect();
    let (users, places) = (Users::default(), ContainerNames::of_node());
    let devices = (0..).zip(&now.devices).map(|(ordinal, viewed)| {
        let multiprocessors = viewed.device.multiprocessors;
        let before = earlier.and_then(|view| view.devices.get(ordinal as usize));
        let rates_of =
            |before: &DeviceAccount, now: &DeviceAccount| rates(before, now, span, multiprocessors);
        let clients = now
            .processes
            .iter()
            .filter(|process| process.device == ordinal && !process.is_server)
            .map(|process| {
                // Who has come since has had nothing before.
                let before = former.get(&key(process)).copied().unwrap_or_default();
                ClientUsage {
                    session: process.session,
                    pid: process.pid,
                    server: process.server,
                    program: printable(&process.name),
                    user: users.name(process.uid),
                    group: process.group.clone(),
                    label: process.label.as_deref().map(printable),
                    place: places.of(process),
                    memory: process.account.memory,
                    memory_limit: process.limit,
                    queued: process.account.queued,
                    rates: match earlier {
                        Some(_) => rates_of(&before, &process.account),
                        None => Rates::default(),
                    },
                    waits: Vec::new(),
                    total: Total::from(&process.account),
                    takeovers: process.takeovers.into(),
                }
            });
        let mut clients: Vec<ClientUsage> = clients.collect();
        clients.sort_by_key(|client| client.session);
        let rates = before.map_or_else(Rates::default, |before| {
            rates_of(&before.account, &viewed.account)
        });
        let waits: Vec<_> = clients
            .iter()
            .map(|client| waits(client, &clients, &rates))
            .collect();
        for (client, waits) in clients.iter_mut().zip(waits) {
            client.waits = waits;
        }
        DeviceUsage {
            device: ordinal,
            uuid: viewed.device.uuid.clone(),
            name: printable(&viewed.device.name),
            multiprocessors,
            memory_total: viewed.total,
            memory_used: viewed.used,
            queued: viewed.account.queued,
            still_seconds: viewed
                .still_since
                .map(|since| seconds(now.time.saturating_sub(since))),
            rates,
            clients,
        }
    });
    Usage {
        seconds: seconds(span),
        devices: devices.collect(),
        servers: servers(now).collect(),
    }
}

/// The servers that a view has, each once.
pub fn servers(view: &View) -> impl Iterator<Item = ServerUsage> {
    let each = view.processes.iter();
    // A server has an entry for each device.
    each.filter(|process| process.is_server && process.device == 0)
        .map(|process| ServerUsage {
            pid: process.pid,
            standby: process.label.as_deref() == Some(STANDBY_LABEL),
            takeovers: process.takeovers.into(),
        })
}

/// Whom one of the clients waited for on a device that worked so much for all.
fn waits(client: &ClientUsage, clients: &[ClientUsage], device: &Rates) -> Vec<Wait> {
    let shown: f64 = clients.iter().map(|each| each.rates.multiprocessors).sum();
    let others = clients
        .iter()
        .filter(|other| other.session != client.session)
        .map(|other| (Some(other.session), other.rates.multiprocessors));
    let had: Vec<_> = others
        .chain([(None, device.multiprocessors - shown)])
        // The rest is what rounding leaves, too, where all are shown.
        .filter(|(_, had)| *had > 1e-9)
        .collect();
    let together: f64 = had.iter().map(|(_, had)| had).sum();
    if client.rates.waited == 0.0 {
        return Vec::new();
    }
    had.into_iter()
        .map(|(session, had)| Wait {
            session,
            part: client.rates.waited * had / together,
        })
        .collect()
}

fn rates(before: &DeviceAccount, now: &DeviceAccount, span: u64, multiprocessors: u32) -> Rates {
    if span == 0 {
        return Rates::default();
    }
    // What a server that ended had is not in later sums: less than before is none.
    let part = |before: u64, now: u64| now.saturating_sub(before) as f64 / span as f64;
    let per_second = |before, now| part(before, now) * 1e9;
    Rates {
        kernels: part(before.kernel_time, now.kernel_time),
        multiprocessors: part(before.multiprocessor_time, now.multiprocessor_time)
            / f64::from(multiprocessors.max(1)),
        copies: part(before.copy_time, now.copy_time),
        waited: part(before.waited, now.waited),
        launches: per_second(before.kernels, now.kernels),
        to_device: per_second(before.bytes_to_device, now.bytes_to_device),
        from_device: per_second(before.bytes_from_device, now.bytes_from_device),
    }
}

/// A name that a client chose, with control characters made visible, and those that turn round what stands behind them: it goes to
/// terminals and pages.
pub fn printable(name: &str) -> String {
    let turns = |character| matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut text = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_control() || turns(character) {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}

/// The users of this machine.
#[derive(Debug)]
pub struct Users(BTreeMap<u32, String>);

impl Default for Users {
    fn default() -> Self {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self(users(&text))
    }
}

impl Users {
    /// The name of a user, or the number where there is none.
    pub fn name(&self, uid: u32) -> String {
        self.0.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

/// The names in a text in the form of passwd(5).
fn users(text: &str) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next(), fields.nth(1));
        if let (Some(name), Some(Ok(uid))) = (name, uid.map(str::parse)) {
            // The first line of a number counts.
            names.entry(uid).or_insert_with(|| printable(name));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use protocol::control_messages::{ListedDevice, ViewedDevice};

    use super::*;

    fn process(session: u64, account: DeviceAccount) -> ViewedProcess {
        ViewedProcess {
            pid: 40 + session as i32,
            name: "a\u{1b}[2J\u{202e}b".into(),
            uid: 4_000_000_000,
            session,
            account,
            ..ViewedProcess::default()
        }
    }

    fn view(time: u64, processes: Vec<ViewedProcess>) -> View {
        let mut account = DeviceAccount::default();
        for process in &processes {
            account.add(&process.account);
        }
        View {
            devices: vec![ViewedDevice {
                device: ListedDevice {
                    multiprocessors: 4,
                    ..ListedDevice::default()
                },
                account,
                ..ViewedDevice::default()
            }],
            processes,
            time,
            ..View::default()
        }
    }

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let had = |kernels, kernel_time, multiprocessor_time| DeviceAccount {
            kernels,
            kernel_time,
            multiprocessor_time,
            waited: kernel_time / 2,
            bytes_to_device: 10 * kernels,
            ..DeviceAccount::default()
        };
        let second = 1_000_000_000;
        let before = view(5 * second, vec![process(1, had(10, second, second))]);
        let now = view(
            7 * second,
            vec![
                process(1, had(30, 2 * second, 5 * second)),
                process(2, had(4, second, second)),
            ],
        );
        let usage = between(Some(&before), &now);
        assert_eq!(usage.seconds, 2.0);
        let [one, two] = &usage.devices[0].clients[..] else {
            panic!("{usage:?}");
        };
        let expected = Rates {
            kernels: 0.5,
            multiprocessors: 0.5,
            waited: 0.25,
            launches: 10.0,
            to_device: 100.0,
            ..Rates::default()
        };
        assert_eq!(one.rates, expected);
        // It came between the two.
        assert_eq!((two.rates.kernels, two.rates.launches), (0.5, 2.0));
        assert_eq!(usage.devices[0].rates.kernels, 1.0, "both together");
        assert_eq!(one.program, "a\\u{1b}[2J\\u{202e}b");
        assert_eq!(one.user, "4000000000");
        let first = between(None, &now);
        assert_eq!(first.devices[0].clients[0].rates, Rates::default());
        assert_eq!(first.devices[0].clients[0].total.kernels, 30);
    }

    #[test]
    fn waits_are_divided_by_what_others_had() {
        let had = |multiprocessor_time, waited| DeviceAccount {
            multiprocessor_time,
            waited,
            ..DeviceAccount::default()
        };
        let clients = vec![
            process(1, had(100, 800)),
            process(2, had(300, 400)),
            process(3, had(100, 0)),
        ];
        let waits = |now: &View| -> Vec<_> {
            let usage = between(Some(&view(1000, Vec::new())), now);
            let waits = &usage.devices[0].clients[0].waits;
            waits
                .iter()
                .map(|wait| (wait.session, (wait.part * 1e6).round() / 1e6))
                .collect()
        };
        let mut now = view(2000, clients);
        assert_eq!(waits(&now), [(Some(2), 0.6), (Some(3), 0.2)]);
        // Another user's client, of whom the device's sum tells.
        now.processes.remove(1);
        assert_eq!(waits(&now), [(Some(3), 0.2), (None, 0.6)]);
        let usage = between(Some(&view(1000, Vec::new())), &now);
        assert_eq!(usage.devices[0].clients[1].waits, [], "it never waited");
    }

    #[test]
    fn sums_that_fell_are_no_rate() {
        let had = |kernel_time| DeviceAccount {
            kernel_time,
            ..DeviceAccount::default()
        };
        let usage = between(
            Some(&view(10, vec![process(1, had(100))])),
            &view(20, Vec::new()),
        );
        assert_eq!(usage.devices[0].rates, Rates::default());
    }

    #[test]
    fn users_have_names() {
        let users = users("root:x:0:0::/:\nodd\nada:x:1000:1:::\nbob:x:1000:::\n");
        assert_eq!(users[&1000], "ada");
        assert_eq!(users.len(), 2);
    }
}
