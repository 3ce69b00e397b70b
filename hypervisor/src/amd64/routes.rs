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
}

/// All routes, by vector from [`VECTORS`]'s first on.
#[derive(Default)]
pub struct Routes(Vec<Option<Route>>);

impl Routes {
    /// Takes a vector for interrupts to a guest.
    pub(super) fn take(&mut self, to: &'static dyn Deliver<Message>) -> Option<u8> {
        let route = Route { to, message: None };
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

    /// Sets the guest's message of a vector.
    pub(super) fn set(&mut self, vector: u8, message: Option<Message>) {
        if let Some(route) = self.route(vector) {
            route.message = message;
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
        if let Some(message) = route.message {
            route.to.deliver_from_device(message);
        }
        true
    }

    fn route(&mut self, vector: u8) -> Option<&mut Route> {
        self.0.get_mut(usize::from(vector.wrapping_sub(VECTORS.start)))?.as_mut()
    }
}
