//! An agent that pays bills which a person has to approve, for the examples with approvals.

use std::error::Error;
use std::time::Duration;

use emitree::agent::{Agent, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Session, tool_fn};
use emitree::context::Answer;
use emitree::middleware::Runs;
use emitree::middleware::approval::{Approval, Decision};
use emitree::{Result, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// The exit code while questions are open.
pub(crate) const OPEN_QUESTIONS: u8 = 3;

#[derive(Deserialize, JsonSchema)]
struct Payment {
    to: String,
    amount: u32,
}

/// Calls `pay` for each name that a number follows. When there are results, answers with them.
fn reply(request: &ChatRequest) -> Reply {
    let results: Vec<_> = request.messages.iter().flat_map(|message| message.tool_results()).collect();
    if !results.is_empty() {
        let texts =
            results.iter().map(|result| result.response.as_str().map_or(result.response.to_string(), Into::into));
        return Reply::text(texts.collect::<Vec<_>>().join("; "));
    }
    let question = request.messages.iter().rfind(|message| message.role == Role::User);
    let text = question.map(|message| message.text()).unwrap_or_default();
    let words: Vec<_> = text.split_whitespace().collect();
    let payments = words.windows(2).filter_map(|pair| Some((pair[0], pair[1].parse::<u32>().ok()?)));
    let calls: Vec<_> = payments.map(|(to, amount)| ("pay", json!({"to": to, "amount": amount}))).collect();
    if calls.is_empty() { Reply::text("There is nothing to pay.") } else { Reply::calls(calls) }
}

/// Returns the agent. Each payment takes this time.
pub(crate) fn payer(time: Duration) -> Result<Agent> {
    let pay = tool_fn("pay", "Pays somebody", move |Payment { to, amount }: Payment, ctx: RunContext| async move {
        tokio::time::sleep(time).await;
        // A bank that knows this key pays once, however often it is asked.
        let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
        println!("   ... pays {to} {amount} ({key})");
        Ok(format!("paid {to} {amount}"))
    })?;
    let approval = Approval::by_interrupt().runs(Runs::named("pay"));
    let model = ChatModel::new(ScriptedModel::by("scripted", reply))?;
    Agent::builder("payer", model).tool(pay).middleware(for_tree(approval)).build()
}

pub(crate) fn print_questions(session: &Session) {
    for question in session.questions() {
        let refused = &question.data["refused"];
        println!("{}\n   pay {}", question.id, question.data["input"]);
        if let Some(reason) = refused["reason"].as_str() {
            println!("   refused: {} ({reason})", refused["answer"]["value"]);
        }
    }
}

/// Reads an answer from words such as `reject "too much" --by ada`.
pub(crate) fn answer(words: &[String]) -> Result<Answer, Box<dyn Error>> {
    let (words, by) = match words {
        [words @ .., flag, by] if flag == "--by" => (words, Some(by)),
        words => (words, None),
    };
    let decision = match words {
        [word] if word == "approve" => Decision::Approve,
        [word, json] if word == "edit" => Decision::Edit(serde_json::from_str(json)?),
        [word, reason] if word == "reject" => Decision::reject(reason),
        [word, text] if word == "respond" => Decision::Respond(text.as_str().into()),
        _ => {
            return Err(
                format!("{words:?} is no answer: write approve, edit JSON, reject REASON or respond TEXT").into()
            );
        }
    };
    let answer = Answer::from(decision);
    Ok(match by {
        Some(by) => answer.by(by),
        None => answer,
    })
}
