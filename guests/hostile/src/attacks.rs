//! What one guest does to disturb the others: the names of the attacks, which the host tool knows
//! as well. Each is a function of the program, for each architecture.

/// An attack, by the name of its variant in lower case.
macro_rules! attacks {
    ($($(#[doc = $about:literal])+ $variant:ident = $name:literal,)+) => {
        /// What all processors of the attacking guest do for as long as the machine runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Attack {
            $($(#[doc = $about])+ $variant,)+
        }

        impl Attack {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it does, in some words.
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => concat!($($about),+).trim_ascii(),)+ }
            }
        }
    };
}

attacks! {
    /// nothing: all vCPUs sleep
    Halt = "halt",
    /// arithmetic, without exits
    Compute = "compute",
    /// exits of all kinds, as fast as it can
    Exits = "exits",
    /// calls that name vCPUs and CPUs beyond its own
    Calls = "calls",
    /// TLB flushes of all kinds, from all vCPUs
    Flushes = "flushes",
    /// cache maintenance of all kinds
    Caches = "caches",
    /// interrupts from each vCPU to each, NMIs among them
    Ipis = "ipis",
    /// timers that are due at once, or have been for long
    Timers = "timers",
    /// loops of PAUSE or YIELD
    Pause = "pause",
    /// sleeps that end at once: HLT, WFI, WFE
    Sleeps = "sleeps",
    /// stores to each page of its memory, and pages that are remapped
    Memory = "memory",
    /// random values in all registers of its devices
    Devices = "devices",
    /// a disk of its own that reads all the time, with doorbells, and on AMD64 interrupts
    Disk = "disk",
    /// its console, as fast as it can
    Console = "console",
    /// faults that end it (AMD64), or whose handler faults (Arm64)
    Faults = "faults",
    /// a reset as soon as it has started
    Resets = "resets",
    /// all of these that do not end it and need no disk, by its seed
    Mixture = "mixture",
}

impl Attack {
    /// The one with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attack| attack.name() == name)
    }

    /// Whether the attacker owns a disk for it.
    pub const fn needs_disk(self) -> bool {
        matches!(self, Self::Disk)
    }

    /// Whether it leaves the CPUs to others on purpose, so that these get more than their share.
    pub const fn is_idle(self) -> bool {
        matches!(self, Self::Halt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attack_has_a_name_of_its_own() {
        for (index, attack) in Attack::ALL.into_iter().enumerate() {
            assert_eq!(Attack::parse(attack.name()), Some(attack));
            assert!(Attack::ALL[..index].iter().all(|other| other.name() != attack.name()));
            assert!(!attack.about().is_empty() && !attack.about().starts_with(' '));
        }
        assert_eq!(Attack::parse(""), None);
    }
}
