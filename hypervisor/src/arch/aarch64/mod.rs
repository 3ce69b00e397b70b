//! The hypervisor on Arm64 at EL2.
