use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use protocol::control_messages::ClientFields;
use rustix::process::Signal;

use crate::harness::{Rig, kill, named, runs, say_hello, until, welcomed};
use crate::skipped::skipped;

crate::harness::tests! {
    without_a_daemon_a_command_says_so_and_fails
    a_daemon_starts_answers_is_alone_and_quits
    commands_answer_the_same_however_they_come
    limits_are_read_back_and_junk_changes_nothing
    refusals_are_worded_as_known
    servers_start_on_demand_and_are_listed
    clients_are_listed_and_gone_when_they_go
    a_server_that_dies_ends_its_clients_and_the_next_gets_another
    a_server_that_lost_its_device_is_replaced_at_once
    every_user_has_a_server_of_its_own
    a_server_that_cannot_start_is_given_up_with_a_reason
    a_client_with_a_junk_limit_is_refused
    the_foreground_daemon_logs_to_its_terminal_and_ends_with_a_signal
    quit_waits_for_clients_and_not_longer_than_it_is_told
    a_killed_daemon_leaves_its_clients_alone_and_its_directory_usable
    silent_and_mad_connections_hinder_nobody
    many_clients_come_at_once
    an_idle_daemon_and_an_idle_server_cost_nothing
    what_cannot_work_is_said_in_one_line
}

fn without_a_daemon_a_command_says_so_and_fails() {
    let rig = Rig::without_daemon();
    for output in [
        rig.control(&[], Some("get_server_list\n")),
        rig.control(&["get_server_list"], None),
    ] {
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stderr, b"Cannot find MPS control daemon process\n");
        assert!(output.stdout.is_empty());
    }
}

fn a_daemon_starts_answers_is_alone_and_quits() {
    let rig = Rig::new();
    let pid = rig.daemon_pid();
    let command_line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(command_line, "nvidia-cuda-mps-control\0-d\0");
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm, "nvidia-cuda-mps\n");
    assert!(
        rig.control_log()
            .contains("CUDA MPS Control binary version: 13000")
    );
    let mode = |name: &str| {
        let path = rig.pipe().join(name);
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("control"), mode("control_lock")), (0o666, 0o600));
    assert_eq!(mode("nvidia-cuda-mps-control.pid"), 0o644);
    let second = rig.control(&["-d"], None);
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(
        second.stderr,
        b"An instance of this daemon is already running\n"
    );
    assert_eq!(rig.ask("quit"), "");
    assert!(!rig.pipe().join("nvidia-cuda-mps-control.pid").exists());
    until("the daemon is gone", || !runs(pid));
    assert!(rig.control_log().ends_with("] Exit with status 0\n"));
    rig.start();
    assert_ne!(rig.daemon_pid(), pid);
}

fn commands_answer_the_same_however_they_come() {
    let rig = Rig::new();
    let percentage = "get_default_active_thread_percentage";
    let answers = [
        rig.control(&[], Some(percentage)),
        rig.control(&[], Some(&format!("{percentage}\n"))),
        rig.control(&[percentage], None),
    ];
    for answer in answers {
        assert_eq!(answer.status.code(), Some(0));
        assert_eq!(answer.stdout, b"100.0\n");
    }
    let several =
        format!("{percentage}\nget_server_list\nget_default_client_priority\n{percentage}");
    assert_eq!(
        rig.control(&[], Some(&several)).stdout,
        b"100.0\n0\n100.0\n"
    );
    let log = rig.control_log();
    for part in [
        "] Accepting connection...\n",
        "] NEW UI\n",
        "] Cmd:get_default_active_thread_percentage\n",
        "] 100.0\n",
        "] UI closed\n",
    ] {
        assert!(log.contains(part), "{part}");
    }
}

