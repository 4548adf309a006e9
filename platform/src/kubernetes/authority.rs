//! Lets kubelets before 1.26 in.
//!
//! Called by `kubelet` for all bytes that come. Must not know what a request asks.
//!
//! They send the socket's path as HTTP/2's `:authority`, which is none; the HTTP/2 library refuses such
//! a request before anybody sees it. So what comes from a kubelet is looked through on its way, and in
//! blocks of headers an authority that begins with `/` (or `%`, an escaped one) is replaced by as many
//! harmless bytes. Nothing else of the stream changes, its length neither.
//!
//! The compression of headers keeps what was sent in a table on both sides. A value in plain bytes is
//! never longer than the same number of compressed ones stands for, so our side's table never drops an
//! entry that the kubelet's still has.

/// Bytes that begin every connection.
const PREFACE: usize = 24;

/// Bytes that begin every frame.
const FRAME_HEADER: usize = 9;

/// A frame of headers.
const HEADERS: u8 = 1;

/// The longest one that is looked into; a larger one must be allowed first, which nobody does.
const LONGEST: usize = 16 << 10;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// What the next bytes are.
#[derive(Debug)]
enum Next {
    /// So many that are no business of ours.
    Foreign(usize),
    /// A frame's first bytes.
    Frame,
    /// A frame of headers of this size.
    Headers(usize),
}

/// What a kubelet sends, on its way to the HTTP/2 library.
#[derive(Debug)]
pub struct AuthorityFixer {
    next: Next,
    /// Of a frame that is not whole yet.
    partial: Vec<u8>,
    /// What is fixed, and where the rest of it begins.
    ready: Vec<u8>,
    given: usize,
}

impl Default for AuthorityFixer {
    fn default() -> Self {
        Self {
            next: Next::Foreign(PREFACE),
            partial: Vec::new(),
            ready: Vec::new(),
            given: 0,
        }
    }
}

impl AuthorityFixer {
    /// Takes bytes as they came.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = match self.next {
                Next::Foreign(left) => {
                    let (now, rest) = bytes.split_at(left.min(bytes.len()));
                    self.ready.extend_from_slice(now);
                    bytes = rest;
                    self.next = match left - now.len() {
                        0 => Next::Frame,
                        left => Next::Foreign(left),
                    };
                    continue;
                }
                Next::Frame => FRAME_HEADER,
                Next::Headers(size) => size,
            };
            let missing = wanted - self.partial.len();
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            self.partial.extend_from_slice(now);
            bytes = rest;
            if self.partial.len() == wanted {
                self.whole();
            }
        }
    }

    /// What was wanted is there.
    fn whole(&mut self) {
        let &[high, middle, low, kind, flags, ..] = &self.partial[..] else {
            return;
        };
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match self.next {
            Next::Frame if kind == HEADERS && (1..=LONGEST).contains(&length) => {
                self.next = Next::Headers(FRAME_HEADER + length);
                return;
            }
            Next::Headers(_) => {
                mend(flags, &mut self.partial[FRAME_HEADER..]);
                self.next = Next::Frame;
            }
            _ if length == 0 => self.next = Next::Frame,
            _ => self.next = Next::Foreign(length),
        }
        self.ready.append(&mut self.partial);
    }

    /// No more comes.
    pub fn end(&mut self) {
        self.ready.append(&mut self.partial);
    }

    /// Gives what is mended, as far as there is room; how many bytes that are.
    pub fn read_fixed(&mut self, out: &mut [u8]) -> usize {
        let rest = &self.ready[self.given..];
        let now = rest.len().min(out.len());
        out[..now].copy_from_slice(&rest[..now]);
        self.given += now;
        if self.given == self.ready.len() {
            self.ready.clear();
            self.given = 0;
        }
        now
    }
}

/// Mends the payload of a frame of headers. What it does not understand it leaves.
fn mend(flags: u8, payload: &mut [u8]) {
    if flags & END_HEADERS == 0 {
        return;
    }
    let mut start = 0;
    let mut end = payload.len();
    if flags & PADDED != 0 {
        let padding = payload.first().map_or(0, |&byte| usize::from(byte));
        start += 1;
        end = end.saturating_sub(padding);
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    if let Some(block) = payload.get_mut(start..end) {
        let mut block = Block { block, at: 0 };
        while block.field().is_some() {}
    }
}

/// A block of headers, field after field (RFC 7541, section 6).
struct Block<'a> {
    block: &'a mut [u8],
    at: usize,
}

