//! Schedulers that choose GPUs, from the node: gpushare's extender and ACK's own scheduler write into a
//! pod's annotations which GPU they chose, and the device plugin writes there that it did so.
//!
//! The API server is asked on a socket on which somebody speaks for this node's service account:
//! `kubectl proxy --unix-socket=…` in a container beside the plugin. So there is no TLS and no token here.
//!
//! Called by the plugin's answers, where a scheduler has chosen. Must not choose itself.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::allocations::BoxError;
use super::pods::{ALLOCATION, INDEX, OfContainers, quantity, sum};
use super::resources::ALIYUN_MEMORY;

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

/// Who chose a pod's GPUs, and how that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// ACK's, through the framework of schedulers: a GPU for each container.
    Ack,
    /// gpushare's extender: one GPU for the pod.
    Extender,
}

impl Scheduler {
    /// The annotation that says whether a device plugin has followed: `true` or `false`.
    const fn assigned(self) -> &'static str {
        match self {
            Self::Ack => "scheduler.framework.gpushare.assigned",
            Self::Extender => "ALIYUN_COM_GPU_MEM_ASSIGNED",
        }
    }

    /// The annotation that says when the GPU was chosen, in nanoseconds since 1970.
    const fn assumed_at(self) -> &'static str {
        match self {
            Self::Ack => "scheduler.framework.gpushare.assume-time",
            Self::Extender => "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        }
    }

    /// What it chose for a pod's containers.
    fn shares(self, item: &Value) -> Option<Vec<Share>> {
        let text = |name: &str| item["metadata"]["annotations"][name].as_str();
        match self {
            Self::Ack => {
                let containers: OfContainers = serde_json::from_str(text(ALLOCATION)?).ok()?;
                let share = |gpus: BTreeMap<String, u64>| {
                    let mut numbers = gpus.keys().map(|gpu| gpu.parse().ok());
                    let gpu = numbers.next().flatten().filter(|_| gpus.len() == 1);
                    let units = sum(gpus.values().copied());
                    Share { gpu, units }
                };
                Some(containers.into_values().map(share).collect())
            }
            Self::Extender => {
                let gpu = Some(text(INDEX)?.parse().ok()?);
                let asked = |container: &Value| {
                    let units = quantity(&container["resources"]["limits"][ALIYUN_MEMORY])?;
                    (units > 0).then_some(Share { gpu, units })
                };
                let containers = item["spec"]["containers"].as_array()?.iter();
                Some(containers.filter_map(asked).collect())
            }
        }
    }
}

/// What was chosen for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The number of its GPU; None if it is to have some of several.
    pub gpu: Option<u32>,
    /// Units that it asks for.
    pub units: u64,
}

/// A pod for which GPUs were chosen, and which has not been given them yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Tells it from a later one of that name.
    pub uid: String,
    /// Who chose.
    pub scheduler: Scheduler,
    /// What each of its containers is to have.
    pub containers: Vec<Share>,
}

impl Assumed {
    /// Units of all its containers.
    #[must_use]
    pub fn units(&self) -> u64 {
        sum(self.containers.iter().map(|share| share.units))
    }
}

/// Containers that were given their devices, by their pod's uid.
#[derive(Debug, Default)]
pub struct AssignedShares(BTreeMap<String, Vec<Share>>);

impl AssignedShares {
    /// The pod whose container asks for so many units, and what that is to have: of those that wait, the
    /// one that was assumed first.
    #[must_use]
    pub fn find<'a>(&self, waiting: &'a [Assumed], units: u64) -> Option<(&'a Assumed, Share)> {
        waiting.iter().find_map(|pod| {
            let given = self.0.get(&pod.uid).map_or(&[][..], Vec::as_slice);
            let waits = |share: &&Share| {
                let count = |list: &[Share]| list.iter().filter(|one| one == share).count();
                share.units == units && count(given) < count(&pod.containers)
            };
            Some((pod, *pod.containers.iter().find(waits)?))
        })
    }

    /// A container has its devices; whether it was its pod's last. Pods that wait no more are forgotten.
    pub fn record(&mut self, waiting: &[Assumed], pod: &Assumed, share: Share) -> bool {
        self.0
            .retain(|uid, _| waiting.iter().any(|pod| pod.uid == *uid));
        let given = self.0.entry(pod.uid.clone()).or_default();
        given.push(share);
        let is_last = given.len() >= pod.containers.len();
        if is_last {
            self.0.remove(&pod.uid);
        }
        is_last
    }
}

