//! The results of all rounds: the readings of each measure and contender, and their summaries.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::process_tree::Bytes;
use super::row::{Better, Unit};
use super::{Contender, Measure};

/// The result of one round, in the [`Unit`] of its measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    value: f64,
    bound: Bound,
}

/// Whether a value is exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// The exact value.
    Exact,
    /// A lower bound: the measurement ran into its timeout.
    AtLeast,
}

/// The readings of a run in the order of the rounds.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    readings: BTreeMap<(Measure, Contender), Vec<Reading>>,
    notes: Vec<String>,
    resolutions: BTreeMap<Contender, Duration>,
}

/// The median, the minimum and the maximum of several numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    pub(super) median: f64,
    least: f64,
    most: f64,
    bound: Bound,
}

// === impl Reading ===

impl Reading {
    /// A plain number.
    pub fn number(value: f64) -> Reading {
        Reading {
            value,
            bound: Bound::Exact,
        }
    }

    /// A count.
    #[expect(
        clippy::cast_precision_loss,
        reason = "figures are rounded for people anyway"
    )]
    pub fn count(count: u64) -> Reading {
        Reading::number(count as f64)
    }

    /// A time of which only a lower bound is known.
    pub(super) fn at_least(measure: Measure, patience: Duration) -> Reading {
        Reading {
            bound: Bound::AtLeast,
            ..Reading::time(measure, patience)
        }
    }

    /// A time, in the unit of `measure`.
    pub(super) fn time(measure: Measure, time: Duration) -> Reading {
        Reading::number(match measure.unit() {
            Unit::Microseconds => time.as_secs_f64() * 1e6,
            _ => time.as_secs_f64() * 1e3,
        })
    }

    /// An amount of memory.
    pub(super) fn memory(Bytes(bytes): Bytes) -> Reading {
        let Reading { value, bound } = Reading::count(bytes);
        Reading {
            value: value / 1e6,
            bound,
        }
    }

    /// Divides the value by `parts`.
    pub(super) fn per(self, parts: f64) -> Reading {
        Reading {
            value: self.value / parts,
            bound: self.bound,
        }
    }

    /// Returns a percentile: the value that `percent` of `times` do not exceed; `None` if there are
    /// none.
    pub(super) fn percentile(
        measure: Measure,
        times: &mut [Duration],
        percent: usize,
    ) -> Option<Reading> {
        times.sort();
        let rank = (times.len() * percent).div_ceil(100).max(1);
        let time = times.get(rank - 1)?;
        Some(Reading::time(measure, *time))
    }
}

// === impl Figures ===

impl Figures {
    /// Adds a reading.
    pub fn push(&mut self, contender: Contender, measure: Measure, reading: Reading) {
        let readings = self.readings.entry((measure, contender));
        readings.or_default().push(reading);
    }

    /// Adds the resolution of an observed time.
    pub(super) fn push_resolution(&mut self, contender: Contender, resolution: Duration) {
        let coarsest = self.resolutions.entry(contender).or_default();
        *coarsest = resolution.max(*coarsest);
    }

    /// Returns the coarsest resolution of all observed times.
    pub(super) fn coarsest_resolution(&self, contender: Contender) -> Option<Duration> {
        self.resolutions.get(&contender).copied()
    }

    /// Adds percentiles of `times`.
    pub(super) fn push_percentiles(
        &mut self,
        contender: Contender,
        measures: &[(Measure, usize)],
        times: &mut [Duration],
    ) {
        for (measure, percent) in measures {
            if let Some(reading) = Reading::percentile(*measure, times, *percent) {
                self.push(contender, *measure, reading);
            }
        }
    }

    /// Adds a note for the reader. Duplicates are dropped.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the notes for the reader.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns every measure that any contender has.
    pub fn measures(&self) -> Vec<Measure> {
        let mut measures: Vec<Measure> =
            self.readings.keys().map(|(measure, _)| *measure).collect();
        measures.dedup();
        measures
    }

    /// Returns the median of one measure of one contender.
    pub fn median(&self, measure: Measure, contender: Contender) -> Option<f64> {
        Some(self.summary(measure, contender)?.median)
    }

    /// Returns the summary of one measure of one contender.
    pub(super) fn summary(&self, measure: Measure, contender: Contender) -> Option<Summary> {
        let readings = self.readings.get(&(measure, contender))?;
        Summary::of(readings)
    }

