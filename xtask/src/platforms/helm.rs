//! The Helm chart, rendered by Helm's own engine, beside the plain manifests.
//!
//! No registry that is reached here has the program `helm`. PyPI has Helm's Go packages as a library, and
//! `tests/platforms/helm/chart.py` calls that.
//!
//! Called by `platforms`, and by `kubernetes` for what it applies. Must not need a cluster.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{openmps, output, said, skip};
use crate::fetch::Wheels;
use crate::shell::root;

/// Helm 4.2.3.
const PACKAGE: Wheels<'_> = Wheels {
    requirements: "helm-python-sdk==0.2.2 \
        --hash=sha256:28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578\n",
    limit: 180,
};

const CHART: &str = "deploy/helm/openmps";

/// The script, with its library at hand.
fn script(arguments: &[&str]) -> Result<Command> {
    let place = match PACKAGE.install("helm", |_| Ok(())) {
        Ok(place) => place,
        Err(error) => return skip(format!("no Helm: its package is not to be had: {error:#}")),
    };
    let mut command = Command::new("python3");
    command
        .arg("tests/platforms/helm/chart.py")
        .args(arguments)
        .env("PYTHONPATH", place)
        .current_dir(root());
    Ok(command)
}

/// The chart's manifests with these values, as text.
pub fn rendered(values: &Value) -> Result<String> {
    said(&mut script(&["text", CHART, &values.to_string()])?)
}

fn documents(values: &Value) -> Result<Value> {
    let text = said(&mut script(&["render", CHART, &values.to_string()])?)?;
    Ok(serde_json::from_str(&text)?)
}

/// The plugin's options that are written out although they are what it takes without them.
fn defaults() -> Result<Vec<String>> {
    let help = said(Command::new(openmps()).args(["kubernetes", "plugin", "--help"]))?;
    let mut found = Vec::new();
    let mut option = "";
    for line in help.lines().map(str::trim) {
        if let Some(word) = line.split(' ').find(|word| word.starts_with("--")) {
            option = word;
        }
        if let Some((_, rest)) = line.split_once("[default: ") {
            found.push(format!("{option}={}", rest.trim_end_matches(']')));
        }
    }
    ensure!(found.contains(&"--placement=binpack".into()), "{found:?}");
    Ok(found)
}

/// Takes out what the chart and the manifests say differently and mean alike.
fn alike(documents: &mut Value, defaults: &[String]) -> Result<()> {
    for document in documents.as_array_mut().context("documents")? {
        if document["kind"] != "DaemonSet" {
            document["metadata"]
                .as_object_mut()
                .context("metadata")?
                .remove("labels");
            continue;
        }
        // Helm's releases are told apart.
        for labels in [
            "/metadata/labels",
            "/spec/selector/matchLabels",
            "/spec/template/metadata/labels",
        ] {
            let labels = document.pointer_mut(labels).and_then(Value::as_object_mut);
            labels
                .context("labels")?
                .remove("app.kubernetes.io/instance");
        }
        let pod = &mut document["spec"]["template"]["spec"];
        let command = pod["containers"][0]["command"].as_array_mut();
        command
            .context("a command")?
            .retain(|word| !defaults.iter().any(|default| word == default));
        // A volume's name is nobody's business.
        let volumes = pod["volumes"].as_array_mut().context("volumes")?;
        for volume in volumes.iter_mut().filter(|it| it["name"] == "openmps") {
            volume["name"] = json!("state");
        }
        let mounts = pod["containers"][0]["volumeMounts"].as_array_mut();
        for mount in mounts.context("mounts")? {
            if mount["name"] == "openmps" {
                mount["name"] = json!("state");
            }
        }
    }
    Ok(())
}

fn equal(what: &str, found: &Value, wanted: &Value) -> Result<()> {
    ensure!(
        found == wanted,
        "{what}:\n{found:#}\n--- and not\n{wanted:#}"
    );
    Ok(())
}

