//! Seeded random numbers.

/// The generator of Steele, Lea and Flood (2014).
#[derive(Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    /// A stream that depends on each of the keys and on their order.
    pub fn new(keys: &[u64]) -> Self {
        let mut draw = Self(0);
        for key in keys {
            draw.0 = draw.next().wrapping_add(*key);
        }
        draw.0 = draw.next();
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// From 0 up to 1, 24 bits of it.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Standard normal (Box and Muller 1958); less than six away from 0.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * f64::from(1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * f64::from(self.unit())).cos()
    }
}
