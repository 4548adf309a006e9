//! What the daemon has the kernel refuse to it, before it hears anybody.
//!
//! Called by `startup`. Must not know system calls: `sandbox` has the table.

use sandbox::{Error, Profile, Setting, UnknownSetting, filter_calls};

use crate::host::HostProgram;
use crate::log::{Log, Role};

/// Why a daemon has no filter.
const HELPER: &str = "the driver's helper is a set-uid program, and a filter would take its rights from it; \
                      servers filter theirs as soon as they have opened the driver";

/// Why a daemon that is to be confined is not.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfineError {
    /// The variable holds something else.
    #[error(transparent)]
    Setting(#[from] UnknownSetting),
    /// The kernel could and does not.
    #[error("{0}; with {variable}=off the daemon starts without a filter", variable = sandbox::VARIABLE)]
    Filter(#[from] Error),
}

/// Has the system calls of this process filtered, and those of all servers that it starts. Says in the log
/// what came of it. One that takes another daemon's place in its process has that one's filter.
///
/// # Errors
/// When the kernel could and does not.
pub(super) fn confine(
    log: &Log,
    host: HostProgram,
    takes_anothers_place: bool,
) -> Result<(), ConfineError> {
    let is_wanted = sandbox::setting()? != Setting::Off;
    let open = |why: &str| {
        log.line(
            Role::Control,
            &format!("System calls are not filtered: {why}"),
        );
    };
    if takes_anothers_place {
        // The kernel holds this process to it still, and the filters of a process have a limit together.
        let text = "System calls are filtered as they were in the daemon before, if they were";
        log.line(Role::Control, text);
        return Ok(());
    }
    let profile = match (host.drives_hardware)() {
        _ if !is_wanted => {
            open(&format!("{}=off", sandbox::VARIABLE));
            return Ok(());
        }
        true if !rustix::process::geteuid().is_root() => {
            open(HELPER);
            return Ok(());
        }
        true => Profile::DriverDaemon,
        false => Profile::Daemon,
    };
    match filter_calls(profile) {
        Ok(()) => {
            let which = match profile {
                Profile::DriverDaemon => "those that nobody is to make are refused",
                _ => "none is possible but those that a daemon or server makes",
            };
            log.line(
                Role::Control,
                &format!("System calls are filtered: {which}"),
            );
        }
        Err(error @ Error::Missing) => open(&error.to_string()),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
