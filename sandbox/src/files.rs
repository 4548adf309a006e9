//! What a server on the software GPU may open.

use std::path::Path;

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

/// From now on the calling thread, threads that it starts and their programs open no file for writing, make or
/// remove none, and read only what every server needs and what is beneath `readable`; they connect and listen to no
/// port, and reach no process and no abstract socket of others. What is open already, or comes
/// through a socket, stays open. To be called before there is another thread.
///
/// # Errors
/// When the kernel has Landlock and refuses.
pub fn restrict_files(readable: &[&Path]) -> Result<Files, RulesetError> {
    let read = AccessFs::from_read(VERSION) & !AccessFs::Execute;
    let all = READABLE
        .iter()
        .map(Path::new)
        .chain(readable.iter().copied());
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?
        .add_rules(path_beneath_rules(all, read))?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Files::Restricted,
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { .. }) => Files::InPart,
        _ => Files::Open,
    })
}
