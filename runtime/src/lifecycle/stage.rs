//! Which of its four events a run is at, and the matchers of those (R3).

use std::sync::OnceLock;

use emitree_emitter::{EventMeta, EventName, EventRecord, FnMatcher, IntoMatcher, Matcher, MatcherError, matcher_fn};
use serde_json::Value;

use crate::lifecycle::erased::ErasedAccess;

/// Which of the four it is. As a matcher: that event, of any run but [nested](Matcher#nested-events) ones.
///
/// Its plain name, `"start"`, is a matcher of the run's own event for a listener of exactly that type, `Start<I, O>` of the run; one of
/// other types is an error. For other payloads, and for `dyn AnyEvent`, `"start"` is an event that the work emits under that name.
///
/// A run whose own event is of another type than a listener's, `Start<u64, u64>` for `Start<u32, u32>`, ends with an
/// error that names both. Events of other runs are filtered by the listener's type, and so are all where the listener asks
/// for [nested](emitree_emitter::Options::nested) events; [`of_types`](Self::of_types) filters own ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is documented at the payload of the same name")]
pub enum Stage {
    Start,
    Success,
    Error,
    Finish,
}

impl Stage {
    /// In the order of their discriminants.
    pub(crate) const ALL: [Self; 4] = [Self::Start, Self::Success, Self::Error, Self::Finish];

    /// The last segment of the event's path.
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

    /// The name under which a listener of exactly the run's types receives the event as well.
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

    /// The stage of a run that an event is, if it is one.
    #[must_use]
    pub fn of(meta: &EventMeta<'_>) -> Option<Self> {
        meta.facet::<ErasedAccess>().map(|access| access.stage)
    }

    /// The stage of a run that a recorded event is.
    #[must_use]
    pub fn of_record(record: &EventRecord) -> Option<Self> {
        let internal = record.context.get("internal") == Some(&Value::Bool(true));
        Self::ALL.into_iter().find(|stage| internal && record.name() == stage.as_str())
    }
}

impl Stage {
    /// Takes only events of the listener's type, own ones too: on a run, or on an instance of several types of runs, where a
    /// listener of another type would be an error.
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
        // Made once, so that what was registered with a stage is found with it again (E9).
        MATCHERS.get_or_init(|| Self::ALL.map(of))[self as usize].clone()
    }
}

impl IntoMatcher for Stage {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        self.matcher().into_matcher()
    }
}
