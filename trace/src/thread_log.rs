//! What one thread called and put into streams, as 64-bit words: a launch of a kernel like others before it is one word.
//!
//! `client` writes them in the calling thread, which has no time for more; [`told`](crate::told) carries them, and who joins calls with
//! work reads them and trusts none of it. Times are ticks of a clock of the writer's choice, of which it says what they are.

mod read;

use crate::told::{Posted, PostedWork};

pub use read::{ThreadRecord, ThreadsReader, TickClock};

/// Launches that a thread's words can name at a time.
const SHAPES: usize = 64;

/// Words of the longest record.
pub const LONGEST: usize = 6;

// The lower four bits of a record's first word.
/// Nothing before counts for what comes.
const START: u64 = 0;
/// A call that launched a kernel: it is the same function, stream and context as before, and the next place of the stream.
const LAUNCH: u64 = 1;
/// A call without work.
const CALLED: u64 = 2;
/// Any call.
const CALL: u64 = 3;
/// A kernel and how it is launched, from now on by a number.
const SHAPE: u64 = 4;
const KERNEL: u64 = 5;
const COPY: u64 = 6;
const FILL: u64 = 7;
const GRAPH: u64 = 8;
const RUN: u64 = 9;

/// Bits of what a [`LAUNCH`] has: the shape, ticks since the call before, ticks that it took.
const LAUNCH_BITS: [u32; 3] = [6, 26, 28];
/// Bits of what a [`CALLED`] has: the function, and as above.
const CALLED_BITS: [u32; 3] = [12, 22, 26];

/// Words of the record that begins with that one; `None` if there is no such record.
#[must_use]
pub const fn length(first: u64) -> Option<usize> {
    Some(match first & 15 {
        START | LAUNCH | CALLED => 1,
        CALL | KERNEL | GRAPH => 4,
        COPY | FILL => 5,
        SHAPE | RUN => 6,
        _ => return None,
    })
}

/// What a record is about that may be named here for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The function of this number.
    Function(u16),
    /// The kernel of this number in this module.
    Kernel(u64, u32),
}

/// What a record names, whose words these are.
#[must_use]
pub fn named(record: &[u64]) -> Option<Named> {
    let first = *record.first()?;
    Some(match first & 15 {
        CALLED => Named::Function((first >> 4 & 0xfff) as u16),
        CALL => Named::Function((first >> 4) as u16),
        SHAPE => Named::Kernel(*record.get(1)?, (first >> 32) as u32),
        RUN => Named::Kernel(*record.get(4)?, *record.get(5)? as u32),
        _ => return None,
    })
}

/// What joins a call with its work: a number that JSON's readers hold exactly, of 52 bits, by where the first of it went.
#[must_use]
pub const fn correlation(stream: u32, sequence: u64) -> u64 {
    (stream as u64) << 40 | sequence & ((1 << 40) - 1)
}

/// Puts numbers into a word behind its kind, if each fits its bits.
fn packed(kind: u64, numbers: [u64; 3], bits: [u32; 3]) -> Option<u64> {
    let (mut word, mut shift) = (kind, 4);
    for (number, bits) in numbers.into_iter().zip(bits) {
        if number >> bits != 0 {
            return None;
        }
        word |= number << shift;
        shift += bits;
    }
    Some(word)
}

/// A call that is over, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function, by its number.
    pub function: u16,
    /// When it began.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
    /// See [`correlation`]; 0 if it put nothing into a stream.
    pub correlation: u64,
}

/// A kernel and how it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    module: u64,
    index: u32,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

impl Shape {
    /// Where it has its number.
    fn place(&self) -> usize {
        let mixed = (self.module ^ u64::from(self.index) << 20)
            .wrapping_add(u64::from(self.grid[0]) << 7)
            .wrapping_add(u64::from(self.block[0] ^ self.shared_bytes))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 58) as usize % SHAPES
    }

    fn work(&self) -> PostedWork {
        PostedWork::Kernel {
            module: self.module,
            index: self.index,
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
        }
    }
}

/// What both ends remember of a thread.
#[derive(Debug)]
struct Memory {
    /// Of the last [`CALL`] with work.
    function: u16,
    /// When the last call ended.
    ended: u64,
    /// Where the last kernel went.
    stream: u32,
    sequence: u64,
    context: u32,
    shapes: [Option<Shape>; SHAPES],
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            function: 0,
            ended: 0,
            stream: 0,
            sequence: 0,
            context: 0,
            shapes: [None; SHAPES],
        }
    }
}

/// Writes a thread's words.
#[derive(Debug, Default)]
pub struct ThreadWriter {
    words: Vec<u64>,
    memory: Memory,
    /// Whether [`START`] was written.
    has_started: bool,
    /// A kernel that may be its call's only work.
    held: Option<(Posted, Shape)>,
    /// Whether the call that is under way has other work.
    is_several: bool,
}

