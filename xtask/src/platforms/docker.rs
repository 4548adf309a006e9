//! A Docker daemon of this run's own, with its data in a folder that goes with it.
//!
//! Used by `compose` and `newer`. Must not touch the machine's Docker.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use anyhow::Result;
use rustix::process::Signal;
use serde_json::json;

use super::{
    CANARY, Folder, PATIENCE, archive, canary, containers, last_line, need, output, said, skip,
    start, until,
};
use crate::shell::{end_within, root, send};

/// The daemon; dropping it ends it, and what runs in it.
#[derive(Debug)]
pub(super) struct Docker {
    child: Child,
    folder: Folder,
    /// Where its programs are looked for.
    path: OsString,
}

impl Docker {
    /// Starts the machine's daemon and loads the images.
    pub(super) fn start() -> Result<Self> {
        containers()?;
        need(&["dockerd", "docker", "runc"], &["docker.io", "runc"])?;
        Self::start_from(std::env::var_os("PATH").unwrap_or_default())
    }

    /// As [`Docker::start`], of the programs on another path.
    pub(super) fn start_from(programs: OsString) -> Result<Self> {
        let folder = Folder::new("docker")?;
        let path = |name: &str| folder.path().join(name);
        // No bridge and no rules of a firewall: nothing of it stays on the machine.
        let config = json!({
            "data-root": path("data"),
            "exec-root": path("exec"),
            "pidfile": path("pid"),
            "hosts": [format!("unix://{}", path("docker.sock").display())],
            "bridge": "none",
            "iptables": false,
            "ip6tables": false,
            "runtimes": { "nvidia": { "path": root().join("tests/platforms/runtime.py") } },
        });
        fs::write(path("daemon.json"), config.to_string())?;
        let child = start(
            Command::new("dockerd")
                .arg("--config-file")
                .arg(path("daemon.json"))
                .env("PATH", &programs),
            &path("log"),
        )?;
        let mut docker = Self {
            child,
            folder,
            path: programs,
        };
        docker.wait()?;
        let loaded = output(docker.docker(&["load", "-i"]).arg(canary()?))?;
        if !loaded.status.success() {
            return skip(format!(
                "docker loads no image here: {}",
                last_line(&loaded)
            ));
        }
        docker.allows(&[])?;
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
            let log = fs::read_to_string(self.folder.path().join("log"))?;
            let last = log.lines().next_back().unwrap_or_default();
            return skip(format!("dockerd does not start here: {last}"));
        }
        Ok(())
    }

    /// Whether this machine lets a container with these options run a program that is none of ours.
    pub(super) fn allows(&self, options: &[&str]) -> Result<()> {
        let mut run = self.docker(&["run", "--rm", "--network=none"]);
        let tried = output(run.args(options).arg(CANARY))?;
        if !tried.status.success() {
            return skip(format!(
                "docker runs no container here ({}): {}",
                options.join(" "),
                last_line(&tried)
            ));
        }
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Any command, for this daemon.
    pub(super) fn set_up<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let socket = self.folder.path().join("docker.sock");
        command
            .env("DOCKER_HOST", format!("unix://{}", socket.display()))
            .env_remove("DOCKER_CONTEXT")
            .env("PATH", &self.path)
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
        send(Signal::TERM, &self.child).ok();
        end_within(&mut self.child, PATIENCE).ok();
    }
}
