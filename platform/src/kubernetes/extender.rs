//! gpushare's scheduler extender, from the node: it chooses a pod's GPU and writes that into the pod's
//! annotations, and the device plugin writes there that it did so.
//!
//! The API server is asked on a socket on which somebody speaks for this node's service account:
//! `kubectl proxy --unix-socket=…` in a container beside the plugin. So there is no TLS and no token here.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::pods::quantity;
use super::resources::ALIYUN_MEMORY;

/// The GPU, by its number, as the extender wrote it.
const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
/// When the extender did so, in nanoseconds since 1970.
const ASSUMED_AT: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
/// Whether a device plugin has followed: `true` or `false`.
const ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
/// How many GPUs the node has.
const COUNT: &str = "aliyun.com/gpu-count";

/// What the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer: some thousand pods.
const LONGEST: u64 = 64 << 20;

/// Where the API server is asked, and for which node.
#[derive(Clone, Debug)]
pub struct Api {
    /// The proxy's socket.
    pub socket: PathBuf,
    /// This node's name.
    pub node: String,
}

/// A pod for which the extender has chosen a GPU, and which has not been given it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Tells it from a later one of that name.
    pub uid: String,
    /// The number of its GPU.
    pub gpu: u32,
    /// Units that each of its containers asks for.
    pub containers: Vec<u64>,
}

impl Assumed {
    /// Units of all its containers.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.containers.iter().sum()
    }
}

/// Containers that were given their devices, by their pod's uid.
#[derive(Debug, Default)]
pub struct Given(BTreeMap<String, Vec<u64>>);

impl Given {
    /// The pod whose container asks for so many units: of those that wait, the one that was assumed first.
    #[must_use]
    pub fn find<'a>(&self, waiting: &'a [Assumed], units: u64) -> Option<&'a Assumed> {
        waiting.iter().find(|pod| {
            let count = |list: &[u64]| list.iter().filter(|&&one| one == units).count();
            let given = self.0.get(&pod.uid).map_or(&[][..], Vec::as_slice);
            count(given) < count(&pod.containers)
        })
    }

    /// A container has its devices; whether it was its pod's last. Pods that wait no more are forgotten.
    pub fn give(&mut self, waiting: &[Assumed], pod: &Assumed, units: u64) -> bool {
        self.0
            .retain(|uid, _| waiting.iter().any(|pod| pod.uid == *uid));
        let given = self.0.entry(pod.uid.clone()).or_default();
        given.push(units);
        let is_last = given.len() >= pod.containers.len();
        if is_last {
            self.0.remove(&pod.uid);
        }
        is_last
    }
}

impl Api {
    /// This node's pods that the extender has assumed and that have no devices yet, the oldest first.
    ///
    /// # Errors
    /// In words, when the API server does not answer.
    pub fn waiting(&self) -> Result<Vec<Assumed>, String> {
        let fields = format!("spec.nodeName%3D{},status.phase%3DPending", self.node);
        let text = self.ask("GET", &format!("/api/v1/pods?fieldSelector={fields}"), None)?;
        let list: Value = serde_json::from_str(&text)
            .map_err(|error| format!("the API server's list of pods: {error}"))?;
        Ok(assumed(&list))
    }

    /// Writes into a pod's annotations that it has what the extender chose.
    ///
    /// # Errors
    /// In words, when the API server does not take it.
    pub fn assigned(&self, pod: &Assumed) -> Result<(), String> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": {ASSIGNED: "true"}}});
        self.ask("PATCH", &path, Some(&patch)).map(drop)
    }

    /// Writes into the node's status how many GPUs it has.
    ///
    /// # Errors
    /// In words, when the API server does not take it.
    pub fn count(&self, gpus: usize) -> Result<(), String> {
        let path = format!("/api/v1/nodes/{}/status", self.node);
        let count = json!({COUNT: gpus.to_string()});
        let patch = json!({"status": {"capacity": count, "allocatable": count}});
        self.ask("PATCH", &path, Some(&patch)).map(drop)
    }

    /// One request and its answer's body. HTTP 1.0, so that the answer ends with the connection.
    fn ask(&self, method: &str, path: &str, patch: Option<&Value>) -> Result<String, String> {
        let place = self.socket.display();
        let failed = |error: std::io::Error| format!("the API server, at {place}: {error}");
        let body = patch.map(Value::to_string).unwrap_or_default();
        let mut stream = UnixStream::connect(&self.socket).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: application/strategic-merge-patch+json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .map_err(failed)?;
        let mut answer = Vec::new();
        stream
            .take(LONGEST)
            .read_to_end(&mut answer)
            .map_err(failed)?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split_whitespace().nth(1).unwrap_or("nothing");
        if status.starts_with('2') {
            return Ok(body.to_owned());
        }
        let said: Value = serde_json::from_str(body).unwrap_or_default();
        let why = said["message"].as_str().unwrap_or("it does not say why");
        Err(format!("the API server, at {place}: {status}, {why}"))
    }
}

