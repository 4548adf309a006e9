//! The command line: what the options mean, their limits, and the usage banner.
//!
//! Called by `main`. Must not know devices.

use std::fmt;

/// Printed by `-help` and by a run without a mode.
pub const USAGE: &str = "\
nbody: gravity of all pairs of N bodies, by a CUDA device or by the CPU.
Run \"nbody -benchmark [-numbodies=<N>]\" to measure how fast it goes.
\t-benchmark         (run some steps and report the time and the rate)
\t-compare           (check the result against the CPU in double precision)
\t-numbodies=<N>     (number of bodies, N >= 1; rounded up to a multiple of 256)
\t-iterations=<N>    (number of steps, N >= 1; 10 unless given)
\t-i=<N>             (the same as -iterations)
\t-fp64              (calculate in double precision instead of single)
\t-hostmem           (keep the bodies in pinned host memory that the device maps)
\t-device=<D>        (use CUDA device D = 0, 1, 2...)
\t-numdevices=<N>    (spread the bodies over N devices, from device D up)
\t-cpu               (calculate on the CPU; no CUDA is needed)
\t-help              (print this)
\t-fullscreen        (not offered: nothing is drawn)
\t-tipsy=<file.bin>  (not offered: the bodies are always generated)
An option may begin with one dash or two.";

/// More than this takes days at any rate, and would only exhaust the host's memory.
pub const MAX_BODIES: u32 = 1 << 24;

/// Default number of steps of a benchmark.
pub const DEFAULT_ITERATIONS: u32 = 10;

/// What the command line asked for. Absent numbers depend on the mode or on the device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub help: bool,
    pub benchmark: bool,
    pub compare: bool,
    pub cpu: bool,
    pub fp64: bool,
    pub hostmem: bool,
    pub bodies: Option<u32>,
    pub iterations: Option<u32>,
    pub device: Option<u32>,
    pub devices: Option<u32>,
}

/// Why a command line was refused. The text names the option as it was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadOption {
    Conflict {
        option: &'static str,
    },
    NoValueTaken {
        option: String,
    },
    NotANumber {
        option: String,
        value: String,
        least: u32,
        most: u32,
    },
    NotOffered {
        option: &'static str,
        reason: &'static str,
    },
    Unknown {
        option: String,
    },
    ValueMissing {
        option: String,
    },
}

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { option } => write!(f, "{option} cannot be used together with -cpu"),
            Self::NoValueTaken { option } => write!(f, "{option} takes no value"),
            Self::NotANumber {
                option,
                value,
                least,
                most,
            } => {
                write!(
                    f,
                    "{option}={value}: not a whole number from {least} to {most}"
                )
            }
            Self::NotOffered { option, reason } => write!(f, "{option} is not offered: {reason}"),
            Self::Unknown { option } => write!(f, "unknown option {option} (see nbody -help)"),
            Self::ValueMissing { option } => write!(f, "{option} needs a value: {option}=<N>"),
        }
    }
}

impl std::error::Error for BadOption {}

impl Options {
    /// Reads the arguments, without the program's name.
    pub fn parse<I>(arguments: I) -> Result<Self, BadOption>
    where
        I: IntoIterator<Item = String>,
    {
        let mut options = Self::default();
        for argument in arguments {
            options.apply(&argument)?;
        }
        if options.cpu {
            let gpu_only = [
                ("-hostmem", options.hostmem),
                ("-device", options.device.is_some()),
                ("-numdevices", options.devices.is_some()),
            ];
            if let Some((option, _)) = gpu_only.into_iter().find(|(_, given)| *given) {
                return Err(BadOption::Conflict { option });
            }
        }
        Ok(options)
    }

    /// Whether the command line named something to do.
    pub fn has_mode(&self) -> bool {
        self.benchmark || self.compare
    }

