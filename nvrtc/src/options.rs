//! NVRTC's options: which of them ask for machine code, and what asks for PTX in their place.
//!
//! Called when a program is compiled. Must not know who loads what comes out.

use std::ffi::{CStr, CString};

/// Options that name the architecture, in one word (`-arch=sm_90`) or two.
const ARCHITECTURE: [&[u8]; 2] = [b"--gpu-architecture", b"-arch"];

/// Options with which another thing than machine code comes out, which another function gives.
const OTHER_OUTPUTS: [&[u8]; 4] = [b"-dlto", b"--dlink-time-opt", b"-optix-ir", b"--optix-ir"];

/// The options with the virtual architecture of the same number (`compute_90`) where they name a real one (`sm_90`); None if
/// they name none, or if no machine code comes out anyway.
pub fn for_ptx(options: &[&CStr]) -> Option<Vec<CString>> {
    let is_other = |option: &&CStr| {
        let word = option.to_bytes();
        OTHER_OUTPUTS.iter().any(|other| {
            let rest = word.strip_prefix(*other);
            rest.is_some_and(|rest| rest.is_empty() || rest == b"=true")
        })
    };
    if options.iter().any(is_other) {
        return None;
    }
    let mut turned = false;
    let mut names_next = false;
    let words = options.iter().map(|option| {
        let word = option.to_bytes();
        let named = ARCHITECTURE.iter().find_map(|name| {
            let rest = word.strip_prefix(*name)?.strip_prefix(b"=")?;
            Some((&word[..word.len() - rest.len()], rest))
        });
        let (before, architecture) = match named {
            Some(parts) => parts,
            None if names_next => (&word[..0], word),
            None => (word, &word[..0]),
        };
        names_next = ARCHITECTURE.contains(&word);
        match architecture.strip_prefix(b"sm_") {
            Some(number) => {
                turned = true;
                // It had no NUL, and what is put in has none.
                CString::new([before, b"compute_", number].concat()).unwrap_or_default()
            }
            None => CString::from(*option),
        }
    });
    let words: Vec<CString> = words.collect();
    turned.then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(options: &str) -> Option<String> {
        let words: Vec<CString> = options
            .split_whitespace()
            .map(|word| CString::new(word).unwrap())
            .collect();
        let words: Vec<&CStr> = words.iter().map(CString::as_c_str).collect();
        let turned = for_ptx(&words)?;
        let turned: Vec<&str> = turned.iter().map(|word| word.to_str().unwrap()).collect();
        Some(turned.join(" "))
    }

    #[test]
    fn a_real_architecture_becomes_the_virtual_one_of_its_number() {
        for (given, wanted) in [
            (
                "--gpu-architecture=sm_121",
                "--gpu-architecture=compute_121",
            ),
            ("-DN=3 -arch=sm_90a -G", "-DN=3 -arch=compute_90a -G"),
            ("-arch sm_75 -I sm_75", "-arch compute_75 -I sm_75"),
            (
                "--gpu-architecture sm_100f --std=c++17",
                "--gpu-architecture compute_100f --std=c++17",
            ),
        ] {
            assert_eq!(turned(given).as_deref(), Some(wanted), "{given}");
        }
    }

    #[test]
    fn what_asks_for_no_machine_code_stays() {
        for given in [
            "",
            "--gpu-architecture=compute_75",
            "-DA=sm_90 --std=c++17",
            "-arch=sm_90 -dlto",
            "-dlto=true -arch=sm_90",
            "--optix-ir -arch sm_90",
            "-arch",
        ] {
            assert_eq!(turned(given), None, "{given}");
        }
        // Which says that it is off.
        assert!(turned("-arch=sm_90 -dlto=false").is_some());
    }
}
