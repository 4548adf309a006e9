//! A control daemon in the place of NVIDIA's `nvidia-cuda-mps-control`, as far as one beneath our servers needs it, and its
//! command client and server. Written from what NVIDIA's is seen to do from outside.
//!
//! It lies in a folder of its test's, where `behaviour` tells it to misbehave and `record` gets a line for
//! each process that it is: its role, number, arguments and environment.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use transport::socket::{Connection, Listener};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("-v") => {
            if behaviour("ours") {
                println!("OpenMPS control. Binary version: 13000");
            } else {
                println!("CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000");
            }
            ExitCode::SUCCESS
        }
        Some("-f") => daemon(),
        Some("server") => {
            record("server");
            forever()
        }
        _ => command(),
    }
}

fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("it has a file");
    program.parent().expect("in a folder").to_owned()
}

/// Whether it is to behave in a way.
fn behaviour(word: &str) -> bool {
    value(word).is_some()
}

/// What follows a word of `behaviour`: `word` or `word=value`.
fn value(word: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder().join("behaviour")).unwrap_or_default();
    text.split_whitespace().find_map(|found| {
        let (name, value) = found.split_once('=').unwrap_or((found, ""));
        (name == word).then(|| value.to_owned())
    })
}

fn record(role: &str) {
    let environment: Vec<String> = std::env::vars()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let line = format!(
        "{role} {} [{}] {}\n",
        std::process::id(),
        arguments.join(" "),
        environment.join(" ")
    );
    let file = File::options()
        .create(true)
        .append(true)
        .open(folder().join("record"));
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("a folder of the test's");
}

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn socket() -> PathBuf {
    let pipe = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").expect("it is told where");
    PathBuf::from(pipe).join("control")
}

#[expect(
    clippy::zombie_processes,
    reason = "whoever ends this daemon is to end its server"
)]
fn daemon() -> ExitCode {
    record("daemon");
    let log = std::env::var_os("CUDA_MPS_LOG_DIRECTORY").expect("it is told where");
    let mut log = File::create(PathBuf::from(log).join("control.log")).expect("a log");
    if behaviour("refuse") {
        writeln!(log, "no device for this fake").expect("room");
        return ExitCode::FAILURE;
    }
    if behaviour("hang") {
        forever();
    }
    let listener = Listener::bind(socket()).expect("a socket");
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(socket(), mode).expect("it is ours");
    // As NVIDIA's: its server has a session of its own, and outlives a daemon that is killed.
    let mut server = Command::new(std::env::current_exe().expect("it has a file"));
    let server = server.arg("server").stdin(Stdio::null()).process_group(0);
    server.spawn().expect("a server");
    let mut clients = Vec::new();
    loop {
        let client = listener.accept().expect("somebody");
        let Ok((bytes, _)) = client.receive() else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match text.as_str() {
            "client init" | "client context" => {
                if behaviour("hang-clients") {
                    clients.push(client);
                    continue;
                }
                let what = text.trim_start_matches("client ");
                let code: u32 = value(what).map_or(0, |code| code.parse().expect("a code"));
                let _ = client.send(&code.to_ne_bytes(), &[]);
                clients.push(client);
            }
            "quit" => {
                let _ = client.send(b"\n", &[]);
                std::fs::write(folder().join("quit"), "").expect("room");
                return ExitCode::SUCCESS;
            }
            _ => drop(client.send(b"100.0\n", &[])),
        }
    }
}

fn command() -> ExitCode {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a command");
    let Ok(daemon) = Connection::connect(socket()) else {
        eprintln!("Cannot find MPS control daemon process");
        return ExitCode::FAILURE;
    };
    daemon
        .send(line.trim().as_bytes(), &[])
        .expect("it listens");
    let (said, _) = daemon.receive().expect("an answer");
    print!("{}", String::from_utf8_lossy(&said));
    ExitCode::SUCCESS
}
