//! HTTP/1.1 as little as metrics and the page need of it, on a TCP port or a Unix socket: one question a connection, and one answer.
//!
//! Whoever asks is a stranger: so many are served at a time, each within a few seconds and for a few kilobytes; others wait in the
//! kernel. Must not know what is asked for. Called by `metrics` and `page`.

mod question;
mod serve;

pub use question::{Method, Question};
pub use serve::{Address, HttpListener, WITHIN};

/// What somebody is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its code and words, as `200 OK`.
    pub status: &'static str,
    pub content_type: &'static str,
    /// Further lines of its head.
    pub headers: &'static [(&'static str, &'static str)],
    pub body: Vec<u8>,
}

/// The media type of plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";

impl Answer {
    /// What was asked for.
    pub fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: "200 OK",
            content_type,
            headers: &[],
            body: body.into(),
        }
    }

    /// A line of text that says why there is nothing else.
    pub fn line(status: &'static str, text: &str) -> Self {
        Self {
            status,
            content_type: TEXT,
            headers: &[],
            body: format!("{text}\n").into_bytes(),
        }
    }

    /// The same with further lines of its head.
    pub fn with_headers(self, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self { headers, ..self }
    }

    /// The head, with the empty line that ends it.
    fn head(&self) -> String {
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        for (name, value) in self.headers {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_the_length_and_further_lines() {
        let answer = Answer::line("404 Not Found", "nothing").with_headers(&[("A", "b")]);
        assert_eq!(
            answer.head(),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 8\r\n\
             Connection: close\r\nA: b\r\n\r\n"
        );
    }
}
