//! NVIDIA's driver as it must not be, and as it is made to fail: what programs and logs say.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tests::daemon::{Daemon, PATIENCE, eventually, openmps, probe, succeed};
use tests::fake_driver;
use tests::skipped::skipped;

/// A driver of our own making, with the definitions that its text tells of.
fn fake(folder: &tempfile::TempDir, definitions: &[&str]) -> PathBuf {
    fake_driver::compile(folder.path(), definitions)
}

fn daemon_over(driver: &str) -> Daemon {
    Daemon::start_with(&[("OPENMPS_ENGINE", "nvidia"), ("OPENMPS_DRIVER", driver)])
}

/// Under a daemon whose servers cannot start, a program is told so at once; why is in the log.
#[test]
fn a_driver_that_cannot_be_used_is_an_error_and_a_line_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent/libcuda.so.1");
    let drivers = [
        (absent, "no NVIDIA driver found"),
        (
            fake(&folder, &["VERSION=11080"]),
            "CUDA 11.8; OpenMPS needs a driver for CUDA 12.4 (550) or newer",
        ),
    ];
    for (driver, why) in drivers {
        let daemon = daemon_over(driver.to_str().unwrap());
        let begun = Instant::now();
        let output = daemon.probe(&["init"]).output().unwrap();
        assert!(begun.elapsed() < PATIENCE, "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("error 80"), "an error of MPS's: {text}");
        let log = daemon.server_log();
        assert!(log.contains(why), "{why}:\n{log}");
    }
}

/// One that is newer than all that we know of is used.
#[test]
fn a_driver_of_the_future_works() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &["VERSION=99990"]);
    let daemon = daemon_over(driver.to_str().unwrap());
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(
        output.status.success(),
        "{output:?}\n{}",
        daemon.server_log()
    );
    assert!(daemon.server_log().contains("Device Fake GPU"));
    eventually("it has gone", || daemon.clients().is_empty());
}

/// Whoever waits for the driver's lock in a server spins before it sleeps (`openmps/src/driver_mutex.rs`).
#[test]
fn the_drivers_lock_is_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("lock");
    let lock = format!("LOCK=\"{}\"", told.display());
    let driver = fake(&folder, &["VERSION=13000", &lock]);
    let daemon = daemon_over(driver.to_str().unwrap());
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let whose = std::fs::read_to_string(told).unwrap();
    // What the server calls itself.
    assert_eq!(whose, "nvidia-cuda-mps-server");
}

/// With `OPENMPS_DRIVER_MUTEX=sleep` the server's mutexes wait as glibc's do, and it serves programs as before.
#[test]
fn a_server_whose_mutexes_sleep_serves_programs() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &["VERSION=13000"]);
    let daemon = Daemon::start_with(&[
        ("OPENMPS_ENGINE", "nvidia"),
        ("OPENMPS_DRIVER", driver.to_str().unwrap()),
        ("OPENMPS_DRIVER_MUTEX", "sleep"),
    ]);
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = std::fs::read(format!("/proc/{}/environ", daemon.server())).unwrap();
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("OPENMPS_DRIVER_MUTEX=sleep"), "{told}");
}

