//! `group`: groups of clients, made, listed and removed.
//!
//! Called by the table of commands. Must not make files or tell servers: `daemon::groups` does.

use std::fmt::Write;

use protocol::limits;
use serde_json::{Value, json};

use super::answer::{Answer, Caller};
use super::limit_answers::{
    fenced_line, kernel_millis, kernel_time_line, memory_line, refused_change,
};
use super::limit_command::{ChangeError, kernel_time, put_sizes, sizes};
use super::line::Arguments;
use super::lookup::not_allowed;
use super::partitions::partition_added;
use crate::daemon::Daemon;
use crate::groups::error::GroupError;
use crate::groups::saved::{GroupLimits, SavedGroup, is_name};
use crate::groups::{Group, GroupKind, cgroup_path};
use crate::servers::limits::{as_given, device_named};

/// Why a group is not made.
#[derive(Debug, thiserror::Error)]
enum AddError {
    #[error("{0:?} cannot be a group's name: up to 64 letters, digits, and . - _ within")]
    Name(String),
    #[error("Group {0} is there already; limit set --group {0} changes it")]
    Exists(String),
    #[error("{0:?} is not a cgroup's path, such as /system.slice/x or /sys/fs/cgroup/…")]
    Cgroup(String),
    #[error(transparent)]
    Limits(#[from] ChangeError),
    #[error(transparent)]
    Group(#[from] GroupError),
}

pub(super) fn group(daemon: &mut Daemon, caller: Caller, arguments: &Arguments<'_>) -> Answer {
    let name = arguments.word(1);
    match (arguments.word(0), name) {
        (Some("list"), None) => list(daemon, caller),
        (Some("add" | "remove"), _) if !daemon.may_change(caller) => {
            not_allowed(caller, "group add or remove")
        }
        (Some("add"), Some(name)) => add(daemon, name, arguments),
        (Some(verb @ ("show" | "remove")), Some(name)) => {
            let number = daemon.groups().named(name);
            match number.filter(|&number| may_see_group(daemon, caller, number)) {
                None => Answer::refusal(format_args!("Group {name} not found")),
                Some(number) if verb == "show" => show(daemon, caller, number),
                Some(number) => remove(daemon, number, name),
            }
        }
        _ => Answer::refusal("group takes list, show <name>, add <name> or remove <name>"),
    }
}

/// Whether a caller may know of a group: its own, one in which its user has clients, or any for
/// whoever may change things.
pub(super) fn may_see_group(daemon: &Daemon, caller: Caller, number: u32) -> bool {
    if caller.group.is_some() {
        return caller.group == Some(number);
    }
    let servers = daemon.registry().servers.values();
    daemon.may_change(caller)
        || servers
            .flat_map(|server| server.clients.values())
            .any(|client| client.group == Some(number) && client.uid == caller.uid)
}

fn add(daemon: &mut Daemon, name: &str, arguments: &Arguments<'_>) -> Answer {
    let read = || -> Result<SavedGroup, AddError> {
        if !is_name(name) {
            return Err(AddError::Name(name.to_owned()));
        }
        if daemon.groups().named(name).is_some() {
            return Err(AddError::Exists(name.to_owned()));
        }
        let mut limits = GroupLimits {
            reserved: arguments.has("--reserved"),
            fenced: arguments.has("--fenced"),
            ..GroupLimits::default()
        };
        put_sizes(&mut limits, sizes(arguments)?, daemon.devices())?;
        if let Some(text) = arguments.value("--percentage") {
            let percentage = limits::percentage(text).map_err(ChangeError::from)?;
            limits.percentage = Some(percentage);
        } else if limits.reserved {
            return Err(ChangeError::NothingReserved.into());
        }
        if let Some(text) = arguments.value("--kernel-time") {
            limits.kernel_time = kernel_time(text).map_err(ChangeError::from)?;
        }
        let cgroup = match arguments.value("--cgroup") {
            None => None,
            Some(text) => Some(cgroup_path(text).ok_or_else(|| AddError::Cgroup(text.to_owned()))?),
        };
        Ok(SavedGroup {
            name: name.to_owned(),
            limits,
            cgroup,
            holders: Vec::new(),
        })
    };
    let added = read().and_then(|kept| Ok(daemon.add_group(kept)?));
    match added {
        Ok(number) => daemon.confirm_group(number),
        Err(why) => Answer::refusal(why),
    }
}

/// What is answered when a group or a partition was made, or was refused by a server.
pub fn group_added(daemon: &Daemon, number: u32, refused: Option<&str>) -> Answer {
    match daemon.groups().by_number.get(&number) {
        None => refused_change("it is gone"),
        Some(Group {
            kind: GroupKind::Partition(partition),
            name,
            ..
        }) => partition_added(name, partition, refused),
        Some(group) => match refused {
            Some(why) => refused_change(why),
            None => {
                let folder = daemon.instance().directories().group(&group.name);
                Answer::line(folder.display()).with_value(json!({ "directory": folder }))
            }
        },
    }
}

fn remove(daemon: &mut Daemon, number: u32, name: &str) -> Answer {
    match daemon.remove_group(number) {
        Ok(()) => {
            daemon.event("group.removed", json!({ "group": name }), json!({}));
            Answer::nothing()
        }
        Err(why) => Answer::refusal(why),
    }
}

/// What a group may have of each device, and what it has: those that are known, and those that are
/// only named as long as none is.
fn memory(daemon: &Daemon, group: &Group) -> Vec<(String, Option<u64>, u64)> {
    let bytes = |size: &String| limits::size_in_bytes(size).ok();
    if daemon.devices().is_empty() {
        let named = group.limits.memory.iter();
        return named
            .map(|(device, size)| {
                let used = device.parse().map_or(0, |device| group.usage.used(device));
                (device.clone(), bytes(size), used)
            })
            .collect();
    }
    (0..daemon.devices().len() as u32)
        .map(|device| {
            let named = group.limits.memory.iter();
            let limit = named
                .filter(|(name, _)| device_named(daemon.devices(), name) == Some(device))
                .filter_map(|(_, size)| bytes(size))
                .min();
            (device.to_string(), limit, group.usage.used(device))
        })
        .collect()
}

fn clients(
    daemon: &Daemon,
    number: u32,
) -> impl Iterator<Item = (u32, &crate::servers::registry::Client)> {
    let servers = daemon.registry().servers.values();
    servers
        .flat_map(|server| server.clients.values().map(|client| (server.pid(), client)))
        .filter(move |(_, client)| client.group == Some(number))
}

fn value(daemon: &Daemon, caller: Option<Caller>, number: u32, group: &Group) -> Value {
    let memory = memory(daemon, group).into_iter();
    let memory = memory.map(|(device, limit, used)| {
        json!({
            "device": device, "limit": limit, "used": used,
            "over": limit.is_some_and(|limit| used > limit),
        })
    });
    let seen = clients(daemon, number)
        .filter(|(_, client)| caller.is_some_and(|caller| daemon.sees_client(caller, client)));
    let clients = seen.map(|(server, client)| {
        json!({
            "pid": client.pid, "id": client.serial, "server": server,
            "uid": client.uid, "command": client.program,
        })
    });
    json!({
        "name": group.name,
        "directory": daemon.instance().directories().group(&group.name),
        "cgroup": group.cgroup(),
        "percentage": group.limits.percentage.map(as_given),
        "reserved": group.limits.reserved,
        "kernel_time": kernel_millis(group.limits.kernel_time),
        "fenced": group.limits.fenced,
        "memory": memory.collect::<Vec<_>>(),
        "clients": clients.collect::<Vec<_>>(),
    })
}

fn list(daemon: &Daemon, caller: Caller) -> Answer {
    let mut text = String::new();
    let mut all = Vec::new();
    let mut row = |fields: [&str; 6]| {
        let [name, clients, compute, device, limit, used] = fields;
        let _ = writeln!(
            text,
            "{name:<19} {clients:<8} {compute:<17} {device:<9} {limit:<14} {used:<15}"
        );
    };
    let groups = daemon.groups().by_number.iter();
    for (&number, group) in groups.filter(|(_, group)| group.is_named()) {
        if !may_see_group(daemon, caller, number) {
            continue;
        }
        if all.is_empty() {
            row(["GROUP", "CLIENTS", "COMPUTE", "DEVICE", "MEMORY", "IN USE"]);
        }
        all.push(value(daemon, Some(caller), number, group));
        let count = clients(daemon, number).count().to_string();
        let compute = compute(&group.limits);
        let each = memory(daemon, group);
        if each.is_empty() {
            row([&group.name, &count, &compute, "-", "-", "-"]);
        }
        for (device, limit, used) in each {
            let limit = limit.map_or("-".to_owned(), |limit| limit.to_string());
            let used = used.to_string();
            row([&group.name, &count, &compute, &device, &limit, &used]);
        }
    }
    Answer::text(text).with_value(Value::from(all))
}

fn compute(limits: &GroupLimits) -> String {
    match limits.percentage {
        None => "-".to_owned(),
        Some(part) if limits.reserved => format!("{part:.1} reserved"),
        Some(part) => format!("{part:.1}"),
    }
}

/// What a group has, in lines.
pub(super) fn group_details(daemon: &Daemon, number: u32, group: &Group) -> Answer {
    let mut text = format!("Group {}\n", group.name);
    let _ = match group.limits.percentage {
        None => writeln!(text, "  compute: no limit"),
        Some(part) => writeln!(
            text,
            "  compute: {part:.1} %{}",
            if group.limits.reserved {
                ", reserved"
            } else {
                ""
            }
        ),
    };
    text.push_str(&kernel_time_line(group.limits.kernel_time));
    text.push_str(fenced_line(group.limits.fenced));
    for (device, limit, used) in memory(daemon, group) {
        memory_line(&mut text, &device, limit, used);
    }
    Answer::text(text).with_value(value(daemon, None, number, group))
}

/// What a group has, after a change or when it was asked for.
pub fn group_limits(daemon: &Daemon, number: u32) -> Answer {
    match daemon.groups().by_number.get(&number) {
        Some(group) => group_details(daemon, number, group),
        None => Answer::refusal("the group is gone"),
    }
}

fn show(daemon: &Daemon, caller: Caller, number: u32) -> Answer {
    let Some(group) = daemon.groups().by_number.get(&number) else {
        return Answer::nothing();
    };
    let mut answer = group_details(daemon, number, group);
    answer.value = Some(value(daemon, Some(caller), number, group));
    let text = &mut answer.text;
    let folder = daemon.instance().directories().group(&group.name);
    let _ = writeln!(text, "  directory: {}", folder.display());
    if let Some(cgroup) = group.cgroup() {
        let _ = writeln!(text, "  cgroup: {cgroup}");
    }
    for (server, client) in clients(daemon, number) {
        if daemon.sees_client(caller, client) {
            let _ = writeln!(
                text,
                "  client {} of server {server}: {}",
                client.pid, client.program
            );
        }
    }
    answer
}
