//! The page over HTTP: what it says beside what `openmps top` says, who may change what, and strangers. What it looks like is
//! `cargo xtask platforms page`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::daemon::{Daemon, eventually, openmps, succeed};

/// A program that has done its work and stays until its input ends.
struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn new(daemon: &Daemon) -> Self {
        let mut child = daemon
            .command(env!("CARGO_BIN_EXE_accounted"))
            .args(["7", "0", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("took "), "{line}");
        Self { child, output }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// `openmps page`, until it is dropped.
struct Page {
    child: Child,
    url: String,
    /// What it printed for changes.
    token: String,
    _errors: BufReader<ChildStderr>,
}

fn tool(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = daemon.tool(arguments);
    command
        .env("CUDA_MPS_LOG_DIRECTORY", daemon.pipe().join("../log"))
        .env("XDG_STATE_HOME", daemon.pipe().join("../state"));
    command
}

impl Page {
    fn new(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut child = tool(daemon, &["page"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = |wanted: &str| {
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            let found = line.trim_end().strip_prefix("openmps page: ");
            assert!(line.contains(wanted), "{line}");
            found.expect(&line).to_owned()
        };
        let url = line("/").trim_end_matches('/').to_owned();
        let token = match arguments.contains(&"--token-file") {
            true => String::new(),
            false => line("token=").split_once("token=").unwrap().1.to_owned(),
        };
        Self {
            child,
            url,
            token,
            _errors: errors,
        }
    }

    fn port(&self) -> SocketAddr {
        self.url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    fn asked(&self, question: &str) -> Answer {
        let stream = TcpStream::connect(self.port()).unwrap();
        asked(stream, question)
    }

    fn get(&self, path: &str) -> Answer {
        self.asked(&format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n",
            self.port()
        ))
    }

    fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Asks for a change with these lines in the head.
    fn change(&self, change: &Value, lines: &str) -> Answer {
        let body = change.to_string();
        self.asked(&format!(
            "POST /api/change HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{lines}\r\n{body}",
            body.len()
        ))
    }

    fn changed(&self, change: &Value) -> Value {
        let lines = format!(
            "Host: {0}\r\nOrigin: http://{0}\r\nAuthorization: Bearer {1}\r\n",
            self.port(),
            self.token
        );
        let answer = self.change(change, &lines);
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        }
        let ended = self.child.wait().unwrap();
        assert!(std::thread::panicking() || ended.success(), "{ended}");
    }
}

struct Answer {
    status: u32,
    head: String,
    body: String,
}

fn asked(mut stream: impl Read + Write, question: &str) -> Answer {
    stream.write_all(question.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    let status = head.split(' ').nth(1).unwrap();
    Answer {
        status: status.parse().unwrap(),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// The only client, once the page has seen it.
fn client(page: &Page) -> Value {
    let mut client = Value::Null;
    eventually("the page shows the client", || {
        client = page.json("/api/now")["devices"][0]["clients"][0].clone();
        client["total"]["kernels"] == 7
    });
    client
}

#[test]
fn the_page_says_what_top_says() {
    let daemon = Daemon::start();
    let worker = Worker::new(&daemon);
    let page = Page::new(&daemon, &["--listen", "127.0.0.1:0"]);
    let client = client(&page);
    assert_eq!(client["pid"], worker.child.id());
    let top = succeed(&mut tool(&daemon, &["top", "--json", "-i", "0.1"]));
    let top: Value = serde_json::from_str(&top).unwrap();
    let in_top = &top["devices"][0]["clients"][0];
    for same in [
        "program",
        "user",
        "group",
        "memory",
        "memory_limit",
        "total",
        "session",
        "server",
    ] {
        assert_eq!(client[same], in_top[same], "{same}");
    }
    let now = page.json("/api/now");
    assert_eq!(now["devices"][0]["uuid"], top["devices"][0]["uuid"]);
    assert_eq!(now["error"], Value::Null);
    // Plots have what was seen, in the last place.
    let session = &client["session"];
    let of_it = page.json(&format!("/api/history?device=0&session={session}&span=day"));
    let kibibytes = client["memory"].as_u64().unwrap() / 1024;
    let memory = of_it["memory"].as_array().unwrap();
    assert_eq!(memory.len(), 24 * 60);
    assert!(memory.last().unwrap().as_u64().unwrap().abs_diff(kibibytes) <= 1);
    let of_device = page.json("/api/history?span=minutes");
    let samples = &of_device["devices"][0]["multiprocessors"];
    assert_eq!(samples.as_array().unwrap().len(), 600);
    assert_eq!(page.json("/api/recent")["clients"][0]["session"], *session);
    let log = page.json("/api/log");
    let has = |words: &str| {
        let lines = log["lines"].as_array().unwrap();
        lines
            .iter()
            .any(|line| line["text"].as_str().unwrap().contains(words))
    };
    assert!(has("Starting control daemon") && has("connected"), "{log}");
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/parts.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
        ("/api/now", "application/json"),
    ] {
        let answer = page.get(path);
        assert_eq!(answer.status, 200, "{path}");
        for line in [
            &*format!("Content-Type: {kind}"),
            "Content-Security-Policy: default-src 'none'; script-src 'self'",
            "X-Content-Type-Options: nosniff",
            "frame-ancestors 'none'",
        ] {
            assert!(answer.head.contains(line), "{path}: {}", answer.head);
        }
    }
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/../page.js", 404),
        ("DELETE", "/api/now", 405),
        ("POST", "/", 405),
        ("GET", "/api/change", 405),
    ] {
        let question = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(page.asked(&question).status, status, "{method} {path}");
    }
}

#[test]
fn changes_are_for_who_has_the_token() {
    let daemon = Daemon::start();
    let worker = Worker::new(&daemon);
    let page = Page::new(&daemon, &["--listen", "127.0.0.1:0"]);
    let session = client(&page)["session"].clone();
    let of = |what: Value| json!({ "device": 0, "session": session, "what": what });
    let half = of(json!({ "percentage": 50 }));
    let host = format!("Host: {}\r\n", page.port());
    let right = format!("Authorization: Bearer {}\r\n", page.token);
    let wrong = "Authorization: Bearer 00000000000000000000000000000000\r\n";
    for (lines, status) in [
        (host.clone(), 401),
        (format!("{host}{wrong}"), 403),
        (format!("{host}{right}Origin: http://evil.example\r\n"), 403),
        (format!("{host}{right}Sec-Fetch-Site: cross-site\r\n"), 403),
        (format!("Host: evil.example\r\n{right}"), 421),
        (right, 421),
    ] {
        let answer = page.change(&half, &lines);
        assert_eq!(answer.status, status, "{lines} {}", answer.body);
    }
    let shown =
        || daemon.control_output(&["limit", "show", "--client", &worker.child.id().to_string()]);
    assert!(shown().contains("compute: 100.0 %"), "{}", shown());
    let came = page.changed(&half);
    assert_eq!(came["done"], true, "{came}");
    assert!(shown().contains("compute: 50.0 %"), "{}", shown());
    let came = page.changed(&of(json!({ "memory": 1 << 30 })));
    assert_eq!(came["done"], true, "{came}");
    let came = page.changed(&of(json!("show")));
    assert_eq!(came["limits"]["percentage"], 50.0, "{came}");
    assert_eq!(came["limits"]["memory"][0]["limit"], 1 << 30, "{came}");
    // What the daemon refuses is told in its words.
    let came = page.changed(&of(json!({ "percentage": 200 })));
    assert_eq!(came["done"], false, "{came}");
    assert!(
        came["said"].as_str().unwrap().contains("(0.0, 100.0]"),
        "{came}"
    );
    let came = page.changed(&of(json!("end")));
    assert_eq!(came["done"], true, "{came}");
    eventually("the client is gone", || daemon.clients().is_empty());
    eventually("the page shows none", || {
        page.json("/api/now")["devices"][0]["clients"] == json!([])
    });
    let came = page.changed(&of(json!("end")));
    assert_eq!(came["said"], "the client has left");
}

#[test]
fn strangers_do_no_harm_and_a_daemon_that_is_gone_is_told() {
    let daemon = Daemon::start();
    let page = Page::new(&daemon, &["--listen", "127.0.0.1:0"]);
    let connect = || TcpStream::connect(page.port()).unwrap();
    // Who says nothing, half of something, or reads nothing, holds a place for some seconds; there are others.
    let idle: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"POST /api/change HTTP/1.1\r\nContent-Length: 4000\r\n\r\n{")
        .unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..100)
            .map(|_| scope.spawn(|| page.get("/api/now").status))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 200);
        }
    });
    drop(idle);
    daemon.control_output(&["quit"]);
    eventually("the page says that there is no daemon", || {
        let now = page.json("/api/now");
        let error = now["error"].as_str().unwrap_or_default();
        error.contains("Cannot find MPS control daemon process")
    });
    assert_eq!(page.get("/").status, 200);
}

