//! What a server has the kernel refuse to it: files before there is another thread, system calls before its
//! first client.
//!
//! Called by `engines` for servers and by `file_receiver`. Must not know system calls: the table is `sandbox`'s.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control::compute_mode::SoftwareModes;
use sandbox::{Error, Files, Profile, Reach, Setting, VARIABLE};

/// Confines this process, as far as an operator and the kernel let it, and says how far.
#[derive(Debug)]
pub struct Confinement {
    setting: Setting,
}

impl Confinement {
    /// What the environment asks for.
    pub fn from_environment() -> Result<Self> {
        let setting = sandbox::setting()?;
        Ok(Self { setting })
    }

    /// From now on a server on the software GPU opens nothing but what it reads.
    pub fn restrict_files(&self, say: impl Fn(&str)) -> Result<()> {
        if self.setting == Setting::Off {
            say(&format!("Files are not restricted: {VARIABLE}=off"));
            return Ok(());
        }
        let within = Reach {
            readable: readable(),
            ..Reach::default()
        };
        restrict(&within, "what a server reads", say)
    }

    /// The same for a server beside NVIDIA's driver, with the folder in which it keeps code; the driver is not open yet, where an operator asks for it: nobody
    /// has a list of what every driver opens. It makes no device file any more.
    pub fn restrict_driver_files(&self, code: Option<&Path>, say: impl Fn(&str)) -> Result<()> {
        if self.setting != Setting::Strict {
            return Ok(());
        }
        let mut within = Reach::of_driver();
        within.readable.extend(readable());
        within.readable.extend(libraries());
        within.writable.extend(written_by_driver());
        within.writable.extend(code.map(Path::to_path_buf));
        restrict(&within, "what the driver is known to need", say)
    }

    /// From now on, for all threads, the kernel refuses calls.
    pub fn filter_calls(&self, profile: Profile, say: impl Fn(&str)) -> Result<()> {
        if self.setting == Setting::Off {
            say(&format!("System calls are not filtered: {VARIABLE}=off"));
            return Ok(());
        }
        let profile = match (profile, self.setting) {
            (Profile::DriverServer, Setting::Strict) => Profile::StrictDriverServer,
            _ => profile,
        };
        match sandbox::filter_calls(profile) {
            Ok(()) => say(match profile {
                Profile::StrictDriverServer => {
                    "System calls are filtered: none is possible but those that a server and the driver are known to make"
                }
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

fn restrict(within: &Reach, what: &str, say: impl Fn(&str)) -> Result<()> {
    let files = sandbox::restrict_files(within)
        .with_context(|| format!("cannot restrict files; with {VARIABLE}=off it starts without"))?;
    say(&match files {
        Files::Restricted => format!("Files are restricted: nothing can be opened but {what}"),
        Files::InPart => {
            "Files are restricted in part: this kernel has an older version of Landlock".to_owned()
        }
        Files::Open => "Files are not restricted: this kernel has no Landlock".to_owned(),
    });
    Ok(())
}

/// Directories in which the driver's library may lie, and others that it loads.
fn libraries() -> Vec<PathBuf> {
    let named = std::env::var_os("OPENMPS_DRIVER").map(PathBuf::from);
    let named = named
        .as_deref()
        .and_then(Path::parent)
        .map(Path::to_path_buf);
    let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let searched = std::env::split_paths(&searched).collect::<Vec<_>>();
    let all = named.into_iter().chain(searched);
    all.filter(|path| path.is_absolute()).collect()
}

/// The driver's cache of what it compiled, unless it is to have none.
fn driver_cache() -> Option<PathBuf> {
    let named = std::env::var_os("CUDA_CACHE_PATH").map(PathBuf::from);
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".nv/ComputeCache"));
    let is_disabled = std::env::var_os("CUDA_CACHE_DISABLE").as_deref() == Some(OsStr::new("1"));
    let cache = named.or_else(usual).filter(|path| path.is_absolute());
    cache.filter(|_| !is_disabled)
}

/// Where a server keeps code for later ones of its user, if nobody has made it a folder: in the cache of NVIDIA's driver, which several users may have together.
pub fn code_folder() -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    Some(driver_cache()?.join(format!("openmps-code-{user}")))
}

/// The driver's cache, which is made if it is not there, and the directory in which the server is a client of NVIDIA's MPS.
fn written_by_driver() -> Vec<PathBuf> {
    let cache = driver_cache();
    if let Some(cache) = &cache {
        // The driver does without it, and so do we.
        let _ = std::fs::create_dir_all(cache);
    }
    let underlay = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map(PathBuf::from);
    let underlay = underlay.filter(|path| path.starts_with("/proc/self/fd"));
    cache.into_iter().chain(underlay).collect()
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
