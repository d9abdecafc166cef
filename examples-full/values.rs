//! Keeps what an agent is told in a key-value store, with three layers around it: an audit, a cache and encryption.
//!
//! ```text
//! cargo run -p emitree-examples --example values
//! ```
//!
//! A scripted model remembers a text with a tool, and recalls it twice. The second time, the cache answers. The audit
//! prints each operation and its result. In the store, the value is encrypted with ChaCha20-Poly1305.

use std::collections::HashMap;
use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use emitree::agent::values::{Change, ReadValue, WriteValue, Written};
use emitree::agent::{Agent, AgentContext, AgentMiddleware, ChatModel, Hooks, ScriptedModel, hooks_fn, tool_fn};
use emitree::layer::Observe;
use emitree::middleware::values::{KeyValues, MemoryValues, ValueKey};
use emitree::{Error, Layer, Next, Op, Result, RunContext};
use parking_lot::Mutex;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "../examples/shared/help.rs"]
mod help;

/// Prints the input of each operation, and whether it succeeded.
#[derive(Debug)]
struct Audit;

impl<O: Op<In: std::fmt::Debug>> Observe<O> for Audit {
    type Memo = String;

    fn before(&self, input: &O::In, ctx: &RunContext) -> String {
        format!("[audit] {} of {}: {input:?}", O::name(), ctx.name())
    }

    fn after(&self, operation: String, result: &Result<O::Out>, _: &RunContext) {
        println!("{operation}: {}", result.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned()));
    }
}

/// Answers a read with the value that an earlier read returned, unless the key was written since.
#[derive(Clone, Debug, Default)]
struct ReadCache(Arc<Mutex<Cached>>);

#[derive(Debug, Default)]
struct Cached {
    values: HashMap<ValueKey, Value>,
    /// The number of writes that have ended.
    writes: u64,
}

impl Layer<ReadValue> for ReadCache {
    async fn call(&self, key: &ValueKey, _: &RunContext, next: Next<'_, ReadValue>) -> Result<Option<Value>> {
        let (cached, writes) = {
            let cache = self.0.lock();
            (cache.values.get(key).cloned(), cache.writes)
        };
        if cached.is_some() {
            println!("[cache] has {key}");
            // The guards inside, if there were any, check the value as if the store had returned it.
            next.check_output(&cached).await?;
            return Ok(cached);
        }
        let read = next.run(key).await?;
        let mut cache = self.0.lock();
        // A write that has ended meanwhile may have changed the value.
        if let Some(value) = read.as_ref().filter(|_| cache.writes == writes) {
            cache.values.insert(key.clone(), value.clone());
        }
        drop(cache);
        Ok(read)
    }
}

impl Layer<WriteValue> for ReadCache {
    async fn call(&self, change: &Change, _: &RunContext, next: Next<'_, WriteValue>) -> Result<Written> {
        let _forget = Forget(self, &change.key);
        next.run(change).await
    }
}

/// Removes a value from the cache when a write has ended, also if it has failed or was dropped.
struct Forget<'a>(&'a ReadCache, &'a ValueKey);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut cache = self.0.0.lock();
        cache.writes += 1;
        cache.values.remove(self.1);
    }
}

/// Encrypts values with a key that the store does not have. A value is bound to its place: under another key of the
/// store, it cannot be decrypted.
#[derive(Clone)]
struct Encrypted(Arc<LessSafeKey>);

impl Encrypted {
    fn with_new_key() -> Result<Self> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).map_err(|_| Error::new("no random bytes"))?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).map_err(|_| Error::new("the key has a wrong length"))?;
        Ok(Self(Arc::new(LessSafeKey::new(key))))
    }

    fn seal(&self, key: &ValueKey, value: &Value) -> Result<Value> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| Error::new("no random bytes"))?;
        let mut bytes = serde_json::to_vec(value)?;
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(key.to_string()), &mut bytes)
            .map_err(|_| Error::new(format!("the value of {key} is too long")))?;
        Ok(json!(STANDARD.encode([&nonce[..], &bytes].concat())))
    }

    fn open(&self, key: &ValueKey, sealed: &Value) -> Result<Value> {
        let wrong = || Error::new(format!("the value of {key} was not encrypted with this key"));
        let mut bytes = STANDARD.decode(sealed.as_str().ok_or_else(wrong)?).map_err(|_| wrong())?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN).ok_or_else(wrong)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| wrong())?;
        let opened = self.0.open_in_place(nonce, Aad::from(key.to_string()), sealed).map_err(|_| wrong())?;
        Ok(serde_json::from_slice(opened)?)
    }
}

impl Layer<ReadValue> for Encrypted {
    async fn call(&self, key: &ValueKey, _: &RunContext, next: Next<'_, ReadValue>) -> Result<Option<Value>> {
        next.run(key).await?.map(|sealed| self.open(key, &sealed)).transpose()
    }
}

impl Layer<WriteValue> for Encrypted {
    async fn call(&self, change: &Change, _: &RunContext, next: Next<'_, WriteValue>) -> Result<Written> {
        let sealed = change.value.as_ref().map(|value| self.seal(&change.key, value)).transpose()?;
        next.run(&Change::new(change.key.clone(), sealed)).await
    }
}

impl std::fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted")
    }
}

/// The three layers. The audit is in an outer phase; of the other two, the first is the outer one.
fn layers(encrypted: Encrypted) -> impl AgentMiddleware {
    hooks_fn("store", move |hooks: &mut Hooks| {
        let (cache, encrypted) = (ReadCache::default(), encrypted.clone());
        hooks.values_read(|stack| stack.observe(Audit).layer(cache.clone()).layer(encrypted.clone()));
        hooks.values_write(|stack| stack.observe(Audit).layer(cache).layer(encrypted));
    })
}

#[derive(Deserialize, JsonSchema)]
struct Fact {
    name: String,
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Name {
    name: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("values.rs")) {
        return Ok(());
    }
    let remember = tool_fn("remember", "Keeps a fact", |fact: Fact, ctx: RunContext| async move {
        ctx.values()?.write(&ValueKey::new(["fact", &fact.name])?, fact.text).await?;
        Ok("kept")
    });
    let recall = tool_fn("recall", "Returns a fact", |fact: Name, ctx: RunContext| async move {
        ctx.values()?.read(&ValueKey::new(["fact", &fact.name])?).await
    });
    let script = ScriptedModel::new("scripted")
        .call("remember", json!({"name": "door", "text": "The code is 1815."}))
        .call("recall", json!({"name": "door"}))
        .call("recall", json!({"name": "door"}))
        .text("The code is 1815.");
    let store = MemoryValues::new();
    let agent = Agent::builder("porter", ChatModel::new(script)?)
        .tool(remember)
        .tool(recall)
        .values(store.clone())
        .with(layers(Encrypted::with_new_key()?))
        .build()?;

    let answer = agent.ask("Remember the code of the door: 1815. What is it?").await?;
    println!("-- answer: {}", answer.text());
    let door = ValueKey::new(["fact", "door"])?;
    let stored = store.read(&door).await?.unwrap_or_default();
    println!("-- the store has {stored} under {door}");
    Ok(())
}
