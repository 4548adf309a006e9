//! `openmps kubernetes plugin`: the plugin of `platform`, with this node's daemon behind it.
//!
//! Called by `kubernetes`. Must not know the kubelet's protocol.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use control::Directories;
use platform::gpus::Gpu;
use platform::kubernetes::allocations::{BoxError, Groups, Limits};
use platform::kubernetes::events::ClientFault;
use platform::kubernetes::extender::Api;
use platform::kubernetes::memory_unit::MemoryUnit;
use platform::kubernetes::plugin::{self, Node, Settings, Strategy};
use platform::kubernetes::resources::{Mode, Placement};
use platform::kubernetes::sharing::Sharing;
use serde::Deserialize;

use crate::embedded::{self, CONTAINER_LIBRARY_FOLDER};
use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Whose resources are offered
    #[arg(long, value_enum, env = "OPENMPS_KUBERNETES_MODE")]
    mode: Word,
    /// In what memory is counted: GiB or MiB
    #[arg(long, value_name = "UNIT", default_value = "GiB")]
    memory_unit: MemoryUnit,
    /// With --mode=nvidia: the device plugin's file, with `sharing.mps`; in place of CONFIG_FILE
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// On which GPU of several a container's share is put
    #[arg(long, value_enum, default_value = "binpack")]
    placement: PodPlacement,
    /// Answer with CDI devices instead of variables and mounts, and write them down here; for kubelets
    /// from 1.28 on
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "/var/run/cdi")]
    cdi: Option<PathBuf>,
    /// The kubelet's folder for the sockets of plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    sockets: PathBuf,
    /// The kubelet's socket that says which pod has what
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pod_resources: PathBuf,
    /// Where allocations are written down, for the plugin that comes after this one
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/openmps/allocations.json"
    )]
    state: PathBuf,
    /// The folder on the host in which containers find the client library; it is put there
    #[arg(long, value_name = "DIR", default_value = CONTAINER_LIBRARY_FOLDER)]
    library_directory: PathBuf,
    /// With --mode=aliyun and gpushare's scheduler extender: the socket of a `kubectl proxy` that may read
    /// and patch pods and this node's status
    #[arg(long, value_name = "SOCKET", requires = "node")]
    extender_api: Option<PathBuf>,
    /// This node's name
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: Option<String>,
    /// Seconds between looks at the daemon's health
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    probe_interval: u64,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Word {
    /// aliyun.com/gpu-mem, as gpushare and ACK
    Aliyun,
    /// nvidia.com/gpu in replicas, as NVIDIA's plugin with sharing.mps
    Nvidia,
    /// openmps.org/gpu-memory and openmps.org/gpu-share
    Openmps,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PodPlacement {
    /// On the fullest that has room
    Binpack,
    /// On the emptiest
    Spread,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let directories = Directories::from_environment().map_err(anyhow::Error::msg)?;
    let unit = arguments.memory_unit;
    // As with NVIDIA's plugin, an empty variable names no file.
    let variable = || std::env::var_os("CONFIG_FILE").filter(|file| !file.is_empty());
    let config = arguments.config.clone();
    let config = config.or_else(|| variable().map(PathBuf::from));
    let mode = match (arguments.mode, &config) {
        (Word::Nvidia, Some(file)) => Mode::Nvidia(Sharing::read(file)?),
        (Word::Nvidia, None) => bail!(
            "--mode=nvidia needs --config: the device plugin's file, with `sharing.mps.resources`"
        ),
        (_, Some(_)) => bail!("--config is for --mode=nvidia"),
        (Word::Aliyun, None) => Mode::Aliyun { unit },
        (Word::Openmps, None) => Mode::Openmps { unit },
    };
    let extender = match (&arguments.extender_api, &arguments.node) {
        (Some(_), _) if !matches!(mode, Mode::Aliyun { .. }) => {
            bail!("--extender-api is for --mode=aliyun")
        }
        (Some(socket), Some(node)) => Some(Api {
            socket: socket.clone(),
            node: node.clone(),
        }),
        _ => None,
    };
    let library = std::path::absolute(&arguments.library_directory)?;
    embedded::client_library_for_all(&library)?;
    let settings = Settings {
        mode,
        placement: match arguments.placement {
            PodPlacement::Binpack => Placement::Binpack,
            PodPlacement::Spread => Placement::Spread,
        },
        strategy: arguments
            .cdi
            .clone()
            .map_or(Strategy::Mounts, Strategy::Cdi),
        sockets: arguments.sockets.clone(),
        pod_resources: arguments.pod_resources.clone(),
        state: arguments.state.clone(),
        library,
        probe_interval: Duration::from_secs(arguments.probe_interval),
        extender,
        say: |text| eprintln!("openmps: {text}"),
    };
    let (stopper, stop) = plugin::stop();
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGQUIT,
    ])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.forever().next().is_some() {
                stopper.stop();
            }
        })
        .context("cannot wait for signals")?;
    plugin::run(settings, Daemon(directories), stop)?;
    Ok(ExitCode::SUCCESS)
}

