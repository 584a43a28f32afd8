//! Parses a scrape.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

/// One scrape.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scrape {
    /// The type of each metric by its declared name.
    pub(crate) types: BTreeMap<String, String>,
    samples: Vec<Sample>,
}

/// One sample.
#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

// === impl Scrape ===

impl Scrape {
    /// Parses Prometheus' text format.
    pub(crate) fn parse(text: &str) -> Result<Scrape> {
        let mut scrape = Scrape::default();
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').context("a type has a name")?;
                scrape.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let sample = Sample::parse(line).with_context(|| line.to_owned())?;
                scrape.samples.push(sample);
            }
        }
        Ok(scrape)
    }

    /// Returns the label names of a metric, without `le`.
    pub(crate) fn labels(&self, metric: &str) -> BTreeSet<&str> {
        let labels = self.of(metric).flat_map(|sample| &sample.labels);
        let names = labels.map(|(name, _)| name.as_str());
        names.filter(|name| *name != "le").collect()
    }

    /// Whether a metric has any series.
    pub(crate) fn has(&self, metric: &str) -> bool {
        self.of(metric).next().is_some()
    }

    /// Returns the values of a label of a metric.
    pub(crate) fn values(&self, metric: &str, label: &str) -> BTreeSet<&str> {
        let labels = self.of(metric).flat_map(|sample| &sample.labels);
        let named = labels.filter(|(name, _)| name == label);
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the bounds of a histogram's buckets in order, without the last one, `+Inf`.
    pub(crate) fn bounds(&self, metric: &str) -> Result<Vec<f64>> {
        let bounds = self.values(metric, "le").into_iter();
        let finite = bounds.filter(|bound| *bound != "+Inf");
        let parsed: Result<Vec<f64>, _> = finite.map(str::parse).collect();
        let mut parsed = parsed.context("a bound is a number")?;
        parsed.sort_by(f64::total_cmp);
        Ok(parsed)
    }

    /// Returns the metrics that differ from `before`; a missing value counts as 0.
    pub(crate) fn moved_since(&self, before: &Scrape) -> BTreeSet<&str> {
        let moved = self.samples_moved_since(before);
        moved.map(|sample| self.metric(sample)).collect()
    }

    /// Returns the series that differ from `before`, each with its labels.
    pub(crate) fn series_moved_since(&self, before: &Scrape) -> BTreeSet<String> {
        self.samples_moved_since(before)
            .map(Sample::series)
            .collect()
    }

    /// Returns the sum of a metric's series of a family.
    pub(crate) fn sum(&self, metric: &str, family: &str) -> f64 {
        let of_family = |sample: &&Sample| {
            let mut labels = sample.labels.iter();
            labels.any(|(name, value)| name == "ip_family" && value == family)
        };
        let samples = self.of(metric).filter(of_family);
        samples.map(|sample| sample.value).sum()
    }

    fn samples_moved_since(&self, before: &Scrape) -> impl Iterator<Item = &Sample> {
        let known: BTreeMap<String, f64> = before
            .samples
            .iter()
            .map(|sample| (sample.series(), sample.value))
            .collect();
        self.samples.iter().filter(move |sample| {
            let value = known.get(&sample.series()).copied().unwrap_or_default();
            sample.value.total_cmp(&value).is_ne()
        })
    }

    /// Returns the declared name of a sample's metric.
    fn metric<'a>(&'a self, sample: &'a Sample) -> &'a str {
        let parts = ["_bucket", "_count", "_sum"];
        let whole = parts.iter().find_map(|part| {
            let name = sample.name.strip_suffix(part)?;
            (self.types.get(name)? == "histogram").then_some(name)
        });
        whole.unwrap_or(&sample.name)
    }

    fn of(&self, metric: &str) -> impl Iterator<Item = &Sample> {
        let samples = self.samples.iter();
        samples.filter(move |sample| self.metric(sample) == metric)
    }
}

// === impl Sample ===

impl Sample {
    fn parse(line: &str) -> Result<Sample> {
        let (series, value) = line.rsplit_once(' ').context("a sample has a value")?;
        let (name, labels) = match series.split_once('{') {
            None => (series, ""),
            Some((name, labels)) => (name, labels.strip_suffix('}').context("labels end")?),
        };
        // Signpost's labels contain neither commas nor quotes.
        let pairs = labels.split(',').filter(|pair| !pair.is_empty());
        let labels = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').context("a label has a value")?;
            Ok((name.to_owned(), value.trim_matches('"').to_owned()))
        });
        Ok(Sample {
            name: name.to_owned(),
            labels: labels.collect::<Result<_>>()?,
            value: value.parse()?,
        })
    }

    fn series(&self) -> String {
        format!("{}{:?}", self.name, self.labels)
    }
}
