//! What one core can do: products a second of each instruction that the CPU engine multiplies with, and bytes a second.
//!
//! `cargo run --release -p paceline-engine --example peaks`
//!
//! prints the best of several rounds. Products: fused multiply-adds in fp32, VDPBF16PS and TDPBF16PS on registers, and TDPBF16PS as the
//! engine uses it, four tiles loaded for four products, from the first-level and the second-level cache. Bytes: read and copied, from
//! working sets of several sizes. What the processor cannot run is not printed.

use std::hint::black_box;
use std::time::Instant;

use paceline_engine::cpu::{Cpu, CpuOptions, Simd};

/// Rounds of each measurement, of which the best counts.
const ROUNDS: usize = 9;

fn main() {
    #[cfg(target_arch = "x86_64")]
    products();
    println!("{:<44} {:>9} {:>9}", "GB/s", "read", "copied");
    for kib in [512, 4 * 1024, 64 * 1024, 512 * 1024] {
        let (read, copied) = bytes(kib * 1024);
        println!("{:<44} {read:9.1} {copied:9.1}", format!("  working set of {kib} KiB"));
    }
}

/// Seconds of the fastest round.
fn best(mut round: impl FnMut()) -> f64 {
    let seconds = |_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(seconds).fold(f64::INFINITY, f64::min)
}

/// GB/s of reading so many bytes again and again, and of copying half of them to the other half.
fn bytes(len: usize) -> (f64, f64) {
    let mut values = vec![1u64; len / 8];
    let passes = (256 * 1024 * 1024 / len).max(1);
    let read = best(|| {
        for _ in 0..passes {
            // Eight sums, so that additions do not wait for each other.
            let mut sums = [0u64; 64];
            for line in values.as_chunks::<64>().0 {
                sums.iter_mut().zip(line).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
            }
            black_box(sums);
        }
    });
    let (from, to) = values.split_at_mut(len / 16);
    let copied = best(|| {
        for _ in 0..passes {
            black_box(&mut *to).copy_from_slice(black_box(&*from));
        }
    });
    let moved = (passes * len) as f64 * 1e-9;
    (moved / read, moved / 2.0 / copied)
}

fn can_run(simd: Simd) -> bool {
    Cpu::new(CpuOptions { threads: 1, simd: Some(simd) }).is_ok()
}

#[cfg(target_arch = "x86_64")]
fn products() {
    println!("{:<44} {:>9}", "products", "GFLOP/s");
    let print = |what: &str, flops: f64, seconds: f64| {
        println!("  {what:<42} {:9.0}", flops * 1e-9 / seconds);
    };
    if can_run(Simd::Avx512) {
        // SAFETY: the processor has AVX-512.
        let seconds = best(|| unsafe { x86::multiply_adds() });
        print("fp32: fused multiply-adds, AVX-512", x86::MULTIPLY_ADDS, seconds);
    }
    if can_run(Simd::Avx512Bf16) {
        // SAFETY: the processor has AVX512_BF16.
        let seconds = best(|| unsafe { x86::pairs() });
        print("bf16: VDPBF16PS", x86::PAIRS, seconds);
    }
    if can_run(Simd::Amx) {
        // SAFETY: the processor has the tiles, and the kernel has let this process use them.
        let seconds = best(|| unsafe { x86::tiles() });
        print("bf16: TDPBF16PS", x86::TILES, seconds);
        for (what, kib) in [("first", 16), ("second", 768)] {
            let tiles = vec![0u8; kib * 1024 + 64];
            // Rows of tiles that cross lines of the caches take several times as long.
            let first = tiles.as_ptr().align_offset(64);
            // SAFETY: as above.
            let seconds = best(|| unsafe { x86::loaded_tiles(&tiles[first..first + kib * 1024]) });
            print(&format!("bf16: four loads, four TDPBF16PS, {what} level"), x86::TILES, seconds);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    const LOOPS: usize = 1_000_000;
    /// Floating-point operations of each loop below.
    pub const MULTIPLY_ADDS: f64 = (LOOPS * 16 * 16 * 2) as f64;
    pub const PAIRS: f64 = (LOOPS * 16 * 32 * 2) as f64;
    pub const TILES: f64 = (LOOPS / 4 * 4 * 16 * 16 * 32 * 2) as f64;

    /// # Safety
    /// Needs AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn multiply_adds() {
        let (a, b) = (black_box(_mm512_set1_ps(1.0)), black_box(_mm512_set1_ps(1e-9)));
        let mut sums = [_mm512_setzero_ps(); 16];
        for _ in 0..LOOPS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(a, b, *sum);
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// Needs AVX512_BF16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub unsafe fn pairs() {
        // SAFETY: all are vectors of 512 bits.
        let ones: __m512bh = unsafe { std::mem::transmute(black_box(_mm512_set1_epi16(0x3f80))) };
        let mut sums = [_mm512_setzero_ps(); 16];
        for _ in 0..LOOPS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, ones, ones);
            }
        }
        black_box(sums);
    }

    /// Palette 1, and eight tiles of 16 rows of 64 bytes.
    #[repr(align(64))]
    struct Configuration([u8; 64]);

    fn configuration() -> Configuration {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for tile in 0..8 {
            bytes[16 + 2 * tile] = 64;
            bytes[48 + tile] = 16;
        }
        Configuration(bytes)
    }

    /// # Safety
    /// Needs AMX tiles, and permission to use them.
    pub unsafe fn tiles() {
        // SAFETY: the caller vouches for the instructions; the compiler has no use of its own for tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) configuration().0.as_ptr());
            for _ in 0..LOOPS / 4 {
                asm!(
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    options(nomem, nostack)
                );
            }
            asm!("tilerelease");
        }
    }

    /// Four loads and four products at a time, from one place after the other.
    ///
    /// # Safety
    /// As [`tiles`]; `bytes` must be a multiple of four tiles of 1 KiB long.
    pub unsafe fn loaded_tiles(bytes: &[u8]) {
        let mut at = 0;
        // SAFETY: as above; tiles lie inside the bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) configuration().0.as_ptr());
            for _ in 0..LOOPS / 4 {
                asm!(
                    "tileloadd tmm6, [{at} + 1*{stride}]",
                    "tileloadd tmm4, [{at} + 1*{stride} + 1024]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{at} + 1*{stride} + 2048]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{at} + 1*{stride} + 3072]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    at = in(reg) bytes.as_ptr().add(at), stride = in(reg) 64usize,
                    options(readonly, nostack)
                );
                at += 4096;
                if at == bytes.len() {
                    at = 0;
                }
            }
            asm!("tilerelease");
        }
    }
}
