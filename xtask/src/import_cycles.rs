//! Import cycles: files of one crate that name each other in a circle, so that none can be read by itself. `cargo xtask cycles`
//! prints them, and fails, as CI does, on one with more than [`MOST`] files.
//!
//! An arrow goes from a file to the one that *defines* what it names by `crate::`, `self::` or `super::`, in a `use` or anywhere else:
//! a re-export is followed, and is no arrow of its own. What stands under `cfg(test)` does not count, nor do calls of methods.
//!
//! Called by `main` and `ci`. Must not know which crate may use which: `tests/tests/workspace.rs` holds that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, UseTree, Visibility};

use crate::shell::root;

/// Files that may name each other in a circle: a parent with what it is made of.
const MOST: usize = 3;

/// Prints every cycle, and fails as [`check`] does.
pub fn print() -> Result<()> {
    for (name, sources) in crates()? {
        let cycles = Modules::read(&sources)?.cycles();
        for cycle in cycles.iter().filter(|cycle| cycle.files.len() > 1) {
            println!("{name}: {cycle}");
        }
    }
    check()
}

/// Fails on a cycle that is longer than it may be.
pub fn check() -> Result<()> {
    let mut too_long = Vec::new();
    for (name, sources) in crates()? {
        for cycle in Modules::read(&sources)?.cycles() {
            if cycle.files.len() > MOST {
                too_long.push(format!("{name}: {cycle}"));
            }
        }
    }
    ensure!(
        too_long.is_empty(),
        "import cycles of more than {MOST} files:\n  {}\n  -> let what both sides need stand in a file of its own below them, \
         or pass it as an argument",
        too_long.join("\n  ")
    );
    Ok(())
}

/// The workspace's crates with their folders of sources.
fn crates() -> Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root())? {
        let folder = entry?.path();
        let sources = folder.join("src");
        if folder.join("Cargo.toml").is_file() && sources.is_dir() {
            let name = folder.file_name().context("a crate without a name")?;
            all.push((name.to_string_lossy().into_owned(), sources));
        }
    }
    all.sort();
    Ok(all)
}

/// A cycle: its files, relative to the crate's sources, and for each an arrow to another of them.
#[derive(Debug)]
struct Cycle {
    files: Vec<String>,
    arrows: Vec<String>,
}

impl std::fmt::Display for Cycle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} files in a cycle:", self.files.len())?;
        self.arrows
            .iter()
            .try_for_each(|arrow| write!(f, "\n    {arrow}"))
    }
}

/// The path of a module below its crate's root.
type ModulePath = Vec<String>;

/// A path that code names, seen from the module that names it.
struct Named {
    from: usize,
    module: ModulePath,
    path: Vec<String>,
}

/// A crate's modules, and what each names.
#[derive(Default)]
struct Modules {
    files: Vec<PathBuf>,
    /// The file in which a module is.
    place: BTreeMap<ModulePath, usize>,
    /// Names that a module passes on, with what they stand for there; under `*` all that another module has.
    passed_on: BTreeMap<ModulePath, Vec<(String, Vec<String>)>>,
    named: Vec<Named>,
    sources: PathBuf,
}

impl Modules {
    fn read(sources: &Path) -> Result<Self> {
        let mut all = Self {
            sources: sources.to_owned(),
            ..Self::default()
        };
        for entry in ["lib.rs", "main.rs"] {
            let file = sources.join(entry);
            if file.is_file() {
                all.file(&file, sources, Vec::new())?;
            }
        }
        Ok(all)
    }

