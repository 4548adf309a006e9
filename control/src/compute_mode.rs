//! Compute modes: who may have contexts on a device.
//!
//! A daemon that is told to (`--compute-mode`, OPENMPS_COMPUTE_MODE) sets its devices' when it starts,
//! so that nothing goes around it, and gives them back when it ends; what a daemon that was killed did
//! not give back the next one does. The devices are behind [`DeviceModes`]: NVIDIA's are asked through
//! NVML by whoever implements it; those of the software GPU have their modes in a file
//! ([`SoftwareModes`]), where servers find them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

use crate::daemon::Daemon;
use crate::directories::text_variable;
use crate::own_files;

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
pub fn named(text: &str) -> Result<u32, String> {
    let plain = text.to_ascii_uppercase().replace('-', "_");
    let found = NAMES.iter().find(|(name, _)| *name == plain);
    found.map(|(_, mode)| *mode).ok_or_else(|| {
        format!("compute mode {text}: it is one of DEFAULT, EXCLUSIVE_PROCESS and PROHIBITED")
    })
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
    /// In words.
    fn modes(&self) -> Result<Vec<(String, u32)>, String>;

    /// Sets a device's.
    ///
    /// # Errors
    /// In words.
    fn set(&self, uuid: &str, mode: u32) -> Result<(), String>;
}

