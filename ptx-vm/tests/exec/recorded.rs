//! Instructions beside what NVIDIA's GPUs gave for the same operands: tests/recorded/results.txt has a hash of what each
//! case left in its buffer on an H100 (driver 580).
//!
//! `RECORD=FOLDER cargo test -p ptx-vm --test exec every_recorded_result` writes the cases: PTX, inputs and their list,
//! for tests/recorded/runner.c to run there. The first three columns of what that prints, and the hash, are the file.

mod matrices;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use ptx_vm::instructions;

use crate::fences;
use crate::gpu::{Args, Gpu};
use matrices::Values;

/// Forms of one module.
const FORMS: usize = 150;
/// Words of 8 bytes of a thread's part of the buffer.
const WORDS: u64 = instructions::THREAD_BYTES / 8;
/// Targets whose instructions an H100 has.
const TARGETS: [&str; 5] = ["75", "80", "86", "89", "90"];

/// One kernel, what it starts with, and its threads.
struct Case {
    entry: String,
    text: String,
    values: Values,
    threads: u32,
    what: String,
}

/// Cases that share a module.
struct Cases {
    name: String,
    target: String,
    cases: Vec<Case>,
}

/// A number that looks random.
fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Word `index` of an input for any instruction: bits, floats of several widths about 1, whole numbers, and what is
/// special among floats, by lanes.
fn any_word(index: u64) -> u64 {
    const SPECIAL: [u32; 16] = [
        0,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fff_ffff,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x7f7f_ffff,
        0x3f80_0000,
        0xbf80_0000,
        0x4b00_0000,
        0x4f00_0000,
        0x7fff_ffff,
        0x3eff_ffff,
    ];
    let random = mix(index);
    let more = mix(random);
    let halves = |f: &dyn Fn(u32) -> u32| {
        u64::from(f(random as u32)) | u64::from(f((random >> 32) as u32)) << 32
    };
    let quarters = |f: &dyn Fn(u16) -> u16| {
        (0..4).fold(0, |word, at| {
            word | u64::from(f((random >> (16 * at)) as u16)) << (16 * at)
        })
    };
    match index / WORDS % 8 {
        0 | 1 => random,
        2 => halves(&|bits| bits & 0x807f_ffff | (0x7c + (bits >> 23 & 7)) << 23),
        3 => random & 0x800f_ffff_ffff_ffff | (0x3fc + (random >> 52 & 7)) << 52,
        4 => quarters(&|bits| bits & 0x83ff | (12 + (bits >> 10 & 7)) << 10),
        5 => quarters(&|bits| bits & 0x807f | (0x7c + (bits >> 7 & 7)) << 7),
        6 => halves(&|bits| (bits % 141).wrapping_sub(70)),
        _ => {
            let special = |at: u32| u64::from(SPECIAL[(more >> at & 15) as usize]);
            special(0) | special(8) << 32
        }
    }
}

/// All cases, in the order of the file.
fn all() -> Vec<Cases> {
    let mut forms: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in instructions::rows() {
        if row.shown == "exact" && TARGETS.contains(&row.target) {
            forms.entry(row.target).or_default().extend(row.forms());
        }
    }
    let mut all = Vec::new();
    for target in TARGETS {
        for (number, forms) in forms
            .get(target)
            .into_iter()
            .flat_map(|forms| forms.chunks(FORMS))
            .enumerate()
        {
            let cases = forms.iter().enumerate().map(|(at, form)| Case {
                entry: format!("k{at}"),
                text: instructions::entry(&format!("k{at}"), form),
                values: Values::Any,
                threads: instructions::THREADS,
                what: form.clone(),
            });
            all.push(Cases {
                name: format!("m{target}_{number}"),
                target: target.to_owned(),
                cases: cases.collect(),
            });
        }
    }
    for (name, target, kernels) in matrices::all() {
        let cases = kernels.into_iter().enumerate().map(|(at, kernel)| Case {
            entry: format!("k{at}"),
            text: kernel.entry(&format!("k{at}")),
            values: kernel.values,
            threads: kernel.threads,
            what: kernel.what,
        });
        all.push(Cases {
            name: name.to_owned(),
            target: target.to_owned(),
            cases: cases.collect(),
        });
    }
    all
}

/// The input of so many threads.
fn input(values: Values, threads: u32) -> Vec<u64> {
    (0..u64::from(threads) * WORDS)
        .map(|index| match values {
            Values::Any => any_word(index),
            values => matrices::word(values, index),
        })
        .collect()
}

/// The types of floats in a form, as the runner has them: which NaN it is that a word has, PTX does not say.
fn floats(form: &str) -> String {
    let types: Vec<&str> = form.split(['.', ' ']).collect();
    let has = |names: &[&str]| names.iter().any(|name| types.contains(name));
    let all = [
        ('d', &["f64"][..]),
        ('s', &["f32", "tf32"]),
        ('h', &["f16", "f16x2"]),
        ('b', &["bf16", "bf16x2"]),
    ];
    let named: String = all
        .iter()
        .filter(|(_, names)| has(names))
        .map(|(letter, _)| *letter)
        .collect();
    if named.is_empty() {
        "-".to_owned()
    } else {
        named
    }
}

