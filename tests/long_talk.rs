//! A long talk with an agent that has all middlewares for long conversations.

use emitree::agent::History;

use crate::talk::Talk;

#[path = "../examples/shared/talk.rs"]
mod talk;

#[test]
fn a_talk_of_500_turns_is_valid_at_every_turn_and_keeps_only_a_line_for_each_turn_after_turn_100() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let mut talk = Talk::new().expect("an agent");
    let mut turns = |count: u32| {
        for _ in 0..count {
            runtime.block_on(talk.turn()).expect("an answer");
            let history = talk.session.history();
            History::try_from(history.messages().to_vec()).expect("a valid history");
            assert!(talk.session.undelivered().is_empty());
        }
        let mut stored = serde_json::to_value(&talk.session).expect("JSON");
        // A line for each of the last 1,000 turns.
        let table = stored["table"].take();
        let bytes = (stored.to_string().len(), table.to_string().len());
        assert!(bytes.0 < 40_000 && bytes.1 < 1_000 * 200, "{bytes:?} bytes");
    };
    turns(100);
    let kept = allocation_counter::measure(|| turns(400)).bytes_current;
    assert!(kept < 160_000, "400 turns keep {kept} bytes");
    assert!(talk.summaries() > 20, "{} summaries", talk.summaries());
}
