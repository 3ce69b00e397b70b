//! Operands against an independent decoder, sequences against a machine that forgets nothing by
//! itself.

mod machine;
mod operands;
mod sequences;
