//! Which images are rewritten before the driver gets them, because it would do something of theirs where
//! the client does not see it; how is `ptx::rewrite`'s.
//!
//! * `__managed__` variables it would put where only this process reaches them.
//! * What kernels print it would print here (`crate::output`).
//!
//! An image that comes with PTX, or a part of one that is to be linked, is compiled from that instead. It
//! takes time, so machine code stays if all that would be gained is the message of an assertion, or if
//! there is very much of it.
#![forbid(unsafe_code)]

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use ptx::Error;
use ptx::image::fatbin::{EntryKind, entries};
use ptx::image::select;
use ptx::rewrite::{Managed, Rewritten, rewrite};

use crate::output::{PRELUDE, REDIRECTS};

/// Bytes of text beyond which machine code that prints is left as it is.
const MOST_TEXT: usize = 2 << 20;
/// Bytes of text beyond which everything is: a tree takes many times as much.
const MOST_TREE: usize = 16 << 20;

/// As [`PRELUDE`], where several parts of one image may have it.
static PART_PRELUDE: LazyLock<String> = LazyLock::new(|| PRELUDE.replace(".visible", ".weak"));

/// What was changed in an image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Variables whose memory is the client's, in order.
    managed: Vec<Managed>,
    /// Where each of them is.
    places: HashMap<String, usize>,
    /// Its kernels print to a ring of the module's.
    pub(crate) prints: bool,
}

impl Changes {
    /// Adds those of one text.
    pub(crate) fn add(&mut self, rewritten: &Rewritten) {
        self.prints |= rewritten.redirected.contains(&true);
        for managed in &rewritten.managed {
            // Several parts may have one, of which one remains.
            if let Entry::Vacant(place) = self.places.entry(managed.name.clone()) {
                place.insert(self.managed.len());
                self.managed.push(managed.clone());
            }
        }
    }

    /// What of an image's variables are the program's: those of `names` that the rewriting did not add,
    /// and the managed ones, which the driver no longer has.
    pub(crate) fn variables(&self, names: Vec<String>) -> Vec<String> {
        let mut names = names;
        names.retain(|name| !name.ends_with("$openmps") && !name.starts_with("openmps$"));
        let known: HashSet<&str> = names.iter().map(String::as_str).collect();
        let managed = self.managed.iter().map(|managed| managed.name.clone());
        let missing: Vec<_> = managed
            .filter(|name| !known.contains(name.as_str()))
            .collect();
        names.extend(missing);
        names
    }

    /// The managed variable of a name.
    pub(crate) fn managed(&self, name: &str) -> Option<&Managed> {
        self.managed.get(*self.places.get(name)?)
    }
}

/// An image's PTX for a device of this architecture, rewritten, or why it could not be. `None` if the
/// image is to stay as it is.
pub(crate) fn rewritten(image: &[u8], architecture: u32) -> Option<Result<Rewritten, Error>> {
    with_prelude(image, architecture, PRELUDE)
}

/// As [`rewritten`], for a part of an image that is to be linked.
pub(crate) fn rewritten_part(image: &[u8], architecture: u32) -> Option<Result<Rewritten, Error>> {
    with_prelude(image, architecture, &PART_PRELUDE)
}

fn with_prelude(
    image: &[u8],
    architecture: u32,
    prelude: &str,
) -> Option<Result<Rewritten, Error>> {
    let ptx = select(image, architecture).ok()?;
    if ptx.text.len() > MOST_TREE {
        return None;
    }
    let has = |word| ptx.text.contains(word);
    let compiled = has_code(image, architecture);
    let wanted = has(".managed")
        || (has("vprintf") && !(compiled && ptx.text.len() > MOST_TEXT))
        || (has("__assertfail") && !compiled);
    wanted.then(|| rewrite(&ptx.text, prelude, REDIRECTS))
}

/// Whether a fatbin has machine code that a device of this architecture runs.
fn has_code(image: &[u8], architecture: u32) -> bool {
    entries(image).flatten().any(|entry| {
        entry.kind == EntryKind::Elf
            && entry.arch / 10 == architecture / 10
            && entry.arch <= architecture
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.8\n.target sm_75\n.address_size 64\n";
    const PRINTS: &str = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n";

    fn changed(text: &str) -> Option<Rewritten> {
        rewritten(format!("{HEAD}{text}").as_bytes(), 90).map(Result::unwrap)
    }

    #[test]
    fn only_what_must_be_is_rewritten() {
        assert_eq!(changed(".global .u32 plain;"), None);
        assert!(changed(PRINTS).is_some());
        assert!(changed(".global .attribute(.managed) .u32 m;").is_some());
        let long = format!("//{}\n{PRINTS}", "x".repeat(MOST_TREE));
        assert_eq!(changed(&long), None);
        assert!(rewritten(b"\x7fELF", 90).is_none());
    }

    #[test]
    fn what_was_added_is_not_the_programs() {
        let mut changes = Changes::default();
        let managed = ".weak .global .attribute(.managed) .u32 m = 3;\n";
        for text in [managed, PRINTS, managed] {
            changes.add(&changed(text).unwrap());
        }
        assert!(changes.prints);
        let names = ["openmps$ring", "mine", "m$openmps"].map(String::from);
        assert_eq!(changes.variables(names.to_vec()), ["mine", "m"]);
        assert_eq!(changes.managed("m").unwrap().init, [3, 0, 0, 0]);
        assert!(changes.managed("mine").is_none());
    }
}
