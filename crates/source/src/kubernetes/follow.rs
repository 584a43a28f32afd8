//! One watch, followed for as long as the process runs.
//!
//! ```text
//!        +-> whole list   ---+
//!  start +-> streamed list --+--> events --(ended)--> resume after the last version seen
//!        +-> paged list   ---+                          |
//!   ^                                                   | 410: the version is forgotten
//!   +---------------------------------------------------+
//! ```
//!
//! A kind with few objects starts with a streamed list, whose request continues as the watch. For
//! Services and EndpointSlices a streamed list costs the API server twice the processor time of a
//! list in one answer: it copies each object, encodes it twice and sends it separately
//! (docs/decisions/0056). If the one answer is cut off, a streamed list follows: it may take longer
//! than the minute that an API server has for an answer.
//!
//! kube's own watcher is not used because it does not expose bookmarks: without them, a watch
//! without changes could not be distinguished from a dead one, nor would a resumed watch be known
//! to work. It also renews a watch that the server keeps closing without a pause.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use catalog::Event;
use kube::Client;
use runtime::chain;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::answer::ask;
use super::backoff::{Backoff, jittered};
use super::collection::{Collection, ListSize, Start, UnknownKindPolicy};
use super::failure::{ErrorAction, RequestKind, WatchError};
use super::freshness::WatchHealth;
use super::wire::{BookmarkPosition, Decoded, Line, Watched};
use crate::EngineGone;

/// The API server counts as gone after this long without data. It sends a bookmark every 60 to 75 s
/// on a watch where nothing else happens, and ends every other request after 60 s.
const SILENCE: Duration = Duration::from_secs(100);
/// A watch that lasted this long worked: the next one is opened without a wait.
const SETTLED: Duration = Duration::from_secs(10);

/// The receiver of a watch's events.
pub(super) trait Recipient<T> {
    /// Takes an event; waits while the engine is busy.
    fn deliver(&mut self, event: Event<T>) -> impl Future<Output = Result<(), EngineGone>> + Send;
}

/// Follows one collection.
pub(super) struct Follower<T, R> {
    client: Client,
    collection: Collection,
    watch_health: WatchHealth,
    recipient: R,
    next: Next,
    backoff: Backoff,
    /// The current watch, once the API server has opened it.
    opened: Option<OpenWatch>,
    /// When the API server last sent anything about this collection.
    last_received: SystemTime,
    objects: PhantomData<fn() -> T>,
}

/// The next request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    ListWhole,
    ListStreamed,
    ListPaged,
    ResumeAfter(String),
}

/// Why a request ended early.
#[derive(Debug)]
enum Ended {
    Failed(WatchError),
    EngineGone,
}

/// A watch that the API server has opened.
#[derive(Debug, Clone, Copy)]
struct OpenWatch {
    since: Instant,
    sent: Sent,
}

/// What the API server has sent in a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Nothing,
    Lines,
}

/// Whether received objects belong to the initial list or are changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Listing,
    Watching,
}

// === impl Follower ===

impl<T: Watched, R: Recipient<T>> Follower<T, R> {
    pub(super) fn new(watch: (Client, Collection, WatchHealth), recipient: R) -> Follower<T, R> {
        let (client, collection, watch_health) = watch;
        Follower {
            client,
            collection,
            watch_health,
            recipient,
            next: Next::first_of::<T>(),
            backoff: Backoff::default(),
            opened: None,
            last_received: SystemTime::now(),
            objects: PhantomData,
        }
    }

