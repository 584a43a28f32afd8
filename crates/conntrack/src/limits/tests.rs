use super::*;

use std::error::Error as _;

const GIB: u64 = 1 << 30;

/// The values of a profile without conntrack settings.
fn defaults() -> Profile {
    Profile {
        max_per_core: NonZeroU32::new(32_768),
        min: 131_072,
        tcp_established: Duration::from_secs(86_400),
        tcp_close_wait: Duration::from_secs(3_600),
        tcp_window: TcpWindow::Unchanged,
        udp: Duration::ZERO,
        udp_stream: Duration::ZERO,
    }
}

fn limit(per_core: u32, min: u32, cores: u32, memory: u64) -> Option<u64> {
    let profile = Profile {
        max_per_core: NonZeroU32::new(per_core),
        min,
        ..defaults()
    };
    let settings = compile(&profile, &Machine { cores, memory });
    let value = |file: &str| settings.iter().find(|s| s.file.ends_with(file));
    let limit = value("nf_conntrack_max")?;
    let buckets = value("nf_conntrack_buckets").expect("buckets come with a limit");
    assert_eq!(buckets.value, limit.value / 4);
    assert_eq!((limit.rule, buckets.rule), (Rule::Raise, Rule::Raise));
    Some(limit.value)
}

/// Failure story T45: kubernetes#136228 (512 cores), kubernetes#71261 (2 cores), kops#17915
/// (little memory).
#[test]
fn t45_the_limit_fits_the_machine() {
    for (per_core, min, cores, memory, expected) in [
        // A large machine: not sixteen million entries.
        (32_768, 131_072, 512, 4096 * GIB, Some(1_048_576)),
        (32_768, 131_072, 64, 256 * GIB, Some(1_048_576)),
        (32_768, 131_072, 16, 64 * GIB, Some(524_288)),
        // A small one: the minimum.
        (32_768, 131_072, 2, 8 * GIB, Some(131_072)),
        // Little memory bounds everything: to a sixteenth of it.
        (32_768, 131_072, 2, GIB / 2, Some(104_857)),
        (32_768, 131_072, 96, GIB, Some(209_715)),
        (32_768, 4_000_000, 2, GIB, Some(209_715)),
        // A high minimum in the profile is respected.
        (32_768, 4_000_000, 512, 4096 * GIB, Some(4_000_000)),
        // The kernel's limit stays.
        (0, 131_072, 512, 4096 * GIB, None),
        (u32::MAX, u32::MAX, u32::MAX, u64::MAX, Some(4_294_967_295)),
        (32_768, 131_072, 0, 0, Some(0)),
    ] {
        let found = limit(per_core, min, cores, memory);
        assert_eq!(found, expected, "{per_core} {min} {cores} {memory}");
    }
}

#[test]
fn only_what_is_written_above_zero_is_set() {
    let machine = Machine {
        cores: 2,
        memory: GIB,
    };
    let files = |profile: &Profile| -> Vec<String> {
        let settings = compile(profile, &machine);
        let texts = settings.iter().map(|s| {
            let name = s.file.trim_start_matches("net/netfilter/nf_conntrack_");
            format!("{name}={}", s.value)
        });
        texts.collect()
    };
    let nothing = Profile {
        max_per_core: None,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        ..defaults()
    };
    assert_eq!(files(&nothing), Vec::<String>::new());
    let everything = Profile {
        tcp_window: TcpWindow::Liberal,
        udp: Duration::from_millis(1),
        udp_stream: Duration::from_secs(2),
        ..defaults()
    };
    assert_eq!(
        files(&everything),
        [
            "max=131072",
            "buckets=32768",
            "tcp_timeout_established=86400",
            "tcp_timeout_close_wait=3600",
            "udp_timeout=1",
            "udp_timeout_stream=2",
            "tcp_be_liberal=1",
        ]
    );
}

/// A folder in place of `/proc/sys`, deleted at the end of the test.
struct Root(PathBuf);

impl Root {
    fn with(name: &str, files: &[(&str, &str)]) -> Root {
        let root = std::env::temp_dir().join(format!("limits-{name}-{}", std::process::id()));
        let folder = root.join("net/netfilter");
        fs::create_dir_all(&folder).expect("a folder for this test alone");
        for (name, text) in files {
            let file = folder.join(format!("nf_conntrack_{name}"));
            fs::write(file, text).expect("a file in that folder");
        }
        Root(root)
    }

    fn read(&self, name: &str) -> String {
        let file = format!("net/netfilter/nf_conntrack_{name}");
        fs::read_to_string(self.0.join(file)).expect("a file of this test")
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn t45_nothing_that_is_set_higher_is_lowered_and_timeouts_are_as_the_profile_says() {
    let root = Root::with(
        "higher",
        &[
            ("max", "1000000\n"),
            ("buckets", "1000\n"),
            ("tcp_timeout_established", "432000\n"),
            ("tcp_timeout_close_wait", "3600\n"),
        ],
    );
    let machine = Machine {
        cores: 2,
        memory: 8 * GIB,
    };
    let settings = compile(&defaults(), &machine);
    let committed = commit(&settings, &root.0);
    assert!(committed.failed.is_empty(), "{:?}", committed.failed);
    let written: Vec<String> = committed.written.iter().map(ToString::to_string).collect();
    assert_eq!(
        written,
        [
            "net/netfilter/nf_conntrack_buckets from 1000 to 32768",
            "net/netfilter/nf_conntrack_tcp_timeout_established from 432000 to 86400",
        ]
    );
    assert_eq!(root.read("max"), "1000000\n");
    assert_eq!(root.read("tcp_timeout_established"), "86400");
    assert!(
        commit(&settings, &root.0).written.is_empty(),
        "once is enough"
    );
}

/// Failure story T45: kops#17915. No user, not even root, can write to a folder as a file.
#[test]
fn t45_what_cannot_be_set_is_named_and_keeps_nothing_else_from_being_set() {
    let root = Root::with("stuck", &[("tcp_timeout_established", "432000\n")]);
    fs::create_dir(root.0.join("net/netfilter/nf_conntrack_max")).expect("a folder in the way");
    let machine = Machine {
        cores: 2,
        memory: 8 * GIB,
    };
    let committed = commit(&compile(&defaults(), &machine), &root.0);
    assert_eq!(root.read("tcp_timeout_established"), "86400");
    let [first, ..] = &committed.failed[..] else {
        panic!("nothing failed");
    };
    let text = first.to_string();
    assert!(text.starts_with("unable to read "), "{text}");
    assert!(text.ends_with("nf_conntrack_max"), "{text}");
    let source = first.source().expect("errno");
    assert!(source.to_string().contains("os error"), "{source}");
}

#[test]
fn cpus_and_memory_are_read_as_the_kernel_writes_them() {
    assert_eq!(parse_cpus("0-3,8\n"), Some(5));
    assert_eq!(parse_cpus("0\n"), Some(1));
    assert_eq!(parse_cpus("3-1\n"), None);
    assert_eq!(parse_cpus(""), None);
    assert_eq!(
        parse_memory("MemTotal:       24683224 kB\nMemFree: 1 kB\n"),
        Some(24_683_224 * 1024)
    );
    assert_eq!(parse_memory("MemFree: 1 kB\n"), None);
    let machine = observe_machine().expect("this machine has CPUs and memory");
    assert!(machine.cores > 0 && machine.memory > 0);
}
