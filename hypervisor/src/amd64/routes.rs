//! Interrupts of owned functions.
//!
//! A function's interrupt has a vector of one CPU, by an entry of its interrupt remapping table.
//! The CPU looks the vector up here, and delivers the guest's own message. A function can raise the
//! vectors in its table only, whatever it writes.
//!
//! The lock is held during delivery. So once a guest's routes are gone, nobody uses it because of
//! them.

use core::ops::Range;

use alloc::vec::Vec;

use crate::devices::pc::message::Message;
use crate::owned::Deliver;

/// Vectors for functions.
pub const VECTORS: Range<u8> = 0x30..0xe0;

/// Where the interrupts of one vector go.
struct Route {
    to: &'static dyn Deliver<Message>,
    /// The guest's message; none while the guest has masked it.
    message: Option<Message>,
    /// An interrupt has arrived meanwhile: the function had sent it before it was masked.
    is_pending: bool,
}

/// All routes, by vector from [`VECTORS`]'s first on.
#[derive(Default)]
pub struct Routes(Vec<Option<Route>>);

impl Routes {
    /// Takes a vector for interrupts to a guest.
    pub(super) fn take(&mut self, to: &'static dyn Deliver<Message>) -> Option<u8> {
        let route = Route { to, message: None, is_pending: false };
        let free = self.0.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None if self.0.len() < VECTORS.len() => {
                self.0.push(None);
                self.0.len() - 1
            }
            None => return None,
        };
        *self.0.get_mut(index)? = Some(route);
        Some(VECTORS.start + index as u8)
    }

    /// Sets the guest's message of a vector. What has arrived while there was none is delivered.
    pub(super) fn set(&mut self, vector: u8, message: Option<Message>) {
        let Some(route) = self.route(vector) else { return };
        route.message = message;
        if let Some(message) = message
            && core::mem::take(&mut route.is_pending)
        {
            route.to.deliver_from_device(message);
        }
    }

    /// Frees a vector.
    pub(super) fn free(&mut self, vector: u8) {
        let index = usize::from(vector.wrapping_sub(VECTORS.start));
        if let Some(route) = self.0.get_mut(index) {
            *route = None;
        }
    }

    /// An interrupt has arrived. Returns false if the vector has no route.
    pub(super) fn deliver(&mut self, vector: u8) -> bool {
        let Some(route) = self.route(vector) else { return false };
        match route.message {
            Some(message) => route.to.deliver_from_device(message),
            None => route.is_pending = true,
        }
        true
    }

    fn route(&mut self, vector: u8) -> Option<&mut Route> {
        self.0.get_mut(usize::from(vector.wrapping_sub(VECTORS.start)))?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::pc::message::Message;
    use core::sync::atomic::{AtomicU32, Ordering};

    /// A guest that counts.
    struct Count(AtomicU32);

    impl Deliver<Message> for Count {
        fn deliver_from_device(&self, _: Message) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn cpu(&self, _: usize) -> Option<u32> {
            None
        }
    }

    static GUEST: Count = Count(AtomicU32::new(0));

    #[test]
    fn each_vector_is_one_functions_and_there_are_no_more_than_there_are() {
        let mut routes = Routes::default();
        let taken: Vec<Option<u8>> = VECTORS.map(|_| routes.take(&GUEST)).collect();
        assert_eq!(taken, VECTORS.map(Some).collect::<Vec<_>>());
        assert_eq!(routes.take(&GUEST), None);
        routes.free(0x77);
        // Those of others are no routes.
        (0..=u8::MAX).filter(|vector| !VECTORS.contains(vector)).for_each(|vector| routes.free(vector));
        let known: Vec<u8> = (0..=u8::MAX).filter(|&vector| routes.deliver(vector)).collect();
        assert_eq!(known, VECTORS.filter(|&vector| vector != 0x77).collect::<Vec<_>>());
        assert_eq!((routes.take(&GUEST), routes.take(&GUEST)), (Some(0x77), None));
        let message = Message::from_msi(0xfee0_0000, 0x41);
        routes.set(0x77, message);
        routes.set(0x10, message);
        assert_eq!(GUEST.0.load(Ordering::Relaxed), 0, "nothing was pending");
        assert!(routes.deliver(0x77));
        assert_eq!(GUEST.0.load(Ordering::Relaxed), 1);
    }
}