fn limits_are_read_back_and_junk_changes_nothing() {
    let rig = Rig::new();
    for (set, shown) in [
        ("50", "50.0"),
        ("0", "50.0"),
        ("150", "50.0"),
        ("abc", "50.0"),
        ("33.3", "33.3"),
    ] {
        let line = format!("set_default_active_thread_percentage {set}");
        let output = rig.control(&[], Some(&line));
        assert_eq!(output.stdout, format!("{shown}\n").as_bytes(), "{set}");
        let said = String::from_utf8(output.stderr).unwrap();
        let refused = output.status.code() == Some(1);
        assert_eq!(refused, set != shown.trim_end_matches(".0"), "{set}");
        assert_eq!(
            refused,
            said.contains(&format!("{set:?} is not a number")),
            "{said}"
        );
    }
    assert!(
        rig.control_log()
            .contains("Invalid percentage, expected between (0.0, 100.0]")
    );
    let get = "get_default_device_pinned_mem_limit 0";
    assert_eq!(rig.ask(get), "");
    for good in ["3G", "512M", "5760M"] {
        assert_eq!(
            rig.ask(&format!("set_default_device_pinned_mem_limit 0 {good}")),
            ""
        );
        assert_eq!(rig.ask(get), format!("{good}\n"));
    }
    for junk in ["xyz", "0G", "-1M", "1.5G"] {
        let line = format!("set_default_device_pinned_mem_limit 0 {junk}");
        let output = rig.control(&[], Some(&line));
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stdout).unwrap().contains(junk));
        assert_eq!(rig.ask(get), "5760M\n");
    }
    assert_eq!(rig.ask("get_default_client_priority"), "0\n");
    assert_eq!(rig.ask("set_default_client_priority 1"), "");
    assert_eq!(rig.ask("get_default_client_priority"), "1\n");
    // Servers have limits of their own, from the defaults of their start.
    let us = rustix::process::geteuid().as_raw();
    assert_eq!(rig.ask(&format!("start_server -uid {us}")), "");
    let server = rig.servers()[0];
    assert_eq!(
        rig.ask(&format!("get_active_thread_percentage {server}")),
        "33.3\n"
    );
    assert_eq!(
        rig.ask(&format!("set_active_thread_percentage {server} 25")),
        "25.0\n"
    );
    assert_eq!(
        rig.ask(&format!("set_device_pinned_mem_limit {server} 0 2G")),
        ""
    );
    assert_eq!(
        rig.ask(&format!("get_device_pinned_mem_limit {server} 0")),
        "2G\n"
    );
    let client = rig.attach();
    let facts = &client.welcome.facts;
    assert_eq!(facts[0].total_memory, 2 << 30);
    assert_eq!(facts[0].attribute(16), Some(25));
}

fn refusals_are_worded_as_known() {
    let rig = Rig::new();
    for (line, answer) in [
        ("", "Unknown command \"\"\n"),
        ("GET_SERVER_LIST", "Unknown command \"GET_SERVER_LIST\"\n"),
        ("get_server_status 1", "Server 1 not found\n"),
        ("get_client_list 1", "Server 1 not found\n"),
        ("ps", "Server not found\n"),
        ("ps -p 1", "Server 1 not found\nServer 1 not found\n\n"),
        ("shutdown_server", "Server 0 not found\n"),
        (
            "start_server",
            "A user id (UID) is required to start a new server\n",
        ),
        (
            "set_default_client_priority 7",
            "Invalid priority value - must be 0 or 1!\n",
        ),
        ("get_device_client_list", ""),
        ("get_server_list", ""),
    ] {
        assert_eq!(rig.ask(line), answer, "{line}");
    }
}

fn servers_start_on_demand_and_are_listed() {
    let rig = Rig::new();
    assert_eq!(rig.ask("start_server -uid 0"), "");
    let servers = rig.servers();
    assert_eq!(servers.len(), 1);
    assert_eq!(rig.ask("start_server -uid 0"), "");
    assert_eq!(rig.servers(), servers, "no second one");
    let pid = servers[0];
    assert_eq!(rig.ask(&format!("get_server_status {pid}")), "ACTIVE\n");
    let command_line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(command_line, "nvidia-cuda-mps-server\0");
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm, "nvidia-cuda-mps\n");
    assert!(rig.control_log().contains(&format!(
        "Control {pid:>5}] Starting new server {pid} for user 0"
    )));
    assert!(
        rig.control_log()
            .contains(&format!("NEW SERVER {pid}: Ready"))
    );
    assert!(
        rig.server_log()
            .contains("Creating server context on device 0 (Fake GPU)")
    );
    assert_eq!(rig.ask(&format!("shutdown_server {pid}")), "");
    assert!(!runs(pid));
    assert!(rig.servers().is_empty());
    assert!(
        rig.control_log()
            .contains(&format!("Server {pid} exited with status 0"))
    );
}

fn clients_are_listed_and_gone_when_they_go() {
    let rig = Rig::new();
    let client = rig.attach();
    client.work();
    let server = rig.servers()[0];
    let us = std::process::id();
    assert_eq!(client.welcome.server_pid, server);
    assert_eq!(
        rig.ask(&format!("get_client_list {server}")),
        format!("{us}\n")
    );
    let table = rig.ask("ps");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        "
    );
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    assert_eq!(
        lines[1],
        format!(
            "{us:<10}{:<10}{server:<15}{:<26}{namespace:<15}{:<15}",
            1, "GPU-30313233-3435-3637", "./app"
        )
    );
    assert_eq!(
        rig.ask(&format!("get_device_client_list {server}")),
        format!("[0] 00:06.0, Fake GPU\n{us}.1\n")
    );
    drop(client);
    until("it is gone", || {
        rig.ask(&format!("get_client_list {server}")).is_empty()
    });
    assert_eq!(rig.ask("ps"), "");
    assert!(
        rig.server_log()
            .contains(&format!("Client process {us} disconnected"))
    );
}

