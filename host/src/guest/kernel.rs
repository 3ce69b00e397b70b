//! Checks of a guest kernel before it is passed to the machine.

use crate::machine::flat::ArmHeader;
use crate::prelude::*;
use hostlink::bzimage::{Image, SetupHeader};
use object::Endianness;
use object::elf::{self, Machine};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelInfo {
    /// How far the kernel extends into the guest's memory before it reads the memory map.
    pub(crate) memory_end: u64,
}

pub(crate) fn inspect_file(arch: Arch, path: &Path) -> Result<KernelInfo> {
    ensure!(path.exists(), "there is no kernel at {}", path.display());
    let image = fs::read(path).with_context(|| format!("cannot read the kernel {}", path.display()))?;
    inspect(arch, &image).with_context(|| format!("{} is not a kernel that Quell can start", path.display()))
}

/// Checks a 64-bit bzImage, an ELF file of AMD64 or i386 with a PVH note, or an arm64 `Image`.
fn inspect(arch: Arch, image: &[u8]) -> Result<KernelInfo> {
    match arch {
        Arch::Aarch64 => inspect_arm_image(image),
        Arch::X86_64 if image.starts_with(b"\x7fELF") => inspect_elf(image),
        Arch::X86_64 => inspect_bzimage(image),
    }
}

/// Source: the kernel's Documentation/arch/arm64/booting.rst.
fn inspect_arm_image(image: &[u8]) -> Result<KernelInfo> {
    let Some(header) = ArmHeader::of(image) else {
        ensure!(!image.starts_with(b"\x1f\x8b"), "it is compressed by gzip; unpack it first (gzip -d)");
        ensure!(
            image.get(4..8) != Some(b"zimg"),
            "it is an EFI program that unpacks itself; unpack it first"
        );
        bail!("it is not an arm64 boot image ({} bytes)", image.len());
    };
    ensure!(header.image_size != 0, "it is a kernel older than 3.17, which does not say how large it is");
    Ok(KernelInfo { memory_end: header.text_offset.saturating_add(header.image_size) })
}

fn inspect_bzimage(file: &[u8]) -> Result<KernelInfo> {
    let image = Image::parse(file).map_err(|unusable| anyhow!("{unusable}"))?;
    let is_64_bit = image.header.xloadflags.get() & SetupHeader::XLF_KERNEL_64 != 0;
    ensure!(is_64_bit, "it is not a 64-bit kernel");
    Ok(KernelInfo { memory_end: image.header.pref_address.get().saturating_add(image.init_size()) })
}

fn inspect_elf(image: &[u8]) -> Result<KernelInfo> {
    const CLASS: usize = 4;
    match image.get(CLASS) {
        Some(&class) if class == elf::ELFCLASS32.0 => {
            inspect_elf_of::<elf::FileHeader32<Endianness>>(image, elf::EM_386)
        }
        _ => inspect_elf_of::<elf::FileHeader64<Endianness>>(image, elf::EM_X86_64),
    }
}

