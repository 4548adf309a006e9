//! podman with our CDI specification, as root and as a user.
//!
//! Called by `platforms`; `deb` runs its Debian in one. Must not know how the specification is made (`cdi`).

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use super::cdi::Registered;
use super::{
    CANARY, Folder, archive, canary, containers, is_there, last_line, memory_program, need,
    number_before, output, said, skip, until,
};
use crate::daemon::Daemon;
use crate::images::NBODY;
use crate::shell::root;

/// The user that rootless containers run as, made for the test and removed.
pub(super) const USER: &str = "openmps-test";

/// podman, with its storage in a folder.
pub(super) struct Podman {
    folder: Folder,
    user: Option<User>,
}

/// A user of the machine; dropping it removes it.
struct User {
    uid: String,
}

impl User {
    fn new() -> Result<Self> {
        said(Command::new("useradd").args(["--create-home", "--shell", "/bin/sh", USER]))?;
        let uid = said(Command::new("id").args(["-u", USER]))?;
        Ok(Self {
            uid: uid.trim().to_owned(),
        })
    }
}

impl Drop for User {
    fn drop(&mut self) {
        Command::new("userdel")
            .args(["--remove", USER])
            .output()
            .ok();
    }
}

impl Podman {
    pub(super) fn new(rootless: bool) -> Result<Self> {
        containers()?;
        need(
            &["podman", "runc", "conmon", "catatonit"],
            &[
                "podman",
                "runc",
                "conmon",
                "netavark",
                "catatonit",
                "uidmap",
                "slirp4netns",
            ],
        )?;
        let folder = Folder::new("podman")?;
        // crun refuses a hybrid cgroup tree, and more than these limits a sandbox may not give.
        fs::write(
            folder.path().join("containers.conf"),
            "[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n\
             init_path = \"/usr/bin/catatonit\"\n\
             [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n",
        )?;
        // An image may be of anybody's choosing: nothing here is signed.
        fs::write(
            folder.path().join("policy.json"),
            "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n",
        )?;
        let user = match rootless {
            true => {
                if !is_there("newuidmap") {
                    return skip("newuidmap missing: Debian's package uidmap");
                }
                Some(User::new().context("cannot make a user for the test")?)
            }
            false => None,
        };
        let podman = Self { folder, user };
        for name in ["storage", "run", "tmp"] {
            let path = podman.folder.path().join(name);
            fs::create_dir_all(&path)?;
            if podman.user.is_some() {
                said(Command::new("chown").arg(USER).arg(&path))?;
            }
        }
        let loaded = podman.load(&canary()?)?;
        if !loaded.status.success() {
            return skip(format!(
                "podman loads no image here: {}",
                last_line(&loaded)
            ));
        }
        let tried = output(&mut podman.podman(&["run", "--rm", "--network=none", CANARY]))?;
        if !tried.status.success() {
            return skip(format!(
                "podman runs no container here: {}",
                last_line(&tried)
            ));
        }
        let loaded = podman.load(&root().join(archive("openmps-nbody.tar")))?;
        ensure!(loaded.status.success(), "{}", last_line(&loaded));
        Ok(podman)
    }

    /// Loads an image, from where whoever runs podman can read it.
    fn load(&self, archive: &Path) -> Result<Output> {
        let copy = self.folder.path().join("image.tar");
        fs::copy(archive, &copy)?;
        output(
            self.podman(&["load", "--signature-policy"])
                .arg(self.folder.path().join("policy.json"))
                .arg("-i")
                .arg(copy),
        )
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn podman(&self, arguments: &[&str]) -> Command {
        let path = |name: &str| self.folder.path().join(name);
        let mut command = match &self.user {
            None => Command::new("podman"),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command
                    .args([
                        "--reuid",
                        &user.uid,
                        "--regid",
                        &user.uid,
                        "--clear-groups",
                        "podman",
                    ])
                    .env("HOME", format!("/home/{USER}"))
                    .env("USER", USER)
                    .env("XDG_RUNTIME_DIR", path("run"));
                command
            }
        };
        command
            .current_dir("/")
            .env("CONTAINERS_CONF", path("containers.conf"))
            .env("TMPDIR", path("tmp"))
            .args(["--storage-driver", "vfs", "--root"])
            .arg(path("storage"))
            .arg("--runroot")
            .arg(path("run"))
            .args(arguments);
        command
    }

