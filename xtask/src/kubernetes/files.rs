//! What the device plugin says where it cannot begin: its file is broken, its daemon is not there, or the
//! node has no GPU. No kubelet is needed for that.
//!
//! Called by `platforms`, also where no cluster can be had.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::platforms::{Folder, openmps, output, until};
use crate::shell::{end_within, send};

/// How long a plugin may take to end.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

pub fn files() -> Result<()> {
    let folder = Folder::new("k8s-files")?;
    let folder = folder.path();
    broken_files(folder)?;
    let plugin = Plugin::start(folder)?;
    plugin.says(&["pipe: Cannot find MPS control daemon", "-> start it with"])?;
    // A daemon whose engine is not there; that of the machine might be.
    let log = folder.join("log");
    let mut daemon = Command::new(openmps());
    daemon
        .args(["control", "-f"])
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", &log)
        .env("OPENMPS_ENGINE", "none");
    let mut daemon = daemon.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let told = plugin
        .says(&[
            "its server does not start",
            "no GPU, take the label",
            "OPENMPS_ENGINE=soft",
        ])
        // It waits for one that does start, and does not fill the log meanwhile.
        .and_then(|()| plugin.says_once("its server does not start"));
    send(Signal::TERM, &daemon)?;
    end_within(&mut daemon, PATIENCE)?;
    told
}

/// A device plugin that has begun to wait.
struct Plugin {
    child: Child,
    log: std::path::PathBuf,
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(openmps());
    command
        .args(["kubernetes", "plugin", "--probe-interval=1"])
        .args(arguments)
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"));
    for (option, name) in [
        ("--sockets", "sockets"),
        ("--pod-resources", "pods.sock"),
        ("--state", "allocations.json"),
        ("--library-directory", "lib"),
    ] {
        command.arg(option).arg(folder.join(name));
    }
    command
}

impl Plugin {
    fn start(folder: &Path) -> Result<Self> {
        let log = folder.join("plugin.log");
        let child = command(folder, &["--mode=aliyun"])
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()?;
        Ok(Self { child, log })
    }

    fn says(&self, parts: &[&str]) -> Result<()> {
        until(&format!("the plugin says {parts:?}"), || {
            let text = fs::read_to_string(&self.log)?;
            Ok(parts.iter().all(|part| text.contains(part)))
        })
    }

    fn says_once(&self, part: &str) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_secs(3));
        let text = fs::read_to_string(&self.log)?;
        ensure!(text.matches(part).count() == 1, "{text}");
        Ok(())
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        send(Signal::TERM, &self.child).ok();
        end_within(&mut self.child, PATIENCE).ok();
    }
}

fn broken_files(folder: &Path) -> Result<()> {
    let file = folder.join("config.yaml");
    let resources = |rest: &str| format!("version: v1\nsharing:\n  mps:\n    resources:\n{rest}");
    let replicas = |number: &str| {
        resources(&format!(
            "    - name: nvidia.com/gpu\n      replicas: {number}\n"
        ))
    };
    for (text, says) in [
        (
            "version: v1\nsharing: {mps: [}\n".into(),
            ["yaml:2: not YAML", "-> mend the line"],
        ),
        (
            replicas("0"),
            ["yaml:6: replicas is 0", "-> write a whole number"],
        ),
        (
            replicas("1001"),
            ["yaml:6: replicas is 1001", "-> write a whole number"],
        ),
        (
            replicas("2.5"),
            [
                "yaml:6: replicas is 2.5: there are no fractions",
                "-> write",
            ],
        ),
        (
            resources("    - {name: nvidia.com/mig-1g.5gb, replicas: 2}\n"),
            [
                "yaml:5: nvidia.com/mig-1g.5gb is no resource",
                "-> write `name: nvidia.com/gpu`",
            ],
        ),
    ] {
        fs::write(&file, &text)?;
        let config = format!("--config={}", file.display());
        let answer = output(&mut command(folder, &["--mode=nvidia", &config]))?;
        let errors = String::from_utf8_lossy(&answer.stderr);
        let missing = says.iter().find(|part| !errors.contains(**part));
        ensure!(
            answer.status.code() == Some(1) && missing.is_none(),
            "{text}: {errors}"
        );
    }
    let answer = output(&mut command(folder, &["--mode=nvidia"]))?;
    let errors = String::from_utf8(answer.stderr).context("text")?;
    ensure!(errors.contains("--mode=nvidia needs --config"), "{errors}");
    Ok(())
}
