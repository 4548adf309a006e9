//! `openmps cloudpods` with the documented files, and with broken ones.
//!
//! Called by `platforms`. No part of Cloudpods is here: its files are written, and what it would look at is looked
//! at.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{Folder, is_root, memory_program, number_before, openmps, output, said, skip, until};
use crate::shell::{end_within, send};

/// A host's files in a folder.
struct Host(Folder);

impl Host {
    fn new() -> Result<Self> {
        let host = Self(Folder::new("cp")?);
        host.write(
            "host.conf",
            &format!(
                "hostname: node1\nenable_cuda_mps: true\n\
                 cuda_mps_pipe_directory: {0}/pipe\ncuda_mps_log_directory: {0}/log\n\
                 cuda_mps_replicas: 4\ncontainer_device_config_file: {0}/devices.yml\n",
                host.folder().display()
            ),
        )?;
        host.write("devices.yml", "devices: []\n")?;
        Ok(host)
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.folder().join(name), text)?)
    }

    /// A command of ours on this host.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(openmps());
        command
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder().join("pipe"))
            .env("OPENMPS_STATE_DIRECTORY", self.folder().join("state"))
            .env("OPENMPS_ENGINE", "soft")
            .env("OPENMPS_SOFT_MEMORY", "1000M");
        command
    }

    fn cloudpods(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&["cloudpods", "--host-conf"]);
        // The file says where the daemon is.
        command
            .env_remove("CUDA_MPS_PIPE_DIRECTORY")
            .arg(self.folder().join("host.conf"))
            .args(arguments);
        command
    }

    fn start(&self) -> Result<Child> {
        let child = self
            .cloudpods(&["run", "--grace", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let wanted = "get_default_active_thread_percentage";
        until("the limits are set", || {
            let answer = output(&mut self.command(&["control", wanted]))?;
            Ok(answer.stdout == b"25.0\n")
        })?;
        Ok(child)
    }

    fn mode(&self) -> Result<String> {
        let query = ["smi", "--query-gpu=compute_mode", "--format=csv,noheader"];
        Ok(said(&mut self.command(&query))?.trim().to_owned())
    }
}

pub(super) fn daemon() -> Result<()> {
    if !is_root() {
        return skip("Cloudpods' daemon must be root");
    }
    let host = Host::new()?;
    let program = memory_program()?;
    ensure!(host.mode()? == "Default", "the mode was {}", host.mode()?);

    let mut running = host.start()?;
    ensure!(
        host.mode()? == "Exclusive_Process",
        "the mode is {}",
        host.mode()?
    );
    let total = said(host.command(&["run", "--"]).arg(&program))?;
    // 1000 MiB in four parts.
    ensure!(number_before(&total, " MiB") == Some(250), "{total}");
    ensure!(
        total.contains("then 2"),
        "the next MiB was not refused: {total}"
    );

    // Killed, it gives nothing back; the next one knows what was there before.
    send(Signal::KILL, &running)?;
    running.wait()?;
    output(&mut host.command(&["control", "quit", "-t", "1"]))?;
    ensure!(
        host.mode()? == "Exclusive_Process",
        "the mode is {}",
        host.mode()?
    );
    let mut running = host.start()?;
    for ending in [Signal::TERM, Signal::INT, Signal::QUIT] {
        send(ending, &running)?;
        let status = end_within(&mut running, super::PATIENCE)?;
        ensure!(
            status.is_some_and(|status| status.success()),
            "{ending:?}: {status:?}"
        );
        ensure!(
            host.mode()? == "Default",
            "{ending:?}: the mode is {}",
            host.mode()?
        );
        let left: Vec<_> = fs::read_dir(host.folder().join("pipe"))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.contains("mode"))
            .collect();
        ensure!(left.is_empty(), "{ending:?}: {left:?} is left");
        if ending != Signal::QUIT {
            running = host.start()?;
        }
    }

    let rows: Value = serde_json::from_str(&said(&mut host.cloudpods(&["devices", "--json"]))?)?;
    let rows = rows.as_array().context("a list")?;
    ensure!(rows.len() == 4, "{rows:?}");
    ensure!(rows[3]["mps_memory_limit"] == 250 && rows[3]["mps_thread_percentage"] == 25);
    let shared = said(&mut host.cloudpods(&["isolated-device-list", "--shape", "shared"]))?;
    ensure!(
        shared.contains("Sharing_mode") && shared.contains("*** Total: 1 "),
        "{shared}"
    );
    let library = host.folder().join("lib");
    let address = rows[0]["addr"].as_str().context("an address")?;
    let given = said(
        host.cloudpods(&["container", address, "--library-directory"])
            .arg(&library),
    )?;
    ensure!(given.contains("CUDA_MPS_PIPE_DIRECTORY"), "{given}");
    ensure!(
        library.join("libcuda.so.1").exists() && library.join("libnvidia-ml.so.1").exists(),
        "no library for containers"
    );
    Ok(())
}

