//! Tests of the contracts: worked examples, and properties over random messages.

mod acceptance;
mod edits;
mod examples;
mod generate;
