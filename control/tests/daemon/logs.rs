//! What is written down, and that nothing stops the daemon where it cannot be.

use std::io::Write;
use std::time::Duration;

use crate::harness::{Rig, until};

crate::harness::tests! {
    the_structured_log_says_who_what_and_why
    logs_are_turned_over_when_they_are_long
    a_log_directory_that_vanishes_is_made_again
    a_full_disk_stops_nobody
    lines_written_to_the_fifo_are_in_the_servers_log
    stamps_are_local_times
    a_ping_leaves_no_line
    a_flood_of_one_user_pushes_out_no_line_of_another
}

fn a_ping_leaves_no_line() {
    let rig = Rig::new();
    rig.ask("get_server_list");
    // That the connection is over is noticed after the answer.
    until("the first command is over", || {
        let log = rig.control_log();
        log.contains("Accepting connection...") && log.contains("UI closed")
    });
    let (log, events) = (rig.control_log(), rig.events("command").len());
    for _ in 0..3 {
        let answer = rig.control(&["ping"], None);
        assert!(answer.status.success());
        assert_eq!(answer.stdout, b"The daemon runs\n");
    }
    // Lines are written before the answer is given.
    rig.ask("get_server_list");
    let later = rig.control_log();
    let lines = |text: &str| text.matches("Accepting connection...").count();
    assert_eq!(lines(&later), lines(&log) + 1, "{later}");
    assert!(!later.contains("ping"), "{later}");
    assert_eq!(rig.events("command").len(), events + 1);
    // Only the word itself is quiet.
    assert!(!rig.control(&["ping", "now"], None).status.success());
    assert!(rig.control_log().contains("Cmd:ping now"));
}

fn the_structured_log_says_who_what_and_why() {
    let rig = Rig::new();
    let client = rig.hold();
    let pid = client.pid();
    let server = rig.servers()[0];
    rig.control(&["set_default_client_priority", "7"], None);
    drop(client);
    until("it is gone", || !rig.events("client.gone").is_empty());
    rig.ask("quit");
    let started = &rig.events("daemon.started")[0];
    assert_eq!(started["isolation"], "user");
    assert!(started["time"].as_str().unwrap().ends_with('Z'));
    assert_eq!(rig.events("server.starting")[0]["server"], server);
    assert_eq!(rig.events("server.ready")[0]["devices"][0], "Fake GPU");
    let connected = &rig.events("client.connected")[0];
    assert_eq!(connected["client"], pid);
    assert_eq!(connected["program"], "lim");
    assert_eq!(rig.events("client.gone")[0]["how"], "process ended");
    let commands = rig.events("command");
    let refused = commands.iter().find(|event| event["exit"] == 1).unwrap();
    assert_eq!(refused["line"], "set_default_client_priority 7");
    assert!(refused["refused"].as_str().unwrap().contains("0 or 1"));
    assert_eq!(rig.events("server.exited")[0]["server"], server);
    assert_eq!(rig.events("daemon.exited").len(), 1);
}

fn logs_are_turned_over_when_they_are_long() {
    let mut rig = Rig::without_daemon();
    rig.environment.push(("OPENMPS_LOG_BYTES", "4K".into()));
    rig.start();
    let first = rig.hold();
    until("it is turned over", || {
        for _ in 0..20 {
            rig.ask("get_server_list");
        }
        rig.log().join("control.log.1").exists() && rig.log().join("events.jsonl.1").exists()
    });
    let length = |name: &str| std::fs::metadata(rig.log().join(name)).unwrap().len();
    until("it is short", || {
        std::thread::sleep(Duration::from_millis(100));
        rig.ask("get_server_list");
        length("control.log") < 100 << 10
    });
    // The server still writes to the file that is there.
    drop(rig.hold());
    drop(first);
    until("its words are there", || {
        rig.server_log().contains("process ended without leaving")
    });
    let junk = rig.control(&["-d"], None);
    assert!(!junk.status.success());
}

fn a_log_directory_that_vanishes_is_made_again() {
    let rig = Rig::new();
    rig.ask("get_server_list");
    std::fs::remove_dir_all(rig.log()).unwrap();
    until("it is there again", || {
        rig.ask("get_server_list");
        rig.log().join("control.log").exists()
    });
    rig.ask("get_default_client_priority");
    assert!(rig.control_log().contains("get_default_client_priority"));
}

