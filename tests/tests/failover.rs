//! A server ends by itself and another one takes its clients over: who goes on does so with exact results, and who has lost
//! something is told.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::{Daemon, eventually, is_alive, program, succeed};
use tests::talker::Talker;

/// A program that does what it is told to.
fn started(name: &str, daemon: &Daemon) -> Talker {
    let mut client = Talker::start(&mut daemon.command(program(name)));
    let said = client.hear();
    let (server, control) = (daemon.server_log(), daemon.control_log());
    assert_eq!(said, "ready", "{server}\n{control}");
    client
}

fn survivor(daemon: &Daemon) -> Talker {
    started("survivor", daemon)
}

/// Ends one, which is well.
fn end(client: Talker) {
    assert!(client.wait().success());
}

/// So many programs that hold memory and objects.
fn holders(daemon: &Daemon, count: usize) -> Vec<Talker> {
    (0..count).map(|_| started("holder", daemon)).collect()
}

/// Each of them does something, one after the other, and it is well.
fn all_do(daemon: &Daemon, survivors: &mut [Talker], what: &str) {
    for survivor in survivors {
        assert_eq!(survivor.ask(what), "ok", "{}", daemon.server_log());
    }
}

fn daemon() -> Daemon {
    Daemon::start_as(&["--failover"], &[])
}

/// Stops a server, and waits until none of its threads runs any more: what is asked for from then on it does not see.
fn stop(server: u32) {
    send(server, Signal::STOP);
    eventually("all threads are stopped", || {
        let threads = std::fs::read_dir(format!("/proc/{server}/task")).unwrap();
        threads.flatten().all(|thread| {
            let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            text.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.starts_with(" T"))
        })
    });
}

fn send(server: u32, signal: Signal) {
    kill_process(Pid::from_raw(server.cast_signed()).unwrap(), signal).unwrap();
}

/// Ends the server with a signal and waits until there is another one. The first SIGSEGV from outside only takes a
/// handler away, where there is one for faults of instructions.
fn replace(daemon: &Daemon, signal: Signal) {
    let server = daemon.server();
    eventually("the server ends", || {
        if is_alive(server) {
            send(server, signal);
        }
        !is_alive(server)
    });
    eventually(&format!("there is another server after {signal:?}"), || {
        let list = daemon.control_output(&["get_server_list"]);
        list.trim().parse().is_ok_and(|next: u32| next != server)
    });
}

#[test]
fn idle_clients_go_on_with_all_that_they_had() {
    let daemon = daemon();
    let mut survivors: Vec<Talker> = (0..8).map(|_| survivor(&daemon)).collect();
    for signal in [Signal::KILL, Signal::SEGV, Signal::ABORT] {
        all_do(&daemon, &mut survivors, "round");
        replace(&daemon, signal);
        for survivor in &mut survivors {
            assert_eq!(survivor.ask("round"), "ok", "after {signal:?}");
        }
    }
    let log = daemon.server_log();
    let taken_over = log.matches("taken over from a server that ended").count();
    assert_eq!(taken_over, 3 * 8, "{log}");
    // Who comes later finds a server as any other.
    assert_eq!(succeed(&mut daemon.probe(&["work", "2"])), "ok\n");
    survivors.into_iter().for_each(end);
    eventually("all clients are gone", || daemon.clients().is_empty());
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}

#[test]
fn what_the_server_had_not_taken_is_carried_out_by_the_next_one_once() {
    let daemon = daemon();
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("round"), "ok");
    let server = daemon.server();
    stop(server);
    assert_eq!(survivor.ask("post"), "ok");
    // It waits for answers.
    survivor.say("round");
    std::thread::sleep(Duration::from_millis(50));
    send(server, Signal::KILL);
    assert_eq!(survivor.hear(), "ok");
    replace(&daemon, Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    end(survivor);
}

#[test]
fn who_asks_now_and_then_and_never_waits_goes_on_at_the_next_server() {
    let daemon = daemon();
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("round"), "ok");
    let server = daemon.server();
    stop(server);
    assert_eq!(survivor.ask("post"), "ok");
    survivor.say("poll");
    std::thread::sleep(Duration::from_millis(200));
    send(server, Signal::KILL);
    assert_eq!(survivor.hear(), "ok");
    assert_eq!(survivor.ask("round"), "ok");
    end(survivor);
}

