//! Any lines as nvidia-smi's arguments: refused in words, or carried out for devices that there are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use platform::gpus::{ComputeMode, Gpu, Process};
use platform::smi::{self, Action};

/// A machine with two devices.
struct Machine([Gpu; 2]);

impl smi::Machine for Machine {
    fn gpus(&mut self) -> Result<Vec<Gpu>, smi::MachineError> {
        Ok(self.0.to_vec())
    }

    fn processes(&mut self) -> Vec<Process> {
        Vec::new()
    }

    fn sampled_processes(&mut self) -> Vec<Process> {
        Vec::new()
    }

    fn set_mode(&mut self, gpu: &Gpu, mode: ComputeMode) -> Result<(), smi::MachineError> {
        self.0[gpu.index as usize].mode = mode;
        Ok(())
    }

    fn version(&self) -> &str {
        "1"
    }

    fn cuda_version(&self) -> &str {
        "13.0"
    }
}

fuzz_target!(|text: &str| {
    let arguments: Vec<String> = text.lines().map(str::to_owned).collect();
    let gpu = |index: u32| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        memory: 1 << 30,
        ..Gpu::default()
    };
    let mut machine = Machine([gpu(0), gpu(1)]);
    let parsed = smi::parse(&arguments);
    if let Ok(options) = &parsed
        && let Action::Processes { rounds, pause } = &options.action
    {
        // It would wait between its rounds.
        assert!(rounds.is_none_or(|rounds| rounds > 0) && !pause.is_zero());
        return;
    }
    let mut out = Vec::new();
    let status = smi::run(&arguments, &mut machine, &mut out).expect("memory takes all");
    match parsed {
        Ok(_) => assert!(status == 0 || status == smi::NOT_FOUND),
        Err(refused) => {
            assert_eq!(status, smi::BAD_ARGUMENT);
            assert!(!refused.0.is_empty());
            assert!(
                machine.0.iter().all(|gpu| gpu.mode == ComputeMode::Default),
                "what is refused changes nothing"
            );
        }
    }
    assert!(std::str::from_utf8(&out).is_ok_and(|text| text.ends_with('\n')));
});
