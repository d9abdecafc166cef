//! The place at which a call goes on at its server, and the question that is asked there.

use std::collections::BTreeMap;
use std::time::Duration;

use emitree_runtime::{Answer, Answers, Error, Interrupt, KeptValue, Result, RunContext};
use rmcp::model::{ElicitResult, InputRequest, InputRequiredResult, InputResponses};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::call::question::{ElicitAnswer, Request};
use crate::error::Fault;
use crate::server::Setup;
use crate::text::quoted;

/// The kind of the questions of servers.
const KIND: &str = "mcp.elicitation";

/// The most rounds of questions in one call.
const ROUNDS: usize = 10;

/// The most times in a row that a call is sent again because its result had a state and no question.
const REPEATS: u32 = 3;

/// The requests of one round, by the server's keys.
type Requests = BTreeMap<String, Request>;

/// The place at which a call goes on. The call keeps it with its question.
///
/// It has no `Debug` output, because the state belongs into no log.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Place {
    /// The number of rounds of questions so far.
    round: usize,
    /// `true` if the server has refused an earlier state, so that the call was made once more from its start.
    pub(super) is_again: bool,
    /// The server's `requestState`, byte for byte.
    pub(super) state: Option<String>,
    /// The requests of the last round, or nothing if the server has asked nothing since.
    pub(super) requests: Requests,
    /// The number of results in a row that had a state and no question.
    #[serde(skip)]
    repeated: u32,
}

impl Place {
    /// The start of a call that is made once more.
    pub(super) fn again() -> Self {
        Self { is_again: true, ..Self::default() }
    }

    /// Goes on to the place in a result.
    ///
    /// # Errors
    ///
    /// Returns an error if the questions of the result cannot be asked.
    pub(super) fn go_on(&mut self, required: InputRequiredResult, setup: &Setup) -> Result<(), Fault> {
        let InputRequiredResult { input_requests, request_state, .. } = required;
        self.state = request_state;
        let requests = input_requests.unwrap_or_default().into_iter().map(|(key, request)| match request {
            InputRequest::Elicitation(request) => Ok((key, Request::of(request.params, setup)?)),
            _ => Err(Fault::Question("it asks for more than an answer of the user".to_owned())),
        });
        self.requests = requests.collect::<Result<_, _>>()?;
        if !self.requests.is_empty() {
            self.repeated = 0;
            return self.begin_round(setup);
        }
        if self.repeated == REPEATS || self.state.is_none() {
            let fault = format!("its result has no question, and a state {} times in a row", self.repeated + 1);
            return Err(Fault::Question(fault));
        }
        self.repeated += 1;
        Ok(())
    }

    /// Goes on to a request in the middle of the call, in the old era.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be asked.
    pub(super) fn go_on_to(&mut self, request: Request, setup: &Setup) -> Result<(), Fault> {
        self.requests = [("question".to_owned(), request)].into();
        self.begin_round(setup)
    }

    fn begin_round(&mut self, setup: &Setup) -> Result<(), Fault> {
        self.round += 1;
        if self.round > ROUNDS {
            return Err(Fault::Question(format!("it has asked in more than {ROUNDS} rounds")));
        }
        let (bytes, most) = (json!(self.requests).to_string().len(), setup.limits.schema_bytes);
        if bytes > most {
            return Err(Fault::Question(format!("it has {bytes} bytes, and {most} are allowed: see `.limits(..)`")));
        }
        Ok(())
    }

    /// Returns the time until a call is sent again whose result had no question.
    pub(super) fn delay(&self) -> Duration {
        Duration::from_millis(100) * 2_u32.pow(self.repeated)
    }

    /// Returns the stored answers of this round, or an error that interrupts the run with the question. The call keeps
    /// this place with it.
    pub(super) fn ask_keeping(&self, setup: &Setup, tool: &str, ctx: &RunContext) -> Result<InputResponses> {
        let kept = KeptValue::new(json!(self));
        self.ask(setup, tool, ctx, |question| question.keeping(kept))
    }

    /// Returns the stored answer of this round, or an error that interrupts the run with the question. The call starts
    /// anew after the answer.
    pub(super) fn ask_anew(&self, setup: &Setup, tool: &str, ctx: &RunContext) -> Result<ElicitResult> {
        let answers = self.ask(setup, tool, ctx, |question| question)?;
        let answer = answers.into_values().next().ok_or_else(|| Error::new("the question has no request"))?;
        Ok(serde_json::from_value(answer)?)
    }

    fn ask(
        &self,
        setup: &Setup,
        tool: &str,
        ctx: &RunContext,
        with: impl FnOnce(Interrupt) -> Interrupt,
    ) -> Result<InputResponses> {
        let (Some(key), Some(answers)) = (ctx.key(), Answers::of(ctx)) else {
            return Err(Error::new("the tool was not called by an agent"));
        };
        let mut data = json!({"server": *setup.name, "tool": quoted(tool), "requests": self.requests});
        if self.round > 1 {
            // A question that the server asks twice is another one: the first answer has not been enough.
            data["round"] = self.round.into();
        }
        let question = with(Interrupt::new(KIND, data).about(&key));
        answers.ask_as(question, ctx, |answer| self.read(answer))
    }

    /// Reads the answer to the question of this round.
    fn read(&self, answer: &Answer) -> Result<InputResponses> {
        let mut given: BTreeMap<String, ElicitAnswer> = match self.requests.keys().next() {
            Some(key) if self.requests.len() == 1 && answer.value["action"].is_string() => {
                [(key.clone(), answer.read()?)].into()
            }
            _ => answer.read()?,
        };
        let mut answers = InputResponses::new();
        for (key, request) in &self.requests {
            let given = given.remove(key).ok_or_else(|| Error::new(format!("the request `{key}` has no answer")))?;
            answers.insert(key.clone(), json!(given.fit(request)?));
        }
        match given.keys().next() {
            None => Ok(answers),
            Some(key) => {
                let keys: Vec<_> = self.requests.keys().map(String::as_str).collect();
                Err(Error::new(format!("there is no request `{key}`; the requests are `{}`", keys.join("`, `"))))
            }
        }
    }
}
