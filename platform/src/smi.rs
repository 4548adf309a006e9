//! What takes nvidia-smi's place where there is none: the parts of it that scripts of MPS use.
//!
//! The forms are those that scripts parse: Cloudpods reads the list of `--query-gpu` and `pmon`, the
//! Compose samples run `-c EXCLUSIVE_PROCESS`. Exit statuses are nvidia-smi's. It knows nothing of
//! daemons and devices: [`Machine`] does.

mod options;
mod query;
mod table;

use std::io::{self, Write};
use std::time::Duration;

pub use options::{Action, Options, Refused, USAGE, parse};
pub use query::{Field, ProcessField, Query};

use crate::gpus::{ComputeMode, Gpu, Process};

/// Exit status of a command line that is not understood.
pub const BAD_ARGUMENT: u8 = 2;
/// Exit status where something may not be done.
pub const NO_PERMISSION: u8 = 4;
/// Exit status where a device is not found.
pub const NOT_FOUND: u8 = 6;
/// Exit status where the machine cannot be asked.
pub const NO_DRIVER: u8 = 9;

/// What whoever is asked says, for the one who typed the command: nothing here depends on what it was.
pub type MachineError = Box<dyn std::error::Error + Send + Sync>;

/// Where facts come from, and who sets modes.
pub trait Machine {
    /// The devices, in order.
    ///
    /// # Errors
    /// When they cannot be found out.
    fn gpus(&mut self) -> Result<Vec<Gpu>, MachineError>;

    /// The processes on them.
    fn processes(&mut self) -> Vec<Process>;

    /// The same, with what each has had of the multiprocessors since the last time, or for the first time in a moment.
    fn sampled_processes(&mut self) -> Vec<Process>;

    /// Sets who may have a context on a device.
    ///
    /// # Errors
    /// When that is not allowed or not possible.
    fn set_mode(&mut self, gpu: &Gpu, mode: ComputeMode) -> Result<(), MachineError>;

    /// The version of our own product.
    fn version(&self) -> &str;

    /// The version of CUDA's driver API that programs see, such as 13.0.
    fn cuda_version(&self) -> &str;
}

/// What went wrong, and the exit status that says so.
#[derive(Debug)]
struct Failure(u8, String);

/// Does what the arguments (without the program's name) ask for. Gives the exit status.
///
/// # Errors
/// When `out` cannot be written.
pub fn run(arguments: &[String], machine: &mut dyn Machine, out: &mut dyn Write) -> io::Result<u8> {
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(Refused(why)) => {
            writeln!(
                out,
                "{why}\nRun 'nvidia-smi --help' for what is understood."
            )?;
            return Ok(BAD_ARGUMENT);
        }
    };
    let text = match &options.action {
        Action::Help => Ok(USAGE.to_owned()),
        Action::Version => Ok(format!(
            "OpenMPS smi {}\nCUDA Version        : {}\n",
            machine.version(),
            machine.cuda_version()
        )),
        Action::Processes { rounds, pause } => {
            return processes(&options, machine, *rounds, *pause, out);
        }
        Action::Mode(mode) => return set_modes(&options, machine, *mode, out),
        Action::List => chosen(&options, machine).map(|gpus| list(&gpus)),
        Action::Table => chosen(&options, machine).map(|gpus| table::table(machine, &gpus)),
        Action::Query(query) => {
            chosen(&options, machine).map(|gpus| query.answer(&gpus, machine.version(), gpus.len()))
        }
        Action::ProcessQuery(query) => chosen(&options, machine)
            .map(|gpus| query.answer_processes(&gpus, &machine.processes())),
    };
    finish(text, out)
}

fn finish(text: Result<String, Failure>, out: &mut dyn Write) -> io::Result<u8> {
    match text {
        Ok(text) => out.write_all(text.as_bytes()).map(|()| 0),
        Err(Failure(status, why)) => writeln!(out, "{why}").map(|()| status),
    }
}

/// The devices that `-i` names, or all.
fn chosen(options: &Options, machine: &mut dyn Machine) -> Result<Vec<Gpu>, Failure> {
    let gpus = machine
        .gpus()
        .map_err(|why| Failure(NO_DRIVER, why.to_string()))?;
    if gpus.is_empty() {
        return Err(Failure(NOT_FOUND, "No devices were found".into()));
    }
    if options.gpus.is_empty() {
        return Ok(gpus);
    }
    let mut named = Vec::new();
    for word in &options.gpus {
        match gpus.iter().find(|gpu| gpu.is_named(word)) {
            Some(gpu) => named.push(gpu.clone()),
            None => {
                let there: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
                return Err(Failure(
                    NOT_FOUND,
                    format!(
                        "No devices were found: there is no GPU {word}; there are {}",
                        there.join(", ")
                    ),
                ));
            }
        }
    }
    Ok(named)
}

fn list(gpus: &[Gpu]) -> String {
    gpus.iter()
        .map(|gpu| format!("GPU {}: {} (UUID: {})\n", gpu.index, gpu.name, gpu.uuid))
        .collect()
}

