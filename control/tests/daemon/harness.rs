//! A private daemon for a test, and clients of it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use engine::arena::HOST_BYTES;
use protocol::control_messages::{
    ClientFields, FEATURE_QUEUED, Hello, Packet, Purpose, VERSION, Welcome, fingerprint,
};
use protocol::operations::{ContextCreate, EventRecord, Launch};
use transport::session::{ClientEnd, SessionMemory};
use transport::socket::{Connection, SocketError};

pub type Test = (&'static str, fn());

/// Lists a file's tests.
macro_rules! tests {
    ($($name:ident)*) => {
        pub const TESTS: &[crate::harness::Test] = &[$((stringify!($name), $name),)*];
    };
}
pub(crate) use tests;

/// Runs the tests whose names contain one of the arguments, or all; understands as much of the usual
/// harness's command line as tools use.
pub fn run(tests: &[Test], arguments: &[String]) -> ExitCode {
    // Under nohup SIGHUP is ignored, and so it would be in the daemons, which keep to that. What is handled
    // here is not passed on.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGHUP, std::sync::Arc::default());
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    // None of these is ignored.
    let tests = if has("--ignored") { &[] } else { tests };
    if has("--list") {
        for (name, _) in tests {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let mut failed = 0;
    for (name, test) in tests {
        if !(wanted.is_empty() || wanted.iter().any(|part| name.contains(*part))) {
            continue;
        }
        let began = Instant::now();
        let ok = catch_unwind(test).is_ok();
        failed += u32::from(!ok);
        let result = if ok { "ok" } else { "FAILED" };
        println!("test {name} ... {result} ({:?})", began.elapsed());
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < limit, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a descriptor whose last close takes an hour, and closes all others: a socket that has data for a
/// peer that reads none, which is returned. None if the kernel refuses to pass it.
pub fn trap(to: &Connection) -> Option<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&peer, 4096).unwrap();
    // Room that comes when the peer's machine has taken something is filled too.
    let moment = Some(Duration::from_millis(20));
    socket.set_write_timeout(moment).unwrap();
    while socket.write(&[0; 4096]).is_ok() {}
    let hour = Some(Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&socket, hour).unwrap();
    let sent = to.send(b"x", &[socket.as_fd()]);
    match sent {
        Ok(()) => {
            let own = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
            // Ours is the last if the other end was quick.
            std::thread::spawn(move || drop(socket));
            // A program that is started while it is open has a copy, and its start would wait for that one.
            until("it is closed here", || {
                let open = std::fs::read_dir("/proc/self/fd").unwrap();
                let mut links = open.filter_map(|one| std::fs::read_link(one.ok()?.path()).ok());
                links.all(|link| link != own)
            });
            Some(peer)
        }
        Err(error) => {
            // Disconnected already, or refused.
            assert!(
                matches!(
                    error,
                    SocketError::Closed | SocketError::System(_, rustix::io::Errno::PERM)
                ),
                "{error}"
            );
            rustix::net::sockopt::set_socket_linger(&socket, None).unwrap();
            None
        }
    }
}

/// Directories of a test, and the daemon in them if it runs.
pub struct Rig {
    root: tempfile::TempDir,
    pub foreground: Option<Child>,
    pub environment: Vec<(&'static str, String)>,
}

impl Rig {
    pub fn without_daemon() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            foreground: None,
            environment: Vec::new(),
        }
    }

    pub fn new() -> Self {
        let rig = Self::without_daemon();
        rig.start();
        rig
    }

    pub fn start(&self) {
        let output = self.control(&["-d"], None);
        assert!(output.status.success(), "{output:?}");
        assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0));
    }

    pub fn pipe(&self) -> PathBuf {
        self.root.path().join("pipe")
    }

    pub fn log(&self) -> PathBuf {
        self.root.path().join("log")
    }

    pub fn control_log(&self) -> String {
        std::fs::read_to_string(self.log().join("control.log")).unwrap()
    }

    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.log().join("server.log")).unwrap()
    }

    /// The program in an environment of nothing but the two directories.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("nvidia-cuda-mps-control")
            .args(arguments)
            .env_clear()
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.log());
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }

    pub fn control(&self, arguments: &[&str], input: Option<&str>) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.unwrap_or("").as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    /// What a line prints.
    pub fn ask(&self, line: &str) -> String {
        let output = self.control(&[], Some(&format!("{line}\n")));
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command prints, and its exit status.
    pub fn said(&self, line: &str) -> (String, i32) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = self.control(&words, None);
        let text = String::from_utf8(output.stdout).unwrap();
        (text, output.status.code().unwrap())
    }

    pub fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.said(&format!("{line} --json")).0).unwrap()
    }

    pub fn daemon_pid(&self) -> i32 {
        let text = std::fs::read_to_string(self.pipe().join("nvidia-cuda-mps-control.pid"));
        text.unwrap().parse().unwrap()
    }

    pub fn servers(&self) -> Vec<i32> {
        let list = self.ask("get_server_list");
        list.lines().map(|line| line.parse().unwrap()).collect()
    }

    pub fn connect(&self) -> Connection {
        Connection::connect(self.pipe().join("control")).unwrap()
    }

    pub fn try_attach(&self, fields: ClientFields) -> Result<Client, (u32, String)> {
        attach(&self.connect(), fields)
    }

    pub fn attach(&self) -> Client {
        self.try_attach(named("./app")).unwrap()
    }
}

