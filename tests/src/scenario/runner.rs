//! Runs a scenario at a depth.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use backend::Size;
use libtest_mimic::Trial;

use super::{Action, Cluster, Depth, Dump, Expectation, Goldens, Judgement, Kept, Script, Update};
use crate::trial::trial;

/// Returns the paths of all scenarios of this package, sorted by name.
pub fn scenario_files() -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let failed = || format!("failed to list {}", folder.display());
    let entries = fs::read_dir(&folder).with_context(failed)?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_>>().with_context(failed)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    Ok(paths)
}

/// Returns a test for each scenario at the depth that `depth` creates for it.
pub fn trials<D: Depth>(
    update: Update,
    depth: impl Fn(&Script) -> Result<D> + Clone + Send + 'static,
) -> Result<Vec<Trial>> {
    trials_named("", update, depth)
}

/// Like [`trials`] with a prefix for the names of the tests.
pub fn trials_named<D: Depth>(
    prefix: &str,
    update: Update,
    depth: impl Fn(&Script) -> Result<D> + Clone + Send + 'static,
) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for path in scenario_files()? {
        let story = path.file_stem().unwrap_or_default().to_string_lossy();
        let (name, depth) = (format!("{prefix}{story}"), depth.clone());
        trials.push(trial(&name, move || tell(&path, update, depth)));
    }
    Ok(trials)
}

fn tell<D: Depth>(path: &Path, update: Update, depth: impl Fn(&Script) -> Result<D>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let text = fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
    let script = Script::parse(&text).with_context(|| name.clone().into_owned())?;
    let mut goldens = Goldens::new(path, update);
    let mut depth = depth(&script).with_context(|| format!("{name}: failed to prepare"))?;
    let failures = run(&script, &mut depth, &mut goldens)?;
    goldens.commit(&script)?;
    if failures.is_empty() {
        return Ok(());
    }
    let failures: Vec<String> = failures.iter().map(|f| format!("{name}: {f}")).collect();
    bail!("{}", failures.join("\n"));
}

/// Runs `script` at `depth`; returns the unmet expectations, each with its line. Fails if the
/// scenario cannot continue.
pub fn run(script: &Script, depth: &mut impl Depth, goldens: &mut Goldens) -> Result<Vec<String>> {
    let mut cluster = Cluster::new()?;
    let mut failures = Vec::new();
    let mut kept = Kept::default();
    let mut written = depth.apply(cluster.dataplane())?;
    for step in &script.steps {
        let failed = || format!("line {}: {}", step.line, step.text);
        let wrong = match &step.action {
            Action::Expect(expectation) => match expectation {
                Expectation::NoChange => explain_change(written),
                Expectation::Prints { dump, section } => {
                    let printed = match dump {
                        Dump::Rejections => Some(cluster.rejections()),
                        of_depth => depth.dump(*of_depth).with_context(failed)?,
                    };
                    printed.and_then(|text| goldens.compare(script, section, &text))
                }
            },
            Action::Packet { packet, expected } | Action::Keeps { packet, expected } => {
                let judged = match &step.action {
                    Action::Keeps { .. } => kept.judge(depth, packet, expected),
                    _ => depth.judge(packet, expected),
                };
                match judged.with_context(failed)? {
                    Judgement::AsExpected => None,
                    Judgement::Otherwise(text) => Some(format!("but it is {text}")),
                    Judgement::NotAsked(why) => {
                        eprintln!("NOT ASKED, {}, {}: {why}", goldens.file_name(), failed());
                        None
                    }
                }
            }
            change => {
                written = perform(script, &mut cluster, depth, change).with_context(failed)?;
                None
            }
        };
        failures.extend(wrong.map(|wrong| format!("{}: {wrong}", failed())));
    }
    Ok(failures)
}

/// Runs a step that programs; returns the size of the writes.
fn perform(
    script: &Script,
    cluster: &mut Cluster,
    depth: &mut impl Depth,
    change: &Action,
) -> Result<Size> {
    let text = |name: &String| {
        script
            .sections
            .get(name)
            .map_or("", |section| &section.text)
    };
    match change {
        Action::Apply(names) => {
            for name in names {
                cluster
                    .apply(text(name))
                    .with_context(|| format!("section {name:?}"))?;
            }
        }
        Action::Delete(names) => {
            for name in names {
                cluster
                    .delete(text(name))
                    .with_context(|| format!("section {name:?}"))?;
            }
        }
        Action::Configure(settings) => cluster.configure(settings),
        Action::Restart => {
            cluster.restart()?;
            return depth.restart(cluster.dataplane());
        }
        Action::Expect(_) | Action::Packet { .. } | Action::Keeps { .. } => {}
    }
    cluster.compile();
    depth.apply(cluster.dataplane())
}

/// Describes `written` if nothing should have been written.
fn explain_change(written: Size) -> Option<String> {
    let Size { elements, objects } = written;
    let text = format!("but {elements} elements and {objects} objects were written");
    (!written.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests;
