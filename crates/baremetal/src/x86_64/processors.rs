//! The processors: start them, give them jobs.

use x86_64::instructions::interrupts;

use super::boot::{STARTUP_PAGE, StartupPage};
use super::interrupts::VECTOR_WAKE;
use super::{apic, clock, tables};
use crate::processors::{self as all, PATIENCE_MS};
pub use crate::processors::{Job, MAX_PROCESSORS, give, id, is_busy, join, number_all, runs, set_id};

const STACK_SIZE: usize = 16 << 10;

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

/// By number; the first processor's is not used.
static mut STACKS: [Stack; MAX_PROCESSORS] = [const { Stack([0; STACK_SIZE]) }; MAX_PROCESSORS];

/// Pauses that the start-up of real processors needs (Intel SDM volume 3A, section 9.4.4.1).
const AFTER_INIT_US: u64 = 10_000;
const AFTER_STARTUP_US: u64 = 200;

/// Starts processor `number`, from 1 on, if it does not run already; returns whether it runs.
pub fn start(number: usize) -> bool {
    if runs(number) {
        return true;
    }
    let id = id(number);
    // SAFETY: every loader reports the page as RAM, and the image has nothing else there.
    let page = unsafe { StartupPage::install() };
    page.offer(id, stack_bottom() + ((number + 1) * STACK_SIZE) as u64);
    apic::send_init(id);
    clock::delay(AFTER_INIT_US);
    // The second attempt is made only if the first had no effect.
    for _ in 0..2 {
        apic::send_startup(id, STARTUP_PAGE);
        clock::delay(AFTER_STARTUP_US);
        if clock::wait_until(PATIENCE_MS, || runs(number)) {
            return true;
        }
    }
    // It is reset to the state that only a start-up IPI ends, in case it starts at this moment.
    page.withdraw();
    reset(number);
    clock::delay(AFTER_INIT_US);
    all::forget(number);
    false
}

/// The bottom of processor 0's stack.
fn stack_bottom() -> u64 {
    (&raw const STACKS).addr() as u64
}

/// Resets processor `number`, whatever it is doing. It stays idle until it is started again.
pub fn reset(number: usize) {
    apic::send_init(id(number));
    all::forget(number);
}

/// Wakes processor `number`, if it waits for an interrupt.
pub fn wake(number: usize) {
    apic::send_fixed(id(number), VECTOR_WAKE);
}

/// Entry of a processor other than the first one, on the stack that [`start`] has offered.
#[doc(hidden)]
pub extern "C" fn other(stack_top: u64) -> ! {
    let number = (stack_top - stack_bottom()) as usize / STACK_SIZE - 1;
    // SAFETY: this is the processor with that number, which runs this once after each reset.
    unsafe { tables::load(number) };
    apic::enable();
    // An interrupt that arrives before HLT ends it.
    all::work(number, interrupts::disable, interrupts::enable_and_hlt)
}
