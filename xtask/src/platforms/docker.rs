//! A Docker daemon of this run's own, with its data in a folder that goes with it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Folder, PATIENCE, archive, is_root, need, output, said, skip, until};
use crate::shell::{end_within, root};

/// The daemon; dropping it ends it, and what runs in it.
#[derive(Debug)]
pub(super) struct Docker {
    child: Child,
    folder: Folder,
}

impl Docker {
    /// Starts a daemon and loads the images.
    pub(super) fn start() -> Result<Self> {
        if !is_root() {
            return skip("dockerd must be root");
        }
        need(&["dockerd", "docker", "runc"], &["docker.io", "runc"])?;
        let folder = Folder::new("docker")?;
        let path = |name: &str| folder.0.join(name);
        // No bridge and no rules of a firewall: nothing of it stays on the machine.
        let config = json!({
            "data-root": path("data"),
            "exec-root": path("exec"),
            "pidfile": path("pid"),
            "hosts": [format!("unix://{}", path("docker.sock").display())],
            "bridge": "none",
            "iptables": false,
            "runtimes": { "nvidia": { "path": root().join("tests/platforms/runtime.py") } },
        });
        fs::write(path("daemon.json"), config.to_string())?;
        let log = File::create(path("log"))?;
        let child = Command::new("dockerd")
            .arg("--config-file")
            .arg(path("daemon.json"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start dockerd")?;
        let mut docker = Self { child, folder };
        docker.wait()?;
        for name in ["openmps.tar", "openmps-nbody.tar"] {
            said(docker.docker(&["load", "-i"]).arg(archive(name)))?;
        }
        Ok(docker)
    }

    fn wait(&mut self) -> Result<()> {
        let ended = until("dockerd answers", || {
            Ok(self.child.try_wait()?.is_some()
                || output(&mut self.docker(&["info"]))?.status.success())
        });
        if ended.is_err() || self.child.try_wait()?.is_some() {
            let log = fs::read_to_string(self.folder.0.join("log"))?;
            let last = log.lines().next_back().unwrap_or_default();
            return skip(format!("dockerd does not start here: {last}"));
        }
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// Any command, for this daemon.
    pub(super) fn set_up<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let socket = self.folder.0.join("docker.sock");
        command
            .env("DOCKER_HOST", format!("unix://{}", socket.display()))
            .env_remove("DOCKER_CONTEXT")
            .current_dir(root())
    }

    pub(super) fn docker(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        self.set_up(&mut command).args(arguments);
        command
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Ok(list) = said(&mut self.docker(&["ps", "-aq"])) {
            for container in list.lines() {
                said(&mut self.docker(&["rm", "-f", container])).ok();
            }
        }
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().ok();
        end_within(&mut self.child, PATIENCE).ok();
    }
}

/// `docker --device openmps.org/gpu=0`, with a dockerd that knows CDI.
pub(super) fn cdi() -> Result<()> {
    let docker = Docker::start()?;
    let version = said(&mut docker.docker(&["version", "--format", "{{.Server.Version}}"]))?;
    let version = version.trim();
    let major: u32 = version
        .split('.')
        .next()
        .and_then(|text| text.parse().ok())
        .context("a version")?;
    if major < 28 {
        return skip(format!(
            "dockerd {version} knows no CDI by default; 28.2 does"
        ));
    }
    let daemon = crate::daemon::Daemon::start()?;
    let library = docker.folder().join("lib");
    let _registered = super::cdi::Registered::generate(&daemon.pipe(), &library, 2)?;
    let text = said(&mut docker.docker(&[
        "run",
        "--rm",
        "--network=none",
        "--device=openmps.org/gpu=0",
        crate::images::NBODY,
        "-benchmark",
        "-i=1",
    ]))?;
    ensure!(text.contains("single-precision GFLOP/s"), "{text}");
    Ok(())
}
