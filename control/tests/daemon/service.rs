//! The daemon under a service manager, as process 1, and where files of a former one are left.

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{Rig, kill, named, runs, try_hello, until, welcomed};
use crate::skipped::skipped;

crate::harness::tests! {
    a_service_manager_is_told_when_it_is_ready_and_when_it_stops
    a_socket_that_a_service_manager_made_is_served
    the_units_are_well_formed
    as_process_1_it_reaps_orphans
    what_a_former_daemon_left_is_reclaimed
    signals_at_any_moment_leave_nothing_behind
    a_daemon_that_ends_while_clients_come_leaves_none_waiting
    descriptors_are_raised_to_what_is_allowed_and_kept_for_those_who_speak
}

fn a_service_manager_is_told_when_it_is_ready_and_when_it_stops() {
    let mut rig = Rig::without_daemon();
    let path = rig.pipe().with_file_name("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(std::time::Duration::from_secs(20)))
        .unwrap();
    let child = rig
        .command(&["-f"])
        .env("NOTIFY_SOCKET", &path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id().cast_signed();
    rig.foreground = Some(child);
    let heard = || {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    assert!(heard().starts_with("READY=1\n"));
    let client = rig.hold();
    let server = rig.servers()[0];
    let environment = std::fs::read_to_string(format!("/proc/{server}/environ")).unwrap();
    assert!(
        !environment.contains("NOTIFY_SOCKET"),
        "it is the daemon's alone"
    );
    kill(pid, Signal::TERM);
    assert_eq!(heard(), "STOPPING=1");
    assert!(rig.foreground.take().unwrap().wait().unwrap().success());
    drop(client);
}

/// A shell that does what a service manager does: the socket is descriptor 3, and LISTEN_PID is the
/// process that becomes the daemon.
fn a_socket_that_a_service_manager_made_is_served() {
    let mut rig = Rig::without_daemon();
    std::fs::create_dir_all(rig.pipe()).unwrap();
    let path = rig.pipe().join("control");
    let listener = transport::socket::Listener::bind(&path).unwrap();
    // Who connects before the daemon runs waits for it.
    let early = rig.connect();
    crate::harness::say_hello(&early, named("early"));
    let link = rig.pipe().with_file_name("nvidia-cuda-mps-control");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
    let listening = rustix::io::dup(&listener).unwrap();
    let child = Command::new("/bin/sh")
        .args([
            "-c",
            // Standard input is moved to 3, where it belongs.
            "exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" -f",
        ])
        .arg(&link)
        .env_clear()
        .env("CUDA_MPS_PIPE_DIRECTORY", rig.pipe())
        .env("CUDA_MPS_LOG_DIRECTORY", rig.log())
        .stdin(Stdio::from(listening))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id().cast_signed();
    rig.foreground = Some(child);
    let welcomed = welcomed(&early).map_err(|error| panic!("{error:?}"));
    welcomed.unwrap().work();
    let mut client = rig.hold();
    assert_eq!(client.work(), "0");
    let server = rig.servers()[0];
    let environment = std::fs::read_to_string(format!("/proc/{server}/environ")).unwrap();
    assert!(!environment.contains("LISTEN_FDS"));
    kill(pid, Signal::TERM);
    assert!(rig.foreground.take().unwrap().wait().unwrap().success());
    assert!(path.exists(), "the socket is the service manager's");
    drop(listener);
}

fn the_units_are_well_formed() {
    let units = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd"));
    let both = ["openmps.service", "openmps.socket"];
    for (folder, manager, names) in [
        ("", "--system", &both[..]),
        ("user", "--user", &both),
        ("", "--system", &["openmps-cloudpods.service"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for name in names {
            let text = std::fs::read_to_string(units.join(folder).join(name)).unwrap();
            // The program is not installed where this runs.
            let path = root.path().join(name);
            std::fs::write(&path, text.replace("/usr/bin/openmps", "/bin/true")).unwrap();
            paths.push(path);
        }
        let output = Command::new("systemd-analyze")
            .args(["--man=no", manager, "verify"])
            .args(&paths)
            .env("XDG_RUNTIME_DIR", root.path())
            .output();
        let Ok(output) = output else {
            return skipped("there is no `systemd-analyze`");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
    }
}

fn as_process_1_it_reaps_orphans() {
    let mut rig = Rig::without_daemon();
    let link = rig.pipe().with_file_name("nvidia-cuda-mps-control");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
    let Ok(child) = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "/bin/sh",
            "-c",
        ])
        // The inner shell leaves an orphan to the process that becomes the daemon.
        .arg("/bin/sh -c 'sleep 0.2 & exit 0'; exec \"$0\" -f")
        .arg(&link)
        .env("CUDA_MPS_PIPE_DIRECTORY", rig.pipe())
        .env("CUDA_MPS_LOG_DIRECTORY", rig.log())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
    else {
        return skipped("there is no `unshare`");
    };
    let outer = child.id();
    // Killed with all that it holds, however this ends.
    rig.foreground = Some(child);
    let mut over = false;
    until("it listens, or may not", || {
        over = !runs(outer.cast_signed());
        over || rig.pipe().join("nvidia-cuda-mps-control.pid").exists()
    });
    if over {
        return skipped("no pid namespace may be made here");
    }
    let pid_file = rig.pipe().join("nvidia-cuda-mps-control.pid");
    until("it says that it is process 1", || {
        std::fs::read_to_string(&pid_file).is_ok_and(|text| text == "1")
    });
    let mut client = rig.hold();
    assert_eq!(client.work(), "0");
    drop(client);
    // Not its number in that namespace: it is the child of unshare.
    let children = |of: u32| {
        let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
        let text = text.unwrap_or_default();
        let pids: Vec<u32> = text
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        pids
    };
    let daemon = children(outer)[0];
    until("only the server is left, and no zombie", || {
        children(daemon).len() == 1
    });
    // Its end is noticed too.
    let server = children(daemon)[0];
    kill(server.cast_signed(), Signal::KILL);
    until("it is reaped", || children(daemon).is_empty());
    until("and known", || {
        rig.control_log().contains("exited with status 1")
    });
    kill(daemon.cast_signed(), Signal::TERM);
    rig.foreground.take().unwrap().wait().unwrap();
}

fn what_a_former_daemon_left_is_reclaimed() {
    let rig = Rig::new();
    let former = rig.daemon_pid();
    kill(former, Signal::KILL);
    until("it is gone", || !runs(former));
    for name in [
        "control",
        "control_privileged",
        "log",
        "nvidia-cuda-mps-control.pid",
    ] {
        assert!(rig.pipe().join(name).exists(), "{name} was left");
    }
    // A pid file that names somebody else proves nothing.
    std::fs::write(rig.pipe().join("nvidia-cuda-mps-control.pid"), "1234567890").unwrap();
    rig.start();
    assert!(runs(rig.daemon_pid()));
    rig.hold();
}

fn signals_at_any_moment_leave_nothing_behind() {
    for round in 0..12u64 {
        let mut rig = Rig::without_daemon();
        let child = rig
            .command(&["-f", "-q"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        rig.foreground = Some(child);
        std::thread::sleep(std::time::Duration::from_millis(round * 4));
        // That somebody does not read is no reason to end.
        kill(pid, Signal::PIPE);
        kill(pid, Signal::TERM);
        rig.foreground.take().unwrap().wait().unwrap();
        until("its server is gone", || {
            let log = std::fs::read_to_string(rig.log().join("control.log")).unwrap_or_default();
            log.lines()
                .filter_map(|line| line.split("Starting new server ").nth(1))
                .filter_map(|rest| rest.split(' ').next()?.parse().ok())
                .all(|server| !runs(server))
        });
    }
}

/// However the daemon ends, and in whatever place a client is then: it is served, or it is told.
fn a_daemon_that_ends_while_clients_come_leaves_none_waiting() {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let signals = [
        Signal::TERM,
        Signal::KILL,
        Signal::INT,
        Signal::HUP,
        Signal::USR1,
    ];
    let (served, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for (round, signal) in (0..).zip(signals.iter().cycle().take(15)) {
        let rig = Rig::new();
        let pid = rig.daemon_pid();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let path = rig.pipe().join("control");
                        let Ok(connection) = transport::socket::Connection::connect(path) else {
                            continue;
                        };
                        // It waits for 20 seconds at most, which is an error of its own.
                        let said = try_hello(&connection, named("app"));
                        let came = said.map_err(|error| (0, error.to_string()));
                        match came.and_then(|()| welcomed(&connection)) {
                            Ok(_) => served.fetch_add(1, Ordering::Relaxed),
                            Err((code, text)) => {
                                assert!(!text.contains("unavailable"), "{code} {text}");
                                told.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(round * 7));
            kill(pid, *signal);
            until("the daemon is gone", || !runs(pid));
            over.store(true, Ordering::Relaxed);
        });
        until("its servers are gone", || {
            let log = rig.control_log();
            log.lines()
                .filter_map(|line| line.split("Starting new server ").nth(1))
                .filter_map(|rest| rest.split(' ').next()?.parse().ok())
                .all(|server| !runs(server))
        });
    }
    println!("  {served:?} served, {told:?} told");
}

fn descriptors_are_raised_to_what_is_allowed_and_kept_for_those_who_speak() {
    let rig = Rig::without_daemon();
    let link = rig.pipe().with_file_name("nvidia-cuda-mps-control");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
    let output = Command::new("/bin/sh")
        .args(["-c", "ulimit -Sn 100; ulimit -Hn 200; exec \"$0\" -d"])
        .arg(&link)
        .env("CUDA_MPS_PIPE_DIRECTORY", rig.pipe())
        .env("CUDA_MPS_LOG_DIRECTORY", rig.log())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        rig.control_log()
            .contains("Up to 200 descriptors: room for about 45 clients of a server")
    );
    // More who say nothing than there are descriptors.
    let silent: Vec<_> = (0..500).map(|_| rig.connect()).collect();
    assert_eq!(rig.ask("get_default_active_thread_percentage"), "100.0\n");
    rig.attach().work();
    rig.hold();
    drop(silent);
}
