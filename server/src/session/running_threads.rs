//! How many more threads want to run than there are processors, on the whole machine.
//!
//! Owns a mean over some milliseconds of how many the kernel says there are (proc_loadavg(5), fourth field). Called by sessions. Must not know whose they are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use engine::clock;

/// How often it is looked, in nanoseconds. A look takes a few microseconds of whoever is the first to find that it is time.
const BETWEEN_LOOKS: u64 = 1_000_000;

/// What part of the mean a look changes.
const PART: u32 = 4;

/// The mean is kept in such parts of a thread.
const FINE: u32 = 16;

/// What the kernel says; none where it cannot be asked.
static LOADAVG: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/loadavg").ok());

/// The machine's processors, whoever may use them, as the threads are anybody's: a container of few processors on a machine that has many
/// at work is not crowded for that. More than there are where the kernel does not say.
static PROCESSORS: LazyLock<u32> = LazyLock::new(|| {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    online.ok().and_then(|list| count(&list)).unwrap_or(1 << 20)
});

static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
static MEAN: AtomicU32 = AtomicU32::new(0);

/// All of what [`part_to_share`] gives a part of.
pub(super) const ALL: u32 = 1 << 16;

/// What part of the pairs of threads that look for each other's words are to have one processor together, so that there is one for each
/// thread or pair: of [`ALL`].
pub(super) fn part_to_share() -> u32 {
    let (now, next) = (clock::now(), NEXT_LOOK.load(Ordering::Relaxed));
    let mine = now >= next
        && NEXT_LOOK
            .compare_exchange(
                next,
                now + BETWEEN_LOOKS,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok();
    if mine && let Some(running) = running() {
        let mean = MEAN.load(Ordering::Relaxed);
        MEAN.store(after_look(mean, running), Ordering::Relaxed);
    }
    part(MEAN.load(Ordering::Relaxed), *PROCESSORS)
}

/// A mean of which a part is what was just seen.
fn after_look(mean: u32, running: u32) -> u32 {
    (mean * (PART - 1) + running.min(1 << 16) * FINE) / PART
}

/// Each pair that shares makes one processor free. As if all threads were of such pairs: of what else runs nobody knows, and it has its processors
/// as the kernel likes. A sixteenth more threads than processors is nothing; beyond that an eighth more pairs share than would have to, since a
/// processor too many costs less than a thread too many, which somebody waits for.
fn part(mean: u32, processors: u32) -> u32 {
    let all = processors.saturating_mul(FINE);
    if mean <= all.saturating_add(all / 16) {
        return 0;
    }
    let part = u64::from(mean - all) * 2 * 9 / 8 * u64::from(ALL) / u64::from(mean);
    u32::try_from(part).unwrap_or(ALL).min(ALL)
}

fn running() -> Option<u32> {
    let mut text = [0; 128];
    let read = LOADAVG.as_ref()?.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(text.get(..read)?).ok()?)
}

/// `0-3,8,10-11`: seven.
fn count(list: &str) -> Option<u32> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum()
}

/// `0.20 0.18 0.12 3/80 11206`: three want to run.
fn parse(loadavg: &str) -> Option<u32> {
    let field = loadavg.split(' ').nth(3)?;
    field.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        assert_eq!(parse("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse("0.20 0.18 0.12"), None);
        assert_eq!(parse("0.20 0.18 0.12 x/80 1"), None);
        assert!(running().is_some_and(|running| running > 0), "this one");
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        assert_eq!(count("0\n"), Some(1));
        for wrong in ["", "3-1", "a-b", "0-4294967295"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        let processors = *PROCESSORS;
        assert!((1..1 << 20).contains(&processors), "{processors}");
    }

    #[test]
    fn a_mean_follows_what_lasts_and_little_of_what_does_not() {
        let mut mean = 0;
        mean = after_look(mean, 32);
        assert_eq!(part(mean, 16), 0, "one look of many");
        for _ in 0..32 {
            mean = after_look(mean, 32);
        }
        assert!(part(mean, 16) > ALL / 10 * 9);
        for _ in 0..32 {
            mean = after_look(mean, 16);
        }
        assert_eq!(part(mean, 16), 0);
        assert_eq!(after_look(0, u32::MAX), (1 << 16) * FINE / PART);
    }

    #[test]
    fn as_many_pairs_share_as_there_are_threads_too_many() {
        for (running, sharing) in [
            (0, 0),
            (16, 0),
            (17, 0),
            (18, 2),
            (24, 9),
            (30, 15),
            (32, 16),
        ] {
            // Of as many pairs as there are threads in twos.
            let pairs = part(running * FINE, 16) * (running / 2);
            assert_eq!(pairs / ALL, sharing, "{running}");
        }
        assert_eq!(part(100 * FINE, 16), ALL);
        assert_eq!(part(u32::MAX, u32::MAX), 0);
    }
}
