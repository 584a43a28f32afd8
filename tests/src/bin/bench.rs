//! Compares kube-proxy and Signpost: `make bench`. See `bench/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use jiff::Zoned;
use tests::bench::{
    Arena, Contender, Effort, Figures, Machine, Measure, Other, Population, Reading, Report, Row,
    Run, measure_decoding, measure_round,
};
use tests::binaries;
use tests::control_plane::build_programs;
use tests::differential::Mode;
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;

/// The minimum number of slices: with fewer, their memory is lost in the base memory of the
/// process.
const FEWEST_SLICES: u32 = 5000;

/// Compares kube-proxy and Signpost side by side.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Decodes EndpointSlices and prints the results as JSON.
    Decode {
        /// The number of slices.
        #[arg(long)]
        slices: u32,
        /// The number of endpoints of each.
        #[arg(long)]
        endpoints: u32,
    },
}

#[derive(Debug, Args)]
struct Arguments {
    /// The mode of both: nftables, iptables-nft, iptables-legacy or ipvs. Repeat it to measure
    /// several in turn. By default nftables, and ipvs where the kernel has it.
    #[arg(long)]
    mode: Vec<String>,
    /// The number of Services. Repeat it for several sizes, in ascending order.
    #[arg(long, default_values_t = [10_000])]
    services: Vec<u32>,
    /// The number of endpoints of each Service.
    #[arg(long, default_value_t = 5)]
    endpoints: u32,
    /// The number of rounds in which both are measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The contender to measure; both by default. With only one, nothing is compared.
    #[arg(long, value_enum)]
    contender: Vec<Contender>,
    /// The path of the agent; by default the one that cargo has built next to this program.
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The row to measure; all by default. Repeat it for several rows.
    #[arg(long, value_enum)]
    row: Vec<Row>,
    /// The number of Services added one by one in each round.
    #[arg(long, default_value_t = 30)]
    additions: u32,
    /// The number of endpoints replaced one by one in each round.
    #[arg(long, default_value_t = 30)]
    replacements: u32,
    /// The number of steady changes per second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    churn_rate: u32,
    /// The duration of the steady changes, in seconds.
    #[arg(long, default_value_t = 60)]
    churn: u64,
    /// The number of Services of 200 ports written during other changes; also a tenth of the number
    /// of endpoints of a Service with 100 ports.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    large: u32,
    /// The duration of the idle measurement, in seconds.
    #[arg(long, default_value_t = 120)]
    idle: u64,
    /// The number of first packets of each protocol.
    #[arg(long, default_value_t = 3000)]
    packets: usize,
    /// How long connections are counted, in seconds.
    #[arg(long, default_value_t = 5)]
    connecting: u64,
    /// The timeout of a start, in seconds.
    #[arg(long, default_value_t = 600)]
    start_patience: u64,
    /// The timeout of one change, in seconds.
    #[arg(long, default_value_t = 120)]
    change_patience: u64,
    /// The timeout of a repair, in seconds.
    #[arg(long, default_value_t = 90)]
    repair_patience: u64,
    /// The folder of the table and the chart.
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

fn main() -> Result<()> {
    let Cli { part, arguments } = Cli::parse();
    if let Some(Part::Decode { slices, endpoints }) = part {
        let decoded = measure_decoding(slices, endpoints)?;
        println!("{}", serde_json::to_string(&decoded)?);
        return Ok(());
    }
    let named = arguments.modes()?;
    let different: BTreeSet<Mode> = named.iter().copied().collect();
    ensure!(
        different.len() == named.len(),
        "a mode is measured in one place"
    );
    let agent = match &arguments.agent {
        Some(file) => fs::canonicalize(file).with_context(|| format!("no {}", file.display()))?,
        None => binaries::find("signpost-agent")?,
    };
    // There is no network inside the namespaces, so build first.
    let programs = build_programs()?;
    enter_private_namespaces()?;
    let modes = match named.is_empty() {
        false => named,
        true => default_modes(find_ipvs(&["rr"])?.as_deref()),
    };
    ensure!(
        programs.join("kube-proxy").exists(),
        "{} has no kube-proxy, without which there is nothing to compare with",
        programs.display()
    );
    ensure!(
        arguments.services.is_sorted(),
        "sizes are measured from small to large"
    );
    let effort = arguments.effort();
    let first = modes.first().copied().unwrap_or(Mode::Nftables);
    let mut arena = Arena::start(first, agent)?;
    let machine = Machine::observe(&arena)?;
    let mut smallest: Option<(u32, BTreeMap<Mode, Figures>)> = None;
    let fewest = arguments.services.first().copied().unwrap_or_default();
    let mut population = Population::new(fewest, arguments.endpoints, arguments.additions)?;
    for services in &arguments.services {
        population.grow(*services)?;
        let began = Zoned::now();
        let started = Instant::now();
        arena.fill(&population)?;
        println!(
            "{services} Services x {} endpoints written in {:.1?}",
            arguments.endpoints,
            started.elapsed()
        );
        let mut figures: BTreeMap<Mode, Figures> = BTreeMap::new();
        for round in 0..arguments.rounds {
            for mode in &modes {
                let figures = figures.entry(*mode).or_default();
                arena.set_mode(*mode)?;
                measure_round(&arena, &effort, round, &mut population, figures)?;
                if effort.rows.contains(&Row::Decoding)
                    && effort.contenders.contains(&Contender::Signpost)
                {
                    decode(&population, figures)?;
                }
            }
        }
        for mode in &modes {
            let others = [
                (*mode != first).then(|| (Other::Mode(first), figures.get(&first))),
                smallest
                    .as_ref()
                    .map(|(services, figures)| (Other::Size(*services), figures.get(mode))),
            ];
            let others = others.into_iter().flatten();
            let report = Report {
                run: &Run {
                    mode: *mode,
                    size: (*services, arguments.endpoints),
                    rounds: arguments.rounds,
                    command: command(),
                    began: began.clone(),
                },
                machine: &machine,
                figures: &figures[mode],
                others: others
                    .filter_map(|(other, figures)| Some((other, figures?)))
                    .collect(),
            };
            let page = report.write(&arguments.out)?;
            println!("\n{}\nwritten to {}", report.page(), page.display());
        }
        smallest.get_or_insert((*services, figures));
    }
    Ok(())
}

/// Returns the modes to measure if none is named. `missing` says what the kernel lacks for mode ipvs.
fn default_modes(missing: Option<&str>) -> Vec<Mode> {
    match missing {
        None => vec![Mode::Nftables, Mode::Ipvs],
        Some(why) => {
            println!("SKIPPED: mode ipvs: {why}");
            vec![Mode::Nftables]
        }
    }
}

/// Measures decoding in a separate process.
fn decode(population: &Population, figures: &mut Figures) -> Result<()> {
    let slices = population.services().max(FEWEST_SLICES);
    // The running program file, even if the path now holds another one.
    let output = Command::new("/proc/self/exe")
        .arg("decode")
        .args(["--slices", &slices.to_string()])
        .args(["--endpoints", &population.endpoints().to_string()])
        .output()?;
    ensure!(output.status.success(), "decoding has failed");
    let decoded: tests::bench::Decoded = serde_json::from_slice(&output.stdout)?;
    let rate = Reading::number(decoded.slices_per_second);
    figures.push(Contender::Signpost, Measure::DecodeRate, rate);
    let kept = Reading::number(decoded.bytes_per_slice);
    figures.push(Contender::Signpost, Measure::BytesPerSlice, kept);
    Ok(())
}

/// Returns the command line without the folder of the program.
fn command() -> String {
    let mut arguments = env::args();
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let all: Vec<String> = [name].into_iter().chain(arguments).collect();
    all.join(" ")
}

// === impl Arguments ===

impl Arguments {
    /// Returns the named modes in the given order.
    fn modes(&self) -> Result<Vec<Mode>> {
        let modes = self.mode.iter().map(|text| Mode::parse(text));
        Ok(modes.collect::<Result<Vec<_>>>()?.concat())
    }

