//! Vectors of many guests' functions, on several CPUs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use baremetal::random::Random;
use iommu::DeviceId;
use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::devices::pc::message::Message;
use crate::iommu::remaps::Forgotten;
use crate::iommu::routes::{CpuVector, Delivery, FUNCTIONS, Receiver, Routes};
use crate::sched::CpuIndex;
use crate::vm::VpIndex;

/// A guest that may use some of the CPUs, and notes what happens.
#[derive(Default)]
pub(crate) struct MockReceiver {
    cpus: u32,
    pub(crate) posted: Mutex<Vec<(VpIndex, Message)>>,
    told: Mutex<Vec<VpIndex>>,
}

impl MockReceiver {
    pub(crate) fn on(cpus: u32) -> &'static Self {
        Box::leak(Box::new(Self { cpus, ..Self::default() }))
    }
}

impl Receiver for MockReceiver {
    fn destination(&self, cpu: CpuIndex) -> Option<u8> {
        (cpu.0 < 32 && self.cpus >> cpu.0 & 1 != 0).then(|| cpu.0 as u8 + 100)
    }

    fn single(&self, _: Message) -> Option<VpIndex> {
        None
    }

    fn post(&self, vcpu: VpIndex, message: Message) {
        self.posted.lock().unwrap().push((vcpu, message));
    }

    fn tell(&self, vcpu: VpIndex) {
        self.told.lock().unwrap().push(vcpu);
    }

    fn spread(&self, _: Message) -> Option<VpIndex> {
        None
    }
}

fn message() -> Message {
    Message::from_msi(0xfee0_0000, 0x41).expect("it is one")
}

/// Takes vectors until there are none for this function.
fn take_all(routes: &Routes, to: &'static MockReceiver, function: u16, functions: usize) -> Vec<CpuVector> {
    core::iter::from_fn(|| routes.take(to, DeviceId(function), functions)).collect()
}

#[test]
fn u41_one_guest_does_not_take_all_vectors() {
    let routes = Routes::default();
    let (hog, victim, third) = (MockReceiver::on(1), MockReceiver::on(1), MockReceiver::on(1));
    // The first guest has three of the machine's 13 functions, the others two and one.
    let taken: usize = (0..3).map(|function| take_all(&routes, hog, function, 13).len()).sum();
    let shared = FUNCTIONS.len() - 13;
    assert!((shared / 2..=shared / 2 + 4).contains(&taken), "{taken}");
    assert!(take_all(&routes, hog, 0, 13).is_empty());
    let left: usize = (3..5).map(|function| take_all(&routes, victim, function, 13).len()).sum();
    assert!(left >= shared / 4, "{left}");
    assert!(take_all(&routes, third, 5, 13).len() >= shared / 8);
    for function in 6..13 {
        assert!(routes.take(third, DeviceId(function), 13).is_some(), "one is kept for {function}");
    }
}

/// Of a CPU's vectors one is kept for each function, and a guest has half of the others at most.
#[test]
fn u41_a_cpu_has_as_many_vectors_as_there_are_and_a_guest_gets_half() {
    let len = FUNCTIONS.len();
    let all = take_all(&Routes::default(), MockReceiver::on(1), 0, 1);
    assert_eq!(all.len(), 1 + (len - 1).div_ceil(2));
    let routes = Routes::default();
    let firsts = (0..300).filter(|&function| {
        let place = routes.take(MockReceiver::on(1), DeviceId(function), 1);
        place.inspect(|place| assert!(FUNCTIONS.contains(&place.vector))).is_some()
    });
    assert_eq!(firsts.count(), len);
    // The guest's share of CPU 0 is used up, where more is left than on CPU 1.
    let routes = Routes::default();
    let used: usize = (1..4).map(|other| take_all(&routes, MockReceiver::on(0b10), other, 4).len()).sum();
    let places = take_all(&routes, MockReceiver::on(0b11), 0, 4);
    let on = |id| places.iter().filter(|place| place.destination == id).count();
    assert!(on(101) > 0 && len - on(100) > len - used - on(101), "{} {} {used}", on(100), on(101));
}

