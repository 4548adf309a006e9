//! The specification that `openmps cdi generate` writes, in the eyes of the CDI project's own tools.
//!
//! Called by `platforms`; tests of engines take its registered specification. Must not know who mounts what it
//! lists.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Folder, is_root, openmps, output, said, skip};
use crate::fetch::Crate;

/// The CDI project's tools. Not optimised, which would take many times as long.
const TOOLS: Crate = Crate {
    name: "container-device-interface",
    version: "1.1.1",
    is_debug: true,
};

/// Where engines look for generated specifications.
pub(super) const REGISTRY: &str = "/var/run/cdi";

/// A specification in the machine's registry, gone when it is dropped.
#[derive(Debug)]
pub(super) struct Registered;

impl Registered {
    const FILE: &'static str = "/var/run/cdi/openmps-test.json";

    pub(super) fn generate(pipe: &Path, library: &Path, replicas: u32) -> Result<Self> {
        let theirs = Path::new(REGISTRY).join("openmps.json");
        if theirs.exists() {
            return skip(format!(
                "{} is there: this machine offers its own devices",
                theirs.display()
            ));
        }
        let registered = Self;
        let text = said(
            Command::new(openmps())
                .args(["cdi", "generate", "--output", Self::FILE])
                .args(["--replicas", &replicas.to_string(), "--library-directory"])
                .arg(library)
                .env("CUDA_MPS_PIPE_DIRECTORY", pipe),
        )?;
        ensure!(text.contains("openmps.org/gpu=all"), "{text}");
        Ok(registered)
    }

    /// The names of devices in it.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let value: Value = serde_json::from_str(&fs::read_to_string(Self::FILE)?)?;
        let devices = value["devices"].as_array().context("a list of devices")?;
        let name = |device: &Value| device["name"].as_str().map(str::to_owned);
        Ok(devices.iter().filter_map(name).collect())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        fs::remove_file(Self::FILE).ok();
    }
}

/// How long this takes on two cores.
pub(super) fn usual() -> Duration {
    Duration::from_secs(if TOOLS.is_there() { 5 } else { 150 })
}

fn tool(name: &str) -> Result<Command> {
    match TOOLS.install() {
        Ok(programs) => Ok(Command::new(programs.join(name))),
        Err(error) => skip(format!(
            "the CDI project's tools cannot be built here: {error:#}"
        )),
    }
}

pub(super) fn oracle() -> Result<()> {
    let folder = Folder::new("cdi")?;
    let (file, library) = (
        folder.path().join("openmps.json"),
        folder.path().join("lib"),
    );
    said(
        Command::new(openmps())
            .args(["cdi", "generate", "--replicas", "3", "--output"])
            .arg(&file)
            .arg("--library-directory")
            .arg(&library),
    )?;
    ensure!(
        library.join("libcuda.so.1").exists() && library.join("libnvidia-ml.so.1").exists(),
        "the library is not there"
    );
    said(tool("validate")?.arg(&file))?;
    // The same tool refuses what is wrong: it is awake.
    let wrong = folder.path().join("wrong.json");
    fs::write(
        &wrong,
        fs::read_to_string(&file)?.replace("\"mounts\"", "\"mount\""),
    )?;
    ensure!(
        !output(tool("validate")?.arg(&wrong))?.status.success(),
        "a wrong one passes"
    );

    if !is_root() {
        return skip(format!(
            "valid; only root can write to {REGISTRY} to resolve its devices"
        ));
    }
    let registered = Registered::generate(Path::new("/tmp/nvidia-mps"), &library, 3)?;
    let listed = said(tool("cdi")?.arg("devices"))?;
    let spec = folder.path().join("config.json");
    fs::write(&spec, r#"{"ociVersion":"1.0.2","root":{"path":"r"}}"#)?;
    let names = registered.names()?;
    // Number, UUID, three parts, all.
    ensure!(names.len() == 6, "{names:?}");
    for name in names {
        let name = format!("openmps.org/gpu={name}");
        ensure!(listed.contains(&name), "{name} is not in\n{listed}");
        let given = said(tool("cdi")?.arg("inject").arg(&spec).arg(&name))?;
        for part in [
            "CUDA_MPS_PIPE_DIRECTORY=",
            "/usr/local/openmps/lib",
            "/tmp/nvidia-mps",
        ] {
            ensure!(given.contains(part), "{name}: no {part} in\n{given}");
        }
    }
    Ok(())
}
