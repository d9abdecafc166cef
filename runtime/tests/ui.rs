//! Programs that must compile, in the forms that users try first, and programs that must not compile, with the
//! compiler's messages.

// Compiled and called here: with a program that must compile, trybuild builds all dependencies again instead of checking
// them, which takes minutes.
#[path = "ui/pass/listeners.rs"]
mod listeners;
#[path = "ui/pass/middlewares.rs"]
mod middlewares;
#[path = "ui/pass/runnables.rs"]
mod runnables;

/// R1, R3, R5, R10.
#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}

/// R1, R3, R5, R10.
#[test]
fn the_forms_that_users_try_first_compile() {
    listeners::main();
    middlewares::main();
    runnables::main();
}
