//! What tests and comparisons change in the hypervisor.

use crate::defect::Defect;
use core::fmt;

/// Which APIC id each vCPU has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApicIds {
    /// Its VP index.
    #[default]
    Ascending,
    /// The first vCPU has id 0, and the others the ids from the number of vCPUs minus 1 down to 1.
    Reversed,
}

/// Which translations go when a memory slot goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zap {
    /// Those of the slot.
    #[default]
    Slot,
    /// All of the guest's. They come back fault by fault: what precision is worth is measured against this.
    Everything,
}

/// Largest page of the nested page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NestedPage {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB, where the processor has them.
    #[default]
    Huge,
}

impl NestedPage {
    const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Huge];

    const fn name(self) -> &'static str {
        match self {
            Self::Small => "4K",
            Self::Large => "2M",
            Self::Huge => "1G",
        }
    }
}

/// How translations go from a guest's stage 2 when memory goes (Arm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage2Unmap {
    /// Leaves are gathered and one flush follows, by range instructions where the processor has them.
    #[default]
    Range,
    /// Each leaf is cleared and flushed by itself: what ranges are worth is measured against this.
    Page,
    /// Leaves are gathered, and the flush that follows is of all that the guest's VMID tags.
    Whole,
}

impl Stage2Unmap {
    const ALL: [Self; 3] = [Self::Range, Self::Page, Self::Whole];

    /// The value of `stage2_unmap` that stands for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Page => "page",
            Self::Whole => "whole",
        }
    }
}

/// What keeps a guest's local TLB instructions right when a vCPU changes CPU (Arm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalTlbi {
    /// The CPU where it arrives drops what it holds of the guest.
    #[default]
    Arrival,
    /// HCR_EL2.FB: the instructions reach all CPUs.
    Broadcast,
}

impl LocalTlbi {
    const ALL: [Self; 2] = [Self::Arrival, Self::Broadcast];

    const fn name(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::Broadcast => "broadcast",
        }
    }
}

/// What tests change. The defaults are what everybody else wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Which APIC id each vCPU has.
    pub apic_ids: ApicIds,
    /// Most pages that a flush drops one by one; `None` leaves it to what was measured.
    pub flush_pages: Option<u32>,
    /// Which translations go when a memory slot goes.
    pub zap: Zap,
    /// Largest page of the nested page table.
    pub nested_page: NestedPage,
    /// Whether the nested page table is compared with the slots after each change of them.
    pub paranoid: bool,
    /// Pages for nested page tables; `None` for as many as the tables of all memory take.
    pub tables: Option<u32>,
    /// How translations go from stage 2 when memory goes (Arm).
    pub stage2_unmap: Stage2Unmap,
    /// What keeps local TLB instructions right when a vCPU changes CPU (Arm).
    pub local_tlbi: LocalTlbi,
    /// Bits of VMIDs, 1 to 16; `None` for as many as the processor has (Arm).
    pub vmid_bits: Option<u8>,
    /// Entries of a CPU into the guest, from one time that a machine which is made up takes a VMID in between to the next; 0 is
    /// never (Arm). With few bits, generations of VMIDs begin all the time.
    pub vmid_churn: u32,
    /// Whether features are used that the processor lacks and that are sound to pretend where nothing is kept: clean bits, and flushes
    /// of one ASID. For an emulator, and an image with an auditor built in (AMD64).
    pub pretend: bool,
    /// What is wrong on purpose; only an image with defects built in takes one.
    pub defect: Option<Defect>,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            apic_ids: ApicIds::Ascending,
            flush_pages: None,
            zap: Zap::Slot,
            nested_page: NestedPage::Huge,
            paranoid: false,
            tables: None,
            stage2_unmap: Stage2Unmap::Range,
            local_tlbi: LocalTlbi::Arrival,
            vmid_bits: None,
            vmid_churn: 0,
            pretend: false,
            defect: None,
        }
    }
}

impl Switches {
    /// Their keys.
    pub const KEYS: [&str; 12] = [
        "apic_ids",
        "flush_pages",
        "zap",
        "nested_page",
        "paranoid",
        "tables",
        "stage2_unmap",
        "local_tlbi",
        "vmid_bits",
        "vmid_churn",
        "pretend",
        "defect",
    ];

