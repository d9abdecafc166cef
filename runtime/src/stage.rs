//! Which of its four events a run is at, and the matchers of those (R3).

use std::sync::OnceLock;

use emitree_emitter::{EventMeta, EventName, EventRecord, FnMatcher, IntoMatcher, Matcher, MatcherError, matcher_fn};
use serde_json::Value;

use crate::faces::Lens;

/// Which of the four it is. As a matcher: that event, of any run; `"start"` is what components emit under that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is documented at the payload of the same name")]
pub enum Stage {
    Start,
    Success,
    Error,
    Finish,
}

impl Stage {
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

    /// The stage of a run that an event is, if it is one.
    #[must_use]
    pub fn of(meta: &EventMeta<'_>) -> Option<Self> {
        meta.facet::<Lens>().map(|lens| lens.stage)
    }

    /// The name of the Rust type whose run an event is a stage of, if it is one, as [`std::any::type_name`] gives it.
    #[must_use]
    pub fn runnable_type(meta: &EventMeta<'_>) -> Option<&'static str> {
        meta.facet::<Lens>().map(|lens| (lens.runnable)())
    }

    /// The stage of a run that a recorded event is.
    #[must_use]
    pub fn of_record(record: &EventRecord) -> Option<Self> {
        let internal = record.context.get("internal") == Some(&Value::Bool(true));
        let stages = [Self::Start, Self::Success, Self::Error, Self::Finish];
        stages.into_iter().find(|stage| internal && record.name() == stage.as_str())
    }
}

impl IntoMatcher for Stage {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        static MATCHERS: OnceLock<[FnMatcher; 4]> = OnceLock::new();
        let all = [Self::Start, Self::Success, Self::Error, Self::Finish];
        // Made once, so that what was registered with a stage is found with it again (E9).
        let matchers = MATCHERS.get_or_init(|| all.map(|stage| matcher_fn(move |meta| Self::of(meta) == Some(stage))));
        matchers[self as usize].clone().into_matcher()
    }
}