fn inspect_elf_of<H: FileHeader<Endian = Endianness>>(image: &[u8], machine: Machine) -> Result<KernelInfo> {
    const XEN_ELFNOTE_PHYS32_ENTRY: elf::NoteType = elf::NoteType(18);

    let file = ElfFile::<H>::parse(image).context("it is not a sound ELF file")?;
    let endian = file.endian();
    ensure!(file.elf_header().e_machine(endian) == machine, "it is not for AMD64 or i386");
    let mut memory_end = 0;
    let mut has_entry = false;
    for header in file.elf_program_headers() {
        if header.p_type(endian) == elf::PT_LOAD {
            let (start, size): (u64, u64) = (header.p_paddr(endian).into(), header.p_memsz(endian).into());
            memory_end = memory_end.max(start.saturating_add(size));
        }
        if let Ok(Some(mut notes)) = header.notes(endian, image) {
            while let Ok(Some(note)) = notes.next() {
                has_entry |= note.name() == b"Xen" && note.n_type(endian) == XEN_ELFNOTE_PHYS32_ENTRY;
            }
        }
    }
    ensure!(has_entry, "it has no PVH entry note");
    Ok(KernelInfo { memory_end })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::flat::tests::arm_image;

    pub(crate) fn bzimage() -> Vec<u8> {
        let mut image = vec![0; 0xa00];
        let header = SetupHeader::of_mut(&mut image).unwrap();
        header.boot_flag = SetupHeader::BOOT_FLAG.into();
        header.magic = SetupHeader::MAGIC;
        header.jump_offset = 0x62;
        header.version = 0x20f.into();
        header.loadflags = SetupHeader::LOADED_HIGH;
        header.xloadflags = SetupHeader::XLF_KERNEL_64.into();
        header.pref_address = 0x0100_0000.into();
        header.init_size = 0x0200_0000.into();
        image
    }

    fn reason(image: &[u8]) -> String {
        inspect(Arch::X86_64, image).expect_err("is refused").to_string()
    }

    #[test]
    fn what_is_no_kernel_is_refused_with_its_reason() {
        assert!(reason(b"").contains("neither"));
        assert!(reason(&[0x20; 4096]).contains("neither"));
        assert!(reason(&bzimage()[..0x9ff]).contains("cut off"));
        assert!(reason(b"\x7fELF and then nothing").contains("sound ELF"));
        let mut old = bzimage();
        old[0x206..0x208].copy_from_slice(&0x204u16.to_le_bytes());
        assert!(reason(&old).contains("2.12 is needed"));
        let mut narrow = bzimage();
        narrow[0x236] = 0;
        assert!(reason(&narrow).contains("64-bit"));
    }

    #[test]
    fn a_programs_elf_without_pvh_note_is_refused() {
        let this = std::fs::read("/proc/self/exe").expect("reads");
        assert!(reason(&this).contains("PVH"), "{}", reason(&this));
    }

    fn elf32(machine: u8) -> Vec<u8> {
        let mut file = b"\x7fELF\x01\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([2, 0, machine, 0, 1, 0, 0, 0]);
        [0x10_0000u32, 52, 0, 0].into_iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend([52, 0, 32, 0, 2, 0, 40, 0, 0, 0, 0, 0]);
        let load = [1u32, 136, 0x10_0000, 0x10_0000, 4, 0x1000, 7, 4];
        let note = [4u32, 116, 0, 0, 20, 20, 4, 4];
        load.into_iter().chain(note).for_each(|word| file.extend(word.to_le_bytes()));
        [4u32, 4, 18].into_iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(b"Xen\0\0\0\x10\0\xf4\xf4\xf4\xf4");
        file
    }

    #[test]
    fn u24_an_elf_of_32_bits_is_a_kernel() {
        assert_eq!(inspect(Arch::X86_64, &elf32(3)).expect("is one").memory_end, 0x10_1000);
        assert!(reason(&elf32(40)).contains("i386"), "{}", reason(&elf32(40)));
    }

    #[test]
    fn what_is_no_arm_image_is_refused_with_its_reason() {
        let reason = |image: &[u8]| inspect(Arch::Aarch64, image).expect_err("is refused").to_string();
        assert!(reason(b"\x1f\x8b\x08").contains("gzip"));
        assert!(reason(b"MZ\0\0zimg").contains("EFI"));
        assert!(reason(&bzimage()).contains("not an arm64"));
        assert!(reason(&arm_image(0x8_0000, 0)).contains("3.17"));
        assert!(inspect(Arch::X86_64, &arm_image(0, 4096)).is_err());
    }

    #[test]
    fn an_arm_image_says_how_much_memory_it_takes() {
        for (image, end) in
            [(arm_image(0, 0x200_0000), 0x200_0000), (arm_image(0x8_0000, u64::MAX), u64::MAX)]
        {
            assert_eq!(inspect(Arch::Aarch64, &image).expect("is one").memory_end, end);
        }
    }

    #[test]
    fn a_bzimage_says_how_much_memory_it_takes() {
        assert_eq!(inspect(Arch::X86_64, &bzimage()).expect("is one").memory_end, 0x0300_0000);
    }
}
