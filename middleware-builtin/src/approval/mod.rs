//! Approval of a run's input before its work begins: [`Approval`].

mod allowed_inputs;
mod events;
mod layer;
mod request;
mod responder;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::{Answers, Description, JsonRun, Middleware, Phase, Result, RunContext, Stack};

use crate::shared::built_in::built_in;
use crate::shared::own_events::OwnEvents;
use crate::shared::runs::{FilterSpec, Runs};
use allowed_inputs::{AllowedInputs, RecordInputLayer, VerifyInputLayer};
pub use events::{Approved, Asked, Edited, Rejected, Responded};
use layer::ApprovalLayer;
pub use request::{Choice, Decision, INTERRUPT, Request, RequestError};
use responder::Responder;

const ALL_CHOICES: &[Choice] = &[Choice::Approve, Choice::Edit, Choice::Reject, Choice::Respond];
const CHOICES_WITHOUT_EDIT: &[Choice] = &[Choice::Approve, Choice::Reject, Choice::Respond];

/// A middleware that asks for approval before a run's work begins. The answer approves the input, replaces it, rejects
/// the run, or is the run's result.
///
/// The layer of an approval belongs to [`Phase::Guard`], so it gets the input after layers of [`Phase::Transform`] have
/// changed it. An approval accepts runs of any type and reads their values as JSON. By default, it asks about every run
/// that it is bound to. To ask about fewer runs, use [`runs`](Self::runs), [`of_kind`](Self::of_kind) or
/// [`when`](Self::when). The values of runs that `runs` or `of_kind` exclude are not converted to JSON. To ask about
/// runs below a run, such as the tools of an agent, bind the approval with [`for_tree`](emitree_runtime::for_tree). An
/// approval that is bound only to a run that it does not ask about is refused, with an error that says so.
///
/// ```
/// use emitree_middleware::approval::{Approval, Decision, Request};
/// use emitree_middleware::Runs;
/// use emitree_runtime::{RunContext, Runnable, for_tree, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let approval = Approval::by(|request: Request| async move {
///     // Ask a person here; this responder decides by itself.
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
/// # How answers are reused
///
/// An answer belongs to the id of its question ([`Request::id`]). In a run with a [key](RunContext::key), the id begins
/// with the key, and the answer serves this run only, each time it is made. In other runs, the id is a hash of the run's
/// kind, name and input, and runs with the same hash below the same key share the answer. A different input always needs
/// its own answer,
/// and later attempts with the same input reuse it. An answer is final: [`when`](Self::when) is not evaluated again.
/// Answers are kept in the first of these that exists:
///
/// 1. the [`Answers`] in the run's extensions, set on this run or inherited from a run above
///    ([`Run::extension`](emitree_runtime::Run::extension));
/// 2. the [`Answers`] passed to [`ledger`](Self::ledger);
/// 3. answers that live as long as the outermost run of the tree.
///
/// The work of a run that needs approval receives only the approved or the edited input. If a guard inside this
/// approval changes the input after the answer, the run is denied.
///
/// The hash covers the input's JSON, so a field that serde skips does not change the hash. If two approvals ask
/// different people but use the same answers, give them different [names](Self::named), so that they do not reuse each
/// other's answers.
///
/// # Asking by interrupt
///
/// [`Approval::by_interrupt`] ends the run with an [`Interrupt`](emitree_runtime::Interrupt) of the kind [`INTERRUPT`].
/// The data of the interrupt is a [`Request`]. The same question always has the same interrupt id. Once the question has
/// an answer, the run uses that answer and is not interrupted, even in another process:
///
/// ```
/// use emitree_middleware::approval::{Approval, Decision, Request};
/// use emitree_runtime::{Answers, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let delete = runnable_fn("delete", |path: String, _: RunContext| async move { Ok(format!("{path} is gone")) })
///     .middleware(Approval::by_interrupt());
/// let error = delete.run("/tmp".to_owned()).await.unwrap_err();
/// let stored = serde_json::to_string(error.interrupt().unwrap())?;
///
/// // Later, perhaps in another process: check that the request matches its id, and show the request to a person.
/// let request = Request::of_interrupt(&serde_json::from_str(&stored)?)?;
/// assert_eq!(request.input, "/tmp");
/// let answers = Answers::new();
/// answers.answer(request.id, Decision::Approve);
/// assert_eq!(delete.run("/tmp".to_owned()).extension(answers).await?, "/tmp is gone");
/// # Ok(())
/// # }
/// ```
///
/// An answer that is no [`Decision`], or a choice that is not allowed, or a response that does not fit the run's output
/// type, is [removed](Answers::refuse): the run is interrupted again, and the data of the interrupt has the answer and
/// the reason as `refused`.
///
/// An agent's run combines the interrupts of its tool calls into one interrupt. [`Request::all_of`] reads all requests
/// from that interrupt.
///
/// # Failures
///
/// An approval fails closed. The run is denied, and the denial states the reason, if
///
/// - the responder fails, panics or takes longer than the [`timeout`](Self::timeout),
/// - a predicate panics,
/// - the answer is an edit and [edits are not allowed](Self::without_edits), or a response that does not fit the run's
///   output type (see *Asking by interrupt* for approvals that interrupt),
/// - the input, the edited input or the response is nested too deeply.
///
/// None of these failures is kept as an answer. If the responder returns control flow, the run ends with it. For
/// example, `Err(Error::interrupted(request.to_interrupt()))` interrupts the run. A time-out that the responder returns
/// becomes a denial.
///
/// An edited input must fit the run's input type. If it does not, the work does not begin and the run fails with an
/// error that carries the detail `edited_by`. Guards inside this approval check the edited input; guards outside it
/// have checked the original input. If the run's answers [settle edits](Answers::settling_edits), as for an agent's
/// calls, the run is interrupted instead, and the code that has set them executes the edited input.
///
/// A [response](Decision::Respond) is checked by the guards inside this approval, and passes through the layers outside.
/// For a tool of an agent, it is the content of the output.
///
/// # Order
///
/// 1. Look the answer up. If there is one, continue with step 4.
/// 2. If another run is asking the same question with the same answers, wait for its answer or failure. Otherwise emit
///    `asked` and call the responder.
/// 3. Keep the answer.
/// 4. Emit `approved`, `edited`, `responded` or `rejected`.
/// 5. Begin the work, return the response, or deny the run.
///
/// # Cancel safety
///
/// A run that is aborted or dropped stops waiting immediately. If the asking run is aborted or dropped, the responder's
/// future is dropped, and one of the waiting runs asks next.
///
/// # Its own events
///
/// `middleware.approval.asked`, `.approved`, `.edited`, `.responded` and `.rejected`: [`Asked`], [`Approved`],
/// [`Edited`], [`Responded`] and [`Rejected`]. These events carry the request's id, and the hash of the run's kind, name and input.
#[derive(Clone)]
pub struct Approval {
    by: Arc<str>,
    responder: Responder,
    runs: FilterSpec,
    when: Vec<Arc<RequestPredicate>>,
    timeout: Option<Duration>,
    edits: bool,
    ledger: Option<Answers>,
    own_events: OwnEvents,
}