#[test]
fn a_kernel_that_was_cut_off_is_an_error_and_its_client_can_begin_anew() {
    let daemon = daemon();
    let mut bystander = survivor(&daemon);
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("round"), "ok");
    assert_eq!(survivor.ask("forever"), "ok", "the kernel runs");
    survivor.say("wait");
    replace(&daemon, Signal::KILL);
    // CUDA_ERROR_LAUNCH_FAILED
    assert_eq!(survivor.hear(), "error 719");
    assert_eq!(survivor.ask("round"), "error 719", "it is sticky");
    assert_eq!(survivor.ask("reset"), "ok");
    assert_eq!(survivor.ask("round"), "ok");
    assert_eq!(bystander.ask("round"), "ok");
    let log = daemon.server_log();
    assert!(
        log.contains("ended while a kernel of this client ran"),
        "{log}"
    );
    replace(&daemon, Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    end(survivor);
    end(bystander);
}

#[test]
fn a_kernel_that_writes_nothing_that_it_reads_is_done_again_and_exact() {
    let daemon = daemon();
    let mut survivor = started("cut_off", &daemon);
    assert_eq!(survivor.ask("apart"), "ok", "the kernel runs");
    survivor.say("finish");
    replace(&daemon, Signal::KILL);
    let (said, log) = (survivor.hear(), daemon.server_log());
    assert_eq!(said, "ok", "{log}");
    assert!(
        log.contains("0 operations untouched, 1 repeated, 0 failed"),
        "{log}"
    );
    for (kernel, why) in [
        ("in_place", "launch: it writes what was read"),
        ("halves", "launch: it writes what was read"),
        ("variable", "lies in none of the client's blocks"),
    ] {
        assert_eq!(survivor.ask(kernel), "ok", "the kernel runs");
        survivor.say("finish");
        replace(&daemon, Signal::KILL);
        let (said, log) = (survivor.hear(), daemon.server_log());
        // CUDA_ERROR_LAUNCH_FAILED
        assert_eq!(said, "error 719", "{kernel}: {log}");
        assert!(log.contains(why), "{log}");
        assert_eq!(survivor.ask("reset"), "ok");
    }
    end(survivor);
}

/// The sum of the counts that a metric has.
fn metric(daemon: &Daemon, name: &str) -> u64 {
    let page = succeed(&mut daemon.tool(&["metrics"]));
    let lines = page.lines().filter(|line| line.starts_with(name));
    let counts = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    counts.sum()
}

