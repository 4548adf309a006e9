//! What runs in place of yunion-mps-daemon: compute modes, a control daemon, its limits; and everything
//! put back when it ends.
//!
//! Called by `cloudpods` for the subcommand that serves. Must not know which devices are shared: the plan says it.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use control::AskError;
use control::compute_mode::{Changed, DeviceModes, ModeError};
use platform::cloudpods::{HostConf, Plan};
use platform::gpus::{ComputeMode, Gpu};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGQUIT, SIGTERM};

use crate::machine;
use crate::private_daemon::own_program;

/// How long the daemon may take to accept.
const PATIENCE: Duration = Duration::from_secs(10);

/// The file, in the pipe directory, with the modes that were changed: another than the control daemon's
/// own, which would give them back as soon as it starts.
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
        control::open_directory(directory)
            .map_err(|what| conf.bad_directory(directory, what.to_string()))?;
    }
    // Before anything is changed, so that no signal finds it half done.
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGCHLD])?;
    let mut changed = Changed::read(conf.pipe.join(CHANGED)).map_err(anyhow::Error::msg)?;
    set_modes(&plan, &mut changed);
    let result = serve(conf, &plan, grace, &mut signals);
    put_back(&mut changed);
    result
}

/// Devices whose modes are set through whatever drives them.
#[derive(Debug)]
struct Gpus(Vec<Gpu>);

impl DeviceModes for Gpus {
    fn modes(&self) -> Result<Vec<(String, u32)>, ModeError> {
        let each = self.0.iter();
        Ok(each
            .map(|gpu| (gpu.uuid.clone(), gpu.mode.number()))
            .collect())
    }

    fn set(&self, uuid: &str, mode: u32) -> Result<(), ModeError> {
        let refused = |why: &str| ModeError::Devices(why.into());
        let gpu = self.0.iter().find(|gpu| gpu.uuid == uuid);
        let gpu = gpu.ok_or_else(|| refused("this machine does not have it now"))?;
        let mode = ComputeMode::numbered(mode).ok_or_else(|| refused("there is no such mode"))?;
        machine::set_mode(gpu, mode).map_err(|error| refused(&format!("{error:#}")))
    }
}

/// Sets the devices' modes where that is allowed: elsewhere clients are served all the same, and only
/// somebody who goes around the daemon would notice.
fn set_modes(plan: &Plan, changed: &mut Changed) {
    let exclusive = ComputeMode::ExclusiveProcess;
    let gpus = Gpus(plan.shared.iter().map(|one| one.gpu.clone()).collect());
    for gpu in gpus.0.iter().filter(|gpu| gpu.mode != exclusive) {
        match changed.set(&gpus, &gpu.uuid, gpu.mode.number(), exclusive.number()) {
            Ok(()) => println!("GPU {}: compute mode {exclusive}", gpu.index),
            Err(error) => eprintln!("openmps: GPU {} stays {}: {error}", gpu.index, gpu.mode),
        }
    }
}

/// Gives the devices the modes that they had, also those that a former run did not give back.
fn put_back(changed: &mut Changed) {
    if changed.is_empty() {
        return;
    }
    let gpus = Gpus(machine::gpus().unwrap_or_default());
    for line in changed.restore(&gpus) {
        println!("{line}");
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
    control::notify::notify_service_manager("READY=1");
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
        control::notify::notify_service_manager("STOPPING=1");
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
