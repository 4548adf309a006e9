//! OpenMPS: many processes, one GPU.
//!
//! One binary: the control daemon, the server and the tools. Called as `nvidia-cuda-mps-control` it
//! takes that program's arguments; called as `nvidia-smi` or `ptxas`, those of that.
//!
//! Owns the choice by name and the subcommands' list; each does its work in its own file. Must not know a device or
//! a daemon itself.

mod cdi;
mod cloudpods;
mod command;
mod compose;
mod confinement;
mod container_names;
mod demo;
mod doctor;
#[cfg(target_env = "gnu")]
mod driver_mutex;
mod embedded;
mod engines;
mod file_receiver;
mod http;
mod kubernetes;
mod logs;
mod machine;
mod markup;
mod metrics;
mod page;
mod private_daemon;
mod ptxas;
mod reach;
mod report;
mod run;
mod screen;
mod top;
mod trace;
mod usage;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "openmps", version, about = "Many processes, one GPU")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs three n-body programs side by side on one device, under a private daemon
    Demo(demo::Arguments),
    /// Runs a program under the daemon of the current pipe directory
    Run(run::Arguments),
    /// The control daemon and its commands, with nvidia-cuda-mps-control's arguments
    #[command(disable_help_flag = true)]
    Control {
        /// Options and command, as nvidia-cuda-mps-control takes them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Groups of clients that share a budget of memory and a part of the compute
    #[command(after_help = GROUP_HELP)]
    Group {
        #[command(flatten)]
        words: ForwardedWords,
    },
    /// What a running client or a group may have, shown or changed at once
    #[command(after_help = LIMIT_HELP)]
    Limit {
        #[command(flatten)]
        words: ForwardedWords,
    },
    /// Gives a client a name of its own in lists, or takes it away
    #[command(after_help = LABEL_HELP)]
    Label {
        #[command(flatten)]
        words: ForwardedWords,
    },
    /// Says what is wrong with this machine's set-up, and how to mend it
    Doctor(doctor::Arguments),
    /// Who uses the devices, how much, and who waits: a screen that keeps itself up to date
    Top(top::Arguments),
    /// The same for Prometheus: printed once, or served over HTTP
    Metrics(metrics::Arguments),
    /// A page for a browser: devices, clients, their history, limits and logs
    Page(page::Arguments),
    /// Who used what while a program ran, or for a time, as one HTML file with plots
    Report(report::Arguments),
    /// Shows what the daemon and its servers wrote to their logs
    Logs(logs::Arguments),
    /// Time lines of what programs did: tables of them, and several as one
    Trace(trace::Arguments),
    /// Devices, clients and compute modes, with nvidia-smi's arguments
    #[command(disable_help_flag = true)]
    Smi {
        /// As nvidia-smi takes them; --help lists those that are understood
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// PTX for the software GPU, with ptxas' arguments: hands it through as the image
    #[command(disable_help_flag = true, hide = true)]
    Ptxas {
        /// As ptxas takes them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Writes a CDI specification, by which containers get the device
    Cdi(cdi::Arguments),
    /// Serves a Cloudpods host in place of yunion-mps-daemon
    Cloudpods(cloudpods::Arguments),
    /// Shares of GPUs as resources of a Kubernetes node
    Kubernetes(kubernetes::Arguments),
    /// What the Compose images run
    Compose(compose::Arguments),
    /// The server that owns the devices; started by the daemon
    #[command(hide = true)]
    Server,
    /// The process above NVIDIA's MPS; started by the daemon
    #[command(hide = true)]
    UnderlaySupervisor {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Prints the devices that a server would have, for this program itself
    #[command(hide = true)]
    Devices,
    /// Prints a completion script for a shell
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// What is passed on to the daemon, which knows what it means.
#[derive(Debug, clap::Args)]
struct ForwardedWords {
    /// What to do, and with what
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "WORD"
    )]
    words: Vec<String>,
}

const GROUP_HELP: &str = "\
  openmps group add NAME [--memory 0=2G,1=512M] [--percentage 25] [--reserved] [--kernel-time 30s] [--cgroup PATH]
  openmps group list
  openmps group show NAME
  openmps group remove NAME

A program is of a group when CUDA_MPS_PIPE_DIRECTORY is the directory that `add` prints (a container
is given that directory alone), or when it runs in the cgroup. Each takes --json.";

const LIMIT_HELP: &str = "\
  openmps limit show --client PID | --group NAME
  openmps limit set  --client PID | --group NAME [--memory 0=1G|0=none] [--percentage 50]
                     [--reserved | --no-reserved] [--priority 0|1] [--kernel-time 30s|none]

A client whose process id cannot be seen is named as SERVER/ID, which `openmps control ps` shows. Each
takes --json.";

const LABEL_HELP: &str = "\
  openmps label PID TEXT
  openmps label session/NUMBER TEXT
  openmps label PID

A client's own user may, and an operator. OPENMPS_LABEL in a program's environment does the same. Lists, metrics
and pages show it: 128 bytes at most. Sessions' numbers, which clients that cannot be seen have too, are in
`openmps top --json`.";

/// `openmps … | head`: who prints for a reader that has seen enough ends without the words of a panic.
fn end_quietly_without_a_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        let is_of_printing =
            said.starts_with("failed printing") || said.starts_with("failed to write");
        if !(is_of_printing && (said.contains("Broken pipe") || said.contains("BrokenPipe"))) {
            usual(panic);
        }
    }));
}

