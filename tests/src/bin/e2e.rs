//! Kubernetes' own tests of Services, run on a real cluster: `make e2e`,
//! `make e2e PROXY=kube-proxy`.
//!
//! Each run is saved in `target/e2e/PROXY-N.json`, with ginkgo's output in the folder next to it.
//! After all runs of a proxy, `docs/conformance.md` is written from the existing runs of both
//! proxies. A custom selection of tests is for investigations: it is saved separately and no page
//! is written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tests::conformance::comparison::Comparison;
use tests::conformance::load_balancers::LoadBalancers;
use tests::conformance::selection::{PROXY_RESTART, Selection};
use tests::conformance::suite::{Order, Suite};
use tests::conformance::{Proxy, Run, api_server_restart, document, proxies};
use tests::control_plane::build_programs;
use tests::real_cluster::enclosure::{self, Enclosure, Place};
use tests::real_cluster::images::{self, OwnImages};
use tests::real_cluster::{self, Built, Plan, RealCluster, helm};

/// Kubernetes' own end-to-end tests of Services, on a real cluster on this machine.
#[derive(Debug, Parser)]
struct Arguments {
    /// The proxy under test.
    #[arg(long, value_enum, default_value = "signpost")]
    proxy: Proxy,
    /// A regular expression for the names of tests to run, instead of all tests about Services. May
    /// be repeated.
    #[arg(long)]
    focus: Vec<String>,
    /// A regular expression for the names of tests to leave out, instead of those that cannot run
    /// here. May be repeated.
    #[arg(long)]
    skip: Vec<String>,
    /// The number of concurrent tests.
    #[arg(long, default_value_t = 4)]
    processes: u8,
    /// The number of consecutive runs on one cluster.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    runs: u8,
    /// The number of nodes. Some tests require three, and a few require six: two in each of three
    /// zones.
    #[arg(long, default_value_t = 3)]
    nodes: u8,
    /// Restart the proxy and the API server as well, which a custom selection otherwise omits.
    #[arg(long)]
    disruptive: bool,
    /// Write the page from the existing runs, and run nothing.
    #[arg(long)]
    page_only: bool,
}

/// The folder of saved runs.
#[derive(Debug)]
struct Shelf {
    folder: PathBuf,
    proxy: Proxy,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if arguments.page_only {
        return conclude(&arguments);
    }
    if let Some(problem) = real_cluster::missing() {
        bail!("{problem}");
    }
    // There is no network inside the namespaces, so build first.
    build_programs()?;
    Built::cluster()?;
    helm::build()?;
    Suite::build()?;
    match enclosure::enter()? {
        Place::Inside(enclosure) => {
            run_all(&arguments, &enclosure)?;
            conclude(&arguments)
        }
        Place::Outside(code) => Ok(code),
    }
}

// === impl Arguments ===

impl Arguments {
    /// Whether a custom selection of tests was requested.
    fn is_partial(&self) -> bool {
        !self.focus.is_empty() || !self.skip.is_empty()
    }

    fn shelf(&self, proxy: Proxy) -> Shelf {
        let folder = repository().join("target/e2e");
        Shelf {
            folder: if self.is_partial() {
                folder.join("partial")
            } else {
                folder
            },
            proxy,
        }
    }
}

fn run_all(arguments: &Arguments, enclosure: &Enclosure) -> Result<()> {
    let proxy = arguments.proxy;
    let suite = Suite::build()?;
    let mut archives = suite.images();
    if proxy == Proxy::Signpost {
        let OwnImages::Made(own) = images::observe()? else {
            bail!("there are no images of Signpost: make image");
        };
        archives.extend(own);
    }
    let plan = Plan {
        nodes: arguments.nodes,
        images: archives,
    };
    let mut cluster = RealCluster::start(&plan, enclosure, &say)?;
    proxies::install(proxy, &cluster)?;
    println!("{proxy} serves");
    let shelf = arguments.shelf(proxy);
    shelf.clear()?;
    for number in 1..=arguments.runs {
        println!("run {number} of {}", arguments.runs);
        let mut run = run_tests(arguments, &cluster, &suite, &shelf.details(number))?;
        // Save already now: the following steps can fail for other reasons than a failed test.
        run.save(&shelf.file(number))?;
        if arguments.disruptive || !arguments.is_partial() {
            restart(&mut run, &mut cluster, &suite, &shelf.details(number))?;
            run.save(&shelf.file(number))?;
        }
    }
    Ok(())
}

