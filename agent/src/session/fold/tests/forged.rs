use std::sync::Arc;

use emitree_runtime::{Answer, Interrupt, KeptValue};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Rng, assert_valid, call, json_of, response, user};
use crate::session::fold::Conversation;
use crate::session::record::{Asked, Fact, Input, Line, Record, SettledAs, TurnAt};
use crate::{Message, Part, ToolResult};

fn message(rng: &mut Rng) -> Arc<Message> {
    let call = |n: usize| call(&format!("c{n}"), "t", json!({}));
    match rng.below(6) {
        0 => Arc::new(Message::tool([ToolResult::new("c0", "forged")])),
        1 => response("forged", [call(0), call(1)]),
        2 => response("forged", [call(0), call(0)]),
        3 => response("forged", []),
        _ => user("forged"),
    }
}

fn messages(rng: &mut Rng) -> Vec<Arc<Message>> {
    (0..rng.below(4)).map(|_| message(rng)).collect()
}

fn fact(rng: &mut Rng) -> Fact {
    let (flag, n) = (rng.chance(50), rng.below(5));
    let question = Interrupt::new("k", json!({})).with_id(format!("q{n}"));
    let asked = Asked { question: question.clone(), by: format!("b{}", n % 2), in_function: flag };
    match rng.below(14) {
        0 => Fact::Passed("g".into()),
        1 => Fact::Asked(asked),
        2 => Fact::Needed { asked, approval: flag.then(|| json!(n).into()) },
        3 => Fact::Used(format!("q{n}")),
        4 => Fact::Unfit(question),
        5 => Fact::Begun { called: flag },
        6 => Fact::NotBegun,
        7 => Fact::Unchecked,
        8 => Fact::Changed { call: call("c0", "t", json!({ "n": n })), edited: flag },
        9 => Fact::NotOffered,
        10 => Fact::Waits,
        11 => Fact::Stopped,
        12 => Fact::Kept(KeptValue::new(n as u64)),
        _ => {
            let text = Part::Text { content: "forged".into() };
            let parts = [vec![], vec![text.clone()], vec![text, Part::reasoning("forged", None)]];
            let parts = parts.into_iter().nth(rng.below(3)).unwrap_or_default();
            let settled = SettledAs { content: "forged".into(), parts, is_error: flag, ..SettledAs::default() };
            Fact::Settled(Box::new(settled))
        }
    }
}

fn record(rng: &mut Rng) -> Record {
    let (run, turn, call, flag, n) = (rng.small(4), rng.small(6), rng.below(3), rng.chance(50), rng.small::<u64>(5));
    match rng.below(29) {
        0 | 1 => {
            let once = (n > 2).then(|| format!("once {n}"));
            Record::Began { run, id: Uuid::nil(), once, options: None, resumes: flag }
        }
        2 => Record::Again { run },
        3 => Record::Kept { run },
        4 => Record::Left { run, answered: flag },
        5 => Record::Over { run, returned: flag },
        6 => Record::NotReturned { run },
        7 => Record::Said {
            run: flag.then_some(run),
            messages: messages(rng),
            turn: (n == 1).then_some(TurnAt { number: turn, at: n }),
        },
        8 => Record::Rewritten { run, at: call, removed: rng.below(6), add: messages(rng) },
        9 => Record::Replaced { run, message: message(rng), withheld: flag },
        10 | 11 => Record::Asks { run, turn, at: n },
        12 | 13 => {
            let unanswered = (n == 0).then(|| "no".to_owned());
            Record::Turn { run, turn, response: message(rng), unanswered }
        }
        14 => Record::Resolved { turn },
        15 => Record::Injected { turn, messages: messages(rng), answers: false },
        16 | 17 => Record::Call { turn, call, fact: fact(rng).into() },
        18 => Record::Placed { turn },
        19 => Record::Answered { id: format!("q{n}"), answer: Answer::from(json!(n)) },
        20 => Record::Sent { number: n, id: Uuid::from_u64_pair(0, n), sent: Input::Steer(message(rng)) },
        21 => Record::Taken { run, numbers: vec![n], messages: flag.then(|| messages(rng)) },
        22 => Record::Paused { id: Uuid::from_u64_pair(1, n) },
        23 => Record::Stopped { run },
        24 => Record::Replied { run, turn, usage: None, cost: None },
        25 => Record::Ends { run, turn },
        26 => Record::Guards { names: vec![format!("g{n}")] },
        27 => Record::Forked { to: "other".into() },
        _ => Record::Below { turn, call, id: format!("below{}", n % 3), first: flag.then_some(call) },
    }
}