    /// Follows the collection forever.
    ///
    /// # Errors
    ///
    /// Fails only if the engine has ended.
    pub(super) async fn follow(mut self) -> Result<Infallible, EngineGone> {
        loop {
            let asked = self.next.asked();
            let ended = match asked {
                RequestKind::List => self.list().await,
                RequestKind::StreamedList | RequestKind::Events => self.watch().await,
            };
            let opened = self.opened.take();
            let settled = opened.is_some_and(|opened| opened.since.elapsed() >= SETTLED);
            if settled {
                self.backoff.reset();
            }
            let wait = match ended {
                // The watch follows its list at once.
                Ok(()) if settled || asked == RequestKind::List => Duration::ZERO,
                Ok(()) => self.backoff.next(),
                Err(Ended::Failed(error)) => self.recover(&error, asked, opened).await?,
                Err(Ended::EngineGone) => return Err(EngineGone),
            };
            sleep(wait).await;
        }
    }

    /// Chooses the next request; returns how long to wait before it.
    async fn recover(
        &mut self,
        error: &WatchError,
        asked: RequestKind,
        opened: Option<OpenWatch>,
    ) -> Result<Duration, EngineGone> {
        let kind = self.collection.kind;
        let message = chain(error).to_string();
        debug!(kind, error = message, "watch ended");
        match (error.action(asked), self.collection.absence) {
            (ErrorAction::Absent, UnknownKindPolicy::Empty { look_again }) => {
                self.next = Next::first_of::<T>();
                self.recipient.deliver(Event::Init).await?;
                self.recipient.deliver(Event::InitDone).await?;
                self.last_received = SystemTime::now();
                self.watch_health.fresh();
                return Ok(jittered(look_again));
            }
            (ErrorAction::ListPaged, _) => {
                self.next = Next::ListPaged;
                return Ok(Duration::ZERO);
            }
            (ErrorAction::ListQuietly, _) => {
                self.next = Next::first_of::<T>();
                return Ok(self.backoff.next());
            }
            (ErrorAction::List | ErrorAction::Absent, _) => self.next = Next::first_of::<T>(),
            // A list that was cut off does not show whether the server streams lists.
            (ErrorAction::Resume, _) if matches!(self.next, Next::ListPaged) => {
                self.next = Next::ListStreamed;
            }
            // After a restoration of etcd the version may be yet to come: the API server opens such
            // a watch, and sends nothing, not even a bookmark, until the cluster gets there.
            (ErrorAction::Resume, _)
                if matches!(error, WatchError::Silent(_))
                    && opened.is_some_and(|opened| opened.sent == Sent::Nothing) =>
            {
                self.next = Next::first_of::<T>();
            }
            (ErrorAction::Resume, _) => {}
        }
        self.watch_health.stale(self.last_received, &message);
        Ok(self.backoff.next())
    }

    /// Opens a watch and delivers its events until the API server ends it, as it does with every
    /// watch after some minutes. Sets the next request.
    async fn watch(&mut self) -> Result<(), Ended> {
        let (start, mut phase) = match &self.next {
            Next::ResumeAfter(version) => (Start::After(version), Phase::Watching),
            Next::ListWhole | Next::ListStreamed | Next::ListPaged => (Start::List, Phase::Listing),
        };
        let request = self.collection.watch(start).map_err(WatchError::from)?;
        let answer = within_silence(ask::<T>(&self.client, request)).await??;
        let mut opened = OpenWatch {
            since: Instant::now(),
            sent: Sent::Nothing,
        };
        self.opened = Some(opened);
        self.last_received = SystemTime::now();
        match phase {
            Phase::Listing => {
                // If this ends before the end of the list, the API server may be one that ignores
                // sendInitialEvents.
                self.next = Next::ListPaged;
                self.recipient.deliver(Event::Init).await?;
            }
            Phase::Watching => self.watch_health.fresh(),
        }
        let mut lines = answer.lines();
        while let Some(line) = within_silence(lines.next()).await?? {
            opened.sent = Sent::Lines;
            self.opened = Some(opened);
            self.last_received = SystemTime::now();
            phase = self.take(line, phase).await?;
        }
        Ok(())
    }

