//! The fields of a VMCS, by their encodings (appendix B): a field's width, and whether it can be
//! written, are part of its type, and the encoding is checked against both.
#![allow(missing_docs, reason = "the names are the manual's")]

use core::fmt;
use core::marker::PhantomData;

/// The width of a field.
pub trait Width {
    /// As in bits 14:13 of an encoding.
    const CODE: u32;
    /// What fits.
    type Value: Copy + TryFrom<u64> + Into<u64>;
}

/// 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct Word;
/// 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Double;
/// 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Quad;
/// As wide as a general register.
#[derive(Clone, Copy, Debug)]
pub struct Natural;

impl Width for Word {
    const CODE: u32 = 0;
    type Value = u16;
}

impl Width for Quad {
    const CODE: u32 = 1;
    type Value = u64;
}

impl Width for Double {
    const CODE: u32 = 2;
    type Value = u32;
}

impl Width for Natural {
    const CODE: u32 = 3;
    type Value = u64;
}

/// Whether a field can be written.
pub trait Access {
    /// It describes an exit: the processor alone writes it.
    const IS_READ_ONLY: bool;
}

/// VMREAD alone.
#[derive(Clone, Copy, Debug)]
pub struct Read;
/// VMREAD and VMWRITE.
#[derive(Clone, Copy, Debug)]
pub struct Write;

impl Access for Read {
    const IS_READ_ONLY: bool = true;
}

impl Access for Write {
    const IS_READ_ONLY: bool = false;
}

/// A field of the VMCS.
#[derive(Clone, Copy, Debug)]
pub struct Encoding<W, A>(u32, PhantomData<(W, A)>);

impl<W: Width, A: Access> Encoding<W, A> {
    const fn new(encoding: u32) -> Self {
        assert!(encoding >> 13 == W::CODE && encoding & 1 == 0, "a field of this width, all of it");
        assert!((encoding >> 10 & 3 == 1) == A::IS_READ_ONLY, "information on exits is read-only");
        Self(encoding, PhantomData)
    }

    /// As VMREAD takes it.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl<W: Width> Encoding<W, Write> {
    /// As VMWRITE takes it.
    #[inline(always)]
    pub const fn writable(self) -> u32 {
        self.0
    }
}

/// A field's name, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named(pub u32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(encoding, _)| *encoding == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "field {:#x}", self.0),
        }
    }
}

macro_rules! fields {
    ($($access:ident $width:ident { $($encoding:literal $name:ident,)* })*) => {
        $($(pub const $name: Encoding<$width, $access> = Encoding::new($encoding);)*)*

        /// All of them.
        pub const NAMES: &[(u32, &str)] = &[$($(($encoding, stringify!($name)),)*)*];
    };
}

