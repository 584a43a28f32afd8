use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use super::*;

const BUILD: BuildInfo = BuildInfo {
    program: "signpost-agent",
    version: "1.2.3",
};

fn sample(text: &str, name: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("no sample of {name} in\n{text}"));
    line.parse().expect("a sample is a number")
}

#[test]
fn the_process_describes_itself() {
    let text = Metrics::new(&BUILD).scrape().expect("metrics encode");
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is past 1970")
        .as_secs_f64();

    assert!(
        text.contains("signpost_build_info{program=\"signpost-agent\",version=\"1.2.3\"} 1\n"),
        "{text}"
    );
    assert!(sample(&text, "process_resident_memory_bytes") > 100_000.0);
    assert!(sample(&text, "process_cpu_seconds_total") >= 0.0);
    assert!(sample(&text, "process_open_fds") >= 3.0);
    let age = now - sample(&text, "process_start_time_seconds");
    assert!((-2.0..86_400.0).contains(&age), "{age}");
    // T228: kubernetes-mixin's KubeVersionMismatch takes this metric, of any job, for the version of a
    // part of Kubernetes.
    assert!(!text.contains("kubernetes_build_info"), "{text}");
    assert!(sample(&text, "process_virtual_memory_bytes") > 1_000_000.0);
    let (most, open) = ("process_max_fds", "process_open_fds");
    assert!(sample(&text, most) >= sample(&text, open));
}

#[test]
fn open_files_are_counted_at_each_scrape() {
    let metrics = Metrics::new(&BUILD);
    let files: Vec<_> = (0..100)
        .map(|_| std::fs::File::open("/proc/self/stat").expect("it exists"))
        .collect();
    let open = sample(
        &metrics.scrape().expect("metrics encode"),
        "process_open_fds",
    );
    drop(files);
    let closed = sample(
        &metrics.scrape().expect("metrics encode"),
        "process_open_fds",
    );
    // Other tests of this process also open a few files meanwhile.
    assert!(open - closed > 50.0, "{open} and then {closed}");
}

#[test]
fn a_counter_gets_its_suffix_and_a_gauge_keeps_its_name() {
    let metrics = Metrics::new(&BUILD);
    let livez = metrics.register(
        "kubeproxy_proxy_livez",
        "Answers to liveness probes",
        Counter::<u64>::default(),
    );
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let without = metrics.register(
        name,
        "Service ports without local endpoints",
        Gauge::<i64>::default(),
    );
    livez.inc_by(2);
    without.set(5);
    let text = metrics.scrape().expect("metrics encode");
    assert_eq!(sample(&text, "kubeproxy_proxy_livez_total"), 2.0);
    assert_eq!(sample(&text, name), 5.0);
}
