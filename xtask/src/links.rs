//! Checks what the papers point at: each relative link and anchor in `*.md`, each path of the tree that stands there as code, and
//! the same in comments of Rust files. `cargo xtask links` and CI call it.
//!
//! It reads text only: it knows neither Markdown beyond links, headings and code, nor what the files hold.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::root;
use crate::variables;

/// Refuses a tree whose papers point at what is not there.
pub fn check() -> Result<()> {
    let tree = Tree::of_the_repository()?;
    let mut problems = tree.problems();
    problems.extend(variables::problems(&tree.texts));
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        bail!(
            "{} links, paths or variables differ from the tree; mend them, or the files' names",
            problems.len()
        );
    }
    Ok(())
}

/// The files that are checked, and the names of all others.
#[derive(Debug, Default)]
struct Tree {
    /// Every file's path from the root.
    files: BTreeSet<String>,
    /// Every folder's, without a slash at its end.
    folders: BTreeSet<String>,
    /// The text of `*.md` and `*.rs`.
    texts: BTreeMap<String, String>,
}

impl Tree {
    /// The files that git tracks or would: what is built is not looked at.
    fn of_the_repository() -> Result<Self> {
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root())
            .output()
            .context("cannot run git")?;
        ensure!(listed.status.success(), "git ls-files: {}", listed.status);
        let mut tree = Self::default();
        for path in String::from_utf8_lossy(&listed.stdout).lines() {
            let file = root().join(path);
            // A file that was removed and is not committed yet is listed all the same.
            if !file.exists() {
                continue;
            }
            if path.ends_with(".md") || path.ends_with(".rs") {
                let text = std::fs::read_to_string(&file).with_context(|| path.to_owned())?;
                tree.add(path, &text);
            } else {
                tree.add_name(path);
            }
        }
        Ok(tree)
    }

    fn add(&mut self, path: &str, text: &str) {
        self.add_name(path);
        self.texts.insert(path.to_owned(), text.to_owned());
    }

    fn add_name(&mut self, path: &str) {
        self.files.insert(path.to_owned());
        let mut folder = path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            self.folders.insert(parent.to_owned());
            folder = parent;
        }
    }

    /// What is wrong, as `FILE:LINE: what`.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (path, text) in &self.texts {
            let is_rust = path.ends_with(".rs");
            let mut is_fenced = false;
            for (number, line) in (1..).zip(text.lines()) {
                let line = line.trim_start();
                if !is_fenced && (!is_rust || line.starts_with("//")) {
                    self.check_names_of_papers(line, path, number, &mut problems);
                }
                if is_rust {
                    if line.starts_with("//") {
                        self.check_code(code_spans(line), path, number, &mut problems);
                    }
                } else if line.starts_with("```") {
                    is_fenced = !is_fenced;
                } else if is_fenced {
                    self.check_code([line], path, number, &mut problems);
                } else {
                    self.check_code(code_spans(line), path, number, &mut problems);
                    for target in link_targets(line) {
                        if let Err(why) = self.check_link(path, target) {
                            problems.push(format!("{path}:{number}: {why}"));
                        }
                    }
                }
            }
        }
        problems
    }

    fn check_code<'a>(
        &self,
        code: impl IntoIterator<Item = &'a str>,
        path: &str,
        number: usize,
        problems: &mut Vec<String>,
    ) {
        for word in code.into_iter().flat_map(str::split_whitespace) {
            if !self.is_right(path, word) {
                problems.push(format!("{path}:{number}: `{word}` is not in the tree"));
            }
        }
    }

    /// Names of pages in running text: `see docs/control.md`, without backticks.
    fn check_names_of_papers(
        &self,
        line: &str,
        path: &str,
        number: usize,
        problems: &mut Vec<String>,
    ) {
        let outside_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
        for word in outside_code.split(|c: char| !is_plain(c)) {
            let name = word.trim_matches(['.', '-']);
            let is_page = name.ends_with(".md") && !word.starts_with('/');
            let is_there = || {
                resolve(path, word.trim_end_matches('.')).is_some_and(|at| self.files.contains(&at))
                    || self.files.contains(name)
                    || self.has_file_at_end(name)
            };
            // What `](…)` holds is a link, which is looked at by itself.
            if is_page && !outside_code.contains(&format!("]({word}")) && !is_there() {
                problems.push(format!("{path}:{number}: {name} is not in the tree"));
            }
        }
    }

    fn has_file_at_end(&self, path: &str) -> bool {
        let end = format!("/{path}");
        self.files.iter().any(|file| file.ends_with(&end))
    }

    /// Whether a word of code is no path of the tree's, or one that exists. A path begins with a folder of the
    /// root's, or in the file `from` with one of its crate's; or it names a Rust file, perhaps by its last folders.
    fn is_right(&self, from: &str, word: &str) -> bool {
        if word.is_empty() || !word.chars().all(is_plain) || word.starts_with(['/', '.']) {
            return true;
        }
        let path = word.trim_end_matches(['/', '.']);
        let crate_folder = from.split('/').next().unwrap_or_default();
        let in_crate = format!("{crate_folder}/{path}");
        if [path, &in_crate]
            .iter()
            .any(|path| self.files.contains(*path) || self.folders.contains(*path))
        {
            return true;
        }
        if path.ends_with(".rs") {
            return self.has_file_at_end(path);
        }
        let first = path.split('/').next().unwrap_or_default();
        !path.contains('/') || !self.folders.contains(first)
    }

    fn check_link(&self, from: &str, target: &str) -> Result<()> {
        if target.contains("://") || target.starts_with("mailto:") {
            return Ok(());
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() {
            from.to_owned()
        } else {
            resolve(from, file).with_context(|| format!("`{target}` leads out of the tree"))?
        };
        if !self.files.contains(&path) && !self.folders.contains(&path) {
            bail!("`{target}` is not in the tree");
        }
        let text = self.texts.get(&path).map_or("", String::as_str);
        if !anchor.is_empty() && !anchors(text).contains(anchor) {
            bail!("`{target}`: {path} has no heading of that name");
        }
        Ok(())
    }
}

