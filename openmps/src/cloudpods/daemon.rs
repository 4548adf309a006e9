//! What runs in place of yunion-mps-daemon: compute modes, a control daemon, its limits; and everything
//! put back when it ends.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use control::AskError;
use platform::cloudpods::{Changed, HostConf, Plan};
use platform::gpus::ComputeMode;
use signal_hook::consts::{SIGCHLD, SIGINT, SIGQUIT, SIGTERM};

use crate::machine;
use crate::private_daemon::own_program;

/// How long the daemon may take to accept.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file, in the pipe directory, with the modes that were changed.
const CHANGED: &str = "compute-modes-before.json";

pub fn run(conf: &HostConf, grace: u32) -> Result<ExitCode> {
    if !conf.enabled {
        // Word for word: who looks at the journal of a host knows it.
        println!("Cuda mps not enabled !!!");
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "this must be root, to set compute modes and to start servers as other users\n  \
         -> start it as root: systemctl start openmps-cloudpods"
    );
    let plan = super::plan(conf)?;
    let socket = conf.pipe.join("control");
    if let Ok((_, _)) = control::ask(&socket, "get_server_list") {
        bail!(
            "a control daemon already answers on {}\n  -> stop it: \
             systemctl disable --now yunion-mps-daemon, or quit it",
            socket.display()
        );
    }
    for directory in [&conf.pipe, &conf.log] {
        make_open(directory)?;
    }
    // Before anything is changed, so that no signal finds it half done.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGCHLD])?;
    let mut changed = Changed::read(&conf.pipe.join(CHANGED));
    set_modes(&plan, &mut changed);
    let result = serve(conf, &plan, grace, &mut signals);
    put_back(&mut changed);
    result
}

/// Makes a directory that every user's programs can reach.
fn make_open(directory: &Path) -> Result<()> {
    let context = || format!("cannot make the directory {}", directory.display());
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(context)?;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory, open).with_context(context)
}

/// Sets the devices' modes where that is allowed: elsewhere clients are served all the same, and only
/// somebody who goes around the daemon would notice.
fn set_modes(plan: &Plan, changed: &mut Changed) {
    for one in &plan.shared {
        let gpu = &one.gpu;
        if gpu.mode == ComputeMode::ExclusiveProcess {
            continue;
        }
        let set = changed
            .remember(&gpu.uuid, gpu.mode)
            .context("cannot write down the mode that it had")
            .and_then(|()| machine::set_mode(gpu, ComputeMode::ExclusiveProcess));
        match set {
            Ok(()) => println!(
                "GPU {}: compute mode {}",
                gpu.index,
                ComputeMode::ExclusiveProcess
            ),
            Err(error) => {
                changed.forget(&gpu.uuid).ok();
                eprintln!("openmps: GPU {} stays {}: {error:#}", gpu.index, gpu.mode);
            }
        }
    }
}

/// Gives the devices the modes that they had, also those that a former run did not give back.
fn put_back(changed: &mut Changed) {
    let before = changed.before();
    if before.is_empty() {
        return;
    }
    let gpus = machine::gpus().unwrap_or_default();
    for (uuid, mode) in before {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == uuid) else {
            continue;
        };
        let back = machine::set_mode(gpu, mode).and_then(|()| Ok(changed.forget(&uuid)?));
        match back {
            Ok(()) => println!("GPU {}: compute mode {mode} again", gpu.index),
            Err(error) => eprintln!("openmps: GPU {} is not {mode} again: {error:#}", gpu.index),
        }
    }
}

/// Has a daemon with its limits serve until a signal comes, or it ends.
fn serve(
    conf: &HostConf,
    plan: &Plan,
    grace: u32,
    signals: &mut signal_hook::iterator::Signals,
) -> Result<ExitCode> {
    let socket = conf.pipe.join("control");
    let mut daemon = Daemon::start(conf)?;
    let asked = daemon.wait_until_it_accepts(&socket).and_then(|()| {
        for command in plan.commands() {
            let (text, status) = control::ask(&socket, &command)?;
            ensure!(status == 0, "{command}: {}", text.trim());
            println!("{command}");
        }
        Ok(())
    });
    if let Err(error) = asked {
        daemon.quit(&socket, 0).ok();
        return Err(error);
    }
    control::notify::tell("READY=1");
    for signal in signals.forever() {
        if signal == SIGCHLD {
            if let Some(status) = daemon.child.try_wait()? {
                bail!(
                    "the control daemon ended by itself ({status}); {} says why",
                    conf.log.join("control.log").display()
                );
            }
            continue;
        }
        control::notify::tell("STOPPING=1");
        daemon.quit(&socket, grace)?;
        break;
    }
    Ok(ExitCode::SUCCESS)
}

/// The control daemon; dropping it ends it.
struct Daemon {
    child: Child,
}

impl Daemon {
    fn start(conf: &HostConf) -> Result<Self> {
        let child = Command::new(own_program()?)
            .args(["control", "-f"])
            .env("CUDA_MPS_PIPE_DIRECTORY", &conf.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &conf.log)
            // This process is what the service manager hears of.
            .env_remove(control::notify::VARIABLE)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the control daemon")?;
        Ok(Self { child })
    }

    fn wait_until_it_accepts(&mut self, socket: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match control::ask(socket, "get_server_list") {
                Ok(_) => return Ok(()),
                Err(AskError::NoDaemon) => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the control daemon ended at once ({status})");
            }
            ensure!(
                Instant::now() < deadline,
                "the control daemon does not accept on {}",
                socket.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it, and gives its clients some seconds before.
    fn quit(&mut self, socket: &Path, grace: u32) -> Result<()> {
        let (text, status) = control::ask(socket, &format!("quit -t {grace}"))?;
        ensure!(status == 0, "quit: {}", text.trim());
        let status = self.child.wait()?;
        ensure!(status.success(), "the control daemon: {status}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
