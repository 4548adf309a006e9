//! `sm_partition` and `lspart`: static partitions, with what NVIDIA's print where tools read it.
//!
//! Called by the table of commands. Must not know how an engine makes a partition: it counts chunks.

use std::fmt::Write;

use serde_json::{Value, json};

use super::answer::{Answer, Awaited, Caller};
use super::line::Arguments;
use crate::daemon::Daemon;
use crate::groups::partition::{Partition, chunks, free_chunks};
use crate::servers::limits::device_named;
use crate::servers::registry::State;

const OFF: &str = "devices are not partitioned: a daemon with -S does that";

/// Has a server say which devices there are, if none has, and the command carried out again then.
pub(super) fn devices_first(daemon: &mut Daemon, caller: Caller) -> Option<Answer> {
    if !daemon.devices().is_empty() {
        return None;
    }
    let starting = daemon
        .registry()
        .servers
        .iter()
        .find(|(_, server)| server.state == State::Initializing)
        .map(|(&id, _)| id);
    let id = match starting {
        Some(id) => Ok(id),
        None => daemon.start_for_user(caller.uid),
    };
    Some(match id {
        Ok(id) => Answer::repeated_after(Awaited::Ready(id)),
        Err(error) => Answer::refusal(error),
    })
}

pub(super) fn sm_partition(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    if !daemon.has_static_partitions() {
        return Answer::refusal(OFF);
    }
    let words = (arguments.word(0), arguments.word(1), arguments.word(2));
    let (verb, device, what) = match words {
        (Some(verb @ ("add" | "rm")), Some(device), Some(what)) => (verb, device, what),
        // As it is written to clients.
        (Some("rm"), Some(name), None) if name.contains('/') => {
            return match name.split_once('/') {
                Some((device, id)) => remove(daemon, device, id),
                None => Answer::nothing(),
            };
        }
        _ => {
            return Answer::refusal(
                "sm_partition takes add <device> <chunks> or rm <device> <partition>",
            );
        }
    };
    if verb == "rm" {
        return remove(daemon, device, what);
    }
    match devices_first(daemon, caller) {
        Some(first) => first,
        None => add(daemon, device, what),
    }
}

fn add(daemon: &mut Daemon, name: &str, count: &str) -> Answer {
    let Some(device) = device_named(daemon.devices(), name) else {
        return Answer::refusal(format_args!("Device {name} not found, or more than one"));
    };
    let Ok(chunks) = count.parse::<u32>() else {
        return Answer::refusal(format_args!("{count:?} is not a number of chunks"));
    };
    match daemon.add_partition(device, chunks) {
        Ok(number) => daemon.confirm_group(number),
        Err(()) => too_many(chunks, None),
    }
}

/// Says that a device has not as many chunks, in words that tools know.
fn too_many(chunks: u32, why: Option<&str>) -> Answer {
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    Answer::refusal(format_args!(
        "Failed to fulfill the requested SM partition of {chunks} chunks, error \
         CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION{why}"
    ))
}

/// What is answered when a partition was made, or was refused by a server.
pub(super) fn partition_added(name: &str, partition: &Partition, refused: Option<&str>) -> Answer {
    match refused {
        None => Answer::line(format_args!("Partition {name} created")).with_value(json!({
            "partition": name,
            "chunks": partition.chunks,
            "multiprocessors": partition.multiprocessors,
        })),
        Some(why) => too_many(partition.chunks, Some(why)),
    }
}

fn remove(daemon: &mut Daemon, device: &str, id: &str) -> Answer {
    let name = format!("{device}/{id}");
    let Some(number) = daemon.partition_named(&name) else {
        return Answer::refusal(format_args!("Partition {name} not found"));
    };
    if daemon.has_clients(number) {
        return Answer::refusal(format_args!(
            "Partition {name} in use. Terminate all clients before removing."
        ));
    }
    match daemon.remove_group(number) {
        Ok(()) => Answer::line(format_args!("Partition {name} removed")),
        Err(why) => Answer::refusal(why),
    }
}

pub(super) fn lspart(daemon: &mut Daemon, caller: Caller, _: &Arguments<'_>) -> Answer {
    if !daemon.has_static_partitions() {
        return Answer::refusal(OFF);
    }
    if let Some(first) = devices_first(daemon, caller) {
        return first;
    }
    let mut text = String::new();
    let mut row = |fields: [&str; 7]| {
        let [gpu, partition, free, used, free_sm, used_sm, clients] = fields;
        let line =
            format!("{gpu:<26}{partition:<12}{free:<9}{used:<9}{free_sm:<7}{used_sm:<7}{clients}");
        let _ = writeln!(text, "{}", line.trim_end());
    };
    row([
        "GPU",
        "Partition",
        "free",
        "used",
        "free",
        "used",
        "clients",
    ]);
    row(["", "", "chunks", "chunks", "SM", "SM", ""]);
    let mut list = Vec::new();
    for (ordinal, device) in (0..).zip(daemon.devices()) {
        let partitions = daemon.partitions_of(ordinal);
        let all: Vec<&Partition> = partitions.iter().map(|(_, one)| *one).collect();
        let (of_device, chunk) = chunks(device);
        let free = free_chunks(device, &all);
        let (used, used_sm) = (of_device - free, (of_device - free) * chunk);
        let free_sm = device.multiprocessors - used_sm;
        let short = super::devices::short(&device.uuid);
        row([
            short,
            "",
            &free.to_string(),
            &used.to_string(),
            &free_sm.to_string(),
            &used_sm.to_string(),
            "",
        ]);
        let mut each = Vec::new();
        for (number, partition) in partitions {
            let has_clients = daemon.has_clients(number);
            row([
                short,
                &partition.id.to_string(),
                "",
                &partition.chunks.to_string(),
                "",
                &partition.multiprocessors.to_string(),
                if has_clients { "Yes" } else { "No" },
            ]);
            each.push(json!({
                "partition": format!("{}/{}", device.uuid, partition.id),
                "chunks": partition.chunks,
                "multiprocessors": partition.multiprocessors,
                "clients": has_clients,
            }));
        }
        list.push(json!({
            "device": device.uuid,
            "free_chunks": free,
            "used_chunks": used,
            "free_multiprocessors": free_sm,
            "used_multiprocessors": used_sm,
            "partitions": each,
        }));
    }
    Answer::text(text).with_value(Value::from(list))
}
