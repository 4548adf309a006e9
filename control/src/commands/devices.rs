//! Commands that show devices.
//!
//! Called by the table of commands; `openmps` reads devices back from the same JSON. Must not ask a driver: servers
//! said what they have.

use std::fmt::Write;

use protocol::control_messages::ListedDevice;
use serde_json::{Value, json};

use super::answer::{Answer, Caller};
use super::line::Arguments;
use super::lookup::server;
use crate::daemon::Daemon;
use crate::log::Role;
use crate::servers::registry::{ServerId, State};

/// The first three groups of a UUID, which is what lists of clients show.
pub(super) fn short(uuid: &str) -> &str {
    match uuid.match_indices('-').nth(3) {
        Some((end, _)) => &uuid[..end],
        None => uuid,
    }
}

/// A PCI address as everybody else writes it.
fn address(device: &ListedDevice) -> String {
    let [domain, bus, number] = device.pci;
    format!("{domain:04x}:{bus:02x}:{number:02x}.0")
}

/// A device as tools read it.
#[must_use]
pub fn device_json(ordinal: usize, device: &ListedDevice) -> Value {
    json!({
        "ordinal": ordinal,
        "pci": address(device),
        "uuid": device.uuid,
        "name": device.name,
        "memory": device.total_memory,
        "multiprocessors": device.multiprocessors,
        "capability": device.capability,
    })
}

/// A device of what [`device_json`] gave.
#[must_use]
pub fn device_from_json(value: &Value) -> Option<ListedDevice> {
    let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let text = |name: &str| Some(value[name].as_str()?.to_owned());
    let address = text("pci")?;
    let mut parts = address.trim_end_matches(".0").split(':');
    let mut part = || u32::from_str_radix(parts.next()?, 16).ok();
    Some(ListedDevice {
        uuid: text("uuid")?,
        name: text("name")?,
        pci: [part()?, part()?, part()?],
        total_memory: value["memory"].as_u64()?,
        multiprocessors: number(&value["multiprocessors"])?,
        capability: [
            number(&value["capability"][0])?,
            number(&value["capability"][1])?,
        ],
        ..ListedDevice::default()
    })
}

