//! A kernel that fails a single allocation, each in turn, of those that reading and writing rules takes. The
//! kernel injects the failure itself (`fail-nth`, Documentation/fault-injection/fault-injection.rst), into
//! system calls of the thread that asks for it. Failure story T327.

use std::fs::{self, OpenOptions};
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use backend::{Change as _, CommitError, Effect, Receipt, Recovery, Rendered};
use backend_iptables::Iptables;
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family, FrontendKey, Origin, Packet};
use testkit::address_plan as addresses;
use testkit::laws;
use tests::extent::is_exhaustive;
use xtables::Variant;

use crate::mode::{Mode, Steps, smallest_parts};
use crate::services;
use crate::stage::Stage;
use crate::witness::Witness;

const FAMILY: Family = Family::Ipv4;
/// Asks for a failure, for the thread that opens it.
const FAIL_NTH: &str = "/proc/thread-self/fail-nth";
/// The settings of failures.
const SETTINGS: &str = "/sys/kernel/debug";
/// After this many allocations, one of them is left out between two that fail, after twice as many two.
const EACH_UP_TO: u32 = 6;
/// Of this many failures, clients connect after one.
const ASKED: usize = 16;

/// Held by the mode whose turn it is: beside each other, on the one processor of user-mode Linux, they
/// take three times as long.
static TURN: Mutex<()> = Mutex::new(());

/// What is undertaken while an allocation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undertaking {
    /// Rules are written where there are none.
    Start,
    /// The same in the smallest parts. A whole change is tried again in parts, so that what the kernel says
    /// about one that failed is not seen.
    StartInParts,
    /// Services come, go and change.
    Change,
    /// All rules are removed.
    Removal,
    /// The rules are read.
    Reading,
}

/// What the failures led to.
#[derive(Debug, Default)]
struct Tally {
    failures: usize,
    /// Nothing came of them: the kernel did without, or the backend took smaller parts.
    unnoticed: usize,
    /// The errors after which nothing had changed.
    without_effect: usize,
    /// The other errors.
    with_effect: usize,
}

/// Why no allocation can fail here; `None` if it can.
pub(crate) fn obstacle() -> Option<String> {
    if !Path::new(FAIL_NTH).exists() {
        return Some("the kernel lacks CONFIG_FAULT_INJECTION".to_owned());
    }
    let failed = set_up().err();
    failed.map(|error| format!("{error:#}"))
}

/// Whichever allocation fails, the backend reports what became of the change, no Service is harmed, and the
/// next attempt completes it.
pub(crate) fn run(mode: Mode) -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let stage = Stage::build()?;
    match mode {
        Mode::Nftables => run_in::<Nftables>(&stage, Variant::NfTables),
        Mode::Iptables(variant) => run_in::<Iptables>(&stage, variant),
        Mode::Ipvs => run_in::<Ipvs>(&stage, Variant::NfTables),
    }
}

fn run_in<B: Steps>(stage: &Stage, variant: Variant) -> Result<()> {
    for undertaking in [
        Undertaking::Start,
        Undertaking::StartInParts,
        Undertaking::Change,
        Undertaking::Removal,
        Undertaking::Reading,
    ] {
        let (mut tally, mut nth) = (Tally::default(), NonZeroU32::MIN);
        let mut trial = Trial::<B> {
            stage,
            variant,
            undertaking,
            backend: B::open_family(stage, variant, FAMILY)?,
            held: Vec::new(),
        };
        trial.undisturbed()?;
        loop {
            let moment = || format!("{undertaking:?} without allocation {nth}");
            if !trial.fails(nth, &mut tally).with_context(moment)? {
                break;
            }
            nth = nth.saturating_add(match is_exhaustive() {
                true => 1,
                false => 1 + nth.get() / EACH_UP_TO,
            });
        }
        println!("    {undertaking:?}: {tally:?}, and the last one before number {nth}");
        ensure!(tally.failures > 0, "nothing has failed");
    }
    Ok(())
}

struct Trial<'a, B: Steps> {
    stage: &'a Stage,
    variant: Variant,
    undertaking: Undertaking,
    backend: B,
    /// What the kernel holds before each part of the change, and after the last one.
    held: Vec<B::Rules>,
}

// === impl Undertaking ===

impl Undertaking {
    fn ends(self) -> [Dataplane; 2] {
        match self {
            Undertaking::Start | Undertaking::StartInParts => {
                [services::none(), services::expected()]
            }
            Undertaking::Change => [services::earlier(), services::expected()],
            Undertaking::Removal => [services::expected(), services::none()],
            Undertaking::Reading => [services::expected(), services::expected()],
        }
    }
}

// === impl Trial ===

