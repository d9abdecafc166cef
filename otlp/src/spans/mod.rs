//! Spans, built from records.
//!
//! 1. A run has at most one span: it is open from the first event of the run to its `finish`, or to the close. If its
//!    `finish` was lost, it ends with the run above.
//! 2. The trace id of a span is the trace of its run, and the span id is the last half of the run's id. Both are in the
//!    records, so a live run, its recording and its replay have the same ids.
//! 3. Later events of a run that has ended belong to no span.

mod facts;
mod joined;
mod messages;
mod notes;
mod open;
mod recent;
mod status;
mod tokens;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use emitree_emitter::{Detail, DetailFn, EventRecord, SinkRecord};
use emitree_sinks::runs::{self, Cursor, Head, Run, Runs};
use uuid::Uuid;

pub use self::facts::Fact;
pub(crate) use self::facts::Facts;
use self::joined::Joined;
pub(crate) use self::notes::Note;
use self::open::OpenSpan;
use self::recent::Recent;
use self::tokens::Tokens;
use crate::sampler::Sampler;

/// The runs that have ended and are remembered, so that their later events open no span (3).
const REMEMBERED: usize = 4096;
/// The traces of other processes that are remembered.
const JOINED: usize = 1 << 16;

/// The facts of a model's request that the run above has too.
const OF_REQUEST: [Fact; 6] =
    [Fact::Provider, Fact::RequestModel, Fact::Temperature, Fact::MaxTokens, Fact::Seed, Fact::StopSequences];

/// A span that has ended, or that the close has ended.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: Uuid,
    pub(crate) run: Run,
    /// Nanoseconds since 1970.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) facts: Facts,
    pub(crate) notes: Vec<Note>,
    pub(crate) lost_notes: u32,
    pub(crate) links: Vec<Link>,
    /// The trace of another process that the run belongs to.
    pub(crate) joined: Option<Joined>,
    pub(crate) is_error: bool,
}

/// Another span that this span continues, or that its run was given as a parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) trace: Uuid,
    pub(crate) span: [u8; 8],
    pub(crate) flags: u8,
    pub(crate) state: String,
}

/// Returns the span id of a run: the last half of its id (2).
pub(crate) fn span_id(run: Uuid) -> [u8; 8] {
    let (_, low) = run.as_u64_pair();
    low.to_be_bytes()
}

/// The spans of a stream of records.
#[derive(Debug)]
pub(crate) struct Spans {
    runs: Runs,
    open: HashMap<Uuid, OpenSpan>,
    /// The open spans by the runs above them.
    below: BTreeSet<(Uuid, Uuid)>,
    /// The runs that have ended, with their traces.
    ended: Recent<Uuid>,
    /// The traces of other processes that outermost runs have joined.
    joined: Recent<Joined>,
    sampler: Sampler,
    with_content: bool,
    /// The own events that become events of spans because the user asks for them.
    asked_for: Vec<String>,
}

impl Spans {
    pub(crate) fn new(sampler: Sampler, with_content: bool, asked_for: Vec<String>) -> Self {
        let runs = Runs::default();
        let open = HashMap::new();
        let below = BTreeSet::new();
        let ended = Recent::new(REMEMBERED);
        let joined = Recent::new(JOINED);
        Self { runs, open, below, ended, joined, sampler, with_content, asked_for }
    }

    /// Returns the number of open spans.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Adds the next record. Returns the spans that it ends.
    pub(crate) fn add(&mut self, record: &SinkRecord) -> Vec<Span> {
        let head = Head::of(record, Cursor { recording: 0, position: 0, number: 0 });
        let Some(event) = record.as_event() else {
            // A gap belongs to no run. The fold counts it, and so marks each run that is open now (O2).
            self.runs.add(&head);
            return Vec::new();
        };
        let ended = self.add_event(event, &head);
        // This has to follow `add_event`, which reads the facts that are copied to the run above.
        if (&*head.kind, event.name()) == ("ChatModel", "start") {
            self.name_model(&head);
        }
        ended.map_or_else(Vec::new, |run| self.end_with_descendants(run))
    }

    /// Gives the facts of a request to the run above, which the first model that it asks describes.
    fn name_model(&mut self, head: &Head) {
        let Some(asked) = head.run.and_then(|run| self.open.get(&run)) else { return };
        let model = OF_REQUEST.map(|fact| Some((fact, asked.facts.get(&fact)?.clone())));
        if let Some(above) = head.parent.and_then(|above| self.open.get_mut(&above)) {
            model.into_iter().flatten().for_each(|(fact, value)| _ = above.facts.entry(fact).or_insert(value));
        }
    }

