//! Disks of a few KiB that are full: for the logs, for a program's time line, for compiled code. Whoever writes there does
//! without, and no client is told or computes anything else.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::ffi::CString;
use std::fs::{create_dir, read_to_string};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tests::daemon::{Daemon, eventually, openmps, succeed};
use tests::skipped::skipped;
use tests::talker::Talker;

/// A file system of its own, seen by the thread that made it and by what that thread starts.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// One of so many KiB. `None` where none can be mounted, which is told.
    #[track_caller]
    fn mount(kib: u32) -> Option<Self> {
        // SAFETY: the call takes a number; what this thread shares with others then is not what it mounts.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            skipped("a small disk can be mounted by root only");
            return None;
        }
        let folder = tempfile::tempdir().unwrap().keep();
        let none = std::ptr::null();
        // SAFETY: texts that end with a zero, or none where the kernel asks for none.
        let private = unsafe {
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            libc::mount(none, c"/".as_ptr(), none, flags, none.cast())
        };
        let disk = Self(folder);
        if private != 0 || !disk.set_size(kib, 0) {
            skipped("a small disk cannot be mounted here");
            return None;
        }
        Some(disk)
    }

    fn set_size(&self, kib: u32, flags: libc::c_ulong) -> bool {
        let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        let options = CString::new(format!("size={kib}k")).unwrap();
        let kind = c"tmpfs".as_ptr();
        // SAFETY: texts that end with a zero and live until the call is over.
        unsafe { libc::mount(kind, path.as_ptr(), kind, flags, options.as_ptr().cast()) == 0 }
    }

    fn is_full(&self) -> bool {
        rustix::fs::statvfs(&self.0).unwrap().f_bfree == 0
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
        // SAFETY: a text that ends with a zero and lives until the call is over.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        std::fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn a_full_disk_for_the_logs_costs_lines_and_nothing_else() {
    let Some(disk) = SmallDisk::mount(16) else {
        return;
    };
    let log = disk.path("log");
    create_dir(&log).unwrap();
    let daemon = Daemon::start_with(&[("CUDA_MPS_LOG_DIRECTORY", &log)]);
    let mut bystander = Talker::start(&mut daemon.probe(&["bystander"]));
    assert_eq!(bystander.hear(), "running");
    let server = daemon.server();
    eventually("the disk is full", || {
        assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
        disk.is_full()
    });
    for _ in 0..5 {
        assert_eq!(succeed(&mut daemon.probe(&["work", "2"])), "ok\n");
    }
    let wild = daemon.probe(&["wild"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&wild.stdout), "error 700\n");
    assert!(disk.is_full());
    assert_eq!(daemon.server(), server);
    // With room again there are lines again.
    assert!(disk.set_size(1024, libc::MS_REMOUNT));
    let events = || read_to_string(Path::new(&log).join("events.jsonl")).unwrap();
    let before = events().len();
    assert_eq!(succeed(&mut daemon.probe(&["work", "1"])), "ok\n");
    eventually("an event is written", || {
        events()[before..].contains("client.gone")
    });
    let last = events();
    let last = last.lines().last().unwrap();
    assert!(
        serde_json::from_str::<serde_json::Value>(last).is_ok(),
        "{last:?}"
    );
    assert_eq!(bystander.last().split(' ').count(), 2);
    assert_eq!(daemon.server(), server);
}

#[test]
fn a_full_disk_for_a_time_line_ends_the_recording_and_not_the_program() {
    let Some(disk) = SmallDisk::mount(8) else {
        return;
    };
    let daemon = Daemon::start();
    let (file, log) = (disk.path("trace.json"), daemon.pipe().join("../client.log"));
    let mut program = daemon.probe(&["work", "300"]);
    program
        .env("OPENMPS_TRACE", &file)
        .env("OPENMPS_CLIENT_LOG", &log);
    assert_eq!(succeed(&mut program), "ok\n");
    let said = read_to_string(&log).unwrap();
    assert!(said.contains("No space left on device"), "{said}");
    // What was written until then can be read.
    let mut summary = std::process::Command::new(openmps());
    succeed(summary.args(["trace", "summary", &file]));
}

#[test]
fn a_full_disk_for_compiled_code_has_each_server_compile() {
    let Some(disk) = SmallDisk::mount(8) else {
        return;
    };
    std::fs::write(disk.path("other"), [7; 8192]).unwrap();
    assert!(disk.is_full());
    let mut daemon = Daemon::start_with(&[("CUDA_CACHE_PATH", &disk.path(""))]);
    for count in 1..=2 {
        assert_eq!(succeed(&mut daemon.probe(&["work", "3"])), "ok\n");
        daemon.control(&["quit"]);
        daemon.wait();
        let log = daemon.server_log();
        let compiled = log.matches("Compiled: 1 images, 2 kernels;").count();
        assert_eq!(compiled, count, "{log}");
        daemon.restart_as(&[], &[("CUDA_CACHE_PATH", &disk.path(""))]);
    }
}
