//! The management library, over one of our own: cards must keep their modes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use engine_nvidia::{DeviceMode, Nvml, NvmlError};

/// Compiles the library, and says where its cards keep their modes.
fn fake(folder: &Path) -> (PathBuf, PathBuf) {
    let library = folder.join("libnvidia-ml.so.1");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/nvml.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .unwrap();
    assert!(compiled.success());
    (library, folder.join("modes"))
}

/// One test, since it sets variables of the process.
#[test]
fn modes_are_asked_for_and_set_and_refusals_have_words() {
    let folder = tempfile::tempdir().unwrap();
    let (library, record) = fake(folder.path());
    let error = Nvml::open_at(&library).unwrap_err().to_string();
    assert!(error.contains("Driver Not Loaded"), "{error}");
    // SAFETY: no other thread of this process reads or writes the environment.
    unsafe { std::env::set_var("FAKE_NVML", &record) };
    let nvml = Nvml::open_at(&library).unwrap();
    let device = |uuid: &str, mode| DeviceMode {
        uuid: uuid.into(),
        mode,
    };
    let before = [
        device("GPU-00000000-aaaa", 0),
        device("GPU-11111111-bbbb", 0),
    ];
    assert_eq!(nvml.modes().unwrap(), before);
    nvml.set("GPU-11111111-bbbb", 3).unwrap();
    assert_eq!(nvml.modes().unwrap()[1], device("GPU-11111111-bbbb", 3));
    assert!(matches!(nvml.set("GPU-2", 3), Err(NvmlError::NoDevice(_))));
    std::fs::write(record.with_extension("refused"), "1").unwrap();
    let error = nvml.set("GPU-11111111-bbbb", 0).unwrap_err().to_string();
    assert!(error.contains("Insufficient Permissions"), "{error}");
    assert_eq!(std::fs::read_to_string(record).unwrap(), "1 3\n");
    assert!(Nvml::open_at(Path::new("libnvidia-ml.so.1")).is_err());
    let file = folder.path().join("none.so");
    std::fs::write(&file, "no library").unwrap();
    assert!(Nvml::open_at(&file).is_err());
    // Ours asks the daemon, and the daemon would ask itself.
    std::fs::write(&file, "... OpenMPS client runtime ...").unwrap();
    let error = Nvml::open_at(&file).unwrap_err().to_string();
    assert!(error.contains("OpenMPS's own library"), "{error}");
}
