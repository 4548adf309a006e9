//! Why compute modes cannot be known or set.
//!
//! Given by `compute_mode` and by who implements its traits. Must not know what an operator asked for.

use std::path::PathBuf;

use super::name;
use crate::files::error::FileError;

/// A text that names no compute mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compute mode {0}: it is one of DEFAULT, EXCLUSIVE_PROCESS and PROHIBITED")]
pub struct UnknownMode(pub(super) String);

/// Why modes of devices cannot be read or set.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// A device cannot be set to a mode.
    #[error("device {uuid} cannot be set to {}: {source}", name(*mode))]
    Device {
        /// The device.
        uuid: String,
        /// CUcomputemode.
        mode: u32,
        /// Why.
        source: Box<Self>,
    },
    /// What a daemon wrote down of the modes that devices had is damaged.
    #[error("{} cannot be read: {source}; remove it", path.display())]
    Saved {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The software GPU's file is no JSON of modes.
    #[error("{} holds no compute modes: {source}; remove it, and all devices are in DEFAULT mode", path.display())]
    NoModes {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The software GPU's file has a mode that there is not.
    #[error(
        "{} holds no compute modes: device {device} cannot be in mode {mode}; remove it, and all devices are in \
         DEFAULT mode",
        path.display()
    )]
    NoSuchMode {
        /// The file.
        path: PathBuf,
        /// The device.
        device: String,
        /// The mode.
        mode: u32,
    },
    /// The software GPU has no device of the name.
    #[error("there is no software device {0}")]
    NoSoftwareDevice(String),
    /// Modes cannot be written down.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The devices' own library or tool refuses.
    #[error(transparent)]
    Devices(Box<dyn std::error::Error + Send + Sync>),
}
