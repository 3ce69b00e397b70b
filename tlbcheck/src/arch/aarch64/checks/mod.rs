//! The rows: each is named after the defect that makes it fail.
//!
//! Tables are changed as DDI 0487 M.b, D8.17.1 requires: through an invalid entry, wherever output
//! address or size change. A TLBI may always drop more than it need.

mod blocks;
mod code;
mod flags;
mod moving;
mod mutual;
mod pages;
mod prelude;
mod rights;
mod spaces;

use super::tlbi::Scope::{Inner, Local, Outer};
use super::tlbi::{Form, Kind};
use crate::arch::rows::{Row, row};

const LOCAL: [Row; 12] = [
    row("vae1-leaves-page", || pages::page(Form(Local, Kind::Va), None)),
    row("vale1-leaves-page", || pages::page(Form(Local, Kind::VaLast), None)),
    row("vaae1-leaves-page", || pages::page(Form(Local, Kind::VaAll), None)),
    row("vaale1-leaves-page", || pages::page(Form(Local, Kind::VaAllLast), None)),
    row("aside1-leaves-page", || pages::page(Form(Local, Kind::Asid), None)),
    row("vmalle1-leaves-page", || pages::page(Form(Local, Kind::All), None)),
    row("vae1-leaves-part-of-block", || pages::block(Form(Local, Kind::Va))),
    row("vae1-with-level-leaves-page", || pages::page(Form(Local, Kind::Va), Some(3))),
    row("rvae1-leaves-page", || pages::range(Form(Local, Kind::Va))),
    row("rvale1-leaves-page", || pages::range(Form(Local, Kind::VaLast))),
    row("rvaae1-leaves-page", || pages::range(Form(Local, Kind::VaAll))),
    row("rvaale1-leaves-page", || pages::range(Form(Local, Kind::VaAllLast))),
];

const SPACES: [Row; 7] = [
    row("asid-mixes-spaces", spaces::mixes),
    row("aside1-leaves-page-of-reused-asid", || spaces::reused(Kind::Asid)),
    row("vmalle1-leaves-page-of-reused-asid", || spaces::reused(Kind::All)),
    row("vaae1-leaves-page-of-other-asid", || spaces::others(Kind::VaAll)),
    row("vmalle1-leaves-page-of-other-asid", || spaces::others(Kind::All)),
    row("vae1-leaves-global-page", || pages::global(Form(Local, Kind::Va))),
    row("vmalle1-leaves-global-page", || pages::global(Form(Local, Kind::All))),
];

const BROADCAST: [Row; 21] = [
    row("vae1is-leaves-page", || pages::page(Form(Inner, Kind::Va), None)),
    row("vale1is-leaves-page", || pages::page(Form(Inner, Kind::VaLast), None)),
    row("vaae1is-leaves-page", || pages::page(Form(Inner, Kind::VaAll), None)),
    row("vaale1is-leaves-page", || pages::page(Form(Inner, Kind::VaAllLast), None)),
    row("aside1is-leaves-page", || pages::page(Form(Inner, Kind::Asid), None)),
    row("vmalle1is-leaves-page", || pages::page(Form(Inner, Kind::All), None)),
    row("vae1os-leaves-page", || pages::page(Form(Outer, Kind::Va), None)),
    row("vale1os-leaves-page", || pages::page(Form(Outer, Kind::VaLast), None)),
    row("vaae1os-leaves-page", || pages::page(Form(Outer, Kind::VaAll), None)),
    row("vaale1os-leaves-page", || pages::page(Form(Outer, Kind::VaAllLast), None)),
    row("aside1os-leaves-page", || pages::page(Form(Outer, Kind::Asid), None)),
    row("vmalle1os-leaves-page", || pages::page(Form(Outer, Kind::All), None)),
    row("vae1is-with-level-leaves-page", || pages::page(Form(Inner, Kind::Va), Some(3))),
    row("rvae1is-leaves-page", || pages::range(Form(Inner, Kind::Va))),
    row("rvale1is-leaves-page", || pages::range(Form(Inner, Kind::VaLast))),
    row("rvaae1is-leaves-page", || pages::range(Form(Inner, Kind::VaAll))),
    row("rvaale1is-leaves-page", || pages::range(Form(Inner, Kind::VaAllLast))),
    row("rvae1os-leaves-page", || pages::range(Form(Outer, Kind::Va))),
    row("rvaae1os-leaves-page", || pages::range(Form(Outer, Kind::VaAll))),
    row("vae1is-leaves-part-of-block", || pages::block(Form(Inner, Kind::Va))),
    row("page-of-before-seen-after-remap", pages::remap),
];

const TABLES: [Row; 4] = [
    row("block-seen-behind-table", || blocks::changed(false)),
    row("pages-seen-behind-block", || blocks::changed(true)),
    row("freed-table-walked", || blocks::freed(Form(Inner, Kind::Va))),
    row("freed-table-walked-after-vmalle1is", || blocks::freed(Form(Inner, Kind::All))),
];

const RIGHTS: [Row; 8] = [
    row("read-only-page-written", || rights::reduced(Kind::VaLast)),
    row("read-only-page-written-after-vmalle1is", || rights::reduced(Kind::All)),
    row("access-flag-fault-missing", flags::faults),
    row("access-flag-fault-kept", flags::fault_is_not_kept),
    row("access-flag-not-set", flags::set_by_processor),
    row("dirty-state-not-set", flags::dirty_by_processor),
    row("clean-page-written", flags::clean_is_read_only),
    row("dirty-state-lost-after-clean", flags::dirty_again),
];

const PROCESSORS: [Row; 8] = [
    row("mutual-tlbi-hangs", mutual::all),
    row("tlbi-forgotten-asleep", mutual::asleep),
    row("same-asid-mixes-processors", || moving::own_tables(false)),
    row("same-asid-mixes-after-local-tlbi", || moving::own_tables(true)),
    row("local-tlbi-forgotten-on-move", || moving::local(Kind::Va)),
    row("local-vmalle1-forgotten-on-move", || moving::local(Kind::All)),
    row("former-code-run", || code::replaced(Local)),
    row("former-code-run-after-broadcast", || code::replaced(Inner)),
];

pub(in crate::arch) fn rows() -> impl Iterator<Item = &'static Row> + Clone {
    LOCAL.iter().chain(&SPACES).chain(&BROADCAST).chain(&TABLES).chain(&RIGHTS).chain(&PROCESSORS)
}
