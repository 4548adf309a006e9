//! Who is compared: each starts its daemon, makes a program its client, and ends its daemon.
//!
//! Called by `gpu_bench` and its files of figures. Must not know what is measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::figures::used_memory;

/// Contexts that the peer asks for which has several: the most that may be asked for, of which it has as many as memory allows.
const CONTEXTS: u32 = 40;

/// One of those that share the GPU.
#[derive(Debug)]
pub struct Peer {
    kind: Kind,
    /// Where the programs are.
    folder: PathBuf,
    /// The `openmps` of this peer, if it is one of ours.
    openmps: PathBuf,
    /// The pipe directory and, beside it, the log directory.
    directory: PathBuf,
    /// MiB of the GPU's memory that were taken when it had been started.
    memory: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OpenMps,
    /// With several contexts on the underlay.
    Contexts,
    OtherBuild,
    NvidiaMps,
    Driver,
}

impl Peer {
    /// All that this machine has, their daemons started: OpenMPS in both of its modes where that is asked for.
    pub fn all(folder: &Path, in_both_modes: bool) -> Vec<Self> {
        let openmps = folder.join("openmps");
        let mut kinds = vec![Kind::OpenMps, Kind::NvidiaMps, Kind::Driver];
        if in_both_modes {
            kinds.insert(1, Kind::Contexts);
        }
        let peers: Vec<_> = kinds.into_iter().map(|kind| (kind, &*openmps)).collect();
        Self::started(folder, &peers)
    }

    /// This build of OpenMPS and another one's program, their daemons started.
    pub fn builds(folder: &Path, other: &Path) -> Vec<Self> {
        let openmps = folder.join("openmps");
        Self::started(
            folder,
            &[(Kind::OpenMps, &openmps), (Kind::OtherBuild, other)],
        )
    }

    fn started(folder: &Path, peers: &[(Kind, &Path)]) -> Vec<Self> {
        peers
            .iter()
            .filter_map(|&(kind, openmps)| {
                let mut peer = Self {
                    kind,
                    folder: folder.to_owned(),
                    openmps: openmps.to_owned(),
                    directory: std::env::temp_dir()
                        .join(format!("openmps-bench-{}-{kind:?}", std::process::id())),
                    memory: 0.0,
                };
                let before = used_memory();
                let is_ready = peer.start();
                peer.memory = used_memory() - before;
                is_ready.then_some(peer)
            })
            .collect()
    }

    /// Its name in the table.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::OpenMps => "OpenMPS",
            Kind::Contexts => "OpenMPS, several contexts",
            Kind::OtherBuild => "OpenMPS, the other build",
            Kind::NvidiaMps => "NVIDIA MPS",
            Kind::Driver => "driver alone",
        }
    }

    /// MiB of the GPU's memory that it takes while it has no client.
    pub fn memory(&self) -> f64 {
        self.memory
    }

    /// Whether it has a daemon and a server.
    pub fn has_server(&self) -> bool {
        self.kind != Kind::Driver
    }

    /// Whether its clients can be fenced.
    pub fn has_fences(&self) -> bool {
        matches!(self.kind, Kind::OpenMps | Kind::Contexts)
    }

    /// The process that owns the context of all clients, once there was one.
    pub fn server(&self) -> Option<u32> {
        let asked = self.control("get_server_list")?;
        asked.split_whitespace().next()?.parse().ok()
    }

    /// One of the programs, as a client.
    pub fn client(&self, program: &str) -> Command {
        let program = self.folder.join(program);
        let mut command = match self.kind {
            Kind::OpenMps | Kind::Contexts | Kind::OtherBuild => {
                let mut command = Command::new(&self.openmps);
                command.args(["run", "--"]).arg(program);
                command
            }
            Kind::NvidiaMps | Kind::Driver => Command::new(program),
        };
        self.set(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Reserves a percentage of the GPU, if it can; the pipe directory of the clients that it is for.
    pub fn reserve(&self, percentage: u32) -> Option<PathBuf> {
        if !matches!(self.kind, Kind::OpenMps | Kind::OtherBuild) {
            return None;
        }
        let made = self.control(&format!(
            "group add half --percentage {percentage} --reserved"
        ))?;
        Some(PathBuf::from(made.trim())).filter(|directory| directory.is_dir())
    }

    /// Ends what was reserved.
    pub fn stop_daemon(&self) {
        // Once its last client is known to be gone.
        let until = Instant::now() + Duration::from_secs(5);
        while self.control("group remove half").is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn set(&self, command: &mut Command) {
        // The driver alone is given a directory without a daemon, or it would take another's.
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.directory.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.directory.join("log"))
            .env("OPENMPS_ENGINE", "nvidia");
    }

    /// Starts the daemon (`-d`), or gives it a command; what was said.
    fn control(&self, words: &str) -> Option<String> {
        let mut command = match self.kind {
            Kind::OpenMps | Kind::Contexts | Kind::OtherBuild => {
                let mut command = Command::new(&self.openmps);
                command.arg("control");
                if self.kind == Kind::Contexts && words == "-d" {
                    let contexts = format!("--contexts={CONTEXTS}");
                    command.args(["--underlay=nvidia-mps", &contexts]);
                }
                command
            }
            Kind::NvidiaMps => Command::new("nvidia-cuda-mps-control"),
            Kind::Driver => return None,
        };
        self.set(&mut command);
        let output = if words == "-d" {
            command.arg(words).output().ok()?
        } else {
            use std::io::Write;
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .ok()?;
            let _ = child
                .stdin
                .take()?
                .write_all(format!("{words}\n").as_bytes());
            child.wait_with_output().ok()?
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    fn start(&self) -> bool {
        for part in ["pipe", "log"] {
            std::fs::create_dir_all(self.directory.join(part)).expect("a temporary folder");
        }
        if self.has_server() && self.control("-d").is_none() {
            eprintln!("gpu_bench: {} does not start here", self.name());
            return false;
        }
        // Its first client starts the server.
        let mut first = self.client("gpu_client");
        first.args(["rate", "--for", "0"]);
        let ready = first.output().is_ok_and(|output| output.status.success());
        if !ready {
            eprintln!("gpu_bench: {} takes no client here", self.name());
        }
        if self.kind == Kind::Contexts {
            self.wait_for_contexts();
        }
        ready
    }

    /// Waits until all contexts are made, or as many as there can be.
    fn wait_for_contexts(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let said = self.control("underlay --json").unwrap_or_default();
            let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
            let user = &said["contexts"]["users"][0];
            let are_all = user["contexts"] == CONTEXTS || user["why_not_more"].is_string();
            if are_all || Instant::now() >= until {
                eprintln!("gpu_bench: {}", said["text"]);
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.control("quit -t 5");
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
