//! The start-up of a CPU: it comes online in time or is given up, never both (U15).
//!
//! ```text
//! boot CPU                                   CPU that is being started
//! A  its id and its stack are offered (store)
//! B  INIT and start-up IPI, or CPU_ON        C  takes the offer, if it is for its id (CAS to none)
//!                                            D  its own tables, interrupt controller, timer
//! F  state: expected -> given up (CAS)       E  state: expected -> online (CAS)
//! G  offer withdrawn (swap with none);       H  not online: it stops for good
//!    INIT if it had not been taken
//! ```
//!
//! * One of E and F fails, because each changes the same word from `EXPECTED`. E publishes D
//!   (Release) to CPUs that find the CPU online (Acquire).
//! * A CPU that reaches C after G finds no offer, or that of another CPU, and stops. The offer is
//!   one word: at no moment can a CPU find its own id together with the stack of the next one.
//! * A CPU that took its offer before G is on its own stack, which is never given to another CPU,
//!   and stops at H. It is sent no INIT: it may be in the allocator, whose lock would then be held
//!   forever.
//! * On Arm CPU_ON passes the stack to the one CPU that it names: there is no offer, and C and G do
//!   not exist.

use crate::sync::{AtomicU32, Ordering};

const EXPECTED: u32 = 0;
const ONLINE: u32 = 1;
const GIVEN_UP: u32 = 2;

/// The start-up state of a CPU.
#[derive(Debug)]
pub struct Presence(AtomicU32);

impl Presence {
    /// A CPU that has not come up yet.
    pub fn expected() -> Self {
        Self(AtomicU32::new(EXPECTED))
    }

    fn decide(&self, state: u32) -> bool {
        // Release of E pairs with Acquire of `is_online` and `is_settled`; Acquire on failure, with
        // E of the CPU that was first.
        self.0.compare_exchange(EXPECTED, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Called by the CPU itself when it is ready. Publishes its earlier stores. `false`: it has
    /// been given up, and must stop.
    #[must_use]
    pub fn come_online(&self) -> bool {
        self.decide(ONLINE)
    }

    /// Gives up a CPU that is no longer awaited, or that cannot be used. `false`: it has come
    /// online meanwhile, or was given up before.
    pub fn give_up(&self) -> bool {
        self.decide(GIVEN_UP)
    }

    /// Whether the CPU is online. If so, its earlier stores are visible.
    pub fn is_online(&self) -> bool {
        // Pairs with `come_online`.
        self.0.load(Ordering::Acquire) == ONLINE
    }

    /// Whether its state is final.
    pub fn is_settled(&self) -> bool {
        // Pairs with `come_online` and `give_up`.
        self.0.load(Ordering::Acquire) != EXPECTED
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use baremetal::startup::offer;

    /// The contents of the start-up page, and how the code there takes the offer: one check, one
    /// exchange.
    struct Page(AtomicU64);

    impl Page {
        fn take(&self, id: u32) -> Option<u32> {
            let word = self.0.load(Ordering::Acquire);
            let is_mine = word != 0 && word >> 32 == u64::from(id);
            let taken =
                is_mine && self.0.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
            taken.then_some(word as u32)
        }
    }

    struct Cpu {
        presence: Presence,
        /// Its own data, which it sets up.
        own: UnsafeCell<u32>,
    }

    // SAFETY: loom rejects unordered accesses to the cell.
    unsafe impl Sync for Cpu {}

    impl Cpu {
        fn set_up(&self, value: u32) {
            // SAFETY: loom checks that the access is exclusive.
            self.own.with_mut(|own| unsafe { *own = value });
        }

        fn is_set_up(&self, value: u32) -> bool {
            // SAFETY: loom checks that there is no concurrent write.
            self.own.with(|own| unsafe { *own == value })
        }
    }

    const IDS: [u32; 2] = [4, 9];
    const STACKS: [u32; 2] = [0x1000, 0x2000];

    fn cpus() -> Arc<[Cpu; 2]> {
        let cpu = |_| Cpu { presence: Presence::expected(), own: UnsafeCell::new(0) };
        Arc::new([0, 1].map(cpu))
    }

    /// A CPU from its start-up IPI on; returns the stack that it took.
    fn start(page: &Page, cpus: &[Cpu; 2], index: usize) -> Option<u32> {
        let stack = page.take(IDS[index])?;
        // Found by the stack, as in the hypervisor.
        let cpu = &cpus[STACKS.iter().position(|&top| top == stack).unwrap()];
        cpu.set_up(1);
        let _stops_if_not = cpu.presence.come_online();
        Some(stack)
    }

    #[test]
    fn u15_online_or_given_up_and_never_both() {
        loom::model(|| {
            let cpus = cpus();
            let other = {
                let cpus = cpus.clone();
                thread::spawn(move || {
                    cpus[0].set_up(7);
                    cpus[0].presence.come_online()
                })
            };
            let given_up = cpus[0].presence.give_up();
            if cpus[0].presence.is_online() {
                assert!(cpus[0].is_set_up(7), "what it did is to be seen");
            }
            assert_ne!(other.join().unwrap(), given_up);
            assert_ne!(cpus[0].presence.is_online(), given_up);
            assert!(cpus[0].presence.is_settled());
            assert!(!cpus[0].presence.give_up() && !cpus[0].presence.come_online(), "it is settled once");
        });
    }

    #[test]
    fn u15_a_late_cpu_never_takes_the_stack_of_the_next() {
        loom::model(|| {
            let (cpus, page) = (cpus(), Arc::new(Page(AtomicU64::new(0))));
            page.0.store(offer(IDS[0], STACKS[0]), Ordering::Release);
            let late = {
                let (cpus, page) = (cpus.clone(), page.clone());
                thread::spawn(move || start(&page, &cpus, 0))
            };
            // The first one is no longer awaited.
            let given_up = cpus[0].presence.give_up();
            page.0.swap(0, Ordering::AcqRel);
            page.0.store(offer(IDS[1], STACKS[1]), Ordering::Release);
            let next = {
                let (cpus, page) = (cpus.clone(), page.clone());
                thread::spawn(move || start(&page, &cpus, 1))
            };
            let late = late.join().unwrap();
            assert!(late.is_none() || late == Some(STACKS[0]));
            assert_eq!(next.join().unwrap(), Some(STACKS[1]), "nobody else takes it");
            assert!(cpus[1].presence.is_online());
            assert_eq!(cpus[0].presence.is_online(), !given_up);
        });
    }

    /// Two words, the id and the stack: the obvious solution, which is wrong.
    #[test]
    #[should_panic(expected = "the stack of the next")]
    fn u15_an_id_and_a_stack_in_two_words() {
        loom::model(|| {
            let words = Arc::new((AtomicU64::new(IDS[0].into()), AtomicU64::new(STACKS[0].into())));
            let late = {
                let words = words.clone();
                thread::spawn(move || {
                    (words.0.load(Ordering::Acquire) == u64::from(IDS[0]))
                        .then(|| words.1.swap(0, Ordering::AcqRel))
                })
            };
            words.1.swap(0, Ordering::AcqRel);
            words.0.store(IDS[1].into(), Ordering::Release);
            words.1.store(STACKS[1].into(), Ordering::Release);
            assert_ne!(late.join().unwrap(), Some(STACKS[1].into()), "a late CPU has the stack of the next");
        });
    }
}
