//! Somebody is asked before a run goes on: [`Approval`].

mod allowed_inputs;
mod events;
mod layer;
mod ledger;

mod request;
mod responder;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{JsonRun, LayerInfo, Middleware, Phase, Result, RunContext, Stack};

use crate::shared::built_in::built_in;
use crate::shared::own_events::OwnEvents;
use crate::shared::runs::{FilterSpec, Runs};
use allowed_inputs::{AllowedInputs, RecordInputLayer, VerifyInputLayer};
pub use events::{Approved, Asked, Edited, Rejected};
use layer::ApprovalLayer;
pub use ledger::Approvals;
pub use request::{Choice, Decision, INTERRUPT, Request, RequestError};
use responder::Responder;

const ALL_CHOICES: &[Choice] = &[Choice::Approve, Choice::Edit, Choice::Reject];
const CHOICES_WITHOUT_EDIT: &[Choice] = &[Choice::Approve, Choice::Reject];

/// Asks before the work of a run begins, and goes on as it was answered: with the input as it is, with another one, or
/// not at all.
///
/// It stands in [`Phase::Guard`], where it sees exactly what the work would get, and works on runs of any type, as JSON.
/// By default it asks about each run that it is bound to; [`runs`](Self::runs), [`of_kind`](Self::of_kind) and
/// [`when`](Self::when) say otherwise. Runs that it does not ask about by the first two cost no JSON.
///
/// ```
/// use emitree_middleware::approval::{Approval, Decision, Request};
/// use emitree_middleware::Runs;
/// use emitree_runtime::{RunContext, Runnable, for_tree, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let approval = Approval::by(|request: Request| async move {
///     // Ask whoever is there; this one knows what it wants.
///     Ok(if request.input == "/tmp" { Decision::Approve } else { Decision::reject("only in /tmp") })
/// })
/// .runs(Runs::named("delete"));
///
/// let delete = runnable_fn("delete", |path: String, _: RunContext| async move { Ok(format!("{path} is gone")) })
///     .middleware(for_tree(approval));
/// assert_eq!(delete.run("/tmp".to_owned()).await.unwrap(), "/tmp is gone");
/// let error = delete.run("/home".to_owned()).await.unwrap_err();
/// assert_eq!(error.explain(), "denied by approval: only in /tmp");
/// # }
/// ```
///
/// # What an answer is bound to
///
/// To kind, name and input of the run, by a hash of them ([`Request::input_hash`]): another input is another question.
/// What was answered is not asked again, neither in a further attempt nor by another run. Where answers are kept, the
/// nearest that there is:
///
/// 1. [`Approvals`] in the run's extensions, given by [`Run::extension`](emitree_runtime::Run::extension) to it or to a
///    run above;
/// 2. those given by [`ledger`](Self::ledger);
/// 3. some that the outermost run above keeps as long as it lasts.
///
/// What was approved is what is executed: where a layer that stands inside, in the phase of guards too, changes the input
/// after the answer, the run is denied.
///
/// What JSON does not show of an input, a skipped field say, the hash does not either. Two approvals that stand for
/// different people need [names](Self::named), or the one takes the other's answers for its own.
///
/// # When nobody is there: interrupts
///
/// [`Approval::by_interrupt`] ends the run with an [`Interrupt`](emitree_runtime::Interrupt) of the kind [`INTERRUPT`],
/// whose data are a [`Request`] and whose id is the same each time that the same is asked. Once it has been answered in
/// a ledger, a run with the same input goes on, be it in another process:
///
/// ```
/// use emitree_middleware::approval::{Approval, Approvals, Decision, Request};
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let delete = runnable_fn("delete", |path: String, _: RunContext| async move { Ok(format!("{path} is gone")) })
///     .middleware(Approval::by_interrupt());
/// let error = delete.run("/tmp".to_owned()).await.unwrap_err();
/// let stored = serde_json::to_string(error.interrupt().unwrap())?;
///
/// // Later, elsewhere: it is shown to somebody, after a check that it is what its id stands for.
/// let request = Request::of_interrupt(&serde_json::from_str(&stored)?)?;
/// assert_eq!(request.input, "/tmp");
/// let approvals = Approvals::new();
/// approvals.answer(request.id(), Decision::Approve);
/// assert_eq!(delete.run("/tmp".to_owned()).extension(approvals).await?, "/tmp is gone");
/// # Ok(())
/// # }
/// ```
///
/// # When it goes wrong
///
/// It fails closed (M5): if the responder fails, panics or takes longer than the [`timeout`](Self::timeout), if a
/// predicate panics, if an edit is answered where [none are allowed](Self::without_edits), the run is denied, and the
/// reason says so; none of that is kept as an answer. A responder that ends in control flow, such as
/// `Err(Error::interrupted(request.to_interrupt()))` because it is night, ends the run so (M9).
///
/// An input that was edited has to fit the run's type, else that is an error which says where, with the detail
/// `edited_by`, and the work does not begin. Guards that stand inside of this one see what was edited; those that were
/// bound before it have seen what was not.
///
/// # Order, and what dropping does
///
/// 1. The ledger is looked at. With an answer there, go to 4.
/// 2. If another run asks the same at this moment, with the same ledger, it waits for what comes of that; else `asked`
///    is emitted, and the responder called.
/// 3. An answer is kept.
/// 4. `approved`, `edited` or `rejected` is emitted.
/// 5. The work begins, or the run ends denied by `approval`.
///
/// A run that is aborted, dropped or out of time while it waits ends at once, and the responder's future is dropped. If
/// others wait for its answer, one of them asks.
///
/// # Its own events
///
/// `middleware.approval.asked`, `.approved`, `.edited` and `.rejected`: [`Asked`], [`Approved`], [`Edited`] and
/// [`Rejected`]. They say what was asked and what the answer is bound to.
#[derive(Clone)]
pub struct Approval {
    by: Arc<str>,
    responder: Responder,
    runs: FilterSpec,
    when: Vec<Arc<RequestPredicate>>,
    timeout: Option<Duration>,
    edits: bool,
    ledger: Option<Approvals>,
    own_events: OwnEvents,
}

