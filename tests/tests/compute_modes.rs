//! Compute modes of NVIDIA's devices, by the whole daemon over a management library of our own: it has its
//! cards' modes in a file, and writes down each call. No GPU is needed, and none is touched.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;
use tests::daemon::{Daemon, openmps, succeed};
use tests::skipped::skipped;

/// nvmlComputeMode_t
const DEFAULT: u32 = 0;
const PROHIBITED: u32 = 2;
const EXCLUSIVE: u32 = 3;

const FIRST: &str = "GPU-00000000-aaaa";
const TOLD: &str = "--compute-mode=EXCLUSIVE_PROCESS";

/// The library, compiled once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(PathBuf, tempfile::TempDir)> = OnceLock::new();
    let (path, _) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnvidia-ml.so.1");
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../engine-nvidia/tests/fake/nvml.c"
        );
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", source, "-o"]);
        succeed(compiler.arg(&path));
        (path, folder)
    });
    path
}

/// Two cards, and what was asked of their library.
struct Cards(tempfile::TempDir);

impl Cards {
    fn of(modes: [u32; 2]) -> Self {
        let cards = Self(tempfile::tempdir().unwrap());
        cards.set(0, modes[0]);
        cards.set(1, modes[1]);
        cards
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.0.path().join(format!("modes{suffix}"))
    }

    /// As an administrator does.
    fn set(&self, card: usize, mode: u32) {
        let mut text = std::fs::read_to_string(self.file("")).unwrap_or_default();
        text.push_str(&format!("{card} {mode}\n"));
        std::fs::write(self.file(""), text).unwrap();
    }

    fn modes(&self) -> [u32; 2] {
        let mut modes = [0; 2];
        for line in std::fs::read_to_string(self.file("")).unwrap().lines() {
            let (card, mode) = line.split_once(' ').unwrap();
            modes[card.parse::<usize>().unwrap()] = mode.parse().unwrap();
        }
        modes
    }

    /// Takes the right to set some cards' modes away.
    fn refuse(&self, cards: &str) {
        std::fs::write(self.file(".refused"), cards).unwrap();
    }

    /// Calls of a function, with their arguments.
    fn calls(&self, function: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.file(".calls")).unwrap_or_default();
        let of = |line: &str| Some(line.strip_prefix(function)?.trim_start().to_owned());
        text.lines().filter_map(of).collect()
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("OPENMPS_ENGINE", "nvidia".into()),
            ("OPENMPS_NVML", library().display().to_string()),
            ("FAKE_NVML", self.file("").display().to_string()),
            // If it is the software GPU's modes that are set after all, it is not this machine's.
            (
                "OPENMPS_STATE_DIRECTORY",
                self.file(".state").display().to_string(),
            ),
        ]
    }

    fn start(&self, arguments: &[&str]) -> Daemon {
        self.with(&[], |environment| Daemon::start_as(arguments, environment))
    }

    fn restart(&self, daemon: &mut Daemon, arguments: &[&str]) {
        self.with(&[], |environment| daemon.restart_as(arguments, environment));
    }

    fn with<T>(&self, more: &[(&str, &str)], run: impl FnOnce(&[(&str, &str)]) -> T) -> T {
        let own = self.environment();
        let own = own.iter().map(|(name, value)| (*name, &**value));
        let all: Vec<(&str, &str)> = own.chain(more.iter().copied()).collect();
        run(&all)
    }
}

fn quit(daemon: &mut Daemon) {
    daemon.control_output(&["quit"]);
    daemon.wait();
}

/// Where a daemon writes what it is to give back.
fn record(daemon: &Daemon) -> PathBuf {
    daemon.pipe().join("compute_modes.json")
}

#[test]
fn they_are_set_while_the_daemon_runs_and_given_back_however_it_ends() {
    for signal in [
        None,
        Some(Signal::TERM),
        Some(Signal::INT),
        Some(Signal::HUP),
    ] {
        let cards = Cards::of([DEFAULT, PROHIBITED]);
        let mut daemon = cards.start(&[TOLD]);
        assert_eq!(cards.modes(), [EXCLUSIVE; 2]);
        assert!(record(&daemon).exists());
        match signal {
            None => quit(&mut daemon),
            Some(signal) => daemon.signal(signal),
        }
        assert_eq!(cards.modes(), [DEFAULT, PROHIBITED], "{signal:?}");
        assert!(!record(&daemon).exists());
        let set = cards.calls("nvmlDeviceSetComputeMode");
        assert_eq!(set, ["0 3", "1 3", "0 0", "1 2"]);
        assert_eq!(cards.calls("nvmlInit_v2").len(), 1);
        assert_eq!(cards.calls("nvmlShutdown").len(), 1);
        let log = daemon.control_log();
        assert!(
            log.contains(&format!("{FIRST} set to EXCLUSIVE_PROCESS; it was DEFAULT")),
            "{log}"
        );
        assert!(
            log.contains(&format!("{FIRST} set to DEFAULT again")),
            "{log}"
        );
    }
}

