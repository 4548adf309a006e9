//! The .deb on a fresh Debian, with systemd as its first process.
//!
//! Called by `platforms`. Must not know how the package is made (`package`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::podman::Podman;
use super::{last_line, memory_program, need, output, said, skip, until, why_skipped};
use crate::fetch::DescribedFolder;
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
    Duration::from_secs(if debian().is_whole() { 40 } else { 140 })
}

fn debian() -> DescribedFolder {
    let name = format!("platforms/{RELEASE}");
    DescribedFolder::new(&name, format!("{RELEASE} {INCLUDE}"))
}

/// A fresh Debian, fetched once.
fn fetched() -> Result<PathBuf> {
    let made = debian().get(|folder| {
        need(&["debootstrap"], &["debootstrap"])?;
        run(Command::new("timeout")
            .args(["--kill-after=10", LIMIT, "debootstrap", "--variant=minbase"])
            // Without Debian's keys it would go on and check nothing.
            .args(["--force-check-gpg", INCLUDE, RELEASE])
            .arg(folder.join("tree")))
    });
    match made {
        Ok(folder) => Ok(folder.join("tree")),
        Err(error) if why_skipped(&error).is_some() => Err(error),
        Err(error) => skip(format!("no fresh Debian is to be had: {error}")),
    }
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
