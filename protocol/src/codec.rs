//! How messages and facts become bytes: from one declaration of a type's fields come both directions.
//!
//! Numbers are little-endian. A text or a list stands behind its length in 32 bits, what can be absent behind a
//! byte that says whether it is there, and an alternative behind its number. A field that is added later is added
//! last. No count is trusted: a reader takes from the bytes that are left, and ends when they do.
//!
//! [`control_messages`](crate::control_messages), [`device_facts`](crate::device_facts) and
//! [`image_descriptor`](crate::image_descriptor) are declared with [`message!`] and [`alternatives!`]; what lies in
//! a ring's record has its own form, [`wire`](crate::wire). Knows no message.

/// The bytes end early, or hold what their field cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl std::fmt::Display for Damaged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the bytes end early or hold what their field cannot")
    }
}

impl std::error::Error for Damaged {}

/// What can be written as bytes and read again.
pub(crate) trait ByteCodec: Sized {
    /// Writes it behind what is there.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads one from the front of what is left.
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged>;
}

/// Bytes, of which the front is read off.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, so many of them.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Damaged)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    /// A text, where it lies.
    pub(crate) fn text(&mut self) -> Result<&'a str, Damaged> {
        let count = u32::get(self)? as usize;
        std::str::from_utf8(self.bytes(count)?).map_err(|_| Damaged)
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    // What is longer than this leaves no process: packets and images are shorter.
    u32::try_from(count).unwrap_or(u32::MAX).put(out);
}

/// Writes a text as [`Reader::text`] reads it.
pub(crate) fn put_text(text: &str, out: &mut Vec<u8>) {
    put_count(text.len(), out);
    out.extend(text.as_bytes());
}

macro_rules! number {
    ($($number:ty),*) => {$(
        impl ByteCodec for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
                Ok(Self::from_le_bytes(from.array()?))
            }
        }
    )*};
}

number!(u8, u16, u32, u64, i32);

impl ByteCodec for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged),
        }
    }
}

impl ByteCodec for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        from.text().map(str::to_owned)
    }
}

impl ByteCodec for Box<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        out.extend(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        let count = u32::get(from)? as usize;
        from.bytes(count).map(Self::from)
    }
}

impl<T: ByteCodec> ByteCodec for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<T: ByteCodec> ByteCodec for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        let mut items = Self::new();
        // No room is made for the count: every item takes bytes, and the loop ends when they do.
        for _ in 0..u32::get(from)? {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

impl<T: ByteCodec + Copy + Default, const N: usize> ByteCodec for [T; N] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::get(from)?;
        }
        Ok(items)
    }
}

impl<A: ByteCodec, B: ByteCodec> ByteCodec for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, Damaged> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

/// Declares structs that travel: their fields, in the order of their bytes.
macro_rules! message {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$of_field:meta])* pub $field:ident: $type:ty, )* }
    )*) => {$(
        $(#[$meta])*
        pub struct $name { $( $(#[$of_field])* pub $field: $type, )* }

        impl $crate::codec::ByteCodec for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $( $crate::codec::ByteCodec::put(&self.$field, out); )*
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::Damaged> {
                Ok(Self { $( $field: $crate::codec::ByteCodec::get(from)?, )* })
            }
        }
    )*};
}

/// Declares an enum that travels: of each variant the number that tells it from the others, and its fields. The
/// number and the fields are written and read apart, as something may stand between them.
macro_rules! alternatives {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $tag:ident { $(
            $(#[$of_variant:meta])*
            $variant:ident
                $(($inner_name:ident: $inner:ty))?
                $({ $( $(#[$of_field:meta])* $field:ident: $type:ty, )* })?
                = $number:tt,
        )* }
    ) => {
        $(#[$meta])*
        pub enum $name { $(
            $(#[$of_variant])*
            $variant $(($inner))? $({ $( $(#[$of_field])* $field: $type, )* })?,
        )* }

        impl $name {
            const fn tag(&self) -> $tag {
                match self {
                    $( Self::$variant { .. } => $number, )*
                }
            }

            fn put_fields(&self, _out: &mut Vec<u8>) {
                match self {
                    $( Self::$variant $(($inner_name))? $({ $($field),* })? => {
                        $( $crate::codec::ByteCodec::put($inner_name, _out); )?
                        $( $( $crate::codec::ByteCodec::put($field, _out); )* )?
                    } )*
                }
            }

            /// `None` for a number that no variant has.
            fn get_fields(
                tag: $tag,
                _from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Option<Self>, $crate::codec::Damaged> {
                Ok(Some(match tag {
                    $( $number => Self::$variant
                        $((<$inner as $crate::codec::ByteCodec>::get(_from)?))?
                        $({ $( $field: <$type as $crate::codec::ByteCodec>::get(_from)?, )* })?, )*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

/// Lets enums of [`alternatives!`] be fields: their fields come right behind their number.
macro_rules! alternatives_as_fields {
    ($($name:ident: $tag:ident),*) => {$(
        impl $crate::codec::ByteCodec for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.tag().put(out);
                self.put_fields(out);
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::Damaged> {
                let tag = $tag::get(from)?;
                Self::get_fields(tag, from)?.ok_or($crate::codec::Damaged)
            }
        }
    )*};
}

pub(crate) use {alternatives, alternatives_as_fields, message};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_count_costs_nothing() {
        let count = u32::MAX.to_le_bytes();
        assert_eq!(Vec::<u64>::get(&mut Reader::new(&count)), Err(Damaged));
        assert_eq!(String::get(&mut Reader::new(&count)), Err(Damaged));
    }

    #[test]
    fn what_a_field_cannot_hold_is_refused() {
        assert_eq!(bool::get(&mut Reader::new(&[2])), Err(Damaged));
        assert_eq!(Option::<u8>::get(&mut Reader::new(&[2, 1])), Err(Damaged));
        let text = [1, 0, 0, 0, 0xff];
        assert_eq!(String::get(&mut Reader::new(&text)), Err(Damaged));
    }
}