    fn apply(&mut self, argument: &str) -> Result<(), BadOption> {
        let (option, value) = match argument.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (argument, None),
        };
        let unknown = || BadOption::Unknown {
            option: argument.to_owned(),
        };
        let name = option
            .strip_prefix("--")
            .or_else(|| option.strip_prefix('-'))
            .ok_or_else(unknown)?
            .to_ascii_lowercase();
        let number = |least, most| number(option, value, least, most).map(Some);
        let flag = match name.as_str() {
            "benchmark" => &mut self.benchmark,
            "compare" => &mut self.compare,
            "cpu" => &mut self.cpu,
            "fp64" => &mut self.fp64,
            "help" | "h" => &mut self.help,
            "hostmem" => &mut self.hostmem,
            "fullscreen" => {
                let reason = "this program draws nothing";
                return Err(BadOption::NotOffered {
                    option: "-fullscreen",
                    reason,
                });
            }
            "tipsy" => {
                let reason = "the bodies are always generated";
                return Err(BadOption::NotOffered {
                    option: "-tipsy",
                    reason,
                });
            }
            "numbodies" => {
                self.bodies = number(1, MAX_BODIES)?;
                return Ok(());
            }
            "i" | "iterations" => {
                self.iterations = number(1, u32::MAX)?;
                return Ok(());
            }
            "device" => {
                self.device = number(0, i32::MAX as u32)?;
                return Ok(());
            }
            "numdevices" => {
                self.devices = number(1, i32::MAX as u32)?;
                return Ok(());
            }
            _ => return Err(unknown()),
        };
        if value.is_some() {
            return Err(BadOption::NoValueTaken {
                option: option.to_owned(),
            });
        }
        *flag = true;
        Ok(())
    }
}

fn number(option: &str, value: Option<&str>, least: u32, most: u32) -> Result<u32, BadOption> {
    let option = option.to_owned();
    let value = match value {
        None | Some("") => return Err(BadOption::ValueMissing { option }),
        Some(value) => value,
    };
    // Digits alone: `parse` would also take a leading plus sign.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse() {
        Ok(number) if digits && (least..=most).contains(&number) => Ok(number),
        _ => Err(BadOption::NotANumber {
            option,
            value: value.to_owned(),
            least,
            most,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned)).map_err(|bad| bad.to_string())
    }

    #[test]
    fn all_options_with_one_dash_or_two() {
        let expected = Options {
            benchmark: true,
            compare: true,
            fp64: true,
            hostmem: true,
            bodies: Some(14336),
            iterations: Some(20),
            device: Some(1),
            devices: Some(2),
            ..Options::default()
        };
        let one =
            "-benchmark -compare -fp64 -hostmem -numbodies=14336 -i=20 -device=1 -numdevices=2";
        let two = "--benchmark --compare --fp64 --hostmem --numbodies=14336 --iterations=20 \
                   --device=1 --numdevices=2";
        assert_eq!(parse(one), Ok(expected.clone()));
        assert_eq!(parse(two), Ok(expected));
        assert_eq!(parse("-cpu").map(|options| options.cpu), Ok(true));
        assert_eq!(parse("-help").map(|options| options.help), Ok(true));
    }

    #[test]
    fn the_last_of_two_values_holds() {
        assert_eq!(
            parse("-i=3 -iterations=4").map(|options| options.iterations),
            Ok(Some(4))
        );
    }

    #[test]
    fn bad_numbers_say_what_was_expected() {
        for value in [
            "x",
            "-1",
            "+1",
            "0",
            "1.5",
            "99999999999999999999",
            "16777217",
        ] {
            assert_eq!(
                parse(&format!("-numbodies={value}")),
                Err(format!(
                    "-numbodies={value}: not a whole number from 1 to 16777216"
                ))
            );
        }
        assert_eq!(parse("--i="), Err("--i needs a value: --i=<N>".into()));
        assert_eq!(
            parse("-device"),
            Err("-device needs a value: -device=<N>".into())
        );
        assert_eq!(parse("-fp64=yes"), Err("-fp64 takes no value".into()));
    }

    #[test]
    fn unknown_and_refused_options() {
        for option in ["-fast", "benchmark", "-", "--", "14336"] {
            assert_eq!(
                parse(option),
                Err(format!("unknown option {option} (see nbody -help)"))
            );
        }
        let refused = parse("-fullscreen").expect_err("nothing is drawn");
        assert!(
            refused.starts_with("-fullscreen is not offered"),
            "{refused}"
        );
        let refused = parse("--tipsy=galaxy.bin").expect_err("no files are read");
        assert!(refused.starts_with("-tipsy is not offered"), "{refused}");
    }

    #[test]
    fn what_only_a_device_has_conflicts_with_the_cpu() {
        for option in ["-hostmem", "-device=0", "-numdevices=1"] {
            assert!(parse(&format!("-cpu {option}")).is_err(), "{option}");
        }
    }
}
