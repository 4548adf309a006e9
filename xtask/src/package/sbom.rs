//! The bill of materials of the packages: every crate that is built into them, as CycloneDX 1.6.
//!
//! The same bytes from the same tree: no time and no serial number, which the format does not ask for.
//!
//! Called by `package`. Must not know how the packages are built, only which crates are in them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::shell::{cargo, root};

/// What is packaged, of the workspace.
const SHIPPED: [&str; 4] = ["openmps", "client", "nvml", "nbody"];

/// Checksums of crates by name and version.
type Checksums<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

/// The text of the bill.
///
/// # Errors
/// When cargo does not describe the workspace.
pub(super) fn text(version: &str) -> Result<String> {
    let output = cargo()
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--features", "openmps/kubernetes"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "cargo metadata: {errors}");
    let metadata = serde_json::from_slice(&output.stdout).context("what cargo metadata says")?;
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "openmps",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": components(&metadata, &checksums(&lock)).context("a graph of crates")?,
    });
    Ok(format!("{bill:#}\n"))
}

/// The foreign crates that are built into what is shipped. Not those of tests and of build scripts.
fn components(metadata: &Value, checksums: &Checksums<'_>) -> Option<Vec<Value>> {
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let is_shipped = |id: &&str| {
        let name = packages
            .get(id)
            .and_then(|package| package["name"].as_str());
        name.is_some_and(|name| SHIPPED.contains(&name))
    };
    let members = metadata["workspace_members"].as_array()?;
    let mut open: Vec<&str> = members
        .iter()
        .filter_map(Value::as_str)
        .filter(is_shipped)
        .collect();
    let mut seen: BTreeSet<&str> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        for needed in nodes.get(id)?["deps"].as_array()? {
            let mut kinds = needed["dep_kinds"].as_array()?.iter();
            if kinds.any(|kind| kind["kind"].is_null()) {
                let id = needed["pkg"].as_str()?;
                if seen.insert(id) {
                    open.push(id);
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    for id in seen {
        let package = packages.get(id)?;
        if package["source"].is_null() {
            continue;
        }
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let mut component = json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
        });
        if let Some(license) = package["license"].as_str() {
            // Some crates still write the form that SPDX has given up.
            let expression = license.replace('/', " OR ");
            component["licenses"] = json!([{"expression": expression}]);
        }
        if let Some(checksum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        found.insert((name, version), component);
    }
    Some(found.into_values().collect())
}

/// What a Cargo.lock says of each crate from a registry.
fn checksums(lock: &str) -> Checksums<'_> {
    let blocks = lock.split("[[package]]").skip(1);
    let known = blocks.filter_map(|block| {
        let value = |key: &str| {
            let mut lines = block.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
            Some(value.trim_matches('"'))
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_crates() {
        let lock = "version = 4\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n\
            [[package]]\nname = \"clap\"\nversion = \"4.6.0\"\nsource = \"registry\"\nchecksum = \"abc\"\n";
        let known = checksums(lock);
        assert_eq!(known.len(), 1);
        assert_eq!(known.get(&("clap", "4.6.0")), Some(&"abc"));
    }

    #[test]
    fn foreign_crates_are_listed_if_they_are_built_in() {
        let package = |name: &str, source: Option<&str>| json!({"id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT/Apache-2.0"});
        let needs =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("openmps", None), package("server", None), package("xtask", None),
                package("clap", Some("registry")), package("rayon", Some("registry")),
                package("prost", Some("registry")), package("loom", Some("registry")),
            ],
            "workspace_members": ["openmps", "server", "xtask"],
            "resolve": {"nodes": [
                {"id": "openmps", "deps": [
                    needs("server", None), needs("clap", None), needs("prost", Some("build")), needs("loom", Some("dev")),
                ]},
                {"id": "server", "deps": [needs("rayon", None)]},
                {"id": "xtask", "deps": [needs("loom", None)]},
                {"id": "clap", "deps": []}, {"id": "rayon", "deps": []},
            ]},
        });
        let known = Checksums::from([(("rayon", "1.0.0"), "def")]);
        let listed = components(&metadata, &known).unwrap();
        let names: Vec<_> = listed
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        assert_eq!(names, ["clap", "rayon"]);
        assert_eq!(listed[1]["hashes"][0]["content"], "def");
        assert_eq!(listed[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    }

    #[test]
    fn the_bill_has_what_the_product_is_made_of() {
        let bill: Value = serde_json::from_str(&text("0.1.0").unwrap()).unwrap();
        let components = bill["components"].as_array().unwrap();
        let has = |name: &str| components.iter().any(|one| one["name"] == name);
        assert!(has("rustix") && has("clap"), "{bill:#}");
        assert!(!has("loom") && !has("proptest"), "of tests only");
        assert!(
            components
                .iter()
                .all(|one| one["hashes"][0]["content"].is_string())
        );
    }
}
