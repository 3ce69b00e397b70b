//! Small programs for the machine.

use coherence::interleave::{explore, on_a_thread};
use loom::sync::atomic::Ordering;
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::device::{Device, World, invalidate};
use crate::{Command, Ticket};

/// Removes page 0 by `remove` while the device uses it.
pub(super) fn one_page(world: World, remove: impl FnOnce(&World)) {
    let world = Arc::new(world);
    let device = on_a_thread(&world, |world| Device::new().run(world, 1));
    remove(&world);
    world.reuse(0);
    world.finish();
    device.join().unwrap();
}

/// Two CPUs remove a page each while the device uses both. `issue` puts the command in. The device
/// is no thread here: whoever waits lets it do its next command.
pub(super) fn two_pages(has_word: bool, issue: fn(&World, Command) -> Ticket) {
    let shared = Arc::new((World::new(has_word), Mutex::new(Device::new())));
    let remove = move |shared: &(World, Mutex<Device>), page: usize| {
        let (world, device) = shared;
        world.unmap(page);
        let ticket = issue(world, invalidate(page));
        let position = world.queue.sync_of(ticket).unwrap();
        while !world.queue.has_reported(position) {
            if !device.lock().unwrap().serve(world) {
                thread::yield_now();
            }
        }
        world.reuse(page);
    };
    let other = on_a_thread(&shared, move |shared| remove(shared, 1));
    remove(&shared, 0);
    other.join().unwrap();
}

/// As it is meant: A to D of the table.
pub(super) fn remove(world: &World, page: usize) {
    world.unmap(page);
    let ticket = world.queue.issue([invalidate(page)]).unwrap();
    world.queue.wait(ticket).unwrap();
}

/// The same, with a sync that is put in by whoever waits first.
pub(super) fn remove_and_share(world: &World, page: usize) {
    world.unmap(page);
    let ticket = world.queue.queue([invalidate(page)]).unwrap();
    world.queue.wait(ticket).unwrap();
}

#[test]
fn p16_a_removed_page_is_forgotten_before_it_is_reused() {
    for has_word in [false, true] {
        explore(Some(4), move || one_page(World::new(has_word), |world| remove(world, 0)));
        explore(Some(4), move || one_page(World::new(has_word), |world| remove_and_share(world, 0)));
    }
}

#[test]
fn p16_two_initiators_at_one_ring() {
    for has_word in [false, true] {
        explore(Some(4), move || two_pages(has_word, |world, command| world.queue.issue([command]).unwrap()));
        explore(Some(4), move || two_pages(has_word, |world, command| world.queue.queue([command]).unwrap()));
    }
}

#[test]
fn p16_more_commands_than_entries() {
    let remove_with_many = |world: &World| {
        world.unmap(0);
        let ticket = world.queue.issue((0..3).map(|_| invalidate(0))).unwrap();
        world.queue.wait(ticket).unwrap();
    };
    for has_word in [false, true] {
        let world = move || World::with(has_word, Ordering::Acquire, 4);
        explore(Some(2), move || one_page(world(), remove_with_many));
    }
}
