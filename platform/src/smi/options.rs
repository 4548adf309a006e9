//! The command line: nvidia-smi's spellings of what is understood.
//!
//! Called by `smi`. Must not know devices: words in, an action out.

use std::time::Duration;

use super::query::{FIELDS, ProcessField, Query};
use crate::gpus::ComputeMode;

/// What `--help` prints.
pub const USAGE: &str = "\
openmps smi, also as nvidia-smi: devices and who is on them, as OpenMPS sees them.

nvidia-smi                                the devices and the clients on them
nvidia-smi -L                             a line for each device
nvidia-smi [-i ID] -c MODE                set the compute mode: DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS
nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]
    fields: gpu_uuid (uuid), gpu_name (name), gpu_bus_id (pci.bus_id), memory.total, memory.used,
            memory.free, compute_mode, index, count, driver_version
nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]
    fields: pid, process_name (name), used_gpu_memory (used_memory), gpu_name, gpu_uuid, gpu_bus_id
nvidia-smi pmon [-s mu] [-c COUNT] [-d SECONDS]
                                          the processes of each device, a round each second

-i ID[,ID...], --id=ID                    only these devices: index, UUID or PCI address
--version                                 the version
-h, --help                                this text
";

/// A command line that is not understood, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The usage text.
    Help,
    /// The version.
    Version,
    /// The table.
    Table,
    /// A line for each device.
    List,
    /// A compute mode is to be set.
    Mode(ComputeMode),
    /// Some facts of each device.
    Query(Query),
    /// Some facts of each process.
    ProcessQuery(Query<ProcessField>),
    /// The processes of each device.
    Processes {
        /// So many times; None for ever.
        rounds: Option<u32>,
        /// With so long between.
        pause: Duration,
    },
}

/// A command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is asked for.
    pub action: Action,
    /// For which devices; none for all.
    pub gpus: Vec<String>,
}

/// Reads the arguments that follow the program's name.
///
/// # Errors
/// When something is not understood; it is named.
pub fn parse(arguments: &[String]) -> Result<Options, Refused> {
    let refuse = |why: String| Err(Refused(why));
    if arguments.first().is_some_and(|first| first == "pmon") {
        return monitor(&arguments[1..]);
    }
    let mut gpus = Vec::new();
    let mut action = None;
    let (mut fields, mut of_processes, mut format) = (None, None, None);
    let mut words = Words::new(arguments);
    while let Some(option) = words.next_option() {
        let asked = match option.as_str() {
            "-h" | "--help" => Action::Help,
            "--version" => Action::Version,
            "-L" | "--list-gpus" => Action::List,
            "-c" | "--compute-mode" => {
                let value = words.value(&option)?;
                match value.parse() {
                    Ok(mode) => Action::Mode(mode),
                    Err(error) => return refuse(format!("{option}: {error}")),
                }
            }
            "-i" | "--id" => {
                gpus = devices(&words.value(&option)?);
                continue;
            }
            "--query-gpu" => {
                fields = Some(words.value(&option)?);
                continue;
            }
            "--query-compute-apps" => {
                of_processes = Some(words.value(&option)?);
                continue;
            }
            "--format" => {
                format = Some(words.value(&option)?);
                continue;
            }
            _ => {
                return refuse(format!(
                    "Invalid combination of input arguments: {option} is not understood."
                ));
            }
        };
        if let Some(unused) = words.unused.take() {
            return refuse(format!("{option} takes no value, and has {unused:?}."));
        }
        if action.replace(asked).is_some() {
            return refuse(format!(
                "{option}: only one thing can be asked for at once."
            ));
        }
    }
    let action = match (action, fields, of_processes, format) {
        (Some(action), None, None, None) => action,
        (None, Some(fields), None, Some(format)) => Action::Query(Query::parse(&fields, &format)?),
        (None, None, Some(fields), Some(format)) => {
            Action::ProcessQuery(Query::parse_processes(&fields, &format)?)
        }
        (None, Some(_), Some(_), _) => {
            return refuse("--query-gpu and --query-compute-apps do not go together.".into());
        }
        (None, Some(_), None, None) => {
            return refuse("--query-gpu needs --format=csv too.".into());
        }
        (None, None, Some(_), None) => {
            return refuse("--query-compute-apps needs --format=csv too.".into());
        }
        (None, None, None, Some(_)) => {
            return refuse(format!("--format goes with --query-gpu={}.", FIELDS[0].0));
        }
        (None, None, None, None) => Action::Table,
        (Some(_), ..) => {
            return refuse(
                "--query-gpu, --query-compute-apps and --format go with -i only.".into(),
            );
        }
    };
    Ok(Options { action, gpus })
}

fn devices(list: &str) -> Vec<String> {
    let words = list.split(',').map(str::trim);
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn monitor(arguments: &[String]) -> Result<Options, Refused> {
    let refuse = |why: String| Err(Refused(why));
    let mut gpus = Vec::new();
    let (mut rounds, mut pause) = (None, 1);
    let mut words = Words::new(arguments);
    while let Some(option) = words.next_option() {
        match option.as_str() {
            "-h" | "--help" => {
                return Ok(Options {
                    action: Action::Help,
                    gpus,
                });
            }
            // All columns are shown in any case; those that are not measured hold a dash.
            "-s" => {
                let metrics = words.value(&option)?;
                if metrics.is_empty() || !metrics.chars().all(|metric| "mu".contains(metric)) {
                    return refuse(format!(
                        "pmon -s {metrics:?}: it is u (utilisation), m (memory), or both."
                    ));
                }
            }
            "-c" | "-d" => {
                let value = words.value(&option)?;
                match value.parse::<u32>() {
                    Ok(number) if number > 0 && option == "-c" => rounds = Some(number),
                    Ok(number) if number > 0 => pause = number,
                    _ => return refuse(format!("pmon {option} {value}: it is a number above 0.")),
                }
            }
            "-i" => gpus = devices(&words.value(&option)?),
            _ => return refuse(format!("pmon: {option} is not understood.")),
        }
    }
    Ok(Options {
        action: Action::Processes {
            rounds,
            pause: Duration::from_secs(pause.into()),
        },
        gpus,
    })
}

/// Options whose values follow them, or an equals sign.
struct Words<'a> {
    rest: std::slice::Iter<'a, String>,
    /// What followed the equals sign of the option at hand.
    unused: Option<String>,
}

impl<'a> Words<'a> {
    fn new(words: &'a [String]) -> Self {
        Self {
            rest: words.iter(),
            unused: None,
        }
    }

    fn next_option(&mut self) -> Option<String> {
        let word = self.rest.next()?;
        Some(match word.split_once('=') {
            Some((option, value)) if option.starts_with("--") => {
                self.unused = Some(value.to_owned());
                option.to_owned()
            }
            _ => word.clone(),
        })
    }

    fn value(&mut self, option: &str) -> Result<String, Refused> {
        self.unused
            .take()
            .or_else(|| self.rest.next().cloned())
            .ok_or_else(|| Refused(format!("{option} takes a value.")))
    }
}
