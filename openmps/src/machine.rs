//! This machine's devices and who is on them, for the subcommands that show them to people and to
//! other programs.
//!
//! A daemon is asked, since it knows what programs get. Where none runs, the engine that a server would
//! have is looked at: a question shall start no server.
//!
//! Called by the subcommands that show devices and clients. Must not know how an engine finds them.

mod modes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use control::Directories;
use daemon_interface::view::{self, ViewError};
use platform::gpus::{ComputeMode, Gpu, PciAddress, Process};
use platform::smi;
use protocol::control_messages::{ListedDevice, View, ViewRequest, ViewedDevice};
use serde_json::Value;

use crate::engines;
use crate::usage::{self, Usage};

/// This machine, as what takes nvidia-smi's place asks it.
#[derive(Debug, Default)]
pub struct Machine {
    /// What the daemon showed when processes were last sampled.
    sampled: Option<View>,
}

/// The time for which processes are looked at that were not sampled before.
const SAMPLE: Duration = Duration::from_millis(250);

impl smi::Machine for Machine {
    fn gpus(&mut self) -> Result<Vec<Gpu>, smi::MachineError> {
        gpus().map_err(|error| format!("{error:#}").into())
    }

    fn processes(&mut self) -> Vec<Process> {
        let view = Daemon::of_environment().view(PATIENCE);
        processes(&view.ok().flatten().unwrap_or_default(), None)
    }

    fn sampled_processes(&mut self) -> Vec<Process> {
        let look = || Daemon::of_environment().view(PATIENCE).ok().flatten();
        let Some(earlier) = self.sampled.take().or_else(|| {
            let first = look();
            std::thread::sleep(SAMPLE);
            first
        }) else {
            return Vec::new();
        };
        let now = look().unwrap_or_default();
        let list = processes(&now, Some(&usage::between(Some(&earlier), &now)));
        self.sampled = Some(now);
        list
    }

    fn set_mode(&mut self, gpu: &Gpu, mode: ComputeMode) -> Result<(), smi::MachineError> {
        set_mode(gpu, mode).map_err(|error| format!("{error:#}").into())
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
    Daemon::at(pipe).gpus()
}

/// Whether a device is a program.
pub fn is_software(gpu: &Gpu) -> bool {
    modes::is_software(gpu)
}

/// What the daemon shows of devices and clients.
///
/// # Errors
/// When there is no daemon, or it does not answer in time.
pub fn view(within: Duration) -> Result<View> {
    shown_by(&Daemon::of_environment(), within)
}

/// What the daemon with this pipe directory shows.
///
/// # Errors
/// As [`view()`].
pub fn view_of(pipe: &Path, within: Duration) -> Result<View> {
    shown_by(&Daemon::at(pipe), within)
}

fn shown_by(daemon: &Daemon, within: Duration) -> Result<View> {
    daemon.view(within)?.with_context(|| {
        format!(
            "{}: `openmps control -d` starts one; CUDA_MPS_PIPE_DIRECTORY says which is meant",
            control::NO_DAEMON
        )
    })
}

/// Whether there is a daemon, be it one that does not answer.
pub fn has_daemon(within: Duration) -> bool {
    !matches!(Daemon::of_environment().view(within), Ok(None))
}

/// The same of the daemon with this pipe directory.
pub fn has_daemon_at(pipe: &Path, within: Duration) -> bool {
    !matches!(Daemon::at(pipe).view(within), Ok(None))
}

/// Sets who may have a context on a device.
pub fn set_mode(gpu: &Gpu, mode: ComputeMode) -> Result<()> {
    modes::set(gpu, mode)
}

/// What the daemon shows: everything, as its operator asks.
const ALL: &str = "machine";
/// Or what a client is shown.
const CLIENT: &str = "client";

/// Says which of the two `nvidia-smi` asks for; `openmps run` sets it for what it runs.
pub const VIEW_VARIABLE: &str = "OPENMPS_VIEW";

/// What it is set to there.
pub const CLIENT_VIEW: (&str, &str) = (VIEW_VARIABLE, CLIENT);

/// How long a daemon may take: it may have to look at the devices first.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Devices in their order.
fn numbered(devices: impl IntoIterator<Item = ListedDevice>) -> Vec<Gpu> {
    let gpu = |(index, device): (u32, ListedDevice)| {
        let [domain, bus, number] = device.pci;
        Gpu {
            index,
            pci: PciAddress {
                domain,
                bus,
                device: number,
            },
            uuid: device.uuid,
            name: device.name,
            memory: device.total_memory,
            ..Gpu::default()
        }
    };
    (0..).zip(devices).map(gpu).collect()
}

/// A daemon, which need not run, by its socket.
struct Daemon(Option<PathBuf>);

impl Daemon {
    fn of_environment() -> Self {
        let directories = Directories::from_environment().ok();
        Self(directories.map(|directories| directories.control_socket()))
    }

