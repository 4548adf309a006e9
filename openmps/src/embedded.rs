//! The files that this binary carries inside, and where they are put so that programs find them.
//!
//! Called by subcommands that give programs the library, and by `main` as ptxas. Must not know who loads a file,
//! nor what is in it.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::private_daemon::own_program;

/// The client library, `libcuda.so.1`.
const CLIENT: &[u8] = include_bytes!(env!("OPENMPS_CLIENT"));

/// Where the client library is put for containers, unless another folder is named.
pub const CONTAINER_LIBRARY_FOLDER: &str = "/var/lib/openmps/lib";

/// The management library, `libnvidia-ml.so.1`.
const NVML: &[u8] = include_bytes!(env!("OPENMPS_NVML_LIBRARY"));

/// What has NVRTC hand over PTX: for the loader's auditing, not for its path.
const NVRTC_AUDITOR: &[u8] = include_bytes!(env!("OPENMPS_NVRTC_AUDITOR"));

/// Its name.
const AUDITOR: &str = "libopenmps-nvrtc.so";

/// What lies in a loader's folder: names, contents, and the names for who links against them.
const LIBRARIES: [(&str, &[u8], &str); 2] = [
    ("libcuda.so.1", CLIENT, "libcuda.so"),
    ("libnvidia-ml.so.1", NVML, "libnvidia-ml.so"),
];

/// The n-body example.
const NBODY: &[u8] = include_bytes!(env!("OPENMPS_NBODY"));

/// The program of NVIDIA's that shows devices and who uses them.
const SMI: &str = "nvidia-smi";

/// The folder with the libraries, for a loader's path: the package's, if this program is installed with
/// them; else one of the user's own, into which they are put.
///
/// That folder belongs to the user and is named after the libraries' content, so that builds stay
/// apart and a running program keeps the file that it has mapped.
pub fn client_library() -> Result<PathBuf> {
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(installed) {
        return Ok(folder);
    }
    let folder = own_place().join(env!("OPENMPS_LIBRARIES_HASH"));
    client_library_in(&folder)?;
    Ok(folder)
}

/// The library with which the loader audits programs for NVRTC to hand over PTX: the package's, in a folder beside these
/// libraries that is on no path of libraries; else in one of the user's own.
pub fn nvrtc_auditor(libraries: &Path) -> Result<PathBuf> {
    let of_package = libraries.join("tools").join(AUDITOR);
    if is_safe(&of_package) && fs::read(&of_package).is_ok_and(|there| there == NVRTC_AUDITOR) {
        return Ok(of_package);
    }
    let folder = own_place().join(env!("OPENMPS_LIBRARIES_HASH"));
    private_folder(&folder)?;
    install(&folder, AUDITOR, NVRTC_AUDITOR)
}

/// This program under the name of ptxas. In a folder of its own, which is on no path of programs: it would hide
/// the toolkit's.
pub fn ptxas(libraries: &Path) -> Result<PathBuf> {
    under_name(libraries, "tools", "ptxas")
}

/// The folder in which this program is called nvidia-smi, for a path of programs.
pub fn smi_folder(libraries: &Path) -> Result<PathBuf> {
    let mut link = under_name(libraries, "bin", SMI)?;
    link.pop();
    Ok(link)
}

/// This program under another name: the package's link in a folder beside the libraries, or one in such a folder
/// of the user's own.
fn under_name(libraries: &Path, folder: &str, name: &str) -> Result<PathBuf> {
    let program = own_program()?;
    let of_package = libraries.join(folder).join(name);
    let there = fs::canonicalize(&of_package);
    if there.is_ok_and(|there| fs::canonicalize(&program).is_ok_and(|program| program == there)) {
        return Ok(of_package);
    }
    named(&own_place().join(folder), name)
}

/// This program under another name: a link in a folder of the user's own.
fn named(folder: &Path, name: &str) -> Result<PathBuf> {
    let program = own_program()?;
    private_folder(folder)?;
    let fresh = folder.join(format!("{name}-{}", std::process::id()));
    let link = folder.join(name);
    if fs::read_link(&link).is_ok_and(|target| target == program) {
        return Ok(link);
    }
    // Another program may be at it: the name always leads somewhere.
    let _ = fs::remove_file(&fresh);
    symlink(&program, &fresh)
        .and_then(|()| fs::rename(&fresh, &link))
        .with_context(|| format!("cannot make {}", link.display()))?;
    Ok(link)
}

