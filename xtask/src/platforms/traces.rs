//! What engines leave on a machine when they are killed, and taking it away.
//!
//! Called by `apart` around each test. Must not know which test left what: it compares before with after.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders that belong to what a test starts. Those that are there before the test stay.
const FOLDERS: &[&str] = &[
    "/var/lib/kubelet",
    "/var/log/pods",
    "/var/log/containers",
    "/var/run/cdi",
];

/// Groups of processes that engines make at the root of the tree, and leave.
const GROUPS: &[&str] = &[
    "docker",
    "kubepods",
    "k8s.io",
    "libpod_parent",
    "openmps-test",
];

/// Names of networks, as the kernel keeps them for containers of Kubernetes.
const NETWORKS: &str = "/var/run/netns";

/// The machine before a test.
#[derive(Debug)]
pub(super) struct Traces {
    /// The test's own folder, which goes.
    folder: PathBuf,
    /// What was there.
    kept: Vec<PathBuf>,
}

impl Traces {
    /// Looks at the machine.
    pub(super) fn before(folder: PathBuf) -> Self {
        let mut kept = all();
        kept.retain(|path| path.exists());
        Self { folder, kept }
    }

    /// Takes away what has come since.
    pub(super) fn remove(self) {
        let mut new = all();
        new.retain(|path| path.exists() && !self.kept.contains(path));
        new.push(self.folder);
        for path in &new {
            unmount_below(path);
        }
        for path in &new {
            if path.starts_with("/sys") {
                remove_group(path);
            } else if path.is_dir() {
                fs::remove_dir_all(path).ok();
            } else {
                fs::remove_file(path).ok();
            }
        }
        if Path::new("/sys/class/net")
            .join(crate::kubernetes::BRIDGE)
            .exists()
        {
            quietly(Command::new("ip").args(["link", "delete", crate::kubernetes::BRIDGE]));
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = super::podman::USER;
        if users
            .lines()
            .any(|line| line.starts_with(&format!("{user}:")))
        {
            quietly(Command::new("userdel").args(["--remove", user]));
        }
    }
}

/// All that may come: fixed names, and what is in folders that others use too.
fn all() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    let tree = Path::new("/sys/fs/cgroup");
    // One tree, or one for each controller.
    let roots = entries(tree).into_iter().chain([tree.to_owned()]);
    paths.extend(roots.flat_map(|root| GROUPS.iter().map(move |name| root.join(name))));
    paths.extend(
        entries(Path::new(NETWORKS))
            .into_iter()
            .filter(|path| path.to_string_lossy().contains("/cni-")),
    );
    paths.extend(
        entries(Path::new("/var/run/cdi"))
            .into_iter()
            .filter(|path| path.to_string_lossy().contains("openmps")),
    );
    paths
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Unmounts what is mounted at or below a folder, also what an earlier run left that was killed.
pub(super) fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for point in below(folder, &mounts) {
        quietly(Command::new("umount").args(["--lazy", &point]));
    }
}

/// Where something is mounted at or below a folder, the innermost first.
fn below(folder: &Path, mounts: &str) -> Vec<String> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let mut points: Vec<String> = points
        .filter(|point| Path::new(point).starts_with(folder))
        .map(str::to_owned)
        .collect();
    points.reverse();
    points
}

/// A group can go when nothing is in it, its own groups first.
fn remove_group(path: &Path) {
    for entry in entries(path) {
        if entry.is_dir() {
            remove_group(&entry);
        }
    }
    fs::remove_dir(path).ok();
}

fn quietly(command: &mut Command) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_folder_are_found_innermost_first() {
        let mounts = "tmpfs /a/b tmpfs rw 0 0\nx /a/b/c y rw 0 0\nx /a/bc y rw 0 0\nx / y rw 0 0\n";
        assert_eq!(below(Path::new("/a/b"), mounts), ["/a/b/c", "/a/b"]);
        assert!(below(Path::new("/q"), mounts).is_empty());
    }

    #[test]
    fn what_comes_goes_and_what_was_there_stays() {
        let folder = std::env::temp_dir().join(format!("openmps-traces-{}", std::process::id()));
        let work = folder.join("work");
        fs::create_dir_all(work.join("deep")).unwrap();
        fs::write(work.join("deep/file"), "").unwrap();
        Traces::before(work.clone()).remove();
        assert!(!work.exists() && folder.exists());
        fs::remove_dir(folder).unwrap();
    }
}
