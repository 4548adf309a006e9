//! `docker-compose up` with our file and with one as people have it, and their transcripts.
//!
//! Called by `platforms`. Must not know how a Docker daemon is started (`docker`, `newer`).

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::docker::Docker;
use super::{PATIENCE, containers, in_order, need, output, said, until};
use crate::images::{NBODY, OPENMPS};
use crate::shell::{end_within, root, send};

/// Steps of each program: a second or two of work on two cores.
const ITERATIONS: &str = "10";

/// A compose file in a Docker daemon.
struct Project<'a> {
    docker: &'a Docker,
    file: PathBuf,
    log: PathBuf,
    /// Between a service's name and a container's number: version 1 has `_`, version 2 `-`.
    between: char,
}

impl<'a> Project<'a> {
    fn new(docker: &'a Docker, file: &str) -> Result<Self> {
        let mut asked = Command::new("docker-compose");
        docker.set_up(&mut asked).args(["version", "--short"]);
        let version = said(&mut asked)?;
        println!("platforms: docker-compose {}", version.trim());
        Ok(Self {
            docker,
            file: root().join(file),
            log: docker.folder().join("compose.log"),
            between: if version.starts_with("1.") { '_' } else { '-' },
        })
    }

    /// A service's container, as it is named in the log.
    fn name(&self, service: &str, number: u32) -> String {
        format!("{service}{}{number}", self.between)
    }

    /// The same, as Docker names it.
    fn container(&self, service: &str, number: u32) -> String {
        format!("t{}{}", self.between, self.name(service, number))
    }