/// A word in which all NaNs of those types are one.
fn with_one_nan(word: u64, floats: &str) -> u64 {
    let one = |word: u64, bits: u32, infinite: u64| {
        let amount = u64::MAX >> (65 - bits);
        let is_nan = |word: u64, at: u32| word >> at & amount > infinite;
        (0..64).step_by(bits as usize).fold(word, |word, at| {
            if is_nan(word, at) {
                (word | amount << at) & !(1 << (at + bits - 1))
            } else {
                word
            }
        })
    };
    floats.chars().fold(word, |word, letter| match letter {
        'd' => one(word, 64, 0x7ff0_0000_0000_0000),
        's' => one(word, 32, 0x7f80_0000),
        'h' => one(word, 16, 0x7c00),
        'b' => one(word, 16, 0x7f80),
        _ => word,
    })
}

fn hash(words: &[u64], floats: &str) -> u32 {
    let words = words.iter().map(|&word| with_one_nan(word, floats));
    let bytes = words.flat_map(|word| word.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn write_pack(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let mut list = String::new();
    for cases in all() {
        let mut text = instructions::head(&cases.target);
        for case in &cases.cases {
            text += &case.text;
            let input_name = case.values.name();
            writeln!(
                list,
                "{} {} {} {input_name} {} {}",
                cases.name,
                case.entry,
                case.threads,
                floats(&case.what),
                case.what
            )
            .unwrap();
            let file = folder.join(format!("{input_name}.in"));
            if !file.exists() {
                let words = input(case.values, matrices::MOST_THREADS);
                let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
                std::fs::write(file, bytes).unwrap();
            }
        }
        std::fs::write(folder.join(format!("{}.ptx", cases.name)), text).unwrap();
    }
    std::fs::write(folder.join("cases.txt"), list).unwrap();
}

#[test]
fn every_recorded_result_is_ours_too() {
    match std::env::var_os("RECORD") {
        Some(folder) => write_pack(Path::new(&folder)),
        None => compare(str::to_owned, 0),
    }
}

/// What has no fence, has none in every form: textures are not recorded, and of matrices those in global memory.
#[test]
fn every_recorded_result_is_the_same_behind_fences() {
    compare(fences::fenced_or_empty, 200);
}

/// Compares all results with those of texts that were changed by `change`, which may leave out a few: it makes nothing
/// of a text that it refuses.
fn compare(change: impl Fn(&str) -> String, most_refused: usize) {
    let results: BTreeMap<String, u32> = include_str!("../recorded/results.txt")
        .lines()
        .filter_map(|line| {
            let (case, hash) = line.rsplit_once(' ')?;
            Some((case.to_owned(), u32::from_str_radix(hash, 16).ok()?))
        })
        .collect();
    let (mut wrong, mut right, mut refused) = (Vec::new(), 0, 0);
    for mut cases in all() {
        let head = instructions::head(&cases.target);
        let count = cases.cases.len();
        cases
            .cases
            .retain(|case| !change(&format!("{head}{}", case.text)).is_empty());
        refused += count - cases.cases.len();
        let text: String = cases.cases.iter().map(|case| case.text.as_str()).collect();
        let mut gpu = Gpu::new(&change(&format!("{head}{text}")));
        let buffer =
            gpu.alloc_bytes(u64::from(matrices::MOST_THREADS) * instructions::THREAD_BYTES);
        for case in &cases.cases {
            // What no H100 has is not recorded.
            let Some(&wanted) = results.get(&case.what) else {
                continue;
            };
            let before = input(case.values, case.threads);
            gpu.write(buffer, &before);
            let ran = gpu.try_run(&case.entry, 1, case.threads, 0, &Args::new().ptr(buffer));
            let after: Vec<u64> = gpu.read(buffer, before.len());
            if ran.is_ok() && hash(&after, &floats(&case.what)) == wanted {
                right += 1;
                continue;
            }
            let mut text = format!("{} {} {}:", cases.name, case.entry, case.what);
            let changed = before
                .iter()
                .zip(&after)
                .enumerate()
                .filter(|(_, (a, b))| a != b);
            for (at, (_, value)) in changed.take(if std::env::var_os("ALL").is_some() {
                4096
            } else {
                6
            }) {
                write!(
                    text,
                    " {}.{}={value:x}",
                    at as u64 / WORDS,
                    at as u64 % WORDS
                )
                .unwrap();
            }
            wrong.push(format!("{text} {ran:?}"));
        }
    }
    assert!(refused <= most_refused, "{refused} were refused");
    assert!(
        wrong.is_empty(),
        "{right} right, {} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
