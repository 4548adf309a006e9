//! A process whose end takes as long as a test wants: the kernel stops it where it exits, with all its memory and files still there.
//!
//! Called by tests of what waits for a process. Must not know what the process is.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::ptr;

/// A process of this user's, which [`SlowEnd::go_on`] lets end once it exits. One thread has it, from beginning to end.
#[derive(Debug)]
pub struct SlowEnd {
    pid: libc::pid_t,
}

impl SlowEnd {
    /// Has a process stop where its first thread exits.
    ///
    /// # Panics
    /// If it may not be traced.
    pub fn of(process: u32) -> Self {
        let pid = process.cast_signed();
        // SAFETY: seizing takes no address, and options as a number.
        let seized = unsafe {
            libc::ptrace(
                libc::PTRACE_SEIZE,
                pid,
                ptr::null_mut::<libc::c_void>(),
                ptr::without_provenance_mut::<libc::c_void>(libc::PTRACE_O_TRACEEXIT as usize),
            )
        };
        assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
        Self { pid }
    }

    /// Waits until it exits.
    ///
    /// # Panics
    /// If something else becomes of it.
    pub fn begins(&self) {
        let exits = libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8;
        loop {
            let mut status = 0;
            // SAFETY: the status is a local.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
            assert_eq!(waited, self.pid, "{}", std::io::Error::last_os_error());
            assert!(libc::WIFSTOPPED(status), "it stops: {status:#x}");
            if status >> 8 == exits {
                return;
            }
            let signal = libc::WSTOPSIG(status) as usize;
            // SAFETY: it is stopped by a signal, which it gets.
            unsafe {
                libc::ptrace(
                    libc::PTRACE_CONT,
                    self.pid,
                    ptr::null_mut::<libc::c_void>(),
                    ptr::without_provenance_mut::<libc::c_void>(signal),
                );
            }
        }
    }

    /// Writes to its memory, as what it had under way may do to the end.
    ///
    /// # Panics
    /// If there is no such memory.
    pub fn writes(&self, address: u64, bytes: &[u8]) {
        let memory = format!("/proc/{}/mem", self.pid);
        let memory = OpenOptions::new().write(true).open(memory);
        let memory = memory.expect("its memory is there");
        memory.write_all_at(bytes, address).expect("it has that");
    }

    /// Lets it end, where [`SlowEnd::begins`] has seen that it exits.
    pub fn go_on(&self) {
        let nothing = ptr::null_mut::<libc::c_void>();
        // SAFETY: it is stopped, and ends by itself. One that was killed meanwhile needs no word.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.pid, nothing, nothing) };
    }
}
