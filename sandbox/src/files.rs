//! What a server may open: on the software GPU always, beside NVIDIA's driver where an operator asks for it.
//!
//! Called by a server's process when it starts. Must not know what the driver does with what it opens.

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

/// How far files are out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// All that is asked for holds.
    Restricted,
    /// The kernel has an older Landlock, which holds a part of it.
    InPart,
    /// The kernel has none, or it is turned off there.
    Open,
}

/// What the kernel is asked for: all that this version of Landlock knows is forbidden, unless it is allowed. Of older
/// kernels a part.
const VERSION: ABI = ABI::V6;

/// What every server may read: what there is of the machine, its time zone, and the files of programs, for
/// backtraces. What of it is missing is left out.
const READABLE: [&str; 11] = [
    "/dev/null",
    "/dev/urandom",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/timezone",
    "/lib",
    "/lib64",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/usr",
];

/// What NVIDIA's driver reads beside that: its settings, what it finds of devices, and where containers have it.
const DRIVER_READABLE: [&str; 4] = ["/etc", "/opt", "/run", "/sys"];

/// Files of devices that the driver opens are called so, in `/dev`; the others there are of no use to it.
const DEVICE: &str = "nvidia";

/// Shared memory and what gives zeros.
const DRIVER_WRITABLE: [&str; 3] = ["/dev/null", "/dev/shm", "/dev/zero"];

/// Where the driver links the numbers of its devices to their files, which it does anew each time if it is root's.
const DEVICE_LINKS: &str = "/dev/char";

/// The process's own threads. The driver writes the name of each that it starts here, and does not start without.
const THREADS: &str = "/proc/self/task";

/// What a server may reach beside what every server reads.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// It reads these files, and those beneath these directories.
    pub readable: Vec<PathBuf>,
    /// These it also writes, makes and removes.
    pub writable: Vec<PathBuf>,
    /// In these directories it makes and removes symbolic links.
    pub links: Vec<PathBuf>,
    /// Files beneath these directories it writes over; it makes and removes none.
    pub written_over: Vec<PathBuf>,
}

impl Reach {
    /// What NVIDIA's driver reaches, as far as that is the same everywhere: not where it and its cache lie.
    #[must_use]
    pub fn of_driver() -> Self {
        let devices = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let devices = devices.filter(|file| {
            file.file_name()
                .as_encoded_bytes()
                .starts_with(DEVICE.as_bytes())
        });
        Self {
            readable: DRIVER_READABLE.map(PathBuf::from).into(),
            writable: devices
                .map(|file| file.path())
                .chain(DRIVER_WRITABLE.map(PathBuf::from))
                .collect(),
            links: vec![DEVICE_LINKS.into()],
            written_over: vec![THREADS.into()],
        }
    }
}

/// From now on the calling thread, threads that it starts and their programs open no file for writing, make or
/// remove none, and read only what every server needs and what is `within` reach; they run no program, connect and
/// listen to no port, and reach no process and no abstract socket of others. What is open already, or comes
/// through a socket, stays open. To be called before there is another thread.
///
/// # Errors
/// When the kernel has Landlock and refuses.
pub fn restrict_files(within: &Reach) -> Result<Files, RulesetError> {
    let read = AccessFs::from_read(VERSION) & !AccessFs::Execute;
    let write = AccessFs::from_all(VERSION) & !AccessFs::Execute;
    let link = AccessFs::MakeSym | AccessFs::RemoveFile | AccessFs::ReadDir;
    let over = AccessFs::WriteFile | AccessFs::Truncate;
    // A rule is about the directory as the kernel knows it now. Of /proc it makes directories anew once it has
    // dropped them for want of memory, but never one that is open, so these stay open as long as the process lives.
    for directory in &within.written_over {
        let _stays_open = File::open(directory).map(File::into_raw_fd);
    }
    let readable = within.readable.iter().map(PathBuf::as_path);
    let all = READABLE.iter().map(Path::new).chain(readable);
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?
        .add_rules(path_beneath_rules(all, read))?
        .add_rules(path_beneath_rules(&within.writable, write))?
        .add_rules(path_beneath_rules(&within.links, link))?
        .add_rules(path_beneath_rules(&within.written_over, over))?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Files::Restricted,
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { .. }) => Files::InPart,
        _ => Files::Open,
    })
}