    /// Delivers one line of a watch. Returns the phase after it.
    async fn take(&mut self, line: Line<T>, phase: Phase) -> Result<Phase, EngineGone> {
        let (event, version) = match line {
            Line::Put(decoded) => {
                let version = decoded.resource_version().map(str::to_owned);
                (put(decoded, phase), version)
            }
            Line::Gone { key, version } => (Event::Delete(key), version),
            Line::Bookmark {
                version,
                place: BookmarkPosition::EndOfList,
            } if phase == Phase::Listing => {
                self.next = Next::ResumeAfter(version);
                self.recipient.deliver(Event::InitDone).await?;
                self.watch_health.fresh();
                return Ok(Phase::Watching);
            }
            Line::Bookmark { version, .. } => {
                if phase == Phase::Watching {
                    self.next = Next::ResumeAfter(version);
                }
                return Ok(phase);
            }
            Line::Nameless => {
                let kind = self.collection.kind;
                warn!(kind, "skipped an object without a name");
                return Ok(phase);
            }
        };
        self.recipient.deliver(event).await?;
        // Resume only after a delivered change. The objects of a list come in any order of
        // versions.
        if let (Phase::Watching, Some(version)) = (phase, version) {
            self.next = Next::ResumeAfter(version);
        }
        Ok(phase)
    }

    /// Lists in one answer or page by page. Sets the next request.
    async fn list(&mut self) -> Result<(), Ended> {
        let size = match self.next {
            Next::ListWhole => ListSize::Everything,
            _ => ListSize::Page,
        };
        let mut continued = None;
        loop {
            let request = self.collection.list(size, continued.as_deref());
            let request = request.map_err(WatchError::from)?;
            let answer = within_silence(ask::<T>(&self.client, request)).await??;
            if continued.is_none() {
                self.recipient.deliver(Event::Init).await?;
            }
            if self.next == Next::ListWhole {
                // If the answer is cut off, it may have taken longer than the API server allows.
                self.next = Next::ListStreamed;
            }
            let mut items = within_silence(answer.items::<T>()).await??;
            while let Some(decoded) = within_silence(items.next()).await?? {
                self.last_received = SystemTime::now();
                let event = put(decoded, Phase::Listing);
                self.recipient.deliver(event).await?;
            }
            self.last_received = SystemTime::now();
            let header = items.into_header();
            continued = header.continued;
            if continued.is_none() {
                self.recipient.deliver(Event::InitDone).await?;
                self.watch_health.fresh();
                // Without a version the watch starts with all objects once more, which is correct.
                self.next = Next::ResumeAfter(header.version.unwrap_or_else(|| "0".to_owned()));
                return Ok(());
            }
        }
    }
}

fn put<T>(decoded: Decoded<T>, phase: Phase) -> Event<T> {
    match (decoded, phase) {
        (Decoded::Good(object), Phase::Listing) => Event::InitApply(object),
        (Decoded::Good(object), Phase::Watching) => Event::Apply(object),
        (
            Decoded::Bad {
                key,
                field,
                message,
                ..
            },
            _,
        ) => Event::Undecodable {
            key,
            field,
            message,
        },
    }
}

async fn within_silence<O>(answer: impl Future<Output = O>) -> Result<O, WatchError> {
    timeout(SILENCE, answer)
        .await
        .map_err(|_| WatchError::Silent(SILENCE))
}

// === impl Next ===

impl Next {
    /// The first request.
    fn first_of<T: Watched>() -> Next {
        match T::FROM_PROTOBUF {
            // The kinds with many objects.
            Some(_) => Next::ListWhole,
            None => Next::ListStreamed,
        }
    }

    fn asked(&self) -> RequestKind {
        match self {
            Next::ListStreamed => RequestKind::StreamedList,
            Next::ListWhole | Next::ListPaged => RequestKind::List,
            Next::ResumeAfter(_) => RequestKind::Events,
        }
    }
}

// === impl Ended ===

impl From<WatchError> for Ended {
    fn from(error: WatchError) -> Ended {
        Ended::Failed(error)
    }
}

impl From<EngineGone> for Ended {
    fn from(_: EngineGone) -> Ended {
        Ended::EngineGone
    }
}
