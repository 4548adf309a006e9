//! What a peer can do to the daemon and to its servers with what it sends beside bytes. Everything here is
//! done twice: as the kernel is, and as one before Linux 6.16 is, which cannot refuse descriptors.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use transport::socket::{Connection, SocketError};

use crate::harness::{Rig, attach, named, say_hello, trap, until};
use crate::skipped::skipped;

crate::harness::tests! {
    descriptors_that_take_an_hour_to_close_hold_up_nobody
    descriptors_left_in_a_session_hold_up_no_server
    what_a_server_sends_with_nonsense_holds_up_nobody
    a_server_is_never_in_the_hands_of_its_user
    a_command_is_not_given_to_another_users_daemon
    in_a_user_namespace_the_way_to_a_daemon_decides
}

/// How long what must not wait may take on a busy machine. The traps take an hour.
const SOON: Duration = Duration::from_secs(30);

/// Does something on a system that does not know SO_PASSRIGHTS. Processes that are started there do not
/// know it either.
fn on_an_older_kernel(act: impl FnOnce() + Send) {
    use std::ffi::{c_int, c_ulong, c_void};

    /// Of the classic BPF.
    #[repr(C)]
    struct Step(u16, u8, u8, u32);
    #[repr(C)]
    struct Program {
        length: u16,
        steps: *const Step,
    }
    unsafe extern "C" {
        fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    }
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    #[cfg(target_arch = "x86_64")]
    const SETSOCKOPT: u32 = 54;
    #[cfg(target_arch = "aarch64")]
    const SETSOCKOPT: u32 = 208;
    const SO_PASSRIGHTS: u32 = 83;
    const ENOPROTOOPT: u32 = 92;
    // Of struct seccomp_data: the system call's number, and its third argument's low half.
    let steps = [
        Step(LOAD, 0, 0, 0),
        Step(IS, 0, 3, SETSOCKOPT),
        Step(LOAD, 0, 0, 32),
        Step(IS, 0, 1, SO_PASSRIGHTS),
        Step(RETURN, 0, 0, 0x0005_0000 | ENOPROTOOPT),
        Step(RETURN, 0, 0, 0x7FFF_0000),
    ];
    let filter = || {
        let program = Program {
            length: steps.len().try_into().unwrap(),
            steps: steps.as_ptr(),
        };
        // SAFETY: numbers, and a program that lives until both calls are over. The filter is this
        // thread's and its children's.
        let set = unsafe {
            prctl(38, 1, 0, 0, 0) == 0
                && prctl(
                    22,
                    2,
                    (&raw const program).cast::<c_void>() as c_ulong,
                    0,
                    0,
                ) == 0
        };
        assert!(set, "{}", std::io::Error::last_os_error());
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            filter();
            act();
        });
        thread.join().unwrap();
    });
}

/// A daemon on this kernel, and one on an older one.
fn daemons() -> [Rig; 2] {
    let (new, old) = (Rig::new(), Rig::without_daemon());
    on_an_older_kernel(|| old.start());
    [new, old]
}

/// Does something that must not wait for the traps that these are the peers of.
fn at_once<T: Send>(traps: &mut Vec<TcpStream>, what: &str, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = channel();
        scope.spawn(move || done.send(act()));
        is_done.recv_timeout(SOON).unwrap_or_else(|_| {
            // Then they are none any more, and it comes to an end.
            traps.clear();
            panic!("{what} waits for a trap, which takes an hour");
        })
    })
}

/// Others are served: who gives a command, who is a client, at the daemon's socket and a group's.
fn others_are_served(rig: &Rig, group: &Path, traps: &mut Vec<TcpStream>) {
    at_once(traps, "a command", || {
        assert_eq!(rig.ask("get_default_active_thread_percentage"), "100.0\n");
    });
    at_once(traps, "a client", || rig.hold());
    at_once(traps, "a group's client", || {
        let mut held = rig.hold_in(group.to_owned(), None, &[]);
        assert_eq!(held.line(), "ready");
    });
}

