//! The real kube-proxy and Signpost handle the same random Services and packets: clients must
//! observe no difference except for those in `docs/parity.md`.
//!
//! `SIGNPOST_SEEDS=0..50` selects other seeds than the few of every run, and
//! `SIGNPOST_MODE=iptables` the modes whose names start with this text. Both can be set as
//! `SIGNPOST_TESTS_SEEDS` and `SIGNPOST_TESTS_MODE`, which `tests/kernel-rig/run` passes on: mode
//! ipvs is skipped on a kernel without IPVS.

use std::collections::BTreeMap;
use std::env;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::{Arguments, Trial};
use testkit::Seeded;
use tests::control_plane::build_programs;
use tests::deadline::wait_for;
use tests::differential::{
    Answer, BothProxies, Case, Configuration, Difference, EXPECTED_DIFFERENCES, Front, Mode,
    NodeFate, Origin, Population, Rival, Service,
};
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::shared::Shared;
use tests::trial::trial;
use xtables::Variant;

/// The modes of every run, from which `SIGNPOST_MODE` selects, and their default seeds;
/// `SIGNPOST_SEEDS` replaces these. The seeds for iptables differ in every setting.
const SEEDS: [(Mode, Range<u64>); 4] = [
    (Mode::Nftables, 0..2),
    (Mode::Iptables(Variant::NfTables), 1..2),
    (Mode::Iptables(Variant::Legacy), 2..3),
    (Mode::Ipvs, 1..2),
];
/// The size of a test with one seed: Services, rounds of changes, and changes per round.
const SERVICES: usize = 10;
const ROUNDS: usize = 2;
const CHANGES: usize = 5;
/// The number of cases tried per round, of about a thousand: other rounds try others.
const CASES: usize = 120;
/// How long a health server may take to follow the rules.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    build_programs()?;
    enter_private_namespaces()?;
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = vec![trial(
        "every_expected_difference_is_a_row_of_the_parity_page",
        expectations_are_documented,
    )];
    let shared = Shared::new("comparison", BothProxies::start);
    let assets = env::var_os("KUBEBUILDER_ASSETS");
    if assets.is_some_and(|folder| !Path::new(&folder).join("kube-proxy").exists()) {
        let name = "SKIPPED_all_comparisons_for_want_of_kube-proxy_in_KUBEBUILDER_ASSETS";
        trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
    } else {
        let missing = find_ipvs(&["rr"])?;
        for (mode, seeds) in chosen()? {
            if let (Mode::Ipvs, Some(why)) = (mode, &missing) {
                println!("SKIPPED: mode ipvs: {why}");
                let name = "SKIPPED_all_comparisons_in_mode_ipvs";
                trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
                continue;
            }
            for seed in seeds {
                let name = format!("{mode}_seed_{seed}_no_packet_tells_one_from_the_other");
                let test = move |proxies: &mut BothProxies| compare_seed(proxies, mode, seed);
                trials.push(shared.trial(&name, move |proxies| run_cleared(proxies, test)));
            }
            let name = format!("{mode}_health_checks_read_alike");
            let test = move |proxies: &mut BothProxies| compare_probes(proxies, mode);
            trials.push(shared.trial(&name, move |proxies| run_cleared(proxies, test)));
            if mode == Mode::Nftables {
                let name = "a_difference_is_noticed";
                let test = move |proxies: &mut BothProxies| notice(proxies, mode);
                trials.push(shared.trial(name, move |proxies| run_cleared(proxies, test)));
            }
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // `exit` drops nothing.
    drop(shared);
    conclusion.exit();
}

/// Returns the modes and seeds selected by the environment.
fn chosen() -> Result<Vec<(Mode, Range<u64>)>> {
    let variable = |name: &str| {
        let names = [format!("SIGNPOST_{name}"), format!("SIGNPOST_TESTS_{name}")];
        names.iter().find_map(|name| env::var(name).ok())
    };
    let modes = match variable("MODE") {
        Some(text) => Mode::parse(&text).context("SIGNPOST_MODE")?,
        None => Mode::ALL.into(),
    };
    let mut chosen: Vec<_> = SEEDS.into();
    chosen.retain(|(mode, _)| modes.contains(mode));
    if let Some(text) = variable("SEEDS") {
        let parse = || {
            let (start, end) = text.split_once("..")?;
            Some(start.parse().ok()?..end.parse().ok()?)
        };
        let range: Range<u64> = parse()
            .with_context(|| format!("SIGNPOST_SEEDS is {text:?} and not a range like 0..50"))?;
        for (_, seeds) in &mut chosen {
            seeds.clone_from(&range);
        }
    }
    Ok(chosen)
}

/// Runs several rounds with one seed.
fn compare_seed(proxies: &mut BothProxies, mode: Mode, seed: u64) -> Result<()> {
    let begun = Instant::now();
    let mut seeded = Seeded::new(seed);
    let configuration = Configuration::of_seed(mode, seed);
    println!("    seed {seed}: {configuration:?}");
    proxies.configure(configuration)?;
    let mut population = Population::generate(&mut seeded, SERVICES);
    let mut found = Vec::new();
    // In mode ipvs the machine is emulated.
    let (rounds, cases) = match mode {
        Mode::Ipvs => (ROUNDS / 2, CASES / 12),
        Mode::Nftables | Mode::Iptables(_) => (ROUNDS, CASES),
    };
    for round in 0..=rounds {
        let mut done = Vec::new();
        if round > 0 {
            done = population.mutate(&mut seeded, CHANGES);
        }
        let started = Instant::now();
        proxies.settle(&population)?;
        let settled = started.elapsed();
        let cases = Case::sample(&mut seeded, &population, configuration, cases);
        let comparison = proxies.compare(&cases)?;
        println!(
            "    round {round}: both settled in {settled:.1?}, {} cases asked in {:.1?}: {:?}",
            cases.len(),
            started.elapsed() - settled,
            comparison.sorts
        );
        let results = [
            judge(&comparison.differences, &population, configuration),
            compare_health_checks(proxies, &population),
        ];
        for error in results.into_iter().filter_map(Result::err) {
            let finding = format!("round {round}, after {done:?}: {error:#}");
            println!("    {finding}");
            found.push(finding);
        }
    }
    println!("    seed {seed} in {mode} took {:.0?}", begun.elapsed());
    ensure!(
        found.is_empty(),
        "seed {seed}, {configuration:?}:\n{}",
        found.join("\n")
    );
    Ok(())
}

/// Fails unless every difference is intended.
fn judge(
    differences: &[Difference],
    population: &Population,
    configuration: Configuration,
) -> Result<()> {
    let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for difference in differences {
        let service = service_of(population, &difference.case)?;
        match difference.expected(service, configuration) {
            Some(row) => *expected.entry(row).or_default() += 1,
            None => found.push(format!("{difference}\n  {service}")),
        }
    }
    for (row, count) in expected {
        println!("    {count} differences on purpose: {row}");
    }
    ensure!(
        found.is_empty(),
        "{} unexpected differences:\n{}",
        found.len(),
        found.join("\n")
    );
    Ok(())
}

fn service_of<'a>(population: &'a Population, case: &Case) -> Result<&'a Service> {
    let mut all = population.services.iter().chain(&population.deleted);
    let service = all.find(|service| service.number == case.service);
    service.context("a case is about a Service of the population")
}

