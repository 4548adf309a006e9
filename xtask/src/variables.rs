//! Checks that `docs/environment.md` has every environment variable of the code, and no other. `cargo xtask links` calls it.
//!
//! It looks for string literals in the product's files; it does not know what reads them.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = "docs/environment.md";

/// Folders whose variables are nobody's who uses OpenMPS.
const NOT_THE_PRODUCT: [&str; 5] = ["tests/", "xtask/", "benches/", "fuzz/", "examples/"];

/// What differs, in words. `texts` has the tree's files by their paths.
pub fn problems(texts: &BTreeMap<String, String>) -> Vec<String> {
    let page = texts.get(PAGE).map_or("", String::as_str);
    let described: BTreeSet<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| is_variable(word))
        .collect();
    let in_code: BTreeMap<&str, &str> = texts
        .iter()
        .filter(|(path, _)| is_product(path))
        .flat_map(|(path, text)| {
            text.split('"')
                .filter(|literal| is_variable(literal))
                .map(move |name| (name, path.as_str()))
        })
        .collect();
    let missing = in_code
        .iter()
        .filter(|(name, _)| !described.contains(*name))
        .map(|(name, path)| format!("{PAGE}: {name}, of {path}, is missing"));
    let unknown = described
        .iter()
        .filter(|name| !in_code.contains_key(*name))
        .map(|name| format!("{PAGE}: {name} is not in the code"));
    missing.chain(unknown).collect()
}

fn is_product(path: &str) -> bool {
    path.ends_with(".rs")
        && !path.contains("/tests")
        && !NOT_THE_PRODUCT.iter().any(|it| path.starts_with(it))
}

/// A variable's name, which a CUresult's is not.
fn is_variable(word: &str) -> bool {
    let rest = word
        .strip_prefix("OPENMPS_")
        .or_else(|| word.strip_prefix("CUDA_"));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && rest != "SUCCESS"
            && !rest.starts_with("ERROR_")
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_missing_or_gone_is_named() {
        let texts = [
            (PAGE, "| `OPENMPS_A` | `CUDA_GONE` | `CUDA_ERROR_X` |"),
            (
                "server/src/run.rs",
                "var(\"OPENMPS_A\") \"CUDA_B2\" \"CUDA_ERROR_Y\" \"OPENMPS_{x}\"",
            ),
            ("server/tests/all.rs", "\"OPENMPS_OF_A_TEST\""),
            ("tests/src/lib.rs", "\"OPENMPS_OF_A_TEST\""),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned()))
        .into();
        assert_eq!(
            problems(&texts),
            [
                format!("{PAGE}: CUDA_B2, of server/src/run.rs, is missing"),
                format!("{PAGE}: CUDA_GONE is not in the code"),
            ]
        );
    }
}