    /// Reads the file of a module whose submodules are files in a folder.
    fn file(&mut self, file: &Path, folder: &Path, module: ModulePath) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.files.push(file.to_owned());
        let index = self.files.len() - 1;
        self.module(index, folder, module, &parsed.items)
    }

    fn module(
        &mut self,
        file: usize,
        folder: &Path,
        module: ModulePath,
        items: &[Item],
    ) -> Result<()> {
        self.place.insert(module.clone(), file);
        for item in items {
            match item {
                Item::Mod(child) if is_for_tests(&child.attrs) => {}
                Item::Mod(child) => self.child(file, folder, &module, child)?,
                Item::Use(import) if is_for_tests(&import.attrs) => {}
                Item::Use(import) => {
                    let mut leaves = Vec::new();
                    flatten(&import.tree, &mut Vec::new(), &mut leaves);
                    let is_passed_on = !matches!(import.vis, Visibility::Inherited);
                    for (name, path) in leaves {
                        if is_passed_on {
                            let passed_on = self.passed_on.entry(module.clone()).or_default();
                            passed_on.push((name, path));
                        } else {
                            self.name(file, &module, path);
                        }
                    }
                }
                other => {
                    let mut paths = Paths::default();
                    paths.visit_item(other);
                    for path in paths.0 {
                        self.name(file, &module, path);
                    }
                }
            }
        }
        Ok(())
    }

    fn child(
        &mut self,
        file: usize,
        folder: &Path,
        parent: &ModulePath,
        child: &ItemMod,
    ) -> Result<()> {
        let name = child.ident.to_string();
        let mut module = parent.clone();
        module.push(name.clone());
        let inner = folder.join(&name);
        match &child.content {
            Some((_, items)) => self.module(file, &inner, module, items),
            None => {
                let beside = folder.join(format!("{name}.rs"));
                let path = if beside.is_file() {
                    beside
                } else {
                    inner.join("mod.rs")
                };
                self.file(&path, &inner, module)
            }
        }
    }

    fn name(&mut self, from: usize, module: &ModulePath, path: Vec<String>) {
        let module = module.clone();
        self.named.push(Named { from, module, path });
    }

    /// The file that defines what a path names, if this crate does.
    fn definition(&self, from: &ModulePath, path: &[String], depth: u32) -> Option<usize> {
        let (mut module, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from[..from.len().checked_sub(1)?].to_vec(), &path[1..]),
            child => {
                let mut module = from.clone();
                module.push(child.to_owned());
                if !self.place.contains_key(&module) {
                    return None;
                }
                (module, &path[1..])
            }
        };
        while let Some(("super", behind)) = rest
            .split_first()
            .map(|(first, behind)| (first.as_str(), behind))
        {
            module.pop()?;
            rest = behind;
        }
        while let Some((first, behind)) = rest.split_first() {
            module.push(first.clone());
            if !self.place.contains_key(&module) {
                module.pop();
                break;
            }
            rest = behind;
        }
        let Some(item) = rest.first() else {
            return self.place.get(&module).copied();
        };
        // Re-exports that go round in a circle do not compile; the bound is for text that does not.
        let passed_on = self.passed_on.get(&module).filter(|_| depth < 8);
        let through = passed_on.into_iter().flatten().find_map(|(name, to)| {
            let mut to = to.clone();
            match name.as_str() {
                "*" if item != "*" => {
                    to.push(item.clone());
                    let file = self.definition(&module, &to, depth + 1)?;
                    self.defines(file, item).then_some(file)
                }
                name if name == item => self.definition(&module, &to, depth + 1),
                _ => None,
            }
        });
        through.or_else(|| self.place.get(&module).copied())
    }

    /// Whether a file has an item of a name, for what comes through `*`.
    fn defines(&self, file: usize, item: &str) -> bool {
        let text = fs::read_to_string(&self.files[file]).unwrap_or_default();
        let words = [
            "fn", "struct", "enum", "trait", "const", "static", "type", "union",
        ];
        words
            .iter()
            .any(|word| text.contains(&format!("{word} {item}")))
    }

    fn arrows(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut arrows: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for named in &self.named {
            if let Some(to) = self.definition(&named.module, &named.path, 0)
                && to != named.from
            {
                arrows.entry(named.from).or_default().insert(to);
            }
        }
        arrows
    }

    /// Sets of files of which each reaches each other one.
    fn cycles(&self) -> Vec<Cycle> {
        let arrows = self.arrows();
        let reached: Vec<BTreeSet<usize>> = (0..self.files.len())
            .map(|file| reach(&arrows, file))
            .collect();
        let mut done = BTreeSet::new();
        let mut cycles = Vec::new();
        for file in 0..self.files.len() {
            let members: Vec<usize> = (reached[file].iter().copied())
                .filter(|&other| reached[other].contains(&file))
                .collect();
            if members.is_empty() || !done.insert(members.clone()) {
                continue;
            }
            let name = |file: usize| {
                let path = self.files[file].strip_prefix(&self.sources);
                path.unwrap_or(&self.files[file]).display().to_string()
            };
            let arrows = members.iter().map(|&from| {
                let to = arrows.get(&from).into_iter().flatten();
                let to: Vec<String> = to
                    .filter(|to| members.contains(to))
                    .map(|&to| name(to))
                    .collect();
                format!("{} -> {}", name(from), to.join(", "))
            });
            cycles.push(Cycle {
                arrows: arrows.collect(),
                files: members.iter().map(|&member| name(member)).collect(),
            });
        }
        cycles
    }
}