#[test]
fn a_private_page_on_a_socket_with_a_token_of_ones_own() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("page"), folder.path().join("token"));
    let address = format!("unix:{}", socket.display());
    let arguments = [
        "--listen",
        &address,
        "--private",
        "--token-file",
        file.to_str().unwrap(),
        "--host",
        "gpu.example",
    ];
    let with_mode = |mode| {
        std::fs::write(&file, "a-token-of-my-own\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    with_mode(0o644);
    let refused = tool(&daemon, &["page"]).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("chmod 600"),
        "{said}"
    );
    with_mode(0o600);
    let page = Page::new(&daemon, &arguments);
    let ask = |path: &str, lines: &str| {
        let stream = UnixStream::connect(&socket).unwrap();
        let question = format!("GET {path} HTTP/1.1\r\nHost: gpu.example\r\n{lines}\r\n");
        asked(stream, &question).status
    };
    assert_eq!(ask("/", ""), 200);
    assert_eq!(ask("/api/now", ""), 401);
    assert_eq!(
        ask("/api/log", "Authorization: Bearer a-token-of-another\r\n"),
        403
    );
    assert_eq!(
        ask("/api/now", "Authorization: Bearer a-token-of-my-own\r\n"),
        200
    );
    drop(page);
    assert!(!socket.exists(), "it takes its socket away");
}

