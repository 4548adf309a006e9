//! Which engine a server drives, and how it is set up by the environment.

use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use control::log::Role;
use engine::Engine;
use engine_nvidia::NvidiaEngine;
use engine_soft::{Config, SoftEngine};

/// server.log, in the words of a server.
#[derive(Debug)]
struct ServerLog(control::log::Log);

impl server::Log for ServerLog {
    fn line(&self, starting: bool, text: &str) {
        self.0
            .line(if starting { Role::Other } else { Role::Server }, text);
    }
}

/// Runs this process as a server that a daemon started.
pub fn serve() -> ExitCode {
    let (daemon, log) = match control::server_process::adopt() {
        Ok(adopted) => adopted,
        Err(error) => {
            eprintln!("openmps: {error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Arc::new(ServerLog(log));
    let result = from_environment()
        .and_then(|engine| Ok(server::run(daemon, engine, Arc::<ServerLog>::clone(&log))?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.0.line(
                Role::Server,
                &format!("MPS server failed to start: {error:#}"),
            );
            ExitCode::FAILURE
        }
    }
}

/// How a daemon starts a server: this program again, with what the driver reads when it starts.
pub fn server_program() -> Command {
    let mut command = control::this_program();
    command.envs(engine_nvidia::ENVIRONMENT.iter().copied());
    command
}

/// The engine that the environment asks for. `OPENMPS_ENGINE` is `soft` or `nvidia`; without it, it
/// is NVIDIA's GPUs where there are any, else the software GPU. `OPENMPS_SOFT_DEVICES`,
/// `OPENMPS_SOFT_MEMORY` (bytes, or with K, M, G) and `OPENMPS_SOFT_WORKERS` set the latter up.
pub fn from_environment() -> Result<Arc<dyn Engine>> {
    match variable("OPENMPS_ENGINE").as_deref() {
        Some("soft") => return soft_from_environment(),
        Some("nvidia") | None => {}
        Some(name) => {
            bail!("OPENMPS_ENGINE={name}: no such engine; this build has `soft` and `nvidia`")
        }
    }
    match NvidiaEngine::open() {
        Ok(engine) => Ok(Arc::new(engine)),
        // A driver that is there and does not work is not passed over: whoever has a GPU wants it.
        Err(error) if error.is_no_gpu() && variable("OPENMPS_ENGINE").is_none() => {
            soft_from_environment()
        }
        Err(error) => Err(error).context("cannot use the GPU"),
    }
}

fn soft_from_environment() -> Result<Arc<dyn Engine>> {
    let devices = variable("OPENMPS_SOFT_DEVICES").map_or(Ok(1), |text| {
        text.parse()
            .with_context(|| format!("OPENMPS_SOFT_DEVICES={text} is no number of devices"))
    })?;
    let mut config = Config::with_devices(devices);
    if let Some(text) = variable("OPENMPS_SOFT_MEMORY") {
        config.memory = bytes(&text)
            .with_context(|| format!("OPENMPS_SOFT_MEMORY={text} is no size such as 512M or 4G"))?;
    }
    if let Some(text) = variable("OPENMPS_SOFT_WORKERS") {
        config.workers = text
            .parse()
            .with_context(|| format!("OPENMPS_SOFT_WORKERS={text} is no number of threads"))?;
    }
    Ok(Arc::new(
        SoftEngine::new(&config).context("cannot set up the software GPU")?,
    ))
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        (at, 'G' | 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("512M"), Some(512 << 20));
        assert_eq!(bytes("4G"), Some(4 << 30));
        for wrong in ["", "G", "-1M", "1.5G", "18446744073709551615K", "4 G"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
