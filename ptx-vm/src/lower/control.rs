//! Branches, calls, barriers, and what the lanes of a warp do together.
//!
//! Called by `lower::arith`. Must not know masks or paths: which lanes go where is found out by `lane_group` when
//! it runs.

use ptx::ast::{Function, Instruction, Label, Operand, Parameter, Symbol, Targets, Type};

use super::body::{Body, Lowered, width_of};
use crate::device_runtime;
use crate::ir::{Barrier, Callee, End, InstKind, Passed, Reg};
use crate::machine::{OpFn, ReduceOp};
use crate::ops::simple::Words;
use crate::ops::{system, warp};

impl<'a> Body<'a> {
    pub(super) fn control(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        match at.opcode {
            "bra" => self.branch(at),
            "brx" => self.branch_table(at),
            "call" => self.call(at),
            "ret" => self.leave(End::Return),
            "exit" => self.leave(End::Exit),
            "trap" => self.leave(End::Trap { breakpoint: false }),
            "brkpt" => self.leave(End::Trap { breakpoint: true }),
            "bar" | "barrier" if words.has("warp") => self.warp_barrier(at),
            "barrier" if words.has("cluster") => self.cluster_barrier(at, words),
            "bar" | "barrier" => self.barrier(at, words),
            "membar" | "fence" => {
                let known = |word: &&str| {
                    matches!(
                        *word,
                        "sc" | "acq_rel"
                            | "acquire"
                            | "release"
                            | "cta"
                            | "cluster"
                            | "gpu"
                            | "gl"
                            | "sys"
                            // Between ways to memory that a GPU has several of.
                            | "proxy"
                            | "alias"
                            | "async"
                            | "async::generic"
                            | "generic"
                            | "mbarrier_init"
                            | "global"
                            | "shared::cta"
                            | "shared::cluster"
                            | "tensormap::generic"
                            | "release::cluster"
                            | "op_restrict"
                    ) || word.starts_with("sync_restrict")
                };
                if !words.flags.iter().all(known) {
                    return Err(self.unbuilt());
                }
                self.fence();
                Ok(())
            }
            "nanosleep" => {
                self.emit(InstKind::Pause, Vec::new(), Vec::new());
                Ok(())
            }
            "pmevent" => Ok(()),
            "shfl" => self.shuffle(at, words),
            "vote" => self.vote(at, words),
            "match" => self.find_equal(at, words),
            "redux" => self.reduce(at, words),
            "activemask" => {
                let [d] = self.operands(at)?;
                let dest = self.dest(d, 4)?;
                self.emit(
                    InstKind::Warp {
                        run: warp::active,
                        imm: 0,
                    },
                    vec![dest],
                    Vec::new(),
                );
                Ok(())
            }
            "elect" => self.elect(at),
            _ => Err(self.unbuilt()),
        }
    }

    fn branch(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let &[Operand::Label(label)] = self.operands(at)? else {
            return Err(self.unbuilt());
        };
        let then = self.label(label)?;
        match self.take_guard() {
            None => self.end(End::Jump(then)),
            Some((on, negated)) => {
                let other = self.new_block();
                self.end(End::Branch {
                    on,
                    negated,
                    then,
                    other,
                });
                self.begin(other);
            }
        }
        Ok(())
    }

    fn branch_table(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let [index, Operand::Targets(list)] = self.operands(at)? else {
            return Err(self.unbuilt());
        };
        let Some(Targets::Branch(labels)) = self.tree.targets.get(*list) else {
            return Err(self.unbuilt());
        };
        if labels.is_empty() {
            return Err(self.fail("an empty list of targets"));
        }
        let index = self.read(index, 4)?;
        let after = self.enter_guarded();
        let targets: Lowered<Vec<_>> = labels
            .iter()
            .map(|label: &Label| self.label(*label))
            .collect();
        self.end(End::Table {
            index,
            targets: targets?,
        });
        if let Some(after) = after {
            self.begin(after);
        }
        Ok(())
    }

    fn leave(&mut self, end: End) -> Lowered {
        let after = self.enter_guarded();
        self.end(end);
        if let Some(after) = after {
            self.begin(after);
        }
        Ok(())
    }

