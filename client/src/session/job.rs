//! What this process says that it belongs to, so that those who are likely to open each other's memory come to one context.
//!
//! Called when it attaches. Must not know contexts: the daemon alone decides who shares one (`control`'s `placement`). What is said
//! here is believed for that and for nothing else.
//!
//! A job is what `OPENMPS_JOB` names, or else a program and all that it has started of itself: forks, the processes of
//! Python's multiprocessing, a launcher in the program's own language. Ranks of MPI and their kind have launchers of
//! other programs, which set no name that all of them have, so that they say nothing: then they are put where
//! everybody is who may belong to anybody.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;

use daemon_interface::environment::variable;
use daemon_interface::label;
use daemon_interface::process::ProcessStat;

/// Names what the process belongs to.
const VARIABLE: &str = "OPENMPS_JOB";

/// Variables in which launchers say how many processes they have started: Open MPI's, those of PMI, MVAPICH's, Slurm's for a
/// step, and PyTorch's.
const COUNTS: [&str; 5] = [
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "WORLD_SIZE",
];

/// Ancestors that are looked at.
const MOST_ANCESTORS: usize = 64;

/// What this process belongs to, or `None` where it may be anything.
pub(super) fn own() -> Option<String> {
    let text = |name| Some(variable(name)?.to_string_lossy().into_owned());
    if let Some(name) = text(VARIABLE).and_then(|text| label::of(&text)) {
        return Some(format!("name {name}"));
    }
    if COUNTS
        .iter()
        .any(|name| text(name).is_some_and(|count| is_several(&count)))
    {
        return None;
    }
    let namespace = metadata("/proc/self/ns/pid").ok()?.ino();
    let (pid, start) = first_of_program(std::process::id(), &Proc)?;
    Some(format!("process {pid} {start} {namespace}"))
}

fn is_several(count: &str) -> bool {
    count.trim().parse::<u64>().is_ok_and(|count| count > 1)
}

/// What can be known of processes.
trait Processes {
    /// What tells a process's program from others.
    fn program(&self, pid: u32) -> Option<(u64, u64)>;
    /// A process's parent, and when it started.
    fn stat(&self, pid: u32) -> Option<ProcessStat>;
}

/// The machine's.
struct Proc;

impl Processes for Proc {
    fn program(&self, pid: u32) -> Option<(u64, u64)> {
        let file = metadata(format!("/proc/{pid}/exe")).ok()?;
        Some((file.dev(), file.ino()))
    }

    fn stat(&self, pid: u32) -> Option<ProcessStat> {
        ProcessStat::of(pid)
    }
}

/// The first of a process and its ancestors, without a gap, that run one program, and when it started.
fn first_of_program(pid: u32, processes: &impl Processes) -> Option<(u32, u64)> {
    let program = processes.program(pid)?;
    let mut stat = processes.stat(pid)?;
    let mut first = (pid, stat.started);
    for _ in 0..MOST_ANCESTORS {
        // One that cannot be seen is another user's, or another program.
        let parent = stat.parent;
        if parent == 0 || processes.program(parent) != Some(program) {
            break;
        }
        let Some(above) = processes.stat(parent) else {
            break;
        };
        first = (parent, above.started);
        stat = above;
    }
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parent and program, by number from 1.
    struct Listed(&'static [(u32, u64)]);

    impl Processes for Listed {
        fn program(&self, pid: u32) -> Option<(u64, u64)> {
            let (_, program) = self.0.get(pid as usize - 1)?;
            (*program != 0).then_some((1, *program))
        }

        fn stat(&self, pid: u32) -> Option<ProcessStat> {
            let (parent, _) = self.0.get(pid as usize - 1)?;
            Some(ProcessStat {
                parent: *parent,
                started: 1000 + u64::from(pid),
            })
        }
    }

    #[test]
    fn a_program_and_what_it_started_of_itself_are_one_job() {
        // init; a shell; a program, its child and grandchild; another of the shell's; a shell of the program's with a third.
        let listed = Listed(&[
            (0, 7),
            (1, 8),
            (2, 9),
            (3, 9),
            (4, 9),
            (2, 9),
            (3, 8),
            (7, 9),
        ]);
        let first = |pid| first_of_program(pid, &listed);
        assert_eq!(first(3), Some((3, 1003)));
        assert_eq!(first(4), first(3));
        assert_eq!(first(5), first(3));
        assert_eq!(first(6), Some((6, 1006)), "a program of its own");
        assert_eq!(first(8), Some((8, 1008)), "between is another");
        // A parent that cannot be seen; itself that cannot; and one in a circle, which only a lie can be.
        assert_eq!(
            first_of_program(2, &Listed(&[(0, 0), (1, 9)])),
            Some((2, 1002))
        );
        assert_eq!(first_of_program(1, &Listed(&[(0, 0)])), None);
        assert!(first_of_program(1, &Listed(&[(2, 9), (1, 9)])).is_some());
    }

    #[test]
    fn this_process_has_a_program() {
        assert!(Proc.program(std::process::id()).is_some());
    }

    #[test]
    fn several_ranks_are_more_than_one() {
        for (text, several) in [
            ("2", true),
            (" 16 ", true),
            ("1", false),
            ("", false),
            ("x", false),
        ] {
            assert_eq!(is_several(text), several, "{text}");
        }
    }
}