fn a_server_that_dies_ends_its_clients_and_the_next_gets_another() {
    let rig = Rig::new();
    let client = rig.attach();
    client.work();
    let first = rig.servers()[0];
    kill(first, Signal::KILL);
    until("the client notices", || !client.end.is_alive());
    until("it is reaped", || {
        !std::path::Path::new(&format!("/proc/{first}")).exists()
    });
    let next = rig.attach();
    next.work();
    assert_ne!(rig.servers()[0], first);
    assert!(
        rig.control_log()
            .contains(&format!("Server {first} exited with status 1"))
    );
}

fn a_server_that_lost_its_device_is_replaced_at_once() {
    let rig = Rig::new();
    let guilty = rig.attach();
    guilty.work();
    let first = rig.servers()[0];
    guilty.kill_device(2);
    assert_eq!(guilty.end.fault(0).0, 700);
    until("the daemon knows", || {
        rig.control_log().contains("lost a device to error 700")
    });
    // Whoever lost its context may take its time.
    let next = rig.attach();
    next.work();
    assert_eq!(rig.servers().len(), 2);
    drop(guilty);
    until("it is gone", || !runs(first));
    next.work_again(2);
}

fn every_user_has_a_server_of_its_own() {
    let rig = Rig::without_daemon();
    assert!(rig.control(&["-d", "-M"], None).status.success());
    let client = rig.attach();
    if !rustix::process::geteuid().is_root() {
        return skipped("servers run as other users takes root");
    }
    assert_eq!(rig.ask("start_server -uid 4242"), "");
    let servers = rig.servers();
    assert_eq!(servers.len(), 2);
    assert_eq!(servers[0], client.welcome.server_pid);
    let status = std::fs::read_to_string(format!("/proc/{}/status", servers[1])).unwrap();
    let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap();
    assert_eq!(line("Uid:"), "Uid:\t4242\t4242\t4242\t4242");
    assert_eq!(line("Gid:"), "Gid:\t65534\t65534\t65534\t65534");
    assert_eq!(line("Groups:").trim_end(), "Groups:");
}

fn a_server_that_cannot_start_is_given_up_with_a_reason() {
    let mut rig = Rig::without_daemon();
    rig.environment.push(("TEST_SERVER_FAILS", "1".into()));
    rig.start();
    let (code, text) = rig.try_attach(named("app")).err().unwrap();
    assert_eq!(code, 805);
    assert!(text.contains("server.log"), "{text}");
    assert_eq!(rig.control_log().matches("Starting new server").count(), 6);
    let output = rig.control(&["start_server", "-uid", "0"], None);
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("before it was ready")
    );
}

fn a_client_with_a_junk_limit_is_refused() {
    let rig = Rig::new();
    for fields in [
        ClientFields {
            percentage: Some("junk".into()),
            ..named("a")
        },
        ClientFields {
            memory_limit: Some("junk".into()),
            ..named("a")
        },
        ClientFields {
            memory_limit: Some("7=1G".into()),
            ..named("a")
        },
        ClientFields {
            priority: Some("5".into()),
            ..named("a")
        },
    ] {
        let (code, text) = rig.try_attach(fields).err().unwrap();
        assert_eq!(code, 805);
        let logged = rig.control_log().contains(&text) || rig.server_log().contains(&text);
        assert!(logged, "{text}");
    }
}

fn the_foreground_daemon_logs_to_its_terminal_and_ends_with_a_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut rig = Rig::without_daemon();
        let child = rig
            .command(&["-f"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        rig.foreground = Some(child);
        until("it listens", || {
            rig.pipe().join("nvidia-cuda-mps-control.pid").exists()
        });
        let client = rig.attach();
        client.work();
        let server = rig.servers()[0];
        kill(pid, signal);
        let mut child = rig.foreground.take().unwrap();
        let mut ended = None;
        until("it ends", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.unwrap().success());
        assert!(!runs(server) && !client.end.is_alive());
        assert!(!rig.pipe().join("nvidia-cuda-mps-control.pid").exists());
        let mut printed = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut printed)
            .unwrap();
        assert!(printed.contains("Starting control daemon using socket"));
        assert!(printed.ends_with("Exit with status 0\n"));
    }
}

