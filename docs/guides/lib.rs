//! Compiles the programs of the guides in `docs/` as tests, and runs each of them unless it is marked `no_run`.
//!
//! ```text
//! cargo test --manifest-path docs/guides/Cargo.toml
//! ```
#![cfg(doctest)]

#[doc = include_str!("../first-middleware.md")]
pub mod first_middleware {}

#[doc = include_str!("../own-work.md")]
pub mod own_work {}

#[doc = include_str!("../agents.md")]
pub mod agents {}

#[doc = include_str!("../workflow.md")]
pub mod workflow {}

#[doc = include_str!("../what-survives-a-crash.md")]
pub mod what_survives_a_crash {}

#[doc = include_str!("../several-machines.md")]
pub mod several_machines {}

#[doc = include_str!("../durable-steps.md")]
pub mod durable_steps {}

#[doc = include_str!("../jobs.md")]
pub mod jobs {}

#[doc = include_str!("../recipes.md")]
pub mod recipes {}

#[doc = include_str!("../react.md")]
pub mod react {}

#[doc = include_str!("../handoff.md")]
pub mod handoff {}

#[doc = include_str!("../requirements.md")]
pub mod requirements {}

#[doc = include_str!("../tool-events.md")]
pub mod tool_events {}

#[doc = include_str!("../mcp.md")]
pub mod mcp {}

#[doc = include_str!("../models.md")]
pub mod models {}

#[doc = include_str!("../web-pages.md")]
pub mod web_pages {}

#[doc = include_str!("../web-service.md")]
pub mod web_service {}

#[doc = include_str!("../progress-bar.md")]
pub mod progress_bar {}

#[doc = include_str!("../testing.md")]
pub mod testing {}

#[doc = include_str!("../viewer.md")]
pub mod viewer {}

#[doc = include_str!("../tracing.md")]
pub mod tracing {}

#[doc = include_str!("../events-and-runs.md")]
pub mod events_and_runs {}

#[doc = include_str!("../middleware-order.md")]
pub mod middleware_order {}

#[doc = include_str!("../security.md")]
pub mod security {}

#[doc = include_str!("../coming-from-beeai.md")]
pub mod coming_from_beeai {}

#[doc = include_str!("../coming-from-langchain.md")]
pub mod coming_from_langchain {}

#[doc = include_str!("../coming-from-langgraph.md")]
pub mod coming_from_langgraph {}

#[doc = include_str!("../coming-from-openai-agents.md")]
pub mod coming_from_openai_agents {}

#[doc = include_str!("../coming-from-pydantic-ai.md")]
pub mod coming_from_pydantic_ai {}

#[doc = include_str!("../coming-from-temporal.md")]
pub mod coming_from_temporal {}

#[doc = include_str!("../coming-from-tower.md")]
pub mod coming_from_tower {}

#[doc = include_str!("../coming-from-vercel-ai.md")]
pub mod coming_from_vercel_ai {}

#[doc = include_str!("../what-redaction-cannot-see.md")]
pub mod what_redaction_cannot_see {}
