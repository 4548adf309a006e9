//! `openmps control -d --web ADDRESS`: the page started with the daemon, and ended with it.
//!
//! The page stays a process of its own, which begins before the daemon is confined and looks by itself whether the daemon is
//! still there. Must not know what the page serves, nor what else the daemon is told. Called by `main` before the daemon
//! starts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::http::Address;

/// The option, without or with its value behind it.
const OPTION: &str = "--web";

/// Takes the option out of a daemon's arguments.
///
/// # Errors
/// What it has to look like.
pub fn remove_option(arguments: &mut Vec<String>) -> Result<Option<String>> {
    // What follows the options is a command, whose words are its own.
    let options = arguments
        .iter()
        .position(|argument| !argument.starts_with('-') && !argument.contains(':'))
        .unwrap_or(arguments.len());
    let is_ours = |argument: &String| {
        argument == OPTION
            || argument
                .strip_prefix(OPTION)
                .is_some_and(|rest| rest.starts_with('='))
    };
    let Some(at) = arguments[..options].iter().position(is_ours) else {
        return Ok(None);
    };
    let is_daemon = |argument: &String| {
        ["-d", "--daemon", "-f", "--foreground", "--forground"].contains(&&**argument)
    };
    if !arguments[..options].iter().any(is_daemon) {
        bail!(
            "{OPTION} starts a page with a daemon (-d or -f); `openmps page` is one beside a daemon that runs"
        );
    }
    let argument = arguments.remove(at);
    let address = match argument.split_once('=') {
        Some((_, address)) => address.to_owned(),
        None if at < arguments.len() => arguments.remove(at),
        None => bail!("{OPTION} is followed by an address, as 127.0.0.1:9401"),
    };
    Address::parse(&address).with_context(|| format!("{OPTION} {address}"))?;
    Ok(Some(address))
}

/// Runs what becomes the daemon, or starts it, with the page beside it, whose process it is told.
pub fn with_page(address: &str, daemon: impl FnOnce(u32) -> ExitCode) -> ExitCode {
    let page = match start(address) {
        Ok(page) => page,
        Err(error) => {
            eprintln!("openmps: cannot start the page: {error}; the daemon was not started");
            return ExitCode::FAILURE;
        }
    };
    let came = daemon(page.id());
    if came != ExitCode::SUCCESS {
        // There is none, or another one's, beside which it was not asked for.
        kill_process(Pid::from_child(&page), Signal::TERM).ok();
    }
    came
}

/// Starts the page, which says what its address is, and waits until it listens.
fn start(address: &str) -> std::io::Result<Child> {
    let mut command: Command = control::this_program();
    let mut child = command
        .args(["page", "--beside-daemon", "--listen", address])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    match line.is_empty() {
        false => Ok(child),
        true => Err(std::io::Error::other(format!(
            "it ended with {}",
            child.wait()?
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Result<(Option<String>, String)> {
        let mut words = line.split_whitespace().map(str::to_owned).collect();
        let address = remove_option(&mut words)?;
        Ok((address, words.join(" ")))
    }

    #[test]
    fn the_option_is_taken_out_and_checked() {
        let expected = |rest: &str| (Some("127.0.0.1:1".to_owned()), rest.to_owned());
        assert_eq!(split("-d --web 127.0.0.1:1 -M").unwrap(), expected("-d -M"));
        assert_eq!(split("--web=127.0.0.1:1 -f").unwrap(), expected("-f"));
        assert_eq!(split("-d -M").unwrap(), (None, "-d -M".to_owned()));
        // A command's words are its own.
        assert_eq!(
            split("echo -d --web").unwrap(),
            (None, "echo -d --web".to_owned())
        );
        for (wrong, why) in [
            ("--web 127.0.0.1:1", "-d or -f"),
            ("-d --web", "followed by an address"),
            ("-d --web 9401", "an address and a port"),
            ("-d --web=x", "an address and a port"),
        ] {
            let error = format!("{:#}", split(wrong).unwrap_err());
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
