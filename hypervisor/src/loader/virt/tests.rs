use super::*;
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

const GUEST: GuestConfig<'static> = GuestConfig {
    memory_size: 256 * MIB,
    vcpu_count: 2,
    command_line: "console=ttyAMA0",
    functions: &[],
    is_firmware: false,
};

fn image(text_offset: u64, image_size: u64, flags: u64, length: usize) -> Vec<u8> {
    let mut file = vec![0x1f; length];
    file[header::TEXT_OFFSET..][..8].copy_from_slice(&text_offset.to_le_bytes());
    file[header::IMAGE_SIZE..][..8].copy_from_slice(&image_size.to_le_bytes());
    file[header::FLAGS..][..8].copy_from_slice(&flags.to_le_bytes());
    file[header::MAGIC..][..4].copy_from_slice(MAGIC);
    file
}

fn error(kernel: &[u8]) -> LoadError {
    plan(kernel, None, &GUEST).expect_err("refused")
}

#[test]
fn what_is_no_image_is_said_to_be_none() {
    let mut without_magic = image(0, 0x1000, 0, 0x1000);
    without_magic[header::MAGIC] = b'a';
    let short = image(0, 0x1000, 0, header::SIZE);
    for kernel in [&[][..], b"MZ", b"\x7fELF\x02", &[0; 4096], &without_magic, &short[..header::SIZE - 1]] {
        assert_eq!(error(kernel), LoadError::NotAnArm64Image);
    }
    assert!(plan(&short, None, &GUEST).is_ok());
    assert_eq!(error(&image(0, 0x1000, 0xb, 0x1000)), LoadError::BigEndian);
}

#[test]
fn compressed_kernels_are_refused_with_the_way_out() {
    let mut zboot = image(0, 0x1000, 0, 0x1000);
    zboot[..8].copy_from_slice(b"MZ\0\0zimg");
    assert_eq!(error(&zboot), LoadError::EfiZboot);
    for (magic, tool) in COMPRESSED {
        let mut file = vec![0; 100];
        file[..magic.len()].copy_from_slice(magic);
        assert_eq!(error(&file), LoadError::CompressedKernel { tool });
        assert!(LoadError::CompressedKernel { tool }.to_string().contains(tool));
    }
    let mut stub = image(0, 0x1000, 0xa, 0x1000);
    stub[..2].copy_from_slice(EFI);
    assert!(plan(&stub, None, &GUEST).is_ok(), "an uncompressed kernel has an EFI header too");
}

#[test]
fn what_does_not_fit_is_refused() {
    let huge = [
        image(0, 256 * MIB, 0, 64),
        image(u64::MAX, u64::MAX, 0, 64),
        image(u64::MAX - 0x1000, 0x1000, 0, 64),
        image(256 * MIB, 1, 0, 64),
        image(0, 255 * MIB, 0, 64),
    ];
    for kernel in &huge {
        let error = error(kernel);
        assert!(matches!(error, LoadError::MemoryTooSmall { needed, .. } if needed > 255 * MIB), "{error:?}");
    }
    let (kernel, initrd) = (image(0, 254 * MIB, 0, 64), [0; 8]);
    let refused = plan(&kernel, Some(&initrd), &GUEST);
    assert_eq!(refused, Err(LoadError::InitrdTooLarge { size: 8, available: 0 }));
    for memory_size in [0, MEMORY_MIN - 1, MEMORY_MAX + 1, u64::MAX] {
        assert!(plan(&kernel, None, &GuestConfig { memory_size, ..GUEST }).is_err());
    }
}

#[test]
fn the_command_line_is_checked() {
    let kernel = image(0, 0x1000, 0, 64);
    let with = |command_line: &str| plan(&kernel, None, &GuestConfig { command_line, ..GUEST }).map(|_| ());
    assert_eq!(with(&"x".repeat(2048)), Err(LoadError::CommandLineTooLong { length: 2048, most: 2047 }));
    assert_eq!(with("a\0b"), Err(LoadError::CommandLineHasNul { offset: 1 }));
    assert_eq!((with(&"x".repeat(2047)), with("")), (Ok(()), Ok(())));
}

#[test]
fn parts_lie_in_ram_aligned_and_apart() {
    let initrd = vec![7; 3 * MIB as usize + 5];
    for (text_offset, image_size) in [(0, 0x28_0000), (0x8_0000, 40 * MIB), (0, 2 * MIB), (0x123, 1)] {
        let kernel = image(text_offset, image_size, 0xa, 0x1234);
        let plan = plan(&kernel, Some(&initrd), &GUEST).unwrap();
        let [image, tree, disk] = plan.placements.as_slice() else { panic!("three parts") };
        assert_eq!((image.gpa, plan.entry), (RAM + text_offset, Entry { pc: image.gpa, x0: tree.gpa }));
        assert!(tree.gpa >= image.gpa + image_size.max(0x1234) && tree.gpa % BLOCK_SIZE == 0);
        assert!((tree.bytes.len() as u64) < BLOCK_SIZE && tree.range().end <= disk.gpa);
        assert!(disk.gpa % PAGE_SIZE == 0 && disk.range().end <= RAM + GUEST.memory_size);
        assert_eq!((&*image.bytes, &*disk.bytes), (kernel.as_slice(), initrd.as_slice()));
        let fdt = Fdt::new(&tree.bytes).unwrap();
        let chosen = fdt.find_node("/chosen").unwrap();
        let start = chosen.property("linux,initrd-start").unwrap().value().to_vec();
        assert_eq!(start, disk.gpa.to_be_bytes());
    }
}

#[test]
fn an_old_kernel_has_its_old_offset() {
    let plan = plan(&image(0x10_0000, 0, 0, 0x1000), Some(&[]), &GUEST).map(|plan| plan.entry.pc);
    assert_eq!(plan, Ok(RAM + 0x8_0000));
}

#[test]
fn a_large_guest_keeps_its_initrd_near() {
    let kernel = image(0, MIB, 0, 64);
    let machine = GuestConfig { memory_size: MEMORY_MAX, vcpu_count: 255, ..GUEST };
    let plan = plan(&kernel, Some(&[1]), &machine).unwrap();
    assert!(plan.placements[2].range().end <= RAM + WINDOW_SIZE);
    let large = image(0, WINDOW_SIZE - BLOCK_SIZE, 0, 64);
    assert!(super::plan(&large, Some(&[1]), &machine).is_err());
}

#[test]
fn firmware_of_any_contents_is_behind_the_device_tree() {
    let file = vec![0x1f; 5000];
    let plan = plan(&file, None, &GuestConfig { is_firmware: true, ..GUEST }).expect("is taken");
    assert_eq!(plan.entry, Entry { pc: RAM + BLOCK_SIZE, x0: RAM });
    let places: Vec<_> = plan.placements.iter().map(|placement| placement.gpa).collect();
    assert_eq!(places, [RAM + BLOCK_SIZE, RAM]);
    assert_eq!(*plan.placements[0].bytes, file);
}
