//! No foreign crate comes or changes without somebody having said so: each that a lock file names stands in
//! `supply-chain/reviewed.txt`, with its checksum and what was looked at.
//!
//! cargo-vet does more: it takes over others' reviews, for which it needs a network that CI has not.
//!
//! Called by `main` and `ci`. Must not ask the network, nor judge a crate: people do.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::shell::root;

const LIST: &str = "supply-chain/reviewed.txt";
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];

/// What may be said of a crate: nothing yet, or what cargo-vet's words of the same names mean.
const CRITERIA: [&str; 3] = ["unreviewed", "safe-to-run", "safe-to-deploy"];

const HEAD: &str = "\
# Foreign crates that the lock files name: crate, version, checksum, criterion, who and when.
# Criteria: safe-to-deploy (read: no harm to expect in what we ship), safe-to-run (the same of what builds and tests),
# unreviewed (there before somebody read it; a change of version is to be read before it comes in).
";

/// A crate and its version.
type Name = (String, String);

/// A line of the list, less its crate.
#[derive(Debug, PartialEq, Eq)]
struct ReviewedCrate {
    checksum: String,
    /// Criterion, who and when.
    said: String,
}

/// Fails if a crate is not on the list, is another one than was put there, or is on it in vain.
pub fn check() -> Result<()> {
    let list = list(&fs::read_to_string(root().join(LIST)).context(LIST)?)?;
    let wrong = differences(&locked()?, &list);
    ensure!(
        wrong.is_empty(),
        "{LIST} and the lock files differ:\n  {}\n  -> read what came (`cargo vendor` has it), and put it on the list: \
         `cargo xtask reviewed` writes the lines, as unreviewed",
        wrong.join("\n  ")
    );
    Ok(())
}

/// Brings the list to what the lock files name. What was said stays.
pub fn write() -> Result<()> {
    let path = root().join(LIST);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let list = list(&text)?;
    let mut text = HEAD.to_owned();
    for ((name, version), checksum) in locked()? {
        let said = list.get(&(name.clone(), version.clone()));
        let said = said.filter(|entry| entry.checksum == checksum);
        let said = said.map_or(CRITERIA[0], |entry| &entry.said);
        text.push_str(&format!("{name} {version} {checksum} {said}\n"));
    }
    fs::write(&path, text).context(LIST)
}

/// What the lock files name, with checksums.
fn locked() -> Result<BTreeMap<Name, String>> {
    let mut all = BTreeMap::new();
    for lock in LOCKS {
        let text = fs::read_to_string(root().join(lock)).context(lock)?;
        all.extend(packages(&text));
    }
    Ok(all)
}

/// The crates of a lock file that come from a registry.
fn packages(lock: &str) -> BTreeMap<Name, String> {
    let field = |package: &str, name: &str| {
        let mut lines = package.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        value.map(|value| value.trim_end_matches('"').to_owned())
    };
    lock.split("[[package]]")
        .filter_map(|package| {
            let name = (field(package, "name")?, field(package, "version")?);
            Some((name, field(package, "checksum")?))
        })
        .collect()
}

fn list(text: &str) -> Result<BTreeMap<Name, ReviewedCrate>> {
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let [name, version, checksum, said] = words[..] else {
                anyhow::bail!("{LIST}: a line has crate, version, checksum and criterion: {line}");
            };
            let (criterion, who) = said.split_once(' ').unwrap_or((said, ""));
            ensure!(
                CRITERIA.contains(&criterion),
                "{LIST}: the criterion is one of {CRITERIA:?}: {line}"
            );
            ensure!(
                criterion == CRITERIA[0] || !who.is_empty(),
                "{LIST}: who read it, and when: {line}"
            );
            let entry = ReviewedCrate {
                checksum: checksum.to_owned(),
                said: said.to_owned(),
            };
            Ok(((name.to_owned(), version.to_owned()), entry))
        })
        .collect()
}

fn differences(
    locked: &BTreeMap<Name, String>,
    list: &BTreeMap<Name, ReviewedCrate>,
) -> Vec<String> {
    let came = locked.iter().filter_map(|(name, checksum)| {
        let crate_name = format!("{} {}", name.0, name.1);
        match list.get(name) {
            None => Some(format!("{crate_name} is not on the list")),
            Some(entry) if entry.checksum != *checksum => {
                Some(format!("{crate_name} has other content than was listed"))
            }
            Some(_) => None,
        }
    });
    let gone = list.keys().filter(|name| !locked.contains_key(*name));
    let gone = gone.map(|(name, version)| format!("{name} {version} is on the list in vain"));
    came.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n\
        [[package]]\nname = \"one\"\nversion = \"1.2.3\"\nsource = \"registry\"\nchecksum = \"aa\"\n";

    fn wrong(text: &str) -> Vec<String> {
        differences(&packages(LOCK), &list(text).unwrap())
    }

    #[test]
    fn a_crate_that_came_changed_or_went_is_named() {
        assert!(wrong("# head\none 1.2.3 aa unreviewed\n").is_empty());
        assert!(wrong("one 1.2.3 aa safe-to-run ada 2026-11-23\n").is_empty());
        assert_eq!(wrong(""), ["one 1.2.3 is not on the list"]);
        assert_eq!(
            wrong("one 1.2.3 bb unreviewed\n"),
            ["one 1.2.3 has other content than was listed"]
        );
        assert_eq!(
            wrong("one 1.2.2 aa unreviewed\none 1.2.3 aa unreviewed\n"),
            ["one 1.2.2 is on the list in vain"]
        );
    }

    #[test]
    fn who_says_that_it_is_safe_signs() {
        for line in [
            "one 1.2.3 aa",
            "one 1.2.3 aa good ada",
            "one 1.2.3 aa safe-to-run",
        ] {
            assert!(list(line).is_err(), "{line}");
        }
    }
}
