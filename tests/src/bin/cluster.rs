//! A real cluster on this machine, to try Signpost on: `make cluster`, `make cluster-down`.
//!
//! `up` starts this program again in the background as `run`. A folder in the directory for
//! temporary files contains the process ID, the log and a kubeconfig of that process.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use rustix::process::{Pid, Signal, kill_process};
use tests::deadline::wait_for;
use tests::real_cluster::enclosure::{self, Enclosure, Place};
use tests::real_cluster::{self, Built, Gateway, LAST_NODE, Plan, RealCluster};
use tests::{build_script, control_plane};

/// The last line of a start that succeeded.
const READY: &str = "the cluster is ready";
/// How long the shutdown may take.
const END: Duration = Duration::from_secs(60);

/// A real Kubernetes cluster on this machine, in private namespaces.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Order,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// Start the cluster, and return when its nodes are Ready.
    Up(Size),
    /// Stop the cluster, and remove everything that is left of it or of a failed start.
    Down,
    /// Run a command on a node.
    Exec {
        /// The node, such as node-1.
        node: String,
        /// The command.
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run the cluster until a signal arrives.
    #[command(hide = true)]
    Run(Size),
}

#[derive(Debug, clap::Args)]
struct Size {
    /// The number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(LAST_NODE)))]
    nodes: u8,
    /// An archive of images to import on every node. May be repeated.
    #[arg(long = "image")]
    images: Vec<PathBuf>,
}

/// The folder that identifies a running cluster.
#[derive(Debug)]
struct Trace(PathBuf);

fn main() -> Result<ExitCode> {
    let trace = Trace(env::temp_dir().join("signpost-cluster"));
    match Arguments::parse().command {
        Order::Up(size) => up(&trace, &size).map(|()| ExitCode::SUCCESS),
        Order::Down => down(&trace).map(|()| ExitCode::SUCCESS),
        Order::Exec { node, command } => exec(&trace, &node, &command),
        Order::Run(size) => run(&size),
    }
}

fn up(trace: &Trace, size: &Size) -> Result<()> {
    if let Some(problem) = real_cluster::missing() {
        bail!("{problem}");
    }
    if trace.observe_process()?.is_some() {
        println!("it runs already; end it with: make cluster-down");
        return trace.tell();
    }
    // Remove the leftovers of a cluster that was killed.
    down(trace)?;
    // Build in the foreground, where the user sees the progress: the rest is in a log.
    let programs = control_plane::build_programs()?;
    Built::cluster()?;
    let start = Instant::now();
    // The kubeconfig gives root access to this machine, because Pods may be privileged.
    DirBuilder::new()
        .mode(0o700)
        .create(&trace.0)
        .with_context(|| format!("failed to make {}", trace.0.display()))?;
    trace.link(&programs)?;
    let log = File::create(trace.log()).context("failed to make a log")?;
    let mut command = Command::new("setsid");
    command
        .arg(env::current_exe().context("failed to find this program")?)
        .arg("run")
        .arg(format!("--nodes={}", size.nodes));
    for image in &size.images {
        let image = fs::canonicalize(image)
            .with_context(|| format!("failed to find the archive {}", image.display()))?;
        command.arg("--image").arg(image);
    }
    let mut process = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("failed to share a log")?)
        .stderr(log)
        .spawn()
        .context("failed to start the cluster: install util-linux")?;
    trace.save_process(process.id())?;
    let mut lines = BufReader::new(File::open(trace.log())?);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        if !line.is_empty() {
            print!("{line}");
            std::io::stdout().flush()?;
        }
        if line.trim_end() == READY {
            println!("after {} s", start.elapsed().as_secs());
            return trace.tell();
        }
        if line.is_empty() {
            if let Some(status) = process.try_wait()? {
                bail!("the start failed ({status}); what is left goes with: make cluster-down");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn down(trace: &Trace) -> Result<()> {
    if let Some(process) = trace.observe_process()? {
        let id = i32::try_from(process).ok().and_then(Pid::from_raw);
        let id = id.context("the process id in the folder of the cluster is one")?;
        kill_process(id, Signal::TERM).context("failed to end the cluster")?;
        wait_for("the cluster to end", END, || {
            Ok(trace.observe_process()?.is_none().then_some(()))
        })?;
    }
    enclosure::sweep_stale()?;
    match fs::remove_dir_all(&trace.0) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", trace.0.display()))
        }
        _ => Ok(()),
    }
}

