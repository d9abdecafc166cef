//! The connections of a server over HTTP: one for each set of header values.
//!
//! Invariants:
//!
//! 1. A connection is used only by runs whose headers have exactly its values.
//! 2. At most [`MOST`] connections are kept. One that is evicted ends when the calls under way have ended.
//! 3. The task that drops idle connections ends with the pool.

use std::sync::{Arc, Weak};
use std::time::Duration;

use emitree_runtime::RunContext;
use parking_lot::Mutex;
use reqwest::Client;
use reqwest::header::{HeaderName, HeaderValue};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::connection::slot::{self, Slot};
use crate::error::Fault;
use crate::http::{Endpoint, Headers};
use crate::tools::list::ToolList;

/// The most connections that are kept.
const MOST: usize = 64;

/// The time after which an idle connection is dropped.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// The value of a header.
#[derive(Clone)]
pub(super) enum Value {
    Fixed(String),
    OfRun(Arc<ValueOfRun>),
}

type ValueOfRun = dyn Fn(&RunContext) -> Option<String> + Send + Sync;

/// How a server is reached, and the headers of a run.
pub(super) struct Source {
    pub(super) client: Client,
    pub(super) url: Arc<str>,
    pub(super) headers: Vec<(HeaderName, Value)>,
    pub(super) is_anonymous: bool,
}

/// The connections by their header values.
pub(crate) struct Pool {
    source: Source,
    kept: Arc<Mutex<Vec<Kept>>>,
    public: Arc<Mutex<Option<Arc<ToolList>>>>,
    is_closed: Mutex<bool>,
    sweeper: AbortHandle,
}

struct Kept {
    headers: Headers,
    slot: Arc<Slot>,
    used: Instant,
}

impl Pool {
    pub(super) fn new(source: Source) -> Self {
        let kept = Arc::default();
        let sweeper = tokio::spawn(sweep(Arc::downgrade(&kept))).abort_handle();
        Self { source, kept, public: Arc::default(), is_closed: Mutex::default(), sweeper }
    }

    /// Returns the place of the connection for a run.
    pub(crate) fn slot(&self, ctx: &RunContext) -> Result<Arc<Slot>, Fault> {
        // The functions of the headers are user code, so they are called without a lock.
        let headers = self.source.headers_of(Some(ctx))?;
        self.slot_of(headers)
    }

    /// Returns the place of the connection, if no header depends on the run.
    pub(crate) fn only_slot(&self) -> Option<Arc<Slot>> {
        if self.source.headers.iter().any(|(_, value)| matches!(value, Value::OfRun(_))) {
            return None;
        }
        self.slot_of(self.source.headers_of(None).ok()?).ok()
    }

    fn slot_of(&self, headers: Headers) -> Result<Arc<Slot>, Fault> {
        if *self.is_closed.lock() {
            return Err(Fault::Shut);
        }
        let now = Instant::now();
        let mut kept = self.kept.lock();
        if let Some(known) = kept.iter_mut().find(|known| known.headers == headers) {
            known.used = now;
            return Ok(Arc::clone(&known.slot));
        }
        let evicted = (kept.len() == MOST).then(|| {
            // Those that no call uses go first, and of these the one that was not used for longest.
            let oldest = kept.iter().enumerate().min_by_key(|(_, one)| (Arc::strong_count(&one.slot) > 1, one.used));
            oldest.map(|(position, _)| position).map(|position| kept.remove(position))
        });
        let endpoint = Endpoint {
            client: self.source.client.clone(),
            url: Arc::clone(&self.source.url),
            headers: headers.clone(),
            public: Arc::clone(&self.public),
        };
        let slot = Slot::new(slot::Source::Http(endpoint));
        kept.push(Kept { headers, slot: Arc::clone(&slot), used: now });
        drop(kept);
        // Ending a connection wakes tasks, so it happens without the lock.
        drop(evicted);
        Ok(slot)
    }

    pub(crate) async fn close(&self) {
        *self.is_closed.lock() = true;
        let kept = std::mem::take(&mut *self.kept.lock());
        for one in kept {
            one.slot.close().await;
        }
    }
}

impl Source {
    fn headers_of(&self, ctx: Option<&RunContext>) -> Result<Headers, Fault> {
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            let value = match (value, ctx) {
                (Value::Fixed(value), _) => Some(value.clone()),
                (Value::OfRun(value), Some(ctx)) => value(ctx),
                (Value::OfRun(_), None) => None,
            };
            match value {
                Some(value) => {
                    let value = HeaderValue::from_str(&value);
                    let fault = || Fault::Setting(format!("the value of the header `{name}` for this run is invalid"));
                    let mut value = value.map_err(|_| fault())?;
                    value.set_sensitive(true);
                    headers.push((name.clone(), value));
                }
                None if self.is_anonymous => {}
                None => {
                    return Err(Fault::Setting(format!(
                        "the header `{name}` has no value for this run: give the run what its function reads, such as an \
                         extension, or set `.anonymous()`"
                    )));
                }
            }
        }
        Ok(headers)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

/// Drops connections that no call has used for some time.
async fn sweep(kept: Weak<Mutex<Vec<Kept>>>) {
    loop {
        sleep(IDLE / 10).await;
        let Some(kept) = kept.upgrade() else { return };
        let is_idle = |one: &mut Kept| one.used.elapsed() >= IDLE && Arc::strong_count(&one.slot) == 1;
        let idle: Vec<_> = kept.lock().extract_if(.., is_idle).collect();
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(user: &str) -> Headers {
        vec![(HeaderName::from_static("authorization"), HeaderValue::from_str(user).unwrap())]
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_dropped_after_five_idle_minutes_unless_a_call_uses_it() {
        let client = Client::builder().tls_backend_preconfigured(crate::http::builder::tls(false).unwrap());
        let (client, url) = (client.build().unwrap(), "http://wiki.example".into());
        let pool = Pool::new(Source { client, url, headers: Vec::new(), is_anonymous: false });
        let used = pool.slot_of(headers("ada")).unwrap();
        drop(pool.slot_of(headers("bob")).unwrap());
        sleep(IDLE - Duration::from_secs(60)).await;
        assert_eq!(pool.kept.lock().len(), 2);
        sleep(Duration::from_secs(120)).await;
        let users: Vec<_> = pool.kept.lock().iter().map(|one| one.headers.clone()).collect();
        assert_eq!(users, [headers("ada")]);
        drop(used);
        sleep(Duration::from_secs(60)).await;
        assert!(pool.kept.lock().is_empty());
    }
}
