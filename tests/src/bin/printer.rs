//! A program whose kernels print its own number, line by line: `printer NUMBER LAUNCHES`. It says nothing
//! itself, for kernels print into C's buffer, which is not Rust's.

use tests::cuda::{Code, Driver};

/// Prints its parameter and the thread's number, in one line a thread.
const IMAGE: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .global .align 1 .b8 format[7] = {37, 100, 32, 37, 100, 10, 0};\n\
    .extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);\n\
    .visible .entry print(.param .u64 number) {\n\
        .local .align 8 .b8 depot[8];\n\
        .reg .b64 %d<5>; .reg .b32 %r<3>;\n\
        ld.param.u32 %r1, [number]; mov.u32 %r2, %tid.x;\n\
        mov.u64 %d1, depot; st.local.u32 [depot], %r1; st.local.u32 [depot+4], %r2;\n\
        cvta.local.u64 %d2, %d1;\n\
        mov.u64 %d3, format; cvta.global.u64 %d4, %d3;\n\
        { .param .b64 f; .param .b64 v; .param .b32 r; st.param.b64 [f], %d4; st.param.b64 [v], %d2;\n\
          call.uni (r), vprintf, (f, v); ld.param.b32 %r1, [r]; }\n\
        ret;\n\
    }\n";

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"));
    let (number, launches) = (arguments.next(), arguments.next());
    print(number.expect("a number"), launches.expect("how many")).expect("it prints");
}

fn print(number: u64, launches: u64) -> Result<(), Code> {
    let driver = Driver::ready();
    let kernel = driver.function(driver.module(IMAGE)?, "print")?;
    for launch in 0..launches {
        driver.launch(kernel, 1, 32, 0, &[number])?;
        if launch % 8 == 7 {
            driver.synchronize()?;
        }
    }
    driver.synchronize()
}