/// Where an operator asks for it, files and calls are out of a driver's reach but those that drivers are known to need.
#[test]
fn a_driver_reaches_what_it_needs_and_no_more_for_who_asks_for_it() {
    if sandbox::Kernel::running().landlock == 0 {
        return skipped("this kernel has no Landlock");
    }
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outside = elsewhere.path().join("outside");
    std::fs::write(&outside, "text").unwrap();
    let cache = elsewhere.path().join("cache");
    let outside = format!("OUTSIDE=\"{}\"", outside.display());
    let made = format!("CACHE=\"{}\"", cache.join("made").display());
    let driver = fake(&folder, &["VERSION=13000", &outside, &made]);
    let start = |sandbox: &str| {
        Daemon::start_with(&[
            ("OPENMPS_ENGINE", "nvidia"),
            ("OPENMPS_DRIVER", driver.to_str().unwrap()),
            ("CUDA_CACHE_PATH", cache.to_str().unwrap()),
            ("OPENMPS_SANDBOX", sandbox),
        ])
    };
    let daemon = start("strict");
    let output = daemon.probe(&["init"]).output().unwrap();
    let log = daemon.server_log();
    assert!(output.status.success(), "{output:?}\n{log}");
    assert!(
        log.contains("nothing can be opened but what the driver is known to need"),
        "{log}"
    );
    let calls = "none is possible but those that a server and the driver are known to make";
    assert!(log.contains(calls), "{log}");
    assert!(cache.join("made").exists());
    // Such a driver does not start where it can open that file.
    let output = start("on").probe(&["init"]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

/// Code that a client of an earlier server came with is loaded from the user's file, also where a server opens no other.
#[test]
fn the_next_server_loads_what_clients_of_an_earlier_one_came_with() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let driver = fake(&folder, &["VERSION=13000"]);
    let text = folder.path().join("k.ptx");
    std::fs::write(&text, ".version 7.8\n.visible .entry k() {}").unwrap();
    let environment = [
        ("OPENMPS_ENGINE", "nvidia"),
        ("OPENMPS_DRIVER", driver.to_str().unwrap()),
        ("CUDA_CACHE_PATH", cache.to_str().unwrap()),
        ("OPENMPS_SANDBOX", "strict"),
    ];
    let user = rustix::process::geteuid().as_raw();
    let kept = cache.join(format!("openmps-code-{user}"));
    let files = || {
        let files = std::fs::read_dir(&kept).into_iter().flatten().flatten();
        files.map(|file| file.path()).collect::<Vec<_>>()
    };
    let daemon = Daemon::start_with(&environment);
    succeed(&mut daemon.probe(&["kernel", text.to_str().unwrap()]));
    eventually("it is kept", || {
        let files = files();
        matches!(&files[..], [file] if file.extension().is_some_and(|kind| kind == "once"))
    });
    assert!(
        !daemon.server_log().contains("not kept"),
        "{}",
        daemon.server_log()
    );
    drop(daemon);
    let file = &files()[0];
    let before = SystemTime::now() - Duration::from_secs(1000);
    let opened = std::fs::File::options().write(true).open(file).unwrap();
    opened.set_modified(before).unwrap();
    let daemon = Daemon::start_with(&environment);
    succeed(&mut daemon.probe(&["init"]));
    eventually("it is used", || {
        let metadata = std::fs::metadata(file);
        metadata
            .is_ok_and(|metadata| metadata.modified().unwrap() > before + Duration::from_secs(1))
    });
}

/// A server that becomes another user has no home folder: what it keeps is in the state directory, and that user's.
#[test]
fn a_server_of_another_user_keeps_code_in_a_folder_of_that_users() {
    if !rustix::process::geteuid().is_root() {
        return skipped("being other users takes root");
    }
    const ADA: u32 = 4242;
    let folder = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let driver = fake(&folder, &["VERSION=13000"]);
    let text = folder.path().join("k.ptx");
    std::fs::write(&text, ".version 7.8\n.visible .entry k() {}").unwrap();
    let (state, home) = (folder.path().join("state"), folder.path().join("home"));
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ADA), Some(ADA)).unwrap();
    let environment = [
        ("OPENMPS_ENGINE", "nvidia"),
        ("OPENMPS_DRIVER", driver.to_str().unwrap()),
        ("OPENMPS_STATE_DIRECTORY", state.to_str().unwrap()),
        ("OPENMPS_SANDBOX", "strict"),
    ];
    let daemon = Daemon::start_as(&["--multiuser-server"], &environment);
    daemon.open_to_others();
    let mut program = Command::new(daemon.copy_for_others(openmps()));
    program
        .args(["run", "--"])
        .arg(daemon.copy_for_others(probe()))
        .arg("kernel")
        .arg(&text)
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .env("HOME", &home)
        .current_dir("/")
        .uid(ADA)
        .gid(ADA);
    succeed(&mut program);
    let own = state.join(format!("code/{ADA}"));
    eventually("it is kept", || {
        let files = std::fs::read_dir(&own).into_iter().flatten().flatten();
        let mut files = files.map(|file| file.metadata().unwrap());
        files
            .next()
            .is_some_and(|file| (file.uid(), file.mode() & 0o777) == (ADA, 0o600))
    });
    let metadata = std::fs::metadata(&own).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (ADA, 0o700));
    let log = daemon.server_log();
    assert!(!log.contains("not kept"), "{log}");
}