/// How a daemon comes to its devices' modes; `None` where there are no devices.
pub type OpenModes = fn() -> Result<Option<Box<dyn DeviceModes>>, String>;

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
    /// When it cannot be read or believed, in words.
    pub fn read(path: PathBuf) -> Result<Self, String> {
        let before = match own_files::read_own(&path)? {
            None => BTreeMap::new(),
            Some(text) => serde_json::from_str(&text).map_err(|error| {
                format!("{} cannot be read: {error}; remove it", path.display())
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
    /// In words; then what is written down is what was.
    pub fn set(
        &mut self,
        devices: &dyn DeviceModes,
        uuid: &str,
        was: u32,
        mode: u32,
    ) -> Result<(), String> {
        let is_new = !self.before.contains_key(uuid);
        let mut done = Ok(());
        if is_new {
            self.before.insert(uuid.to_owned(), was);
            done = self.keep();
        }
        let done = done.and_then(|()| devices.set(uuid, mode));
        if done.is_err() && is_new {
            // It is as it was: nobody is to set it later.
            self.before.remove(uuid);
            self.keep().ok();
        }
        done
    }

    /// Sets all devices to a mode. Gives lines for the log.
    ///
    /// # Errors
    /// In words; then everything is as it was.
    pub fn set_all(&mut self, devices: &dyn DeviceModes, mode: u32) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for (uuid, was) in devices.modes()?.into_iter().filter(|(_, is)| *is != mode) {
            if let Err(error) = self.set(devices, &uuid, was, mode) {
                self.give_back(devices);
                return Err(format!(
                    "device {uuid} cannot be set to {}: {error}",
                    name(mode)
                ));
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
    pub fn give_back(&mut self, devices: &dyn DeviceModes) -> Vec<String> {
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
        if let Err(error) = self.keep() {
            lines.push(error);
        }
        lines
    }

    fn keep(&self) -> Result<(), String> {
        if self.before.is_empty() {
            return match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(format!("cannot remove {}: {error}", self.path.display()))
                }
                _ => Ok(()),
            };
        }
        let text = serde_json::to_string(&self.before).map_err(|error| error.to_string())?;
        own_files::write_own(&self.path, &text)
    }
}

impl Daemon {
    /// Gives back what a daemon that was killed did not, and sets the devices' modes if that was asked
    /// for. Who was not asked to set anything is not kept from starting by what cannot be given back:
    /// the log says so, and the next one tries again.
    ///
    /// # Errors
    /// In words; then nothing was set.
    pub(crate) fn set_modes(&mut self, asked: Option<u32>) -> Result<(), String> {
        let asked = match (asked, text_variable("OPENMPS_COMPUTE_MODE")?) {
            (Some(mode), _) => Some(mode),
            (None, Some(text)) => Some(named(&text)?),
            (None, None) => None,
        };
        let mut changed = Changed::read(self.instance.directories().compute_modes())?;
        if asked.is_none() && changed.is_empty() {
            return Ok(());
        }
        let devices = match (self.machine.open_modes)() {
            Ok(Some(devices)) => devices,
            Err(error) if asked.is_none() => {
                self.log(&format!("Compute modes cannot be given back: {error}"));
                return Ok(());
            }
            Ok(None) if asked.is_none() => {
                self.log("Compute modes cannot be given back: no device has one that could be set");
                return Ok(());
            }
            Ok(None) => return Err("no device has a compute mode that could be set".into()),
            Err(error) => return Err(format!("cannot set compute modes: {error}")),
        };
        let mut lines = changed.give_back(&*devices);
        if let Some(mode) = asked {
            lines.extend(changed.set_all(&*devices, mode)?);
        }
        for line in lines {
            self.log(&line);
        }
        self.modes = Some((changed, devices));
        Ok(())
    }

    /// Gives the devices back the modes that they had.
    pub(crate) fn give_modes_back(&mut self) {
        if let Some((mut changed, devices)) = self.modes.take() {
            for line in changed.give_back(&*devices) {
                self.log(&line);
            }
        }
    }
}

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
    fn all(&self) -> Result<BTreeMap<String, u32>, String> {
        let path = self.file();
        let Some(text) = own_files::read(&path)? else {
            return Ok(BTreeMap::new());
        };
        let not_modes = |why: &dyn std::fmt::Display| {
            format!(
                "{} holds no compute modes: {why}; remove it, and all devices are in DEFAULT mode",
                path.display()
            )
        };
        let all: BTreeMap<String, u32> =
            serde_json::from_str(&text).map_err(|error| not_modes(&error))?;
        let known = |mode: u32| NAMES.iter().any(|(_, number)| *number == mode);
        match all.iter().find(|(_, mode)| !known(**mode)) {
            Some((device, mode)) => Err(not_modes(&format_args!(
                "device {device} cannot be in mode {mode}"
            ))),
            None => Ok(all),
        }
    }

    /// A device's mode; DEFAULT where nobody has set one.
    ///
    /// # Errors
    /// In words, when the modes cannot be read: then nobody knows whether the device is for everybody.
    pub fn get(&self, device: u32) -> Result<u32, String> {
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
    /// When the device's lock cannot be opened, in words.
    pub fn take(&self, device: u32) -> Result<Option<File>, String> {
        let path = self.lock_file(&device.to_string());
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(locked.is_ok().then_some(file))
    }
}

impl DeviceModes for SoftwareModes {
    fn modes(&self) -> Result<Vec<(String, u32)>, String> {
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

    fn set(&self, device: &str, mode: u32) -> Result<(), String> {
        if device.parse::<u32>().is_err() {
            return Err(format!("there is no software device {device}"));
        }
        let path = self.file();
        let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(&self.directory).map_err(|error| failed(&self.directory, error))?;
        let lock = self.lock_file(device);
        // Whoever can read it can take the device, as with a card.
        own_files::append(&lock).map_err(|error| failed(&lock, error))?;
        let mut all = self.all()?;
        match mode {
            DEFAULT => all.remove(device),
            _ => all.insert(device.to_owned(), mode),
        };
        let text = serde_json::to_string(&all).map_err(|error| error.to_string())?;
        // For servers of other users.
        own_files::write(&path, &text, 0o644)
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
        fn modes(&self) -> Result<Vec<(String, u32)>, String> {
            Ok(self.0.borrow().clone().into_iter().collect())
        }
        fn set(&self, uuid: &str, mode: u32) -> Result<(), String> {
            if self.1 == Some(uuid) {
                return Err("no permission".into());
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
        assert_eq!(changed.give_back(&cards).len(), 2);
        let modes: Vec<u32> = cards.0.borrow().values().copied().collect();
        assert_eq!(modes, [DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED]);
        assert!(Changed::read(file(&root)).unwrap().is_empty());
    }

    #[test]
    fn a_device_that_cannot_be_set_leaves_all_as_they_were() {
        let root = tempfile::tempdir().unwrap();
        let cards = Cards::of(&[("a", DEFAULT), ("b", DEFAULT)], Some("b"));
        let mut changed = Changed::read(file(&root)).unwrap();
        let error = changed.set_all(&cards, EXCLUSIVE_PROCESS).unwrap_err();
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
        assert_eq!(changed.give_back(&cards).len(), 2);
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
        assert!(set.unwrap_err().contains("no permission"));
        assert_eq!(changed.before["a"], DEFAULT);
        assert_eq!(Changed::read(file(&root)).unwrap().before["a"], DEFAULT);
        // One that is not written down stays so.
        let cards = Cards::of(&[("b", DEFAULT)], Some("b"));
        assert!(changed.set(&cards, "b", DEFAULT, PROHIBITED).is_err());
        assert!(!Changed::read(file(&root)).unwrap().before.contains_key("b"));
    }

    #[test]
    fn a_software_device_is_one_process_es_alone_while_that_has_it() {
        let root = tempfile::tempdir().unwrap();
        let modes = SoftwareModes {
            directory: root.path().join("state"),
            devices: vec![0],
        };
        assert_eq!(modes.modes(), Ok(vec![("0".to_owned(), DEFAULT)]));
        modes.set("0", EXCLUSIVE_PROCESS).unwrap();
        assert_eq!(modes.get(0), Ok(EXCLUSIVE_PROCESS));
        let taken = modes.take(0).unwrap();
        assert!(taken.is_some() && modes.take(0).unwrap().is_none());
        drop(taken);
        assert!(modes.take(0).unwrap().is_some());
        assert!(modes.take(1).is_err(), "nobody has set one");
        assert!(
            modes.set("GPU-1", DEFAULT).is_err(),
            "a card is no such device"
        );
        modes.set("0", DEFAULT).unwrap();
        assert_eq!(modes.get(0), Ok(DEFAULT));
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
            let error = modes.get(1).unwrap_err();
            assert!(error.contains("compute-modes.json"), "{what}: {error}");
            assert_eq!(modes.in_force(1), PROHIBITED, "{what}");
            assert_eq!(modes.modes(), Err(error.clone()), "{what}");
            // What others have set is not lost to who sets another's.
            assert_eq!(modes.set("1", DEFAULT), Err(error), "{what}");
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

    #[test]
    fn modes_have_the_names_that_nvidia_smi_takes() {
        assert_eq!(named("EXCLUSIVE_PROCESS"), Ok(EXCLUSIVE_PROCESS));
        assert_eq!(named("exclusive-process"), Ok(EXCLUSIVE_PROCESS));
        assert!(named("mine").unwrap_err().contains("PROHIBITED"));
        assert_eq!((name(2), name(9)), ("PROHIBITED".into(), "9".into()));
    }
}