pub(super) fn chart() -> Result<()> {
    let found = said(&mut script(&["lint", CHART])?)?;
    ensure!(found.trim() == "[]", "helm lint: {found}");
    let defaults = defaults()?;
    for mode in ["aliyun", "nvidia", "openmps"] {
        let mut plain = read(mode)?;
        let mut chart = documents(&json!({ "mode": mode }))?;
        alike(&mut plain, &defaults)?;
        alike(&mut chart, &defaults)?;
        equal(&format!("mode {mode}"), &chart, &plain)?;
    }
    equal(
        "without values",
        &documents(&json!({}))?,
        &documents(&json!({"mode": "aliyun"}))?,
    )?;
    extender(&defaults)?;
    metrics()?;
    other_values()?;
    for (values, words) in [
        (json!({"mode": "cgpu"}), "'aliyun', 'nvidia', 'openmps'"),
        (json!({"memoryUnit": "KiB"}), "/memoryUnit"),
        (json!({"directories": {"pipe": "run"}}), "/directories/pipe"),
        (json!({"repicas": 3}), "repicas"),
        (json!({"extender": {"enabled": 1}}), "/extender/enabled"),
        (
            json!({"mode": "openmps", "extender": {"enabled": true}}),
            "extender.enabled is for mode aliyun",
        ),
        (json!({"metrics": {"port": 0}}), "/metrics/port"),
        (
            json!({"metrics": {"serviceMonitor": {"enabled": true}}}),
            "needs metrics.enabled",
        ),
    ] {
        let refused = output(&mut script(&["render", CHART, &values.to_string()])?)?;
        let errors = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            !refused.status.success() && errors.contains(words),
            "{values}: {errors}"
        );
    }
    Ok(())
}

fn read(file: &str) -> Result<Value> {
    let file = format!("deploy/kubernetes/{file}.yaml");
    let text = said(&mut script(&["read", &file])?)?;
    Ok(serde_json::from_str(&text)?)
}

/// With the extender the chart is `aliyun.yaml` with the patch, and who may do what.
fn extender(defaults: &[String]) -> Result<()> {
    let mut plain = read("extender/rbac")?;
    let mut sets = read("aliyun")?;
    let plugin = sets[1].as_object_mut().context("the plugin")?;
    for (key, patch) in read("extender/plugin-patch")?[0]
        .as_object()
        .context("a patch")?
    {
        merge(plugin.get_mut(key).context(key.clone())?, patch);
    }
    let sets = sets.as_array().context("documents")?;
    plain
        .as_array_mut()
        .context("documents")?
        .splice(2..2, sets.iter().cloned());
    let mut chart = documents(&json!({"extender": {"enabled": true}}))?;
    alike(&mut plain, defaults)?;
    alike(&mut chart, defaults)?;
    equal("with the extender", &chart, &plain)?;
    let other = documents(&json!({"extender": {"enabled": true, "image": "r/kubectl:1"}}))?;
    let image = "/3/spec/template/spec/containers/1/image";
    ensure!(
        other.pointer(image) == Some(&json!("r/kubectl:1")),
        "{other:#}"
    );
    Ok(())
}

