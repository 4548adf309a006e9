//! PTX's instructions form by form, as `instructions.txt` lists them, and a kernel that executes one of them: what is
//! compared with the lowering, recorded on GPUs, and made documents of.
//!
//! Used by tests and by the fuzzer. Must not know what the lowering takes: that is what is found out with it.

use std::fmt::Write;

use ptx::ast::Type;

/// The rows, as text.
const TEXT: &str = include_str!("instructions.txt");

/// Threads of the kernel of a form.
pub const THREADS: u32 = 32;
/// Bytes of its buffer that each thread has: [`REGISTERS`] words of 8 bytes, then what its places in global and in
/// shared memory hold, of 64 bytes each.
pub const THREAD_BYTES: u64 = 512;
/// The most registers that a form names.
pub const REGISTERS: usize = 32;

/// A line of the table: forms of an instruction.
#[derive(Clone, Debug)]
pub struct Row {
    /// The heading that it stands under.
    pub family: &'static str,
    /// The first target that has it, without `sm_`.
    pub target: &'static str,
    /// The forms, with alternatives in braces.
    pub form: &'static str,
    operands: &'static str,
    /// `exact`, what the values of its operands are where that is not anything, `refused`, or the name of a test.
    pub shown: &'static str,
    /// What else is to be said.
    pub note: &'static str,
}

/// The table.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut family = "";
    let mut rows = Vec::new();
    for line in TEXT.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            family = heading;
        }
        let mut fields = line.split(" ; ").map(str::trim);
        let (Some(target), Some(form), Some(operands), Some(shown)) = (
            fields.next().and_then(|word| word.strip_prefix("sm_")),
            fields.next(),
            fields.next(),
            fields.next(),
        ) else {
            continue;
        };
        rows.push(Row {
            family,
            target,
            form,
            operands,
            shown,
            note: fields.next().unwrap_or(""),
        });
    }
    rows
}

impl Row {
    /// Its forms, each an instruction with operands.
    #[must_use]
    pub fn forms(&self) -> Vec<String> {
        let operands = match self.operands.strip_prefix('=') {
            Some(text) => alternatives(text.trim(), ('<', '/', '>')),
            None => Vec::new(),
        };
        let mut forms = Vec::new();
        for words in alternatives(self.form, ('{', ',', '}')) {
            if self.operands.starts_with('=') {
                for operands in &operands {
                    forms.push(format!("{words} {operands};").replace(" ;", ";"));
                }
            } else {
                let operands = named(&words, self.operands);
                forms.push(format!("{words} {};", operands.join(", ")));
            }
        }
        forms
    }
}

/// A text with one of each group's alternatives, in all ways.
fn alternatives(text: &str, marks: (char, char, char)) -> Vec<String> {
    let (open, between, close) = marks;
    let group = text
        .split_once(open)
        .and_then(|(before, rest)| Some((before, rest.split_once(close)?)));
    let Some((before, (group, after))) = group else {
        return vec![text.to_owned()];
    };
    let rest = alternatives(after, marks);
    let each = group.split(between);
    each.flat_map(|one| rest.iter().map(move |rest| format!("{before}{one}{rest}")))
        .collect()
}

/// The operands of a form, as PTX has them, from their short names.
fn named(words: &str, operands: &str) -> Vec<String> {
    let types: Vec<Type> = words.split('.').filter_map(Type::named).collect();
    let letter = |ty: Option<&Type>| match ty.map_or(4, |ty| ty.size()) {
        0 => 'p',
        1 | 2 => 'h',
        4 => 'r',
        8 => 'x',
        _ => 'q',
    };
    let mut counts = [0; 128];
    let mut register = |name: &str| {
        let class = match name {
            "U" => letter(types.first()),
            "T" => letter(types.last()),
            name => name.chars().next().unwrap_or('r'),
        };
        let count = &mut counts[class as usize % 128];
        *count += 1;
        format!("%{class}{count}")
    };
    let one = |operand: &str| match operand {
        "[G]" | "[P]" => "[%g]".to_owned(),
        "[S]" => "[%s]".to_owned(),
        vector if vector.starts_with('<') => {
            let (name, count) = vector[1..vector.len() - 1]
                .split_once('*')
                .unwrap_or(("r", "1"));
            let all: Vec<String> = (0..count.parse().unwrap_or(1))
                .map(|_| register(name))
                .collect();
            format!("{{{}}}", all.join(", "))
        }
        pair if pair.contains('|') => {
            let all: Vec<String> = pair.split('|').map(&mut register).collect();
            all.join("|")
        }
        name => register(name),
    };
    operands.split_whitespace().map(one).collect()
}

