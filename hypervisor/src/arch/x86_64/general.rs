//! Assembly that switches the guest's general registers, as
//! [`Registers`](crate::x86::vcpu::registers::Registers) has them: all but RAX, RSP, RSI and RDI,
//! which the ways into a guest treat differently.

/// Loads them from where the register `at` points to.
macro_rules! load_registers {
    ($at:literal) => {
        concat!(
            "mov rcx, [", $at, " + 0x08]\n", "mov rdx, [", $at, " + 0x10]\n", "mov rbx, [", $at,
            " + 0x18]\n", "mov rbp, [", $at, " + 0x28]\n", "mov r8, [", $at, " + 0x40]\n", "mov r9, [", $at,
            " + 0x48]\n", "mov r10, [", $at, " + 0x50]\n", "mov r11, [", $at, " + 0x58]\n", "mov r12, [",
            $at, " + 0x60]\n", "mov r13, [", $at, " + 0x68]\n", "mov r14, [", $at, " + 0x70]\n",
            "mov r15, [", $at, " + 0x78]\n",
        )
    };
}
pub(super) use load_registers;

/// Stores them there.
macro_rules! store_registers {
    ($at:literal) => {
        concat!(
            "mov [",
            $at,
            " + 0x08], rcx\n",
            "mov [",
            $at,
            " + 0x10], rdx\n",
            "mov [",
            $at,
            " + 0x18], rbx\n",
            "mov [",
            $at,
            " + 0x28], rbp\n",
            "mov [",
            $at,
            " + 0x40], r8\n",
            "mov [",
            $at,
            " + 0x48], r9\n",
            "mov [",
            $at,
            " + 0x50], r10\n",
            "mov [",
            $at,
            " + 0x58], r11\n",
            "mov [",
            $at,
            " + 0x60], r12\n",
            "mov [",
            $at,
            " + 0x68], r13\n",
            "mov [",
            $at,
            " + 0x70], r14\n",
            "mov [",
            $at,
            " + 0x78], r15\n",
        )
    };
}
pub(super) use store_registers;
