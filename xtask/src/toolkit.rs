//! CUDA's compiler and runtime for tests: installed from PyPI into `target/`, never committed.
//!
//! NVIDIA publishes nvcc, its headers and the runtimes as wheels; none of it may be redistributed, so
//! each machine fetches its own (about 105 MB).
//!
//! Called by `corpus`, `mpi` and `runtimes`. Must not know what is compiled with it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::fetch::Wheels;
use crate::shell::root;

/// The release, in whose name its parts are kept.
const RELEASE: &str = "13.0.2";

/// Its parts; `nvidia-cuda-nvcc` alone would pull newer ones beside it.
const PARTS: Wheels<'_> = Wheels {
    requirements: "\
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
",
    limit: LIMIT,
};

/// Seconds that wheels may take to come.
const LIMIT: u32 = 900;

/// An installed toolkit.
#[derive(Debug)]
pub struct Toolkit {
    folder: PathBuf,
}

impl Toolkit {
    /// The toolkit in `target/cuda`, fetched on first use.
    pub fn install() -> Result<Self> {
        let place = PARTS
            .install(&format!("cuda/{RELEASE}"), |place| {
                complete(&place.join("nvidia/cu13"))
            })
            .context("CUDA's compiler comes from PyPI")?;
        let toolkit = Self {
            folder: place.join("nvidia/cu13"),
        };
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
    /// The wheel's SHA-256.
    sum: &'static str,
    folder: &'static str,
    /// The libraries to link; the static one is in few wheels.
    cudart: &'static [&'static str],
}

/// Old to new.
pub const RUNTIMES: [Runtime; 7] = [
    Runtime {
        version: "11.8.89",
        package: "nvidia-cuda-runtime-cu11",
        sum: "92d04069a987e1fbc9213f8376d265df0f7bb42617d44f5eda1f496acea7f2d1",
        folder: "nvidia/cuda_runtime",
        cudart: &["libcudart.so.11.0"],
    },
    twelve(
        "12.1.105",
        "6e258468ddf5796e25f1dc591a31029fa317d97a0a94ed93468fc86301d61e40",
        &["libcudart.so.12"],
    ),
    twelve(
        "12.4.127",
        "64403288fa2136ee8e467cdc9c9427e0434110899d07c779f25b5c068934faa5",
        &["libcudart.so.12"],
    ),
    twelve(
        "12.6.77",
        "ba3b56a4f896141e25e19ab287cd71e52a6a0f4b29d0d31609f60e3b4d5219b7",
        &["libcudart.so.12"],
    ),
    twelve(
        "12.8.90",
        "adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90",
        &["libcudart.so.12"],
    ),
    twelve(
        "12.9.79",
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
        &["libcudart.so.12", "libcudart_static.a"],
    ),
    Runtime {
        version: "13.5.37",
        package: "nvidia-cuda-runtime",
        sum: "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        folder: "nvidia/cu13",
        cudart: &["libcudart.so.13", "libcudart_static.a"],
    },
];

const fn twelve(
    version: &'static str,
    sum: &'static str,
    cudart: &'static [&'static str],
) -> Runtime {
    Runtime {
        version,
        package: "nvidia-cuda-runtime-cu12",
        sum,
        folder: "nvidia/cuda_runtime",
        cudart,
    }
}

impl Runtime {
    /// Fetches it on first use.
    pub fn install(&self) -> Result<()> {
        let (package, version, sum) = (self.package, self.version, self.sum);
        let wheels = Wheels {
            requirements: &format!("{package}=={version} --hash=sha256:{sum}\n"),
            limit: LIMIT,
        };
        wheels.install(&self.name(), |_| Ok(())).map(drop)
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

    /// Where it is kept, under `target/`.
    fn name(&self) -> String {
        format!("cuda/runtime-{}", self.version)
    }

    fn place(&self) -> PathBuf {
        root().join("target").join(self.name())
    }
}

/// Adds what nvcc and the linker look for and the wheels leave out.
fn complete(folder: &Path) -> Result<()> {
    symlink("lib", folder.join("lib64"))?;
    symlink("libcudart.so.13", folder.join("lib/libcudart.so"))?;
    Ok(())
}
