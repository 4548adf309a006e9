//! `openmps cdi`: specifications of the Container Device Interface.
//!
//! Called by `main`. Must not know a specification's form: `platform::cdi` does.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use control::{AskError, Directories};
use platform::cdi::{DEFAULT_OUTPUT, KIND, Offer, Spec, parts};
use serde::Deserialize;

use platform::gpus::Gpu;

use crate::embedded::{self, CONTAINER_LIBRARY_FOLDER};
use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Writes a specification of the devices and their shares
    Generate(Generate),
}

#[derive(Debug, clap::Args)]
struct Generate {
    /// The file to write, `-` for standard output
    #[arg(long, value_name = "FILE", default_value = DEFAULT_OUTPUT)]
    output: PathBuf,
    /// Offer each device in so many equal parts too, as `<uuid>::<n>`
    #[arg(long, value_name = "N", default_value_t = 0)]
    replicas: u32,
    /// The folder on the host in which containers find the client library; it is put there
    #[arg(long, value_name = "DIR", default_value = CONTAINER_LIBRARY_FOLDER)]
    library_directory: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Command::Generate(arguments) = &arguments.command;
    let directories = Directories::from_environment().map_err(anyhow::Error::msg)?;
    let gpus = machine::gpus()?;
    let groups = match arguments.replicas {
        0 => BTreeMap::new(),
        replicas => groups(&directories, &gpus, replicas)?,
    };
    let library = std::path::absolute(&arguments.library_directory)?;
    let spec = Spec::new(&Offer {
        gpus: &gpus,
        pipe: &directories.pipe,
        library: &library,
        replicas: arguments.replicas,
        groups: &groups,
    })?;
    embedded::client_library_for_all(&library)?;
    if arguments.output == Path::new("-") {
        print!("{}", spec.json());
        return Ok(ExitCode::SUCCESS);
    }
    write_whole(&arguments.output, &spec.json())?;
    println!(
        "{}: {} devices",
        arguments.output.display(),
        spec.names().count()
    );
    for name in spec.names() {
        println!("  {KIND}={name}");
    }
    Ok(ExitCode::SUCCESS)
}

/// What the daemon says of a group that it made.
#[derive(Debug, Deserialize)]
struct Made {
    directory: PathBuf,
}

/// The daemon's group for each part: who is given a group's directory is held to its limits, with all
/// of its processes together, whatever variables it sets. Without a daemon there are none.
fn groups(
    directories: &Directories,
    gpus: &[Gpu],
    replicas: u32,
) -> Result<BTreeMap<String, PathBuf>> {
    let socket = directories.control_socket();
    let mut groups = BTreeMap::new();
    for part in parts(gpus, replicas)? {
        let limits = format!(
            "--memory {}={}M --percentage {}",
            part.uuid, part.slice.mib, part.slice.percentage
        );
        let add = format!("group add {} {limits} --json", part.group);
        let (mut text, mut status) = match control::ask(&socket, &add) {
            Ok(answer) => answer,
            Err(AskError::NoDaemon) => {
                eprintln!(
                    "openmps: no daemon answers on {}: parts are held to their limits by variables, \
                     each process alone\n  -> start the daemon first, and its groups hold whole \
                     containers to them",
                    socket.display()
                );
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(error).with_context(|| socket.display().to_string()),
        };
        if status != 0 && text.contains("is there already") {
            let set = format!("limit set --group {} {limits} --json", part.group);
            (text, status) = control::ask(&socket, &set)?;
            if status == 0 {
                groups.insert(part.name, directories.pipe.join("groups").join(&part.group));
                continue;
            }
        }
        if status != 0 {
            bail!("the daemon makes no group {}: {}", part.group, text.trim());
        }
        let made: Made = serde_json::from_str(&text).context("the daemon's answer")?;
        groups.insert(part.name, made.directory);
    }
    Ok(groups)
}

/// Writes a file by renaming: engines read the folder at any time, and half a file is a wrong one.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(context)?;
    // Engines look at names that end in .json or .yaml alone, so this one is none to them.
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
    file.write_all(text.as_bytes()).with_context(context)?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file()
        .set_permissions(readable)
        .with_context(context)?;
    file.persist(path).with_context(context)?;
    Ok(())
}
