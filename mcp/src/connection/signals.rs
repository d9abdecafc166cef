//! The signals of a connection: progress of calls, changes of lists, and its end.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use tokio::sync::{mpsc, watch};

use crate::connection::calls::Calls;
use crate::events::{ServerLog, ToolProgress};
use crate::server::report::Report;
use crate::text::{cleaned, quoted};

/// The most progress that waits for a call to take it. Later progress replaces it.
const WAITING: usize = 64;

/// The end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server has closed the connection, or its process has ended.
    Closed,
    /// A message was too long.
    TooLong { limit: usize },
    /// This program has closed the connection.
    Shut,
}

/// The signals of one connection.
#[derive(Debug)]
pub(crate) struct Signals {
    progress: Mutex<Routes>,
    /// The calls under way.
    pub(crate) calls: Calls,
    is_stale: AtomicBool,
    ended: watch::Sender<Option<End>>,
    /// The last line that was no message.
    stray: Mutex<Option<String>>,
    report: Report,
    /// Values that no error and no event may have.
    secrets: Vec<String>,
}

/// Where progress goes. Progress may arrive before the call knows its own token, so some of it waits.
#[derive(Debug, Default)]
struct Routes {
    calls: HashMap<ProgressToken, mpsc::Sender<ToolProgress>>,
    early: VecDeque<(ProgressToken, ToolProgress)>,
}

impl Signals {
    pub(crate) fn new(report: Report, secrets: Vec<String>) -> Self {
        let (progress, calls, is_stale) = (Mutex::default(), Calls::default(), AtomicBool::new(false));
        let (ended, stray) = (watch::Sender::new(None), Mutex::default());
        Self { progress, calls, is_stale, ended, stray, report, secrets }
    }

    /// Returns a text of the server for an error or an event.
    pub(crate) fn quoted(&self, text: &str) -> String {
        quoted(&self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "[hidden]")))
    }

    pub(crate) const fn report(&self) -> &Report {
        &self.report
    }

    /// Notes a line that is no message.
    pub(crate) fn stray(&self, text: String) {
        *self.stray.lock() = Some(text.clone());
        self.report.send(ServerLog { level: "stray".to_owned(), data: text.into() });
    }

    pub(crate) fn last_stray(&self) -> Option<String> {
        self.stray.lock().clone()
    }

    /// Notes that the list of tools has changed.
    pub(crate) fn set_stale(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Returns `true` if the list of tools has changed since the last call.
    pub(crate) fn take_stale(&self) -> bool {
        self.is_stale.swap(false, Ordering::AcqRel)
    }

    /// Notes the end of the connection. The first reason counts.
    pub(crate) fn end(&self, end: End) {
        self.ended.send_if_modified(|ended| ended.is_none() && ended.replace(end).is_none());
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Waits for the end of the connection.
    pub(crate) async fn ended(&self) -> End {
        let mut ended = self.ended.subscribe();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or(End::Closed)
    }

    /// Passes progress to its call.
    pub(crate) fn progress(&self, progress: ProgressNotificationParam) {
        let ProgressNotificationParam { progress_token, progress: done, total, message, .. } = progress;
        let message = message.map(|message| cleaned(&message).0.into_owned());
        let event = ToolProgress { done, total, message };
        let mut routes = self.progress.lock();
        match routes.calls.get(&progress_token) {
            // A call that does not keep up misses some progress: the next one says more.
            Some(call) => drop(call.try_send(event)),
            None => {
                if routes.early.len() == WAITING {
                    routes.early.pop_front();
                }
                routes.early.push_back((progress_token, event));
            }
        }
    }

    /// Receives the progress of a call until the route is dropped.
    pub(crate) fn route(&self, token: ProgressToken) -> Route<'_> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut routes = self.progress.lock();
        routes.early.retain(|(early, event)| {
            let is_own = *early == token;
            if is_own {
                drop(sender.try_send(event.clone()));
            }
            !is_own
        });
        routes.calls.insert(token.clone(), sender);
        Route { signals: self, token, receiver }
    }
}

/// The progress of a call.
pub(crate) struct Route<'a> {
    signals: &'a Signals,
    token: ProgressToken,
    receiver: mpsc::Receiver<ToolProgress>,
}

impl Route<'_> {
    /// Waits for progress. Cancel safe.
    pub(crate) async fn next(&mut self) -> ToolProgress {
        match self.receiver.recv().await {
            Some(progress) => progress,
            // The sender is dropped only after the route.
            None => std::future::pending().await,
        }
    }

    /// Returns progress that has arrived.
    pub(crate) fn arrived(&mut self) -> Option<ToolProgress> {
        self.receiver.try_recv().ok()
    }
}

impl Drop for Route<'_> {
    fn drop(&mut self) {
        self.signals.progress.lock().calls.remove(&self.token);
    }
}