impl<B: Steps> Trial<'_, B> {
    /// Undertakes it without a failure.
    fn undisturbed(&mut self) -> Result<()> {
        let [before, _] = self.undertaking.ends();
        self.prepare(&before)?;
        let (node, backend) = (self.stage.node()?, &mut self.backend);
        self.held = vec![node.enter(|| backend.observe())??];
        for part in self.plan()?.1 {
            let backend = &mut self.backend;
            let held = node.enter(|| {
                let _receipt = backend.commit(part)?;
                anyhow::Ok(backend.observe()?)
            })??;
            self.held.push(held);
        }
        Ok(())
    }

    /// The rules at the end, and the change to them in the parts in which it is made. A removal is none.
    fn plan(&self) -> Result<(B::Rules, Vec<B::Change>)> {
        let [_, after] = self.undertaking.ends();
        let held = self.held.first().context("the rules were read")?;
        let wanted = self.backend.render(&after, &read(held.clone()));
        let change = self.backend.diff(held, &wanted);
        Ok(match self.undertaking {
            Undertaking::StartInParts => (wanted, smallest_parts::<B>(change)),
            Undertaking::Start | Undertaking::Change => (wanted, vec![change]),
            Undertaking::Removal => (B::Rules::default(), Vec::new()),
            Undertaking::Reading => (wanted, Vec::new()),
        })
    }

    /// Undertakes it with a failure of this allocation. Returns whether there was one.
    fn fails(&mut self, nth: NonZeroU32, tally: &mut Tally) -> Result<bool> {
        let node = self.stage.node()?;
        let [before, after] = self.undertaking.ends();
        self.prepare(&before)?;
        if self.undertaking == Undertaking::Reading {
            return self.fails_to_read(nth, tally);
        }
        // Some of it is what the backend knows.
        let backend = &mut self.backend;
        let held = node.enter(|| backend.observe())??;
        ensure!(self.held.first() == Some(&held), "it begins with {held}");
        // At a start no Service is served yet.
        let asks = tally.failures.is_multiple_of(ASKED) && self.undertaking == Undertaking::Change;
        let mut witness = match asks {
            true => Some(Witness::begin(self.stage, FAMILY)?),
            false => None,
        };
        let ((wanted, parts), backend) = (self.plan()?, &mut self.backend);
        let ((done, committed), has_failed) = node.enter(|| {
            without_allocation(nth, || match self.undertaking {
                Undertaking::Removal => (0, backend.commit_removal()),
                _ => commit_all(backend, parts),
            })
        })??;
        if !has_failed {
            let _receipt = committed?;
            return Ok(false);
        }
        tally.count(&committed);
        let between = node.enter(|| backend.observe())??;
        match &committed {
            Ok(_) => {
                let rest = backend.diff(&between, &wanted);
                ensure!(rest.size().is_empty(), "it succeeds without {rest}");
            }
            Err(error) => {
                let passes = matches!(error.recovery, Recovery::Retry | Recovery::Observe);
                ensure!(passes, "it is {:?}: {error:?}", error.recovery);
                let as_before = self.held.get(done).context("it was recorded")?;
                ensure!(
                    error.effect == Effect::Possible || between == *as_before,
                    "{error:?} had an effect:\n{}",
                    backend.diff(as_before, &between)
                );
            }
        }
        if self.undertaking != Undertaking::Removal {
            self.expect_no_harm([&before, &after], [&held, &between, &wanted])?;
        }
        if let Some(witness) = &mut witness {
            witness.look("after the failure")?;
        }
        self.complete(done, committed, &after)?;
        if let Some(witness) = witness {
            let _ = witness.finish()?;
        }
        Ok(true)
    }

    /// What is read is right, or reading fails and is tried again.
    fn fails_to_read(&mut self, nth: NonZeroU32, tally: &mut Tally) -> Result<bool> {
        let (node, backend) = (self.stage.node()?, &mut self.backend);
        let held = node.enter(|| backend.observe())??;
        let (found, has_failed) =
            node.enter(|| without_allocation(nth, || backend.observe()))??;
        let again = node.enter(|| backend.observe())??;
        ensure!(again == held, "{again} is not {held}");
        match found {
            Ok(found) => {
                ensure!(found == held, "{found} is not {held}");
                tally.unnoticed += usize::from(has_failed);
            }
            Err(error) if has_failed => {
                ensure!(error.recovery == Recovery::Observe, "{error:?}");
                tally.without_effect += 1;
            }
            Err(error) => return Err(error.into()),
        }
        tally.failures += usize::from(has_failed);
        Ok(has_failed)
    }

    /// Leaves the kernel with the rules of `dataplane` alone, as an agent writes them at its start.
    fn prepare(&mut self, dataplane: &Dataplane) -> Result<()> {
        self.backend = B::open_family(self.stage, self.variant, FAMILY)?;
        let (node, backend) = (self.stage.node()?, &mut self.backend);
        node.enter(|| {
            let _receipt = backend.commit_removal()?;
            if dataplane.services().is_empty() {
                return Ok(());
            }
            let held = backend.observe()?;
            let wanted = backend.render(dataplane, &read(held.clone()));
            let change = backend.diff(&held, &wanted);
            let _receipt = backend.commit(change)?;
            anyhow::Ok(())
        })?
    }

    /// Recovers as the error says; then another agent has nothing to write.
    fn complete(
        &mut self,
        done: usize,
        committed: Result<Receipt, CommitError>,
        after: &Dataplane,
    ) -> Result<()> {
        let is_removal = self.undertaking == Undertaking::Removal;
        let (node, backend) = (self.stage.node()?, &mut self.backend);
        node.enter(|| {
            let known = match committed {
                Ok(_) => return Ok(()),
                Err(error) if error.recovery == Recovery::Retry => {
                    let known = self.held.get(done);
                    known.context("it was recorded")?.clone()
                }
                Err(_) => backend.observe()?,
            };
            let wanted = backend.render(after, &read(known.clone()));
            let change = backend.diff(&known, &wanted);
            let _receipt = match is_removal {
                true => backend.commit_removal()?,
                false => backend.commit(change)?,
            };
            // Mode ipvs lets endpoints go here whose connections have ended.
            let _drift = backend.observe_drift()?;
            anyhow::Ok(())
        })??;
        let mut next = B::open_family(self.stage, self.variant, FAMILY)?;
        let found = node.enter(|| next.observe())??;
        let wanted = match is_removal {
            true => B::Rules::default(),
            false => next.render(after, &read(found.clone())),
        };
        let change = next.diff(&found, &wanted);
        ensure!(
            change.size().is_empty(),
            "another agent would write {change}"
        );
        Ok(())
    }

    /// Packets to all frontends of both ends, from a pod and from the node.
    fn expect_no_harm(&self, ends: [&Dataplane; 2], rules: [&B::Rules; 3]) -> Result<()> {
        let check = AssertUnwindSafe(|| {
            for packet in packets(ends) {
                let verdict = |rules| self.backend.simulate(rules, ends[1].node(), &packet);
                let [before, between, after] = rules.map(verdict);
                laws::unrelated_services_notice_nothing(ends, &packet, &between);
                laws::never_misleads(ends, &packet, &between);
                laws::no_worse_than_both_ends(&packet, ends, [&before, &after], &between);
            }
        });
        panic::catch_unwind(check).map_err(|_| anyhow!("a packet fares badly: {}", rules[1]))
    }
}