/// Metrics come from a container beside the plugin, which Service and ServiceMonitor lead to by the port's name.
fn metrics() -> Result<()> {
    let values = json!({
        "metrics": {"enabled": true, "port": 9500, "serviceMonitor": {
            "enabled": true, "interval": "30s", "labels": {"release": "prometheus"},
        }},
        "directories": {"state": "/s", "pipe": "/p"},
        "resources": {"metrics": {"limits": {"memory": 1}}},
    });
    let found = documents(&values)?;
    let kinds: Vec<_> = found
        .as_array()
        .context("documents")?
        .iter()
        .map(|document| document["kind"].as_str().unwrap_or_default())
        .collect();
    ensure!(
        kinds == ["DaemonSet", "DaemonSet", "Service", "ServiceMonitor"],
        "{kinds:?}"
    );
    let (plugin, service, monitor) = (&found[1], &found[2], &found[3]);
    let pod = &plugin["spec"]["template"];
    let container = &pod["spec"]["containers"][1];
    equal(
        "the port",
        &container["ports"],
        &json!([{"name": "metrics", "containerPort": 9500}]),
    )?;
    equal(
        "the command",
        &container["command"],
        &json!(["openmps", "metrics", "--listen=0.0.0.0:9500"]),
    )?;
    equal(
        "the mounts",
        &container["volumeMounts"],
        &json!([
            {"name": "pipe", "mountPath": "/p", "readOnly": true},
            {"name": "state", "mountPath": "/var/lib/openmps", "readOnly": true},
        ]),
    )?;
    equal(
        "the limits",
        &container["resources"],
        &json!({"limits": {"memory": 1}}),
    )?;
    equal(
        "the service's pods",
        &service["spec"]["selector"],
        &pod["metadata"]["labels"],
    )?;
    equal(
        "the service's port",
        &service["spec"]["ports"],
        &json!([{"name": "metrics", "port": 9500, "targetPort": "metrics"}]),
    )?;
    equal(
        "the monitor's services",
        &monitor["spec"]["selector"]["matchLabels"],
        &service["metadata"]["labels"],
    )?;
    equal(
        "the monitor's endpoints",
        &monitor["spec"]["endpoints"],
        &json!([{"port": "metrics", "path": "/metrics", "interval": "30s", "honorLabels": true}]),
    )?;
    ensure!(
        monitor["metadata"]["labels"]["release"] == "prometheus",
        "{monitor:#}"
    );
    let without = json!({"metrics": {"serviceMonitor": {"interval": "1m"}}});
    equal(
        "metrics are off",
        &documents(&without)?,
        &documents(&json!({}))?,
    )
}

