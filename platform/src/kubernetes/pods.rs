//! Pods and nodes, as the API writes them: what `kubectl get nodes,pods -A -o json` prints, of which
//! only what is about shares of GPUs is looked at.
//!
//! Read by `inspect` and `extender`. Must not know who printed it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::resources::ALIYUN_MEMORY;

/// How many GPUs a node has, as gpushare's plugin writes it into the node's status.
const ALIYUN_COUNT: &str = "aliyun.com/gpu-count";

/// The GPU, by its number, as gpushare's extender wrote it.
pub(super) const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
/// The same of ACK's scheduler: [`OfContainers`].
pub(super) const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";

/// Units, by the number of the container and that of the GPU.
pub(super) type OfContainers = BTreeMap<String, BTreeMap<String, u64>>;

/// What cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}\n  -> it must be what `kubectl get nodes,pods --all-namespaces --output json` prints")]
pub struct NoList(String);

#[derive(Debug, Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Debug, Deserialize)]
struct Item {
    #[serde(default)]
    kind: String,
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// A pod with a share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Units, by GPU's number; None for those that have none yet.
    pub units: BTreeMap<Option<u32>, u64>,
}

/// A node that offers shares of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Units of all its GPUs.
    pub total: u64,
    /// Its GPUs.
    pub gpus: u32,
    /// Its pods.
    pub pods: Vec<Pod>,
}

impl Node {
    /// Units of each GPU: all are counted like the first, as gpushare does.
    #[must_use]
    pub fn of_each(&self) -> u64 {
        self.total.checked_div(u64::from(self.gpus)).unwrap_or(0)
    }

    /// Units that pods have of a GPU; of those that wait for one.
    #[must_use]
    pub fn used(&self, gpu: Option<u32>) -> u64 {
        let pods = self.pods.iter();
        sum(pods.filter_map(|pod| pod.units.get(&gpu).copied()))
    }
}

/// The nodes that offer `aliyun.com/gpu-mem`, with the pods that have some of it, in the list's order.
///
/// # Errors
/// When it is no such list.
pub fn nodes(text: &str) -> Result<Vec<Node>, NoList> {
    let list: List = serde_json::from_str(text).map_err(|error| NoList(error.to_string()))?;
    let mut nodes: Vec<Node> = list.items.iter().filter_map(node).collect();
    if !list.items.iter().any(|item| item.kind == "Node") {
        return Err(NoList("there is no node in the list".into()));
    }
    for item in list.items.iter().filter(|item| item.kind == "Pod") {
        let place = item.spec["nodeName"].as_str();
        if let Some(node) = nodes
            .iter_mut()
            .find(|node| Some(node.name.as_str()) == place)
        {
            node.pods.extend(pod(item, node.gpus));
        }
    }
    Ok(nodes)
}

fn node(item: &Item) -> Option<Node> {
    if item.kind != "Node" {
        return None;
    }
    let count = |name: &str| quantity(&item.status["allocatable"][name]);
    let total = count(ALIYUN_MEMORY).filter(|&total| total > 0)?;
    let addresses = item.status["addresses"].as_array();
    let internal = addresses.into_iter().flatten();
    let address = internal
        .filter(|address| address["type"] == "InternalIP")
        .find_map(|address| address["address"].as_str());
    Some(Node {
        name: item.metadata.name.clone(),
        address: address.unwrap_or("unknown").to_owned(),
        total,
        gpus: count(ALIYUN_COUNT)
            .and_then(|count| u32::try_from(count).ok())
            .map_or(1, |count| count.clamp(1, 1024)),
        pods: Vec::new(),
    })
}

fn pod(item: &Item, gpus: u32) -> Option<Pod> {
    // What has ended has given its share back.
    if matches!(item.status["phase"].as_str(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let containers = item.spec["containers"].as_array()?.iter();
    let asked = |container: &Value| quantity(&container["resources"]["limits"][ALIYUN_MEMORY]);
    let asked = sum(containers.filter_map(asked));
    if asked == 0 {
        return None;
    }
    let annotations = &item.metadata.annotations;
    let allocation = annotations.get(ALLOCATION).and_then(|text| {
        let containers: OfContainers = serde_json::from_str(text).ok()?;
        let mut units = BTreeMap::new();
        for (gpu, count) in containers.into_values().flatten() {
            let gpu = gpu.parse().ok().filter(|&gpu: &u32| gpu < gpus);
            let sum: &mut u64 = units.entry(gpu).or_default();
            *sum = sum.saturating_add(count);
        }
        Some(units)
    });
    let units = allocation.unwrap_or_else(|| {
        let index = annotations.get(INDEX);
        let index = index.and_then(|text| text.parse().ok());
        // With one GPU there is no choice, and no annotation is needed.
        let only = (gpus == 1 && item.status["phase"] == "Running").then_some(0);
        let gpu = index.filter(|&gpu: &u32| gpu < gpus).or(only);
        BTreeMap::from([(gpu, asked)])
    });
    Some(Pod {
        name: item.metadata.name.clone(),
        namespace: item.metadata.namespace.clone(),
        units,
    })
}

/// All of them together. Whoever makes a pod writes what it likes into it: more than there can be stays more.
pub(super) fn sum(units: impl Iterator<Item = u64>) -> u64 {
    units.fold(0, u64::saturating_add)
}

/// A whole number as the API writes it: with k, M or G behind it, if it is round.
pub(super) fn quantity(value: &Value) -> Option<u64> {
    if let Some(number) = value.as_u64() {
        return Some(number);
    }
    let text = value.as_str()?;
    let digits = text.trim_end_matches(['k', 'M', 'G']);
    let scale = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}
