//! Holds the crates to the directions in which they may depend on each other, to their budgets of foreign crates, their
//! files to beginning with a head, and the threat model to what is tested.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What each crate may use of the others, directly. A crate that is not named may use none.
const ALLOWED: &[(&str, &[&str])] = &[
    ("protocol", &["cuda-abi"]),
    ("transport", &["cuda-abi", "protocol"]),
    ("daemon-interface", &["protocol", "transport"]),
    ("engine", &["cuda-abi", "protocol"]),
    ("ptx-vm", &["cuda-abi", "engine", "protocol", "ptx"]),
    (
        "engine-soft",
        &["cuda-abi", "engine", "protocol", "ptx", "ptx-vm"],
    ),
    ("engine-nvidia", &["cuda-abi", "engine", "protocol", "ptx"]),
    (
        "client",
        &[
            "cuda-abi",
            "daemon-interface",
            "protocol",
            "trace",
            "transport",
        ],
    ),
    (
        "nvml",
        &["cuda-abi", "daemon-interface", "protocol", "transport"],
    ),
    ("nvrtc", &["protocol"]),
    (
        "server",
        &[
            "cuda-abi",
            "daemon-interface",
            "engine",
            "protocol",
            "transport",
        ],
    ),
    (
        "control",
        &[
            "cuda-abi",
            "daemon-interface",
            "engine",
            "protocol",
            "sandbox",
            "transport",
        ],
    ),
    (
        "openmps",
        &[
            "control",
            "daemon-interface",
            "engine",
            "engine-nvidia",
            "engine-soft",
            "platform",
            "protocol",
            "sandbox",
            "server",
            "trace",
            "transport",
        ],
    ),
    ("tests", &["cuda-abi", "protocol", "transport"]),
    ("benches", &["protocol", "tests", "transport"]),
    ("xtask", &["cuda-abi"]),
];

/// The most foreign crates that may be linked into each, everything below included.
const BUDGETS: &[(&str, usize)] = &[
    ("cuda-abi", 0),
    ("protocol", 0),
    ("transport", 3),
    ("daemon-interface", 3),
    ("client", 5),
    ("nvml", 5),
    ("nvrtc", 0),
    ("ptx", 6),
    ("engine", 3),
    ("ptx-vm", 16),
    ("engine-soft", 20),
    // parking_lot and what it is made of are five of them, rustix three.
    ("engine-nvidia", 15),
    ("server", 35),
    ("sandbox", 6),
    ("trace", 0),
    ("control", 45),
    // serde-saphyr and what reads YAML for it are fifteen of them.
    ("platform", 24),
    ("openmps", 130),
];

/// The same with the feature `kubernetes`, which brings gRPC and with it a runtime.
const BUDGETS_WITH_KUBERNETES: &[(&str, usize)] = &[("platform", 70), ("openmps", 132)];

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"),
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn dependencies_point_down() {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let members: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let allowed = ALLOWED
            .iter()
            .find(|(of, _)| *of == name)
            .map_or(&[][..], |(_, used)| used);
        for used in package["dependencies"].as_array().unwrap() {
            let (used, kind) = (used["name"].as_str().unwrap(), &used["kind"]);
            assert!(
                !kind.is_null() || !members.contains(used) || allowed.contains(&used),
                "{name} may not depend on {used}"
            );
        }
    }
}

#[test]
fn foreign_crates_stay_within_their_budgets() {
    let with_kubernetes = BUDGETS_WITH_KUBERNETES.iter();
    let with_kubernetes = with_kubernetes.map(|budget| (budget, "--features=kubernetes"));
    let without = BUDGETS.iter().map(|budget| (budget, "--features="));
    for ((name, budget), features) in without.chain(with_kubernetes) {
        let tree = cargo(&[
            "tree",
            features,
            "--package",
            name,
            "--edges=normal,no-proc-macro",
            "--prefix=none",
            "--no-dedupe",
        ]);
        // Our own crates are those with a path behind their version.
        let foreign: BTreeSet<&str> = tree
            .lines()
            .filter(|line| !line.is_empty() && !line.contains(" (/"))
            .collect();
        assert!(
            foreign.len() <= *budget,
            "{name} links {}: {foreign:#?}",
            foreign.len()
        );
    }
}

/// What the threat model says is tested is: each test that it names is in the tree, and each file.
#[test]
fn promises_of_the_threat_model_have_their_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    let listed = Command::new("git")
        .args(["grep", "-hE", r"^ *(async )?fn [a-z0-9_]+\("])
        .args(["--", "*.rs"])
        .current_dir(root)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let functions: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split_once("fn ")?.1.split('(').next())
        .collect();
    let mut named = 0;
    // The last column of a row is the test's.
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let test = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        for name in test.split('`').skip(1).step_by(2) {
            let is_there = match name.contains('/') {
                true => root.join(name).exists(),
                false if !name.contains('_') => continue,
                false => functions.contains(name),
            };
            assert!(is_there, "{name} of {row}");
            named += 1;
        }
    }
    assert!(named > 50, "{named} names were found");
}
