//! The plan of one run: the replies of its model, the effects of its tools, and its end. A plan is drawn from the seed
//! of the soak and the number of the run, so that the model finds it by the number in the user's message.

use std::time::Duration;

use emitree::agent::Reply;
use fastrand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The effect of a tool call.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub(crate) enum Act {
    Returns,
    Waits,
    Fails,
    Panics,
    IsFatal,
    Halts,
    Interrupts,
    AsksSubAgent,
    /// The model calls a tool that does not exist.
    IsUnknown,
    /// The model's arguments do not fit the schema.
    IsWrong,
}

/// How the code that starts the run uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Awaits,
    Streams,
    ReadsItems(usize),
    DropsAfterPolls(usize),
    AbortsAfterYields(usize),
    TimesOut(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answers,
    Fails,
    Panics,
}

#[derive(Debug)]
pub(crate) struct Plan {
    number: u64,
    turns: Vec<Vec<Act>>,
    end: End,
    piece: usize,
    pub(crate) spawns_tools: bool,
    pub(crate) usage: Use,
}

/// The bit of the numbers of sub-agents' runs.
const SUB: u64 = 1 << 63;

impl Plan {
    pub(crate) fn draw(seed: u64, number: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let turns =
            (0..rng.usize(..4)).map(|_| (0..rng.usize(1..4)).map(|_| act(&mut rng, number)).collect()).collect();
        let end = match rng.u8(..20) {
            0 => End::Fails,
            1 => End::Panics,
            _ => End::Answers,
        };
        let usage = match rng.u8(..10) {
            0 | 1 => Use::Awaits,
            2 | 3 => Use::Streams,
            4 | 5 => Use::ReadsItems(rng.usize(..40)),
            6 | 7 => Use::DropsAfterPolls(rng.usize(..12)),
            8 => Use::AbortsAfterYields(rng.usize(..20)),
            _ => Use::TimesOut(Duration::from_micros(rng.u64(..3_000))),
        };
        Self { number, turns, end, piece: rng.usize(1..9), spawns_tools: rng.bool(), usage }
    }

    pub(crate) fn reply(&self, turn: usize) -> Reply {
        match (self.turns.get(turn), self.end) {
            (Some(acts), _) => Reply::calls(acts.iter().enumerate().map(|(i, act)| self.call(turn, i, *act))),
            (None, End::Answers) => Reply::text(format!("the answer to {}", self.number)),
            (None, End::Fails) => Reply::error(emitree::Error::new("planned")),
            (None, End::Panics) => panic!("planned"),
        }
        .in_pieces(self.piece)
    }

    /// Returns the name and the arguments of a call. The key identifies the call in the whole soak.
    fn call(&self, turn: usize, i: usize, act: Act) -> (&'static str, Value) {
        let key = format!("{}.{turn}.{i}", self.number);
        match act {
            Act::IsUnknown => ("missing", json!({"key": key})),
            Act::IsWrong => ("act", json!({"key": key, "act": 7})),
            act => ("act", json!({"key": key, "act": act, "asks": (self.number.wrapping_mul(16) + i as u64) | SUB})),
        }
    }
}

fn act(rng: &mut Rng, number: u64) -> Act {
    match rng.u8(..40) {
        0..12 => Act::Returns,
        12..22 => Act::Waits,
        22..25 => Act::Fails,
        25..27 => Act::Panics,
        27 => Act::IsFatal,
        28 => Act::Halts,
        29 => Act::Interrupts,
        30..36 if number & SUB == 0 => Act::AsksSubAgent,
        36 | 37 => Act::IsUnknown,
        38 | 39 => Act::IsWrong,
        _ => Act::Returns,
    }
}
