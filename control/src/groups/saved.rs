//! What of groups is kept in the pipe directory, so that a daemon that takes over finds them.
//!
//! Beside the groups' own directories, which clients see and containers are given, there is one that
//! only the daemon's user can read: what is in it is believed, so its owner and mode are checked, and
//! no link is followed. A file is replaced as a whole or not at all.
//!
//! Called by `daemon::groups` and `daemon::orphaned_servers`. Must not know whether a group's servers still live.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use protocol::limits;
use serde_json::{Value, json};

use crate::files::directories::Directories;
use crate::files::error::FileError;
use crate::files::safe_fs::{read_trusted, untrusted_file, write_trusted};
use crate::files::safe_path::make_own_directory;
use crate::servers::limits::as_given;

/// Longest name of a group.
const MAX_NAME: usize = 64;

/// What the clients of a group have together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupLimits {
    /// Memory of each device, by its name and as it was set.
    pub memory: BTreeMap<String, String>,
    /// The part of each device's compute, if it is limited.
    pub percentage: Option<f32>,
    /// Whether that is kept free for them.
    pub reserved: bool,
    /// How long a kernel of one of them may run.
    pub kernel_time: Option<Duration>,
    /// Whether kernels of clients that come from now on are fenced.
    pub fenced: bool,
}

impl GroupLimits {
    /// The memory limits as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is written.
    #[must_use]
    pub fn memory_text(&self) -> String {
        let each = self.memory.iter();
        let entries: Vec<String> = each.map(|(name, size)| format!("{name}={size}")).collect();
        entries.join(",")
    }
}

/// A server that has clients of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageHolder {
    /// Its process.
    pub pid: u32,
    /// When that was started, in the kernel's ticks: with it a process is told from a later one of the
    /// same number.
    pub started: u64,
    /// Its slot in groups' usage.
    pub slot: u32,
}

/// A group as it is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedGroup {
    /// Its name.
    pub name: String,
    /// What its clients have.
    pub limits: GroupLimits,
    /// The cgroup whose processes belong to it.
    pub cgroup: Option<String>,
    /// Servers that have clients of it.
    pub holders: Vec<UsageHolder>,
}

/// Whether a text can be a group's name: it becomes a directory's.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with(['.', '-'])
}

impl SavedGroup {
    fn to_json(&self) -> Value {
        let holders = self.holders.iter();
        json!({
            "name": self.name,
            "memory": self.limits.memory,
            "percentage": self.limits.percentage.map(as_given),
            "reserved": self.limits.reserved,
            "kernel_time": self.limits.kernel_time.map(limits::kernel_time_text),
            "fenced": self.limits.fenced,
            "cgroup": self.cgroup,
            "servers": holders
                .map(|holder| json!({
                    "pid": holder.pid, "started": holder.started, "slot": holder.slot,
                }))
                .collect::<Vec<_>>(),
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let mut memory = BTreeMap::new();
        for (device, size) in value["memory"].as_object()? {
            let size = size.as_str()?;
            limits::size_in_bytes(size).ok()?;
            memory
                .insert(device.clone(), size.to_owned())
                .is_none()
                .then_some(())?;
        }
        let percentage = match &value["percentage"] {
            Value::Null => None,
            other => Some(limits::percentage(&other.as_f64()?.to_string()).ok()?),
        };
        // One that an earlier release kept has none.
        let kernel_time = match &value["kernel_time"] {
            Value::Null => None,
            other => Some(limits::kernel_time(other.as_str()?).ok()?),
        };
        let number = |value: &Value| value.as_u64()?.try_into().ok();
        let holders = value["servers"].as_array()?.iter().map(|holder| {
            Some(UsageHolder {
                pid: number(&holder["pid"])?,
                started: holder["started"].as_u64()?,
                slot: number(&holder["slot"])?,
            })
        });
        Some(Self {
            name: value["name"]
                .as_str()
                .filter(|name| is_name(name))?
                .to_owned(),
            limits: GroupLimits {
                memory,
                percentage,
                reserved: value["reserved"].as_bool()?,
                kernel_time,
                // Files of releases before this do not have it.
                fenced: match &value["fenced"] {
                    Value::Null => false,
                    other => other.as_bool()?,
                },
            },
            cgroup: value["cgroup"].as_str().map(str::to_owned),
            holders: holders.collect::<Option<_>>()?,
        })
    }
}

/// Keeps a group, in place of what was kept of it.
///
/// # Errors
/// With the path.
pub fn save(directories: &Directories, kept: &SavedGroup) -> Result<(), FileError> {
    let folder = directories.group_state();
    make_own_directory(&folder, 0o700)?;
    let path = folder.join(format!("{}.json", kept.name));
    write_trusted(&path, &kept.to_json().to_string())
}

/// Forgets a group.
///
/// # Errors
/// With the path.
pub fn remove(directories: &Directories, name: &str) -> Result<(), FileError> {
    let path = directories.group_state().join(format!("{name}.json"));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::remove(&path, error)),
        _ => Ok(()),
    }
}

