//! Wrongs at random under one daemon, beside neighbours of every kind: what the server has must be the same afterwards.
//!
//! Called by the same two as the matrix. Must not know what is right.

use std::path::Path;
use std::time::{Duration, Instant};

use super::scene::{Scene, Sharing};
use super::{NEIGHBOURS, WRONGS, Wrong, culprit, do_wrong, take};
use crate::daemon::{settled_threads_and_files, threads_and_files};

/// What was seen.
#[derive(Debug)]
pub struct Soak {
    /// By round: the wrong, and what the guilty was told.
    pub guilty: Vec<(Wrong, String)>,
    /// By neighbour: its work, and what it said.
    pub neighbours: Vec<(&'static str, String)>,
    /// What the server had before and afterwards.
    pub server: [Holdings; 2],
}

/// What a server has of what can leak.
#[derive(Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Its process.
    pub process: i32,
    /// Its threads, and its open files.
    pub threads_and_files: (usize, usize),
    /// Bytes that a client finds free on the device.
    pub free: String,
}

/// What is done in a soak.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Wrongs of those that are of clients alone.
    pub rounds: u32,
    /// Which ones.
    pub seed: u64,
    /// Neighbours of each kind.
    pub of_each: usize,
    /// From one wrong's beginning to the next one's, at least.
    pub every: Duration,
}

/// Does wrongs, one after the other, beside neighbours. One that has ended is started again. `told` hears of each wrong what the guilty was told.
///
/// # Panics
/// If the daemon does not start, or the neighbours do not work before anything is done.
pub fn soak(
    sharing: &Sharing,
    program: &Path,
    plan: Plan,
    mut told: impl FnMut(Wrong, &str),
) -> Soak {
    let scene = Scene::start(sharing, program, &[], false);
    let before = holdings(&scene, None);
    let each = (0..plan.of_each).flat_map(|_| NEIGHBOURS);
    let mut neighbours: Vec<_> = each
        .map(|(_, work, _)| (*work, scene.client(&["neighbour", work])))
        .collect();
    for (_, neighbour) in &mut neighbours {
        assert_eq!(neighbour.next(), "running", "before anything was done");
    }
    let of_clients = |wrong: &Wrong| {
        !matches!(
            wrong,
            Wrong::Server(_)
                | Wrong::Failover(_)
                | Wrong::Daemon
                | Wrong::Upgrade
                | Wrong::DiskFull
        )
    };
    let wrongs: Vec<Wrong> = WRONGS.iter().map(|row| row.1).filter(of_clients).collect();
    let (mut guilty, mut ended) = (Vec::new(), Vec::new());
    let mut random = plan.seed | 1;
    for _ in 0..plan.rounds {
        let begun = Instant::now();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let wrong = wrongs[usize::try_from(random % wrongs.len() as u64).expect("an index")];
        let said = do_wrong(&scene, &mut culprit(&scene, wrong), wrong);
        let said = take(&said).0;
        told(wrong, &said);
        guilty.push((wrong, said));
        std::thread::sleep(plan.every.saturating_sub(begun.elapsed()));
        for (work, neighbour) in &mut neighbours {
            if let Some(said) = neighbour.ended() {
                ended.push((*work, take(&said).0));
                *neighbour = scene.client(&["neighbour", work]);
            }
        }
    }
    for (work, mut neighbour) in neighbours {
        ended.push((work, take(&neighbour.last()).0));
    }
    let after = holdings(&scene, Some(before.threads_and_files));
    Soak {
        guilty,
        neighbours: ended,
        server: [before, after],
    }
}

/// What the server has while it has no client; once it has as much as expected, or at rest otherwise.
fn holdings(scene: &Scene, expected: Option<(usize, usize)>) -> Holdings {
    let free = scene.client(&["free"]).last();
    let process = scene.server().unwrap_or_default();
    let id = process.unsigned_abs();
    // Clients leave a moment after their programs' end.
    for _ in 0..500 {
        let clients = scene.control(&format!("get_client_list {process}"));
        if clients.is_some_and(|text| text.trim().is_empty()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut threads_and_files_now = settled_threads_and_files(id);
    for _ in 0..500 {
        if expected.is_none_or(|expected| expected == threads_and_files_now) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        threads_and_files_now = threads_and_files(id);
    }
    Holdings {
        process,
        threads_and_files: threads_and_files_now,
        free,
    }
}
