//! MD2 (RFC 1319) and HMAC over it (RFC 2104).
//!
//! MD2 protects nothing any more and protects nothing here: it is what the CUDA runtime computes on
//! its side of the self-test. Keys are one block, the only length that the self-test has.
//!
//! Called by `integrity` alone. Must not know what is hashed.

/// Bytes of a block, of the digest, and of the key.
pub(super) const BLOCK: usize = 16;

/// RFC 1319's permutation of the bytes, made from the digits of pi.
const PI: [u8; 256] = [
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19, 98, 167, 5, 243, 192, 199,
    115, 140, 152, 147, 43, 217, 188, 76, 130, 202, 30, 155, 87, 60, 253, 212, 224, 22, 103, 66,
    111, 24, 138, 23, 229, 18, 190, 78, 196, 214, 218, 158, 222, 73, 160, 251, 245, 142, 187, 47,
    238, 122, 169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34, 95, 33, 128, 127, 93,
    154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3, 255, 25, 48, 179, 72, 165, 181, 209,
    215, 94, 146, 42, 172, 86, 170, 198, 79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226,
    156, 116, 4, 241, 69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2, 27,
    96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105, 52, 64, 126, 15, 85, 71, 163, 35, 221, 81,
    175, 58, 195, 92, 249, 206, 186, 197, 234, 38, 44, 83, 13, 110, 133, 40, 132, 9, 211, 223, 205,
    244, 65, 129, 77, 82, 106, 220, 55, 200, 108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74,
    120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57, 242, 239, 183, 14,
    102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10, 49, 68, 80, 180, 143, 237, 31, 26,
    219, 153, 141, 51, 159, 17, 131, 20,
];

/// How often a block is stirred.
const ROUNDS: u8 = 18;

/// A digest under way.
#[derive(Clone, Debug, Default)]
struct Md2 {
    state: [u8; BLOCK],
    checksum: [u8; BLOCK],
    /// What has come of the next block.
    partial: [u8; BLOCK],
    /// Bytes of `partial` that have come, fewer than a block.
    filled: usize,
}

impl Md2 {
    fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.partial[self.filled] = byte;
            self.filled += 1;
            if self.filled == BLOCK {
                self.filled = 0;
                let block = self.partial;
                self.add_to_checksum(&block);
                self.stir(&block);
            }
        }
    }

    fn add_to_checksum(&mut self, block: &[u8; BLOCK]) {
        let mut last = self.checksum[BLOCK - 1];
        for (sum, byte) in self.checksum.iter_mut().zip(block) {
            *sum ^= PI[usize::from(byte ^ last)];
            last = *sum;
        }
    }

    fn stir(&mut self, block: &[u8; BLOCK]) {
        let mut work = [0; 3 * BLOCK];
        for (at, (&state, &byte)) in self.state.iter().zip(block).enumerate() {
            work[at] = state;
            work[BLOCK + at] = byte;
            work[2 * BLOCK + at] = state ^ byte;
        }
        let mut last = 0_u8;
        for round in 0..ROUNDS {
            for byte in &mut work {
                *byte ^= PI[usize::from(last)];
                last = *byte;
            }
            last = last.wrapping_add(round);
        }
        self.state.copy_from_slice(&work[..BLOCK]);
    }

    fn finish(mut self) -> [u8; BLOCK] {
        // Each byte of the padding says how many there are; there is always some.
        let missing = BLOCK - self.filled;
        self.update(&[missing as u8; BLOCK][..missing]);
        let checksum = self.checksum;
        self.stir(&checksum);
        self.state
    }
}

/// A keyed digest under way.
#[derive(Clone, Debug)]
pub(super) struct HmacMd2 {
    inner: Md2,
    outer: Md2,
}

impl HmacMd2 {
    /// Begins one.
    pub(super) fn new(key: &[u8; BLOCK]) -> Self {
        let begun = |pad: u8| {
            let mut digest = Md2::default();
            digest.update(&key.map(|byte| byte ^ pad));
            digest
        };
        Self {
            inner: begun(0x36),
            outer: begun(0x5c),
        }
    }

    /// Adds to the message.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
    }

    /// The digest of the message.
    pub(super) fn finish(mut self) -> [u8; BLOCK] {
        self.outer.update(&self.inner.finish());
        self.outer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> String {
        let mut digest = Md2::default();
        digest.update(bytes);
        hex(&digest.finish())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_digests_of_rfc_1319_come_out() {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        for (message, expected) in [
            (&b""[..], "8350e5a3e24c153df2275c9f80692773"),
            (b"a", "32ec01ec4a6dac72c0ab96fb34c0b5d1"),
            (b"abc", "da853b0d3f88d99b30283a69e6ded6bb"),
            (b"message digest", "ab4f496bfb2a530b219ff33031fe06b0"),
            (&alphabet[26..52], "4e8ddff3650292ab5a4108c3aa47940b"),
            (alphabet, "da33def2a42df13975352846c30338cd"),
            (&b"1234567890".repeat(8), "d5976f79d83d3a0dc9806c3c66f3efd8"),
        ] {
            assert_eq!(digest(message), expected);
        }
    }

    #[test]
    fn a_message_in_pieces_is_the_message() {
        let message: Vec<u8> = (0..100).collect();
        let key = [7; BLOCK];
        let mut whole = HmacMd2::new(&key);
        whole.update(&message);
        let whole = whole.finish();
        for piece in 1..message.len() {
            let mut pieces = HmacMd2::new(&key);
            for part in message.chunks(piece) {
                pieces.update(part);
            }
            assert_eq!(pieces.finish(), whole, "{piece}");
        }
    }

    #[test]
    fn the_permutation_has_every_byte_once() {
        let mut seen = [false; 256];
        for byte in PI {
            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true));
        }
    }
}
