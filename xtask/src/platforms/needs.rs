//! What a test needs of the machine: programs, if need be from Debian's packages, and the rights that a
//! container engine uses. What is missing is a reason to skip, told before anything is begun.
//!
//! Called by tests of platforms, Kubernetes and Slurm before they begin. Must not know what a test does with what
//! it has.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::skip;
use crate::shell::run;

/// The variable with the folder in which one test tells the next what it has found out.
pub const NOTES: &str = "OPENMPS_XTASK_NOTES";

/// Seconds that Debian's lists of packages may take.
const LISTS: &str = "60";

/// Seconds that packages may take.
const PACKAGES: &str = "300";

/// Whether a program is on the path.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// Whether this is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Has programs on the path, if need be from Debian's packages.
pub fn need(programs: &[&str], packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|it| !is_there(it))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => install(&missing.join(", "), packages),
    }
}

/// Installs packages for what is missing; a machine that cannot have them skips the test.
pub fn install(missing: &str, packages: &[&str]) -> Result<()> {
    if !is_root() {
        return skip(format!(
            "{missing} missing, and only root can install packages"
        ));
    }
    if !is_there("apt-get") {
        return skip(format!(
            "{missing} missing, and this is no Debian to install them from"
        ));
    }
    let note = std::env::var_os(NOTES).map(|folder| PathBuf::from(folder).join("packages"));
    let note = note.unwrap_or_else(|| std::env::temp_dir().join("openmps-packages"));
    if !note.exists() {
        // That one list cannot be had is no reason to give up: the packages may be in another.
        let update = apt(LISTS, &["update"]);
        fs::write(&note, update.trouble().unwrap_or_default())?;
    }
    let lists = fs::read_to_string(&note).unwrap_or_default();
    if lists.contains(UNREACHABLE) {
        // Not tried again for each test: a mirror that does not answer costs a minute.
        return skip(format!("{missing} missing, and {lists}"));
    }
    let mut words = vec!["install", "--yes", "--no-install-recommends"];
    words.extend(packages);
    let installed = apt(PACKAGES, &words);
    if installed.code == Some(0) {
        return Ok(());
    }
    let why = installed.trouble().unwrap_or_default();
    if why.contains(UNREACHABLE) {
        fs::write(&note, &why)?;
    }
    // Without lists no package is known, which says little.
    let why = match why.contains("Unable to locate") && !lists.is_empty() {
        true => lists,
        false => why,
    };
    skip(format!("{missing} missing, and {why}"))
}

/// What stands in the note when packages cannot be had at all.
const UNREACHABLE: &str = "Debian's mirrors do not answer";

/// What apt-get said, and how it ended.
#[derive(Debug)]
struct Said {
    word: String,
    code: Option<i32>,
    text: String,
}

impl Said {
    /// What went wrong, in a line.
    fn trouble(&self) -> Option<String> {
        let told = |line: &&str| line.starts_with("E: ") || line.starts_with("W: Failed to fetch");
        let line = self.text.lines().find(told);
        let line = line.map(|line| line[3..].split_whitespace().collect::<Vec<_>>().join(" "));
        let silent = [
            "Could not resolve",
            "Temporary failure resolving",
            "Could not connect",
            "Unable to connect",
            "Connection failed",
            "Connection timed out",
        ];
        let is_silent = silent.iter().any(|words| self.text.contains(words));
        match (line, self.code) {
            (None, Some(0)) => None,
            (_, Some(124)) => Some(format!(
                "{UNREACHABLE}: apt-get {} took too long",
                self.word
            )),
            // A list that cannot be had may be of no use; a package that cannot be had is.
            (Some(line), _) if is_silent && self.word != "update" => {
                Some(format!("{UNREACHABLE}: {line}"))
            }
            (Some(line), _) => Some(format!("apt-get {}: {line}", self.word)),
            (None, _) => Some(format!("apt-get {} failed without a word", self.word)),
        }
    }
}

