//! CUDA's compiler and runtime for tests: installed from PyPI into `target/`, never committed.
//!
//! NVIDIA publishes nvcc, its headers and the runtimes as wheels; none of it may be redistributed, so
//! each machine fetches its own (about 105 MB).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::shell::{root, run};

/// The release whose wheels hold all parts; `nvidia-cuda-nvcc` alone would pull newer ones beside it.
const RELEASE: &str = "13.0.2";

/// An installed toolkit.
#[derive(Debug)]
pub struct Toolkit {
    folder: PathBuf,
}

impl Toolkit {
    /// The toolkit in `target/cuda`, fetched on first use.
    pub fn install() -> Result<Self> {
        let place = root().join("target/cuda").join(RELEASE);
        let toolkit = Self {
            folder: place.join("nvidia/cu13"),
        };
        if toolkit.nvcc().exists() {
            return Ok(toolkit);
        }
        fetch(
            &format!("cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]=={RELEASE}"),
            &[],
            &place,
            |partial| complete(&partial.join("nvidia/cu13")),
        )
        .context("CUDA's compiler comes from PyPI")?;
        ensure!(
            toolkit.nvcc().exists(),
            "the wheels hold no {}",
            toolkit.nvcc().display()
        );
        Ok(toolkit)
    }

    /// The compiler.
    pub fn nvcc(&self) -> PathBuf {
        self.folder.join("bin/nvcc")
    }

    /// The folder of `libcudart.so.13`.
    pub fn libraries(&self) -> PathBuf {
        self.folder.join("lib")
    }

    /// The folder of `cuda_runtime.h`.
    pub fn headers(&self) -> PathBuf {
        self.folder.join("include")
    }
}

/// A CUDA runtime without a compiler.
#[derive(Debug)]
pub struct Runtime {
    /// The wheel's version.
    pub version: &'static str,
    package: &'static str,
    folder: &'static str,
    /// The libraries to link; the static one is in few wheels.
    cudart: &'static [&'static str],
}

/// Old to new.
pub const RUNTIMES: [Runtime; 7] = [
    Runtime {
        version: "11.8.89",
        package: "nvidia-cuda-runtime-cu11",
        folder: "nvidia/cuda_runtime",
        cudart: &["libcudart.so.11.0"],
    },
    twelve("12.1.105", &["libcudart.so.12"]),
    twelve("12.4.127", &["libcudart.so.12"]),
    twelve("12.6.77", &["libcudart.so.12"]),
    twelve("12.8.90", &["libcudart.so.12"]),
    twelve("12.9.79", &["libcudart.so.12", "libcudart_static.a"]),
    Runtime {
        version: "13.5.37",
        package: "nvidia-cuda-runtime",
        folder: "nvidia/cu13",
        cudart: &["libcudart.so.13", "libcudart_static.a"],
    },
];

const fn twelve(version: &'static str, cudart: &'static [&'static str]) -> Runtime {
    Runtime {
        version,
        package: "nvidia-cuda-runtime-cu12",
        folder: "nvidia/cuda_runtime",
        cudart,
    }
}

impl Runtime {
    /// Fetches it on first use.
    pub fn install(&self) -> Result<()> {
        let place = self.place();
        if !place.exists() {
            let package = format!("{}=={}", self.package, self.version);
            fetch(&package, &["--no-deps"], &place, |_| Ok(()))?;
        }
        Ok(())
    }

    /// The folder of its shared library.
    pub fn libraries(&self) -> PathBuf {
        self.place().join(self.folder).join("lib")
    }

    /// The folder of its headers, `crt/` not among them.
    pub fn headers(&self) -> PathBuf {
        self.place().join(self.folder).join("include")
    }

    /// The libraries that a program can be linked with.
    pub fn cudart(&self) -> impl Iterator<Item = PathBuf> {
        self.cudart.iter().map(|name| self.libraries().join(name))
    }

    fn place(&self) -> PathBuf {
        root().join(format!("target/cuda/runtime-{}", self.version))
    }
}

/// Installs a package into a folder, whole or not at all.
fn fetch(
    package: &str,
    options: &[&str],
    place: &Path,
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    // Not with_extension(): the folder's name ends with a version.
    let mut partial = place.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    run(Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--root-user-action=ignore",
            "--target",
        ])
        .arg(&partial)
        .args(options)
        .arg(package))
    .context("needs python3 with pip (Debian: python3-pip)")?;
    finish(&partial)?;
    fs::rename(&partial, place)?;
    Ok(())
}

/// Adds what nvcc and the linker look for and the wheels leave out.
fn complete(folder: &Path) -> Result<()> {
    symlink("lib", folder.join("lib64"))?;
    symlink("libcudart.so.13", folder.join("lib/libcudart.so"))?;
    Ok(())
}
