//! The table's names against what real drivers export, and its numbers against the numbers given.

use std::collections::{BTreeMap, BTreeSet};

use cuda_abi::functions::ROWS;

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
}

/// Symbol → the oldest driver that exports it.
fn exports() -> BTreeMap<&'static str, u32> {
    lines(include_str!("data/exports.tsv"))
        .map(|fields| (fields[0], fields[1].parse().expect("a driver's number")))
        .collect()
}

/// The oldest of the three drivers that knows a CUDA version.
fn driver_of(since: u32) -> u32 {
    match since {
        0..=12020 => 535,
        12030..=12040 => 550,
        _ => 580,
    }
}

#[test]
fn the_table_has_every_exported_symbol_and_no_other() {
    let symbols: Vec<&str> = ROWS
        .iter()
        .flat_map(|row| [Some(row.name), row.twin.map(|t| t.symbol)])
        .flatten()
        .collect();
    let distinct: BTreeSet<&str> = symbols.iter().copied().collect();
    assert_eq!(distinct.len(), symbols.len());
    let exported: BTreeSet<&str> = exports().into_keys().collect();
    assert_eq!(exported.len(), 674);
    assert_eq!(distinct, exported);
}

#[test]
fn each_driver_exports_what_its_version_has() {
    let exports = exports();
    for driver in [535, 550, 580] {
        for row in ROWS {
            assert_eq!(
                exports[row.name] <= driver,
                driver_of(row.since) <= driver,
                "{}",
                row.name
            );
            if let Some(twin) = row.twin {
                assert!(matches!(twin.suffix, "_ptds" | "_ptsz"));
                let expected = driver_of(twin.since) <= driver;
                assert_eq!(exports[twin.symbol] <= driver, expected, "{}", twin.symbol);
            }
        }
    }
}

#[test]
fn twins_begin_with_their_function_and_never_before_cuda_7() {
    for row in ROWS {
        if let Some(twin) = row.twin {
            assert_eq!(twin.since, row.since.max(7000), "{}", twin.symbol);
        }
    }
}

#[test]
fn numbers_are_those_given_and_never_given_again() {
    let given: Vec<(u16, &str)> = lines(include_str!("data/numbers.tsv"))
        .map(|fields| (fields[0].parse().expect("a number"), fields[1]))
        .collect();
    let numbers: BTreeSet<u16> = given.iter().map(|&(number, _)| number).collect();
    assert_eq!(
        numbers.len(),
        given.len(),
        "a number stands twice in numbers.tsv"
    );
    let by_name: BTreeMap<&str, u16> = given.iter().map(|&(number, name)| (name, number)).collect();
    for row in ROWS {
        let number = by_name.get(row.name);
        assert_eq!(
            number,
            Some(&row.number),
            "{}: give it a new line in numbers.tsv",
            row.name
        );
    }
}
