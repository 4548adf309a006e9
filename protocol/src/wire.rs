//! How an operation lies in memory: 64-bit slots and one run of bytes.
//!
//! A record is a [`Header`] of three slots, the fields of its operation (one slot each, three for a
//! dimension, four for a token), and at most one run of bytes padded to eight. There is no padding inside, no
//! alignment to get wrong and nothing to derive; narrowing is checked when a slot is read. A record
//! carries its own length and its row's version: an older peer's record lacks trailing fields, which
//! read as zero, and a newer one's surplus is passed over.
//!
//! Owns the layout only. Knows nothing of rings, sockets or of what the operations mean.

/// Slots that a [`Header`] takes.
pub const HEADER_SLOTS: usize = 3;

/// The largest number of field slots that any operation has; a test holds the table to it.
pub const MAX_FIELD_SLOTS: usize = 24;

/// What stands before the fields of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The operation's number in the table.
    pub opcode: u16,
    /// The version of the operation's row that the writer knew.
    pub version: u8,
    /// Slots of fields that follow the header.
    pub slots: u8,
    /// Bytes of data that follow the fields, before padding.
    pub data: u32,
    /// For stream operations the position in the stream's order, from 1; for calls the serial number
    /// that the reply repeats; else 0.
    pub sequence: u64,
    /// For stream operations the stream's slot; for calls the reply slot; else 0.
    pub channel: u32,
}

/// Why a record was not understood. The sender is broken or hostile: it is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A slot holds a value that its field's type cannot.
    Field {
        /// Which slot, from 0.
        slot: usize,
    },
    /// The record ends before what it announces.
    Length,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Field { slot } => write!(f, "slot {slot} holds a value outside its type"),
            Self::Length => f.write_str("record shorter than it says"),
        }
    }
}

impl core::error::Error for Malformed {}

impl Header {
    /// The three slots of this header.
    #[must_use]
    pub const fn encode(self) -> [u64; HEADER_SLOTS] {
        [
            self.data as u64
                | (self.opcode as u64) << 32
                | (self.version as u64) << 48
                | (self.slots as u64) << 56,
            self.sequence,
            self.channel as u64,
        ]
    }

    /// Reads a header.
    ///
    /// # Errors
    /// When the channel does not fit 32 bits.
    pub const fn decode(slots: [u64; HEADER_SLOTS]) -> Result<Self, Malformed> {
        if slots[2] > u32::MAX as u64 {
            return Err(Malformed::Field { slot: 2 });
        }
        Ok(Self {
            opcode: (slots[0] >> 32) as u16,
            version: (slots[0] >> 48) as u8,
            slots: (slots[0] >> 56) as u8,
            data: slots[0] as u32,
            sequence: slots[1],
            channel: slots[2] as u32,
        })
    }

    /// Bytes of the whole record: header, fields, data and its padding.
    #[must_use]
    pub const fn record_bytes(self) -> usize {
        (HEADER_SLOTS + self.slots as usize) * 8 + (self.data as usize).next_multiple_of(8)
    }
}

/// A value that is a field of an operation.
pub trait Field: Copy {
    /// Slots that it takes.
    const SLOTS: usize;
    /// Writes it to exactly [`Field::SLOTS`] slots.
    fn write(self, slots: &mut [u64]);
    /// Reads it from exactly [`Field::SLOTS`] slots; `at` is the first one's position, for errors.
    ///
    /// # Errors
    /// When a slot's value does not fit.
    fn read(slots: &[u64], at: usize) -> Result<Self, Malformed>;
}

macro_rules! scalar_field {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const SLOTS: usize = 1;
            fn write(self, slots: &mut [u64]) {
                // Signed values travel sign-extended, so that narrowing can be checked.
                slots[0] = i128::from(self) as u64;
            }
            fn read(slots: &[u64], at: usize) -> Result<Self, Malformed> {
                let signed = <$t>::MIN != 0;
                let narrowed = if signed {
                    <$t>::try_from(slots[0] as i64).ok()
                } else {
                    <$t>::try_from(slots[0]).ok()
                };
                narrowed.ok_or(Malformed::Field { slot: at })
            }
        }
    )*};
}

scalar_field!(u8, u32, u64, i32, i64);

impl Field for [u32; 3] {
    const SLOTS: usize = 3;
    fn write(self, slots: &mut [u64]) {
        for (slot, value) in slots.iter_mut().zip(self) {
            *slot = u64::from(value);
        }
    }
    fn read(slots: &[u64], at: usize) -> Result<Self, Malformed> {
        Ok([
            u32::read(&slots[..1], at)?,
            u32::read(&slots[1..2], at + 1)?,
            u32::read(&slots[2..3], at + 2)?,
        ])
    }
}

/// A token.
impl Field for [u64; 4] {
    const SLOTS: usize = 4;
    fn write(self, slots: &mut [u64]) {
        slots.copy_from_slice(&self);
    }
    fn read(slots: &[u64], _: usize) -> Result<Self, Malformed> {
        let mut token = [0; 4];
        token.copy_from_slice(slots);
        Ok(token)
    }
}

/// A group of fields: the request or the reply of an operation.
pub trait Fields: Copy {
    /// Slots that they take together.
    const SLOTS: usize;
    /// Writes all fields to exactly [`Fields::SLOTS`] slots.
    fn write(&self, slots: &mut [u64]);
    /// Reads all fields. Missing trailing slots read as zero, surplus ones are passed over.
    ///
    /// # Errors
    /// When a slot's value does not fit its field.
    fn read(slots: &[u64]) -> Result<Self, Malformed>;
}
