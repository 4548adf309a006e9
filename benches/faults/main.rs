//! The fault matrix, printed: one line a cell. Asserts nothing.
//!
//! `fault_matrix FOLDER [--on soft|nvidia|nvidia-mps]... [--wrong TEXT] [--neighbours TEXT] [--fenced] [--failover]
//! [--soak ROUNDS [--each NEIGHBOURS] [--every SECONDS]]`: FOLDER has `openmps` and `faults`; the texts choose rows and columns whose names have them; with
//! `--fenced` all clients of OpenMPS ask to be fenced, with `--failover` its daemons keep sessions for other servers; `--soak`
//! does so many wrongs at random under one daemon instead, one each so many seconds, beside so many neighbours of each kind. Called by `benches/faults.sh`. Must not know what should be seen.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tests::fault_matrix::{NEIGHBOURS, Plan, Sharing, WRONGS, cell, soak};

fn main() {
    let (mut folder, mut on) = (PathBuf::from("."), Vec::new());
    let (mut wrongs, mut columns) = (String::new(), String::new());
    let (mut soaked, mut fenced, mut failover) = (None, false, false);
    let (mut of_each, mut every) = (1, Duration::ZERO);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || words.next().expect("a value follows");
        match word.as_str() {
            "--on" => on.push(next()),
            "--wrong" => wrongs = next(),
            "--neighbours" => columns = next(),
            "--fenced" => fenced = true,
            "--failover" => failover = true,
            "--each" => of_each = next().parse().expect("a number of neighbours"),
            "--every" => every = Duration::from_secs(next().parse().expect("seconds")),
            "--soak" => soaked = Some(next().parse().expect("a number of rounds")),
            _ => folder = word.into(),
        }
    }
    let folder = folder.canonicalize().expect("the folder of the programs");
    let open = |engine| Sharing::OpenMps {
        openmps: folder.join("openmps"),
        engine,
        fenced,
        failover,
    };
    if on.is_empty() {
        on.push("soft".into());
    }
    if soaked.is_none() {
        println!(
            "| shared by | wrong | neighbour | the guilty | neighbours | longest round, ms | who comes next | named in the log |"
        );
        println!("|---|---|---|---|---|---|---|---|");
    }
    for sharing in on {
        let sharing = match &*sharing {
            "soft" => open("soft"),
            "nvidia" => open("nvidia"),
            "nvidia-mps" => Sharing::NvidiaMps,
            other => panic!("--on soft, nvidia or nvidia-mps, not {other}"),
        };
        if let Some(rounds) = soaked {
            let plan = Plan {
                rounds,
                seed: u64::from(std::process::id()),
                of_each,
                every,
            };
            let begun = Instant::now();
            let mut round = 0;
            let seen = soak(&sharing, &folder.join("faults"), plan, |wrong, told| {
                round += 1;
                let seconds = begun.elapsed().as_secs_f64();
                eprintln!("{round} of {rounds}, {seconds:.1} s: {wrong:?}: {told}");
            });
            println!(
                "| {} | was told | how often |\n|---|---|---|",
                sharing.name()
            );
            let guilty = seen.guilty.iter();
            let guilty = guilty.map(|(wrong, told)| (format!("{wrong:?}"), told));
            let neighbours = seen.neighbours.iter();
            let neighbours = neighbours.map(|(work, told)| (format!("neighbour {work}"), told));
            let mut counts = BTreeMap::new();
            for row in guilty.chain(neighbours) {
                *counts.entry(row).or_insert(0) += 1;
            }
            for ((who, told), count) in counts {
                println!("| {who} | {told} | {count} |");
            }
            println!(
                "before: {:?}\nafterwards: {:?}",
                seen.server[0], seen.server[1]
            );
            continue;
        }
        for (name, wrong) in WRONGS.iter().filter(|(name, _)| name.contains(&wrongs)) {
            for column in NEIGHBOURS
                .iter()
                .filter(|column| column.0.contains(&columns))
            {
                // A cell that cannot be made is a line as well, and the others follow.
                let made = std::panic::catch_unwind(|| {
                    cell(&sharing, &folder.join("faults"), *wrong, *column)
                });
                let text = made.map_or_else(|_| "not made | | | |".into(), |cell| cell.to_string());
                println!("| {} | {name} | {} | {text} |", sharing.name(), column.0);
            }
        }
    }
}
