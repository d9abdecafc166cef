//! The stages of a run, which are matchers of its four events (R3).

use std::sync::OnceLock;

use emitree_emitter::{EventMeta, EventName, EventRecord, FnMatcher, IntoMatcher, Matcher, MatcherError, matcher_fn};
use serde_json::Value;

use crate::lifecycle::erased::ErasedAccess;

/// A stage of a run. Each stage has one lifecycle event. As a matcher, a stage matches this event of every run except
/// [nested](Matcher#nested-events) runs.
///
/// A listener that is registered with a stage must take the payload type of the emitter's own event. If it takes
/// another type, such as `Start<u64, u64>` for `Start<u32, u32>`, the run ends with an error that names both types. At
/// `error` and `finish`, which only report, and for observers, that error is logged and counted instead. Events that
/// are not the emitter's own are skipped if their type differs. With [nested](emitree_emitter::Options::nested) events,
/// or with [`of_types`](Self::of_types), own events of another type are skipped too.
///
/// The plain name `"start"` matches the run's own event for a listener of exactly its type, `Start<I, O>`. A listener
/// that takes `Start` with other type parameters, or the payload of another stage, is an error as above. For a listener
/// of any other payload type, or of `dyn AnyEvent`, `"start"` matches an event that the work emits under that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is documented at the payload of the same name")]
pub enum Stage {
    Start,
    Success,
    Error,
    Finish,
}

impl Stage {
    /// All stages, in the order of their discriminants.
    pub(crate) const ALL: [Self; 4] = [Self::Start, Self::Success, Self::Error, Self::Finish];

    /// Returns the last segment of the event's path.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Success => "success",
            Self::Error => "error",
            Self::Finish => "finish",
        }
    }

    pub(crate) const fn event_name(self) -> EventName {
        const START: EventName = EventName::new("run.start");
        const SUCCESS: EventName = EventName::new("run.success");
        const ERROR: EventName = EventName::new("run.error");
        const FINISH: EventName = EventName::new("run.finish");
        match self {
            Self::Start => START,
            Self::Success => SUCCESS,
            Self::Error => ERROR,
            Self::Finish => FINISH,
        }
    }

    /// Returns the plain name, which also matches the event for a listener of exactly its type (E4).
    pub(crate) const fn plain_name(self) -> EventName {
        const START: EventName = EventName::new("start");
        const SUCCESS: EventName = EventName::new("success");
        const ERROR: EventName = EventName::new("error");
        const FINISH: EventName = EventName::new("finish");
        match self {
            Self::Start => START,
            Self::Success => SUCCESS,
            Self::Error => ERROR,
            Self::Finish => FINISH,
        }
    }

    /// Returns the stage of a lifecycle event, or `None` for any other event.
    #[must_use]
    pub fn of(meta: &EventMeta<'_>) -> Option<Self> {
        meta.facet::<ErasedAccess>().map(|access| access.stage)
    }

    /// Returns the stage of a recorded lifecycle event, or `None` for any other event.
    #[must_use]
    pub fn of_record(record: &EventRecord) -> Option<Self> {
        // A record contains no facet. The flag `internal` in its context distinguishes it from the record of an event
        // that the work emitted under the same name.
        let internal = record.context.get("internal") == Some(&Value::Bool(true));
        Self::ALL.into_iter().find(|stage| internal && record.name() == stage.as_str())
    }
}

impl Stage {
    /// Returns a matcher that skips events whose type differs from the listener's, instead of failing.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, Stage, Start, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// let filtered = double.run(21).on(Stage::Start.of_types(), |start: &mut Start<u64, u64>, _| start.input = 0);
    /// assert_eq!(filtered.await?, 42);
    /// let refused = double.run(21).on(Stage::Start, |start: &mut Start<u64, u64>, _| start.input = 0);
    /// assert!(refused.await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of_types(self) -> FnMatcher {
        self.matcher().of_types()
    }

    fn matcher(self) -> FnMatcher {
        static MATCHERS: OnceLock<[FnMatcher; 4]> = OnceLock::new();
        let of = |stage: Self| matcher_fn(move |meta| Self::of(meta) == Some(stage)).named([stage.event_name()]);
        // Function matchers are compared by identity: with one matcher per stage, `off_matching` finds the listeners
        // that were registered with the stage (E9).
        MATCHERS.get_or_init(|| Self::ALL.map(of))[self as usize].clone()
    }
}

impl IntoMatcher for Stage {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        self.matcher().into_matcher()
    }
}
