//! Whose a fault is: the guilty client is named where that is known, the suspects where it is not, and the innocent never as
//! one of either.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use rustix::process::Signal;
use serde_json::Value;
use tests::daemon::{Daemon, eventually, succeed};
use tests::fake_driver::Endless;
use tests::talker::Talker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_faults");

fn json(daemon: &Daemon, arguments: &[&str]) -> Value {
    serde_json::from_str(&daemon.control_output(arguments)).unwrap()
}

/// The faults that the daemon knows, as error, guilt and process, in the order of the processes.
fn known(daemon: &Daemon) -> Vec<(u64, String, u64)> {
    let list = json(daemon, &["faults", "--json"]);
    let mut faults: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let guilt = one["guilt"].as_str().unwrap().to_owned();
            let number = |name: &str| one[name].as_u64().unwrap();
            (number("error"), guilt, number("pid"))
        })
        .collect();
    faults.sort_by_key(|fault| fault.2);
    faults
}

/// The program `faults`.
fn faults(daemon: &Daemon, words: &[&str]) -> Talker {
    Talker::start(daemon.command(PROGRAM).args(words))
}

/// One that works and checks its results.
fn neighbour(daemon: &Daemon, work: &str) -> Talker {
    let mut neighbour = faults(daemon, &["neighbour", work]);
    assert_eq!(neighbour.hear(), "running");
    neighbour
}

/// What the metrics have of faults.
fn metrics(daemon: &Daemon) -> Vec<String> {
    let text = succeed(&mut daemon.tool(&["metrics"]));
    let lines = text.lines();
    let faults = lines.filter(|line| line.starts_with("openmps_faults_total"));
    faults.map(str::to_owned).collect()
}

#[test]
fn on_the_software_gpu_the_guilty_are_named_and_nobody_else() {
    let daemon = Daemon::start();
    let works = ["kernels", "graph", "copies", "idle"];
    let neighbours = works.map(|work| neighbour(&daemon, work));
    assert!(!daemon.control_output(&["ps"]).contains("FAULT"));
    assert_eq!(known(&daemon), []);
    let wrongs = [
        ("illegal-address", 700),
        ("assert", 710),
        ("trap", 719),
        ("illegal-address", 700),
    ];
    let mut expected = Vec::new();
    for (wrong, code) in wrongs {
        let mut guilty = faults(&daemon, &["guilty", wrong]);
        assert_eq!(guilty.hear(), "ready");
        guilty.say("");
        expected.push((code, "guilty".to_owned(), u64::from(guilty.id())));
        assert!(guilty.last().starts_with(&format!("told {code} ")));
    }
    expected.sort_by_key(|fault| fault.2);
    assert_eq!(known(&daemon), expected);
    let listed = daemon.control_output(&["faults"]);
    assert_eq!(listed.matches(" guilty ").count(), 4, "{listed}");
    let server = daemon.server().to_string();
    let status = json(&daemon, &["get_server_status", &server, "--json"]);
    assert_eq!(status["status"], "ACTIVE");
    assert_eq!(status["fault"]["error"], 700, "the last one: {status}");
    assert_eq!(status["fault"]["command"], "faults");
    let why = status["fault"]["why"].as_str().unwrap();
    assert!(why.contains("write_to"), "{why}");
    let error =
        |code, count| format!("openmps_faults_total{{error=\"{code}\",guilt=\"guilty\"}} {count}");
    assert_eq!(
        metrics(&daemon),
        [error(700, 2), error(710, 1), error(719, 1)]
    );
    // Of those that are there none has had any.
    let list = json(&daemon, &["ps", "--json"]);
    assert!(
        list.as_array()
            .unwrap()
            .iter()
            .all(|client| client["fault"].is_null())
    );
    for neighbour in neighbours {
        assert!(neighbour.last().starts_with("exact "));
    }
}

/// A client that is still there is listed with its fault.
#[test]
fn a_client_that_has_faulted_is_listed_as_one() {
    let daemon = Daemon::start();
    let mut client = faults(&daemon, &["guilty", "endless-kernel"]);
    assert_eq!(client.hear(), "ready");
    assert_eq!(client.ask(""), "in the middle");
    // So that it does not see what happens to it.
    client.signal(Signal::STOP);
    let pid = client.id().to_string();
    daemon.control_output(&["limit", "set", "--client", &pid, "--kernel-time", "50ms"]);
    eventually("it is listed", || {
        daemon.control_output(&["ps"]).contains("guilty 702")
    });
    let list = json(&daemon, &["ps", "--json"]);
    assert_eq!(list[0]["fault"]["guilt"], "guilty");
    assert_eq!(list[0]["fault"]["error"], 702);
    let time = list[0]["fault"]["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    client.signal(Signal::CONT);
    assert!(client.last().starts_with("told 702 "));
}

/// NVIDIA's driver says only that the device's context is dead.
#[test]
fn over_a_driver_that_does_not_say_who_it_was_those_with_kernels_are_suspects() {
    let folder = tempfile::tempdir().unwrap();
    let death = folder.path().join("death");
    let defined = format!("DEATH=\"{}\"", death.display());
    let endless = Endless::start(&[&defined], &[]);
    let daemon = &endless.daemon;
    let mut innocent = faults(daemon, &["present"]);
    assert_eq!(innocent.hear(), "running");
    let suspects = [(); 2].map(|()| {
        let mut suspect = Talker::start(&mut endless.client());
        assert_eq!(suspect.hear(), "running");
        suspect
    });
    // The device has both kernels, and not only the server.
    eventually("both kernels run", || {
        let shown = succeed(&mut daemon.tool(&["top", "--json", "--interval=0.1"]));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let clients = shown["devices"][0]["clients"].as_array().unwrap();
        let running = clients.iter();
        let running = running.filter(|client| client["total"]["kernels"] == 1);
        running.count() == suspects.len()
    });
    std::fs::write(&death, "").unwrap();
    let mut expected = vec![(700, "innocent".to_owned(), u64::from(innocent.id()))];
    expected.extend(
        suspects
            .iter()
            .map(|one| (700, "suspect".to_owned(), u64::from(one.id()))),
    );
    expected.sort_by_key(|fault| fault.2);
    eventually("all are known", || known(daemon).len() == 3);
    assert_eq!(known(daemon), expected);
    assert_eq!(
        metrics(daemon),
        [
            "openmps_faults_total{error=\"700\",guilt=\"suspect\"} 2",
            "openmps_faults_total{error=\"700\",guilt=\"innocent\"} 1",
        ]
    );
    assert_eq!(innocent.last(), "told 700 0 0");
    for mut suspect in suspects {
        assert_eq!(suspect.hear(), "error 700");
    }
    let log = daemon.control_log();
    assert!(
        log.contains("faulted with error 700, suspect: device 0"),
        "{log}"
    );
    assert!(
        log.contains("faulted with error 700, innocent: device 0"),
        "{log}"
    );
}