    /// Sets the switch `key` of the table above; false if there is no such switch.
    ///
    /// # Errors
    ///
    /// What the value should be.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, &'static str> {
        match key {
            "apic_ids" => {
                self.apic_ids = match value {
                    "ascending" => ApicIds::Ascending,
                    "reversed" => ApicIds::Reversed,
                    _ => return Err("ascending or reversed"),
                };
            }
            "flush_pages" => {
                self.flush_pages = match (value, value.parse()) {
                    ("measured", _) => None,
                    (_, Ok(pages @ 16..=1_000_000)) => Some(pages),
                    _ => return Err("a number from 16 to 1000000, or measured"),
                };
            }
            "zap" => {
                self.zap = match value {
                    "slot" => Zap::Slot,
                    "everything" => Zap::Everything,
                    _ => return Err("slot or everything"),
                };
            }
            "nested_page" => {
                let named = NestedPage::ALL.into_iter().find(|page| page.name() == value);
                self.nested_page = named.ok_or("4K, 2M or 1G")?;
            }
            "paranoid" => self.paranoid = on_or_off(value)?,
            "tables" => {
                self.tables = match (value, value.parse()) {
                    ("enough", _) => None,
                    (_, Ok(pages @ 1..=1_000_000)) => Some(pages),
                    _ => return Err("a number from 1 to 1000000, or enough"),
                };
            }
            "stage2_unmap" => {
                let named = Stage2Unmap::ALL.into_iter().find(|way| way.name() == value);
                self.stage2_unmap = named.ok_or("range, page or whole")?;
            }
            "local_tlbi" => {
                let named = LocalTlbi::ALL.into_iter().find(|way| way.name() == value);
                self.local_tlbi = named.ok_or("arrival or broadcast")?;
            }
            "vmid_bits" => {
                self.vmid_bits = match (value, value.parse()) {
                    ("most", _) => None,
                    (_, Ok(bits @ 1..=16)) => Some(bits),
                    _ => return Err("a number from 1 to 16, or most"),
                };
            }
            "vmid_churn" => {
                self.vmid_churn = match (value, value.parse()) {
                    ("off", _) => 0,
                    (_, Ok(entries @ 1..=1_000_000)) => entries,
                    _ => return Err("a number from 1 to 1000000, or off"),
                };
            }
            "pretend" => self.pretend = on_or_off(value)?,
            "defect" => {
                self.defect = match value {
                    "none" => None,
                    _ => Some(Defect::named(value).ok_or("none, or the name of a defect")?),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn on_or_off(value: &str) -> Result<bool, &'static str> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off"),
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let apic_ids = match self.apic_ids {
            ApicIds::Ascending => "ascending",
            ApicIds::Reversed => "reversed",
        };
        writeln!(f, "apic_ids={apic_ids}")?;
        match self.flush_pages {
            Some(pages) => writeln!(f, "flush_pages={pages}")?,
            None => writeln!(f, "flush_pages=measured")?,
        }
        let zap = match self.zap {
            Zap::Slot => "slot",
            Zap::Everything => "everything",
        };
        let word = |switch| if switch { "on" } else { "off" };
        writeln!(f, "zap={zap}")?;
        writeln!(f, "nested_page={}\nparanoid={}", self.nested_page.name(), word(self.paranoid))?;
        match self.tables {
            Some(pages) => writeln!(f, "tables={pages}")?,
            None => writeln!(f, "tables=enough")?,
        }
        writeln!(f, "stage2_unmap={}", self.stage2_unmap.name())?;
        writeln!(f, "local_tlbi={}", self.local_tlbi.name())?;
        match self.vmid_bits {
            Some(bits) => writeln!(f, "vmid_bits={bits}")?,
            None => writeln!(f, "vmid_bits=most")?,
        }
        match self.vmid_churn {
            0 => writeln!(f, "vmid_churn=off")?,
            entries => writeln!(f, "vmid_churn={entries}")?,
        }
        writeln!(f, "pretend={}", word(self.pretend))?;
        writeln!(f, "defect={}", self.defect.map_or("none", Defect::name))
    }
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
}
