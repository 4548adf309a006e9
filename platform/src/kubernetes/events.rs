//! Faults of pods' programs as events of Kubernetes, beside those of the kubelet in `kubectl describe pod`.
//!
//! The daemon tells of faults and of the pod's uid; which pod that is the API server tells, where there is a way to it
//! ([`Api`]). Called by the plugin. Must not know how a fault comes about.

use serde::Deserialize;
use serde_json::{Value, json};

use super::extender::{Api, ApiError};

/// The longest message that the API server takes.
const LONGEST_MESSAGE: usize = 1024;

/// A fault of a client's context, as the daemon's command `faults` tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ClientFault {
    /// Its number: later ones have higher ones, in one daemon's life.
    pub number: u64,
    /// When it was, in RFC 3339.
    pub time: String,
    /// A CUresult.
    pub error: u32,
    /// `guilty`, `suspect` or `innocent`.
    pub guilt: String,
    /// What happened.
    pub why: String,
    /// The client's process on the node, or 0.
    pub pid: i32,
    /// Its program's name.
    pub command: String,
    /// The uid of its pod, if it is in one.
    pub pod: Option<String>,
}

impl ClientFault {
    /// What is said of it.
    #[must_use]
    pub fn message(&self) -> String {
        let Self {
            error,
            guilt,
            why,
            pid,
            command,
            ..
        } = self;
        let mut text = format!(
            "{command} (process {pid}) lost its GPU context to error {error}, {guilt}: {why}"
        );
        text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
        text
    }
}

/// Those of a daemon's faults that were not seen before, `seen` being the number of the last one that was. A daemon
/// that begins anew begins with 1.
#[must_use]
pub fn later(faults: Vec<ClientFault>, seen: u64) -> Vec<ClientFault> {
    let is_new_daemon = faults.last().is_some_and(|last| last.number < seen);
    let after = if is_new_daemon { 0 } else { seen };
    let mut faults = faults;
    faults.retain(|fault| fault.number > after);
    faults
}

/// The event of a fault of a pod's, by what the API says of the pod.
fn event(node: &str, pod: &Value, fault: &ClientFault) -> Value {
    let of_pod = &pod["metadata"];
    let (name, namespace) = (&of_pod["name"], &of_pod["namespace"]);
    // As the kubelet names its own: the pod, and the time.
    let time: String = fault.time.chars().filter(char::is_ascii_digit).collect();
    let event = format!(
        "{}.{time}-{}",
        name.as_str().unwrap_or_default(),
        fault.number
    );
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": event, "namespace": namespace },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod",
            "name": name, "namespace": namespace, "uid": of_pod["uid"],
        },
        "type": "Warning",
        "reason": "GpuFault",
        "message": fault.message(),
        "source": { "component": "openmps", "host": node },
        "firstTimestamp": fault.time,
        "lastTimestamp": fault.time,
        "count": 1,
    })
}

impl Api {
    /// Makes an event of each fault whose pod is one of this node's.
    ///
    /// # Errors
    /// When the API server does not answer, or takes no events.
    pub fn report(&self, faults: &[ClientFault]) -> Result<(), ApiError> {
        let list = self.pods("")?;
        let items = list["items"].as_array();
        for fault in faults {
            let mut pods = items.into_iter().flatten();
            let is_its = |pod: &&Value| pod["metadata"]["uid"].as_str() == fault.pod.as_deref();
            if let Some(pod) = pods.find(is_its) {
                let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
                let path = format!("/api/v1/namespaces/{namespace}/events");
                self.create(&path, &event(&self.node, pod, fault))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(number: u64) -> ClientFault {
        ClientFault {
            number,
            ..ClientFault::default()
        }
    }

    #[test]
    fn each_fault_is_told_once_and_another_daemons_as_well() {
        let numbers = |faults: &[u64], seen| -> Vec<u64> {
            let faults = faults.iter().map(|&number| fault(number)).collect();
            let later = later(faults, seen);
            later.into_iter().map(|fault| fault.number).collect()
        };
        assert_eq!(numbers(&[1, 2, 3], 0), [1, 2, 3]);
        assert_eq!(numbers(&[1, 2, 3], 2), [3]);
        assert_eq!(numbers(&[1, 2, 3], 3), [0; 0]);
        assert_eq!(numbers(&[1, 2], 9), [1, 2]);
        assert_eq!(numbers(&[], 9), [0; 0]);
    }

    #[test]
    fn an_event_names_its_pod_and_fits() {
        let fault = ClientFault {
            number: 7,
            time: "2026-11-25T15:00:01.250Z".into(),
            error: 700,
            guilt: "guilty".into(),
            why: "ü".repeat(2000),
            pid: 42,
            command: "train".into(),
            pod: Some("uid".into()),
        };
        let pod = json!({"metadata": {"name": "p", "namespace": "team", "uid": "uid"}});
        let event = event("node1", &pod, &fault);
        assert_eq!(event["metadata"]["name"], "p.20261125150001250-7");
        assert_eq!(event["involvedObject"]["uid"], "uid");
        let message = event["message"].as_str().unwrap();
        assert!(
            message.starts_with("train (process 42) lost its GPU context to error 700, guilty: ü")
        );
        assert!(message.len() <= LONGEST_MESSAGE);
    }
}
