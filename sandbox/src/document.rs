//! The table as a page.
//!
//! Called by `cargo xtask coverage`. Must not know the kernel.

use std::fmt::Write;

use crate::calls::{ALLOWED, DRIVER, Of, REFUSED, Use};

const HEAD: &str = "\
# System calls

<!-- Made from sandbox/src/calls.rs by `UPDATE=1 cargo test -p sandbox --test document`. -->

What the daemon and its servers may ask of the kernel. [The threat model](threat-model.md#what-the-kernel-refuses-to-daemon-and-servers) says
when this holds, and what does not. Where a cell has words, the call is allowed with such arguments alone.

## Servers on the software GPU, and their daemon

Nothing else is allowed: it answers ENOSYS, as on a kernel that does not have the call. A server filters its calls from before its first
client on; the daemon's filter holds for its servers until then.

| call | server | daemon | for what |
|---|---|---|---|
";

const DRIVERS: &str = "
## Beside NVIDIA's driver

With `OPENMPS_SANDBOX=strict` a server there may make the calls of a server on the software GPU and these; all others answer ENOSYS.

| call | allowed | for what |
|---|---|---|
";

const REFUSALS: &str = "
## What nobody is to do

In a server on the software GPU such a call ends the process (SIGSYS), which the daemon's log tells. Where NVIDIA's driver is,
these are the calls that answer ENOSYS, and all others are allowed, unless an operator wants less.

| call | refused to | for it would give |
|---|---|---|
";

/// docs/system-calls.md
#[must_use]
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    let mut former = "";
    for row in ALLOWED {
        let why = in_full(row.why, &mut former);
        let (server, daemon) = (cell(row.server), cell(row.daemon));
        let _ = writeln!(
            text,
            "| {} | {server} | {daemon} | {why} |",
            row.call.name()
        );
    }
    text += DRIVERS;
    for row in DRIVER {
        let (call, with) = (row.call.name(), cell(row.with));
        let _ = writeln!(text, "| {call} | {with} | {} |", row.why);
    }
    text += REFUSALS;
    for row in REFUSED {
        let why = in_full(row.why, &mut former);
        let with = match row.with {
            Use::Only(arguments) => format!(" with {}", arguments.text),
            Use::Always | Use::Never => String::new(),
        };
        let of = match row.of {
            Of::SoftwareServers => "servers on the software GPU",
            Of::Servers => "servers",
            Of::Everybody => "all",
            Of::BesideTheDriver => "all, where the driver is",
        };
        let _ = writeln!(text, "| {}{with} | {of} | {why} |", row.call.name());
    }
    text
}

/// A row that says "the same" says what the one above does.
fn in_full<'a>(why: &'a str, former: &mut &'a str) -> String {
    match why.strip_prefix("the same") {
        Some(more) => format!("{former}{more}"),
        None => {
            *former = why;
            why.to_owned()
        }
    }
}

const fn cell(with: Use) -> &'static str {
    match with {
        Use::Never => "",
        Use::Always => "yes",
        Use::Only(arguments) => arguments.text,
    }
}
