//! Who used what: the daemon's accounts beside what programs know that they did, and the ways in which they are shown.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::{Daemon, eventually, openmps, succeed};

const PROGRAM: &str = env!("CARGO_BIN_EXE_accounted");

/// Bytes of its data.
const DATA: u64 = 8 << 15;

/// A program that has done its work and stays.
struct Worker {
    child: Child,
    /// Nanoseconds that its kernels took, by its own events.
    took: u64,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn new(mut command: Command, work: [u64; 3]) -> Self {
        command.args(work.map(|number| number.to_string()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let took = line.trim_end().strip_prefix("took ").expect(&line);
        Self {
            took: took.parse().unwrap(),
            child,
            output,
        }
    }

    fn pid(&self) -> u64 {
        self.child.id().into()
    }

    /// Has it do its work once more.
    fn again(mut self) -> Self {
        writeln!(self.child.stdin.as_mut().unwrap(), "again").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.starts_with("took "), "{line}");
        self
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// What `openmps top --json` says of the only device.
fn device(daemon: &Daemon, arguments: &[&str]) -> Value {
    let mut command = daemon.tool(&["top", "--json", "--interval=0.1"]);
    let text = succeed(command.args(arguments));
    let usage: Value = serde_json::from_str(&text).unwrap();
    usage["devices"][0].clone()
}

#[test]
fn accounts_are_what_programs_did() {
    let daemon = Daemon::start();
    let worker = Worker::new(daemon.command(PROGRAM), [40, 5, 2000]);
    let device_usage = device(&daemon, &[]);
    let [client] = &device_usage["clients"].as_array().unwrap()[..] else {
        panic!("{device_usage}");
    };
    assert_eq!(client["pid"], worker.pid());
    assert_eq!(client["program"], "accounted");
    assert!(client["memory"].as_u64() >= Some(DATA));
    let total = &client["total"];
    // 40 launches, and 5 of a graph of three.
    assert_eq!(total["kernels"], 40 + 5 * 3);
    // Long copies go in pieces.
    assert!(total["copies"].as_u64() >= Some(3), "{total}");
    assert_eq!(total["bytes_to_device"], DATA);
    assert_eq!(total["bytes_from_device"], DATA);
    assert_eq!(total["bytes_within_device"], DATA / 2);
    assert_eq!(total["loads"], 1);
    assert_eq!(total["faults"], 0);
    // All that ran was between the two events, which are the device's own account of it. The kernels do not fill the time: between
    // two of them the device may have to be told of the next.
    let kernel_time = total["kernel_seconds"].as_f64().unwrap() * 1e9;
    let of_all = total["multiprocessor_seconds"].as_f64().unwrap() * 1e9;
    let multiprocessors = device_usage["multiprocessors"].as_f64().unwrap();
    assert!(
        kernel_time > 0.0 && kernel_time <= worker.took as f64 * 1.02,
        "{total} {}",
        worker.took
    );
    assert!(of_all >= kernel_time * 0.999, "{total}");
    assert!(of_all <= kernel_time * multiprocessors * 1.001, "{total}");
    worker.end();
    // What it had stays in the device's sum.
    eventually("the client is gone", || daemon.clients().is_empty());
    let page = succeed(&mut daemon.tool(&["metrics"]));
    let kernels = page
        .lines()
        .find(|line| line.starts_with("openmps_device_kernels_total{"));
    assert!(kernels.unwrap().ends_with("} 55"), "{kernels:?}");
    assert!(!page.contains("openmps_client_kernels_total{"), "{page}");
}

#[test]
fn what_is_queued_is_told_while_it_is() {
    let daemon = Daemon::start();
    let mut command = daemon.command(PROGRAM);
    command.args(["3000", "0", "2000"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    eventually("much is queued", || {
        let device = device(&daemon, &[]);
        most = device["clients"][0]["queued"].as_u64().unwrap_or(0);
        assert_eq!(device["queued"].as_u64().unwrap_or(0) > 0, most > 0);
        most > 100
    });
    let page = succeed(&mut daemon.tool(&["metrics"]));
    let mut lines = page.lines();
    let queued = lines.find(|line| line.starts_with("openmps_client_queued_operations{"));
    assert!(!queued.unwrap().ends_with("} 0"), "{queued:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("nothing is left of it", || {
        device(&daemon, &[])["queued"].as_u64() == Some(0)
    });
}

#[test]
fn programs_have_names_of_their_own_and_hostile_ones_do_no_harm() {
    let daemon = Daemon::start();
    let start = |label: &str| {
        let mut command = daemon.command(PROGRAM);
        command.env("OPENMPS_LABEL", label);
        Worker::new(command, [1, 0, 1])
    };
    let hostile = "a\"b\\c<i>\n# HELP x\u{1b}[2J\u{202e}";
    let (named, odd) = (start("night run 7"), start(hostile));
    // As long as the kernel lets a variable be.
    let long = start(&"x".repeat(100_000));
    let label_of = |worker: &Worker| {
        let usage = device(&daemon, &[&format!("--filter={}", worker.pid())]);
        usage["clients"][0]["label"].as_str().map(str::to_owned)
    };
    let harmless = "a\"b\\c<i>?# HELP x?[2J?";
    assert_eq!(label_of(&named).as_deref(), Some("night run 7"));
    assert_eq!(label_of(&odd).as_deref(), Some(harmless));
    assert_eq!(label_of(&long).unwrap().len(), 128);

    let page = succeed(&mut daemon.tool(&["metrics"]));
    for label in [
        "label=\"night run 7\"",
        r#"label="a\"b\\c<i>?# HELP x?[2J?""#,
    ] {
        let found = page.lines().filter(|line| line.contains(label));
        assert!(found.count() > 10, "{label}\n{page}");
    }
    for arguments in [
        &["top", "--once", "--interval=0.1"][..],
        &["smi"],
        &["smi", "pmon", "-c", "1"],
    ] {
        let text = succeed(&mut daemon.tool(arguments));
        assert!(
            text.contains("night run 7") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
    let pid = named.pid().to_string();
    succeed(&mut daemon.tool(&["label", &pid, "morning run"]));
    assert_eq!(label_of(&named).as_deref(), Some("morning run"));
    let refused = daemon
        .tool(&["label", &pid, &"x".repeat(100_000)])
        .output()
        .unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(
        why.contains("128 bytes at most, and this one has 100000"),
        "{why}"
    );
    assert!(!refused.status.success());
    succeed(&mut daemon.tool(&["label", &pid]));
    assert_eq!(label_of(&named), None);
    for worker in [named, odd, long] {
        worker.end();
    }
}

#[test]
fn who_shares_a_device_waits_and_is_seen_to() {
    let daemon = Daemon::start();
    // One after the other, and then together.
    let alone = Worker::new(daemon.command(PROGRAM), [30, 0, 3_000]);
    let of = |pid: u64| {
        let usage = device(&daemon, &[&format!("--filter={pid}")]);
        let clients = usage["clients"].as_array().unwrap();
        assert_eq!(clients.len(), 1, "{usage}");
        clients[0]["total"].clone()
    };
    let of_alone = of(alone.pid());
    alone.end();
    let both: Vec<Worker> = std::thread::scope(|scope| {
        let start = || Worker::new(daemon.command(PROGRAM), [30, 0, 3_000]);
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(start)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let waited = |total: &Value| total["waited_seconds"].as_f64().unwrap();
    let ran = |total: &Value| total["kernel_seconds"].as_f64().unwrap();
    let together: Vec<Value> = both.iter().map(|worker| of(worker.pid())).collect();
    for total in &together {
        assert!(
            waited(total) / ran(total) > waited(&of_alone) / ran(&of_alone),
            "{of_alone} {together:?}"
        );
    }
    both.into_iter().for_each(Worker::end);
}

#[test]
fn who_is_held_by_its_own_limit_is_seen_to_be() {
    let daemon = Daemon::start();
    let worker = Worker::new(daemon.command(PROGRAM), [30, 0, 3_000]);
    let pid = worker.pid().to_string();
    let throttled = || {
        let usage = device(&daemon, &[&format!("--filter={pid}")]);
        let total = &usage["clients"][0]["total"];
        total["throttled_seconds"].as_f64().unwrap()
    };
    assert_eq!(throttled(), 0.0);
    let held = ["limit", "set", "--client", &pid, "--percentage", "5"];
    succeed(daemon.tool(&held).arg("--reserved"));
    let worker = worker.again();
    assert!(throttled() > 0.0);
    worker.end();
}

#[test]
fn tables_are_for_people_and_wrong_words_are_refused() {
    let daemon = Daemon::start();
    let worker = Worker::new(daemon.command(PROGRAM), [1, 0, 1]);
    let top = |arguments: &[&str]| {
        let mut command = daemon.tool(&["top"]);
        command.args(arguments).output().unwrap()
    };
    let text = String::from_utf8(top(&["--once", "-i", "0.1"]).stdout).unwrap();
    assert!(
        text.starts_with("GPU 0 OpenMPS software GPU  1 clients"),
        "{text}"
    );
    let line = text
        .lines()
        .find(|line| line.contains("accounted"))
        .expect(&text);
    assert!(line.contains(&worker.pid().to_string()), "{line}");
    let text =
        String::from_utf8(top(&["--once", "-i", "0.1", "--filter", "nobody"]).stdout).unwrap();
    assert!(!text.contains("accounted"), "{text}");
    for (arguments, why) in [
        (&["--interval", "0"][..], "from 0.1 to 3600 seconds"),
        (&["--sort", "luck"], "possible values"),
        // Standard output is a pipe here.
        (&[], "--once prints one table"),
    ] {
        let output = top(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
    // As nvidia-smi has it: column `sm` is what the client has had of the multiprocessors, which is a number, and the server's is none.
    let text = succeed(&mut daemon.tool(&["smi", "pmon", "-c", "2", "-d", "1"]));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let of = |pid: String| {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row.get(1) == Some(&&*pid))
            .collect();
        rows.into_iter().map(|row| row[5]).collect::<Vec<_>>()
    };
    assert_eq!(of(worker.pid().to_string()), ["0", "0"], "{text}");
    assert_eq!(of(daemon.server().to_string()), ["-", "-"], "{text}");
    worker.end();
    let nobody = Command::new(openmps())
        .args(["top", "--once"])
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe().join("nothing"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&nobody.stderr);
    assert!(
        said.contains("Cannot find MPS control daemon process"),
        "{said}"
    );
}

/// `openmps metrics --listen`, until it is dropped.
struct Exporter {
    child: Child,
    address: String,
    _errors: BufReader<ChildStderr>,
}

impl Exporter {
    fn new(daemon: &Daemon, address: &str) -> Self {
        let mut child = daemon
            .tool(&["metrics", "--listen", address])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("openmps metrics: ")
            .expect(&line);
        let address = address.to_owned();
        Self {
            child,
            address,
            _errors: errors,
        }
    }

    /// The address of its port.
    fn port(&self) -> SocketAddr {
        let address = self.address.strip_prefix("http://").unwrap();
        address.strip_suffix("/metrics").unwrap().parse().unwrap()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

/// What a server answers to these bytes.
fn asked(mut stream: impl Read + Write, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const QUESTION: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

#[test]
fn metrics_are_served_to_many_and_strangers_do_no_harm() {
    let daemon = Daemon::start();
    let worker = Worker::new(daemon.command(PROGRAM), [7, 0, 1]);
    let exporter = Exporter::new(&daemon, "127.0.0.1:0");
    let connect = || TcpStream::connect(exporter.port()).unwrap();
    // Who says nothing, or half of something, holds a place for some seconds; there are others.
    let idle: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"GET /met").unwrap();
    let many: Vec<String> = std::thread::scope(|scope| {
        let ask = || asked(connect(), QUESTION);
        let threads: Vec<_> = (0..100).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let kernels = format!("pid=\"{}\"", worker.pid());
    for answer in many {
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let line = answer
            .lines()
            .find(|line| line.starts_with("openmps_client_kernels_total{"));
        let line = line.expect(&answer);
        assert!(line.contains(&kernels) && line.ends_with("} 7"), "{line}");
    }
    let open_metrics = asked(
        connect(),
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n",
    );
    assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");
    for (question, status) in [
        (&b"GET /other HTTP/1.1\r\n\r\n"[..], "404"),
        (b"PUT /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x00\x01\x02\r\n\r\n", "400"),
    ] {
        let answer = asked(connect(), question);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // More than a question may have; the rest of it need not be taken.
    let mut long = connect();
    let _ = long.write_all(b"GET /metrics HTTP/1.1\r\nA: ");
    let _ = long.write_all(&[b'a'; 64 << 10]);
    let mut answer = [0; 12];
    if long.read_exact(&mut answer).is_ok() {
        assert_eq!(&answer, b"HTTP/1.1 431");
    }
    drop(idle);
    worker.end();
    daemon.control_output(&["quit"]);
    eventually("the daemon is gone", || {
        asked(connect(), QUESTION).starts_with("HTTP/1.1 503 ")
    });
}

#[test]
fn metrics_come_by_a_socket_that_only_its_user_may_open() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics");
    let address = format!("unix:{}", path.display());
    let ask = |path: &Path| asked(UnixStream::connect(path).unwrap(), QUESTION);
    let exporter = Exporter::new(&daemon, &address);
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(ask(&path).contains("openmps_build_info{version="));
    // A second one is told that there is one.
    let second = daemon
        .tool(&["metrics", "--listen", &address])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("somebody listens at"), "{said}");
    drop(exporter);
    assert!(!path.exists(), "it takes its socket away");
    // What a killed one left is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let exporter = Exporter::new(&daemon, &address);
    assert!(ask(&path).starts_with("HTTP/1.1 200 OK"));
    drop(exporter);
    std::fs::write(&path, "no socket").unwrap();
    let file = daemon
        .tool(&["metrics", "--listen", &address])
        .output()
        .unwrap();
    assert!(!file.status.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "no socket");
}