#[test]
fn what_was_taken_over_is_counted_and_shown() {
    let daemon = daemon();
    let mut bystander = survivor(&daemon);
    let mut survivor = survivor(&daemon);
    replace(&daemon, Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok");
    assert_eq!(bystander.ask("round"), "ok");
    assert_eq!(survivor.ask("forever"), "ok", "the kernel runs");
    survivor.say("wait");
    replace(&daemon, Signal::KILL);
    assert_eq!(survivor.hear(), "error 719");
    assert_eq!(bystander.ask("round"), "ok");
    let pid = survivor.id();
    let ps = || -> Value {
        let list = daemon.control_output(&["ps", "--json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let mut of = list.as_array().unwrap().iter();
        of.find(|client| client["pid"] == pid).unwrap()["takeovers"].clone()
    };
    eventually("both takeovers are counted", || ps()["count"] == 2);
    assert_eq!(ps()["failed"], 1, "{}", ps());
    let text = daemon.control_output(&["ps"]);
    assert!(
        text.contains("TAKEN OVER") && text.contains(" 2 0/0/1"),
        "{text}"
    );
    eventually("all takeovers are counted", || {
        metric(&daemon, "openmps_takeovers_total ") == 4
    });
    assert_eq!(metric(&daemon, "openmps_client_takeovers_total{"), 4);
    assert_eq!(
        metric(&daemon, "openmps_server_takeovers_total{"),
        2,
        "this server's"
    );
    assert_eq!(
        metric(
            &daemon,
            "openmps_taken_over_operations_total{outcome=\"failed\"}"
        ),
        1
    );
    let top = succeed(&mut daemon.tool(&["top", "--json", "--interval=0.1"]));
    let top: Value = serde_json::from_str(&top).unwrap();
    let clients = top["devices"][0]["clients"].as_array().unwrap();
    let counts = clients
        .iter()
        .map(|client| client["takeovers"]["count"].as_u64());
    assert_eq!(counts.collect::<Vec<_>>(), [Some(2), Some(2)], "{top}");
    assert_eq!(top["servers"][0]["takeovers"]["failed"], 1, "{top}");
    let servers = daemon.control_output(&["get_server_list", "--json"]);
    let servers: Value = serde_json::from_str(&servers).unwrap();
    assert_eq!(servers[0]["takeovers"]["count"], 2, "{servers}");
    let events = std::fs::read_to_string(daemon.pipe().join("../log/events.jsonl")).unwrap();
    let events = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let of_it: Vec<Value> = events
        .filter(|event: &Value| event["event"] == "client.taken_over" && event["client"] == pid)
        .collect();
    let said: Vec<_> = of_it
        .iter()
        .map(|event| (event["times"].as_u64(), event["failed"].as_u64()))
        .collect();
    assert_eq!(said, [(Some(1), Some(0)), (Some(2), Some(1))], "{of_it:?}");
    end(survivor);
    end(bystander);
}

#[test]
fn a_client_with_what_only_its_server_had_is_told() {
    let daemon = daemon();
    let mut bystander = survivor(&daemon);
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("array"), "ok");
    replace(&daemon, Signal::KILL);
    // CUDA_ERROR_MPS_RPC_FAILURE
    assert_eq!(survivor.ask("round"), "error 806");
    assert_eq!(bystander.ask("round"), "ok");
    eventually("the next server is rid of it", || {
        daemon.clients().len() == 1
    });
    end(survivor);
    end(bystander);
}

#[test]
fn clients_in_the_midst_of_work_have_exact_results_or_are_told() {
    let daemon = daemon();
    let mut survivors: Vec<Talker> = (0..8).map(|_| survivor(&daemon)).collect();
    for survivor in &mut survivors {
        survivor.say("loop");
    }
    std::thread::sleep(Duration::from_millis(300));
    replace(&daemon, Signal::KILL);
    for survivor in &mut survivors {
        // What a round finds wrong ends the program, and then there is no answer.
        match survivor.hear().as_str() {
            "ok" => {}
            "error 719" => assert_eq!(survivor.ask("reset"), "ok"),
            other => panic!("{other:?}"),
        }
        assert_eq!(survivor.ask("round"), "ok");
    }
    survivors.into_iter().for_each(end);
}

#[test]
fn a_server_that_is_told_to_end_takes_its_clients_along() {
    let daemon = daemon();
    let mut survivor = survivor(&daemon);
    let server = daemon.server();
    daemon.control_output(&["shutdown_server", &server.to_string(), "-f"]);
    eventually("the server ends", || !is_alive(server));
    assert_eq!(survivor.ask("round"), "error 806");
    end(survivor);
}

/// A daemon whose device has more memory than the machine.
fn large_device() -> Daemon {
    let variables = [
        ("OPENMPS_SOFT_MEMORY", "256G"),
        ("OPENMPS_SOFT_OVERCOMMIT", "1"),
    ];
    Daemon::start_as(&["--failover"], &variables)
}

#[test]
fn memory_beyond_the_first_addresses_is_there_again() {
    let daemon = large_device();
    let mut survivors: Vec<Talker> = (0..3).map(|_| survivor(&daemon)).collect();
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("grow"), "ok");
        assert_eq!(survivor.ask("round"), "ok");
    }
    for time in 0..2 {
        replace(&daemon, Signal::KILL);
        all_do(&daemon, &mut survivors, "round");
        // Beside what was another server's.
        if time == 0 {
            assert_eq!(survivors[0].ask("grow"), "ok");
        }
    }
    let log = daemon.server_log();
    let taken_over = log.matches("taken over from a server that ended").count();
    assert_eq!(taken_over, 2 * 3, "{log}");
    // Who gives it back can have it again, from the next server too.
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("shrink"), "ok");
        assert_eq!(survivor.ask("round"), "ok");
    }
    replace(&daemon, Signal::KILL);
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("round"), "ok", "{}", daemon.server_log());
        assert_eq!(survivor.ask("grow"), "ok");
        assert_eq!(survivor.ask("round"), "ok");
    }
    survivors.into_iter().for_each(end);
    eventually("all clients are gone", || daemon.clients().is_empty());
    assert_eq!(succeed(&mut daemon.probe(&["memory"])), "ok\n");
}

