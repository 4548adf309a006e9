//! The log of failed calls that CUDA programs can read (CUDA driver API 12.9, "Error Log Management"): the last messages in memory,
//! the program's own functions that are called with each, and the file that CUDA_LOG_FILE names.
//!
//! Filled by `exports` with each call that failed, and by [`log`](crate::log) with what explains it; read by `api::error_log`. Must not
//! know what a call does. A program's functions are called where a call ends, when this library holds no lock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{CString, OsStr, c_char, c_void};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cuda_abi::CUresult;

use crate::pointers::CallbackData;

/// Bytes of messages that are kept, as documented of cuLogsDumpToMemory.
const MOST: usize = 25_600;

/// Functions of a program's at a time.
const MOST_CALLBACKS: usize = 64;

/// What stands before messages where older ones are gone.
const TRUNCATED: &str = "[older messages are lost]\n";

/// CUlogLevel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error = 0,
    Warning = 1,
}

/// A function of the program's, and what it is called with.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void, u32, *mut c_char, usize);

#[derive(Clone, Copy, Debug)]
struct Callback {
    /// What the program knows it by; none is 0.
    number: u64,
    function: Function,
    data: CallbackData,
}

#[derive(Debug)]
struct Message {
    level: Level,
    /// With its newline, as files have it.
    line: String,
    /// Where in the line the message itself begins, without time and thread.
    text: usize,
}

/// A place between two messages, as the program keeps it: how many came before, modulo 2³².
pub(crate) type Position = u32;

#[derive(Debug, Default)]
struct ErrorLog {
    messages: VecDeque<Message>,
    /// Bytes of their lines.
    bytes: usize,
    /// Messages that have come, kept or not.
    came: Position,
    /// Of these, those that the callbacks were called with.
    delivered: Position,
    callbacks: Vec<Callback>,
    /// Callbacks that there have been.
    numbers: u64,
}

static LOG: Mutex<Option<ErrorLog>> = Mutex::new(None);

thread_local! {
    /// Whether this thread is in a function of the program's that is called from here: calls that fail there are logged, and told to
    /// no function, which would never end.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The process that has begun a log; 0 is none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Calls something with the log, which is in one hand at a time and in none while the program's functions run.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED in the child of a fork: a thread that does not exist there may have had the log in its hand.
fn with<R>(work: impl FnOnce(&mut ErrorLog) -> R) -> Result<R, CUresult> {
    let own = std::process::id();
    let begun = PROCESS.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    if begun.is_err_and(|other| other != own) {
        return Err(CUresult::ERROR_NOT_INITIALIZED);
    }
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(work(log.get_or_insert_default()))
}

impl ErrorLog {
    fn push(&mut self, message: Message) {
        self.bytes += message.line.len();
        self.came = self.came.wrapping_add(1);
        self.messages.push_back(message);
        while self.bytes > MOST
            && let Some(oldest) = self.messages.pop_front()
        {
            self.bytes -= oldest.line.len();
        }
    }

    /// The messages from a position on, and whether some before them are lost. A position that is none gives all.
    fn since(
        &self,
        position: Option<Position>,
    ) -> (impl DoubleEndedIterator<Item = &Message>, bool) {
        let kept = self.messages.len() as Position;
        let wanted = position.map_or(kept, |at| self.came.wrapping_sub(at));
        let lost = match position {
            Some(_) => wanted > kept,
            None => self.came > kept,
        };
        let skipped = kept - wanted.min(kept);
        (self.messages.iter().skip(skipped as usize), lost)
    }
}

/// Adds a message, and leaves it to the end of the call that fails to tell the program's functions.
pub(crate) fn add(level: Level, text: &str) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut line = prefix(
        since.unwrap_or_default(),
        rustix::thread::gettid().as_raw_nonzero().get(),
        level,
    );
    let begin = line.len();
    for part in text.lines() {
        if line.len() > begin {
            line.push(' ');
        }
        line.push_str(part);
    }
    // One message is never more than is kept of all.
    let most = MOST / 4;
    if line.len() > most {
        line.truncate(line.floor_char_boundary(most));
    }
    line.push('\n');
    write_to_file(line.as_bytes());
    let message = Message {
        level,
        line,
        text: begin,
    };
    // A fork's child keeps nothing.
    let _ = with(|log| log.push(message));
}

