//! gpushare's extender: its choice, and what the API server is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use platform::kubernetes::events::ClientFault;
use platform::kubernetes::plugin::Strategy;
use serde_json::{Value, json};

use super::{ALIYUN, Machine, allocate, next, preferred, soon, watch};

/// An API server, as `kubectl proxy` shows it: a node with pods, of which one is what is asked for.
fn api(machine: &Machine, mut pods: Value) -> Arc<Mutex<Vec<String>>> {
    let listener = std::os::unix::net::UnixListener::bind(machine.path("api.sock")).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let start = head.len();
                reader.read_line(&mut head).unwrap();
                if let Some(number) = head[start..].strip_prefix("Content-Length: ") {
                    length = number.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let first = head.lines().next().unwrap();
            let body = String::from_utf8(body).unwrap();
            let path = first.split(' ').nth(1).unwrap();
            heard.lock().unwrap().push(format!("{first} {body}"));
            let answer = match head.starts_with("GET") {
                true => format!("HTTP/1.0 200 OK\r\n\r\n{pods}"),
                false if head.contains("forbidden") => {
                    "HTTP/1.0 403 Forbidden\r\n\r\n{\"message\": \"not you\"}".to_owned()
                }
                false => {
                    // A pod that is marked waits no more.
                    let items = pods["items"].as_array_mut().unwrap();
                    items.retain(|pod| !path.ends_with(pod["metadata"]["name"].as_str().unwrap()));
                    "HTTP/1.0 200 OK\r\n\r\n{}".to_owned()
                }
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    asked
}

#[tokio::test]
async fn what_the_extender_chose_is_what_a_pod_gets() {
    let mut machine = Machine::new();
    machine.extender = true;
    let mut registered = machine.kubelet();
    let pod = |name: &str, gpu: &str, units: &[&str]| {
        let limits = |units: &&str| json!({"resources": {"limits": {"aliyun.com/gpu-mem": units}}});
        let containers: Vec<Value> = units.iter().map(limits).collect();
        json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": {
                "ALIYUN_COM_GPU_MEM_IDX": gpu, "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7"
            }},
            "spec": {"containers": containers}
        })
    };
    let pods = json!({"items": [
        pod("two", "1", &["1", "2"]),
        pod("full", "0", &["3"]),
        pod("forbidden", "0", &["4"]),
    ]});
    let asked = api(&machine, pods);
    machine.start(ALIYUN, Strategy::Mounts);
    let mut plugin = machine
        .plugin(&soon(registered.recv()).await.unwrap())
        .await;
    let devices = next(&mut watch(&mut plugin).await).await;
    let ids: Vec<String> = devices.into_iter().map(|device| device.id).collect();
    let heard = || asked.lock().unwrap().clone();
    // Nobody asked for the count before.
    soon(async {
        while heard().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(
        heard()[0].starts_with("PATCH /api/v1/nodes/node1/status ")
            && heard()[0].contains("\"capacity\":{\"aliyun.com/gpu-count\":\"2\"}"),
        "{:?}",
        heard()
    );

    // Alone the plugin would take the first GPU.
    let chosen = preferred(&mut plugin, ids, 2).await;
    assert!(
        chosen.len() == 2 && chosen.iter().all(|id| id.starts_with("GPU-1-_-")),
        "{chosen:?}"
    );

    // A pod's containers come one by one; it is marked with the last of them.
    let marks = || {
        let all = heard();
        all.into_iter()
            .filter(|one| one.contains("/pods/"))
            .collect::<Vec<_>>()
    };
    let first = allocate(&mut plugin, &[&["GPU-1-_-0", "GPU-1-_-1"]])
        .await
        .unwrap();
    assert!(marks().is_empty(), "{:?}", marks());
    assert_eq!(first[0].envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
    assert_eq!(first[0].envs["ALIYUN_COM_GPU_MEM_POD"], "3");
    assert_eq!(first[0].envs["ALIYUN_COM_GPU_MEM_CONTAINER"], "2");
    allocate(&mut plugin, &[&["GPU-1-_-2"]]).await.unwrap();
    let marked = marks();
    assert!(
        marked.len() == 1
            && marked[0].starts_with("PATCH /api/v1/namespaces/team/pods/two ")
            && marked[0].contains("\"ALIYUN_COM_GPU_MEM_ASSIGNED\":\"true\""),
        "{marked:?}"
    );

    // What cannot be followed is no start of a pod somewhere else.
    for (ids, words) in [
        (
            &["GPU-1-_-0", "GPU-1-_-1", "GPU-1-_-2"][..],
            "chose GPU 0 for pod team/full",
        ),
        (
            &["GPU-0-_-0", "GPU-0-_-1", "GPU-0-_-2", "GPU-0-_-3"],
            "403, not you",
        ),
        (
            &["GPU-0-_-0", "GPU-0-_-1"],
            "let the scheduler ask the extender",
        ),
    ] {
        let refused = allocate(&mut plugin, &[ids]).await.unwrap_err();
        assert!(refused.message().contains(words), "{refused}");
    }
    std::fs::remove_file(machine.path("api.sock")).unwrap();
    let refused = allocate(&mut plugin, &[&["GPU-0-_-0"]]).await.unwrap_err();
    assert!(
        refused.message().contains("the API server, at "),
        "{refused}"
    );
}

#[tokio::test]
async fn what_acks_scheduler_chose_for_each_container_is_what_it_gets() {
    let mut machine = Machine::new();
    machine.extender = true;
    let mut registered = machine.kubelet();
    let pod = |name: &str, allocation: &str| {
        json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": {
                "scheduler.framework.gpushare.allocation": allocation,
                "scheduler.framework.gpushare.assigned": "false",
                "scheduler.framework.gpushare.assume-time": "7"
            }},
            "spec": {"containers": []}
        })
    };
    let pods = json!({"items": [
        pod("two", r#"{"0": {"1": 1}, "2": {"0": 2}}"#),
        pod("several", r#"{"0": {"0": 2, "1": 2}}"#),
    ]});
    let asked = api(&machine, pods);
    machine.start(ALIYUN, Strategy::Mounts);
    let mut plugin = machine
        .plugin(&soon(registered.recv()).await.unwrap())
        .await;
    let devices = next(&mut watch(&mut plugin).await).await;
    let ids: Vec<String> = devices.into_iter().map(|device| device.id).collect();
    let chosen = preferred(&mut plugin, ids.clone(), 1).await;
    assert_eq!(chosen, ["GPU-1-_-0"]);
    let first = allocate(&mut plugin, &[&["GPU-1-_-0"]]).await.unwrap();
    assert_eq!(first[0].envs["ALIYUN_COM_GPU_MEM_POD"], "3");
    let chosen = preferred(&mut plugin, ids, 2).await;
    assert!(
        chosen.iter().all(|id| id.starts_with("GPU-0-_-")),
        "{chosen:?}"
    );
    let refused = allocate(&mut plugin, &[&["GPU-1-_-1", "GPU-1-_-2"]]).await;
    assert!(refused.unwrap_err().message().contains("chose GPU 0"));
    allocate(&mut plugin, &[&["GPU-0-_-0", "GPU-0-_-1"]])
        .await
        .unwrap();
    let all = asked.lock().unwrap().clone();
    let marks: Vec<&String> = all.iter().filter(|one| one.contains("/pods/")).collect();
    assert!(
        marks.len() == 1
            && marks[0].starts_with("PATCH /api/v1/namespaces/team/pods/two ")
            && marks[0].contains("\"scheduler.framework.gpushare.assigned\":\"true\""),
        "{marks:?}"
    );
    let ids = ["GPU-0-_-0", "GPU-0-_-1", "GPU-0-_-2", "GPU-0-_-3"];
    let refused = allocate(&mut plugin, &[&ids]).await.unwrap_err();
    assert!(
        refused.message().contains("several GPUs")
            && refused.message().contains("aliyun.com/gpu-count"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_fault_of_a_pods_program_is_an_event_of_the_pod() {
    let mut machine = Machine::new();
    machine.extender = true;
    let fault = |number, pod: Option<&str>| ClientFault {
        number,
        time: "2026-11-25T15:00:01.250Z".into(),
        error: 700,
        guilt: "guilty".into(),
        why: format!("kernel k{number}"),
        pid: 42,
        command: "train".into(),
        pod: pod.map(str::to_owned),
    };
    // One from before the plugin was there.
    machine.daemon.fails(fault(1, Some("uid-1")));
    let mut registered = machine.kubelet();
    let pod = json!({"metadata": {"name": "p", "namespace": "team", "uid": "uid-1"}});
    let asked = api(&machine, json!({"items": [pod]}));
    machine.start(ALIYUN, Strategy::Mounts);
    soon(registered.recv()).await.unwrap();
    soon(async {
        while machine.daemon.looks() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // In no pod, in one of another node, and in ours.
    for (number, pod) in [(2, None), (3, Some("elsewhere")), (4, Some("uid-1"))] {
        machine.daemon.fails(fault(number, pod));
    }
    let events = || -> Vec<String> {
        let all = asked.lock().unwrap().clone();
        all.into_iter()
            .filter(|one| one.starts_with("POST"))
            .collect()
    };
    soon(async {
        while events().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before = machine.daemon.looks();
    soon(async {
        while machine.daemon.looks() < before + 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let events = events();
    assert_eq!(events.len(), 1, "once: {events:?}");
    assert!(events[0].starts_with("POST /api/v1/namespaces/team/events "));
    let (_, body) = events[0].split_once(" HTTP/1.0 ").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["involvedObject"]["name"], "p");
    assert_eq!(body["reason"], "GpuFault");
    let message = body["message"].as_str().unwrap();
    assert!(
        message.ends_with("error 700, guilty: kernel k4"),
        "{message}"
    );
}
