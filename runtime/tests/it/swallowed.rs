//! M9 as a property: control flow reaches the caller through any layers, unless a layer absorbs it on purpose. If a
//! layer calls `next` twice at the same time, it can absorb the error of one call without absorbing the other error.

use emitree_emitter::Emitter;
use emitree_runtime::{Error, ErrorKind, Interrupt, Layer, Next, Op, Result, RunContext, Runnable};
use futures_util::FutureExt;
use futures_util::future::{join, pending};
use proptest::prelude::{ProptestConfig, any, prop_oneof};
use proptest::strategy::{Just, Strategy};
use proptest::{collection, prop_assert_eq, proptest};
use tokio::task::yield_now;

/// The behavior of a layer: its calls of `next`, and the result that it returns.
#[derive(Clone, Copy, Debug)]
enum Treats {
    Passes,
    /// Returns an output for every error.
    Swallows,
    /// Turns every error into a failure.
    Wraps,
    /// Yields after an error, absorbs it, and returns an output.
    Absorbs,
    /// Calls `next` again after an error.
    Insists,
    /// Does not call `next`.
    Answers,
    /// Calls `next`, and then fails.
    Fails,
    /// Calls `next`, and then halts.
    Halts,
    /// Adds a message and a detail to an error.
    Explains,
    /// Calls `next` twice at the same time. Returns the error of the first call, or else the result of the second call.
    Joins,
    /// Calls `next` twice at the same time, absorbs the errors of the calls whose flags are set, and returns an output.
    Absorbed(bool, bool),
}

/// The ends of a call, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Denial,
    Halt,
    Abort,
    Interrupt,
    Retry,
    Failure,
    Output,
}

const ENDS: [End; 7] = [End::Denial, End::Halt, End::Abort, End::Interrupt, End::Retry, End::Failure, End::Output];

impl End {
    fn result(self) -> Result<u32> {
        match self {
            Self::Output => Ok(1),
            Self::Failure => Err(Error::new("broken")),
            Self::Denial => Err(Error::denied("desk", "no")),
            Self::Halt => Err(Error::halted("desk", "stop")),
            Self::Abort => Err(Error::aborted("gone")),
            Self::Interrupt => Err(Error::interrupted(Interrupt::new("question", 1))),
            Self::Retry => Err(Error::retry("again")),
        }
    }

    fn of(result: &Result<u32>) -> Self {
        match result.as_ref().map_err(Error::kind) {
            Ok(_) => Self::Output,
            Err(ErrorKind::Denied { .. }) => Self::Denial,
            Err(ErrorKind::Halted { .. }) => Self::Halt,
            Err(ErrorKind::Aborted) => Self::Abort,
            Err(ErrorKind::Interrupted) => Self::Interrupt,
            Err(ErrorKind::Retry) => Self::Retry,
            Err(_) => Self::Failure,
        }
    }

    fn is_control_flow(self) -> bool {
        self <= Self::Retry
    }
}

impl<O: Op<In = usize, Out = u32>> Layer<O> for Treats {
    async fn call(&self, path: &usize, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
        match self {
            Self::Answers => return Ok(2),
            Self::Joins => {
                let (first, second) = join(next.run(&(path * 2)), next.run(&(path * 2 + 1))).await;
                return first.and(second);
            }
            Self::Absorbed(first, second) => {
                let (left, right) = join(next.run(&(path * 2)), next.run(&(path * 2 + 1))).await;
                yield_now().await;
                let ended = [(first, left), (second, right)];
                ended
                    .iter()
                    .filter(|(absorbs, _)| **absorbs)
                    .filter_map(|(_, ended)| ended.as_ref().err())
                    .for_each(|error| next.absorb(error));
                return Ok(5);
            }
            _ => {}
        }
        let result = next.run(path).await;
        match (self, result) {
            (Self::Swallows, result) => Ok(result.unwrap_or(3)),
            (Self::Wraps, result) => result.map_err(|error| Error::new(error.to_string())),
            (Self::Fails, _) => Err(Error::new("planned")),
            (Self::Halts, _) => {
                // Yield first: if the first of two joined calls halted in its first poll, the second call would not
                // reach the work.
                yield_now().await;
                Err(Error::halted("layer", "enough"))
            }
            (Self::Explains, result) => result.map_err(|error| error.message("in other words").detail("more", 1)),
            (Self::Insists, Err(_)) => next.run(path).await,
            (Self::Absorbs, Err(error)) => {
                yield_now().await;
                next.absorb(&error);
                Ok(4)
            }
            (_, result) => result,
        }
    }
}

