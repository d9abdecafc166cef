//! The events of a trajectory reach the root emitter. This test runs in its own process, because a root listener
//! receives the events of all trajectories.

mod support;

use emitree_emitter::Emitter;
use emitree_middleware::trajectory::{Trajectory, TrajectoryEvent};
use emitree_runtime::Runnable;
use support::{Page, TestResult, instance};

#[tokio::test]
async fn the_root_emitter_receives_the_events_of_a_trajectory() -> TestResult {
    let trajectory = Trajectory::builder().writer(std::io::sink()).build()?;
    let page = Page::new();
    let seen = page.clone();
    Emitter::root().observe("middleware.trajectory.start", move |event: &TrajectoryEvent, _| {
        use std::io::Write;
        if event.message.contains("only_in_this_test") {
            writeln!(seen.clone(), "{}", event.message)?;
        }
        Ok(())
    })?;
    let below = instance(&Emitter::new(), "Tool", "only_in_this_test", |(): (), _| async { Ok(()) });
    below.run(()).middleware(trajectory).await?;
    page.expect(["Tool[only_in_this_test][start]"]);
    Ok(())
}
