//! Several users: these need root, and say so where they are run without.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::harness::{Held, Rig, runs, until};
use crate::skipped::skipped;

crate::harness::tests! {
    other_users_wait_until_the_present_ones_clients_have_left
    with_the_option_users_are_served_at_once_and_see_only_their_own
    one_server_for_all_is_asked_for_by_name
    who_gives_up_waiting_costs_nobody_a_server
    what_changes_things_is_for_root_and_the_owner
    no_command_shows_or_touches_what_is_anothers
    a_client_is_labelled_by_its_user_and_by_root_alone
}

const ADA: u32 = 4242;
const BOB: u32 = 4343;

/// A rig for several users, if this process may be them.
#[track_caller]
fn users(arguments: &[&str]) -> Option<Rig> {
    if !rustix::process::geteuid().is_root() {
        skipped("being other users takes root");
        return None;
    }
    let rig = Rig::without_daemon();
    rig.open_to_all();
    assert!(rig.control(arguments, None).status.success());
    Some(rig)
}

/// What a command prints when a user gives it, and how it exits.
fn ask_as(rig: &Rig, uid: u32, words: &[&str]) -> (String, i32) {
    let output = rig.command(words).uid(uid).gid(uid).output().unwrap();
    (
        String::from_utf8(output.stdout).unwrap(),
        output.status.code().unwrap(),
    )
}

fn ready(rig: &Rig, uid: u32) -> Held {
    let mut held = rig.hold_as(Some(uid), &[]);
    assert_eq!(held.line(), "ready");
    held
}

fn uid_of(pid: i32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = line.and_then(|uids| uids.split_whitespace().next());
    uid.unwrap().parse().unwrap()
}

/// Whether a user may look into a process's files.
fn sees_files_of(uid: u32, pid: i32) -> bool {
    let mut look = Command::new("ls");
    look.arg(format!("/proc/{pid}/fd/")).uid(uid).gid(uid);
    look.output().unwrap().status.success()
}

fn other_users_wait_until_the_present_ones_clients_have_left() {
    let Some(rig) = users(&["-d"]) else { return };
    let ada = ready(&rig, ADA);
    let first = rig.servers()[0];
    assert_eq!(uid_of(first), ADA);
    assert!(!sees_files_of(ADA, first), "what it shares with others");
    assert!(
        sees_files_of(ADA, ada.pid().cast_signed()),
        "a process of hers is open"
    );
    let mut bob = rig.hold_as(Some(BOB), &[]);
    assert_eq!(bob.line(), "queued");
    // Those of the present user are still served.
    let second = ready(&rig, ADA);
    assert_eq!(rig.servers(), [first]);
    drop(ada);
    until("one has left", || {
        rig.ask(&format!("get_client_list {first}")).lines().count() == 1
    });
    assert_eq!(rig.servers(), [first], "one is still here");
    assert_eq!(
        ask_as(&rig, BOB, &["start_server", "-uid", "4343"]).1,
        1,
        "nor by command"
    );
    drop(second);
    assert_eq!(bob.line(), "ready");
    let servers = rig.servers();
    assert_eq!(servers.len(), 1, "one user at a time");
    assert_eq!(uid_of(servers[0]), BOB);
    assert!(!runs(first));
    // An idle server is in nobody's way.
    drop(bob);
    until("it is idle", || {
        rig.ask(&format!("get_client_list {}", servers[0]))
            .is_empty()
    });
    assert_eq!(ask_as(&rig, ADA, &["start_server", "-uid", "4242"]).1, 0);
    assert_eq!(uid_of(rig.servers()[0]), ADA);
    assert_eq!(rig.events("client.queued").len(), 1);
}

