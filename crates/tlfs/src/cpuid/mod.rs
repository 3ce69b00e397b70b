//! CPUID leaves of the hypervisor interface: numbers and bits. TLFS, "Feature and Interface
//! Discovery".

/// Highest leaf, and the vendor's name in EBX, ECX, EDX.
pub const LEAF_VENDOR: u32 = 0x4000_0000;
/// Interface signature in EAX.
pub const LEAF_INTERFACE: u32 = 0x4000_0001;
/// Version of the hypervisor.
pub const LEAF_VERSION: u32 = 0x4000_0002;
/// The features that the partition may use: [`privilege`] in EAX, [`feature`] in EDX.
pub const LEAF_FEATURES: u32 = 0x4000_0003;
/// Recommendations: [`hint`] in EAX, spin limit in EBX, physical address bits in ECX.
pub const LEAF_HINTS: u32 = 0x4000_0004;
/// Limits: virtual processors in EAX.
pub const LEAF_LIMITS: u32 = 0x4000_0005;
/// Hardware in use: [`hardware`] in EAX.
pub const LEAF_HARDWARE: u32 = 0x4000_0006;

/// What a guest that has guests may use: [`nested`] in EAX.
pub const LEAF_NESTED: u32 = 0x4000_000a;

/// "Microsoft Hv" as EBX, ECX and EDX of [`LEAF_VENDOR`].
pub const VENDOR: [u32; 3] =
    [u32::from_le_bytes(*b"Micr"), u32::from_le_bytes(*b"osof"), u32::from_le_bytes(*b"t Hv")];
/// "Hv#1" as EAX of [`LEAF_INTERFACE`].
pub const INTERFACE: u32 = u32::from_le_bytes(*b"Hv#1");
/// EBX of [`LEAF_HINTS`] that says: never report a spin lock that is held for long.
pub const SPIN_NEVER_NOTIFY: u32 = u32::MAX;

/// Bits 31:0 of HV_PARTITION_PRIVILEGE_MASK: EAX of [`LEAF_FEATURES`].
pub mod privilege {
    /// Virtual processor run time register.
    pub const VP_RUNTIME: u32 = 1 << 0;
    /// Reference counter register.
    pub const REFERENCE_COUNTER: u32 = 1 << 1;
    /// Synthetic interrupt controller.
    pub const SYNIC: u32 = 1 << 2;
    /// Synthetic timers.
    pub const SYNTHETIC_TIMERS: u32 = 1 << 3;
    /// EOI, ICR, TPR and assist page registers.
    pub const INTERRUPT_CONTROL: u32 = 1 << 4;
    /// Guest OS identity and hypercall page registers.
    pub const HYPERCALL: u32 = 1 << 5;
    /// Virtual processor index register.
    pub const VP_INDEX: u32 = 1 << 6;
    /// Reset register.
    pub const RESET: u32 = 1 << 7;
    /// Reference TSC page.
    pub const REFERENCE_TSC: u32 = 1 << 9;
    /// Register that idles the virtual processor.
    pub const GUEST_IDLE: u32 = 1 << 10;
    /// TSC and APIC frequency registers.
    pub const FREQUENCIES: u32 = 1 << 11;
    /// Register that makes CPUID show the invariant TSC.
    pub const TSC_INVARIANT: u32 = 1 << 15;
}

/// EDX of [`LEAF_FEATURES`].
pub mod feature {
    /// Hypercall input in XMM registers.
    pub const XMM_INPUT: u32 = 1 << 4;
    /// Frequency registers.
    pub const FREQUENCIES: u32 = 1 << 8;
    /// Crash registers.
    pub const CRASH: u32 = 1 << 10;
    /// Extended ranges in flush lists.
    pub const EXTENDED_GVA_RANGES: u32 = 1 << 14;
    /// Hypercall output in XMM registers.
    pub const XMM_OUTPUT: u32 = 1 << 15;
    /// The hypercall register can be locked.
    pub const HYPERCALL_LOCK: u32 = 1 << 18;
    /// Synthetic timers can interrupt directly.
    pub const DIRECT_TIMERS: u32 = 1 << 19;
}

/// EAX of [`LEAF_HINTS`].
pub mod hint {
    /// Switch address spaces by hypercall.
    pub const ADDRESS_SPACE_SWITCH: u32 = 1 << 0;
    /// Flush the local TLB by hypercall.
    pub const LOCAL_FLUSH: u32 = 1 << 1;
    /// Flush other TLBs by hypercall.
    pub const REMOTE_FLUSH: u32 = 1 << 2;
    /// Use the EOI, ICR and TPR registers.
    pub const APIC_REGISTERS: u32 = 1 << 3;
    /// Use the reset register.
    pub const RESET_REGISTER: u32 = 1 << 4;
    /// Timing may be off: disable watchdogs.
    pub const RELAXED_TIMING: u32 = 1 << 5;
    /// Do not use automatic end of interrupt.
    pub const NO_AUTO_EOI: u32 = 1 << 9;
    /// Send interrupts to several processors by hypercall.
    pub const CLUSTER_IPI: u32 = 1 << 10;
    /// The calls that take VP sets are available.
    pub const EX_PROCESSOR_MASKS: u32 = 1 << 11;
}

/// EAX of [`LEAF_HARDWARE`].
pub mod hardware {
    /// MSR intercepts are chosen individually.
    pub const MSR_BITMAPS: u32 = 1 << 1;
    /// Second level address translation.
    pub const NESTED_PAGING: u32 = 1 << 3;
}

/// EAX of [`LEAF_NESTED`]. TLFS, "Nested Virtualization".
pub mod nested {
    /// Flushes of a guest's guest reach the hypervisor without the guest.
    pub const DIRECT_FLUSH: u32 = 1 << 17;
    /// Nested tables are flushed by hypercall, for VMX.
    pub const FLUSH: u32 = 1 << 18;
    /// A bit says whether the map of MSRs has changed.
    pub const MSR_MAP: u32 = 1 << 19;
    /// Nested tables are flushed by hypercall, and not with an ASID, for SVM.
    pub const ENLIGHTENED_TLB: u32 = 1 << 22;
}

#[cfg(test)]
mod tests;
