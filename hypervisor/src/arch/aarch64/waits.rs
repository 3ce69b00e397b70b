//! What the guest waits for, by the code that it is in.

use memslots::Gpa;

use super::abort::gpa_of;
use super::inject;
use crate::arch::Context;
use crate::arm64::wait_loop::{self, WINDOW};
use crate::vm::awaited::Word;

const PAGE: u64 = 4096;

impl Context<'_> {
    /// The word in memory for whose change the guest waits, if it does, and nothing but a store to it would let it go on.
    ///
    /// A hint: the translations may be older than a flush that is asked for at this moment, so this is in no section. Whoever is
    /// passed over for the wrong word is so for a while.
    pub(crate) fn awaited_word(&self) -> Option<Word> {
        let registers = &self.state.registers;
        let pc = registers.pc;
        if registers.pstate & inject::AARCH32 != 0 || !pc.is_multiple_of(4) {
            return None;
        }
        let start = pc.checked_sub(4 * wait_loop::AT as u64)?;
        let length = 4 * WINDOW as u64;
        if start % PAGE > PAGE - length {
            // Of two pages: it is found at another time.
            return None;
        }
        let at_el0 = inject::is_from_el0(registers);
        let code = gpa_of(start, at_el0)?;
        let memory = self.vm.space.slots().memory();
        let (mut window, mut bytes) = ([0; WINDOW], [0; 4 * WINDOW]);
        memory.read(Gpa(code), &mut bytes).ok()?;
        for (word, bytes) in window.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let wait = wait_loop::find(&window)?;
        let x = &self.state.registers.x;
        let address = *x.get(wait.address)?;
        let value = x.get(wait.value).copied().unwrap_or(0);
        if !address.is_multiple_of(wait.bytes as u64) {
            return None;
        }
        // The comparison is of 32 bits, or 64.
        let value = if wait.bytes == 8 { value } else { value & 0xffff_ffff };
        let word = Word { gpa: Gpa(gpa_of(address, at_el0)?), bytes: wait.bytes as u8, value };
        (!word.has_changed(&memory)).then_some(word)
    }
}
