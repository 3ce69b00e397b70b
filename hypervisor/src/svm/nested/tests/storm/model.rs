//! What must follow, by the manual alone: which exits are L1's, what its nested tables say, and
//! which translations a processor may still use.

use std::collections::BTreeMap;
use std::vec::Vec;

use crate::svm::table::INVALID;
use crate::svm::vmcb::{Vmcb, vintr};

const PSE: u64 = 1 << 4;
const PAE: u64 = 1 << 5;
const LMA: u64 = 1 << 10;
const NXE: u64 = 1 << 11;
const ALL: u64 = u64::MAX;

/// A page of L2 by L1's nested tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walked {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) size: u64,
    pub(super) is_writable: bool,
    pub(super) is_dirty: bool,
}

/// Walks L1's nested tables, which have this CR0, root, CR4 and EFER (sections 5.2, 5.3, 15.25);
/// physical addresses have 40 bits, and pages of 1 GiB are not offered. Or the error code.
pub(super) fn walk(
    read: &dyn Fn(u64) -> Option<u64>,
    [_, root, cr4, efer]: [u64; 4],
    at: u64,
    is_store: bool,
    is_fetch: bool,
) -> Result<Walked, u64> {
    let (is_long, has_pae) = (efer & LMA != 0, cr4 & PAE != 0);
    let has_nx = efer & NXE != 0 && (is_long || has_pae);
    let (levels, bits, bytes) = if is_long {
        (4, 9, 8)
    } else {
        (if has_pae { 3 } else { 2 }, if has_pae { 9 } else { 10 }, if has_pae { 8 } else { 4 })
    };
    let code = |why| why | u64::from(is_store) << 1 | 4 | u64::from(is_fetch && has_nx) << 4;
    if at >> if is_long { 48 } else { 32 } != 0 {
        return Err(code(0));
    }
    let mut table = root
        & if is_long {
            0xff_ffff_f000
        } else if has_pae {
            0xffff_ffe0
        } else {
            0xffff_f000
        };
    let (mut rights, mut is_executable) = (6, true);
    for level in (0..levels).rev() {
        let shift = 12 + level * bits;
        let place = table + (at >> shift & ((1 << bits) - 1)) * bytes;
        let Some(word) = read(place & !7) else { return Err(code(9)) };
        let entry = if bytes == 8 { word } else { word >> (place % 8 * 8) & 0xffff_ffff };
        if entry & 1 == 0 {
            return Err(code(0));
        }
        let is_directory = level == 2 && !is_long;
        let is_large = level == 1 && entry & 0x80 != 0 && (bytes == 8 || cr4 & PSE != 0);
        let reserved = match (bytes, is_large) {
            (4, true) => 1 << 21,
            (4, false) => 0,
            (_, true) => 0x1f_e000,
            (_, false) if is_directory => 1 << 63 | 0x1e6,
            (_, false) => {
                if level > 1 {
                    0x80
                } else {
                    0
                }
            }
        };
        let wide = if bytes == 8 { 0xfff << 40 } else { 0 };
        let ignored = if bytes == 8 && !is_long { 0x7ff << 52 } else { 0 };
        let no_execute = if bytes == 8 && !has_nx { 1 << 63 } else { 0 };
        if entry & (reserved | wide | ignored | no_execute) != 0 {
            return Err(code(9));
        }
        if !is_directory {
            rights &= entry;
            is_executable &= entry >> 63 == 0;
        }
        if level == 0 || is_large {
            if rights & 4 == 0 || is_store && rights & 2 == 0 || is_fetch && !is_executable {
                return Err(code(1));
            }
            let size = 1 << shift;
            let to = if bytes == 4 && is_large {
                entry & 0xffc0_0000 | (entry >> 13 & 0xff) << 32
            } else {
                entry & 0xff_ffff_f000 & !(size - 1)
            };
            let (is_writable, is_dirty) = (rights & 2 != 0, entry & 0x40 != 0 || is_store);
            return Ok(Walked { from: at & !(size - 1), to, size, is_writable, is_dirty });
        }
        table = entry & 0xff_ffff_f000;
    }
    unreachable!("the last level has leaves alone")
}

/// Whether L1 gets this exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    L1([u64; 4]),
    Ours,
    /// L1's, or the one that the hypervisor has asked for.
    Either,
}