/// The time of day (UTC), the thread and the level, as NVIDIA's lines have them.
fn prefix(since_epoch: Duration, thread: i32, level: Level) -> String {
    let seconds = since_epoch.as_secs();
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    let (seconds, milliseconds) = (seconds % 60, since_epoch.subsec_millis());
    let letter = match level {
        Level::Error => 'E',
        Level::Warning => 'W',
    };
    let mut line = String::new();
    let _ = write!(
        line,
        "[{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}][{thread}][CUDA][{letter}] "
    );
    line
}

/// Where CUDA_LOG_FILE says that messages go.
#[derive(Debug)]
enum Destination {
    Stdout,
    Stderr,
    File(File),
}

fn destination(name: &OsStr) -> Option<Destination> {
    match name.to_str() {
        Some("") => None,
        Some("stdout") => Some(Destination::Stdout),
        Some("stderr") => Some(Destination::Stderr),
        _ => {
            let file = OpenOptions::new().append(true).create(true).open(name);
            file.ok().map(Destination::File)
        }
    }
}

/// In one write, so that lines of several processes do not mix.
fn write_to_file(line: &[u8]) {
    static DESTINATION: OnceLock<Option<Destination>> = OnceLock::new();
    let named = || daemon_interface::environment::variable("CUDA_LOG_FILE");
    let to = DESTINATION.get_or_init(|| destination(&named()?));
    // Nobody is there to be told that it cannot be written.
    let _ = match to {
        None => Ok(()),
        Some(Destination::Stdout) => std::io::stdout().write_all(line),
        Some(Destination::Stderr) => std::io::stderr().write_all(line),
        Some(Destination::File(file)) => (&*file).write_all(line),
    };
}

/// Calls the program's functions with what came since they were last called. This library must hold no lock.
pub(crate) fn deliver() {
    if IN_CALLBACK.get() {
        return;
    }
    let taken = with(|log| {
        let text = |message: &Message| message.line[message.text..].trim_end().to_owned();
        let new = match log.callbacks.is_empty() {
            true => Vec::new(),
            false => {
                let (new, _) = log.since(Some(log.delivered));
                new.map(|message| (message.level, text(message))).collect()
            }
        };
        log.delivered = log.came;
        (log.callbacks.clone(), new)
    });
    let Ok((callbacks, messages)) = taken else {
        return;
    };
    IN_CALLBACK.set(true);
    for (level, text) in messages {
        let length = text.len();
        // C's text ends at a NUL, wherever it is.
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        for callback in &callbacks {
            let text = text.as_ptr().cast_mut();
            // SAFETY: the program promised that the function may be called with its data by any thread; the text
            // lives until after the call, and is documented as the function's to read.
            unsafe { (callback.function)(callback.data.pointer(), level as u32, text, length) };
        }
    }
    IN_CALLBACK.set(false);
}

/// Has a function called with each message from now on; gives what it is known by.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY where there are as many as may be; CUDA_ERROR_NOT_INITIALIZED in a fork's child, as all that follow.
pub(crate) fn register(function: Function, data: CallbackData) -> Result<u64, CUresult> {
    with(|log| {
        if log.callbacks.len() >= MOST_CALLBACKS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        if log.callbacks.is_empty() {
            log.delivered = log.came;
        }
        log.numbers += 1;
        log.callbacks.push(Callback {
            number: log.numbers,
            function,
            data,
        });
        Ok(log.numbers)
    })?
}