/// Nobody has a list of what a driver calls, so it is only what nobody is to do that is refused; by the daemon too where that
/// takes nothing from the driver's set-uid helper.
#[test]
fn a_server_over_a_driver_is_filtered_and_opens_what_it_likes() {
    let own = sandbox::ProcessState::of(std::process::id()).unwrap();
    let (true, Some(own)) = (sandbox::Kernel::running().filters_calls, own.filters) else {
        return skipped("this kernel has no seccomp filters, or does not count them");
    };
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &["VERSION=13000"]);
    let daemon = daemon_over(driver.to_str().unwrap());
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let state = sandbox::ProcessState::of(daemon.server()).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    assert!(state.calls_are_filtered);
    assert_eq!(state.filters, Some(own + 1 + u32::from(is_root)));
    let (control, server) = (daemon.control_log(), daemon.server_log());
    let said = match is_root {
        true => "System calls are filtered: those that nobody is to make are refused",
        false => "System calls are not filtered: the driver's helper is a set-uid program",
    };
    assert!(control.contains(said), "{control}");
    assert!(
        server.contains("those that nobody is to make are refused"),
        "{server}"
    );
    assert!(!server.contains("Files are restricted"), "{server}");
}

/// The driver cannot end a kernel. What a client that was killed leaves running ends with its server, which
/// ends when it has no other clients, and says so.
#[test]
fn a_kernel_of_a_killed_client_that_does_not_end_ends_with_its_server() {
    kill_beside_an_endless_kernel(false);
}

/// So it is where the client waited for its own kernel, to load code.
#[test]
fn a_killed_client_that_waits_for_its_own_kernel_is_gone() {
    kill_beside_an_endless_kernel(true);
}