/// A client that is a process of its own: this very program, under the name `lim`.
pub struct Held {
    pub child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Held {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Has it do a little work; gives the error, or 0.
    pub fn work(&mut self) -> String {
        self.ask("work")
    }

    /// Has it do something, and gives what it says.
    pub fn ask(&mut self, line: &str) -> String {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        self.line()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rig {
    /// A client process, of another user if one is named (for which this must be root). It says
    /// `ready` when it has its session and a context, or why it has none.
    pub fn hold_as(&self, uid: Option<u32>, arguments: &[&str]) -> Held {
        self.hold_in(self.pipe(), uid, arguments)
    }

    /// As [`Rig::hold_as`], by another pipe directory.
    pub fn hold_in(&self, pipe: PathBuf, uid: Option<u32>, arguments: &[&str]) -> Held {
        let mut command = self.command(arguments);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
            .arg0("lim")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        Held {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// A client that has its session.
    pub fn hold(&self) -> Held {
        let mut held = self.hold_as(None, &[]);
        assert_eq!(held.line(), "ready");
        held
    }

    /// Lets every user in.
    pub fn open_to_all(&self) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.root.path(), mode).unwrap();
    }

    /// The events that the structured log has, by name.
    pub fn events(&self, name: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.log().join("events.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|event| event["event"] == name)
            .collect()
    }
}

/// What the program does under the name `lim`.
pub fn hold(arguments: &[String]) -> ExitCode {
    let mut lines = std::io::stdin().lines();
    if arguments.iter().any(|argument| argument == "late") {
        // All at once, when the test closes the pipe that they have in common.
        while lines.next().is_some() {}
    }
    let pipe = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap();
    let partition = match arguments {
        [what, partition] if what == "partition" => Some(partition.clone()),
        _ => None,
    };
    let fields = ClientFields {
        partition: partition.clone().filter(|partition| !partition.is_empty()),
        ..named("lim")
    };
    let client = Connection::connect(PathBuf::from(pipe).join("control"))
        .map_err(|error| (0, error.to_string()))
        .and_then(|connection| attach(&connection, fields));
    let client = match client {
        Ok(client) => client,
        Err((code, text)) => {
            println!("{code} {text}");
            return ExitCode::FAILURE;
        }
    };
    if partition.is_some() {
        say_what_it_got(&client);
    } else {
        client.work();
        println!("ready");
    }
    if arguments.iter().any(|argument| argument == "late") {
        std::thread::sleep(Duration::from_secs(600));
    }
    let mut sequence = 1;
    while let Some(Ok(line)) = lines.next() {
        if line != "work" {
            println!("{}", crate::groups::carry_out(&client, &line));
            continue;
        }
        sequence += 1;
        let worked = client
            .end
            .post(0, sequence, &EventRecord::default(), &[])
            .and_then(|()| client.end.wait(0, sequence));
        match worked {
            Ok(()) => println!("0"),
            Err(_) => println!("{}", client.end.closed().map_or(806, |code| code.0)),
        }
    }
    ExitCode::SUCCESS
}

/// Makes a context, and says whether it is one, and how many multiprocessors there are.
fn say_what_it_got(client: &Client) {
    let facts = &client.welcome.facts;
    let count = facts[0]
        .attribute(protocol::device_facts::MULTIPROCESSOR_COUNT)
        .unwrap();
    client
        .end
        .post(0, 0, &ContextCreate::default(), &[])
        .unwrap();
    let info = protocol::operations::MemInfo { device: 0 };
    client.end.call(&info, &[]).unwrap();
    match client.end.fault(0).0 {
        0 => println!("ready {count}"),
        code => println!("fault {code} {count}"),
    }
}

pub fn named(program: &str) -> ClientFields {
    ClientFields {
        program: program.into(),
        ..ClientFields::default()
    }
}

pub fn say_hello(connection: &Connection, fields: ClientFields) {
    try_hello(connection, fields).unwrap();
}

pub fn try_hello(connection: &Connection, fields: ClientFields) -> Result<(), SocketError> {
    let hello = Packet::Hello(Hello {
        version: VERSION,
        fingerprint: fingerprint(),
        features: FEATURE_QUEUED,
        purpose: Purpose::Client(fields),
    });
    connection.send(&hello.encode(), &[])
}

pub fn attach(connection: &Connection, fields: ClientFields) -> Result<Client, (u32, String)> {
    say_hello(connection, fields);
    welcomed(connection)
}

pub fn welcomed(connection: &Connection) -> Result<Client, (u32, String)> {
    let most = Some(Duration::from_secs(20));
    connection.set_receive_timeout(most).unwrap();
    let (packet, fds) = loop {
        let (bytes, fds) = connection
            .receive()
            .map_err(|error| (0, error.to_string()))?;
        match Packet::decode(&bytes).unwrap() {
            Packet::Queued { .. } => println!("queued"),
            packet => break (packet, fds),
        }
    };
    match packet {
        Packet::Welcome(welcome) => {
            let memory = SessionMemory::from_fds(fds, HOST_BYTES).unwrap();
            let connection = connection.try_clone().unwrap();
            Ok(Client {
                welcome,
                end: ClientEnd::new(&memory, connection).unwrap(),
            })
        }
        Packet::Refused { code, text } => Err((code, text)),
        other => panic!("{other:?}"),
    }
}

pub struct Client {
    pub welcome: Welcome,
    pub end: ClientEnd,
}

impl Client {
    /// Makes a context and does a little in it.
    pub fn work(&self) {
        let create = ContextCreate::default();
        self.end.post(0, 0, &create, &[]).unwrap();
        self.end.post(0, 1, &EventRecord::default(), &[]).unwrap();
        self.end.wait(0, 1).unwrap();
    }

    /// Does something that the device does not survive.
    pub fn kill_device(&self, sequence: u64) {
        let launch = Launch {
            kernel: crate::fake::KILLING,
            ..Launch::default()
        };
        self.end.post(0, sequence, &launch, &[]).unwrap();
        self.end.wait(0, sequence).unwrap();
    }

    pub fn work_again(&self, sequence: u64) {
        self.end
            .post(0, sequence, &EventRecord::default(), &[])
            .unwrap();
        self.end.wait(0, sequence).unwrap();
    }
}

pub fn kill(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// Whether a process is a daemon. A pid file may hold a number of another namespace, 1 for example.
fn is_daemon(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.starts_with("nvidia-cuda-mps-control\0"))
}

pub fn runs(pid: i32) -> bool {
    // A zombie of somebody else's child does not run. As long as one of its threads is there, its files and locks are.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        std::fs::read_to_string(thread.path().join("stat"))
            .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    })
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut child) = self.foreground.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let pid_file = self.pipe().join("nvidia-cuda-mps-control.pid");
        if let Ok(text) = std::fs::read_to_string(pid_file)
            && let Ok(pid) = text.parse()
            && is_daemon(pid)
        {
            kill(pid, rustix::process::Signal::TERM);
            let limit = Instant::now() + Duration::from_secs(10);
            while runs(pid) && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