fn descriptors_that_take_an_hour_to_close_hold_up_nobody() {
    for (rig, is_old) in daemons().into_iter().zip([false, true]) {
        rig.said("group add theirs");
        let group = rig.pipe().join("groups/theirs");
        let mut peers = Vec::new();
        for _ in 0..20 {
            for place in [rig.pipe(), group.clone()] {
                // In the place of a greeting, behind one, and behind a question.
                let first = Connection::connect(place.join("control")).unwrap();
                peers.extend(trap(&first));
                let second = Connection::connect(place.join("control")).unwrap();
                say_hello(&second, named("trap"));
                peers.extend(trap(&second));
            }
        }
        others_are_served(&rig, &group, &mut peers);
        let told = rig.control_log();
        let told = told.contains("A connection sent descriptors, which nobody takes here");
        if is_old {
            assert!(!peers.is_empty() && told);
        } else if peers.is_empty() {
            assert!(!told, "the kernel refused all");
        }
    }
}

fn descriptors_left_in_a_session_hold_up_no_server() {
    for rig in daemons() {
        rig.said("group add theirs");
        let group = rig.pipe().join("groups/theirs");
        let mut peers = Vec::new();
        for _ in 0..12 {
            let connection = rig.connect();
            let client = attach(&connection, named("trap")).map_err(|(_, text)| text);
            peers.extend((0..2).filter_map(|_| trap(&connection)));
            drop(client);
        }
        assert_eq!(peers.len(), 24, "a session may send files to be registered");
        let [server] = rig.servers()[..] else {
            panic!("one server");
        };
        at_once(&mut peers, "the end of the sessions", || {
            until("they are gone", || {
                rig.ask(&format!("get_client_list {server}")).is_empty()
            });
        });
        others_are_served(&rig, &group, &mut peers);
        assert_eq!(rig.servers()[0], server, "the same one");
        at_once(&mut peers, "the server's end", || {
            rig.said(&format!("shutdown_server {server}"))
        });
        until("it ends", || !crate::harness::runs(server));
    }
}

fn what_a_server_sends_with_nonsense_holds_up_nobody() {
    let mut rig = Rig::without_daemon();
    // A filtered one has such descriptors of its clients.
    for (name, value) in [("TEST_SERVER_TRAPS", "1"), ("OPENMPS_SANDBOX", "off")] {
        rig.environment.push((name, value.to_owned()));
    }
    // So that the daemon takes descriptors of servers.
    let started = rig.control(&["-d", "--failover"], None);
    assert!(started.status.success(), "{started:?}");
    let us = rustix::process::getuid().as_raw().to_string();
    let mut start = rig.command(&["start_server", "-uid", &us]).spawn().unwrap();
    until("the server is heard", || {
        rig.control_log()
            .contains("said something that was not understood")
    });
    until("a server is started", || {
        start.try_wait().unwrap().is_some()
    });
    rig.hold();
}

const ADA: u32 = 4242;

/// What the daemon's environment has, and its servers' has not.
const SECRET: &str = "of-root-alone";

/// Whether this process can trace another.
fn can_trace(pid: i32) -> bool {
    use std::ffi::{c_int, c_long, c_void};
    unsafe extern "C" {
        fn ptrace(request: c_int, pid: c_int, address: *mut c_void, data: *mut c_void) -> c_long;
    }
    const SEIZE: c_int = 0x4206;
    let none = std::ptr::null_mut();
    // SAFETY: seizing stops nothing, and no memory of ours is involved.
    unsafe { ptrace(SEIZE, pid, none, none) == 0 }
}