/// A character of a path that is checked: names with others are patterns, or somebody else's.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./".contains(c)
}

/// The path from the root to what `link` in the file `from` names.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// What stands between backticks.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of inline links and pictures: `](target)`, outside code.
fn link_targets(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for text in line.split('`').step_by(2) {
        for rest in text.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                targets.push(target);
            }
        }
    }
    targets
}

/// The anchors of a page's headings, as GitHub and others make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_fenced = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        }
        let title = line.trim_start_matches('#');
        if is_fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut unique = name.clone();
        for count in 1.. {
            if found.insert(unique) {
                break;
            }
            unique = format!("{name}-{count}");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(page: &str) -> Vec<String> {
        let mut tree = Tree::default();
        tree.add("docs/other.md", "# One: of `two`\n## Again\n## Again\n");
        tree.add("README.md", "# Read me\n");
        tree.add("server/src/main_loop.rs", "");
        tree.add_name("benches/gpu.sh");
        tree.add("docs/page.md", page);
        tree.problems()
    }

    #[test]
    fn what_exists_is_right() {
        let page = "# Here\n[a](other.md) [b](other.md#one-of-two) ![c](../benches/gpu.sh) [d](#here) [e](other.md#again-1)\n\
                    [`f`](../README.md) [g](../docs/) [h](https://example.org/x.md) [i](../README.md#read-me)\n\
                    `server/src/main_loop.rs` `main_loop.rs` `src/main_loop.rs` `benches/gpu.sh run` `server/src/` `docs`\n\
                    `target/release/openmps` `client/src/<name>.rs` `/tmp/x.rs` `a/b` `train.py` `[x](y)`\n\
                    see README.md, docs/other.md.\n";
        assert_eq!(problems(page), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_there_is_named_with_its_line() {
        for (line, named) in [
            ("[a](none.md)", "none.md"),
            ("[`a`](none.md)", "none.md"),
            ("[a](../../README.md)", "../../README.md"),
            ("[a](#there)", "#there"),
            ("[a](other.md#again-2)", "other.md#again-2"),
            ("![a](none.svg)", "none.svg"),
            ("see `server/src/order.rs` for it", "server/src/order.rs"),
            ("`order.rs`", "order.rs"),
            ("`benches/gpu run`", "benches/gpu"),
            ("`server/src/main_loop`", "server/src/main_loop"),
            ("DESIGN.md has more", "DESIGN.md"),
        ] {
            let found = problems(&format!("# Page\n\n{line}\n"));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert!(
                found[0]
                    .replace('`', "")
                    .starts_with(&format!("docs/page.md:3: {named}")),
                "{found:?}"
            );
        }
    }

    #[test]
    fn blocks_of_code_have_paths_but_no_links() {
        assert!(problems("```\n[a](none.md)\n# no heading\n```\n").is_empty());
        assert_eq!(problems("```sh\nbenches/none.sh run\n```\n").len(), 1);
    }

    #[test]
    fn comments_of_rust_files_are_read_and_their_code_is_not() {
        let mut tree = Tree::default();
        tree.add_name("docs/page.md");
        tree.add(
            "server/src/run.rs",
            "// `docs/page.md`, `docs/gone.md`\nlet path = \"docs/gone.md\";\n",
        );
        tree.add(
            "server/tests/all.rs",
            "//! `tests/all.rs`, `tests/none.txt`\n",
        );
        tree.add_name("tests/here.rs");
        assert_eq!(
            tree.problems(),
            [
                "server/src/run.rs:1: `docs/gone.md` is not in the tree",
                "server/tests/all.rs:1: `tests/none.txt` is not in the tree",
            ]
        );
    }

    #[test]
    fn this_repository_points_at_what_it_has() {
        let tree = Tree::of_the_repository().unwrap();
        assert_eq!(tree.problems(), Vec::<String>::new());
        assert_eq!(variables::problems(&tree.texts), Vec::<String>::new());
    }
}
