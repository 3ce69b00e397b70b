//! Symbols of the hypervisor's ELF file.

use crate::prelude::*;
use hostlink::counters::BEACON_SYMBOL;
use object::{Object, ObjectSymbol, SymbolKind};
use std::fmt::Write;

/// The parts of the hypervisor's symbol table that the tool needs.
pub(crate) struct Symbols {
    /// Functions for backtraces, in the form of the bundle's member.
    pub(crate) table: String,
    /// Physical address of the beacon; `None` if the image has none.
    pub(crate) beacon: Option<u64>,
}

pub(crate) fn read(path: &Path) -> Result<Symbols> {
    let image = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(image.as_slice())
        .with_context(|| format!("{} is not an ELF64 file", path.display()))?;
    let functions = elf
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() != 0)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)));
    // The image runs where it is linked, mapped one to one: symbol values are physical addresses.
    let beacon = elf.symbols().find(|symbol| symbol.name() == Ok(BEACON_SYMBOL));
    Ok(Symbols { table: table(functions), beacon: beacon.map(|symbol| symbol.address()) })
}

/// Lines of `ADDRESS NAME`, sorted by address, one per address.
fn table<'a>(functions: impl Iterator<Item = (u64, &'a str)>) -> String {
    let mut functions: Vec<_> = functions.collect();
    functions.sort_unstable();
    functions.dedup_by_key(|(address, _)| *address);
    let mut text = String::new();
    for (address, name) in functions {
        // The alternate form omits the hash after the name. Writing to a string cannot fail.
        let _ = writeln!(text, "{address:x} {:#}", rustc_demangle::demangle(name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sorted_demangled_and_unique() {
        let names = [
            (0x2000, "_ZN10hypervisor4vcpu3run17h0123456789abcdefE"),
            (0x1000, "start32"),
            (0x2000, "zz_alias"),
        ];
        assert_eq!(table(names.into_iter()), "1000 start32\n2000 hypervisor::vcpu::run\n");
    }
}
