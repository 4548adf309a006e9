//! Which container allocation has which group of the daemon's.
//!
//! A kubelet says which devices a container gets, once, and never when it is gone; a container that is
//! started again keeps its devices. So an allocation lives until its devices are given again, or until
//! the kubelet has not named them for long. It is written down before the group is made: after a crash,
//! of the plugin's or of the node, whatever is running finds its group at the same path.
//!
//! Called by the plugin; `openmps` reads whose group is whose. Must not know the kubelet's protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long a kubelet must not have named an allocation's devices before it is forgotten. A kubelet
/// that has just started names nothing for a while.
pub const FORGET_AFTER: Duration = Duration::from_secs(300);

/// What a group's processes have together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of each device, by UUID, as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT writes it.
    pub memory: BTreeMap<String, String>,
    /// Percent of the compute.
    pub percentage: Option<u32>,
}

/// What the daemon says, or what keeps it from being asked: told to whoever asked, and tried again.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why containers do not get what they should.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// The list is no list.
    #[error(
        "{}: not what this plugin wrote: {source}\n  -> remove it when no pod of this node uses a GPU",
        path.display()
    )]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The list cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The list cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A container has devices that it was not given.
    #[error(
        "no container was given these {devices} devices of {resource}: delete the pod, so that it is made again"
    )]
    NotGiven {
        /// How many.
        devices: usize,
        /// Of what.
        resource: String,
    },
    /// Groups that could not be made again.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Groups(Vec<BoxError>),
    /// The daemon refuses.
    #[error(transparent)]
    Daemon(#[from] BoxError),
}

/// The daemon's groups.
pub trait Groups: Send {
    /// Makes a group; gives its directory.
    ///
    /// # Errors
    /// What the daemon says.
    fn add(&mut self, name: &str, limits: &Limits) -> Result<PathBuf, BoxError>;

    /// Changes a group's limits.
    ///
    /// # Errors
    /// What the daemon says.
    fn change(&mut self, name: &str, limits: &Limits) -> Result<(), BoxError>;

    /// Removes a group.
    ///
    /// # Errors
    /// While it has clients.
    fn remove(&mut self, name: &str) -> Result<(), BoxError>;

    /// The names of all groups.
    ///
    /// # Errors
    /// What the daemon says.
    fn names(&mut self) -> Result<BTreeSet<String>, BoxError>;
}

/// A container, as the kubelet names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The namespace of its pod.
    pub namespace: String,
    /// Its pod's name.
    pub pod: String,
    /// Its name in the pod.
    pub container: String,
}

/// Which container has which device, by resource and device.
pub type DeviceHolders = BTreeMap<String, BTreeMap<String, Holder>>;

/// Where the list is kept on a node.
pub const FILE: &str = "/var/lib/openmps/allocations.json";

/// Which container each group is for, by what was written down of allocations; what is none says nothing.
#[must_use]
pub fn holders(text: &str) -> BTreeMap<String, Holder> {
    let list: Vec<Allocation> = serde_json::from_str(text).unwrap_or_default();
    list.into_iter()
        .filter_map(|allocation| Some((allocation.group, allocation.holder?)))
        .collect()
}

/// What a container was given of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Allocation {
    group: String,
    resource: String,
    devices: BTreeSet<String>,
    limits: Limits,
    /// Whether its devices have been given to another, so that it only waits for its last client.
    #[serde(default)]
    over: bool,
    /// Whose it is, once the kubelet has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<Holder>,
}

/// All allocations of a node.
#[derive(Debug)]
pub struct Allocations<G> {
    groups: G,
    file: PathBuf,
    /// What names of groups begin with.
    prefix: String,
    list: Vec<Allocation>,
    missed: BTreeMap<String, Instant>,
}

impl<G: Groups> Allocations<G> {
    /// Those that are kept in a file, which need not be there. Names of groups begin with `prefix`.
    ///
    /// # Errors
    /// When the file is there and says nothing that can be understood.
    pub fn open(groups: G, file: &Path, prefix: &str) -> Result<Self, AllocationError> {
        let list = match std::fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).map_err(|source| AllocationError::NotOurs {
                path: file.to_owned(),
                source,
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => {
                let path = file.to_owned();
                return Err(AllocationError::Read { path, source });
            }
        };
        Ok(Self {
            groups,
            file: file.to_owned(),
            prefix: prefix.to_owned(),
            list,
            missed: BTreeMap::new(),
        })
    }

    /// Gives devices to a container: makes a group for it and gives the group's directory and name.
    /// Whoever had one of the devices before is gone.
    ///
    /// # Errors
    /// When it cannot be written down or the daemon refuses; then nobody has the devices.
    pub fn allocate(
        &mut self,
        resource: &str,
        devices: &[String],
        limits: Limits,
    ) -> Result<(PathBuf, String), AllocationError> {
        let devices: BTreeSet<String> = devices.iter().cloned().collect();
        for other in &mut self.list {
            if other.resource == resource && !other.devices.is_disjoint(&devices) {
                other.over = true;
            }
        }
        self.end_those_that_are_over();
        let group = self.new_name();
        self.list.push(Allocation {
            group: group.clone(),
            resource: resource.to_owned(),
            devices,
            limits: limits.clone(),
            over: false,
            holder: None,
        });
        let made = self
            .save()
            .and_then(|()| Ok(self.groups.add(&group, &limits)?));
        match made {
            Ok(folder) => Ok((folder, group)),
            Err(error) => {
                self.list.retain(|allocation| allocation.group != group);
                // If that cannot be written down, the next plugin makes a group that nobody enters, and
                // forgets it as any other.
                self.save().ok();
                Err(error)
            }
        }
    }