#[test]
fn nothing_is_set_without_being_told() {
    let cards = Cards::of([PROHIBITED, DEFAULT]);
    let mut daemon = cards.start(&[]);
    quit(&mut daemon);
    assert_eq!(cards.modes(), [PROHIBITED, DEFAULT]);
    assert!(!cards.file(".calls").exists(), "it is not even opened");
    // The background daemon is told what the command was.
    let start = |arguments: &[&str]| {
        let mut command = Command::new(openmps());
        command
            .args(["control", "-d"])
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", daemon.pipe().join("logs"))
            .envs(cards.environment());
        succeed(&mut command);
    };
    start(&[TOLD]);
    assert_eq!(cards.modes(), [EXCLUSIVE; 2]);
    daemon.control_output(&["quit"]);
    assert_eq!(cards.modes(), [PROHIBITED, DEFAULT]);
    // A mode that a card has already is not set.
    cards.set(1, EXCLUSIVE);
    let before = cards.calls("nvmlDeviceSetComputeMode").len();
    start(&[TOLD]);
    daemon.control_output(&["quit"]);
    let after = cards.calls("nvmlDeviceSetComputeMode");
    assert_eq!(after[before..], ["0 3", "0 2"]);
}

#[test]
fn a_killed_daemons_modes_are_given_back_by_the_next() {
    let cards = Cards::of([DEFAULT, PROHIBITED]);
    let mut daemon = cards.start(&[TOLD]);
    daemon.kill();
    assert_eq!(cards.modes(), [EXCLUSIVE; 2], "nobody could");
    // The next one is told the same; what the first found is what they have in the end.
    cards.restart(&mut daemon, &[TOLD]);
    assert_eq!(cards.modes(), [EXCLUSIVE; 2]);
    daemon.kill();
    cards.restart(&mut daemon, &[TOLD]);
    quit(&mut daemon);
    assert_eq!(cards.modes(), [DEFAULT, PROHIBITED]);
    // One that is told nothing gives them back at its start.
    cards.restart(&mut daemon, &[TOLD]);
    daemon.kill();
    let mut doctor = Command::new(openmps());
    let doctor = doctor
        .arg("doctor")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(
        said.contains("was killed and could not give back"),
        "{said}"
    );
    cards.restart(&mut daemon, &[]);
    assert_eq!(cards.modes(), [DEFAULT, PROHIBITED]);
    assert!(!record(&daemon).exists());
}

#[test]
fn what_cannot_be_given_back_is_kept_for_who_can() {
    let cards = Cards::of([DEFAULT, DEFAULT]);
    let mut daemon = cards.start(&[TOLD]);
    cards.refuse("1");
    quit(&mut daemon);
    assert_eq!(cards.modes(), [DEFAULT, EXCLUSIVE]);
    let log = daemon.control_log();
    assert!(
        log.contains("GPU-11111111-bbbb cannot be set to DEFAULT again: Insufficient Permissions"),
        "{log}"
    );
    // Neither a daemon without the right keeps it from being done later, nor one of other devices.
    cards.restart(&mut daemon, &[]);
    daemon.kill();
    cards.with(&[("OPENMPS_ENGINE", "soft")], |environment| {
        daemon.restart_as(&[], environment);
    });
    quit(&mut daemon);
    std::fs::remove_file(cards.file(".refused")).unwrap();
    cards.restart(&mut daemon, &[]);
    assert_eq!(cards.modes(), [DEFAULT, DEFAULT]);
}