    fn compose(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker-compose");
        self.docker
            .set_up(&mut command)
            .args(["--project-name", "t", "--file"])
            .arg(&self.file)
            .args(arguments)
            .env("NVIDIA_VISIBLE_DEVICES", "0")
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "33")
            .env("NBODY_ITERATIONS", ITERATIONS)
            .env("OPENMPS_SOFT_MEMORY", "2G");
        command
    }

    /// `docker-compose up`, which prints to the log until it is stopped.
    fn up(&self) -> Result<Child> {
        let log = File::create(&self.log)?;
        self.compose(&["up", "--no-color"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start docker-compose")
    }

    /// The lines that a service printed, without its name. A service of several containers is many.
    fn lines(&self, service: &str) -> Result<String> {
        let text = fs::read_to_string(&self.log)?;
        let of_service = text.lines().filter_map(|line| {
            let (name, rest) = line.split_once('|')?;
            let name = name.trim();
            (name == service).then(|| format!("{}\n", rest.trim_start()))
        });
        Ok(of_service.collect())
    }

    /// Waits until each program has its result and the daemon has seen it leave.
    fn wait_for_results(&self, up: &mut Child) -> Result<()> {
        until("three results", || {
            if let Some(status) = up.try_wait()? {
                bail!("docker-compose ended: {status}\n{}", self.text());
            }
            let text = self.text();
            Ok(text.matches("GFLOP/s at 20 flops").count() == 3
                && text.matches("exited with code").count() >= 4
                && self.lines("mps-daemon")?.matches("disconnected").count() == 3)
        })
        .with_context(|| self.text())
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ctrl-C.
    fn stop(&self, mut up: Child) -> Result<()> {
        send(Signal::INT, &up)?;
        ensure!(
            end_within(&mut up, PATIENCE)?.is_some(),
            "docker-compose does not stop"
        );
        Ok(())
    }

    fn inspect(&self, container: &str) -> Result<Value> {
        let text = said(&mut self.docker.docker(&["inspect", container]))?;
        let value: Value = serde_json::from_str(&text)?;
        Ok(value[0].clone())
    }
}

impl Drop for Project<'_> {
    fn drop(&mut self) {
        output(&mut self.compose(&["down", "-v"])).ok();
    }
}

/// What the walk-through's readers see, in its order.
fn check_transcript(project: &Project<'_>, mode: &str) -> Result<()> {
    in_order(
        &project.lines(&project.name("exclusive-mode", 1))?,
        &[
            "Set compute mode to EXCLUSIVE_PROCESS for GPU 0",
            "All done.\n",
        ],
    )?;
    let daemon = project.lines("mps-daemon")?;
    in_order(
        &daemon,
        &[
            "Size of /dev/shm: 67108864 bytes\n",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: 33\n",
            "Available GPUs:\n",
            "- 0, 0",
            ", OpenMPS software GPU, ",
            mode,
            "\nStarting NVIDIA MPS control daemon...\n",
            "] Starting control daemon using socket /tmp/nvidia-mps/control\n",
            "] To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps\n",
            "] Accepting connection...\n",
            "] Starting new server ",
            "] NEW SERVER ",
            ": Ready\n",
            " connected\n",
            "exiting. Number of active client contexts is 0.\n",
            " disconnected\n",
        ],
    )?;
    ensure!(
        daemon.matches("] NEW CLIENT 0 from user ").count() == 3,
        "{daemon}"
    );
    for number in 1..=3 {
        in_order(
            &project.lines(&project.name("nbody", number))?,
            &[
                "Compute ",
                "[OpenMPS software GPU]\n",
                "14336 bodies, total time for ",
                " iterations: ",
                " ms\n",
                "= ",
                " billion interactions per second\n",
                "= ",
                " single-precision GFLOP/s at 20 flops per interaction\n",
            ],
        )?;
    }
    let text = project.text();
    ensure!(text.matches("exited with code 0").count() >= 4, "{text}");
    Ok(())
}

/// Our file: nothing is shared but the socket and the library.
pub(super) fn ours() -> Result<()> {
    runs_ours(&started()?)
}

/// Our file with the newest that there is: `docker compose`, version 2 or later.
pub(super) fn newer() -> Result<()> {
    containers()?;
    need(&["runc"], &["runc"])?;
    runs_ours(&Docker::start_from(super::newer::path()?)?)
}

/// The machine's own engine, with docker-compose beside it.
fn started() -> Result<Docker> {
    let docker = Docker::start()?;
    need(&["docker-compose"], &["docker-compose"])?;
    Ok(docker)
}

fn runs_ours(docker: &Docker) -> Result<()> {
    let project = Project::new(docker, "deploy/compose/docker-compose.yml")?;
    let mut up = project.up()?;
    project.wait_for_results(&mut up)?;
    check_transcript(&project, "Exclusive_Process")?;

    let one = project.inspect(&project.container("nbody", 1))?;
    let host = &one["HostConfig"];
    ensure!(one["Config"]["User"] == "1000:1000" && host["Privileged"] == false);
    ensure!(
        host["IpcMode"] == "private" && host["PidMode"] == "",
        "{host}"
    );
    ensure!(
        host["NetworkMode"] == "none" && host["ReadonlyRootfs"] == true,
        "{host}"
    );
    let devices = host["Devices"].as_array().map_or(0, Vec::len);
    ensure!(devices == 0, "a program has devices: {host}");
    let mounts = one["Mounts"].as_array().context("mounts")?;
    let mut places: Vec<&str> = mounts
        .iter()
        .filter_map(|it| it["Destination"].as_str())
        .collect();
    places.sort_unstable();
    ensure!(
        places == ["/tmp/nvidia-mps", "/usr/local/openmps/lib"],
        "{places:?}"
    );
    ensure!(mounts.iter().all(|it| it["RW"] == false), "{mounts:?}");

    // What people do next in the daemon's container.
    let inside = |words: &[&str]| {
        let mut command = docker.docker(&["exec", "mps-daemon"]);
        said(command.args(words))
    };
    ensure!(inside(&["nvidia-smi", "-L"])?.starts_with("GPU 0: OpenMPS software GPU (UUID: GPU-"));
    let servers = inside(&["nvidia-cuda-mps-control", "get_server_list"])?;
    let server = servers.trim();
    let comm = inside(&["nvidia-smi", "pmon", "-s", "mu", "-c", "1"])?;
    ensure!(
        comm.contains(server) && comm.contains("nvidia-cuda-mps"),
        "{server}\n{comm}"
    );
    project.stop(up)?;
    // docker-compose itself has stopped listening by then.
    let text = said(&mut docker.docker(&["logs", "mps-daemon"]))?;
    in_order(
        &text,
        &["] Quitting, as a signal asks\n", "] Exit with status 0\n"],
    )
}

/// A file of the walk-through's form, unchanged but for the images.
pub(super) fn upstream() -> Result<()> {
    let docker = started()?;
    need(&["python3"], &["python3-minimal"])?;
    docker.allows(&[
        "--runtime=nvidia",
        "--cap-add=SYS_ADMIN",
        "--init",
        "--ulimit=memlock=-1:-1",
        "--ipc=shareable",
        "--mount=type=volume,dst=/mnt,volume-opt=type=tmpfs,volume-opt=device=tmpfs",
    ])?;
    let project = Project::new(&docker, "tests/platforms/upstream.yml")?;
    let mut up = project.up()?;
    project.wait_for_results(&mut up)?;
    check_transcript(&project, "")?;
    let one = project.inspect(&project.container("nbody", 1))?;
    let mode = one["HostConfig"]["IpcMode"].as_str().unwrap_or_default();
    ensure!(
        mode.starts_with("container:"),
        "the ipc namespace is {mode}"
    );
    project.stop(up)
}

/// Programs that come before their daemon, and programs whose daemon never comes.
pub(super) fn early() -> Result<()> {
    let docker = started()?;
    let project = Project::new(&docker, "deploy/compose/docker-compose.yml")?;
    // One alone first: three at once that fill the library's new volume are in each other's way in
    // dockerd.
    let alone = ["up", "-d", "--no-deps", "--scale", "nbody=1", "nbody"];
    said(&mut project.compose(&alone))?;
    said(&mut project.compose(&["up", "-d", "--no-deps", "nbody"]))?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    let state = project.inspect(&project.container("nbody", 1))?["State"]["Status"].clone();
    ensure!(
        state == "running",
        "without a daemon the program is {state}"
    );
    said(&mut project.compose(&["up", "-d", "mps-daemon"]))?;
    until("the three end", || {
        let running = said(&mut docker.docker(&["ps", "-q", "--filter", "name=nbody"]))?;
        Ok(running.is_empty())
    })?;
    for number in 1..=3 {
        let name = project.container("nbody", number);
        let code = project.inspect(&name)?["State"]["ExitCode"].clone();
        let text = said(&mut docker.docker(&["logs", &name]))?;
        ensure!(
            code == 0 && text.contains("GFLOP/s"),
            "{name}: {code}\n{text}"
        );
    }
    drop(project);

    // Never: an error, soon.
    let never = output(&mut docker.docker(&[
        "run",
        "--rm",
        "--network=none",
        "--env=OPENMPS_CONNECT_TIMEOUT=1",
        NBODY,
    ]))?;
    let errors = String::from_utf8_lossy(&never.stderr).into_owned();
    ensure!(!never.status.success(), "it ran without a daemon");
    ensure!(
        errors.contains("805") || errors.contains("MPS_CONNECTION_FAILED"),
        "{errors}"
    );
    // A wrong device is told of at once.
    let wrong = output(&mut docker.docker(&[
        "run",
        "--rm",
        "--network=none",
        "--env=NVIDIA_VISIBLE_DEVICES=7",
        OPENMPS,
    ]))?;
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure!(
        !wrong.status.success() && errors.contains("there is no GPU \"7\""),
        "{errors}"
    );
    Ok(())
}

/// Which files there are; a test in this crate holds them to what they promise.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_file_shares_nothing() {
        let file = root().join("deploy/compose/docker-compose.yml");
        let text = fs::read_to_string(file).unwrap();
        let said: String = text
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .collect();
        for word in ["ipc:", "pid:", "privileged", "devices:", "/dev/"] {
            assert!(!said.contains(word), "{word}");
        }
        for word in ["exclusive-mode:", "mps-daemon:", "nbody:", "scale: 3"] {
            assert!(said.contains(word), "{word}");
        }
    }
}