#[test]
fn u41_each_cpu_has_vectors_of_its_own() {
    let routes = Routes::default();
    let (guest, other) = (MockReceiver::on(0b1010), MockReceiver::on(0b0100));
    let places = take_all(&routes, guest, 1, 2);
    assert!(places.iter().all(|place| [101, 103].contains(&place.destination)), "CPUs 1 and 3 alone");
    let on = |id| places.iter().filter(|place| place.destination == id).count();
    assert!(on(101).abs_diff(on(103)) <= 1, "evenly");
    assert!(places.len() > FUNCTIONS.len() / 2);
    let elsewhere = routes.take(other, DeviceId(2), 2).expect("nobody is there");
    assert!(places.iter().any(|place| place.vector == elsewhere.vector));
    routes.set(elsewhere, Delivery::Direct(VpIndex(5), message()));
    let deliver = |cpu| routes.deliver(CpuIndex(cpu), elsewhere.vector);
    assert_eq!((deliver(0), deliver(1), deliver(2), deliver(256)), (false, true, true, false));
    assert_eq!(*other.posted.lock().unwrap(), [(VpIndex(5), message())]);
    assert_eq!(routes.take(MockReceiver::on(0), DeviceId(3), 2), None, "no CPU of its own is reached");
}

#[test]
fn u41_whatever_others_take_and_free_a_function_gets_its_first() {
    for seed in 0..60 {
        let random = &mut Random::new(seed);
        let routes = Routes::default();
        let functions = 1 + random.below(60) as u16;
        let guests: Vec<_> = (0..4).map(|_| MockReceiver::on(1 + random.below(7) as u32)).collect();
        let mut places = BTreeMap::<u16, Vec<CpuVector>>::new();
        let mut owner = BTreeMap::new();
        for _ in 0..1500 {
            let function = random.below(functions.into()) as u16;
            let to = *owner.entry(function).or_insert_with(|| guests[random.below(4) as usize]);
            let known = places.entry(function).or_default();
            if random.below(40) == 0 {
                let proof = Forgotten::made(DeviceId(function));
                known.drain(..).for_each(|place| routes.free(place, &proof));
                owner.remove(&function);
                continue;
            }
            let place = routes.take(to, DeviceId(function), functions.into());
            assert!(place.is_some() || !known.is_empty(), "seed {seed}: {function} has none");
            known.extend(place);
        }
        let all: Vec<_> = places.values().flatten().collect();
        assert!(all.iter().enumerate().all(|(index, place)| !all[..index].contains(place)), "seed {seed}");
    }
}

#[test]
fn u42_an_interrupt_for_several_is_noted_and_the_guest_is_told() {
    let routes = Routes::default();
    let guest = MockReceiver::on(1);
    let place = routes.take(guest, DeviceId(1), 1).expect("there is one");
    assert!(
        routes.deliver(CpuIndex(0), place.vector) && guest.told.lock().unwrap().is_empty(),
        "it is masked"
    );
    assert!(routes.set(place, Delivery::InTurn(VpIndex(3))), "it has arrived before");
    assert!(routes.deliver(CpuIndex(0), place.vector));
    assert_eq!((&*guest.told.lock().unwrap(), guest.posted.lock().unwrap().len()), (&vec![VpIndex(3)], 0));
    assert!(routes.take_arrived(place) && !routes.take_arrived(place));
}

#[test]
fn a_vector_is_free_when_the_iommu_has_forgotten_its_function() {
    let routes = Routes::default();
    let guest = MockReceiver::on(1);
    let place = routes.take(guest, DeviceId(1), 1).expect("there is one");
    routes.set(place, Delivery::Direct(VpIndex(0), message()));
    routes.free(place, &Forgotten::made(DeviceId(2)));
    assert!(routes.deliver(CpuIndex(0), place.vector), "that was another one's");
    routes.silence(place);
    assert!(routes.deliver(CpuIndex(0), place.vector), "nobody else gets it");
    assert_eq!((guest.posted.lock().unwrap().len(), guest.told.lock().unwrap().len()), (1, 0));
    routes.free(place, &Forgotten::made(DeviceId(1)));
    assert!(!routes.deliver(CpuIndex(0), place.vector));
    assert!(!routes.set(place, Delivery::InTurn(VpIndex(0))) && !routes.take_arrived(place));
    for vector in (0..=u8::MAX).filter(|vector| !FUNCTIONS.contains(vector)) {
        assert!(!routes.deliver(CpuIndex(0), vector), "{vector:#x}");
    }
}