/// The one server that is asked about, if the caller names one.
fn only(
    daemon: &Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Result<Option<ServerId>, Answer> {
    let name = arguments.word(0);
    name.map(|_| server(daemon, caller, name)).transpose()
}

/// As NVIDIA's, but for the PCI address: its own prints 00:00.0 whatever the device.
pub(super) fn get_device_client_list(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let only = match only(daemon, caller, arguments) {
        Ok(only) => only,
        Err(refusal) => return refusal,
    };
    let mut text = String::new();
    let mut list = Vec::new();
    for (id, server) in &daemon.registry().servers {
        if only.is_some_and(|only| only != *id) || !daemon.may_see_server(caller, *id) {
            continue;
        }
        let clients = daemon.clients_seen_by(caller, *id);
        if clients.is_empty() {
            continue;
        }
        for (ordinal, device) in server.devices.iter().enumerate() {
            let [_, bus, number] = device.pci;
            let _ = writeln!(
                text,
                "[{ordinal}] {bus:02x}:{number:02x}.0, {}",
                device.name
            );
            for client in &clients {
                let _ = writeln!(text, "{}.1", client.pid);
            }
            let mut entry = device_json(ordinal, device);
            entry["server"] = json!(server.pid());
            entry["clients"] = clients.iter().map(|client| json!(client.pid)).collect();
            list.push(entry);
        }
    }
    Answer::text(text).with_value(Value::from(list))
}

/// Columns of 16, 15, 42 and 34 characters and one to the end.
const HEADER: &str = "Device Ordinal  PCI IDs        \
    UUID                                      Name                              Attributes";

fn table(text: &mut String, devices: &[ListedDevice]) {
    let _ = writeln!(text, "{HEADER}");
    for (ordinal, device) in devices.iter().enumerate() {
        let [domain, bus, number] = device.pci;
        let pci = format!("{domain:04x}:{bus:02x}.{number:02x}.00");
        let _ = writeln!(
            text,
            "{ordinal:<16}{pci:<15}{:<42}{:<34}N/A",
            device.uuid, device.name
        );
    }
}

/// A name within a line of comma-separated values.
fn quoted(name: &str) -> String {
    match name.contains([',', '"']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

/// Which devices there are is known from servers. Where none has run, one is started for the caller,
/// as its first program would.
pub(super) fn device_query(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let only = match only(daemon, caller, arguments) {
        Ok(only) => only,
        Err(refusal) => return refusal,
    };
    if let Some(first) = super::partitions::devices_first(daemon, caller) {
        return first;
    }
    let mut blocks: Vec<(Option<u32>, &[ListedDevice])> = Vec::new();
    if only.is_none() {
        blocks.push((None, daemon.devices()));
    }
    for (id, server) in &daemon.registry().servers {
        let is_asked_for = only.map_or(!server.key.is_standby(), |only| only == *id);
        let shown = is_asked_for && daemon.may_see_server(caller, *id);
        if shown && server.state != State::Initializing {
            blocks.push((Some(server.pid()), &server.devices));
            daemon.instance().server_log.line_of(
                Role::Server,
                server.pid(),
                &format!(
                    "Received device query command. There are {} devices",
                    server.devices.len()
                ),
            );
        }
    }
    let title =
        |pid: Option<u32>| pid.map_or_else(|| "Default".into(), |pid| format!("Server {pid}"));
    let mut text = String::new();
    if arguments.has("--csv") {
        text.push_str("Offered By,Device Ordinal,PCI IDs,UUID,Name,Attributes\n");
        for (pid, devices) in &blocks {
            for (ordinal, device) in devices.iter().enumerate() {
                let _ = writeln!(
                    text,
                    "{},{ordinal},{},{},{},N/A",
                    title(*pid),
                    address(device),
                    device.uuid,
                    quoted(&device.name)
                );
            }
        }
    } else {
        for (pid, devices) in &blocks {
            if !text.is_empty() {
                text.push('\n');
            }
            let _ = writeln!(text, "{}", title(*pid));
            table(&mut text, devices);
        }
    }
    let list: Vec<Value> = blocks
        .iter()
        .map(|(pid, devices)| {
            let devices: Vec<Value> = devices
                .iter()
                .enumerate()
                .map(|(ordinal, device)| device_json(ordinal, device))
                .collect();
            json!({ "server": pid, "devices": devices })
        })
        .collect();
    Answer::text(text).with_value(Value::from(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_shortened() {
        assert_eq!(
            short("GPU-42cb4199-3815-ad18-8602-5061126b1629"),
            "GPU-42cb4199-3815-ad18"
        );
        assert_eq!(short("odd"), "odd");
    }

    #[test]
    fn the_table_is_nvidias_to_the_byte() {
        let device = ListedDevice {
            uuid: "GPU-42cb4199-3815-ad18-8602-5061126b1629".into(),
            name: "NVIDIA H200".into(),
            pci: [0, 0, 6],
            ..ListedDevice::default()
        };
        let mut text = String::new();
        table(&mut text, &[device]);
        assert_eq!(
            text,
            "Device Ordinal  PCI IDs        UUID                                      Name                              Attributes\n\
             0               0000:00.06.00  GPU-42cb4199-3815-ad18-8602-5061126b1629  NVIDIA H200                       N/A\n"
        );
    }

    #[test]
    fn devices_come_back_from_their_json() {
        let device = ListedDevice {
            uuid: "GPU-42cb4199-3815-ad18-8602-5061126b1629".into(),
            name: "NVIDIA H200".into(),
            pci: [1, 0x9b, 0x10],
            total_memory: 141 << 30,
            multiprocessors: 132,
            capability: [9, 0],
            ..ListedDevice::default()
        };
        assert_eq!(device_from_json(&device_json(3, &device)), Some(device));
        assert_eq!(device_from_json(&json!({ "uuid": "GPU-1" })), None);
    }

    #[test]
    fn names_with_commas_are_quoted() {
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("NVIDIA H200"), "NVIDIA H200");
    }
}
