//! Who may look and who may change: the token, and the names under which the page may be asked.
//!
//! A browser brings strangers' pages to this machine's own addresses. Those may not read answers of another origin, unless
//! their name is made to lead here: so the name is looked at. Must not know what is asked for. Called by `answers` before
//! anything is answered.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::http::{Answer, Question};

/// Bytes of a token that is made here.
const RANDOM: usize = 16;

/// Characters that a token from a file has at least and at most.
const LENGTH: std::ops::RangeInclusive<usize> = 16..=256;

#[derive(Debug)]
pub struct Guard {
    token: String,
    /// Names besides addresses and `localhost`.
    names: Vec<String>,
    /// Whether looking needs the token too.
    is_private: bool,
}

impl Guard {
    pub fn new(token: String, names: Vec<String>, is_private: bool) -> Self {
        Self {
            token,
            names,
            is_private,
        }
    }

    /// Whether this page may be asked under the name that the question has.
    ///
    /// # Errors
    /// What is answered then.
    pub fn check_host(&self, question: &Question) -> Result<(), Answer> {
        let host = question.header("host").unwrap_or_default();
        match self.is_name_of_ours(host) {
            true => Ok(()),
            false => Err(Answer::line(
                "421 Misdirected Request",
                "this page is asked under an address, localhost or a name that --host gives",
            )),
        }
    }

    /// Whether an API may be read.
    ///
    /// # Errors
    /// What is answered to those that may not.
    pub fn check_token(&self, question: &Question) -> Result<(), Answer> {
        match self.is_private {
            true => self.has_token(question),
            false => Ok(()),
        }
    }

    /// Whether something may be changed.
    ///
    /// # Errors
    /// What is answered to those that may not.
    pub fn may_change(&self, question: &Question) -> Result<(), Answer> {
        if let Some(origin) = question.header("origin") {
            let of_page = origin.split_once("://").map(|(_, host)| host);
            let host = question.header("host");
            if of_page.is_none() || of_page != host {
                return Err(forbidden("another page may not change anything here"));
            }
        }
        if let Some(site) = question.header("sec-fetch-site")
            && site != "same-origin"
        {
            return Err(forbidden("another page may not change anything here"));
        }
        self.has_token(question)
    }

    fn has_token(&self, question: &Question) -> Result<(), Answer> {
        let given = question.header("authorization").unwrap_or_default();
        let Some(given) = given.strip_prefix("Bearer ") else {
            let why = "this needs the token that the page's server has";
            return Err(Answer::line("401 Unauthorized", why)
                .with_headers(&[("WWW-Authenticate", "Bearer realm=\"OpenMPS\"")]));
        };
        match is_same(given.trim().as_bytes(), self.token.as_bytes()) {
            true => Ok(()),
            false => Err(forbidden("the token is wrong")),
        }
    }

    /// A name can be made to lead anywhere by whoever owns it, an address cannot.
    fn is_name_of_ours(&self, host: &str) -> bool {
        if host.parse::<IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok() {
            return true;
        }
        if let Some(bracketed) = host.strip_prefix('[') {
            let address = bracketed.strip_suffix(']');
            return address.is_some_and(|address| address.parse::<IpAddr>().is_ok());
        }
        let (name, port) = host.split_once(':').unwrap_or((host, "0"));
        if port.parse::<u16>().is_err() {
            return false;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let names = self.names.iter().map(String::as_str);
        names
            .chain(["localhost"])
            .any(|ours| ours.eq_ignore_ascii_case(name))
    }
}

fn forbidden(why: &str) -> Answer {
    Answer::line("403 Forbidden", why)
}

/// Compares without telling by the time that it takes where the first difference is.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut difference = usize::from(one.len() != other.len());
    for (at, byte) in other.iter().enumerate() {
        let theirs = one.get(at).copied().unwrap_or_default();
        difference |= std::hint::black_box(usize::from(byte ^ theirs));
    }
    difference == 0
}

