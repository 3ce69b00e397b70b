//! The board's half of an architecture.

/// Implements the traits of the machine below for an architecture that runs on this board, with
/// this data for each CPU. Additional items about caches may follow.
macro_rules! made_board {
    ($arch:ty, $data:ty $(, $item:item)*) => {
        impl $crate::vm::arch::Clock for $arch {
            fn now() -> u64 {
                $crate::vm::made::offer::now::<Self>()
            }

            fn hz() -> u64 {
                $crate::vm::made::HZ
            }
        }

        // SAFETY: each CPU of the board is a thread, and the thread knows its CPU; its data is for
        // this thread.
        unsafe impl $crate::vm::arch::Cpus for $arch {
            type CpuData = $data;

            fn this_cpu() -> &'static $crate::vm::PerCpu<Self> {
                $crate::vm::made::offer::this_cpu()
            }

            fn cpu(index: u32) -> Option<&'static $crate::vm::PerCpu<Self>> {
                $crate::vm::made::offer::cpu(index)
            }

            fn take_interrupts() {
                $crate::vm::made::offer::take_interrupts::<Self>();
            }

            fn wait_for_interrupt() {
                $crate::vm::made::offer::wait_for_interrupt::<Self>();
            }

            fn kick(cpu: &$crate::vm::PerCpu<Self>) {
                $crate::vm::made::offer::kick(cpu);
            }

            fn arm_timer(deadline: u64, _: u64) {
                $crate::vm::made::offer::arm_timer::<Self>(deadline);
            }

            fn stop() -> ! {
                unreachable!("no CPU of the board is given up")
            }
        }

        impl $crate::vm::arch::Board for $arch {
            $($item)*

            fn host() -> Option<&'static $crate::vm::Host<Self>> {
                $crate::vm::made::offer::host()
            }

            unsafe fn zero(start: u64, size: u64) {
                // SAFETY: the caller vouches for the range.
                unsafe { $crate::vm::made::offer::zero::<Self>(start, size) };
            }

            fn heap_used() -> u64 {
                0
            }

            fn heap_left() -> u64 {
                1 << 30
            }

            fn stack_left() -> u64 {
                64 << 10
            }

            fn receive_control() -> Option<u8> {
                $crate::vm::made::offer::receive_control::<Self>()
            }

            fn send_control(byte: u8) {
                $crate::vm::made::offer::send_control::<Self>(byte);
            }

            fn exit(code: hostlink::exit::ExitCode) -> ! {
                $crate::vm::made::offer::exit::<Self>(code)
            }
        }
    };
}
pub(crate) use made_board;
