//! Commands beyond NVIDIA's transcript: for programs, with wrong arguments, and from a terminal.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Rig, runs, until};
use crate::skipped::skipped;

crate::harness::tests! {
    every_command_answers_in_json_too
    every_command_says_in_json_what_it_did_and_what_was_wrong
    limits_for_devices_that_are_none_are_refused
    wrong_arguments_are_named
    a_terminated_client_gets_810_and_nobody_else_notices
    devices_are_known_without_a_client
    a_server_that_lost_its_device_is_in_fault
    a_later_line_does_not_hide_a_failure
    every_state_of_a_server_is_told
    limits_of_a_server_hold_for_its_later_clients
    at_a_terminal_there_is_a_prompt
}

fn json(rig: &Rig, line: &str) -> Value {
    serde_json::from_str(&rig.ask(&format!("{line} --json"))).unwrap()
}

fn no_takeovers() -> Value {
    json!({ "count": 0, "untouched": 0, "repeated": 0, "failed": 0 })
}

fn every_command_answers_in_json_too() {
    let rig = Rig::new();
    assert_eq!(json(&rig, "get_server_list"), json!([]));
    assert_eq!(json(&rig, "ps"), json!([]));
    let client = rig.hold();
    let server = rig.servers()[0];
    let us = rustix::process::geteuid().as_raw();
    let uuid = "GPU-30313233-3435-3637-3839-616263646566";
    assert_eq!(
        json(&rig, "get_server_list"),
        json!([{ "pid": server, "uid": us, "status": "ACTIVE", "clients": 1, "underlay": false, "takeovers": no_takeovers() }])
    );
    let listed = json(&rig, &format!("get_client_list {server}"));
    assert_eq!(listed[0]["pid"], client.pid());
    assert_eq!(listed[0]["command"], "lim");
    assert_eq!(json(&rig, "ps")[0]["device"], uuid);
    let device = json!({
        "ordinal": 0, "pci": "0000:00:06.0", "uuid": uuid, "name": "Fake GPU",
        "memory": 16u64 << 30, "multiprocessors": 100, "capability": [100, 100],
    });
    assert_eq!(json(&rig, "device_query")[1]["devices"][0], device);
    assert_eq!(
        json(&rig, "get_device_client_list")[0]["clients"][0],
        client.pid()
    );
    let help = json(&rig, "help");
    for command in help.as_array().unwrap() {
        let name = command["name"].as_str().unwrap();
        // Without arguments: whatever it says, it is JSON. `quit` would end the test, and after an
        // `upgrade` the server is a former daemon's.
        if !["quit", "upgrade"].contains(&name) {
            json(&rig, name);
        }
    }
    assert_eq!(
        json(&rig, "get_default_active_thread_percentage"),
        json!({ "percentage": 100.0 })
    );
    assert_eq!(
        json(&rig, "set_default_device_pinned_mem_limit 0 1G"),
        json!({})
    );
    assert_eq!(
        json(&rig, "get_default_device_pinned_mem_limit 0"),
        json!({ "device": "0", "limit": "1G", "bytes": 1 << 30 })
    );
    assert_eq!(
        json(&rig, "ps -p 1"),
        json!({ "error": "Server 1 not found" })
    );
    assert_eq!(
        json(&rig, &format!("terminate_client {server} 99999")),
        json!({ "error": "Invalid process 99999!", "result": 1 })
    );
    assert_eq!(
        json(&rig, "no_such_command"),
        json!({ "error": "Unknown command \"no_such_command --json\"" })
    );
    assert_eq!(
        json(&rig, &format!("terminate_client {server} {}", client.pid())),
        json!({ "result": 0 })
    );
    assert_eq!(json(&rig, &format!("shutdown_server {server}")), json!({}));
    assert_eq!(json(&rig, &format!("start_server -uid {us}")), json!({}));
    assert_eq!(json(&rig, "quit"), json!({}));
}

