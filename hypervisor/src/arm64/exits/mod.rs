//! The exit that ended a stay in the guest, as a value, and the table of exits.
//!
//! [`capture`] reads from the processor once, and only the registers that the kind of exit has. All
//! further decisions use that value, the vCPU's state, and the guest's registers. Handlers change
//! the state and return how the vCPU goes on; nothing here blocks.
//!
//! The table below has a row for each kind: how it is found, its captured type, its counter, and
//! its handler. A new kind is a new row.
//!
//! Source: Arm DDI 0487, D24.2.40 "ESR_EL2".

pub mod abort;
mod call;
pub mod load_store;
mod registers;
pub mod syndrome;
mod undefined;
pub mod wait;

#[cfg(test)]
mod tests;

use hostlink::counters::Counter;

use super::processor::{Arm64, Features, Processor, Vector};
use super::vcpu::serror::{self, SErrorOutcome};
use super::vcpu::{inject, step};
use crate::vm::{Context, GUEST, Next};
use abort::Abort;

/// The syndrome of an exception: ESR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syndrome(pub u64);

impl Syndrome {
    /// The class (EC).
    pub const fn class(self) -> u8 {
        (self.0 >> 26 & 0x3f) as u8
    }

    /// For a trapped MSR, MRS or system instruction: whether it is MRS.
    pub const fn is_read(self) -> bool {
        self.0 & 1 != 0
    }

