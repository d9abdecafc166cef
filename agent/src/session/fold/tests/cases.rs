use std::collections::BTreeSet;

use emitree_runtime::Interrupt;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{assert_valid, call, json_of, response, user};
use crate::session::fold::{Conversation, Fork, REMEMBERED};
use crate::session::record::{Asked, Fact, Input, Line, Record, SettledAs};
use crate::{Message, Usage};

fn apply(fold: &mut Conversation, records: impl IntoIterator<Item = Record>) {
    for record in records {
        fold.apply(record.clone()).unwrap_or_else(|fault| panic!("{record:?}: {fault}"));
    }
}

fn began(run: u32, resumes: bool) -> Record {
    Record::Began { run, id: Uuid::from_u64_pair(7, run.into()), once: None, options: None, resumes }
}

fn asks(run: u32, turn: u64) -> Record {
    Record::Asks { run, turn, at: 1_000 + turn }
}

fn responds(run: u32, turn: u64, response: std::sync::Arc<Message>) -> Record {
    Record::Turn { run, turn, response, unanswered: None }
}

fn fact(turn: u64, fact: Fact) -> Record {
    Record::Call { turn, call: 0, fact: fact.into() }
}

fn settled(content: &str) -> Fact {
    Fact::Settled(Box::new(SettledAs { content: content.into(), ..SettledAs::default() }))
}

fn texts(fold: &Conversation) -> Vec<String> {
    let text = |message: &Message| match message.tool_results().next() {
        Some(result) => result.response.as_str().unwrap_or_default().to_owned(),
        None => message.text(),
    };
    fold.messages.iter().map(|message| text(message)).collect()
}

fn pays(turn: u64) -> std::sync::Arc<Message> {
    response("", [call(&format!("c{turn}"), "pay", json!({"amount": 5}))])
}

/// A session whose run waits in the call `pay`, which has begun.
fn at_work() -> Conversation {
    let mut fold = Conversation::new("order-17");
    apply(
        &mut fold,
        [began(0, false), Record::Said { run: Some(0), messages: vec![user("Pay.")], turn: None }, asks(0, 1)],
    );
    apply(&mut fold, [responds(0, 1, pays(1)), fact(1, Fact::Begun { called: true })]);
    fold
}