#[test]
fn memory_beyond_the_first_addresses_that_was_given_back_in_the_ring_is_given_back_by_the_next_server()
 {
    let daemon = large_device();
    let mut survivor = survivor(&daemon);
    assert_eq!(survivor.ask("grow"), "ok");
    assert_eq!(survivor.ask("round"), "ok");
    let server = daemon.server();
    stop(server);
    assert_eq!(survivor.ask("post"), "ok");
    assert_eq!(survivor.ask("shrink"), "ok");
    survivor.say("grow");
    std::thread::sleep(Duration::from_millis(50));
    send(server, Signal::KILL);
    assert_eq!(survivor.hear(), "ok", "{}", daemon.server_log());
    assert_eq!(survivor.ask("round"), "ok");
    replace(&daemon, Signal::KILL);
    assert_eq!(survivor.ask("round"), "ok", "{}", daemon.server_log());
    end(survivor);
}

#[test]
fn who_grows_when_it_is_taken_over_takes_nobodys_addresses() {
    let daemon = large_device();
    let mut survivors: Vec<Talker> = (0..8).map(|_| survivor(&daemon)).collect();
    // The last addresses are the first one's, those before them the next one's.
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("grow"), "ok");
        assert_eq!(survivor.ask("round"), "ok");
    }
    assert_eq!(survivors[0].ask("shrink"), "ok");
    assert_eq!(survivors[0].ask("round"), "ok");
    let server = daemon.server();
    stop(server);
    for survivor in &mut survivors {
        survivor.say("grow");
    }
    std::thread::sleep(Duration::from_millis(50));
    send(server, Signal::KILL);
    for survivor in &mut survivors {
        assert_eq!(survivor.hear(), "ok", "{}", daemon.server_log());
        assert_eq!(survivor.ask("round"), "ok", "{}", daemon.server_log());
    }
    survivors.into_iter().for_each(end);
}

#[test]
fn clients_with_much_memory_in_the_midst_of_work_have_exact_results_or_are_told() {
    let daemon = large_device();
    let mut survivors: Vec<Talker> = (0..4).map(|_| survivor(&daemon)).collect();
    for survivor in &mut survivors {
        assert_eq!(survivor.ask("grow"), "ok");
        survivor.say("loop");
    }
    std::thread::sleep(Duration::from_millis(300));
    replace(&daemon, Signal::KILL);
    for survivor in &mut survivors {
        match survivor.hear().as_str() {
            "ok" => {}
            "error 719" => assert_eq!(survivor.ask("reset"), "ok"),
            other => panic!("{other:?}: {}", daemon.server_log()),
        }
        assert_eq!(survivor.ask("round"), "ok");
    }
    survivors.into_iter().for_each(end);
}

/// A daemon over a driver of our own, and the file whose content is the process whose device dies.
fn over_a_driver(folder: &std::path::Path) -> (Daemon, std::path::PathBuf) {
    over_a_driver_with(folder, "DEATH")
}

/// A daemon over a driver of our own, and the file of this name.
fn over_a_driver_with(folder: &std::path::Path, name: &str) -> (Daemon, std::path::PathBuf) {
    let file = folder.join("file");
    let defined = format!("{name}=\"{}\"", file.display());
    let total = "TOTAL=(1ull << 36)";
    let driver =
        tests::fake_driver::compile(folder, &["VERSION=13000", "SPINNING=1", total, &defined]);
    let driver = driver.to_str().unwrap();
    let variables = [("OPENMPS_ENGINE", "nvidia"), ("OPENMPS_DRIVER", driver)];
    (Daemon::start_as(&["--failover"], &variables), file)
}