    fn effort(&self) -> Effort {
        let rows: BTreeSet<Row> = match self.row.as_slice() {
            [] => Row::ALL.into(),
            rows => rows.iter().copied().collect(),
        };
        Effort {
            contenders: match self.contender.as_slice() {
                [] => Contender::ALL.into(),
                some => some.iter().copied().collect(),
            },
            rows,
            replacements: self.replacements,
            churn_rate: self.churn_rate,
            churn: Duration::from_secs(self.churn),
            large: self.large,
            idle: Duration::from_secs(self.idle),
            packets: self.packets,
            connecting: Duration::from_secs(self.connecting),
            start_patience: Duration::from_secs(self.start_patience),
            change_patience: Duration::from_secs(self.change_patience),
            repair_patience: Duration::from_secs(self.repair_patience),
        }
    }
}

#[cfg(test)]
mod default_modes_tests {
    use super::*;

    #[test]
    fn a_run_without_modes_has_that_of_ipvs_where_the_kernel_has_it() {
        assert_eq!(default_modes(None), [Mode::Nftables, Mode::Ipvs]);
        let missing = Some("the kernel has no ip_vs");
        assert_eq!(default_modes(missing), [Mode::Nftables]);
        let arguments = Cli::try_parse_from(["bench"]).expect("nothing is required");
        let named = arguments.arguments.modes().expect("none is named");
        assert!(named.is_empty(), "{named:?}");
    }
}
