//! The program as a user starts it, as far as that goes without a driver.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn nbody(arguments: &[&str]) -> Output {
    // A library that cannot be loaded, so that the outcome is the same where a driver is installed.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-driver");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("libcuda.so.1"), "").expect("an empty file");
    Command::new(env!("CARGO_BIN_EXE_nbody"))
        .args(arguments)
        .env("LD_LIBRARY_PATH", directory)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn assert_refused(arguments: &[&str], expected: &str) {
    let output = nbody(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(
        text(&output.stderr).starts_with(expected),
        "{}",
        text(&output.stderr)
    );
}

/// The number between two pieces of a line.
fn number_in(line: &str, before: &str, after: &str) -> f64 {
    let number = line
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after));
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn the_benchmark_on_the_cpu_prints_figures_that_agree() {
    let output = nbody(&["-benchmark", "-cpu", "-numbodies=1000", "--iterations=3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    let rounded = "> 1000 bodies are rounded up to 1024, a multiple of 256";
    assert_eq!(lines[..1], ["> Simulation with CPU"]);
    assert_eq!(lines[2], rounded);
    let [time, rate, gigaflops] = lines[3..] else {
        panic!("{lines:?}")
    };
    let milliseconds = number_in(time, "1024 bodies, total time for 3 iterations: ", " ms");
    let billions = number_in(rate, "= ", " billion interactions per second");
    let after = " single-precision GFLOP/s at 20 flops per interaction";
    let gigaflops = number_in(gigaflops, "= ", after);
    let expected = 3.0 * 1024.0 * 1024.0 / milliseconds / 1e6;
    assert!(
        (billions - expected).abs() <= 0.001 + expected * 0.01,
        "{billions} {expected}"
    );
    assert!(
        (gigaflops - 20.0 * billions).abs() <= 0.02,
        "{gigaflops} {billions}"
    );
}

#[test]
fn the_comparison_of_the_cpu_with_itself_passes() {
    for precision in [&[][..], &["-fp64"]] {
        let mut arguments = vec!["-compare", "-cpu", "-numbodies=512", "-i=2"];
        arguments.extend(precision);
        let output = nbody(&arguments);
        let out = text(&output.stdout);
        assert!(output.status.success(), "{out}");
        assert!(
            out.contains("> 512 bodies after 2 iterations: largest relative error"),
            "{out}"
        );
        assert!(out.ends_with("> Comparison passed\n"), "{out}");
    }
}

#[test]
fn help_is_no_failure_and_needs_no_driver() {
    let output = nbody(&["-help"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("-numbodies=<N>"));
}

#[test]
fn a_missing_driver_is_one_clear_line() {
    let output = nbody(&["-benchmark", "-numbodies=256"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.starts_with("nbody: no CUDA driver: "), "{error}");
    assert!(error.contains("libcuda.so.1"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn bad_options_end_with_one() {
    assert_refused(&["-fullscreen"], "nbody: -fullscreen is not offered: ");
    assert_refused(&["-tipsy=a.bin"], "nbody: -tipsy is not offered: ");
    assert_refused(&["--turbo"], "nbody: unknown option --turbo");
    assert_refused(
        &["-numbodies=many"],
        "nbody: -numbodies=many: not a whole number from 1 to ",
    );
    assert_refused(
        &["-cpu", "-hostmem"],
        "nbody: -hostmem cannot be used together with -cpu",
    );
}