fn a_full_disk_stops_nobody() {
    // Every write to it says that the disk is full.
    let rig = Rig::without_daemon();
    std::fs::create_dir_all(rig.log()).unwrap();
    for name in ["control.log", "server.log", "events.jsonl"] {
        std::os::unix::fs::symlink("/dev/full", rig.log().join(name)).unwrap();
    }
    rig.start();
    let mut client = rig.hold();
    assert_eq!(client.work(), "0");
    assert_eq!(rig.ask("get_default_client_priority"), "0\n");
    drop(client);
    assert_eq!(rig.ask("quit -t 1"), "");
}

fn lines_written_to_the_fifo_are_in_the_servers_log() {
    let rig = Rig::new();
    let mut fifo = std::fs::File::options()
        .write(true)
        .open(rig.pipe().join("log"))
        .unwrap();
    fifo.write_all(b"one line\nand a second \x1b[2J\n").unwrap();
    until("they are there", || {
        rig.server_log().contains("] and a second ?[2J\n")
    });
    assert!(rig.server_log().contains("] one line\n"));
    // A flood hinders nobody, and lines that never end are cut.
    let flood = std::thread::spawn(move || fifo.write_all(&[b'x'; 1 << 20]).unwrap());
    for _ in 0..20 {
        assert_eq!(rig.ask("get_default_client_priority"), "0\n");
    }
    flood.join().unwrap();
}

fn stamps_are_local_times() {
    // No zone of the system's is needed for these two.
    let hours = |zone: &str| {
        let mut rig = Rig::without_daemon();
        rig.environment.push(("TZ", zone.into()));
        rig.start();
        let log = rig.control_log();
        assert_eq!(&log[..3], "[20", "{log}");
        log[12..14].parse::<u32>().unwrap()
    };
    let (utc, east) = (hours("UTC0"), hours("XXX-5"));
    let ahead = (east + 24 - utc) % 24;
    assert!(ahead == 5 || ahead == 6, "{utc} and {east}");
}

/// Connections of the flood. Each would leave two lines of together more than 150 bytes.
const FLOOD: u32 = 30_000;

/// What the program does under the name `flood`: it says what nobody understands, again and again.
pub fn flood() -> std::process::ExitCode {
    let pipe = std::path::PathBuf::from(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap());
    for number in 0..FLOOD {
        if number == FLOOD / 2 {
            println!("half");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        let connection = transport::socket::Connection::connect(pipe.join("control")).unwrap();
        connection.send(b"?", &[]).unwrap();
        // Until it is read and closed.
        let _ = connection.receive();
    }
    std::process::ExitCode::SUCCESS
}

fn a_flood_of_one_user_pushes_out_no_line_of_another() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    const AT_ONCE: u64 = 2 << 20;
    const A_SECOND: u64 = 256;
    if !rustix::process::geteuid().is_root() {
        return crate::skipped::skipped("being other users takes root");
    }
    let rig = Rig::new();
    rig.open_to_all();
    let begun = std::time::Instant::now();
    let mut flood = rig
        .command(&[])
        .arg0("flood")
        .uid(4242)
        .gid(4242)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut half = String::new();
    let mut said = BufReader::new(flood.stdout.take().unwrap());
    said.read_line(&mut half).unwrap();
    assert_eq!(half, "half\n");
    let mut other = rig.command(&["get_client_list", "1"]);
    other.uid(4243).gid(4243).output().unwrap();
    flood.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert!(flood.wait().unwrap().success());
    let length = std::fs::metadata(rig.log().join("control.log"))
        .unwrap()
        .len();
    // What others have written is far less than this.
    let others = 64 << 10;
    let most = AT_ONCE + A_SECOND * (begun.elapsed().as_secs() + 1) + others;
    assert!(u64::from(FLOOD) * 150 > most, "the machine is too slow");
    assert!(length <= most, "{length} bytes, and {most} are the most");
    assert!(length > AT_ONCE / 2, "it has its room");
    rig.ask("quit");
    until("it has quit", || {
        rig.control_log().contains("Exit with status 0")
    });
    until("it is told what was left out", || {
        rig.control_log().contains("more lines about user 4242 in")
    });
    let log = rig.control_log();
    assert!(
        log.contains("Cmd:get_client_list 1"),
        "the other's is there"
    );
    assert!(!log.contains("user 4243"), "all of it");
    assert!(!rig.events("command").is_empty());
}