fn quit_waits_for_clients_and_not_longer_than_it_is_told() {
    let rig = Rig::new();
    let client = rig.attach();
    client.work();
    let began = Instant::now();
    assert_eq!(rig.ask("quit -t 1"), "");
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(!client.end.is_alive());

    rig.start();
    let client = rig.attach();
    client.work();
    std::thread::scope(|scope| {
        let quit = scope.spawn(|| rig.ask("quit"));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!quit.is_finished());
        client.work_again(2);
        assert_eq!(rig.try_attach(named("late")).err().unwrap().0, 807);
        drop(client);
        assert_eq!(quit.join().unwrap(), "");
    });
}

fn a_killed_daemon_leaves_its_clients_alone_and_its_directory_usable() {
    let rig = Rig::new();
    let client = rig.attach();
    client.work();
    let (daemon, server) = (rig.daemon_pid(), rig.servers()[0]);
    kill(daemon, Signal::KILL);
    until("it is gone", || !runs(daemon));
    client.work_again(2);
    rig.start();
    let other = rig.attach();
    other.work();
    client.work_again(3);
    assert_ne!(other.welcome.server_pid, server);
    drop(client);
    until("the old server ends with its last client", || !runs(server));
}

fn silent_and_mad_connections_hinder_nobody() {
    let rig = Rig::new();
    let silent: Vec<_> = (0..1000).map(|_| rig.connect()).collect();
    for (bytes, answered) in [
        (&b"x"[..], false),
        (&[0; 1000], false),
        (&[0xff; 60_000], false),
        (b"OMPS", true),
        (b"OMPS\x01\x00\x01\x00\x00\x00", true),
    ] {
        let connection = rig.connect();
        connection.send(bytes, &[]).unwrap();
        assert_eq!(connection.receive().is_ok(), answered, "{bytes:?}");
        until("it is closed", || connection.is_closed());
    }
    assert_eq!(rig.ask("get_default_active_thread_percentage"), "100.0\n");
    rig.attach().work();
    let waits = silent.iter().filter(|one| !one.is_closed()).count();
    assert!(
        waits > 0,
        "others were served before all who are silent were given up"
    );
}

fn many_clients_come_at_once() {
    // All of one process, so each ends the one before: what is measured is coming, not staying.
    const CLIENTS: usize = 200;
    let rig = Rig::new();
    rig.attach();
    let began = Instant::now();
    let connections: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let connection = rig.connect();
            say_hello(&connection, named("app"));
            connection
        })
        .collect();
    let mut welcomed_clients = 0;
    for connection in &connections {
        welcomed_clients += usize::from(welcomed(connection).is_ok());
    }
    println!("  {welcomed_clients} clients in {:?}", began.elapsed());
    assert_eq!(welcomed_clients, CLIENTS);
    drop(connections);
    let server = rig.servers()[0];
    until("all are gone", || {
        rig.ask(&format!("get_client_list {server}")).is_empty()
    });
}

/// Processor time of a process in clock ticks, and the resident memory in KiB that is its own: how much of its program's file is there too depends on
/// what else is in memory, and on how the program was built.
fn cost(pid: i32) -> (u64, u64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.trim().split(' ').next()?.parse().ok());
    (ticks, resident.unwrap())
}

fn an_idle_daemon_and_an_idle_server_cost_nothing() {
    let rig = Rig::new();
    let client = rig.attach();
    client.work();
    let (daemon, server) = (rig.daemon_pid(), rig.servers()[0]);
    std::thread::sleep(Duration::from_millis(300));
    let before = (cost(daemon), cost(server));
    std::thread::sleep(Duration::from_secs(2));
    let after = (cost(daemon), cost(server));
    assert_eq!(before.0.0, after.0.0, "the daemon used the processor");
    assert_eq!(before.1.0, after.1.0, "the server used the processor");
    println!(
        "  daemon {} KiB, server {} KiB resident of their own",
        after.0.1, after.1.1
    );
    assert!(after.0.1 < 3 << 10);
}

fn what_cannot_work_is_said_in_one_line() {
    let rig = Rig::without_daemon();
    let long = format!("/tmp/{}", "x".repeat(120));
    let in_file = rig.pipe();
    std::fs::write(&in_file, "no directory").unwrap();
    for (directory, part) in [
        (long.as_str(), "107"),
        (in_file.to_str().unwrap(), "pipe"),
        ("/proc/nowhere", "/proc/nowhere"),
    ] {
        for mode in ["-d", "-f"] {
            let output = rig
                .command(&[mode])
                .env("CUDA_MPS_PIPE_DIRECTORY", directory)
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1));
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains(part) && said.lines().count() == 1, "{said}");
        }
    }
    for (name, value) in [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "junk"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "junk"),
        ("CUDA_MPS_CLIENT_PRIORITY", "9"),
    ] {
        let rig = Rig::without_daemon();
        let output = rig.command(&["-d"]).env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stderr).unwrap().contains(value));
    }
}
