//! What a recorded program tells of its calls and work, as bytes: by whoever records it to whoever writes the file.
//!
//! `client` writes it; it is read in the same process, or in that of `openmps trace`, which the server passes it on to and
//! which trusts none of it. [`thread_log`](crate::thread_log) has what is in threads' words; [`join`](crate::join) makes a time line of it.
//! Knows no streams' completion and no files.

use crate::event::Place;
use crate::thread_log::TickClock;

/// The longest name that is told, in bytes.
pub const LONGEST_NAME: usize = 4096;

/// Work that was put into a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The stream's number in the process.
    pub stream: u32,
    /// The work's place in the stream.
    pub sequence: u64,
    /// The number of the stream's context.
    pub context: u32,
    /// What joins it with the call, see [`Activity::correlation`](crate::event::Activity::correlation).
    pub correlation: u64,
    /// What it is.
    pub work: PostedWork,
}

/// What was put into a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostedWork {
    /// A kernel, of which [`Told::Kernel`] says more.
    Kernel {
        /// Its module's number in the process.
        module: u64,
        /// Its number in its image.
        index: u32,
        /// Blocks in each direction.
        grid: [u32; 3],
        /// Threads of a block in each direction.
        block: [u32; 3],
        /// Dynamic shared memory of a block, in bytes.
        shared_bytes: u32,
    },
    /// A copy.
    Copy {
        /// From where.
        from: Place,
        /// To where.
        to: Place,
        /// How many bytes.
        bytes: u64,
    },
    /// A fill of so many bytes.
    Fill {
        /// How many.
        bytes: u64,
    },
    /// Kernels of a graph, launched together.
    Run {
        /// The first one's module's number in the process.
        module: u64,
        /// Its number in its image.
        index: u32,
        /// How many.
        launches: u32,
    },
    /// Other nodes of a graph.
    Graph,
}

/// One thing that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// The name of a function of the API, by a number of the program's choice, before the first call of it.
    Function {
        /// The number.
        number: u32,
        /// The name.
        name: &'a str,
    },
    /// A thread's name.
    Thread {
        /// As the kernel counts threads.
        tid: u32,
        /// The name.
        name: &'a str,
    },
    /// What a thread did.
    Words {
        /// The thread.
        tid: u32,
        /// Whole records for a [`ThreadsReader`](crate::thread_log::ThreadsReader).
        words: &'a [u8],
    },
    /// What the ticks are in words that follow.
    Clock(TickClock),
    /// What a kernel is, before the first launch of it.
    Kernel {
        /// Its module's number.
        module: u64,
        /// Its number in its image.
        index: u32,
        /// Static shared memory of a block, in bytes.
        shared_bytes: u32,
        /// Registers of a thread.
        registers: u32,
        /// Its name.
        name: &'a str,
    },
    /// Calls or work are missing here.
    Dropped {
        /// How many.
        count: u64,
    },
    /// All work that was put into streams before this moment was told, in nanoseconds of CLOCK_MONOTONIC.
    Until {
        /// The moment.
        time_ns: u64,
    },
}

/// The bytes are none that [`Told::put`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl std::fmt::Display for Damaged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("what the program told of its calls cannot be read")
    }
}

impl std::error::Error for Damaged {}

fn put_name(name: &str, out: &mut Vec<u8>) {
    let name = &name[..name.floor_char_boundary(LONGEST_NAME)];
    out.extend((name.len() as u16).to_le_bytes());
    out.extend(name.as_bytes());
}

macro_rules! put {
    ($out:ident: $($number:expr),*) => {{
        $( $out.extend($number.to_le_bytes()); )*
    }};
}

