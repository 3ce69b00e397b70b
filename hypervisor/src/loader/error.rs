//! Errors in the files that a guest is to be started from.

use core::fmt;

use hostlink::bzimage::Unusable;

/// Why a guest cannot be loaded. The text says what is wrong, where, and how to fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// None that can be started on a PC.
    Kernel(Unusable),
    /// Not an arm64 Linux Image.
    NotAnArm64Image,
    /// A compressed kernel: arm64 has no self-extracting format, the boot loader unpacks it.
    CompressedKernel {
        /// The program that unpacks it.
        tool: &'static str,
    },
    /// An EFI application with a compressed kernel inside (`vmlinuz.efi`, CONFIG_EFI_ZBOOT).
    EfiZboot,
    /// An arm64 Image for a big-endian kernel.
    BigEndian,
    /// An ELF that cannot be started.
    UnsupportedElf {
        /// The reason.
        reason: &'static str,
    },
    /// A part of the kernel belongs at an address without RAM, or with boot data.
    SegmentOutsideRam {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
    },
    /// The kernel does not fit into memory.
    MemoryTooSmall {
        /// Bytes of memory that would suffice for the kernel alone.
        needed: u64,
        /// Bytes that the guest has.
        memory: u64,
    },
    /// More memory than there are addresses.
    MemoryTooLarge {
        /// Bytes requested.
        memory: u64,
    },
    /// The initial RAM disk does not fit next to the kernel.
    InitrdTooLarge {
        /// Its size in bytes.
        size: u64,
        /// Bytes that are free where the kernel can use a RAM disk.
        available: u64,
    },
    /// The command line is longer than the kernel accepts.
    CommandLineTooLong {
        /// Its length in bytes.
        length: usize,
        /// Maximum length in bytes, without the terminator.
        most: usize,
    },
    /// The command line contains a NUL, where the kernel would end it.
    CommandLineHasNul {
        /// Its offset in bytes.
        offset: usize,
    },
}

/// A number of bytes, displayed in readable units.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..0x400 => write!(f, "{} bytes", self.0),
            0x400..0x10_0000 => write!(f, "{} KiB", self.0.div_ceil(0x400)),
            _ => write!(f, "{} MiB", self.0.div_ceil(0x10_0000)),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Kernel(why) => why.fmt(f),
            Self::NotAnArm64Image => f.write_str(
                "kernel: not an arm64 Image ('ARM\\x64' at offset 56); \
                 give one such as Debian's /boot/vmlinuz-*-arm64 or arch/arm64/boot/Image",
            ),
            Self::CompressedKernel { tool } => {
                write!(f, "kernel: compressed; unpack it with {tool} and give the Image that comes out")
            }
            Self::EfiZboot => f.write_str(
                "kernel: a compressed EFI application (zboot), which only firmware can start; \
                 give the Image inside, arch/arm64/boot/Image of the same build",
            ),
            Self::BigEndian => {
                f.write_str("kernel: big-endian, which is not supported; give a little-endian one")
            }
            Self::UnsupportedElf { reason } => {
                write!(f, "kernel: {reason}; give an ELF for x86 with a PVH entry note, or a bzImage")
            }
            Self::SegmentOutsideRam { start, end } => write!(
                f,
                "kernel: its segment at {start:#x}..{end:#x} does not lie in free guest RAM; \
                 link it from 1 MiB up, or give the guest more memory"
            ),
            Self::MemoryTooSmall { needed, memory } => write!(
                f,
                "memory: {} given, {} needed to load the kernel; give the guest more memory",
                Size(memory),
                Size(needed)
            ),
            Self::MemoryTooLarge { memory } => {
                write!(f, "memory: {} is more than can be addressed; give the guest less", Size(memory))
            }
            Self::InitrdTooLarge { size, available } => write!(
                f,
                "initrd: {} large, but {} of guest memory are left beside the kernel; \
                 give the guest more memory or a smaller initrd",
                Size(size),
                Size(available)
            ),
            Self::CommandLineTooLong { length, most } => {
                write!(f, "command line: {length} bytes, the kernel takes {most}; shorten it")
            }
            Self::CommandLineHasNul { offset } => {
                write!(f, "command line: NUL character at byte {offset}; take it out")
            }
        }
    }
}

impl core::error::Error for LoadError {}

impl From<Unusable> for LoadError {
    fn from(why: Unusable) -> Self {
        Self::Kernel(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_input_and_the_way_out() {
        let text = LoadError::InitrdTooLarge { size: 300 << 20, available: 100 << 10 }.to_string();
        assert!(text.starts_with("initrd: 300 MiB large, but 100 KiB"), "{text}");
        assert!(text.contains("more memory"));
        assert!(LoadError::from(Unusable::TooOld { version: 0x0209 }).to_string().contains("protocol 2.09"));
        assert!(LoadError::from(Unusable::NotAKernel).to_string().contains("HdrS"));
    }
}
