//! The text that a kernel's `printf` makes: C's conversions, with arguments that a kernel gave and that
//! nobody trusts.
//!
//! Numbers go through the C library's own `snprintf`, one conversion at a time, with a specification that
//! is put together here: flags and a letter that are known, and widths within bounds. Called by engines with what
//! kernels left, by way of their outputs. Must not know where the text goes.

use std::ffi::{CStr, c_char, c_int};

/// The most bytes that one conversion is padded to, or shows digits of.
const WIDEST: u32 = 4096;
/// The most bytes of one call's text. What is longer ends there.
pub const LONGEST: usize = 1 << 16;

unsafe extern "C" {
    fn snprintf(into: *mut c_char, len: usize, format: *const c_char, ...) -> c_int;
}

/// Where the arguments come from. `None`: they cannot be read.
pub trait Arguments {
    /// The next one, of 4 or 8 bytes.
    fn next(&mut self, bytes: usize) -> Option<u64>;
    /// The characters of a string at an address, at most `most`.
    fn string(&mut self, address: u64, most: usize) -> Option<Vec<u8>>;
}

/// A conversion without its letter.
#[derive(Debug, Default)]
struct ConversionSpec {
    flags: Vec<u8>,
    width: Option<u32>,
    precision: Option<u32>,
    /// An argument of 8 bytes.
    long: bool,
    /// The value is cut to so many bits first (`h`, `hh`).
    short: Option<u32>,
}

/// Formats; gives the text and how many arguments were taken. `None` if an argument cannot be read.
#[must_use]
pub fn format(text: &[u8], arguments: &mut dyn Arguments) -> Option<(Vec<u8>, i32)> {
    let mut out = Vec::new();
    let mut taken = 0;
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        if out.len() >= LONGEST {
            break;
        }
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        if let Some(after) = rest.strip_prefix(b"%") {
            rest = after;
            out.push(b'%');
            continue;
        }
        let start = rest;
        let (spec, after) = spec(rest, arguments, &mut taken)?;
        let Some((&letter, after)) = after.split_first() else {
            // Cut off by the end: shown as it stands.
            out.push(b'%');
            out.extend_from_slice(start);
            break;
        };
        rest = after;
        let known = b"diouxXcfFeEgGaAsp".contains(&letter);
        if !known {
            out.push(b'%');
            out.extend_from_slice(&start[..start.len() - rest.len()]);
            continue;
        }
        let wide = spec.long || b"fFeEgGaAsp".contains(&letter);
        let value = arguments.next(if wide { 8 } else { 4 })?;
        taken += 1;
        if letter == b's' {
            let most = spec.precision.map_or(LONGEST, |most| most as usize);
            let string = match value {
                0 => b"(null)".to_vec(),
                address => arguments.string(address, most.min(LONGEST))?,
            };
            pad(&mut out, &spec, &string);
        } else {
            convert(&mut out, &spec, letter, value);
        }
    }
    out.truncate(LONGEST);
    Some((out, taken))
}

/// The message of an `assert` of a kernel that failed, as CUDA has it.
#[must_use]
pub fn assertion(
    expression: &str,
    (file, line): (&str, u32),
    function: &str,
    block: [u32; 3],
    thread: [u32; 3],
) -> String {
    let ([bx, by, bz], [tx, ty, tz]) = (block, thread);
    format!(
        "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{expression}` failed.\n"
    )
}

/// Reads flags, width, precision and size.
fn spec<'a>(
    mut rest: &'a [u8],
    arguments: &mut dyn Arguments,
    taken: &mut i32,
) -> Option<(ConversionSpec, &'a [u8])> {
    let mut spec = ConversionSpec::default();
    while let Some((&flag, after)) = rest.split_first()
        && b"-+ #0".contains(&flag)
    {
        if !spec.flags.contains(&flag) {
            spec.flags.push(flag);
        }
        rest = after;
    }
    let mut number = |rest: &mut &'a [u8]| -> Option<Option<i64>> {
        if let Some(after) = rest.strip_prefix(b"*") {
            *rest = after;
            *taken += 1;
            let value = arguments.next(4)?;
            return Some(Some(i64::from(value as u32 as i32)));
        }
        let mut value = None;
        while let Some((&digit @ b'0'..=b'9', after)) = rest.split_first() {
            let next = value.unwrap_or(0) * 10 + i64::from(digit - b'0');
            value = Some(next.min(i64::from(WIDEST)));
            *rest = after;
        }
        Some(value)
    };
    let bounded = |value: i64| u32::try_from(value.min(WIDEST.into())).unwrap_or(0);
    if let Some(width) = number(&mut rest)? {
        if width < 0 && !spec.flags.contains(&b'-') {
            spec.flags.push(b'-');
        }
        spec.width = Some(bounded(width.abs()));
    }
    if let Some(after) = rest.strip_prefix(b".") {
        rest = after;
        // A negative one counts as none.
        spec.precision = match number(&mut rest)? {
            Some(value) if value < 0 => None,
            value => Some(bounded(value.unwrap_or(0))),
        };
    }
    while let Some((&size, after)) = rest.split_first() {
        match size {
            b'l' | b'j' | b'z' | b't' | b'q' | b'L' => spec.long = true,
            b'h' => spec.short = Some(if spec.short.is_some() { 8 } else { 16 }),
            _ => break,
        }
        rest = after;
    }
    Some((spec, rest))
}

fn pad(out: &mut Vec<u8>, spec: &ConversionSpec, text: &[u8]) {
    let missing = (spec.width.unwrap_or(0) as usize).saturating_sub(text.len());
    let spaces = std::iter::repeat_n(b' ', missing);
    if spec.flags.contains(&b'-') {
        out.extend_from_slice(text);
        out.extend(spaces);
    } else {
        out.extend(spaces);
        out.extend_from_slice(text);
    }
}

