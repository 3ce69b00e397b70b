//! The counts of QEMU's plugin (`host/plugin`) for a machine, by phase.

use crate::machine::emulator;
use crate::machine::spec::Counting;
use crate::prelude::*;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Counts {
    /// Number of times it began.
    pub(crate) entries: u64,
    pub(crate) instructions: u64,
    tlbi: BTreeMap<String, u64>,
    dsb: BTreeMap<String, u64>,
    /// Cache maintenance by address.
    pub(crate) dc: u64,
    /// Exception returns.
    pub(crate) eret: u64,
}

impl Counts {
    pub(crate) fn tlbi(&self) -> u64 {
        self.tlbi.values().sum()
    }

    pub(crate) fn dsb(&self) -> u64 {
        self.dsb.values().sum()
    }

    /// TLB maintenance instructions whose effect is on the own processor alone.
    pub(crate) fn local_tlbi(&self) -> u64 {
        let is_local = |name: &str| !name.ends_with("is") && !name.ends_with("os");
        self.tlbi.iter().filter(|(name, _)| is_local(name)).map(|(_, count)| count).sum()
    }

    pub(crate) fn dsb_kinds(&self) -> impl Iterator<Item = &str> {
        self.dsb.iter().filter(|(_, count)| **count != 0).map(|(name, _)| name.as_str())
    }

    /// TLB maintenance instructions of one kind, by its assembler name.
    pub(crate) fn of_kind(&self, name: &str) -> u64 {
        self.tlbi.get(name).or_else(|| self.dsb.get(name)).copied().unwrap_or(0)
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.entries += other.entries;
        sum.instructions += other.instructions;
        sum.dc += other.dc;
        sum.eret += other.eret;
        for (all, more) in [(&mut sum.tlbi, &other.tlbi), (&mut sum.dsb, &other.dsb)] {
            for (name, count) in more {
                *all.entry(name.clone()).or_default() += count;
            }
        }
        sum
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Phases {
    phases: Vec<Counts>,
}

impl Phases {
    /// The settings for a machine that counts, with its file in `directory`; builds the plugin.
    pub(crate) fn counting(directory: &Path) -> Result<Counting> {
        let interface = emulator::version(Arch::Aarch64)?.plugin_interface()?;
        let output = directory.join("counts.json");
        // A machine that dies must not seem to have left the counts of the one before it.
        if output.exists() {
            fs::remove_file(&output).with_context(|| format!("cannot remove {}", output.display()))?;
        }
        Ok(Counting { plugin: workspace::build_plugin(interface)?, output })
    }

    pub(crate) fn read(counting: &Counting) -> Result<Self> {
        let text = fs::read_to_string(&counting.output)
            .context("QEMU's plugin wrote no counts; it does so when QEMU ends by itself")?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let counts: Self = serde_json::from_str(text).context("the counts of QEMU's plugin")?;
        let (found, expected) = (counts.phases.len(), Phase::ALL.len());
        ensure!(found == expected, "QEMU's plugin counted {found} phases instead of {expected}");
        Ok(counts)
    }

    /// The counts of a phase; an error if it never began. A run begins with [`Phase::None`].
    pub(crate) fn of(&self, phase: Phase) -> Result<&Counts> {
        let counts = &self.phases[phase as usize];
        ensure!(counts.entries != 0 || phase == Phase::None, "phase {phase:?} was never begun");
        Ok(counts)
    }

    /// The same for the phase with this number, where the run gives the numbers their meanings.
    pub(crate) fn numbered(&self, number: usize) -> Result<&Counts> {
        self.of(*Phase::ALL.get(number).with_context(|| format!("there is no phase {number}"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(phases: usize) -> String {
        let phase = |number| {
            format!(
                r#"{{"entries":{},"instructions":{number},"tlbi":{{"alle1is":1,"vae2":2}},"dsb":{{"ish":4}},
                    "isb":0,"dc":{number},"dc_set_way":0,"ic":0,"eret":0}}"#,
                number % 2
            )
        };
        format!(r#"{{"phases":[{}]}}"#, (0..phases).map(phase).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn what_is_not_the_plugins_is_an_error() {
        for bad in ["", "{}", r#"{"phases":[1]}"#, &text(7)] {
            assert!(Phases::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_phase_that_never_began_is_an_error_but_for_the_first() {
        let phases = Phases::parse(&text(8)).expect("parses");
        assert!(phases.of(Phase::None).is_ok() && phases.of(Phase::Reclaim).is_err());
        assert!(phases.numbered(1).is_ok() && phases.numbered(2).is_err() && phases.numbered(8).is_err());
        let blocking = phases.of(Phase::Blocking).expect("began");
        assert_eq!((blocking.instructions, blocking.tlbi(), blocking.dsb()), (1, 3, 4));
        let both = blocking.and(phases.of(Phase::DirtyEnable).expect("began"));
        assert_eq!((both.instructions, both.dc, both.tlbi(), both.of_kind("vae2")), (4, 4, 6, 4));
    }
}
