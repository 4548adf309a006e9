//! Who has how much of which GPU of which node, in the columns of `kubectl inspect gpushare`.
//!
//! Scripts take that table apart, so it is the same to the blank, but for the unit: gpushare's guesses
//! MiB as soon as a GPU has more than a hundred units, which a GPU of 141 GiB has.
//!
//! Called by `openmps kubernetes inspect`. Must not ask the API server: pods and nodes come in.

use std::fmt::Write;

use super::memory_unit::MemoryUnit;
use super::pods::{self, Node};

/// More units than any GPU has GiB: then they are MiB.
const MOST_GIB: u64 = 1024;

/// What the rule below the table is longer by than the first row with single tabs.
const RULE: usize = 20;

/// In what these nodes count memory.
#[must_use]
pub fn unit_of(nodes: &[Node]) -> MemoryUnit {
    match nodes.iter().any(|node| node.of_each() > MOST_GIB) {
        true => MemoryUnit::Mib,
        false => MemoryUnit::Gib,
    }
}

/// A row for each node.
#[must_use]
pub fn summary(nodes: &[Node], unit: MemoryUnit) -> String {
    let gpus = nodes.iter().map(|node| node.gpus).max().unwrap_or(0);
    let pending = nodes.iter().any(|node| node.used(None) > 0);
    let mut head = vec!["NAME".to_owned(), "IPADDRESS".to_owned()];
    head.extend((0..gpus).map(|gpu| format!("GPU{gpu}(Allocated/Total)")));
    if pending {
        head.push("PENDING(Allocated)".to_owned());
    }
    head.push(format!("GPU Memory({unit})"));
    let mut rows = vec![head];
    let (mut all_used, mut all) = (0_u64, 0_u64);
    for node in nodes {
        let mut row = vec![node.name.clone(), node.address.clone()];
        for gpu in 0..gpus {
            let total = if gpu < node.gpus { node.of_each() } else { 0 };
            row.push(format!("{}/{total}", node.used(Some(gpu))));
        }
        let waiting = node.used(None);
        if pending {
            row.push(if waiting > 0 {
                waiting.to_string()
            } else {
                String::new()
            });
        }
        let used = pods::sum(
            (0..node.gpus)
                .map(Some)
                .chain([None])
                .map(|gpu| node.used(gpu)),
        );
        row.push(format!("{used}/{}", node.total));
        (all_used, all) = (
            all_used.saturating_add(used),
            all.saturating_add(node.total),
        );
        rows.push(row);
    }
    let mut text = columns(&rows);
    let first: usize = rows.get(1).map_or(0, |row| {
        row.iter().map(|cell| cell.len() + 1).sum::<usize>()
    });
    let _ = writeln!(text, "{}", "-".repeat(first + RULE));
    let _ = writeln!(text, "Allocated/Total GPU Memory In Cluster:");
    let _ = writeln!(text, "{all_used}/{all} ({}%)", percent(all_used, all));
    text
}

/// The pods of each node.
#[must_use]
pub fn details(nodes: &[Node], unit: MemoryUnit) -> String {
    let mut text = String::new();
    let (mut all_used, mut all) = (0_u64, 0_u64);
    for node in nodes {
        let _ = writeln!(
            text,
            "\nNAME:       {}\nIPADDRESS:  {}\n",
            node.name, node.address
        );
        let mut places: Vec<Option<u32>> = (0..node.gpus).map(Some).collect();
        let waiting = node.used(None);
        if waiting > 0 {
            places.push(None);
        }
        let mut head = vec!["NAME".to_owned(), "NAMESPACE".to_owned()];
        head.extend(places.iter().map(|place| match place {
            Some(gpu) => format!("GPU{gpu}(Allocated)"),
            None => "Pending(Allocated)".to_owned(),
        }));
        let mut rows = vec![head];
        for pod in &node.pods {
            let mut row = vec![pod.name.clone(), pod.namespace.clone()];
            let units = |place| pod.units.get(place).copied().unwrap_or(0).to_string();
            row.extend(places.iter().map(units));
            rows.push(row);
        }
        text.push_str(&columns(&rows));
        let used = pods::sum(
            (0..node.gpus)
                .map(Some)
                .chain([None])
                .map(|gpu| node.used(gpu)),
        );
        (all_used, all) = (
            all_used.saturating_add(used),
            all.saturating_add(node.total),
        );
        let part = percent(used, node.total);
        let _ = writeln!(text, "Allocated :  {used} ({part}%)");
        let _ = writeln!(text, "Total :      {}", node.total);
        let _ = writeln!(text, "{}", "-".repeat(RULE * 4));
    }
    let part = percent(all_used, all);
    let _ = writeln!(
        text,
        "\n\nAllocated/Total GPU Memory In Cluster:  {all_used}/{all} {unit} ({part}%)"
    );
    text
}

/// Whole percent, downwards.
fn percent(part: u64, whole: u64) -> u64 {
    let percent = (u128::from(part) * 100).checked_div(whole.into());
    percent.map_or(0, |percent| u64::try_from(percent).unwrap_or(u64::MAX))
}