fn exec(trace: &Trace, node: &str, command: &[String]) -> Result<ExitCode> {
    let outside = trace.observe_process()?;
    let outside = outside.context("no cluster runs: make cluster")?;
    let process = Enclosure::of(outside).observe_process_of(node)?;
    let error = Command::new("nsenter")
        .arg(format!("--target={process}"))
        .args(["--mount", "--uts", "--net", "--pid", "--"])
        .args(command)
        .exec();
    Err(error).context("failed to run nsenter: install util-linux")
}

fn run(size: &Size) -> Result<ExitCode> {
    let enclosure = match enclosure::enter()? {
        Place::Inside(enclosure) => enclosure,
        Place::Outside(code) => return Ok(code),
    };
    let plan = Plan {
        nodes: size.nodes,
        images: size.images.clone(),
    };
    let mut cluster = RealCluster::start(&plan, &enclosure, &|event| println!("{event}"))?;
    let gateway = Gateway::open(&cluster)?;
    // Next to the folder of the enclosure, which is the directory for temporary files in here.
    let above = enclosure.folder().parent().context("a folder is in one")?;
    let trace = Trace(above.join("signpost-cluster"));
    gateway.save_kubeconfig(&cluster, &trace.kubeconfig())?;
    println!("{READY}");
    let mut broken = String::new();
    loop {
        thread::sleep(Duration::from_secs(1));
        // The user may have broken the cluster on purpose.
        let problem = cluster.ensure_runs().err();
        let problem = problem.map_or_else(String::new, |error| format!("{error:#}"));
        if problem != broken {
            println!("{problem}");
            broken = problem;
        }
    }
}

// === impl Trace ===

impl Trace {
    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    fn save_process(&self, process: u32) -> Result<()> {
        let file = self.0.join("process");
        fs::write(&file, process.to_string())
            .with_context(|| format!("failed to write {}", file.display()))
    }

    /// Returns the process of the cluster if it is running.
    fn observe_process(&self) -> Result<Option<u32>> {
        let Ok(text) = fs::read_to_string(self.0.join("process")) else {
            return Ok(None);
        };
        let process: u32 = text.parse().context("a process id is a number")?;
        // After a reboot the process ID may belong to another process; a process that has ended may
        // still be a zombie.
        let directory = Path::new("/proc").join(text);
        let line = fs::read(directory.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        Ok(line.contains("cluster\0run\0").then_some(process))
    }

    /// Links programs for the user into a folder for the `PATH`.
    fn link(&self, programs: &Path) -> Result<()> {
        let folder = self.0.join("bin");
        fs::create_dir(&folder)?;
        symlink(programs.join("kubectl"), folder.join("kubectl"))?;
        let helm = build_script::run("../tools/helm/build", &[])?;
        symlink(helm, folder.join("helm"))?;
        let program = env::current_exe().context("failed to find this program")?;
        symlink(program, folder.join("cluster"))?;
        Ok(())
    }

    fn tell(&self) -> Result<()> {
        let folder = self.0.display();
        ensure!(
            self.kubeconfig().exists(),
            "it is not ready yet: {folder}/log"
        );
        println!(
            "\n  export KUBECONFIG={folder}/kubeconfig PATH=$PATH:{folder}/bin\n\n  \
             kubectl get nodes\n  \
             helm install signpost charts/signpost --namespace signpost-system --create-namespace    # there is no service proxy yet\n  \
             cluster exec node-1 nft list ruleset\n  \
             make cluster-down"
        );
        Ok(())
    }
}
