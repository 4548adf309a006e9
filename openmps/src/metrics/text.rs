//! What is known of devices and clients as Prometheus reads it: its text format 0.0.4, and OpenMetrics 1.0.
//!
//! Names and labels stay as they are: people's dashboards have them. What NVIDIA's DCGM has a name for has that name and unit.
//!
//! Called by `metrics::serve`. It must not know HTTP or the daemon; a view comes in.

use std::fmt::Write as _;

use protocol::control_messages::{DeviceAccount, View, ViewedDevice, ViewedProcess};

use crate::container_names::ContainerNames;
use crate::usage::{self, DeviceUsage, TakenOver, Users};

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`
    Prometheus,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
}

impl Format {
    /// The media type, as an answer's Content-Type has it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What a reader is given that accepts these media types.
    pub fn accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }
}

/// What the value of a metric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    Gauge,
    /// Its samples have `_total` behind its name.
    Counter,
    /// It is 1, and its labels say something; its sample has `_info` behind its name.
    Info,
}

/// A metric of an account: its name behind `openmps_device_` and `openmps_client_`, what it is, further labels, and its value.
type OfAccount = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str, fn(&DeviceAccount) -> f64)],
);

/// A gauge: its name, what it is, and its value.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> f64);

/// What a device was used for since an earlier look, in DCGM's names and units.
const UTILISATION: [Gauge<DeviceUsage>; 3] = [
    (
        "DCGM_FI_DEV_GPU_UTIL",
        "Part of the time in which kernels ran since the last question, in percent",
        |of| (of.rates.kernels * 100.0).clamp(0.0, 100.0),
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        "Part of the multiprocessors' time in which kernels ran since the last question, from 0 to 1",
        |of| of.rates.multiprocessors.clamp(0.0, 1.0),
    ),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Part of the time in which memory was copied since the last question, in percent",
        |of| (of.rates.copies * 100.0).clamp(0.0, 100.0),
    ),
];

/// Counters that devices and clients have.
const COUNTERS: &[OfAccount] = &[
    (
        "kernels",
        "Kernels that were launched",
        &[("", "", |of| of.kernels as f64)],
    ),
    (
        "kernel_seconds",
        "Time in which kernels ran; of a device the sum over its clients",
        &[("", "", |of| usage::seconds(of.kernel_time))],
    ),
    (
        "multiprocessor_seconds",
        "Time in which kernels ran, of all multiprocessors together",
        &[("", "", |of| usage::seconds(of.multiprocessor_time))],
    ),
    (
        "copies",
        "Copies, fills and writes of memory",
        &[("", "", |of| of.copies as f64)],
    ),
    (
        "copy_seconds",
        "Time in which memory was copied or filled",
        &[("", "", |of| usage::seconds(of.copy_time))],
    ),
    (
        "copied_bytes",
        "Bytes that were copied",
        &[
            ("direction", "to_device", |of| of.bytes_to_device as f64),
            ("direction", "from_device", |of| of.bytes_from_device as f64),
            ("direction", "within_device", |of| {
                of.bytes_within_device as f64
            }),
        ],
    ),
    (
        "module_loads",
        "Modules that were loaded",
        &[("", "", |of| of.loads as f64)],
    ),
    (
        "module_load_seconds",
        "Time that loading modules took",
        &[("", "", |of| usage::seconds(of.load_time))],
    ),
    (
        "code_cache",
        "Images and kernels of the software GPU whose compiled code was on disk (hit), and those that had to be compiled (miss)",
        &[
            ("result", "hit", |of| of.code_from_disk as f64),
            ("result", "miss", |of| of.code_compiled as f64),
        ],
    ),
    (
        "waited_seconds",
        "Time in which work could have run and the device was with other clients",
        &[("", "", |of| usage::seconds(of.waited))],
    ),
    (
        "throttled_seconds",
        "Time in which a limit of the client's own held its work back",
        &[("", "", |of| usage::seconds(of.throttled))],
    ),
    (
        "faults",
        "Contexts that died of a fault",
        &[("", "", |of| of.faults as f64)],
    ),
];

/// Mebibytes, the unit of DCGM's frame buffer metrics.
fn mebibytes(bytes: u64) -> f64 {
    (bytes >> 20) as f64
}

/// The whole page. What is measured between two looks is there if there was an earlier one.
pub fn page(earlier: Option<&View>, view: &View, hostname: &str, format: Format) -> String {
    let mut page = Page {
        text: String::new(),
        format,
    };
    page.metric(
        "openmps_build",
        MetricKind::Info,
        "Which OpenMPS this is",
        |page| {
            page.sample(
                "openmps_build_info",
                &[("version", env!("CARGO_PKG_VERSION"))],
                1.0,
            );
        },
    );
    let (users, places) = (Users::default(), ContainerNames::of_node());
    let ordinals: Vec<String> = (0..view.devices.len())
        .map(|ordinal| ordinal.to_string())
        .collect();
    let labels_of = |at: usize, device: &'_ ViewedDevice| -> Vec<(&'static str, String)> {
        vec![
            ("gpu", ordinals[at].clone()),
            ("UUID", device.device.uuid.clone()),
            ("device", format!("nvidia{}", ordinals[at])),
            ("modelName", device.device.name.clone()),
            ("Hostname", hostname.to_owned()),
        ]
    };
    let devices: Vec<_> = view
        .devices
        .iter()
        .enumerate()
        .map(|(at, device)| (labels_of(at, device), device))
        .collect();
    let clients: Vec<_> = view
        .processes
        .iter()
        .filter(|process| !process.is_server)
        .filter_map(|process| {
            let (labels, _) = devices.get(process.device as usize)?;
            let mut labels = labels.clone();
            let place = places.of(process);
            labels.extend([
                ("pid", process.pid.to_string()),
                ("session", process.session.to_string()),
                ("program", process.name.clone()),
                ("user", users.name(process.uid)),
                ("group", process.group.clone().unwrap_or_default()),
                ("label", process.label.clone().unwrap_or_default()),
                ("container", place.container.unwrap_or_default()),
                ("pod", place.pod.unwrap_or_default()),
                ("namespace", place.namespace.unwrap_or_default()),
            ]);
            Some((labels, process))
        })
        .collect();
    let gauges: [Gauge<ViewedDevice>; 6] = [
        (
            "DCGM_FI_DEV_FB_TOTAL",
            "Memory of the device, in MiB",
            |of| mebibytes(of.total),
        ),
        (
            "DCGM_FI_DEV_FB_USED",
            "Memory that clients have taken, in MiB",
            |of| mebibytes(of.used),
        ),
        (
            "DCGM_FI_DEV_FB_FREE",
            "Memory that clients can still take, in MiB",
            |of| mebibytes(of.free),
        ),
        (
            "openmps_device_memory_bytes",
            "Memory that clients have taken",
            |of| of.used as f64,
        ),
        (
            "openmps_device_queued_operations",
            "Operations in clients' streams that are not complete",
            |of| of.account.queued as f64,
        ),
        (
            "openmps_device_multiprocessors",
            "Multiprocessors of the device",
            |of| f64::from(of.device.multiprocessors),
        ),
    ];
    for (name, help, value) in gauges {
        page.metric(name, MetricKind::Gauge, help, |page| {
            for (labels, device) in &devices {
                page.sample(name, labels, value(device));
            }
        });
    }
    if earlier.is_some() {
        let usage = usage::between(earlier, view);
        for (name, help, value) in UTILISATION {
            page.metric(name, MetricKind::Gauge, help, |page| {
                for ((labels, _), device) in devices.iter().zip(&usage.devices) {
                    page.sample(name, labels, value(device));
                }
            });
        }
    }
    page.metric(
        "openmps_device_clients",
        MetricKind::Gauge,
        "Clients that have the device",
        |page| {
            for (at, (labels, _)) in devices.iter().enumerate() {
                let of_it = clients
                    .iter()
                    .filter(|(_, client)| client.device as usize == at);
                page.sample("openmps_device_clients", labels, of_it.count() as f64);
            }
        },
    );
    page.metric(
        "openmps_device_still_seconds",
        MetricKind::Gauge,
        "For how long nothing has ended on the device though it has work, where that is for longer than its server's watchdog waits; else 0",
        |page| {
            for (labels, device) in &devices {
                let still = device.still_since.map_or(0, |since| view.time.saturating_sub(since));
                page.sample("openmps_device_still_seconds", labels, still as f64 / 1e9);
            }
        },
    );
    page.metric(
        "openmps_faults",
        MetricKind::Counter,
        "Contexts of clients that died of a fault, by CUDA's error and by what the client had to do with it: guilty, suspect or innocent",
        |page| {
            for kind in &view.faults {
                let labels = [
                    ("error", kind.code.to_string()),
                    ("guilt", kind.guilt.word().to_owned()),
                ];
                page.sample("openmps_faults_total", &labels, kind.count as f64);
            }
        },
    );
    page.takeovers("openmps", &[(Vec::new(), view.takeovers.into())]);
    page.metric(
        "openmps_servers",
        MetricKind::Gauge,
        "Servers that run, by whether they serve or stand by for the end of another one",
        |page| {
            for (state, standby) in [("serves", false), ("standby", true)] {
                let servers = usage::servers(view).filter(|server| server.standby == standby);
                page.sample(
                    "openmps_servers",
                    &[("state", state.to_owned())],
                    servers.count() as f64,
                );
            }
        },
    );
    let servers: Vec<_> = usage::servers(view)
        .map(|server| (vec![("server", server.pid.to_string())], server.takeovers))
        .collect();
    page.takeovers("openmps_server", &servers);
    for counter in COUNTERS {
        page.counter(
            "openmps_device",
            counter,
            devices.iter().map(|(labels, of)| (labels, &of.account)),
        );
    }
    let gauges: [Gauge<ViewedProcess>; 3] = [
        (
            "openmps_client_memory_bytes",
            "Memory of the device that the client has",
            |of| of.account.memory as f64,
        ),
        (
            "openmps_client_memory_limit_bytes",
            "Memory of the device that the client may have",
            |of| of.limit as f64,
        ),
        (
            "openmps_client_queued_operations",
            "Operations in the client's streams that are not complete",
            |of| of.account.queued as f64,
        ),
    ];
    for (name, help, value) in gauges {
        page.metric(name, MetricKind::Gauge, help, |page| {
            for (labels, client) in &clients {
                page.sample(name, labels, value(client));
            }
        });
    }
    for counter in COUNTERS {
        page.counter(
            "openmps_client",
            counter,
            clients.iter().map(|(labels, of)| (labels, &of.account)),
        );
    }
    let taken_over: Vec<_> = clients
        .iter()
        .filter(|(_, client)| client.device == 0)
        .map(|(labels, client)| (labels.clone(), client.takeovers.into()))
        .collect();
    page.takeovers("openmps_client", &taken_over);
    if format == Format::OpenMetrics {
        page.text.push_str("# EOF\n");
    }
    page.text
}

struct Page {
    text: String,
    format: Format,
}

impl Page {
    /// A metric, whose samples `samples` writes.
    fn metric(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        samples: impl FnOnce(&mut Self),
    ) {
        // In the older format what is told of is the samples' name.
        let (name, kind) = match (kind, self.format) {
            (MetricKind::Info, Format::OpenMetrics) => (name.to_owned(), "info"),
            (MetricKind::Info, Format::Prometheus) => (format!("{name}_info"), "gauge"),
            (MetricKind::Gauge, _) => (name.to_owned(), "gauge"),
            (MetricKind::Counter, Format::OpenMetrics) => (name.to_owned(), "counter"),
            (MetricKind::Counter, Format::Prometheus) => (format!("{name}_total"), "counter"),
        };
        // Writing to a text does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}.");
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        samples(self);
    }

    fn counter<'a>(
        &mut self,
        prefix: &str,
        &(name, help, samples): &OfAccount,
        accounts: impl Iterator<Item = (&'a Vec<(&'static str, String)>, &'a DeviceAccount)>,
    ) {
        let name = format!("{prefix}_{name}");
        self.metric(&name, MetricKind::Counter, help, |page| {
            let sample = format!("{name}_total");
            for (labels, account) in accounts {
                for &(label, value, read) in samples {
                    let mut labels = labels.clone();
                    if !label.is_empty() {
                        labels.push((label, value.to_owned()));
                    }
                    page.sample(&sample, &labels, read(account));
                }
            }
        });
    }

    /// How often sessions were taken over, and what became of what was under way.
    fn takeovers(&mut self, prefix: &str, all: &[(Vec<(&'static str, String)>, TakenOver)]) {
        let name = format!("{prefix}_takeovers");
        let help = "Sessions that another server took over as theirs had ended";
        self.metric(&name, MetricKind::Counter, help, |page| {
            for (labels, of) in all {
                page.sample(&format!("{name}_total"), labels, of.count as f64);
            }
        });
        let name = format!("{prefix}_taken_over_operations");
        let help = "Operations under way in sessions that were taken over: untouched, repeated, or failed as a kernel was cut off";
        self.metric(&name, MetricKind::Counter, help, |page| {
            for (labels, of) in all {
                for (outcome, count) in [
                    ("untouched", of.untouched),
                    ("repeated", of.repeated),
                    ("failed", of.failed),
                ] {
                    let mut labels = labels.clone();
                    labels.push(("outcome", outcome.to_owned()));
                    page.sample(&format!("{name}_total"), &labels, count as f64);
                }
            }
        });
    }

    fn sample<T: AsRef<str>>(&mut self, name: &str, labels: &[(&str, T)], value: f64) {
        self.text.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            for character in value.as_ref().chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use protocol::control_messages::{FaultCount, Guilt, ListedDevice, STANDBY_LABEL, Takeovers};
    use serde_json::Value;

    use super::*;

    fn view() -> View {
        let account = DeviceAccount {
            memory: 3 << 20,
            kernels: 7,
            kernel_time: 1_500_000_000,
            bytes_to_device: 99,
            code_from_disk: 12,
            code_compiled: 5,
            ..DeviceAccount::default()
        };
        View {
            devices: vec![ViewedDevice {
                device: ListedDevice {
                    uuid: "GPU-1".into(),
                    name: "one".into(),
                    multiprocessors: 4,
                    ..ListedDevice::default()
                },
                total: 10 << 20,
                used: 3 << 20,
                free: 7 << 20,
                account,
                ..ViewedDevice::default()
            }],
            processes: vec![ViewedProcess {
                pid: 42,
                session: 5,
                uid: 4_000_000_000,
                name: "a\"b\\c\nd".into(),
                limit: 8 << 20,
                account,
                ..ViewedProcess::default()
            }],
            ..View::default()
        }
    }

    #[test]
    fn samples_have_their_labels_escaped() {
        let page = page(None, &view(), "host", Format::Prometheus);
        for line in [
            "# TYPE openmps_build_info gauge",
            "# TYPE openmps_client_kernels_total counter",
            "openmps_device_code_cache_total{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"one\",Hostname=\"host\",result=\"hit\"} 12",
            "openmps_device_code_cache_total{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"one\",Hostname=\"host\",result=\"miss\"} 5",
            "DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"one\",Hostname=\"host\"} 3",
            "openmps_device_clients{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"one\",Hostname=\"host\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        let client = "openmps_client_copied_bytes_total{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"one\",Hostname=\"host\",\
                      pid=\"42\",session=\"5\",program=\"a\\\"b\\\\c\\nd\",user=\"4000000000\",group=\"\",label=\"\",container=\"\",pod=\"\",namespace=\"\",direction=\"to_device\"} 99";
        assert!(
            page.lines().any(|found| found == client),
            "{client}\n{page}"
        );
        assert!(!page.contains("# EOF"));
        assert!(page.contains("openmps_client_kernel_seconds_total{") && page.contains("} 1.5\n"));
    }

    #[test]
    fn what_was_taken_over_is_counted_for_all_for_servers_and_for_clients() {
        let mut view = view();
        let of = |count, failed| Takeovers {
            count,
            untouched: 5,
            repeated: 6,
            failed,
        };
        view.takeovers = of(3, 7);
        view.processes[0].takeovers = of(1, 8);
        for device in 0..2 {
            view.processes.push(ViewedProcess {
                device,
                pid: 77,
                is_server: true,
                takeovers: of(2, 9),
                ..ViewedProcess::default()
            });
            view.processes.push(ViewedProcess {
                device,
                pid: 78,
                is_server: true,
                label: Some(STANDBY_LABEL.to_owned()),
                ..ViewedProcess::default()
            });
        }
        let page = page(None, &view, "host", Format::Prometheus);
        for line in [
            "openmps_takeovers_total 3",
            "openmps_taken_over_operations_total{outcome=\"failed\"} 7",
            "openmps_servers{state=\"serves\"} 1",
            "openmps_servers{state=\"standby\"} 1",
            "openmps_server_takeovers_total{server=\"77\"} 2",
            "openmps_server_taken_over_operations_total{server=\"77\",outcome=\"untouched\"} 5",
        ] {
            let found = page.lines().filter(|found| *found == line).count();
            assert_eq!(found, 1, "{line}\n{page}");
        }
        let client = "openmps_client_taken_over_operations_total{gpu=\"0\",";
        let failed = "outcome=\"failed\"} 8";
        let is_it = |line: &str| line.starts_with(client) && line.ends_with(failed);
        assert!(page.lines().any(is_it), "{page}");
    }

    #[test]
    fn a_device_on_which_nothing_ends_is_shown() {
        let mut view = view();
        view.time = 50_000_000_000;
        let still = |view: &View| {
            let page = page(None, view, "host", Format::Prometheus);
            let mut lines = page.lines();
            let line = lines.find(|line| line.starts_with("openmps_device_still_seconds{"));
            line.unwrap().rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!(still(&view), "0");
        view.devices[0].still_since = Some(8_500_000_000);
        assert_eq!(still(&view), "41.5");
    }

    #[test]
    fn faults_are_counted_by_error_and_guilt() {
        let mut view = view();
        view.faults = vec![FaultCount {
            code: 700,
            guilt: Guilt::Suspect,
            count: 3,
        }];
        let page = page(None, &view, "host", Format::Prometheus);
        for line in [
            "# TYPE openmps_faults_total counter",
            "openmps_faults_total{error=\"700\",guilt=\"suspect\"} 3",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }

    #[test]
    fn utilisation_is_that_since_the_last_question() {
        let (earlier, mut now) = (view(), view());
        now.time += 2_000_000_000;
        let account = &mut now.devices[0].account;
        account.kernel_time += 500_000_000;
        account.multiprocessor_time += 1_000_000_000;
        account.copy_time += 9_000_000_000;
        let labels =
            "{gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"one\",Hostname=\"host\"}";
        let text = page(Some(&earlier), &now, "host", Format::Prometheus);
        for (name, value) in [
            ("DCGM_FI_DEV_GPU_UTIL", "25"),
            // Of four multiprocessors.
            ("DCGM_FI_PROF_SM_ACTIVE", "0.125"),
            ("DCGM_FI_DEV_MEM_COPY_UTIL", "100"),
        ] {
            let line = format!("{name}{labels} {value}");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
            let first = page(None, &now, "host", Format::Prometheus);
            assert!(!first.contains(name), "nothing to compare with");
        }
    }

    #[test]
    fn open_metrics_names_counters_without_their_suffix_and_says_where_it_ends() {
        let page = page(None, &view(), "host", Format::OpenMetrics);
        assert!(page.contains("# TYPE openmps_build info\n"));
        assert!(page.contains("# TYPE openmps_client_kernels counter\n"));
        assert!(page.contains("\nopenmps_client_kernels_total{"));
        assert!(page.ends_with("# EOF\n"));
        assert_eq!(
            Format::accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            Format::OpenMetrics
        );
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }

    /// The names of samples and labels that a page has.
    fn names(page: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
        for (name, rest) in samples.filter_map(|line| line.split_once('{')) {
            metrics.insert(name);
            let parts = rest.split("=\"");
            labels.extend(parts.filter_map(|part| part.rsplit(['{', ',']).next()));
        }
        (metrics, labels)
    }

    /// All texts of a value, with the names that they stand under.
    fn texts<'a>(value: &'a Value, name: &'a str, found: &mut Vec<(&'a str, &'a str)>) {
        match value {
            Value::String(text) => found.push((name, text)),
            Value::Array(list) => list.iter().for_each(|it| texts(it, name, found)),
            Value::Object(map) => map.iter().for_each(|(name, it)| texts(it, name, found)),
            _ => {}
        }
    }

    #[test]
    fn the_board_asks_for_what_there_is() {
        let page = page(Some(&view()), &view(), "host", Format::Prometheus);
        let (metrics, labels) = names(&page);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana/openmps.json");
        let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let mut found = Vec::new();
        texts(&board, "", &mut found);
        let mut asked = BTreeSet::new();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for (key, text) in found {
            if key == "legendFormat" {
                let parts = text.split("{{").skip(1);
                for label in parts.filter_map(|part| part.split("}}").next()) {
                    assert!(labels.contains(label), "{label} in {text}");
                }
            }
            if !matches!(key, "expr" | "query") {
                continue;
            }
            for word in text.split(|c| !is_name(c)) {
                if word.starts_with("openmps_") || word.starts_with("DCGM_") {
                    assert!(metrics.contains(word), "{word} in {text}");
                    asked.insert(word);
                }
            }
            // Labels stand before `=`, `!=` and `=~`, and in the parentheses of `by` and `on`.
            for (at, _) in text.match_indices('=') {
                let before = text[..at].trim_end_matches('!');
                let label = before.rsplit(|c| !is_name(c)).next().unwrap();
                assert!(labels.contains(label), "{label} in {text}");
            }
            for word in ["by (", "on ("] {
                for part in text.split(word).skip(1) {
                    for label in part.split(')').next().unwrap().split(", ") {
                        assert!(labels.contains(label), "{label} in {text}");
                    }
                }
            }
        }
        assert!(asked.len() > 12, "{asked:?}");
    }

    #[test]
    fn every_metric_is_told_of_once_and_before_its_samples() {
        for format in [Format::Prometheus, Format::OpenMetrics] {
            let page = page(Some(&view()), &view(), "host", format);
            let mut told = Vec::new();
            for line in page.lines() {
                if let Some(rest) = line.strip_prefix("# TYPE ") {
                    let name = rest.split(' ').next().unwrap_or_default().to_owned();
                    assert!(!told.contains(&name), "{name}");
                    told.push(name);
                } else if !line.starts_with('#') {
                    let last = told.last().map_or("", |name| name.as_str());
                    assert!(line.starts_with(last), "{line} after {last}");
                }
            }
        }
    }
}
