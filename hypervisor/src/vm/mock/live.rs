//! Machines that run until they are ended, and are asked by whoever has the other end of their
//! control channel: the host tool is tested with them.

use core::ops::Range;
use hostlink::guests::GuestState;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::vec::Vec;

use super::creation::use_memory;
use super::processor::Op::{self, *};
use super::processor::{MockArch, create_several};
use super::{End, MockBoard};

/// While nobody has anything to do, the clock jumps to the next timer after this time.
const PAUSE: Duration = Duration::from_micros(20);
const FOREVER: u32 = u32::MAX - 1;

/// Each vCPU stores, sleeps, and finds what it stored, for ever.
const FIRST: &[Op] = &[
    Start(1),
    Store(0x5000, 1),
    Store(0x7000, 5),
    Sleep(60_000),
    Load(0x5000, 1),
    Load(0x7000, 5),
    Store(0x5000, 2),
    Store(0x7000, 0),
    Sleep(60_000),
    Load(0x5000, 2),
    Load(0x7000, 0),
    Back(1, FOREVER),
    Done,
];
const SECOND: &[Op] = &[Store(0x9000, 4), Sleep(50_000), Load(0x9000, 4), Back(0, FOREVER), Done];

/// A machine of two CPUs, whose clock stands still whenever nobody reads it.
pub struct Machine {
    board: &'static MockBoard<MockArch>,
    control: UnixStream,
    threads: [JoinHandle<()>; 2],
}

impl Machine {
    /// Starts a machine with guests of these configurations, which have two vCPUs. `memory` is its
    /// own until it is [ended](Self::end).
    ///
    /// # Safety
    ///
    /// The memory is mapped, zero, and used by nobody else but through the machine's interfaces.
    pub unsafe fn start(
        memory: Range<u64>,
        configs: &[&'static str],
        seed: u64,
        control: UnixStream,
    ) -> std::io::Result<Self> {
        let programs: &[&[Op]] = &[FIRST, SECOND];
        let guests: Vec<_> = configs.iter().map(|&config| (config, programs)).collect();
        let (says, heard) = mpsc::channel();
        let out = control.try_clone()?;
        let runs = thread::spawn(move || {
            use_memory(&memory);
            let bytes = memory.end - memory.start;
            let board = create_several(2, bytes, &guests);
            board.lock().outside = Some(out);
            says.send(board).expect("is waited for");
            assert_eq!(board.run(seed), End::Quiet, "it ends when it is told to");
        });
        let board = heard.recv().expect("a machine");
        let mut from = control.try_clone()?;
        let listens = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let mut turns = board.lock();
                turns.to_hypervisor.extend(&bytes[..count]);
                turns.lines[0].control = true;
            }
        });
        Ok(Self { board, control, threads: [runs, listens] })
    }

    /// What a guest does.
    pub fn state(&self, guest: u32) -> GuestState {
        self.board.host().state_of(guest)
    }

    /// Ends it, whatever it does: its memory is not used any more.
    pub fn end(self) {
        self.board.lock().is_ended = true;
        // The other side may have ended it already.
        let _ = self.control.shutdown(Shutdown::Both);
        for thread in self.threads {
            thread.join().expect("the machine does not panic");
        }
    }
}

/// Sends a line to whoever has the other end.
pub(super) fn send(to: &mut UnixStream, line: &str) {
    // Nobody may be there any more.
    let _ = to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n"));
}

/// Lets time pass outside of the machine.
pub(super) fn pause() {
    thread::sleep(PAUSE);
}