fn with_the_option_users_are_served_at_once_and_see_only_their_own() {
    let Some(rig) = users(&["-d", "-M"]) else {
        return;
    };
    let (ada, bob) = (ready(&rig, ADA), ready(&rig, BOB));
    let servers = rig.servers();
    assert_eq!(servers.len(), 2, "a server each");
    let uids: Vec<u32> = servers.iter().map(|&pid| uid_of(pid)).collect();
    assert_eq!(uids, [ADA, BOB]);
    let [hers, his] = [servers[0].to_string(), servers[1].to_string()];
    assert_eq!(
        ask_as(&rig, ADA, &["get_server_list"]).0,
        format!("{hers}\n")
    );
    let (shown, _) = ask_as(&rig, ADA, &["ps"]);
    assert!(shown.contains(&ada.pid().to_string()), "{shown}");
    assert!(!shown.contains(&bob.pid().to_string()), "{shown}");
    for command in [
        "get_client_list",
        "get_server_status",
        "get_device_client_list",
        "get_active_thread_percentage",
        "device_query",
    ] {
        let (text, exit) = ask_as(&rig, ADA, &[command, &his]);
        assert_eq!((text, exit), (format!("Server {his} not found\n"), 1));
    }
    let (devices, _) = ask_as(&rig, ADA, &["device_query"]);
    assert!(!devices.contains(&format!("Server {his}")), "{devices}");
    assert_eq!(rig.ask("ps").lines().count(), 3, "root sees all");
}

fn one_server_for_all_is_asked_for_by_name() {
    let Some(rig) = users(&["-d", "--isolation=none"]) else {
        return;
    };
    let (ada, bob) = (ready(&rig, ADA), ready(&rig, BOB));
    let servers = rig.servers();
    assert_eq!(servers.len(), 1);
    assert_eq!(uid_of(servers[0]), 0, "nobody's of the two");
    assert!(rig.control_log().contains("This is weaker"));
    let (hers, _) = ask_as(&rig, ADA, &["get_client_list", &servers[0].to_string()]);
    assert_eq!(hers, format!("{}\n", ada.pid()), "and not {}", bob.pid());
}

fn who_gives_up_waiting_costs_nobody_a_server() {
    let Some(rig) = users(&["-d"]) else { return };
    let ada = ready(&rig, ADA);
    let first = rig.servers()[0];
    let mut bob = rig.hold_as(Some(BOB), &[]);
    assert_eq!(bob.line(), "queued");
    drop(bob);
    drop(ada);
    until("it is idle", || {
        rig.ask(&format!("get_client_list {first}")).is_empty()
    });
    let again = ready(&rig, ADA);
    assert_eq!(rig.servers(), [first]);
    drop(again);
}

fn no_command_shows_or_touches_what_is_anothers() {
    let Some(rig) = users(&["-d", "-M"]) else {
        return;
    };
    rig.said("group add theirs --memory 0=64M");
    let _hers = ready(&rig, ADA);
    let mut his = rig.hold_in(rig.pipe().join("groups/theirs"), Some(BOB), &[]);
    assert_eq!(his.line(), "ready");
    let (pid, server) = (his.pid().to_string(), rig.servers()[1].to_string());
    let before = (rig.ask("ps"), rig.said("group list"), rig.servers());
    let commands = rig.json("help");
    let mut tried = 0;
    for command in commands.as_array().unwrap() {
        let name = command["name"].as_str().unwrap();
        for words in [
            vec![],
            vec![&*server],
            vec![&server, &pid],
            vec![&server, "0", "1G"],
            vec!["-p", &server],
            vec!["-uid", "4343"],
            vec!["show", "theirs"],
            vec!["remove", "theirs"],
            vec!["list"],
            vec!["show", "--client", &pid],
            vec!["set", "--client", &pid, "--priority", "1"],
            vec!["set", "--group", "theirs", "--memory", "0=none"],
            vec!["add", "GPU-3031", "1"],
        ] {
            let words = [vec![name], words].concat();
            let (text, exit) = ask_as(&rig, ADA, &words);
            tried += 1;
            for secret in [&*pid, &server, "theirs"] {
                let said = text.split(|c: char| !c.is_ascii_alphanumeric());
                let shown = said.into_iter().any(|word| word == secret);
                // What she said herself comes back in a refusal.
                let echoed = words.contains(&secret) && exit == 1;
                assert!(!shown || echoed, "{words:?}: {text}");
            }
        }
    }
    assert!(tried > 300, "the table is read");
    assert_eq!(
        (rig.ask("ps"), rig.said("group list"), rig.servers()),
        before
    );
    assert_eq!(his.work(), "0");
}

