//! Two programs that share a block and an event, in contexts of their own where the daemon has several, and then in one:
//! says whether the one saw what the other wrote, whether the other waited for its kernel, and how long it takes to open and close
//! a block. `exchange`, beside this program, is what it starts.
//!
//! It tells by addresses whether they share a context, and fails if something is wrong.

use std::process::{Command, ExitCode};

use tests::program::say;
use tests::talker::Talker;

fn start(job: &str) -> Talker {
    let own = std::env::current_exe().expect("this program");
    let program = own.with_file_name("exchange");
    let mut program = Talker::start(Command::new(program).env("OPENMPS_JOB", job));
    assert_eq!(program.hear(), "ready");
    program
}

/// Has a program do what must not fail.
fn has_done(program: &mut Talker, task: &str) {
    let said = program.ask(task);
    assert_eq!(said, "ok", "{task}");
}

fn pair(jobs: [&str; 2]) -> String {
    let [mut owner, mut user] = jobs.map(start);
    has_done(&mut owner, "alloc 3000000");
    has_done(&mut owner, "write 7");
    let block = owner.ask("get");
    has_done(&mut user, &format!("open {block}"));
    let place = match owner.ask("where") == user.ask("where") {
        true => "the same address",
        false => "another address",
    };
    assert_eq!(user.ask("read"), "[7]");
    has_done(&mut user, "write 8");
    assert_eq!(owner.ask("read"), "[8]");
    has_done(&mut user, "close");
    let time = user.ask(&format!("time {block}"));
    // What a kernel of the one is behind, the other waits for, and the other way about.
    has_done(&mut owner, "event");
    let event = owner.ask("get-event");
    has_done(&mut user, &format!("open-event {event}"));
    let waited = [waits(&mut owner, &mut user), waits(&mut user, &mut owner)];
    // The owner frees it while the other has it.
    has_done(&mut user, &format!("open {block}"));
    has_done(&mut owner, "free");
    assert_eq!(user.ask("read"), "[8]");
    has_done(&mut user, "close");
    has_done(&mut user, "sync");
    let waited = waited.join(" and ");
    format!("{place}: opened and closed in {time} us; {waited}; right")
}

/// Whether a program's stream waits for the other one's kernel, which ends by itself.
fn waits(recorder: &mut Talker, waiter: &mut Talker) -> &'static str {
    has_done(recorder, "run");
    has_done(recorder, "record");
    has_done(waiter, "wait");
    let idle = waiter.ask("idle") == "ok";
    has_done(waiter, "sync");
    has_done(waiter, "query");
    match idle {
        true => "nothing to wait for",
        false => "waited",
    }
}

fn main() -> ExitCode {
    // In this order: who has just gone is counted a little longer where it was.
    for jobs in [["this", "that"], ["one", "one"]] {
        say(&pair(jobs));
    }
    ExitCode::SUCCESS
}
