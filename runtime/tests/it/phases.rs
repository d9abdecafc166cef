//! M2, M5: phases nest in their order, observing layers fail open, and transforms map inputs and outputs.

use crate::support::layers::{Notes, doubling};
use crate::support::{Recorder, silence_planned_panics};
use emitree_runtime::{Error, Observe, Op, Phase, Result, RunContext, Runnable, Transform};

// M2
#[tokio::test]
async fn phases_are_observe_retry_transform_and_guard_outermost_first() {
    let recorder = Recorder::new();
    let notes = |name| Notes(name, recorder.clone());
    let double = doubling(&recorder);
    let run = double.run(1).layers(|stack| {
        stack
            .guard(notes("guard"))
            .layer(notes("plain"))
            .retry(notes("retry"))
            .transform(notes("transform"))
            .layer_in(Phase::Guard, notes("inner"))
            .observe(notes("observe"))
    });
    assert_eq!(run.await.expect("nothing fails"), 2);
    recorder.expect([
        "observe <- 1",
        "retry <- 1",
        "plain <- 1",
        "transform <- 1",
        "guard <- 1",
        "inner <- 1",
        "work 1",
        "inner -> 2",
        "guard -> 2",
        "transform -> 2",
        "plain -> 2",
        "retry -> 2",
        "observe -> 2",
    ]);
}

// M2
#[tokio::test]
async fn layers_are_sorted_by_phase_before_the_order_of_binding() {
    let recorder = Recorder::new();
    let notes = |name| Notes(name, recorder.clone());
    let double = doubling(&recorder);
    let run = double.run(1).layers(|stack| stack.guard(notes("guard"))).layers(|stack| stack.observe(notes("observe")));
    run.await.expect("nothing fails");
    recorder.expect(["observe <- 1", "guard <- 1", "work 1", "guard -> 2", "observe -> 2"]);
}

/// An observing layer that panics before or after the call.
#[derive(Debug)]
struct Clumsy {
    before: bool,
}

impl<O: Op> Observe<O> for Clumsy {
    type Memo = ();

    fn before(&self, _: &O::In, _: &RunContext) {
        assert!(!self.before, "planned");
    }

    fn after(&self, (): (), _: &Result<O::Out>, _: &RunContext) {
        panic!("planned");
    }
}

// M5
#[tokio::test]
async fn an_observing_layer_that_panics_does_not_affect_the_run() {
    silence_planned_panics();
    for before in [true, false] {
        let recorder = Recorder::new();
        let double = doubling(&recorder);
        let inner = Notes("inner", recorder.clone());
        let run = double.run(2).layers(|stack| stack.observe(Clumsy { before }).observe(inner));
        assert_eq!(run.await.expect("what observes fails open"), 4);
        recorder.expect(["inner <- 2", "work 2", "inner -> 4"]);
    }
}

/// A transform that adds to the input and multiplies the output.
#[derive(Debug)]
struct Maths {
    add: u32,
    times: u32,
}

impl<O: Op<In = u32, Out = u32>> Transform<O> for Maths {
    async fn input(&self, n: &u32, _: &RunContext) -> Result<Option<u32>> {
        Ok(Some(n + self.add))
    }

    async fn output(&self, n: u32, _: &RunContext) -> Result<u32> {
        n.checked_mul(self.times).ok_or_else(|| Error::new("too large"))
    }
}

// M2
#[tokio::test]
async fn transforms_map_inputs_inwards_and_outputs_outwards() {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let (outer, inner) = (Maths { add: 1, times: 10 }, Maths { add: 5, times: 3 });
    let notes = Notes("guard", recorder.clone());
    let run = double.run(1).layers(|stack| stack.guard(notes).transform(outer).transform(inner));
    assert_eq!(run.await.expect("nothing fails"), 420);
    recorder.expect(["guard <- 7", "work 7", "guard -> 14"]);
}

// M2
#[tokio::test]
async fn an_observing_layer_receives_errors() {
    let recorder = Recorder::new();
    let double = doubling(&recorder);
    let notes = Notes("observe", recorder.clone());
    let large = Maths { add: 0, times: u32::MAX };
    let run = double.run(1).layers(|stack| stack.observe(notes).transform(large));
    assert_eq!(run.await.expect_err("the transform fails").to_string(), "too large");
    recorder.expect(["observe <- 1", "work 1", "observe -> error: too large"]);
}