fn main() -> ExitCode {
    end_quietly_without_a_reader();
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("nvidia-cuda-mps-control") => return control(arguments.collect()),
        Some("nvidia-smi") => return smi(arguments.collect()),
        Some("ptxas" | "ptxas-blackwell") => {
            return ptxas::run(&arguments.collect::<Vec<_>>());
        }
        Some("nvidia-cuda-mps-server") => {
            if arguments.next().is_some_and(|argument| argument == "-v") {
                println!(
                    "OpenMPS server. Binary version: {}\n",
                    control::BINARY_VERSION
                );
                return ExitCode::SUCCESS;
            }
            return engines::serve();
        }
        _ => {}
    }
    let result = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Control { arguments } => return control(arguments),
        Command::Group { words } => return command("group", words.words),
        Command::Limit { words } => return command("limit", words.words),
        Command::Label { words } => return label(&words.words),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Page(arguments) => page::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Logs(arguments) => logs::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Smi { arguments } => return smi(arguments),
        Command::Ptxas { arguments } => return ptxas::run(&arguments),
        Command::Cdi(arguments) => cdi::run(&arguments),
        Command::Cloudpods(arguments) => cloudpods::run(&arguments),
        Command::Kubernetes(arguments) => kubernetes::run(&arguments),
        Command::Compose(arguments) => compose::run(&arguments),
        Command::Server => return engines::serve(),
        Command::UnderlaySupervisor { arguments } => {
            return control::underlay::supervise(&arguments);
        }
        Command::Devices => machine::print_devices(),
        Command::Completion { shell } => {
            let mut out = std::io::stdout();
            clap_complete::generate(shell, &mut Arguments::command(), "openmps", &mut out);
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("openmps: {error:#}");
        ExitCode::FAILURE
    })
}

/// Has the daemon carry out a command of its own.
fn command(name: &str, words: Vec<String>) -> ExitCode {
    // The daemon's words are parted by white space.
    if let Some(word) = words.iter().find(|word| word.contains(char::is_whitespace)) {
        eprintln!("openmps: {word:?} has white space within, which no name or path here may");
        return ExitCode::FAILURE;
    }
    control(
        std::iter::once(name.to_owned())
            .chain(words)
            .map(OsString::from)
            .collect(),
    )
}

/// Has the daemon call a client something.
fn label(words: &[String]) -> ExitCode {
    let (client, text) = words
        .split_first()
        .map_or(("", &[][..]), |(client, text)| (&**client, text));
    let text = text.join(" ");
    // Much longer ones would not fit what the daemon reads.
    if text.len() > daemon_interface::label::MOST {
        eprintln!(
            "openmps: a label has {} bytes at most, and this one has {}",
            daemon_interface::label::MOST,
            text.len()
        );
        return ExitCode::FAILURE;
    }
    let words = [client].into_iter().chain(text.split_whitespace());
    command("label", words.map(str::to_owned).collect())
}

fn control(arguments: Vec<OsString>) -> ExitCode {
    let host = control::HostProgram {
        start_server: engines::server_program,
        supervise_underlay: engines::underlay_program,
        driver: engine_nvidia::installed,
        open_modes: engines::open_modes,
        drives_hardware: engines::may_drive_hardware,
    };
    let mut arguments = texts(&arguments);
    match page::remove_option(&mut arguments) {
        Ok(Some(address)) => page::with_page(&address, |page| {
            // Before a command, whose words are its own.
            arguments.insert(0, format!("{}{page}", control::PAGE_PROCESS));
            control::main(&arguments, host)
        }),
        Ok(None) => control::main(&arguments, host),
        Err(error) => {
            eprintln!("openmps: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn smi(arguments: Vec<OsString>) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match platform::smi::run(
        &texts(&arguments),
        &mut machine::Machine::default(),
        &mut out,
    ) {
        Ok(status) => ExitCode::from(status),
        // Whoever read has seen enough.
        Err(_) => ExitCode::FAILURE,
    }
}

fn texts(arguments: &[OsString]) -> Vec<String> {
    arguments
        .iter()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect()
}
