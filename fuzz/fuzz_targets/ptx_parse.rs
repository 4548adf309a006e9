//! Any bytes as a PTX text: no panic, and what is accepted names only what exists. Of its kernels it is found out through which
//! pointers they read and write, all of which are in their parameters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx::ast::{Base, Function, Module, Operand, Parameter, Register, Symbol, Targets};

fuzz_target!(|bytes: &[u8]| {
    let Ok(module) = ptx::parse_bytes(bytes) else {
        return;
    };
    for variable in &module.variables {
        for relocation in &variable.init.relocations {
            check_symbol(&module, None, relocation.symbol);
        }
        assert!(variable.init.bytes.len() as u64 <= variable.size);
    }
    for function in &module.functions {
        check_function(&module, function);
        assert_eq!(ptx::layout::params(function).len(), function.params.len());
        if function.entry
            && function.body.is_some()
            && let Ok(found) = ptx::pointers::pointers(&module, function.name)
        {
            let places = found.reads.iter().chain(&found.writes);
            let mut offsets = places.flat_map(|place| &place.offsets);
            let bytes = ptx::layout::params_size(function).next_multiple_of(4);
            assert!(offsets.all(|&offset| u64::from(offset) + 8 <= bytes));
        }
    }
});

fn check_function(module: &Module, function: &Function) {
    let body = function.body.as_deref().unwrap_or_default();
    assert!(function.labels.iter().all(|&place| place <= body.len()));
    for variable in &function.variables {
        for relocation in &variable.init.relocations {
            check_symbol(module, Some(function), relocation.symbol);
        }
    }
    for targets in &function.targets {
        match targets {
            Targets::Branch(labels) => {
                assert!(
                    labels
                        .iter()
                        .all(|label| (label.0 as usize) < function.labels.len())
                );
            }
            Targets::Call(functions) => {
                assert!(
                    functions
                        .iter()
                        .all(|&index| index < module.functions.len())
                );
            }
        }
    }
    for parameter in function.params.iter().chain(&function.returns) {
        if let Parameter::Register(register) = parameter {
            check_register(function, *register);
        }
    }
    for instruction in body {
        if let Some(guard) = instruction.guard {
            check_register(function, guard.register);
        }
        for operand in &instruction.operands {
            check_operand(module, function, operand);
        }
    }
}

fn check_register(function: &Function, register: Register) {
    assert!((register.0 as usize) < function.registers.len());
}

fn check_symbol(module: &Module, function: Option<&Function>, symbol: Symbol) {
    let (index, count) = match symbol {
        Symbol::Function(index) => (index, module.functions.len()),
        Symbol::Local(index) => (index, function.map_or(0, |f| f.variables.len())),
        Symbol::Module(index) => (index, module.variables.len()),
        Symbol::Param(index) => (index, function.map_or(0, |f| f.params.len())),
        Symbol::Return(index) => (index, function.map_or(0, |f| f.returns.len())),
    };
    assert!(index < count);
}

fn check_operand(module: &Module, function: &Function, operand: &Operand) {
    match operand {
        Operand::Address(address) => match address.base {
            Base::Immediate => {}
            Base::Register(register) => check_register(function, register),
            Base::Symbol(symbol) => check_symbol(module, Some(function), symbol),
        },
        Operand::Indexed(parts) | Operand::List(parts) | Operand::Vector(parts) => {
            parts
                .iter()
                .for_each(|part| check_operand(module, function, part));
        }
        Operand::Label(label) => assert!((label.0 as usize) < function.labels.len()),
        Operand::Not(register) | Operand::Part { register, .. } | Operand::Register(register) => {
            check_register(function, *register);
        }
        Operand::Pair(first, second) => {
            check_operand(module, function, first);
            check_operand(module, function, second);
        }
        Operand::Prototype(index) => assert!(*index < function.prototypes.len()),
        Operand::Symbol(symbol, _) => check_symbol(module, Some(function), *symbol),
        Operand::Targets(index) => assert!(*index < function.targets.len()),
        Operand::Float32(_)
        | Operand::Float64(_)
        | Operand::Integer(_)
        | Operand::Sink
        | Operand::Special(..) => {}
    }
}
