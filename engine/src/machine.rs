//! How much memory this process can count on.
//!
//! Owns the reading of /proc and of control groups. Called by those who set budgets when they start. Must not know
//! what for.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes of the machine's memory, or of what the control groups leave that this process is in, whichever
/// are less. `None` where the system does not say.
#[must_use]
pub fn memory() -> Option<u64> {
    let read = |path: &str| read_to_string(path).ok();
    let installed = read("/proc/meminfo").as_deref().and_then(total);
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let group = limit(&groups, Path::new("/sys/fs/cgroup"));
    installed.into_iter().chain(group).min()
}

/// Bytes of memory, of the text of /proc/meminfo.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The least limit on memory among control groups, of the text of /proc/self/cgroup, and all that they lie
/// within; with the hierarchies mounted in a folder. Version 2 has one hierarchy, or lies in `unified`
/// beside those of version 1, of which one is memory's.
fn limit(groups: &str, mounted: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (hierarchies, file): (&[&str], _) = match controllers {
            "" => (&["", "unified"], "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (&["memory"], "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let each = hierarchies.iter();
        each.filter_map(|hierarchy| least(&mounted.join(hierarchy), path, file))
            .min()
    });
    limits.min()
}

/// The least limit of a group and those around it. In a container its own group may be mounted as if it
/// were the outermost, whatever it is called outside.
fn least(hierarchy: &Path, path: &str, file: &str) -> Option<u64> {
    let group = hierarchy.join(path.trim_start_matches('/'));
    let around = group.ancestors();
    around
        .take_while(|folder| folder.starts_with(hierarchy))
        .filter_map(|folder| {
            let text = read_to_string(folder.join(file)).ok()?;
            text.trim().parse().ok()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes with this.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let folder =
                std::env::temp_dir().join(format!("openmps-{}-{name}", std::process::id()));
            for (file, text) in files {
                let path = folder.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn this_machine_has_memory() {
        let bytes = memory().unwrap();
        assert!(bytes > 64 << 20 && bytes < u64::MAX / 2, "{bytes}");
        assert_eq!(total("MemTotal:  1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn the_least_limit_around_a_group_holds() {
        let two = Folder::with(
            "two",
            &[
                ("a/memory.max", "5000\n"),
                ("a/b/memory.max", "max\n"),
                ("a/b/c/memory.max", "9000\n"),
            ],
        );
        assert_eq!(limit("0::/a/b/c\n", &two.0), Some(5000));
        assert_eq!(limit("0::/a/b\n", &two.0), Some(5000));
        assert_eq!(limit("0::/\n", &two.0), None, "the root has none");
        // As seen in a container that has only its own group mounted.
        let inner = Folder::with("inner", &[("memory.max", "7000\n")]);
        assert_eq!(limit("0::/system.slice/x\n", &inner.0), Some(7000));
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn both_versions_of_control_groups_count() {
        let one = Folder::with(
            "one",
            &[
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/docker/x/memory.limit_in_bytes", "4096\n"),
                ("cpu/docker/x/memory.limit_in_bytes", "1\n"),
            ],
        );
        let groups = "5:cpu,cpuacct:/docker/x\n4:hugetlb,memory:/docker/x\n0::/docker/x\n";
        assert_eq!(limit(groups, &one.0), Some(4096));
        let hybrid = Folder::with("hybrid", &[("unified/y/memory.max", "2048\n")]);
        assert_eq!(limit("1:name=systemd:/y\n0::/y\n", &hybrid.0), Some(2048));
        assert_eq!(limit("", &hybrid.0), None);
        assert_eq!(limit("nonsense\n", &hybrid.0), None);
    }
}