/// Ends what [`register`] began. Another thread may be in the function still.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE where there is no such one.
pub(crate) fn unregister(number: u64) -> Result<(), CUresult> {
    with(|log| {
        let known = |callback: &Callback| callback.number == number;
        let at = log.callbacks.iter().position(known);
        log.callbacks
            .remove(at.ok_or(CUresult::ERROR_INVALID_VALUE)?);
        Ok(())
    })?
}

/// Where the next message will be.
///
/// # Errors
/// As [`register`].
pub(crate) fn end() -> Result<Position, CUresult> {
    with(|log| log.came)
}

/// All lines from a position on, or all that are kept, and the position behind them.
///
/// # Errors
/// As [`register`].
pub(crate) fn lines(position: Option<Position>) -> Result<(String, Position), CUresult> {
    with(|log| {
        let (messages, lost) = log.since(position);
        let mut text = String::from(if lost { TRUNCATED } else { "" });
        messages.for_each(|message| text.push_str(&message.line));
        (text, log.came)
    })
}

/// As many whole lines, counted from the newest, as so many bytes hold, and the position behind them; where not all fit, the first
/// line says so.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE where there are messages and not one of them fits.
pub(crate) fn lines_that_fit(
    position: Option<Position>,
    room: usize,
) -> Result<(String, Position), CUresult> {
    let (all, end) = lines(position)?;
    if all.len() <= room {
        return Ok((all, end));
    }
    let left = room.saturating_sub(TRUNCATED.len());
    // Behind the first newline that leaves little enough.
    let before = all.len() - left;
    let fits = all.as_bytes()[before.saturating_sub(1)..]
        .iter()
        .position(|&byte| byte == b'\n')
        .and_then(|newline| all.get(before + newline..))
        .filter(|fits| !fits.is_empty() && left > 0);
    let fits = fits.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok((format!("{TRUNCATED}{fits}"), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u32) -> Message {
        Message {
            level: Level::Error,
            line: format!("{number:05}\n"),
            text: 0,
        }
    }

    #[test]
    fn the_newest_messages_are_kept_and_positions_go_on() {
        let mut log = ErrorLog::default();
        for number in 0..10_000 {
            log.push(message(number));
        }
        assert!(log.bytes <= MOST);
        let of = |position| {
            let (messages, lost) = log.since(position);
            (
                messages.map(|message| &*message.line).collect::<String>(),
                lost,
            )
        };
        assert_eq!(of(Some(9_998)), ("09998\n09999\n".into(), false));
        assert_eq!(of(Some(10_000)), (String::new(), false));
        let (all, lost) = of(None);
        assert!(lost && all.len() <= MOST && all.ends_with("09999\n"));
        assert_eq!(of(Some(3)), (all, true));
    }

    #[test]
    fn a_line_begins_as_nvidias() {
        let since = Duration::from_millis(((26 * 60 + 21) * 60 + 32) * 1000 + 99);
        assert_eq!(
            prefix(since, 25_642, Level::Error),
            "[02:21:32.099][25642][CUDA][E] "
        );
        assert_eq!(
            prefix(since, 1, Level::Warning),
            "[02:21:32.099][1][CUDA][W] "
        );
    }

    #[test]
    fn what_does_not_fit_loses_its_oldest_lines_and_says_so() {
        // Other tests of this process add messages too.
        let begin = end().unwrap();
        for number in 0..20 {
            add(Level::Warning, &format!("message {number}\nin two lines"));
        }
        let (all, _) = lines_that_fit(Some(begin), MOST).unwrap();
        assert!(all.contains("[W] message 7 in two lines\n"), "{all}");
        for room in 0..all.len() {
            let Ok((fits, _)) = lines_that_fit(Some(begin), room) else {
                continue;
            };
            let lines = fits.strip_prefix(TRUNCATED).expect("it says so");
            assert!(
                fits.len() <= room && all.ends_with(lines) && lines.starts_with('['),
                "{lines}"
            );
        }
        let refused = lines_that_fit(Some(begin), TRUNCATED.len());
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
    }
}
