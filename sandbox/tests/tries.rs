//! What becomes of calls under each profile. This very program, started with the name of a profile and of a try, confines
//! itself, tries, and says what came of it; without them it runs the tests.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../../tests/src/skipped.rs"]
mod skipped;

use std::ffi::c_long;
use std::fs::File;
use std::io::{Error, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::mpsc::channel;

use sandbox::calls::{Of, REFUSED, Use};
use sandbox::{Files, Kernel, ProcessState, Profile, Reach, filter_calls, restrict_files};
use skipped::skipped;

const PROFILES: [(&str, Profile); 5] = [
    ("daemon", Profile::Daemon),
    ("server", Profile::Server),
    ("driver's daemon", Profile::DriverDaemon),
    ("driver's server", Profile::DriverServer),
    ("strict server", Profile::StrictDriverServer),
];

/// In place of a profile's name.
const UNFILTERED: &str = "unfiltered";

/// What came of a call, as the tests name it.
fn outcome(result: c_long) -> String {
    match result {
        -1 => Error::last_os_error().raw_os_error().unwrap().to_string(),
        _ => "done".to_owned(),
    }
}

/// Makes a call with the same word for each argument.
fn call(number: c_long, word: c_long) -> c_long {
    // SAFETY: the tries are made so that the kernel refuses them, or touch nothing of this process's.
    unsafe { libc::syscall(number, word, word, word, word, word, word) }
}

/// A page of memory that may be read and written, or a failure.
fn map(protection: i32) -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever the system likes.
    unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) }
}

fn protect(protection: i32) -> String {
    let page = map(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a mapping of our own that nobody uses.
    outcome(unsafe { libc::mprotect(page, 4096, protection) }.into())
}

/// What is tried by name, under a filter that is installed already.
fn try_named(what: &str) -> String {
    const PARENT: c_long = 1;
    // SAFETY (all below): numbers and texts that live as long as the calls.
    match what {
        "a thread" => std::thread::spawn(|| "done".to_owned()).join().unwrap(),
        "a pair of sockets" => match std::os::unix::net::UnixStream::pair() {
            Ok(_) => "done".to_owned(),
            Err(error) => error.raw_os_error().unwrap().to_string(),
        },
        "a file to be read" => opened(File::open("/dev/null")),
        "a file to be written" => opened(File::options().write(true).open("/dev/null")),
        "memory to be run" => {
            let page = map(libc::PROT_READ | libc::PROT_EXEC);
            outcome(if page == libc::MAP_FAILED { -1 } else { 0 })
        }
        "code written before" => protect(libc::PROT_READ | libc::PROT_EXEC),
        "code written meanwhile" => protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC),
        // SAFETY: looks whether the process is there.
        "itself" => outcome(unsafe { libc::kill(libc::getpid(), 0) }.into()),
        // SAFETY: signal 0 only looks whether the process is there.
        "another process" => outcome(unsafe { libc::kill(PARENT as i32, 0) }.into()),
        "a port" => match TcpListener::bind("127.0.0.1:0") {
            Ok(_) => "done".to_owned(),
            Err(error) => error.raw_os_error().unwrap().to_string(),
        },
        // SAFETY: the call takes numbers only.
        "packets" => outcome(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) }.into()),
        "a program" => match Command::new("/proc/self/exe").arg("ended").status() {
            Ok(status) => format!("done with {:?}", status.code()),
            Err(error) => error.raw_os_error().unwrap().to_string(),
        },
        "another filter" => outcome(call(libc::SYS_seccomp, -1)),
        "a descriptor's signal" => {
            // SAFETY: the call takes numbers only.
            outcome(unsafe { libc::fcntl(0, libc::F_SETOWN, libc::getpid()) }.into())
        }
        "a namespace" => {
            let flags = c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
            // SAFETY: with a null stack the child goes on here with a copy of everything, and leaves at once.
            let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
            if child == 0 {
                // SAFETY: the child ends here, and runs nothing of Rust that would have to be unwound.
                unsafe { libc::_exit(0) };
            }
            outcome(child)
        }
        #[cfg(target_arch = "x86_64")]
        "a foreign number" => outcome(call(0x4000_0000 | libc::SYS_getpid, 0)),
        _ => match what.strip_prefix("call ") {
            // Words that are no addresses, descriptors, sizes or flags.
            Some(number) => outcome(call(number.parse().unwrap(), -1)),
            None => panic!("no such try: {what}"),
        },
    }
}

