//! `openmps cloudpods`: a Cloudpods host's MPS, from Cloudpods' own files.
//!
//! Called by `main`. Must not know the files' form: `platform::cloudpods` does.

mod daemon;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use platform::cloudpods::{
    HOST_CONF, HostConf, Plan, Shape, VirtualDevice, container, table, virtual_devices,
};

use crate::{embedded, engines, machine};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The host's configuration
    #[arg(long, global = true, value_name = "FILE", default_value = HOST_CONF)]
    host_conf: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Serves this host until it is told to end: modes, daemon, limits. In place of yunion-mps-daemon
    Run {
        /// Seconds that clients have to finish when it ends
        #[arg(long, default_value_t = 10)]
        grace: u32,
    },
    /// Reads the files and says what would be done
    Check,
    /// Prints the virtual devices as climc does
    #[command(visible_alias = "devices")]
    IsolatedDeviceList {
        /// Whose columns: `rows` of release 4.0.3, `shared` of those since July 2026
        #[arg(long, default_value = "rows")]
        shape: ShapeName,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Prints what a container with some virtual devices is given, as JSON
    Container {
        /// Their addresses, such as 00:06.0-1
        #[arg(required = true)]
        address: Vec<String>,
        /// The folder on the host with the client library; it is put there
        #[arg(long, value_name = "DIR", default_value = embedded::CONTAINER_LIBRARY_FOLDER)]
        library_directory: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ShapeName {
    Rows,
    Shared,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let conf = HostConf::read(&arguments.host_conf)?;
    match &arguments.command {
        Command::Run { grace } => daemon::run(&conf, *grace),
        Command::Check => check(&conf),
        Command::IsolatedDeviceList { shape, json } => {
            let shape = match shape {
                ShapeName::Rows => Shape::Rows,
                ShapeName::Shared => Shape::Shared,
            };
            let devices = devices(&conf, shape)?;
            match json {
                true => println!("{}", serde_json::to_string_pretty(&devices)?),
                false => print!("{}", table(&devices)),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Container {
            address,
            library_directory,
        } => {
            let library = std::path::absolute(library_directory)?;
            // Both forms of address: a container has one part, whichever of a device's it is.
            let mut all = devices(&conf, Shape::Rows)?;
            all.extend(devices(&conf, Shape::Shared)?);
            let given =
                container(&all, address, &conf.pipe, &library).map_err(anyhow::Error::msg)?;
            embedded::client_library_for_all(&library)?;
            println!("{}", serde_json::to_string_pretty(&given)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What the files ask for on this machine.
fn plan(conf: &HostConf) -> Result<Plan> {
    let entries = conf.entries()?;
    let gpus = machine::gpus_of(&conf.pipe).map_err(|error| conf.no_gpu(&format!("{error:#}")))?;
    // A host's GPUs are real ones, unless somebody wants otherwise.
    if gpus.iter().any(machine::is_software) && !engines::is_named() {
        return Err(conf.no_gpu("there is no NVIDIA driver").into());
    }
    Ok(Plan::new(conf, &entries, &gpus, Path::new("/"))?)
}

fn devices(conf: &HostConf, shape: Shape) -> Result<Vec<VirtualDevice>> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plan = plan(conf)?;
    let root = Path::new("/");
    Ok(virtual_devices(&plan.shared, shape, host.trim(), root))
}

fn check(conf: &HostConf) -> Result<ExitCode> {
    let path = conf.path.display();
    if !conf.enabled {
        conf.entries()?;
        println!(
            "{path}:{}: enable_cuda_mps is not true: nothing is done",
            conf.enabled_line
        );
        return Ok(ExitCode::SUCCESS);
    }
    let plan = plan(conf)?;
    println!(
        "{path}: pipe directory {}, log directory {}",
        conf.pipe.display(),
        conf.log.display()
    );
    for one in &plan.shared {
        println!(
            "GPU {} ({}, {}): {} parts of {} MiB and {} % of the threads, now {}",
            one.gpu.index,
            one.gpu.pci,
            one.gpu.name,
            one.parts,
            one.slice.mib,
            one.slice.percentage,
            one.gpu.mode
        );
    }
    for command in plan.commands() {
        println!("-> {command}");
    }
    Ok(ExitCode::SUCCESS)
}
