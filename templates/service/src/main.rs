//! `MODEL=openai:gpt-5-mini OPENAI_API_KEY=… cargo run`

use std::env::var;
use std::time::Duration;

use emitree::agent::ChatModel;
use emitree::middleware::Redact;
use emitree::otlp::Otlp;
use emitree::stores::SqliteStore;
use emitree::{Emitter, Result, shutdown};
use my_service::{Service, cashier};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

fn setting(name: &str, default: &str) -> String {
    var(name).unwrap_or_else(|_| default.to_owned())
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let traces = match var("OTEL_EXPORTER_OTLP_ENDPOINT") {
        Ok(_) => Some(Emitter::root().pipe_to(Redact::new().sink(Otlp::from_env()?.sink()))?),
        Err(_) => None,
    };

    let agent = cashier(ChatModel::from_name(&setting("MODEL", "ollama:granite4"))?)?;
    let store = SqliteStore::open(setting("DATABASE", "service.db")).await?;
    let service = Service::start(agent, store).await?;
    let listener = TcpListener::bind(setting("LISTEN", "127.0.0.1:8080")).await?;
    eprintln!("listens on {}", listener.local_addr()?);
    let stopped = async { drop(tokio::signal::ctrl_c().await) };
    let server = tokio::spawn(axum::serve(listener, service.router()).with_graceful_shutdown(stopped).into_future());
    tokio::signal::ctrl_c().await?;

    // Runs end, and are resumed by the next process. Then the last events leave.
    eprintln!("{}", shutdown(Duration::from_secs(10)).await);
    server.await??;
    service.idle().await;
    if let Some(traces) = traces {
        traces.close(Duration::from_secs(10)).await.complete()?;
    }
    Ok(())
}