    /// Sets the part of the compute of the container that has these devices.
    ///
    /// # Errors
    /// When no container has the devices, or the daemon refuses.
    pub fn set_percentage(
        &mut self,
        resource: &str,
        devices: &BTreeSet<String>,
        percentage: Option<u32>,
    ) -> Result<(), AllocationError> {
        let place = self.list.iter().position(|allocation| {
            allocation.resource == resource && allocation.devices == *devices && !allocation.over
        });
        let Some(allocation) = place.and_then(|place| self.list.get_mut(place)) else {
            return Err(AllocationError::NotGiven {
                devices: devices.len(),
                resource: resource.to_owned(),
            });
        };
        if allocation.limits.percentage == percentage {
            return Ok(());
        }
        let mut limits = allocation.limits.clone();
        limits.percentage = percentage;
        self.groups.change(&allocation.group, &limits)?;
        let before = std::mem::replace(&mut allocation.limits, limits);
        let saved = self.save();
        // It counts as set when it is written down: until then whoever asks again makes it so again.
        if saved.is_err()
            && let Some(allocation) = place.and_then(|place| self.list.get_mut(place))
        {
            allocation.limits = before;
        }
        saved
    }

    /// Makes the daemon's groups those of the list again: after a daemon that lost them, those are made
    /// again, and what nobody knows of is removed.
    ///
    /// # Errors
    /// Of those that could not be made: their device may be gone.
    pub fn reconcile(&mut self) -> Result<(), AllocationError> {
        self.end_those_that_are_over();
        let there = self.groups.names()?;
        let mut failed = Vec::new();
        for allocation in self.list.iter().filter(|allocation| !allocation.over) {
            if !there.contains(&allocation.group) {
                let made = self.groups.add(&allocation.group, &allocation.limits);
                failed.extend(made.err());
            }
        }
        let known = |name: &String| self.list.iter().any(|allocation| allocation.group == *name);
        let strangers = there
            .iter()
            .filter(|name| name.starts_with(&self.prefix) && !known(name));
        for name in strangers.cloned().collect::<Vec<_>>() {
            // One with clients stays until the next look.
            self.groups.remove(&name).ok();
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(AllocationError::Groups(failed))
        }
    }

    /// Forgets what the kubelet has not named for long, and writes down whose the rest is.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn sweep(
        &mut self,
        held: &DeviceHolders,
        now: Instant,
        patience: Duration,
    ) -> Result<(), AllocationError> {
        let before = self.list.clone();
        for allocation in &mut self.list {
            let mut devices = allocation.devices.iter();
            let holder = held
                .get(&allocation.resource)
                .and_then(|held| devices.find_map(|device| held.get(device)));
            if let Some(holder) = holder {
                // What is over only waits for its last client, and its devices are another's.
                if !allocation.over {
                    allocation.holder = Some(holder.clone());
                }
                self.missed.remove(&allocation.group);
                continue;
            }
            let since = *self.missed.entry(allocation.group.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= patience {
                allocation.over = true;
            }
        }
        self.end_those_that_are_over();
        match self.list == before {
            true => Ok(()),
            false => self.save(),
        }
    }

    /// The groups of all allocations.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<String> {
        let each = self.list.iter();
        each.map(|allocation| allocation.group.clone()).collect()
    }

    /// Removes groups of allocations that are over, as far as their last clients are gone.
    fn end_those_that_are_over(&mut self) {
        let groups = &mut self.groups;
        let there = groups.names().ok();
        self.list.retain(|allocation| {
            let gone = there
                .as_ref()
                .is_some_and(|there| !there.contains(&allocation.group));
            !(allocation.over && (gone || groups.remove(&allocation.group).is_ok()))
        });
        let list = &self.list;
        self.missed
            .retain(|group, _| list.iter().any(|allocation| allocation.group == *group));
    }

    fn new_name(&self) -> String {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut number = since.as_micros();
        loop {
            let name = format!("{}{number:x}", self.prefix);
            if !self.list.iter().any(|allocation| allocation.group == name) {
                return name;
            }
            number += 1;
        }
    }

    /// Writes the list by renaming, so that there is always a whole one.
    fn save(&self) -> Result<(), AllocationError> {
        let new = self.file.with_extension("new");
        let write = || -> std::io::Result<()> {
            let text = serde_json::to_string(&self.list)?;
            if let Some(folder) = self.file.parent() {
                std::fs::create_dir_all(folder)?;
            }
            // Names of pods are not for every user of the node.
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &self.file)
        };
        write().map_err(|source| AllocationError::Write {
            path: self.file.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests;