fn kill_beside_an_endless_kernel(loads: bool) {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &["VERSION=13000", "SPINNING=1"]);
    let text = folder.path().join("k.ptx");
    std::fs::write(&text, ".version 7.8\n.visible .entry k() {}").unwrap();
    let other = folder.path().join("other.ptx");
    std::fs::write(&other, ".version 7.8\n.visible .entry other() {}").unwrap();
    let daemon = daemon_over(driver.to_str().unwrap());
    let paths = [text.to_str().unwrap(), other.to_str().unwrap()];
    let (arguments, _) = paths.split_at(1 + usize::from(loads));
    let mut program = daemon
        .probe(&[&["kernel"], arguments].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(program.stdout.as_mut().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "running\n", "{}", daemon.server_log());
    let server = daemon.server();
    if loads {
        // Nothing shows that it waits by now.
        std::thread::sleep(Duration::from_millis(500));
        assert!(program.try_wait().unwrap().is_none(), "it loaded");
    }
    program.kill().unwrap();
    program.wait().unwrap();
    let says = "has gone and left work that does not end: k on device 0 (Fake GPU)";
    let limit = Instant::now() + 3 * PATIENCE;
    while !daemon.server_log().contains(says) {
        assert!(Instant::now() < limit, "{}", daemon.server_log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let process = format!("/proc/{server}");
    eventually("the server ends", || {
        !std::path::Path::new(&process).exists()
    });
    let output = daemon.probe(&["init"]).output().unwrap();
    assert!(
        output.status.success(),
        "{output:?}\n{}",
        daemon.control_log()
    );
}

/// Whoever asks for the devices of a machine on which nothing runs gets the cards, and takes nothing of them.
#[test]
fn cards_are_listed_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &["VERSION=13000"]);
    let ask = |arguments: &[&str]| {
        let output = Command::new(openmps())
            .args(arguments)
            .env("OPENMPS_ENGINE", "nvidia")
            .env("OPENMPS_DRIVER", &driver)
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
            .env_remove("CUDA_DEVICE_MAX_CONNECTIONS")
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let list = ask(&["smi", "-L"]);
    assert!(
        list.starts_with("GPU 0: Fake GPU (UUID: GPU-00010203-"),
        "{list}"
    );
    let file = folder.path().join("devices.json");
    let library = folder.path().join("lib");
    let made = ask(&[
        "cdi",
        "generate",
        "--output",
        file.to_str().unwrap(),
        "--library-directory",
        library.to_str().unwrap(),
    ]);
    assert!(made.contains("GPU-00010203-"), "{made}");
}

/// A driver that splits its device into eight groups of 120 multiprocessors, and 56.
const SPLIT: [&str; 2] = ["VERSION=13000", "GREEN"];

/// What is reserved of a card is refused when it is more than there is, and where there is no reserving.
#[test]
fn multiprocessors_of_a_card_are_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &SPLIT);
    let daemon = daemon_over(driver.to_str().unwrap());
    let refused = |arguments: &[&str], why: &str| {
        let output = daemon.control(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(why), "{text}");
    };
    assert!(daemon.probe(&["init"]).status().unwrap().success());
    let full = "more would be reserved than the device has";
    let group = |name, percentage| {
        [
            "group",
            "add",
            name,
            "--percentage",
            percentage,
            "--reserved",
        ]
    };
    daemon.control_output(&group("half", "50"));
    refused(&group("more", "60"), full);
    daemon.control_output(&group("quarter", "25"));
    refused(
        &["limit", "set", "--group", "quarter", "--percentage", "51"],
        full,
    );
    // Each is told what it can have.
    let told = |mut program: Command| {
        let output = program.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut member = daemon.probe(&["contexts"]);
    member.env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe().join("groups/half"));
    assert_eq!(told(member), "device 480\nok\n");
    assert_eq!(told(daemon.probe(&["contexts"])), "device 296\nok\n");
    eventually("it has gone", || daemon.clients().is_empty());
    daemon.control_output(&["group", "remove", "half"]);
    daemon.control_output(&["limit", "set", "--group", "quarter", "--percentage", "75"]);
    drop(daemon);

    let folder = tempfile::tempdir().unwrap();
    let whole = fake(&folder, &["VERSION=13000"]);
    let daemon = daemon_over(whole.to_str().unwrap());
    assert!(daemon.probe(&["init"]).status().unwrap().success());
    let output = daemon.control(&group("half", "50"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        !output.status.success() && text.contains("cannot be reserved"),
        "{output:?}"
    );
}

/// Static partitions of a card are made of the groups into which its driver splits it.
#[test]
fn a_card_is_partitioned_by_its_groups() {
    let folder = tempfile::tempdir().unwrap();
    let driver = fake(&folder, &SPLIT);
    let environment = [
        ("OPENMPS_ENGINE", "nvidia"),
        ("OPENMPS_DRIVER", driver.to_str().unwrap()),
    ];
    let daemon = Daemon::start_as(&["-S"], &environment);
    let nowhere = daemon.probe(&["init"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&nowhere.stdout).contains("error 915"),
        "{nowhere:?}"
    );
    let counts = |line: usize| {
        let list = daemon.control_output(&["lspart"]);
        let fields = list.lines().nth(line).unwrap_or_default();
        fields
            .split_whitespace()
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(counts(2), ["8", "0", "1016", "0"]);
    let made = daemon.control_output(&["sm_partition", "add", "GPU-00010203", "6"]);
    let name = made.split_whitespace().nth(1).unwrap_or_default();
    assert!(name.ends_with("/1"), "{made}");
    assert_eq!(counts(2), ["2", "6", "296", "720"]);
    let more = daemon.control(&["sm_partition", "add", "GPU-00010203", "3"]);
    let text = String::from_utf8_lossy(&more.stdout);
    assert!(
        text.contains("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"),
        "{more:?}"
    );
    let mut member = daemon.probe(&["init"]);
    member.env("CUDA_MPS_SM_PARTITION", name);
    let output = member.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
