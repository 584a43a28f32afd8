//! Imports an archive into containerd: a separate daemon with temporary folders and with mounts in
//! its own mount namespace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, os::unix::fs::MetadataExt, thread};

use anyhow::{Context, Error, Result, bail, ensure};
use images::{Architecture, Image, Tree, User};
use jiff::Timestamp;
use libtest_mimic::{Arguments, Failed, Trial};
use tempfile::TempDir;

const REFERENCE: &str = "registry.example/team/program:1.2.3";
const CONTENT: &str = "what the program is";
/// containerd answers within a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A containerd that runs until this is dropped.
#[derive(Debug)]
struct Containerd {
    process: Child,
    folder: TempDir,
}

fn main() -> ExitCode {
    let name = "containerd_imports_the_image_under_its_name_and_unpacks_it";
    let trial = match missing() {
        None => Trial::test(name, || {
            import().map_err(|error| Failed::from(format!("{error:#}")))
        }),
        Some(what) => {
            println!("SKIPPED: what containerd makes of an archive, for want of {what}");
            Trial::test(format!("SKIPPED_{name}"), || Ok(())).with_ignored_flag(true)
        }
    };
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn missing() -> Option<&'static str> {
    let path = env::var_os("PATH").unwrap_or_default();
    let there = |program: &str| env::split_paths(&path).any(|folder| folder.join(program).exists());
    let programs = ["containerd", "ctr", "unshare"].into_iter();
    let root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let mut missing = programs.filter(|program| !there(program));
    missing.next().or((!root).then_some("root"))
}

fn import() -> Result<()> {
    let mut tree = Tree::default();
    let file = images::File {
        mode: 0o755,
        content: CONTENT.into(),
    };
    let path = "/usr/local/bin/program".parse().map_err(Error::msg)?;
    tree.insert(path, file)?;
    let architecture = match env::consts::ARCH {
        "x86_64" => Architecture::Amd64,
        "aarch64" => Architecture::Arm64,
        other => bail!("no images are made for {other}"),
    };
    let image = Image {
        reference: REFERENCE.parse().map_err(Error::msg)?,
        architecture,
        created: Timestamp::UNIX_EPOCH,
        entrypoint: vec!["/usr/local/bin/program".to_owned()],
        environment: BTreeMap::new(),
        user: User { uid: 1, gid: 1 },
        labels: BTreeMap::new(),
        tree,
    };
    let made = image.archive();

    let mut containerd = Containerd::start()?;
    let archive = containerd.folder.path().join("image.tar");
    fs::write(&archive, &made.bytes)?;
    // The native snapshotter copies files. The overlay snapshotter needs a file system that the
    // test cannot rely on.
    let archive = archive.to_str().context("a path that is text")?;
    containerd.ctr(&["images", "import", "--snapshotter=native", archive])?;

    let listed = containerd.ctr(&["images", "list"])?;
    let mut lines = listed.lines();
    let line = lines.find(|line| line.starts_with(&format!("{REFERENCE} ")));
    let line = line.with_context(|| format!("{REFERENCE} is not listed: {listed}"))?;
    for expected in [made.manifest, format!("linux/{architecture}")] {
        ensure!(line.contains(&expected), "no {expected} in {line}");
    }
    let unpacked = containerd.unpacked("usr/local/bin/program")?;
    ensure!(unpacked == [CONTENT], "unpacked is {unpacked:?}");
    Ok(())
}

// === impl Containerd ===

impl Containerd {
    /// Starts containerd and waits until it answers.
    fn start() -> Result<Containerd> {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let settings = format!(
            "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{0}/socket\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{0}/opt\"\n",
            path.display()
        );
        fs::write(path.join("settings.toml"), settings)?;
        let process = Command::new("unshare")
            .args(["--mount", "containerd", "--config"])
            .arg(path.join("settings.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path.join("log"))?)
            .spawn()
            .context("failed to start containerd")?;
        let mut containerd = Containerd { process, folder };
        let started = Instant::now();
        while let Err(error) = containerd.ctr(&["version"]) {
            let ended = containerd.process.try_wait()?.is_some();
            if ended || started.elapsed() > DEADLINE {
                let log = fs::read_to_string(containerd.folder.path().join("log"))?;
                bail!("containerd does not answer: {error:#}\n{log}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(containerd)
    }

    /// Returns the output of its client.
    fn ctr(&mut self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(self.folder.path().join("socket"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("failed to run ctr")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ctr failed: {}", said.trim());
        String::from_utf8(output.stdout).context("ctr printed no text")
    }

    /// Returns the content of the file at `path` in each unpacked image that has one.
    fn unpacked(&self, path: impl AsRef<Path>) -> Result<Vec<String>> {
        let root = self.folder.path().join("root");
        let snapshots = fs::read_dir(root.join("io.containerd.snapshotter.v1.native/snapshots"))?;
        let folders: Vec<PathBuf> = snapshots
            .map(|folder| Ok(folder?.path()))
            .collect::<Result<_>>()?;
        let files = folders.into_iter().map(|folder| folder.join(&path));
        let files = files.filter(|file| file.exists());
        files.map(|file| Ok(fs::read_to_string(file)?)).collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // containerd has no child processes here that could outlive it. It may already have ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
