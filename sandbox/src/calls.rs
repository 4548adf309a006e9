//! The table of system calls: which ones the daemon and a server on the software GPU make, and which ones
//! nobody here is to make. Filters and docs/system-calls.md both come from it.
//!
//! A new system call in the daemon, in a server or in a crate of theirs gets a row here. Must not know how the kernel
//! is told. Longer than other files, since most of it is tables.

use libc::c_long;

use Use::{Always, Never, Only};

/// What an argument must be.
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// This number.
    Is(u64),
    /// This number in the bits of the mask.
    Bits {
        /// The bits that are looked at.
        mask: u64,
        /// What they are.
        are: u64,
    },
    /// More than this number.
    Above(u64),
    /// The process id of whoever installs the filter.
    OwnProcess,
}

/// What the arguments of a call must be.
#[derive(Debug)]
pub struct Arguments {
    /// For the documentation.
    pub text: &'static str,
    /// One of these must hold: the argument of this number, the first being 0, is such.
    pub any_of: &'static [(u8, Test)],
}

/// With which arguments a process may make a call.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// It may not.
    Never,
    /// With any.
    Always,
    /// With such.
    Only(&'static Arguments),
}

/// A call that the daemon or a server on the software GPU makes.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Its name and number.
    pub call: SystemCall,
    /// What a server may do with it, from before its first client on.
    pub server: Use,
    /// What the daemon may do with it, and so its servers until they filter their own calls, the loader of
    /// programs included: a filter is inherited.
    pub daemon: Use,
    /// Who needs it, and for what.
    pub why: &'static str,
}

/// Whose calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Those of servers on the software GPU, whose process ends; NVIDIA's driver may make them.
    SoftwareServers,
    /// Those of all servers; what the driver starts before a server has clients may make them.
    Servers,
    /// Those of the daemon too.
    Everybody,
    /// Those of all where NVIDIA's driver is. Elsewhere the list of what is allowed says it better.
    BesideTheDriver,
}

/// A call that nobody here is to make. In a server on the software GPU it ends the process; where NVIDIA's
/// driver is, of which nobody has a list of calls, these are what is refused, and the kernel answers as if it
/// did not have them.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCall {
    /// Its name and number.
    pub call: SystemCall,
    /// In which processes.
    pub of: Of,
    /// With which arguments.
    pub with: Use,
    /// What it could be used for.
    pub why: &'static str,
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct SystemCall {
    name: &'static str,
    /// None where this architecture does not have it.
    pub number: Option<c_long>,
}

impl SystemCall {
    /// The name in the manual.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.strip_prefix("SYS_").unwrap_or(self.name)
    }
}

/// A call that all architectures have.
macro_rules! call {
    ($name:ident) => {
        SystemCall {
            name: stringify!($name),
            number: Some(libc::$name),
        }
    };
}