    /// Adds an event of a run. Returns the id of the run if it has ended.
    fn add_event(&mut self, event: &EventRecord, head: &Head) -> Option<Uuid> {
        let run = head.run?;
        let trace = head.trace?;
        let time = head.time?;
        // Noted before `takes`, because the process that began the trace decides about it, not the sampler (O5).
        if let (runs::Fact::Start, Some(joined)) = (&head.fact, Joined::of(event)) {
            self.joined.insert(trace, joined);
        }
        // The fold must not see a later event of a run that has ended, because it would begin the run anew (3).
        if self.ended.get(run).is_some() || !self.takes(trace) {
            return None;
        }
        let folded = self.runs.add(head)?;
        let (started, kind) = (folded.started, folded.kind.clone());
        // Only a new span takes over the session of the run above, so the session of the outermost agent counts (O1).
        let above = head.parent.filter(|_| !self.open.contains_key(&run));
        let session = above.and_then(|above| self.open.get(&above)?.facts.get(&Fact::SessionId).cloned());
        let open = self.open.entry(run).or_insert_with(|| {
            self.below.extend(head.parent.map(|above| (above, run)));
            let mut open = OpenSpan::new(trace, head.parent, time);
            open.facts.extend(session.map(|session| (Fact::SessionId, session)));
            open
        });
        open.last = time;
        facts::read(&mut open.facts, event, head, &kind, self.with_content);
        match head.fact {
            runs::Fact::Event | runs::Fact::Discarded { .. } => {
                open.add_chunk(event, time, started);
                open.add_link(event, &self.ended);
                open.add_note(notes::of_event(event, nanoseconds(time), &self.asked_for, self.with_content));
                None
            }
            runs::Fact::Start => {
                open.links.extend(joined::links(event));
                None
            }
            runs::Fact::Finish { .. } => Some(run),
            _ => None,
        }
    }

    /// Returns `true` if a trace is exported. A process that began a trace has decided for all of its spans.
    fn takes(&self, trace: Uuid) -> bool {
        self.joined.get(trace).map_or_else(|| self.sampler.takes(trace), Joined::is_sampled)
    }

    /// Ends a span, after the spans below whose `finish` was lost: a run ends after all runs below it.
    fn end_with_descendants(&mut self, id: Uuid) -> Vec<Span> {
        let mut ended = Vec::new();
        // Without a gap, each run below has ended by its own `finish`, so most runs skip this search.
        if self.runs.get(id).is_some_and(|run| run.lost > 0) {
            let mut lost = vec![id];
            while let Some(above) = lost.pop() {
                // The children are one range of an ordered set: a scan of all open spans would cost quadratic time.
                let below = self.below.range((above, Uuid::nil())..=(above, Uuid::max()));
                let below: Vec<Uuid> = below.map(|(_, run)| *run).collect();
                ended.extend(below.iter().filter_map(|run| self.end(*run)));
                lost.extend(below);
            }
        }
        ended.extend(self.end(id));
        ended
    }

    /// Returns the detail that an event is needed in: its content, if content is exported, and otherwise its head.
    pub(crate) fn detail(&self) -> DetailFn {
        let with_content = self.with_content;
        Box::new(move |kind, event| {
            let has_content = facts::has_content(kind, event) || notes::has_content(event);
            if with_content && has_content { Detail::Full } else { Detail::Heads }
        })
    }

    /// Ends all open spans, in the order of their starts.
    pub(crate) fn close(&mut self) -> Vec<Span> {
        let open: Vec<Uuid> = self.runs.iter().map(|run| run.id).collect();
        open.into_iter().filter_map(|run| self.end(run)).collect()
    }

