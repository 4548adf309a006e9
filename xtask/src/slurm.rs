//! `cargo xtask slurm`: a real slurmctld and slurmd, with our prolog and epilog.
//!
//! Called by `platforms` and `main`. Must not know Slurm's sources: Debian's packages are installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::development_build;
use crate::package::libraries;
use crate::platforms::{install, is_root, skip};
use crate::shell::root;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const PACKAGES: &[&str] = &["slurmctld", "slurmd", "slurm-client", "munge"];

/// Runs jobs with `gres/mps`, or says why this machine cannot.
pub fn slurm() -> Result<()> {
    if !is_root() {
        return skip("slurmd needs root");
    }
    let is_there = |program: &str| Path::new("/usr/sbin").join(program).exists();
    if !["slurmctld", "slurmd", "munged"].into_iter().all(is_there) {
        install("slurmctld, slurmd and munged", PACKAGES)?;
    }
    development_build::program("probe", &["--package", "tests", "--bin", "probe"])?;
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        // No job of ours has run yet.
        Err(error) => return skip(format!("Slurm itself does not run here: {error:#}")),
    };
    cluster.jobs()
}

/// Slurm on this machine alone; dropping it ends it.
struct Cluster {
    folder: PathBuf,
    children: Vec<Child>,
}

impl Cluster {
    fn start() -> Result<Self> {
        let folder = std::env::temp_dir().join("slurm");
        for name in ["state", "spool", "log", "gpu", "lib"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let mut cluster = Self {
            folder,
            children: Vec::new(),
        };
        cluster.configure()?;
        let file = |name: &str| cluster.folder.join(name).to_string_lossy().into_owned();
        let munge = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            format!("--key-file={}", file("munge.key")),
            format!("--socket={}", file("munge.socket")),
            format!("--pid-file={}", file("munge.pid")),
            format!("--seed-file={}", file("munge.seed")),
            format!("--log-file={}", file("munge.log")),
        ];
        cluster.spawn("munged", &munge)?;
        let socket = cluster.folder.join("munge.socket");
        cluster.wait_for("munge's socket", || socket.exists())?;
        cluster.spawn("slurmctld", &["-D".to_owned()])?;
        cluster.spawn("slurmd", &["-D".to_owned()])?;
        cluster.wait_for("an idle node", || {
            let state = cluster.client("sinfo", &["-h", "-o", "%t"]);
            state.is_ok_and(|state| state.trim() == "idle")
        })?;
        Ok(cluster)
    }

    fn configure(&self) -> Result<()> {
        let folder = self.folder.display();
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let host = host.trim();
        let write = |name: &str, text: String, mode: u32| -> Result<()> {
            let file = self.folder.join(name);
            fs::write(&file, text)?;
            Ok(fs::set_permissions(
                &file,
                fs::Permissions::from_mode(mode),
            )?)
        };
        let mut key = vec![0; 1024];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut key)?;
        fs::write(self.folder.join("munge.key"), key)?;
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.folder.join("munge.key"), private)?;
        write(
            "slurm.conf",
            format!(
                "ClusterName=openmps\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n\
                 AuthInfo=socket={folder}/munge.socket\nSlurmctldPort=16817\nSlurmdPort=16818\n\
                 StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
                 SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
                 SlurmctldLogFile={folder}/log/slurmctld.log\nSlurmdLogFile={folder}/log/slurmd.log\n\
                 ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
                 SelectType=select/cons_tres\nGresTypes=gpu,mps\nPrologFlags=Alloc\n\
                 Prolog={folder}/prolog.sh\nEpilog={folder}/epilog.sh\n\
                 TaskProlog={folder}/task_prolog.sh\n\
                 NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:1,mps:100\n\
                 PartitionName=all Nodes={host} Default=YES OverSubscribe=YES\n"
            ),
            0o644,
        )?;
        // Plain files stand for devices.
        write("gpu/0", String::new(), 0o644)?;
        write(
            "gres.conf",
            format!("Name=gpu File={folder}/gpu/0\nName=mps Count=100 File={folder}/gpu/0\n"),
            0o644,
        )?;
        // Slurm runs these with next to nothing in their environment; of a plain file it
        // gives prolog and epilog neither number nor percentage, as it does of a device.
        for script in ["prolog.sh", "epilog.sh", "task_prolog.sh"] {
            let text = format!(
                "#!/bin/sh\n\
                 export OPENMPS={} OPENMPS_ENGINE=soft OPENMPS_SLURM_DIRECTORY={folder}/run\n\
                 export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$(cat {folder}/percentage)\n\
                 export OPENMPS_LIBRARY_DIRECTORY={folder}/lib CUDA_VISIBLE_DEVICES=0\n\
                 exec {}\n",
                root().join("target/debug/openmps").display(),
                root().join("deploy/slurm").join(script).display()
            );
            write(script, text, 0o755)?;
        }
        for (library, name, _) in libraries(&root().join("target/embedded/release")) {
            fs::copy(library, self.folder.join("lib").join(name))?;
        }
        Ok(())
    }

    fn spawn(&mut self, program: &str, arguments: &[String]) -> Result<()> {
        let child = Command::new(Path::new("/usr/sbin").join(program))
            .args(arguments)
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context(program.to_owned())?;
        self.children.push(child);
        Ok(())
    }

    fn wait_for(&self, what: &str, holds: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            if Instant::now() > deadline {
                for log in fs::read_dir(self.folder.join("log"))?.flatten() {
                    println!("--- {}", log.path().display());
                    println!("{}", fs::read_to_string(log.path()).unwrap_or_default());
                }
                anyhow::bail!("slurm: not within {} s: {what}", PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        println!("slurm: {what}");
        Ok(())
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .output()
            .context(program.to_owned())?;
        ensure!(
            output.status.success(),
            "{program} {}: {}\n{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn jobs(&self) -> Result<()> {
        let probe = root().join("target/debug/probe");
        let program = format!(
            "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; echo $CUDA_MPS_PIPE_DIRECTORY; {} work 1",
            probe.display()
        );
        let run = self.folder.join("run/mps_0");
        for units in ["33", "50"] {
            fs::write(self.folder.join("percentage"), units)?;
            let asked = format!("--gres=mps:{units}");
            let text = self.client("srun", &[&asked, "sh", "-c", &program])?;
            let lines: Vec<&str> = text.lines().collect();
            let [percentage, directory, "ok"] = lines[..] else {
                anyhow::bail!("a job with {asked} said:\n{text}");
            };
            ensure!(percentage == units, "{percentage} %");
            let folder = run.join("groups");
            ensure!(Path::new(directory).starts_with(&folder), "{directory}");
            println!("slurm: a job with {asked} ran in {directory}");
            self.wait_for("nothing is left of the daemon", || {
                let asked = Command::new(root().join("target/debug/openmps"))
                    .args(["control", "get_server_list"])
                    .env("CUDA_MPS_PIPE_DIRECTORY", &run)
                    .output();
                asked.is_ok_and(|output| !output.status.success())
            })?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        Command::new(root().join("target/debug/openmps"))
            .args(["control", "quit", "-t", "1"])
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder.join("run/mps_0"))
            .stderr(Stdio::null())
            .status()
            .ok();
        for child in self.children.iter_mut().rev() {
            child.kill().ok();
            child.wait().ok();
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}
