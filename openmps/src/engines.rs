//! Which engine a server drives, and how it is set up by the environment.
//!
//! Called by `main` for a server's process, and by `machine`, which looks at devices. Owns the choice between the
//! engines; it must not know sessions.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control::compute_mode::{self, DeviceModes, ModeError, SoftwareModes};
use control::log::{About, Role};
use control::size_in_bytes;
use engine::{DeviceFacts, Engine};
use engine_nvidia::{NvidiaEngine, Nvml, OpenError};
use engine_soft::{CodeFiles, Config, SoftEngine};
use parking_lot::Mutex;
use protocol::control_messages::HANDS_OVER;
use sandbox::Profile;
use server::{ComputeModePolicy, ContextRefused};

use crate::confinement::{self, Confinement};
use crate::file_receiver;

/// How long a server that has ended waits for its threads.
const LAST_THREADS: Duration = Duration::from_secs(2);

/// server.log, in the words of a server.
#[derive(Debug)]
struct ServerLog(control::log::Log);

impl server::Log for ServerLog {
    fn line(&self, starting: bool, text: &str) {
        self.0
            .line(if starting { Role::Other } else { Role::Server }, text);
    }

    fn line_about(&self, user: u32, group: Option<&str>, text: &str) {
        let about = group.map_or(About::User(user), |group| About::Group(group.to_owned()));
        self.0.line_about(&about, Role::Server, text);
    }
}

/// How a server's process comes to its end.
enum End {
    Done,
    /// Something of it waits for work that does not end.
    Stuck,
    HandsOver,
}