    fn end(&mut self, id: Uuid) -> Option<Span> {
        let run = self.runs.remove(id)?;
        let mut open = self.open.remove(&id)?;
        open.parent.inspect(|above| _ = self.below.remove(&(*above, id)));
        // From here on, events of the run open no span (3), and a link to it finds its trace.
        self.ended.insert(id, open.trace);
        let start = run.started.unwrap_or(open.first);
        // The duration of `finish` counts before its time (O2). A run without a `finish` ends at its last event.
        let end = run.duration.and_then(|duration| start.checked_add(duration)).or(run.ended).unwrap_or(open.last);
        // The clock may have been set back, but a span never ends before its start.
        let (start, end) = (nanoseconds(start), nanoseconds(end.max(start)));
        let is_error = status::is_error(&run);
        // The runs below have ended before, so an agent has the tokens of all of them.
        let own = Tokens::of(&run);
        let all = own.plus(open.below);
        if let Some(above) = open.parent.and_then(|above| self.open.get_mut(&above)) {
            above.below = above.below.plus(all);
        }
        facts::complete(&mut open.facts, &run, if &*run.kind == "Agent" { &all } else { &own }, is_error);
        open.add_note(notes::of_end(&run, end, is_error));
        let OpenSpan { trace, facts, notes, lost_notes, links, .. } = open;
        let joined = self.joined.get(trace).cloned();
        Some(Span { trace, run, start, end, facts, notes, lost_notes, links, joined, is_error })
    }
}

/// Returns the nanoseconds since 1970. An earlier time counts as 1970.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};
    use serde_json::json;

    use super::*;

    fn record(second: u8, run: Uuid, parent: Option<Uuid>, name: &str) -> SinkRecord {
        // A `finish` without a payload that can be read has no duration.
        let is_readable = name == "run.finish" && second.is_multiple_of(2);
        let payload = is_readable.then(|| json!({"outcome": {"status": "success"}, "duration_ns": 1}));
        let record = json!({
            "id": run, "path": name, "created_at": format!("2026-01-01T00:00:{second:02}Z"), "creator": null,
            "context": {"internal": name.starts_with("run.")}, "group_id": null, "payload_type": "T",
            "payload": payload, "trace": {"id": run, "run_id": run, "parent_run_id": parent},
        });
        SinkRecord::from_json(&record.to_string()).unwrap()
    }

    fn gap() -> SinkRecord {
        SinkRecord::from_json(r#"{"gap":{"lost":1}}"#).unwrap()
    }

    /// A record of one of six runs, of which each but the first lies below the run with half of its number; or a gap.
    fn any_record() -> impl Strategy<Value = Option<(u8, u128, &'static str)>> {
        let event = prop_oneof![Just("run.start"), Just("retry"), Just("run.error"), Just("run.finish")];
        prop_oneof![1 => Just(None), 8 => (0..60_u8, 1..7_u128, event).prop_map(Some)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// O2, also if records were lost, repeated or are out of order.
        #[test]
        fn each_run_has_one_span_at_most_and_none_stays_open(records in vec(any_record(), 0..40)) {
            let mut spans = Spans::new(Sampler::ALWAYS, true, Vec::new());
            let id = |number| Uuid::from_u128(1 << 64 | number);
            let mut seen = BTreeSet::new();
            let mut ended = Vec::new();
            for any in records {
                let made = any.map_or_else(gap, |(second, run, event)| {
                    seen.insert(id(run));
                    let parent = (run > 1).then(|| id(run / 2));
                    record(second, id(run), parent, event)
                });
                ended.extend(spans.add(&made));
                let below = ended.iter().filter(|span| spans.open.contains_key(&span.run.id)).count();
                prop_assert_eq!(below, 0, "a span has ended and is open");
                prop_assert_eq!(seen.len(), spans.open() + ended.len());
            }
            ended.extend(spans.close());
            let runs: BTreeSet<Uuid> = ended.iter().map(|span| span.run.id).collect();
            prop_assert_eq!((runs.len(), &runs), (ended.len(), &seen));
            prop_assert!(ended.iter().all(|span| span.start <= span.end));
            prop_assert_eq!((spans.open(), spans.below.len(), spans.runs.iter().count()), (0, 0, 0));
        }
    }

    #[test]
    fn runs_that_are_open_at_a_gap_cost_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        let ids: Vec<Uuid> = (0..50_000).map(|_| emitree_emitter::new_id()).collect();
        let mut spans = Spans::new(Sampler::ALWAYS, false, Vec::new());
        let starts = ids.iter().map(|id| record(0, *id, None, "run.start"));
        let finishes = ids.iter().map(|id| record(2, *id, None, "run.finish"));
        let ended = starts.chain([gap()]).chain(finishes).map(|record| spans.add(&record).len());
        assert_eq!(ended.sum::<usize>(), ids.len());
        assert_eq!((spans.open(), spans.runs.iter().count(), spans.below.len()), (0, 0, 0));
    }
}
