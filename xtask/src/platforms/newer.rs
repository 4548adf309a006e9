//! Engines that are newer than Debian 12's, which know the Container Device Interface: Docker from 25 on,
//! containerd from 1.7 on.
//!
//! Called by `platforms`, and by `compose` for where the newer Docker is. Must not replace what the machine has
//! installed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::cdi::Registered;
use super::docker::Docker;
use super::{
    CANARY, Folder, PATIENCE, archive, canary, containers, last_line, memory_program, need,
    number_before, output, said, skip, start, until, why_skipped,
};
use crate::daemon::Daemon;
use crate::fetch::DescribedFolder;
use crate::images::NBODY;
use crate::shell::{end_within, root, run, send};

/// Seconds that they may take to come.
const LIMIT: &str = "180";

/// The path with them at its head.
pub(super) fn path() -> Result<OsString> {
    // Which release they are of is for the mirror to say; the script says where they come from.
    let script = include_str!("../../../tests/platforms/newer.sh");
    let fetched = DescribedFolder::new("platforms/newer", script).get(|place| {
        need(&["apt-get", "dpkg-deb"], &["dpkg"])?;
        run(Command::new("timeout")
            .args(["--kill-after=10", LIMIT, "tests/platforms/newer.sh"])
            .arg(place))
    });
    let engines = match fetched {
        Ok(place) => place.join("engines"),
        Err(error) if why_skipped(&error).is_some() => return Err(error),
        Err(error) => {
            return skip(format!(
                "Debian 12's engines know no CDI, and newer ones are not to be had: {error}"
            ));
        }
    };
    let folders = ["usr/sbin", "usr/bin"].map(|name| engines.join(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.into_iter().chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(all)?)
}

/// What is checked with each engine: `run` runs a program in a container of the n-body program's image,
/// with a device.
fn devices(
    registered: &Registered,
    run: impl Fn(&str, &Path, &[&str]) -> Result<String>,
) -> Result<()> {
    let program = memory_program()?;
    let nbody = Path::new("/usr/bin/nbody");
    let text = run("0", nbody, &["-benchmark", "-numbodies=4096", "-i=2"])?;
    ensure!(text.contains("single-precision GFLOP/s"), "{text}");
    let whole = run("all", &program, &[])?;
    let whole = number_before(&whole, " MiB").context(whole)?;
    for name in registered
        .names()?
        .iter()
        .filter(|name| name.contains("::"))
    {
        let text = run(name, &program, &[])?;
        ensure!(
            number_before(&text, " MiB") == Some(whole / 4) && text.contains("then 2\n"),
            "{name} of {whole} MiB:\n{text}"
        );
    }
    let unknown = run("GPU-none", nbody, &["-benchmark"]);
    ensure!(
        unknown.is_err(),
        "a device that is not there was given: {unknown:?}"
    );
    Ok(())
}

/// `docker run --device openmps.org/gpu=0`.
pub(super) fn docker() -> Result<()> {
    containers()?;
    need(&["runc"], &["runc"])?;
    let docker = Docker::start_from(path()?)?;
    println!("platforms: {}", said(&mut docker.docker(&["version"]))?);
    let daemon = Daemon::of_built(1)?;
    let library = docker.folder().join("lib");
    let registered = Registered::generate(&daemon.pipe(), &library, 4)?;
    devices(&registered, |device, program, arguments| {
        let bind = format!("{}:/probe:ro", folder(program)?.display());
        let device = format!("--device=openmps.org/gpu={device}");
        let inside = format!("--entrypoint={}", inside(program)?);
        let mut run = docker.docker(&["run", "--rm", "--network=none", "--volume", &bind]);
        said(run.args([&device, &inside, NBODY]).args(arguments))
    })
}

fn folder(program: &Path) -> Result<&Path> {
    program.parent().context("a program has a folder")
}

/// Where a program of the host's is in a container; those of the image are where they are.
fn inside(program: &Path) -> Result<String> {
    if program.starts_with("/usr/bin") {
        return Ok(program.display().to_string());
    }
    let name = program.file_name().context("a program has a name")?;
    Ok(format!("/probe/{}", name.display()))
}

/// A containerd of this run's own; dropping it ends it.
struct Containerd {
    child: Child,
    folder: Folder,
    path: OsString,
}

impl Containerd {
    fn start(path: OsString) -> Result<Self> {
        let folder = Folder::new("containerd")?;
        let place = |name: &str| folder.path().join(name);
        fs::write(
            place("config.toml"),
            format!(
                "version = 3\nroot = \"{0}/root\"\nstate = \"{0}/state\"\n\
                 disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.cri.v1.runtime\"]\n\
                 [grpc]\naddress = \"{0}/socket\"\n",
                folder.path().display()
            ),
        )?;
        let child = start(
            Command::new("containerd")
                .arg("--config")
                .arg(place("config.toml"))
                .env("PATH", &path),
            &place("log"),
        )?;
        let mut containerd = Self {
            child,
            folder,
            path,
        };
        let answers = until("containerd answers", || {
            Ok(containerd.child.try_wait()?.is_some()
                || output(&mut containerd.ctr(&["version"]))?.status.success())
        });
        if answers.is_err() || containerd.child.try_wait()?.is_some() {
            let log = fs::read_to_string(containerd.folder.path().join("log"))?;
            let last = log.lines().next_back().unwrap_or_default();
            return skip(format!("containerd does not start here: {last}"));
        }
        Ok(containerd)
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command
            .env("PATH", &self.path)
            .arg("--address")
            .arg(self.folder.path().join("socket"))
            .args(arguments);
        command
    }

    fn load(&self, archive: &PathBuf) -> Result<()> {
        said(self.ctr(&["images", "import"]).arg(archive)).map(drop)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        send(Signal::TERM, &self.child).ok();
        end_within(&mut self.child, PATIENCE).ok();
    }
}

/// `ctr run --device openmps.org/gpu=0`.
pub(super) fn containerd() -> Result<()> {
    containers()?;
    need(&["runc"], &["runc"])?;
    let containerd = Containerd::start(path()?)?;
    println!("platforms: {}", said(&mut containerd.ctr(&["version"]))?);
    containerd.load(&canary()?)?;
    let image = format!("{CANARY}:latest");
    let tried = output(&mut containerd.ctr(&["run", "--rm", &image, "canary"]))?;
    if !tried.status.success() {
        return skip(format!(
            "containerd runs no container here: {}",
            last_line(&tried)
        ));
    }
    containerd.load(&root().join(archive("openmps-nbody.tar")))?;
    let daemon = Daemon::of_built(1)?;
    let library = containerd.folder.path().join("lib");
    let registered = Registered::generate(&daemon.pipe(), &library, 4)?;
    devices(&registered, |device, program, arguments| {
        let mount = format!(
            "type=bind,src={},dst=/probe,options=rbind:ro",
            folder(program)?.display()
        );
        let device = format!("openmps.org/gpu={device}");
        let image = format!("{NBODY}:latest");
        let mut run = containerd.ctr(&["run", "--rm", "--mount", &mount, "--device", &device]);
        said(
            run.args([&image, "program", &inside(program)?])
                .args(arguments),
        )
    })
}