/// Each command of the table with arguments that it takes and with arguments that it does not, in an order in
/// which they work.
fn every_command_says_in_json_what_it_did_and_what_was_wrong() {
    let rig = Rig::without_daemon();
    assert!(rig.control(&["-d", "-S"], None).status.success());
    let us = rustix::process::geteuid().as_raw();
    assert_eq!(rig.ask(&format!("start_server -uid {us}")), "");
    let uuid = "GPU-30313233-3435-3637-3839-616263646566";
    let made = json(&rig, &format!("sm_partition add {uuid} 4"));
    assert_eq!(made["chunks"], 4, "{made}");
    let name = made["partition"].as_str().unwrap();
    let client = rig.hold_as(None, &["partition", name]);
    until("it is a client", || rig.ask("ps").lines().count() == 2);
    let (s, c) = (rig.servers()[0], client.pid());
    let memory = json!({ "device": "0", "limit": "1G", "bytes": 1 << 30 });
    let error = |text: &str| json!({ "error": text });
    let no_server = error("Server 1 not found");
    let no_size = error("memory size \"x\" is not a whole number above 0 with K, M or G or bytes");
    let no_device = error("memory limit for device 7, which there is not or more than one");
    let mut tried = std::collections::BTreeSet::new();
    let mut try_it = |line: &str, expected: Value| {
        tried.insert(line.split(' ').next().unwrap().to_owned());
        let output = rig.control(&[], Some(&format!("{line} --json")));
        assert!(output.stderr.is_empty(), "{line}: {output:?}");
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value, expected, "{line}");
        let failed = value.get("error").is_some();
        assert_eq!(output.status.code(), Some(failed.into()), "{line}");
    };
    for set in [
        "set_default_active_thread_percentage".to_owned(),
        format!("set_active_thread_percentage {s}"),
    ] {
        try_it(&format!("{set} 33.3"), json!({ "percentage": 33.3 }));
        let get = set.replacen("set_", "get_", 1);
        try_it(&get, json!({ "percentage": 33.3 }));
        let why = "active thread percentage \"x\" is not a number in (0.0, 100.0]";
        try_it(
            &format!("{set} x"),
            json!({ "error": why, "percentage": 33.3 }),
        );
    }
    for set in [
        "set_default_device_pinned_mem_limit".to_owned(),
        format!("set_device_pinned_mem_limit {s}"),
    ] {
        try_it(&format!("{set} 0 1G"), json!({}));
        let get = set.replacen("set_", "get_", 1);
        try_it(&format!("{get} 0"), memory.clone());
        try_it(&format!("{set} 0 x"), no_size.clone());
        try_it(&format!("{set} 7 1G"), no_device.clone());
        try_it(&format!("{get} 7"), no_device.clone());
        try_it(&set, error("Invalid command format."));
        try_it(&format!("{set} 0 none"), json!({}));
        try_it(&format!("{get} 0"), json!({ "device": "0", "limit": null }));
    }
    try_it(
        "set_default_kernel_time_limit 1500ms",
        json!({ "kernel_time": 1500 }),
    );
    try_it(
        "get_default_kernel_time_limit",
        json!({ "kernel_time": 1500 }),
    );
    try_it(
        "set_default_kernel_time_limit none",
        json!({ "kernel_time": null }),
    );
    try_it(
        "set_default_kernel_time_limit soon",
        error("limit of a kernel's time \"soon\" is not a whole number above 0 with ms or s"),
    );
    try_it("set_default_client_priority 1", json!({}));
    try_it("get_default_client_priority", json!({ "priority": 1 }));
    try_it(
        "set_default_client_priority 2",
        error("Invalid priority value - must be 0 or 1!"),
    );
    for command in [
        "get_client_list",
        "get_device_client_list",
        "get_server_status",
        "shutdown_server",
        "device_query",
        "ps -p",
    ] {
        try_it(&format!("{command} 1"), no_server.clone());
    }
    try_it(
        "get_server_list",
        json!([{ "pid": s, "uid": us, "status": "ACTIVE", "clients": 1, "underlay": false, "takeovers": no_takeovers() }]),
    );
    try_it(
        &format!("get_server_status {s}"),
        json!({ "pid": s, "status": "ACTIVE", "underlay": false, "fault": null }),
    );
    let listed = json!({ "pid": c, "id": 1, "uid": us, "command": "lim" });
    try_it(&format!("get_client_list {s}"), json!([listed]));
    let device = json!({
        "ordinal": 0, "pci": "0000:00:06.0", "uuid": uuid, "name": "Fake GPU",
        "memory": 16u64 << 30, "multiprocessors": 100, "capability": [100, 100],
    });
    let mut with_clients = device.clone();
    with_clients["server"] = json!(s);
    with_clients["clients"] = json!([c]);
    try_it(
        &format!("get_device_client_list {s}"),
        json!([with_clients]),
    );
    try_it(
        &format!("device_query {s} --csv"),
        json!([{ "server": s, "devices": [device] }]),
    );
    let row = json(&rig, &format!("ps -p {s}"));
    assert_eq!(
        (&row[0]["server"], &row[0]["device"]),
        (&json!(s), &json!(uuid))
    );
    let part = json!({ "partition": name, "chunks": 4, "multiprocessors": 4, "clients": true });
    try_it(
        "lspart",
        json!([{
            "device": uuid, "free_chunks": 96, "used_chunks": 4, "free_multiprocessors": 96,
            "used_multiprocessors": 4, "partitions": [part],
        }]),
    );
    try_it(
        &format!("sm_partition rm {name}"),
        error(&format!(
            "Partition {name} in use. Terminate all clients before removing."
        )),
    );
    let few = "Failed to fulfill the requested SM partition of 1000 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION";
    try_it(&format!("sm_partition add {uuid} 1000"), error(few));
    try_it(
        "group add g --memory 0=2G",
        json!({ "directory": rig.pipe().join("groups/g") }),
    );
    try_it(
        "group add g",
        error("Group g is there already; limit set --group g changes it"),
    );
    assert_eq!(json(&rig, "group list")[0]["name"], "g");
    assert_eq!(
        json(&rig, "limit show --group g")["memory"][0]["limit"],
        json!(2u64 << 30)
    );
    let set = json(&rig, &format!("limit set --client {c} --memory 0=1G"));
    assert_eq!(set["memory"][0]["limit"], json!(1 << 30), "{set}");
    try_it(&format!("limit set --client {c} --memory 0=x"), no_size);
    try_it("limit show --client 1", error("Client 1 not found"));
    try_it("label 1 x", error("Client 1 not found"));
    try_it("group remove g", json!({}));
    try_it("group show g", error("Group g not found"));
    try_it(
        &format!("terminate_client {s} 1"),
        json!({ "error": "Invalid process 1!", "result": 1 }),
    );
    try_it(&format!("terminate_client {s} {c}"), json!({ "result": 0 }));
    try_it(
        &format!("sm_partition rm {name}"),
        json!({ "message": format!("Partition {name} removed") }),
    );
    try_it(
        "start_server -uid x",
        error("A user id (UID) is required to start a new server"),
    );
    try_it(&format!("shutdown_server {s} -f"), json!({}));
    try_it(&format!("start_server -uid {us}"), json!({}));
    let text = "servers share GPUs by time-slicing";
    try_it(
        "underlay",
        json!({
            "mode": "none", "state": "off", "text": text, "process": null, "version": null,
            "program": null, "why": null, "servers": [], "contexts": { "most": 1, "users": [] },
        }),
    );
    try_it(
        "upgrade",
        error("static partitions (-S) are not handed on; nothing was changed"),
    );
    try_it("faults", json!([]));
    try_it("ping", json!({ "message": "The daemon runs" }));
    try_it("help x", error("Unknown command \"x\""));
    assert_eq!(json(&rig, "help quit")["name"], "quit");
    try_it("quit -t x", error("quit -t takes a number of seconds"));
    try_it("quit -t 1", json!({}));
    for command in control::command_list()
        .lines()
        .filter(|line| !line.starts_with("   "))
    {
        let name = command.split_whitespace().next().unwrap();
        assert!(tried.contains(name), "{name} was not tried");
    }
}

