//! Every answer of `cuGetProcAddress` that was measured on a real driver.

use std::collections::{BTreeMap, BTreeSet};

use cuda_abi::proc_address::{Answer, DRIVER_VERSION, lookup};

/// Name → (legacy, per-thread) break points, each a version and the symbol from there on.
type Measured = BTreeMap<&'static str, [Vec<(i32, &'static str)>; 2]>;

fn measured() -> Measured {
    let mut measured = Measured::new();
    for line in include_str!("data/getprocaddress.tsv")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let [name, kind, version, symbol] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("a line has four fields: {line}");
        };
        let kinds = measured.entry(name).or_default();
        kinds[usize::from(kind == "t")].push((version.parse().expect("a version"), symbol));
    }
    measured
}

fn expected(
    kinds: &[Vec<(i32, &'static str)>; 2],
    version: i32,
    flags: u64,
) -> Option<&'static str> {
    let twins = flags >= 2 && !kinds[1].is_empty();
    let points = &kinds[usize::from(twins)];
    points
        .iter()
        .filter(|(from, _)| *from <= version)
        .max()
        .map(|&(_, symbol)| symbol)
}

#[test]
fn every_name_at_every_break_point_of_any_name() {
    let measured = measured();
    assert_eq!(measured.len(), 477);
    let points = measured
        .values()
        .flatten()
        .flatten()
        .map(|&(version, _)| version);
    let versions: BTreeSet<i32> = points
        .flat_map(|version| [version - 5, version, version + 5])
        .chain([0, 1000])
        .filter(|version| *version <= DRIVER_VERSION)
        .collect();
    let mut found = BTreeSet::new();
    for (name, kinds) in &measured {
        for &version in &versions {
            for flags in 0..4 {
                let what = format!("{name} at {version} with flags {flags}");
                match (
                    lookup(name.as_bytes(), version, flags),
                    expected(kinds, version, flags),
                ) {
                    (Answer::Found(entry), Some(symbol)) => {
                        assert_eq!(entry.symbol(), symbol, "{what}");
                        found.insert(symbol);
                    }
                    (Answer::VersionTooLow, None) => {}
                    (answer, symbol) => panic!("{what}: {answer:?}, but measured {symbol:?}"),
                }
            }
        }
    }
    // 674 exported symbols, less the three that cannot be reached.
    assert_eq!(found.len(), 671);
}

#[test]
fn exported_names_with_a_suffix_are_unknown() {
    let measured = measured();
    let symbols: BTreeSet<&str> = measured
        .values()
        .flatten()
        .flatten()
        .map(|&(_, symbol)| symbol)
        .collect();
    for symbol in symbols
        .iter()
        .filter(|symbol| !measured.contains_key(*symbol))
    {
        for flags in 0..4 {
            let answer = lookup(symbol.as_bytes(), DRIVER_VERSION, flags);
            assert_eq!(answer, Answer::Unknown, "{symbol}");
        }
    }
}

#[test]
fn versions_above_the_drivers_are_refused_for_every_name() {
    for name in measured().keys() {
        for version in [DRIVER_VERSION + 1, 13020, i32::MAX] {
            assert_eq!(lookup(name.as_bytes(), version, 0), Answer::VersionTooHigh);
        }
    }
}