/// Runs apt-get, which waits neither for a mirror nor for an answer.
fn apt(seconds: &str, words: &[&str]) -> Said {
    let log = std::env::temp_dir().join("apt.log");
    println!("xtask: apt-get {}", words.join(" "));
    // A file and not a pipe: what a package starts would keep a pipe open.
    let ended = File::create(&log)
        .and_then(|file| Ok((file.try_clone()?, file)))
        .and_then(|(out, err)| {
            Command::new("timeout")
                .args(["--kill-after=10", seconds, "apt-get", "-qq"])
                .args(["-o", "Acquire::Retries=1"])
                .args(["-o", "Acquire::http::Timeout=10"])
                .args(["-o", "Acquire::https::Timeout=10"])
                .args(["-o", "DPkg::Lock::Timeout=30"])
                .args(words)
                .env("DEBIAN_FRONTEND", "noninteractive")
                // What a package brings is not started.
                .env("RUNLEVEL", "1")
                .stdin(Stdio::null())
                .stdout(out)
                .stderr(err)
                .status()
        });
    let text = fs::read_to_string(&log).unwrap_or_default();
    fs::remove_file(&log).ok();
    Said {
        word: words[0].to_owned(),
        code: ended.ok().and_then(|status| status.code()),
        text,
    }
}

/// What engines do for each container, without an engine: how it is called, and what is tried.
const TRIALS: &[(&str, &str)] = &[
    (
        "make namespaces",
        "exec unshare --mount --pid --ipc --uts --net --fork true",
    ),
    (
        "mount file systems",
        "exec unshare --mount sh -c 'mount -t tmpfs none /mnt'",
    ),
    (
        "mount a /proc in a container",
        "exec unshare --mount --pid --fork --mount-proc true",
    ),
];

/// Whether this machine lets containers be made at all; which container engine it is does not matter.
pub fn containers() -> Result<()> {
    if !is_root() {
        return skip("only root can make containers here");
    }
    for (what, trial) in TRIALS {
        let tried = Command::new("sh")
            .args(["-c", trial])
            .stdin(Stdio::null())
            .output()?;
        if !tried.status.success() {
            let errors = String::from_utf8_lossy(&tried.stderr);
            let last = errors.lines().next_back().unwrap_or_default();
            return skip(format!("root may not {what} here ({last})"));
        }
    }
    let tree = Path::new("/sys/fs/cgroup");
    let parent = match tree.join("cgroup.controllers").exists() {
        true => tree.to_owned(),
        false => tree.join("devices"),
    };
    if !parent.exists() {
        return skip(format!("there are no cgroups in {}", tree.display()));
    }
    let group = parent.join(format!("openmps-test-{}", std::process::id()));
    match fs::create_dir(&group) {
        Ok(()) => Ok(fs::remove_dir(&group)?),
        Err(error) => skip(format!(
            "root may make no cgroup in {} ({error})",
            parent.display()
        )),
    }
}

/// Whether this machine lets bridges be made, as networks of pods are.
pub fn bridges() -> Result<()> {
    let trial = "exec unshare --net ip link add openmps-test type bridge";
    let tried = run(Command::new("sh").args(["-c", trial]));
    match tried {
        Ok(()) => Ok(()),
        Err(error) => skip(format!("root may make no network bridge here ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(word: &str, code: i32, text: &str) -> Said {
        Said {
            word: word.into(),
            code: Some(code),
            text: text.into(),
        }
    }

    #[test]
    fn what_apt_said_is_told_in_a_line() {
        assert_eq!(said("update", 0, "").trouble(), None);
        let text = "W: x\nW: Failed to fetch http://m/InRelease  Could not resolve 'm'\n";
        let one = said("update", 0, text).trouble().unwrap();
        // One list is not all of them.
        assert!(!one.contains(UNREACHABLE), "{one}");
        assert!(
            one.contains("Could not resolve 'm'") && !one.contains('\n'),
            "{one}"
        );
        let text = "E: Failed to fetch http://m/x.deb  Unable to connect to m:\nE: y\n";
        let package = said("install", 100, text).trouble().unwrap();
        assert!(package.starts_with(UNREACHABLE), "{package}");
        let unknown = said("install", 100, "E: Unable to locate package q\n").trouble();
        assert_eq!(
            unknown.unwrap(),
            "apt-get install: Unable to locate package q"
        );
        let late = said("update", 124, "").trouble().unwrap();
        assert!(
            late.contains(UNREACHABLE) && late.contains("too long"),
            "{late}"
        );
    }
}
