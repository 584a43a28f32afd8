//! The Lease in the API server, read, written and released as the [`Election`] decides.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use runtime::chain;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    boot_time::BootTime,
    clock_offset::ClockOffset,
    election::{Election, LeaseRecord, Step},
};

/// One of several operators that want to hold a Lease.
#[derive(Debug)]
pub(crate) struct LeaderElector {
    api: Api<Lease>,
    name: String,
    election: Election,
    /// The Lease as last read or written.
    lease: Option<Lease>,
    /// Until when this operator may act.
    leads_until: watch::Sender<Option<BootTime>>,
    clock: fn() -> BootTime,
    /// The offset of the API server's clock at the last write.
    offset: watch::Sender<ClockOffset>,
}

/// Until when an operator may act without renewing its lease.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    end: watch::Receiver<Option<BootTime>>,
    clock: fn() -> BootTime,
}

/// The error that this operator no longer holds the lease.
#[derive(Debug, thiserror::Error)]
#[error("lost the lease {name}: another operator may be the leader")]
pub(crate) struct LeaseLost {
    name: String,
}

/// Why a request for the Lease failed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("failed to read or write the lease")]
    Request(#[source] kube::Error),
    #[error("no answer from the API server within {0:?}")]
    NoAnswer(Duration),
}

/// Less than half of the renewal time, so that one request that hangs does not lose the lease.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

// === impl LeaderElector ===

impl LeaderElector {
    /// Elects by the lease `name` in `namespace`.
    pub(crate) fn new(client: Client, namespace: &str, name: &str, election: Election) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            election,
            lease: None,
            leads_until: watch::Sender::new(None),
            clock: BootTime::now,
            offset: watch::Sender::new(ClockOffset::default()),
        }
    }

    /// Returns the offset of the API server's clock, as the last write of the lease shows it: each
    /// renewal measures it.
    pub(crate) fn offset(&self) -> watch::Receiver<ClockOffset> {
        self.offset.subscribe()
    }

    /// Returns until when this operator leads, which each renewal extends.
    pub(crate) fn leadership(&self) -> Leadership {
        Leadership {
            end: self.leads_until.subscribe(),
            clock: self.clock,
        }
    }

    /// Returns once this operator holds the lease. Calls `received` after every answer of the API
    /// server.
    pub(crate) async fn acquire(&mut self, received: impl Fn()) {
        let mut shown = String::new();
        loop {
            match self.observe().await {
                Ok(()) => {
                    received();
                    if self.election.step(self.now()) == Step::Acquire {
                        match self.write(self.election.identity().to_owned()).await {
                            Ok(true) => {
                                return info!(
                                    lease = self.name,
                                    "acquired the lease: this operator is the leader"
                                );
                            }
                            Ok(false) => {}
                            Err(error) => {
                                warn!(error = %chain(&error), "unable to acquire the lease")
                            }
                        }
                    } else {
                        self.log_holder(&mut shown);
                    }
                }
                Err(error) => warn!(error = %chain(&error), "unable to read the lease"),
            }
            let pause = match self.election.step(self.now()) {
                Step::Wait(pause) => pause,
                _ => self.election.retry_period(),
            };
            sleep(pause).await;
        }
    }

    /// Renews the lease until it is lost, and returns the error then.
    pub(crate) async fn renew_until_lost(&mut self) -> LeaseLost {
        let mut pause = self.election.retry_period();
        loop {
            sleep(pause).await;
            pause = self.election.retry_period();
            if self.election.step(self.now()) != Step::Renew {
                return LeaseLost {
                    name: self.name.clone(),
                };
            }
            let left = self.election.time_left(self.now());
            let Ok(renewed) = timeout(left, self.write(self.election.identity().to_owned())).await
            else {
                return LeaseLost {
                    name: self.name.clone(),
                };
            };
            match renewed {
                Ok(true) => {}
                // Another operator wrote in between, or an earlier renewal was applied and its
                // answer was lost. Read the lease at once, because most of the renewal time may be
                // over.
                Ok(false) => match self.observe().await {
                    Ok(()) => pause = Duration::ZERO,
                    Err(error) => warn!(error = %chain(&error), "unable to read the lease"),
                },
                Err(error) => warn!(error = %chain(&error), "unable to renew the lease"),
            }
        }
    }

    /// Releases the lease, so that the next operator need not wait for it to expire.
    pub(crate) async fn release(&mut self) {
        // A renewal may have been interrupted, so the last known version of the lease may be stale.
        if let Err(error) = self.observe().await {
            return warn!(error = %chain(&error), "failed to release the lease: it expires on its own");
        }
        let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        if spec.and_then(|spec| spec.holder_identity.as_deref()) != Some(self.election.identity()) {
            return;
        }
        match self.write(String::new()).await {
            Ok(true) => info!(lease = self.name, "released the lease"),
            Ok(false) => {}
            Err(error) => {
                warn!(error = %chain(&error), "failed to release the lease: it expires on its own")
            }
        }
    }

    fn log_holder(&self, shown: &mut String) {
        let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let holder = spec
            .and_then(|spec| spec.holder_identity.clone())
            .unwrap_or_default();
        if *shown != holder {
            info!(lease = self.name, holder, "standing by");
            *shown = holder;
        }
    }

    fn now(&self) -> BootTime {
        (self.clock)()
    }

    async fn observe(&mut self) -> Result<(), LeaseError> {
        let lease = answer(self.api.get_opt(&self.name)).await?;
        self.election
            .observe(lease.as_ref().map(record), self.now());
        self.lease = lease;
        Ok(())
    }

    /// Writes `holder` into the lease. Returns false if another process wrote first.
    async fn write(&mut self, holder: String) -> Result<bool, LeaseError> {
        let began = self.now();
        let written = match &self.lease {
            None => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(self.spec(holder, None)),
                };
                answer(self.api.create(&PostParams::default(), &lease)).await
            }
            // Sends the resourceVersion it was read with: the API server answers with a conflict if
            // another process wrote first.
            Some(known) => {
                let spec = self.spec(holder, known.spec.as_ref());
                let lease = Lease {
                    spec: Some(spec),
                    ..known.clone()
                };
                answer(self.api.replace(&self.name, &PostParams::default(), &lease)).await
            }
        };
        match written {
            Ok(lease) => {
                let measured = ClockOffset::of_write(&lease.metadata, Timestamp::now());
                if let Some(measured) = measured {
                    self.offset.send_replace(measured);
                }
                self.election.accepted(record(&lease), began);
                self.leads_until
                    .send_replace(Some(began + self.election.time_left(began)));
                self.lease = Some(lease);
                Ok(true)
            }
            // Conflict: another process wrote first. Not found: the Lease was deleted.
            Err(LeaseError::Request(kube::Error::Api(status)))
                if matches!(status.code, 404 | 409) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn spec(&self, holder: String, known: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let known = known.cloned().unwrap_or_default();
        let same = known.holder_identity.as_deref() == Some(holder.as_str());
        LeaseSpec {
            acquire_time: if same {
                known.acquire_time
            } else {
                Some(now.clone())
            },
            lease_duration_seconds: i32::try_from(self.election.lease_duration().as_secs()).ok(),
            lease_transitions: Some(known.lease_transitions.unwrap_or_default() + i32::from(!same)),
            renew_time: Some(now),
            holder_identity: Some(holder),
            preferred_holder: None,
            strategy: None,
        }
    }
}