/// What the program does under the name `look`: over and over, it tries to get into every process whose
/// number comes in a line, until there are no more lines. It says how often it tried, and what it got.
pub fn look() -> std::process::ExitCode {
    let (sender, numbers) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            sender.send(line.unwrap().parse::<i32>().unwrap()).unwrap();
        }
    });
    let (mut pids, mut tries, mut got) = (Vec::new(), 0u32, std::collections::BTreeSet::new());
    loop {
        match numbers.try_recv() {
            Ok(pid) => pids.push(pid),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => break,
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
        }
        for &pid in &pids {
            tries += 1;
            for file in ["environ", "maps", "mem"] {
                let mut bytes = [0; 1];
                let opened = std::fs::File::open(format!("/proc/{pid}/{file}"));
                if opened.is_ok_and(|mut file| std::io::Read::read(&mut file, &mut bytes).is_ok()) {
                    got.insert(file);
                }
            }
            if std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok() {
                got.insert("fd");
            }
            if can_trace(pid) {
                got.insert("trace");
            }
        }
    }
    println!("{} {got:?}", tries > 0);
    std::process::ExitCode::SUCCESS
}

fn field(pid: i32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Before it is set up, while it is, and when it serves.
fn a_server_is_never_in_the_hands_of_its_user() {
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    if !rustix::process::geteuid().is_root() {
        skipped("being another user takes root");
        return;
    }
    let mut rig = Rig::without_daemon();
    rig.open_to_all();
    let go = rig.pipe().with_file_name("go");
    rig.environment
        .push(("TEST_SERVER_WAITS", go.display().to_string()));
    rig.environment.push(("ROOTS_PASSWORD", SECRET.into()));
    rig.environment.push(("OPENMPS_SOFT_WORKERS", "1".into()));
    rig.start();
    let mut look = rig
        .command(&[])
        .arg0("look")
        .uid(ADA)
        .gid(ADA)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut numbers = look.stdin.take().unwrap();
    // What she can do to a process of her own, or the looking proves nothing.
    let mut own = std::process::Command::new("sleep");
    let mut own = own.arg("600").uid(ADA).gid(ADA).spawn().unwrap();

    let mut ada = rig.hold_as(Some(ADA), &[]);
    let child_of_daemon = || {
        let children = format!("/proc/{0}/task/{0}/children", rig.daemon_pid());
        let text = std::fs::read_to_string(children).unwrap();
        text.split_whitespace()
            .next()
            .map(|pid| pid.parse::<i32>().unwrap())
    };
    until("a server is started", || child_of_daemon().is_some());
    let server = child_of_daemon().unwrap();
    until("it runs its program", || {
        let line = std::fs::read_to_string(format!("/proc/{server}/cmdline")).unwrap();
        line.starts_with("nvidia-cuda-mps-server")
    });
    writeln!(numbers, "{server}").unwrap();
    assert_eq!(field(server, "Uid:"), "0 0 0 0", "not hers yet");
    std::thread::sleep(Duration::from_millis(50));
    std::fs::write(&go, "").unwrap();
    assert_eq!(ada.line(), "ready");
    for (name, value) in [
        ("Uid:", "4242 4242 4242 4242"),
        ("Gid:", "4242 4242 4242 4242"),
        ("Groups:", ""),
        ("NoNewPrivs:", "1"),
        ("CapPrm:", "0000000000000000"),
        ("CapEff:", "0000000000000000"),
    ] {
        assert_eq!(field(server, name), value, "{name}");
    }
    let environment = std::fs::read_to_string(format!("/proc/{server}/environ")).unwrap();
    assert!(!environment.contains(SECRET), "{environment:?}");
    assert!(
        environment.contains("OPENMPS_SOFT_WORKERS=1"),
        "{environment:?}"
    );
    std::thread::sleep(Duration::from_millis(50));
    drop(numbers);
    let looked = look.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&looked.stdout), "true {}\n");

    let seen = rig
        .command(&[])
        .arg0("look")
        .uid(ADA)
        .gid(ADA)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut seen = seen.unwrap();
    writeln!(seen.stdin.as_mut().unwrap(), "{}", own.id()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let seen = seen.wait_with_output().unwrap();
    own.kill().unwrap();
    own.wait().unwrap();
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    // Whether she may trace it too is Yama's to say.
    assert!(seen.contains("environ") && seen.contains("fd"), "{seen}");
}

