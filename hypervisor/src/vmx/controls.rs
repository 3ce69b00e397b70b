//! The controls of a VMCS: which are set for good, which come and go, and which must not be set.

/// A word of controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Pin-based.
    Pin,
    /// Primary processor-based.
    Primary,
    /// Secondary processor-based.
    Secondary,
    /// Of exits.
    Exit,
    /// Of entries.
    Entry,
}

/// How a control is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It is always set.
    Set,
    /// It is always set, if there is such a control.
    Offered,
    /// It is set at times.
    Later,
    /// It is set at times, if there is such a control.
    OfferedLater,
    /// It must not be set.
    Clear,
}

impl How {
    pub(super) const fn is_set(self) -> bool {
        matches!(self, Self::Set | Self::Offered)
    }
}

/// A control.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub(super) word: Word,
    pub(super) bit: u32,
    pub(super) how: How,
    pub(super) name: &'static str,
}

/// Interrupt-window exiting.
pub const INTERRUPT_WINDOW: u32 = 2;
/// NMI-window exiting.
pub const NMI_WINDOW: u32 = 22;
/// MOV-DR exiting.
pub const MOV_DR: u32 = 23;
/// Monitor trap flag.
pub const MONITOR_TRAP: u32 = 27;
/// PAUSE exiting.
pub const PAUSE: u32 = 30;
/// Pin-based: processing of posted interrupts.
pub const POSTED: u32 = 7;
/// Exit: it takes the interrupt that has caused it.
pub const ACKNOWLEDGE: u32 = 15;
/// Secondary: virtualisation of x2APIC mode.
pub const X2APIC: u32 = 4;
/// Secondary: VPIDs.
pub const VPID: u32 = 5;
/// Secondary: APIC-register virtualisation.
pub const APIC_REGISTERS: u32 = 8;
/// Secondary: virtual-interrupt delivery.
pub const DELIVERY: u32 = 9;
/// Secondary: those that make the processor a local APIC.
pub const APIC: [u32; 3] = [X2APIC, APIC_REGISTERS, DELIVERY];
/// Secondary: PAUSE-loop exiting.
pub const PAUSE_LOOP: u32 = 10;
/// Secondary: page-modification logging.
pub const LISTS: u32 = 17;
/// Entry: to long mode.
pub const LONG_MODE: u32 = 9;

macro_rules! choices {
    ($($word:ident { $($bit:tt $how:ident $name:literal,)* })*) => {
        /// All controls that matter here.
        pub(super) const CHOSEN: &[Choice] = &[$($(
            Choice { word: Word::$word, bit: $bit, how: How::$how, name: $name },
        )*)*];
    };
}

choices! {
    Pin {
        0 Set "external-interrupt exiting",
        3 Set "NMI exiting",
        5 Set "virtual NMIs",
        POSTED OfferedLater "posted interrupts",
    }
    Primary {
        INTERRUPT_WINDOW Later "interrupt-window exiting",
        3 Set "TSC offsetting",
        7 Set "HLT exiting",
        9 Clear "INVLPG exiting",
        10 Set "MWAIT exiting",
        11 Set "RDPMC exiting",
        12 Clear "RDTSC exiting",
        15 Clear "CR3-load exiting",
        16 Clear "CR3-store exiting",
        19 Clear "CR8-load exiting",
        20 Clear "CR8-store exiting",
        21 Set "a TPR shadow",
        NMI_WINDOW Later "NMI-window exiting",
        MOV_DR Later "MOV-DR exiting",
        25 Set "I/O bitmaps",
        MONITOR_TRAP OfferedLater "a monitor trap flag",
        28 Set "MSR bitmaps",
        29 Set "MONITOR exiting",
        PAUSE Later "PAUSE exiting",
        31 Set "secondary controls",
    }
    Secondary {
        1 Set "extended page tables (EPT)",
        2 Clear "descriptor-table exiting",
        3 Offered "RDTSCP",
        X2APIC OfferedLater "a virtual x2APIC",
        VPID Offered "tags (VPID)",
        6 Set "WBINVD exiting",
        7 Set "unrestricted guests",
        APIC_REGISTERS OfferedLater "registers of a virtual APIC",
        DELIVERY OfferedLater "delivery of virtual interrupts",
        PAUSE_LOOP OfferedLater "PAUSE-loop exiting",
        12 Offered "INVPCID",
        LISTS Offered "page-modification logging (PML)",
    }
    Exit {
        2 Set "saving of debug controls",
        9 Set "a host of 64 bits",
        ACKNOWLEDGE OfferedLater "acknowledgement of interrupts",
        18 Set "saving of PAT",
        19 Set "loading of PAT",
        20 Set "saving of EFER",
        21 Set "loading of EFER",
    }
    Entry {
        2 Set "loading of debug controls",
        LONG_MODE Later "guests of 64 bits",
        14 Set "loading of PAT",
        15 Set "loading of EFER",
    }
}

/// The values of the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    pub(super) words: [u32; 5],
    /// PAUSE-loop exiting is offered.
    pub(super) pause_loop: bool,
    /// The processor can be a local APIC in x2APIC mode.
    pub(super) apic: bool,
    /// It can then take posted interrupts, too.
    pub(super) posted: bool,
}

impl Controls {
    /// A word.
    #[inline(always)]
    pub const fn word(&self, word: Word) -> u32 {
        self.words[word as usize]
    }

    /// Whether a bit of a word is set.
    #[inline(always)]
    pub const fn has(&self, word: Word, bit: u32) -> bool {
        self.word(word) & 1 << bit != 0
    }

    /// The same with a bit set or not; and whether that makes a difference.
    #[inline(always)]
    pub(super) const fn set(&mut self, word: Word, bit: u32, wanted: bool) -> bool {
        let old = self.word(word);
        let new = old & !(1 << bit) | (wanted as u32) << bit;
        self.words[word as usize] = new;
        old != new
    }

    pub(super) const fn without(mut self, word: Word, bit: u32) -> Self {
        self.set(word, bit, false);
        self
    }
}