/// Compares the health-check servers for load balancers.
fn compare_health_checks(proxies: &BothProxies, population: &Population) -> Result<()> {
    let services = population.services.iter();
    let ports = services.filter_map(|service| Some((service, service.health_check_port()?)));
    let urls = ports.flat_map(|(service, port)| {
        let url = |host| {
            (
                format!("http://{host}:{port}/any/path"),
                service.to_string(),
            )
        };
        ["192.168.0.1", "172.20.0.1", "[fd00:192:168::1]"].map(url)
    });
    compare_answers(proxies, urls.collect(), |answer| Ok(format!("{answer:?}")))
}

/// Compares `/healthz`, `/livez` and `/proxyMode`: status code, headers and form of the body, for a
/// node that stays and for one that will be deleted.
fn compare_probes(proxies: &mut BothProxies, mode: Mode) -> Result<()> {
    proxies.configure(Configuration::of_seed(mode, 0))?;
    proxies.settle(&Population::empty())?;
    // Times differ between responses.
    let form = |answer: &Answer| {
        let fields = answer.fields()?;
        Ok(format!("{} {:?} {fields:?}", answer.status, answer.headers))
    };
    let servers = ["http://192.168.0.1:10256", "http://[fd00:192:168::1]:10256"];
    let urls = servers.map(|server| {
        ["/healthz", "/livez"].map(|path| (format!("{server}{path}"), String::new()))
    });
    let mode = [("http://127.0.0.1:10249/proxyMode".to_owned(), String::new())];
    let mut results = vec![
        compare_answers(proxies, urls.concat(), form),
        compare_answers(proxies, mode.into(), |answer| Ok(format!("{answer:?}"))),
    ];
    proxies.announce(NodeFate::Leaves)?;
    results.push(compare_answers(proxies, urls.concat(), form).context("a node that leaves"));
    proxies.announce(NodeFate::Stays)?;
    let failures = results.into_iter().filter_map(Result::err);
    let failures: Vec<String> = failures.map(|error| format!("{error:#}")).collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Requests each of `urls`, paired with a description for errors, from both until `form` returns
/// the same for both responses.
fn compare_answers(
    proxies: &BothProxies,
    mut urls: Vec<(String, String)>,
    form: impl Fn(&Answer) -> Result<String>,
) -> Result<()> {
    let read = |rival, url: &str| match proxies.ask(rival, url) {
        Ok(answer) => form(&answer).unwrap_or_else(|error| format!("{error:#}: {answer:?}")),
        Err(_) => "no answer".to_owned(),
    };
    let mut last = String::new();
    wait_for("the same answers", FOLLOWS_WITHIN, || {
        last.clear();
        urls.retain(|(url, about)| {
            let (kube_proxy, signpost) = (read(Rival::KubeProxy, url), read(Rival::Signpost, url));
            let differ = kube_proxy != signpost;
            if differ {
                last += &format!(
                    "\n{url}\n    kube-proxy: {kube_proxy}\n    Signpost:   {signpost}\n  {about}"
                );
            }
            differ
        });
        Ok(urls.is_empty().then_some(()))
    })
    .with_context(|| format!("answers differ: {last}"))
}

/// Tests the test: a Service is deleted without Signpost running, and clients must observe a
/// difference.
fn notice(proxies: &mut BothProxies, mode: Mode) -> Result<()> {
    let configuration = Configuration::of_seed(mode, 0);
    proxies.configure(configuration)?;
    let mut population = Population::generate(&mut Seeded::new(0), SERVICES);
    proxies.settle(&population)?;
    let served = |service: &Service| {
        let case = |case: &Case| {
            case.service == service.number
                && case.front == Front::ClusterIp
                && case.origin == Origin::Pod
        };
        let all = Case::all(&population, configuration);
        all.into_iter().filter(case).collect::<Vec<_>>()
    };
    let cases: Vec<Vec<Case>> = population.services.iter().map(served).collect();
    let ready = population.services.iter().position(Service::is_served);
    let ready = ready.context("seed 0 has a Service with a ready endpoint")?;
    population.deleted.push(population.services.remove(ready));
    proxies.settle_without_signpost(&population)?;
    for (index, cases) in cases.iter().enumerate() {
        let own: Vec<&Case> = cases.iter().collect();
        let differences = proxies.compare(cases)?.differences;
        let seen = !differences.is_empty();
        ensure!(
            seen == (index == ready),
            "{seen} is what was noticed of {own:?}: {differences:?}"
        );
    }
    Ok(())
}

/// Checks that all expected differences are rows of the page about parity.
fn expectations_are_documented() -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/parity.md");
    let page = std::fs::read_to_string(&file)?;
    let rows: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .collect();
    for expected in EXPECTED_DIFFERENCES {
        ensure!(
            rows.contains(&expected.row),
            "docs/parity.md has no row {:?}",
            expected.row
        );
    }
    Ok(())
}

/// Runs a test with both proxies, and removes its Services afterwards.
fn run_cleared(
    proxies: &mut BothProxies,
    test: impl FnOnce(&mut BothProxies) -> Result<()>,
) -> Result<()> {
    let outcome = test(proxies);
    let cleared = proxies.clear();
    outcome.map_err(|error| anyhow!("{error:#}\n{}", proxies.describe_logs()))?;
    cleared
}
