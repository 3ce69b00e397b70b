//! Litmus tests from recorded instructions, for a model with one stage of translation, no VMIDs and
//! no domain but the inner shareable one; and the mutants of a sequence.

use super::record::{BREAK, MAKE, OURS};
use std::fmt::Write;

/// What a sequence is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It changes an entry that others use.
    Changes,
    /// A machine's vCPU enters under a VMID, which this CPU has never used if it is `fresh`.
    Enters { fresh: bool },
    /// A vCPU arrives at a CPU where another one of its machine has left entries.
    Arrives,
}

/// What a TLB holds, and must not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Stage 2 alone: VMALLE1IS does not find it.
    Stage2,
    /// Both stages: IPAS2E1IS does not find it. It is made from entries of stage 2, so to its walks
    /// the IPAS2E1IS is what the store to the table is to theirs.
    Both,
    /// Made by this CPU's walks before VTTBR_EL2 names the machine, under a VMID that is now that
    /// machine's: to these walks the end of the former register is what the store is.
    Former,
}

impl Entry {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stage2 => "stage 2",
            Self::Both => "both stages",
            Self::Former => "former tables",
        }
    }
}

/// The other half of a test, and what must not come of both. P0 has the sequence.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) name: &'static str,
    before: &'static [&'static str],
    after: &'static [&'static str],
    other: &'static [&'static str],
    forbidden: &'static str,
    /// P0 itself looks.
    is_own: bool,
}

const READER: Observer = Observer {
    name: "reader",
    before: &[],
    after: &["MOV W5,#1", "STR W5,[X2]"],
    other: &["LDR W0,[X2]", "DMB ISHLD", "LDR W1,[X3]"],
    forbidden: "1:X0=1 /\\ 1:X1=1",
    is_own: false,
};
/// Stores through the entry while the memory's next owner, by another address, stores too.
const WRITER: Observer = Observer {
    name: "writer",
    after: &["MOV W5,#5", "STR W5,[X6]"],
    other: &["MOV W1,#3", "STR W1,[X3]"],
    forbidden: "[x]=3",
    ..READER
};
/// The changing CPU itself.
const OWN: Observer = Observer {
    name: "own",
    after: &["LDR W7,[X8]"],
    other: &[],
    forbidden: "0:X7=1",
    is_own: true,
    ..READER
};
/// Finds the new entry, and then the former one.
const TWICE: Observer = Observer {
    name: "twice",
    after: &[],
    other: &["LDR W0,[X3]", "LDR W1,[X3]"],
    forbidden: "1:X0=2 /\\ 1:X1=1",
    ..READER
};
/// Walks after it was told of the new entry.
const FAULTS: Observer = Observer {
    name: "fault",
    other: &["LDR W0,[X2]", "DSB ISH", "ISB", "LOAD: LDR W1,[X3]"],
    forbidden: "1:X0=1 /\\ fault(P1:LOAD,x)",
    ..READER
};
/// Another CPU changes the tables, then reads the VMID (`VmidSlot::current`): no TLBI reaches the
/// one that enters later. Of the read-modify-writes there is what they order at least.
const ENTERS: Observer = Observer {
    name: "entry",
    before: &["LDAR W5,[X2]"],
    after: &["LDR W7,[X8]"],
    other: &["STR X1,[X0]", "MOV W4,#1", "STLR W4,[X2]"],
    forbidden: "0:X5=1 /\\ 0:X7=1",
    is_own: true,
};
/// A vCPU changes its tables, flushes where it is, and is handed over by a lock, which is taken in
/// a loop: what follows depends on it.
const ARRIVES: Observer = Observer {
    name: "arrival",
    before: &["LDAR W5,[X2]", "CBZ W5,END"],
    after: &["LDR W7,[X8]", "END:"],
    ..ENTERS
};

pub(super) type View = (Entry, &'static Observer);

impl Role {
    /// All that must not see anything stale, with or without a new entry.
    pub(super) fn views(self, makes: bool) -> &'static [View] {
        use Entry::{Both, Former, Stage2};
        match self {
            Self::Changes => {
                const ALL: &[View] = &[
                    (Stage2, &READER),
                    (Both, &READER),
                    (Stage2, &OWN),
                    (Both, &OWN),
                    (Stage2, &WRITER),
                    (Both, &WRITER),
                    (Stage2, &TWICE),
                    (Both, &TWICE),
                    (Stage2, &FAULTS),
                ];
                if makes { ALL } else { &ALL[..6] }
            }
            Self::Enters { fresh: true } => &[(Both, &ENTERS)],
            Self::Enters { fresh: false } => &[(Both, &ENTERS), (Former, &OWN)],
            Self::Arrives => &[(Both, &ARRIVES)],
        }
    }
}

fn is_by_address(step: &str) -> bool {
    step.contains("IPAS2E1")
}

