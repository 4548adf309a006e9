//! The files of clients that are recorded: made when a client comes, written as its parts come, closed when it leaves.
//!
//! Called by `clients`. What clients tell of themselves is not trusted. Must not know how the daemon is asked.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use daemon_interface::time_lines::Recorded;
use protocol::control_messages::{RecordedClient, RecordedPart};
use protocol::operations::{HoldReason, SPAN_COPY, SpanReader, SpanRecord};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use trace::chrome::Writer;
use trace::event::{Clock, Process};
use trace::join::{JoinError, Joiner, Span, SpanKind};
use trace::name_pattern::{self, Facts};
use trace::output::Limited;

use super::progress::{Progress, clients_in_words};
use super::record::host_name;
use crate::usage::printable;

/// Bytes of a client's environment that are read.
const MOST_ENVIRONMENT: u64 = 1 << 20;

/// Names that are tried beside those that are there already.
const MOST_NAMES: u32 = 1000;

/// Names of files that are listed at the end.
const MOST_LISTED: usize = 8;

/// What fills the places of a client's file's name.
struct Of<'a> {
    client: &'a RecordedClient,
    unknown: Cell<bool>,
}

impl Facts for Of<'_> {
    fn pid(&self) -> u32 {
        number(self.client)
    }

    fn host(&self) -> String {
        host_name()
    }

    fn variable(&self, name: &str) -> Option<String> {
        let file = File::open(format!("/proc/{}/environ", self.client.pid));
        let mut bytes = Vec::new();
        let read = file.and_then(|file| file.take(MOST_ENVIRONMENT).read_to_end(&mut bytes));
        let wanted = format!("{name}=");
        let mut variables = bytes.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(wanted.as_bytes()));
        self.unknown.set(read.is_err() || value.is_none());
        Some(String::from_utf8_lossy(value.unwrap_or_default()).into_owned())
    }
}

/// The client's number in names and files: its process', or where that is not known its session's.
fn number(client: &RecordedClient) -> u32 {
    match client.pid {
        0 => client.session as u32,
        pid => pid.unsigned_abs(),
    }
}

/// A client that is recorded.
#[derive(Debug)]
struct Client {
    facts: RecordedClient,
    /// Nothing before there is anything to write, and after its file is at its end.
    file: Option<(PathBuf, Joiner<Limited<File>>)>,
    at_its_end: bool,
    /// Whether anything came since it was written.
    changed: bool,
}

/// The files of a recording.
#[derive(Debug)]
pub(super) struct ClientFiles {
    pattern: String,
    force: bool,
    clock: Clock,
    open: BTreeMap<u64, Client>,
    made: HashSet<PathBuf>,
    names: Vec<PathBuf>,
    was_told: bool,
    /// Clients, records and what is missing, of files that are at their end.
    ended: (usize, u64, u64),
    failed: bool,
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

impl ClientFiles {
    pub(super) fn new(pattern: String, force: bool) -> Self {
        let wall = clock_gettime(ClockId::Realtime);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Self {
            pattern,
            force,
            clock: Clock {
                monotonic_ns: monotonic_ns(),
                wall_ns: wall.tv_sec.unsigned_abs() * 1_000_000_000 + wall.tv_nsec.unsigned_abs(),
                boot: boot.unwrap_or_default().trim().to_owned(),
            },
            open: BTreeMap::new(),
            made: HashSet::new(),
            names: Vec::new(),
            was_told: false,
            ended: (0, 0, 0),
            failed: false,
        }
    }

    /// Clients that were recorded, records and what is missing.
    pub(super) fn counts(&self) -> (usize, u64, u64) {
        let (clients, mut records, mut dropped) = self.ended;
        for (_, joiner) in self.open.values().filter_map(|client| client.file.as_ref()) {
            records += joiner.records();
            dropped += joiner.dropped_in_all();
        }
        (clients + self.open.len(), records, dropped)
    }

