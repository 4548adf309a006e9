//! The self-test by which a runtime decides whether it trusts the driver library.
//!
//! A runtime asks INTEGRITY_CHECK slot 1 at its start and computes the answer itself, from values of
//! this process: so it is computed here, in the calling thread, at every question. The formula is a
//! fact of interoperability. After one wrong answer every call of that
//! copy of the runtime gives 103 until the process ends.
//!
//! Called by `entries`, which brings the values. Must not ask the session for any itself.

use super::md2::{BLOCK, HmacMd2};

/// The key of the digest.
const KEY: [u8; BLOCK] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// The second half of both fixed answers.
const FIXED: u64 = 0x8ed3_83aa_1f4c_d1e8;

/// What the answer depends on, apart from the devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// What cuDriverGetVersion reports.
    pub driver_version: i32,
    /// What the runtime passed: its own version, and in the last digit which question this is.
    pub version: u32,
    /// This process, as it sees itself.
    pub pid: u32,
    /// The low half of the calling thread's pthread_self.
    pub thread: u32,
    /// Address of the CUDART_INTERFACE table as handed out.
    pub cudart_interface: u64,
    /// Address of the INTEGRITY_CHECK table as handed out.
    pub integrity_check: u64,
    /// The pointer in slot 1 of INTEGRITY_CHECK.
    pub function: u64,
    /// What the runtime passed.
    pub unix_seconds: u64,
}

/// What the answer depends on of a device, as the public interface reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub uuid: [u8; 16],
    pub pci_domain: i32,
    pub pci_bus: i32,
    pub pci_device: i32,
}

/// The answer to a question. `devices` in order of their ordinals.
pub(super) fn answer(question: &Question, devices: impl Iterator<Item = Device>) -> [u8; BLOCK] {
    match question.version % 10 {
        0 => fixed(0x3341_181c_03cb_675c),
        1 => fixed(0x1841_181c_03cb_675c),
        _ => digest(question, devices),
    }
}

fn fixed(first: u64) -> [u8; BLOCK] {
    (u128::from(FIXED) << 64 | u128::from(first)).to_le_bytes()
}

fn digest(question: &Question, devices: impl Iterator<Item = Device>) -> [u8; BLOCK] {
    let mut message = HmacMd2::new(&KEY);
    message.update(&question.driver_version.to_le_bytes());
    for word in [question.version, question.pid, question.thread] {
        message.update(&word.to_le_bytes());
    }
    for long in [
        question.cudart_interface,
        question.integrity_check,
        question.function,
        question.unix_seconds,
    ] {
        message.update(&long.to_le_bytes());
    }
    for device in devices {
        message.update(&device.uuid);
        for number in [device.pci_domain, device.pci_bus, device.pci_device] {
            message.update(&number.to_le_bytes());
        }
    }
    message.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: Question = Question {
        driver_version: 13000,
        version: 13002,
        pid: 1234,
        thread: 0x5678,
        cudart_interface: 0x1000,
        integrity_check: 0x2000,
        function: 0x3000,
        unix_seconds: 1_700_000_000,
    };

    fn hex(bytes: [u8; BLOCK]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_vectors_of_the_reference_come_out() {
        assert_eq!(
            hex(answer(&QUESTION, std::iter::empty())),
            "cd2493962dbf1f3dcd86620330f84c19"
        );
        let device = Device {
            uuid: std::array::from_fn(|at| at as u8 + 1),
            pci_domain: 0,
            pci_bus: 0x17,
            pci_device: 0,
        };
        assert_eq!(
            hex(answer(&QUESTION, std::iter::once(device))),
            "47dcd356ef1870ee5e531f04752f4958"
        );
    }

    #[test]
    fn two_questions_have_fixed_answers() {
        for (version, expected) in [
            (13000, "5c67cb031c184133e8d14c1faa83d38e"),
            (11081, "5c67cb031c184118e8d14c1faa83d38e"),
        ] {
            let question = Question {
                version,
                ..QUESTION
            };
            assert_eq!(hex(answer(&question, std::iter::empty())), expected);
        }
    }
}
