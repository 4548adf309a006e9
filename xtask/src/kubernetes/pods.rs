//! Pods of the test, and what is waited for of them and of the node.
//!
//! Called by the cases of `kubernetes`. Must not know which case it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::cluster::{NODE, wait_for};
use super::{SHARE, Test};
use crate::shell::root;

impl Test {
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl(arguments)
    }

    /// Asks the daemon in its container's directory.
    pub(super) fn control(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(root().join("target/debug/openmps"))
            .arg("control")
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.cluster.path("pipe"))
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{arguments:?}: {text}");
        Ok(text)
    }

    /// Waits until the node offers so many of a resource.
    pub(super) fn offers(&self, resource: &str, count: &str) -> Result<()> {
        let path = resource.replace('.', "\\.");
        let path = format!("jsonpath={{.status.allocatable.{path}}}");
        wait_for(&format!("the node offers {count} of {resource}"), || {
            Ok(self.kubectl(&["get", "node", NODE, "-o", &path])? == count)
        })
    }

    /// Makes a pod whose program takes so many MiB.
    pub(super) fn pod(&self, name: &str, arguments: &str, limits: &Value) -> Result<()> {
        self.annotated_pod(name, arguments, limits, &json!({}))
    }

    pub(super) fn annotated_pod(
        &self,
        name: &str,
        arguments: &str,
        limits: &Value,
        annotations: &Value,
    ) -> Result<()> {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        // Of a pod of this name in a former run.
        for folder in Self::log_folders(name) {
            fs::remove_dir_all(folder)?;
        }
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": format!("{SHARE}:latest"),
                    "imagePullPolicy": "Never", "args": arguments,
                    "env": [{"name": "OPENMPS_CONNECT_TIMEOUT", "value": "30"}],
                    "securityContext": {"runAsUser": 1000},
                    "resources": {"limits": limits}
                }]
            }
        });
        self.cluster.apply(&pod.to_string())
    }

    pub(super) fn phase(&self, name: &str) -> Result<String> {
        self.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.phase}"])
    }

    pub(super) fn log_folders(name: &str) -> Vec<PathBuf> {
        let folders = fs::read_dir("/var/log/pods")
            .into_iter()
            .flatten()
            .flatten();
        let prefix = format!("default_{name}_");
        let of_pod = folders.filter(|one| one.file_name().to_string_lossy().starts_with(&prefix));
        of_pod.map(|folder| folder.path()).collect()
    }

    pub(super) fn log(&self, name: &str) -> String {
        let mut text = String::new();
        for folder in Self::log_folders(name) {
            let file = folder.join("main/0.log");
            text.push_str(&fs::read_to_string(file).unwrap_or_default());
        }
        text
    }

    /// Waits for a pod that takes all of its share, and no more, and ends.
    pub(super) fn ends_well(&self, name: &str) -> Result<()> {
        wait_for(
            &format!("pod {name} took its share, and no MiB more"),
            || match self.phase(name)?.as_str() {
                "Failed" => bail!("pod {name} failed:\n{}", self.log(name)),
                phase => Ok(phase == "Succeeded"),
            },
        )?;
        let log = self.log(name);
        ensure!(log.contains(" ok\n"), "pod {name} did not say ok:\n{log}");
        Ok(())
    }

    /// Waits for a pod that has taken its share and holds it.
    pub(super) fn holds(&self, name: &str) -> Result<()> {
        wait_for(&format!("pod {name} holds its share"), || {
            match self.phase(name)?.as_str() {
                "Failed" => bail!("pod {name} failed:\n{}", self.log(name)),
                _ => Ok(self.log(name).contains(" ok\n")),
            }
        })
    }

    /// Waits for an event that says why a pod is not run.
    pub(super) fn waits_for(&self, name: &str, why: &str) -> Result<()> {
        wait_for(&format!("pod {name} waits: {why}"), || {
            let selector = format!("involvedObject.name={name}");
            let events = self.kubectl(&[
                "get",
                "events",
                "--field-selector",
                &selector,
                "-o",
                "jsonpath={.items[*].message}",
            ])?;
            Ok(events.contains(why) && self.phase(name)? == "Pending")
        })
    }
}
