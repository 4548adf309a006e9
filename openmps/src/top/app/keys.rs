//! What keys do to what `openmps top` shows: in the list, while a filter is typed, and while a question stands.
//!
//! `top` hands each key on. Must not know how keys are read, nor carry anything out: that is the caller's.

use ratatui::crossterm::event::KeyCode;

use super::{Action, App, Mode, Question};
use crate::top::kernels::KernelTable;

impl App {
    /// A key was pressed.
    pub fn key(&mut self, key: KeyCode) -> Action {
        match std::mem::replace(&mut self.mode, Mode::List) {
            Mode::List => return self.key_in_list(key),
            Mode::Detail if key == KeyCode::Char('t') => return self.watch_kernels(),
            // Any key goes back.
            Mode::Detail | Mode::Help | Mode::Kernels(_) => {}
            Mode::Filter(former) => self.key_in_filter(former, key),
            Mode::Ask(question, typed) => return self.key_in_question(question, typed, key),
        }
        Action::Nothing
    }

    fn key_in_list(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('g') => self.together = self.together.next(),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.mode = Mode::Filter(self.filter.clone()),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Enter if self.selected().is_some() => self.mode = Mode::Detail,
            KeyCode::Char('t') => return self.watch_kernels(),
            KeyCode::Char('e') => self.ask(Question::End),
            KeyCode::Char('p') => self.ask(Question::Percentage),
            KeyCode::Char('m') => self.ask(Question::Memory),
            _ => {}
        }
        Action::Nothing
    }

    fn select(&mut self, by: isize) {
        let keys = self.keys();
        let at = keys.iter().position(|&key| self.is_selected(key));
        let next = at.map_or(0, |at| at.saturating_add_signed(by));
        self.selected = keys.get(next.min(keys.len().saturating_sub(1))).copied();
    }

    fn ask(&mut self, question: Question) {
        if self.process().is_some() {
            self.mode = Mode::Ask(question, String::new());
        }
    }

    fn watch_kernels(&mut self) -> Action {
        let Some(pid) = self.process() else {
            return Action::Nothing;
        };
        self.mode = Mode::Kernels(KernelTable::default());
        Action::WatchKernels(pid)
    }

    /// The process of the selected client; says so where it is not known.
    fn process(&mut self) -> Option<i32> {
        match self.selected()?.1.pid {
            0 => {
                self.show_message("its process id cannot be seen from here: `openmps control ps` says how it is named");
                None
            }
            pid => Some(pid),
        }
    }

    fn key_in_filter(&mut self, former: String, key: KeyCode) {
        match key {
            KeyCode::Esc => self.filter = former,
            KeyCode::Enter => {}
            key => {
                edit(&mut self.filter, key);
                self.mode = Mode::Filter(former);
            }
        }
        let keys = self.keys();
        if !self
            .selected
            .is_some_and(|selected| keys.contains(&selected))
        {
            self.selected = keys.first().copied();
        }
    }

    fn key_in_question(&mut self, question: Question, mut typed: String, key: KeyCode) -> Action {
        let Some((device, client)) = self.selected() else {
            self.show_message("the client has left");
            return Action::Nothing;
        };
        let (pid, server, device) = (client.pid, client.server, device.device);
        match (question, key) {
            (Question::End, KeyCode::Char('y')) => {
                return Action::Command(format!("terminate_client {server} {pid}"));
            }
            (Question::End, _) | (_, KeyCode::Esc) => self.show_message("nothing was changed"),
            (_, KeyCode::Enter) if typed.is_empty() => self.show_message("nothing was changed"),
            (Question::Percentage, KeyCode::Enter) => {
                return Action::Command(format!("limit set --client {pid} --percentage {typed}"));
            }
            (Question::Memory, KeyCode::Enter) => {
                return Action::Command(format!(
                    "limit set --client {pid} --memory {device}={typed}"
                ));
            }
            (_, key) => {
                edit(&mut typed, key);
                self.mode = Mode::Ask(question, typed);
            }
        }
        Action::Nothing
    }
}

/// Changes a line that is being typed. White space parts the daemon's words, so there is none.
fn edit(text: &mut String, key: KeyCode) {
    match key {
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(character) if !character.is_whitespace() && !character.is_control() => {
            text.push(character);
        }
        _ => {}
    }
}