/// Models the expected behavior: returns the end of a call through these layers, and the ends that were not absorbed.
fn model(layers: &[Treats], work: &[End], path: usize) -> (End, Vec<End>) {
    let Some((layer, inside)) = layers.split_first() else {
        let end = work[path % work.len()];
        return (end, Vec::from_iter(end.is_control_flow().then_some(end)));
    };
    let mut notes = Vec::new();
    let call = |notes: &mut Vec<End>, path| {
        let (end, noted) = model(inside, work, path);
        notes.extend(noted);
        end
    };
    let absorb = |notes: &mut Vec<End>, end: End| {
        let at = notes.iter().position(|note| *note == end);
        at.map(|at| notes.remove(at));
    };
    let returned = match layer {
        Treats::Answers => End::Output,
        Treats::Joins => match [call(&mut notes, path * 2), call(&mut notes, path * 2 + 1)] {
            [End::Output, second] => second,
            [first, _] => first,
        },
        Treats::Absorbed(first, second) => {
            let ended = [(first, call(&mut notes, path * 2)), (second, call(&mut notes, path * 2 + 1))];
            ended.iter().filter(|(absorbs, _)| **absorbs).for_each(|(_, end)| absorb(&mut notes, *end));
            End::Output
        }
        _ => match (layer, call(&mut notes, path)) {
            (Treats::Swallows, _) => End::Output,
            (Treats::Wraps, End::Output) => End::Output,
            (Treats::Wraps | Treats::Fails, _) => End::Failure,
            (Treats::Halts, _) => End::Halt,
            (Treats::Insists, End::Failure) => call(&mut notes, path),
            (Treats::Absorbs, end) => {
                absorb(&mut notes, end);
                End::Output
            }
            (_, end) => end,
        },
    };
    // Note the returned control flow, unless an equal end is already noted.
    if returned.is_control_flow() && !notes.contains(&returned) {
        notes.push(returned);
    }
    (notes.iter().min().copied().unwrap_or(returned), notes)
}

fn treats() -> impl Strategy<Value = Treats> {
    prop_oneof![
        Just(Treats::Passes),
        Just(Treats::Swallows),
        Just(Treats::Wraps),
        Just(Treats::Absorbs),
        Just(Treats::Insists),
        Just(Treats::Answers),
        Just(Treats::Fails),
        Just(Treats::Halts),
        Just(Treats::Explains),
        Just(Treats::Joins),
        (any::<bool>(), any::<bool>()).prop_map(|(first, second)| Treats::Absorbed(first, second)),
    ]
}

/// Generates ends, more than half of them successes.
fn end() -> impl Strategy<Value = End> {
    (0..ENDS.len() * 2).prop_map(|i| ENDS.get(i).copied().unwrap_or(End::Output))
}

/// Runs work through layers. The path of a call determines how often the work yields, and how it then ends.
fn run(layers: &[Treats], work: &[End], yields: &[u8]) -> Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (work, yields) = (work.to_vec(), yields.to_vec());
    let ends = emitree_runtime::runnable_fn("ends", move |path: usize, _: RunContext| {
        let (end, yields) = (work[path % work.len()], yields[path % yields.len()]);
        async move {
            for _ in 0..=yields {
                yield_now().await;
            }
            end.result()
        }
    });
    let ends = ends.with_emitter(Emitter::new());
    let run = layers.iter().fold(ends.run(1), |run, layer| run.layer(*layer));
    runtime.block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    // M9
    #[test]
    fn control_flow_reaches_the_caller_through_any_layers_unless_it_is_absorbed(
        layers in collection::vec(treats(), 0..6),
        work in collection::vec(end(), 1..9),
        yields in collection::vec(0..4_u8, 1..9),
    ) {
        let (expected, _) = model(&layers, &work, 1);
        prop_assert_eq!(End::of(&run(&layers, &work, &yields)), expected);
    }
}

// M9
#[test]
fn absorbing_the_error_of_one_joined_call_does_not_absorb_the_error_of_the_other() {
    for [first, second] in [[End::Denial, End::Halt], [End::Halt, End::Denial], [End::Denial, End::Denial]] {
        // The first call has path 2, the second call path 3.
        let came_to = |layer| End::of(&run(&[layer], &[first, second], &[0]));
        assert_eq!(came_to(Treats::Absorbed(true, false)), second);
        assert_eq!(came_to(Treats::Absorbed(false, true)), first);
        assert_eq!(came_to(Treats::Absorbed(true, true)), End::Output);
        assert_eq!(came_to(Treats::Absorbed(false, false)), End::Denial);
    }
}

// M9
#[test]
fn the_first_of_denial_halt_abort_interrupt_and_retry_that_is_not_absorbed_is_the_result() {
    for (i, more) in ENDS.iter().enumerate() {
        for less in &ENDS[i..] {
            for ends in [[*more, *less], [*less, *more]] {
                let expected = if more.is_control_flow() { *more } else { End::Output };
                assert_eq!(End::of(&run(&[Treats::Absorbed(false, false)], &ends, &[0])), expected, "{ends:?}");
            }
        }
    }
}

/// A layer that receives the result of `next`, and never returns.
#[derive(Debug)]
struct Keeps;

impl<O: Op> Layer<O> for Keeps {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        drop(next.run(input).await);
        pending().await
    }
}

/// A layer that polls `next` once.
#[derive(Debug)]
struct Leaves;

impl<O: Op<Out = u32>> Layer<O> for Leaves {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
        next.run(input).now_or_never().unwrap_or(Ok(6))
    }
}

// M9
#[tokio::test]
async fn a_denial_is_the_result_even_if_an_outer_layer_drops_its_call_of_next() {
    let denied = emitree_runtime::runnable_fn("denied", |(): (), _: RunContext| async { End::Denial.result() });
    let denied = denied.with_emitter(Emitter::new());
    let left = denied.run(()).layer(Leaves).layer(Passes).layer(Keeps).await;
    assert!(left.expect_err("it was denied").is_denied());
}

/// A layer that only calls `next`.
#[derive(Debug)]
struct Passes;

impl<O: Op> Layer<O> for Passes {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        next.run(input).await
    }
}