/// The registers that a form names, in order of their classes: class and number.
fn registers(form: &str) -> Vec<(char, u32)> {
    let mut found = Vec::new();
    for (at, _) in form.match_indices('%') {
        let name = &form[at + 1..];
        let Some(class) = name
            .chars()
            .next()
            .filter(|class| "hrxpqb".contains(*class))
        else {
            continue;
        };
        let digits = name[1..].chars().take_while(char::is_ascii_digit).count();
        // Special registers go on with letters.
        let ends = |next: char| !next.is_ascii_alphanumeric() && next != '_';
        if digits != 0
            && name[1 + digits..].chars().next().is_none_or(ends)
            && let Ok(number) = name[1..=digits].parse()
        {
            found.push((class, number));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Where each register of a form has its word in a thread's part of the buffer.
#[must_use]
pub fn places(form: &str) -> Vec<(char, u32)> {
    registers(form)
}

/// What stands before the entries of a module for a target: `90`, `100a`.
#[must_use]
pub fn head(target: &str) -> String {
    format!(
        ".version 9.0\n.target sm_{target}\n.address_size 64\n.const .align 4 .b32 constants[4] = {{1, 2, 3, 4}};\n"
    )
}

/// An entry that loads all registers which a form names from the buffer that its parameter points to, executes the
/// form, and stores them. Memory places of threads come from the buffer too, and go there.
#[must_use]
pub fn entry(name: &str, form: &str) -> String {
    let registers = registers(form);
    let mut text = format!(
        ".visible .entry {name}(.param .u64 buffer) {{\n\
         .shared .align 128 .b8 slots[{}];\n.shared .align 8 .b64 bar;\n\
         .reg .b64 %base, %g, %s, %z, %x<33>; .reg .b32 %t, %y<4>, %r<33>; .reg .b16 %h<33>; .reg .pred %p<9>, %e;\n",
        64 * THREADS
    );
    if registers.iter().any(|(class, _)| *class == 'q') {
        text += ".reg .b128 %q<9>;\n";
    }
    if form.contains("%b") {
        text += ".reg .b8 %b<9>;\n";
    }
    text += "ld.param.u64 %base, [buffer]; mov.u32 %t, %tid.x; mul.wide.u32 %z, %t, 512; add.s64 %base, %base, %z; add.s64 %g, %base, 256;\n\
             mul.wide.u32 %z, %t, 64; mov.u64 %s, slots; add.s64 %s, %s, %z;\n";
    let shared = form.contains("%s]");
    if shared {
        for at in (0..64).step_by(16) {
            let _ = writeln!(
                text,
                "ld.global.v4.b32 {{%y0, %y1, %y2, %y3}}, [%base+{}]; st.shared.v4.b32 [%s+{at}], {{%y0, %y1, %y2, %y3}};",
                320 + at
            );
        }
    }
    if form.contains("[bar]") && !form.starts_with("mbarrier.init") {
        text += "setp.eq.u32 %e, %t, 0; @%e mbarrier.init.shared.b64 [bar], 1;\n";
    }
    if shared || form.contains("[bar]") {
        text += "bar.sync 0;\n";
    }
    for (at, (class, number)) in registers.iter().enumerate().take(REGISTERS) {
        let at = 8 * at;
        let _ = match class {
            'h' => writeln!(text, "ld.global.b16 %h{number}, [%base+{at}];"),
            'r' => writeln!(text, "ld.global.b32 %r{number}, [%base+{at}];"),
            'x' => writeln!(text, "ld.global.b64 %x{number}, [%base+{at}];"),
            'q' => writeln!(
                text,
                "ld.global.b64 %z, [%base+{at}]; mov.b128 %q{number}, {{%z, %z}};"
            ),
            'p' => writeln!(
                text,
                "ld.global.b32 %y0, [%base+{at}]; and.b32 %y0, %y0, 1; setp.ne.u32 %p{number}, %y0, 0;"
            ),
            _ => Ok(()),
        };
    }
    let _ = writeln!(text, "{form}\nEND:");
    for (at, (class, number)) in registers.iter().enumerate().take(REGISTERS) {
        let at = 8 * at;
        let _ = match class {
            'h' => writeln!(text, "st.global.b16 [%base+{at}], %h{number};"),
            'r' => writeln!(text, "st.global.b32 [%base+{at}], %r{number};"),
            'x' => writeln!(text, "st.global.b64 [%base+{at}], %x{number};"),
            'q' => writeln!(
                text,
                "mov.b128 {{%z, %x32}}, %q{number}; xor.b64 %z, %z, %x32; st.global.b64 [%base+{at}], %z;"
            ),
            'p' => writeln!(
                text,
                "selp.u32 %y0, 1, 0, %p{number}; st.global.b32 [%base+{at}], %y0;"
            ),
            _ => Ok(()),
        };
    }
    if shared {
        text += "bar.sync 0;\n";
        for at in (0..64).step_by(16) {
            let _ = writeln!(
                text,
                "ld.shared.v4.b32 {{%y0, %y1, %y2, %y3}}, [%s+{at}]; st.global.v4.b32 [%base+{}], {{%y0, %y1, %y2, %y3}};",
                320 + at
            );
        }
    }
    text += "ret;\n}\n";
    text
}
