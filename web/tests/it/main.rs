//! Requests to the routers of a chat, and the streams that they get.

mod answers;
mod any_run;
mod each_end;
mod ends;
mod held;
mod long_runs;
mod races;
mod readers;
mod refusals;
mod support;
mod taken_back;
