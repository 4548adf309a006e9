//! What a stranger sends to `openmps page` and `openmps metrics`, whole and in pieces: it is a question, an answer to none, or needs more.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The binary's own: it is no library.
#[allow(dead_code, unused_imports, reason = "what listens is not asked here")]
#[path = "../../openmps/src/http/mod.rs"]
mod http;

use http::Question;

fuzz_target!(|data: &[u8]| {
    let Ok(Some(question)) = Question::read(data) else {
        return;
    };
    assert!(question.body.len() <= 4 << 10, "more than a body may have");
    assert!(!question.path.contains('?'));
    assert!(
        question
            .parameter("span")
            .is_none_or(|value| question.query.contains(value))
    );
    assert!(
        question.header("Host").is_none(),
        "names are in small letters"
    );
    // Before its last byte it is no whole question; with more behind it, it is the same.
    let mut whole = data.len();
    while let Ok(Some(shorter)) = Question::read(&data[..whole - 1]) {
        assert!(shorter == question, "the bytes behind a question change it");
        whole -= 1;
    }
    for end in [0, whole / 2, whole - 1] {
        assert!(!matches!(Question::read(&data[..end]), Ok(Some(_))));
    }
    let longer = [data, b"GET / HTTP/1.1\r\n\r\n"].concat();
    assert!(Question::read(&longer) == Ok(Some(question)));
});
