//! What `openmps top` shows, and what keys do to it.
//!
//! Owns the latest usage, the history behind the small curves, and what the user has chosen. Must not know how it looks, nor ask
//! the daemon for anything: what is to be carried out is told to the caller. Called by `top`; `draw` reads it.

use std::collections::{BTreeMap, VecDeque};

use super::kernels::KernelTable;
use super::order::{Grouping, Sort};
use crate::usage::{ClientUsage, DeviceUsage, Usage};

mod keys;

/// Looks that the small curves remember.
pub const REMEMBERED: usize = 60;

/// A client on a device: the device's ordinal, and its session.
pub type ClientKey = (u32, u64);

/// What is shown over the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    List,
    /// All that is known of the selected client.
    Detail,
    /// Which kernels it runs, since it is recorded.
    Kernels(KernelTable),
    /// What keys do.
    Help,
    /// A filter is being typed; the former one, for who goes back.
    Filter(String),
    /// Something about the selected client is being asked.
    Ask(Question, String),
}

/// What is asked before something is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether to end it.
    End,
    /// What active thread percentage it is to have.
    Percentage,
    /// How much of the device's memory it may have.
    Memory,
}

impl Question {
    /// How it is asked.
    pub fn text(self, client: &ClientUsage) -> String {
        let who = format!("{} ({})", client.title(), client.pid);
        match self {
            Self::End => format!("End {who}? Its calls give error 810 from then on. y or n: "),
            Self::Percentage => format!("Active thread percentage of {who}: "),
            Self::Memory => format!("Memory that {who} may have, as 4G, or none for no limit: "),
        }
    }
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Quit,
    /// Have the daemon carry this out.
    Command(String),
    /// Have the client of this process id recorded as long as its kernels are shown.
    WatchKernels(i32),
}

/// A line of the list.
#[derive(Clone, Debug)]
pub enum Row<'a> {
    /// The clients of a group or a pod, which follow.
    Group(String, Vec<&'a ClientUsage>),
    /// A client on a device.
    Client(&'a DeviceUsage, &'a ClientUsage),
}

#[derive(Debug)]
pub struct App {
    usage: Usage,
    history: BTreeMap<ClientKey, VecDeque<f64>>,
    device_history: BTreeMap<u32, VecDeque<f64>>,
    sort: Sort,
    filter: String,
    together: Grouping,
    selected: Option<ClientKey>,
    mode: Mode,
    message: Option<String>,
    paused: bool,
}

impl App {
    pub fn new(sort: Sort, filter: String, together: Grouping) -> Self {
        Self {
            usage: Usage::default(),
            history: BTreeMap::new(),
            device_history: BTreeMap::new(),
            sort,
            filter,
            together,
            selected: None,
            mode: Mode::List,
            message: None,
            paused: false,
        }
    }

    /// Takes what the latest look has shown.
    pub fn update(&mut self, usage: Usage) {
        let mut history = BTreeMap::new();
        for device in &usage.devices {
            remember(
                self.device_history.entry(device.device).or_default(),
                device.rates.kernels,
            );
            for client in &device.clients {
                let key = (device.device, client.session);
                let mut of_it = self.history.remove(&key).unwrap_or_default();
                remember(&mut of_it, client.rates.kernels);
                history.insert(key, of_it);
            }
        }
        // Who has left is forgotten.
        self.history = history;
        self.usage = usage;
        self.message = None;
        let keys = self.keys();
        if !self
            .selected
            .is_some_and(|selected| keys.contains(&selected))
        {
            self.selected = keys.first().copied();
            // What was asked was about the one who has left.
            if matches!(self.mode, Mode::Ask(..) | Mode::Detail | Mode::Kernels(_)) {
                self.mode = Mode::List;
                self.show_message("the client has left");
            }
        }
    }

    /// Whether the selected client's kernels are shown.
    pub fn shows_kernels(&self) -> bool {
        matches!(self.mode, Mode::Kernels(_))
    }

    /// Takes what is known of them, if they are shown.
    pub fn set_kernels(&mut self, table: KernelTable) {
        if let Mode::Kernels(shown) = &mut self.mode {
            *shown = table;
        }
    }

    /// Shows the list, and a line until the next look.
    pub fn close(&mut self, text: &str) {
        self.mode = Mode::List;
        self.show_message(text);
    }

