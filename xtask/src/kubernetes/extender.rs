//! Pods as gpushare's scheduler extender and ACK's scheduler leave them: with a GPU in their annotations.
//! Neither is here; what they write is.
//!
//! Called by `kubernetes` with a cluster that is up. Starts no node by itself.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Test;
use super::cluster::{NODE, wait_for};
use crate::shell::root;

/// Two GPUs, a pod for the second of them, and one that the extender has not seen.
pub fn extender(test: &mut Test) -> Result<()> {
    let folder = root().join("deploy/kubernetes/extender");
    // Who may do what; the service account itself is not used, since this cluster gives out no tokens.
    test.cluster
        .apply(&fs::read_to_string(folder.join("rbac.yaml"))?)?;
    let socket = test.cluster.path("state/api.socket");
    fs::create_dir_all(socket.parent().context("a folder")?)?;
    test.cluster
        .start_kubectl(&format!("proxy --unix-socket={}", socket.display()))?;
    wait_for("kubectl proxy's socket", || Ok(socket.exists()))?;
    let arguments = format!(", --extender-api={}, --node={NODE}", socket.display());
    test.deploy_with("aliyun", 2, &arguments)?;
    test.offers("aliyun.com/gpu-mem", "30")?;
    test.offers("aliyun.com/gpu-count", "2")?;

    let units = json!({"aliyun.com/gpu-mem": 2});
    let chosen = json!({
        "ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_POD": "2",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    });
    let acks = json!({
        "scheduler.framework.gpushare.allocation": "{\"0\": {\"1\": 2}}",
        "scheduler.framework.gpushare.assigned": "false",
        "scheduler.framework.gpushare.assume-time": "1700000000000000000",
    });
    for (name, annotations, mark) in [
        ("chosen", &chosen, "ALIYUN_COM_GPU_MEM_ASSIGNED"),
        ("acks", &acks, "scheduler.framework.gpushare.assigned"),
    ] {
        test.annotated_pod(name, "2048", &units, annotations)?;
        test.ends_well(name)?;
        let path = "jsonpath={.metadata.annotations}";
        let annotations = test.kubectl(&["get", "pod", name, "-o", path])?;
        ensure!(
            annotations.contains(&format!("\"{mark}\":\"true\"")),
            "{annotations}"
        );
    }

    test.pod("unseen", "2048", &units)?;
    wait_for("a pod that the extender has not seen is refused", || {
        let status = test.kubectl(&["get", "pod", "unseen", "-o", "jsonpath={.status}"])?;
        Ok(status.contains("let the scheduler ask the extender"))
    })?;

    // What a cluster with tokens is given: the server takes the patch, and nothing is changed.
    let patch = fs::read_to_string(folder.join("plugin-patch.yaml"))?;
    test.kubectl(&[
        "patch",
        "daemonset",
        "openmps-device-plugin",
        "--namespace=kube-system",
        "--dry-run=server",
        "--patch",
        &patch,
    ])
    .map(drop)
}
