//! What a recorded program tells of its calls and work, as bytes: by whoever records it to whoever writes the file.
//!
//! `client` writes it; it is read in the same process, or in that of `openmps trace`, which the server passes it on to and
//! which trusts none of it. [`join`](crate::join) makes a time line of it. Knows no streams' completion and no files.

use crate::event::Place;

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
    /// A call that is over. Times are nanoseconds of CLOCK_MONOTONIC.
    Call {
        /// The number of the function's name.
        function: u32,
        /// The thread.
        tid: u32,
        /// When it began.
        began_ns: u64,
        /// When it ended.
        ended_ns: u64,
        /// As [`Posted::correlation`].
        correlation: u64,
    },
    /// Work was put into a stream.
    Posted(Posted),
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

const PLACES: [Place; 5] = [
    Place::Pageable,
    Place::Pinned,
    Place::Device,
    Place::Array,
    Place::Managed,
];

fn number_of(place: Place) -> u8 {
    let at = PLACES.iter().position(|known| *known == place);
    at.unwrap_or_default() as u8
}

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
            Self::Call {
                function,
                tid,
                began_ns,
                ended_ns,
                correlation,
            } => put!(out: 2_u8, function, tid, began_ns, ended_ns, correlation),
            Self::Posted(posted) => put_posted(&posted, out),
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

fn put_posted(posted: &Posted, out: &mut Vec<u8>) {
    let kind: u8 = match posted.work {
        PostedWork::Kernel { .. } => 3,
        PostedWork::Copy { .. } => 4,
        PostedWork::Fill { .. } => 5,
        PostedWork::Graph => 6,
        PostedWork::Run { .. } => 10,
    };
    put!(out: kind, posted.stream, posted.sequence, posted.context, posted.correlation);
    match posted.work {
        PostedWork::Kernel {
            module,
            index,
            grid,
            block,
            shared_bytes,
        } => {
            put!(out: module, index);
            for size in grid.into_iter().chain(block) {
                put!(out: size);
            }
            put!(out: shared_bytes);
        }
        PostedWork::Copy { from, to, bytes } => {
            put!(out: number_of(from), number_of(to), bytes);
        }
        PostedWork::Fill { bytes } => put!(out: bytes),
        PostedWork::Run {
            module,
            index,
            launches,
        } => put!(out: module, index, launches),
        PostedWork::Graph => {}
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

    fn sizes(&mut self) -> Result<[u32; 3], Damaged> {
        Ok([self.short()?, self.short()?, self.short()?])
    }

    fn name(&mut self) -> Result<&'a str, Damaged> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > LONGEST_NAME {
            return Err(Damaged);
        }
        let (name, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        std::str::from_utf8(name).map_err(|_| Damaged)
    }

    fn place(&mut self) -> Result<Place, Damaged> {
        let number = usize::from(self.byte()?);
        PLACES.get(number).copied().ok_or(Damaged)
    }

    fn posted(&mut self, kind: u8) -> Result<Posted, Damaged> {
        Ok(Posted {
            stream: self.short()?,
            sequence: self.long()?,
            context: self.short()?,
            correlation: self.long()?,
            work: match kind {
                3 => PostedWork::Kernel {
                    module: self.long()?,
                    index: self.short()?,
                    grid: self.sizes()?,
                    block: self.sizes()?,
                    shared_bytes: self.short()?,
                },
                4 => PostedWork::Copy {
                    from: self.place()?,
                    to: self.place()?,
                    bytes: self.long()?,
                },
                5 => PostedWork::Fill {
                    bytes: self.long()?,
                },
                10 => PostedWork::Run {
                    module: self.long()?,
                    index: self.short()?,
                    launches: self.short()?,
                },
                _ => PostedWork::Graph,
            },
        })
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
            2 => Told::Call {
                function: self.short()?,
                tid: self.short()?,
                began_ns: self.long()?,
                ended_ns: self.long()?,
                correlation: self.long()?,
            },
            kind @ (3..=6 | 10) => Told::Posted(self.posted(kind)?),
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
        let posted = |work| {
            Told::Posted(Posted {
                stream: 1,
                sequence: 2,
                context: 3,
                correlation: 4,
                work,
            })
        };
        vec![
            Told::Function {
                number: 7,
                name: "cuInit",
            },
            Told::Thread { tid: 8, name: "ü" },
            Told::Call {
                function: 7,
                tid: 8,
                began_ns: 9,
                ended_ns: u64::MAX,
                correlation: 4,
            },
            posted(PostedWork::Kernel {
                module: 10,
                index: 11,
                grid: [1, 2, 3],
                block: [4, 5, 6],
                shared_bytes: 12,
            }),
            posted(PostedWork::Copy {
                from: Place::Managed,
                to: Place::Pageable,
                bytes: 13,
            }),
            posted(PostedWork::Fill { bytes: 14 }),
            posted(PostedWork::Graph),
            posted(PostedWork::Run {
                module: 10,
                index: 11,
                launches: 3,
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