type RequestPredicate = dyn Fn(&Request) -> bool + Send + Sync;

impl Approval {
    /// Asks a function, and waits for it: without a [`timeout`](Self::timeout) for as long as the run lasts.
    #[must_use]
    pub fn by<F, Fut>(responder: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Decision>> + Send + 'static,
    {
        Self::of(Responder::Live(Arc::new(move |request| Box::pin(responder(request)))))
    }

    /// Ends the run with the question, unless it was answered.
    #[must_use]
    pub fn by_interrupt() -> Self {
        Self::of(Responder::Interrupt)
    }

    fn of(responder: Responder) -> Self {
        Self {
            by: "approval".into(),
            responder,
            runs: FilterSpec::default(),
            when: Vec::new(),
            timeout: None,
            edits: true,
            ledger: None,
            own_events: OwnEvents::new("middleware.approval"),
        }
    }

    /// Asks about these runs, and others for which this is said; by default about all.
    #[must_use]
    pub fn runs(mut self, runs: Runs) -> Self {
        self.runs.add(runs);
        self
    }

    /// Asks about runs of that kind: short for `runs(Runs::of_kind(kind))`.
    #[must_use]
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        self.runs(Runs::of_kind(kind))
    }

    /// Asks only if that says so of what would be asked: it sees the input. Called again, only if both do.
    #[must_use]
    pub fn when(mut self, asks: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.when.push(Arc::new(asks));
        self
    }

    /// How long a run waits for an answer, by tokio's clock, before it is denied. By default there is no limit. Interrupts
    /// wait for nobody.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Takes no other input for an answer. By default it does.
    #[must_use]
    pub const fn without_edits(mut self) -> Self {
        self.edits = false;
        self
    }

    /// Where answers are looked for and kept, unless the run has [`Approvals`] of its own.
    #[must_use]
    pub fn ledger(mut self, ledger: Approvals) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// Who asks, by default `approval`: it begins the ids of what is asked, and denies. Answers are not shared between
    /// names.
    #[must_use]
    pub fn named(mut self, by: impl Into<Arc<str>>) -> Self {
        self.by = by.into();
        self
    }

    const fn choices(&self) -> &'static [Choice] {
        if self.edits { ALL_CHOICES } else { CHOICES_WITHOUT_EDIT }
    }

    fn ledger_of(&self, ctx: &RunContext) -> Approvals {
        let given = ctx.extension::<Approvals>().map(Arc::unwrap_or_clone).or_else(|| self.ledger.clone());
        given.unwrap_or_else(|| Approvals::of_tree(ctx))
    }

    fn stack(&self) -> Stack<JsonRun> {
        let (by, allowed_inputs) = (&self.by, AllowedInputs::default());
        Stack::builder()
            .layer_in(Phase::Guard, ApprovalLayer(self.clone()))
            .layer_in(Phase::Guard, RecordInputLayer { by: Arc::clone(by), allowed_inputs: allowed_inputs.clone() })
            .innermost(VerifyInputLayer { by: Arc::clone(by), allowed_inputs })
            .build()
    }
}

built_in!(Approval, |this| this.own_events);

impl Middleware for Approval {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if self.runs.guards(ctx, &self.by)? { self.stack().bind(ctx) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        &self.by
    }

    fn layers(&self) -> Vec<LayerInfo> {
        self.stack().layers()
    }
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.responder)?;
        self.timeout.map_or(Ok(()), |timeout| write!(f, " for {timeout:?}"))?;
        f.write_str(&self.runs.after(", about runs "))?;
        f.write_str(if self.edits { "" } else { ", without edits" })
    }
}