/// The folder that holds what is put anywhere for this user's programs.
fn own_place() -> PathBuf {
    match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if Path::new(&cache).is_absolute() => PathBuf::from(cache).join("openmps"),
        (_, Some(home)) if Path::new(&home).is_absolute() => {
            PathBuf::from(home).join(".cache/openmps")
        }
        _ => std::env::temp_dir().join(format!("openmps-{}", rustix::process::getuid().as_raw())),
    }
}

/// Whether nobody but root and this user may have put it there.
fn is_safe(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::metadata(path)
        .is_ok_and(|facts| [0, user].contains(&facts.uid()) && facts.mode() & 0o022 == 0)
}

/// Where the package of a program has put these very libraries: `bin/openmps` goes with `lib/openmps`.
fn installed(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?.parent()?.join("lib/openmps");
    let is_there = |&(name, content, _): &(&str, &[u8], &str)| {
        let library = folder.join(name);
        is_safe(&library) && fs::read(&library).is_ok_and(|there| there == content)
    };
    (is_safe(&folder) && LIBRARIES.iter().all(is_there)).then_some(folder)
}

/// Puts the libraries into this folder, which is made for it.
pub fn client_library_in(folder: &Path) -> Result<()> {
    private_folder(folder)?;
    library_files(folder)
}

fn library_files(folder: &Path) -> Result<()> {
    for (name, content, link) in LIBRARIES {
        install(folder, name, content)?;
        let link = folder.join(link);
        match symlink(name, &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {}", link.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts the libraries into this folder for programs of every user, containers' included.
pub fn client_library_for_all(folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    own_folder(folder)?;
    library_files(folder)
}

/// Puts the n-body example into this folder and returns its path.
pub fn nbody_in(folder: &Path) -> Result<PathBuf> {
    install(folder, "nbody", NBODY)
}

/// A folder that nobody else can write to: what a loader takes code from must be the user's own.
fn private_folder(folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    own_folder(folder)
}

fn own_folder(folder: &Path) -> Result<()> {
    let facts = fs::metadata(folder)?;
    if facts.uid() != rustix::process::geteuid().as_raw() || facts.mode() & 0o022 != 0 {
        bail!(
            "{} belongs to user {} (mode {:o}), and programs' code must be this user's alone: be that \
             user, name another folder, or remove this one",
            folder.display(),
            facts.uid(),
            facts.mode() & 0o777
        );
    }
    Ok(())
}

/// Writes a file by renaming, so that nobody ever sees half of it.
fn install(folder: &Path, name: &str, content: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    if fs::read(&path).is_ok_and(|there| there == content) {
        return Ok(path);
    }
    let context = || format!("cannot write {}", path.display());
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
    file.write_all(content).with_context(context)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o755))
        .with_context(context)?;
    // A program that is still open for writing cannot be run: the descriptor must be closed first.
    let (handle, written) = file.into_parts();
    drop::<File>(handle);
    written.persist(&path).with_context(context)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_another_name() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("bin");
        let link = named(&folder, SMI).unwrap();
        let program = own_program().unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), program);
        // Another build's.
        fs::remove_file(&link).unwrap();
        symlink("/nonexistent/openmps", &link).unwrap();
        assert_eq!(named(&folder, SMI).unwrap(), link);
        assert_eq!(fs::read_link(&link).unwrap(), program);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn the_package_s_name_of_this_program_is_taken() {
        let libraries = tempfile::tempdir().unwrap();
        let tools = libraries.path().join("tools");
        fs::create_dir(&tools).unwrap();
        symlink(own_program().unwrap(), tools.join("ptxas")).unwrap();
        assert_eq!(ptxas(libraries.path()).unwrap(), tools.join("ptxas"));
    }

    #[test]
    fn the_package_s_library_is_taken_if_it_is_this_one_and_safe() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("bin/openmps");
        assert_eq!(installed(&program), None);
        let folder = place.path().join("lib/openmps");
        client_library_for_all(&folder).unwrap();
        assert_eq!(installed(&program), Some(folder.clone()));
        // Another release's.
        let library = folder.join("libcuda.so.1");
        fs::write(&library, "other").unwrap();
        assert_eq!(installed(&program), None);
        fs::write(&library, CLIENT).unwrap();
        // One that lacks the other library.
        let nvml = folder.join("libnvidia-ml.so.1");
        fs::remove_file(&nvml).unwrap();
        assert_eq!(installed(&program), None);
        fs::write(&nvml, NVML).unwrap();
        // One that everybody may change.
        assert_eq!(installed(&program), Some(folder));
        fs::set_permissions(&library, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(installed(&program), None);
    }
}
