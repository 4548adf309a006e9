//! Compute modes: who may have contexts on a device.
//!
//! A daemon that is told to (`--compute-mode`, OPENMPS_COMPUTE_MODE) sets its devices' when it starts,
//! so that nothing goes around it, and gives them back when it ends; what a daemon that was killed did
//! not give back the next one does. The devices are behind [`DeviceModes`]: NVIDIA's are asked through
//! NVML by whoever implements it; those of the software GPU have their modes in a file
//! ([`SoftwareModes`]), where servers find them.
//!
//! Called by `daemon::compute_modes`, and by `openmps` for hosts of Cloudpods. Must not know NVML, nor who has a
//! context.

mod error;
mod software;

pub use error::{ModeError, UnknownMode};
pub use software::{SoftwareModes, is_software_name};

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::files::error::FileError;
use crate::files::safe_fs;

/// CUcomputemode: everybody.
pub const DEFAULT: u32 = 0;
/// Nobody.
pub const PROHIBITED: u32 = 2;
/// One process.
pub const EXCLUSIVE_PROCESS: u32 = 3;

/// Modes with their names, as nvidia-smi takes them.
const NAMES: [(&str, u32); 3] = [
    ("DEFAULT", DEFAULT),
    ("PROHIBITED", PROHIBITED),
    ("EXCLUSIVE_PROCESS", EXCLUSIVE_PROCESS),
];

/// The mode with a name, however it is written.
///
/// # Errors
/// Which names there are.
pub fn named(text: &str) -> Result<u32, UnknownMode> {
    let plain = text.to_ascii_uppercase().replace('-', "_");
    let found = NAMES.iter().find(|(name, _)| *name == plain);
    found
        .map(|(_, mode)| *mode)
        .ok_or_else(|| UnknownMode(text.to_owned()))
}

/// The name of a mode.
#[must_use]
pub fn name(mode: u32) -> String {
    let found = NAMES.iter().find(|(_, number)| *number == mode);
    found.map_or_else(|| mode.to_string(), |(name, _)| (*name).to_owned())
}

/// Devices whose modes can be asked for and set.
pub trait DeviceModes: std::fmt::Debug {
    /// The UUID, or another name for good, and the mode of each device.
    ///
    /// # Errors
    /// When they cannot be known.
    fn modes(&self) -> Result<Vec<(String, u32)>, ModeError>;

    /// Sets a device's.
    ///
    /// # Errors
    /// When the device is not there, or somebody else's to set.
    fn set(&self, uuid: &str, mode: u32) -> Result<(), ModeError>;
}

/// How a daemon comes to its devices' modes; `None` where there are no devices.
pub type OpenModes = fn() -> Result<Option<Box<dyn DeviceModes>>, ModeError>;

/// What a daemon changed, written down beside its sockets before it did.
#[derive(Debug)]
pub struct Changed {
    path: PathBuf,
    /// What devices had, by UUID.
    before: BTreeMap<String, u32>,
}

impl Changed {
    /// What is written down in a file: what a daemon that was killed did not give back.
    ///
    /// # Errors
    /// When it cannot be read or believed.
    pub fn read(path: PathBuf) -> Result<Self, ModeError> {
        let before = match safe_fs::read_trusted(&path)? {
            None => BTreeMap::new(),
            Some(text) => serde_json::from_str(&text).map_err(|source| ModeError::Saved {
                path: path.clone(),
                source,
            })?,
        };
        Ok(Self { path, before })
    }

