//! `openmps top` in a terminal: what it shows, and what its keys do.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Child, Stdio};

use tests::daemon::{Daemon, eventually, openmps};
use tests::terminal::Terminal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_accounted");

/// A program that keeps the device busy for longer than any test.
fn busy(daemon: &Daemon) -> Child {
    daemon
        .command(PROGRAM)
        .args(["100000000", "0", "2000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn the_screen_shows_who_works_and_keys_do_what_they_say() {
    let daemon = Daemon::start();
    let mut programs = [busy(&daemon), busy(&daemon), busy(&daemon)];
    let mut top = Terminal::start(daemon.command(openmps()).arg("top"), 24, 80);

    // Three of one sort share the device about evenly, and each waits for the others.
    let all = top.until("three clients that work and wait", |text| {
        let rows = rows(text);
        rows.len() == 3 && rows.iter().all(|row| row[3] > 0 && row[4] > 0)
    });
    assert!(top.is_taken());
    assert!(all.contains("3 clients"), "{all}");
    assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
    assert!(all.lines().nth(23).unwrap().contains("q quit"), "{all}");

    top.keys("\r");
    let others = |text: &str| text.matches("accounted (").count();
    let detail = top.until("whom it waits for", |text| others(text) == 3);
    assert!(detail.contains("waits for others"), "{detail}");
    top.keys(" ");
    top.until("the list alone", |text| others(text) == 0);

    // Recorded for as long as that is shown.
    top.keys("t");
    top.until("a kernel and its stream", |text| {
        text.contains("launched before") && text.contains("stream")
    });
    top.keys(" ");
    top.until("the list alone", |text| !text.contains("KERNEL"));

    top.keys("/nothing-of-this-name\r");
    top.until("no client", |text| rows(text).is_empty());
    top.keys("/");
    top.keys(&"\u{7f}".repeat(20));
    top.keys("\r");
    let text = top.until("all clients again", |text| rows(text).len() == 3);

    // It asks first, and takes any key but `y` for no.
    let selected = rows(&text)[0][0];
    top.keys("j");
    top.keys("k");
    top.keys("e");
    let question = format!("End accounted ({selected})?");
    let asked = top.until("a question", |text| text.contains("End accounted ("));
    top.keys("n");
    top.until("an answer", |text| text.contains("nothing was changed"));
    assert!(
        programs
            .iter_mut()
            .all(|one| one.try_wait().unwrap().is_none())
    );
    assert!(asked.contains(&question), "{asked}");
    top.keys("ey");
    eventually("one has ended", || {
        programs
            .iter_mut()
            .any(|one| one.try_wait().unwrap().is_some())
    });
    top.until("the others", |text| rows(text).len() == 2);

    top.keys("q");
    assert!(top.ended().success());
    assert!(!top.is_taken(), "the screen is as it was");
    for mut program in programs {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}

/// The numbers of each client's row: PID, GPU%, nothing, SM%, WAIT%.
fn rows(text: &str) -> Vec<[u32; 5]> {
    let of_client = text
        .lines()
        .filter(|line| line.trim_end().ends_with("accounted"));
    let rows = of_client.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse().ok();
        // Its history is drawn between GPU% and SM%, and is blank at first.
        let after = match words.get(3)?.parse::<u32>() {
            Ok(_) => 3,
            Err(_) => 4,
        };
        Some([
            number(0)?,
            number(2)?,
            0,
            number(after)?,
            number(after + 1)?,
        ])
    });
    rows.map_while(|row| row).collect()
}