/// P0's instructions in the model. `whole` is the sequence without mutations.
fn translated(steps: &[String], whole: &[String], role: Role, (entry, observer): View) -> Vec<String> {
    let is_refilled = entry == Entry::Both && whole.iter().any(|step| is_by_address(step));
    // VTTBR_EL2 as written, and as it is in effect: until the next ISB it may be either.
    let is_ours = !whole.iter().any(|step| step == OURS);
    let (mut written, mut effective, mut is_local) = (is_ours, is_ours, false);
    let mut code: Vec<String> = Vec::new();
    for step in steps {
        let names_us = written && effective;
        let text = match step.as_str() {
            BREAK if is_refilled => continue,
            BREAK => "STR X1,[X0]".into(),
            MAKE => "STR X9,[X0]".into(),
            OURS => {
                written = true;
                if role != (Role::Enters { fresh: true }) {
                    continue;
                }
                // There is nothing under a VMID that was never used: as if it had been dropped.
                code.push("TLBI VMALLE1".into());
                "DSB ISH".into()
            }
            "ISB" => {
                if entry == Entry::Former && written && !effective {
                    code.extend(["STR X1,[X0]".into(), "DSB ISH".into()]);
                }
                effective = written;
                step.clone()
            }
            _ if step.starts_with("TLBI ALLE1") => step.clone(),
            _ if step.starts_with("TLBI ") && !names_us => continue,
            _ if is_by_address(step) && is_refilled => "STR X1,[X0]".into(),
            // A barrier for stores waits for no TLBI.
            _ if step.ends_with("ST") && is_refilled => continue,
            _ if step.starts_with("TLBI VAA") => format!("{step},X3"),
            _ if is_by_address(step) => format!("{},X3", step.replace("RIPAS2", "IPAS2")),
            _ if step.starts_with("TLBI VMALLE1") && entry == Entry::Stage2 => continue,
            // Completes this CPU's own maintenance, for itself; the model knows only one domain.
            _ if step.starts_with("DSB NSH") && is_local && observer.is_own => step.replace("NSH", "ISH"),
            _ => step.clone(),
        };
        code.push(text);
        is_local |= step.starts_with("TLBI ") && !step.ends_with("IS");
    }
    code
}

/// A litmus test, which the model answers with "Never" if nothing stale is seen.
pub(super) fn litmus(name: &str, steps: &[String], whole: &[String], role: Role, view: View) -> String {
    let observer = view.1;
    let mut text = format!("AArch64 {name}\n{{\n[x]=1; [y]=2; [PTE(z)]=(oa:PA(x));\n");
    for cpu in 0..2 {
        let _ = writeln!(
            text,
            "{cpu}:X0=PTE(x); {cpu}:X1=(oa:PA(x), valid:0); {cpu}:X2=s; {cpu}:X3=x; {cpu}:X6=z; {cpu}:X8=x; \
             {cpu}:X9=(oa:PA(y));"
        );
    }
    let code = translated(steps, whole, role, view);
    let mut own = vec!["LSR X3,X3,#12"];
    own.extend(observer.before);
    own.extend(code.iter().map(String::as_str));
    own.extend(observer.after);
    let _ = writeln!(text, "}}\n P0 | P1 ;");
    for line in 0..own.len().max(observer.other.len()) {
        let of = |code: &[&str]| code.get(line).copied().unwrap_or_default().to_owned();
        let _ = writeln!(text, " {} | {} ;", of(&own), of(observer.other));
    }
    let _ = writeln!(text, "exists({})", observer.forbidden);
    text
}

/// How a step is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    LeftOut,
    Weaker(&'static str),
    /// The TLBI is executed for this CPU alone.
    Local,
    /// After the next step.
    Late,
}

#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// The step's index.
    pub(super) at: usize,
    pub(super) mutation: Mutation,
    pub(super) steps: Vec<String>,
}

/// The mutants of a sequence.
pub(super) fn mutants(whole: &[String]) -> Vec<Mutant> {
    let mut all = Vec::new();
    for (at, step) in whole.iter().enumerate() {
        let mut add = |mutation, change: &dyn Fn(&mut Vec<String>)| {
            let mut steps = whole.to_vec();
            change(&mut steps);
            all.push(Mutant { at, mutation, steps });
        };
        if step != BREAK && step != MAKE {
            add(Mutation::LeftOut, &|steps| drop(steps.remove(at)));
        }
        let weaker: &[&str] = match step.as_str() {
            "DSB ISH" => &["DSB ISHST", "DSB NSH"],
            "DSB ISHST" => &["DMB ISHST", "DSB NSHST"],
            "DSB NSH" => &["DSB NSHST"],
            _ => &[],
        };
        for &text in weaker {
            add(Mutation::Weaker(text), &|steps| steps[at] = text.to_owned());
        }
        if let Some(local) = step.strip_suffix("IS").filter(|_| step.starts_with("TLBI ")) {
            add(Mutation::Local, &|steps| steps[at] = local.to_owned());
        }
        if whole.get(at + 1).is_some_and(|next| is_ordered(step, next)) {
            add(Mutation::Late, &|steps| steps.swap(at, at + 1));
        }
    }
    all
}

/// Whether the order of two steps can matter: that of barriers, or of two that are none, cannot.
fn is_ordered(step: &str, next: &str) -> bool {
    let is_barrier = |step: &str| step.starts_with("DSB") || step == "ISB";
    is_barrier(step) != is_barrier(next) || next == "ISB"
}