    /// Whether there is something to give back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.before.is_empty()
    }

    /// Sets a device to a mode, and writes down first what it was, so that whoever comes after a kill -9
    /// knows. What a former daemon found and could not give back is what it is to have in the end.
    ///
    /// # Errors
    /// When it cannot; then what is written down is what was.
    pub fn set(
        &mut self,
        devices: &dyn DeviceModes,
        uuid: &str,
        was: u32,
        mode: u32,
    ) -> Result<(), ModeError> {
        let is_new = !self.before.contains_key(uuid);
        let mut done = Ok(());
        if is_new {
            self.before.insert(uuid.to_owned(), was);
            done = self.save();
        }
        let done = done.and_then(|()| devices.set(uuid, mode));
        if done.is_err() && is_new {
            // It is as it was: nobody is to set it later.
            self.before.remove(uuid);
            self.save().ok();
        }
        done
    }

    /// Sets all devices to a mode. Gives lines for the log.
    ///
    /// # Errors
    /// With the device that cannot be set; then everything is as it was.
    pub fn set_all(
        &mut self,
        devices: &dyn DeviceModes,
        mode: u32,
    ) -> Result<Vec<String>, ModeError> {
        let mut lines = Vec::new();
        for (uuid, was) in devices.modes()?.into_iter().filter(|(_, is)| *is != mode) {
            if let Err(error) = self.set(devices, &uuid, was, mode) {
                self.restore(devices);
                return Err(ModeError::Device {
                    uuid,
                    mode,
                    source: Box::new(error),
                });
            }
            lines.push(format!(
                "Compute mode of device {uuid} set to {}; it was {}",
                name(mode),
                name(was)
            ));
        }
        Ok(lines)
    }

    /// Gives all devices back what they had. Gives lines for the log. What fails is kept for the next
    /// daemon.
    pub fn restore(&mut self, devices: &dyn DeviceModes) -> Vec<String> {
        let mut lines = Vec::new();
        self.before
            .retain(|uuid, was| match devices.set(uuid, *was) {
                Ok(()) => {
                    let name = name(*was);
                    lines.push(format!("Compute mode of device {uuid} set to {name} again"));
                    false
                }
                Err(error) => {
                    let name = name(*was);
                    lines.push(format!(
                        "Device {uuid} cannot be set to {name} again: {error}"
                    ));
                    true
                }
            });
        if let Err(error) = self.save() {
            lines.push(error.to_string());
        }
        lines
    }

    fn save(&self) -> Result<(), ModeError> {
        if self.before.is_empty() {
            return match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(FileError::remove(&self.path, error).into())
                }
                _ => Ok(()),
            };
        }
        let text = serde_json::to_string(&self.before)?;
        Ok(safe_fs::write_trusted(&self.path, &text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Devices in this process, of which one may refuse.
    #[derive(Debug)]
    struct Cards(RefCell<BTreeMap<String, u32>>, Option<&'static str>);

    impl Cards {
        fn of(modes: &[(&str, u32)], stubborn: Option<&'static str>) -> Self {
            let modes = modes.iter().map(|(uuid, mode)| ((*uuid).to_owned(), *mode));
            Self(RefCell::new(modes.collect()), stubborn)
        }
    }

    impl DeviceModes for Cards {
        fn modes(&self) -> Result<Vec<(String, u32)>, ModeError> {
            Ok(self.0.borrow().clone().into_iter().collect())
        }
        fn set(&self, uuid: &str, mode: u32) -> Result<(), ModeError> {
            if self.1 == Some(uuid) {
                return Err(ModeError::Devices("no permission".into()));
            }
            self.0.borrow_mut().insert(uuid.to_owned(), mode);
            Ok(())
        }
    }

    fn file(root: &tempfile::TempDir) -> PathBuf {
        root.path().join("modes.json")
    }

    #[test]
    fn devices_get_back_what_they_had_even_from_the_next_daemon() {
        let root = tempfile::tempdir().unwrap();
        let cards = Cards::of(
            &[("a", DEFAULT), ("b", EXCLUSIVE_PROCESS), ("c", PROHIBITED)],
            None,
        );
        let mut changed = Changed::read(file(&root)).unwrap();
        let lines = changed.set_all(&cards, EXCLUSIVE_PROCESS).unwrap();
        assert_eq!(lines.len(), 2, "one had it already");
        assert!(
            cards
                .0
                .borrow()
                .values()
                .all(|mode| *mode == EXCLUSIVE_PROCESS)
        );
        // Killed; the next one finds what is to be done.
        drop(changed);
        let mut changed = Changed::read(file(&root)).unwrap();
        assert!(!changed.is_empty());
        assert_eq!(changed.restore(&cards).len(), 2);
        let modes: Vec<u32> = cards.0.borrow().values().copied().collect();
        assert_eq!(modes, [DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED]);
        assert!(Changed::read(file(&root)).unwrap().is_empty());
    }

    #[test]
    fn a_device_that_cannot_be_set_leaves_all_as_they_were() {
        let root = tempfile::tempdir().unwrap();
        let cards = Cards::of(&[("a", DEFAULT), ("b", DEFAULT)], Some("b"));
        let mut changed = Changed::read(file(&root)).unwrap();
        let error = changed
            .set_all(&cards, EXCLUSIVE_PROCESS)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains('b') && error.contains("no permission"),
            "{error}"
        );
        assert_eq!(cards.0.borrow()["a"], DEFAULT);
        assert!(
            changed.is_empty(),
            "nobody is to set later what was never changed"
        );
        // Unless a former daemon changed it.
        changed.before.insert("b".into(), PROHIBITED);
        assert!(changed.set_all(&cards, EXCLUSIVE_PROCESS).is_err());
        assert_eq!(changed.before["b"], PROHIBITED);
        let cards = Cards::of(&[("a", DEFAULT), ("b", DEFAULT)], None);
        changed.set_all(&cards, EXCLUSIVE_PROCESS).unwrap();
        assert_eq!(changed.restore(&cards).len(), 2);
        assert_eq!(cards.0.borrow()["b"], PROHIBITED);
    }

    #[test]
    fn what_a_former_daemon_changed_is_not_forgotten_when_a_device_cannot_be_set() {
        let root = tempfile::tempdir().unwrap();
        let cards = Cards::of(&[("a", DEFAULT)], None);
        let mut changed = Changed::read(file(&root)).unwrap();
        changed.set(&cards, "a", DEFAULT, PROHIBITED).unwrap();
        // Killed. Somebody sets it to a third mode, and now nobody can set it any more.
        let cards = Cards::of(&[("a", EXCLUSIVE_PROCESS)], Some("a"));
        let mut changed = Changed::read(file(&root)).unwrap();
        let set = changed.set(&cards, "a", EXCLUSIVE_PROCESS, PROHIBITED);
        assert!(set.unwrap_err().to_string().contains("no permission"));
        assert_eq!(changed.before["a"], DEFAULT);
        assert_eq!(Changed::read(file(&root)).unwrap().before["a"], DEFAULT);
        // One that is not written down stays so.
        let cards = Cards::of(&[("b", DEFAULT)], Some("b"));
        assert!(changed.set(&cards, "b", DEFAULT, PROHIBITED).is_err());
        assert!(!Changed::read(file(&root)).unwrap().before.contains_key("b"));
    }

    #[test]
    fn modes_have_the_names_that_nvidia_smi_takes() {
        assert_eq!(named("EXCLUSIVE_PROCESS"), Ok(EXCLUSIVE_PROCESS));
        assert_eq!(named("exclusive-process"), Ok(EXCLUSIVE_PROCESS));
        assert!(
            named("mine")
                .unwrap_err()
                .to_string()
                .contains("PROHIBITED")
        );
        assert_eq!((name(2), name(9)), ("PROHIBITED".into(), "9".into()));
    }
}
