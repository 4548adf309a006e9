//! `--query-gpu` and `--query-compute-apps`: facts of devices, and of the processes on them, as comma-separated values.
//!
//! Called by `smi` and its options. Must not ask for facts: devices and processes come in.

use super::options::Refused;
use super::table::printable;
use crate::gpus::{Gpu, MIB, Process};

/// A fact that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Its UUID.
    Uuid,
    /// Its name.
    Name,
    /// Its PCI address.
    Address,
    /// All of its memory.
    Total,
    /// Memory that is used.
    Used,
    /// Memory that is not.
    Free,
    /// Its compute mode.
    Mode,
    /// Its number.
    Index,
    /// How many devices there are.
    Count,
    /// The version of what answers.
    Version,
}

/// Every name of every fact, and what stands above its column.
pub const FIELDS: &[(&str, Field, &str)] = &[
    ("index", Field::Index, "index"),
    ("gpu_uuid", Field::Uuid, "uuid"),
    ("uuid", Field::Uuid, "uuid"),
    ("gpu_name", Field::Name, "name"),
    ("name", Field::Name, "name"),
    ("gpu_bus_id", Field::Address, "pci.bus_id"),
    ("pci.bus_id", Field::Address, "pci.bus_id"),
    ("memory.total", Field::Total, "memory.total [MiB]"),
    ("memory.used", Field::Used, "memory.used [MiB]"),
    ("memory.free", Field::Free, "memory.free [MiB]"),
    ("compute_mode", Field::Mode, "compute_mode"),
    ("count", Field::Count, "count"),
    ("driver_version", Field::Version, "driver_version"),
];

/// A fact of a process that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessField {
    /// The name of the device that it is on.
    GpuName,
    /// That device's PCI address.
    GpuAddress,
    /// That device's UUID.
    GpuUuid,
    /// Its process id.
    Pid,
    /// Its program.
    Name,
    /// Memory of the device that it has.
    Memory,
}

/// Every name of every fact of a process, and what stands above its column.
const PROCESS_FIELDS: &[(&str, ProcessField, &str)] = &[
    ("gpu_name", ProcessField::GpuName, "gpu_name"),
    ("gpu_bus_id", ProcessField::GpuAddress, "gpu_bus_id"),
    ("gpu_uuid", ProcessField::GpuUuid, "gpu_uuid"),
    ("pid", ProcessField::Pid, "pid"),
    ("process_name", ProcessField::Name, "process_name"),
    ("name", ProcessField::Name, "process_name"),
    (
        "used_gpu_memory",
        ProcessField::Memory,
        "used_gpu_memory [MiB]",
    ),
    ("used_memory", ProcessField::Memory, "used_gpu_memory [MiB]"),
];

/// What is asked for, and how it is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<F = Field> {
    fields: Vec<(F, &'static str)>,
    header: bool,
    units: bool,
}

impl<F: Copy> Query<F> {
    /// Reads the values of the option and of `--format`.
    fn of(fields: &str, format: &str, known: &[(&str, F, &'static str)]) -> Result<Self, Refused> {
        let mut formats = format.split(',').map(str::trim);
        if formats.next() != Some("csv") {
            return Err(Refused(format!(
                "--format={format} is not understood: it begins with csv."
            )));
        }
        let (mut header, mut units) = (true, true);
        for word in formats {
            match word {
                "noheader" => header = false,
                "nounits" => units = false,
                _ => {
                    return Err(Refused(format!(
                        "--format: {word:?} is not understood; csv can be followed by noheader and nounits."
                    )));
                }
            }
        }
        let fields = fields.split(',').map(|word| field(word.trim(), known));
        Ok(Self {
            fields: fields.collect::<Result<_, _>>()?,
            header,
            units,
        })
    }

    /// A size in MiB, as it is to be shown.
    fn size(&self, bytes: Option<u64>) -> String {
        match bytes {
            Some(bytes) if self.units => format!("{} MiB", bytes / MIB),
            Some(bytes) => (bytes / MIB).to_string(),
            None => "[N/A]".to_owned(),
        }
    }

    /// The head, and lines with these values.
    fn lines(&self, lines: impl Iterator<Item = Vec<String>>) -> String {
        let mut text = String::new();
        if self.header {
            let heads: Vec<&str> = self.fields.iter().map(|(_, head)| *head).collect();
            text += &(heads.join(", ") + "\n");
        }
        for values in lines {
            text += &(values.join(", ") + "\n");
        }
        text
    }
}

impl Query {
    /// Reads the values of `--query-gpu` and `--format`.
    pub(super) fn parse(fields: &str, format: &str) -> Result<Self, Refused> {
        Self::of(fields, format, FIELDS)
    }

    /// The list: a head, and a line for each device.
    pub(super) fn answer(&self, gpus: &[Gpu], version: &str, count: usize) -> String {
        self.lines(gpus.iter().map(|gpu| {
            let values = self.fields.iter().map(|(field, _)| match field {
                Field::Uuid => gpu.uuid.clone(),
                Field::Name => gpu.name.clone(),
                Field::Address => gpu.pci.to_string(),
                Field::Total => self.size(Some(gpu.memory)),
                Field::Used => self.size(gpu.used),
                Field::Free => self.size(gpu.used.map(|used| gpu.memory.saturating_sub(used))),
                Field::Mode => gpu.mode.to_string(),
                Field::Index => gpu.index.to_string(),
                Field::Count => count.to_string(),
                Field::Version => version.to_owned(),
            });
            values.collect()
        }))
    }
}

impl Query<ProcessField> {
    /// Reads the values of `--query-compute-apps` and `--format`.
    pub(super) fn parse_processes(fields: &str, format: &str) -> Result<Self, Refused> {
        Self::of(fields, format, PROCESS_FIELDS)
    }

    /// The list: a head, and a line for each process of each device.
    pub(super) fn answer_processes(&self, gpus: &[Gpu], processes: &[Process]) -> String {
        let of_gpu = |gpu: &Gpu, process: &Process| {
            let values = self.fields.iter().map(|(field, _)| match field {
                ProcessField::GpuName => gpu.name.clone(),
                ProcessField::GpuAddress => gpu.pci.to_string(),
                ProcessField::GpuUuid => gpu.uuid.clone(),
                ProcessField::Pid => process.pid.to_string(),
                // A comma would make two values of it.
                ProcessField::Name => printable(&process.name).replace(',', " "),
                ProcessField::Memory => self.size(process.memory),
            });
            values.collect()
        };
        let mut lines = Vec::new();
        for gpu in gpus {
            let of_it = processes.iter().filter(|process| process.gpu == gpu.index);
            lines.extend(of_it.map(|process| of_gpu(gpu, process)));
        }
        self.lines(lines.into_iter())
    }
}

fn field<F: Copy>(
    name: &str,
    known: &[(&str, F, &'static str)],
) -> Result<(F, &'static str), Refused> {
    if let Some((_, field, head)) = known.iter().find(|(known, ..)| *known == name) {
        return Ok((*field, head));
    }
    let names: Vec<&str> = known.iter().map(|(name, ..)| *name).collect();
    Err(Refused(format!(
        "Field {name:?} is not a valid field to query; there are {}.",
        names.join(", ")
    )))
}
