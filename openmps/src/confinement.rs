//! What a server has the kernel refuse to it: files before there is another thread, system calls before its
//! first client.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control::compute_mode::SoftwareModes;
use sandbox::{Error, Files, Profile, VARIABLE};

/// Confines this process, as far as an operator and the kernel let it, and says how far.
#[derive(Debug)]
pub struct Confinement {
    is_wanted: bool,
}

impl Confinement {
    /// What the environment asks for.
    pub fn from_environment() -> Result<Self> {
        let is_wanted = sandbox::is_wanted().map_err(anyhow::Error::msg)?;
        Ok(Self { is_wanted })
    }

    /// From now on a server on the software GPU opens nothing but what it reads. Where a driver is this is not
    /// for: what it writes, and where, is not known.
    pub fn restrict_files(&self, say: impl Fn(&str)) -> Result<()> {
        if !self.is_wanted {
            say(&format!("Files are not restricted: {VARIABLE}=off"));
            return Ok(());
        }
        let readable = readable();
        let readable: Vec<&Path> = readable.iter().map(PathBuf::as_path).collect();
        let files = sandbox::restrict_files(&readable).with_context(|| {
            format!("cannot restrict files; with {VARIABLE}=off it starts without")
        })?;
        say(match files {
            Files::Restricted => {
                "Files are restricted: nothing can be opened but what a server reads"
            }
            Files::InPart => {
                "Files are restricted in part: this kernel has an older version of Landlock"
            }
            Files::Open => "Files are not restricted: this kernel has no Landlock",
        });
        Ok(())
    }

    /// From now on, for all threads, the kernel refuses calls.
    pub fn filter_calls(&self, profile: Profile, say: impl Fn(&str)) -> Result<()> {
        if !self.is_wanted {
            say(&format!("System calls are not filtered: {VARIABLE}=off"));
            return Ok(());
        }
        match sandbox::filter_calls(profile) {
            Ok(()) => say(match profile {
                Profile::Server | Profile::Daemon => {
                    "System calls are filtered: none is possible but those that a server makes"
                }
                Profile::DriverServer | Profile::DriverDaemon => {
                    "System calls are filtered: those that nobody is to make are refused"
                }
            }),
            Err(error @ Error::Missing) => say(&format!("System calls are not filtered: {error}")),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("with {VARIABLE}=off it starts without a filter"));
            }
        }
        Ok(())
    }
}

/// What a server reads beside what every server does: compute modes, its time zone, its own program.
fn readable() -> Vec<PathBuf> {
    let zone = std::env::var_os("TZ").map(|zone| {
        let zone = zone.to_string_lossy().into_owned();
        PathBuf::from(zone.strip_prefix(':').unwrap_or(&zone))
    });
    let zones = std::env::var_os("TZDIR").map(PathBuf::from);
    let named = [zone, zones].into_iter().flatten();
    let own = std::env::current_exe().ok();
    let mut all: Vec<PathBuf> = named.filter(|path| path.is_absolute()).chain(own).collect();
    // It may be made while the server runs.
    let modes = SoftwareModes::directory();
    let modes = std::path::absolute(&modes).unwrap_or(modes);
    all.extend(
        modes
            .ancestors()
            .find(|path| path.exists())
            .map(Path::to_path_buf),
    );
    all
}
