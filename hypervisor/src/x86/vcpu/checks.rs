//! The checks that a processor makes before it executes an intercepted instruction.
//!
//! Most of these checks precede the intercept (table 15-7), so no exit should need them. They are
//! repeated anyway: emulators omit some of them, and a missing one exposes the guest's kernel to
//! its programs.

use crate::x86::RFLAGS_VM;

/// CR4.OSXSAVE.
pub const CR4_OSXSAVE: u64 = 1 << 18;
/// RFLAGS.IOPL.
const IOPL_SHIFT: u32 = 12;

/// The state that the checks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The privilege level. Real mode has 0, virtual-8086 mode 3.
    pub cpl: u8,
    /// CR4.
    pub cr4: u64,
    /// RFLAGS.
    pub rflags: u64,
}

/// An intercepted instruction, by the privileges it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// CPUID, PAUSE; and VMMCALL, for which hypercalls have their own checks.
    Anybodys,
    /// RDMSR, WRMSR, HLT, INVD, WBINVD; moves to and from control and debug registers.
    Kernels,
    /// XSETBV.
    SetExtendedControl,
}

/// The fault that a failed check raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// #UD.
    Undefined,
    /// #GP(0).
    Protection,
}

/// Whether the instruction may be executed.
///
/// # Errors
///
/// The fault that it raises instead.
pub const fn check(instruction: Instruction, conditions: Conditions) -> Result<(), Refusal> {
    match instruction {
        Instruction::Anybodys => Ok(()),
        Instruction::SetExtendedControl if conditions.cr4 & CR4_OSXSAVE == 0 => Err(Refusal::Undefined),
        _ if conditions.cpl != 0 => Err(Refusal::Protection),
        _ => Ok(()),
    }
}

/// Whether access to ports depends on the task's permission map (section 12.2.4 "I/O-Permission
/// Bitmap").
pub const fn needs_port_map(conditions: Conditions) -> bool {
    let iopl = conditions.rflags >> IOPL_SHIFT & 3;
    conditions.cpl as u64 > iopl || conditions.rflags & RFLAGS_VM != 0
}

/// Whether the current task may access `size` ports from `port` on. `read` reads a byte at an
/// offset in the task's state segment, whose attributes are in the VMCB's format and whose last
/// byte is at `limit`.
///
/// # Errors
///
/// The error of `read`.
pub fn allows_ports<E>(
    attributes: u16,
    limit: u32,
    port: u16,
    size: u32,
    mut read: impl FnMut(u32) -> Result<u8, E>,
) -> Result<bool, E> {
    /// Offset in the segment of its permission map's offset.
    const MAP_BASE: u32 = 0x66;
    // Present, and of 32 or 64 bits: 16-bit segments have no map.
    let has_map = attributes & 0x9d == 0x89 && limit > MAP_BASE;
    if !has_map {
        return Ok(false);
    }
    let base = u32::from(u16::from_le_bytes([read(MAP_BASE)?, read(MAP_BASE + 1)?]));
    let first = base + u32::from(port / 8);
    // Two bytes are always read, because an access may begin at the last port of a byte.
    if first >= limit {
        return Ok(false);
    }
    let bits = u16::from_le_bytes([read(first)?, read(first + 1)?]) >> (port % 8);
    Ok(bits & ((1 << size) - 1) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(cpl: u8, cr4: u64, rflags: u64) -> Conditions {
        Conditions { cpl, cr4, rflags }
    }

    #[test]
    fn u23_what_is_the_kernels_is_refused_to_others() {
        for cpl in 0..4 {
            for cr4 in [0, CR4_OSXSAVE] {
                let kernels = check(Instruction::Kernels, at(cpl, cr4, 2));
                assert_eq!(kernels, if cpl == 0 { Ok(()) } else { Err(Refusal::Protection) });
                assert_eq!(check(Instruction::Anybodys, at(cpl, cr4, 2)), Ok(()));
            }
        }
    }

    #[test]
    fn u23_xsetbv_without_osxsave_is_undefined_whoever_executes_it() {
        let check = |cpl, cr4| check(Instruction::SetExtendedControl, at(cpl, cr4, 2));
        assert_eq!((check(0, 0), check(3, 0)), (Err(Refusal::Undefined), Err(Refusal::Undefined)));
        assert_eq!((check(3, CR4_OSXSAVE), check(0, CR4_OSXSAVE)), (Err(Refusal::Protection), Ok(())));
    }

    #[test]
    fn u23_ports_are_looked_up_above_the_io_privilege_level() {
        for cpl in 0..4 {
            for iopl in 0..4 {
                let rflags = u64::from(iopl) << IOPL_SHIFT;
                assert_eq!(needs_port_map(at(cpl, 0, rflags)), cpl > iopl);
            }
        }
        assert!(needs_port_map(at(3, 0, 3 << IOPL_SHIFT | RFLAGS_VM)), "whatever the level");
    }

    /// A task state segment of 32 bits whose map at 0x68 allows ports 0x10 to 0x17 and 0x21.
    fn task() -> Vec<u8> {
        let mut task = vec![0xff; 0x68 + 0x2001];
        task[0x66..0x68].copy_from_slice(&0x68u16.to_le_bytes());
        task[0x68 + 2] = 0;
        task[0x68 + 4] = !(1 << 1);
        task
    }

    fn allows(attributes: u16, limit: u32, port: u16, size: u32) -> bool {
        let task = task();
        let read = |offset: u32| {
            assert!(offset <= limit, "{offset:#x} is behind the limit {limit:#x}");
            task.get(offset as usize).copied().ok_or(())
        };
        allows_ports(attributes, limit, port, size, read).unwrap()
    }

    #[test]
    fn u23_a_tasks_map_allows_all_ports_of_an_access_or_none() {
        const BUSY: u16 = 0x8b;
        let limit = task().len() as u32 - 1;
        assert!(allows(BUSY, limit, 0x10, 1) && allows(BUSY, limit, 0x14, 4) && allows(BUSY, limit, 0x21, 1));
        assert!(!allows(BUSY, limit, 0x0f, 1) && !allows(BUSY, limit, 0x0f, 2));
        assert!(!allows(BUSY, limit, 0x15, 4), "one of the four is in the next byte");
        assert!(!allows(BUSY, limit, 0x21, 2) && !allows(BUSY, limit, 0xffff, 4));
    }

    #[test]
    fn u23_without_a_map_no_port_is_allowed() {
        let limit = task().len() as u32 - 1;
        assert!(!allows(0x83, limit, 0x10, 1), "a segment of 16 bits");
        assert!(!allows(0x0b, limit, 0x10, 1), "one that is not present");
        assert!(!allows(0x8b, 0x65, 0x10, 1) && !allows(0x8b, 0x66, 0x10, 1), "one without the field");
        assert!(!allows(0x8b, 0x68 + 2, 0x10, 1), "the second byte is behind the limit");
        assert!(allows(0x8b, 0x68 + 3, 0x10, 1));
    }

    #[test]
    fn u23_a_task_that_cannot_be_read_is_the_readers_error() {
        assert_eq!(allows_ports(0x8b, 0x2067, 0x10, 1, |_| Err("fault")), Err("fault"));
    }
}
