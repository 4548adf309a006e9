//! This machine's devices and who is on them, for the subcommands that show them to people and to
//! other programs.
//!
//! A daemon with servers is asked, since it knows what programs get. Where none runs, or no server,
//! the engine that a server would have is looked at: a question shall start no server.

mod modes;

use anyhow::{Context, Result};
use control::Directories;
use platform::gpus::{ComputeMode, Gpu, PciAddress, Process};
use platform::smi;
use serde::Deserialize;

use crate::engines;

/// This machine, as what takes nvidia-smi's place asks it.
#[derive(Debug, Default)]
pub struct Machine;

impl smi::Machine for Machine {
    fn gpus(&mut self) -> Result<Vec<Gpu>, String> {
        gpus().map_err(|error| format!("{error:#}"))
    }

    fn processes(&mut self) -> Vec<Process> {
        processes().unwrap_or_default()
    }

    fn set_mode(&mut self, gpu: &Gpu, mode: ComputeMode) -> Result<(), String> {
        set_mode(gpu, mode).map_err(|error| format!("{error:#}"))
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn cuda_version(&self) -> &str {
        "13.0"
    }
}

/// The devices, with their compute modes.
pub fn gpus() -> Result<Vec<Gpu>> {
    let mut gpus = match of_daemon() {
        Some(gpus) if !gpus.is_empty() => gpus,
        _ => of_engine()?,
    };
    for gpu in &mut gpus {
        gpu.mode = modes::get(gpu);
    }
    Ok(gpus)
}

/// Sets who may have a context on a device.
pub fn set_mode(gpu: &Gpu, mode: ComputeMode) -> Result<()> {
    modes::set(gpu, mode)
}

/// A device in the daemon's words.
#[derive(Debug, Deserialize)]
struct Listed {
    ordinal: u32,
    pci: String,
    uuid: String,
    name: String,
    memory: u64,
}

#[derive(Debug, Deserialize)]
struct Block {
    devices: Vec<Listed>,
}

/// A client in the daemon's words; once for each device.
#[derive(Debug, Deserialize)]
struct ListedClient {
    pid: i32,
    device: String,
    command: String,
    #[serde(default)]
    memory: Option<u64>,
}

fn ask(command: &str) -> Option<String> {
    let directories = Directories::from_environment().ok()?;
    match control::ask(&directories.control_socket(), command) {
        Ok((text, 0)) => Some(text),
        _ => None,
    }
}

fn servers() -> Option<Vec<i32>> {
    let list = ask("get_server_list")?;
    Some(list.lines().filter_map(|line| line.parse().ok()).collect())
}

fn of_daemon() -> Option<Vec<Gpu>> {
    if servers()?.is_empty() {
        return None;
    }
    listed(&ask("device_query --json")?)
}

/// The devices in the daemon's answer to `device_query --json`.
pub fn listed(text: &str) -> Option<Vec<Gpu>> {
    let blocks: Vec<Block> = serde_json::from_str(text).ok()?;
    let devices = blocks.into_iter().next()?.devices;
    Some(
        devices
            .into_iter()
            .map(|device| Gpu {
                index: device.ordinal,
                pci: device.pci.parse().unwrap_or_default(),
                uuid: device.uuid,
                name: device.name,
                memory: device.memory,
                ..Gpu::default()
            })
            .collect(),
    )
}

fn of_engine() -> Result<Vec<Gpu>> {
    let (engine, _) = engines::from_environment().context("cannot look at the devices")?;
    let devices = (0..).zip(engine.devices().iter().map(server::listed));
    Ok(devices
        .map(|(index, device)| {
            let [domain, bus, number] = device.pci;
            Gpu {
                index,
                uuid: device.uuid,
                name: device.name,
                pci: PciAddress {
                    domain,
                    bus,
                    device: number,
                },
                memory: device.total_memory,
                ..Gpu::default()
            }
        })
        .collect())
}

/// Servers and their clients.
fn processes() -> Option<Vec<Process>> {
    let servers = servers()?;
    let gpus = of_daemon()?;
    let mut list = Vec::new();
    for gpu in &gpus {
        list.extend(servers.iter().map(|&pid| Process {
            gpu: gpu.index,
            pid,
            name: "nvidia-cuda-mps-server".into(),
            client: false,
            memory: None,
        }));
    }
    let clients: Vec<ListedClient> = serde_json::from_str(&ask("ps --json")?).ok()?;
    for client in clients {
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == client.device) {
            list.push(Process {
                gpu: gpu.index,
                pid: client.pid,
                name: client.command,
                client: true,
                memory: client.memory,
            });
        }
    }
    list.sort_by_key(|process| (process.gpu, process.client));
    Some(list)
}
