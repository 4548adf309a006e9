//! NVIDIA's commands for limits: what servers give their clients, those to come and one that runs.
//!
//! Called by the table of commands. Must not know how a server enforces a limit.

use std::time::Duration;

use protocol::control_messages::ListedDevice;
use protocol::limits;
use serde_json::json;

use super::answer::{Answer, Caller};
use super::limit_answers::kernel_millis;
use super::limit_command::{ChangeError, kernel_time};
use super::line::Arguments;
use super::lookup::{with_server, with_settings_of};
use crate::daemon::Daemon;
use crate::servers::limits::{ServerLimits, as_given, device_named};

/// Sets a percentage and answers with the one in force, which is what NVIDIA's prints even when it
/// refuses; why it refused is said on standard error, in the log and by the exit status.
fn set_percentage(percentage: &mut f32, text: Option<&str>) -> Answer {
    match limits::percentage(text.unwrap_or("")) {
        Ok(value) => {
            *percentage = value;
            show_percentage(value)
        }
        Err(error) => {
            let answer = show_percentage(*percentage)
                .with_log(format!(
                    "Invalid percentage, expected between (0.0, 100.0]\n{percentage:.1}"
                ))
                .with_value(
                    json!({ "error": error.to_string(), "percentage": as_given(*percentage) }),
                )
                .with_remark(error);
            Answer { exit: 1, ..answer }
        }
    }
}

fn show_percentage(percentage: f32) -> Answer {
    Answer::line(format_args!("{percentage:.1}"))
        .with_value(json!({ "percentage": as_given(percentage) }))
}

pub(super) fn set_default_active_thread_percentage(
    daemon: &mut Daemon,
    _: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    daemon
        .change_defaults(|defaults, _| set_percentage(&mut defaults.percentage, arguments.word(0)))
}

pub(super) fn get_default_active_thread_percentage(
    daemon: &mut Daemon,
    _: Caller,
    _: &Arguments<'_>,
) -> Answer {
    show_percentage(daemon.defaults().percentage)
}

pub(super) fn set_active_thread_percentage(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    with_settings_of(daemon, caller, arguments.word(0), |server| {
        set_percentage(&mut server.settings.percentage, arguments.word(1))
    })
}

pub(super) fn get_active_thread_percentage(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    with_server(daemon, caller, arguments.word(0), |server| {
        show_percentage(server.settings.percentage)
    })
}

/// Sets a memory limit and prints nothing; where NVIDIA's takes what does not parse for "no limit",
/// this takes `none`, and refuses the rest and says why. Which devices there are is not known before a
/// server has run.
fn set_memory(
    settings: &mut ServerLimits,
    devices: &[ListedDevice],
    device: Option<&str>,
    size: Option<&str>,
) -> Answer {
    let (Some(device), Some(size)) = (device, size) else {
        return Answer::refusal("Invalid command format.");
    };
    if size == "none" {
        settings.memory.remove(device);
        return Answer::nothing();
    }
    if limits::is_device(device) && is_unknown(devices, device) {
        return Answer::refusal(ChangeError::NoDevice(device.to_owned()));
    }
    match settings.set_memory(device, size) {
        Ok(()) => Answer::nothing(),
        Err(error) => Answer::refusal(error),
    }
}

fn is_unknown(devices: &[ListedDevice], device: &str) -> bool {
    !devices.is_empty() && device_named(devices, device).is_none()
}

fn show_memory(settings: &ServerLimits, devices: &[ListedDevice], device: Option<&str>) -> Answer {
    let Some(device) = device else {
        return Answer::refusal("Invalid command format.");
    };
    match settings.memory.get(device) {
        Some(size) => {
            let bytes = limits::size_in_bytes(size).ok();
            Answer::line(size)
                .with_value(json!({ "device": device, "limit": size, "bytes": bytes }))
        }
        None if is_unknown(devices, device) => {
            let why = ChangeError::NoDevice(device.to_owned()).to_string();
            Answer {
                exit: 1,
                ..Answer::nothing()
                    .with_value(json!({ "error": why }))
                    .with_remark(why)
            }
        }
        None => Answer::nothing()
            .with_log("No default pinned memory limit set for the device!")
            .with_value(json!({ "device": device, "limit": null })),
    }
}

pub(super) fn set_default_device_pinned_mem_limit(
    daemon: &mut Daemon,
    _: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let (device, size) = (arguments.word(0), arguments.word(1));
    let answer =
        daemon.change_defaults(|defaults, devices| set_memory(defaults, devices, device, size));
    if answer.exit != 0 {
        return answer;
    }
    answer.with_log(format!(
        "set_default_device_pinned_mem_limit {}.",
        arguments.words.join(" ")
    ))
}

pub(super) fn get_default_device_pinned_mem_limit(
    daemon: &mut Daemon,
    _: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    show_memory(daemon.defaults(), daemon.devices(), arguments.word(0))
}

pub(super) fn set_device_pinned_mem_limit(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    with_settings_of(daemon, caller, arguments.word(0), |server| {
        let (device, size) = (arguments.word(1), arguments.word(2));
        set_memory(&mut server.settings, &server.devices, device, size)
    })
}

pub(super) fn get_device_pinned_mem_limit(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    with_server(daemon, caller, arguments.word(0), |server| {
        show_memory(&server.settings, &server.devices, arguments.word(1))
    })
}

pub(super) fn set_default_client_priority(
    daemon: &mut Daemon,
    _: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    match arguments.word(0).map(limits::priority) {
        Some(Ok(priority)) => {
            daemon.set_default_priority(priority);
            Answer::nothing()
        }
        _ => Answer::refusal("Invalid priority value - must be 0 or 1!"),
    }
}

pub(super) fn get_default_client_priority(
    daemon: &mut Daemon,
    _: Caller,
    _: &Arguments<'_>,
) -> Answer {
    let priority = daemon.default_priority();
    Answer::line(priority).with_value(json!({ "priority": priority }))
}

pub(super) fn set_default_kernel_time_limit(
    daemon: &mut Daemon,
    _: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    match kernel_time(arguments.word(0).unwrap_or("")) {
        Ok(limit) => {
            daemon.change_defaults(|defaults, _| defaults.kernel_time = limit);
            show_kernel_time(limit)
        }
        Err(error) => Answer::refusal(error),
    }
}

pub(super) fn get_default_kernel_time_limit(
    daemon: &mut Daemon,
    _: Caller,
    _: &Arguments<'_>,
) -> Answer {
    show_kernel_time(daemon.defaults().kernel_time)
}

fn show_kernel_time(limit: Option<Duration>) -> Answer {
    let text = limit.map_or_else(|| "none".to_owned(), limits::kernel_time_text);
    Answer::line(text).with_value(json!({ "kernel_time": kernel_millis(limit) }))
}
