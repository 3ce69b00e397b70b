//! From the entry to the kernel's, or to the list of what was looked for.

use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt::{self, Write};
use core::panic::PanicInfo;

use baremetal::pages::{PAGE, Page};
use baremetal::x86_64::info::BootInfo;
use baremetal::x86_64::serial::{CONSOLE, REPORTS};
use baremetal::x86_64::{firmware, power};
use boot::disk::Shared;
use boot::find::find;
use boot::volume::Volumes;
use spin::Mutex;
use talc::TalcLock;
use talc::source::Manual;

use crate::linux;
use crate::nvme::{self, Nvme};

baremetal::entry!(main);

#[global_allocator]
static HEAP: TalcLock<Mutex<()>, Manual> = TalcLock::new(Manual);
/// 16 MiB: block groups of a disk of many TiB, and a journal's list.
static ROOM: [Page; 4096] = [const { Page::new() }; 4096];

/// What the tool is told when no kernel was found: the guest cannot be started.
const STATUS: i32 = hostlink::exit::ExitCode::BadConfig.tool_status();

fn say(text: fmt::Arguments<'_>) {
    let _ = write!({ CONSOLE }, "boot: {text}\r\n");
}

fn main(info: BootInfo) -> ! {
    CONSOLE.set_up();
    // SAFETY: nothing else uses this memory, and it is claimed once.
    unsafe { HEAP.lock().claim(ROOM[0].address() as *mut u8, ROOM.len() * PAGE as usize) };
    // SAFETY: the address is the loader's. Without tables the kernel is started all the same.
    let _ = unsafe { firmware::prepare(info.rsdp, None) };
    let why = start(&info);
    say(format_args!("no kernel was started from a disk:"));
    why.iter().for_each(|line| say(format_args!("  {line}")));
    fail()
}

/// Returns only with what was looked for in vain.
fn start(info: &BootInfo) -> Vec<String> {
    let (mut disks, mut volumes) = (Vec::<Rc<RefCell<Nvme>>>::new(), Volumes::default());
    for (index, disk) in nvme::all().enumerate() {
        match disk {
            Ok(disk) => {
                let disk = Rc::new(RefCell::new(disk));
                let shared: Shared = disk.clone();
                volumes.add(index, &shared);
                disks.push(disk);
            }
            Err(why) => say(format_args!("disk {} does not start: {why:?}", index + 1)),
        }
    }
    if disks.is_empty() {
        return vec!["there is no NVMe disk that answers".to_string()];
    }
    let found = find(&volumes);
    volumes.unreadable.borrow().iter().for_each(|line| say(format_args!("{line}")));
    let loaded = match found {
        Ok(choice) => {
            say(format_args!("{}, by {}", choice.kernel.1, choice.said_by));
            linux::load(info, &volumes, &choice)
        }
        Err(tried) => return [volumes.seen, tried].concat(),
    };
    // The kernel finds the disks as they are after a reset.
    disks.iter().for_each(|disk| disk.borrow_mut().give_back());
    match loaded {
        Ok(loaded) => loaded.enter(),
        Err(why) => vec![why],
    }
}

fn fail() -> ! {
    REPORTS.set_up();
    let _ = write!({ REPORTS }, "\n{{\"event\":\"exit\",\"status\":{STATUS}}}\n");
    power::off()
}

#[panic_handler]
fn on_panic(info: &PanicInfo<'_>) -> ! {
    say(format_args!("panic: {info}"));
    fail()
}
