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
        let partial = place.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        fs::create_dir_all(&partial)?;
        run(Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--target"])
            .arg(&partial)
            .arg(format!(
                "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]=={RELEASE}"
            )))
        .context("CUDA's compiler comes from PyPI")?;
        complete(&partial.join("nvidia/cu13"))?;
        fs::rename(&partial, &place)?;
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
}

/// Adds what nvcc and the linker look for and the wheels leave out.
fn complete(folder: &Path) -> Result<()> {
    symlink("lib", folder.join("lib64"))?;
    symlink("libcudart.so.13", folder.join("lib/libcudart.so"))?;
    Ok(())
}
