//! Tests of the contracts: worked examples, and properties over random messages.

mod acceptance;
mod codec;
mod contracts;
mod edits;
mod examples;
mod generate;
mod peeks;
mod redaction;