// A1: whatever the records are, `apply` does not panic, refuses without a change, and leaves a valid history.
#[test]
fn any_records_leave_a_valid_session_or_are_refused_without_a_change() {
    let (mut applied, mut refused) = (0, 0);
    for seed in 1..1_500_u64 {
        let (mut rng, mut fold) = (Rng::new(seed), Conversation::new("s"));
        for _ in 0..60 {
            let session = rng.chance(15).then(|| format!("below{}", rng.below(3)));
            let (line, before) = (Line { session, record: record(&mut rng) }, fold.clone());
            match fold.apply(line.clone()) {
                Ok(()) => applied += 1,
                Err(_) => {
                    refused += 1;
                    assert_eq!(fold, before, "seed {seed}: {line:?} was refused, and has changed something");
                }
            }
            assert_valid(&fold, &(seed, &line));
            assert_eq!(serde_json::from_str::<Line>(&json_of(&line)).expect("a line"), line);
        }
        assert_valid(&fold.as_if_ended(), &seed);
        let json = json_of(&Record::Session(Box::new(fold.clone())).into());
        assert_eq!(Conversation::read([&*json]).expect("its own snapshot"), fold, "seed {seed}");
    }
    assert!(applied > 5_000 && refused > applied, "{applied} applied, {refused} refused");
}

/// Changes one value of a JSON document.
fn damage(json: &mut Value, rng: &mut Rng) {
    let inside = match json {
        Value::Array(values) if !values.is_empty() && rng.chance(90) => {
            let at = rng.below(values.len());
            if rng.chance(20) {
                values.remove(at);
                return;
            }
            values.get_mut(at)
        }
        Value::Object(fields) if !fields.is_empty() && rng.chance(90) => {
            let key = fields.keys().nth(rng.below(fields.len())).cloned().expect("a key");
            if rng.chance(10) {
                fields.remove(&key);
                return;
            }
            fields.get_mut(&key)
        }
        _ => None,
    };
    match inside {
        Some(inside) => damage(inside, rng),
        None => *json = [json!(0), json!(3), json!("c1"), json!(null), json!([]), json!(true)][rng.below(6)].clone(),
    }
}

// S5: a snapshot that was damaged is refused with its place, or is a valid session.
#[test]
fn a_damaged_snapshot_is_refused_or_leaves_a_valid_session() {
    let (mut read, mut refused) = (0, 0);
    for seed in 1..400_u64 {
        let (mut rng, mut fold) = (Rng::new(seed), Conversation::new("s"));
        for _ in 0..80 {
            _ = fold.apply(record(&mut rng));
        }
        let whole = serde_json::to_value(Line::from(Record::Session(Box::new(fold)))).expect("JSON");
        for _ in 0..20 {
            let mut damaged = whole.clone();
            damage(&mut damaged["session"], &mut rng);
            match Conversation::read([&*damaged.to_string()]) {
                Ok(mut fold) => {
                    read += 1;
                    for _ in 0..20 {
                        _ = fold.apply(record(&mut rng));
                    }
                    assert_valid(&fold, &(seed, damaged));
                }
                Err(fault) => {
                    refused += 1;
                    assert!(fault.starts_with("record 0: "), "{fault}");
                }
            }
        }
    }
    assert!(read > 500 && refused > 1_000, "{read} read, {refused} refused");
}