fn opened(file: std::io::Result<File>) -> String {
    match file {
        Ok(_) => "done".to_owned(),
        Err(error) => error.raw_os_error().unwrap().to_string(),
    }
}

/// Whether threads from before and from after it are all filtered.
fn say_state() {
    let (end, ends) = channel::<()>();
    let ends = std::sync::Arc::new(std::sync::Mutex::new(ends));
    let wait = move || {
        let _ = ends.lock().unwrap().recv();
    };
    let before = std::thread::spawn(wait.clone());
    let own = std::process::id();
    let filters = |state: ProcessState| state.filters.unwrap_or(0);
    let first = ProcessState::of(own).unwrap();
    filter_calls(Profile::Server).unwrap();
    let after = std::thread::spawn(wait);
    let state = ProcessState::of(own).unwrap();
    println!(
        "{} {}",
        state.calls_are_filtered,
        filters(state) - filters(first)
    );
    drop(end);
    before.join().unwrap();
    after.join().unwrap();
}

/// Writes the name of a new thread, as the driver does with its own, and looks whether it has it.
fn name_a_thread() -> String {
    let (end, ended) = channel::<()>();
    let (id, ids) = channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: the call takes no arguments and cannot fail.
        id.send(unsafe { libc::gettid() }).unwrap();
        ended.recv().unwrap_err();
    });
    let name = format!("/proc/self/task/{}/comm", ids.recv().unwrap());
    let written = std::fs::write(&name, "named");
    let came = opened(written.and_then(|()| File::open(&name)));
    assert!(came != DONE || std::fs::read_to_string(&name).unwrap() == "named\n");
    drop(end);
    thread.join().unwrap();
    came
}

/// Tries files under a restriction: `folder` may be read.
fn try_files(folder: &Path) {
    let inside = folder.join("file");
    let mut open = File::options()
        .read(true)
        .write(true)
        .open(&inside)
        .unwrap();
    let outside = folder.with_extension("outside");
    // SAFETY: a name that lives as long as the call.
    let memory = unsafe { libc::memfd_create(c"memory".as_ptr(), 0) };
    let written = folder.with_extension("written");
    let within = Reach {
        readable: vec![folder.to_path_buf()],
        writable: vec![written.clone()],
        links: vec![folder.with_extension("links")],
        written_over: vec!["/proc/self/task".into()],
    };
    let status = restrict_files(&within).unwrap();
    let mut text = String::new();
    let tries = [
        opened(File::open(&inside)),
        opened(File::options().write(true).open(&inside)),
        opened(File::open(&outside)),
        opened(File::create(folder.join("new"))),
        opened(std::fs::remove_file(&inside).and_then(|()| File::open("/dev/null"))),
        // What is open stays so.
        opened(
            open.write_all(b"more")
                .and_then(|()| File::open("/dev/null")),
        ),
        opened(
            open.read_to_string(&mut text)
                .and_then(|_| File::open("/proc/meminfo")),
        ),
        // SAFETY: the call takes numbers only.
        outcome(unsafe { libc::ftruncate(memory, 4096) }.into()),
        opened(File::open(format!("/proc/self/fd/{}", open.as_raw_fd()))),
        opened(File::create(written.join("new"))),
        opened(std::fs::remove_file(written.join("new")).and_then(|()| File::open("/dev/null"))),
        opened(
            std::os::unix::fs::symlink("to", folder.with_extension("links").join("link"))
                .and_then(|()| File::open("/dev/null")),
        ),
        opened(File::create(folder.with_extension("links").join("file"))),
        // Not even where files may be written is a program run.
        match Command::new(written.join("program")).status() {
            Ok(_) => "done".to_owned(),
            Err(error) => error.raw_os_error().unwrap().to_string(),
        },
        name_a_thread(),
        opened(File::create("/proc/self/comm")),
    ];
    println!("{status:?} {}", tries.join(" "));
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).output().unwrap()
}

