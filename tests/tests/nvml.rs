//! NVIDIA's management library as clients get it: each is shown what is its own, and no more.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tests::daemon::{Daemon, eventually, openmps, succeed};
use tests::skipped::skipped;

const PROGRAM: &str = env!("CARGO_BIN_EXE_nvml");

const MIB: u64 = 1 << 20;

/// What a program was shown of a device.
#[derive(Debug, PartialEq)]
struct Shown {
    total: u64,
    used: u64,
    free: u64,
    /// Process ids and what each has.
    processes: Vec<(u32, u64)>,
}

fn shown(line: &str) -> Shown {
    let mut words = line.split(' ').skip(1);
    let mut number = || words.next().unwrap().parse().unwrap();
    let (total, used, free) = (number(), number(), number());
    let processes = words.map(|word| {
        let (pid, bytes) = word.split_once(':').unwrap();
        (pid.parse().unwrap(), bytes.parse().unwrap())
    });
    Shown {
        total,
        used,
        free,
        processes: processes.collect(),
    }
}

/// What somebody who is no client is shown of the only device.
fn watch(command: &mut Command) -> Shown {
    let text = succeed(command.arg("show"));
    let mut lines = text.lines();
    let first = shown(lines.next().unwrap());
    assert_eq!(lines.next(), Some("end"));
    first
}

/// A program that holds memory.
struct Holder(Child, BufReader<ChildStdout>);