/// This node's daemon.
#[derive(Clone, Debug)]
struct Daemon(Directories);

impl Daemon {
    fn ask(&self, command: &str) -> Result<String> {
        match control::ask(&self.0.control_socket(), command) {
            Ok((text, 0)) => Ok(text),
            Ok((text, _)) => bail!("{}", text.trim_end()),
            Err(error) => bail!("{}: {error}", self.0.pipe.display()),
        }
    }
}

/// Limits as commands take them.
fn options(limits: &Limits) -> String {
    let memory = limits.memory.iter();
    let memory: Vec<String> = memory.map(|(gpu, size)| format!("{gpu}={size}")).collect();
    let mut text = format!("--memory {}", memory.join(","));
    if let Some(percentage) = limits.percentage {
        text.push_str(&format!(" --percentage {percentage}"));
    }
    text
}

impl Groups for Daemon {
    fn add(&mut self, name: &str, limits: &Limits) -> Result<PathBuf, BoxError> {
        let path = self.ask(&format!("group add {name} {}", options(limits)))?;
        Ok(PathBuf::from(path.trim_end()))
    }

    fn change(&mut self, name: &str, limits: &Limits) -> Result<(), BoxError> {
        let command = format!("limit set --group {name} {}", options(limits));
        Ok(self.ask(&command).map(drop)?)
    }

    fn remove(&mut self, name: &str) -> Result<(), BoxError> {
        Ok(self.ask(&format!("group remove {name}")).map(drop)?)
    }

    fn names(&mut self) -> Result<BTreeSet<String>, BoxError> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let text = self.ask("group list --json")?;
        let all: Vec<Named> = serde_json::from_str(&text)?;
        Ok(all.into_iter().map(|group| group.name).collect())
    }
}

impl Node for Daemon {
    fn gpus(&mut self) -> Result<Vec<Gpu>, BoxError> {
        let pipe = self.0.pipe.display();
        match control::ask(&self.0.control_socket(), "device_query --json") {
            // Which server it was matters to nobody, and would be another one each time.
            Ok((_, 1..)) => Err(format!(
                "{pipe}: its server does not start, and server.log beside it says why\n  -> if this node \
                 has no GPU, take the label by which the DaemonSets select it, or set OPENMPS_ENGINE=soft \
                 on the daemon; else give the daemon the GPU and its driver (openmps doctor)"
            )
            .into()),
            Ok((text, _)) => machine::listed(&text)
                .ok_or_else(|| format!("{pipe}: no server has said yet which devices there are").into()),
            Err(error) => Err(format!(
                "{pipe}: {error}\n  -> start it with this CUDA_MPS_PIPE_DIRECTORY (openmps control -d), or \
                 look why the DaemonSet's pod on this node does not run"
            )
            .into()),
        }
    }

    fn probe(&mut self) -> Result<(), BoxError> {
        // Every few seconds: it leaves no line in the daemon's log.
        match control::ask(&self.0.control_socket(), "ping") {
            // An older daemon does not know the word, and runs.
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{}: {error}", self.0.pipe.display()).into()),
        }
    }

    fn faults(&mut self) -> Result<Vec<ClientFault>, BoxError> {
        Ok(serde_json::from_str(&self.ask("faults --json")?)?)
    }
}
