//! Which images are rewritten before the driver gets them, because it would do something of theirs where
//! the client does not see it; how is `ptx::rewrite`'s.
//!
//! * `__managed__` variables it would put where only this process reaches them.
//! * What kernels print it would print here (`crate::code::output`).
//! * Texture and surface references it would bind for itself; ours are variables that the client writes.
//! * The values of conditional graph nodes it would keep for graphs of its own; ours run in the client.
//!
//! An image that comes with PTX, or a part of one that is to be linked, is compiled from that instead. It
//! takes time, so machine code stays if all that would be gained is the message of an assertion, or if
//! there is very much of it.
//!
//! Called by images and links. Must not know the driver's modules.
#![forbid(unsafe_code)]

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use cuda_abi::CUresult;
use ptx::fence::{Windows, fence};
use ptx::image::fatbin::{self, EntryKind, entries};
use ptx::image::{ImageKind, Limits, classify, select_within};
use ptx::rewrite::{Managed, Redirect, Rewritten, has_references, rewrite};
use ptx::{Budget, Error, ErrorKind};

use crate::code::output::{PRELUDE, REDIRECTS};
use crate::code::refused::Refused;

/// Bytes of text beyond which machine code that prints is left as it is.
const MOST_TEXT: usize = 2 << 20;
/// Bytes of text beyond which everything is: a tree takes many times as much.
pub(crate) const MOST_TREE: usize = 16 << 20;

/// Instructions of such a text beyond which it is refused: compilers write more than twenty bytes for each.
const MOST_INSTRUCTIONS: u64 = 1 << 20;

/// What device code calls to set the value of a conditional node.
const SETS_CONDITION: &str = "cudaGraphSetConditional";
/// All functions that are replaced: those that print, and this one.
const REPLACED: [Redirect<'_>; 3] = [
    REDIRECTS[0],
    REDIRECTS[1],
    Redirect {
        from: SETS_CONDITION,
        to: "openmps$setcondition",
        definition: include_str!("condition.ptx"),
        keep: false,
    },
];

/// Bytes of an image's machine code that are looked through.
const MOST_CODE: u64 = 8 << 20;

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
    /// How many of its instructions are checked, if it is for fenced clients.
    pub(crate) checked: Option<usize>,
}