fn limits_for_devices_that_are_none_are_refused() {
    let rig = Rig::new();
    // Before a server has run nobody knows which there are.
    assert_eq!(rig.ask("set_default_device_pinned_mem_limit 7 1G"), "");
    let (code, _) = rig.try_attach(crate::harness::named("app")).err().unwrap();
    assert_eq!(code, 805, "rather than without a limit");
    let server = rig.servers()[0];
    let undo = format!("`set_device_pinned_mem_limit {server} 7 none`");
    assert!(rig.control_log().contains(&undo), "{}", rig.control_log());
    assert_eq!(rig.ask(undo.trim_matches('`')), "");
    rig.attach().work();
    assert_eq!(rig.ask("set_default_device_pinned_mem_limit 7 none"), "");
    // Now it is known.
    let get = format!("get_device_pinned_mem_limit {server}");
    for device in ["7", "1", "GPU-ffff", "MIG-1", "zero"] {
        for line in [
            format!("set_default_device_pinned_mem_limit {device} 1G"),
            format!("set_device_pinned_mem_limit {server} {device} 1G"),
        ] {
            let (text, exit) = rig.said(&line);
            assert!(text.contains(device), "{line}: {text}");
            assert_eq!(exit, 1, "{line}");
        }
        let output = rig.control(&[], Some(&format!("{get} {device}")));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(device), "{said}");
    }
    for device in ["0", "GPU-3031", "gpu-30313233"] {
        let set = format!("set_device_pinned_mem_limit {server} {device} 1G");
        let refused = device.starts_with('g');
        assert_eq!(rig.said(&set).1, i32::from(refused), "{device}");
    }
    rig.attach().work();
}

