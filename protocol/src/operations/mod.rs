//! What travels: the operations that a client asks of its server.
//!
//! The driver's functions (`cuda_abi::functions`) say what a program sees; many of them come down to the same
//! request: thirty copy functions are one [`struct@Copy`], nine ways to launch are one [`Launch`]. Each
//! request is a row of [`for_each_operation!`](crate::for_each_operation), and from the row come its
//! struct, its codec, its [`Opcode`], the method that the server's session must have, and, for rows
//! of the engine's group, the method that every engine must have. A row without an implementation
//! does not compile.
//!
//! Numbers are explicit and never reused. A row only ever gains trailing fields, with its version.
//!
//! A row's class:
//! * `post`: no reply; an error is kept and surfaces at the next synchronising call.
//! * `create`: no reply; the client chose the handle, and knows that it can be made.
//! * `stream`: no reply; belongs to a stream's order. The header's channel is the stream's slot and
//!   its sequence the place in that order; completion is read from the stream's completion word.
//! * `call`: the client waits for a reply.
//!
//! Read by `client`, which encodes requests, and by sessions and engines. Must not know rings or engines.

mod dispatch;
mod hold;
mod objects;
mod rows;
mod spans;

pub use dispatch::{At, Operations, RecordOutcome, RefusedRecord, dispatch};
pub use hold::HoldReason;
pub use objects::{Effect, Object};
pub use spans::{OperationSpan, SPAN_COPY, SPAN_KERNEL, SpanReader, SpanRecord, SpanWriter};

use crate::for_each_operation;
use crate::wire::{Field, Fields, MAX_FIELD_SLOTS, Malformed};

impl RunAdd {
    /// What adds a launch to a run.
    #[must_use]
    pub const fn new(run: u32, launch: &Launch) -> Self {
        let Launch {
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        } = *launch;
        Self {
            run,
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        }
    }

    /// The launch.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        let Self {
            run: _,
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        } = *self;
        Launch {
            module,
            kernel,
            grid,
            block,
            shared,
            flags,
            attributes,
        }
    }

    /// What a launch counts for against [`RUN_BYTES`], with so many bytes of data.
    #[must_use]
    pub const fn bytes(data: usize) -> usize {
        size_of::<Launch>() + 64 + data
    }
}

/// What an [`Expose`] offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Exposed {
    /// A block of device memory, by its address, of which others see so many bytes.
    Block = 0,
    /// A shared event, by its slot.
    Event = 1,
    /// Physical memory, by its handle.
    Physical = 2,
}

impl Exposed {
    /// The kind with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Block),
            1 => Some(Self::Event),
            2 => Some(Self::Physical),
            _ => None,
        }
    }
}

/// Shared events that one client may have open.
pub const SHARED_EVENT_SLOTS: u32 = 4096;

/// Where a side of a [`struct@Copy`] lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Space {
    /// A unified address: device memory or page-locked host memory of this client.
    Unified = 0,
    /// An offset into this client's staging memory.
    Staging = 1,
    /// An array of this client: only in an [`ArrayCopy`].
    Array = 2,
}

impl Space {
    /// The space with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Unified),
            1 => Some(Self::Staging),
            2 => Some(Self::Array),
            _ => None,
        }
    }
}

/// Bit of [`ImageLoad::options`]: the image is only looked at, as a part of what will be linked.
pub const IMAGE_PART: u32 = 1;

/// Bit of [`ImageLoad::options`]: the log tells of what was compiled.
pub const IMAGE_VERBOSE: u32 = 2;

/// Where the most registers of a thread stand in [`ImageLoad::options`]: 8 bits, 0 for no limit.
pub const IMAGE_REGISTERS_SHIFT: u32 = 8;

/// Bit of [`Launch::flags`]: all blocks must be resident at once (cooperative launch).
pub const LAUNCH_COOPERATIVE: u32 = 1;

/// Bit of [`ContextCreate::flags`]: its kernels are those of the device's primary context, of whose
/// multiprocessors it has a part (a green context). Beyond the flags that programs give.
pub const CONTEXT_GREEN: u32 = 1 << 31;

/// Bit of [`StreamCreate::flags`]: does not synchronise with the legacy stream (CU_STREAM_NON_BLOCKING).
pub const STREAM_NON_BLOCKING: u32 = 1;

/// [`OutputTakeReply::sink`]: there is no text.
pub const OUTPUT_NONE: u32 = 0;
/// [`OutputTakeReply::sink`]: for the program's standard output.
pub const OUTPUT_STDOUT: u32 = 1;
/// [`OutputTakeReply::sink`]: for its standard error.
pub const OUTPUT_STDERR: u32 = 2;
/// The most bytes of text in one reply.
pub const OUTPUT_PIECE: usize = 3072;

/// Streams that one client may have; slots of completion words.
pub const STREAM_SLOTS: u32 = 4096;

/// [`FileMap`]: the client can only read the file.
pub const FILE_READ_ONLY: u32 = 1;

/// Bytes of a huge page, of which [`HostReserve`]'s phase speaks.
pub const HUGE_PAGE: u64 = 2 << 20;

