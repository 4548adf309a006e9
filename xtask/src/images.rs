//! `cargo xtask images`: the container images, built from scratch, with no registry and no builder.
//!
//! An image is one layer: our programs and the files of the machine's C library that they load, as
//! `ldd` names them. The archives in `target/images` are what `docker load` and `podman load` read.
//!
//! Called by `main`, and by tests of platforms and Kubernetes, which load the archives. Must not know which engine
//! loads them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::development_build;
use crate::package::libraries;
use crate::shell::{cargo, root, run};

/// Where a program's container has the client library.
const LIBRARY: &str = "usr/local/openmps/lib";

/// The daemon's image.
pub const OPENMPS: &str = "localhost/openmps";

/// The n-body program's image.
pub const NBODY: &str = "localhost/openmps-nbody";

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// From the development build, which is faster made and larger
    #[arg(long)]
    debug: bool,
}

/// Makes the images and says how to load them.
pub fn images(arguments: &Arguments) -> Result<()> {
    for archive in build(arguments.debug)? {
        let size = fs::metadata(&archive)?.len() / 1_000_000;
        println!("{}: {size} MB", archive.display());
        println!(
            "  docker load -i {0}   or   podman load -i {0}",
            archive.display()
        );
    }
    Ok(())
}

/// Makes the images; gives their archives, the daemon's first.
pub fn build(debug: bool) -> Result<[PathBuf; 2]> {
    const WORDS: [&str; 4] = ["--package", "openmps", "--features", "kubernetes"];
    let program = if debug {
        development_build::program("openmps", &WORDS)?
    } else {
        run(cargo().args(["build", "--release"]).args(WORDS))?;
        root().join("target/release/openmps")
    };
    let embedded = root().join("target/embedded/release");
    let nbody = embedded.join("nbody");

    let daemon = Tree::new("openmps")?;
    daemon.program(&program, "openmps")?;
    for name in [
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-smi",
    ] {
        symlink("openmps", daemon.0.join("usr/bin").join(name))?;
    }
    daemon.libraries(&embedded)?;
    for folder in ["var/log/nvidia-mps", "var/lib/openmps"] {
        fs::create_dir_all(daemon.0.join(folder))?;
    }
    let daemon = daemon.pack(
        OPENMPS,
        &json!({
            "Env": ["PATH=/usr/bin"],
            "Cmd": ["openmps", "compose", "daemon", "--library-directory", format!("/{LIBRARY}")],
            "Healthcheck": {
                "Test": ["CMD", "openmps", "control", "get_server_list"],
                "Interval": 60_000_000_000_u64,
                "Timeout": 10_000_000_000_u64,
            },
        }),
    )?;

    let client = Tree::new("openmps-nbody")?;
    client.program(&nbody, "nbody")?;
    client.libraries(&embedded)?;
    let client = client.pack(
        NBODY,
        &json!({
            "User": "1000:1000",
            "Env": [
                "PATH=/usr/bin",
                format!("LD_LIBRARY_PATH=/{LIBRARY}"),
                "OPENMPS_CONNECT_TIMEOUT=30",
            ],
            "Entrypoint": ["nbody"],
            "Cmd": ["-benchmark", "-numbodies=14336"],
        }),
    )?;
    Ok([daemon, client])
}

/// The files of an image.
#[derive(Debug)]
pub struct Tree(PathBuf);

impl Tree {
    /// An empty one, in place of a former one of this name.
    pub fn new(name: &str) -> Result<Self> {
        let tree = root().join("target/images").join(name);
        if tree.exists() {
            fs::remove_dir_all(&tree)?;
        }
        for folder in ["usr/bin", "tmp", "etc"] {
            fs::create_dir_all(tree.join(folder))?;
        }
        fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        fs::write(
            tree.join("etc/passwd"),
            "root:x:0:0::/:/\nuser:x:1000:1000::/:/\n",
        )?;
        Ok(Self(tree))
    }

    /// A program of ours, and the libraries that it loads.
    pub fn program(&self, file: &Path, name: &str) -> Result<()> {
        let place = self.0.join("usr/bin").join(name);
        fs::copy(file, &place).with_context(|| file.display().to_string())?;
        // Debugging information is most of a development build; where there is no strip, it stays.
        Command::new("strip").arg(&place).status().ok();
        self.loaded_by(file)
    }

    /// The libraries that programs load, from the folder in which they were built.
    fn libraries(&self, built: &Path) -> Result<()> {
        let folder = self.0.join(LIBRARY);
        fs::create_dir_all(&folder)?;
        for (file, name, link) in libraries(built) {
            fs::copy(&file, folder.join(name))?;
            symlink(name, folder.join(link))?;
            self.loaded_by(&file)?;
        }
        Ok(())
    }

    /// What the loader would load for a file: copied to the same places.
    pub fn loaded_by(&self, file: &Path) -> Result<()> {
        let output = Command::new("ldd").arg(file).output().context("ldd")?;
        if String::from_utf8_lossy(&output.stderr).contains("not a dynamic executable") {
            return Ok(());
        }
        ensure!(
            output.status.success(),
            "ldd {}: {}",
            file.display(),
            output.status
        );
        for path in loaded(&String::from_utf8_lossy(&output.stdout)) {
            let place = self.0.join(path.strip_prefix("/")?);
            fs::create_dir_all(place.parent().context("a library has a folder")?)?;
            fs::copy(&path, &place).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Packs the files as the archive of an image.
    pub fn pack(&self, tag: &str, config: &Value) -> Result<PathBuf> {
        let work = self.0.with_extension("archive");
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        fs::create_dir_all(&work)?;
        // The same bytes from the same files: owner, times and order are fixed.
        let layer = work.join("layer.tar");
        run(tar(&layer, &self.0).arg("."))?;
        let digest = sha256(&layer)?;
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
            "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask images" }],
        });
        fs::write(work.join("config.json"), config.to_string())?;
        let name = format!("{}.json", sha256(&work.join("config.json"))?);
        fs::rename(work.join("config.json"), work.join(&name))?;
        let manifest = json!([{
            "Config": name,
            "RepoTags": [format!("{tag}:latest")],
            "Layers": ["layer.tar"],
        }]);
        fs::write(work.join("manifest.json"), manifest.to_string())?;
        let archive = self.0.with_extension("tar");
        run(tar(&archive, &work).args(["manifest.json", &name, "layer.tar"]))?;
        fs::remove_dir_all(&work)?;
        Ok(archive)
    }
}

fn tar(archive: &Path, folder: &Path) -> Command {
    let mut command = Command::new("tar");
    command
        .args([
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mtime=@0",
            "--sort=name",
        ])
        .arg("-cf")
        .arg(archive)
        .arg("-C")
        .arg(folder);
    command
}

/// A file's SHA-256, in hexadecimal digits.
pub fn sha256(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum")
        .arg(file)
        .output()
        .context("sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let digest = text
        .split_whitespace()
        .next()
        .context("sha256sum said nothing")?;
    Ok(digest.trim_start_matches('\\').to_owned())
}

/// The files that `ldd` names; what the kernel brings has none.
fn loaded(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.trim();
        let file = line.split_once("=> ").map_or(line, |(_, file)| file);
        let file = file.split(" (").next()?;
        file.starts_with('/').then(|| PathBuf::from(file))
    };
    text.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_from_ldds_lines() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1a)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f1b)\n";
        assert_eq!(
            loaded(text),
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert!(loaded("\tstatically linked\n").is_empty());
    }
}
