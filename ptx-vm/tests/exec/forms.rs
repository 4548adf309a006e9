//! The table of instructions (`src/instructions.txt`) beside the lowering: what the one calls done the other takes, what
//! is refused is refused by its name, and docs/instructions.md is what both say.
//!
//! `cargo xtask coverage` writes the page, by running the test of it with `UPDATE=1`.

use std::collections::BTreeSet;
use std::path::Path;

use ptx_vm::instructions::{self, Row};
use ptx_vm::{Module, Options};

const PAGE: &str = "docs/instructions.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Why a form cannot be loaded.
fn refusal(target: &str, form: &str) -> Option<String> {
    let text = format!(
        "{}{}",
        instructions::head(target),
        instructions::entry("k", form)
    );
    let tree = match ptx::parse(&text) {
        Ok(tree) => tree,
        Err(error) => return Some(error.to_string()),
    };
    Module::load(&tree, &Options::default())
        .err()
        .map(|error| error.to_string())
}

/// A row's forms, and those of them that are refused.
fn refused(row: &Row) -> (usize, Vec<(String, String)>) {
    let forms = row.forms();
    let refused = forms
        .iter()
        .filter_map(|form| Some((form.clone(), refusal(row.target, form)?)))
        .collect();
    (forms.len(), refused)
}

#[test]
fn every_form_is_done_or_refused_as_the_table_says() {
    let mut wrong = Vec::new();
    for row in instructions::rows() {
        let (count, refused) = refused(&row);
        if row.shown == "refused" {
            if refused.len() != count {
                wrong.push(format!("{}: not refused", row.form));
            }
            for (form, why) in refused {
                // It names the instruction, its line, and where to read on.
                let opcode = form.split(['.', ' ', ';']).next().unwrap();
                if !(why.contains(opcode) || why.contains("of video instructions"))
                    || !why.starts_with("line ")
                    || !why.contains(PAGE)
                {
                    wrong.push(format!("{form}: {why}"));
                }
            }
        } else {
            wrong.extend(
                refused
                    .into_iter()
                    .map(|(form, why)| format!("{form}: {why}")),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "{} forms:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_tests_that_the_table_names_are_there() {
    let mut text = String::new();
    for folder in [
        "ptx-vm/tests/exec",
        "ptx-vm/src/ops",
        "ptx-vm/src/lower",
        "engine-soft/tests",
    ] {
        for file in std::fs::read_dir(root().join(folder)).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_some_and(|extension| extension == "rs") {
                text += &std::fs::read_to_string(file).unwrap();
            }
        }
    }
    let named: BTreeSet<&str> = instructions::rows()
        .iter()
        .map(|row| row.shown)
        .filter(|shown| !["refused", "exact", "loads"].contains(shown))
        .collect();
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !text.contains(&format!("fn {name}(")))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

const ABOUT: &str = "\
# PTX instructions of the software GPU

Made from `ptx-vm/src/instructions.txt` and from what the lowering takes of it; do not edit. To make it again: `cargo xtask coverage`.

The forms are those of PTX ISA 9.0 for sm_70 to sm_120; NVIDIA's assembler 13.0 takes all of them. A form is *done* if a kernel with it loads, and
its results are those that PTX documents. *Refused* is what fails the load: the error names the instruction, its line and
this page. Nothing is left out silently.

Shown by: *H100* is a comparison with what an H100 gave for the same operands, some of them random bits, some near 1, some special
(`ptx-vm/tests/recorded`); *loads* is said of hints and fences, whose effect no test could see, and of approximations; else the test is named.
What is done of textures and of launches from kernels has more sides than forms: `ptx-vm/tests/exec/textures.rs`, [simt-executor.md](design/simt-executor.md).

";

/// The page.
fn render() -> String {
    let recorded: BTreeSet<&str> = include_str!("../recorded/results.txt")
        .lines()
        .filter_map(|line| Some(line.rsplit_once(' ')?.0))
        .collect();
    let mut body = String::new();
    let (mut all, mut without, mut family) = (0, 0, "");
    for row in instructions::rows() {
        if row.family != family {
            family = row.family;
            body += &format!(
                "\n## {family}\n\n| instruction | since | forms | | shown by |\n|---|---|---:|---|---|\n"
            );
        }
        let (count, refused) = refused(&row);
        all += count;
        without += refused.len();
        let state = match (refused.len(), row.note) {
            (0, "") => "done".to_owned(),
            (0, note) => format!("done: {note}"),
            (some, note) if some == count => format!("refused: {note}"),
            (some, note) => format!("{some} refused: {note}"),
        };
        let shown = match row.shown {
            "exact" => {
                let all = row.forms();
                let known = all
                    .iter()
                    .filter(|form| recorded.contains(form.as_str()) || form.starts_with("wgmma"));
                match known.count() {
                    some if some == all.len() => "H100".to_owned(),
                    some => format!("H100: {some} of {count}"),
                }
            }
            "refused" => String::new(),
            "loads" => "loads".to_owned(),
            test => format!("`{test}`"),
        };
        let form = row.form.replace('|', "\\|");
        body += &format!(
            "| `{form}` | sm_{} | {count} | {state} | {shown} |\n",
            row.target
        );
    }
    format!(
        "{ABOUT}{all} forms, of which {} are done and {without} refused.\n{body}",
        all - without
    )
}

#[test]
fn the_page_is_what_the_table_and_the_lowering_say() {
    let file = root().join(PAGE);
    let page = render();
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(file, page).unwrap();
    }
    let there = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        there == page,
        "{PAGE} is not up to date; run `cargo xtask coverage` and commit it"
    );
}
