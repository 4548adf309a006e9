//! Compute modes of the software GPU's devices: in a file, where servers of every daemon of this user find them.
//!
//! Called by this crate's views and by `openmps` for the software GPU. Must not know what a server refuses because
//! of a mode.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, OFlags};

use super::{DEFAULT, DeviceModes, ModeError, NAMES, PROHIBITED};
use crate::files::error::FileError;
use crate::files::safe_fs;

/// The software GPU's name.
const SOFTWARE: &str = "OpenMPS software GPU";

/// Whether a device of this name is one of the software GPU's.
#[must_use]
pub fn is_software_name(name: &str) -> bool {
    name == SOFTWARE
}

/// The modes of the software GPU's devices: in a file, since these devices are wherever a server
/// runs. `openmps smi` sets them, and a daemon that is told to.
#[derive(Clone, Debug)]
pub struct SoftwareModes {
    directory: PathBuf,
    /// The numbers of the devices that are asked about and set all together.
    devices: Vec<u32>,
}

impl SoftwareModes {
    /// The modes of the devices with these numbers, in [`SoftwareModes::directory`]. They
    /// are named by their numbers there, since their UUIDs are others in each container.
    #[must_use]
    pub fn new(devices: Vec<u32>) -> Self {
        Self {
            directory: Self::directory(),
            devices,
        }
    }

    /// Where they are: OPENMPS_STATE_DIRECTORY or /var/lib/openmps.
    #[must_use]
    pub fn directory() -> PathBuf {
        let directory = std::env::var_os("OPENMPS_STATE_DIRECTORY").filter(|it| !it.is_empty());
        directory.map_or_else(|| "/var/lib/openmps".into(), PathBuf::from)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("compute-modes.json")
    }

    /// The modes that were set; none where there is no file.
    fn all(&self) -> Result<BTreeMap<String, u32>, ModeError> {
        let path = self.file();
        let Some(text) = safe_fs::read(&path)? else {
            return Ok(BTreeMap::new());
        };
        let all: BTreeMap<String, u32> = match serde_json::from_str(&text) {
            Ok(all) => all,
            Err(source) => return Err(ModeError::NoModes { path, source }),
        };
        let known = |mode: u32| NAMES.iter().any(|(_, number)| *number == mode);
        match all.iter().find(|(_, mode)| !known(**mode)) {
            Some((device, &mode)) => Err(ModeError::NoSuchMode {
                path,
                device: device.clone(),
                mode,
            }),
            None => Ok(all),
        }
    }

    /// A device's mode; DEFAULT where nobody has set one.
    ///
    /// # Errors
    /// When the modes cannot be read: then nobody knows whether the device is for everybody.
    pub fn get(&self, device: u32) -> Result<u32, ModeError> {
        let all = self.all()?;
        Ok(all.get(&device.to_string()).copied().unwrap_or(DEFAULT))
    }

    /// The mode that holds for a device: while none can be read, nobody gets a context.
    #[must_use]
    pub fn in_force(&self, device: u32) -> u32 {
        self.get(device).unwrap_or(PROHIBITED)
    }

    fn lock_file(&self, device: &str) -> PathBuf {
        self.directory.join(format!("device-{device}.lock"))
    }

    /// Takes a device for this process alone, as a context in EXCLUSIVE_PROCESS does; `None` if
    /// another process has it. It is given back when what this gives is dropped.
    ///
    /// # Errors
    /// When the device's lock cannot be opened.
    pub fn lock_exclusive(&self, device: u32) -> Result<Option<File>, FileError> {
        let path = self.lock_file(&device.to_string());
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .map_err(|error| FileError::unreachable(&path, error))?;
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(locked.is_ok().then_some(file))
    }
}

impl DeviceModes for SoftwareModes {
    fn modes(&self) -> Result<Vec<(String, u32)>, ModeError> {
        let all = self.all()?;
        let mode = |device: &str| all.get(device).copied().unwrap_or(DEFAULT);
        let each = self.devices.iter().map(u32::to_string);
        Ok(each
            .map(|device| {
                let mode = mode(&device);
                (device, mode)
            })
            .collect())
    }

    fn set(&self, device: &str, mode: u32) -> Result<(), ModeError> {
        if device.parse::<u32>().is_err() {
            return Err(ModeError::NoSoftwareDevice(device.to_owned()));
        }
        let path = self.file();
        std::fs::create_dir_all(&self.directory)
            .map_err(|error| FileError::unreachable(&self.directory, error))?;
        let lock = self.lock_file(device);
        // Whoever can read it can take the device, as with a card.
        safe_fs::append(&lock).map_err(|error| FileError::unreachable(&lock, error))?;
        let mut all = self.all()?;
        match mode {
            DEFAULT => all.remove(device),
            _ => all.insert(device.to_owned(), mode),
        };
        let text = serde_json::to_string(&all)?;
        // For servers of other users.
        Ok(safe_fs::write(&path, &text, 0o644)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute_mode::EXCLUSIVE_PROCESS;

    #[test]
    fn a_software_device_is_one_process_es_alone_while_that_has_it() {
        let root = tempfile::tempdir().unwrap();
        let modes = SoftwareModes {
            directory: root.path().join("state"),
            devices: vec![0],
        };
        assert_eq!(modes.modes().unwrap(), [("0".to_owned(), DEFAULT)]);
        modes.set("0", EXCLUSIVE_PROCESS).unwrap();
        assert_eq!(modes.get(0).unwrap(), EXCLUSIVE_PROCESS);
        let taken = modes.lock_exclusive(0).unwrap();
        assert!(taken.is_some() && modes.lock_exclusive(0).unwrap().is_none());
        drop(taken);
        assert!(modes.lock_exclusive(0).unwrap().is_some());
        assert!(modes.lock_exclusive(1).is_err(), "nobody has set one");
        assert!(
            modes.set("GPU-1", DEFAULT).is_err(),
            "a card is no such device"
        );
        modes.set("0", DEFAULT).unwrap();
        assert_eq!(modes.get(0).unwrap(), DEFAULT);
    }

    #[test]
    fn modes_that_cannot_be_read_are_not_taken_for_the_default() {
        let root = tempfile::tempdir().unwrap();
        let modes = SoftwareModes {
            directory: root.path().to_owned(),
            devices: vec![0, 1],
        };
        modes.set("0", EXCLUSIVE_PROCESS).unwrap();
        let unreadable = |what: &str| {
            let error = modes.get(1).unwrap_err().to_string();
            assert!(error.contains("compute-modes.json"), "{what}: {error}");
            assert_eq!(modes.in_force(1), PROHIBITED, "{what}");
            assert_eq!(modes.modes().unwrap_err().to_string(), error, "{what}");
            // What others have set is not lost to who sets another's.
            assert_eq!(
                modes.set("1", DEFAULT).unwrap_err().to_string(),
                error,
                "{what}"
            );
        };
        for text in ["", "{", "[]", r#"{"0": 7}"#, r#"{"0": -1}"#, "\u{fffd}"] {
            std::fs::write(modes.file(), text).unwrap();
            unreadable(text);
        }
        std::fs::write(modes.file(), [0xff]).unwrap();
        unreadable("no text");
        std::fs::remove_file(modes.file()).unwrap();
        std::fs::create_dir(modes.file()).unwrap();
        unreadable("a directory");
        std::fs::remove_dir(modes.file()).unwrap();
        assert_eq!(modes.in_force(1), DEFAULT);
    }
}