/// Columns two blanks apart; each cell but a row's last is filled up.
fn columns(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or(0)
    };
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let last = column + 1 == row.len();
            let width = if last { 0 } else { width(column) + 2 };
            let _ = write!(text, "{cell:<width$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::pods::nodes;
    use serde_json::{Value, json};

    fn node(name: &str, total: &str, gpus: &str) -> Value {
        json!({
            "kind": "Node",
            "metadata": {"name": name},
            "status": {
                "allocatable": {
                    "cpu": "2", "aliyun.com/gpu-mem": total, "aliyun.com/gpu-count": gpus
                },
                "addresses": [
                    {"type": "Hostname", "address": "h"},
                    {"type": "InternalIP", "address": "192.168.0.71"}
                ]
            }
        })
    }

    fn pod(name: &str, node: &str, units: &str, phase: &str, annotations: Value) -> Value {
        json!({
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"nodeName": node, "containers": [
                {"resources": {"limits": {"aliyun.com/gpu-mem": units}}}, {"resources": {}}
            ]},
            "status": {"phase": phase}
        })
    }

    fn list(items: Vec<Value>) -> Vec<Node> {
        nodes(&json!({"kind": "List", "items": items}).to_string()).unwrap()
    }

    #[test]
    fn what_a_pods_author_writes_stays_more_than_there_can_be() {
        let most = u64::MAX.to_string();
        let wish = json!({"scheduler.framework.gpushare.allocation": format!(r#"{{"0": {{"0": {most}}}, "1": {{"0": {most}}}}}"#)});
        let mut greedy = pod("greedy", "n", &most, "Running", json!({}));
        let twice = greedy["spec"]["containers"][0].clone();
        greedy["spec"]["containers"][1] = twice;
        let nodes = list(vec![
            node("n", &most, "1"),
            node("m", &most, "1"),
            greedy,
            pod("wishes", "n", &most, "Running", wish),
        ]);
        assert_eq!(nodes[0].used(Some(0)), u64::MAX);
        let unit = unit_of(&nodes);
        for text in [summary(&nodes, unit), details(&nodes, unit)] {
            assert!(text.contains(&format!("{most}/{most}")), "{text}");
        }
    }

    #[test]
    fn the_table_is_gpushares() {
        let name = "cn-shanghai.i-uf61h64dz1tmlob9hmtb";
        let nodes = list(vec![
            node(name, "15", "1"),
            pod(
                "binpack-1",
                name,
                "6",
                "Running",
                json!({"ALIYUN_COM_GPU_MEM_IDX": "0"}),
            ),
            pod(
                "ended",
                name,
                "5",
                "Succeeded",
                json!({"ALIYUN_COM_GPU_MEM_IDX": "0"}),
            ),
            json!({"kind": "Node", "metadata": {"name": "no-gpu"}}),
        ]);
        let expected = "\
            NAME                                IPADDRESS     GPU0(Allocated/Total)  GPU Memory(GiB)\n\
            cn-shanghai.i-uf61h64dz1tmlob9hmtb  192.168.0.71  6/15                   6/15\n\
            ------------------------------------------------------------------------------\n\
            Allocated/Total GPU Memory In Cluster:\n\
            6/15 (40%)\n";
        assert_eq!(summary(&nodes, unit_of(&nodes)), expected);
    }

    #[test]
    fn pods_that_wait_have_a_column_of_their_own() {
        let by_container = json!({
            "scheduler.framework.gpushare.allocation": "{\"0\": {\"1\": 3}, \"1\": {\"0\": 1}}"
        });
        let nodes = list(vec![
            node("a", "30", "2"),
            pod("one", "a", "4", "Running", by_container),
            pod("two", "a", "2", "Pending", json!({})),
        ]);
        let text = summary(&nodes, MemoryUnit::Gib);
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(
                "NAME  IPADDRESS     GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  \
                 GPU Memory(GiB)"
            )
        );
        assert_eq!(
            lines
                .next()
                .map(|line| line.split_whitespace().collect::<Vec<_>>()),
            Some(vec!["a", "192.168.0.71", "1/15", "3/15", "2", "6/30"])
        );
        let text = details(&nodes, MemoryUnit::Gib);
        for says in [
            "NAME:       a\nIPADDRESS:  192.168.0.71\n",
            "NAME  NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)\n",
            "one   default    1                3                0\n",
            "Allocated :  6 (20%)\nTotal :      30\n",
        ] {
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn a_gpu_of_141_gib_is_not_taken_for_one_of_mib() {
        let nodes = list(vec![node("h200", "141", "1")]);
        assert_eq!(unit_of(&nodes), MemoryUnit::Gib);
        let nodes = list(vec![node("t4", "15360", "1")]);
        assert_eq!(unit_of(&nodes), MemoryUnit::Mib);
    }

    #[test]
    fn what_is_no_list_is_told() {
        for text in ["", "{}", "[]", "{\"items\": [{}]}", "{\"items\": []}"] {
            let error = nodes(text).unwrap_err().to_string();
            assert!(error.contains("kubectl get nodes,pods"), "{text}: {error}");
        }
    }
}