impl Holder {
    fn new(mut command: Command, bytes: u64) -> (Self, Shown) {
        command.arg("hold").arg(bytes.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Self(child, output);
        let first = holder.hear();
        (holder, first)
    }

    fn hear(&mut self) -> Shown {
        let mut read = || {
            let mut line = String::new();
            self.1.read_line(&mut line).unwrap();
            line.trim().to_owned()
        };
        let line = read();
        assert_eq!(read(), "end", "{line}");
        shown(&line)
    }

    fn look(&mut self) -> Shown {
        writeln!(self.0.stdin.as_mut().unwrap(), "look").unwrap();
        self.hear()
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn with_quota(daemon: &Daemon, quota: &str) -> Command {
    let mut command = daemon.command(PROGRAM);
    command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={quota}"));
    command
}

#[test]
fn both_libraries_say_the_same_of_the_device_and_the_quota() {
    let daemon = Daemon::start();
    for task in ["same", "wrong", "counts", "threads", "fork"] {
        let mut command = with_quota(&daemon, "64M");
        assert_eq!(succeed(command.arg(task)), "ok\n", "{task}");
    }
}

#[test]
fn without_a_server_there_are_devices_and_nobody_starts_one() {
    let daemon =
        Daemon::start_with(&[("OPENMPS_SOFT_DEVICES", "3"), ("OPENMPS_SOFT_MEMORY", "1G")]);
    let text = succeed(daemon.command(PROGRAM).arg("show"));
    let one = format!("{0} 0 {0}", 1 << 30);
    assert_eq!(text, format!("0 {one}\n1 {one}\n2 {one}\nend\n"));
    // What a client would get here.
    let text = succeed(with_quota(&daemon, "64M").arg("show"));
    assert!(
        text.starts_with(&format!("0 {0} 0 {0}\n", 64 * MIB)),
        "{text}"
    );
    assert_eq!(daemon.control_output(&["get_server_list"]), "");
    // CUDA's choice among them is not this library's.
    let mut command = daemon.command(PROGRAM);
    let text = succeed(command.arg("show").env("CUDA_VISIBLE_DEVICES", "1"));
    assert_eq!(text.lines().count(), 4, "{text}");
}

#[test]
fn a_client_is_shown_its_own_budget_and_who_watches_the_sum() {
    let daemon = Daemon::start();
    let (mut one, first) = Holder::new(with_quota(&daemon, "64M"), 8 * MIB);
    assert_eq!(first.total, 64 * MIB);
    assert!(first.used >= 8 * MIB && first.used < 16 * MIB, "{first:?}");
    assert_eq!(first.processes, [(one.pid(), first.used)]);
    let (two, second) = Holder::new(with_quota(&daemon, "32M"), 4 * MIB);
    assert_eq!((second.total, second.processes.len()), (32 * MIB, 2));

    let again = one.look();
    assert_eq!((again.total, again.used), (first.total, first.used));
    let pids: Vec<u32> = again.processes.iter().map(|(pid, _)| *pid).collect();
    assert!(pids.contains(&two.pid()), "{again:?}");

    let watched = watch(&mut daemon.command(PROGRAM));
    assert_eq!(watched.total, 96 * MIB);
    assert_eq!(watched.used, first.used + second.used);
    // A change holds at once.
    let client = one.pid().to_string();
    daemon.control_output(&["limit", "set", "--client", &client, "--memory", "0=20M"]);
    assert_eq!(one.look().total, 20 * MIB);

    drop(two);
    eventually("the other one is gone", || one.look().processes.len() == 1);
}

#[test]
fn a_group_is_shown_what_it_has_together_and_others_are_not() {
    let daemon = Daemon::start();
    daemon.control_output(&["group", "add", "a", "--memory", "0=64M"]);
    let in_group = || {
        let mut command = daemon.command(PROGRAM);
        command.env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe().join("groups/a"));
        command
    };
    let (_other, other) = Holder::new(daemon.command(PROGRAM), 2 * MIB);
    let (mut one, first) = Holder::new(in_group(), 8 * MIB);
    assert_eq!(first.total, 64 * MIB);
    assert_eq!(first.processes, [(one.pid(), first.used)]);
    let (_two, _) = Holder::new(in_group(), 16 * MIB);
    let both = one.look();
    assert!(both.used >= 24 * MIB && both.used < 40 * MIB, "{both:?}");
    assert_eq!(both.processes.len(), 2);
    assert_eq!(watch(&mut in_group()), both);
    assert!(other.total > 64 * MIB);

    // A client that may have less than its group is shown that, and what the group leaves of it.
    let mut small = in_group();
    small.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=48M");
    let (_small, small) = Holder::new(small, MIB);
    assert_eq!(small.total, 48 * MIB);
    assert!(small.used < 8 * MIB && small.free < 40 * MIB, "{small:?}");
}

#[test]
fn other_users_clients_are_not_shown() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being another user takes root");
    }
    let daemon = Daemon::start_as(&["-M"], &[]);
    let (mut own, _) = Holder::new(daemon.command(PROGRAM), 8 * MIB);
    // The library as a package puts it: the user's own folder is not to be had here.
    let place = tempfile::Builder::new().prefix("nvml").tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).unwrap();
    let library = own_libraries(&own).join("libnvidia-ml.so.1");
    std::fs::copy(library, place.path().join("libnvidia-ml.so.1")).unwrap();
    let cuda = own_libraries(&own).join("libcuda.so.1");
    std::fs::copy(cuda, place.path().join("libcuda.so.1")).unwrap();
    let program = place.path().join("program");
    std::fs::copy(PROGRAM, &program).unwrap();
    let as_other = || {
        let mut command = Command::new(&program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
            .env("LD_LIBRARY_PATH", place.path())
            .uid(4242)
            .gid(4242);
        command
    };
    let seen = watch(&mut as_other());
    assert_eq!((seen.used, seen.processes), (0, vec![]));
    let (other, seen) = Holder::new(as_other(), 2 * MIB);
    assert_eq!(seen.processes, [(other.pid(), seen.used)]);
    // Not even root's programs are shown another user's, unless they ask as an operator.
    assert_eq!(own.look().processes.len(), 1);
    let operator = Command::new(openmps())
        .arg("smi")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&operator.stdout).into_owned();
    for pid in [own.pid(), other.pid()] {
        assert!(table.contains(&format!(" {pid} ")), "{table}");
    }
}

/// The folder of the libraries that a program has loaded.
fn own_libraries(holder: &Holder) -> PathBuf {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", holder.pid())).unwrap();
    let line = maps
        .lines()
        .find(|line| line.ends_with("/libnvidia-ml.so.1"));
    let path = line.unwrap().split_whitespace().next_back().unwrap();
    PathBuf::from(path).parent().unwrap().to_owned()
}

