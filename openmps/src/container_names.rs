//! Which container and pod a client is in, as lists name it.
//!
//! The daemon tells what cgroups say: a container's id and a pod's uid. Names are the kubelet's, which this node's device plugin
//! asks for and writes down by group. Must not know how any of it is shown. Called by `usage` and `metrics`.

use std::collections::BTreeMap;

use platform::kubernetes::allocations::{self, Holder};
use protocol::control_messages::ViewedProcess;
use serde::Serialize;

use crate::usage::printable;

/// Digits of a container's id by which people know it.
const SHORT: usize = 12;

/// A client's container and pod.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct ContainerName {
    /// The container: its name in its pod, or where that is not known the first digits of its id.
    pub container: Option<String>,
    /// The pod: its name, or where that is not known its uid.
    pub pod: Option<String>,
    /// The pod's namespace.
    pub namespace: Option<String>,
    /// The container's whole id.
    pub container_id: Option<String>,
    /// The pod's uid.
    pub pod_uid: Option<String>,
}

impl ContainerName {
    /// The pod, or a container that is in none.
    pub fn pod_or_container(&self) -> Option<String> {
        match (&self.namespace, &self.pod) {
            (Some(namespace), Some(pod)) => Some(format!("{namespace}/{pod}")),
            _ => self.pod.clone().or_else(|| self.container.clone()),
        }
    }
}

/// The containers of groups, as far as they are known here.
#[derive(Debug)]
pub struct ContainerNames(BTreeMap<String, Holder>);

impl ContainerNames {
    /// Those of this node. They are root's to read.
    pub fn of_node() -> Self {
        let text = std::fs::read_to_string(allocations::FILE).unwrap_or_default();
        Self(allocations::holders(&text))
    }

    /// Where a client is.
    pub fn of(&self, process: &ViewedProcess) -> ContainerName {
        let text = |text: &Option<String>| text.as_deref().map(printable);
        let (container_id, pod_uid) = (text(&process.container), text(&process.pod));
        let holder = process.group.as_ref().and_then(|group| self.0.get(group));
        let named = |name: fn(&Holder) -> &String| holder.map(|holder| printable(name(holder)));
        let short = |id: &String| id.chars().take(SHORT).collect();
        ContainerName {
            container: named(|holder| &holder.container)
                .or_else(|| container_id.as_ref().map(short)),
            pod: named(|holder| &holder.pod).or_else(|| pod_uid.clone()),
            namespace: named(|holder| &holder.namespace),
            container_id,
            pod_uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_names_where_they_are_known() {
        let holder = Holder {
            namespace: "team".into(),
            pod: "train-0".into(),
            container: "main\u{1b}".into(),
        };
        let places = ContainerNames(BTreeMap::from([("k8s-a-1".to_owned(), holder)]));
        let id = "0123456789abcdef".repeat(4);
        let mut process = ViewedProcess {
            container: Some(id.clone()),
            pod: Some("u-1".into()),
            group: Some("tenant".into()),
            ..ViewedProcess::default()
        };
        let place = places.of(&process);
        assert_eq!(place.container.as_deref(), Some("0123456789ab"));
        assert_eq!(place.pod_or_container().as_deref(), Some("u-1"));
        process.group = Some("k8s-a-1".into());
        let expected = ContainerName {
            container: Some("main\\u{1b}".into()),
            pod: Some("train-0".into()),
            namespace: Some("team".into()),
            container_id: Some(id),
            pod_uid: Some("u-1".into()),
        };
        assert_eq!(places.of(&process), expected);
        assert_eq!(expected.pod_or_container().as_deref(), Some("team/train-0"));
        assert_eq!(
            places.of(&ViewedProcess::default()),
            ContainerName::default()
        );
    }
}