    pub(super) fn add(&mut self, recorded: Recorded, progress: &mut Progress) {
        match recorded {
            Recorded::Client(facts) => {
                self.was_told = true;
                self.client(facts);
            }
            Recorded::Part(session, part) => self.part(session, part, progress),
            Recorded::End => {}
        }
    }

    fn client(&mut self, facts: RecordedClient) -> &mut Client {
        self.open.entry(facts.session).or_insert_with(|| Client {
            facts,
            file: None,
            at_its_end: false,
            changed: false,
        })
    }

    fn part(&mut self, session: u64, part: RecordedPart, progress: &mut Progress) {
        if let RecordedPart::Over { text } = part {
            if let Some(mut client) = self.open.remove(&session) {
                if !text.is_empty() {
                    let who = who(&client.facts);
                    progress.print(&format!("{who} is not recorded to its end: {text}"));
                }
                self.close(&mut client, progress);
                self.ended.0 += 1;
            }
            return;
        }
        // The daemon tells of a client first, where there was room to.
        let client = self.client(RecordedClient {
            session,
            ..RecordedClient::default()
        });
        if client.at_its_end {
            return;
        }
        if client.file.is_none() {
            let facts = client.facts.clone();
            let made = self.make(&facts, progress);
            let Some(client) = self.open.get_mut(&session) else {
                return;
            };
            match made {
                Ok(file) => client.file = Some(file),
                Err(error) => {
                    progress.print(&format!("{} is not recorded: {error:#}", who(&facts)));
                    client.at_its_end = true;
                    self.failed = true;
                    return;
                }
            }
        }
        let Some(client) = self.open.get_mut(&session) else {
            return;
        };
        let Some((_, joiner)) = &mut client.file else {
            return;
        };
        client.changed = true;
        let result = match &part {
            RecordedPart::Spans(bytes) => spans(bytes, joiner).map_err(JoinError::Io),
            RecordedPart::Told(bytes) => joiner.told(bytes),
            RecordedPart::Dropped { count } => {
                joiner.dropped(*count);
                Ok(())
            }
            RecordedPart::Over { .. } => Ok(()),
        };
        if let Err(error) = result {
            self.fail(session, &error, progress);
        }
    }

    /// A file ends before its client.
    fn fail(&mut self, session: u64, error: &JoinError, progress: &mut Progress) {
        let Some(client) = self.open.get_mut(&session) else {
            return;
        };
        self.failed = true;
        client.at_its_end = true;
        if let Some((path, mut joiner)) = client.file.take() {
            // A full disk has no room for this either, and the file is whole.
            joiner.finish(monotonic_ns()).ok();
            self.ended.1 += joiner.records();
            self.ended.2 += joiner.dropped_in_all();
            progress.print(&format!("{} ends here: {error}", path.display()));
        }
    }

    fn make(
        &mut self,
        facts: &RecordedClient,
        progress: &mut Progress,
    ) -> Result<(PathBuf, Joiner<Limited<File>>)> {
        let of = Of {
            client: facts,
            unknown: Cell::new(false),
        };
        let name = name_pattern::expand(&self.pattern, &of)?;
        let (path, file) = self.create(&name)?;
        if of.unknown.get() {
            progress.print(&format!(
                "a variable of {} is not set, or may not be read: its file is {}",
                who(facts),
                path.display()
            ));
        } else if path != Path::new(&name) {
            progress.print(&format!("{name} is there already: {}", path.display()));
        }
        let process = Process {
            pid: number(facts),
            name: facts.program.clone(),
            host: host_name(),
        };
        let limited = Limited {
            storage: file,
            most: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
        };
        let writer = Writer::new(limited, self.clock.clone(), &process)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        self.names.push(path.clone());
        Ok((path, Joiner::new(writer)))
    }

