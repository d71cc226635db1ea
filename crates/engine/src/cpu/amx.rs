//! Products on AMX tiles. Stable Rust has no intrinsics for them, so this file has the few instructions as assembly.
//!
//! A tile register holds 16 rows of 64 bytes. TDPBF16PS multiplies a tile of 16 rows of 16 pairs with one of 16 pairs of rows
//! of 16 columns and adds to 16 by 16 sums in fp32: it adds up the first values of all pairs, and the second ones, then both, and
//! then what was there. It rounds each of these sums to nearest even, whatever the modes of the thread are, and takes denormal
//! operands and results as zero.

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Tiles, obstacle};

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) mod played;

use super::element::Bf16;

/// Values of one row of a tile of operands.
pub(super) const DEPTH: usize = 32;
/// Rows and columns of a tile of sums.
pub(super) const SIDE: usize = 16;

/// Where one step of a sum finds its operands, in values from their starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub a: u32,
    pub b: u32,
}

/// What sums begin from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Zero,
    /// What `out` holds.
    Sums,
}

/// Up to 2 by 2 tiles of sums over the same steps.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// First row of each tile of rows: values, [`DEPTH`] of them for each step.
    pub a: [*const Bf16; 2],
    /// From one row to the next, in values.
    pub a_stride: usize,
    /// Each tile of columns: for each step [`SIDE`] rows of [`SIDE`] pairs.
    pub b: [*const Bf16; 2],
    /// Tiles down and across: 1 or 2.
    pub tiles: (usize, usize),
    pub steps: &'a [Step],
    pub start: Start,
    /// The sums: [`SIDE`] rows for each tile down.
    pub out: *mut f32,
    /// From one row of sums to the next, in values.
    pub out_stride: usize,
}

