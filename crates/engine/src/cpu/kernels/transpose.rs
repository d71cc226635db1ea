//! Packing weights for backward: columns become rows.

/// Side of the blocks that are transposed in registers.
const SIDE: usize = 4;

/// Writes `cols` rows of `from`, `stride` apart, as the columns of rows of `width`; further columns become zero.
pub(crate) fn transpose(from: &[f32], stride: usize, cols: usize, to: &mut [f32], width: usize) {
    let depth = to.len() / width;
    let (whole_cols, whole_depth) = (cols / SIDE * SIDE, depth / SIDE * SIDE);
    if depth > 0 && cols > 0 {
        assert!((cols - 1) * stride + depth <= from.len() && cols <= width);
    }
    for column in (0..whole_cols).step_by(SIDE) {
        for k in (0..whole_depth).step_by(SIDE) {
            // SAFETY: rows `column..column + 4` have `depth` values, as asserted; the target has `depth` rows.
            unsafe {
                turn(
                    from.as_ptr().add(column * stride + k),
                    stride,
                    to.as_mut_ptr().add(k * width + column),
                    width,
                );
            }
        }
    }
    let mut single = |column: usize, k: usize| to[k * width + column] = from[column * stride + k];
    for column in 0..whole_cols {
        (whole_depth..depth).for_each(|k| single(column, k));
    }
    for column in whole_cols..cols {
        (0..depth).for_each(|k| single(column, k));
    }
    if cols < width {
        for row in to.chunks_exact_mut(width) {
            row[cols..].fill(0.0);
        }
    }
}

/// Transposes a block of 4x4.
///
/// # Safety
/// Four rows of four values must be valid from both pointers, at their strides.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn turn(from: *const f32, stride: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::{_MM_TRANSPOSE4_PS, _mm_loadu_ps, _mm_storeu_ps};
    // SAFETY: the caller vouches; SSE is part of x86-64.
    unsafe {
        let mut a = _mm_loadu_ps(from);
        let mut b = _mm_loadu_ps(from.add(stride));
        let mut c = _mm_loadu_ps(from.add(2 * stride));
        let mut d = _mm_loadu_ps(from.add(3 * stride));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        _mm_storeu_ps(to, a);
        _mm_storeu_ps(to.add(width), b);
        _mm_storeu_ps(to.add(2 * width), c);
        _mm_storeu_ps(to.add(3 * width), d);
    }
}

/// Transposes a block of 4x4.
///
/// # Safety
/// Four rows of four values must be valid from both pointers, at their strides.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) unsafe fn turn(from: *const f32, stride: usize, to: *mut f32, width: usize) {
    for i in 0..SIDE {
        for j in 0..SIDE {
            // SAFETY: the caller vouches.
            unsafe { *to.add(j * width + i) = *from.add(i * stride + j) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_comes_out_turned_and_padded() {
        for (cols, depth, width) in
            [(1, 1, 16), (4, 4, 16), (7, 9, 16), (32, 13, 32), (30, 64, 32), (0, 3, 8)]
        {
            let stride = depth + 3;
            let from: Vec<f32> = (0..cols * stride + depth).map(|i| i as f32 + 1.0).collect();
            let mut to = vec![f32::NAN; depth * width];
            transpose(&from, stride, cols, &mut to, width);
            for k in 0..depth {
                for column in 0..width {
                    let expected = if column < cols { from[column * stride + k] } else { 0.0 };
                    assert_eq!(to[k * width + column], expected, "{cols} {depth} {k} {column}");
                }
            }
        }
    }
}