/// Whose an exit of L2 is: `block` is what L1 runs it by, `exit` its code, information and event.
pub(super) fn whose(
    block: &Vmcb,
    tables: Option<[u64; 4]>,
    read: &dyn Fn(u64) -> Option<u64>,
    exit: [u64; 4],
    msr: u32,
) -> (Whose, Option<Walked>) {
    let [code, info_1, info_2, event] = exit;
    let byte = |at: u64| read(at & !7).map_or(0xff, |word| word >> (at % 8 * 8) & 0xff);
    let word = |number: u64| {
        u64::from(u32::from_le_bytes(block.bytes()[number as usize * 4..][..4].try_into().unwrap()))
    };
    let asked = code < 192 && word(code / 32) >> (code % 32) & 1 != 0;
    let is_l1s = match code {
        INVALID => return (Whose::L1([INVALID, 0, 0, 0]), None),
        // Interrupts, NMIs, SMIs and INIT of the machine, and its broken parts.
        0x60..=0x63 | 0x52 => false,
        0x64 if asked => return (Whose::Either, None),
        0x7b => {
            let first = info_1 >> 16 & 0xffff;
            let mut bits = (0..info_1 >> 4 & 7).map(|offset| first + offset);
            asked && bits.any(|bit| byte((block.iopm_base & !0xfff) + bit / 8) >> (bit % 8) & 1 != 0)
        }
        0x7c => {
            let first = match msr {
                0..0x2000 => Some(0),
                0xc000_0000..0xc000_2000 => Some(0x800),
                0xc001_0000..0xc001_2000 => Some(0x1000),
                _ => None,
            };
            let bit = u64::from(msr & 0x1fff) * 2 + (info_1 & 1);
            let is_set = |first| byte((block.msrpm_base & !0xfff) + first + bit / 8) >> (bit % 8) & 1 != 0;
            asked && first.is_none_or(is_set)
        }
        0x400 => {
            let Some(tables) = tables else { return (Whose::Ours, None) };
            let in_walk = info_1 >> 33 & 1 != 0;
            let (is_store, is_fetch) = (in_walk || info_1 & 2 != 0, !in_walk && info_1 & 16 != 0);
            return match walk(read, tables, info_2, is_store, is_fetch) {
                Ok(walked) => (Whose::Ours, Some(walked)),
                Err(code) => (Whose::L1([0x400, code | info_1 & 3 << 32, info_2, event]), None),
            };
        }
        _ => asked,
    };
    (if is_l1s { Whose::L1(exit) } else { Whose::Ours }, None)
}

/// What a processor that drops nothing by itself has under a tag: whose, which page, since when.
type Entry = (u32, u64, u64);

/// A processor's translations, and what of them must not be met any more. ASID 0 is L1 itself.
#[derive(Default)]
pub(super) struct Tlb {
    now: u64,
    entries: BTreeMap<u32, Vec<Entry>>,
    /// There is a tag for each context, and a flush of one.
    has_plenty: bool,
    /// When what must be dropped had to be: of an ASID's page, or all of it, or of all.
    dropped: BTreeMap<(u32, u64), u64>,
    roots: BTreeMap<u32, [u64; 4]>,
    /// The roots of which L1 tells by calls.
    told: Vec<[u64; 4]>,
    /// L2's shadow: its ASID, or of these roots the number, above all ASIDs.
    shadow: u32,
    /// When shadows had to be emptied.
    emptied: BTreeMap<u32, u64>,
    /// By shadow, what L1's tables have said, and when.
    walked: Vec<(u32, Walked, u64)>,
}

const FIRST_TOLD: u32 = 1 << 31;

impl Tlb {
    pub(super) fn new(has_plenty: bool) -> Self {
        Self { has_plenty, ..Self::default() }
    }

    /// L1's VMRUN has been taken.
    pub(super) fn vmrun(&mut self, block: &Vmcb, tables: Option<[u64; 4]>) {
        self.now += 1;
        let root =
            tables.map_or([0; 4], |[_, root, cr4, efer]| [1, root, cr4 & (PAE | PSE), efer & (LMA | NXE)]);
        let is_told = tables.is_some() && block.inner[0] & 4 != 0;
        let root = if is_told { [2, root[1], root[2], root[3]] } else { root };
        let is_other = self.roots.insert(block.asid, root).is_some_and(|former| former != root);
        match block.tlb_control {
            0 if !is_other => {}
            0 | 3 | 7 => self.drop_nested(block.asid),
            _ => self.drop_asids(),
        }
        self.shadow = block.asid;
        if is_told {
            let index = self.told.iter().position(|told| *told == root).unwrap_or(self.told.len());
            if index == self.told.len() {
                self.told.push(root);
            }
            self.shadow = FIRST_TOLD + index as u32;
        }
    }

