//! The lines about a benchmark. Scripts parse them: their shape is that of the CUDA sample.
//!
//! Called by `main`. Must not know how a step was calculated.

use std::io::{self, Write};

use crate::bodies::Real;

/// Writes how long `steps` of `bodies` took, and the rates that follow from it.
pub fn write_rates<T: Real>(
    out: &mut dyn Write,
    bodies: u32,
    steps: u32,
    milliseconds: f64,
) -> io::Result<()> {
    let interactions = f64::from(bodies) * f64::from(bodies) * f64::from(steps);
    let billions_a_second = interactions * 1e-9 / (milliseconds * 1e-3);
    let flops = T::FLOPS_PER_INTERACTION;
    let precision = T::PRECISION;
    let gigaflops = billions_a_second * f64::from(flops);
    writeln!(
        out,
        "{bodies} bodies, total time for {steps} iterations: {milliseconds:.3} ms"
    )?;
    writeln!(
        out,
        "= {billions_a_second:.3} billion interactions per second"
    )?;
    writeln!(
        out,
        "= {gigaflops:.3} {precision} GFLOP/s at {flops} flops per interaction"
    )?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates<T: Real>(milliseconds: f64) -> String {
        let mut out = Vec::new();
        write_rates::<T>(&mut out, 14336, 10, milliseconds).expect("a Vec takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_lines_have_the_shape_that_scripts_parse() {
        assert_eq!(
            rates::<f32>(123.0625),
            "14336 bodies, total time for 10 iterations: 123.062 ms\n\
             = 16.701 billion interactions per second\n\
             = 334.011 single-precision GFLOP/s at 20 flops per interaction\n"
        );
        assert_eq!(
            rates::<f64>(2055.20896),
            "14336 bodies, total time for 10 iterations: 2055.209 ms\n\
             = 1.000 billion interactions per second\n\
             = 30.000 double-precision GFLOP/s at 30 flops per interaction\n"
        );
    }
}
