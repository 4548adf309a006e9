//! The table for people, and the rows of `pmon`.
//!
//! Called by `smi`. Must not ask for facts, nor know whose view it prints.

use std::fmt::Write;

use super::Machine;
use crate::gpus::{Gpu, MIB, Process};

/// Characters between a line's first and last.
const WIDTH: usize = 98;

/// The two lines above `pmon`'s rows.
pub(super) const PROCESSES_HEAD: &str = "\
# gpu         pid   type     fb   ccpm     sm    mem    enc    dec    jpg    ofa    command \n\
# Idx           #    C/G     MB     MB      %      %      %      %      %      %    name    \n";

/// A line of the table.
fn line(text: &mut String, content: &str) {
    let content: String = content.chars().take(WIDTH - 1).collect();
    let _ = writeln!(text, "| {content:<width$}|", width = WIDTH - 1);
}

fn rule(text: &mut String, of: char) {
    let _ = writeln!(text, "+{}+", of.to_string().repeat(WIDTH));
}

/// The last part of a program's path, in characters that a terminal shows.
fn short(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    printable(last.split_whitespace().next().unwrap_or("-"))
}

/// A name in characters that a terminal shows.
pub(super) fn printable(name: &str) -> String {
    name.chars().filter(|it| !it.is_control()).collect()
}

/// As in the kernel's list of processes, where others look for it: at most 15 characters.
fn command(process: &Process) -> String {
    let name = process.label.clone();
    let name = name.unwrap_or_else(|| short(&process.name));
    printable(&name).chars().take(15).collect()
}

fn kind(process: &Process) -> &'static str {
    if process.client { "M+C" } else { "C" }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "N/A".into(), |bytes| format!("{}MiB", bytes / MIB))
}

fn pid(process: &Process) -> String {
    match process.pid {
        0 => "?".into(),
        pid => pid.to_string(),
    }
}

/// The table.
pub(super) fn table(machine: &mut dyn Machine, gpus: &[Gpu]) -> String {
    let mut text = String::new();
    rule(&mut text, '-');
    line(
        &mut text,
        &format!(
            "OpenMPS smi {:<53} CUDA Version: {}",
            machine.version(),
            machine.cuda_version()
        ),
    );
    rule(&mut text, '-');
    let row = |[index, name, address, memory, mode]: [&str; 5]| {
        format!("{index:>4}  {name:<28.28}  {address:<16}  {memory:>21}  {mode}")
    };
    line(
        &mut text,
        &row(["GPU", "Name", "Bus-Id", "Memory-Usage", "Compute M."]),
    );
    rule(&mut text, '=');
    for gpu in gpus {
        let memory = format!("{} / {}", size(gpu.used), size(Some(gpu.memory)));
        let (index, address) = (gpu.index.to_string(), gpu.pci.to_string());
        let mode = gpu.mode.to_string();
        line(
            &mut text,
            &row([&index, &gpu.name, &address, &memory, &mode]),
        );
    }
    rule(&mut text, '-');
    line(&mut text, "Processes:");
    let row = |[gpu, pid, kind, name, memory]: [&str; 5]| {
        format!("{gpu:>4}  {pid:>8}  {kind:>5}  {name:<59.59}  {memory:>10}")
    };
    line(
        &mut text,
        &row(["GPU", "PID", "Type", "Process name", "GPU Memory"]),
    );
    rule(&mut text, '=');
    let shown: Vec<Process> = machine
        .processes()
        .into_iter()
        .filter(|process| gpus.iter().any(|gpu| gpu.index == process.gpu))
        .collect();
    if shown.is_empty() {
        line(&mut text, "  No running processes found");
    }
    for process in shown {
        let name = match &process.label {
            Some(label) => format!("{label} ({})", process.name),
            None => process.name.clone(),
        };
        let name = printable(&name);
        line(
            &mut text,
            &row([
                &process.gpu.to_string(),
                &pid(&process),
                kind(&process),
                &name,
                &size(process.memory),
            ]),
        );
    }
    rule(&mut text, '-');
    text
}

/// A round of `pmon`: a row for each process, and one of dashes for a device without any.
pub(super) fn processes(gpus: &[Gpu], processes: &[Process]) -> String {
    let mut text = String::new();
    let mut row = |gpu: u32, [pid, kind, memory, ccpm, sm, command]: [&str; 6]| {
        let none = "-";
        let _ = writeln!(
            text,
            "{gpu:>5} {pid:>11} {kind:>6} {memory:>6} {ccpm:>6} {sm:>6} {none:>6} {none:>6} \
             {none:>6} {none:>6} {none:>6}    {command:<15}"
        );
    };
    for gpu in gpus {
        let mut any = false;
        for process in processes.iter().filter(|process| process.gpu == gpu.index) {
            any = true;
            let memory = process.memory.map(|bytes| (bytes / MIB).to_string());
            let memory = memory.as_deref().unwrap_or("-");
            let sm = process.multiprocessors;
            let sm = sm.map_or_else(|| "-".to_owned(), |part| format!("{:.0}", part * 100.0));
            let pid = process.pid.to_string();
            row(
                gpu.index,
                [&pid, kind(process), memory, "0", &sm, &command(process)],
            );
        }
        if !any {
            row(gpu.index, ["-", "-", "-", "-", "-", "-"]);
        }
    }
    text
}
