//! The meta of an event: its id, time, path, source, context and run (E14).

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use uuid::Uuid;

use crate::dispatch::emit::Emit;
use crate::error::EmitErrorKind;
use crate::{AnyEvent, Context, Creator, Detail, EmitError, Emitter, EventRecord};

/// The ids of the run in which an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The id shared by an outermost run and all runs below it.
    pub id: Uuid,
    /// The id of the run.
    pub run_id: Uuid,
    /// The id of the run in which this run was started.
    pub parent_run_id: Option<Uuid>,
}

/// Describes an event: its source, time, context and run.
///
/// Listeners receive it by reference. Most of it is computed on first use. The time and the context are fixed on first
/// use, or before the emit first awaits a listener, so that all listeners see the same values.
pub struct EventMeta<'a> {
    pub(crate) emit: &'a Emit<'a>,
    fixed: Option<FixedValues>,
    path: OnceLock<Box<str>>,
    is_consumed: AtomicBool,
}

/// Values that must not change while listeners are awaited.
pub(crate) struct FixedValues {
    time: SystemTime,
    context: Context,
}

impl<'a> EventMeta<'a> {
    pub(crate) const fn new(emit: &'a Emit<'a>) -> Self {
        Self { emit, fixed: None, path: OnceLock::new(), is_consumed: AtomicBool::new(false) }
    }

    /// Fixes the time and the context before listeners are awaited, even if no listener has read them (E14).
    pub(crate) fn fix(&mut self) {
        // Values that a listener has already read do not change.
        let (time, context) = self.emit.stamp.known();
        let context = context.cloned().unwrap_or_else(|| self.emit.context());
        self.fixed = Some(FixedValues { time: time.unwrap_or_else(SystemTime::now), context });
    }

    /// Stores the fixed values in the stamp, where another meta of the same event finds them.
    pub(crate) fn save_to_stamp(self) {
        if let Some(FixedValues { time, context }) = self.fixed {
            self.emit.stamp.fix(time, context);
        }
    }

    /// Returns the id of the event, a version 7 UUID of its time.
    pub fn id(&self) -> Uuid {
        self.emit.stamp.id_at(self.time())
    }

    /// Returns the time of the event, which is read from the clock on first use.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.time().into()
    }

    /// Returns the time of the event as a [`SystemTime`].
    pub fn time(&self) -> SystemTime {
        self.fixed.as_ref().map_or_else(|| self.emit.stamp.time(), |fixed| fixed.time)
    }

    /// Returns the last segment of the path: `start` for `backend.chat.start`.
    pub fn name(&self) -> &str {
        let name = self.emit.name.as_str();
        name.rsplit_once('.').map_or(name, |(_, last)| last)
    }

    /// Returns the name under which the event was emitted. It may have several segments (`run.start`).
    pub fn emitted_name(&self) -> &str {
        self.emit.name.as_str()
    }

    /// Returns the path: namespace and name, joined by dots.
    pub fn path(&self) -> &str {
        self.path.get_or_init(|| self.join())
    }

    /// Returns an owned path.
    pub(crate) fn to_path(&self) -> Box<str> {
        // If no listener has read the path, join it without storing it.
        self.path.get().cloned().unwrap_or_else(|| self.join())
    }

    fn join(&self) -> Box<str> {
        self.emit.source.join(self.emit.name.as_str()).into()
    }

    /// Returns the emitter on which the event was emitted.
    pub fn source(&self) -> &'a Emitter {
        self.emit.source
    }

    /// Returns the creator of the event.
    pub fn creator(&self) -> Option<&'a Creator> {
        self.emit.source.creator()
    }

    /// Returns the context of the source, with the keys that the emit adds to it.
    pub fn context(&self) -> &Context {
        match &self.fixed {
            Some(fixed) => &fixed.context,
            None => self.emit.stamp.context(|| self.emit.context()),
        }
    }

    /// Returns the group id of the source.
    pub fn group_id(&self) -> Option<&'a str> {
        self.emit.source.group_id()
    }

    /// Returns the ids of the run in which the event happened, if it happened in a run.
    pub fn trace(&self) -> Option<Trace> {
        self.emit.source.trace()
    }

    /// Returns the name of the payload's type.
    pub fn payload_type(&self) -> &'static str {
        self.emit.carried.name()
    }

    /// Returns the lens of the event's facet if the lens is an `L`.
    pub fn facet<L: Send + Sync + 'static>(&self) -> Option<&'static L> {
        self.emit.facet?.lens()
    }

    /// Changes the payload as JSON, if its event is [declared as data](crate::EmitterBuilder::declares_data) by the
    /// emitter of the event. If `change` returns `true`, the changed JSON is written back. Returns `true` if the payload
    /// was changed, and `false` if the event is not declared as data.
    ///
    /// # Errors
    ///
    /// Returns an error if the payload cannot be serialized, if it is nested deeper than
    /// [`MAX_DEPTH`](crate::json::MAX_DEPTH), or if its type does not accept the changed JSON. The payload then stays as
    /// it was.
    pub fn change_data(
        &self,
        event: &mut dyn AnyEvent,
        mut change: impl FnMut(&mut Value) -> bool,
    ) -> serde_json::Result<bool> {
        let change_data = self.emit.source.declared().and_then(|declared| declared.data(self.emitted_name()));
        change_data.map_or(Ok(false), |change_data| change_data(event, &mut change))
    }

    /// Consumes the event: no later listener that may change it is called, on any emitter that the event still reaches,
    /// also through pipes. Observers and sinks receive the event nevertheless, and so do the listeners that a middleware
    /// has bound to a run, for example to redact it. A listener that is skipped has not used up a call.
    ///
    /// ```
    /// use emitree_emitter::{EmitError, Emitter, EventMeta, Options};
    ///
    /// let app = Emitter::new();
    /// let panel = app.child("panel")?;
    /// app.on("panel.key", |key: &mut char, _| *key = '?')?;
    /// app.observe("panel.key", |key: &char, _| assert_eq!(*key, 'q'))?;
    /// panel.on("key", |_: &mut char, meta: &EventMeta<'_>| Ok(meta.consume()?))?;
    /// let mut key = 'q';
    /// panel.emit_now("key", &mut key)?;
    /// assert_eq!(key, 'q');
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error for the events `start`, `success`, `error` and `finish` of a run, and consumes nothing: nobody may
    /// hide them from others. To answer a run early, bind a layer or set the output in `start`.
    pub fn consume(&self) -> Result<(), EmitError> {
        // Only a runtime emits with a delivery, and only the events of a run's lifecycle.
        if self.emit.delivery.is_some() {
            return Err(EmitErrorKind::NotConsumable { path: self.path().to_owned() }.into());
        }
        self.is_consumed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns `true` if a listener has consumed the event.
    #[inline(always)]
    pub(crate) fn is_consumed(&self) -> bool {
        self.is_consumed.load(Ordering::Relaxed)
    }

    /// Returns an owned, serializable copy of the meta and the payload.
    pub fn to_record(&self, event: &dyn AnyEvent) -> EventRecord {
        EventRecord::new(self, event, Detail::Full)
    }
}

impl fmt::Debug for EventMeta<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventMeta")
            .field("id", &self.id())
            .field("path", &self.path())
            .field("created_at", &self.created_at())
            .field("payload_type", &self.payload_type())
            .field("trace", &self.trace())
            .finish_non_exhaustive()
    }
}

/// Serializes the meta as an [`EventRecord`] whose payload is `null`.
impl Serialize for EventMeta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_record(&()).serialize(serializer)
    }
}