/// Puts a patch over something as `kubectl patch` does: what has a name meets what has the same one.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(target), Value::Array(patch)) if patch.iter().all(Value::is_object) => {
            for value in patch {
                match target.iter_mut().find(|it| it["name"] == value["name"]) {
                    Some(it) => merge(it, value),
                    None => target.push(value.clone()),
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// Sets what is at a path; the last of its names may be new.
fn put(documents: &mut Value, path: &str, value: Value) -> Result<()> {
    let (parent, name) = path.rsplit_once('/').context("a path")?;
    let parent = documents.pointer_mut(parent).context(path.to_owned())?;
    match name.parse::<usize>() {
        Ok(number) => parent[number] = value,
        Err(_) => parent[name] = value,
    }
    Ok(())
}

/// Each value that there is changes what it should, and nothing else.
fn other_values() -> Result<()> {
    let mut wanted = documents(&json!({"mode": "nvidia"}))?;
    // A ConfigMap, the daemon, the plugin.
    put(
        &mut wanted,
        "/0/data/config.yaml/sharing/mps/resources/0/replicas",
        json!(4),
    )?;
    let env = json!([
        {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/p"},
        {"name": "CUDA_MPS_LOG_DIRECTORY", "value": "/l"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        {"name": "OPENMPS_ENGINE", "value": "soft"},
        {"name": "OPENMPS_SOFT_MEMORY", "value": "15G"},
    ]);
    put(&mut wanted, "/1/spec/template/spec/containers/0/env", env)?;
    put(
        &mut wanted,
        "/2/spec/template/spec/containers/0/env/0/value",
        json!("/p"),
    )?;
    for (document, limit) in [(1, "cpu"), (2, "memory")] {
        let pod = format!("/{document}/spec/template/spec");
        put(
            &mut wanted,
            &format!("{pod}/nodeSelector"),
            json!({"gpu": "yes"}),
        )?;
        put(
            &mut wanted,
            &format!("{pod}/containers/0/image"),
            json!("r/openmps:1"),
        )?;
        put(
            &mut wanted,
            &format!("{pod}/containers/0/imagePullPolicy"),
            json!("Never"),
        )?;
        put(
            &mut wanted,
            &format!("{pod}/containers/0/volumeMounts/0/mountPath"),
            json!("/p"),
        )?;
        put(
            &mut wanted,
            &format!("{pod}/volumes/0/hostPath/path"),
            json!("/p"),
        )?;
        put(
            &mut wanted,
            &format!("{pod}/imagePullSecrets"),
            json!([{"name": "secret"}]),
        )?;
        put(
            &mut wanted,
            &format!("{pod}/containers/0/resources"),
            json!({"limits": {limit: 1}}),
        )?;
    }
    put(
        &mut wanted,
        "/1/spec/template/spec/runtimeClassName",
        json!("nvidia"),
    )?;
    let daemon = "/1/spec/template/spec";
    put(
        &mut wanted,
        &format!("{daemon}/containers/0/volumeMounts"),
        json!([
            {"name": "pipe", "mountPath": "/p"}, {"name": "log", "mountPath": "/l"},
        ]),
    )?;
    put(
        &mut wanted,
        &format!("{daemon}/volumes"),
        json!([
            {"name": "pipe", "hostPath": {"path": "/p", "type": "DirectoryOrCreate"}},
            {"name": "log", "hostPath": {"path": "/l", "type": "DirectoryOrCreate"}},
        ]),
    )?;
    let plugin = "/2/spec/template/spec";
    put(
        &mut wanted,
        &format!("{plugin}/containers/0/command"),
        json!([
            "openmps",
            "kubernetes",
            "plugin",
            "--mode=nvidia",
            "--memory-unit=MiB",
            "--placement=spread",
            "--sockets=/k/device-plugins",
            "--pod-resources=/k/pod-resources/kubelet.sock",
            "--state=/s/allocations.json",
            "--library-directory=/s/lib",
            "--config=/etc/openmps/config.yaml",
            "--cdi=/var/run/cdi",
        ]),
    )?;
    let places = [
        ("pipe", "/p"),
        ("state", "/s"),
        ("device-plugins", "/k/device-plugins"),
        ("pod-resources", "/k/pod-resources"),
        ("cdi", "/var/run/cdi"),
    ];
    let mut mounts: Vec<Value> = Vec::new();
    let mut volumes: Vec<Value> = Vec::new();
    for (name, path) in places {
        mounts.push(json!({"name": name, "mountPath": path}));
        let on_host = json!({"path": path, "type": "DirectoryOrCreate"});
        volumes.push(json!({"name": name, "hostPath": on_host}));
    }
    mounts.push(json!({"name": "sharing", "mountPath": "/etc/openmps"}));
    volumes.push(json!({"name": "sharing", "configMap": {"name": "openmps-sharing"}}));
    put(
        &mut wanted,
        &format!("{plugin}/containers/0/volumeMounts"),
        json!(mounts),
    )?;
    put(&mut wanted, &format!("{plugin}/volumes"), json!(volumes))?;

    let values = json!({
        "mode": "nvidia", "memoryUnit": "MiB", "placement": "spread", "cdi": true, "engine": "soft",
        "sharing": {"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}},
        "image": {"repository": "r/openmps", "tag": "1", "pullPolicy": "Never"},
        "imagePullSecrets": [{"name": "secret"}],
        "nodeSelector": {"gpu": "yes"},
        "daemonEnv": [{"name": "OPENMPS_SOFT_MEMORY", "value": "15G"}],
        "runtimeClassName": "nvidia",
        "directories": {"pipe": "/p", "log": "/l", "state": "/s", "kubelet": "/k"},
        "resources": {"daemon": {"limits": {"cpu": 1}}, "plugin": {"limits": {"memory": 1}}},
    });
    equal("other values", &documents(&values)?, &wanted)
}
