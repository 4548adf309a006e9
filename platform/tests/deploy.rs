//! The manifests and the chart of `deploy/`, as far as they can be looked at without a cluster;
//! `cargo xtask kubernetes` applies the manifests to one.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use platform::kubernetes::sharing::Sharing;
use platform::yaml::{File, Node, Value, get};

fn deploy(path: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(path);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

/// The documents of a file.
fn documents(path: &str) -> Vec<Node> {
    let (path, text) = deploy(path);
    let each = text.split("\n---\n");
    each.map(|text| {
        File::parse(&path, text)
            .unwrap_or_else(|error| panic!("{error}"))
            .root
    })
    .collect()
}

/// What is at keys and numbers, one in the other.
fn at<'a>(node: &'a Node, path: &str) -> Option<&'a Node> {
    path.split('/')
        .try_fold(node, |node, key| match &node.value {
            Value::Map(entries) => get(entries, key),
            Value::List(items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        })
}

fn text<'a>(node: &'a Node, path: &str) -> &'a str {
    match at(node, path).map(|node| &node.value) {
        Some(Value::Text(text)) => text,
        other => panic!("{path}: {other:?}"),
    }
}

fn word(node: &Node) -> &str {
    match &node.value {
        Value::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

fn list<'a>(node: &'a Node, path: &str) -> &'a [Node] {
    match at(node, path).map(|node| &node.value) {
        Some(Value::List(items)) => items,
        other => panic!("{path}: {other:?}"),
    }
}

/// All keys, however deep.
fn keys(node: &Node, all: &mut BTreeSet<String>) {
    match &node.value {
        Value::Map(entries) => {
            for (key, node) in entries {
                all.insert(key.clone());
                keys(node, all);
            }
        }
        Value::List(items) => items.iter().for_each(|node| keys(node, all)),
        _ => {}
    }
}

#[test]
fn manifests_are_two_daemon_sets_each() {
    for mode in ["aliyun", "nvidia", "openmps"] {
        let documents = documents(&format!("kubernetes/{mode}.yaml"));
        let sets: Vec<&Node> = documents
            .iter()
            .filter(|document| text(document, "kind") == "DaemonSet")
            .collect();
        assert_eq!(sets.len(), 2, "{mode}");
        let mut pipes = BTreeSet::new();
        for set in &sets {
            assert_eq!(text(set, "apiVersion"), "apps/v1");
            let labels = at(set, "spec/template/metadata/labels").map(|node| node.value.clone());
            let selector = at(set, "spec/selector/matchLabels").map(|node| node.value.clone());
            // Lines differ; names and values do not.
            let plain = |value: Option<Value>| match value {
                Some(Value::Map(entries)) => entries
                    .into_iter()
                    .map(|(key, node)| (key, format!("{:?}", node.value)))
                    .collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            };
            assert_eq!(plain(labels), plain(selector), "{mode}");
            // What NVIDIA's needs and ours does not.
            let mut found = BTreeSet::new();
            keys(set, &mut found);
            for never in ["hostIPC", "hostPID", "hostNetwork"] {
                assert!(!found.contains(never), "{mode}: {never}");
            }
            let container = at(set, "spec/template/spec/containers/0").unwrap();
            let volumes = list(set, "spec/template/spec/volumes");
            let names: BTreeSet<&str> = volumes.iter().map(|volume| text(volume, "name")).collect();
            for mount in list(container, "volumeMounts") {
                let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
                assert!(names.contains(name), "{mode}: no volume {name}");
                let volume = volumes
                    .iter()
                    .find(|volume| text(volume, "name") == name)
                    .unwrap();
                if at(volume, "hostPath").is_some() {
                    assert_eq!(
                        text(volume, "hostPath/path"),
                        path,
                        "{mode}: one path in and out"
                    );
                }
            }
            let variables = list(container, "env").iter();
            let pipe = variables
                .clone()
                .find(|variable| text(variable, "name") == "CUDA_MPS_PIPE_DIRECTORY");
            pipes.insert(text(pipe.unwrap(), "value").to_owned());
        }
        assert_eq!(pipes.len(), 1, "{mode}: both know one directory");
        let plugin = at(sets[1], "spec/template/spec/containers/0").unwrap();
        let command: Vec<&str> = list(plugin, "command").iter().map(word).collect();
        assert_eq!(command[..3], ["openmps", "kubernetes", "plugin"]);
        assert_eq!(command[3], format!("--mode={mode}"));
        assert_eq!(
            at(plugin, "securityContext/privileged").map(|node| &node.value),
            None,
            "{mode}: the plugin has no privileges"
        );
    }
}

#[test]
fn the_configuration_in_the_manifest_is_one_that_the_plugin_reads() {
    let documents = documents("kubernetes/nvidia.yaml");
    let config = text(&documents[0], "data/config.yaml");
    let file = File::parse(Path::new("config.yaml"), config).unwrap();
    let sharing = Sharing::from_file(&file).unwrap();
    assert_eq!(
        (sharing.resource.as_str(), sharing.replicas),
        ("nvidia.com/gpu", 10)
    );
    let (path, text) = deploy("helm/openmps/values.yaml");
    let values = File::parse(&path, &text).unwrap();
    let mut inner = values.clone();
    inner.root = at(&values.root, "sharing").unwrap().clone();
    assert_eq!(Sharing::from_file(&inner).unwrap(), sharing);
}

#[test]
fn the_chart_names_only_values_that_there_are() {
    let chart = documents("helm/openmps/Chart.yaml").remove(0);
    assert_eq!(text(&chart, "apiVersion"), "v2");
    assert_eq!(text(&chart, "version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(text(&chart, "appVersion"), env!("CARGO_PKG_VERSION"));
    let values = documents("helm/openmps/values.yaml").remove(0);
    for template in [
        "_helpers.tpl",
        "daemon.yaml",
        "extender.yaml",
        "plugin.yaml",
    ] {
        let (_, text) = deploy(&format!("helm/openmps/templates/{template}"));
        for rest in text.split(".Values.").skip(1) {
            let name = |byte: char| byte.is_ascii_alphanumeric() || byte == '.';
            let path: String = rest.chars().take_while(|&byte| name(byte)).collect();
            let path = path.trim_end_matches('.').replace('.', "/");
            assert!(at(&values, &path).is_some(), "{template}: no value {path}");
        }
        let count = |word: &str| text.matches(word).count();
        let blocks: usize = ["{{- if ", "{{- with ", "{{- define "]
            .into_iter()
            .map(count)
            .sum();
        assert_eq!(
            count("{{- end }}") + count("{{- end -}}"),
            blocks,
            "{template}"
        );
    }
}

#[test]
fn examples_ask_for_what_is_offered() {
    for (example, resources) in [
        ("aliyun-pod", &["aliyun.com/gpu-mem"][..]),
        (
            "openmps-pod",
            &["openmps.org/gpu-memory", "openmps.org/gpu-share"],
        ),
    ] {
        let pod = documents(&format!("kubernetes/examples/{example}.yaml")).remove(0);
        let limits = at(&pod, "spec/containers/0/resources/limits").unwrap();
        let Value::Map(entries) = &limits.value else {
            panic!("no limits");
        };
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, resources);
    }
}