/// A token that nobody can guess.
pub fn random_token() -> Result<String> {
    let mut bytes = [0; RANDOM];
    let mut source = std::fs::File::open("/dev/urandom").context("cannot open /dev/urandom")?;
    source
        .read_exact(&mut bytes)
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The token in a file: its first line, which nobody else may read.
pub fn read_token_file(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read the token in {}", path.display());
    let mut file = std::fs::File::open(path).with_context(cannot)?;
    let facts = file.metadata().with_context(cannot)?;
    ensure!(facts.is_file(), "{} is not a file", path.display());
    if facts.mode() & 0o077 != 0 {
        bail!(
            "{} can be read by others: chmod 600 {}",
            path.display(),
            path.display()
        );
    }
    let mut text = String::new();
    let most = *LENGTH.end() as u64 + 2;
    Read::by_ref(&mut file)
        .take(most)
        .read_to_string(&mut text)
        .with_context(cannot)?;
    let token = text.lines().next().unwrap_or_default().trim();
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        is_plain && LENGTH.contains(&token.len()),
        "the first line of {} has to be {} to {} characters without spaces: `openssl rand -hex 16` makes one",
        path.display(),
        LENGTH.start(),
        LENGTH.end()
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard(is_private: bool) -> Guard {
        Guard::new(TOKEN.into(), vec!["node7".into()], is_private)
    }

    fn question(lines: &[&str]) -> Question {
        let text = format!("POST / HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n"));
        Question::read(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn names_that_others_own_are_not_ours() {
        for (host, expected) in [
            ("127.0.0.1:9401", true),
            ("192.168.1.7", true),
            ("[::1]:80", true),
            ("[::1]", true),
            ("localhost:1", true),
            ("LocalHost", true),
            ("node7:9401", true),
            ("node7.", true),
            ("evil.example:9401", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("node7:x", false),
            ("a@localhost", false),
            ("", false),
        ] {
            let asked = guard(false).check_host(&question(&[&format!("Host: {host}")]));
            assert_eq!(asked.is_ok(), expected, "{host}");
        }
    }

    #[test]
    fn changes_need_the_token_and_the_pages_own_origin() {
        let authorised = format!("Authorization: Bearer {TOKEN}");
        let host = "Host: 127.0.0.1:9401";
        for (lines, status) in [
            (&[host, &authorised][..], None),
            (&[host, &authorised, "Origin: http://127.0.0.1:9401"], None),
            (&[host], Some("401")),
            (&[host, "Authorization: Basic eDp5"], Some("401")),
            (&[host, "Authorization: Bearer "], Some("401")),
            (
                &[host, "Authorization: Bearer 0123456789abcdeX"],
                Some("403"),
            ),
            (
                &[host, "Authorization: Bearer 0123456789abcdef0"],
                Some("403"),
            ),
            (
                &[host, &authorised, "Origin: http://evil.example"],
                Some("403"),
            ),
            (&[host, &authorised, "Origin: null"], Some("403")),
            (
                &[host, &authorised, "Sec-Fetch-Site: cross-site"],
                Some("403"),
            ),
        ] {
            let may = guard(false).may_change(&question(lines));
            match status {
                None => assert_eq!(may, Ok(()), "{lines:?}"),
                Some(status) => {
                    let refused = may.unwrap_err();
                    assert!(refused.status.starts_with(status), "{lines:?} {refused:?}");
                }
            }
        }
        assert!(guard(false).check_token(&question(&[host])).is_ok());
        assert!(guard(true).check_token(&question(&[host])).is_err());
        assert!(
            guard(true)
                .check_token(&question(&[host, &authorised]))
                .is_ok()
        );
    }

    #[test]
    fn tokens_are_random_or_in_a_file_of_ones_own() {
        let (one, other) = (random_token().unwrap(), random_token().unwrap());
        assert_eq!(one.len(), 2 * RANDOM);
        assert_ne!(one, other);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let with = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_token_file(&path).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(with("0123456789abcdef\nmore\n", 0o600), Ok(TOKEN.into()));
        assert!(with(TOKEN, 0o644).unwrap_err().contains("chmod 600"));
        for wrong in [
            "short\n",
            "",
            "0123456789abcdef with spaces\n",
            &"a".repeat(300),
        ] {
            assert!(
                with(wrong, 0o600).unwrap_err().contains("16 to 256"),
                "{wrong}"
            );
        }
        assert!(read_token_file(folder.path()).is_err());
    }
}