/// Why the API server does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It cannot be reached.
    #[error(
        "the API server, at {}: {source}: it is reached through `kubectl proxy`, in a container beside the plugin",
        socket.display()
    )]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It refuses.
    #[error("the API server, at {}: {source}", socket.display())]
    Refused {
        /// Where it answers.
        socket: PathBuf,
        /// What it says.
        source: BadStatus,
    },
    /// What it says of pods is no JSON.
    #[error("the API server's list of pods: {0}")]
    Pods(#[from] serde_json::Error),
    /// The thread that asked has failed.
    #[error(transparent)]
    Thread(BoxError),
}

/// An answer of HTTP's that says that something is not well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}, {why}{}", self.advice())]
pub struct BadStatus {
    status: String,
    why: String,
}

impl BadStatus {
    fn advice(&self) -> &'static str {
        match &*self.status {
            "401" | "403" => ": the service account needs what extender/rbac.yaml gives",
            _ => "",
        }
    }
}

impl Api {
    /// This node's pods for which GPUs were chosen and that have no devices yet, the oldest first.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn waiting_pods(&self) -> Result<Vec<Assumed>, ApiError> {
        Ok(assumed(&self.pods(",status.phase%3DPending")?))
    }

    /// This node's pods of which more is so, as a further field selector says.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(super) fn pods(&self, more: &str) -> Result<Value, ApiError> {
        let path = format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{}{more}",
            self.node
        );
        let text = self.ask("GET", &path, None)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Makes an object.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub(super) fn create(&self, path: &str, object: &Value) -> Result<(), ApiError> {
        self.ask("POST", path, Some(object)).map(drop)
    }

    /// Writes into a pod's annotations that it has what was chosen.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub fn mark_assigned(&self, pod: &Assumed) -> Result<(), ApiError> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": {pod.scheduler.assigned(): "true"}}});
        self.ask("PATCH", &path, Some(&patch)).map(drop)
    }

    /// Writes into the node's status how many GPUs it has.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub fn count(&self, gpus: usize) -> Result<(), ApiError> {
        let path = format!("/api/v1/nodes/{}/status", self.node);
        let count = json!({COUNT: gpus.to_string()});
        let patch = json!({"status": {"capacity": count, "allocatable": count}});
        self.ask("PATCH", &path, Some(&patch)).map(drop)
    }

    /// One request and its answer's body. HTTP 1.0, so that the answer ends with the connection.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<String, ApiError> {
        let failed = |source| ApiError::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let form = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let mut stream = UnixStream::connect(&self.socket).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\
             Content-Type: {form}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .map_err(failed)?;
        let mut answer = Vec::new();
        stream
            .take(LONGEST)
            .read_to_end(&mut answer)
            .map_err(failed)?;
        let answer = String::from_utf8_lossy(&answer);
        let body = body_of(&answer).map_err(|source| ApiError::Refused {
            socket: self.socket.clone(),
            source,
        })?;
        Ok(body.to_owned())
    }
}

/// The body of an answer of HTTP's that says that all is well.
///
/// # Errors
/// What else it says.
pub fn body_of(answer: &str) -> Result<&str, BadStatus> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.split_whitespace().nth(1).unwrap_or("nothing");
    if status.starts_with('2') {
        return Ok(body);
    }
    let said: Value = serde_json::from_str(body).unwrap_or_default();
    let why = said["message"].as_str().unwrap_or("it does not say why");
    Err(BadStatus {
        status: status.to_owned(),
        why: why.to_owned(),
    })
}