#[test]
fn nvidia_smi_shows_a_client_its_budget_and_an_operator_the_device() {
    let daemon = Daemon::start_with(&[("OPENMPS_SOFT_MEMORY", "1G")]);
    let (holder, held) = Holder::new(with_quota(&daemon, "64M"), 8 * MIB);
    let query = [
        "--query-gpu=memory.total,memory.used",
        "--format=csv,noheader,nounits",
    ];
    // Found on the path, where the real one may be too.
    let mut client = daemon.command("nvidia-smi");
    let text = succeed(client.args(query));
    assert_eq!(text, format!("64, {}\n", held.used / MIB));
    let mut operator = Command::new(openmps());
    operator
        .arg("smi")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe());
    let text = succeed(operator.args(query));
    assert_eq!(text, format!("1024, {}\n", held.used / MIB));
    let table = succeed(&mut daemon.command("nvidia-smi"));
    assert!(table.contains(&format!(" {} ", holder.pid())), "{table}");
    let mut wrong = Command::new(openmps());
    wrong
        .arg("smi")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe());
    let wrong = wrong.env("OPENMPS_VIEW", "mine").output().unwrap();
    assert_eq!(wrong.status.code(), Some(9));
    let said = String::from_utf8_lossy(&wrong.stdout);
    assert!(said.contains("OPENMPS_VIEW=mine"), "{said}");
}

#[test]
fn without_a_daemon_the_driver_is_not_loaded() {
    const DRIVER_NOT_LOADED: &str = "9\n";
    const TIMEOUT: &str = "10\n";
    const GPU_IS_LOST: &str = "15 OpenMPS software GPU";
    let mut daemon = Daemon::start();
    let (holder, _) = Holder::new(daemon.command(PROGRAM), MIB);
    let libraries = own_libraries(&holder);
    drop(holder);
    let direct = |task: &str| {
        let mut command = Command::new(PROGRAM);
        command
            .arg(task)
            .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
            .env("LD_LIBRARY_PATH", &libraries);
        command
    };
    let mut user = direct("lost");
    let mut user = user
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(user.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");

    let pid = std::fs::read_to_string(daemon.pipe().join("nvidia-cuda-mps-control.pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    assert_eq!(succeed(&mut direct("code")), TIMEOUT);
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(succeed(&mut direct("code")), "0\n");

    let mut nobody = direct("code");
    nobody.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    assert_eq!(succeed(&mut nobody), DRIVER_NOT_LOADED);
    let mut command = direct("code");
    daemon.signal(Signal::TERM);
    assert_eq!(succeed(&mut command), DRIVER_NOT_LOADED);
    writeln!(user.stdin.as_mut().unwrap(), "go").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), GPU_IS_LOST);
    assert!(user.wait().unwrap().success());
    daemon.restart();
}

#[test]
fn what_a_device_measures_the_drivers_own_library_says() {
    const NOT_SUPPORTED: &str = "3 0\n";
    let daemon = Daemon::start();
    let place = tempfile::tempdir().unwrap();
    let real = place.path().join("libnvidia-ml.so.1");
    let mut compiler = Command::new("cc");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/c/sensors.c");
    compiler.args(["-shared", "-fPIC", "-O1", source, "-o"]);
    succeed(compiler.arg(&real));
    let mut devices = daemon.command("nvidia-smi");
    let uuid = succeed(devices.args(["--query-gpu=uuid", "--format=csv,noheader"]));

    let sensor = |library: &std::path::Path, uuid: &str| {
        let mut command = daemon.command(PROGRAM);
        command.arg("sensor").env("OPENMPS_NVML", library);
        succeed(command.env("SENSORS_UUID", uuid))
    };
    assert_eq!(sensor(&real, uuid.trim()), "0 42\n");
    // Of another device; of none.
    assert_eq!(sensor(&real, "GPU-other"), NOT_SUPPORTED);
    assert_eq!(sensor("/nonexistent".as_ref(), uuid.trim()), NOT_SUPPORTED);
    // A copy of this very library is not taken for the driver's.
    let (holder, _) = Holder::new(daemon.command(PROGRAM), MIB);
    let copy = place.path().join("copy.so");
    std::fs::copy(own_libraries(&holder).join("libnvidia-ml.so.1"), &copy).unwrap();
    assert_eq!(sensor(&copy, uuid.trim()), NOT_SUPPORTED);
}
