//! Operands against an independent decoder, sequences against a machine that drops no entry by
//! itself.

mod machine;
mod operands;
mod sequences;