/// All that can be reached from a file by one arrow or more.
fn reach(arrows: &BTreeMap<usize, BTreeSet<usize>>, from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for &to in arrows.get(&file).into_iter().flatten() {
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

/// The leaves of a `use`: the name that each has here, and its path.
fn flatten(tree: &UseTree, path: &mut Vec<String>, leaves: &mut Vec<(String, Vec<String>)>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            flatten(&part.tree, path, leaves);
            path.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            leaves.push((path.last().cloned().unwrap_or_default(), path.clone()));
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            let path = path.iter().cloned().chain([name.clone()]).collect();
            leaves.push((name, path));
        }
        UseTree::Rename(rename) => {
            let path = path
                .iter()
                .cloned()
                .chain([rename.ident.to_string()])
                .collect();
            leaves.push((rename.rename.to_string(), path));
        }
        UseTree::Glob(_) => leaves.push(("*".into(), path.clone())),
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| flatten(tree, path, leaves)),
    }
}

/// The paths that an item names, also within the arguments of macros.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl Paths {
    /// Finds `crate::a::b` and its like in tokens that only a macro understands.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    let word = ident.to_string();
                    let is_start = matches!(word.as_str(), "crate" | "self" | "super");
                    if !path.is_empty() && colons == 2 {
                        path.push(word);
                    } else {
                        self.keep(std::mem::take(&mut path));
                        path.extend(is_start.then_some(word));
                    }
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.keep(std::mem::take(&mut path));
                    self.tokens(group.stream());
                }
                _ => self.keep(std::mem::take(&mut path)),
            }
        }
        self.keep(path);
    }

    fn keep(&mut self, path: Vec<String>) {
        // `self` by itself is a method's receiver.
        if path.len() > 1 {
            self.0.push(path);
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        self.keep(words);
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        leaves.into_iter().for_each(|(_, path)| self.keep(path));
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let modules = Modules::read(folder.path()).unwrap();
        modules
            .cycles()
            .into_iter()
            .map(|cycle| cycle.files)
            .collect()
    }

    #[test]
    fn files_that_name_each_other_are_a_cycle() {
        let found = cycles(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f(_: super::c::C) {}"),
            (
                "c.rs",
                "pub struct C; fn f() { let _ = vec![crate::a::A]; }",
            ),
        ]);
        assert_eq!(found, [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn a_re_export_is_followed_to_its_definition() {
        // The parent only passes its child's type on: no arrow down, so no cycle with what the child uses of its parent.
        let parent = "mod child; pub use child::Child; pub struct Parent;";
        assert!(
            cycles(&[
                ("lib.rs", "mod parent; mod user;"),
                ("parent.rs", parent),
                (
                    "parent/child.rs",
                    "use super::Parent; pub struct Child(Parent);"
                ),
                (
                    "user.rs",
                    "use crate::parent::Child; pub struct User(Child);"
                ),
            ])
            .is_empty()
        );
        // Through `*` too, and the child's arrow to the user makes the cycle.
        let found = cycles(&[
            ("lib.rs", "mod parent; mod user;"),
            ("parent/mod.rs", "mod child; pub use child::*;"),
            ("parent/child.rs", "pub struct Child(crate::user::User);"),
            (
                "user.rs",
                "use crate::parent::Child; pub struct User(Child);",
            ),
        ]);
        assert_eq!(found, [["parent/child.rs", "user.rs"]]);
    }

    #[test]
    fn what_only_tests_name_makes_no_cycle() {
        assert!(
            cycles(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::B; pub struct A(B);"),
                (
                    "b.rs",
                    "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"
                ),
            ])
            .is_empty()
        );
    }
}
