//! Any bytes as a time line: read, summed up, merged with itself and put into Perfetto's form, none of which may fail
//! or take memory without end; as what a program tells of its calls, of which a whole file is made; and any text as a pattern of a file's name, which stays in its folder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trace::chrome::Writer;
use trace::chrome::read::read;
use trace::event::{Clock, Process};
use trace::join::Joiner;
use trace::merge::{self, Merge};
use trace::name_pattern::{self, Facts};
use trace::perfetto::Converter;
use trace::summary::{self, Summary};

/// A host and a variable that are whatever the input is.
struct Hostile<'a>(&'a str);

impl Facts for Hostile<'_> {
    fn pid(&self) -> u32 {
        7
    }

    fn host(&self) -> String {
        self.0.to_owned()
    }

    fn variable(&self, _: &str) -> Option<String> {
        Some(self.0.to_owned())
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        for pattern in ["%h", "%q{A}", "a%q{A}%p"] {
            if let Ok(name) = name_pattern::expand(pattern, &Hostile(text)) {
                assert!(!name.contains(['/', '\0']) && name != "." && name != "..");
            }
        }
        let expanded = name_pattern::expand(text, &Hostile("..")).unwrap_or_default();
        assert!(expanded.matches('/').count() <= text.matches('/').count());
    }

    let mut file = Vec::new();
    let clock = Clock {
        monotonic_ns: 0,
        wall_ns: 0,
        boot: String::new(),
    };
    let process = Process {
        pid: 1,
        name: String::new(),
        host: String::new(),
    };
    let writer = Writer::new(&mut file, clock, &process).expect("a vector takes all");
    let mut joiner = Joiner::new(writer);
    let _ = joiner.told(bytes);
    joiner.finish(0).expect("a vector takes all");
    drop(joiner);
    let made = read(&file[..], |_| Ok(())).expect("our own file");
    assert_eq!(made.cut_short, None, "our own file is whole");

    let mut summary = Summary::default();
    let summed = summary.add(bytes).is_ok();
    let mut table = Vec::new();
    summary::print(&summary.rows(), &mut table).expect("a vector takes all");
    assert!(!table.contains(&0x1b), "a terminal's command");

    let mut merge = Merge::default();
    assert_eq!(merge.look(bytes).is_ok(), summed);
    if !summed || merge.look(bytes).is_err() {
        return;
    }
    let (wall_ns, places) = merge.places();
    let (head, tail) = merge::frame(wall_ns);
    let mut file = head.into_bytes();
    let mut converter = Converter::new(wall_ns);
    for place in &places {
        read(bytes, |entry| {
            let entry = place.moved(entry);
            converter.look(&entry);
            let _ = converter.packets(&entry);
            file.extend(merge::text(&entry)?);
            Ok(())
        })
        .expect("it was read before");
    }
    file.extend(tail);
    let again = read(&file[..], |_| Ok(())).expect("our own file");
    assert_eq!(again.cut_short, None, "our own file is whole");
});