    /// For a trapped WFI or WFE: whether it is WFE. The forms with a timeout are not shown to
    /// guests.
    pub const fn is_event(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The value captured for a kind of exit, from the processor that it has just occurred on.
trait Captured: Copy {
    fn capture<P: Processor>() -> Self;
}

/// An interrupt has no further information.
impl Captured for () {
    #[inline(always)]
    fn capture<P: Processor>() {}
}

impl Captured for Syndrome {
    #[inline(always)]
    fn capture<P: Processor>() -> Self {
        Self(P::syndrome())
    }
}

/// The value captured for an exception.
trait Described: Copy {
    fn describe<P: Processor>(syndrome: Syndrome) -> Self;
}

impl Described for Syndrome {
    #[inline(always)]
    fn describe<P: Processor>(syndrome: Self) -> Self {
        syndrome
    }
}

/// Declares the kinds of exits.
macro_rules! exits {
    (
        vectors {
            $($(#[$vector_doc:meta])*
            $vector:ident($vector_value:ty) $vector_code:path, $vector_name:literal, $vector_counter:expr => $vector_handler:path;)*
        }
        classes {
            $($(#[$class_doc:meta])*
            $class:ident($class_value:ty) $class_code:literal, $class_name:literal, $class_counter:expr => $class_handler:path;)*
        }
        others {
            $(#[$other_doc:meta])*
            $other:ident($other_value:ty), $other_name:literal, $other_counter:expr => $other_handler:path;
        }
    ) => {
        /// The reason why a stay in the guest ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Exit {
            $($(#[$vector_doc])* $vector($vector_value),)*
            $($(#[$class_doc])* $class($class_value),)*
            $(#[$other_doc])* $other($other_value),
        }

        /// The rows of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "they are the exits'")]
        pub enum Row {
            $($vector,)*
            $($class,)*
            $other,
        }

        impl Row {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$vector,)* $(Self::$class,)* Self::$other];

            /// The name of its kind of exit.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$vector => $vector_name,)*
                    $(Self::$class => $class_name,)*
                    Self::$other => $other_name,
                }
            }

            /// Its exception class, if it has one.
            pub const fn class(self) -> Option<u8> {
                match self {
                    $(Self::$class => Some($class_code),)*
                    _ => None,
                }
            }
        }

        /// Captures the exit that has just occurred through `vector`, and passes it on. Each kind
        /// has its own code path, which reads nothing twice.
        #[inline(always)]
        pub fn capture<P: Processor, R>(vector: Vector, mut then: impl FnMut(Exit) -> R) -> R {
            match vector {
                $($vector_code => then(Exit::$vector(<$vector_value as Captured>::capture::<P>())),)*
                Vector::Synchronous => {
                    let syndrome = Syndrome(P::syndrome());
                    match syndrome.class() {
                        $($class_code => then(Exit::$class(<$class_value as Described>::describe::<P>(syndrome))),)*
                        _ => then(Exit::$other(<$other_value as Described>::describe::<P>(syndrome))),
                    }
                }
            }
        }

        impl Exit {
            /// Its row.
            pub const fn row(&self) -> Row {
                match self {
                    $(Self::$vector(_) => Row::$vector,)*
                    $(Self::$class(_) => Row::$class,)*
                    Self::$other(_) => Row::$other,
                }
            }

            /// The counter that it adds to.
            #[inline(always)]
            pub fn counter(&self) -> Counter {
                match self {
                    $(Self::$vector(value) => ($vector_counter)(value),)*
                    $(Self::$class(value) => ($class_counter)(value),)*
                    Self::$other(value) => ($other_counter)(value),
                }
            }
        }

        /// Handles an exit.
        #[inline(always)]
        pub fn handle<A: Arm64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
            match exit {
                $(Exit::$vector(value) => {
                    context.count_exit(($vector_counter)(&value));
                    $vector_handler(context, value)
                })*
                $(Exit::$class(value) => {
                    context.count_exit(($class_counter)(&value));
                    $class_handler(context, value)
                })*
                Exit::$other(value) => {
                    context.count_exit(($other_counter)(&value));
                    $other_handler(context, value)
                }
            }
        }
    };
}

exits! {
    vectors {
        /// An interrupt of the machine.
        Interrupt(()) Vector::Interrupt, "interrupt", |_: &()| Counter::ExitInterrupt => on_interrupt;
        /// An asynchronous abort (SError).
        SError(Syndrome) Vector::SError, "SError", |_: &Syndrome| Counter::ExitOther => on_serror;
    }
    classes {
        /// An instruction that is undefined here though not elsewhere, or one that the processor
        /// does not describe further.
        Unknown(Syndrome) 0x00, "unknown", other => undefined::handle;
        /// WFI or WFE; in AArch32 at EL0 both have this class, too.
        Wait(Syndrome) 0x01, "WFI or WFE", wait::counter => wait::handle;
        /// Vectors or floating point of a kind that the guest does not have.
        Float(Syndrome) 0x07, "floating point", other => undefined::handle;
        /// PSTATE.IL was set.
        IllegalState(Syndrome) 0x0e, "illegal state", other => undefined::handle;
        /// HVC.
        Hypercall(Syndrome) 0x16, "HVC", |_: &Syndrome| Counter::ExitHypercall => call::handle;
        /// SMC.
        SecureCall(Syndrome) 0x17, "SMC", other => call::refuse;
        /// MSR, MRS or a system instruction.
        SystemRegister(Syndrome) 0x18, "system register", registers::counter => registers::handle;
        /// Scalable vectors, which the guest does not have.
        Scalable(Syndrome) 0x19, "SVE", other => undefined::handle;
        /// The guest's fetch of an instruction that stage 2 does not allow, or that was not
        /// answered.
        Fetch(Abort) 0x20, "instruction abort", |_: &Abort| Counter::ExitNested => abort::handle;
        /// The same for a load, a store, or similar.
        Data(Abort) 0x24, "data abort", |_: &Abort| Counter::ExitNested => abort::handle;
    }
    others {
        /// Any other trap: a feature that the guest has not been shown. It is undefined for the
        /// guest.
        Other(Syndrome), "other", other => undefined::handle_unlisted;
    }
}

/// Captures the exit that has just occurred through `vector`, and handles it.
#[inline(always)]
pub fn handle_next<A: Arm64>(context: &mut Context<'_, A>, vector: Vector) -> Next {
    capture::<A, _>(
        vector,
        #[inline(always)]
        |exit| handle(context, exit),
    )
}

fn other(_: &Syndrome) -> Counter {
    Counter::ExitOther
}

/// An interrupt: it has been taken already, in [`enter`](super::vcpu::enter). Its consequences are
/// checked in any case: the timer's interrupt goes to the guest without an event.
#[inline(always)]
fn on_interrupt<A: Arm64>(_: &mut Context<'_, A>, (): ()) -> Next {
    Next::Resume
}

/// An asynchronous abort occurred while the guest ran: it belongs to the guest. The hypervisor
/// takes none itself, because they are masked at EL2; one of its own would be reported here as
/// well.
#[cold]
fn on_serror<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) -> Next {
    let vcpu = context.vcpu.index;
    log::warn!(target: GUEST, "asynchronous abort (SError) while vCPU {vcpu} ran, syndrome {:#x}", syndrome.0);
    match serror::outcome(syndrome.0, A::features().contains(Features::ERRORS)) {
        SErrorOutcome::Harmless => {}
        SErrorOutcome::Virtual => context.state.raise_serror(),
    }
    Next::Resume
}

fn skip<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) {
    let registers = &mut context.state.registers;
    (registers.pc, registers.pstate) = step::behind(registers.pc, registers.pstate, syndrome.0);
}