/// All groups that are kept.
///
/// # Errors
/// With the path, when something there cannot be believed: to go on without it would set
/// its clients free.
pub fn load(directories: &Directories) -> Result<Vec<SavedGroup>, FileError> {
    let folder = directories.group_state();
    let entries = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::read(&folder, error)),
        Ok(entries) => entries,
    };
    make_own_directory(&folder, 0o700)?;
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| FileError::read(&folder, error))?;
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let kept = read(&path)?;
        if path.file_stem().is_none_or(|stem| stem != &*kept.name) {
            return Err(untrusted_file(&path));
        }
        all.push(kept);
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

fn read(path: &Path) -> Result<SavedGroup, FileError> {
    let text = read_trusted(path)?;
    text.and_then(|text| SavedGroup::from_json(&serde_json::from_str(&text).ok()?))
        .ok_or_else(|| untrusted_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn directories(root: &Path) -> Directories {
        let pipe = root.join("pipe");
        std::fs::create_dir_all(&pipe).unwrap();
        Directories {
            log: root.join("log"),
            pipe,
        }
    }

    fn some() -> SavedGroup {
        SavedGroup {
            name: "a-1".into(),
            limits: GroupLimits {
                memory: BTreeMap::from([("0".to_owned(), "2G".to_owned())]),
                percentage: Some(33.3),
                reserved: true,
                kernel_time: Some(Duration::from_millis(1500)),
                fenced: true,
            },
            cgroup: Some("/a/b".into()),
            holders: vec![UsageHolder {
                pid: 7,
                started: 1 << 40,
                slot: 3,
            }],
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_can_be_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let directories = directories(root.path());
        assert_eq!(load(&directories).unwrap(), []);
        let plain = SavedGroup {
            name: "b".into(),
            ..SavedGroup::default()
        };
        save(&directories, &plain).unwrap();
        save(&directories, &some()).unwrap();
        save(&directories, &some()).unwrap();
        assert_eq!(load(&directories).unwrap(), [some(), plain]);
        remove(&directories, "a-1").unwrap();
        remove(&directories, "a-1").unwrap();
        assert_eq!(load(&directories).unwrap().len(), 1);
    }

    #[test]
    fn what_somebody_else_could_have_written_is_not_believed() {
        let root = tempfile::tempdir().unwrap();
        let directories = directories(root.path());
        save(&directories, &some()).unwrap();
        let file = directories.group_state().join("a-1.json");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let refused = || load(&directories).unwrap_err().to_string();
        mode(&file, 0o620);
        assert!(refused().contains("a-1.json"));
        mode(&file, 0o600);
        assert!(load(&directories).is_ok());
        mode(&directories.group_state(), 0o770);
        assert!(refused().contains("group_state"));
        mode(&directories.group_state(), 0o700);
        let text = std::fs::read_to_string(&file).unwrap();
        for wrong in [
            &text[..text.len() / 2],
            "",
            &text.replace("2G", "much"),
            &text.replace("33.3", "133"),
            &text.replace("1500ms", "1500"),
            &text.replace("a-1", "../x"),
            &text.replace("a-1", "c"),
        ] {
            std::fs::write(&file, wrong).unwrap();
            assert!(refused().contains("a-1.json"), "{wrong}");
        }
        std::fs::rename(&file, root.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(root.path().join("elsewhere"), &file).unwrap();
        assert!(load(&directories).is_err(), "a link");
    }

    #[test]
    fn names_are_fit_for_directories() {
        for good in ["a", "tenant-1", "pod_x.y", "0"] {
            assert!(is_name(good), "{good}");
        }
        for wrong in ["", ".", "..", "a/b", "-a", "ä", "a b", &"x".repeat(65)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