/// Runs the tests that do not disturb one another.
fn run_tests(
    arguments: &Arguments,
    cluster: &RealCluster,
    suite: &Suite,
    folder: &Path,
) -> Result<Run> {
    let start = Instant::now();
    let selection = Selection::given(&arguments.focus, &arguments.skip);
    let order = Order {
        selection: &selection,
        processes: arguments.processes,
        folder,
        name: "services",
    };
    let balancers = LoadBalancers::start(cluster)?;
    let report = suite.run(cluster, order, &say)?;
    drop(balancers);
    Ok(Run {
        proxy: arguments.proxy,
        setting: proxies::observe_setting(arguments.proxy, cluster)?,
        duration: start.elapsed(),
        tests: report.tests,
        left_out: report.left_out,
    })
}

/// Restarts the proxy, then the API server, and adds the results.
fn restart(run: &mut Run, cluster: &mut RealCluster, suite: &Suite, folder: &Path) -> Result<()> {
    let start = Instant::now();
    let selection = Selection::named([PROXY_RESTART]);
    let order = Order {
        selection: &selection,
        processes: 1,
        folder,
        name: "restart",
    };
    println!("restarting the proxy");
    run.add(suite.run(cluster, order, &say)?.tests);
    println!("restarting the API server");
    run.add(api_server_restart::restart(cluster));
    run.duration += start.elapsed();
    Ok(())
}

fn say(event: &str) {
    println!("{event}");
}

/// Prints the results of the runs, and writes the page unless only some tests were selected.
fn conclude(arguments: &Arguments) -> Result<ExitCode> {
    let mut runs = Vec::new();
    // Custom selections may differ and are not compared.
    let compared = |proxy: &Proxy| *proxy == arguments.proxy || !arguments.is_partial();
    for proxy in Proxy::ALL.into_iter().filter(compared) {
        runs.extend(arguments.shelf(proxy).read()?);
    }
    ensure!(!runs.is_empty(), "there are no runs to write about");
    let comparison = Comparison::of(runs);
    print!("{}", document::render_verdict(&comparison, arguments.proxy));
    if !arguments.is_partial() {
        let page = repository().join("docs/conformance.md");
        fs::write(&page, document::render(&comparison)).context("failed to write the page")?;
        println!("docs/conformance.md is written");
    }
    let regressions = comparison.regressions();
    for test in &regressions {
        println!(
            "kube-proxy passes, Signpost does not: {} {}",
            test.group.0, test.name
        );
    }
    let fails = !comparison.failures_alone(arguments.proxy).is_empty() || !regressions.is_empty();
    Ok(if fails {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

// === impl Shelf ===

impl Shelf {
    fn file(&self, number: u8) -> PathBuf {
        self.folder
            .join(format!("{}-{number}.json", self.proxy.name()))
    }

    /// Returns the folder of the details of a run.
    fn details(&self, number: u8) -> PathBuf {
        self.folder.join(format!("{}-{number}", self.proxy.name()))
    }

    /// Removes the results of earlier runs of this proxy.
    fn clear(&self) -> Result<()> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("failed to make {}", self.folder.display()))?;
        for number in 1..=u8::MAX {
            let file = self.file(number);
            if file.exists() {
                fs::remove_file(&file)
                    .with_context(|| format!("failed to remove {}", file.display()))?;
            }
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<Run>> {
        let files = (1..=u8::MAX).map(|number| self.file(number));
        files
            .filter(|file| file.exists())
            .map(|file| Run::read(&file))
            .collect()
    }
}
