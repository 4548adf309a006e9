//! Any lines as what a specification for containers is made from: the daemon's directory, the library's, into how
//! many parts, then a device's UUID and memory, and so on. What is written can be read again, names absolute
//! directories that are mounted for reading only, and offers what was asked for.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use platform::cdi::{Offer, Spec, parts};
use platform::gpus::{Gpu, MIB};
use serde_json::Value;

fn mounts_are_for_reading(edits: &Value) {
    for mount in edits["mounts"].as_array().into_iter().flatten() {
        let path = |key: &str| mount[key].as_str().expect("a path");
        assert!(path("hostPath").starts_with('/') && path("containerPath").starts_with('/'));
        assert_eq!(mount["options"][0], "ro");
    }
}

fuzz_target!(|text: &str| {
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let (pipe, library) = (next(), next());
    let replicas = next().parse().unwrap_or(0);
    let mut gpus = Vec::new();
    while let (Some(uuid), index @ ..8) = (lines.next(), gpus.len() as u32) {
        let memory: u64 = lines.next().and_then(|mib| mib.parse().ok()).unwrap_or(0);
        gpus.push(Gpu {
            index,
            uuid: uuid.to_owned(),
            memory: memory.saturating_mul(MIB),
            ..Gpu::default()
        });
    }
    let all = match parts(&gpus, replicas) {
        Ok(all) => all,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    // Every other part has a group of its own.
    let odd = all.iter().skip(1).step_by(2);
    let groups: BTreeMap<_, _> = odd
        .map(|part| (part.name.clone(), Path::new(pipe).join(&part.group)))
        .collect();
    let offer = Offer {
        gpus: &gpus,
        pipe: Path::new(pipe),
        library: Path::new(library),
        replicas,
        groups: &groups,
    };
    let spec = match Spec::new(&offer) {
        Ok(spec) => spec,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let read: Value = serde_json::from_str(&spec.json()).expect("it is JSON");
    let devices = read["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 2 * gpus.len() + all.len() + 1);
    for (device, name) in devices.iter().zip(spec.names()) {
        assert_eq!(device["name"], name);
        mounts_are_for_reading(&device["containerEdits"]);
    }
    mounts_are_for_reading(&read["containerEdits"]);
});
