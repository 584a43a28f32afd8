//! A histogram of recent durations, in a small amount of memory however many there are.

use std::array;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crds::node_proxy::latency::{Microseconds, Quantiles};

/// The resolution of the window: it forgets old durations in steps of this.
pub(super) const STEP: Duration = Duration::from_secs(30);
/// The number of equal buckets per power of two, as an exponent of two. A bucket is at most 1/32 as
/// wide as the durations in it are long.
const FINENESS: u32 = 5;
/// The number of bits of the longest duration, in microseconds, that is distinguished from longer
/// ones: just over an hour.
const BITS: u32 = 32;
const LONGEST: u64 = (1 << BITS) - 1;
/// The number of buckets. The first two powers have one for each microsecond.
const BUCKETS: usize = ((BITS - FINENESS + 1) as usize) << FINENESS;

/// The durations of a sliding window, as one histogram for each [`STEP`] of it.
///
/// Stores the count of each bucket, and the longest duration: of the 896 counts of a step only
/// those that are not 0, a few dozen. A summary of a million durations costs as much as one of a
/// thousand.
#[derive(Debug)]
pub(super) struct Window {
    length: Duration,
    /// Oldest first.
    steps: VecDeque<Step>,
}

/// The durations of one step of time.
#[derive(Debug)]
struct Step {
    began: Instant,
    counts: BTreeMap<u16, u32>,
    longest: Duration,
}

// === impl Window ===

impl Window {
    /// An empty window of this length.
    pub(super) const fn new(length: Duration) -> Window {
        Window {
            length,
            steps: VecDeque::new(),
        }
    }

    /// Records a duration that was measured at `now`.
    pub(super) fn push(&mut self, now: Instant, duration: Duration) {
        self.forget(now);
        let current = self.steps.back_mut();
        let current = current.filter(|step| now.saturating_duration_since(step.began) < STEP);
        match current {
            Some(step) => step.add(duration),
            None => {
                let mut step = Step::new(now);
                step.add(duration);
                self.steps.push_back(step);
            }
        }
    }

    /// Returns the quantiles of the durations in the window before `now`, which may be up to one
    /// [`STEP`] shorter; `None` if there are none. The maximum is exact. Other quantiles are the
    /// upper end of their bucket: never too low, and too high by at most 1/32.
    pub(super) fn quantiles(&mut self, now: Instant) -> Option<Quantiles> {
        self.forget(now);
        let mut counts: [u64; BUCKETS] = array::from_fn(|_| 0);
        for (bucket, count) in self.steps.iter().flat_map(|step| &step.counts) {
            if let Some(sum) = counts.get_mut(usize::from(*bucket)) {
                *sum += u64::from(*count);
            }
        }
        let longest = Microseconds::from(self.steps.iter().map(|step| step.longest).max()?);
        let total: u64 = counts.iter().sum();
        // The nearest rank: the smallest value that `percent` percent do not exceed.
        let rank = |percent: u64| {
            let rank = (total * percent).div_ceil(100).max(1);
            let mut below = 0;
            let buckets = (0u16..).zip(&counts);
            let mut reached = buckets.skip_while(|(_, count)| {
                below += **count;
                below < rank
            });
            let end = reached
                .next()
                .map_or(LONGEST, |(bucket, _)| upper_end(bucket));
            Microseconds::new(end).min(longest)
        };
        Some(Quantiles {
            p50_microseconds: rank(50),
            p99_microseconds: rank(99),
            max_microseconds: longest,
        })
    }

    fn forget(&mut self, now: Instant) {
        while let Some(step) = self.steps.front()
            && now.saturating_duration_since(step.began) > self.length
        {
            self.steps.pop_front();
        }
    }
}

// === impl Step ===

impl Step {
    fn new(began: Instant) -> Step {
        Step {
            began,
            counts: BTreeMap::new(),
            longest: Duration::ZERO,
        }
    }

    fn add(&mut self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(LONGEST);
        let count = self.counts.entry(bucket(microseconds)).or_default();
        *count = count.saturating_add(1);
        self.longest = self.longest.max(duration);
    }
}