#[test]
fn on_a_gpu_kernels_that_only_write_are_done_again_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, held) = over_a_driver_with(folder.path(), "HELD");
    let mut holder = started("holder", &daemon);
    assert_eq!(holder.ask("round"), "ok");
    std::fs::write(&held, "").unwrap();
    assert_eq!(holder.ask("spin"), "ok");
    for _ in 0..3 {
        assert_eq!(holder.ask("post"), "ok");
    }
    replace(&daemon, Signal::KILL);
    std::fs::remove_file(&held).unwrap();
    assert_eq!(holder.ask("round"), "ok");
    let log = daemon.server_log();
    assert!(
        log.contains("0 operations untouched, 4 repeated, 0 failed"),
        "{log}"
    );
    end(holder);
}

#[test]
fn on_a_gpu_idle_clients_go_on_when_their_server_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, _) = over_a_driver(folder.path());
    let mut holders = holders(&daemon, 4);
    for _ in 0..2 {
        all_do(&daemon, &mut holders, "round");
        replace(&daemon, Signal::KILL);
        all_do(&daemon, &mut holders, "round");
    }
    let log = daemon.server_log();
    let taken_over = log.matches("taken over from a server that ended").count();
    assert_eq!(taken_over, 2 * 4, "{log}");
    holders.into_iter().for_each(end);
}

#[test]
fn on_a_gpu_memory_beyond_the_first_addresses_is_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, _) = over_a_driver(folder.path());
    let mut holders = holders(&daemon, 2);
    all_do(&daemon, &mut holders, "grow");
    for _ in 0..2 {
        all_do(&daemon, &mut holders, "round");
        replace(&daemon, Signal::KILL);
        all_do(&daemon, &mut holders, "round");
    }
    // What is given back in the ring, and not taken yet, is the next server's to give back.
    let server = daemon.server();
    stop(server);
    for holder in &mut holders {
        assert_eq!(holder.ask("shrink"), "ok");
        holder.say("grow");
    }
    send(server, Signal::KILL);
    for holder in &mut holders {
        assert_eq!(holder.hear(), "ok", "{}", daemon.server_log());
        assert_eq!(holder.ask("round"), "ok");
    }
    replace(&daemon, Signal::KILL);
    all_do(&daemon, &mut holders, "round");
    let log = daemon.server_log();
    let taken_over = log.matches("taken over from a server that ended").count();
    assert_eq!(taken_over, 4 * 2, "{log}");
    holders.into_iter().for_each(end);
}

#[test]
fn on_a_gpu_a_server_that_reads_late_has_all_memory_again() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, _) = over_a_driver(folder.path());
    let mut holders = holders(&daemon, 2);
    all_do(&daemon, &mut holders, "grow");
    let mut next = 0;
    eventually("a server stands by", || {
        let list = daemon.control_output(&["get_server_list", "--json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let mut servers = list.as_array().unwrap().iter();
        let found = servers.find(|server| server["status"] == "STANDBY");
        next = found.map_or(0, |server| server["pid"].as_u64().unwrap() as u32);
        next != 0
    });
    // What it is to be told of is more than its socket takes.
    stop(next);
    replace(&daemon, Signal::KILL);
    assert_eq!(daemon.server(), next);
    std::thread::sleep(Duration::from_millis(200));
    send(next, Signal::CONT);
    all_do(&daemon, &mut holders, "round");
    holders.into_iter().for_each(end);
}

#[test]
fn on_a_gpu_that_one_client_has_killed_the_others_go_on_however_often() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, death) = over_a_driver(folder.path());
    let mut bystander = started("holder", &daemon);
    let mut guilty = started("holder", &daemon);
    for time in 0..6 {
        assert_eq!(bystander.ask("round"), "ok");
        assert_eq!(guilty.ask("round"), "ok");
        assert_eq!(guilty.ask("spin"), "ok");
        let server = daemon.server();
        tests::fake_driver::device_dies(&death, server);
        // CUDA_ERROR_ILLEGAL_ADDRESS
        assert_eq!(guilty.ask("wait"), "error 700");
        eventually("there is another server", || {
            let list = daemon.control_output(&["get_server_list"]);
            list.trim().parse().is_ok_and(|next: u32| next != server)
        });
        assert_eq!(bystander.ask("round"), "ok");
        let told = guilty.ask("round");
        assert!(told == "error 700" || told == "error 806", "{told}");
        if guilty.ask("reset") != "ok" {
            assert!(time >= 4, "it is taken over four times in a row");
            end(guilty);
            guilty = started("holder", &daemon);
        }
    }
    let log = daemon.server_log();
    assert!(
        log.contains("Another server takes the clients over"),
        "{log}"
    );
    end(bystander);
    end(guilty);
}