    /// Runs the memory program in a container with a device.
    fn memory(&self, device: &str, program: &Path) -> Result<String> {
        let bind = format!(
            "{}:/probe:ro",
            program.parent().context("a folder")?.display()
        );
        let device = format!("openmps.org/gpu={device}");
        let run = [
            "run",
            "--rm",
            "--network=none",
            "--entrypoint=/probe/memory",
        ];
        said(
            self.podman(&run)
                .args(["--volume", &bind, "--device", &device, NBODY]),
        )
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        output(&mut self.podman(&["rm", "--all", "--force", "--time=0"])).ok();
        // Files of a user's containers belong to users that only its namespace can name.
        output(&mut self.podman(&["system", "reset", "--force"])).ok();
        // Ends the process that keeps a user's namespace.
        output(&mut self.podman(&["system", "migrate"])).ok();
    }
}

fn works(podman: &Podman) -> Result<()> {
    let daemon = Daemon::of_built(1)?;
    let library = podman.folder.path().join("lib");
    let registered = Registered::generate(&daemon.pipe(), &library, 4)?;
    // Read by podman's user, below a folder that it can enter.
    let program = podman.folder.path().join("probe/memory");
    fs::create_dir_all(podman.folder.path().join("probe"))?;
    fs::copy(memory_program()?, &program)?;

    let text = said(
        podman
            .podman(&[
                "run",
                "--rm",
                "--network=none",
                "--device=openmps.org/gpu=0",
                NBODY,
            ])
            .args(["-benchmark", "-numbodies=4096", "-i=2"]),
    )?;
    ensure!(text.contains("single-precision GFLOP/s"), "{text}");

    let names = registered.names()?;
    let whole = podman.memory("all", &program)?;
    let whole = number_before(&whole, " MiB").context(whole)?;
    for name in names.iter().filter(|name| name.contains("::")) {
        let text = podman.memory(name, &program)?;
        ensure!(
            number_before(&text, " MiB") == Some(whole / 4),
            "{name} of {whole} MiB:\n{text}"
        );
        ensure!(
            text.contains("then 2\n"),
            "{name}: the next MiB was not refused:\n{text}"
        );
    }
    // A part is one budget, whoever has it and whatever variables he sets.
    let part = names
        .iter()
        .find(|name| name.contains("::"))
        .context("a part")?;
    let bind = format!("{}:/probe:ro", podman.folder.path().join("probe").display());
    let run = |arguments: &[&str]| {
        let mut command = podman.podman(&["run", "--network=none", "--entrypoint=/probe/memory"]);
        command.args([
            "--volume",
            &bind,
            "--device",
            &format!("openmps.org/gpu={part}"),
        ]);
        said(command.args(arguments))
    };
    run(&["--detach", "--name=first", NBODY, "100", "600"])?;
    until("the first has its memory", || {
        Ok(said(&mut podman.podman(&["logs", "first"]))?.contains("took 100 MiB"))
    })?;
    let free = [
        "--rm",
        "--env=CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=64G",
        "--env=CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
        NBODY,
    ];
    let second = run(&free)?;
    let took = number_before(&second, " MiB, then 2");
    ensure!(
        took == Some(whole / 4 - 100),
        "beside 100 MiB of {}:\n{second}",
        whole / 4
    );
    said(&mut podman.podman(&["rm", "--force", "--time=0", "first"]))?;
    let again = run(&free)?;
    let took = number_before(&again, " MiB, then 2");
    ensure!(took == Some(whole / 4), "alone again:\n{again}");

    let unknown = podman.memory("GPU-none", &program);
    ensure!(
        unknown.is_err(),
        "a device that is not there was given: {unknown:?}"
    );
    Ok(())
}

pub(super) fn root_user() -> Result<()> {
    works(&Podman::new(false)?)
}

pub(super) fn rootless() -> Result<()> {
    works(&Podman::new(true)?)
}
