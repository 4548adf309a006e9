//! Pages of host memory that is about to be pinned: made by several threads, and as huge pages where the
//! kernel has some, since pages of 4 KiB cost a hundred times what is done with them afterwards.
//!
//! Called by `host_window`. Must not know whose memory it is, nor what is pinned.

use engine::Window;
use protocol::operations::HUGE_PAGE;

/// Bytes of new pages for which one thread more is worth being made, and the most threads: the kernel clears
/// them, which it does for several threads at once.
const PAGES_OF_A_THREAD: u64 = 8 << 20;
const PAGE_THREADS: u64 = 8;

/// Puts new pages, which are zero, in the place of a range of mapped memory in files without a disk that nobody
/// uses. Says whether the kernel did it: not all do, and there may be too little memory.
pub(super) fn renew(range: Window) -> bool {
    advise(range, libc::MADV_REMOVE) && in_parts(range, make)
}

/// Fills a range with zeroes, which is mapped and writable, and which nobody else uses.
pub(super) fn zero(range: Window) {
    in_parts(range, |part| {
        // SAFETY: the caller's promise; nothing in it is a Rust object, and the parts do not overlap.
        unsafe { std::ptr::write_bytes(part.base as *mut u8, 0, part.bytes as usize) };
        true
    });
}

/// Has pages of a file at hand, sixteen with each fault, before the driver comes upon them one by one. Where the kernel does
/// not know that, or the file lacks some, the driver finds out.
pub(super) fn prefault(range: Window) {
    in_parts(range, |part| advise(part, libc::MADV_POPULATE_READ));
}

/// Makes the pages of a range that has none.
fn make(range: Window) -> bool {
    let end = range.base + range.bytes;
    let first = range.base.next_multiple_of(HUGE_PAGE);
    let last = end / HUGE_PAGE * HUGE_PAGE;
    if first < last {
        // The kernel makes no huge page of nothing at all.
        let begun = (first..last).step_by(HUGE_PAGE as usize).all(|base| {
            let bytes = 4096;
            advise(Window { base, bytes }, libc::MADV_POPULATE_WRITE)
        });
        if !begun {
            return false;
        }
        let whole = Window {
            base: first,
            bytes: last - first,
        };
        // Whatever `shmem_enabled` says. A kernel before 6.1, or one that has no huge page left, leaves small ones
        // to the next call.
        advise(whole, libc::MADV_COLLAPSE);
    }
    advise(range, libc::MADV_POPULATE_WRITE)
}

fn advise(range: Window, advice: libc::c_int) -> bool {
    let Window { base, bytes } = range;
    // SAFETY: the range is mapped, by the promise of who calls this file; what is in it may be lost where the
    // advice loses anything.
    unsafe { libc::madvise(base as *mut libc::c_void, bytes as usize, advice) == 0 }
}

/// Does something with each part of a range, by several threads if it is large. Says whether all went well.
fn in_parts(range: Window, work: impl Fn(Window) -> bool + Sync) -> bool {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let worth = range.bytes.div_ceil(PAGES_OF_A_THREAD);
    let threads = worth.min(PAGE_THREADS).min(processors.div_ceil(2)).max(1);
    if threads == 1 {
        return work(range);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads)
            .map(|number| {
                let builder = std::thread::Builder::new().name("host pages".into());
                let part = part(range, number, threads);
                (part, builder.spawn_scoped(scope, move || work(part)).ok())
            })
            .collect();
        let mine = work(part(range, 0, threads));
        helpers.into_iter().fold(mine, |all, (part, helper)| {
            let theirs = match helper {
                Some(helper) => helper.join().unwrap_or(false),
                // No thread more: its part is done here.
                None => work(part),
            };
            all && theirs
        })
    })
}

/// One of several parts of a range, each larger than a huge page, that begin and end where huge pages do.
fn part(range: Window, number: u64, count: u64) -> Window {
    let end = range.base + range.bytes;
    let boundary = |number: u64| match number {
        0 => range.base,
        _ if number == count => end,
        _ => (range.base + range.bytes / count * number) / HUGE_PAGE * HUGE_PAGE,
    };
    Window {
        base: boundary(number),
        bytes: boundary(number + 1) - boundary(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole_and_part_no_huge_page() {
        for base in [0, 64 << 10, HUGE_PAGE, HUGE_PAGE + (192 << 10)] {
            for count in 2..=PAGE_THREADS {
                let bytes = count * PAGES_OF_A_THREAD - (64 << 10);
                let range = Window { base, bytes };
                let mut at = base;
                for number in 0..count {
                    let part = part(range, number, count);
                    assert_eq!(part.base, at);
                    assert!(part.bytes > HUGE_PAGE);
                    at += part.bytes;
                    assert!(number + 1 == count || at.is_multiple_of(HUGE_PAGE));
                }
                assert_eq!(at, base + bytes);
            }
        }
    }
}
