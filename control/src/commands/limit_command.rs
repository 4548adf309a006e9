//! The command `limit`: what a running client or a group may have, shown or changed at once.
//!
//! Reads its arguments; what then comes of a change `daemon::limit_changes` sees to. Called by the table of commands.
//! Must not tell servers: the daemon does.

use std::time::Duration;

use protocol::control_messages::{self, ListedDevice};
use protocol::limits;

use super::answer::{Answer, Caller};
use super::groups::group_limits;
use super::limit_answers::kernel_millis;
use super::line::Arguments;
use super::lookup::{clients, not_allowed};
use crate::daemon::Daemon;
use crate::groups::saved::GroupLimits;
use crate::servers::limits::device_named;

/// Why limits are not as a command asks.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChangeError {
    #[error("--reserved and --no-reserved are each other's opposite")]
    Opposites,
    #[error("memory limit for device {0}, which there is not or more than one")]
    NoDevice(String),
    #[error("a group has no priority; its clients have")]
    GroupPriority,
    #[error(
        "kernels are fenced from a client's start on: OPENMPS_ISOLATION=fenced in its environment, or its group"
    )]
    ClientFence,
    #[error("--fenced and --no-fenced are each other's opposite")]
    FenceOpposites,
    #[error("what is reserved is a percentage: --percentage says how much")]
    NothingReserved,
    #[error(
        "{what} holds among the clients of one context, and the user's clients have {beside} more (--contexts)"
    )]
    AmongContexts { what: &'static str, beside: usize },
    #[error(transparent)]
    Limit(#[from] limits::LimitError),
}

/// What a command says memory is to be: for each device named, a size or no limit.
pub(super) type Sizes = Vec<(String, Option<String>)>;

pub(super) fn limit(daemon: &mut Daemon, caller: Caller, arguments: &Arguments<'_>) -> Answer {
    let set = match arguments.word(0) {
        Some("set") => true,
        Some("show") => false,
        _ => return Answer::refusal("limit takes set or show, and --client or --group"),
    };
    if set && !daemon.may_change(caller) {
        return not_allowed(caller, "limit set");
    }
    match (arguments.value("--client"), arguments.value("--group")) {
        (Some(client), None) => of_client(daemon, caller, client, set, arguments),
        (None, Some(group)) => of_group(daemon, caller, group, set, arguments),
        _ => Answer::refusal("limit takes one of --client <PID> and --group <name>"),
    }
}

/// The values of all `--memory` of a line.
pub(super) fn sizes(arguments: &Arguments<'_>) -> Result<Sizes, ChangeError> {
    let mut sizes = Vec::new();
    let texts = arguments.values.iter();
    for (_, text) in texts.filter(|(name, _)| *name == "--memory") {
        for entry in text.split(',') {
            let wrong = || limits::LimitError::Entry(entry.to_owned());
            let (device, size) = entry.split_once('=').ok_or_else(wrong)?;
            if !limits::is_device(device) {
                return Err(wrong().into());
            }
            let size = match size {
                "none" => None,
                _ => {
                    limits::size_in_bytes(size)?;
                    Some(size.to_owned())
                }
            };
            sizes.push((device.to_owned(), size));
        }
    }
    Ok(sizes)
}

/// How long a kernel may run, or `none`.
pub(super) fn kernel_time(text: &str) -> Result<Option<Duration>, limits::LimitError> {
    match text {
        "none" => Ok(None),
        text => limits::kernel_time(text).map(Some),
    }
}

/// Whether a line says that compute is reserved, or that it is not.
fn reserved(arguments: &Arguments<'_>) -> Result<Option<bool>, ChangeError> {
    match (arguments.has("--reserved"), arguments.has("--no-reserved")) {
        (true, true) => Err(ChangeError::Opposites),
        (true, false) => Ok(Some(true)),
        (false, true) => Ok(Some(false)),
        (false, false) => Ok(None),
    }
}

/// Whether a line says that kernels are fenced, or that they are not.
fn fenced(arguments: &Arguments<'_>) -> Result<Option<bool>, ChangeError> {
    match (arguments.has("--fenced"), arguments.has("--no-fenced")) {
        (true, true) => Err(ChangeError::FenceOpposites),
        (true, false) => Ok(Some(true)),
        (false, true) => Ok(Some(false)),
        (false, false) => Ok(None),
    }
}

/// Puts limits of a group in place of others, or beside them.
///
/// # Errors
/// When a size is for a device that there is not.
pub(super) fn put_sizes(
    limits: &mut GroupLimits,
    sizes: Sizes,
    devices: &[ListedDevice],
) -> Result<(), ChangeError> {
    for (name, size) in sizes {
        let device = device_named(devices, &name);
        // Before a server has run nobody knows which devices there are; it will see to it.
        if !devices.is_empty() && device.is_none() {
            return Err(ChangeError::NoDevice(name));
        }
        limits.memory.retain(|other, _| {
            *other != name && (device.is_none() || device_named(devices, other) != device)
        });
        if let Some(size) = size {
            limits.memory.insert(name, size);
        }
    }
    Ok(())
}

fn of_group(
    daemon: &mut Daemon,
    caller: Caller,
    name: &str,
    set: bool,
    arguments: &Arguments<'_>,
) -> Answer {
    let number = daemon.groups().named(name);
    let number = number.filter(|&number| super::groups::may_see_group(daemon, caller, number));
    let group = number.and_then(|number| Some((number, daemon.groups().by_number.get(&number)?)));
    let Some((number, group)) = group else {
        return Answer::refusal(format_args!("Group {name} not found"));
    };
    if !set {
        return group_limits(daemon, number);
    }
    let mut limits = group.limits.clone();
    let change = || -> Result<GroupLimits, ChangeError> {
        if arguments.value("--priority").is_some() {
            return Err(ChangeError::GroupPriority);
        }
        put_sizes(&mut limits, sizes(arguments)?, daemon.devices())?;
        match arguments.value("--percentage") {
            Some("none") => limits.percentage = None,
            Some(text) => {
                limits.percentage = Some(limits::percentage(text)?);
            }
            None => {}
        }
        if let Some(text) = arguments.value("--kernel-time") {
            limits.kernel_time = kernel_time(text)?;
        }
        limits.reserved = reserved(arguments)?.unwrap_or(limits.reserved);
        limits.fenced = fenced(arguments)?.unwrap_or(limits.fenced);
        if limits.percentage.is_none() && limits.reserved {
            return Err(ChangeError::NothingReserved);
        }
        Ok(limits)
    };
    match change() {
        Ok(limits) => daemon.change_group(number, limits),
        Err(why) => Answer::refusal(why),
    }
}

fn of_client(
    daemon: &mut Daemon,
    caller: Caller,
    text: &str,
    set: bool,
    arguments: &Arguments<'_>,
) -> Answer {
    let found = clients(daemon, caller, text)
        .last()
        .and_then(|&(id, session)| {
            let server = daemon.registry().servers.get(&id)?;
            Some((id, session, server, server.clients.get(&session)?))
        });
    let Some((id, session, server, client)) = found else {
        return Answer::refusal(format_args!("Client {text} not found"));
    };
    let mut change = control_messages::Change {
        session,
        ..control_messages::Change::default()
    };
    if !set {
        return daemon.change_client(id, None, change);
    }
    let mut now = client.limits.clone();
    let mut read = || -> Result<(), ChangeError> {
        if fenced(arguments)?.is_some() {
            return Err(ChangeError::ClientFence);
        }
        for (name, size) in sizes(arguments)? {
            let device = device_named(&server.devices, &name).ok_or(ChangeError::NoDevice(name))?;
            let bytes = match size.as_deref().map(limits::size_in_bytes) {
                Some(Ok(bytes)) => {
                    now.memory.insert(device, bytes);
                    bytes
                }
                _ => {
                    now.memory.remove(&device);
                    u64::MAX
                }
            };
            change.memory.push((device, bytes));
        }
        if let Some(text) = arguments.value("--percentage") {
            now.percentage = limits::percentage(text)?;
            change.percentage = Some(now.percentage.to_string());
        }
        if let Some(text) = arguments.value("--priority") {
            now.priority = limits::priority(text)?;
            change.priority = Some(now.priority);
        }
        if let Some(text) = arguments.value("--kernel-time") {
            now.kernel_time = kernel_time(text)?;
            change.kernel_time = Some(kernel_millis(now.kernel_time).unwrap_or(u64::MAX));
        }
        change.reserved = reserved(arguments)?;
        now.reserved = change.reserved.unwrap_or(now.reserved);
        let what = match (change.reserved, change.priority) {
            (Some(true), _) => "what is reserved",
            (_, Some(1..)) => "giving way to others",
            _ => return Ok(()),
        };
        match daemon.contexts_in_use_beside(id) {
            0 => Ok(()),
            beside => Err(ChangeError::AmongContexts { what, beside }),
        }
    };
    match read() {
        Ok(()) => daemon.change_client(id, Some(now), change),
        Err(why) => Answer::refusal(why),
    }
}
