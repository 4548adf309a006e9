//! Whether the same packages come of the same sources: they are made again from a copy of the tree in
//! another folder, and compared byte by byte.
//!
//! Called by `package`. Must not know what is in a package: bytes are compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{cargo, root, run};

/// Makes the packages again elsewhere, and compares them with these.
///
/// # Errors
/// When one of them differs, or cannot be made.
pub(super) fn verify(made: &[PathBuf], epoch: &str) -> Result<()> {
    let copy = std::env::temp_dir().join(format!("openmps-again-{}", std::process::id()));
    let same = copied(&copy).and_then(|()| {
        // The tools that were fetched are no part of the sources.
        let tools = root().join("target/zig");
        if tools.exists() {
            fs::create_dir_all(copy.join("target"))?;
            run(Command::new("cp")
                .arg("-a")
                .arg(&tools)
                .arg(copy.join("target")))?;
        }
        run(Command::new("env")
            .arg("--chdir")
            .arg(&copy)
            .arg(cargo().get_program())
            .args(["xtask", "package"])
            .env_remove("CARGO_TARGET_DIR")
            .env("SOURCE_DATE_EPOCH", epoch))?;
        made.iter().try_for_each(|package| compare(package, &copy))
    });
    fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    same
}

/// Copies what git has of the tree and what it does not ignore.
fn copied(to: &Path) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("git")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    for name in String::from_utf8(listed.stdout)?.lines() {
        let (from, to) = (root().join(name), to.join(name));
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

fn compare(package: &Path, copy: &Path) -> Result<()> {
    let name = package.file_name().context("a package has a name")?;
    let again = copy.join("target/packages").join(name);
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let (one, other) = (read(package)?, read(&again)?);
    let at = one.iter().zip(&other).position(|(one, other)| one != other);
    ensure!(
        one == other,
        "{} is not the same when it is built again: {} and {} bytes, different from byte {:?} on",
        name.display(),
        one.len(),
        other.len(),
        at
    );
    println!(
        "package: {} is the same, built again elsewhere",
        name.display()
    );
    Ok(())
}
