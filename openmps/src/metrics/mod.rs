//! `openmps metrics`: what is known of devices and clients, for Prometheus.
//!
//! A process beside the daemon, as NVIDIA's exporter is one beside the driver: the daemon opens no port, and who floods the
//! exporter floods the exporter.
//!
//! Called by `main`. Must not know a metric's name: `text` has them.

mod serve;
mod text;

use std::process::ExitCode;

use anyhow::Result;

use crate::http::Address;
use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Serve them at /metrics of this address until interrupted, instead of printing them once: 127.0.0.1:9400 or
    /// unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    listen: Option<Address>,
    /// What the label Hostname says, instead of this machine's name
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    hostname: Option<String>,
    /// Print OpenMetrics instead of Prometheus' older format
    #[arg(long, conflicts_with = "listen")]
    openmetrics: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let hostname = arguments.hostname.clone().unwrap_or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim_end().to_owned()
    });
    match &arguments.listen {
        Some(address) => serve::serve(address, hostname),
        None => {
            let format = match arguments.openmetrics {
                true => text::Format::OpenMetrics,
                false => text::Format::Prometheus,
            };
            print!(
                "{}",
                text::page(None, &machine::view(machine::PATIENCE)?, &hostname, format)
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}
