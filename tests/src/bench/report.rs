//! Figures as a page for readers.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Zoned;

use super::chart::draw;
use super::figures::Summary;
use super::{Contender, Figures, Machine, Measure};
use crate::differential::Mode;

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The mode of both contenders.
    pub mode: Mode,
    /// The number of Services and of endpoints per Service.
    pub size: (u32, u32),
    /// The number of rounds.
    pub rounds: u32,
    /// The command line.
    pub command: String,
    /// The start time.
    pub began: Zoned,
}

/// The report on one size.
#[derive(Debug)]
pub struct Report<'a> {
    /// The parameters of the run.
    pub run: &'a Run,
    /// The machine of the run.
    pub machine: &'a Machine,
    /// The results.
    pub figures: &'a Figures,
    /// Other results of the same run, for comparison.
    pub others: Vec<(Other, &'a Figures)>,
}

/// How the other results differ.
#[derive(Debug, Clone, Copy)]
pub enum Other {
    /// They have fewer Services.
    Size(u32),
    /// They use another mode.
    Mode(Mode),
}

// === impl Run ===

impl Run {
    fn name(&self) -> String {
        let (services, endpoints) = self.size;
        let date = self.began.date();
        format!("{date}-{}-{services}x{endpoints}", self.mode)
    }
}

// === impl Report ===

impl Report<'_> {
    /// Writes the table and the chart to `folder`; returns the path of the table.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).context("failed to make the folder for results")?;
        let page = folder.join(self.run.name()).with_added_extension("md");
        let chart = page.with_extension("svg");
        fs::write(&chart, draw(&self.title(), self.figures))
            .with_context(|| format!("failed to write {}", chart.display()))?;
        fs::write(&page, self.page())
            .with_context(|| format!("failed to write {}", page.display()))?;
        Ok(page)
    }

    fn title(&self) -> String {
        let (services, endpoints) = self.run.size;
        format!(
            "kube-proxy and Signpost, {}, {services} Services x {endpoints} endpoints",
            self.run.mode
        )
    }

    /// The page in Markdown.
    pub fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_page(&mut page);
        page
    }

    fn write_page(&self, page: &mut String) -> fmt::Result {
        let Run {
            rounds,
            command,
            began,
            ..
        } = self.run;
        writeln!(page, "# {}\n", self.title())?;
        writeln!(
            page,
            "Median of {rounds} rounds, with least and most in parentheses. The rounds of both \
             alternate, on one API server and\none machine. The ratio says how many times better \
             Signpost is, round by round. What each figure is: [README](../README.md).\n"
        )?;
        writeln!(
            page,
            "| | kube-proxy | Signpost | ratio |\n|---|---|---|---|"
        )?;
        for measure in self.figures.measures() {
            let [kube_proxy, signpost] = Contender::ALL.map(|c| self.figures.summary(measure, c));
            let ratio = self.figures.ratio(measure);
            let unit = measure.unit().to_string();
            writeln!(
                page,
                "| {} | {} | {} | {} |",
                measure.title(),
                cell(kube_proxy, &unit),
                cell(signpost, &unit),
                cell(ratio, "x"),
            )?;
        }
        for (other, figures) in &self.others {
            self.write_comparison(page, *other, figures)?;
        }
        writeln!(page, "\n![chart]({}.svg)\n", self.run.name())?;
        for (name, fact) in &self.machine.facts {
            writeln!(page, "- {name}: {fact}")?;
        }
        writeln!(page, "- run: `{command}`, {}", began.strftime("%F %R %Z"))?;
        for contender in Contender::ALL {
            if let Some(resolution) = self.figures.coarsest_resolution(contender) {
                writeln!(
                    page,
                    "- resolution of starts and repairs of {contender}: {resolution:.1?}"
                )?;
            }
        }
        for note in self.figures.notes() {
            writeln!(page, "- {note}")?;
        }
        Ok(())
    }

    /// Writes how many times larger the values are.
    fn write_comparison(&self, page: &mut String, other: Other, before: &Figures) -> fmt::Result {
        writeln!(
            page,
            "\n| against {other} | kube-proxy | Signpost |\n|---|---|---|"
        )?;
        for measure in other.measures() {
            let cells = Contender::ALL.map(|contender| {
                let of = |figures: &Figures| figures.summary(*measure, contender);
                match (of(self.figures), of(before)) {
                    (Some(now), Some(before)) if before.median > 0.0 => {
                        format!("{:.2} x", now.median / before.median)
                    }
                    _ => "–".to_owned(),
                }
            });
            writeln!(
                page,
                "| {} | {} | {} |",
                measure.title(),
                cells[0],
                cells[1]
            )?;
        }
        Ok(())
    }
}

// === impl Other ===

impl Other {
    /// Returns the measures to compare.
    fn measures(self) -> &'static [Measure] {
        match self {
            // How the cost of a change grows with the cluster.
            Other::Size(_) => &[Measure::AddedP50, Measure::ReplacedP50, Measure::ColdStart],
            // The cost per packet.
            Other::Mode(_) => &[
                Measure::TcpP50,
                Measure::TcpP90,
                Measure::UdpP50,
                Measure::UdpP90,
            ],
        }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Other::Size(services) => write!(f, "{services} Services"),
            Other::Mode(mode) => write!(f, "mode {mode}"),
        }
    }
}

fn cell(summary: Option<Summary>, unit: &str) -> String {
    let text = summary.map(|summary| format!("{summary} {unit}"));
    text.map_or("–".to_owned(), |text| text.trim_end().to_owned())
}
