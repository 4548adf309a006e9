//! Builds what the binary carries inside: the libraries that programs load, and the n-body example.
//!
//! `cargo run` builds one package and what it depends on, and a library that programs load at run
//! time is no dependency in cargo's sense. So this script asks cargo for all, always optimised, in a
//! target folder of their own (the outer one is locked), and the binary embeds the results: it then
//! works wherever it is moved to.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    // Compiled code is kept under the build's name (`ptx-vm/src/kept`), which not every linker gives by itself.
    println!("cargo::rustc-link-arg-bins=-Wl,--build-id");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .parent()
        .expect("the workspace is one folder up")
        .to_owned();
    for folder in [
        "client",
        "nvml",
        "nvrtc",
        "cuda-abi",
        "protocol",
        "transport",
        "daemon-interface",
        "trace",
        "examples/nbody",
        "Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    // <target>/<profile>/build/<package>/out
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let target = out
        .ancestors()
        .nth(4)
        .expect("cargo lays out its target folder")
        .join("embedded");

    let status = Command::new(env::var_os("CARGO").expect("cargo sets it"))
        .current_dir(&root)
        .args([
            "build",
            "--release",
            "--package",
            "client",
            "--package",
            "nvml",
            "--package",
            "nvrtc",
            "--package",
            "nbody",
        ])
        .args(["--config", "profile.release.debug=false"])
        .args(["--config", "profile.release.strip=true"])
        .arg("--target-dir")
        .arg(&target)
        // Set by clippy and by `cargo build --target`, and not meant for this build.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_BUILD_TARGET")
        // Set by who builds often; a release of the incremental kind has failed to link.
        .env_remove("CARGO_INCREMENTAL")
        .status()
        .expect("cargo runs");
    assert!(
        status.success(),
        "building the libraries and the n-body example failed"
    );

    let client = target.join("release/libcuda.so");
    let nvml = target.join("release/libnvidia_ml.so");
    let nvrtc_auditor = target.join("release/libopenmps_nvrtc.so");
    // Here, since a program that starts should not wait for it.
    let mut hash = blake3::Hasher::new();
    for library in [&client, &nvml, &nvrtc_auditor] {
        hash.update(&std::fs::read(library).expect("it has been built"));
    }
    println!(
        "cargo::rustc-env=OPENMPS_LIBRARIES_HASH={}",
        &hash.finalize().to_hex()[..16]
    );
    export("OPENMPS_CLIENT", &client);
    export("OPENMPS_NVML_LIBRARY", &nvml);
    export("OPENMPS_NVRTC_AUDITOR", &nvrtc_auditor);
    export("OPENMPS_NBODY", &target.join("release/nbody"));
}

fn export(variable: &str, path: &Path) {
    println!("cargo::rustc-env={variable}={}", path.display());
}