fn wrong_arguments_are_named() {
    let rig = Rig::new();
    for (line, part) in [
        ("get_server_list 1", "does not take \"1\""),
        ("quit -t", "takes a value"),
        ("quit -t soon", "number of seconds"),
        ("quit now", "does not take \"now\""),
        ("start_server -uid ada", "user id"),
        (
            "set_default_device_pinned_mem_limit 0",
            "Invalid command format.",
        ),
        (
            "get_default_device_pinned_mem_limit",
            "Invalid command format.",
        ),
        ("set_default_device_pinned_mem_limit zero 1G", "zero"),
        ("set_default_client_priority", "must be 0 or 1"),
        ("sm_partition add GPU-1 2", "-S"),
        ("help nothing", "Unknown command \"nothing\""),
    ] {
        let output = rig.control(&[], Some(line));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(part), "{line}: {text}");
        assert_eq!(output.status.code(), Some(1), "{line}");
    }
    assert!(
        rig.ask("help")
            .contains("terminate_client <server PID> <client PID>")
    );
    assert!(rig.ask("help quit").contains("[-t <seconds>]"));
}

fn a_terminated_client_gets_810_and_nobody_else_notices() {
    let rig = Rig::new();
    let (mut one, mut other) = (rig.hold(), rig.hold());
    let server = rig.servers()[0];
    assert_eq!(one.work(), "0");
    assert_eq!(
        rig.ask(&format!("terminate_client {server} {}", one.pid())),
        "0\n"
    );
    for _ in 0..3 {
        assert_eq!(one.work(), "810", "sticky");
    }
    assert_eq!(other.work(), "0");
    assert!(runs(one.pid().cast_signed()), "the process lives on");
    assert_eq!(
        rig.ask(&format!("get_client_list {server}")),
        format!("{}\n", other.pid())
    );
    assert!(rig.server_log().contains("terminated by the operator"));
    let event = &rig.events("client.terminated")[0];
    assert_eq!(event["client"], one.pid());
    assert_eq!(event["by_uid"], rustix::process::geteuid().as_raw());
    assert_eq!(rig.events("client.gone")[0]["how"], "terminated");
}

