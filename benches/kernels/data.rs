//! Random data, always the same for a seed.
//!
//! Called by `cases`. Must not know what the data are for.

/// Random words, always the same ones for a seed.
pub fn words(count: usize, seed: u32) -> Vec<u32> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Random numbers from -1 to 1.
pub fn numbers(count: usize, seed: u32) -> Vec<u32> {
    let number = |word: u32| (word as f32 / u32::MAX as f32 * 2.0 - 1.0).to_bits();
    words(count, seed).into_iter().map(number).collect()
}

/// Random numbers of half precision from -1 to 1, two in a word.
pub fn halves(count: usize, seed: u32) -> Vec<u32> {
    // Multiples of 1/1024 below 1 are exact: exponents from the highest bit of the multiple.
    let half = |word: u32| {
        let (magnitude, sign) = (word & 0x3ff, word >> 10 & 1);
        if magnitude == 0 {
            return 0;
        }
        let top = 31 - magnitude.leading_zeros();
        sign << 15 | (top + 5) << 10 | (magnitude << (10 - top) & 0x3ff)
    };
    let words = words(count / 2, seed).into_iter();
    words
        .map(|word| half(word) | half(word >> 16) << 16)
        .collect()
}

/// A random sparse matrix, or a graph: where each row's columns begin, and the columns.
pub fn rows(count: usize, most: u32, seed: u32) -> [Vec<u32>; 2] {
    let mut starts = vec![0];
    let mut columns = Vec::new();
    for length in words(count, seed) {
        let length = length % most + 1;
        let of_row = words(length as usize, seed ^ columns.len() as u32 ^ 0x9e37_79b9);
        columns.extend(of_row.into_iter().map(|word| word % count as u32));
        starts.push(columns.len() as u32);
    }
    [starts, columns]
}
