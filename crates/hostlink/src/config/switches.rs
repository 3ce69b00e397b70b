//! Behaviour of the hypervisor that tests and comparisons change. The table at the end is the only
//! place that defines a switch: its name, its values, and the architecture for which it has a
//! meaning.

use crate::architecture::{Architecture, Architectures};
use crate::defect::Defect;
use crate::words::{Number, number, on_or_off, words};
use core::fmt;

words! {
    /// The APIC id of each vCPU.
    ApicIds {
        /// Its VP index.
        Ascending = "ascending",
        /// The first vCPU has id 0, and the others the ids from the number of vCPUs minus 1 down to
        /// 1.
        Reversed = "reversed",
    }

    /// The translations to remove when a memory slot is removed.
    Zap {
        /// Those of the slot.
        Slot = "slot",
        /// All of the guest's. Faults restore them one by one: the baseline for the benefit of
        /// precision.
        Everything = "everything",
    }

    /// Largest page of the nested page table.
    NestedPage {
        /// 1 GiB, where the processor supports it.
        Huge = "1G",
        /// 2 MiB.
        Large = "2M",
        /// 4 KiB.
        Small = "4K",
    }

    /// How translations are removed from a guest's stage 2 when memory is removed.
    Stage2Unmap {
        /// Leaves are gathered and one flush follows, by range instructions where the processor has
        /// them.
        Range = "range",
        /// Each leaf is cleared and flushed individually: the baseline for the benefit of ranges.
        Page = "page",
        /// Leaves are gathered, and the following flush covers everything under the guest's VMID.
        Whole = "whole",
    }

    /// How a guest's local TLB instructions stay correct when a vCPU changes CPU.
    LocalTlbi {
        /// The CPU where it arrives drops its entries of the guest.
        Arrival = "arrival",
        /// HCR_EL2.FB: the instructions reach all CPUs.
        Broadcast = "broadcast",
    }
}

/// With `flush_turns`, how often a workload runs each way before both are compared.
pub const TURN_RUNS: usize = 3;

/// A switch that has no meaning on the machine's architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the switch {key} means something on {only} alone: leave it out here")]
pub struct ForeignSwitch {
    /// Its key.
    pub key: &'static str,
    /// The architectures that it is for.
    pub only: Architectures,
}

