//! Operations whose instructions and allocations `scripts/instructions` counts. No time is measured.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use emitree::agent::{Agent, ChatModel, ChatRequest, Message, Provider, whole};
use emitree::agent::{ChatResponse, DeltaStream};
use emitree::emitter::Creator;
use emitree::{Emitter, EventName, Result, RunContext, Runnable};

use crate::agents::{Pieces, agent};

#[path = "../support/agents.rs"]
mod agents;

const TICK: EventName = EventName::new("tick");

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [operation, times] => {
            let times = times.parse().expect("a number of times");
            operate(operation, times);
        }
        _ => panic!("name an operation and how often it is executed, or use scripts/instructions"),
    }
}

fn operate(operation: &str, times: u32) {
    match operation {
        "emit" => {
            let emitter = Emitter::new();
            emitter.on(TICK, |n: &mut u64, _| *n += 1).expect("a valid name");
            repeat(times, async || emitter.emit(TICK, &mut black_box(0_u64)).await.expect("nobody fails"));
        }
        "run" => {
            let adder = Adder::new();
            repeat(times, async || adder.run(black_box(1)).await.expect("a number"));
        }
        "call" => {
            let agent = Agent::builder("bench", ChatModel::new(Done).expect("a model")).build().expect("an agent");
            repeat(times, async || agent.ask("go").await.expect("an answer"));
        }
        "tokens" => {
            let model = ChatModel::new(Pieces(200)).expect("a model");
            let mut request = ChatRequest::from("go");
            request.options.stream = Some(true);
            repeat(times, async || model.run(request.clone()).await.expect("an answer"));
        }
        "loop" => {
            let agent = agent();
            repeat(times, async || agent.ask("go").await.expect("an answer"));
        }
        other => panic!("there is no operation `{other}`: emit, run, call, tokens or loop"),
    }
}

/// Executes the operation this many times. It never has to wait for anything.
fn repeat<R>(times: u32, operation: impl AsyncFn() -> R) {
    let all = pin!(async {
        for _ in 0..times {
            black_box(operation().await);
        }
    });
    assert_eq!(all.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
}

/// A runnable that adds one.
struct Adder(Emitter);

impl Adder {
    fn new() -> Self {
        let emitter = Emitter::new().child_builder("tool.add").creator(Creator::new("Tool", "add")).build();
        Self(emitter.expect("a valid name"))
    }
}

impl Runnable for Adder {
    type Input = u64;
    type Output = u64;

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, input: &u64, _: &RunContext) -> Result<u64> {
        Ok(black_box(*input) + 1)
    }
}

/// A model that answers at once.
struct Done;

impl Provider for Done {
    fn name(&self) -> &str {
        "done"
    }

    fn model(&self) -> &str {
        "done"
    }

    async fn chat(&self, _: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        Ok(whole(ChatResponse::new(Message::assistant("done"))))
    }
}
