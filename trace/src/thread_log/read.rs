//! The reader of threads' words. It trusts none of them, and keeps a bounded number of threads.
//!
//! Called by `join` and by those who add up. Must not know what becomes of a record.

use std::collections::HashMap;

use super::{
    CALL, CALLED, CALLED_BITS, COPY, Call, FILL, KERNEL, LAUNCH, LAUNCH_BITS, LONGEST, Memory, RUN,
    SHAPE, SHAPES, START, Shape, correlation, length,
};
use crate::event::Place;
use crate::told::{Damaged, Posted, PostedWork};

/// Threads that are read at a time.
pub(super) const MOST_THREADS: usize = 1 << 14;

fn unpacked(word: u64, bits: [u32; 3]) -> [u64; 3] {
    let mut shift = 4;
    bits.map(|bits| {
        let number = word >> shift & ((1 << bits) - 1);
        shift += bits;
        number
    })
}

/// What is read of threads' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRecord {
    /// A call that is over, in nanoseconds.
    Call(Call),
    /// Work that was put into a stream.
    Posted(Posted),
}

/// Two moments, each in ticks and in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickClock {
    /// The moments in ticks.
    pub ticks: [u64; 2],
    /// The same in nanoseconds of CLOCK_MONOTONIC.
    pub nanoseconds: [u64; 2],
}

impl TickClock {
    /// Ticks as nanoseconds. Where both moments are one, a tick is a nanosecond.
    #[must_use]
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let [first, last] = self.ticks;
        let [from, to] = self.nanoseconds;
        let since = ticks.wrapping_sub(first).cast_signed();
        let since = match last.wrapping_sub(first) {
            0 => since,
            // Of moments that lie hours before or after the two, nanoseconds are not exact.
            ticks => (since as f64 * (to.wrapping_sub(from) as f64 / ticks as f64)).round() as i64,
        };
        from.saturating_add_signed(since)
    }
}

/// Reads words of any number of threads.
#[derive(Debug, Default)]
pub struct ThreadsReader {
    threads: HashMap<u32, Box<Memory>>,
    clock: TickClock,
}

impl ThreadsReader {
    /// Says what the ticks are that come from now on.
    pub const fn set_clock(&mut self, clock: TickClock) {
        self.clock = clock;
    }

    /// Threads that it remembers.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Takes whole records of a thread, each word in eight bytes, the lowest first.
    ///
    /// # Errors
    /// What `take` gives, and when they cannot be read.
    pub fn read<E: From<Damaged>>(
        &mut self,
        tid: u32,
        words: &[u8],
        mut take: impl FnMut(ThreadRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        let (words, []) = words.as_chunks::<8>() else {
            return Err(Damaged.into());
        };
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut memory = self.threads.get_mut(&tid);
        while let Some(first) = words.next() {
            let mut rest = [0; LONGEST - 1];
            let more = length(first).ok_or(Damaged)? - 1;
            for place in &mut rest[..more] {
                *place = words.next().ok_or(Damaged)?;
            }
            if first & 15 == START {
                if self.threads.len() >= MOST_THREADS && !self.threads.contains_key(&tid) {
                    // They have ended, or begin anew by and by.
                    self.threads.clear();
                }
                let anew = self.threads.entry(tid).or_default();
                **anew = Memory::default();
                memory = Some(anew);
                continue;
            }
            // What a thread wrote for another recording.
            if let Some(memory) = &mut memory {
                memory.record(&self.clock, first, rest, &mut take)?;
            }
        }
        Ok(())
    }
}

impl Memory {
    #[inline]
    fn record<E: From<Damaged>>(
        &mut self,
        clock: &TickClock,
        first: u64,
        [second, third, fourth, fifth, sixth]: [u64; LONGEST - 1],
        take: &mut impl FnMut(ThreadRecord) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut call = |this: &mut Self, call: Call| {
            this.ended = call.ended;
            take(ThreadRecord::Call(Call {
                began: clock.nanoseconds(call.began),
                ended: clock.nanoseconds(call.ended),
                ..call
            }))
        };
        let began = |after: u64| self.ended.wrapping_add(after);
        let stream = (first >> 32) as u32;
        let work = match first & 15 {
            LAUNCH => {
                let [place, after, took] = unpacked(first, LAUNCH_BITS);
                let began = began(after);
                self.sequence = self.sequence.wrapping_add(1);
                let correlation = correlation(self.stream, self.sequence);
                let shape = self.shapes[place as usize % SHAPES].ok_or(Damaged)?;
                let function = self.function;
                call(
                    self,
                    Call {
                        function,
                        began,
                        ended: began.wrapping_add(took),
                        correlation,
                    },
                )?;
                return take(ThreadRecord::Posted(Posted {
                    stream: self.stream,
                    sequence: self.sequence,
                    context: self.context,
                    correlation,
                    work: shape.work(),
                }));
            }
            CALLED => {
                let [function, after, took] = unpacked(first, CALLED_BITS);
                let began = began(after);
                return call(
                    self,
                    Call {
                        function: function as u16,
                        began,
                        ended: began.wrapping_add(took),
                        correlation: 0,
                    },
                );
            }
            CALL => {
                let function = (first >> 4) as u16;
                if fourth != 0 {
                    self.function = function;
                }
                return call(
                    self,
                    Call {
                        function,
                        began: second,
                        ended: third,
                        correlation: fourth,
                    },
                );
            }
            SHAPE => {
                let halves = |word: u64| (word as u32, (word >> 32) as u32);
                let ((gx, gy), (gz, bx), (by, bz)) = (halves(third), halves(fourth), halves(fifth));
                self.shapes[(first >> 4) as usize % SHAPES] = Some(Shape {
                    module: second,
                    index: stream,
                    grid: [gx, gy, gz],
                    block: [bx, by, bz],
                    shared_bytes: sixth as u32,
                });
                return Ok(());
            }
            KERNEL => {
                self.stream = stream;
                self.sequence = second;
                self.context = third as u32;
                let shape = self.shapes[(first >> 4) as usize % SHAPES].ok_or(Damaged)?;
                shape.work()
            }
            COPY => {
                let place =
                    |shift: u32| Place::from_number((first >> shift & 15) as u8).ok_or(Damaged);
                PostedWork::Copy {
                    from: place(4)?,
                    to: place(8)?,
                    bytes: fifth,
                }
            }
            FILL => PostedWork::Fill { bytes: fifth },
            RUN => PostedWork::Run {
                module: fifth,
                index: sixth as u32,
                launches: (third >> 32) as u32,
            },
            _ => PostedWork::Graph,
        };
        take(ThreadRecord::Posted(Posted {
            stream,
            sequence: second,
            context: third as u32,
            correlation: fourth,
            work,
        }))
    }
}
