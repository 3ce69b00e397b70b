//! A guest's generation id: 128 bits by which its kernel notices that it goes on from a state from
//! which it may go on elsewhere, too, and mixes its random numbers anew.
//!
//! A guest that begins has one that is made of date and clock: nobody else has it, but it is no
//! secret, as nothing that the guest draws depends on it. One that arrives gets another from the
//! host tool, which asks its system for random bytes. The id stays as long as the guest is here,
//! over each reset. It is no part of what is sent: the sender has no say in it, and neither has
//! what the guest has stored where it reads it.

use baremetal::random::Random;

use super::arch::Arch;
use super::host::Host;
use super::machine::Vm;

/// The id of a guest that begins here, whose vCPUs have identities from this one on.
pub(super) fn of_start<A: Arch>(host: &Host<A>, identity: u32) -> u128 {
    let now = A::now();
    let mut date = Random::new(host.wall.ns(now));
    let mut clock = Random::new(now.rotate_left(32) ^ u64::from(identity));
    u128::from(date.word()) << 64 | u128::from(clock.word())
}

impl<A: Arch> Vm<A> {
    /// The guest goes on here from what it was elsewhere: this is its id from now on, and its
    /// kernel learns it as soon as it runs. No vCPU runs.
    pub(crate) fn renew(&self, id: u128) {
        *self.generation.lock() = id;
        A::show_generation(self, true);
    }
}