/// A number, a character or a pointer.
fn convert(out: &mut Vec<u8>, spec: &ConversionSpec, letter: u8, value: u64) {
    if letter == b'c' {
        pad(out, spec, &[value as u8]);
        return;
    }
    let float = b"fFeEgGaA".contains(&letter);
    let mut text = vec![b'%'];
    text.extend_from_slice(&spec.flags);
    if let Some(width) = spec.width {
        text.extend_from_slice(width.to_string().as_bytes());
    }
    if let Some(precision) = spec.precision {
        text.push(b'.');
        text.extend_from_slice(precision.to_string().as_bytes());
    }
    if !float && letter != b'p' {
        text.extend_from_slice(b"ll");
    }
    text.extend_from_slice(&[letter, 0]);
    let Ok(text) = CStr::from_bytes_with_nul(&text) else {
        return;
    };
    let signed = matches!(letter, b'd' | b'i');
    let bits = match (spec.short, spec.long) {
        (Some(bits), false) => bits,
        (_, true) => 64,
        (None, false) => 32,
    };
    let unused = 64 - bits;
    let integer = if signed {
        ((value << unused).cast_signed() >> unused).cast_unsigned()
    } else {
        value << unused >> unused
    };
    // Bounded by the widths above: a double has at most 309 digits before its point.
    let mut buffer = vec![0u8; 2 * WIDEST as usize + 512];
    let (into, len) = (buffer.as_mut_ptr().cast::<c_char>(), buffer.len());
    // SAFETY: the specification was put together above for exactly one argument of the given type (a double;
    // a pointer, which is only printed; a long long), and `snprintf` writes at most `len` bytes.
    let written = unsafe {
        if float {
            snprintf(into, len, text.as_ptr(), f64::from_bits(value))
        } else if letter == b'p' {
            snprintf(into, len, text.as_ptr(), value as *const u8)
        } else {
            snprintf(into, len, text.as_ptr(), integer)
        }
    };
    let written = usize::try_from(written).unwrap_or(0).min(len - 1);
    out.extend_from_slice(&buffer[..written]);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Given(Vec<u64>, Vec<u8>);

    impl Arguments for Given {
        fn next(&mut self, _: usize) -> Option<u64> {
            (!self.0.is_empty()).then(|| self.0.remove(0))
        }

        fn string(&mut self, address: u64, most: usize) -> Option<Vec<u8>> {
            (address == 1).then(|| self.1[..self.1.len().min(most)].to_vec())
        }
    }

    fn told(text: &str, arguments: &[u64]) -> Option<(String, i32)> {
        let mut given = Given(arguments.to_vec(), b"string".to_vec());
        let (text, taken) = format(text.as_bytes(), &mut given)?;
        Some((String::from_utf8(text).unwrap(), taken))
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls snprintf")]
    fn conversions_are_those_of_c() {
        let minus = u64::from((-5i32).cast_unsigned());
        for (text, arguments, expected, taken) in [
            ("none\n", vec![], "none\n", 0),
            ("100%%", vec![], "100%", 0),
            ("%d|%i|%u", vec![minus, 7, minus], "-5|7|4294967291", 3),
            (
                "%5d|%-5d|%05d|%+d",
                vec![42, 42, 42, 42],
                "   42|42   |00042|+42",
                4,
            ),
            ("%lld %llx", vec![(-1i64).cast_unsigned(), 255], "-1 ff", 2),
            ("%hd %hhu", vec![0x1_8000, 0x1ff], "-32768 255", 2),
            ("%#x %#o %X", vec![255, 8, 255], "0xff 010 FF", 3),
            ("%c%3c|%-3c|", vec![65, 66, 67], "A  B|C  |", 3),
            (
                "%s|%8s|%-8s|%.3s",
                vec![1, 1, 1, 1],
                "string|  string|string  |str",
                4,
            ),
            ("%s", vec![0], "(null)", 1),
            ("%p %p", vec![0x1234, 0], "0x1234 (nil)", 2),
            (
                "%*d|%.*f|%-*d|",
                vec![4, 7, 2, 1.0f64.to_bits(), 3, 9],
                "   7|1.00|9  |",
                6,
            ),
            (
                "%f %e %g %a",
                vec![
                    1.5f64.to_bits(),
                    12345.678f64.to_bits(),
                    1e-5f64.to_bits(),
                    1f64.to_bits(),
                ],
                "1.500000 1.234568e+04 1e-05 0x1p+0",
                4,
            ),
            ("%n %y %", vec![], "%n %y %", 0),
        ] {
            assert_eq!(
                told(text, &arguments),
                Some((expected.into(), taken)),
                "{text}"
            );
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls snprintf")]
    fn what_is_hostile_stays_small() {
        let (text, _) = told(
            "%999999999d|%.999999999f|%*d",
            &[1, 1f64.to_bits(), 0x7fff_ffff, 1],
        )
        .unwrap();
        assert!(text.len() < 4 * WIDEST as usize + 1024, "{}", text.len());
        let long = "%4096d".repeat(64);
        let (text, taken) = told(&long, &[1; 64]).unwrap();
        assert!(text.len() <= LONGEST && taken <= 64);
        assert_eq!(told("%s", &[99]), None);
        assert_eq!(told("%d", &[]), None);
        assert_eq!(told("%*.", &[3]).unwrap().0, "%*.");
        assert_eq!(told("%-+ #0-+ #0lllllhhhhd", &[5]).unwrap().1, 1);
    }
}
