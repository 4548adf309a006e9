//! A driver library of our own making, in the place of NVIDIA's.
//!
//! Called by tests of what is over a driver. Must not know what a test wants of its symbols.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::daemon::Daemon;

/// Compiles the driver of `engine-nvidia/tests/fake/driver.c` into a folder, with definitions that its text tells of.
///
/// # Panics
/// If there is no C compiler.
pub fn compile(folder: &Path, definitions: &[&str]) -> PathBuf {
    let path = folder.join("libcuda.so.1");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine-nvidia/tests/fake/driver.c"
    );
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread"])
        .args(definitions.iter().map(|name| format!("-D{name}")))
        .arg(source)
        .arg("-o")
        .arg(&path)
        .status()
        .expect("a C compiler");
    assert!(compiled.success(), "the fake driver compiles");
    path
}

/// Has the device of a server die. `death` is the file that the driver was compiled with: all servers look for it all the time, so
/// it is there at once, and whole; an empty one would be all servers' death.
///
/// # Panics
/// If the file cannot be written.
pub fn device_dies(death: &Path, server: u32) {
    let written = death.with_extension("new");
    std::fs::write(&written, server.to_string()).expect("a file");
    std::fs::rename(written, death).expect("a name beside it");
}

/// A daemon over a driver whose kernels do not end.
#[derive(Debug)]
pub struct Endless {
    /// The daemon.
    pub daemon: Daemon,
    /// PTX with a kernel `k`.
    kernel: PathBuf,
    _folder: TempDir,
}

impl Endless {
    /// Starts one, with further definitions of the driver, and this in the daemon's environment.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(definitions: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let all = [&["VERSION=13000", "SPINNING=1"], definitions].concat();
        let driver = compile(folder.path(), &all);
        let kernel = folder.path().join("k.ptx");
        std::fs::write(&kernel, ".version 7.8\n.visible .entry k() {}").expect("a file");
        let driver = driver.to_str().expect("a path of text");
        let own = [("OPENMPS_ENGINE", "nvidia"), ("OPENMPS_DRIVER", driver)];
        Self {
            daemon: Daemon::start_with(&[&own, environment].concat()),
            kernel,
            _folder: folder,
        }
    }

    /// The test program, which launches the kernel and waits for it.
    pub fn client(&self) -> Command {
        let kernel = self.kernel.to_str().expect("a path of text");
        self.daemon.probe(&["kernel", kernel])
    }
}
