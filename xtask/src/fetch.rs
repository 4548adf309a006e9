//! What tests need and this repository does not hold: the one place where a program or an archive comes
//! from outside.
//!
//! It is kept under `target/`, beside the text that says what was wanted: other versions or hashes, or
//! another script, and it is fetched anew. What cargo installs is checked against the lock file and the
//! registry's checksums, and what apt-get and debootstrap bring against Debian's signatures; a wheel must
//! have one of the SHA-256 sums that its requirement names.
//!
//! Called by `toolkit`, `package`, `mpi`, `python` and tests of platforms. Must not know what a fetched thing is
//! for.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{cargo, root, run};

/// In a kept folder: what was wanted when it was begun.
const WANTED: &str = ".wanted";

/// In a kept folder: an empty file once all of it is there.
const WHOLE: &str = ".whole";

/// A folder under `target/` that holds what a text describes.
#[derive(Debug)]
pub struct DescribedFolder {
    folder: PathBuf,
    wanted: String,
}

impl DescribedFolder {
    /// `name` under `target/`; whatever changes what is to be in it must change `wanted`.
    pub fn new(name: &str, wanted: impl Into<String>) -> Self {
        Self::at(root().join("target").join(name), wanted.into())
    }

    fn at(folder: PathBuf, wanted: String) -> Self {
        Self { folder, wanted }
    }

    /// Whether all of it is there, and is what is wanted now.
    pub fn is_whole(&self) -> bool {
        self.is_begun() && self.folder.join(WHOLE).exists()
    }

    fn is_begun(&self) -> bool {
        fs::read_to_string(self.folder.join(WANTED)).is_ok_and(|text| text == self.wanted)
    }

    /// The folder, which `make` has filled from empty, now or earlier.
    pub fn get(&self, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        if !self.is_whole() {
            self.empty()?;
        }
        self.resume(make)
    }

    /// As [`DescribedFolder::get`], with a `make` that goes on from where it was interrupted.
    pub fn resume(&self, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        if !self.is_whole() {
            if !self.is_begun() {
                self.empty()?;
            }
            make(&self.folder)?;
            fs::write(self.folder.join(WHOLE), "")?;
        }
        Ok(self.folder.clone())
    }

    fn empty(&self) -> Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)
                .with_context(|| format!("cannot empty {}", self.folder.display()))?;
        }
        fs::create_dir_all(&self.folder)?;
        Ok(fs::write(self.folder.join(WANTED), &self.wanted)?)
    }
}

/// A crate of crates.io whose programs are tools.
#[derive(Debug)]
pub struct Crate {
    pub name: &'static str,
    pub version: &'static str,
    /// Whether its programs are not worth the time to optimise them.
    pub is_debug: bool,
}

impl Crate {
    fn kept(&self) -> DescribedFolder {
        let kind = if self.is_debug { ", not optimised" } else { "" };
        let wanted = format!("{} {}{kind}\n", self.name, self.version);
        DescribedFolder::new(&format!("tools/{}", self.name), wanted)
    }

    /// Whether it is installed.
    pub fn is_there(&self) -> bool {
        self.kept().is_whole()
    }

    /// The folder of its programs, installed on first use, apart from the workspace: what it needs is
    /// nothing of ours.
    pub fn install(&self) -> Result<PathBuf> {
        let folder = self.kept().get(|folder| {
            let build = folder.join("build");
            let mut command = cargo();
            command.args(["install", self.name, "--locked", "--version", self.version]);
            command.args(self.is_debug.then_some("--debug"));
            command.arg("--target-dir").arg(&build);
            command.arg("--root").arg(folder);
            run(command.env("CARGO_PROFILE_DEV_DEBUG", "false"))?;
            Ok(fs::remove_dir_all(build)?)
        })?;
        Ok(folder.join("bin"))
    }
}

/// What pip is to install: lines as in a requirements file, each with the sums of its wheels.
#[derive(Debug)]
pub struct Wheels<'a> {
    pub requirements: &'a str,
    /// Seconds that they may take to come.
    pub limit: u32,
}

impl Wheels<'_> {
    /// Installs them into a folder under `target/`, which `finish` completes.
    pub fn install(&self, name: &str, finish: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        DescribedFolder::new(name, self.requirements).get(|folder| {
            self.pip(folder, &[], &["--target".as_ref(), folder.as_ref()])?;
            finish(folder)
        })
    }

    /// Makes a virtual environment of them under `target/`; gives its interpreter.
    pub fn environment(&self, name: &str) -> Result<PathBuf> {
        let folder = DescribedFolder::new(name, self.requirements).get(|folder| {
            let interpreter = environment(folder)?;
            self.pip(folder, &["--python".as_ref(), interpreter.as_ref()], &[])
        })?;
        Ok(folder.join("bin/python"))
    }

    /// Runs pip, with words before and after its command.
    fn pip(&self, folder: &Path, before: &[&OsStr], after: &[&OsStr]) -> Result<()> {
        run(Command::new("timeout")
            .args(["--kill-after=10", &self.limit.to_string()])
            .args(["python3", "-m", "pip"])
            .args(before)
            .args(["install", "--quiet", "--root-user-action=ignore"])
            .args(["--no-deps", "--require-hashes", "--only-binary=:all:"])
            .args(after)
            .arg("--requirement")
            .arg(folder.join(WANTED)))
        .context("the packages come from PyPI by pip 22.3 or newer (Debian: python3-pip)")
    }
}

