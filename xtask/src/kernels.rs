//! `cargo xtask kernels`: twenty classic kernels on the software GPU, by PoCL and in plain Rust, in one table.
//!
//! nvcc makes PTX of `benches/kernels/kernels.h`, cargo builds what is released, and `kernel_peers` runs under it.
//!
//! Called by `main`. Must not know the kernels: those and their comparison are `benches/kernels`.

use std::fs;
use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, root, run};
use crate::toolkit::Toolkit;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only kernels whose name contains this
    #[arg(long, default_value = "")]
    filter: String,
    /// Runs of each kernel, of which the median counts
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

/// The command.
pub fn kernels(arguments: &Arguments) -> Result<()> {
    let toolkit = Toolkit::install()?;
    let folder = root().join("target/kernels");
    fs::create_dir_all(&folder)?;
    let image = folder.join("kernels.ptx");
    run(Command::new(toolkit.nvcc())
        .args(["-ptx", "-arch=compute_80", "-x", "cu", "-o"])
        .arg(&image)
        .arg(root().join("benches/kernels/kernels.h")))?;
    run(cargo().args(["build", "--release", "--package", "openmps"]))?;
    run(cargo().args([
        "build",
        "--release",
        "--package",
        "benches",
        "--bin",
        "kernel_peers",
    ]))?;
    let released = root().join("target/release");
    run(Command::new(released.join("openmps"))
        .args(["run", "--"])
        .arg(released.join("kernel_peers"))
        .arg(&image)
        .args(["--filter", &arguments.filter])
        .args(["--rounds", &arguments.rounds.to_string()]))
}
