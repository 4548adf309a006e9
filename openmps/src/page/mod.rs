//! `openmps page`: who uses the devices, for a browser.
//!
//! A process beside the daemon, as `openmps metrics` is one: the daemon opens no port and reads no HTTP. What it shows is what the
//! daemon shows this process' user, and what is changed is changed as that user.
//!
//! Called by `main`. Owns the order in which the parts start; must not know what they answer.

mod answers;
mod beside;
mod change;
mod guard;
mod history;
mod history_form;
mod journal;
mod store;
mod time_line;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use control::Directories;

pub use self::beside::{remove_option, with_page};

use self::answers::Answers;
use self::guard::Guard;
use self::watch::Watch;
use crate::http::{Address, HttpListener};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where a browser finds it: 127.0.0.1:9401, or unix:PATH for a proxy
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse, default_value = "127.0.0.1:9401")]
    listen: Address,
    /// The token that changes need, in a file's first line, instead of one that is made and printed
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Looking needs the token, too
    #[arg(long)]
    private: bool,
    /// A name under which it may be asked, besides addresses, localhost and this machine's name
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// The file that keeps the history of a day, of 10 MB at most, or `none`: in place of openmps/page-history in
    /// XDG_STATE_HOME, or with --web in the daemon's folder of logs
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Leaves the terminal, says on standard output when it listens, and ends when the daemon has ended
    #[arg(long, hide = true)]
    beside_daemon: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Before anything is there to be removed at the end.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])?;
    let token = match &arguments.token_file {
        Some(path) => guard::read_token_file(path)?,
        None => guard::random_token()?,
    };
    let listening = HttpListener::bind(&arguments.listen)?;
    match &arguments.token_file {
        Some(_) => eprintln!("openmps page: {}/", listening.url),
        // What stands behind # a browser keeps to itself, and the page takes it out of the address.
        None => eprintln!(
            "openmps page: {}/\nopenmps page: to change things there: {0}/#token={token}",
            listening.url
        ),
    }
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let hostname = hostname.trim_end().to_owned();
    let mut names = arguments.host.clone();
    names.push(hostname.clone());
    let history = match &arguments.history {
        Some(path) if path.as_os_str() == "none" => None,
        Some(path) => Some(path.clone()),
        None => {
            let of_daemon = arguments.beside_daemon.then(Directories::from_environment);
            let log = of_daemon.and_then(|directories| Some(directories.ok()?.control_log()));
            store::default_path(log.as_deref().and_then(Path::parent))
        }
    };
    let watch = Arc::new(Watch::new(hostname, history));
    let answers = Answers::new(
        Guard::new(token, names, arguments.private),
        Arc::clone(&watch),
    );
    listening.answer_with("page", move |question| answers.answer(question))?;
    if arguments.beside_daemon {
        // Of the terminal's signals none is for it: it ends with the daemon.
        rustix::process::setsid().ok();
        println!("listening");
    }
    let (until_gone, handle) = (arguments.beside_daemon, signals.handle());
    let watcher = Arc::clone(&watch);
    std::thread::Builder::new()
        .name("page watch".to_owned())
        .spawn(move || {
            watcher.poll_daemon(until_gone);
            handle.close();
        })
        .context("cannot start a thread")?;
    signals.forever().next();
    watch.save_last_minute();
    Ok(ExitCode::SUCCESS)
}