    /// Makes a file of that name, or one with a number behind it.
    fn create(&mut self, name: &str) -> Result<(PathBuf, File)> {
        for number in 0..MOST_NAMES {
            let path = match number {
                0 => PathBuf::from(name),
                number => PathBuf::from(format!("{name}.{number}")),
            };
            let over = self.force && !self.made.contains(&path);
            let mut options = OpenOptions::new();
            options.write(true).create_new(!over);
            options.create(over).truncate(over);
            match options.open(&path) {
                Ok(file) => {
                    self.made.insert(path.clone());
                    return Ok((path, file));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
        }
        bail!("{name} and {MOST_NAMES} names like it are there already")
    }

    /// Writes what came.
    pub(super) fn write(&mut self, progress: &mut Progress) {
        let now = monotonic_ns();
        let mut failed = Vec::new();
        for (&session, client) in &mut self.open {
            let Some((_, joiner)) = client.file.as_mut().filter(|_| client.changed) else {
                continue;
            };
            let written = joiner.write(now, usize::MAX);
            if let Err(error) = written.and_then(|_| joiner.flush(now)) {
                failed.push((session, error));
            }
            client.changed = joiner.is_waiting();
        }
        for (session, error) in failed {
            self.fail(session, &JoinError::Io(error), progress);
        }
    }

    fn close(&mut self, client: &mut Client, progress: &mut Progress) {
        let Some((path, mut joiner)) = client.file.take() else {
            return;
        };
        if let Err(error) = joiner.finish(monotonic_ns()) {
            self.failed = true;
            progress.print(&format!("{} lacks its end: {error}", path.display()));
        }
        self.ended.1 += joiner.records();
        self.ended.2 += joiner.dropped_in_all();
    }

    /// Whether a client was there, and none is any more.
    pub(super) fn is_over(&self) -> bool {
        self.was_told && self.open.is_empty()
    }

    /// Whether a file could not be made or written.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) fn finish(&mut self, progress: &mut Progress) {
        for (_, mut client) in std::mem::take(&mut self.open) {
            self.close(&mut client, progress);
            self.ended.0 += 1;
        }
    }

    pub(super) fn print_files(&self) {
        let (clients, records, dropped) = self.ended;
        let listed = self.names.iter().take(MOST_LISTED);
        let mut list: Vec<String> = listed.map(|path| path.display().to_string()).collect();
        if self.names.len() > MOST_LISTED {
            list.push(format!("{} more", self.names.len() - MOST_LISTED));
        }
        let list = match list.is_empty() {
            true if clients == 0 => "no file: no client came in that time".to_owned(),
            true => "no file: none of them did anything in that time. Record for longer (--seconds N, or until \
                     Ctrl-C), or while they are at work"
                .to_owned(),
            false => list.join(", "),
        };
        eprintln!(
            "openmps: {}, {records} records: {list}",
            clients_in_words(clients)
        );
        if dropped > 0 {
            eprintln!(
                "openmps: {dropped} activities are missing, for which there was no room: the files say where"
            );
        }
    }
}

/// A client as messages name it.
fn who(client: &RecordedClient) -> String {
    format!("client {} ({})", number(client), printable(&client.program))
}

/// Takes the times that a server sent.
fn spans(bytes: &[u8], joiner: &mut Joiner<Limited<File>>) -> std::io::Result<()> {
    for record in SpanReader::new(bytes) {
        let span = match record.map_err(std::io::Error::other)? {
            SpanRecord::Span(span) => span,
            SpanRecord::Reached(at) => {
                joiner.reached(at.stream, at.sequence);
                continue;
            }
        };
        joiner.ran(Span {
            stream: span.at.stream,
            sequence: span.at.sequence,
            began_ns: span.began,
            ended_ns: span.ended,
            device: span.device,
            kind: match span.kind {
                SPAN_COPY => SpanKind::Copy,
                kind => HoldReason::of_span(kind).map_or(SpanKind::Kernel, |why| SpanKind::Held {
                    why: why.text(),
                    is_others: why.is_others(),
                    is_order: why.is_order(),
                }),
            },
        })?;
    }
    Ok(())
}
