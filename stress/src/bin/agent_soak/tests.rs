//! A short soak with agents: each history is valid and states truly which functions were called (A1), and each run ends
//! once, after the runs below it (R4, R13). The checks find each kind of damage.

use std::sync::Arc;

use emitree::agent::{Message, ToolCall, ToolResult};
use emitree::lifecycle::Stage::{Error, Finish, Start, Success};
use serde_json::json;

use crate::agents::Begun;
use crate::lives::Lives;
use crate::{history, soak};

#[test]
fn histories_of_agents_stay_valid_and_their_runs_end_once_whatever_ends_them() {
    let report = soak::soak(fastrand::u64(..), 1_000);
    assert!(report.is_fine(), "{report}");
    for outcome in ["success", "failed", "panicked", "halted", "interrupted", "aborted", "dropped"] {
        assert!(report.asked.contains_key(outcome), "no run is {outcome}: {report}");
    }
    assert!(report.started > 2_000, "{report}");
}

#[test]
fn the_check_of_histories_finds_each_kind_of_damage() {
    let call = || Message::assistant("").with_call(ToolCall::new("0", "act", json!({"key": "k"})));
    let result = |result: ToolResult| Message::tool([result]);
    let done = ToolResult::new("0", "done");
    let error = ToolResult::error("0", "not executed: the run ends here");
    for (calls, messages, broken) in [
        (1, vec![call(), result(done.clone())], 0),
        (0, vec![call(), result(error.clone())], 0),
        (0, vec![call(), result(done.clone())], 1),
        (1, vec![call(), result(error)], 1),
        (2, vec![call(), result(done.clone())], 1),
        (1, vec![call()], 1),
        (1, vec![call(), Message::user("go on"), result(done.clone())], 2),
        (1, vec![result(done.clone())], 1),
        (1, vec![call(), result(done.clone()), result(done)], 1),
    ] {
        let begun = Begun::default();
        (0..calls).for_each(|_| begun.add("k"));
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        assert_eq!(history::check(&messages, &begun).len(), broken, "{calls} {messages:?}");
    }
}

#[test]
fn the_check_of_lives_finds_each_kind_of_damage() {
    let one = (1, None);
    let two = (2, Some(1));
    for (events, broken) in [
        (vec![(Start, one), (Start, two), (Success, two), (Finish, two), (Error, one), (Finish, one)], 0),
        (vec![(Start, one), (Success, one)], 1),
        (vec![(Start, one), (Finish, one)], 1),
        (vec![(Start, one), (Success, one), (Error, one), (Finish, one)], 1),
        (vec![(Start, one), (Start, one), (Success, one), (Finish, one)], 1),
        (vec![(Success, one)], 1),
        (vec![(Start, two), (Success, two), (Finish, two)], 1),
        (vec![(Start, one), (Start, two), (Success, one), (Finish, one), (Success, two), (Finish, two)], 1),
    ] {
        let lives = Lives::default();
        events.iter().for_each(|(stage, (run, parent))| lives.take(*stage, *run, *parent));
        assert_eq!(lives.settle().1.len(), broken, "{events:?}");
    }
}
