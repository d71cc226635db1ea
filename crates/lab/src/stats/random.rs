//! Random numbers that are the same on every machine: SplitMix64 (Steele, Lea and Flood 2014).

/// A generator with 64 bits of state, determined by its seed.
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to one below the limit.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_paper() {
        // Vigna's reference implementation, seed 1234567.
        let mut draw = SplitMix(1_234_567);
        let drawn = [draw.bits(), draw.bits(), draw.bits()];
        assert_eq!(drawn, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn every_number_below_the_limit_comes_up() {
        let mut draw = SplitMix(1);
        let mut seen = [false; 7];
        (0..200).for_each(|_| seen[draw.below(7)] = true);
        assert_eq!(seen, [true; 7]);
    }
}