impl Changes {
    /// Adds those of one text.
    pub(crate) fn add(&mut self, rewritten: &Rewritten) {
        let printing = rewritten.redirected.iter().take(REDIRECTS.len());
        self.prints |= printing.copied().any(|is| is);
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
        names.retain(|name| !is_added(name.as_bytes()));
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

/// Whether a variable is none of the program's, but was added by the rewriting.
pub(crate) fn is_added(name: &[u8]) -> bool {
    name.starts_with(b"openmps$") || name.ends_with(b"$openmps")
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
    let limits = Limits {
        max_bytes: MOST_TREE as u64,
        ..Limits::default()
    };
    let ptx = select_within(image, architecture, &limits).ok()?;
    if ptx.text.len() > MOST_TREE {
        return None;
    }
    let has = |word| ptx.text.contains(word);
    let compiled = has_code(image, architecture);
    let wanted = has(".managed")
        || (has("vprintf") && !(compiled && ptx.text.len() > MOST_TEXT))
        || (has("__assertfail") && !compiled)
        || has(SETS_CONDITION)
        || has_references(&ptx.text);
    let prints = has("vprintf") || has("__assertfail");
    let prelude = if prints { prelude } else { "" };
    let budget = Budget {
        instructions: MOST_INSTRUCTIONS,
        ..Budget::default()
    };
    wanted.then(|| rewrite(&ptx.text, prelude, &REPLACED, budget))
}

/// What a failed assertion does in a fenced client: the driver's own function would end everybody's context.
static FENCED_ASSERTION: LazyLock<String> = LazyLock::new(|| {
    let own = "call __assertfail, (openmps_a, openmps_b, openmps_c, openmps_d, openmps_e);";
    REDIRECTS[1].definition.replace(own, "trap;")
});

/// The PTX of an image for a fenced client, or of the one part of an image that is linked: rewritten as for any other, and
/// fenced last.
///
/// # Errors
/// CUDA_ERROR_NOT_SUPPORTED for what has no PTX, is linked of several parts, or has no fence, by its name; CUDA_ERROR_INVALID_PTX
/// for what is no PTX.
pub(crate) fn fenced(image: &[u8], architecture: u32) -> Result<(String, Changes), Refused> {
    let refused = |code, why: &dyn std::fmt::Display| Refused {
        code,
        log: format!("this client is fenced (isolation): {why}"),
    };
    let unsupported = CUresult::ERROR_NOT_SUPPORTED;
    let limits = Limits {
        max_bytes: MOST_TREE as u64,
        ..Limits::default()
    };
    let ptx = select_within(image, architecture, &limits).map_err(|why| {
        let how = "its code must come as PTX: build with -gencode arch=compute_XX,code=compute_XX";
        refused(unsupported, &format_args!("{how} ({why})"))
    })?;
    if ptx.text.len() > MOST_TREE {
        return Err(refused(unsupported, &"so long a text has no fence"));
    }
    let has = |word| ptx.text.contains(word);
    let prints = has("vprintf") || has("__assertfail");
    let prelude = if prints { PRELUDE } else { "" };
    let mut replaced = REPLACED;
    replaced[1].definition = &FENCED_ASSERTION;
    replaced[1].keep = false;
    let budget = || Budget {
        instructions: MOST_INSTRUCTIONS,
        ..Budget::default()
    };
    let why = |error: Error| {
        let code = match error.kind {
            ErrorKind::Unsupported(_) => unsupported,
            _ => CUresult::ERROR_INVALID_PTX,
        };
        refused(code, &error)
    };
    let rewritten = rewrite(&ptx.text, prelude, &replaced, budget()).map_err(why)?;
    let fenced = fence(&rewritten.text, &Windows::NONE, &|_| false, budget()).map_err(why)?;
    let mut changes = Changes::default();
    changes.add(&rewritten);
    changes.checked = Some(fenced.checked);
    Ok((fenced.text, changes))
}

/// Whether an image's machine code sets values of conditional nodes, by the driver's own function: that takes
/// handles for graphs of the driver's, and faults on ours. Not looked for in very much compressed code.
pub(crate) fn sets_conditions(image: &[u8], architecture: u32) -> bool {
    let named = |code: &[u8]| {
        let name = SETS_CONDITION.as_bytes();
        code.windows(name.len()).any(|window| window == name)
    };
    if classify(image) == Some(ImageKind::Cubin) {
        return named(image);
    }
    let mut room = MOST_CODE;
    let runs = |entry: &fatbin::FatbinEntry<'_>| {
        entry.kind == EntryKind::Elf
            && entry.arch / 10 == architecture / 10
            && entry.arch <= architecture
    };
    entries(image).flatten().filter(runs).any(|entry| {
        let limits = Limits {
            max_bytes: room,
            ..Limits::default()
        };
        let Ok(code) = entry.payload(&limits) else {
            return false;
        };
        room = room.saturating_sub(code.len() as u64);
        named(&code)
    })
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
    fn references_become_variables_of_the_programs() {
        let changed = changed(".global .texref picture;").unwrap();
        let mut changes = Changes::default();
        changes.add(&changed);
        let names = vec!["picture$texture".to_owned()];
        assert_eq!(changes.variables(names.clone()), names);
    }

    #[test]
    fn conditions_are_set_by_a_function_of_ours() {
        const SETS: &str = ".extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);\n";
        let changed = changed(SETS).unwrap();
        assert!(changed.text.contains("openmps$setcondition"));
        assert!(!changed.text.contains(".extern"), "{}", changed.text);
        let mut changes = Changes::default();
        changes.add(&changed);
        assert!(!changes.prints, "no ring is needed");
        assert!(!sets_conditions(changed.text.as_bytes(), 90));
        // The header of machine code, and a name in it.
        let mut code = vec![0; 64];
        code[..5].copy_from_slice(b"\x7fELF\x02");
        code[18] = 190;
        assert!(!sets_conditions(&code, 90));
        code.extend(b"\0cudaGraphSetConditional\0");
        assert!(sets_conditions(&code, 90));
        assert!(ptx::parse(&changed.text).is_ok());
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