fn devices_are_known_without_a_client() {
    let rig = Rig::new();
    let shown = rig.ask("device_query");
    assert!(shown.starts_with("Default\nDevice Ordinal"), "{shown}");
    let server = rig.servers()[0];
    assert!(shown.contains(&format!("\n\nServer {server}\n")), "{shown}");
    assert_eq!(
        rig.ask(&format!("device_query {server}")).lines().next(),
        Some(&*format!("Server {server}"))
    );
    let uuid = "GPU-30313233-3435-3637-3839-616263646566";
    assert_eq!(
        rig.ask("device_query --csv"),
        format!(
            "Offered By,Device Ordinal,PCI IDs,UUID,Name,Attributes\n\
             Default,0,0000:00:06.0,{uuid},Fake GPU,N/A\n\
             Server {server},0,0000:00:06.0,{uuid},Fake GPU,N/A\n"
        )
    );
    assert!(
        rig.server_log()
            .contains("Received device query command. There are 1 devices")
    );

    let ready = Rig::without_daemon();
    assert!(ready.control(&["-d", "-q"], None).status.success());
    assert_eq!(ready.servers().len(), 1, "as it was told");

    let mut failing = Rig::without_daemon();
    failing.environment.push(("TEST_SERVER_FAILS", "1".into()));
    failing.start();
    let output = failing.control(&["device_query"], None);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("server.log")
    );
}

fn a_server_that_lost_its_device_is_in_fault() {
    let rig = Rig::new();
    let guilty = rig.attach();
    guilty.work();
    let server = rig.servers()[0];
    guilty.kill_device(2);
    until("the daemon knows", || {
        rig.ask(&format!("get_server_status {server}")) == "FAULT\n"
    });
    let faults = rig.events("client.fault");
    assert_eq!(faults[0]["client"], std::process::id());
    assert_eq!(faults[0]["code"], 700);
    assert_eq!(rig.events("server.fault")[0]["server"], server);
}

fn every_state_of_a_server_is_told() {
    let mut rig = Rig::without_daemon();
    let ready = rig.pipe().with_file_name("ready");
    let path = ready.display().to_string();
    rig.environment.push(("TEST_SERVER_WAITS", path));
    rig.start();
    let connection = rig.connect();
    crate::harness::say_hello(&connection, crate::harness::named("early"));
    until("a server starts", || rig.servers().len() == 1);
    let server = rig.servers()[0];
    let status = || rig.ask(&format!("get_server_status {server}"));
    assert_eq!(status(), "INITIALIZING\n");
    assert_eq!(
        rig.said(&format!("get_client_list {server}")),
        (String::new(), 0)
    );
    let limit = format!("set_device_pinned_mem_limit {server} 7 1G");
    assert_eq!(rig.said(&limit).1, 0, "nobody knows its devices yet");
    assert_eq!(rig.said(&limit.replace("1G", "none")).1, 0);
    std::fs::write(&ready, "").unwrap();
    let welcomed = crate::harness::welcomed(&connection).map_err(|error| panic!("{error:?}"));
    welcomed.unwrap().work();
    drop(connection);
    assert_eq!(status(), "ACTIVE\n");
    let held = rig.hold();
    std::thread::scope(|scope| {
        let shut = scope.spawn(|| rig.said(&format!("shutdown_server {server}")));
        until("it stops", || status() == "STOPPING\n");
        assert!(!shut.is_finished(), "it waits for its clients");
        // Whoever comes now is no concern of that one's.
        let mut next = rig.hold();
        assert_eq!(next.work(), "0");
        assert_eq!(rig.servers().len(), 2);
        drop(held);
        assert_eq!(shut.join().unwrap(), (String::new(), 0));
    });
    assert_eq!(status(), format!("Server {server} not found\n"));
}

