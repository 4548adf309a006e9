//! `--query-gpu`: facts of devices as comma-separated values.
//!
//! Called by `smi` and its options. Must not ask for facts: devices come in.

use super::options::Refused;
use crate::gpus::{Gpu, MIB};

/// A fact that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Uuid,
    Name,
    Address,
    Total,
    Used,
    Free,
    Mode,
    Index,
    Count,
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

/// What is asked for, and how it is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    fields: Vec<(Field, &'static str)>,
    header: bool,
    units: bool,
}

impl Query {
    /// Reads the values of `--query-gpu` and `--format`.
    pub(super) fn parse(fields: &str, format: &str) -> Result<Self, Refused> {
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
        let fields = fields.split(',').map(|word| field(word.trim()));
        Ok(Self {
            fields: fields.collect::<Result<_, _>>()?,
            header,
            units,
        })
    }

    /// The list: a head, and a line for each device.
    pub(super) fn answer(&self, gpus: &[Gpu], version: &str, count: usize) -> String {
        let mut text = String::new();
        if self.header {
            let heads: Vec<&str> = self.fields.iter().map(|(_, head)| *head).collect();
            text += &(heads.join(", ") + "\n");
        }
        let size = |bytes: Option<u64>| match bytes {
            Some(bytes) if self.units => format!("{} MiB", bytes / MIB),
            Some(bytes) => (bytes / MIB).to_string(),
            None => "[N/A]".to_owned(),
        };
        for gpu in gpus {
            let values: Vec<String> = self
                .fields
                .iter()
                .map(|(field, _)| match field {
                    Field::Uuid => gpu.uuid.clone(),
                    Field::Name => gpu.name.clone(),
                    Field::Address => gpu.pci.to_string(),
                    Field::Total => size(Some(gpu.memory)),
                    Field::Used => size(gpu.used),
                    Field::Free => size(gpu.used.map(|used| gpu.memory.saturating_sub(used))),
                    Field::Mode => gpu.mode.to_string(),
                    Field::Index => gpu.index.to_string(),
                    Field::Count => count.to_string(),
                    Field::Version => version.to_owned(),
                })
                .collect();
            text += &(values.join(", ") + "\n");
        }
        text
    }
}

fn field(name: &str) -> Result<(Field, &'static str), Refused> {
    if let Some((_, field, head)) = FIELDS.iter().find(|(known, ..)| *known == name) {
        return Ok((*field, head));
    }
    let names: Vec<&str> = FIELDS.iter().map(|(name, ..)| *name).collect();
    Err(Refused(format!(
        "Field {name:?} is not a valid field to query; there are {}.",
        names.join(", ")
    )))
}