fields! {
    Write Word {
        0x0000 VPID, 0x0002 POSTED_VECTOR, 0x0812 LIST_INDEX,
        0x0800 GUEST_ES, 0x0802 GUEST_CS, 0x0804 GUEST_SS, 0x0806 GUEST_DS, 0x0808 GUEST_FS,
        0x080a GUEST_GS, 0x080c GUEST_LDTR, 0x080e GUEST_TR, 0x0810 INTERRUPT_STATUS,
        0x0c00 HOST_ES, 0x0c02 HOST_CS, 0x0c04 HOST_SS, 0x0c06 HOST_DS, 0x0c08 HOST_FS,
        0x0c0a HOST_GS, 0x0c0c HOST_TR,
    }
    Write Quad {
        0x2000 IO_BITMAP_A, 0x2002 IO_BITMAP_B, 0x2004 MSR_BITMAPS, 0x200e LIST,
        0x2010 TSC_OFFSET, 0x2012 VIRTUAL_APIC, 0x2016 POSTED, 0x201a EPT_POINTER,
        0x201c EOI_EXITS_0, 0x201e EOI_EXITS_1, 0x2020 EOI_EXITS_2, 0x2022 EOI_EXITS_3,
        0x2800 LINK_POINTER, 0x2802 GUEST_DEBUGCTL, 0x2804 GUEST_PAT, 0x2806 GUEST_EFER,
        0x280a GUEST_PDPTE0, 0x280c GUEST_PDPTE1, 0x280e GUEST_PDPTE2, 0x2810 GUEST_PDPTE3,
        0x2c00 HOST_PAT, 0x2c02 HOST_EFER,
    }
    Read Quad {
        0x2400 GUEST_PHYSICAL,
    }
    Write Double {
        0x4000 PIN_CONTROLS, 0x4002 PRIMARY_CONTROLS, 0x4004 EXCEPTIONS,
        0x400a CR3_TARGETS, 0x400c EXIT_CONTROLS, 0x400e EXIT_MSR_STORES, 0x4010 EXIT_MSR_LOADS,
        0x4012 ENTRY_CONTROLS, 0x4014 ENTRY_MSR_LOADS, 0x4016 ENTRY_EVENT,
        0x4018 ENTRY_ERROR_CODE, 0x401c TPR_THRESHOLD,
        0x401e SECONDARY_CONTROLS, 0x4020 PAUSE_GAP, 0x4022 PAUSE_WINDOW,
        0x4006 PAGE_FAULT_MASK, 0x4008 PAGE_FAULT_MATCH,
        0x4800 GUEST_ES_LIMIT, 0x4802 GUEST_CS_LIMIT, 0x4804 GUEST_SS_LIMIT, 0x4806 GUEST_DS_LIMIT,
        0x4808 GUEST_FS_LIMIT, 0x480a GUEST_GS_LIMIT, 0x480c GUEST_LDTR_LIMIT, 0x480e GUEST_TR_LIMIT,
        0x4810 GUEST_GDTR_LIMIT, 0x4812 GUEST_IDTR_LIMIT,
        0x4814 GUEST_ES_RIGHTS, 0x4816 GUEST_CS_RIGHTS, 0x4818 GUEST_SS_RIGHTS, 0x481a GUEST_DS_RIGHTS,
        0x481c GUEST_FS_RIGHTS, 0x481e GUEST_GS_RIGHTS, 0x4820 GUEST_LDTR_RIGHTS, 0x4822 GUEST_TR_RIGHTS,
        0x4824 INTERRUPTIBILITY, 0x4826 ACTIVITY, 0x482a GUEST_SYSENTER_CS, 0x4c00 HOST_SYSENTER_CS,
    }
    Read Double {
        0x4400 INSTRUCTION_ERROR, 0x4402 EXIT_REASON, 0x4404 EXIT_INTERRUPTION, 0x4406 EXIT_ERROR_CODE,
        0x4408 VECTORING, 0x440a VECTORING_ERROR_CODE, 0x440c EXIT_LENGTH, 0x440e EXIT_INSTRUCTION,
    }
    Write Natural {
        0x6000 CR0_MASK, 0x6002 CR4_MASK, 0x6004 CR0_SHADOW, 0x6006 CR4_SHADOW,
        0x6800 GUEST_CR0, 0x6802 GUEST_CR3, 0x6804 GUEST_CR4,
        0x6806 GUEST_ES_BASE, 0x6808 GUEST_CS_BASE, 0x680a GUEST_SS_BASE, 0x680c GUEST_DS_BASE,
        0x680e GUEST_FS_BASE, 0x6810 GUEST_GS_BASE, 0x6812 GUEST_LDTR_BASE, 0x6814 GUEST_TR_BASE,
        0x6816 GUEST_GDTR_BASE, 0x6818 GUEST_IDTR_BASE, 0x681a GUEST_DR7, 0x681c GUEST_RSP,
        0x681e GUEST_RIP, 0x6820 GUEST_RFLAGS, 0x6822 PENDING_DEBUG,
        0x6824 GUEST_SYSENTER_ESP, 0x6826 GUEST_SYSENTER_EIP,
        0x6c00 HOST_CR0, 0x6c02 HOST_CR3, 0x6c04 HOST_CR4, 0x6c06 HOST_FS_BASE, 0x6c08 HOST_GS_BASE,
        0x6c0a HOST_TR_BASE, 0x6c0c HOST_GDTR_BASE, 0x6c0e HOST_IDTR_BASE,
        0x6c10 HOST_SYSENTER_ESP, 0x6c12 HOST_SYSENTER_EIP, 0x6c14 HOST_RSP, 0x6c16 HOST_RIP,
    }
    Read Natural {
        0x6400 QUALIFICATION, 0x640a GUEST_LINEAR,
    }
}

/// The entries of the highest level of PAE tables.
pub const POINTERS: [Encoding<Quad, Write>; 4] = [GUEST_PDPTE0, GUEST_PDPTE1, GUEST_PDPTE2, GUEST_PDPTE3];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_in_the_list_once() {
        for (index, (encoding, name)) in NAMES.iter().enumerate() {
            assert!(!NAMES[..index].iter().any(|(other, _)| other == encoding), "{name} is there twice");
            assert_eq!(Named(*encoding).to_string(), *name);
        }
        assert_eq!(Named(0x7ffe).to_string(), "field 0x7ffe");
    }
}