impl Told<'_> {
    /// Writes it behind what is there.
    pub fn put(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Function { number, name } => {
                put!(out: 0_u8, number);
                put_name(name, out);
            }
            Self::Thread { tid, name } => {
                put!(out: 1_u8, tid);
                put_name(name, out);
            }
            Self::Words { tid, words } => {
                put!(out: 2_u8, tid, words.len() as u32);
                out.extend_from_slice(words);
            }
            Self::Clock(TickClock {
                ticks: [first, last],
                nanoseconds: [from, to],
            }) => put!(out: 3_u8, first, last, from, to),
            Self::Kernel {
                module,
                index,
                shared_bytes,
                registers,
                name,
            } => {
                put!(out: 7_u8, module, index, shared_bytes, registers);
                put_name(name, out);
            }
            Self::Dropped { count } => put!(out: 8_u8, count),
            Self::Until { time_ns } => put!(out: 9_u8, time_ns),
        }
    }
}

/// What was told, one after the other, up to the first thing that cannot be read.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Of bytes that begin with one whole thing.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u32, Damaged> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, Damaged> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<&'a str, Damaged> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > LONGEST_NAME {
            return Err(Damaged);
        }
        let name = self.bytes(length)?;
        std::str::from_utf8(name).map_err(|_| Damaged)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn told(&mut self) -> Result<Told<'a>, Damaged> {
        Ok(match self.byte()? {
            0 => Told::Function {
                number: self.short()?,
                name: self.name()?,
            },
            1 => Told::Thread {
                tid: self.short()?,
                name: self.name()?,
            },
            2 => Told::Words {
                tid: self.short()?,
                words: {
                    let length = self.short()? as usize;
                    self.bytes(length)?
                },
            },
            3 => Told::Clock(TickClock {
                ticks: [self.long()?, self.long()?],
                nanoseconds: [self.long()?, self.long()?],
            }),
            7 => Told::Kernel {
                module: self.long()?,
                index: self.short()?,
                shared_bytes: self.short()?,
                registers: self.short()?,
                name: self.name()?,
            },
            8 => Told::Dropped {
                count: self.long()?,
            },
            9 => Told::Until {
                time_ns: self.long()?,
            },
            _ => return Err(Damaged),
        })
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Told<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let told = self.told();
        if told.is_err() {
            self.0 = &[];
        }
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Told<'static>> {
        vec![
            Told::Function {
                number: 7,
                name: "cuInit",
            },
            Told::Thread { tid: 8, name: "ü" },
            Told::Words {
                tid: 8,
                words: &[1, 2, 3],
            },
            Told::Clock(TickClock {
                ticks: [5, u64::MAX],
                nanoseconds: [6, 7],
            }),
            Told::Kernel {
                module: 10,
                index: 11,
                shared_bytes: 15,
                registers: 16,
                name: "",
            },
            Told::Dropped { count: 17 },
            Told::Until { time_ns: 18 },
        ]
    }

    #[test]
    fn what_is_told_is_read() {
        let mut bytes = Vec::new();
        for told in all() {
            told.put(&mut bytes);
        }
        let read: Result<Vec<_>, _> = Reader::new(&bytes).collect();
        assert_eq!(read, Ok(all()));
        for end in 0..bytes.len() {
            let read: Vec<_> = Reader::new(&bytes[..end]).collect();
            assert!(read.len() <= all().len());
        }
    }

    #[test]
    fn what_nobody_tells_is_refused() {
        for bytes in [
            &[99][..],
            &[0, 1, 0, 0, 0, 255, 255],
            &[0, 1, 0, 0, 0, 1, 0, 0xff],
            &[2, 0],
            &[2, 0, 0, 0, 0, 2, 0, 0, 0, 1],
        ] {
            let read: Vec<_> = Reader::new(bytes).collect();
            assert_eq!(read, [Err(Damaged)], "{bytes:?}");
        }
        let mut long = Vec::new();
        let name = "ü".repeat(100_000);
        Told::Function {
            number: 1,
            name: &name,
        }
        .put(&mut long);
        let read: Vec<_> = Reader::new(&long).collect();
        assert!(
            matches!(read[..], [Ok(Told::Function { name, .. })] if name.len() <= LONGEST_NAME)
        );
    }
}