/// A call that x86-64 has from older days; elsewhere there are its successors alone.
#[cfg(target_arch = "x86_64")]
macro_rules! old {
    ($name:ident) => {
        call!($name)
    };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! old {
    ($name:ident) => {
        SystemCall {
            name: stringify!($name),
            number: None,
        }
    };
}

/// Rows of what is allowed: the call, what a server may do with it, what the daemon, and why.
macro_rules! allowed {
    ($($kind:ident $name:ident $server:expr, $daemon:expr, $why:literal;)*) => {
        &[$(Allowed {
            call: $kind!($name),
            server: $server,
            daemon: $daemon,
            why: $why,
        },)*]
    };
}

/// Rows of what is refused: the call, whose, with which arguments, and why.
macro_rules! refused {
    ($($kind:ident $name:ident $of:ident, $with:expr, $why:literal;)*) => {
        &[$(RefusedCall {
            call: $kind!($name),
            of: Of::$of,
            with: $with,
            why: $why,
        },)*]
    };
}

/// Since Linux 6.4; `rustix` asks for the size of a page so.
const PR_GET_AUXV: u64 = 0x4155_5856;
const CLONE_THREAD: u64 = libc::CLONE_THREAD as u64;
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXECUTE: u64 = libc::PROT_EXEC as u64;
const FOR_WRITING: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;

static THREADS: Arguments = Arguments {
    text: "threads",
    any_of: &[(
        0,
        Test::Bits {
            mask: CLONE_THREAD,
            are: CLONE_THREAD,
        },
    )],
};

static NO_NAMESPACES: Arguments = Arguments {
    text: "no new namespaces",
    any_of: &[(
        0,
        Test::Bits {
            mask: NAMESPACES,
            are: 0,
        },
    )],
};

const fn flag(flag: i32) -> (u8, Test) {
    let flag = flag as u64;
    (
        0,
        Test::Bits {
            mask: flag,
            are: flag,
        },
    )
}

static NEW_NAMESPACES: Arguments = Arguments {
    text: "new namespaces",
    any_of: &[
        flag(libc::CLONE_NEWNS),
        flag(libc::CLONE_NEWCGROUP),
        flag(libc::CLONE_NEWUTS),
        flag(libc::CLONE_NEWIPC),
        flag(libc::CLONE_NEWUSER),
        flag(libc::CLONE_NEWPID),
        flag(libc::CLONE_NEWNET),
    ],
};

static NOT_EXECUTABLE: Arguments = Arguments {
    text: "no PROT_EXEC",
    any_of: &[(
        2,
        Test::Bits {
            mask: EXECUTE,
            are: 0,
        },
    )],
};

static NOT_BOTH: Arguments = Arguments {
    text: "PROT_WRITE or PROT_EXEC, not both",
    any_of: &[
        (
            2,
            Test::Bits {
                mask: EXECUTE,
                are: 0,
            },
        ),
        (
            2,
            Test::Bits {
                mask: WRITE,
                are: 0,
            },
        ),
    ],
};

static READING: Arguments = Arguments {
    text: "reading",
    any_of: &[(
        2,
        Test::Bits {
            mask: FOR_WRITING,
            are: 0,
        },
    )],
};

static READING_OLD: Arguments = Arguments {
    text: "reading",
    any_of: &[(
        1,
        Test::Bits {
            mask: FOR_WRITING,
            are: 0,
        },
    )],
};

static UNIX_SOCKETS: Arguments = Arguments {
    text: "AF_UNIX",
    any_of: &[(0, Test::Is(libc::AF_UNIX as u64))],
};

static OUTSIDE_SOCKETS: Arguments = Arguments {
    text: "families above AF_NETLINK",
    any_of: &[(0, Test::Above(libc::AF_NETLINK as u64))],
};

static OWN_PROCESS: Arguments = Arguments {
    text: "its own process",
    any_of: &[(0, Test::OwnProcess)],
};

static OWN_LIMITS: Arguments = Arguments {
    text: "its own limits",
    any_of: &[(0, Test::Is(0))],
};

static DESCRIPTOR_FLAGS: Arguments = Arguments {
    text: "flags, copies and seals",
    any_of: &[
        (1, Test::Is(libc::F_GETFD as u64)),
        (1, Test::Is(libc::F_SETFD as u64)),
        (1, Test::Is(libc::F_GETFL as u64)),
        (1, Test::Is(libc::F_SETFL as u64)),
        (1, Test::Is(libc::F_DUPFD_CLOEXEC as u64)),
        (1, Test::Is(libc::F_ADD_SEALS as u64)),
        (1, Test::Is(libc::F_GET_SEALS as u64)),
    ],
};

static DESCRIPTOR_MODES: Arguments = Arguments {
    text: "FIONBIO, FIOCLEX, TCGETS",
    any_of: &[
        (1, Test::Is(libc::FIONBIO)),
        (1, Test::Is(libc::FIOCLEX)),
        (1, Test::Is(libc::TCGETS)),
    ],
};

static TERMINAL_INPUT: Arguments = Arguments {
    text: "TIOCSTI, TIOCLINUX",
    any_of: &[(1, Test::Is(libc::TIOCSTI)), (1, Test::Is(libc::TIOCLINUX))],
};

static NAMES: Arguments = Arguments {
    text: "names of threads and mappings, the auxiliary vector",
    any_of: &[
        (0, Test::Is(PR_GET_AUXV)),
        (0, Test::Is(libc::PR_SET_NAME as u64)),
        (0, Test::Is(libc::PR_GET_NAME as u64)),
        (0, Test::Is(libc::PR_SET_VMA as u64)),
    ],
};

static PROCESS_SETTINGS: Arguments = Arguments {
    text: "the same, dumpable, no_new_privs, capabilities looked at",
    any_of: &[
        (0, Test::Is(PR_GET_AUXV)),
        (0, Test::Is(libc::PR_SET_NAME as u64)),
        (0, Test::Is(libc::PR_GET_NAME as u64)),
        (0, Test::Is(libc::PR_SET_VMA as u64)),
        (0, Test::Is(libc::PR_GET_DUMPABLE as u64)),
        (0, Test::Is(libc::PR_SET_DUMPABLE as u64)),
        (0, Test::Is(libc::PR_GET_NO_NEW_PRIVS as u64)),
        (0, Test::Is(libc::PR_SET_NO_NEW_PRIVS as u64)),
        (0, Test::Is(libc::PR_CAPBSET_READ as u64)),
    ],
};

/// What is allowed, and nothing else is where there is no driver of NVIDIA's. What is missing here answers ENOSYS, as on a
/// kernel that does not have it: C libraries and std take an older way then, and a call that was forgotten fails
/// by itself instead of ending the process with all its clients. `clone3` is missing on purpose: a filter cannot see its
/// flags.
pub const ALLOWED: &[Allowed] = allowed! {
    // Waiting: what a busy server does most.
    call SYS_futex                   Always,                     Always,                     "locks; the bells of rings";
    call SYS_sched_yield             Always,                     Always,                     "spinning";
    call SYS_clock_nanosleep         Always,                     Always,                     "spinning; pauses";
    call SYS_nanosleep               Always,                     Always,                     "the same, by older C libraries";
    call SYS_epoll_pwait2            Always,                     Always,                     "main loops";
    call SYS_epoll_pwait             Always,                     Always,                     "the same, on older kernels";
    old  SYS_epoll_wait              Always,                     Always,                     "the same";
    call SYS_epoll_ctl               Always,                     Always,                     "main loops";
    call SYS_epoll_create1           Always,                     Always,                     "main loops";
    call SYS_ppoll                   Always,                     Always,                     "waits for one socket";
    old  SYS_poll                    Always,                     Always,                     "the same";
    call SYS_eventfd2                Always,                     Always,                     "a session's news for the main thread; another server's of an event";
    call SYS_restart_syscall         Always,                     Always,                     "the kernel's, after a stop";
    call SYS_rt_sigreturn            Always,                     Always,                     "the end of a signal's handler";
    call SYS_clock_gettime           Always,                     Always,                     "time, where the vDSO does not tell it";
    call SYS_clock_getres            Always,                     Always,                     "the same";
    call SYS_gettimeofday            Always,                     Always,                     "the same";
    old  SYS_time                    Always,                     Always,                     "the same";
    call SYS_getcpu                  Always,                     Always,                     "memory allocators";
    // What comes and goes.
    call SYS_read                    Always,                     Always,                     "files of /proc; counters";
    call SYS_pread64                 Always,                     Always,                     "the loader; backtraces";
    call SYS_readv                   Always,                     Always,                     "std";
    call SYS_write                   Always,                     Always,                     "logs; counters";
    call SYS_writev                  Always,                     Always,                     "logs";
    call SYS_recvmsg                 Always,                     Always,                     "packets, with descriptors in sessions";
    call SYS_sendmsg                 Always,                     Always,                     "packets";
    call SYS_recvfrom                Always,                     Always,                     "packets; looks at sockets";
    call SYS_sendto                  Always,                     Always,                     "packets; service managers";
    call SYS_shutdown                Always,                     Always,                     "ends of connections";
    call SYS_getsockopt              Always,                     Always,                     "who a peer is";
    call SYS_setsockopt              Always,                     Always,                     "timeouts; SO_PASSRIGHTS";
    call SYS_socketpair              Only(&UNIX_SOCKETS),        Only(&UNIX_SOCKETS),        "connections to servers; descriptors of physical memory, and by which another server keeps what it uses";
    call SYS_close                   Always,                     Always,                     "everything";
    call SYS_fcntl                   Only(&DESCRIPTOR_FLAGS),    Only(&DESCRIPTOR_FLAGS),    "descriptors; sealed memory";
    call SYS_ioctl                   Only(&DESCRIPTOR_MODES),    Only(&DESCRIPTOR_MODES),    "sockets that do not wait";
    // Memory.
    call SYS_mmap                    Only(&NOT_EXECUTABLE),      Always,                     "memory of clients; stacks; the loader";
    call SYS_mprotect                Only(&NOT_BOTH),            Always,                     "machine code of kernels, first written and then run";
    call SYS_munmap                  Always,                     Always,                     "memory of clients; stacks";
    call SYS_mremap                  Always,                     Always,                     "allocations that grow";
    call SYS_madvise                 Always,                     Always,                     "memory given back; huge pages; stacks of ended threads";
    call SYS_brk                     Always,                     Always,                     "the C library's allocator";
    call SYS_memfd_create            Always,                     Always,                     "memory that clients are given, and that servers have in common of an event";
    call SYS_ftruncate               Always,                     Always,                     "its size; logs";
    call SYS_fallocate               Always,                     Always,                     "its pages, taken and given back";
    // Threads and signals.
    call SYS_clone                   Only(&THREADS),             Only(&NO_NAMESPACES),       "threads; servers";
    call SYS_set_robust_list         Always,                     Always,                     "threads, by the C library";
    call SYS_rseq                    Always,                     Always,                     "the same";
    call SYS_sigaltstack             Always,                     Always,                     "std's handler of stack overflows";
    call SYS_rt_sigaction            Always,                     Always,                     "handlers: SIGBUS of files cut short, SIGURG of late closes, SIGXFSZ of full files";
    call SYS_rt_sigprocmask          Always,                     Always,                     "threads that begin and end";
    call SYS_tgkill                  Only(&OWN_PROCESS),         Always,                     "the end of a close that waits; abort";
    call SYS_kill                    Only(&OWN_PROCESS),         Always,                     "a server that ends with work that does not; servers that do not end";
    call SYS_exit                    Always,                     Always,                     "ends of threads";
    call SYS_exit_group              Always,                     Always,                     "the end";
    call SYS_sched_getaffinity       Always,                     Always,                     "how many processors there are; std's stack bounds";
    call SYS_prctl                   Only(&NAMES),               Only(&PROCESS_SETTINGS),    "names of threads; a server's way to its user";
    // Who and where.
    call SYS_getpid                  Always,                     Always,                     "logs; abort";
    call SYS_gettid                  Always,                     Always,                     "std; abort";
    call SYS_getuid                  Always,                     Always,                     "whose memory is shared; logs";
    call SYS_geteuid                 Always,                     Always,                     "the same";
    call SYS_getgid                  Always,                     Always,                     "the same";
    call SYS_getegid                 Always,                     Always,                     "the same";
    call SYS_getrandom               Always,                     Always,                     "tokens; hash tables";
    call SYS_uname                   Always,                     Always,                     "which machine the software GPU is of";
    call SYS_sysinfo                 Always,                     Always,                     "how much memory there is";
    call SYS_prlimit64               Only(&OWN_LIMITS),          Always,                     "the limit of descriptors";
    call SYS_getrlimit               Always,                     Always,                     "the same, by older C libraries";
    call SYS_setrlimit               Always,                     Always,                     "the same";
    call SYS_pidfd_open              Always,                     Always,                     "clients' processes, on kernels without SO_PEERPIDFD";
    // Files, which servers only read.
    call SYS_openat                  Only(&READING),             Always,                     "/proc, control groups, time zones, compute modes, backtraces";
    old  SYS_open                    Only(&READING_OLD),         Always,                     "the same, by older C libraries";
    call SYS_fstat                   Always,                     Always,                     "what a descriptor is";
    call SYS_fstatfs                 Always,                     Always,                     "which file system a registered file is of";
    call SYS_newfstatat              Always,                     Always,                     "the C library's stat";
    old  SYS_stat                    Always,                     Always,                     "the same, by older C libraries";
    old  SYS_lstat                   Always,                     Always,                     "the same";
    call SYS_statx                   Always,                     Always,                     "std's stat";
    call SYS_lseek                   Always,                     Always,                     "sizes of files";
    call SYS_readlinkat              Always,                     Always,                     "links of /proc";
    old  SYS_readlink                Always,                     Always,                     "the same";
    call SYS_getdents64              Always,                     Always,                     "folders: descriptors of orphaned servers, time zones";
    old  SYS_getdents                Always,                     Always,                     "the same, by older C libraries";
    call SYS_flock                   Always,                     Always,                     "devices that are one process's; the daemon's lock";
    call SYS_getcwd                  Always,                     Always,                     "backtraces";
    // The daemon's, and what servers do before they filter their own.
    call SYS_execve                  Never,                      Always,                     "servers, and a look at the devices";
    old  SYS_vfork                   Never,                      Always,                     "the same, by older C libraries";
    call SYS_wait4                   Never,                      Always,                     "servers that have ended";
    call SYS_waitid                  Never,                      Always,                     "the same";
    call SYS_pidfd_send_signal       Never,                      Always,                     "std, to end a server";
    call SYS_setpgid                 Never,                      Always,                     "a terminal's Ctrl-C is not for servers";
    call SYS_setsid                  Never,                      Always,                     "the background";
    call SYS_setgroups               Never,                      Always,                     "a server's way to its user";
    call SYS_setresgid               Never,                      Always,                     "the same";
    call SYS_setresuid               Never,                      Always,                     "the same";
    call SYS_getgroups               Never,                      Always,                     "who may give commands";
    call SYS_getppid                 Never,                      Always,                     "std";
    call SYS_set_tid_address         Never,                      Always,                     "the start of a program";
    old  SYS_arch_prctl              Never,                      Always,                     "the same";
    call SYS_dup                     Never,                      Always,                     "standard input and output of servers";
    old  SYS_dup2                    Never,                      Always,                     "the same";
    call SYS_dup3                    Never,                      Always,                     "the same";
    call SYS_close_range             Never,                      Always,                     "the same";
    call SYS_pipe2                   Never,                      Always,                     "what a look at the devices prints";
    old  SYS_pipe                    Never,                      Always,                     "the same, by older C libraries";
    call SYS_socket                  Never,                      Only(&UNIX_SOCKETS),        "listening; service managers";
    call SYS_bind                    Never,                      Always,                     "groups' sockets";
    call SYS_listen                  Never,                      Always,                     "the same";
    call SYS_accept4                 Never,                      Always,                     "clients and commands";
    call SYS_connect                 Never,                      Always,                     "service managers; a daemon's own socket";
    call SYS_getsockname             Never,                      Always,                     "std";
    call SYS_getpeername             Never,                      Always,                     "std";
    call SYS_faccessat               Never,                      Always,                     "the loader; which files there are";
    call SYS_faccessat2              Never,                      Always,                     "the same";
    old  SYS_access                  Never,                      Always,                     "the same";
    call SYS_statfs                  Never,                      Always,                     "which file system a directory is of";
    call SYS_mkdirat                 Never,                      Always,                     "directories of groups";
    old  SYS_mkdir                   Never,                      Always,                     "the same";
    call SYS_mknodat                 Never,                      Always,                     "the FIFO of the log";
    old  SYS_mknod                   Never,                      Always,                     "the same";
    call SYS_unlinkat                Never,                      Always,                     "files that go";
    old  SYS_unlink                  Never,                      Always,                     "the same";
    old  SYS_rmdir                   Never,                      Always,                     "the same";
    call SYS_renameat2               Never,                      Always,                     "files that are replaced whole; logs that are full";
    call SYS_renameat                Never,                      Always,                     "the same";
    old  SYS_rename                  Never,                      Always,                     "the same";
    call SYS_linkat                  Never,                      Always,                     "the same";
    old  SYS_link                    Never,                      Always,                     "the same";
    call SYS_fchmod                  Never,                      Always,                     "modes of its files";
    call SYS_fchmodat                Never,                      Always,                     "the same";
    call SYS_fchmodat2               Never,                      Always,                     "the same";
    old  SYS_chmod                   Never,                      Always,                     "the same";
    call SYS_fchown                  Never,                      Always,                     "owners of its files";
    call SYS_fchownat                Never,                      Always,                     "the same";
    old  SYS_chown                   Never,                      Always,                     "the same";
    call SYS_umask                   Never,                      Always,                     "modes of sockets";
    call SYS_chdir                   Never,                      Always,                     "a daemon holds no directory busy";
    call SYS_copy_file_range         Never,                      Always,                     "logs that are full";
    call SYS_sendfile                Never,                      Always,                     "the same";
    call SYS_fsync                   Never,                      Always,                     "records of groups and modes";
    call SYS_fdatasync               Never,                      Always,                     "the same";
    call SYS_pwrite64                Never,                      Always,                     "records of groups";
    call SYS_seccomp                 Never,                      Always,                     "a server's own filter";
    call SYS_landlock_create_ruleset Never,                      Always,                     "what a server may open";
    call SYS_landlock_add_rule       Never,                      Always,                     "the same";
    call SYS_landlock_restrict_self  Never,                      Always,                     "the same";
};

/// What nobody here is to do. Where NVIDIA's driver is, this is all that is refused: the driver's list is not public. Nearly
/// all of it is refused to containers without added rights too, in which the driver is known to work; the rest is of
/// no use to a driver.
pub const REFUSED: &[RefusedCall] = refused! {
    call SYS_execve                  SoftwareServers,  Always,                  "other programs";
    call SYS_execveat                SoftwareServers,  Always,                  "the same";
    old  SYS_fork                    SoftwareServers,  Always,                  "other processes";
    old  SYS_vfork                   SoftwareServers,  Always,                  "the same";
    call SYS_init_module             Servers,          Always,                  "code in the kernel";
    call SYS_finit_module            Servers,          Always,                  "the same";
    call SYS_delete_module           Everybody,        Always,                  "the same";
    call SYS_bpf                     Everybody,        Always,                  "the same";
    call SYS_kexec_load              Everybody,        Always,                  "another kernel";
    call SYS_kexec_file_load         Everybody,        Always,                  "the same";
    call SYS_reboot                  Everybody,        Always,                  "an end of the machine";
    call SYS_ptrace                  Everybody,        Always,                  "other processes' memory and registers";
    call SYS_process_vm_readv        Everybody,        Always,                  "the same";
    call SYS_process_vm_writev       Everybody,        Always,                  "the same";
    call SYS_process_madvise         Everybody,        Always,                  "the same";
    call SYS_kcmp                    Everybody,        Always,                  "what other processes have";
    call SYS_pidfd_getfd             Everybody,        Always,                  "other processes' descriptors";
    call SYS_perf_event_open         Everybody,        Always,                  "a large part of the kernel, often attacked";
    call SYS_userfaultfd             Everybody,        Always,                  "faults of the kernel held up";
    call SYS_io_uring_setup          Everybody,        Always,                  "calls that no filter sees";
    call SYS_io_uring_enter          Everybody,        Always,                  "the same";
    call SYS_io_uring_register       Everybody,        Always,                  "the same";
    call SYS_add_key                 Everybody,        Always,                  "the kernel's keys, which containers share";
    call SYS_request_key             Everybody,        Always,                  "the same";
    call SYS_keyctl                  Everybody,        Always,                  "the same";
    call SYS_open_by_handle_at       Everybody,        Always,                  "files without their paths";
    call SYS_mount                   Everybody,        Always,                  "other file systems";
    call SYS_umount2                 Everybody,        Always,                  "the same";
    call SYS_move_mount              Everybody,        Always,                  "the same";
    call SYS_open_tree               Everybody,        Always,                  "the same";
    call SYS_fsopen                  Everybody,        Always,                  "the same";
    call SYS_fsconfig                Everybody,        Always,                  "the same";
    call SYS_fsmount                 Everybody,        Always,                  "the same";
    call SYS_fspick                  Everybody,        Always,                  "the same";
    call SYS_mount_setattr           Everybody,        Always,                  "the same";
    call SYS_pivot_root              Everybody,        Always,                  "the same";
    call SYS_chroot                  Everybody,        Always,                  "the same";
    call SYS_setns                   Everybody,        Always,                  "namespaces, and with them rights";
    call SYS_unshare                 Everybody,        Always,                  "the same";
    call SYS_clone                   BesideTheDriver,  Only(&NEW_NAMESPACES),   "the same";
    call SYS_clone3                  BesideTheDriver,  Always,                  "the same, where no filter sees it: C libraries use clone then";
    call SYS_socket                  BesideTheDriver,  Only(&OUTSIDE_SOCKETS),  "packets, virtual machines, ciphers of the kernel";
    call SYS_ioctl                   BesideTheDriver,  Only(&TERMINAL_INPUT),   "words put into a terminal's mouth";
    call SYS_fanotify_init           Everybody,        Always,                  "everybody's accesses";
    call SYS_swapon                  Everybody,        Always,                  "the machine's settings";
    call SYS_swapoff                 Everybody,        Always,                  "the same";
    call SYS_acct                    Everybody,        Always,                  "the same";
    call SYS_quotactl                Everybody,        Always,                  "the same";
    call SYS_sethostname             Everybody,        Always,                  "the same";
    call SYS_setdomainname           Everybody,        Always,                  "the same";
    call SYS_settimeofday            Everybody,        Always,                  "the same";
    call SYS_clock_settime           Everybody,        Always,                  "the same";
    call SYS_clock_adjtime           Everybody,        Always,                  "the same";
    call SYS_adjtimex                Everybody,        Always,                  "the same";
    call SYS_syslog                  Everybody,        Always,                  "the kernel's log";
    call SYS_vhangup                 Everybody,        Always,                  "others' terminals";
    old  SYS_iopl                    Everybody,        Always,                  "the machine's ports";
    old  SYS_ioperm                  Everybody,        Always,                  "the same";
    old  SYS_modify_ldt              Everybody,        Always,                  "segments, often attacked";
};

/// A call that NVIDIA's driver makes in a server, beside those that a server on the software GPU makes.
#[derive(Clone, Copy, Debug)]
pub struct DriverCall {
    /// Its name and number.
    pub call: SystemCall,
    /// With which arguments.
    pub with: Use,
    /// For what.
    pub why: &'static str,
}

macro_rules! driver {
    ($($why:literal: $($kind:ident $name:ident $with:expr),*;)*) => {
        &[$($(DriverCall {
            call: $kind!($name),
            with: $with,
            why: $why,
        },)*)*]
    };
}

/// What the driver of one H200 (580) was seen to make with `strace`, and what it takes to place memory and threads on
/// nodes of a larger machine. In force for who asks for it ([`crate::Setting::Strict`]).
pub static DRIVER: &[DriverCall] = driver! {
    "everything that it asks of the kernel's module": call SYS_ioctl Always;
    "device files, settings, facts of the machine, the cache of what it compiled":
        call SYS_openat Always, old SYS_open Always, old SYS_access Always, old SYS_stat Always,
        old SYS_lstat Always, old SYS_readlink Always, call SYS_readlinkat Always, old SYS_mkdir Always,
        old SYS_unlink Always, old SYS_symlink Always, old SYS_rename Always, old SYS_rmdir Always,
        call SYS_flock Always, call SYS_fstatfs Always, call SYS_statfs Always, call SYS_getdents64 Always,
        call SYS_pread64 Always, call SYS_pwrite64 Always, call SYS_lseek Always, call SYS_ftruncate Always,
        call SYS_umask Always, call SYS_dup Always, old SYS_dup2 Always;
    "memory of hosts and devices in one range of addresses":
        call SYS_mmap Always, call SYS_mprotect Always, call SYS_mremap Always, call SYS_mlock Always,
        call SYS_munlock Always, call SYS_memfd_create Always, call SYS_get_mempolicy Always,
        call SYS_set_mempolicy Always, call SYS_mbind Always;
    "its threads": call SYS_sched_getaffinity Always, call SYS_sched_setaffinity Always,
        call SYS_sched_get_priority_max Always, call SYS_sched_get_priority_min Always,
        old SYS_poll Always, old SYS_pipe Always, call SYS_pipe2 Always, call SYS_eventfd2 Always,
        call SYS_nanosleep Always;
    "what processes of one user share": call SYS_socket (Only(&UNIX_SOCKETS)), call SYS_bind Always,
        call SYS_connect Always, call SYS_listen Always, call SYS_sendto Always, call SYS_recvfrom Always;
    "what the machine and the user are": call SYS_sysinfo Always, call SYS_uname Always, call SYS_getuid Always,
        call SYS_geteuid Always, call SYS_getgid Always, call SYS_getegid Always, call SYS_getppid Always;
};