/// Generates [`Switches`] from their table.
macro_rules! switches {
    ($(
        $(#[$about:meta])*
        $key:ident: $type:ty = $kind:tt $(($($detail:literal),+))?, $($only:ident)?;
    )+) => {
        /// Settings that tests change. The defaults are right for all other uses.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Switches {
            $($(#[$about])* pub $key: $type,)+
        }

        impl Switches {
            /// Their keys.
            pub const KEYS: [&str; [$(stringify!($key)),+].len()] = [$(stringify!($key)),+];

            /// Sets a switch; false if no switch has this key.
            ///
            /// # Errors
            ///
            /// The expected value.
            pub fn set(&mut self, key: &str, value: &str) -> Result<bool, &'static str> {
                match key {
                    $(stringify!($key) => self.$key = switches!(@read value, $type, $kind $($($detail),+)?)?,)+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// The architectures that the switch with this key is for, if it is not for all.
            pub fn only(key: &str) -> Option<ForeignSwitch> {
                match key {
                    $($(stringify!($key) => Some(ForeignSwitch { key: stringify!($key), only: Architectures::$only }),)?)+
                    _ => None,
                }
            }

            /// The first switch that is set and has no meaning on this architecture.
            pub fn foreign(&self, here: Architecture) -> Option<ForeignSwitch> {
                let usual = Self::default();
                let set = [$((stringify!($key), self.$key != usual.$key)),+];
                let only = |(key, is_set): (&str, bool)| if is_set { Self::only(key) } else { None };
                set.into_iter().filter_map(only).find(|foreign| !foreign.only.include(here))
            }
        }

        impl Switches {
            /// Writes one line for each switch that is wanted.
            pub(super) fn write(
                &self,
                f: &mut fmt::Formatter<'_>,
                is_wanted: impl Fn(&str) -> bool,
            ) -> fmt::Result {
                $(if is_wanted(stringify!($key)) {
                    let value = switches!(@write self.$key, $kind $($($detail),+)?);
                    writeln!(f, "{}={value}", stringify!($key))?;
                })+
                Ok(())
            }
        }

        impl fmt::Display for Switches {
            /// Writes one line per switch.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.write(f, |_| true)
            }
        }
    };
    (@read $value:ident, $type:ty, word) => { <$type>::named($value).ok_or(<$type>::EXPECTED) };
    (@read $value:ident, $type:ty, number $min:literal, $max:literal, $none:literal) => {
        number($value, $min..=$max, $none)
            .ok_or(concat!("a number from ", $min, " to ", $max, ", or ", $none))
    };
    (@read $value:ident, $type:ty, flag) => { on_or_off($value).ok_or("on or off") };
    (@read $value:ident, $type:ty, defect) => {
        match $value {
            "none" => Ok(None),
            name => Defect::named(name).map(Some).ok_or("none, or the name of a defect"),
        }
    };
    (@write $field:expr, word) => { $field };
    (@write $field:expr, number $min:literal, $max:literal, $none:literal) => { Number($field, $none) };
    (@write $field:expr, flag) => { if $field { "on" } else { "off" } };
    (@write $field:expr, defect) => { $field.map_or("none", Defect::name) };
}

switches! {
    /// The APIC id of each vCPU.
    apic_ids: ApicIds = word, X86;
    /// The most pages that a flush drops one by one; `None` uses the measured value.
    flush_pages: Option<u32> = number(16, 1000000, "measured"), ;
    /// Whether the guest is told the other way to flush with each reset, by IPI first, and its
    /// workload's reports are compared: see `x86/guest/turns.rs`. With `flush=ipi`.
    flush_turns: bool = flag, X86;
    /// The translations to remove when a memory slot is removed.
    zap: Zap = word, ;
    /// Largest page of the nested page table.
    nested_page: NestedPage = word, ;
    /// Whether the nested page table is compared with the slots after each change of them.
    paranoid: bool = flag, ;
    /// Pages for nested page tables; `None` for as many as the tables of all memory need.
    tables: Option<u32> = number(1, 1000000, "enough"), ;
    /// How translations are removed from stage 2 when memory is removed.
    stage2_unmap: Stage2Unmap = word, ARM;
    /// How local TLB instructions stay correct when a vCPU changes CPU.
    local_tlbi: LocalTlbi = word, ARM;
    /// Bits of VMIDs; `None` for as many as the processor has. With few bits, generations roll over
    /// soon.
    vmid_bits: Option<u8> = number(1, 16, "most"), ARM;
    /// Number of entries of a CPU into the guest after which a mock machine takes a VMID,
    /// repeatedly; `None` is never. With few bits, generations of VMIDs begin all the time.
    vmid_churn: Option<u32> = number(1, 1000000, "off"), ARM;
    /// Most VPIDs that a CPU gives its vCPUs, or 0 for none; `None` for as many as there are. With
    /// few of them they begin anew all the time.
    vpids: Option<u16> = number(0, 65535, "most"), VMX;
    /// Whether to use features that the processor lacks but that can soundly be claimed where
    /// nothing is cached: clean bits, and flushes of one ASID. For an emulator, and an image with a
    /// built-in auditor.
    pretend: bool = flag, SVM;
    /// Whether local APICs are emulated though the processor can be one.
    emulated_apic: bool = flag, VMX;
    /// The injected defect; only an image with built-in defects accepts one.
    defect: Option<Defect> = defect, ;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn every_switch_has_a_key_that_is_written_and_read() {
        let text = Switches::default().to_string();
        for key in Switches::KEYS {
            let start = std::format!("{key}=");
            let line = text.lines().find_map(|line| line.strip_prefix(start.as_str()));
            let value = line.expect("is written");
            assert_eq!(Switches::default().set(key, value), Ok(true), "{key}");
        }
        assert_eq!(text.lines().count(), Switches::KEYS.len());
    }

    #[test]
    fn a_switch_of_the_other_architecture_is_refused() {
        use Architecture::{Amd64, Arm64, Intel64};
        const X86: Option<Architectures> = Some(Architectures::X86);
        const ARM: Option<Architectures> = Some(Architectures::ARM);
        let cases = [
            ("apic_ids", "reversed", X86),
            ("flush_pages", "64", None),
            ("flush_turns", "on", X86),
            ("pretend", "on", Some(Architectures::SVM)),
            ("emulated_apic", "on", Some(Architectures::VMX)),
            ("stage2_unmap", "page", ARM),
            ("local_tlbi", "broadcast", ARM),
            ("vmid_bits", "2", ARM),
            ("vmid_churn", "3", ARM),
            ("vpids", "2", Some(Architectures::VMX)),
            ("zap", "everything", None),
            ("nested_page", "4K", None),
            ("paranoid", "on", None),
            ("tables", "9", None),
            ("defect", "early-return", None),
        ];
        assert_eq!(cases.len(), Switches::KEYS.len());
        for (key, value, only) in cases {
            let mut switches = Switches::default();
            assert_eq!(switches.set(key, value), Ok(true));
            for here in [Amd64, Intel64, Arm64] {
                let foreign = switches.foreign(here);
                assert_eq!(
                    foreign.map(|foreign| foreign.key),
                    only.is_some_and(|only| !only.include(here)).then_some(key)
                );
                assert_eq!(Switches::default().foreign(here), None);
            }
            assert_eq!(Switches::only(key).map(|foreign| foreign.only), only);
        }
    }
}