fn set_modes(
    options: &Options,
    machine: &mut dyn Machine,
    mode: ComputeMode,
    out: &mut dyn Write,
) -> io::Result<u8> {
    let gpus = match chosen(options, machine) {
        Ok(gpus) => gpus,
        Err(failure) => return finish(Err(failure), out),
    };
    for gpu in gpus {
        if gpu.mode == mode {
            let name = mode.argument();
            writeln!(
                out,
                "Compute mode is already set to {name} for GPU {}.",
                gpu.pci
            )?;
            continue;
        }
        if let Err(why) = machine.set_mode(&gpu, mode) {
            writeln!(
                out,
                "Unable to set the compute mode for GPU {}: {why}\nTreating as a failure.",
                gpu.pci
            )?;
            return Ok(NO_PERMISSION);
        }
        writeln!(
            out,
            "Set compute mode to {} for GPU {}.",
            mode.argument(),
            gpu.pci
        )?;
    }
    writeln!(out, "All done.")?;
    Ok(0)
}

/// `pmon`: what is on each device, a round at a time.
fn processes(
    options: &Options,
    machine: &mut dyn Machine,
    rounds: Option<u32>,
    pause: Duration,
    out: &mut dyn Write,
) -> io::Result<u8> {
    let mut round = 0;
    loop {
        let gpus = match chosen(options, machine) {
            Ok(gpus) => gpus,
            Err(failure) => return finish(Err(failure), out),
        };
        if round == 0 {
            out.write_all(table::PROCESSES_HEAD.as_bytes())?;
        }
        out.write_all(table::processes(&gpus, &machine.sampled_processes()).as_bytes())?;
        out.flush()?;
        round += 1;
        if rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(0);
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::{MIB, PciAddress};

    struct Stage {
        gpus: Vec<Gpu>,
        processes: Vec<Process>,
        may: bool,
    }

    impl Machine for Stage {
        fn gpus(&mut self) -> Result<Vec<Gpu>, MachineError> {
            Ok(self.gpus.clone())
        }

        fn processes(&mut self) -> Vec<Process> {
            self.processes.clone()
        }

        fn sampled_processes(&mut self) -> Vec<Process> {
            let mut processes = self.processes.clone();
            for process in processes.iter_mut().filter(|process| process.client) {
                process.multiprocessors = Some(0.253);
            }
            processes
        }

        fn set_mode(&mut self, gpu: &Gpu, mode: ComputeMode) -> Result<(), MachineError> {
            if !self.may {
                return Err("only root may".into());
            }
            self.gpus[gpu.index as usize].mode = mode;
            Ok(())
        }

        fn version(&self) -> &str {
            "0.1.0"
        }

        fn cuda_version(&self) -> &str {
            "13.0"
        }
    }

    fn stage() -> Stage {
        let gpu = |index, bus| Gpu {
            index,
            uuid: format!("GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a0{index}"),
            name: "Tesla T4".into(),
            pci: PciAddress {
                domain: 0,
                bus,
                device: 0x1e,
            },
            memory: 15360 * MIB,
            used: None,
            mode: ComputeMode::Default,
        };
        Stage {
            gpus: vec![gpu(0, 0), gpu(1, 0x0a)],
            processes: vec![
                Process {
                    gpu: 0,
                    pid: 31,
                    name: "nvidia-cuda-mps-server".into(),
                    label: None,
                    client: false,
                    memory: None,
                    multiprocessors: None,
                },
                Process {
                    gpu: 0,
                    pid: 4711,
                    name: "/opt/app/nbody".into(),
                    label: None,
                    client: true,
                    memory: Some(516 * MIB),
                    multiprocessors: None,
                },
            ],
            may: true,
        }
    }

    fn say(stage: &mut Stage, line: &str) -> (u8, String) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut out = Vec::new();
        let status = run(&words, stage, &mut out).unwrap();
        (status, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_list_of_the_query_is_what_cloudpods_parses() {
        let mut stage = stage();
        stage.gpus[1].mode = ComputeMode::ExclusiveProcess;
        let query = "--query-gpu=gpu_uuid,gpu_name,gpu_bus_id,memory.total,compute_mode,index";
        let (status, text) = say(&mut stage, &format!("{query} --format=csv"));
        assert_eq!(status, 0);
        assert_eq!(
            text,
            "uuid, name, pci.bus_id, memory.total [MiB], compute_mode, index\n\
             GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a00, Tesla T4, 00000000:00:1E.0, 15360 MiB, Default, 0\n\
             GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a01, Tesla T4, 00000000:0A:1E.0, 15360 MiB, Exclusive_Process, 1\n"
        );
        let (_, text) = say(
            &mut stage,
            "-i 1 --query-gpu index,memory.total,compute_mode,gpu_bus_id --format csv,noheader,nounits",
        );
        assert_eq!(text, "1, 15360, Exclusive_Process, 00000000:0A:1E.0\n");
    }

    #[test]
    fn processes_are_listed_with_what_they_have() {
        let mut stage = stage();
        stage.processes[1].name = "a,b\u{1b}[31m".into();
        let query = "--query-compute-apps=pid,process_name,used_gpu_memory";
        let (status, text) = say(&mut stage, &format!("{query} --format=csv"));
        assert_eq!(status, 0);
        assert_eq!(
            text,
            "pid, process_name, used_gpu_memory [MiB]\n\
             31, nvidia-cuda-mps-server, [N/A]\n\
             4711, a b[31m, 516 MiB\n"
        );
        let line = "-i 0 --query-compute-apps gpu_uuid,gpu_bus_id,gpu_name,name,used_memory --format csv,noheader,nounits";
        let (_, text) = say(&mut stage, line);
        let last =
            "GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a00, 00000000:00:1E.0, Tesla T4, a b[31m, 516\n";
        assert!(text.ends_with(last) && text.lines().count() == 2, "{text}");
        // Of a device on which nobody is.
        assert_eq!(
            say(&mut stage, &format!("-i 1 {query} --format=csv,noheader")).1,
            ""
        );
    }

    #[test]
    fn unknown_fields_and_options_are_named() {
        for (line, says) in [
            (
                "--query-compute-apps=pid,colour --format=csv",
                "used_gpu_memory",
            ),
            ("--query-compute-apps=pid", "--format"),
            (
                "--query-compute-apps=pid --query-gpu=index --format=csv",
                "together",
            ),
            ("-L --query-compute-apps=pid --format=csv", "-i only"),
            ("--query-gpu=index,colour --format=csv", "\"colour\""),
            ("--query-gpu=memory --format=csv", "memory.total"),
            ("--query-gpu=index", "--format"),
            ("--query-gpu=index --format=xml", "xml"),
            ("--query-gpu=index --format=csv,loud", "loud"),
            ("--colour", "--colour"),
            ("-c", "-c"),
            ("-c EXCLUSIVE", "EXCLUSIVE_PROCESS"),
            ("pmon -s z", "\"z\""),
            ("pmon -c none", "none"),
            ("-i", "-i"),
            ("dmon", "dmon"),
        ] {
            let (status, text) = say(&mut stage(), line);
            assert_eq!(status, BAD_ARGUMENT, "{line}: {text}");
            assert!(text.contains(says), "{line}: {text}");
        }
    }

    #[test]
    fn modes_are_set_for_those_that_are_named() {
        let mut stage = stage();
        assert_eq!(
            say(&mut stage, "-i 1 -c EXCLUSIVE_PROCESS"),
            (
                0,
                "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:0A:1E.0.\nAll done.\n"
                    .into()
            )
        );
        assert_eq!(
            say(&mut stage, "-c 3"),
            (
                0,
                "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:00:1E.0.\n\
                 Compute mode is already set to EXCLUSIVE_PROCESS for GPU 00000000:0A:1E.0.\n\
                 All done.\n"
                    .into()
            )
        );
        assert_eq!(say(&mut stage, "-i 7 -c 0").0, NOT_FOUND);
        stage.may = false;
        let (status, text) = say(&mut stage, "-c DEFAULT");
        assert_eq!(status, NO_PERMISSION);
        assert!(text.contains("only root may"), "{text}");
    }

    #[test]
    fn devices_are_listed_and_chosen_by_every_name() {
        let mut stage = stage();
        let one = "GPU 1: Tesla T4 (UUID: GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a01)\n";
        for name in ["1", "GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a01", "0a:1e.0"] {
            assert_eq!(say(&mut stage, &format!("-L -i {name}")), (0, one.into()));
        }
        assert_eq!(say(&mut stage, "--list-gpus").1.lines().count(), 2);
        stage.gpus.clear();
        assert_eq!(
            say(&mut stage, "-L"),
            (NOT_FOUND, "No devices were found\n".into())
        );
    }

    #[test]
    fn pmon_has_twelve_columns_and_the_servers_short_name() {
        let (status, text) = say(&mut stage(), "pmon -s mu -c 1");
        assert_eq!(status, 0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().skip(1).collect::<Vec<_>>(),
            [
                "gpu", "pid", "type", "fb", "ccpm", "sm", "mem", "enc", "dec", "jpg", "ofa",
                "command"
            ]
        );
        let rows: Vec<Vec<&str>> = lines[2..]
            .iter()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(rows.iter().all(|row| row.len() == 12), "{text}");
        // Fifteen characters, as in the kernel's own list: that is what others look for.
        assert_eq!(rows[0][11], "nvidia-cuda-mps");
        assert_eq!(
            rows[1],
            [
                "0", "4711", "M+C", "516", "0", "25", "-", "-", "-", "-", "-", "nbody"
            ]
        );
        // A device without processes has a row of nothing.
        assert_eq!(rows[2][..2], ["1", "-"]);
        assert_eq!(rows[2][11], "-");
    }

    #[test]
    fn the_table_shows_devices_and_clients() {
        let (status, text) = say(&mut stage(), "");
        assert_eq!(status, 0);
        for part in [
            "OpenMPS",
            "CUDA Version: 13.0",
            "Tesla T4",
            "00000000:0A:1E.0",
            "15360MiB",
            "M+C",
            "nbody",
            "516MiB",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let widths: std::collections::BTreeSet<usize> =
            text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths.len(), 1, "{text}");
    }
}