/// Columns of a block of two tiles.
pub(super) const WIDTH: usize = 2 * SIDE;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::marker::PhantomData;

    use super::{Block, SIDE, Start, Step, WIDTH};
    use crate::cpu::element::Bf16;
    use crate::cpu::simd::Obstacle;
    use crate::cpu::trial;

    /// Why this process cannot use the tiles, or they do not compute what they should.
    pub fn obstacle() -> Option<Obstacle> {
        if !has_flags() {
            return Some(Obstacle::Processor);
        }
        if !permitted() {
            return Some(Obstacle::Kernel);
        }
        // SAFETY: the trial allocates nothing and takes no lock.
        match unsafe { trial::passes(product_is_right) } {
            Some(true) => None,
            Some(false) => Some(Obstacle::Failed),
            None => Some(Obstacle::Untried),
        }
    }

    /// AMX-TILE and AMX-BF16, and XSAVE to ask for them.
    fn has_flags() -> bool {
        if __cpuid(0).eax < 7 {
            return false;
        }
        let (features, more) = (__cpuid(1), __cpuid_count(7, 0));
        features.ecx >> 27 & 1 == 1 && more.edx >> 24 & 1 == 1 && more.edx >> 22 & 1 == 1
    }

    /// Asks the kernel for the tiles' place in the state of all threads; a container may refuse it.
    fn permitted() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: the call changes what this process may use, nothing else.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    /// A product of values that are exact.
    fn product_is_right() -> bool {
        let mut a = [Bf16(0); 512];
        let b = [Bf16(0x4000); 512];
        for (i, value) in a.iter_mut().enumerate() {
            *value = if (i / 32).is_multiple_of(2) { Bf16(0x3f80) } else { Bf16(0xbf00) };
        }
        let mut out = [0.5f32; SIDE * WIDTH];
        let block = Block {
            a: [a.as_ptr(); 2],
            a_stride: 32,
            b: [b.as_ptr(); 2],
            tiles: (1, 2),
            steps: &[Step { a: 0, b: 0 }],
            start: Start::Sums,
            out: out.as_mut_ptr(),
            out_stride: WIDTH,
        };
        // SAFETY: this is the copy of the process in which they are tried; the arrays are whole tiles.
        unsafe { Tiles::configured().multiply(&block) };
        let expected = |row: usize| if row.is_multiple_of(2) { 64.5 } else { -31.5 };
        out.chunks_exact(WIDTH).enumerate().all(|(row, sums)| sums.iter().all(|&sum| sum == expected(row)))
    }

    /// The tile registers of this thread, configured while it lives.
    pub struct Tiles(PhantomData<*const ()>);

    /// Palette 1, and eight tiles of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Configuration([u8; 64]);

    static CONFIGURATION: Configuration = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            bytes[16 + 2 * tile] = 64;
            bytes[48 + tile] = 16;
            tile += 1;
        }
        Configuration(bytes)
    };

    impl Tiles {
        /// # Safety
        /// [`obstacle`] must have found none, but for the trial itself.
        pub unsafe fn configured() -> Self {
            // SAFETY: the caller vouches for the instruction.
            unsafe {
                asm!("ldtilecfg [{}]", in(reg) CONFIGURATION.0.as_ptr(), options(nostack, preserves_flags))
            };
            Self(PhantomData)
        }

        /// Computes a block.
        ///
        /// # Safety
        /// All tiles of the block must be valid at all its steps, and nobody else may use `out`.
        pub unsafe fn multiply(&self, block: &Block) {
            // SAFETY: the caller vouches for the tiles; the registers are configured while `self` lives.
            unsafe {
                match block.tiles {
                    (2, 2) => sums::<2, 2>(block),
                    (2, 1) => sums::<2, 1>(block),
                    (1, 2) => sums::<1, 2>(block),
                    _ => sums::<1, 1>(block),
                }
            }
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: the registers were configured, so the instruction exists.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }

    /// Runs an instruction on the tile of sums of (row, column).
    macro_rules! on_sums {
        ($text:literal, $block:expr, $row:literal, $column:literal) => {
            asm!(
                $text,
                at = in(reg) $block.out.add($row * SIDE * $block.out_stride + $column * SIDE),
                stride = in(reg) 4 * $block.out_stride,
                options(nostack, preserves_flags)
            )
        };
    }

    /// Sums are in tmm0 to tmm3, rows in tmm4 and tmm5, columns in tmm6 and tmm7. They stay there from one block of instructions to the next:
    /// the compiler has no use of its own for tiles.
    ///
    /// # Safety
    /// As [`Tiles::multiply`].
    #[inline(always)]
    unsafe fn sums<const DOWN: usize, const ACROSS: usize>(block: &Block) {
        let a_stride = 2 * block.a_stride;
        // SAFETY: the caller vouches for the tiles.
        unsafe {
            match block.start {
                Start::Zero => asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nomem, nostack, preserves_flags)
                ),
                Start::Sums => {
                    on_sums!("tileloadd tmm0, [{at} + 1*{stride}]", block, 0, 0);
                    if ACROSS == 2 {
                        on_sums!("tileloadd tmm1, [{at} + 1*{stride}]", block, 0, 1);
                    }
                    if DOWN == 2 {
                        on_sums!("tileloadd tmm2, [{at} + 1*{stride}]", block, 1, 0);
                    }
                    if DOWN == 2 && ACROSS == 2 {
                        on_sums!("tileloadd tmm3, [{at} + 1*{stride}]", block, 1, 1);
                    }
                }
            }
            for step in block.steps {
                let (a, b) = (step.a as usize, step.b as usize);
                let (a0, a1) = (block.a[0].add(a), block.a[DOWN - 1].add(a));
                let (b0, b1) = (block.b[0].add(b), block.b[ACROSS - 1].add(b));
                match (DOWN, ACROSS) {
                    (2, 2) => asm!(
                        "tileloadd tmm6, [{b0} + 1*{b_stride}]",
                        "tileloadd tmm4, [{a0} + 1*{a_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{b1} + 1*{b_stride}]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        "tileloadd tmm5, [{a1} + 1*{a_stride}]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7",
                        a0 = in(reg) a0, a1 = in(reg) a1, a_stride = in(reg) a_stride,
                        b0 = in(reg) b0, b1 = in(reg) b1, b_stride = in(reg) 64usize,
                        options(readonly, nostack, preserves_flags)
                    ),
                    (2, 1) => asm!(
                        "tileloadd tmm6, [{b0} + 1*{b_stride}]",
                        "tileloadd tmm4, [{a0} + 1*{a_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm5, [{a1} + 1*{a_stride}]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        a0 = in(reg) a0, a1 = in(reg) a1, a_stride = in(reg) a_stride,
                        b0 = in(reg) b0, b_stride = in(reg) 64usize,
                        options(readonly, nostack, preserves_flags)
                    ),
                    (1, 2) => asm!(
                        "tileloadd tmm4, [{a0} + 1*{a_stride}]",
                        "tileloadd tmm6, [{b0} + 1*{b_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{b1} + 1*{b_stride}]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        a0 = in(reg) a0, a_stride = in(reg) a_stride,
                        b0 = in(reg) b0, b1 = in(reg) b1, b_stride = in(reg) 64usize,
                        options(readonly, nostack, preserves_flags)
                    ),
                    _ => asm!(
                        "tileloadd tmm4, [{a0} + 1*{a_stride}]",
                        "tileloadd tmm6, [{b0} + 1*{b_stride}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        a0 = in(reg) a0, a_stride = in(reg) a_stride,
                        b0 = in(reg) b0, b_stride = in(reg) 64usize,
                        options(readonly, nostack, preserves_flags)
                    ),
                }
            }
            on_sums!("tilestored [{at} + 1*{stride}], tmm0", block, 0, 0);
            if ACROSS == 2 {
                on_sums!("tilestored [{at} + 1*{stride}], tmm1", block, 0, 1);
            }
            if DOWN == 2 {
                on_sums!("tilestored [{at} + 1*{stride}], tmm2", block, 1, 0);
            }
            if DOWN == 2 && ACROSS == 2 {
                on_sums!("tilestored [{at} + 1*{stride}], tmm3", block, 1, 1);
            }
        }
    }
}
