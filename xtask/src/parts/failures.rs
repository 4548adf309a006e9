//! Which lines of a failed part's output say what failed: shown again below the table, where whoever sees only the end of a long
//! run finds them.
//!
//! Must not know how parts are run.

/// Lines of one part that are shown again.
const MOST: usize = 80;

/// What `cargo test` says of a test that takes long, and of one that failed.
const IS_SLOW: &str = " has been running for over ";
const HAS_FAILED: &str = " ... FAILED";
/// What a test says that waited in vain, before it ends its process.
const IN_VAIN: &str = "not within ";

/// The lines that say which tests failed, and which had not ended when the output did; of what is no test, the errors. The last of
/// them, if they are many.
pub(super) fn lines(output: &str) -> Vec<&str> {
    let all: Vec<&str> = output.lines().collect();
    let is_telling = |(number, line): (usize, &&str)| {
        let has_not_ended = || {
            line.strip_prefix("test ")
                .and_then(|rest| rest.split_once(IS_SLOW))
                .is_some_and(|(test, _)| {
                    let end = format!("test {test} ... ");
                    !all[number..].iter().any(|it| it.starts_with(&end))
                })
        };
        line.ends_with(HAS_FAILED)
            || line.starts_with("error")
            || line.starts_with(IN_VAIN)
            || line.starts_with("xtask: process ")
            || line.starts_with("xtask:   ")
            || line.starts_with("FAILED")
            || has_not_ended()
    };
    let told: Vec<&str> = all
        .iter()
        .enumerate()
        .filter(|&(number, line)| is_telling((number, line)))
        .map(|(_, line)| *line)
        .collect();
    told[told.len().saturating_sub(MOST)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_failed_or_did_not_end_are_told() {
        let output = "\
running 4 tests
test one ... ok
test two has been running for over 60 seconds
test three has been running for over 60 seconds
test four ... FAILED
test two ... ok
not within 60s: three
error: test failed, to rerun pass `--test some`
xtask: process 7: some --one
";
        assert_eq!(
            lines(output),
            [
                "test three has been running for over 60 seconds",
                "test four ... FAILED",
                "not within 60s: three",
                "error: test failed, to rerun pass `--test some`",
                "xtask: process 7: some --one",
            ]
        );
    }

    #[test]
    fn of_many_the_last_are_told() {
        let output: Vec<String> = (0..100).map(|n| format!("test {n} ... FAILED")).collect();
        let output = output.join("\n");
        let told = lines(&output);
        assert_eq!((told.len(), told[0]), (MOST, "test 20 ... FAILED"));
    }
}