/// The answers of a run tree for which none were set, in the extensions of the outermost run.
#[derive(Default)]
struct AnswersOfTree(Answers);

type RequestPredicate = dyn Fn(&Request) -> bool + Send + Sync;

impl Approval {
    /// Creates an approval that asks an async function and waits for its answer. Set a [`timeout`](Self::timeout) to
    /// limit the wait.
    #[must_use]
    pub fn by<F, Fut>(responder: F) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Decision>> + Send + 'static,
    {
        Self::of(Responder::Live(Arc::new(move |request| Box::pin(responder(request)))))
    }

    /// Creates an approval that interrupts the run with the [`Request`], unless the question has an answer.
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
            own_events: OwnEvents::new(Namespace::new("middleware.approval")),
        }
    }

    /// Asks only about these runs. Further calls add runs. Default: all runs.
    #[must_use]
    pub fn runs(mut self, runs: Runs) -> Self {
        self.runs.add(runs);
        self
    }

    /// Asks about runs of this kind: short for `runs(Runs::of_kind(kind))`.
    #[must_use]
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        self.runs(Runs::of_kind(kind))
    }

    /// Asks only if the predicate returns `true` for the request, which includes the input. With several predicates,
    /// all must return `true`. Not called for a question that has an answer.
    #[must_use]
    pub fn when(mut self, asks: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.when.push(Arc::new(asks));
        self
    }

    /// Sets how long a run waits for an answer before the run is denied, measured by tokio's clock. Default: no limit.
    /// An approval created with [`by_interrupt`](Self::by_interrupt) does not wait for an answer.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Disallows answers that edit the input. Default: allowed.
    #[must_use]
    pub const fn without_edits(mut self) -> Self {
        self.edits = false;
        self
    }

    /// Sets the answers for runs without [`Answers`] in their extensions.
    #[must_use]
    pub fn ledger(mut self, ledger: Answers) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// Sets the name of this approval: denials carry it, and ids of requests depend on it. Default: `approval`. Approvals
    /// with different names do not share answers.
    #[must_use]
    pub fn named(mut self, by: impl Into<Arc<str>>) -> Self {
        self.by = by.into();
        self
    }

    const fn choices(&self) -> &'static [Choice] {
        if self.edits { ALL_CHOICES } else { CHOICES_WITHOUT_EDIT }
    }

    /// Returns the first answers that exist: the run's own or inherited answers, the configured answers, or the answers of
    /// the tree.
    fn answers_of(&self, ctx: &RunContext) -> Answers {
        let given = Answers::of(ctx).or_else(|| self.ledger.clone());
        given.unwrap_or_else(|| {
            let outermost = std::iter::successors(Some(ctx), |run| run.parent()).last().unwrap_or(ctx);
            outermost.extension_or_default::<AnswersOfTree>().0.clone()
        })
    }

    fn stack(&self) -> Stack<JsonRun> {
        // The recording layer is directly inside the layer that asks, and the verifying layer is the innermost guard:
        // all guards that could change an approved input are between these two layers.
        let by = &self.by;
        let allowed_inputs = AllowedInputs::default();
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
        // A predicate of `runs` that panics denies the run (M5).
        if self.runs.guards(ctx, &self.by)? { self.stack().bind(ctx) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        &self.by
    }

    fn handles(&self, kind: &str, name: &str) -> bool {
        self.runs.may_have(kind, name)
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self)
            .with_layers(|| self.stack().layers())
            .with_near_miss(|kind, name| self.runs.near_miss(kind, name))
    }
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.responder)?;
        self.timeout.map_or(Ok(()), |timeout| write!(f, " (timeout {timeout:?})"))?;
        f.write_str(&self.runs.after(", about runs "))?;
        f.write_str(if self.edits { "" } else { ", without edits" })
    }
}