    /// Returns how many times better Signpost is than kube-proxy, round by round. `None` if one of
    /// them has no value, or one that cannot be a divisor.
    pub(super) fn ratio(&self, measure: Measure) -> Option<Summary> {
        let of = |contender| self.readings.get(&(measure, contender));
        let (kube_proxy, signpost) = (of(Contender::KubeProxy)?, of(Contender::Signpost)?);
        let rounds = kube_proxy.iter().zip(signpost);
        let ratios = rounds.map(|(kube_proxy, signpost)| {
            let (dividend, divisor) = match measure.better() {
                Better::Lower => (kube_proxy, signpost),
                Better::Higher => (signpost, kube_proxy),
            };
            let divisible =
                dividend.value > 0.0 && divisor.value > 0.0 && divisor.bound == Bound::Exact;
            divisible.then(|| Reading {
                value: dividend.value / divisor.value,
                bound: dividend.bound,
            })
        });
        Summary::of(&ratios.collect::<Option<Vec<Reading>>>()?)
    }
}

// === impl Summary ===

impl Summary {
    fn of(readings: &[Reading]) -> Option<Summary> {
        let mut values: Vec<f64> = readings.iter().map(|reading| reading.value).collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len().is_multiple_of(2) {
            true => f64::midpoint(values[middle - 1], values[middle]),
            false => values[middle],
        };
        let bound = match readings.iter().all(|reading| reading.bound == Bound::Exact) {
            true => Bound::Exact,
            false => Bound::AtLeast,
        };
        Some(Summary {
            median,
            least,
            most,
            bound,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = match self.bound {
            Bound::Exact => "",
            Bound::AtLeast => "> ",
        };
        let [median, least, most] = [self.median, self.least, self.most].map(round);
        write!(f, "{more}{median}")?;
        match least == most {
            true => Ok(()),
            false => write!(f, " ({least} – {most})"),
        }
    }
}

/// Rounds to three significant digits, with a separator for thousands.
fn round(value: f64) -> String {
    let places = match value.abs() {
        v if v == 0.0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.995 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && left.is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    match rest {
        "" => grouped,
        rest => format!("{grouped}.{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_for_people() {
        let values = [0.0, 0.0314, 1.234, 12.34, 123.4, 33_200.0, 1_234_567.0];
        let shown = values.map(round);
        assert_eq!(
            shown,
            ["0", "0.031", "1.23", "12.3", "123", "33,200", "1,234,567"]
        );
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let mut figures = Figures::default();
        for (kube_proxy, signpost) in [(100.0, 1.0), (300.0, 2.0), (90.0, 1.0)] {
            let measure = Measure::ColdStart;
            figures.push(Contender::KubeProxy, measure, Reading::number(kube_proxy));
            figures.push(Contender::Signpost, measure, Reading::number(signpost));
        }
        let ratio = figures
            .ratio(Measure::ColdStart)
            .expect("both were measured");
        assert_eq!(ratio.to_string(), "100 (90.0 – 150)");
    }

    #[test]
    fn what_was_not_over_is_reported_to_be_more() {
        let mut figures = Figures::default();
        let patience = Duration::from_secs(90);
        let late = Reading::at_least(Measure::Repair, patience);
        figures.push(Contender::KubeProxy, Measure::Repair, late);
        figures.push(Contender::Signpost, Measure::Repair, Reading::number(9.0));
        let kube_proxy = figures.summary(Measure::Repair, Contender::KubeProxy);
        assert_eq!(kube_proxy.expect("it was measured").to_string(), "> 90,000");
        let ratio = figures.ratio(Measure::Repair).expect("both were measured");
        assert_eq!(ratio.to_string(), "> 10,000");
    }

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let mut times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        let percentile = |times: &mut [Duration], percent| {
            Reading::percentile(Measure::AddedP99, times, percent).map(|reading| reading.value)
        };
        assert_eq!(percentile(&mut times, 99), Some(99.0));
        assert_eq!(percentile(&mut times, 50), Some(50.0));
        assert_eq!(percentile(&mut times[..1], 99), Some(1.0));
        assert_eq!(percentile(&mut [], 99), None);
    }
}