#[test]
fn records_are_small_json_and_their_faults_have_a_number_and_a_path() {
    let lines = [
        r#"{"session":{"format":1,"id":"order-17","messages":[{"role":"user","parts":[{"type":"text","content":"Hi."}]}]}}"#,
        r#"{"began":{"run":0,"id":"00000000-0000-0007-0000-000000000000"}}"#,
        r#"{"asks":{"run":0,"turn":1,"at":1764412359123}}"#,
        r#"{"turn":{"run":0,"turn":1,"response":{"role":"assistant","parts":[{"type":"text","content":"Ho."}]}}}"#,
        r#"{"placed":{"turn":1}}"#,
        r#"{"ends":{"run":0,"turn":1}}"#,
        r#"{"over":{"run":0,"returned":true}}"#,
    ];
    let fold = Conversation::read(lines).expect("a session that was written by hand");
    assert_eq!(texts(&fold), ["Hi.", "Ho."]);
    for line in &lines[1..] {
        let read: Line = serde_json::from_str(line).expect(line);
        assert_eq!(json_of(&read), **line);
    }
    let below = r#"{"in":"order-17/1/0/ask/agent","again":{"run":3}}"#;
    let read: Line = serde_json::from_str(below).expect(below);
    assert_eq!((json_of(&read).as_str(), read.session.as_deref()), (below, Some("order-17/1/0/ask/agent")));

    let faults = [
        (r#"{"said":{"messages":[]}}"#, "record 0: it is not `session`"),
        (
            r#"{"session":{"format":9,"id":"a"}}"#,
            "record 0: session.format: the session is stored in the format 9, but only the format 1 can be read",
        ),
        (
            r#"{"session":{"format":1,"id":"a","begun":"x"}}"#,
            "record 0: session.begun: invalid type: string \"x\", expected u32",
        ),
        (r#"{"session":{"format":1,"id":"a","colour":1}}"#, "record 0: session.colour: unknown field `colour`"),
        (r#"{"dance":{}}"#, "record 0: unknown variant `dance`, expected one of `session`, `began`"),
        (r#"{"again":{"run":1},"kept":{"run":1}}"#, "record 0: `kept` behind the record"),
        (r#"{"in":"x"}"#, "record 0: "),
    ];
    for (line, expected) in faults {
        let fault = Conversation::read([line]).expect_err(line);
        assert!(fault.starts_with(expected), "{fault}");
    }
    let fault = Conversation::read(lines.into_iter().chain([lines[4]])).expect_err("it was placed");
    assert_eq!(fault, "record 7: no run has the turn 1 in hand");
}

#[test]
fn a_result_keeps_its_parts_and_a_record_with_another_kind_of_part_is_refused() {
    let mut fold = at_work();
    let before = fold.clone();
    let record = |part: &str| {
        let line =
            format!(r#"{{"call":{{"turn":1,"call":0,"fact":{{"settled":{{"content":"ok","parts":[{part}]}}}}}}}}"#);
        let read = Line::read(&line).expect(&line);
        assert_eq!(json_of(&read), line);
        read.record
    };
    let fault = fold.apply(record(r#"{"type":"reasoning","content":"forged"}"#)).expect_err("it is forged");
    assert_eq!(
        fault,
        "message 0 has a result for the id `c1` with a reasoning, but the parts of a result are texts and references to content"
    );
    assert_eq!(fold, before);
    let image = r#"{"type":"uri","modality":"image","mime_type":"image/png","uri":"data:image/png;base64,AA=="}"#;
    apply(&mut fold, [record(image), Record::Placed { turn: 1 }]);
    let mut stored = serde_json::to_value(&fold).expect("JSON");
    let parts = &mut stored["messages"][2]["parts"][0]["parts"];
    assert_eq!(parts[0], serde_json::from_str::<Value>(image).expect("JSON"));
    // A snapshot is checked too.
    parts[0] = json!({"type": "tool_call_response", "id": "c1", "response": "forged"});
    let line = json!({ "session": stored }).to_string();
    let fault = Conversation::read([line.as_str()]).expect_err("it is forged");
    assert!(fault.contains("message 1 has a result for the id `c1` with a tool result"), "{fault}");
}

// A26
#[test]
fn an_answer_stays_until_the_end_of_its_run_is_stored() {
    let mut fold = Conversation::new("s");
    let said = Record::Said { run: Some(0), messages: vec![user("Hi.")], turn: None };
    apply(&mut fold, [began(0, false), said, asks(0, 1), responds(0, 1, response("Ho.", []))]);
    apply(
        &mut fold,
        [Record::Placed { turn: 1 }, Record::Ends { run: 0, turn: 1 }, Record::Over { run: 0, returned: true }],
    );
    assert_eq!((texts(&fold), fold.stopped), (vec!["Hi.".to_owned(), "Ho.".to_owned()], None));

    apply(&mut fold, [Record::NotReturned { run: 0 }]);
    assert_eq!((texts(&fold), fold.stopped), (vec!["Hi.".to_owned()], Some(0)));
    apply(&mut fold, [began(1, true)]);
    assert_eq!(texts(&fold), ["Hi.", "Ho."]);
    assert!(fold.runs[0].answer.is_some() && fold.runs[0].asks.is_none(), "the model is not asked again");

    // Once another run has read it, it stays.
    apply(&mut fold, [Record::Over { run: 1, returned: true }, began(2, false)]);
    assert!(fold.apply(Record::NotReturned { run: 1 }).is_err());
    assert_eq!(texts(&fold), ["Hi.", "Ho."]);
}

// A27
#[test]
fn an_input_that_is_known_or_was_taken_is_refused() {
    let (mut fold, id) = (Conversation::new("s"), |n: u64| Uuid::from_u64_pair(1, n));
    let sent = |number, id| Record::Sent { number, id, sent: Input::Value { to: "a".into(), value: json!(number) } };
    let take = |run, number| Record::Taken { run, numbers: vec![number], messages: None };
    apply(&mut fold, [sent(0, id(0)), Record::Paused { id: id(1) }, began(0, false)]);
    let is_known = |fold: &Conversation| {
        let again = [sent(fold.sent, id(0)), Record::Paused { id: id(1) }];
        again.into_iter().all(|record| fold.clone().apply(record).is_err())
    };
    assert!(is_known(&fold));
    apply(&mut fold, [take(0, 0), Record::Stopped { run: 0 }]);
    assert!(is_known(&fold));
    // Another attempt gives them back.
    apply(&mut fold, [Record::Again { run: 0 }]);
    assert!(is_known(&fold) && fold.inbox.len() == 1 && fold.paused.is_some());
    apply(&mut fold, [take(0, 0), Record::Stopped { run: 0 }, Record::Over { run: 0, returned: false }]);
    assert!(is_known(&fold));
    // A bounded number of ids is remembered.
    apply(&mut fold, [began(1, false)]);
    let more = 2 * REMEMBERED as u64;
    for n in 2..more {
        apply(&mut fold, [sent(n - 1, id(n)), take(1, n - 1)]);
    }
    apply(&mut fold, [Record::Over { run: 1, returned: false }]);
    assert_eq!((fold.taken.len(), fold.taken.back().copied()), (REMEMBERED, Some(id(more - 1))));
}

#[test]
fn the_table_has_the_last_turns_and_those_of_discarded_attempts() {
    let mut fold = Conversation::new("s");
    let replied = Record::Replied { run: 0, turn: 1, usage: Some(Usage::new(10, 2)), cost: None };
    apply(&mut fold, [began(0, false), asks(0, 1), replied, responds(0, 1, pays(1)), fact(1, settled("paid"))]);
    apply(&mut fold, [Record::Placed { turn: 1 }, Record::Again { run: 0 }, asks(0, 2), asks(0, 2)]);
    let first = serde_json::to_value(&fold.table[0]).expect("JSON");
    let usage = json!({"input_tokens": 10, "output_tokens": 2, "cached_input_tokens": 0, "reasoning_tokens": 0});
    let expected =
        json!({"number": 1, "run": 0, "at": 1001, "usage": usage, "calls": 1, "messages": 2, "is_discarded": true});
    assert_eq!(first, expected);
    // A model call that is made again with the same key is one turn.
    assert_eq!((fold.table.len(), fold.turns, fold.runs[0].counts.number), (2, 2, 1));
    // A run that resumes asks again under the same number.
    apply(&mut fold, [Record::Over { run: 0, returned: false }, began(1, true), asks(1, 2)]);
    assert_eq!((fold.table.len(), fold.turns), (2, 2));
    for turn in 3..REMEMBERED as u64 + 10 {
        apply(&mut fold, [responds(1, turn - 1, response("", [])), Record::Placed { turn: turn - 1 }]);
        apply(&mut fold, [asks(1, turn)]);
    }
    assert_eq!((fold.table.len(), fold.table[0].number), (REMEMBERED, 10));
}

// A23
#[test]
fn an_edit_is_asked_at_all_gates_and_serves_the_new_arguments() {
    let mut fold = Conversation::new("order-17");
    apply(&mut fold, [began(0, false), asks(0, 1), responds(0, 1, pays(1)), fact(1, Fact::Passed("limit".into()))]);
    let id = |amount: u32, fold: &Conversation| {
        // The key of the call is known by the fault of another id.
        let question = Interrupt::new("approval", json!({ "amount": amount })).with_id("order-17/1/0/pay-0/0");
        let asked = Asked { question, by: "gate".into(), in_function: false };
        let fault = fold.clone().apply(fact(1, Fact::Asked(asked))).expect_err("another id");
        fault.rsplit('`').nth(1).expect("the id").to_owned()
    };
    let asked = |amount: u32, id: String| {
        let question = Interrupt::new("approval", json!({ "amount": amount })).with_id(id);
        Asked { question, by: "gate".into(), in_function: false }
    };
    let first = id(5, &fold);
    apply(&mut fold, [fact(1, Fact::Asked(asked(5, first.clone())))]);
    assert!(fold.clone().apply(fact(1, Fact::Begun { called: true })).is_err(), "the question has no answer");
    apply(&mut fold, [Record::Answered { id: first.clone(), answer: json!({"edit": {"amount": 3}}).into() }]);
    assert!(fold.clone().apply(fact(1, Fact::Begun { called: true })).is_err(), "it was not asked again");

    let edited = call("c1", "pay", json!({"amount": 3}));
    apply(&mut fold, [fact(1, Fact::Used(first.clone())), fact(1, Fact::Changed { call: edited, edited: true })]);
    let second = id(3, &fold);
    assert_ne!(first, second);
    let (asked, approval) = (asked(3, second.clone()), Some(json!("approve").into()));
    apply(&mut fold, [fact(1, Fact::Needed { asked, approval })]);
    let open = &fold.runs[0].open.as_ref().expect("a turn").calls[0];
    assert!(open.passed.is_empty() && open.is_edited);
    assert!(fold.clone().apply(fact(1, Fact::Begun { called: true })).is_err(), "the gates have not seen it");
    apply(&mut fold, [fact(1, Fact::Used(second)), fact(1, Fact::Begun { called: true }), fact(1, settled("paid"))]);
    // The call has settled, so nobody is asked about it.
    assert!(fold.apply(Record::Answered { id: first, answer: json!("approve").into() }).is_err());
}

#[test]
fn a_call_that_could_not_be_stored_as_begun_is_as_it_was() {
    let mut fold = at_work();
    apply(&mut fold, [Record::Over { run: 0, returned: false }, began(1, true), fact(1, Fact::Begun { called: true })]);
    apply(&mut fold, [fact(1, Fact::NotBegun)]);
    assert!(fold.runs[0].open.as_ref().expect("a turn").calls[0].has_begun, "the first run had begun it");
    assert!(texts(&fold)[2].ends_with("it may have had effects"));
    assert!(fold.apply(fact(1, Fact::NotBegun)).is_err());
}

#[test]
fn agents_below_a_call_have_sessions_until_it_settles_at_any_depth() {
    const DEPTH: usize = 200;
    let mut fold = at_work();
    let (mut above, mut ids) = (None::<String>, Vec::new());
    for depth in 0..DEPTH {
        let id = format!("order-17/1/0/pay-0/agent{depth}");
        let first = (depth == 0).then_some(1);
        let lines = [
            (above.clone(), Record::Below { turn: 1, call: 0, id: id.clone(), first }),
            (Some(id.clone()), began(0, false)),
            (Some(id.clone()), asks(0, 1)),
            (Some(id.clone()), responds(0, 1, pays(1))),
            (Some(id.clone()), fact(1, Fact::Begun { called: true })),
        ];
        for (session, record) in lines {
            fold.apply(Line { session, record }).expect("it fits");
        }
        above = Some(id.clone());
        ids.push(id);
    }
    assert_eq!(fold.below.keys().cloned().collect::<BTreeSet<_>>(), ids.iter().cloned().collect());
    assert_eq!(texts(&fold.below[&ids[0]]), ["Pay."], "a handoff begins with the messages above");
    // Sessions in one another are a list in JSON, so they can be read at any depth.
    let json = json_of(&Record::Session(Box::new(fold.clone())).into());
    assert_eq!(Conversation::read([&*json]).expect("a snapshot"), fold);
    let ended = fold.as_if_ended();
    assert_valid(&ended, &"all runs have ended");
    assert!(ended.below.len() == DEPTH && ended.below.values().all(|session| session.stopped == Some(0)));

    // A call that settles forgets its session, and those below.
    let settles = Line { session: Some(ids[99].clone()), record: fact(1, settled("done")) };
    fold.apply(settles).expect("it fits");
    assert_eq!(fold.below.len(), 100);
    apply(&mut fold, [fact(1, settled("done"))]);
    assert!(fold.below.is_empty());
}

#[test]
fn a_fork_shares_no_key_and_no_question_and_the_origin_remembers_it() {
    let mut fold = at_work();
    let sent = Input::Steer(user("Stop."));
    apply(&mut fold, [Record::Sent { number: 0, id: Uuid::nil(), sent }, Record::Paused { id: Uuid::max() }]);
    let mut fork = fold.fork("order-17-b");
    assert_eq!(texts(&fork), ["Pay.", "", "the run was stopped while the tool was running: it may have had effects"]);
    assert_eq!(fork.from, Some(Fork { session: "order-17".into(), turn: 1 }));
    assert!(
        fork.inbox.is_empty() && fork.paused.is_none() && fork.stopped.is_none() && fork.questions().next().is_none()
    );
    apply(&mut fork, [began(1, false)]);
    // Its turns go on, so its keys are others than those of the origin under any id.
    assert!(fork.clone().apply(asks(1, 1)).is_err());
    apply(&mut fork, [asks(1, 2)]);
    apply(&mut fold, [Record::Forked { to: "order-17-b".into() }]);
    assert_eq!(fold.forked, Some(Fork { session: "order-17-b".into(), turn: 1 }));
}

#[test]
fn what_was_hidden_while_a_call_ran_is_true_when_it_comes_back() {
    let mut fold = at_work();
    let at = |fold: &Conversation| fold.messages.len();
    apply(&mut fold, [Record::Over { run: 0, returned: false }]);
    // Another run replaces all, also the turn that the next run takes up, and is then discarded.
    apply(&mut fold, [began(1, true), began(2, false)]);
    let removed = at(&fold);
    apply(&mut fold, [Record::Rewritten { run: 2, at: 0, removed, add: Vec::new() }]);
    apply(&mut fold, [Record::Rewritten { run: 1, at: 0, removed: 0, add: vec![user("more")] }]);
    assert_eq!(texts(&fold), ["more"]);
    apply(&mut fold, [fact(1, Fact::Begun { called: true }), fact(1, settled("paid")), Record::Again { run: 2 }]);
    assert_eq!(texts(&fold).iter().filter(|text| *text == "paid").count(), 1, "{:?}", texts(&fold));
}

#[test]
fn a_withheld_answer_forgets_earlier_points() {
    let mut fold = Conversation::new("s");
    apply(&mut fold, [began(0, false), asks(0, 1), responds(0, 1, response("secret", []))]);
    apply(&mut fold, [Record::Placed { turn: 1 }, Record::Ends { run: 0, turn: 1 }]);
    apply(&mut fold, [Record::Replaced { run: 0, message: response("(withheld by guard)", []), withheld: true }]);
    assert_eq!((texts(&fold), fold.withheld), (vec!["(withheld by guard)".to_owned()], Some(1)));
    let whole: Value = serde_json::to_value(&fold).expect("JSON");
    assert!(!whole.to_string().contains("secret"), "{whole}");
    let other = Record::Replaced { run: 0, message: pays(1), withheld: false };
    assert_eq!(fold.apply(other), Err("the answer has other calls".to_owned()));
}

fn rewritten(run: u32, removed: usize) -> Record {
    Record::Rewritten { run, at: 0, removed, add: vec![user("summary")] }
}

#[test]
fn a_refused_record_leaves_a_turn_that_was_rewritten_as_it_is() {
    let mut fold = at_work();
    apply(&mut fold, [Record::Over { run: 0, returned: false }, began(1, true), began(2, false), rewritten(2, 3)]);
    let before = fold.clone();
    let fault = fold.apply(asks(1, 9)).expect_err("not the next turn");
    assert_eq!((fault.as_str(), &fold), ("the turn 9 is not the next one, 2", &before));
    apply(&mut fold, [asks(1, 2)]);
    assert!(fold.runs[0].open.is_none());
}

// A1
#[test]
fn a_turn_that_a_hook_has_cut_behind_its_results_gets_them_also_if_the_cut_is_undone() {
    let mut fold = at_work();
    let injected = Record::Injected { turn: 1, messages: vec![user("And?")], answers: false };
    apply(&mut fold, [injected, Record::Over { run: 0, returned: false }, began(1, true)]);
    apply(&mut fold, [began(2, false), rewritten(2, 3)]);
    assert_eq!(texts(&fold), ["summary", "And?"]);
    apply(&mut fold, [fact(1, settled("paid"))]);
    apply(&mut fold, [Record::Again { run: 2 }]);
    assert_eq!(texts(&fold), ["Pay.", "", "paid", "And?"]);
}
