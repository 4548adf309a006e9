//! What the machine offers: the driver and its devices, whose libcuda.so.1 comes first, room and SELinux.
//!
//! Called by `checks`. Must not know the daemon.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::finding::Finding;

/// The driver, its devices' nodes, and the compute mode; of the machine below `root`.
pub(super) fn driver(root: &Path) -> Vec<Finding> {
    let Ok(version) = std::fs::read_to_string(root.join("proc/driver/nvidia/version")) else {
        return vec![Finding::ok(
            "driver",
            "none of NVIDIA's is loaded: programs run on the software GPU",
        )];
    };
    let version = version.lines().next().unwrap_or("").trim().to_owned();
    let mut findings = vec![Finding::ok("driver", version)];
    let mut nodes = vec![root.join("dev/nvidiactl"), root.join("dev/nvidia-uvm")];
    let mut devices: Vec<PathBuf> = std::fs::read_dir(root.join("dev"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let number = name.strip_prefix("nvidia").unwrap_or("");
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
        .collect();
    devices.sort();
    if devices.is_empty() {
        findings.push(Finding::problem(
            "device nodes",
            "the driver is loaded, and there is no /dev/nvidia<number>",
            "run nvidia-modprobe, or start the daemon where the device is visible",
        ));
    }
    nodes.extend(devices);
    let closed: Vec<String> = nodes
        .iter()
        .filter(|path| File::options().read(true).write(true).open(path).is_err())
        .map(|path| path.display().to_string())
        .collect();
    if !closed.is_empty() {
        findings.push(Finding::problem(
            "device nodes",
            format!("missing or closed to this user: {}", closed.join(", ")),
            "the server, not the programs, needs them: run nvidia-modprobe -u -c 0, or open them to its user",
        ));
    }
    findings.extend(compute_mode());
    findings
}

fn compute_mode() -> Option<Finding> {
    const SUBJECT: &str = "compute mode";
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=index,compute_mode", "--format=csv,noheader"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout)
        .trim()
        .replace('\n', "; ");
    Some(if text.contains("Prohibited") {
        Finding::problem(SUBJECT, text, "nvidia-smi -c EXCLUSIVE_PROCESS")
    } else if text.contains("Exclusive") {
        Finding::ok(SUBJECT, text)
    } else {
        Finding::warning(
            SUBJECT,
            format!("{text}: programs that do not find the daemon may use the device beside it"),
            "nvidia-smi -c EXCLUSIVE_PROCESS",
        )
    })
}

/// Which driver library a program finds first that is started without `openmps run`.
pub(super) fn library(path: &std::ffi::OsStr) -> Finding {
    const SUBJECT: &str = "libcuda.so.1";
    const USUAL: [&str; 4] = [
        "/usr/local/cuda/compat",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/lib64",
    ];
    let first = std::env::split_paths(path)
        .filter(|folder| !folder.as_os_str().is_empty())
        .chain(USUAL.map(PathBuf::from))
        .map(|folder| folder.join("libcuda.so.1"))
        .find(|library| library.exists());
    let mend = "start programs with `openmps run --`, or put the folder that it prints first on \
                LD_LIBRARY_PATH: openmps run -- printenv LD_LIBRARY_PATH";
    match first {
        None => Finding::ok(SUBJECT, "none on the path: programs need `openmps run --`"),
        Some(library) if is_ours(&library) => {
            Finding::ok(SUBJECT, format!("{} is OpenMPS'", library.display()))
        }
        Some(library) => Finding::warning(
            SUBJECT,
            format!(
                "{} comes first: programs that load it use the device without OpenMPS",
                library.display()
            ),
            mend,
        ),
    }
}

/// Our library knows variables of its own.
fn is_ours(library: &Path) -> bool {
    const OURS: &[u8] = b"OPENMPS_CONNECT_TIMEOUT";
    std::fs::read(library).is_ok_and(|bytes| bytes.windows(OURS.len()).any(|window| window == OURS))
}

/// What keeps programs from a socket that is there: containers and SELinux.
pub(super) fn surroundings(root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if ["run/.containerenv", ".dockerenv"]
        .iter()
        .any(|mark| root.join(mark).exists())
    {
        findings.push(Finding::ok(
            "container",
            "this is one: the pipe directory of a daemon outside must be mounted, nothing else is shared",
        ));
    }
    if std::fs::read_to_string(root.join("sys/fs/selinux/enforce"))
        .is_ok_and(|text| text.trim() == "1")
    {
        findings.push(Finding::warning(
            "SELinux",
            "it enforces: a container's program may be kept from the daemon's socket",
            "look for `avc: denied` in the audit log; label the pipe directory container_file_t",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::CheckOutcome;
    use super::*;

    #[test]
    fn a_foreign_library_that_comes_first_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("libcuda.so.1");
        std::fs::write(&path, "NVIDIA's").unwrap();
        let found = library(root.path().as_os_str());
        assert_eq!(found.state, CheckOutcome::Warning);
        assert!(found.text.contains(path.to_str().unwrap()));
        std::fs::write(&path, "..OPENMPS_CONNECT_TIMEOUT..").unwrap();
        assert_eq!(library(root.path().as_os_str()).state, CheckOutcome::Ok);
    }

    #[test]
    fn a_driver_without_nodes_is_a_problem() {
        let root = tempfile::tempdir().unwrap();
        assert!(driver(root.path())[0].text.contains("software GPU"));
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(
            root.path().join("proc/driver/nvidia/version"),
            "NVRM version: 580\n",
        )
        .unwrap();
        let found = driver(root.path());
        assert!(found[0].text.contains("580"));
        assert!(
            found
                .iter()
                .any(|finding| finding.state == CheckOutcome::Problem)
        );
        for name in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-modeset"] {
            std::fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        assert!(
            driver(root.path())
                .iter()
                .all(|finding| finding.state != CheckOutcome::Problem)
        );
    }

    #[test]
    fn a_full_disk_and_selinux_are_warned_of() {
        let root = tempfile::tempdir().unwrap();
        assert!(surroundings(root.path()).is_empty());
        std::fs::create_dir_all(root.path().join("sys/fs/selinux")).unwrap();
        std::fs::write(root.path().join("sys/fs/selinux/enforce"), "1").unwrap();
        std::fs::write(root.path().join(".dockerenv"), "").unwrap();
        let found = surroundings(root.path());
        assert_eq!(found.len(), 2);
    }
}
