//! Any text as a command line: refused with a line of text, or one of the table's commands with no more
//! than it takes. What was understood, written again, is understood in the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match control::parse_line(text) {
    Ok(line) => {
        let arguments = &line.arguments;
        let mut again = line.command.name.to_owned();
        let flags = arguments.flags.iter().copied();
        let values = arguments.values.iter();
        let words = arguments.words.iter().copied();
        let json = arguments.json.then_some("--json");
        for word in flags
            .chain(values.flat_map(|(option, value)| [*option, *value]))
            .chain(words)
            .chain(json)
        {
            again.push(' ');
            again.push_str(word);
        }
        let second = control::parse_line(&again).expect("it was understood before");
        assert_eq!(second.command.name, line.command.name);
        assert_eq!(&second.arguments, arguments);
    }
    Err(error) => assert!(!error.to_string().is_empty()),
});
