//! Which container and pod a client is in, as lists name it.
//!
//! The daemon tells what cgroups say: a container's id and a pod's uid. Must not know how it is shown.

use protocol::control_messages::ViewedProcess;
use serde::Serialize;

use crate::usage::printable;

/// Digits of a container's id by which people know it.
const SHORT: usize = 12;

/// A client's container and pod.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Place {
    /// The container: the first digits of its id.
    pub container: Option<String>,
    /// The pod: its uid.
    pub pod: Option<String>,
    /// The container's whole id, and the pod's uid.
    pub container_id: Option<String>,
    pub pod_uid: Option<String>,
}

impl Place {
    /// The pod, or a container that is in none.
    pub fn whole(&self) -> Option<String> {
        self.pod.clone().or_else(|| self.container.clone())
    }

    /// Of a client.
    pub fn of(process: &ViewedProcess) -> Self {
        let text = |text: &Option<String>| text.as_deref().map(printable);
        let (container_id, pod_uid) = (text(&process.container), text(&process.pod));
        Self {
            container: container_id
                .as_ref()
                .map(|id| id.chars().take(SHORT).collect()),
            pod: pod_uid.clone(),
            container_id,
            pod_uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_have_short_names() {
        let id = "0123456789abcdef".repeat(4);
        let process = ViewedProcess {
            container: Some(id.clone()),
            pod: Some("u\u{1b}".into()),
            ..ViewedProcess::default()
        };
        let place = Place::of(&process);
        assert_eq!(place.container.as_deref(), Some("0123456789ab"));
        assert_eq!(place.pod.as_deref(), Some("u\\u{1b}"));
        assert_eq!(place.container_id, Some(id));
        assert_eq!(Place::of(&ViewedProcess::default()), Place::default());
    }
}
