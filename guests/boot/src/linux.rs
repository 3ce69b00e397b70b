//! Puts a kernel into its place, and enters it by Linux's boot protocol, in 64-bit mode.

use alloc::format;
use alloc::string::{String, ToString};
use core::arch::asm;
use core::ops::Range;
use core::slice;

use baremetal::x86_64::boot::image_end;
use baremetal::x86_64::info::BootInfo;
use boot::find::{Choice, Place};
use boot::place::{Needs, places};
use boot::volume::{Files, Volumes};
use hostlink::bzimage::{Image, START, SetupHeader, Told, Unusable};

/// From the kernel's start to its entry in 64-bit mode.
const ENTRY_64: u64 = 0x200;
/// Selectors of the boot protocol, and the table with their descriptors.
const CODE: u64 = 0x10;
const DATA: u64 = 0x18;
static TABLE: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// E820's type of RAM.
const RAM: u32 = 1;

/// A kernel in its place.
pub(crate) struct Loaded {
    start: u64,
    params: &'static [u8],
}

/// Reads kernel and initial RAM disk, and makes the parameters.
pub(crate) fn load(info: &BootInfo, volumes: &Volumes, choice: &Choice) -> Result<Loaded, String> {
    let size = |(volume, path): &Place| volumes.size(*volume, path).unwrap_or(0);
    let about = |why: Unusable| format!("{}: {why}", choice.kernel.1);
    let mut first = [0; START + size_of::<SetupHeader>()];
    read(volumes, &choice.kernel, &mut first)?;
    let header = SetupHeader::of(&first).filter(|header| header.is_kernel());
    let header = header.ok_or_else(|| about(Unusable::NotAKernel))?;
    let needs = Needs {
        preferred: header.pref_address.get(),
        alignment: (header.relocatable_kernel != 0).then(|| header.kernel_alignment.get().into()),
        before: header.setup_len() as u64,
        size: u64::from(header.init_size.get()).max(size(&choice.kernel)),
        initrd_last: header.initrd_addr_max.get().into(),
    };
    let initrd_size: u64 = choice.initrds.iter().map(|place| size(place).next_multiple_of(4)).sum();
    let ram = || info.ram.iter().map(|ram| Range::from(*ram));
    let Some((start, initrd)) = places(ram(), image_end(), &needs, initrd_size) else {
        let [kernel, initrd] = [needs.size, initrd_size].map(|bytes| bytes.div_ceil(1 << 20));
        return Err(format!(
            "{} takes {kernel} MiB and its initial RAM disk {initrd} MiB: give the guest more memory",
            choice.kernel.1
        ));
    };
    // SAFETY: this is RAM behind the image, where nothing is yet, and mapped one to one.
    let file = unsafe { memory(start - needs.before, size(&choice.kernel)) };
    read(volumes, &choice.kernel, file)?;
    let image = Image::parse(file).map_err(about)?;
    if image.header.xloadflags.get() & SetupHeader::XLF_KERNEL_64 == 0 {
        return Err(format!("{} is not for 64 bits", choice.kernel.1));
    }
    let mut next = initrd;
    for place in &choice.initrds {
        // SAFETY: as above, behind the kernel.
        read(volumes, place, unsafe { memory(next, size(place)) })?;
        next += size(place).next_multiple_of(4);
    }
    let words = format!("{} {}", choice.words, info.command_line);
    let (words, most) = (words.trim(), image.header.cmdline_size.get() as usize);
    if words.len() > most {
        return Err(format!("its command line has {} bytes, and the kernel takes {most}", words.len()));
    }
    let reserved = info.reserved.iter().map(|(range, kind)| (Range::from(*range), *kind));
    let params = image.boot_params(Told {
        start: start as u32,
        command_line: format!("{words}\0").leak().as_ptr().addr() as u32,
        initrd: (initrd_size != 0).then_some(initrd as u32..next as u32),
        rsdp: info.rsdp,
        map: ram().map(|ram| (ram, RAM)).chain(reserved),
    });
    Ok(Loaded { start, params: params.to_vec().leak() })
}

/// # Safety
///
/// It is RAM that nobody else uses, and is mapped one to one.
unsafe fn memory(start: u64, size: u64) -> &'static mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(start as *mut u8, size as usize) }
}

/// Reads a file's beginning: as much as there is room for, which it has.
fn read(volumes: &Volumes, (volume, path): &Place, into: &mut [u8]) -> Result<(), String> {
    let failed = |why: String| format!("{path}: {why}");
    let ext4 = volumes.ext4.get(*volume).ok_or_else(|| failed("there is no such filesystem".to_string()))?;
    let mut file = ext4.open(path.as_str()).map_err(|why| failed(why.to_string()))?;
    let mut left = into;
    while !left.is_empty() {
        match file.read_bytes(left).map_err(|why| failed(why.to_string()))? {
            0 => return Err(failed("it is shorter than it should be".to_string())),
            count => left = &mut left[count..],
        }
    }
    Ok(())
}

impl Loaded {
    /// Enters the kernel.
    pub(crate) fn enter(self) -> ! {
        let pointer = [(size_of_val(&TABLE) as u64 - 1) << 48, TABLE.as_ptr().addr() as u64];
        // SAFETY: as the protocol requires: memory is mapped one to one, interrupts are off, the
        // table has the selectors' descriptors, and RSI points to the parameters. The limit is the
        // last word of the pointer's first part.
        unsafe {
            asm!(
                "lgdt [{pointer}]",
                "mov ds, {data:e}",
                "mov es, {data:e}",
                "mov ss, {data:e}",
                "push {code}",
                "push {entry}",
                "retfq",
                pointer = in(reg) (&raw const pointer).addr() + 6,
                data = in(reg) DATA,
                code = in(reg) CODE,
                entry = in(reg) self.start + ENTRY_64,
                in("rsi") self.params.as_ptr(),
                options(noreturn),
            )
        }
    }
}