/// Runs this process as a server that a daemon started.
pub fn serve() -> ExitCode {
    make_device_files();
    let made = make_code_folder();
    let (daemon, log) = match control::servers::process::connect_to_daemon() {
        Ok(adopted) => adopted,
        Err(error) => {
            eprintln!("openmps: {error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Arc::new(ServerLog(log));
    // Before there is another thread.
    let files = match file_receiver::start() {
        Ok(files) => files,
        Err(error) => {
            log.0.line(
                Role::Server,
                &format!("MPS server failed to start: no process to receive files: {error}"),
            );
            return ExitCode::FAILURE;
        }
    };
    let underlay = match control::servers::process::receive_underlay(&daemon) {
        Ok(underlay) => underlay,
        Err(error) => {
            log.0.line(
                Role::Server,
                &format!("MPS server failed to start: {error}"),
            );
            return ExitCode::FAILURE;
        }
    };
    let folder = made.unwrap_or_else(|error| {
        let text = format!("Code is not kept for later servers: {error}");
        log.0.line(Role::Server, &text);
        None
    });
    let result = open_confined(&log, folder).and_then(|(engine, gate)| {
        if underlay.is_some() {
            log.0.line(
                Role::Server,
                "NVIDIA's MPS runs beneath this server, which is its client",
            );
        }
        let log = Arc::<ServerLog>::clone(&log);
        let left = Arc::downgrade(&engine);
        let settings = server::Settings {
            compute_modes: gate,
            held: size_variable("OPENMPS_SERVER_MEMORY")?,
            watchdog: watchdog_variable()?,
            files,
            serves_one: variable(control::servers::process::ONE_CLIENT_VARIABLE).is_some(),
            has_others: variable(control::servers::process::ONE_OF_SEVERAL_VARIABLE).is_some(),
        };
        if server::run_with(daemon, engine, log, settings)? == server::Outcome::HandsOver {
            return Ok(End::HandsOver);
        }
        // Threads that have said that they are done may not quite be.
        let until = Instant::now() + LAST_THREADS;
        while left.strong_count() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(match left.strong_count() {
            0 => End::Done,
            _ => End::Stuck,
        })
    });
    match result {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::HandsOver) => {
            // SAFETY: it has no preconditions. Destructors of threads that serve clients, and the driver's own end with a
            // device that is lost, would only keep the clients waiting.
            unsafe { libc::_exit(HANDS_OVER.into()) }
        }
        Ok(End::Stuck) => {
            // A session waits for work that does not end, and so would the driver's own end: nothing but
            // that of the process ends it.
            let own = rustix::process::getpid();
            let killed = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            killed.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
        }
        Err(error) => {
            log.0.line(
                Role::Server,
                &format!("MPS server failed to start: {error:#}"),
            );
            ExitCode::FAILURE
        }
    }
}

/// What the environment asks for, in a process that may from then on do no more than a server of it needs.
fn open_confined(
    log: &Arc<ServerLog>,
    folder: Option<PathBuf>,
) -> Result<(Arc<dyn Engine>, Box<dyn ComputeModePolicy>)> {
    let say = |text: &str| log.0.line(Role::Server, text);
    let confinement = Confinement::from_environment()?;
    if variable("OPENMPS_ENGINE").as_deref() != Some("soft") {
        // The driver has threads, which inherit it.
        confinement.restrict_driver_files(folder.as_deref(), say)?;
    }
    let folder = folder.or_else(confinement::code_folder);
    let nvidia = || {
        let engine = NvidiaEngine::open()?;
        let later = Arc::clone(log);
        let started = engine.load_ahead(folder.as_deref(), move |text| {
            later.0.line(Role::Server, text);
        });
        if let Err(error) = started {
            say(&format!("No code is loaded ahead: {error}"));
        }
        let engine: Arc<dyn Engine> = Arc::new(engine);
        // NVIDIA's driver keeps to the modes of its devices.
        let gate: Box<dyn ComputeModePolicy> = Box::new(server::EnforcedByDriver);
        Ok::<_, OpenError>((engine, gate, Profile::DriverServer))
    };
    let soft = || {
        // Its files are open before none can be.
        let code = folder.as_deref().and_then(|folder| open_code(log, folder));
        // The engine has threads, which inherit it.
        confinement.restrict_files(say)?;
        let (engine, gate) = soft_with_gate(code)?;
        Ok((engine, gate, Profile::Server))
    };
    let (engine, gate, profile) = choose(nvidia, soft)?;
    // The driver may have had to make its device files first.
    confinement.filter_calls(profile, say)?;
    Ok((engine, gate))
}

/// The files in which the software GPU keeps compiled code, beside the images that the other engine keeps there.
fn open_code(log: &Arc<ServerLog>, folder: &Path) -> Option<CodeFiles> {
    let later = Arc::clone(log);
    let say = move |text: &str| later.0.line(Role::Server, text);
    let opened = CodeFiles::open(&folder.join(engine_soft::FOLDER), Box::new(say));
    let not_kept = |error: &std::io::Error| {
        let text = format!("Compiled code is not kept for later servers: {error}");
        log.0.line(Role::Server, &text);
    };
    opened.inspect_err(not_kept).ok()
}

/// The bytes that a variable of the environment asks for, if it is set.
fn size_variable(name: &str) -> Result<Option<u64>> {
    let Some(text) = variable(name) else {
        return Ok(None);
    };
    let bytes = size_in_bytes(&text);
    let bytes = bytes.with_context(|| format!("{name}={text} is not a size such as 512M or 4G"))?;
    Ok(Some(bytes))
}

/// How long nothing may end on a device before the server says so.
fn watchdog_variable() -> Result<Option<Duration>> {
    match variable("OPENMPS_WATCHDOG").as_deref() {
        None => Ok(Some(server::WATCHDOG_PATIENCE)),
        Some("off") => Ok(None),
        Some(text) => {
            let time = protocol::limits::kernel_time(text).ok();
            let time = time.with_context(|| {
                format!("OPENMPS_WATCHDOG={text} is no time such as 30s, nor off")
            })?;
            Ok(Some(time))
        }
    }
}

/// Has NVIDIA's helper make the device files that the driver needs, as the driver does by itself: the helper is
/// set-uid, and a server that becomes another user can run no such program any more. Whether it worked the
/// driver says.
fn make_device_files() {
    const HELPER: &str = "/usr/bin/nvidia-modprobe";
    let exists = |path: &str| Path::new(path).exists();
    let is_wanted = variable("OPENMPS_ENGINE").as_deref() != Some("soft");
    if is_wanted
        && rustix::process::geteuid().is_root()
        && exists(HELPER)
        && !exists("/dev/nvidia-uvm")
    {
        let mut helper = Command::new(HELPER);
        // Standard input is the daemon.
        helper.args(["-u", "-c", "0"]).stdin(Stdio::null());
        let _ = helper.status();
    }
}

/// Makes the folder in which a server that becomes another user keeps code, which has no home folder: unless nothing is to be
/// kept or the driver's cache is named.
fn make_code_folder() -> Result<Option<PathBuf>, control::FileError> {
    let is_wanted = variable("CUDA_CACHE_PATH").is_none()
        && variable("CUDA_CACHE_DISABLE").as_deref() != Some("1");
    match control::servers::process::user_to_be() {
        Some((uid, gid)) if is_wanted => control::servers::code_folder::make(uid, gid).map(Some),
        _ => Ok(None),
    }
}

/// How a daemon starts a server: a program of ours, with what the driver reads when it starts. `mps` is the pipe
/// directory of NVIDIA's MPS, if its driver is to be a client of that.
pub fn server_program(program: &Path, mps: Option<&str>) -> Command {
    let mut command = Command::new(program);
    let Some(pipe) = mps else {
        command.envs(engine_nvidia::ENVIRONMENT.iter().copied());
        return command;
    };
    let connections = variable("OPENMPS_UNDERLAY_CONNECTIONS");
    for (name, value) in engine_nvidia::mps_environment(pipe, connections.as_deref()) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// How a daemon starts the supervisor of the underlay: this program again.
pub fn underlay_program() -> Command {
    let mut command = control::this_program();
    command.arg("underlay-supervisor");
    command
}

/// What the devices are of the engine that a server would drive. It is for a process that [`server_program`]
/// starts.
pub fn devices() -> Result<Vec<DeviceFacts>> {
    choose(NvidiaEngine::installed_devices, || {
        Ok(soft_with_gate(None)?.0.devices().to_vec())
    })
}

/// Takes what the environment asks for of NVIDIA's GPUs, or of the software GPU. `OPENMPS_ENGINE` is `soft` or
/// `nvidia`; without it, it is NVIDIA's GPUs where there are any, else the software GPU. `OPENMPS_SOFT_DEVICES`,
/// `OPENMPS_SOFT_MEMORY` (bytes, or with K, M, G), `OPENMPS_SOFT_WORKERS` and `OPENMPS_SOFT_CAPABILITY` (such
/// as 9.0) set the latter up; with `OPENMPS_SOFT_OVERCOMMIT=1` clients may allocate what the machine does
/// not have.
fn choose<T>(
    nvidia: impl FnOnce() -> Result<T, OpenError>,
    soft: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match variable("OPENMPS_ENGINE").as_deref() {
        Some("soft") => return soft(),
        Some("nvidia") | None => {}
        Some(name) => {
            bail!("OPENMPS_ENGINE={name}: no such engine; this build has `soft` and `nvidia`")
        }
    }
    match nvidia() {
        // A driver that is there and does not work is not passed over: whoever has a GPU wants it.
        Err(error) if error.is_no_gpu() && variable("OPENMPS_ENGINE").is_none() => soft(),
        taken => taken.context("cannot use the GPU"),
    }
}

/// Whether the environment says which engine it is to be: else who has no GPU gets the software GPU.
pub fn is_named() -> bool {
    variable("OPENMPS_ENGINE").is_some()
}

/// Opens the compute modes of the devices that a server would have: NVIDIA's through their management
/// library, the software GPU's in their file.
pub fn open_modes() -> Result<Option<Box<dyn DeviceModes>>, ModeError> {
    let asked = variable("OPENMPS_ENGINE");
    if asked.as_deref() != Some("soft")
        && let Some(nvml) = Nvml::open().map_err(of_devices)?
        // Where there is no card, a server takes the software GPU, unless it was told not to.
        && (asked.is_some() || !nvml.modes().map_err(of_devices)?.is_empty())
    {
        return Ok(Some(Box::new(NvidiaModes(nvml))));
    }
    if asked.as_deref() == Some("nvidia") {
        return Ok(None);
    }
    let (_, numbers) = soft_config().map_err(|error| of_devices(format!("{error:#}")))?;
    Ok(Some(Box::new(SoftwareModes::new(numbers))))
}

/// What the devices' own library or settings say.
fn of_devices(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ModeError {
    ModeError::Devices(error.into())
}

/// NVIDIA's devices.
#[derive(Debug)]
struct NvidiaModes(Nvml);

impl DeviceModes for NvidiaModes {
    fn modes(&self) -> Result<Vec<(String, u32)>, ModeError> {
        let modes = self.0.modes().map_err(of_devices)?.into_iter();
        let all = modes.map(|device| (device.uuid, device.mode)).collect();
        let by_bus = variable("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID");
        offered(all, variable("CUDA_VISIBLE_DEVICES").as_deref(), by_bus).map_err(of_devices)
    }

    fn set(&self, uuid: &str, mode: u32) -> Result<(), ModeError> {
        self.0.set(uuid, mode).map_err(of_devices)
    }
}

/// Those of all devices that CUDA_VISIBLE_DEVICES leaves to the daemon: the others' modes are not its to
/// set. Numbers there mean what they mean here only if CUDA counts by the bus too.
fn offered(
    all: Vec<(String, u32)>,
    visible: Option<&str>,
    by_bus: bool,
) -> Result<Vec<(String, u32)>> {
    let Some(visible) = visible else {
        return Ok(all);
    };
    let mut some = Vec::new();
    for entry in visible.split(',').map(str::trim) {
        let found = match entry.parse::<usize>() {
            Ok(_) if !by_bus && all.len() > 1 => {
                bail!(
                    "CUDA_VISIBLE_DEVICES={visible} names devices by numbers, which need not be the \
                     management library's: name them by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID"
                );
            }
            Ok(number) => all.get(number),
            Err(_) if entry.is_empty() => None,
            Err(_) => all.iter().find(|(uuid, _)| uuid.starts_with(entry)),
        };
        // What is behind an entry that names nothing is not visible.
        let Some(device) = found else { break };
        if !some.contains(device) {
            some.push(device.clone());
        }
    }
    Ok(some)
}

/// The compute modes of the software GPU's devices, as a server keeps to them.
#[derive(Debug)]
struct SoftwareGate {
    modes: SoftwareModes,
    /// The numbers of the devices among all of the software GPU's, which modes go by.
    numbers: Vec<u32>,
    /// Devices that are this process's alone.
    taken: Mutex<BTreeMap<u32, File>>,
}

fn soft_with_gate(
    code: Option<CodeFiles>,
) -> Result<(Arc<dyn Engine>, Box<dyn ComputeModePolicy>)> {
    let (config, numbers) = soft_config()?;
    let engine = SoftEngine::with_numbers(&config, &numbers, code).with_context(|| {
        format!(
            "cannot set up the software GPU (OPENMPS_SOFT_DEVICES={}, OPENMPS_SOFT_MEMORY={}, \
             OPENMPS_SOFT_WORKERS={})",
            config.devices, config.memory, config.workers
        )
    })?;
    let gate = SoftwareGate {
        modes: SoftwareModes::new(numbers.clone()),
        numbers,
        taken: Mutex::default(),
    };
    Ok((Arc::new(engine), Box::new(gate)))
}

impl SoftwareGate {
    /// What the modes' file calls a device of this process's engine.
    fn number(&self, device: u32) -> u32 {
        let number = self.numbers.get(device as usize);
        number.copied().unwrap_or(device)
    }
}

impl ComputeModePolicy for SoftwareGate {
    fn mode(&self, device: u32) -> u32 {
        self.modes.in_force(self.number(device))
    }

    fn open(&self, device: u32) -> Result<(), ContextRefused> {
        let device = self.number(device);
        let mut taken = self.taken.lock();
        let mode = self
            .modes
            .get(device)
            .map_err(|error| ContextRefused::Unknown(error.to_string()))?;
        match mode {
            compute_mode::PROHIBITED => Err(ContextRefused::ByMode),
            compute_mode::EXCLUSIVE_PROCESS if !taken.contains_key(&device) => {
                // Nobody has it whose lock cannot be opened.
                let lock = self
                    .modes
                    .lock_exclusive(device)
                    .map_err(|error| ContextRefused::Unknown(error.to_string()))?;
                // Another process has it.
                taken.insert(device, lock.ok_or(ContextRefused::ByMode)?);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// How the software GPU is set up, and which of its devices are this process's.
fn soft_config() -> Result<(Config, Vec<u32>)> {
    let devices = variable("OPENMPS_SOFT_DEVICES").map_or(Ok(1), |text| {
        text.parse()
            .with_context(|| format!("OPENMPS_SOFT_DEVICES={text} is not a number of devices"))
    })?;
    let mut config = Config::with_devices(devices);
    if let Some(bytes) = size_variable("OPENMPS_SOFT_MEMORY")? {
        config.memory = bytes;
    }
    if let Some(text) = variable("OPENMPS_SOFT_OVERCOMMIT") {
        config.machine = match text.trim() {
            "0" => config.machine,
            "1" => u64::MAX,
            _ => bail!("OPENMPS_SOFT_OVERCOMMIT={text} is neither 0 nor 1"),
        };
    }
    if let Some(text) = variable("OPENMPS_SOFT_WORKERS") {
        config.workers = text
            .parse()
            .with_context(|| format!("OPENMPS_SOFT_WORKERS={text} is not a number of threads"))?;
    }
    if let Some(text) = variable("OPENMPS_SOFT_CAPABILITY") {
        config.capability = capability(&text)?;
    }
    let numbers = soft_numbers(devices, variable("CUDA_VISIBLE_DEVICES").as_deref());
    Ok((config, numbers))
}

/// A compute capability as text, such as 9.0.
fn capability(text: &str) -> Result<u32> {
    let known = |number: &u32| format!("{}.{}", number / 10, number % 10) == text.trim();
    engine_soft::CAPABILITIES
        .into_iter()
        .find(known)
        .with_context(|| {
            let all =
                engine_soft::CAPABILITIES.map(|number| format!("{}.{}", number / 10, number % 10));
            format!(
                "OPENMPS_SOFT_CAPABILITY={text} is none of {}",
                all.join(", ")
            )
        })
}

/// Whether what starts here as a daemon's server would drive the software GPU: told so, or on a machine
/// without an NVIDIA device.
pub fn is_soft() -> bool {
    match variable("OPENMPS_ENGINE").as_deref() {
        Some(name) => name == "soft",
        None => !has_device_files(),
    }
}

/// Whether a server, now or later, may drive NVIDIA's GPUs: told so, or on a machine that has a driver.
pub fn may_drive_hardware() -> bool {
    match variable("OPENMPS_ENGINE").as_deref() {
        Some(name) => name != "soft",
        None => has_device_files() || engine_nvidia::installed().is_some(),
    }
}

fn has_device_files() -> bool {
    ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"]
        .iter()
        .any(|node| Path::new(node).exists())
}

/// Those of so many devices that CUDA_VISIBLE_DEVICES leaves to a daemon, which counts them anew, as the
/// driver does with cards. A list that names none of them is about cards, and hides nothing here.
fn soft_numbers(devices: u32, visible: Option<&str>) -> Vec<u32> {
    // More than there can be is the engine's to refuse.
    let all = (0..devices.min(64)).map(|number| (server::uuid(&engine_soft::uuid(number)), number));
    let all: Vec<(String, u32)> = all.collect();
    let everything = all.iter().map(|(_, number)| *number).collect();
    match offered(all, visible, true) {
        Ok(some) if !some.is_empty() => some.into_iter().map(|(_, number)| number).collect(),
        _ => everything,
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_of_devices() {
        assert_eq!(capability("9.0").unwrap(), 90);
        assert_eq!(capability(" 12.1").unwrap(), 121);
        for bad in ["", "90", "9.1", "9", "sm_90", "12.10"] {
            let error = capability(bad).unwrap_err().to_string();
            assert!(
                error.contains("OPENMPS_SOFT_CAPABILITY") && error.contains("12.1"),
                "{error}"
            );
        }
    }

    #[test]
    fn modes_are_set_of_the_daemons_own_devices_only() {
        let all: Vec<(String, u32)> = [("GPU-a1", 0), ("GPU-b2", 3), ("GPU-b3", 0)]
            .map(|(uuid, mode)| (uuid.to_owned(), mode))
            .into();
        let names = |visible, by_bus| {
            let some = offered(all.clone(), visible, by_bus)?;
            Ok::<_, anyhow::Error>(some.into_iter().map(|(uuid, _)| uuid).collect::<Vec<_>>())
        };
        assert_eq!(names(None, false).unwrap().len(), 3);
        assert_eq!(
            names(Some("GPU-b2, GPU-a"), false).unwrap(),
            ["GPU-b2", "GPU-a1"]
        );
        assert_eq!(names(Some("2,0,2"), true).unwrap(), ["GPU-b3", "GPU-a1"]);
        assert_eq!(names(Some("1,9,0"), true).unwrap(), ["GPU-b2"]);
        assert!(names(Some(""), true).unwrap().is_empty());
        assert!(
            names(Some("1"), false)
                .unwrap_err()
                .to_string()
                .contains("PCI_BUS_ID")
        );
    }

    #[test]
    fn a_daemon_has_the_software_devices_that_are_visible() {
        let second = server::uuid(&engine_soft::uuid(1));
        assert_eq!(soft_numbers(3, None), [0, 1, 2]);
        assert_eq!(soft_numbers(3, Some("2,0")), [2, 0]);
        assert_eq!(soft_numbers(3, Some(&second)), [1]);
        assert_eq!(soft_numbers(3, Some("1,9,0")), [1]);
        for of_cards in ["", "-1", "GPU-of-a-card"] {
            assert_eq!(soft_numbers(2, Some(of_cards)), [0, 1], "{of_cards}");
        }
    }
}
