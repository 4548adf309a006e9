//! Files in YAML, with the lines of their values, so that a message can say where to mend what.
//!
//! A file is read into a tree first; who wants something of it says what it must be. Others' files
//! have keys that are no business of ours, and those are never looked at.
//!
//! Called by `cloudpods::files` and `kubernetes::sharing`. Must not know any file's keys.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// Bytes of the longest file that is read.
const LONGEST: u64 = 1 << 20;

/// What is wrong with a file, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFile {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1, if it is about one.
    pub line: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub mend: String,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}\n  -> {}", self.what, self.mend)
    }
}

impl std::error::Error for BadFile {}

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The line, from 1.
    pub line: u64,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, or `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order of the file.
    Map(Vec<(String, Node)>),
}

impl Value {
    /// What it is, in words.
    fn kind(&self) -> String {
        match self {
            Self::Null => "nothing".into(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(value) => format!("{value:?}"),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a map".into(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or_else(|_| Value::Text(value.to_string()), Value::Integer))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Text(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push(item.into());
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Spanned<Value>>()? {
            map.push((key, value.into()));
        }
        Ok(Value::Map(map))
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self {
            line: spanned.referenced.line(),
            value: spanned.value,
        }
    }
}

/// A file that has been read.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    /// What is in it; an empty file holds [`Value::Null`].
    pub root: Node,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not YAML.
    pub fn read(path: &Path) -> Result<Self, BadFile> {
        let bad = |what: String, mend: &str| BadFile {
            file: path.to_owned(),
            line: None,
            what,
            mend: mend.to_owned(),
        };
        let facts = std::fs::metadata(path)
            .map_err(|error| bad(error.to_string(), "make the file, or name another"))?;
        if !facts.is_file() || facts.len() > LONGEST {
            return Err(bad(
                "is not a file of configuration: it must be a regular file of at most 1 MiB".into(),
                "name another file",
            ));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| bad(error.to_string(), "it must be text in UTF-8"))?;
        Self::parse(path, &text)
    }

    /// Reads a text as if it were in this file.
    ///
    /// # Errors
    /// When it is not YAML.
    pub fn parse(path: &Path, text: &str) -> Result<Self, BadFile> {
        // A file of nothing but comments is no document at all.
        let empty = text
            .lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
        let root = if empty {
            Node {
                line: 1,
                value: Value::Null,
            }
        } else {
            serde_saphyr::from_str_with_options::<Spanned<Value>>(text, options())
                .map_err(|error| not_yaml(path, text, &error))?
                .into()
        };
        Ok(Self {
            path: path.to_owned(),
            root,
        })
    }

    /// The file's name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A message about a line of this file.
    pub fn bad(&self, line: u64, what: impl Into<String>, mend: impl Into<String>) -> BadFile {
        BadFile {
            file: self.path.clone(),
            line: Some(line),
            what: what.into(),
            mend: mend.into(),
        }
    }

    /// The entries of a map; of nothing, none. `what` names it.
    ///
    /// # Errors
    /// When it is something else.
    pub fn map<'a>(&self, node: &'a Node, what: &str) -> Result<&'a [(String, Node)], BadFile> {
        match &node.value {
            Value::Map(entries) => Ok(entries),
            Value::Null => Ok(&[]),
            other => Err(self.bad(
                node.line,
                format!("{what} is {}, not a map", other.kind()),
                "write `key: value` lines",
            )),
        }
    }

    /// The items of a list; of nothing, none. `what` names it.
    ///
    /// # Errors
    /// When it is something else.
    pub fn list<'a>(&self, node: &'a Node, what: &str) -> Result<&'a [Node], BadFile> {
        match &node.value {
            Value::List(items) => Ok(items),
            Value::Null => Ok(&[]),
            other => Err(self.bad(
                node.line,
                format!("{what} is {}, not a list", other.kind()),
                "begin each item with `- `",
            )),
        }
    }

    /// A text. `example` is one that would do.
    ///
    /// # Errors
    /// When it is something else.
    pub fn text<'a>(&self, node: &'a Node, key: &str, example: &str) -> Result<&'a str, BadFile> {
        match &node.value {
            Value::Text(text) => Ok(text),
            other => Err(self.bad(
                node.line,
                format!("{key} is {}, not text", other.kind()),
                format!("write it as in `{key}: {example}`"),
            )),
        }
    }

    /// `true` or `false`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn bool(&self, node: &Node, key: &str) -> Result<bool, BadFile> {
        match &node.value {
            Value::Bool(value) => Ok(*value),
            Value::Text(text) if text == "true" => Ok(true),
            Value::Text(text) if text == "false" => Ok(false),
            other => Err(self.bad(
                node.line,
                format!("{key} is {}, neither true nor false", other.kind()),
                format!("write `{key}: true` or `{key}: false`"),
            )),
        }
    }

    /// A whole number from 1 to `most`; in quotes too, as Cloudpods takes it.
    ///
    /// # Errors
    /// When it is something else. The message says why there are no others.
    pub fn count(&self, node: &Node, key: &str, most: u32, why: &str) -> Result<u32, BadFile> {
        let number = match &node.value {
            Value::Integer(number) => Some(*number),
            Value::Text(text) => text.parse::<i64>().ok(),
            _ => None,
        };
        let bad = |what: String| {
            let mend = format!("write a whole number from 1 to {most}, such as `{key}: 4`");
            Err(self.bad(node.line, what, mend))
        };
        match (number, &node.value) {
            (Some(number), _) => match u32::try_from(number) {
                Ok(count) if (1..=most).contains(&count) => Ok(count),
                _ if number < 1 => bad(format!("{key} is {number}: it must be above 0")),
                _ => bad(format!("{key} is {number}: {why}")),
            },
            (None, Value::Float(number)) if number.fract() == 0.0 => {
                bad(format!("{key} is {number}: {why}"))
            }
            (None, Value::Float(number)) => {
                bad(format!("{key} is {number}: there are no fractions of one"))
            }
            (None, other) => bad(format!("{key} is {}, not a whole number", other.kind())),
        }
    }
}

/// No file of configuration is so deep or so large; who wrote one wants something else.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 50_000,
            max_aliases: 1_000,
        },
    }
}

fn not_yaml(path: &Path, text: &str, error: &serde_saphyr::Error) -> BadFile {
    let said = error.to_string();
    let mut line = error.location().map(|location| location.line());
    let mut what = format!("not YAML: {}", said.lines().next().unwrap_or_default());
    // What the parser says of a tab is about the line before it, and nobody sees a tab.
    let tab = text.lines().position(|line| {
        let indentation = line.len() - line.trim_start().len();
        line[..indentation].contains('\t')
    });
    if let Some(tab) = tab {
        line = Some(tab as u64 + 1);
        what = "not YAML: a tab in the indentation".into();
    }
    BadFile {
        file: path.to_owned(),
        line,
        what,
        mend: "mend the line: blanks for indentation, `key: value`, quotes that end, and each key \
               once"
            .into(),
    }
}

/// The value of a key.
#[must_use]
pub fn get<'a>(entries: &'a [(String, Node)], key: &str) -> Option<&'a Node> {
    entries
        .iter()
        .find(|(name, _)| name == key)
        .map(|(_, node)| node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, BadFile> {
        File::parse(Path::new("f.yml"), text)
    }

    #[test]
    fn values_have_their_lines() {
        let file = parse("# first\na: 1\nb:\n  - x\n  - {c: 2.5,\n     d: yes}\n").unwrap();
        let root = file.map(&file.root, "it").unwrap();
        assert_eq!(get(root, "a").unwrap().line, 2);
        let list = file.list(get(root, "b").unwrap(), "b").unwrap();
        assert_eq!((list[0].line, list[1].line), (4, 5));
        let inner = file.map(&list[1], "item").unwrap();
        assert_eq!(get(inner, "d").unwrap().line, 6);
        assert_eq!(get(inner, "c").unwrap().value, Value::Float(2.5));
    }

    #[test]
    fn empty_files_hold_nothing() {
        for text in ["", "# only this\n", "\n\n", "---\n", "null\n"] {
            let file = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(file.root.value, Value::Null, "{text:?}");
            assert_eq!(file.map(&file.root, "it").unwrap(), &[]);
        }
    }

    #[test]
    fn what_is_no_yaml_is_told_with_its_line() {
        let cases = [
            ("a: 1\nb: [1, 2\n", 2..=3),
            ("a: 1\n\tb: 2\n", 2..=2),
            ("a: \"x\n", 1..=2),
            ("a: 1\na: 2\n", 2..=2),
            ("a: 1\n  b: 2\n", 2..=2),
        ];
        for (text, lines) in cases {
            let error = parse(text).unwrap_err();
            assert!(
                error.line.is_some_and(|line| lines.contains(&line)),
                "{text:?}: {error}"
            );
            assert!(error.to_string().starts_with("f.yml:"), "{error}");
        }
    }

    #[test]
    fn counts_are_whole_and_within_bounds() {
        let count = |value: &str| {
            let file = parse(&format!("n: {value}")).unwrap();
            let node = get(file.map(&file.root, "it").unwrap(), "n")
                .unwrap()
                .clone();
            file.count(&node, "n", 100, "no more than 100 can be")
        };
        assert_eq!(count("4").unwrap(), 4);
        assert_eq!(count("'4'").unwrap(), 4);
        for (wrong, says) in [
            ("0", "above 0"),
            ("-3", "above 0"),
            ("101", "no more than 100 can be"),
            ("99999999999999999999999", "no more than 100 can be"),
            ("1.5", "no fractions"),
            ("many", "not a whole number"),
            ("[1]", "not a whole number"),
            ("", "not a whole number"),
        ] {
            let error = count(wrong).unwrap_err().to_string();
            assert!(error.contains(says), "{wrong}: {error}");
            assert!(error.starts_with("f.yml:1: "), "{error}");
        }
    }

    #[test]
    fn deep_and_repeating_files_are_refused_not_followed() {
        assert!(parse(&"[".repeat(100_000)).is_err());
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = format!("*a{},", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{below}]\n");
        }
        assert!(parse(&bomb).is_err());
    }
}