impl Block<'_> {
    /// Goes over a field, and mends it. None at the end, or at what cannot be.
    fn field(&mut self) -> Option<()> {
        let first = *self.block.get(self.at)?;
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = self.integer(bits)?;
        if is_literal {
            if index == 0 {
                self.string()?;
            }
            let at = self.at;
            let value = self.string()?;
            // Number 1 of the static table is `:authority`.
            if index == 1 {
                self.mend_value(at, value);
            }
        }
        Some(())
    }

    /// An integer whose first bits are the last of this byte.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let most = (1_usize << bits) - 1;
        let first = usize::from(*self.block.get(self.at)?) & most;
        self.at += 1;
        if first < most {
            return Some(first);
        }
        let (mut value, mut shift) = (most, 0);
        loop {
            let byte = usize::from(*self.block.get(self.at)?);
            self.at += 1;
            value += (byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift += 7;
            if shift > 21 {
                return None;
            }
        }
    }

    /// Goes over a string; gives where its bytes are.
    fn string(&mut self) -> Option<std::ops::Range<usize>> {
        let length = self.integer(7)?;
        let bytes = self.at..self.at + length;
        self.block.get(bytes.clone())?;
        self.at = bytes.end;
        Some(bytes)
    }

    /// Replaces a value whose string begins at `at`, if it is a path.
    fn mend_value(&mut self, at: usize, value: std::ops::Range<usize>) {
        let Some(&first) = self.block.get(value.start).filter(|_| !value.is_empty()) else {
            return;
        };
        let is_compressed = self.block[at] & 0x80 != 0;
        // The codes of `/` and `%` have six bits.
        let is_path = match is_compressed {
            true => matches!(first >> 2, 0b01_1000 | 0b01_0101),
            false => matches!(first, b'/' | b'%'),
        };
        if is_path {
            self.block[at] &= 0x7f;
            self.block[value].fill(b'k');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    fn mended(bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut mender = AuthorityFixer::default();
        let mut all = Vec::new();
        for piece in bytes.chunks(piece) {
            mender.push(piece);
            let mut space = [0; 7];
            loop {
                let given = mender.read_fixed(&mut space);
                if given == 0 {
                    break;
                }
                all.extend_from_slice(&space[..given]);
            }
        }
        mender.end();
        all.extend_from_slice(&mender.ready);
        all
    }

    /// `:method POST`, the authority, and a header with a name of its own.
    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x41];
        block.extend_from_slice(authority);
        block.extend_from_slice(&[0x00, 0x01, b'a', 0x02, b'/', b'b']);
        block
    }

    #[test]
    fn a_path_is_replaced_wherever_the_bytes_are_cut() {
        let plain = block(b"\x05/a/b/");
        // `/a` compressed: 011000, 00011, and ones to the end of the byte.
        let compressed = block(&[0x82, 0b0110_0000, 0b0111_1111]);
        let mut wire = vec![b'P'; PREFACE];
        wire.extend(frame(4, 0, &[0; 6]));
        wire.extend(frame(HEADERS, END_HEADERS, &plain));
        let padded: Vec<u8> = [&[2, 0, 0, 0, 0, 9], &compressed[..], &[0, 0]].concat();
        wire.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded));
        wire.extend(frame(0, 1, b"/data/"));
        let mut expected = vec![b'P'; PREFACE];
        expected.extend(frame(4, 0, &[0; 6]));
        expected.extend(frame(HEADERS, END_HEADERS, &block(b"\x05kkkkk")));
        let padded: Vec<u8> = [&[2, 0, 0, 0, 0, 9], &block(b"\x02kk")[..], &[0, 0]].concat();
        expected.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded));
        expected.extend(frame(0, 1, b"/data/"));
        for piece in [1, 2, 3, 9, 10, 64, 1000] {
            assert_eq!(mended(&wire, piece), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_path_stays() {
        // `localhost`, compressed and plain; a block that goes on in another frame.
        let compressed = block(&[0x86, 0xa0, 0xe4, 0x1d, 0x13, 0x9d, 0x09]);
        for payload in [block(b"\x09localhost"), compressed] {
            let mut wire = vec![b'P'; PREFACE];
            wire.extend(frame(HEADERS, END_HEADERS, &payload));
            assert_eq!(mended(&wire, 1000), wire);
        }
        let mut wire = vec![b'P'; PREFACE];
        wire.extend(frame(HEADERS, 0, &block(b"\x02/a")));
        assert_eq!(mended(&wire, 1000), wire);
    }

    #[test]
    fn what_cannot_be_is_left_alone() {
        for payload in [
            &[0x41][..],
            &[0x41, 0x7f],
            &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x41, 0x05, b'/'],
            &[0x41, 0x00],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x00, 0x7f, 0x10],
        ] {
            let mut wire = vec![b'P'; PREFACE];
            wire.extend(frame(HEADERS, END_HEADERS, payload));
            wire.extend(frame(HEADERS, END_HEADERS | PADDED, &[200]));
            wire.extend(frame(HEADERS, END_HEADERS | PRIORITY, payload));
            wire.extend([0, 0, 0, HEADERS, 4, 0, 0, 0, 1, 0xff, 0xff]);
            assert_eq!(mended(&wire, 5), wire);
        }
    }
}