    fn drop_nested(&mut self, asid: u32) {
        self.drop(asid, None);
        self.emptied.insert(asid, self.now);
    }

    /// All of a guest, or of one of its guests, or one page.
    pub(super) fn drop(&mut self, asid: u32, page: Option<u64>) {
        self.now += 1;
        self.dropped.insert((asid, page.unwrap_or(ALL)), self.now);
    }

    /// L1 has asked for it.
    fn drop_asids(&mut self) {
        self.now += 1;
        (0..=u32::from(u8::MAX)).for_each(|asid| self.drop_nested(asid));
    }

    /// Slots have changed, or L1 has told of its tables.
    pub(super) fn drop_everything(&mut self) {
        self.drop_asids();
        (FIRST_TOLD..).zip(&self.told).for_each(|(shadow, _)| _ = self.emptied.insert(shadow, self.now));
    }

    /// The hypervisor has dropped a page.
    pub(super) fn invalidate(&mut self, page: u64, tag: u32) {
        self.entries.entry(tag).or_default().retain(|entry| entry.1 != page);
    }

    /// VMRUN by the processor: of a guest, or one of its guests, which uses this page.
    pub(super) fn run(&mut self, tag: u32, control: u8, tags: u32, asid: u32, page: u64) {
        self.now += 1;
        assert!((1..=tags).contains(&tag), "tag {tag}");
        match control {
            0 => {}
            1 => {
                assert!(self.entries.is_empty() || !self.has_plenty, "only the first entry drops all");
                self.entries.clear();
            }
            3 => drop(self.entries.remove(&tag)),
            other => panic!("TLB_CONTROL {other}"),
        }
        let entries = self.entries.entry(tag).or_default();
        for &(its, page, since) in &*entries {
            let dropped = [page, ALL].map(|page| self.dropped.get(&(its, page)).copied().unwrap_or(0));
            assert!(its == asid && since > dropped[0].max(dropped[1]), "ASID {asid} meets {its}'s {page:#x}");
        }
        entries.push((asid, page, self.now));
        entries.dedup_by_key(|entry| (entry.0, entry.1));
    }

    /// L1's tables lead an access of L2's there.
    pub(super) fn has_walked(&mut self, walked: Walked) {
        self.now += 1;
        self.walked.push((self.shadow, walked, self.now));
    }

    /// Whether L2's shadow may have this leaf: L1's tables have said so since it was emptied.
    pub(super) fn allows(&mut self, at: u64, is_writable: bool, leads: &dyn Fn(u64) -> bool) -> bool {
        let (emptied, shadow) = (&self.emptied, self.shadow);
        self.walked.retain(|(its, _, since)| emptied.get(its).is_none_or(|emptied| since > emptied));
        self.walked.iter().any(|&(its, Walked { from, to, size, .. }, _)| {
            let is_it = its == shadow && at.wrapping_sub(from) < size && leads(to + (at - from));
            is_it && !is_writable
        }) || is_writable
            && self.walked.iter().any(|&(its, Walked { from, to, size, is_writable, is_dirty }, _)| {
                let is_it = its == shadow && at.wrapping_sub(from) < size && leads(to + (at - from));
                is_it && is_writable && is_dirty
            })
    }
}

/// What the processor must be given of L2's block, whatever L1 has written (N2, N3, N5, N6).
pub(super) fn check_block(block: &Vmcb, theirs: &Vmcb, has_tables: bool, own_table: u64) {
    let words = crate::svm::audit::auditor::words(block);
    let word = |at: usize| words[at / 8];
    for (at, (ours, its)) in block.bytes()[..0x18].iter().zip(&theirs.bytes()[..0x18]).enumerate() {
        assert_eq!(ours & its, *its, "L1's intercepts, byte {at:#x}");
    }
    let reserved = [0x18..0x38, 0x98..0xa8, 0xe0..0x3e0, 0xb8..0xc0];
    for at in reserved.into_iter().flat_map(|range| range.step_by(8)) {
        assert_eq!(word(at), 0, "{at:#x}");
    }
    assert_eq!((word(0x90), word(0x68) & !1, word(0x58) >> 40), (1, 0, 0));
    // V_TPR, V_IRQ, V_INTR_PRIO, V_IGN_TPR and the vector are L1's.
    assert_eq!(word(0x60) & !0xff_001f_01ff, vintr::MASKING);
    assert_eq!(word(0xb0) == own_table, !has_tables, "N_CR3");
}
