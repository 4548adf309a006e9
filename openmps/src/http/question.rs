//! What somebody asks, read from bytes that may be anything.
//!
//! Owns how long a question may be. Must not know sockets, nor what is answered.

use super::Answer;

/// Bytes of a question's head at most.
const MOST_HEAD: usize = 8 << 10;

/// Bytes of its body at most.
const MOST_BODY: usize = 4 << 10;

/// Lines of a head at most.
const MOST_LINES: usize = 64;

/// What is to be done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Other,
}

/// A whole question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub method: Method,
    /// Up to the first `?`.
    pub path: String,
    /// What follows that.
    pub query: String,
    /// The lines of the head, names in small letters.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Question {
    /// The value of a line of the head; the first, where there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(there, _)| there == name)?;
        Some(&found.1)
    }

    /// The value of a name in the query, as it stands there.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|it| it.split_once('='));
        pairs
            .into_iter()
            .find_map(|(there, value)| (there == name).then_some(value))
    }

    /// What these bytes ask; `None` while more is needed.
    ///
    /// # Errors
    /// What is answered to those that ask nothing.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, Answer> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_LINES];
        let mut request = httparse::Request::new(&mut headers);
        let head = match request.parse(bytes) {
            Ok(httparse::Status::Partial) if bytes.len() > MOST_HEAD => return Err(too_long()),
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(httparse::Status::Complete(head)) if head > MOST_HEAD => return Err(too_long()),
            Ok(httparse::Status::Complete(head)) => head,
            Err(httparse::Error::TooManyHeaders) => return Err(too_long()),
            Err(_) => return Err(malformed("this is not HTTP/1")),
        };
        let headers: Vec<(String, String)> = request
            .headers
            .iter()
            .map(|header| {
                let value = String::from_utf8_lossy(header.value).into_owned();
                (header.name.to_ascii_lowercase(), value)
            })
            .collect();
        let length = body_length(&headers)?;
        let Some(body) = bytes.get(head..head + length) else {
            return Ok(None);
        };
        let path = request.path.unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Ok(Some(Self {
            method: match request.method {
                Some("GET") => Method::Get,
                Some("POST") => Method::Post,
                _ => Method::Other,
            },
            path: path.to_owned(),
            query: query.to_owned(),
            body: body.to_vec(),
            headers,
        }))
    }
}

fn malformed(why: &str) -> Answer {
    Answer::line("400 Bad Request", why)
}

fn too_long() -> Answer {
    Answer::line("431 Request Header Fields Too Large", "too long")
}

/// How long the body is that belongs to a head. Who says it in two ways, one of which another reader might believe, is refused.
fn body_length(headers: &[(String, String)]) -> Result<usize, Answer> {
    if headers.iter().any(|(name, _)| name == "transfer-encoding") {
        let why = "a body comes whole, with its Content-Length";
        return Err(Answer::line("411 Length Required", why));
    }
    let mut lengths = headers.iter().filter(|(name, _)| name == "content-length");
    let Some((_, length)) = lengths.next() else {
        return Ok(0);
    };
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || lengths.next().is_some() {
        return Err(malformed("Content-Length is one number"));
    }
    match length.parse() {
        Ok(length) if length <= MOST_BODY => Ok(length),
        _ => Err(Answer::line(
            "413 Content Too Large",
            "the body is too long",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Question {
        Question::read(bytes).unwrap().expect("it is whole")
    }

    #[test]
    fn questions_come_whole_or_not_at_all() {
        let bytes = b"POST /a/b?c=1&d=2 HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nxyzrest";
        for end in 0..bytes.len() - 4 {
            assert_eq!(Question::read(&bytes[..end]), Ok(None), "{end}");
        }
        let question = read(bytes);
        assert_eq!(question.method, Method::Post);
        assert_eq!(question.path, "/a/b");
        assert_eq!(question.parameter("d"), Some("2"));
        assert_eq!(question.parameter("e"), None);
        assert_eq!(question.header("host"), Some("here"));
        assert_eq!(question.body, b"xyz");
        let question = read(b"PUT / HTTP/1.0\r\n\r\n");
        assert_eq!(question.method, Method::Other);
        assert!(question.body.is_empty());
    }

    #[test]
    fn what_is_no_question_is_answered_at_once() {
        let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(MOST_HEAD));
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(MOST_LINES + 1)
        );
        for (bytes, status) in [
            (&b"\x16\x03\x01\x02"[..], "400"),
            (long.as_bytes(), "431"),
            (many.as_bytes(), "431"),
            (b"POST / HTTP/1.1\r\nContent-Length: 4097\r\n\r\n", "413"),
            (
                b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                "413",
            ),
            (b"POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc", "400"),
            (
                b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\nabc",
                "400",
            ),
            (
                b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "411",
            ),
        ] {
            let answer = Question::read(bytes).unwrap_err();
            assert!(answer.status.starts_with(status), "{answer:?}");
        }
    }

    #[test]
    fn bytes_of_any_kind_do_no_harm() {
        // A question with each byte replaced by some others, cut anywhere.
        let bytes = b"POST /a?b=c HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx";
        for at in 0..bytes.len() {
            for byte in [0, b'\n', b'\r', b' ', b':', b'?', 0x7f, 0xff] {
                let mut changed = bytes.to_vec();
                changed[at] = byte;
                drop(Question::read(&changed));
                drop(Question::read(&changed[..at]));
            }
        }
    }
}
