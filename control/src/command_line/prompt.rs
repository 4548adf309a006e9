//! Commands from a terminal: a prompt with history, completion and help.
//!
//! Called by `lib` where standard input is a terminal. Of commands it knows the table's words and helps only.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};

use crate::command_line::client::{AskError, ask_with_remark};
use crate::commands::COMMANDS;

const PROMPT: &str = "mps> ";

/// Completes names of commands.
#[derive(Debug)]
struct Names;

/// The names that a line so far can become, and where in the line they begin.
fn candidates(line: &str) -> (usize, Vec<String>) {
    let begin = line.len() - line.trim_start().len();
    let typed = &line[begin..];
    let (at, typed) = match typed.strip_prefix("help ") {
        Some(rest) => (line.len() - rest.len(), rest),
        None => (begin, typed),
    };
    let names = COMMANDS.iter().map(|command| command.name);
    let fitting = names.filter(|name| name.starts_with(typed));
    (at, fitting.map(|name| format!("{name} ")).collect())
}

impl Completer for Names {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(candidates(line.get(..position).unwrap_or("")))
    }
}

impl Hinter for Names {
    type Hint = String;
}
impl Highlighter for Names {}
impl Validator for Names {}
impl Helper for Names {}

/// Where lines are remembered, if there is a home.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    let folder = state.join("openmps");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("control_history"))
}

/// Carries out what is typed until the end of input. The exit status says whether the daemon was
/// there.
pub fn run(socket: &Path) -> ExitCode {
    let mut editor = match Editor::<Names, DefaultHistory>::new() {
        Ok(editor) => editor,
        Err(error) => {
            eprintln!("no prompt: {error}");
            return crate::command_line::client::lines(socket);
        }
    };
    editor.set_helper(Some(Names));
    let history = history();
    if let Some(path) = &history {
        let _ = editor.load_history(path);
    }
    let exit = loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            // A line that is given up.
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                break ExitCode::FAILURE;
            }
        };
        if line.trim().is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line.trim());
        match ask_with_remark(socket, &line) {
            Ok(said) => drop(said.print()),
            Err(error @ AskError::NoDaemon) => {
                eprintln!("{error}");
                break ExitCode::FAILURE;
            }
            Err(error) => eprintln!("{error}"),
        }
    };
    if let Some(path) = &history {
        let _ = editor.save_history(path);
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_where_they_stand() {
        assert_eq!(candidates("get_serv").1.len(), 2);
        assert_eq!(candidates(" qu"), (1, vec!["quit ".to_owned()]));
        assert_eq!(
            candidates("help ter"),
            (5, vec!["terminate_client ".to_owned()])
        );
        assert!(candidates("quit -t").1.is_empty());
    }
}