/// The driver cannot end a kernel, but the end of the server can, and nobody else has anything begun then.
#[test]
fn on_a_gpu_a_kernel_that_a_killed_client_has_left_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, _) = over_a_driver(folder.path());
    let mut bystanders = holders(&daemon, 3);
    // One that says nothing for long, whom two servers take over before it notices.
    let mut idle = started("holder", &daemon);
    assert_eq!(idle.ask("round"), "ok");
    replace(&daemon, Signal::KILL);
    let mut guilty = started("holder", &daemon);
    assert_eq!(guilty.ask("round"), "ok");
    assert_eq!(guilty.ask("spin"), "ok");
    let server = daemon.server();
    guilty.kill();
    eventually("another server has the clients", || {
        all_do(&daemon, &mut bystanders, "round");
        let list = daemon.control_output(&["get_server_list"]);
        list.trim().parse().is_ok_and(|next: u32| next != server)
    });
    all_do(&daemon, &mut bystanders, "round");
    let log = daemon.server_log();
    let said = "has gone and left work that does not end";
    assert!(
        log.contains(said) && log.contains("another server takes all other clients over"),
        "{log}"
    );
    let taken_over = || {
        daemon
            .server_log()
            .matches("taken over from a server that ended")
            .count()
    };
    assert!(taken_over() >= 3, "{log}");
    assert_eq!(
        log.matches("0 repeated, 0 failed").count(),
        taken_over(),
        "{log}"
    );
    assert_eq!(idle.ask("round"), "ok");
    // The next client's code waits for nobody.
    let mut next = started("holder", &daemon);
    assert_eq!(next.ask("round"), "ok");
    for survivor in bystanders.into_iter().chain([idle, next]) {
        end(survivor);
    }
}

#[test]
fn on_a_gpu_that_dies_with_a_left_kernel_on_it_who_comes_next_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, death) = over_a_driver(folder.path());
    let mut bystander = started("holder", &daemon);
    let does = |client: &mut Talker, what: &str| {
        let said = client.ask(what);
        let (server, control) = (daemon.server_log(), daemon.control_log());
        assert_eq!(said, "ok", "{what}\n{server}\n{control}");
    };
    does(&mut bystander, "round");
    for _ in 0..3 {
        let mut left = started("holder", &daemon);
        does(&mut left, "round");
        does(&mut left, "spin");
        left.kill();
        let mut guilty = started("holder", &daemon);
        does(&mut guilty, "round");
        does(&mut guilty, "spin");
        tests::fake_driver::device_dies(&death, daemon.server());
        assert_eq!(guilty.ask("wait"), "error 700");
        // At once: while the server hands its clients over.
        let mut next = started("holder", &daemon);
        does(&mut next, "round");
        does(&mut bystander, "round");
        end(next);
        end(guilty);
    }
    end(bystander);
}

#[test]
fn without_the_option_nothing_is_taken_over() {
    let daemon = Daemon::start();
    let mut survivor = survivor(&daemon);
    send(daemon.server(), Signal::KILL);
    assert_eq!(survivor.ask("round"), "error 806");
    end(survivor);
}
