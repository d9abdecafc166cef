//! The client against servers: the bank of the example, and small ones in `bash`.

mod support;

mod bank;
mod eras;
mod lists;
mod peers;
mod processes;
mod questions;
mod results;
