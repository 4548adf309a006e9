//! Allocations against a daemon that is a map of groups.

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
    fn add(&mut self, name: &str, limits: &Limits) -> Result<PathBuf, BoxError> {
        let mut groups = self.0.lock().unwrap();
        if limits.memory.is_empty() {
            return Err("no limits".into());
        }
        groups.insert(name.to_owned(), (limits.clone(), false));
        Ok(Path::new("/pipe/groups").join(name))
    }

    fn change(&mut self, name: &str, limits: &Limits) -> Result<(), BoxError> {
        let mut groups = self.0.lock().unwrap();
        groups.get_mut(name).ok_or("none")?.0 = limits.clone();
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<(), BoxError> {
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

    fn names(&mut self) -> Result<BTreeSet<String>, BoxError> {
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
    let (path, first) = all
        .allocate(NAME, &ids(&["a", "b"]), limits("2048M"))
        .unwrap();
    assert!(path.ends_with(&first));
    let (_, second) = all.allocate(NAME, &ids(&["c"]), limits("1024M")).unwrap();
    all.allocate(NAME, &ids(&["b", "d"]), limits("2048M"))
        .unwrap();
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
    let (_, first) = all.allocate(NAME, &ids(&["a"]), limits("2048M")).unwrap();
    daemon.0.lock().unwrap().get_mut(&first).unwrap().1 = true;
    all.allocate(NAME, &ids(&["a"]), limits("2048M")).unwrap();
    assert_eq!(daemon.0.lock().unwrap().len(), 2);
    daemon.0.lock().unwrap().get_mut(&first).unwrap().1 = false;
    all.reconcile().unwrap();
    assert!(!daemon.0.lock().unwrap().contains_key(&first));
}

#[test]
fn another_plugin_and_another_daemon_find_the_same_groups() {
    let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
    let mut all = open(&daemon, &folder);
    let (_, name) = all.allocate(NAME, &ids(&["a"]), limits("2048M")).unwrap();
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
    assert!(all.allocate(NAME, &ids(&["a"]), Limits::default()).is_err());
    drop(all);
    assert!(open(&daemon, &folder).list.is_empty());
}

#[test]
fn what_no_pod_has_for_long_is_forgotten() {
    let (mut daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
    let mut all = open(&daemon, &folder);
    all.allocate(NAME, &ids(&["a"]), limits("1M")).unwrap();
    let (_, kept) = all.allocate(NAME, &ids(&["b"]), limits("1M")).unwrap();
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

fn held(device: &str, holder: &Holder) -> DeviceHolders {
    let devices = BTreeMap::from([(device.to_owned(), holder.clone())]);
    BTreeMap::from([(NAME.to_owned(), devices)])
}

#[test]
fn groups_have_the_names_of_their_pods() {
    let (daemon, folder) = (Daemon::default(), tempfile::tempdir().unwrap());
    let mut all = open(&daemon, &folder);
    let (_, one) = all.allocate(NAME, &ids(&["a", "b"]), limits("1M")).unwrap();
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
    let (_, other) = all.allocate(NAME, &ids(&["b"]), limits("1M")).unwrap();
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
    let (_, name) = all.allocate(NAME, &ids(&["a", "b"]), limits("2M")).unwrap();
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
    let (_, name) = all.allocate(NAME, &ids(&["a"]), limits("2M")).unwrap();
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
    let error = Allocations::open(Daemon::default(), &file, "x")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("allocations.json") && error.contains("->"),
        "{error}"
    );
}