impl ThreadWriter {
    /// What was written since it was cleared: whole records.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Forgets what was written, which is where it belongs.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Begins anew, since what was written is lost.
    pub fn restart(&mut self) {
        *self = Self {
            words: std::mem::take(&mut self.words),
            ..Self::default()
        };
        self.words.clear();
    }

    /// Whether something is held that is not among the words.
    #[must_use]
    pub const fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// A call begins: what another has put into streams, whose end was not told, is none of its.
    pub fn begin(&mut self) {
        self.write_held();
        self.is_several = false;
    }

    /// The call that is under way put work into a stream.
    pub fn posted(&mut self, posted: &Posted) {
        if let PostedWork::Kernel {
            module,
            index,
            grid,
            block,
            shared_bytes,
        } = posted.work
        {
            let shape = Shape {
                module,
                index,
                grid,
                block,
                shared_bytes,
            };
            if self.held.is_none() && !self.is_several {
                self.held = Some((*posted, shape));
                return;
            }
            self.write_held();
            self.kernel(posted, shape);
        } else {
            self.write_held();
            self.other(posted);
        }
        self.is_several = true;
    }

    /// A call is over.
    pub fn call(&mut self, call: &Call) {
        self.start();
        let after = call.began.wrapping_sub(self.memory.ended);
        let took = call.ended.saturating_sub(call.began);
        if let Some((posted, shape)) = self.held.take() {
            let memory = &self.memory;
            let is_next = call.function == memory.function
                && (posted.stream, posted.context) == (memory.stream, memory.context)
                && posted.sequence == memory.sequence.wrapping_add(1)
                && posted.correlation == call.correlation
                && call.correlation == correlation(posted.stream, posted.sequence);
            let place = self.shape(shape);
            let numbers = [place as u64, after, took];
            if let Some(word) = packed(LAUNCH, numbers, LAUNCH_BITS).filter(|_| is_next) {
                self.words.push(word);
                self.memory.sequence = posted.sequence;
                self.memory.ended = call.ended;
                return;
            }
            self.kernel(&posted, shape);
        }
        self.is_several = false;
        let numbers = [call.function.into(), after, took];
        match packed(CALLED, numbers, CALLED_BITS).filter(|_| call.correlation == 0) {
            Some(word) => self.words.push(word),
            None => {
                let first = CALL | u64::from(call.function) << 4;
                let words = [first, call.began, call.ended, call.correlation];
                self.words.extend(words);
                if call.correlation != 0 {
                    self.memory.function = call.function;
                }
            }
        }
        self.memory.ended = call.ended;
    }

    fn start(&mut self) {
        if !self.has_started {
            self.has_started = true;
            self.words.push(START);
        }
    }

    fn write_held(&mut self) {
        if let Some((posted, shape)) = self.held.take() {
            self.kernel(&posted, shape);
        }
    }

    /// The number of a shape, which is told of when it is new.
    fn shape(&mut self, shape: Shape) -> usize {
        let place = shape.place();
        if self.memory.shapes[place] != Some(shape) {
            self.memory.shapes[place] = Some(shape);
            let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
            self.words.extend([
                SHAPE | (place as u64) << 4 | u64::from(shape.index) << 32,
                shape.module,
                pair(gx, gy),
                pair(gz, bx),
                pair(by, bz),
                shape.shared_bytes.into(),
            ]);
        }
        place
    }

    fn kernel(&mut self, posted: &Posted, shape: Shape) {
        self.start();
        let place = self.shape(shape);
        self.head(posted, KERNEL | (place as u64) << 4, 0);
        self.memory.stream = posted.stream;
        self.memory.sequence = posted.sequence;
        self.memory.context = posted.context;
    }

    fn other(&mut self, posted: &Posted) {
        self.start();
        match posted.work {
            PostedWork::Copy { from, to, bytes } => {
                let places = u64::from(from.number()) << 4 | u64::from(to.number()) << 8;
                self.head(posted, COPY | places, 0);
                self.words.push(bytes);
            }
            PostedWork::Fill { bytes } => {
                self.head(posted, FILL, 0);
                self.words.push(bytes);
            }
            PostedWork::Run {
                module,
                index,
                launches,
            } => {
                self.head(posted, RUN, launches);
                self.words.extend([module, index.into()]);
            }
            PostedWork::Graph | PostedWork::Kernel { .. } => self.head(posted, GRAPH, 0),
        }
    }

    fn head(&mut self, posted: &Posted, kind: u64, more: u32) {
        self.words.extend([
            kind | u64::from(posted.stream) << 32,
            posted.sequence,
            u64::from(posted.context) | u64::from(more) << 32,
            posted.correlation,
        ]);
    }
}

#[cfg(test)]
mod tests;
