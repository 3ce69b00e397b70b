//! A guest's general registers.

/// General registers of the guest in the processor's own numbering. RSP is in the
/// control block, and copied here where it matters. With SVM, so is RAX while the guest runs: it is
/// copied here after each exit, and back before each entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers(pub [u64; 16]);

/// Number of RAX.
pub const RAX: usize = 0;
/// Number of RCX.
pub const RCX: usize = 1;
/// Number of RDX.
pub const RDX: usize = 2;
/// Number of RBX.
pub const RBX: usize = 3;
/// Number of RSP.
pub const RSP: usize = 4;
/// Number of RSI.
pub const RSI: usize = 6;
/// Number of RDI.
pub const RDI: usize = 7;

impl Registers {
    /// Low 32 bits of a register.
    pub fn low(&self, register: usize) -> u32 {
        self.0[register] as u32
    }

    /// Writes the low 32 bits of a register and zeros the rest, as a 32-bit operation does.
    pub fn set_low(&mut self, register: usize, value: u32) {
        self.0[register] = value.into();
    }

    /// EDX:EAX.
    pub fn edx_eax(&self) -> u64 {
        u64::from(self.low(RDX)) << 32 | u64::from(self.low(RAX))
    }

    /// Writes EDX:EAX.
    pub fn set_edx_eax(&mut self, value: u64) {
        self.set_low(RAX, value as u32);
        self.set_low(RDX, (value >> 32) as u32);
    }
}