    /// Shows a line until the next look.
    pub fn show_message(&mut self, text: &str) {
        self.message = Some(text.to_owned());
    }

    /// Of a usage what the filter leaves, sorted.
    pub fn filtered(&self, mut usage: Usage) -> Usage {
        for device in &mut usage.devices {
            device.clients.retain(|client| self.shows(client));
            device
                .clients
                .sort_by(|one, other| self.sort.order(one, other));
        }
        usage
    }

    fn shows(&self, client: &ClientUsage) -> bool {
        let pid = client.pid.to_string();
        let place = &client.place;
        let named = [&client.group, &client.label, &place.container, &place.pod];
        let named = named.into_iter().flatten();
        named
            .chain([&client.program, &client.user, &pid])
            .any(|text| text.contains(&self.filter))
    }

    pub fn devices(&self) -> &[DeviceUsage] {
        &self.usage.devices
    }

    pub fn sort(&self) -> Sort {
        self.sort
    }

    pub fn filter(&self) -> &str {
        &self.filter
    }

    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The parts of the time in which a client's kernels ran, the latest last.
    pub fn history(&self, key: ClientKey) -> impl DoubleEndedIterator<Item = f64> {
        self.history.get(&key).into_iter().flatten().copied()
    }

    /// The same of a device.
    pub fn device_history(&self, device: u32) -> impl DoubleEndedIterator<Item = f64> {
        self.device_history
            .get(&device)
            .into_iter()
            .flatten()
            .copied()
    }

    /// Whether a client is the selected one.
    pub fn is_selected(&self, key: ClientKey) -> bool {
        self.selected == Some(key)
    }

    /// The selected client.
    pub fn selected(&self) -> Option<(&DeviceUsage, &ClientUsage)> {
        let (ordinal, session) = self.selected?;
        let device = self
            .usage
            .devices
            .iter()
            .find(|device| device.device == ordinal)?;
        let client = device
            .clients
            .iter()
            .find(|client| client.session == session)?;
        Some((device, client))
    }

    /// The lines of the list.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut clients: Vec<(&DeviceUsage, &ClientUsage)> = Vec::new();
        for device in &self.usage.devices {
            let shown = device.clients.iter().filter(|client| self.shows(client));
            clients.extend(shown.map(|client| (device, client)));
        }
        clients.sort_by(|one, other| self.sort.order(one.1, other.1));
        let none = match self.together {
            Grouping::No => {
                return clients
                    .into_iter()
                    .map(|(device, client)| Row::Client(device, client))
                    .collect();
            }
            Grouping::Groups => "(no group)",
            Grouping::Pods => "(no pod)",
        };
        let mut groups: BTreeMap<Option<String>, Vec<_>> = BTreeMap::new();
        for of_it in clients {
            let of_client = match self.together {
                Grouping::Pods => of_it.1.place.pod_or_container(),
                Grouping::Groups | Grouping::No => of_it.1.group.clone(),
            };
            groups.entry(of_client).or_default().push(of_it);
        }
        let mut rows = Vec::new();
        for (group, clients) in groups {
            let name = group.unwrap_or_else(|| none.to_owned());
            rows.push(Row::Group(
                name,
                clients.iter().map(|(_, client)| *client).collect(),
            ));
            rows.extend(
                clients
                    .into_iter()
                    .map(|(device, client)| Row::Client(device, client)),
            );
        }
        rows
    }

    fn keys(&self) -> Vec<ClientKey> {
        let rows = self.rows();
        let keys = rows.iter().filter_map(|row| match row {
            Row::Client(device, client) => Some((device.device, client.session)),
            Row::Group(..) => None,
        });
        keys.collect()
    }
}

fn remember(history: &mut VecDeque<f64>, value: f64) {
    history.push_back(value);
    if history.len() > REMEMBERED {
        history.pop_front();
    }
}

#[cfg(test)]
pub mod tests {
    use ratatui::crossterm::event::KeyCode;

    use super::*;
    use crate::container_names::ContainerName;
    use crate::usage::{Rates, TakenOver, Total, Wait};