pub(super) fn files() -> Result<()> {
    let host = Host::new()?;
    let wrong = |name: &str, text: &str, arguments: &[&str], says: &[&str]| -> Result<()> {
        let whole = fs::read_to_string(host.folder().join(name))?;
        host.write(name, text)?;
        let answer = output(&mut host.cloudpods(arguments))?;
        host.write(name, &whole)?;
        let errors = String::from_utf8_lossy(&answer.stderr);
        ensure!(
            answer.status.code() == Some(1),
            "{text:?}: {}\n{errors}",
            answer.status
        );
        for part in says {
            ensure!(errors.contains(part), "{text:?}: no {part:?} in\n{errors}");
        }
        ensure!(!errors.contains("panicked"), "{errors}");
        Ok(())
    };
    let item = |path: &str, number: &str| {
        format!("devices:\n- path: {path}\n  type: NVIDIA_MPS\n  virtual_number: {number}\n")
    };
    let check = &["check"];
    wrong(
        "devices.yml",
        "devices: [\n",
        check,
        &["devices.yml:", "not YAML", "->"],
    )?;
    wrong(
        "devices.yml",
        "devices:\n\t- x\n",
        check,
        &["devices.yml:2: ", "tab"],
    )?;
    wrong(
        "devices.yml",
        &item("/dev/null", "4"),
        check,
        &["devices.yml:2: ", "no render node"],
    )?;
    wrong(
        "devices.yml",
        &item("/dev/dri/renderD199", "4"),
        check,
        &["devices.yml:2: ", "not there"],
    )?;
    wrong(
        "devices.yml",
        &item("/dev/dri/renderD128", "0"),
        check,
        &["devices.yml:4: ", "above 0"],
    )?;
    wrong(
        "devices.yml",
        &item("/dev/dri/renderD128", "0.5"),
        check,
        &["devices.yml:4: ", "fractions"],
    )?;
    wrong(
        "devices.yml",
        &item("/dev/dri/renderD128", "101"),
        check,
        &["devices.yml:4: ", "100 parts"],
    )?;
    wrong(
        "host.conf",
        "enable_cuda_mps: perhaps\n",
        check,
        &["host.conf:1: ", "`enable_cuda_mps: true`"],
    )?;
    wrong(
        "host.conf",
        "container_device_config_file: /nowhere.yml\n",
        check,
        &["host.conf:1: ", "/nowhere.yml, which is not there"],
    )?;
    wrong(
        "host.conf",
        "a: 1\n",
        &["container", "0f:00.0-9"],
        &["no virtual device 0f:00.0-9"],
    )?;

    wrong(
        "host.conf",
        "a: 1\nenable_cuda_mps: true\ncuda_mps_replicas: 2.5\n",
        check,
        &["host.conf:3: ", "fractions"],
    )?;
    let two = item("/dev/dri/renderD128", "4");
    let two = format!("{two}{}", two.trim_start_matches("devices:\n"));
    wrong(
        "devices.yml",
        &two,
        check,
        &["devices.yml:5: ", "in line 2 already", "keep one entry"],
    )?;
    wrong(
        "devices.yml",
        &item("/dev/dri/renderD128", "4").replace("NVIDIA_MPS", "NVIDIA_MSP"),
        check,
        &["devices.yml:3: ", "is not known", "it is one of"],
    )?;
    no_gpu(&host)?;
    others_directories(&host)?;

    fs::remove_file(host.folder().join("host.conf"))?;
    let answer = output(&mut host.cloudpods(check))?;
    let errors = String::from_utf8_lossy(&answer.stderr);
    ensure!(
        errors.contains("host.conf: No such file") && errors.contains("->"),
        "{errors}"
    );
    host.write("host.conf", "hostname: node1\n")?;
    let answer = said(&mut host.cloudpods(&["run"]))?;
    ensure!(answer == "Cuda mps not enabled !!!\n", "{answer}");
    Ok(())
}

/// A machine without a GPU, of which nobody said that the software GPU will do. Where there is one, that is
/// found.
fn no_gpu(host: &Host) -> Result<()> {
    for engine in [Some("nvidia"), None] {
        let mut command = host.cloudpods(&["check"]);
        command.env_remove("OPENMPS_ENGINE");
        command.envs(engine.map(|engine| ("OPENMPS_ENGINE", engine)));
        let answer = output(&mut command)?;
        let errors = String::from_utf8_lossy(&answer.stderr);
        let is_told = ["host.conf:2: ", "no GPU", "-> install the GPU's driver"];
        ensure!(
            answer.status.success() || is_told.iter().all(|part| errors.contains(part)),
            "{engine:?}: {errors}"
        );
    }
    Ok(())
}

/// Directories in which another user could have put anything, and links that one did.
fn others_directories(host: &Host) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let theirs = host.folder().join("theirs");
    let secret = host.folder().join("secret");
    fs::create_dir(&secret)?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700))?;
    let refused = |says: &str| -> Result<()> {
        host.write(
            "theirs.conf",
            &format!(
                "enable_cuda_mps: true\ncuda_mps_pipe_directory: {0}\ncuda_mps_log_directory: {0}/log\n",
                theirs.display()
            ),
        )?;
        let mut command = host.command(&["cloudpods", "run", "--host-conf"]);
        let answer = output(command.arg(host.folder().join("theirs.conf")))?;
        let errors = String::from_utf8_lossy(&answer.stderr);
        for part in ["theirs.conf:2: ", says, "-> look at what is there"] {
            ensure!(
                !answer.status.success() && errors.contains(part),
                "no {part:?} in {errors}"
            );
        }
        Ok(())
    };
    symlink(&secret, &theirs)?;
    lchown(&theirs, Some(1000), Some(1000))?;
    refused("theirs belongs to user 1000")?;
    let mode = fs::metadata(&secret)?.permissions().mode() & 0o777;
    ensure!(mode == 0o700, "another's link opened it: {mode:o}");
    fs::remove_file(&theirs)?;
    fs::create_dir(&theirs)?;
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777))?;
    refused("every user may write to")
}
