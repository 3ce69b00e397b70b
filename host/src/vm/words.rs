//! Words of a kernel's command line that its guest cannot obey.

use crate::prelude::*;

/// Words with which Linux does not use the I/O APIC, or the local one: it then wants a PC's legacy
/// interrupt controller, which guests have not. It would boot, and its serial port would show
/// nothing of its programs, or it would wait for its timer for ever.
const LEGACY_INTERRUPTS: [&str; 8] =
    ["noapic", "nosmp", "maxcpus=0", "nolapic", "disableapic", "acpi=off", "acpi=noirq", "pci=noacpi"];

/// Refuses words that ask for what the guest does not have. The kernel's words end with `--`; the
/// rest is its first program's.
pub(super) fn check(arch: Arch, cmdline: &str) -> Result<()> {
    let mut words = cmdline.split_ascii_whitespace().take_while(|word| *word != "--");
    match words.find(|word| LEGACY_INTERRUPTS.contains(word)) {
        Some(word) if arch == Arch::X86_64 => {
            bail!("'{word}' wants a PC's 8259 interrupt controller, which guests do not have")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u60_words_that_want_an_8259_are_refused_and_no_others() {
        for word in LEGACY_INTERRUPTS {
            for cmdline in [word.to_owned(), format!("console=ttyS0 {word} quiet"), format!("a  {word} -- b")]
            {
                let why = format!("{:#}", check(Arch::X86_64, &cmdline).expect_err(&cmdline));
                assert!(why.contains(&format!("'{word}'")), "{why}");
                check(Arch::Aarch64, &cmdline).expect("there is another controller");
            }
        }
        for cmdline in ["", "test=noapic", "reboot=k panic=1 pci=off", "noapictimer acpi=force", "-- nosmp"] {
            check(Arch::X86_64, cmdline).expect(cmdline);
        }
    }
}
