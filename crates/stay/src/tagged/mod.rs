//! Tags that each processor assigns on its own, and flushes that are requests: AMD64 with ASIDs,
//! and Intel64 with VPIDs and [two kinds of flush](two_flushes).

mod contexts;
mod entry;
mod mistaken;
mod plan;
mod registers;
mod request;
#[cfg(test)]
mod tests;
pub mod two_flushes;
mod walks;

pub use contexts::{Contexts, Key};
pub use entry::{Processor, Taken, enter, start_over, take_flush};
pub use mistaken::Mistaken;
pub use plan::{Mode, Plan, RANGES_MAX, Ranges, STEP_MAX_US, STEP_PAGES, Why, Work, obey, plan};
pub use registers::{TranslationControls, changes_translations};
pub use request::{Asked, Initiator, Named, serve};
pub use walks::Walks;
