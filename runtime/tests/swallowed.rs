//! M9 as a property: control flow reaches the caller through any layers, unless one absorbs it on purpose.

use emitree_emitter::Emitter;
use emitree_runtime::{Error, Layer, Next, Op, Result, RunContext, Runnable};
use proptest::prelude::{ProptestConfig, prop_oneof};
use proptest::strategy::{Just, Strategy};
use proptest::{collection, prop_assert_eq, proptest};

/// How a layer treats what is inside of it.
#[derive(Clone, Copy, Debug)]
enum Treats {
    Passes,
    /// Gives an output whatever came.
    Swallows,
    /// Makes a failure of whatever error came.
    Wraps,
    /// Gives an output whatever came, and says so.
    Absorbs,
    /// Calls again after an error.
    Insists,
    /// Does not call at all.
    Answers,
    /// Fails after what came.
    Fails,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Output,
    Failure,
    Denial,
}

impl End {
    fn result(self) -> Result<u32> {
        match self {
            Self::Output => Ok(1),
            Self::Failure => Err(Error::new("broken")),
            Self::Denial => Err(Error::denied("desk", "no")),
        }
    }

    fn of(result: &Result<u32>) -> Self {
        match result {
            Ok(_) => Self::Output,
            Err(error) if error.is_denied() => Self::Denial,
            Err(_) => Self::Failure,
        }
    }

    /// What a layer makes of it: the promise.
    fn through(self, layer: Treats) -> Self {
        match (layer, self) {
            (Treats::Answers | Treats::Absorbs, _) => Self::Output,
            (_, Self::Denial) => Self::Denial,
            (Treats::Passes | Treats::Insists, end) => end,
            (Treats::Swallows, _) => Self::Output,
            (Treats::Wraps, end) => end,
            (Treats::Fails, _) => Self::Failure,
        }
    }
}

impl<O: Op<Out = u32>> Layer<O> for Treats {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<u32> {
        if matches!(self, Self::Answers) {
            return Ok(2);
        }
        let result = next.run(input).await;
        match (self, result) {
            (Self::Swallows, result) => Ok(result.unwrap_or(3)),
            (Self::Wraps, result) => result.map_err(|error| Error::new(error.to_string())),
            (Self::Fails, _) => Err(Error::new("planned")),
            (Self::Insists, Err(_)) => next.run(input).await,
            (Self::Absorbs, Err(error)) => {
                next.absorb(&error);
                Ok(4)
            }
            (_, result) => result,
        }
    }
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
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Output), Just(End::Failure), Just(End::Denial)]
}

fn run(layers: &[Treats], work: End) -> Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ends = emitree_runtime::runnable_fn("ends", move |(): (), _: RunContext| async move { work.result() });
    let ends = ends.with_emitter(Emitter::new());
    let run = layers.iter().fold(ends.run(()), |run, layer| run.layer(*layer));
    runtime.block_on(run)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // M9
    #[test]
    fn control_flow_reaches_the_caller_through_any_layers_unless_it_is_absorbed(
        layers in collection::vec(treats(), 0..6),
        work in end(),
    ) {
        let expected = layers.iter().rev().fold(work, |end, layer| end.through(*layer));
        prop_assert_eq!(End::of(&run(&layers, work)), expected);
    }
}
