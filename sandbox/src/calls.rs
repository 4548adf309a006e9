//! The table of system calls: which ones the daemon and a server on the software GPU make, and which ones
//! nobody here is to make. Filters and docs/system-calls.md both come from it.
//!
//! A new system call in the daemon, in a server or in a crate of theirs gets a row here.

use libc::c_long;

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
    pub call: Call,
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
pub struct Refused {
    /// Its name and number.
    pub call: Call,
    /// In which processes.
    pub of: Of,
    /// With which arguments.
    pub with: Use,
    /// What it could be used for.
    pub why: &'static str,
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    name: &'static str,
    /// None where this architecture does not have it.
    pub number: Option<c_long>,
}

impl Call {
    /// The name in the manual.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name.strip_prefix("SYS_").unwrap_or(self.name)
    }
}

/// A call that all architectures have.
macro_rules! call {
    ($name:ident) => {
        Call {
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
        Call {
            name: stringify!($name),
            number: None,
        }
    };
}

const fn both(call: Call, why: &'static str) -> Allowed {
    with(call, Use::Always, Use::Always, why)
}

const fn both_only(call: Call, arguments: &'static Arguments, why: &'static str) -> Allowed {
    with(call, Use::Only(arguments), Use::Only(arguments), why)
}

const fn server_only(call: Call, arguments: &'static Arguments, why: &'static str) -> Allowed {
    with(call, Use::Only(arguments), Use::Always, why)
}

const fn daemon(call: Call, why: &'static str) -> Allowed {
    with(call, Use::Never, Use::Always, why)
}

const fn daemon_only(call: Call, arguments: &'static Arguments, why: &'static str) -> Allowed {
    with(call, Use::Never, Use::Only(arguments), why)
}

const fn with(call: Call, server: Use, daemon: Use, why: &'static str) -> Allowed {
    Allowed {
        call,
        server,
        daemon,
        why,
    }
}

const fn refused(call: Call, why: &'static str) -> Refused {
    refused_to(Of::Everybody, call, why)
}

const fn refused_to(of: Of, call: Call, why: &'static str) -> Refused {
    Refused {
        call,
        of,
        with: Use::Always,
        why,
    }
}

const fn refused_with(call: Call, arguments: &'static Arguments, why: &'static str) -> Refused {
    Refused {
        call,
        of: Of::BesideTheDriver,
        with: Use::Only(arguments),
        why,
    }
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
pub const ALLOWED: &[Allowed] = &[
    // Waiting: what a busy server does most.
    both(call!(SYS_futex), "locks; the bells of rings"),
    both(call!(SYS_sched_yield), "spinning"),
    both(call!(SYS_clock_nanosleep), "spinning; pauses"),
    both(call!(SYS_nanosleep), "the same, by older C libraries"),
    both(call!(SYS_epoll_pwait2), "main loops"),
    both(call!(SYS_epoll_pwait), "the same, on older kernels"),
    both(old!(SYS_epoll_wait), "the same"),
    both(call!(SYS_epoll_ctl), "main loops"),
    both(call!(SYS_epoll_create1), "main loops"),
    both(call!(SYS_ppoll), "waits for one socket"),
    both(old!(SYS_poll), "the same"),
    both(call!(SYS_eventfd2), "a session's news for the main thread"),
    both(call!(SYS_restart_syscall), "the kernel's, after a stop"),
    both(call!(SYS_rt_sigreturn), "the end of a signal's handler"),
    both(
        call!(SYS_clock_gettime),
        "time, where the vDSO does not tell it",
    ),
    both(call!(SYS_clock_getres), "the same"),
    both(call!(SYS_gettimeofday), "the same"),
    both(old!(SYS_time), "the same"),
    both(call!(SYS_getcpu), "memory allocators"),
    // What comes and goes.
    both(call!(SYS_read), "files of /proc; counters"),
    both(call!(SYS_pread64), "the loader; backtraces"),
    both(call!(SYS_readv), "std"),
    both(call!(SYS_write), "logs; counters"),
    both(call!(SYS_writev), "logs"),
    both(call!(SYS_recvmsg), "packets, with descriptors in sessions"),
    both(call!(SYS_sendmsg), "packets"),
    both(call!(SYS_recvfrom), "packets; looks at sockets"),
    both(call!(SYS_sendto), "packets; service managers"),
    both(call!(SYS_shutdown), "ends of connections"),
    both(call!(SYS_getsockopt), "who a peer is"),
    both(call!(SYS_setsockopt), "timeouts; SO_PASSRIGHTS"),
    both_only(
        call!(SYS_socketpair),
        &UNIX_SOCKETS,
        "connections to servers; descriptors of physical memory",
    ),
    both(call!(SYS_close), "everything"),
    both_only(
        call!(SYS_fcntl),
        &DESCRIPTOR_FLAGS,
        "descriptors; sealed memory",
    ),
    both_only(
        call!(SYS_ioctl),
        &DESCRIPTOR_MODES,
        "sockets that do not wait",
    ),
    // Memory.
    server_only(
        call!(SYS_mmap),
        &NOT_EXECUTABLE,
        "memory of clients; stacks; the loader",
    ),
    server_only(
        call!(SYS_mprotect),
        &NOT_BOTH,
        "machine code of kernels, first written and then run",
    ),
    both(call!(SYS_munmap), "memory of clients; stacks"),
    both(call!(SYS_mremap), "allocations that grow"),
    both(
        call!(SYS_madvise),
        "memory given back; huge pages; stacks of ended threads",
    ),
    both(call!(SYS_brk), "the C library's allocator"),
    both(call!(SYS_memfd_create), "memory that clients are given"),
    both(call!(SYS_ftruncate), "its size; logs"),
    both(call!(SYS_fallocate), "its pages, taken and given back"),
    // Threads and signals.
    with(
        call!(SYS_clone),
        Use::Only(&THREADS),
        Use::Only(&NO_NAMESPACES),
        "threads; servers",
    ),
    both(call!(SYS_set_robust_list), "threads, by the C library"),
    both(call!(SYS_rseq), "the same"),
    both(call!(SYS_sigaltstack), "std's handler of stack overflows"),
    both(
        call!(SYS_rt_sigaction),
        "handlers: SIGBUS of files cut short, SIGURG of late closes",
    ),
    both(call!(SYS_rt_sigprocmask), "threads that begin and end"),
    server_only(
        call!(SYS_tgkill),
        &OWN_PROCESS,
        "the end of a close that waits; abort",
    ),
    server_only(
        call!(SYS_kill),
        &OWN_PROCESS,
        "a server that ends with work that does not; servers that do not end",
    ),
    both(call!(SYS_exit), "ends of threads"),
    both(call!(SYS_exit_group), "the end"),
    both(
        call!(SYS_sched_getaffinity),
        "how many processors there are; std's stack bounds",
    ),
    with(
        call!(SYS_prctl),
        Use::Only(&NAMES),
        Use::Only(&PROCESS_SETTINGS),
        "names of threads; a server's way to its user",
    ),
    // Who and where.
    both(call!(SYS_getpid), "logs; abort"),
    both(call!(SYS_gettid), "std; abort"),
    both(call!(SYS_getuid), "whose memory is shared; logs"),
    both(call!(SYS_geteuid), "the same"),
    both(call!(SYS_getgid), "the same"),
    both(call!(SYS_getegid), "the same"),
    both(call!(SYS_getrandom), "tokens; hash tables"),
    both(call!(SYS_uname), "which machine the software GPU is of"),
    both(call!(SYS_sysinfo), "how much memory there is"),
    server_only(
        call!(SYS_prlimit64),
        &OWN_LIMITS,
        "the limit of descriptors",
    ),
    both(call!(SYS_getrlimit), "the same, by older C libraries"),
    both(call!(SYS_setrlimit), "the same"),
    both(
        call!(SYS_pidfd_open),
        "clients' processes, on kernels without SO_PEERPIDFD",
    ),
    // Files, which servers only read.
    server_only(
        call!(SYS_openat),
        &READING,
        "/proc, control groups, time zones, compute modes, backtraces",
    ),
    server_only(
        old!(SYS_open),
        &READING_OLD,
        "the same, by older C libraries",
    ),
    both(call!(SYS_fstat), "what a descriptor is"),
    both(
        call!(SYS_fstatfs),
        "which file system a registered file is of",
    ),
    both(call!(SYS_newfstatat), "the C library's stat"),
    both(old!(SYS_stat), "the same, by older C libraries"),
    both(old!(SYS_lstat), "the same"),
    both(call!(SYS_statx), "std's stat"),
    both(call!(SYS_lseek), "sizes of files"),
    both(call!(SYS_readlinkat), "links of /proc"),
    both(old!(SYS_readlink), "the same"),
    both(
        call!(SYS_getdents64),
        "folders: descriptors of orphaned servers, time zones",
    ),
    both(
        call!(SYS_flock),
        "devices that are one process's; the daemon's lock",
    ),
    both(call!(SYS_getcwd), "backtraces"),
    // The daemon's, and what servers do before they filter their own.
    daemon(call!(SYS_execve), "servers, and a look at the devices"),
    daemon(old!(SYS_vfork), "the same, by older C libraries"),
    daemon(call!(SYS_wait4), "servers that have ended"),
    daemon(call!(SYS_waitid), "the same"),
    daemon(call!(SYS_pidfd_send_signal), "std, to end a server"),
    daemon(call!(SYS_setpgid), "a terminal's Ctrl-C is not for servers"),
    daemon(call!(SYS_setsid), "the background"),
    daemon(call!(SYS_setgroups), "a server's way to its user"),
    daemon(call!(SYS_setresgid), "the same"),
    daemon(call!(SYS_setresuid), "the same"),
    daemon(call!(SYS_getgroups), "who may give commands"),
    daemon(call!(SYS_getppid), "std"),
    daemon(call!(SYS_set_tid_address), "the start of a program"),
    daemon(old!(SYS_arch_prctl), "the same"),
    daemon(call!(SYS_dup), "standard input and output of servers"),
    daemon(old!(SYS_dup2), "the same"),
    daemon(call!(SYS_dup3), "the same"),
    daemon(call!(SYS_close_range), "the same"),
    daemon(call!(SYS_pipe2), "what a look at the devices prints"),
    daemon(old!(SYS_pipe), "the same, by older C libraries"),
    daemon_only(
        call!(SYS_socket),
        &UNIX_SOCKETS,
        "listening; service managers",
    ),
    daemon(call!(SYS_bind), "groups' sockets"),
    daemon(call!(SYS_listen), "the same"),
    daemon(call!(SYS_accept4), "clients and commands"),
    daemon(
        call!(SYS_connect),
        "service managers; a daemon's own socket",
    ),
    daemon(call!(SYS_getsockname), "std"),
    daemon(call!(SYS_getpeername), "std"),
    daemon(call!(SYS_faccessat), "the loader; which files there are"),
    daemon(call!(SYS_faccessat2), "the same"),
    daemon(old!(SYS_access), "the same"),
    daemon(call!(SYS_statfs), "which file system a directory is of"),
    daemon(call!(SYS_mkdirat), "directories of groups"),
    daemon(old!(SYS_mkdir), "the same"),
    daemon(call!(SYS_mknodat), "the FIFO of the log"),
    daemon(old!(SYS_mknod), "the same"),
    daemon(call!(SYS_unlinkat), "files that go"),
    daemon(old!(SYS_unlink), "the same"),
    daemon(old!(SYS_rmdir), "the same"),
    daemon(
        call!(SYS_renameat2),
        "files that are replaced whole; logs that are full",
    ),
    daemon(call!(SYS_renameat), "the same"),
    daemon(old!(SYS_rename), "the same"),
    daemon(call!(SYS_linkat), "the same"),
    daemon(old!(SYS_link), "the same"),
    daemon(call!(SYS_fchmod), "modes of its files"),
    daemon(call!(SYS_fchmodat), "the same"),
    daemon(call!(SYS_fchmodat2), "the same"),
    daemon(old!(SYS_chmod), "the same"),
    daemon(call!(SYS_fchown), "owners of its files"),
    daemon(call!(SYS_fchownat), "the same"),
    daemon(old!(SYS_chown), "the same"),
    daemon(call!(SYS_umask), "modes of sockets"),
    daemon(call!(SYS_chdir), "a daemon holds no directory busy"),
    daemon(call!(SYS_copy_file_range), "logs that are full"),
    daemon(call!(SYS_sendfile), "the same"),
    daemon(call!(SYS_fsync), "records of groups and modes"),
    daemon(call!(SYS_fdatasync), "the same"),
    daemon(call!(SYS_pwrite64), "records of groups"),
    daemon(call!(SYS_seccomp), "a server's own filter"),
    daemon(call!(SYS_landlock_create_ruleset), "what a server may open"),
    daemon(call!(SYS_landlock_add_rule), "the same"),
    daemon(call!(SYS_landlock_restrict_self), "the same"),
];

/// What nobody here is to do. Where NVIDIA's driver is, this is all that is refused: the driver's list is not public. All
/// of it is refused to containers without added rights too, in which the driver is known to work.
pub const REFUSED: &[Refused] = &[
    refused_to(Of::SoftwareServers, call!(SYS_execve), "other programs"),
    refused_to(Of::SoftwareServers, call!(SYS_execveat), "the same"),
    refused_to(Of::SoftwareServers, old!(SYS_fork), "other processes"),
    refused_to(Of::SoftwareServers, old!(SYS_vfork), "the same"),
    refused_to(Of::Servers, call!(SYS_init_module), "code in the kernel"),
    refused_to(Of::Servers, call!(SYS_finit_module), "the same"),
    refused(call!(SYS_delete_module), "the same"),
    refused(call!(SYS_bpf), "the same"),
    refused(call!(SYS_kexec_load), "another kernel"),
    refused(call!(SYS_kexec_file_load), "the same"),
    refused(call!(SYS_reboot), "an end of the machine"),
    refused(call!(SYS_ptrace), "other processes' memory and registers"),
    refused(call!(SYS_process_vm_readv), "the same"),
    refused(call!(SYS_process_vm_writev), "the same"),
    refused(call!(SYS_process_madvise), "the same"),
    refused(call!(SYS_kcmp), "what other processes have"),
    refused(call!(SYS_pidfd_getfd), "other processes' descriptors"),
    refused(
        call!(SYS_perf_event_open),
        "a large part of the kernel, often attacked",
    ),
    refused(call!(SYS_userfaultfd), "faults of the kernel held up"),
    refused(call!(SYS_io_uring_setup), "calls that no filter sees"),
    refused(call!(SYS_io_uring_enter), "the same"),
    refused(call!(SYS_io_uring_register), "the same"),
    refused(
        call!(SYS_add_key),
        "the kernel's keys, which containers share",
    ),
    refused(call!(SYS_request_key), "the same"),
    refused(call!(SYS_keyctl), "the same"),
    refused(call!(SYS_open_by_handle_at), "files without their paths"),
    refused(call!(SYS_mount), "other file systems"),
    refused(call!(SYS_umount2), "the same"),
    refused(call!(SYS_move_mount), "the same"),
    refused(call!(SYS_open_tree), "the same"),
    refused(call!(SYS_fsopen), "the same"),
    refused(call!(SYS_fsconfig), "the same"),
    refused(call!(SYS_fsmount), "the same"),
    refused(call!(SYS_fspick), "the same"),
    refused(call!(SYS_mount_setattr), "the same"),
    refused(call!(SYS_pivot_root), "the same"),
    refused(call!(SYS_chroot), "the same"),
    refused(call!(SYS_setns), "namespaces, and with them rights"),
    refused(call!(SYS_unshare), "the same"),
    refused_with(call!(SYS_clone), &NEW_NAMESPACES, "the same"),
    refused_to(
        Of::BesideTheDriver,
        call!(SYS_clone3),
        "the same, where no filter sees it: C libraries use clone then",
    ),
    refused_with(
        call!(SYS_socket),
        &OUTSIDE_SOCKETS,
        "packets, virtual machines, ciphers of the kernel",
    ),
    refused_with(
        call!(SYS_ioctl),
        &TERMINAL_INPUT,
        "words put into a terminal's mouth",
    ),
    refused(call!(SYS_fanotify_init), "everybody's accesses"),
    refused(call!(SYS_swapon), "the machine's settings"),
    refused(call!(SYS_swapoff), "the same"),
    refused(call!(SYS_acct), "the same"),
    refused(call!(SYS_quotactl), "the same"),
    refused(call!(SYS_sethostname), "the same"),
    refused(call!(SYS_setdomainname), "the same"),
    refused(call!(SYS_settimeofday), "the same"),
    refused(call!(SYS_clock_settime), "the same"),
    refused(call!(SYS_clock_adjtime), "the same"),
    refused(call!(SYS_adjtimex), "the same"),
    refused(call!(SYS_syslog), "the kernel's log"),
    refused(call!(SYS_vhangup), "others' terminals"),
    refused(old!(SYS_iopl), "the machine's ports"),
    refused(old!(SYS_ioperm), "the same"),
    refused(old!(SYS_modify_ldt), "segments, often attacked"),
];
