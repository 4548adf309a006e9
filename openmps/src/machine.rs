//! This machine's devices and who is on them, for the subcommands that show them to people and to
//! other programs.
//!
//! A daemon with servers is asked, since it knows what programs get. Where none runs, or no server,
//! the engine that a server would have is looked at: a question shall start no server.

mod modes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use control::Directories;
use platform::gpus::{ComputeMode, Gpu, PciAddress, Process};
use platform::smi;
use serde::{Deserialize, Serialize};

use crate::engines;

/// This machine, as what takes nvidia-smi's place asks it.
#[derive(Debug, Default)]
pub struct Machine;

impl smi::Machine for Machine {
    fn gpus(&mut self) -> Result<Vec<Gpu>, String> {
        gpus().map_err(|error| format!("{error:#}"))
    }

    fn processes(&mut self) -> Vec<Process> {
        Daemon::of_environment().processes().unwrap_or_default()
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
    Daemon::of_environment().gpus()
}

/// The same, where a daemon with this pipe directory is the one that knows them.
pub fn gpus_of(pipe: &Path) -> Result<Vec<Gpu>> {
    Daemon(Some(pipe.join("control"))).gpus()
}

/// Whether a device is a program.
pub fn is_software(gpu: &Gpu) -> bool {
    modes::is_software(gpu)
}

/// Sets who may have a context on a device.
pub fn set_mode(gpu: &Gpu, mode: ComputeMode) -> Result<()> {
    modes::set(gpu, mode)
}

/// A device in the daemon's words.
#[derive(Debug, Deserialize, Serialize)]
struct Listed {
    ordinal: u32,
    pci: String,
    uuid: String,
    name: String,
    memory: u64,
}

impl From<Listed> for Gpu {
    fn from(device: Listed) -> Self {
        Self {
            index: device.ordinal,
            pci: device.pci.parse().unwrap_or_default(),
            uuid: device.uuid,
            name: device.name,
            memory: device.memory,
            ..Self::default()
        }
    }
}

#[derive(Debug, Deserialize)]
struct Block {
    devices: Vec<Listed>,
}

/// A client in the daemon's words; once for each device.
#[derive(Debug, Deserialize)]
struct ListedClient {
    pid: i32,
    id: u64,
    server: i32,
    device: String,
    command: String,
}

/// What a client has of a device.
#[derive(Debug, Deserialize)]
struct Memory {
    device: String,
    used: u64,
}

#[derive(Debug, Deserialize)]
struct Limits {
    memory: Vec<Memory>,
}

/// A daemon, which need not run, by its socket.
struct Daemon(Option<PathBuf>);

impl Daemon {
    fn of_environment() -> Self {
        let directories = Directories::from_environment().ok();
        Self(directories.map(|directories| directories.control_socket()))
    }

    fn ask(&self, command: &str) -> Option<String> {
        match control::ask(self.0.as_deref()?, command) {
            Ok((text, 0)) => Some(text),
            _ => None,
        }
    }

    fn servers(&self) -> Option<Vec<i32>> {
        let list = self.ask("get_server_list")?;
        Some(list.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn gpus(&self) -> Result<Vec<Gpu>> {
        let mut gpus = match self.listed() {
            Some(gpus) if !gpus.is_empty() => gpus,
            _ => of_engine()?,
        };
        let clients = self.clients(&gpus);
        for gpu in &mut gpus {
            gpu.mode = modes::get(gpu);
            // Of those whom this user may see; where any is not told, the sum is not either.
            gpu.used = clients.as_ref().and_then(|clients| {
                let theirs = clients.iter().filter(|client| client.gpu == gpu.index);
                theirs.map(|client| client.memory).sum()
            });
        }
        Ok(gpus)
    }

    fn listed(&self) -> Option<Vec<Gpu>> {
        if self.servers()?.is_empty() {
            return None;
        }
        listed(&self.ask("device_query --json")?)
    }

    /// Servers and their clients.
    fn processes(&self) -> Option<Vec<Process>> {
        let gpus = self.listed()?;
        let mut list = self.clients(&gpus)?;
        for pid in self.servers()? {
            list.extend(gpus.iter().map(|gpu| Process {
                gpu: gpu.index,
                pid,
                name: "nvidia-cuda-mps-server".into(),
                client: false,
                memory: None,
            }));
        }
        list.sort_by_key(|process| (process.gpu, process.client));
        Some(list)
    }

    /// The clients of the daemon, once for each device, if there is a daemon.
    fn clients(&self, gpus: &[Gpu]) -> Option<Vec<Process>> {
        // Without a server there is nobody, and `ps` says so in words.
        if self.servers()?.is_empty() {
            return Some(Vec::new());
        }
        let listed: Vec<ListedClient> = serde_json::from_str(&self.ask("ps --json")?).ok()?;
        let clients = listed.into_iter().filter_map(|client| {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == client.device)?;
            Some(Process {
                gpu: gpu.index,
                pid: client.pid,
                memory: self.memory(&client, gpu),
                name: client.command,
                client: true,
            })
        });
        Some(clients.collect())
    }

    /// Bytes of a device that a client has. Its server says it; a client that has left meanwhile has none.
    fn memory(&self, client: &ListedClient, gpu: &Gpu) -> Option<u64> {
        let show = format!("limit show --client {}/{} --json", client.server, client.id);
        let limits: Limits = serde_json::from_str(&self.ask(&show)?).ok()?;
        let index = gpu.index.to_string();
        let on_it = limits.memory.iter().find(|memory| memory.device == index)?;
        Some(on_it.used)
    }
}

/// The devices in the daemon's answer to `device_query --json`.
pub fn listed(text: &str) -> Option<Vec<Gpu>> {
    let blocks: Vec<Block> = serde_json::from_str(text).ok()?;
    let devices = blocks.into_iter().next()?.devices;
    Some(devices.into_iter().map(Gpu::from).collect())
}

fn of_engine() -> Result<Vec<Gpu>> {
    // The driver reads its settings when it starts, so that another process must look.
    let looked = engines::server_program().arg("devices").output();
    let looked = looked.context("cannot start this program again, to look at the devices")?;
    if !looked.status.success() {
        let why = String::from_utf8_lossy(&looked.stderr);
        let why = why.trim_end().trim_start_matches("openmps: ");
        bail!("cannot look at the devices: {why}");
    }
    let devices: Vec<Listed> = serde_json::from_slice(&looked.stdout)
        .context("cannot look at the devices: this program has told of them in an unknown form")?;
    Ok(devices.into_iter().map(Gpu::from).collect())
}

/// Prints the devices that a server would have: what is asked of this program in a process of its own.
pub fn print_devices() -> Result<ExitCode> {
    let devices = engines::devices()?;
    let listed = (0..).zip(devices.iter().map(server::listed));
    let listed: Vec<Listed> = listed
        .map(|(ordinal, device)| {
            let [domain, bus, number] = device.pci;
            let pci = PciAddress {
                domain,
                bus,
                device: number,
            };
            Listed {
                ordinal,
                pci: pci.to_string(),
                uuid: device.uuid,
                name: device.name,
                memory: device.total_memory,
            }
        })
        .collect();
    println!("{}", serde_json::to_string(&listed)?);
    Ok(ExitCode::SUCCESS)
}