    fn at(pipe: &Path) -> Self {
        Self(Some(pipe.join("control")))
    }

    /// What it shows; `None` where there is none.
    fn view(&self, within: Duration) -> Result<Option<View>> {
        let Some(socket) = &self.0 else {
            return Ok(None);
        };
        let variable =
            |name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
        let all = match variable(VIEW_VARIABLE).as_deref() {
            None | Some("" | ALL) => true,
            Some(CLIENT) => false,
            Some(other) => bail!("{VIEW_VARIABLE}={other}: it is {CLIENT} or {ALL}"),
        };
        let request = ViewRequest {
            all,
            memory_limit: variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        };
        match view::request_view(socket, request, within) {
            Ok(view) => Ok(Some(view)),
            Err(ViewError::Socket(error)) if error.is_nobody_listening() => Ok(None),
            Err(error) => Err(error).context("cannot ask the daemon"),
        }
    }

    fn gpus(&self) -> Result<Vec<Gpu>> {
        let mut gpus = match self.view(PATIENCE)? {
            Some(view) => gpus_in(view.devices),
            None => of_engine()?,
        };
        for gpu in &mut gpus {
            gpu.mode = modes::get(gpu);
        }
        Ok(gpus)
    }
}

/// The servers and clients of a view, with what each has had if that was looked at.
fn processes(view: &View, usage: Option<&Usage>) -> Vec<Process> {
    let of_client = |device: u32, session: u64| {
        let device = usage?.devices.get(device as usize)?;
        let client = device
            .clients
            .iter()
            .find(|client| client.session == session)?;
        Some(client.rates.multiprocessors)
    };
    view.processes
        .iter()
        .map(|process| Process {
            gpu: process.device,
            pid: process.pid,
            name: process.name.clone(),
            label: process.label.clone(),
            client: !process.is_server,
            memory: process.used,
            multiprocessors: of_client(process.device, process.session),
        })
        .collect()
}

/// The devices of a view, with what may be had of each and what is taken.
fn gpus_in(viewed: Vec<ViewedDevice>) -> Vec<Gpu> {
    let budgets: Vec<(u64, u64)> = viewed
        .iter()
        .map(|viewed| (viewed.total, viewed.used))
        .collect();
    let gpus = numbered(viewed.into_iter().map(|viewed| viewed.device));
    let both = gpus.into_iter().zip(budgets);
    both.map(|(gpu, (memory, used))| Gpu {
        memory,
        used: Some(used),
        ..gpu
    })
    .collect()
}

/// The devices in the daemon's answer to `device_query --json`.
#[cfg(feature = "kubernetes")]
pub fn listed(text: &str) -> Option<Vec<Gpu>> {
    let blocks: Vec<Value> = serde_json::from_str(text).ok()?;
    let devices = blocks.first()?["devices"].as_array()?;
    let devices: Option<Vec<_>> = devices.iter().map(control::device_from_json).collect();
    Some(numbered(devices?))
}

fn of_engine() -> Result<Vec<Gpu>> {
    // The driver reads its settings when it starts, so that another process must look.
    let looked = engines::server_program(Path::new(control::OWN_PROGRAM), None)
        .arg("devices")
        .output();
    let looked = looked.context("cannot start this program again, to look at the devices")?;
    if !looked.status.success() {
        let why = String::from_utf8_lossy(&looked.stderr);
        let why = why.trim_end().trim_start_matches("openmps: ");
        bail!("cannot look at the devices: {why}");
    }
    let devices: Vec<Value> = serde_json::from_slice(&looked.stdout).unwrap_or_default();
    let devices: Option<Vec<_>> = devices.iter().map(control::device_from_json).collect();
    let devices = devices
        .context("cannot look at the devices: this program has told of them in an unknown form")?;
    Ok(numbered(devices))
}

/// Prints the devices that a server would have: what is asked of this program in a process of its own.
pub fn print_devices() -> Result<ExitCode> {
    let devices = engines::devices()?;
    let listed = devices.iter().map(server::listed).enumerate();
    let listed: Vec<Value> = listed
        .map(|(ordinal, device)| control::device_json(ordinal, &device))
        .collect();
    println!("{}", Value::from(listed));
    Ok(ExitCode::SUCCESS)
}