/// A virtual environment in a folder, without pip, which Debian splits off (python3-venv): the outer pip
/// installs into it. Gives its interpreter.
pub fn environment(folder: &Path) -> Result<PathBuf> {
    run(Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(folder))
    .context("needs python3 with its module venv")?;
    let interpreter = folder.join("bin/python");
    ensure!(
        interpreter.exists(),
        "no interpreter is in {}",
        folder.display()
    );
    Ok(interpreter)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::bail;

    use super::*;
    use crate::images;

    /// A folder of this process alone.
    fn place(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        folder
    }

    #[test]
    fn another_version_is_fetched_anew() {
        let folder = place("versions");
        let made = Cell::new(0);
        let get = |wanted: &str| {
            let kept = DescribedFolder::at(folder.clone(), wanted.into());
            kept.get(|it| {
                made.set(made.get() + 1);
                // Nothing of the version before is there.
                assert!(!it.join("program").exists());
                Ok(fs::write(it.join("program"), wanted)?)
            })
            .unwrap();
            assert!(kept.is_whole());
            (
                fs::read_to_string(folder.join("program")).unwrap(),
                made.get(),
            )
        };
        assert_eq!(get("1.0"), ("1.0".into(), 1));
        assert_eq!(get("1.0"), ("1.0".into(), 1));
        assert_eq!(get("1.1"), ("1.1".into(), 2));
        assert!(!DescribedFolder::at(folder.clone(), "1.0".into()).is_whole());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_was_interrupted_is_not_taken_for_whole() {
        let folder = place("interrupted");
        let kept = DescribedFolder::at(folder.clone(), "1.0".into());
        let fails = |it: &Path| {
            fs::write(it.join("half"), "")?;
            bail!("interrupted")
        };
        assert!(kept.get(fails).is_err() && !kept.is_whole());
        let is_there = Cell::new(true);
        let look = |it: &Path| {
            is_there.set(it.join("half").exists());
            Ok(())
        };
        // Who can go on finds what there was, of this version only; who cannot begins anew.
        DescribedFolder::at(folder.clone(), "1.1".into())
            .resume(look)
            .unwrap();
        assert!(!is_there.get());
        assert!(kept.get(fails).is_err());
        kept.resume(look).unwrap();
        assert!(is_there.get() && kept.is_whole());
        let other = DescribedFolder::at(folder.clone(), "1.2".into());
        assert!(other.get(fails).is_err());
        other.get(look).unwrap();
        assert!(!is_there.get());
        fs::remove_dir_all(folder).unwrap();
    }

    /// With a wheel of the test's own: nothing is asked of a network.
    #[test]
    fn a_wheel_without_its_sum_is_refused() {
        let folder = place("sums");
        let (tree, facts) = (folder.join("tree"), folder.join("tree/it-1.0.dist-info"));
        fs::create_dir_all(&facts).unwrap();
        for (name, text) in [
            (
                "METADATA",
                "Metadata-Version: 2.1\nName: it\nVersion: 1.0\n",
            ),
            (
                "WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            ),
        ] {
            fs::write(facts.join(name), text).unwrap();
        }
        let wheel = folder.join("it-1.0-py3-none-any.whl");
        run(Command::new("python3")
            .args(["-c", include_str!("package/wheel.py")])
            .args([&tree, &wheel]))
        .unwrap();
        let sum = images::sha256(&wheel).unwrap();
        let installs = |requirements: &str| {
            let wheels = Wheels {
                requirements,
                limit: 60,
            };
            fs::write(folder.join(WANTED), requirements).unwrap();
            let target = folder.join("installed");
            let words = ["--no-index", "--find-links", "--target"].map(OsStr::new);
            let words: [&OsStr; 5] = [
                words[0],
                words[1],
                folder.as_ref(),
                words[2],
                target.as_ref(),
            ];
            wheels.pip(&folder, &[], &words).is_ok()
        };
        assert!(!installs("it==1.0\n"));
        let other = sum.replace(|digit: char| digit != '0', "0");
        assert!(!installs(&format!("it==1.0 --hash=sha256:{other}\n")));
        assert!(installs(&format!("it==1.0 --hash=sha256:{sum}\n")));
        fs::remove_dir_all(folder).unwrap();
    }
}
