//! What happened: a process, its tracks, and activities on them.
//!
//! All times are nanoseconds of CLOCK_MONOTONIC; a [`Clock`] says where that stands in the time of day.
//!
//! Made by `join`, written by `chrome::write`. Plain data: it must not know a file's form.

use std::borrow::Cow;

/// One moment on two clocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The moment on CLOCK_MONOTONIC, in nanoseconds. Times before it cannot be written.
    pub monotonic_ns: u64,
    /// The same moment on CLOCK_REALTIME, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// Which run of which kernel the monotonic clock is of (`/proc/sys/kernel/random/boot_id`); may be empty.
    /// Files of one boot are put together by the monotonic clock, which no correction of the time of day moves.
    pub boot: String,
}

/// Whose file it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// As the process knows itself.
    pub pid: u32,
    /// The program.
    pub name: String,
    /// The machine or container.
    pub host: String,
}

/// A row of the time line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// Calls of one thread.
    Thread {
        /// As the kernel counts threads.
        tid: u32,
    },
    /// What the device did for one stream.
    Stream {
        /// The device's ordinal in the process.
        device: u32,
        /// The context's number in the process.
        context: u32,
        /// The stream's number in the process.
        stream: u32,
    },
    /// When work of one stream waited for the device.
    Waits {
        /// The device's ordinal in the process.
        device: u32,
        /// The context's number in the process.
        context: u32,
        /// The stream's number in the process.
        stream: u32,
    },
    /// When work of one stream was held back for the order of the program's work.
    Holds {
        /// The device's ordinal in the process.
        device: u32,
        /// The context's number in the process.
        context: u32,
        /// The stream's number in the process.
        stream: u32,
    },
}

/// Where a copy's bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Memory of the program that the device does not know.
    Pageable,
    /// Memory of the host that the device reads and writes by itself.
    Pinned,
    /// Memory of a device.
    Device,
    /// A CUDA array.
    Array,
    /// Managed memory.
    Managed,
}

impl Place {
    const ALL: [Self; 5] = [
        Self::Pageable,
        Self::Pinned,
        Self::Device,
        Self::Array,
        Self::Managed,
    ];

    /// Its number, by which programs tell of it.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The place with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Kineto's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pageable => "Pageable",
            Self::Pinned => "Pinned",
            Self::Device => "Device",
            Self::Array => "Array",
            Self::Managed => "Managed",
        }
    }

    /// The letter in `HtoD`.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Pageable | Self::Pinned => 'H',
            Self::Device => 'D',
            Self::Array => 'A',
            Self::Managed => 'M',
        }
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq)]
pub enum Work<'a> {
    /// A function of the driver API.
    Call {
        /// The function's name.
        name: Cow<'a, str>,
    },
    /// A kernel ran.
    Kernel {
        /// Its name in the image.
        name: Cow<'a, str>,
        /// Blocks in each direction.
        grid: [u32; 3],
        /// Threads of a block in each direction.
        block: [u32; 3],
        /// Shared memory of a block in bytes, static and dynamic.
        shared_bytes: u32,
        /// Registers of a thread.
        registers: u32,
    },
    /// Bytes were copied.
    Copy {
        /// From where.
        from: Place,
        /// To where.
        to: Place,
        /// How many.
        bytes: u64,
    },
    /// Memory was filled.
    Fill {
        /// What kind of memory.
        place: Place,
        /// How many bytes.
        bytes: u64,
    },
    /// Work waited for other programs.
    Wait {
        /// For what.
        name: Cow<'a, str>,
    },
    /// Work was held back otherwise.
    Hold {
        /// Why.
        name: Cow<'a, str>,
    },
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Activity<'a> {
    /// Where it is drawn.
    pub track: Track,
    /// When it began.
    pub began_ns: u64,
    /// When it ended; not before it began.
    pub ended_ns: u64,
    /// What it was.
    pub work: Work<'a>,
    /// What joins a call with the device's work that it caused: the same number in both, and in no other pair of
    /// the process. Zero: nothing.
    pub correlation: u64,
}
