//! Assembly that switches the guest's general registers, as
//! [`Registers`](crate::x86::vcpu::registers::Registers) has them: all but RAX, RSP, RSI and RDI,
//! which the ways into a guest treat differently.

/// Moves each of them by `$how`, from or to where the register `$at` points to.
macro_rules! each_register {
    ($how:ident, $at:literal) => {
        concat!(
            $how!("rcx", $at, "0x08"),
            $how!("rdx", $at, "0x10"),
            $how!("rbx", $at, "0x18"),
            $how!("rbp", $at, "0x28"),
            $how!("r8", $at, "0x40"),
            $how!("r9", $at, "0x48"),
            $how!("r10", $at, "0x50"),
            $how!("r11", $at, "0x58"),
            $how!("r12", $at, "0x60"),
            $how!("r13", $at, "0x68"),
            $how!("r14", $at, "0x70"),
            $how!("r15", $at, "0x78"),
        )
    };
}
pub(super) use each_register;

macro_rules! load {
    ($register:literal, $at:literal, $offset:literal) => {
        concat!("mov ", $register, ", [", $at, " + ", $offset, "]\n")
    };
}
pub(super) use load;

macro_rules! store {
    ($register:literal, $at:literal, $offset:literal) => {
        concat!("mov [", $at, " + ", $offset, "], ", $register, "\n")
    };
}
pub(super) use store;
