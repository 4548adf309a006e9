//! `openmps kubernetes`: the device plugin of a node, and who has how much of the cluster's GPUs.
//!
//! Called by `main`. Must not know the table's form or the kubelet: `platform::kubernetes` does.

#[cfg(feature = "kubernetes")]
mod plugin;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};

use anyhow::{Context, Result, bail};
use platform::kubernetes::memory_unit::MemoryUnit;
use platform::kubernetes::{inspect, pods};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Offers shares of this node's GPUs to its kubelet
    #[cfg(feature = "kubernetes")]
    Plugin(plugin::Arguments),
    /// Shows who has how much of aliyun.com/gpu-mem, as `kubectl inspect gpushare`
    Inspect(Inspect),
}

#[derive(Debug, clap::Args)]
struct Inspect {
    /// Only this node
    node: Option<String>,
    /// The pods of each node
    #[arg(short, long)]
    details: bool,
    /// What `kubectl get nodes,pods --all-namespaces --output json` printed, `-` for standard input;
    /// without it, kubectl is run
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// In what the nodes count memory: GiB or MiB; without it, what their numbers say
    #[arg(long, value_name = "UNIT")]
    memory_unit: Option<MemoryUnit>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        #[cfg(feature = "kubernetes")]
        Command::Plugin(arguments) => plugin::run(arguments),
        Command::Inspect(arguments) => inspected(arguments),
    }
}

fn inspected(arguments: &Inspect) -> Result<ExitCode> {
    let mut nodes = pods::nodes(&list(arguments.file.as_deref())?)?;
    if let Some(name) = &arguments.node {
        nodes.retain(|node| node.name == *name);
        if nodes.is_empty() {
            bail!("no node {name} offers aliyun.com/gpu-mem");
        }
    }
    let unit = arguments
        .memory_unit
        .unwrap_or_else(|| inspect::unit_of(&nodes));
    if arguments.details {
        print!("{}", inspect::details(&nodes, unit));
    } else {
        print!("{}", inspect::summary(&nodes, unit));
    }
    Ok(ExitCode::SUCCESS)
}

/// Nodes and pods, as the API writes them.
fn list(file: Option<&Path>) -> Result<String> {
    match file {
        Some(file) if file == Path::new("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            Ok(text)
        }
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        }
        None => {
            let output = Process::new("kubectl")
                .args(["get", "nodes,pods", "--all-namespaces", "--output", "json"])
                .output()
                .context("cannot run kubectl; --file takes what it prints elsewhere")?;
            if !output.status.success() {
                bail!(
                    "kubectl: {}",
                    String::from_utf8_lossy(&output.stderr).trim_end()
                );
            }
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    }
}