    fn barrier(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let known = |word: &&str| {
            matches!(
                *word,
                "sync" | "arrive" | "red" | "aligned" | "cta" | "popc" | "and" | "or"
            )
        };
        if !words.flags.iter().all(known) {
            return Err(self.unbuilt());
        }
        let mut operands = at.operands.as_slice();
        let mut reduce = None;
        if words.has("red") {
            let (Some((d, rest)), kind) = (operands.split_first(), words) else {
                return Err(self.fail("a wrong number of operands"));
            };
            let Some((source, rest)) = rest.split_last() else {
                return Err(self.fail("a wrong number of operands"));
            };
            operands = rest;
            let (kind, width) = if kind.has("popc") {
                (ReduceOp::Popc, 4)
            } else if kind.has("and") {
                (ReduceOp::And, 1)
            } else {
                (ReduceOp::Or, 1)
            };
            let source = self.read(source, 1)?;
            reduce = Some((kind, source, d, width));
        }
        let (id, count) = match operands {
            [id] => (id, None),
            [id, count] => (id, Some(count)),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let id = match id {
            Operand::Integer(id @ 0..16) => Barrier::Fixed(*id as u8),
            Operand::Integer(_) => return Err(self.fail("there are 16 barriers")),
            id => Barrier::Register(self.read(id, 4)?),
        };
        let count = match count {
            Some(count) => Some(self.read(count, 4)?),
            None => None,
        };
        let after = self.enter_guarded();
        let next = self.new_block();
        let mut copied = None;
        let reduce = match reduce {
            Some((kind, source, d, width)) => {
                let dest = self.dest(d, width)?;
                copied = Some((d, dest));
                Some((kind, source, dest))
            }
            None => None,
        };
        self.end(End::Barrier {
            id,
            count,
            arrive_only: words.has("arrive"),
            reduce,
            next,
        });
        self.begin(next);
        if let Some((d, dest)) = copied {
            self.finish(d, dest, false)?;
        }
        self.leave_guarded(after);
        Ok(())
    }

    fn call(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let (results, callee, args) = self.call_parts(at)?;
        // `width`: of the callee's register, where it is known to want one.
        let passed =
            |body: &mut Self, operand: &Operand<'a>, width: Option<u8>| -> Lowered<Passed> {
                match operand {
                    Operand::Symbol(Symbol::Local(index), 0) => {
                        body.call_variable(*index).ok_or_else(|| body.unbuilt())
                    }
                    Operand::Symbol(Symbol::Param(index), 0) if !body.tree.entry => body
                        .func
                        .params
                        .get(*index)
                        .copied()
                        .ok_or_else(|| body.unbuilt()),
                    Operand::Symbol(Symbol::Return(index), 0) => body
                        .func
                        .returns
                        .get(*index)
                        .copied()
                        .ok_or_else(|| body.unbuilt()),
                    Operand::Register(register) => Ok(Passed::Register(register.0)),
                    Operand::Integer(value) => {
                        let reg = body.constant(value.cast_unsigned(), width.unwrap_or(8));
                        Ok(Passed::Register(reg))
                    }
                    _ => Err(body.unbuilt()),
                }
            };
        let called = match callee {
            Operand::Symbol(Symbol::Function(index), 0) => {
                self.kernel.module.tree.functions.get(*index)
            }
            _ => None,
        };
        let list = |body: &mut Self,
                    operands: &[Operand<'a>],
                    wanted: Option<&[Parameter<'_>]>|
         -> Lowered<Vec<Passed>> {
            let width = |at: usize| match wanted?.get(at)? {
                Parameter::Register(register) => {
                    width_of(*called?.registers.get(register.0 as usize)?)
                }
                Parameter::Memory(_) => None,
            };
            operands
                .iter()
                .enumerate()
                .map(|(at, operand)| passed(body, operand, width(at)))
                .collect()
        };
        let args = list(
            self,
            args,
            called.map(|function| function.params.as_slice()),
        )?;
        let results = list(self, results, None)?;
        let known = |reg: &Passed| match reg {
            Passed::Register(reg) => (*reg as usize) < self.func.regs.len(),
            Passed::Local(..) => true,
        };
        if !args.iter().chain(&results).all(known) {
            return Err(self.fail("no such register"));
        }
        let callee = match callee {
            Operand::Symbol(Symbol::Function(index), 0) if self.is_undefined(*index) => {
                return self.call_system(*index, &args, &results);
            }
            Operand::Symbol(Symbol::Function(index), 0) => {
                let Some(function) = called else {
                    return Err(self.fail("no such function"));
                };
                let number = self.kernel.numbers.get(index).copied();
                let Some(number) = number.filter(|_| !function.entry) else {
                    let why = format!(
                        "function \"{}\" is not defined in this module",
                        function.name
                    );
                    return Err(self.fail(&why));
                };
                self.check_signature(&args, function, &function.params)?;
                self.check_signature(&results, function, &function.returns)?;
                Callee::Direct(number)
            }
            callee => Callee::Indirect(self.read(callee, 8)?),
        };
        let after = self.enter_guarded();
        let next = self.new_block();
        self.end(End::Call {
            callee,
            args,
            results,
            next,
        });
        self.begin(next);
        self.leave_guarded(after);
        Ok(())
    }

    /// Whether a function has no body in this module.
    fn is_undefined(&self, index: usize) -> bool {
        let function = self.kernel.module.tree.functions.get(index);
        function.is_some_and(|function| function.body.is_none())
    }

    /// Calls a function that the system has under a known name.
    fn call_system(&mut self, index: usize, args: &[Passed], results: &[Passed]) -> Lowered {
        let name = self.kernel.module.tree.functions[index].name;
        if let Some((number, known)) = device_runtime::find(name) {
            return self.call_runtime(number, known, args, results);
        }
        let (run, widths, result): (OpFn, &[u8], u8) = match name {
            "vprintf" => (system::print, &[8, 8], 4),
            "__assertfail" => (system::assertion_failed, &[8, 8, 4, 8, 8], 0),
            "malloc" => (system::allocate, &[8], 8),
            "free" => (system::free, &[8], 0),
            "cudaGraphSetConditional" => (system::set_condition, &[8, 4], 0),
            name if is_device_runtime(name) => {
                let why =
                    format!("the software GPU does not have \"{name}\" of CUDA's device runtime");
                return Err(self.fail(&why));
            }
            _ => {
                let why = format!("function \"{name}\" is not defined in this module");
                return Err(self.fail(&why));
            }
        };
        // A declaration may leave the result out.
        if args.len() != widths.len() || results.len() > usize::from(result != 0) {
            return Err(self.fail("arguments that do not fit the function"));
        }
        let mut sources = Vec::with_capacity(args.len());
        for (arg, &width) in args.iter().zip(widths) {
            sources.push(self.argument(*arg, width)?);
        }
        let mut d = Vec::new();
        if result != 0 {
            d.push(self.temp(result));
        }
        self.emit(InstKind::System { run, imm: 0 }, d.clone(), sources);
        if let (Some(&passed), Some(&value)) = (results.first(), d.first()) {
            self.store_result(passed, value, result)?;
        }
        Ok(())
    }

    /// Whether the arguments or results of a call are as many as `wanted` of the function, and where
    /// registers are passed, as wide.
    fn check_signature(
        &self,
        given: &[Passed],
        function: &Function<'_>,
        wanted: &[Parameter<'_>],
    ) -> Lowered {
        let fits = |(given, wanted): (&Passed, &Parameter<'_>)| {
            // Bytes go in registers of 16 bits.
            let holds = |width: u8, bytes: u64| u64::from(width) == bytes.max(2);
            match (*given, wanted) {
                // What is longer is cut off.
                (Passed::Local(..), Parameter::Memory(_)) => true,
                (Passed::Register(reg), Parameter::Memory(variable)) => {
                    reg as usize >= self.named || holds(self.func.regs[reg as usize], variable.size)
                }
                (given, Parameter::Register(register)) => {
                    let ty = function.registers.get(register.0 as usize);
                    ty.and_then(|ty| width_of(*ty))
                        .is_some_and(|width| match given {
                            Passed::Register(reg) => self.func.regs[reg as usize] == width,
                            Passed::Local(_, size) => holds(width, size.into()),
                        })
                }
            }
        };
        if given.len() == wanted.len() && given.iter().zip(wanted).all(fits) {
            Ok(())
        } else {
            Err(self.fail("arguments that do not fit the function"))
        }
    }

    /// Results, callee and arguments of a call, in whatever of its forms.
    fn call_parts(
        &self,
        at: &'a Instruction<'a>,
    ) -> Lowered<(&'a [Operand<'a>], &'a Operand<'a>, &'a [Operand<'a>])> {
        let (results, rest): (&[Operand<'a>], _) = match at.operands.as_slice() {
            [Operand::List(results), rest @ ..] => (results, rest),
            rest => (&[], rest),
        };
        match rest {
            [callee] => Ok((results, callee, &[])),
            [callee, Operand::List(args), ..] => Ok((results, callee, args)),
            [callee, Operand::Prototype(_) | Operand::Targets(_)] => Ok((results, callee, &[])),
            _ => Err(self.fail("a wrong number of operands")),
        }
    }

    fn warp_barrier(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let [members] = self.operands(at)?;
        let members = self.read(members, 4)?;
        self.exchange(warp::sync, 0, Vec::new(), vec![members]);
        Ok(())
    }

    /// Adds a warp operation in a place that only lanes whose guard holds reach.
    pub(super) fn exchange(&mut self, run: OpFn, imm: u64, d: Vec<Reg>, s: Vec<Reg>) {
        let after = self.enter_guarded();
        self.emit(InstKind::Warp { run, imm }, d, s);
        self.leave_guarded(after);
    }

    /// A destination, or a pair of one and a predicate.
    fn pair(&mut self, operand: &Operand<'a>, width: u8) -> Lowered<Vec<Reg>> {
        match operand {
            Operand::Pair(d, p) => Ok(vec![self.dest(d, width)?, self.dest(p, 1)?]),
            d => Ok(vec![self.dest(d, width)?]),
        }
    }

    fn shuffle(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let sync = words.has("sync");
        let mode = words.flags.iter().find_map(|word| warp::shuffle_mode(word));
        let mode = mode.ok_or_else(|| self.unbuilt())?;
        let (d, sources) = match (at.operands.split_first(), sync) {
            (Some((d, sources)), true) if sources.len() == 4 => (d, sources),
            (Some((d, sources)), false) if sources.len() == 3 => (d, sources),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let mut s = Vec::new();
        for source in sources {
            s.push(self.read(source, 4)?);
        }
        let d = self.pair(d, 4)?;
        self.exchange(
            warp::shuffle,
            mode | if sync { warp::SYNC } else { 0 },
            d,
            s,
        );
        Ok(())
    }

    fn vote(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let mode = words.flags.iter().find_map(|word| warp::vote_mode(word));
        let mode = mode.ok_or_else(|| self.unbuilt())?;
        let (d, p, members) = match at.operands.as_slice() {
            [d, p, members] if words.has("sync") => (d, p, Some(members)),
            [d, p] if !words.has("sync") => (d, p, None),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let mut s = vec![self.read(p, 1)?];
        let mut imm = mode;
        if let Some(members) = members {
            s.push(self.read(members, 4)?);
            imm |= warp::SYNC;
        }
        let dest = self.dest(d, if mode == 3 { 4 } else { 1 })?;
        self.exchange(warp::vote, imm, vec![dest], s);
        Ok(())
    }

    fn find_equal(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, value, members] = self.operands(at)?;
        let &[ty @ (Type::B32 | Type::B64)] = words.types else {
            return Err(self.unbuilt());
        };
        let wide = ty == Type::B64;
        let s = vec![
            self.read(value, if wide { 8 } else { 4 })?,
            self.read(members, 4)?,
        ];
        let d = self.pair(d, 4)?;
        let imm = u64::from(words.has("all")) | u64::from(wide) << 1;
        self.exchange(warp::find_equal, imm, d, s);
        Ok(())
    }

    fn reduce(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, value, members] = self.operands(at)?;
        let &[ty @ (Type::U32 | Type::S32 | Type::B32 | Type::F32)] = words.types else {
            return Err(self.unbuilt());
        };
        let kind = words
            .flags
            .iter()
            .find_map(|word| warp::reduction(word, ty));
        let mut kind = kind.ok_or_else(|| self.unbuilt())?;
        for (word, bit) in [("NaN", warp::NAN), ("abs", warp::ABS)] {
            if words.has(word) {
                if ty != Type::F32 {
                    return Err(self.unbuilt());
                }
                kind |= bit;
            }
        }
        let s = vec![self.read(value, 4)?, self.read(members, 4)?];
        let d = self.dest(d, 4)?;
        self.exchange(warp::reduce, kind, vec![d], s);
        Ok(())
    }

    fn elect(&mut self, at: &'a Instruction<'a>) -> Lowered {
        let [d, members] = self.operands(at)?;
        let s = vec![self.read(members, 4)?];
        let d = self.pair(d, 4)?;
        self.exchange(warp::elect, 0, d, s);
        Ok(())
    }
}

/// Whether a function that a module does not define is CUDA's device runtime's, or what that asks of the
/// driver.
fn is_device_runtime(name: &str) -> bool {
    ["cuda", "__cudaCDP", "cnp", "__cuda_syscall_"]
        .iter()
        .any(|start| name.starts_with(start))
}