fn a_command_is_not_given_to_another_users_daemon() {
    if !rustix::process::geteuid().is_root() {
        skipped("listening as another user takes root");
        return;
    }
    let mut rig = Rig::without_daemon();
    std::fs::create_dir(rig.pipe()).unwrap();
    std::os::unix::fs::chown(rig.pipe(), Some(ADA), Some(ADA)).unwrap();
    let path = rig.pipe().join("control");
    let listen = || {
        let user = rustix::thread::Uid::from_raw(ADA);
        // Of this thread alone, and the kernel remembers who began to listen.
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        transport::socket::Listener::bind(&path).unwrap()
    };
    rig.open_to_all();
    let listener = std::thread::scope(|scope| scope.spawn(listen).join().unwrap());
    for (arguments, input) in [
        (&[][..], Some("get_server_list\n")),
        (&["get_server_list"], None),
    ] {
        let refused = rig.control(arguments, input);
        let told = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(told.contains(&format!("it is user {ADA}'s")), "{told}");
        assert!(
            told.contains(&format!("set OPENMPS_DAEMON_USER={ADA}")),
            "{told}"
        );
        let came = listener.try_accept().unwrap().unwrap();
        assert!(
            matches!(came.receive(), Err(SocketError::Closed)),
            "not a byte"
        );
    }
    rig.environment
        .push(("OPENMPS_DAEMON_USER", ADA.to_string()));
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| rig.control(&["get_server_list"], None));
        let came = listener.accept().unwrap();
        assert!(came.receive().is_ok(), "it is told whom to believe");
        drop(came);
        answered.join().unwrap();
    });
}

/// Another user's commands, in a user namespace of its own where root's daemon is somebody from outside, as
/// anybody's would be.
fn in_a_user_namespace_the_way_to_a_daemon_decides() {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    if !rustix::process::geteuid().is_root() {
        skipped("being another user takes root");
        return;
    }
    let rig = Rig::new();
    rig.open_to_all();
    let program = rig.pipe().with_file_name("nvidia-cuda-mps-control");
    std::fs::copy("/proc/self/exe", &program).unwrap();
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c"])
            .arg(script)
            .arg(&program)
            .arg(rig.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", rig.log())
            .current_dir("/")
            .uid(ADA)
            .gid(ADA);
        command.output()
    };
    match inside("mount --bind \"$1\" /mnt") {
        Err(_) => return skipped("there is no `unshare`"),
        Ok(tried) if !tried.status.success() => {
            return skipped("a user may make no user namespace, or mount nothing in it");
        }
        Ok(_) => {}
    }
    let asks = "\"$0\" get_default_active_thread_percentage";
    let at = |way: &str, more: &str| inside(&format!("{way}; {more} {asks}")).unwrap();
    let in_tmp = "export CUDA_MPS_PIPE_DIRECTORY=\"$1\"";
    let refused = at(in_tmp, "");
    let told = String::from_utf8(refused.stderr).unwrap();
    if rig.pipe().starts_with("/tmp") {
        assert!(!refused.status.success());
        for part in ["from outside this user namespace", "may write to /tmp"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
    }
    let outside = transport::socket::overflow_uid();
    // As a container is given a group's directory.
    let mounted = "mount --bind \"$1\" /mnt && export CUDA_MPS_PIPE_DIRECTORY=/mnt";
    for (way, more) in [
        (in_tmp, format!("OPENMPS_DAEMON_USER={outside}")),
        (mounted, String::new()),
    ] {
        let answered = at(way, &more);
        assert_eq!(answered.stdout, b"100.0\n", "{answered:?}");
    }
}
