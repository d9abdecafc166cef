//! Middlewares are bound in the order that their `Order`s require, and otherwise in order of registration.
//! If orders contradict each other, the run fails with an error that names the cycle.

use std::fmt;
use std::sync::Arc;

use crate::support::layers::Notes;
use crate::support::{Any, Recorder, TestResult, below};
use emitree_emitter::{Emitter, EventMeta, Options};
use emitree_runtime::{
    AnyRun, Description, ErrorKind, LayerInfo, Middleware, Order, Phase, Result, RunContext, Runnable, Stack, Stage,
    for_nested, for_tree, ordered,
};
use proptest::prelude::*;

/// A middleware that records its name when it is bound.
#[derive(Clone)]
struct Named(&'static str, Recorder);

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Middleware for Named {
    fn bind(&self, _: &RunContext) -> Result<()> {
        self.1.note(self.0);
        Ok(())
    }

    fn name(&self) -> &str {
        self.0
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| vec![LayerInfo::new(self.0, Phase::Guard, self.0)])
    }
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Adds `a`, `b`, … to a run in this order, each with its `Order`. Returns the result and the names in the order of
/// binding.
async fn bind(orders: &[Order]) -> (Result<()>, Vec<String>) {
    let recorder = Recorder::new();
    let work = below(&Emitter::new(), "work", |(): (), _: RunContext| async move { Ok(()) });
    let mut run = work.run(());
    for (name, order) in NAMES.iter().zip(orders) {
        run = run.middleware(ordered(Named(name, recorder.clone()), order.clone()));
    }
    (run.await, recorder.take())
}

fn said(before: &[&'static str], after: &[&'static str]) -> Order {
    let order = before.iter().fold(Order::new(), |order, &name| order.before(name));
    after.iter().fold(order, |order, &name| order.after(name))
}

#[tokio::test]
async fn middlewares_keep_the_given_order_except_where_their_orders_require_another() -> TestResult {
    let none = || said(&[], &[]);
    let rows = [
        (vec![none(), none(), none()], "abc"),
        (vec![said(&[], &["c"]), none(), none()], "bca"),
        (vec![none(), none(), said(&["a"], &[])], "bca"),
        (vec![said(&[], &["b"]), said(&[], &["c"]), none(), none()], "cbad"),
        (vec![none(), said(&["nobody"], &["nobody else"]), none()], "abc"),
        (vec![said(&["a"], &["a"]), none()], "ab"),
        (vec![said(&[], &["d"]), none(), said(&["b"], &[]), none()], "cbda"),
    ];
    for (orders, expected) in rows {
        let (result, bound) = bind(&orders).await;
        result?;
        assert_eq!(bound.concat(), expected, "{orders:?}");
    }
    Ok(())
}

#[tokio::test]
async fn contradictory_orders_are_an_error_that_names_the_cycle_and_nothing_is_bound() {
    let rows = [
        (vec![said(&["b"], &[]), said(&["a"], &[])], "`a` before `b` before `a`"),
        (vec![said(&[], &["c"]), said(&[], &["a"]), said(&[], &["b"])], "`a` before `b` before `c` before `a`"),
        (vec![said(&[], &["b"]), said(&["a", "c"], &["c"]), said(&[], &[])], "`b` before `c` before `b`"),
    ];
    for (orders, circle) in rows {
        let (result, bound) = bind(&orders).await;
        let error = result.expect_err("there is a circle");
        assert_eq!(error.kind(), &ErrorKind::Invalid);
        assert_eq!(error.to_string(), format!("middlewares cannot be put in order: {circle}"));
        assert!(bound.is_empty(), "{bound:?}");
    }
}

// M4
#[tokio::test]
async fn a_middleware_of_the_run_can_be_ordered_before_instance_and_inherited_middlewares() -> TestResult {
    let recorder = Recorder::new();
    let named = |name| Named(name, recorder.clone());
    let inner =
        below(&Emitter::new(), "inner", |(): (), _: RunContext| async move { Ok(()) }).middleware(named("instance"));
    let own = ordered(named("run"), Order::new().before("instance").before("above"));
    let (inner, own) = (Arc::new(inner), Arc::new(own));
    let outer = below(&Emitter::new(), "outer", move |(): (), _: RunContext| {
        let (inner, own) = (Arc::clone(&inner), Arc::clone(&own));
        async move { inner.run(()).middleware(own).await }
    });
    outer.run(()).middleware(for_tree(named("above"))).await?;
    recorder.expect(["above", "run", "above", "instance"]);
    Ok(())
}

/// A middleware that also binds its inner middleware, and a middleware `own`, to the runs below.
#[derive(Debug)]
struct Handing(Named);

impl Middleware for Handing {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.0.bind(ctx)?;
        ctx.bind_nested(self.0.clone());
        ctx.bind_nested(ordered(Named("own", self.0.1.clone()), Order::new().before("late")));
        Ok(())
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

// M4
#[tokio::test]
async fn a_middleware_for_nested_runs_takes_its_binders_order_unless_it_has_its_own() -> TestResult {
    let recorder = Recorder::new();
    let named = |name| Named(name, recorder.clone());
    let inner = below(&Emitter::new(), "inner", |(): (), _: RunContext| async move { Ok(()) });
    let inner = Arc::new(inner.middleware(named("early")).middleware(named("late")));
    let outer = below(&Emitter::new(), "outer", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    let outer = outer.middleware(named("early"));
    let after = || Order::new().after("early");
    outer.run(()).middleware(ordered(for_tree(named("x")), after())).await?;
    recorder.expect(["early", "x", "early", "x", "late"]);
    outer.run(()).middleware(for_tree(ordered(named("x"), after()))).await?;
    recorder.expect(["early", "x", "early", "x", "late"]);
    outer.run(()).middleware(ordered(for_nested(named("x")), after())).await?;
    recorder.expect(["early", "early", "x", "late"]);
    outer.run(()).middleware(for_nested(ordered(named("x"), after()))).await?;
    recorder.expect(["early", "early", "x", "late"]);
    outer.run(()).middleware(ordered(Handing(named("x")), after().after("late"))).await?;
    recorder.expect(["early", "x", "own", "early", "late", "x"]);
    Ok(())
}

#[tokio::test]
async fn layers_are_sorted_by_phase_first_and_then_by_order() -> TestResult {
    let recorder = Recorder::new();
    let layer = |name, phase| Stack::<AnyRun>::builder().layer_in(phase, Notes(name, recorder.clone())).build();
    let name = layer("x", Phase::Guard).name().to_owned();
    let work = below(&Emitter::new(), "work", |(): (), _: RunContext| async move { Ok(()) });
    work.run(())
        .middleware(layer("x", Phase::Guard))
        .middleware(ordered(layer("y", Phase::Guard), Order::new().before(name.clone())))
        .middleware(ordered(layer("z", Phase::Observe), Order::new().after(name)))
        .await?;
    recorder.expect(["z <- ()", "y <- ()", "x <- ()", "x -> ()", "y -> ()", "z -> ()"]);
    Ok(())
}

#[test]
fn explain_lists_middlewares_in_their_order_and_names_the_constraints() {
    let recorder = Recorder::new();
    let work = below(&Emitter::new(), "work", |(): (), _: RunContext| async move { Ok(()) });
    let late = ordered(Named("late", recorder.clone()), Order::new().after("early").before("end"));
    let run = work.run(()).middleware(late).middleware(Named("early", recorder));
    let lines = [
        "work",
        "  bound:",
        "    early",
        "    late: before end, after early",
        "  passes:",
        "    guard     early",
        "    guard     late",
    ];
    assert_eq!(run.explain().to_string(), lines.join("\n"));
}

/// A middleware whose `order` binds another middleware to the runs below, as another thread might do at that moment.
#[derive(Debug)]
struct HandsDown(Recorder);

impl Middleware for HandsDown {
    fn bind(&self, _: &RunContext) -> Result<()> {
        self.0.note("asked");
        Ok(())
    }

    fn order(&self) -> Option<&Order> {
        if let Some(run) = RunContext::current().filter(|run| run.depth() == 0) {
            run.bind_nested(Named("meanwhile", self.0.clone()));
        }
        None
    }
}

// M4
#[tokio::test]
async fn a_middleware_bound_for_nested_runs_while_others_are_ordered_is_bound_too() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner = below(&tree, "inner", |(): (), _: RunContext| async { Ok(()) });
    let inner = Arc::new(inner);
    let outer = below(&tree, "outer", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    });
    let notes = recorder.clone();
    let hands_down = move |ctx: &RunContext| {
        ctx.bind_nested(HandsDown(notes.clone()));
        Ok(())
    };
    outer.run(()).middleware(ordered(hands_down, Order::new().before("nobody"))).await?;
    recorder.expect(["asked", "meanwhile"]);
    Ok(())
}

proptest! {
    #[test]
    fn all_orders_hold_unless_they_form_a_cycle(pairs in prop::collection::vec((0..5usize, 0..5usize, any::<bool>()), 0..9)) {
        let mut orders = vec![Order::new(); 5];
        let mut held = Vec::new();
        for (a, b, by_first) in pairs {
            if by_first {
                orders[a] = orders[a].clone().before(NAMES[b]);
            } else {
                orders[b] = orders[b].clone().after(NAMES[a]);
            }
            if a != b {
                held.push((a, b));
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (result, bound) = runtime.block_on(bind(&orders));
        // Compute all constraints that follow from the given constraints.
        let mut reaches = [[false; 5]; 5];
        held.iter().for_each(|&(a, b)| reaches[a][b] = true);
        for via in 0..5 {
            for a in 0..5 {
                for b in 0..5 {
                    reaches[a][b] |= reaches[a][via] && reaches[via][b];
                }
            }
        }
        prop_assert_eq!(result.is_err(), (0..5).any(|i| reaches[i][i]));
        let place = |i: usize| bound.iter().position(|name| name == NAMES[i]);
        if result.is_ok() {
            prop_assert_eq!(bound.len(), 5);
            prop_assert!(held.iter().all(|&(a, b)| place(a) < place(b)), "{:?} {:?}", held, bound);
        }
    }
}

/// A middleware whose listener records the middleware's name at `start`.
#[derive(Debug)]
struct Listens(&'static str, Recorder);

impl Listens {
    fn note(&self) -> impl Fn(&mut Any, &EventMeta<'_>) + Send + Sync + use<> {
        let (name, notes) = (self.0, self.1.clone());
        move |_, _| notes.note(name)
    }
}

impl Middleware for Listens {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        ctx.emitter().on(Stage::Start, self.note())?;
        Ok(())
    }

    fn name(&self) -> &str {
        self.0
    }
}

// R4
#[tokio::test]
async fn middlewares_from_above_are_bound_first_then_the_instances_then_the_calls() -> TestResult {
    let recorder = Recorder::new();
    let listens = |name| Listens(name, recorder.clone());
    let tree = Emitter::new();
    let inner = below(&tree, "inner", |(): (), _: RunContext| async move { Ok(()) }).middleware(listens("instance"));
    let (inner, notes) = (Arc::new(inner), recorder.clone());
    let outer = below(&tree, "outer", move |(): (), _: RunContext| {
        let listens = |name| Listens(name, notes.clone());
        let [a, b, first] = ["a", "b", "first"].map(|name| listens(name).note());
        let run = inner.run_shared(()).on(Stage::Start, a).middleware(listens("m")).on(Stage::Start, b);
        run.register(Options::new().priority(1).on(Stage::Start, first)).middleware(listens("n"))
    });
    let above = listens("above");
    outer
        .run(())
        .middleware(move |ctx: &RunContext| {
            ctx.bind_nested(Listens(above.0, above.1.clone()));
            Ok(())
        })
        .await?;
    recorder.expect(["first", "above", "instance", "a", "m", "b", "n"]);
    Ok(())
}

// R4: an `Order` moves middlewares, but not the listeners that were added to the run with `on`.
#[tokio::test]
async fn listeners_of_the_call_keep_their_place_when_orders_move_middlewares() -> TestResult {
    let recorder = Recorder::new();
    let listens = |name| Listens(name, recorder.clone());
    let [a, b] = ["a", "b"].map(|name| listens(name).note());
    let work = below(&Emitter::new(), "work", |(): (), _: RunContext| async move { Ok(()) });
    let work = work.middleware(ordered(listens("late"), Order::new().after("m")));
    let run = work.run(()).on(Stage::Start, a).middleware(listens("m")).on(Stage::Start, b);
    let run = run.middleware(ordered(listens("early"), Order::new().before("m")));
    let names: Vec<_> = run.explain().middlewares.into_iter().map(|middleware| middleware.name).collect();
    assert_eq!(names, ["early", "m", "late"]);
    run.await?;
    recorder.expect(["a", "b", "early", "m", "late"]);
    Ok(())
}
