//! Any text as what the API server says of pods: a list of nodes and pods, or an answer of HTTP's with pods that wait.
//! What is read can be shown, and nothing that a pod's author wrote is more than all there can be.
#![no_main]

use libfuzzer_sys::fuzz_target;
use platform::kubernetes::{extender, inspect, pods};

fuzz_target!(|text: &str| {
    match pods::nodes(text) {
        Ok(nodes) => {
            for node in &nodes {
                assert!((1..=1024).contains(&node.gpus) && node.total > 0);
                for pod in &node.pods {
                    assert!(pod.units.keys().flatten().all(|gpu| *gpu < node.gpus));
                }
            }
            let unit = inspect::unit_of(&nodes);
            assert!(inspect::summary(&nodes, unit).contains("In Cluster"));
            assert!(inspect::details(&nodes, unit).contains("In Cluster"));
        }
        Err(error) => assert!(error.to_string().contains("kubectl get nodes,pods")),
    }
    let body = match extender::body_of(text) {
        Ok(body) => body,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            text
        }
    };
    let Ok(list) = serde_json::from_str(body) else {
        return;
    };
    let waiting = extender::assumed(&list);
    let mut given = extender::AssignedShares::default();
    for pod in &waiting {
        for share in &pod.containers {
            assert!(share.units <= pod.units());
        }
        if let Some((pod, share)) = given.find(&waiting, pod.units()) {
            given.record(&waiting, pod, share);
        }
    }
});