    /// Two clients on one device.
    pub fn usage() -> Usage {
        let client = |session: u64, program: &str, kernels: f64, group: Option<&str>| ClientUsage {
            session,
            pid: 4000 + session as i32,
            server: 77,
            program: program.to_owned(),
            user: "ada".to_owned(),
            group: group.map(str::to_owned),
            label: None,
            place: ContainerName::default(),
            memory: session << 30,
            memory_limit: 8 << 30,
            queued: 0,
            rates: Rates {
                kernels,
                multiprocessors: kernels / 2.0,
                waited: 0.25,
                launches: 12_345.0,
                to_device: 1.5e9,
                ..Rates::default()
            },
            waits: vec![Wait {
                session: Some(3 - session),
                part: 0.25,
            }],
            total: Total::default(),
            takeovers: TakenOver::default(),
        };
        Usage {
            seconds: 1.0,
            devices: vec![DeviceUsage {
                device: 0,
                uuid: "GPU-1".to_owned(),
                name: "OpenMPS software GPU".to_owned(),
                multiprocessors: 4,
                memory_total: 16 << 30,
                memory_used: 3 << 30,
                queued: 0,
                still_seconds: None,
                rates: Rates {
                    kernels: 0.75,
                    ..Rates::default()
                },
                clients: vec![
                    client(1, "nbody", 0.25, None),
                    client(2, "train.py", 0.5, Some("team")),
                ],
            }],
            servers: Vec::new(),
        }
    }

    fn app() -> App {
        let mut app = App::new(Sort::Kernels, String::new(), Grouping::No);
        app.update(usage());
        app
    }

    fn press(app: &mut App, keys: &str) -> Action {
        let mut last = Action::Nothing;
        for key in keys.chars() {
            last = app.key(match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                other => KeyCode::Char(other),
            });
        }
        last
    }

    fn programs(app: &App) -> Vec<String> {
        let rows = app.rows();
        rows.iter()
            .map(|row| match row {
                Row::Group(name, clients) => format!("{name}: {}", clients.len()),
                Row::Client(_, client) => client.program.clone(),
            })
            .collect()
    }

    #[test]
    fn keys_sort_filter_and_group() {
        let mut app = app();
        assert_eq!(programs(&app), ["train.py", "nbody"]);
        press(&mut app, "ssssss");
        assert_eq!(app.sort(), Sort::Pid);
        assert_eq!(programs(&app), ["nbody", "train.py"]);
        press(&mut app, "g");
        assert_eq!(
            programs(&app),
            ["(no group): 1", "nbody", "team: 1", "train.py"]
        );
        press(&mut app, "/tr\n");
        assert_eq!(programs(&app), ["team: 1", "train.py"]);
        press(&mut app, "/xyz\u{1b}");
        assert_eq!(app.filter(), "tr");
        assert_eq!(press(&mut app, "q"), Action::Quit);
    }

    #[test]
    fn what_changes_something_asks_first() {
        let mut app = app();
        assert_eq!(press(&mut app, "en"), Action::Nothing);
        assert_eq!(app.message(), Some("nothing was changed"));
        let end = Action::Command("terminate_client 77 4002".to_owned());
        assert_eq!(press(&mut app, "ey"), end);
        let limit = Action::Command("limit set --client 4001 --memory 0=2G".to_owned());
        assert_eq!(press(&mut app, "jm2 G\n"), limit, "no white space gets in");
        let limit = Action::Command("limit set --client 4001 --percentage 50".to_owned());
        assert_eq!(press(&mut app, "p50\n"), limit);
        assert_eq!(press(&mut app, "p50\u{1b}"), Action::Nothing);
        assert_eq!(*app.mode(), Mode::List);
    }

    #[test]
    fn who_leaves_is_selected_no_more() {
        let mut app = app();
        press(&mut app, "e");
        let mut usage = usage();
        usage.devices[0].clients.clear();
        app.update(usage);
        assert_eq!(press(&mut app, "y"), Action::Nothing);
        assert_eq!(app.message(), Some("the client has left"));
        assert_eq!(press(&mut app, "jk\ne"), Action::Nothing);
    }

    #[test]
    fn an_answer_is_about_whom_it_was_asked() {
        // The selected client leaves while its end is asked for: the next to be selected is not ended in its place.
        let mut app = app();
        press(&mut app, "e");
        let mut usage = usage();
        usage.devices[0].clients.remove(1);
        app.update(usage);
        assert_eq!(press(&mut app, "y"), Action::Nothing);
    }
}
