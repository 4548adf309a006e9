//! docs/system-calls.md says what the table says.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;

use sandbox::calls::{ALLOWED, DRIVER, Of, REFUSED, Use};

#[test]
fn the_page_is_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/system-calls.md");
    let page = sandbox::document();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == page,
        "docs/system-calls.md is not the table's: UPDATE=1 cargo test -p sandbox --test document"
    );
}

#[test]
fn no_call_has_two_rows_or_contradicts_itself() {
    let mut names = BTreeSet::new();
    for row in ALLOWED {
        assert!(names.insert(row.call.name()), "{} twice", row.call.name());
        // A server is started under the daemon's filter.
        assert!(
            !matches!(row.daemon, Use::Never),
            "{}: a daemon's servers may begin with what they may go on with",
            row.call.name()
        );
    }
    let mut drivers = BTreeSet::new();
    for row in DRIVER {
        let name = row.call.name();
        assert!(drivers.insert(name), "{name} twice");
        let refused = REFUSED.iter().find(|row| row.call.name() == name);
        assert!(
            refused.is_none_or(|row| row.of == Of::SoftwareServers || !matches!(row.with, Use::Always)),
            "{name} is the driver's in one table and nobody's in the other"
        );
    }
    let mut refused = BTreeSet::new();
    for row in REFUSED {
        let name = row.call.name();
        assert!(refused.insert(name), "{name} twice");
        let allowed = ALLOWED.iter().find(|row| row.call.name() == name);
        let to_servers = allowed.is_some_and(|row| !matches!(row.server, Use::Never));
        assert!(
            !to_servers || row.of == Of::BesideTheDriver,
            "{name} would end the servers that may use it"
        );
        let to_daemon = allowed.is_some() && row.of == Of::Everybody;
        assert!(
            !to_daemon,
            "{name} is the daemon's in one table and nobody's in the other"
        );
    }
}
