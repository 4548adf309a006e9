//! From a record to a method: what sessions and engines must have for each row, and who calls it.
//!
//! The session's thread calls [`fn@dispatch`] with each record that it has copied out. Must not know what a method
//! does.

use super::*;
use crate::wire::{Fields, Header, MAX_FIELD_SLOTS, Malformed};
use cuda_abi::CUresult;

/// Declares a trait with one method for each row that `for_each_operation!` gives, and its dispatch.
///
/// By class the methods are
/// `fn post(&mut self, request: &R, data: &[u8]) -> Result<(), CUresult>`,
/// `fn stream(&mut self, at: At, request: &R, data: &[u8]) -> Result<(), CUresult>` and
/// `fn call(&mut self, request: &R, data: &[u8], reply: &mut Vec<u8>) -> Result<Reply, CUresult>`.
#[macro_export]
macro_rules! operation_method {
    (post $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the driver function that asked for it.
        fn $method(&mut self, request: &$crate::operations::$request, data: &[u8]) -> Result<(), $crate::CUresult>;
    };
    (create $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $crate::operation_method! { post $(#[$doc])* $method($request) -> $reply }
    };
    (stream $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the driver function that asked for it.
        fn $method(&mut self, at: $crate::operations::At, request: &$crate::operations::$request, data: &[u8]) -> Result<(), $crate::CUresult>;
    };
    (call $(#[$doc:meta])* $method:ident($request:ident) -> $reply:ident) => {
        $(#[$doc])*
        ///
        /// What it appends to `reply` travels behind the reply's fields.
        ///
        /// # Errors
        /// As the driver function that asked for it.
        fn $method(&mut self, request: &$crate::operations::$request, data: &[u8], reply: &mut Vec<u8>) -> Result<$crate::operations::$reply, $crate::CUresult>;
    };
}

/// A place in a stream's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct At {
    /// The stream's slot.
    pub stream: u32,
    /// The position, from 1.
    pub sequence: u64,
}

/// What a record came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// A record without a reply, and its error if it had one.
    Posted(Result<(), CUresult>),
    /// A call: its status, and the fields of its reply (none when it failed).
    Replied {
        /// The status.
        status: CUresult,
        /// Fields of the reply.
        slots: [u64; MAX_FIELD_SLOTS],
        /// How many of `slots` there are.
        count: usize,
    },
}

/// A record that could not be handed to a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedRecord {
    /// The record is damaged: its sender is to be disconnected.
    Malformed(Malformed),
    /// This build does not know the operation: answered with CUDA_ERROR_NOT_SUPPORTED.
    Unknown(u16),
}

macro_rules! run {
    (post $handler:ident $method:ident $request:ident $header:ident $slots:ident $data:ident $reply:ident) => {
        RecordOutcome::Posted($handler.$method(&read::<$request>($slots)?, $data))
    };
    (create $($rest:tt)*) => {
        run!(post $($rest)*)
    };
    (stream $handler:ident $method:ident $request:ident $header:ident $slots:ident $data:ident $reply:ident) => {{
        let at = At { stream: $header.channel, sequence: $header.sequence };
        RecordOutcome::Posted($handler.$method(at, &read::<$request>($slots)?, $data))
    }};
    (call $handler:ident $method:ident $request:ident $header:ident $slots:ident $data:ident $reply:ident) => {{
        let request = read::<$request>($slots)?;
        let mut slots = [0; MAX_FIELD_SLOTS];
        match $handler.$method(&request, $data, $reply) {
            Ok(fields) => {
                let count = count_of(&fields);
                fields.write(&mut slots[..count]);
                RecordOutcome::Replied { status: CUresult::SUCCESS, slots, count }
            }
            Err(status) => RecordOutcome::Replied { status, slots, count: 0 },
        }
    }};
}

fn read<R: Fields>(slots: &[u64]) -> Result<R, RefusedRecord> {
    R::read(slots).map_err(RefusedRecord::Malformed)
}

fn count_of<R: Fields>(_: &R) -> usize {
    R::SLOTS
}

macro_rules! dispatcher {
    ($($group:ident { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* })*) => {
        /// Whoever carries out a client's operations: one method a row.
        pub trait Operations {
            $($($crate::operation_method! { $class $(#[$doc])* $method($request) -> $reply })*)*
        }

        /// Reads a record's fields and hands them to the method of its row.
        ///
        /// `data` is the record's run of bytes, `reply` takes what a call appends.
        ///
        /// # Errors
        /// When the operation is not known or a field's value does not fit.
        pub fn dispatch<H: Operations + ?Sized>(
            handler: &mut H,
            header: &Header,
            slots: &[u64],
            data: &[u8],
            reply: &mut Vec<u8>,
        ) -> Result<RecordOutcome, RefusedRecord> {
            let opcode = Opcode::from_number(header.opcode).ok_or(RefusedRecord::Unknown(header.opcode))?;
            Ok(match opcode {
                $($(Opcode::$request => run!($class handler $method $request header slots data reply),)*)*
            })
        }
    };
}

for_each_operation!(dispatcher);
