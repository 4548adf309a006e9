//! From the table to the kernel's filters.
//!
//! Called by the crate's root. Must not know which program it is in but by its profile.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::calls::{ALLOWED, Allowed, DRIVER, Of, REFUSED, RefusedCall, Test, Use};

/// Which process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The daemon where servers drive the software GPU. It and what it starts may do what the table allows.
    Daemon,
    /// A server on the software GPU. It may do what the table allows; what nobody is to do ends it at once, since only a
    /// server that is not its own master any more tries.
    Server,
    /// The daemon where servers may drive hardware: only what the table refuses is refused, less what the driver's own helper
    /// does.
    DriverDaemon,
    /// A server that drives hardware: only what the table refuses is refused.
    DriverServer,
    /// The same where an operator wants more: it may do what a server on the software GPU may, and what the driver was
    /// seen to do.
    StrictDriverServer,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel was built without, or whoever started this process forbids it.
    #[error("this kernel has no seccomp filters")]
    Missing,
    /// It has them and takes none.
    #[error("cannot filter system calls: {0}")]
    Failed(#[from] seccompiler::Error),
}

/// What answers to a call that is not allowed; see [`ALLOWED`].
const AS_IF_MISSING: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u32);

/// Has the kernel filter the calls of all threads of this process, of those to come, and of all programs that
/// it starts, for good; it gains no rights by set-uid programs any more either.
///
/// # Errors
/// See [`Error`].
pub fn filter_calls(profile: Profile) -> Result<(), Error> {
    for program in programs(profile, std::process::id())? {
        seccompiler::apply_filter_all_threads(&program).map_err(|error| match error {
            seccompiler::Error::Seccomp(ref system) | seccompiler::Error::Prctl(ref system)
                if matches!(system.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
            {
                Error::Missing
            }
            error => Error::Failed(error),
        })?;
    }
    Ok(())
}

/// The programs of a profile, in the order in which they can be installed: the list of what is allowed has no
/// call to install another.
fn programs(profile: Profile, own: u32) -> Result<Vec<BpfProgram>, seccompiler::Error> {
    let allowed = |of: fn(&Allowed) -> Use| {
        let rows = ALLOWED.iter().map(|row| (row.call.number, of(row)));
        program(rows, own, AS_IF_MISSING, SeccompAction::Allow)
    };
    let refused = |is: fn(&RefusedCall) -> bool, how| {
        let rows = REFUSED.iter().filter(|row| is(row));
        let rows = rows.map(|row| (row.call.number, row.with));
        program(rows, own, SeccompAction::Allow, how)
    };
    Ok(match profile {
        Profile::Daemon => vec![allowed(|row| row.daemon)?],
        Profile::Server => {
            let kill = refused(
                |row| row.of != Of::BesideTheDriver,
                SeccompAction::KillProcess,
            )?;
            vec![kill, allowed(|row| row.server)?]
        }
        Profile::DriverDaemon => {
            let of_all = |row: &RefusedCall| matches!(row.of, Of::Everybody | Of::BesideTheDriver);
            vec![refused(of_all, AS_IF_MISSING)?]
        }
        Profile::DriverServer => {
            vec![refused(|row| row.of != Of::SoftwareServers, AS_IF_MISSING)?]
        }
        Profile::StrictDriverServer => {
            let servers = ALLOWED.iter().map(|row| (row.call.number, row.server));
            let drivers = DRIVER.iter().map(|row| (row.call.number, row.with));
            // The later of two rows is the driver's.
            let rows = servers.chain(drivers);
            vec![program(rows, own, AS_IF_MISSING, SeccompAction::Allow)?]
        }
    })
}

fn program(
    rows: impl Iterator<Item = (Option<c_long>, Use)>,
    own: u32,
    otherwise: SeccompAction,
    then: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let mut rules = BTreeMap::new();
    for (number, with) in rows {
        let Some(number) = number else { continue };
        let chain = match with {
            Use::Never => continue,
            Use::Always => Vec::new(),
            Use::Only(arguments) => {
                let tests = arguments.any_of.iter();
                let rules = tests.map(|&(argument, test)| rule(argument, test, own));
                rules.collect::<Result<_, _>>()?
            }
        };
        rules.insert(number, chain);
    }
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, otherwise, then, architecture)?;
    let program: BpfProgram = filter.try_into()?;
    Ok([foreign_numbers(), program].concat())
}

fn rule(argument: u8, test: Test, own: u32) -> Result<SeccompRule, seccompiler::BackendError> {
    let (operator, value) = match test {
        Test::Is(value) => (SeccompCmpOp::Eq, value),
        Test::Bits { mask, are } => (SeccompCmpOp::MaskedEq(mask), are),
        Test::Above(value) => (SeccompCmpOp::Gt, value),
        Test::OwnProcess => (SeccompCmpOp::Eq, u64::from(own)),
    };
    // All that is tested is of 32 bits in the kernel, which does not look at the others.
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    SeccompRule::new(vec![condition])
}

/// On x86-64 a call can be made by a second number (x32), which no list has: such answer as if they were
/// missing, also where only some calls are refused.
fn foreign_numbers() -> BpfProgram {
    /// Of struct seccomp_data: where the number is.
    const NUMBER: u32 = 0;
    const X32: u32 = 0x4000_0000;
    let step = |code, jt, jf, k| seccompiler::sock_filter { code, jt, jf, k };
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let is_at_least = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    vec![
        step(load, 0, 0, NUMBER),
        step(is_at_least, 0, 1, X32),
        step(answer, 0, 0, u32::from(AS_IF_MISSING)),
    ]
}