// === impl Leadership ===

impl Leadership {
    /// A leadership that does not end.
    #[cfg(test)]
    pub(crate) fn endless() -> Self {
        Self {
            end: watch::Sender::new(Some(BootTime::START + Duration::MAX)).subscribe(),
            clock: BootTime::now,
        }
    }

    /// Whether it has ended or has not begun.
    pub(crate) fn has_expired(&self) -> bool {
        let now = (self.clock)();
        self.end.borrow().is_none_or(|end| end <= now)
    }
}

async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, LeaseError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(LeaseError::Request),
        Err(_) => Err(LeaseError::NoAnswer(REQUEST_TIMEOUT)),
    }
}

fn record(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or_default();
    LeaseRecord {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::{
            Arc, Mutex,
            atomic::{AtomicU32, Ordering},
        },
    };

    use http::{Method, Request, Response};
    use jiff::SignedDuration;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;
    use crate::election::ElectionTimeouts;

    thread_local! {
        /// The start of the clock, and for how long the machine has been suspended.
        static CLOCK: (tokio::time::Instant, Cell<Duration>) =
            (tokio::time::Instant::now(), Cell::default());
    }

    /// The clock of the timers, which stands still during a suspension, and the suspension.
    fn clock() -> BootTime {
        CLOCK.with(|(start, suspended)| BootTime::START + start.elapsed() + suspended.get())
    }

    fn suspend(time: Duration) {
        CLOCK.with(|(_, suspended)| suspended.set(suspended.get() + time));
    }

    fn elector(client: Client) -> LeaderElector {
        let election = Election::new("a".to_owned(), ElectionTimeouts::KUBERNETES);
        let mut elector = LeaderElector::new(client, "default", "lease", election);
        elector.clock = clock;
        elector
    }

    /// An API server with one Lease. It applies write number `lost` but does not answer it. With each
    /// write, its clock is put two hours forward.
    fn api_server(lost: u32) -> Client {
        let lease = Arc::new(Mutex::new(json!({"metadata": {"resourceVersion": "0"}})));
        let writes = Arc::new(AtomicU32::new(0));
        let service = service_fn(move |request: Request<Body>| {
            let (lease, writes) = (Arc::clone(&lease), Arc::clone(&writes));
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await?;
                let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
                let (code, answer) = {
                    let mut lease = lease.lock().expect("no test panics with it");
                    let version = &lease["metadata"]["resourceVersion"];
                    if method == Method::GET {
                        (200, lease.clone())
                    } else if *version != sent["metadata"]["resourceVersion"] {
                        (409, Value::Null)
                    } else {
                        let number = writes.fetch_add(1, Ordering::Relaxed) + 1;
                        *lease = sent;
                        lease["metadata"]["resourceVersion"] = number.to_string().into();
                        let ahead = SignedDuration::from_hours(2 * i64::from(number));
                        lease["metadata"]["managedFields"] = json!([{
                            "manager": "signpost-operator", "time": Timestamp::now() + ahead,
                            "fieldsV1": {"f:spec": {"f:renewTime": {}}},
                        }]);
                        (if number == lost { 0 } else { 200 }, lease.clone())
                    }
                };
                let answer = match code {
                    0 => return std::future::pending().await,
                    200 => answer,
                    _ => {
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code})
                    }
                };
                let response = Response::builder().status(code);
                Ok::<_, tower::BoxError>(
                    response.body(Body::from(answer.to_string().into_bytes()))?,
                )
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_was_applied_but_not_answered_does_not_cost_the_lease() {
        let mut elector = elector(api_server(2));
        elector.acquire(|| ()).await;
        let held = timeout(Duration::from_secs(60), elector.renew_until_lost()).await;
        assert!(held.is_err(), "{held:?}");
    }

    /// Failure story T339. An administrator may correct the clock while an operator is the leader.
    #[tokio::test(start_paused = true)]
    async fn t339_each_renewal_measures_the_clock_of_the_api_server() {
        let mut elector = elector(api_server(0));
        let offset = elector.offset();
        let is_about = |hours: i64| {
            let ahead = ClockOffset::ahead(SignedDuration::from_hours(hours));
            !offset.borrow().differs_from(ahead)
        };
        assert!(is_about(0), "nothing is known");
        elector.acquire(|| ()).await;
        assert!(is_about(2), "{offset:?}");
        let renewed = ElectionTimeouts::KUBERNETES.retry_period * 3 / 2;
        let held = timeout(renewed, elector.renew_until_lost()).await;
        assert!(held.is_err() && is_about(4), "{held:?}, {offset:?}");
    }

    /// Failure story T204. A process that is stopped and continued may write before it notices.
    #[tokio::test(start_paused = true)]
    async fn t204_a_leader_that_was_paused_for_too_long_may_write_no_more() {
        let mut elector = elector(api_server(0));
        let leadership = elector.leadership();
        assert!(leadership.has_expired(), "it has not begun");
        elector.acquire(|| ()).await;
        let held = timeout(Duration::from_secs(60), elector.renew_until_lost()).await;
        assert!(held.is_err() && !leadership.has_expired(), "{held:?}");
        tokio::time::advance(ElectionTimeouts::KUBERNETES.renew_deadline).await;
        assert!(leadership.has_expired());
    }

    /// Failure story T212. The timers of the process stand still meanwhile.
    #[tokio::test(start_paused = true)]
    async fn t212_a_leader_whose_machine_was_suspended_for_too_long_writes_no_more() {
        let mut elector = elector(api_server(0));
        let leadership = elector.leadership();
        elector.acquire(|| ()).await;
        suspend(ElectionTimeouts::KUBERNETES.renew_deadline);
        assert!(leadership.has_expired());
        let held = timeout(
            ElectionTimeouts::KUBERNETES.retry_period * 2,
            elector.renew_until_lost(),
        )
        .await;
        assert!(held.is_ok(), "it does not take its lease up again");
        assert!(leadership.has_expired());
    }
}
