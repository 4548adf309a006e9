//! Which container allocation has which group of the daemon's.
//!
//! A kubelet says which devices a container gets, once, and never when it is gone; a container that is
//! started again keeps its devices. So an allocation lives until its devices are given again, or until
//! the kubelet has not named them for long. It is written down before the group is made: after a crash,
//! of the plugin's or of the node, whatever is running finds its group at the same path.

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

/// The daemon's groups.
pub trait Groups: Send {
    /// Makes a group; gives its directory.
    ///
    /// # Errors
    /// In words.
    fn add(&mut self, name: &str, limits: &Limits) -> Result<PathBuf, String>;

    /// Changes a group's limits.
    ///
    /// # Errors
    /// In words.
    fn change(&mut self, name: &str, limits: &Limits) -> Result<(), String>;

    /// Removes a group.
    ///
    /// # Errors
    /// In words; while it has clients.
    fn remove(&mut self, name: &str) -> Result<(), String>;

    /// The names of all groups.
    ///
    /// # Errors
    /// In words.
    fn names(&mut self) -> Result<BTreeSet<String>, String>;
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
pub type Held = BTreeMap<String, BTreeMap<String, Holder>>;

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
    pub fn open(groups: G, file: &Path, prefix: &str) -> Result<Self, String> {
        let list = match std::fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                format!(
                    "{}: not what this plugin wrote: {error}\n  -> remove it when no pod of this node \
                     uses a GPU",
                    file.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
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
    /// In words; then nobody has the devices.
    pub fn give(
        &mut self,
        resource: &str,
        devices: &[String],
        limits: Limits,
    ) -> Result<(PathBuf, String), String> {
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
        let made = self.save().and_then(|()| self.groups.add(&group, &limits));
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
    /// In words.
    pub fn set_percentage(
        &mut self,
        resource: &str,
        devices: &BTreeSet<String>,
        percentage: Option<u32>,
    ) -> Result<(), String> {
        let place = self.list.iter().position(|allocation| {
            allocation.resource == resource && allocation.devices == *devices && !allocation.over
        });
        let Some(allocation) = place.and_then(|place| self.list.get_mut(place)) else {
            return Err(format!(
                "no container was given these {} devices of {resource}: delete the pod, so that it is \
                 made again",
                devices.len()
            ));
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
    /// In words, of those that could not be made: their device may be gone.
    pub fn reconcile(&mut self) -> Result<(), String> {
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
            Err(failed.join("; "))
        }
    }

    /// Forgets what the kubelet has not named for long, and writes down whose the rest is.
    ///
    /// # Errors
    /// In words.
    pub fn sweep(&mut self, held: &Held, now: Instant, patience: Duration) -> Result<(), String> {
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
    fn save(&self) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("cannot write {}: {error}", self.file.display())
        };
        let text = serde_json::to_string(&self.list).map_err(|error| failed(&error))?;
        let new = self.file.with_extension("new");
        let write = || -> std::io::Result<()> {
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
        write().map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Groups of a daemon: by name, their limits, and whether they have clients.
    #[derive(Clone, Debug, Default)]
    struct Daemon(Arc<Mutex<BTreeMap<String, (Limits, bool)>>>);

    impl Daemon {
        fn percentage(&self, name: &str) -> Option<u32> {
            self.0.lock().unwrap()[name].0.percentage
        }
    }

    impl Groups for Daemon {
        fn add(&mut self, name: &str, limits: &Limits) -> Result<PathBuf, String> {
            let mut groups = self.0.lock().unwrap();
            if limits.memory.is_empty() {
                return Err("no limits".into());
            }
            groups.insert(name.to_owned(), (limits.clone(), false));
            Ok(Path::new("/pipe/groups").join(name))
        }

        fn change(&mut self, name: &str, limits: &Limits) -> Result<(), String> {
            let mut groups = self.0.lock().unwrap();
            groups.get_mut(name).ok_or("none")?.0 = limits.clone();
            Ok(())
        }

        fn remove(&mut self, name: &str) -> Result<(), String> {
            let mut groups = self.0.lock().unwrap();
            match groups.get(name) {
                None => Err("none".into()),
                Some((_, true)) => Err("in use".into()),
                Some(_) => {
                    groups.remove(name);
                    Ok(())
                }
            }
        }

        fn names(&mut self) -> Result<BTreeSet<String>, String> {
            Ok(self.0.lock().unwrap().keys().cloned().collect())
        }
    }

    const NAME: &str = "aliyun.com/gpu-mem";

    fn limits(size: &str) -> Limits {
        Limits {
            memory: BTreeMap::from([("GPU-1".to_owned(), size.to_owned())]),
            percentage: None,
        }
    }

    fn ids(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn open(daemon: &Daemon, folder: &tempfile::TempDir) -> Allocations<Daemon> {
        let file = folder.path().join("a/allocations.json");
        Allocations::open(daemon.clone(), &file, "k8s-test-").unwrap()
    }

    #[test]
    fn a_group_ends_when_its_devices_are_given_again() {
        let (mut daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        let (path, first) = all.give(NAME, &ids(&["a", "b"]), limits("2048M")).unwrap();
        assert!(path.ends_with(&first));
        let (_, second) = all.give(NAME, &ids(&["c"]), limits("1024M")).unwrap();
        all.give(NAME, &ids(&["b", "d"]), limits("2048M")).unwrap();
        let there = daemon.names().unwrap();
        assert!(
            !there.contains(&first) && there.contains(&second),
            "{there:?}"
        );
        assert_eq!(there.len(), 2);
    }

    #[test]
    fn a_group_in_use_waits_for_its_last_client() {
        let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        let (_, first) = all.give(NAME, &ids(&["a"]), limits("2048M")).unwrap();
        daemon.0.lock().unwrap().get_mut(&first).unwrap().1 = true;
        all.give(NAME, &ids(&["a"]), limits("2048M")).unwrap();
        assert_eq!(daemon.0.lock().unwrap().len(), 2);
        daemon.0.lock().unwrap().get_mut(&first).unwrap().1 = false;
        all.reconcile().unwrap();
        assert!(!daemon.0.lock().unwrap().contains_key(&first));
    }

    #[test]
    fn another_plugin_and_another_daemon_find_the_same_groups() {
        let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        let (_, name) = all.give(NAME, &ids(&["a"]), limits("2048M")).unwrap();
        drop(all);
        // A daemon that lost all, with a group of its own and one that a crash left.
        daemon.0.lock().unwrap().clear();
        daemon.clone().add("mine", &limits("1M")).unwrap();
        daemon.clone().add("k8s-test-1", &limits("1M")).unwrap();
        open(&daemon, &folder).reconcile().unwrap();
        let groups = daemon.0.lock().unwrap();
        let names: Vec<&String> = groups.keys().collect();
        assert_eq!(names, [&name, "mine"]);
        assert_eq!(groups[&name].0, limits("2048M"));
    }

    #[test]
    fn a_group_that_cannot_be_made_is_not_written_down() {
        let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        assert!(all.give(NAME, &ids(&["a"]), Limits::default()).is_err());
        drop(all);
        assert!(open(&daemon, &folder).list.is_empty());
    }

    #[test]
    fn what_no_pod_has_for_long_is_forgotten() {
        let (mut daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        all.give(NAME, &ids(&["a"]), limits("1M")).unwrap();
        let (_, kept) = all.give(NAME, &ids(&["b"]), limits("1M")).unwrap();
        let held = held("b", &holder("train"));
        let (start, patience) = (Instant::now(), Duration::from_secs(60));
        // A kubelet that has just started names nothing.
        all.sweep(&BTreeMap::new(), start, patience).unwrap();
        all.sweep(&held, start + Duration::from_secs(59), patience)
            .unwrap();
        assert_eq!(daemon.0.lock().unwrap().len(), 2);
        all.sweep(&held, start + Duration::from_secs(61), patience)
            .unwrap();
        assert_eq!(daemon.names().unwrap(), BTreeSet::from([kept]));
    }

    fn holder(pod: &str) -> Holder {
        Holder {
            namespace: "team".into(),
            pod: pod.into(),
            container: "main".into(),
        }
    }

    fn held(device: &str, holder: &Holder) -> Held {
        let devices = BTreeMap::from([(device.to_owned(), holder.clone())]);
        BTreeMap::from([(NAME.to_owned(), devices)])
    }

    #[test]
    fn groups_have_the_names_of_their_pods() {
        let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        let (_, one) = all.give(NAME, &ids(&["a", "b"]), limits("1M")).unwrap();
        let written =
            || holders(&std::fs::read_to_string(folder.path().join("a/allocations.json")).unwrap());
        assert_eq!(written(), BTreeMap::new(), "the kubelet has not said");
        let now = Instant::now();
        let first = held("b", &holder("train-0"));
        all.sweep(&first, now, FORGET_AFTER).unwrap();
        let expected = BTreeMap::from([(one.clone(), holder("train-0"))]);
        assert_eq!(written(), expected);
        // The pod ends while a process of it lives, and its devices are another's.
        daemon.0.lock().unwrap().get_mut(&one).unwrap().1 = true;
        let (_, other) = all.give(NAME, &ids(&["b"]), limits("1M")).unwrap();
        let second = held("b", &holder("train-1"));
        all.sweep(&second, now, FORGET_AFTER).unwrap();
        let both = [(one, holder("train-0")), (other, holder("train-1"))];
        assert_eq!(written(), BTreeMap::from(both));
        let kept = open(&daemon, &folder);
        assert_eq!(kept.list.len(), 2, "also for the next plugin");
        drop(kept);
        assert_eq!(holders("{]"), BTreeMap::new());
    }

    #[test]
    fn compute_is_set_for_the_container_that_has_the_memory() {
        let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        let (_, name) = all.give(NAME, &ids(&["a", "b"]), limits("2M")).unwrap();
        let devices: BTreeSet<String> = ids(&["b", "a"]).into_iter().collect();
        all.set_percentage(NAME, &devices, Some(30)).unwrap();
        assert_eq!(daemon.0.lock().unwrap()[&name].0.percentage, Some(30));
        let others = BTreeSet::from(["a".to_owned()]);
        assert!(all.set_percentage(NAME, &others, Some(30)).is_err());
    }

    #[test]
    fn compute_that_could_not_be_set_is_set_when_it_is_asked_for_again() {
        let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
        let mut all = open(&daemon, &folder);
        let (_, name) = all.give(NAME, &ids(&["a"]), limits("2M")).unwrap();
        let devices = BTreeSet::from(["a".to_owned()]);
        // The daemon does not answer.
        let group = daemon.0.lock().unwrap().remove(&name).unwrap();
        for _ in 0..2 {
            assert!(all.set_percentage(NAME, &devices, Some(30)).is_err());
        }
        daemon.0.lock().unwrap().insert(name.clone(), group);
        all.set_percentage(NAME, &devices, Some(30)).unwrap();
        assert_eq!(daemon.percentage(&name), Some(30));

        // The list cannot be written.
        let list = folder.path().join("a");
        std::fs::rename(&list, folder.path().join("b")).unwrap();
        std::fs::write(&list, "").unwrap();
        for _ in 0..2 {
            assert!(all.set_percentage(NAME, &devices, Some(40)).is_err());
        }
        std::fs::remove_file(&list).unwrap();
        all.set_percentage(NAME, &devices, Some(40)).unwrap();
        drop(all);
        assert_eq!(open(&daemon, &folder).list[0].limits.percentage, Some(40));
    }

    #[test]
    fn a_file_of_something_else_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("allocations.json");
        std::fs::write(&file, "{]").unwrap();
        let error = Allocations::open(Daemon::default(), &file, "x").unwrap_err();
        assert!(
            error.contains("allocations.json") && error.contains("->"),
            "{error}"
        );
    }
}