#[test]
fn a_mode_that_may_not_be_set_keeps_the_daemon_from_starting() {
    let cards = Cards::of([DEFAULT, PROHIBITED]);
    let mut daemon = cards.start(&[]);
    quit(&mut daemon);
    cards.refuse("1");
    let refused = |daemon: &Daemon, arguments: &[&str], environment: &[(&str, &str)]| {
        let said = cards.with(environment, |environment| {
            daemon.refused(arguments, environment)
        });
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let said = refused(&daemon, &[TOLD], &[]);
    assert!(said.contains("GPU-11111111-bbbb"), "{said}");
    assert!(said.contains("Insufficient Permissions"), "{said}");
    assert!(said.contains("CAP_SYS_ADMIN"), "{said}");
    assert_eq!(
        cards.modes(),
        [DEFAULT, PROHIBITED],
        "the first is as it was"
    );
    assert!(
        !record(&daemon).exists(),
        "nobody is to set later what was never changed"
    );
    // The devices that are not the daemon's are none of its business.
    cards.with(&[("CUDA_VISIBLE_DEVICES", FIRST)], |environment| {
        daemon.restart_as(&[TOLD], environment);
    });
    assert_eq!(cards.modes(), [EXCLUSIVE, PROHIBITED]);
    quit(&mut daemon);
    assert_eq!(cards.modes(), [DEFAULT, PROHIBITED]);

    let said = refused(&daemon, &[TOLD], &[("CUDA_VISIBLE_DEVICES", "1")]);
    assert!(said.contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{said}");
    let said = refused(&daemon, &[], &[("OPENMPS_COMPUTE_MODE", "MINE")]);
    assert!(said.contains("PROHIBITED"), "{said}");
    let said = refused(
        &daemon,
        &[TOLD],
        &[("OPENMPS_NVML", "/nowhere/libnvidia-ml.so.1")],
    );
    assert!(said.contains("/nowhere/libnvidia-ml.so.1"), "{said}");
    let said = refused(&daemon, &[TOLD], &[("OPENMPS_NVML", "libnvidia-ml.so.1")]);
    assert!(said.contains("absolute"), "{said}");
    // Nobody is asked for a mode, so a library that does not work is nothing to a daemon.
    cards.with(&[("OPENMPS_NVML", "/nowhere")], |environment| {
        daemon.restart_as(&[], environment);
    });
}

#[test]
fn where_the_library_has_no_card_the_software_gpus_mode_is_set() {
    let cards = Cards::of([DEFAULT, DEFAULT]);
    let own = cards.environment();
    let mut environment: Vec<(&str, &str)> =
        own.iter().map(|(name, value)| (*name, &**value)).collect();
    environment.retain(|(name, _)| *name != "OPENMPS_ENGINE");
    environment.push(("FAKE_NVML_EMPTY", "1"));
    let mut daemon = Daemon::start_as(&[TOLD], &environment);
    let modes = || std::fs::read_to_string(cards.file(".state/compute-modes.json")).unwrap();
    assert_eq!(modes(), "{\"0\":3}");
    quit(&mut daemon);
    assert_eq!(modes(), "{}");
}

/// A program that has more rights than who started it believes no variable that names code.
#[test]
fn a_privileged_program_loads_no_library_that_its_environment_names() {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return skipped("being another user takes root");
    }
    let cards = Cards::of([DEFAULT, DEFAULT]);
    let folder = tempfile::tempdir().unwrap();
    let all = |mode| PermissionsExt::from_mode(mode);
    for path in [folder.path(), cards.0.path(), library().parent().unwrap()] {
        std::fs::set_permissions(path, all(0o777)).unwrap();
    }
    std::fs::set_permissions(cards.file(""), all(0o666)).unwrap();
    let program = folder.path().join("openmps");
    // Not by this process: a child that another test starts meanwhile would have it open for writing.
    succeed(Command::new("cp").arg(openmps()).arg(&program));
    let mounted = rustix::fs::statvfs(folder.path()).unwrap().f_flag;
    if mounted.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        let folder = folder.path().display();
        return skipped(&format!("no program has more rights in {folder}"));
    }
    let run = |mode| {
        std::fs::set_permissions(&program, all(mode)).unwrap();
        let output = Command::new(&program)
            // Not even real cards would take this from these users.
            .args(["control", "-f", "--compute-mode=PROHIBITED"])
            .envs(cards.environment())
            // Refused by the library, so that no daemon stays.
            .env_remove("FAKE_NVML")
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"))
            .uid(4242)
            .gid(4242)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run(0o755);
    assert!(said.contains("Driver Not Loaded"), "{said}");
    chown(&program, Some(4343), None).unwrap();
    std::fs::remove_dir_all(folder.path().join("pipe")).unwrap();
    std::fs::remove_dir_all(folder.path().join("log")).unwrap();
    let said = run(0o4755);
    assert!(!said.contains("Driver Not Loaded"), "{said}");
    assert!(!said.contains(&library().display().to_string()), "{said}");
}
