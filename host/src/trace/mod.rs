//! `quell run --trace`: reads the trace rings in a machine's memory, and writes a file that
//! Perfetto opens.
//!
//! | module | contents |
//! |---|---|
//! | `collect` | reads the rings while the machine runs |
//! | `timeline` | what each CPU did when, and the flushes with their targets |
//! | `perfetto` | writes a timeline in the JSON trace format |

pub(crate) mod collect;
mod perfetto;
pub(crate) mod timeline;

use crate::prelude::*;
use collect::Collected;
use std::fs::File;
use std::io::BufWriter;
use timeline::Timeline;

pub(crate) fn write(path: &Path, collected: &Collected) -> Result<Timeline> {
    let timeline = Timeline::new(collected);
    let file = File::create(path).with_context(|| format!("cannot write the trace {}", path.display()))?;
    perfetto::write(BufWriter::new(file), &timeline)
        .with_context(|| format!("cannot write the trace {}", path.display()))?;
    Ok(timeline)
}

pub(crate) fn summarise(path: &Path, timeline: &Timeline) {
    eprintln!(
        "quell: trace of {} CPUs, {} spans, {} flushes in {}; open it at ui.perfetto.dev",
        timeline.cpus.len(),
        timeline.spans().count(),
        timeline.flushes.len(),
        path.display()
    );
    if timeline.lost() != 0 {
        eprintln!(
            "quell: {} records are missing: they were overwritten before they were read, or came after the first {}",
            timeline.lost(),
            collect::RECORDS_MAX
        );
    }
}