/// The pods of a list that the extender has assumed and nobody has assigned, the oldest first.
fn assumed(list: &Value) -> Vec<Assumed> {
    let items = list["items"].as_array().into_iter().flatten();
    let mut pods: Vec<(u128, Assumed)> = items
        .filter_map(|item| {
            let metadata = &item["metadata"];
            let annotation = |name: &str| metadata["annotations"][name].as_str();
            if annotation(ASSIGNED)? != "false" {
                return None;
            }
            let since = annotation(ASSUMED_AT)?.parse().ok()?;
            let text = |name: &str| metadata[name].as_str().map(str::to_owned);
            let containers = item["spec"]["containers"].as_array()?.iter();
            let asked = |container: &Value| {
                quantity(&container["resources"]["limits"][ALIYUN_MEMORY])
                    .filter(|&units| units > 0)
            };
            let pod = Assumed {
                namespace: text("namespace")?,
                name: text("name")?,
                uid: text("uid")?,
                gpu: annotation(INDEX)?.parse().ok()?,
                containers: containers.filter_map(asked).collect(),
            };
            Some((since, pod))
        })
        .collect();
    pods.sort_by_key(|(since, _)| *since);
    pods.into_iter().map(|(_, pod)| pod).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, annotations: Value, units: &[u64]) -> Value {
        let containers: Vec<Value> = units
            .iter()
            .map(|units| json!({"resources": {"limits": {ALIYUN_MEMORY: units.to_string()}}}))
            .chain([json!({"name": "without"})])
            .collect();
        json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "annotations": annotations},
            "spec": {"containers": containers}
        })
    }

    #[test]
    fn pods_that_were_assumed_come_in_the_order_of_that() {
        let list = json!({"items": [
            pod("late", json!({INDEX: "1", ASSUMED_AT: "20", ASSIGNED: "false"}), &[2]),
            pod("early", json!({INDEX: "0", ASSUMED_AT: "9", ASSIGNED: "false"}), &[2, 3]),
            pod("done", json!({INDEX: "0", ASSUMED_AT: "1", ASSIGNED: "true"}), &[2]),
            pod("nowhere", json!({INDEX: "-1", ASSUMED_AT: "1", ASSIGNED: "false"}), &[2]),
            pod("plain", Value::Null, &[2]),
        ]});
        let waiting = assumed(&list);
        let names: Vec<&str> = waiting.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["early", "late"]);
        assert_eq!((waiting[0].gpu, waiting[0].units()), (0, 5));
        assert!(assumed(&json!({})).is_empty());
    }

    #[test]
    fn a_pod_of_two_containers_is_given_both_before_the_next() {
        let of = |uid: &str, gpu: u32, containers: &[u64]| Assumed {
            namespace: "n".into(),
            name: uid.into(),
            uid: uid.into(),
            gpu,
            containers: containers.into(),
        };
        let waiting = [of("a", 0, &[2, 2]), of("b", 1, &[2])];
        let mut given = Given::default();
        for is_last in [false, true] {
            let pod = given.find(&waiting, 2).unwrap();
            assert_eq!(pod.uid, "a");
            assert_eq!(given.give(&waiting, pod, 2), is_last);
        }
        // Then it is marked, and waits no more.
        let waiting = &waiting[1..];
        let pod = given.find(waiting, 2).unwrap();
        assert_eq!(pod.uid, "b");
        assert!(given.give(waiting, pod, 2));
        assert_eq!(given.find(waiting, 3), None);
    }
}