/// What a try under a profile says, or the signal that ended it.
fn tried(profile: &str, what: &str) -> String {
    let output = run(&["try", profile, what]);
    match output.status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => String::from_utf8(output.stdout).unwrap().trim().to_owned(),
    }
}

const DONE: &str = "done";

fn as_if_missing() -> String {
    libc::ENOSYS.to_string()
}

fn ended() -> String {
    format!("signal {}", libc::SIGSYS)
}

fn all_threads_are_filtered() {
    let output = run(&["state"]);
    // One program for what ends the process, one for what is allowed.
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "true 2\n");
}

fn a_software_server_is_ended_by_what_nobody_is_to_do() {
    for row in REFUSED.iter().filter(|row| row.of != Of::BesideTheDriver) {
        let Some(number) = row.call.number else {
            continue;
        };
        let came = tried("server", &format!("call {number}"));
        assert_eq!(came, ended(), "{}", row.call.name());
    }
}

fn a_software_server_does_what_it_needs_and_no_more() {
    for what in [
        "a thread",
        "a pair of sockets",
        "a file to be read",
        "code written before",
        "itself",
    ] {
        assert_eq!(tried("server", what), DONE, "{what}");
    }
    for what in [
        "a file to be written",
        "memory to be run",
        "code written meanwhile",
        "another process",
        "a port",
        "packets",
        "a descriptor's signal",
        "a namespace",
        "another filter",
    ] {
        assert_eq!(tried("server", what), as_if_missing(), "{what}");
    }
    // It is not there at all.
    let unknown = tried("server", "call 100000");
    assert_eq!(unknown, as_if_missing());
}

fn a_strict_server_does_what_drivers_do_and_no_more() {
    for what in [
        "a thread",
        "a pair of sockets",
        "a file to be read",
        "a file to be written",
        "memory to be run",
        "itself",
    ] {
        assert_eq!(tried("strict server", what), DONE, "{what}");
    }
    for what in [
        "another process",
        "a port",
        "packets",
        "a descriptor's signal",
        "a namespace",
        "another filter",
        "call 100000",
    ] {
        assert_eq!(tried("strict server", what), as_if_missing(), "{what}");
    }
}

fn what_is_refused_beside_a_driver_is_as_if_it_were_missing() {
    for row in REFUSED.iter().filter(|row| matches!(row.with, Use::Always)) {
        let Some(number) = row.call.number else {
            continue;
        };
        let name = row.call.name();
        let came = |profile| tried(profile, &format!("call {number}"));
        if row.of != Of::SoftwareServers {
            assert_eq!(came("driver's server"), as_if_missing(), "{name}");
        }
        match row.of {
            Of::Everybody | Of::BesideTheDriver => {
                assert_eq!(came("driver's daemon"), as_if_missing(), "{name}");
            }
            // What the driver's helper does, the kernel itself answers.
            Of::Servers => assert_eq!(came("driver's daemon"), came(UNFILTERED), "{name}"),
            Of::SoftwareServers => {}
        }
    }
    for profile in ["driver's server", "driver's daemon"] {
        for what in ["a namespace", "packets"] {
            assert_eq!(tried(profile, what), as_if_missing(), "{profile}: {what}");
        }
        for what in [
            "a thread",
            "a program",
            "memory to be run",
            "a file to be written",
        ] {
            assert!(tried(profile, what).starts_with(DONE), "{profile}: {what}");
        }
    }
}

fn the_daemon_starts_programs_and_is_not_ended() {
    assert_eq!(tried("daemon", "a program"), "done with Some(7)");
    for what in [
        "a thread",
        "another process",
        "a file to be written",
        "memory to be run",
    ] {
        // Who is not root may not look for process 1, and is told so by the kernel itself.
        let came = tried("daemon", what);
        assert!(
            came == DONE || came == libc::EPERM.to_string(),
            "{what}: {came}"
        );
    }
    for what in ["a port", "packets", "a namespace"] {
        assert_eq!(tried("daemon", what), as_if_missing(), "{what}");
    }
    for row in REFUSED.iter().filter(|row| row.of == Of::Everybody) {
        let Some(number) = row.call.number else {
            continue;
        };
        let came = tried("daemon", &format!("call {number}"));
        assert_eq!(came, as_if_missing(), "{}", row.call.name());
    }
}