/// The packet with which a client sends the descriptor of a file that it is about to have mapped.
pub const FILE_PACKET: &[u8] = b"file";

/// The packet with which a client sends what its objects are made of to a server that takes its session over.
pub const JOURNAL_PACKET: &[u8] = b"journal";

/// The packet with which a client sends the descriptor of something of another interface.
pub const FOREIGN_PACKET: &[u8] = b"foreign";

/// Runs that one client may have; their numbers are below it.
pub const RUNS: u32 = 256;

/// Launches that one run may have.
pub const RUN_LENGTH: usize = 128;

/// Bytes that all launches of a client's runs may take, each as [`RunAdd::bytes`] says.
pub const RUN_BYTES: usize = 4 << 20;

/// Legacy streams, and so contexts, that one client may have.
pub const CONTEXT_SLOTS: u32 = 32;

/// Connections of a context that streams can share.
pub const CONNECTIONS: u32 = 32;

/// Timed events that one client may have at once.
pub const EVENT_SLOTS: u32 = 16384;

/// Work that one stream may have posted and unfinished; the client waits beyond it, as CUDA does
/// when its launch queue is full, and the server ends a client that goes further.
pub const STREAM_DEPTH: u64 = 1024;

/// What kind of answer an operation has; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationClass {
    /// No reply.
    Post,
    /// No reply; makes an object under the client's handle.
    Create,
    /// No reply; ordered in a stream.
    Stream,
    /// Waits for a reply.
    Call,
}

/// The facts of a row, for logs, metrics and documentation.
#[derive(Clone, Copy, Debug)]
pub struct OperationRow {
    /// Its number.
    pub number: u16,
    /// The version of the row.
    pub version: u8,
    /// The method's name, which is also the metric label and the trace name.
    pub name: &'static str,
    /// Its class.
    pub class: OperationClass,
    /// Whether an engine carries it out.
    pub engine: bool,
    /// Field slots of its request.
    pub slots: usize,
}

/// A request of the table.
pub trait Request: Fields + 'static {
    /// Its operation.
    const OPCODE: Opcode;
    /// The version of its row.
    const VERSION: u8;
    /// Its class.
    const CLASS: OperationClass;
    /// What the reply carries, beside a status and data.
    type Reply: Fields;
}

macro_rules! class {
    (post) => {
        OperationClass::Post
    };
    (create) => {
        OperationClass::Create
    };
    (stream) => {
        OperationClass::Stream
    };
    (call) => {
        OperationClass::Call
    };
}

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the row's text says what the fields are")]
        pub struct $name { $(pub $field: $type),* }

        impl Fields for $name {
            const SLOTS: usize = 0 $(+ <$type as Field>::SLOTS)*;
            #[inline]
            fn write(&self, slots: &mut [u64]) {
                let mut _rest = slots;
                $(
                    let (here, after) = _rest.split_at_mut(<$type as Field>::SLOTS);
                    self.$field.write(here);
                    _rest = after;
                )*
            }
            #[inline]
            fn read(slots: &[u64]) -> Result<Self, Malformed> {
                let mut all = [0u64; MAX_FIELD_SLOTS];
                let known = slots.len().min(Self::SLOTS);
                all[..known].copy_from_slice(&slots[..known]);
                let mut _at = 0;
                $(
                    let $field = <$type as Field>::read(&all[_at.._at + <$type as Field>::SLOTS], _at)?;
                    _at += <$type as Field>::SLOTS;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

macro_rules! reply {
    (NoReply {}) => {};
    ($name:ident $fields:tt) => {
        fields! {
            /// What the reply of the operation carries.
            $name $fields
        }
    };
}

fields! {
    /// The reply of an operation that has none.
    NoReply {}
}

macro_rules! operations {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        /// The numbers of the operations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode {
            $($($(#[$doc])* $request = $number,)*)*
        }

        impl Opcode {
            /// The operation with this number, if this build knows it.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($($number => Some(Self::$request),)*)*
                    _ => None,
                }
            }

            /// The facts of its row.
            #[must_use]
            pub const fn row(self) -> OperationRow {
                match self {
                    $($(Self::$request => OperationRow {
                        number: $number,
                        version: $version,
                        name: stringify!($method),
                        class: class!($class),
                        engine: matches!(stringify!($group).as_bytes(), b"engine"),
                        slots: <$request as Fields>::SLOTS,
                    },)*)*
                }
            }
        }

        /// Every operation, in order of the table.
        pub const OPERATIONS: &[Opcode] = &[$($(Opcode::$request,)*)*];

        $($(
            fields! { $(#[$doc])* $request $fields }
            reply! { $reply $reply_fields }
            impl Request for $request {
                const OPCODE: Opcode = Opcode::$request;
                const VERSION: u8 = $version;
                const CLASS: OperationClass = class!($class);
                type Reply = $reply;
            }
            const _: () = assert!(<$request as Fields>::SLOTS <= MAX_FIELD_SLOTS);
            const _: () = assert!(<$reply as Fields>::SLOTS <= MAX_FIELD_SLOTS);
        )*)*
    };
}

for_each_operation!(operations);
