//! OpenMPS beside NVIDIA's MPS beside the driver alone (which shares by time slices), on one GPU.
//!
//! `gpu_bench FOLDER [--neighbours] [--rounds N] [--json FILE] [--only TEXT]... [--against OPENMPS]`: FOLDER has the programs (`openmps`, `gpu_client`,
//! `launch_cost`, `copies`, `nbody`); NVIDIA's daemon is the machine's own. Every figure is taken in rounds, the
//! peers in turn, so that drift favours nobody; the table has medians, with the least and the most. With
//! `--neighbours` they are of clients that disturb each other, and OpenMPS is there with one context and with several, with `--against` of this build beside another one's program.

mod figures;
mod neighbours;
mod peers;

use std::collections::BTreeMap;
use std::path::PathBuf;

use figures::FIGURES;
use neighbours::NEIGHBOURS;
use peers::Peer;

fn main() {
    let mut folder = PathBuf::from(".");
    let (mut rounds, mut json, mut only, mut other) = (3, None, Vec::new(), None);
    let (mut figures, mut has_neighbours) = (FIGURES, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || words.next().expect("a value follows");
        match word.as_str() {
            "--neighbours" => (figures, has_neighbours) = (NEIGHBOURS, true),
            "--rounds" => rounds = next().parse().expect("a number of rounds"),
            "--json" => json = Some(PathBuf::from(next())),
            "--only" => only.push(next()),
            "--against" => other = Some(PathBuf::from(next())),
            _ => folder = word.into(),
        }
    }
    let folder = folder.canonicalize().expect("the folder of the programs");
    let peers = match other {
        Some(other) => Peer::builds(&folder, &other.canonicalize().expect("another `openmps`")),
        None => Peer::all(&folder, has_neighbours),
    };
    // By row, and by peer, one value a round.
    let mut table: Vec<(String, BTreeMap<&'static str, Vec<f64>>)> = Vec::new();
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|text| name.contains(text));
    for figure in figures.iter().filter(|figure| is_wanted(figure.name)) {
        for _ in 0..figure.rounds.min(rounds) {
            for peer in &peers {
                for (row, value) in (figure.take)(peer) {
                    let row = format!("{}{row}", figure.name);
                    let at = table.iter().position(|(name, _)| *name == row);
                    let at = at.unwrap_or_else(|| {
                        table.push((row, BTreeMap::new()));
                        table.len() - 1
                    });
                    table[at].1.entry(peer.name()).or_default().push(value);
                }
            }
        }
        eprintln!("{}", figure.name);
    }
    print_table(&table, &peers);
    if let Some(file) = json {
        let rows: BTreeMap<_, _> = table.into_iter().collect();
        let text = serde_json::to_string_pretty(&rows).expect("names and numbers");
        std::fs::write(&file, text).expect("the file can be written");
    }
}

fn print_table(table: &[(String, BTreeMap<&'static str, Vec<f64>>)], peers: &[Peer]) {
    print!("{:<52}", "");
    for peer in peers {
        print!(" {:>30}", peer.name());
    }
    println!();
    for (row, values) in table {
        print!("{row:<52}");
        for peer in peers {
            let text = values.get(peer.name()).map_or("–".to_owned(), |values| {
                let mut values = values.clone();
                values.sort_by(f64::total_cmp);
                let (least, most) = (values[0], values[values.len() - 1]);
                let median = values[values.len() / 2];
                format!("{} ({} – {})", number(median), number(least), number(most))
            });
            print!(" {text:>30}");
        }
        println!();
    }
}

/// Four digits or more, never an exponent.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
