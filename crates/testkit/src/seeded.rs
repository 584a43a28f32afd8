//! Reproducible pseudo-random numbers.

/// A sequence of numbers determined by a seed (SplitMix64, public domain).
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Seeded {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Seeded {
        Seeded(seed)
    }

    /// A number below `end`.
    ///
    /// # Panics
    ///
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "there is no number below 0");
        let end = u64::try_from(end).expect("a usize fits in 64 bits");
        usize::try_from(self.next() % end).expect("it is below a usize")
    }

    /// Shuffles `list`.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Seeded;

    #[test]
    fn a_seed_decides_the_sequence() {
        let numbers = |seed| {
            let mut seeded = Seeded::new(seed);
            (0..20).map(|_| seeded.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn shuffling_keeps_every_entry() {
        let mut list: Vec<usize> = (0..50).collect();
        Seeded::new(1).shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
