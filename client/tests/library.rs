//! The library as programs get it: its symbols, what it needs, and C programs that use it.

#[path = "../../tests/src/skipped.rs"]
mod skipped;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;
use std::time::{Duration, Instant};

use cuda_abi::functions::ROWS;

/// The library, built as this test was: cargo does not build it for the tests by itself.
fn library() -> PathBuf {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "client"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success());
    });
    let test = std::env::current_exe().expect("a path");
    let target = test.ancestors().nth(2).expect("target/debug/deps");
    target.join("libcuda.so")
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("binutils");
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Compiles a program of this folder.
fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.trim_end_matches(".c"));
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    program
}

fn passes(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        output.stderr.is_empty(),
        "the library printed {:?}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn it_exports_the_tables_names_and_no_other() {
    let symbols = output(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library()),
    );
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let table: BTreeSet<&str> = ROWS
        .iter()
        .flat_map(|row| [Some(row.name), row.twin.map(|twin| twin.symbol)])
        .flatten()
        .collect();
    assert_eq!(exported, table);
}

#[test]
fn it_has_the_drivers_name_and_needs_libc_only() {
    let dynamic = output(Command::new("readelf").arg("-d").arg(library()));
    let of = |kind: &str| -> Vec<&str> {
        dynamic
            .lines()
            .filter(|line| line.contains(kind))
            .filter_map(|line| line.split(['[', ']']).nth(1))
            .collect()
    };
    assert_eq!(of("(SONAME)"), ["libcuda.so.1"]);
    for needed in of("(NEEDED)") {
        assert!(
            matches!(needed, "libc.so.6" | "ld-linux-x86-64.so.2"),
            "{needed}"
        );
    }
}

#[test]
fn proc_address_answers_as_measured() {
    let table =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda-abi/tests/data/getprocaddress.tsv");
    passes(
        &Command::new(compile("proc_address.c"))
            .arg(library())
            .arg(table)
            .output()
            .expect("it runs"),
    );
}

#[test]
fn without_a_daemon_there_is_an_error_and_nothing_else() {
    let program = compile("unattached.c");
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowhere");
    let run = |directory: &Path| {
        Command::new(&program)
            .arg(library())
            .env("CUDA_MPS_PIPE_DIRECTORY", directory)
            .output()
            .expect("it runs")
    };
    passes(&run(&nowhere));
    // Longer than a socket's address takes: the log says so.
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("client.log");
    let _ = std::fs::remove_file(&log);
    let long = nowhere.join("x".repeat(120));
    let mut command = Command::new(&program);
    command
        .arg(library())
        .env("CUDA_MPS_PIPE_DIRECTORY", &long)
        .env("OPENMPS_CLIENT_LOG", &log);
    passes(&command.output().expect("it runs"));
    let log = std::fs::read_to_string(&log).expect("a log");
    assert!(log.contains("107") && log.contains("xxx"), "{log}");
}

#[test]
fn a_program_waits_for_a_daemon_as_long_as_it_is_told() {
    let begin = Instant::now();
    let mut command = Command::new(compile("unattached.c"));
    command
        .arg(library())
        .env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
        .env("OPENMPS_CONNECT_TIMEOUT", "200ms");
    passes(&command.output().expect("it runs"));
    // It attaches three times.
    assert!(
        begin.elapsed() >= Duration::from_millis(600),
        "{:?}",
        begin.elapsed()
    );
}

/// Somebody else's socket where the daemon's should be, for a program of root's.
#[test]
fn a_daemon_of_another_users_is_refused_before_a_byte_is_sent() {
    const SOMEBODY: u32 = 4242;
    if !rustix::process::geteuid().is_root() {
        return skipped::skipped("listening as another user takes root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::os::unix::fs::chown(folder.path(), Some(SOMEBODY), None).expect("root may");
    let listener = std::thread::scope(|scope| {
        let listen = || {
            let user = rustix::thread::Uid::from_raw(SOMEBODY);
            // Of this thread alone, and the kernel remembers who began to listen.
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            transport::socket::Listener::bind(at("control")).expect("a socket")
        };
        scope.spawn(listen).join().expect("no panic")
    });
    let run = |named: Option<&str>| {
        let _ = std::fs::remove_file(at("log"));
        let mut command = Command::new(compile("unattached.c"));
        command
            .arg(library())
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.path())
            .env("OPENMPS_CLIENT_LOG", at("log"))
            .envs(named.map(|user| ("OPENMPS_DAEMON_USER", user)))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let (mut came, mut said) = (0, 0);
        let mut hear = || {
            while let Some(connection) = listener.try_accept().expect("a listener") {
                came += 1;
                said += usize::from(connection.receive().is_ok());
            }
        };
        while child.try_wait().expect("a child").is_none() {
            hear();
            std::thread::sleep(Duration::from_millis(1));
        }
        hear();
        passes(&child.wait_with_output().expect("it ran"));
        let log = std::fs::read_to_string(at("log")).expect("a log");
        (came, said, log)
    };
    for named in [None, Some("4243"), Some("no-such-user")] {
        let (came, said, log) = run(named);
        assert_eq!((came, said), (3, 0), "it says nothing");
        for part in [
            "control: it is user 4242's",
            "set OPENMPS_DAEMON_USER=4242",
            named.unwrap_or(""),
        ] {
            assert!(log.contains(part), "{part} is not in {log}");
        }
    }
    let (came, said, _) = run(Some("4242"));
    assert_eq!((came, said), (3, 3), "it is told whom to believe");
}

/// Root runs a program that is set-uid to somebody: then the two differ, as where anybody runs one of root's.
#[test]
fn a_set_uid_program_believes_no_variable() {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};
    const OWNER: u32 = 4242;
    if !rustix::process::geteuid().is_root() {
        return skipped::skipped("making another user's set-uid program takes root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let facts = rustix::fs::statvfs(folder.path()).expect("its file system");
    if facts.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        return skipped::skipped("set-uid programs are not run from this file system (nosuid)");
    }
    let at = |name: &str| folder.path().join(name);
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    };
    // Everybody may write here, so that only the library keeps from it.
    set_mode(folder.path(), 0o777);
    std::fs::copy(library(), at("libcuda.so")).expect("a copy");
    set_mode(&at("libcuda.so"), 0o755);
    std::fs::copy(compile("unattached.c"), at("program")).expect("a copy");
    let run = |mode| {
        chown(at("program"), Some(OWNER), Some(OWNER)).expect("root may");
        set_mode(&at("program"), mode);
        let listener = transport::socket::Listener::bind(at("control")).expect("a socket");
        set_mode(&at("control"), 0o777);
        let mut child = Command::new(at("program"))
            .arg(at("libcuda.so"))
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.path())
            .env("OPENMPS_CLIENT_LOG", at("written"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it runs");
        // Whoever comes is sent away.
        let mut came = 0;
        while child.try_wait().expect("a child").is_none() {
            came += u32::from(listener.try_accept().expect("a listener").is_some());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(at("control")).expect("the socket");
        (came > 0, std::fs::remove_file(at("written")).is_ok())
    };
    assert_eq!(
        run(0o755),
        (true, true),
        "it is told where to go and to write"
    );
    assert_eq!(run(0o4755), (false, false), "and is not told by others");
}
