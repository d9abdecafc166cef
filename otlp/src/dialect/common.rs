//! Attributes that all dialects have, under names of emitree's own.

use super::Row;
use crate::spans::Fact;

const OWN: &str = "emitree 0.1";

pub(super) const ROWS: &[Row] = &[
    Row::new("*", Fact::Kind, "emitree.kind", OWN),
    // The status of a span has no value for a denial, a halt, an abort or a question.
    Row::new("*", Fact::Outcome, "emitree.outcome", OWN).required(),
    Row::new("*", Fact::IsIncomplete, "emitree.incomplete", OWN).required(),
    Row::new("*", Fact::Lost, "emitree.lost_events", OWN).required(),
    Row::new("*", Fact::IsEstimated, "emitree.usage.estimated", OWN),
    Row::new("*", Fact::Discarded, "emitree.discarded_attempts", OWN),
    Row::new("*", Fact::ErrorType, "error.type", "semantic-conventions 1.21").required(),
];