fn what_changes_things_is_for_root_and_the_owner() {
    let Some(rig) = users(&["-d", "-M"]) else {
        return;
    };
    let (ada, bob) = (ready(&rig, ADA), ready(&rig, BOB));
    let server = rig.servers()[0].to_string();
    let before = rig.ask("get_default_active_thread_percentage");
    for words in [
        &["set_default_active_thread_percentage", "10"][..],
        &["set_active_thread_percentage", &server, "10"],
        &["set_default_device_pinned_mem_limit", "0", "1G"],
        &["set_device_pinned_mem_limit", &server, "0", "1G"],
        &["set_default_client_priority", "1"],
        &["shutdown_server", &server, "-f"],
        &["terminate_client", &server, &ada.pid().to_string()],
        &["start_server", "-uid", "4343"],
        &["quit"],
        &["sm_partition", "add", "GPU-3031", "1"],
        &["sm_partition", "rm", "GPU-3031", "1"],
        &["group", "add", "mine"],
        &["group", "remove", "mine"],
        &[
            "limit",
            "set",
            "--client",
            &ada.pid().to_string(),
            "--memory",
            "0=none",
        ],
    ] {
        let (text, exit) = ask_as(&rig, ADA, words);
        assert!(text.contains("for root"), "{words:?}: {text}");
        assert_eq!(exit, 1, "{words:?}");
    }
    assert_eq!(rig.ask("get_default_active_thread_percentage"), before);
    assert_eq!(rig.servers().len(), 2);
    drop(bob);
    // The socket for the owner alone; anybody may connect to the other.
    assert_eq!(ask_as(&rig, ADA, &["get_default_client_priority"]).1, 0);
    let link = rig.pipe().with_file_name("theirs");
    std::fs::create_dir(&link).unwrap();
    std::os::unix::fs::symlink(rig.pipe().join("control_privileged"), link.join("control"))
        .unwrap();
    let through = |uid: u32| {
        rig.command(&["get_server_list"])
            .env("CUDA_MPS_PIPE_DIRECTORY", &link)
            .uid(uid)
            .gid(uid)
            .output()
            .unwrap()
    };
    assert!(through(0).status.success());
    assert_eq!(through(ADA).status.code(), Some(1));
}

fn a_client_is_labelled_by_its_user_and_by_root_alone() {
    let Some(rig) = users(&["-d", "-M", "--isolation=none"]) else {
        return;
    };
    let (ada, bob) = (ready(&rig, ADA), ready(&rig, BOB));
    let (hers, his) = (ada.pid().to_string(), bob.pid().to_string());
    assert!(!rig.ask("ps").contains("LABEL"), "NVIDIA's columns alone");
    let (text, exit) = ask_as(&rig, ADA, &["label", &hers, "night", "run", "7"]);
    assert_eq!(
        (&*text, exit),
        (&*format!("Client {hers} (lim): night run 7\n"), 0)
    );
    let (text, exit) = ask_as(&rig, ADA, &["label", &his, "mine"]);
    assert_eq!((&*text, exit), (&*format!("Client {his} not found\n"), 1));
    let of = |session: u64| {
        let list = rig.json("ps");
        let mut clients = list.as_array().unwrap().iter();
        let wanted = |client: &&serde_json::Value| client["id"] == session;
        clients.find(wanted).unwrap()["label"].clone()
    };
    assert_eq!(
        (of(1), of(2)),
        ("night run 7".into(), serde_json::Value::Null)
    );
    let shown = rig.ask("ps");
    assert!(
        shown.contains("LABEL") && shown.contains(" night run 7"),
        "{shown}"
    );

    // Root names whom it likes, also by the numbers that clients have who cannot be seen.
    let server = rig.servers()[0].to_string();
    let said = rig.json(&format!("label {server}/2 <b>\u{202e}\u{1b}[2J"));
    assert_eq!(said["label"], "<b>??[2J", "{said}");
    let session = said["session"].as_u64().unwrap();
    assert_eq!(
        rig.json(&format!("label session/{session} x"))["label"],
        "x"
    );
    assert_eq!(rig.said(&format!("label session/{session}")).1, 0);
    assert_eq!(of(2), serde_json::Value::Null);
    let long = "x".repeat(129);
    for (line, why) in [
        (
            format!("label {hers} {long}"),
            "a label has 128 bytes at most, and this one has 129",
        ),
        ("label".into(), "label takes a client's process id"),
        ("label 0 x".into(), "Client 0 not found"),
        ("label session/999999 x".into(), "not found"),
        ("label nobody x".into(), "not found"),
    ] {
        let (text, exit) = rig.said(&line);
        assert!(text.contains(why) && exit == 1, "{line}: {text}");
    }
    assert_eq!(of(1), "night run 7");
}