fn a_later_line_does_not_hide_a_failure() {
    let rig = Rig::new();
    let lines = "set_default_active_thread_percentage abc\nget_default_client_priority\n\n";
    let output = rig.control(&[], Some(lines));
    assert_eq!(output.stdout, b"100.0\n0\nUnknown command \"\"\n");
    assert_eq!(output.status.code(), Some(1));
    let output = rig.control(&[], Some("get_default_client_priority\n\n"));
    assert_eq!(output.status.code(), Some(0), "here-documents end so");
    // Whatever the bytes, an answer.
    let output = rig.control(&[], Some("get_\u{fffd}\0list\t\n"));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("Unknown command")
    );
}

fn limits_of_a_server_hold_for_its_later_clients() {
    let rig = Rig::new();
    assert_eq!(rig.ask("set_default_active_thread_percentage 50"), "50.0\n");
    assert_eq!(rig.ask("set_default_device_pinned_mem_limit 0 3G"), "");
    let seen = |client: &crate::harness::Client| {
        let device = &client.welcome.facts[0];
        let count = device.attribute(protocol::device_facts::MULTIPROCESSOR_COUNT);
        (count.unwrap(), device.total_memory)
    };
    let first = rig.attach();
    assert_eq!(seen(&first), (50, 3 << 30));
    let server = rig.servers()[0];
    // The server's own, which may be more than the default.
    assert_eq!(
        rig.ask(&format!("set_active_thread_percentage {server} 80")),
        "80.0\n"
    );
    assert_eq!(
        rig.ask(&format!("set_device_pinned_mem_limit {server} 0 4G")),
        ""
    );
    assert_eq!(seen(&rig.attach()), (80, 4 << 30));
    assert_eq!(rig.ask("get_default_active_thread_percentage"), "50.0\n");
    assert_eq!(rig.ask("get_default_device_pinned_mem_limit 0"), "3G\n");
    assert!(
        rig.server_log()
            .contains("Active Threads Percentage set to 50.0")
    );
    assert!(
        rig.server_log()
            .contains("Device pinned memory limit for device 0 set to 0xc0000000 bytes")
    );
}

fn at_a_terminal_there_is_a_prompt() {
    let rig = Rig::new();
    // util-linux's, which gives a program a terminal.
    let found = Command::new("script").arg("--version").output();
    if found.is_err() {
        skipped("there is no `script`");
        return;
    }
    let link = rig.pipe().with_file_name("nvidia-cuda-mps-control");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
    let mut child = Command::new("script")
        .args(["-qec", link.to_str().unwrap(), "/dev/null"])
        .env("CUDA_MPS_PIPE_DIRECTORY", rig.pipe())
        .env("HOME", rig.pipe())
        .env("TERM", "xterm")
        .env_remove("XDG_STATE_HOME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut heard = String::new();
    let mut hear = |wanted: &str| {
        while !heard.contains(wanted) {
            let mut bytes = [0; 1024];
            let count = stdout.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "{wanted} in vain: {heard}");
            heard.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        heard = heard.split_once(wanted).unwrap().1.to_owned();
    };
    // A name is completed; then the end of input. Each is typed when there is a prompt.
    for (typed, answer) in [
        ("get_default_act\t\r", "100.0\r\n"),
        ("ps --json\r", "[]\r\n"),
    ] {
        hear("mps> ");
        stdin.write_all(typed.as_bytes()).unwrap();
        hear(answer);
    }
    hear("mps> ");
    stdin.write_all(b"\x04").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let history = rig.pipe().join(".local/state/openmps/control_history");
    assert!(
        std::fs::read_to_string(history)
            .unwrap()
            .contains("get_default_active_thread_percentage")
    );
}