/// Returns the bucket of a duration in microseconds.
fn bucket(microseconds: u64) -> u16 {
    let value = microseconds.min(LONGEST);
    let octave = value.checked_ilog2().unwrap_or(0).saturating_sub(FINENESS);
    let bucket = (u64::from(octave) << FINENESS) + (value >> octave);
    // There are fewer than a thousand buckets.
    u16::try_from(bucket).unwrap_or(u16::MAX)
}

/// Returns the longest duration in a bucket, in microseconds.
fn upper_end(bucket: u16) -> u64 {
    let octave = (bucket >> FINENESS).saturating_sub(1);
    let within = u64::from(bucket - (octave << FINENESS));
    ((within + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(300);

    fn p50_p99_max(window: &mut Window, now: Instant) -> Option<[u64; 3]> {
        let quantiles = window.quantiles(now)?;
        let Quantiles {
            p50_microseconds: p50,
            p99_microseconds: p99,
            max_microseconds: max,
        } = quantiles;
        Some([p50, p99, max].map(Microseconds::count))
    }

    #[test]
    fn quantiles_are_never_too_low_and_at_most_a_32nd_too_high() {
        let now = Instant::now();
        for scale in [1, 7, 130, 99_000, 2_000_000] {
            let mut window = Window::new(LENGTH);
            for number in 1..=100 {
                window.push(now, Duration::from_micros(number * scale));
            }
            let [p50, p99, max] = p50_p99_max(&mut window, now).expect("a hundred durations");
            for (said, exact) in [(p50, 50 * scale), (p99, 99 * scale)] {
                assert!(said >= exact, "{said} for {exact}");
                assert!(said - exact <= exact / 32, "{said} for {exact}");
            }
            assert_eq!(max, 100 * scale);
        }
    }

    #[test]
    fn every_duration_has_a_bucket_that_ends_no_earlier() {
        for microseconds in
            (0..40).flat_map(|power| [1u64 << power, (1 << power) + 1, (2 << power) - 1])
        {
            let bucket = bucket(microseconds);
            assert!(usize::from(bucket) < BUCKETS);
            let end = upper_end(bucket);
            assert!(end >= microseconds.min(LONGEST), "{end} for {microseconds}");
            assert!(bucket == 0 || upper_end(bucket - 1) < microseconds.min(LONGEST));
        }
    }

    #[test]
    fn a_single_duration_is_reported_exactly() {
        let now = Instant::now();
        let mut window = Window::new(LENGTH);
        window.push(now, Duration::from_micros(123_457));
        assert_eq!(p50_p99_max(&mut window, now), Some([123_457; 3]));
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let start = Instant::now();
        let mut window = Window::new(LENGTH);
        window.push(start, Duration::from_secs(60));
        let later = start + LENGTH;
        window.push(later, Duration::from_secs(1));
        assert_eq!(
            p50_p99_max(&mut window, later).map(|[.., max]| max),
            Some(60_000_000)
        );
        let now = later + Duration::from_millis(1);
        assert_eq!(p50_p99_max(&mut window, now), Some([1_000_000; 3]));
        assert_eq!(p50_p99_max(&mut window, now + LENGTH), None);
    }

    /// At a hundred changes a second, a window has few steps, and they are small.
    #[test]
    fn a_window_full_of_changes_stays_small() {
        let start = Instant::now();
        let mut window = Window::new(LENGTH);
        for number in 0..60_000u32 {
            let at = start + Duration::from_millis(10) * number;
            window.push(at, Duration::from_micros(u64::from(number % 1000) * 17));
        }
        assert!(window.steps.len() <= 11, "{} steps", window.steps.len());
        let counts = window.steps.iter().map(|step| step.counts.len());
        assert!(counts.max() <= Some(BUCKETS));
        let end = start + Duration::from_secs(600);
        let total = window.steps.iter().flat_map(|step| step.counts.values());
        let total: u32 = total.sum();
        assert!((27_000..=30_100).contains(&total), "{total}");
        assert!(window.quantiles(end).is_some());
    }
}
