//! The .deb on a fresh Debian, with systemd as its first process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::podman::Podman;
use super::{last_line, memory_program, need, output, said, skip, until};
use crate::package;
use crate::shell::{root, run};

/// Debian's own packages in it.
const INCLUDE: &str = "--include=systemd,systemd-sysv,dbus,procps,bash-completion,libgcc-s1";

/// The release that is installed on.
const RELEASE: &str = "bookworm";

/// Seconds that it may take to come from a mirror.
const LIMIT: &str = "300";

/// The name of the container.
const NAME: &str = "openmps-debian";

/// How long this takes on two cores.
pub(super) fn usual() -> Duration {
    Duration::from_secs(if tree().exists() { 40 } else { 140 })
}

fn tree() -> PathBuf {
    root().join("target/platforms").join(RELEASE)
}

/// A fresh Debian, fetched once.
fn fetched() -> Result<PathBuf> {
    let tree = tree();
    if tree.exists() {
        return Ok(tree);
    }
    need(&["debootstrap"], &["debootstrap"])?;
    let new = tree.with_extension("new");
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    fs::create_dir_all(&new)?;
    let made = run(Command::new("timeout")
        .args(["--kill-after=10", LIMIT, "debootstrap", "--variant=minbase"])
        .args([INCLUDE, RELEASE])
        .arg(&new));
    if let Err(error) = made {
        return skip(format!("no fresh Debian is to be had: {error}"));
    }
    fs::rename(&new, &tree)?;
    Ok(tree)
}

/// Copies a tree as it is.
fn copy(from: &Path, to: &Path) -> Result<()> {
    said(
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(from)
            .arg(to),
    )
    .map(drop)
}

pub(super) fn installed() -> Result<()> {
    let podman = Podman::new(false)?;
    let fetched = fetched()?;
    let package = package::development_deb()?;
    let tree = podman.folder().join("debian");
    copy(&fetched, &tree)?;
    for (file, name) in [
        (package, "openmps.deb"),
        (memory_program()?, "memory"),
        (root().join("tests/platforms/deb/inside.sh"), "inside.sh"),
    ] {
        fs::copy(&file, tree.join(name)).with_context(|| file.display().to_string())?;
    }
    let started = output(
        podman
            .podman(&["run", "--detach", "--name", NAME, "--network=none"])
            .args(["--systemd=always", "--privileged", "--rootfs"])
            .arg(&tree)
            .arg("/sbin/init"),
    )?;
    if !started.status.success() {
        return skip(format!(
            "podman starts no systemd here: {}",
            last_line(&started)
        ));
    }
    let state = || -> Result<String> {
        let mut asked = podman.podman(&["exec", NAME, "systemctl", "is-system-running"]);
        Ok(String::from_utf8_lossy(&output(&mut asked)?.stdout)
            .trim()
            .to_owned())
    };
    let runs = until("systemd runs", || {
        Ok(["running", "degraded"].contains(&state()?.as_str()))
    });
    if runs.is_err() {
        return skip(format!(
            "systemd does not start in a container here: it is {}",
            state()?
        ));
    }
    let inside =
        output(&mut podman.podman(&["exec", NAME, "/inside.sh", "/openmps.deb", "/memory"]))?;
    let text = String::from_utf8_lossy(&inside.stdout);
    print!("{text}");
    ensure!(
        inside.status.success() && text.contains("fine: nothing is left\n"),
        "{}",
        text.split_once("wrong: ")
            .map_or("it ended early, see above", |(_, rest)| rest)
    );
    Ok(())
}