/// The pods of a list for which GPUs were chosen and that nobody has assigned, the oldest first.
#[must_use]
pub fn assumed(list: &Value) -> Vec<Assumed> {
    let items = list["items"].as_array().into_iter().flatten();
    let mut pods: Vec<(u128, Assumed)> = items
        .filter_map(|item| {
            let metadata = &item["metadata"];
            let annotation = |name: &str| metadata["annotations"][name].as_str();
            // One that has the annotations of both has been through the newer one last.
            let scheduler = [Scheduler::Ack, Scheduler::Extender]
                .into_iter()
                .find(|one| annotation(one.assigned()).is_some())?;
            if annotation(scheduler.assigned())? != "false" {
                return None;
            }
            let since = annotation(scheduler.assumed_at())?.parse().ok()?;
            let text = |name: &str| metadata[name].as_str().map(str::to_owned);
            let pod = Assumed {
                namespace: text("namespace")?,
                name: text("name")?,
                uid: text("uid")?,
                scheduler,
                containers: scheduler.shares(item)?,
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

    const ASSUMED_AT: &str = Scheduler::Extender.assumed_at();
    const ASSIGNED: &str = Scheduler::Extender.assigned();

    const fn share(gpu: u32, units: u64) -> Share {
        Share {
            gpu: Some(gpu),
            units,
        }
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
        assert_eq!(waiting[0].containers, [share(0, 2), share(0, 3)]);
        assert_eq!(waiting[0].units(), 5);
        assert!(assumed(&json!({})).is_empty());
    }

    #[test]
    fn acks_scheduler_chooses_for_each_container() {
        let of = |allocation: &str, assigned: &str| {
            json!({
                ALLOCATION: allocation, "scheduler.framework.gpushare.assigned": assigned,
                "scheduler.framework.gpushare.assume-time": "5",
            })
        };
        let mut both = of(r#"{"0": {"3": 2}}"#, "true");
        both[ASSIGNED] = "false".into();
        both[ASSUMED_AT] = "4".into();
        both[INDEX] = "1".into();
        let list = json!({"items": [
            pod("two", of(r#"{"0": {"1": 1}, "2": {"0": 7}}"#, "false"), &[1, 0, 7]),
            pod("several", of(r#"{"0": {"0": 2, "1": 2}}"#, "false"), &[4]),
            pod("done", of(r#"{"0": {"1": 1}}"#, "true"), &[1]),
            pod("not json", of("1", "false"), &[1]),
            pod("both", both, &[2]),
        ]});
        let waiting = assumed(&list);
        let names: Vec<&str> = waiting.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["two", "several"]);
        assert_eq!(waiting[0].scheduler, Scheduler::Ack);
        assert_eq!(waiting[0].containers, [share(1, 1), share(0, 7)]);
        let several = Share {
            gpu: None,
            units: 4,
        };
        assert_eq!(waiting[1].containers, [several]);
    }

    #[test]
    fn a_pod_of_two_containers_is_given_both_before_the_next() {
        let of = |uid: &str, containers: &[Share]| Assumed {
            namespace: "n".into(),
            name: uid.into(),
            uid: uid.into(),
            scheduler: Scheduler::Extender,
            containers: containers.into(),
        };
        let waiting = [
            of("a", &[share(0, 2), share(0, 2), share(1, 2)]),
            of("b", &[share(1, 2)]),
        ];
        let mut given = AssignedShares::default();
        for (gpu, is_last) in [(0, false), (0, false), (1, true)] {
            let (pod, found) = given.find(&waiting, 2).unwrap();
            assert_eq!((pod.uid.as_str(), found), ("a", share(gpu, 2)));
            assert_eq!(given.record(&waiting, pod, found), is_last);
        }
        // Then it is marked, and waits no more.
        let waiting = &waiting[1..];
        let (pod, found) = given.find(waiting, 2).unwrap();
        assert_eq!(pod.uid, "b");
        assert!(given.record(waiting, pod, found));
        assert_eq!(given.find(waiting, 3), None);
    }
}
