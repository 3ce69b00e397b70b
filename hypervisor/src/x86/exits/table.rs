//! The form of a table of exits: a row for each kind. Each kind of processor has such a table, with
//! the same rows where the exits mean the same ([`crate::svm::table`], [`crate::vmx::table`]).

/// Rows of instructions whose encoding is checked: name; codes and condition; counter; usual
/// encoding; required privilege; handler. Rows of other exits: name; codes; counter; handler, and
/// what it takes of the exit, if anything. `Exit` is the processor's description of one, with its
/// `code`, and `on` says which processors have it.
macro_rules! exits {
    (
        on $processor:ident;
        instructions {
            $($i:ident: $($i_code:pat_param)|+ $(if $i_condition:ident)? =>
              $i_counter:ident; $($byte:literal)+; $whose:ident; $i_handler:path;)*
        }
        events {
            $($e:ident: $($e_code:pat_param)|+ => $e_counter:ident; $e_handler:path $(, $e_part:expr)?;)*
        }
        otherwise { $o:ident; $o_counter:ident; $o_handler:path, $o_part:expr; }
    ) => {
        /// A kind of exit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Row {
            /// Because of an instruction that is emulated here.
            Instruction(Instruction),
            /// For another reason.
            Event(Event),
        }

        /// An exit because of an instruction that is emulated here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the table says it")]
        pub enum Instruction {
            $($i,)*
        }

        /// An exit for another reason, or one that itself reports the address of the next
        /// instruction, or that must be decoded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the table says it")]
        pub enum Event {
            $($e,)*
            $o,
        }

        impl Row {
            /// The row of an exit.
            #[inline(always)]
            pub const fn of(exit: &Exit) -> Self {
                match exit.code {
                    $($($i_code)|+ $(if exit.$i_condition())? => Self::Instruction(Instruction::$i),)*
                    $($($e_code)|+ => Self::Event(Event::$e),)*
                    _ => Self::Event(Event::$o),
                }
            }

            /// The counter of its exits.
            #[inline(always)]
            pub const fn counter(self) -> hostlink::counters::Counter {
                match self {
                    $(Self::Instruction(Instruction::$i) => hostlink::counters::Counter::$i_counter,)*
                    $(Self::Event(Event::$e) => hostlink::counters::Counter::$e_counter,)*
                    Self::Event(Event::$o) => hostlink::counters::Counter::$o_counter,
                }
            }

            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[
                $(Self::Instruction(Instruction::$i),)*
                $(Self::Event(Event::$e),)*
                Self::Event(Event::$o),
            ];
        }

        impl Instruction {
            /// Its usual encoding.
            #[inline(always)]
            pub const fn usual(self) -> &'static memslots::Pattern {
                match self {
                    $(Self::$i => const { &memslots::Pattern::new(&[$($byte),+]) },)*
                }
            }

            /// The bytes of its usual encoding.
            #[cfg(test)]
            pub(crate) const fn bytes(self) -> &'static [u8] {
                match self {
                    $(Self::$i => &[$($byte),+],)*
                }
            }

            /// The privilege that it needs.
            #[inline(always)]
            pub const fn whose(self) -> $crate::x86::vcpu::checks::Instruction {
                match self {
                    $(Self::$i => $crate::x86::vcpu::checks::Instruction::$whose,)*
                }
            }
        }

        /// Counts an exit and handles it. There is one match, so that an exit is classified once.
        #[inline(always)] // It has one caller.
        pub(crate) fn dispatch<A: $processor>(
            context: &mut $crate::vm::Context<'_, A>,
            exit: Exit,
        ) -> $crate::vm::Next {
            match exit.code {
                $($($i_code)|+ $(if exit.$i_condition())? => {
                    context.count_exit(hostlink::counters::Counter::$i_counter);
                    let row = const { Instruction::$i };
                    $crate::x86::exits::complete(context, row.usual(), row.whose(), $i_handler)
                })*
                $($($e_code)|+ => {
                    context.count_exit(hostlink::counters::Counter::$e_counter);
                    $e_handler(context $(, $e_part(&exit))?)
                })*
                _ => {
                    context.count_exit(hostlink::counters::Counter::$o_counter);
                    $o_handler(context, $o_part(&exit))
                }
            }
        }

        /// Whether an exit with this code has a row of its own.
        #[allow(unreachable_patterns, reason = "rows with a condition share their code with another")]
        const fn has_row(code: u64) -> bool {
            matches!(code, $($($i_code)|+)|* | $($($e_code)|+)|*)
        }
    };
}

pub(crate) use exits;