// === impl Tally ===

impl Tally {
    fn count(&mut self, committed: &Result<Receipt, CommitError>) {
        self.failures += 1;
        match committed {
            Ok(_) => self.unnoticed += 1,
            Err(error) if error.effect == Effect::None => self.without_effect += 1,
            Err(_) => self.with_effect += 1,
        }
    }
}

/// Commits all parts until one fails. Returns also how many did not.
fn commit_all<B: Steps>(
    backend: &mut B,
    parts: Vec<B::Change>,
) -> (usize, Result<Receipt, CommitError>) {
    let (mut done, mut receipt) = (0, Receipt { transactions: 0 });
    for part in parts {
        match backend.commit(part) {
            Ok(next) => receipt.transactions += next.transactions,
            Err(error) => return (done, Err(error)),
        }
        done += 1;
    }
    (done, Ok(receipt))
}

fn read<R>(rules: R) -> Rendered<R> {
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}

fn packets(ends: [&Dataplane; 2]) -> Vec<Packet> {
    let keys = ends.into_iter().flat_map(|end| end.frontends().iter());
    let keys = keys
        .map(|(key, _)| *key)
        .filter(|key| key.family() == FAMILY);
    let origins = [
        (Origin::Node, addresses::node_address(1, FAMILY)),
        (
            Origin::Pod {
                interface: "veth9".into(),
            },
            addresses::pod_address(1, 9, FAMILY),
        ),
    ];
    let to = |key: FrontendKey| {
        let (destination, protocol, port) = match key {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } => (address, protocol, port),
            FrontendKey::NodePort { protocol, port, .. } => {
                (addresses::node_address(1, FAMILY), protocol, port)
            }
        };
        origins.clone().map(|(origin, source)| Packet {
            origin,
            source,
            destination,
            protocol,
            port,
        })
    };
    keys.flat_map(to).collect()
}

/// Lets allocations fail that may wait for memory, too, which are almost all, and without a word in the
/// kernel's log.
fn set_up() -> Result<()> {
    for (name, value) in [
        ("failslab/ignore-gfp-wait", "N"),
        ("failslab/verbose", "0"),
        ("fail_page_alloc/ignore-gfp-wait", "N"),
        ("fail_page_alloc/verbose", "0"),
    ] {
        let file = Path::new(SETTINGS).join(name);
        fs::write(&file, value).with_context(|| format!("failed to write {}", file.display()))?;
    }
    Ok(())
}

/// Does `work` in this thread, whose allocation of this number fails. Returns also whether there was one.
fn without_allocation<T>(nth: NonZeroU32, work: impl FnOnce() -> T) -> Result<(T, bool)> {
    let file = OpenOptions::new().read(true).write(true).open(FAIL_NTH)?;
    let written = nth.to_string();
    file.write_all_at(written.as_bytes(), 0)?;
    let result = work();
    let mut left = [0; 16];
    let length = file.read_at(&mut left, 0)?;
    file.write_all_at(b"0", 0)?;
    match std::str::from_utf8(&left[..length])?.trim().parse::<u32>() {
        Ok(left) => Ok((result, left == 0)),
        Err(_) => bail!("{FAIL_NTH} holds no number"),
    }
}