#[cfg(target_arch = "x86_64")]
fn no_call_is_made_by_its_second_number() {
    for (profile, _) in PROFILES {
        let came = tried(profile, "a foreign number");
        assert_eq!(came, as_if_missing(), "{profile}");
    }
}

fn a_server_opens_only_what_it_may_read() {
    let root = tempfile::tempdir_in("/var/tmp").unwrap();
    let folder = root.path().join("state");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), "text").unwrap();
    std::fs::write(folder.with_extension("outside"), "text").unwrap();
    let written = folder.with_extension("written");
    std::fs::create_dir(&written).unwrap();
    std::fs::create_dir(folder.with_extension("links")).unwrap();
    std::fs::copy("/bin/true", written.join("program")).unwrap();
    let output = run(&["files", folder.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    if Kernel::running().landlock == 0 {
        assert!(said.starts_with("Open "), "{said}");
        return skipped("this kernel has no Landlock");
    }
    let denied = libc::EACCES;
    let expected = format!(
        "done {denied} {denied} {denied} {denied} done done done done done done done {denied} {denied} done {denied}"
    );
    let (how, tries) = said.trim().split_once(' ').unwrap();
    assert_eq!(tries, expected, "{how}");
    // Which rights there are depends on the kernel's version.
    let all = if Kernel::running().landlock >= 6 {
        Files::Restricted
    } else {
        Files::InPart
    };
    assert_eq!(how, format!("{all:?}"));
}

const TESTS: &[(&str, fn())] = &[
    ("all_threads_are_filtered", all_threads_are_filtered),
    (
        "a_software_server_is_ended_by_what_nobody_is_to_do",
        a_software_server_is_ended_by_what_nobody_is_to_do,
    ),
    (
        "a_software_server_does_what_it_needs_and_no_more",
        a_software_server_does_what_it_needs_and_no_more,
    ),
    (
        "a_strict_server_does_what_drivers_do_and_no_more",
        a_strict_server_does_what_drivers_do_and_no_more,
    ),
    (
        "what_is_refused_beside_a_driver_is_as_if_it_were_missing",
        what_is_refused_beside_a_driver_is_as_if_it_were_missing,
    ),
    (
        "the_daemon_starts_programs_and_is_not_ended",
        the_daemon_starts_programs_and_is_not_ended,
    ),
    #[cfg(target_arch = "x86_64")]
    (
        "no_call_is_made_by_its_second_number",
        no_call_is_made_by_its_second_number,
    ),
    (
        "a_server_opens_only_what_it_may_read",
        a_server_opens_only_what_it_may_read,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["ended"] => return ExitCode::from(7),
        ["state"] => say_state(),
        ["files", folder] => try_files(Path::new(folder)),
        ["try", profile, what] => {
            if profile != UNFILTERED {
                let (_, profile) = *PROFILES.iter().find(|(name, _)| *name == profile).unwrap();
                filter_calls(profile).unwrap();
            }
            println!("{}", try_named(what));
        }
        _ => return run_tests(&arguments),
    }
    ExitCode::SUCCESS
}

/// As the usual harness does, for as much of its command line as tools use.
fn run_tests(arguments: &[&str]) -> ExitCode {
    if arguments.contains(&"--list") {
        for (name, _) in TESTS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if arguments.contains(&"--ignored") {
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&&str> = arguments
        .iter()
        .filter(|one| !one.starts_with('-'))
        .collect();
    let mut failed = false;
    for (name, test) in TESTS {
        if !(wanted.is_empty() || wanted.iter().any(|part| name.contains(**part))) {
            continue;
        }
        if !Kernel::running().filters_calls && !name.contains("opens_only") {
            skipped("this kernel has no seccomp filters");
            continue;
        }
        let is_ok = std::panic::catch_unwind(test).is_ok();
        failed |= !is_ok;
        println!("test {name} ... {}", if is_ok { "ok" } else { "FAILED" });
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