/// The address that a page says at its start.
fn address(line: &str) -> SocketAddr {
    let url = line.trim_end().strip_prefix("openmps page: http://");
    url.expect(line).trim_end_matches('/').parse().unwrap()
}

#[test]
fn a_time_line_is_recorded_when_somebody_with_the_token_asks() {
    let daemon = Daemon::start();
    let mut worker = Worker::new(&daemon);
    let page = Page::new(&daemon, &["--listen", "127.0.0.1:0"]);
    client(&page);
    assert_eq!(page.json("/api/timeline")["state"], "nothing");
    let host = format!(
        "Host: {}\r\nContent-Type: application/json\r\n",
        page.port()
    );
    let right = format!("{host}Authorization: Bearer {}\r\n", page.token);
    let post = |lines: &str, body: &str| {
        let length = body.len();
        page.asked(&format!(
            "POST /api/timeline HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
        ))
    };
    assert_eq!(post(&host, "{}").status, 401);
    let stranger = format!("{right}Origin: http://evil.example\r\n");
    assert_eq!(post(&stranger, "{}").status, 403);
    for wrong in [
        "",
        "[]",
        "{\"seconds\": 0}",
        "{\"seconds\": 11}",
        "{\"pid\": 1}",
    ] {
        let status = post(&right, wrong).status;
        assert!(matches!(status, 400 | 409), "{wrong}: {status}");
    }
    assert_eq!(page.json("/api/timeline")["state"], "nothing");
    assert_eq!(post(&right, "{\"seconds\": 2}").status, 200);
    assert_eq!(post(&right, "{}").status, 409, "one at a time");
    assert_eq!(page.json("/api/timeline")["state"], "recording");
    eventually("it is there", || {
        let input = worker.child.stdin.as_mut();
        input.unwrap().write_all(b"again\n").unwrap();
        page.json("/api/timeline")["state"] == "there"
    });
    let line = page.json("/api/timeline");
    assert_eq!(
        (&line["seconds"], &line["left_out"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(line["clients"][0]["pid"], worker.child.id());
    let names = line["names"].as_array().unwrap();
    let churn = names.iter().position(|name| name == "churn").unwrap();
    let mut lines = line["table"].as_array().unwrap().iter();
    let of_churn = lines.find(|line| line[1] == "work" && line[2] == churn);
    assert!(of_churn.unwrap()[3].as_u64() >= Some(7), "{line}");
    let _ = worker.output.read_line(&mut String::new());
}

#[test]
fn a_page_started_with_the_daemon_ends_with_it() {
    for how in ["-f", "-d"] {
        let folder = tempfile::tempdir().unwrap();
        let command = |arguments: &[&str]| {
            let mut command = Command::new(openmps());
            command
                .arg("control")
                .args(arguments)
                .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
                .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"))
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            command
        };
        let mut daemon = command(&[how, "--web", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut errors = BufReader::new(daemon.stderr.take().unwrap());
        errors.read_line(&mut line).unwrap();
        let address = address(&line);
        let question = format!("GET /api/now HTTP/1.1\r\nHost: {address}\r\n\r\n");
        eventually("the page shows the daemon", || {
            let answer = asked(TcpStream::connect(address).unwrap(), &question);
            answer.body.contains("\"error\":null")
        });
        // What cannot listen starts no daemon.
        let output = command(&["-d", &format!("--web={address}")])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains("the daemon was not started"),
            "{said}"
        );
        // Nor is there a second page where there is no second daemon.
        let second = command(&["-d", "--web=127.0.0.1:0"])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(!second.status.success(), "{said}");
        let second = self::address(said.lines().next().unwrap());
        eventually("the second page is gone", || {
            TcpStream::connect(second).is_err()
        });
        assert!(command(&["quit"]).status().unwrap().success());
        eventually("the page has gone with the daemon", || {
            TcpStream::connect(address).is_err()
        });
        daemon.wait().unwrap();
    }
}

/// A page that dies is told of, and its history is there for the next one.
#[test]
fn the_end_of_a_page_is_told_and_its_history_stays() {
    for how in ["-f", "-d"] {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, logs) = (folder.path().join("pipe"), folder.path().join("log"));
        let command = |arguments: &[&str]| {
            let mut command = Command::new(openmps());
            command
                .args(arguments)
                .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
                .env("CUDA_MPS_LOG_DIRECTORY", &logs)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            command
        };
        let mut daemon = command(&["control", how, "--web", "127.0.0.1:0"])
            .spawn()
            .unwrap();
        let history = logs.join("page-history");
        eventually("the history is in the daemon's folder", || history.exists());
        let log = || std::fs::read_to_string(logs.join("control.log")).unwrap_or_default();
        assert!(!log().contains("The page's process"));
        let pages = || -> Vec<i32> {
            let all = std::fs::read_dir("/proc").unwrap();
            let numbers = all.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
            let is_page = |pid: &i32| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let of = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                let has = |bytes: &[u8], text: &str| {
                    bytes.windows(text.len()).any(|it| it == text.as_bytes())
                };
                has(&line, "--beside-daemon") && has(&of, pipe.to_str().unwrap())
            };
            numbers.filter(is_page).collect()
        };
        let [page] = pages()[..] else {
            panic!("{:?}", pages());
        };
        let process = Pid::from_raw(page).unwrap();
        kill_process(process, Signal::KILL).unwrap();
        eventually("the daemon tells of its end", || {
            log().contains(&format!("The page's process {page} has ended by itself"))
        });
        // The line of the log comes first.
        eventually("it is an event", || {
            let events = std::fs::read_to_string(logs.join("events.jsonl"));
            events.is_ok_and(|events| events.contains("\"page.ended\""))
        });
        // The file is free again, and what is no history stays what it is.
        let file = history.to_str().unwrap();
        let arguments = ["page", "--listen", "127.0.0.1:0", "--history"];
        std::fs::write(folder.path().join("letter"), "a letter").unwrap();
        let letter = folder.path().join("letter");
        let letter = letter.to_str().unwrap();
        for (path, said) in [(file, ""), (letter, "is no history of this version's")] {
            let mut page = command(&[&arguments[..], &[path]].concat())
                .spawn()
                .unwrap();
            let mut errors = BufReader::new(page.stderr.take().unwrap());
            let mut lines = String::new();
            for _ in 0..2 {
                errors.read_line(&mut lines).unwrap();
            }
            let question = {
                let address = address(lines.lines().next().unwrap());
                let question = format!("GET /api/now HTTP/1.1\r\nHost: {address}\r\n\r\n");
                move || asked(TcpStream::connect(address).unwrap(), &question)
            };
            eventually("the page shows the daemon", || {
                question().body.contains("\"error\":null")
            });
            page.kill().unwrap();
            page.wait().unwrap();
            errors.read_to_string(&mut lines).unwrap();
            assert_eq!(
                lines.contains("kept in memory only"),
                !said.is_empty(),
                "{lines}"
            );
            assert!(lines.contains(said), "{lines}");
        }
        assert_eq!(std::fs::read(letter).unwrap(), b"a letter");
        assert!(command(&["control", "quit"]).status().unwrap().success());
        daemon.wait().unwrap();
    }
}
